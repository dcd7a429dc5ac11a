/* Writes the page about one or several runs. In tables, each run is a column. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/locale.h"
#include "base/text.h"
#include "cli/report.h"

enum { COLORS = 8, MOST_RANKS = 64, MOST_EPOCHS = 200, MOST_METRICS = 64, MOST_PHASES = 16 };

/* Writes a text that may be NULL. */
static void put_text(FILE *page, const char *text) {
    ls_page_put(page, text != NULL ? text : "");
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef struct words {
    char text[512];
} words;

/* The path on the command line may contain arbitrary bytes. */
static words name_of(const ls_run_record *run) {
    words name;
    (void)snprintf(name.text, sizeof name.text, "%s", run->path);
    for (size_t end = strlen(name.text); end > 1 && name.text[end - 1] == '/';) {
        name.text[--end] = '\0';
    }
    ls_text_make_printable(name.text);
    return name;
}

static words number_text(double number) {
    words text = {.text = ""};
    (void)ls_snprintf(text.text, sizeof text.text,
                      !isfinite(number)                                ? "–"
                      : number == floor(number) && fabs(number) < 1e15 ? "%.0f"
                                                                       : "%.6g",
                      number);
    return text;
}

static const json_t *epoch_of(const ls_run_record *run, size_t i) {
    return json_array_get(run->epochs, i);
}

static double metric_of(const ls_run_record *run, size_t i, const char *name) {
    return ls_record_number(json_object_get(epoch_of(run, i), "metrics"), name);
}

/* Returns NULL if the run has no epochs. */
static const json_t *last_epoch_of(const ls_run_record *run) {
    return epoch_of(run, json_array_size(run->epochs) - 1);
}

static bool is_in_last_epoch(const ls_run_record *run, const char *name) {
    return json_object_get(json_object_get(last_epoch_of(run), "metrics"), name) != NULL;
}

/* Returns the value after the last epoch. A metric that is not in the epoch is a result of an evaluation. */
static double last_of(const ls_run_record *run, const char *name) {
    return ls_record_number(is_in_last_epoch(run, name) ? json_object_get(last_epoch_of(run), "metrics") : run->results,
                            name);
}

static double seconds_of(const ls_run_record *run) {
    double sum = 0;
    for (size_t i = 0; i < json_array_size(run->epochs); i++) {
        const double seconds = ls_record_number(epoch_of(run, i), "seconds");
        sum += isfinite(seconds) ? seconds : 0;
    }
    return sum;
}

static double steps_of(const ls_run_record *run) {
    const double in_epochs = ls_record_number(last_epoch_of(run), "step");
    const double in_curve = run->loss.count > 0 ? run->loss.x[run->loss.count - 1] : 0;
    return in_epochs > in_curve ? in_epochs : in_curve;
}

/* Returns the index of the key, or `count` if it is not in the list. */
static int find_key(const char *const *keys, int count, const char *key) {
    int k = 0;
    while (k < count && strcmp(keys[k], key) != 0) {
        k++;
    }
    return k;
}

/* Adds the keys of an object in the epochs, in the order of their first appearance. Borrows the keys. */
static int add_keys(const ls_run_record *run, const char *object, const char **keys, int count, int most) {
    for (size_t i = 0; i < json_array_size(run->epochs); i++) {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(epoch_of(run, i), object), key, value) {
            if (count < most && find_key(keys, count, key) == count) {
                keys[count++] = key;
            }
        }
    }
    return count;
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static void put_tile(FILE *page, const char *name, const char *value) {
    fputs("<div><dt>", page);
    ls_page_put(page, name);
    fputs("</dt><dd>", page);
    ls_page_put(page, value);
    fputs("</dd></div>", page);
}

static words duration_text(double seconds) {
    words text = {.text = ""};
    const double unit = seconds < 100 ? 1 : seconds < 6000 ? 60 : 3600;
    (void)ls_snprintf(text.text, sizeof text.text, "%.3g %s", seconds / unit,
                      unit == 1    ? "s"
                      : unit == 60 ? "min"
                                   : "h");
    return text;
}

static words time_text(double seconds) {
    words text = {.text = "–"};
    const time_t when = isfinite(seconds) ? (time_t)seconds : 0;
    struct tm parts;
    if (when > 0 && gmtime_r(&when, &parts) != NULL) {
        (void)strftime(text.text, sizeof text.text, "%Y-%m-%d %H:%M UTC", &parts);
    }
    return text;
}

/* Returns the number of completed epochs, and of planned epochs if known, as text. */
static words epochs_text(const ls_run_record *run) {
    const double planned = ls_record_number(run->start, "epochs");
    const words done =
        number_text(json_array_size(run->epochs) > 0 ? ls_record_number(last_epoch_of(run), "epoch") + 1 : 0);
    words text;
    (void)snprintf(text.text, sizeof text.text, "%.100s of %.100s", done.text, number_text(planned).text);
    return isfinite(planned) ? text : done;
}

static void put_run(FILE *page, const ls_run_record *run, const char *const *metrics, int metric_count) {
    fputs("<section class=\"card run\"><div class=\"head\"><h3>", page);
    ls_page_put(page, name_of(run).text);
    fprintf(page, "</h3><span class=\"soft\">%s; started %s", run->ended ? "ended" : "running or interrupted",
            time_text(ls_record_number(run->start, "time")).text);
    if (run->resumes > 0) {
        fprintf(page, "; resumed %d time%s", run->resumes, run->resumes == 1 ? "" : "s");
    }
    fprintf(page, "%s</span></div><dl class=\"tiles\">", run->incomplete ? "; the last line is incomplete" : "");
    put_tile(page, "epochs", epochs_text(run).text);
    put_tile(page, "steps", number_text(steps_of(run)).text);
    put_tile(page, "ranks", number_text(ls_record_number(run->start, "ranks")).text);
    put_tile(page, "time", duration_text(seconds_of(run)).text);
    put_tile(page, "samples/s", number_text(ls_record_number(last_epoch_of(run), "samples_per_second")).text);
    for (int i = 0; i < metric_count && i < 8; i++) {
        put_tile(page, metrics[i], number_text(last_of(run, metrics[i])).text);
    }
    const char *name;
    json_t *value;
    json_object_foreach(run->results, name, value) {
        if (find_key(metrics, metric_count, name) == metric_count && strcmp(name, "epoch") != 0) {
            put_tile(page, name, number_text(ls_record_number(run->results, name)).text);
        }
    }
    fputs("</dl></section>\n", page);
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

/* Adds an empty curve. With one run, each curve has its own color. With several runs, each run has its own color,
 * and validation curves are dashed. */
static ls_chart_curve *add_curve(ls_chart *chart, const ls_run_record *runs, int count, int r, const char *name) {
    ls_chart_curve *added = &chart->curves[chart->count];
    *added = (ls_chart_curve){.color = count == 1 ? chart->count % COLORS : r % COLORS,
                              .dashed = strncmp(name, "val_", 4) == 0};
    (void)snprintf(added->label, sizeof added->label, "%.64s%s%.120s", name, count > 1 ? " of " : "",
                   count > 1 ? name_of(&runs[r]).text : "");
    ls_text_make_printable(added->label); /* each part may end within a character */
    chart->count++;
    return added;
}

/* Takes ownership of the curves of the records. */
static void chart_steps(FILE *page, ls_run_record *runs, int count, bool rate) {
    ls_chart chart = {.title = rate ? "Learning rate" : "Training loss", .axis = "step"};
    for (int r = 0; r < count; r++) {
        ls_curve *curve = rate ? &runs[r].rate : &runs[r].loss;
        add_curve(&chart, runs, count, r, rate ? "rate" : "loss")->curve = *curve;
        *curve = (ls_curve){.count = 0};
    }
    ls_chart_write(page, &chart);
}

static ls_status add_epochs(ls_chart *chart, const ls_run_record *runs, int count, const char *name) {
    ls_status status = LS_OK;
    for (int r = 0; r < count && status == LS_OK && chart->count < LS_CHART_CURVES; r++) {
        ls_chart_curve *added = add_curve(chart, runs, count, r, name);
        for (size_t i = 0; status == LS_OK && i < json_array_size(runs[r].epochs); i++) {
            const double value = strcmp(name, "samples/s") == 0
                                     ? ls_record_number(epoch_of(&runs[r], i), "samples_per_second")
                                     : metric_of(&runs[r], i, name);
            status = ls_curve_add(&added->curve, ls_record_number(epoch_of(&runs[r], i), "epoch"), value);
        }
    }
    return status;
}

/* The chart of a metric also contains the validation metric. */
static ls_status chart_metric(FILE *page, const ls_run_record *runs, int count, const char *const *metrics,
                              int metric_count, int m) {
    char pair[256];
    const char *name = metrics[m];
    const bool validation = strncmp(name, "val_", 4) == 0;
    (void)snprintf(pair, sizeof pair, "%s%s", validation ? "" : "val_", validation ? name + 4 : name);
    const int other = find_key(metrics, metric_count, pair);
    if (validation && other < metric_count) {
        return LS_OK; /* already in the chart of the training metric */
    }
    ls_chart chart = {.title = name, .axis = "epoch"};
    ls_status status = add_epochs(&chart, runs, count, name);
    if (status == LS_OK && other < metric_count) {
        status = add_epochs(&chart, runs, count, pair);
    }
    ls_chart_write(page, &chart);
    return status;
}

static ls_status put_curves(FILE *page, ls_run_record *runs, int count, const char *const *metrics, int metric_count) {
    fputs("<h2>Curves</h2>\n<div class=\"grid2\">\n", page);
    chart_steps(page, runs, count, false);
    for (int m = 0; m < metric_count; m++) {
        LS_TRY(chart_metric(page, runs, count, metrics, metric_count, m));
    }
    ls_chart chart = {.title = "Throughput (samples/s)", .axis = "epoch"};
    const ls_status status = add_epochs(&chart, runs, count, "samples/s");
    ls_chart_write(page, &chart);
    LS_TRY(status);
    chart_steps(page, runs, count, true);
    fputs("</div>\n", page);
    return LS_OK;
}

/* Writes the numbers of the last epochs. */
static void put_epochs(FILE *page, const ls_run_record *run, const char *const *metrics, int metric_count) {
    const size_t epochs = json_array_size(run->epochs), shown = epochs < MOST_EPOCHS ? epochs : MOST_EPOCHS;
    fputs("<details class=\"card run\"><summary>Epochs of ", page);
    ls_page_put(page, name_of(run).text);
    fprintf(page, "%s</summary><div class=\"wide\"><table><tr><th>epoch</th><th class=\"n\">samples/s</th>",
            shown < epochs ? " (the last 200)" : "");
    for (int m = 0; m < metric_count; m++) {
        fputs("<th class=\"n\">", page);
        ls_page_put(page, metrics[m]);
        fputs("</th>", page);
    }
    fputs("</tr>\n", page);
    for (size_t i = epochs - shown; i < epochs; i++) {
        ls_fprintf(page, "<tr><td>%g</td><td class=\"n\">%s</td>", ls_record_number(epoch_of(run, i), "epoch"),
                   number_text(ls_record_number(epoch_of(run, i), "samples_per_second")).text);
        for (int m = 0; m < metric_count; m++) {
            fprintf(page, "<td class=\"n\">%s</td>", number_text(metric_of(run, i, metrics[m])).text);
        }
        fputs("</tr>\n", page);
    }
    fputs("</table></div></details>\n", page);
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

/* Seconds, summed over all epochs. Communication is also counted in the other phases, and not in `longest`. */
typedef struct phases {
    const char *names[MOST_PHASES];
    int count, ranks;
    bool used[MOST_PHASES];
    double seconds[MOST_RANKS][MOST_PHASES];
    double longest; /* seconds of the slowest rank */
} phases;

static bool is_communication(const phases *all, int p) {
    return strcmp(all->names[p], "communication") == 0;
}

static phases sum_phases(const ls_run_record *run) {
    const double ranks = ls_record_number(run->start, "ranks");
    phases all = {.ranks = ranks >= 1 && ranks < MOST_RANKS ? (int)ranks : MOST_RANKS};
    all.count = add_keys(run, "phases", all.names, 0, MOST_PHASES);
    for (int rank = 0; rank < all.ranks; rank++) {
        double sum = 0;
        for (int p = 0; p < all.count; p++) {
            double *seconds = &all.seconds[rank][p];
            for (size_t i = 0; i < json_array_size(run->epochs); i++) {
                const json_t *phase = json_object_get(json_object_get(epoch_of(run, i), "phases"), all.names[p]);
                *seconds += json_number_value(json_array_get(phase, (size_t)rank));
            }
            all.used[p] = all.used[p] || *seconds > 0;
            sum += is_communication(&all, p) ? 0 : *seconds;
        }
        all.longest = sum > all.longest ? sum : all.longest;
    }
    return all;
}

static void put_phase_row(FILE *page, const ls_run_record *run, const phases *all, int rank) {
    const double *seconds = all->seconds[rank];
    fprintf(page, "<tr><td>%d <span class=\"soft\">", rank);
    put_text(page, json_string_value(json_array_get(json_object_get(run->start, "hosts"), (size_t)rank)));
    fputs("</span></td><td><div class=\"bar\">", page);
    for (int p = 0; p < all->count; p++) {
        if (all->used[p] && !is_communication(all, p)) {
            ls_fprintf(page, "<i class=\"b%d\" style=\"width:%.2f%%\" title=\"", p % COLORS,
                       100 * seconds[p] / all->longest);
            ls_page_put(page, all->names[p]);
            ls_fprintf(page, " %.3g s\"></i>", seconds[p]);
        }
    }
    fputs("</div></td>", page);
    for (int p = 0; p < all->count; p++) {
        if (all->used[p]) {
            ls_fprintf(page, "<td class=\"n\">%.3f</td>", seconds[p]);
        }
    }
    fputs("</tr>\n", page);
}

static void put_phases(FILE *page, const ls_run_record *run) {
    const phases all = sum_phases(run);
    if (!(all.longest > 0) || !isfinite(all.longest)) {
        return;
    }
    fputs("<section class=\"card run\"><h3>", page);
    ls_page_put(page, name_of(run).text);
    fprintf(page,
            "</h3><p class=\"soft\">Seconds of all epochs. Communication is also counted in the part during which it "
            "occurs.%s</p><div class=\"wide\"><table class=\"bars\"><tr><th>rank</th><th></th>",
            ls_record_number(run->start, "ranks") > MOST_RANKS ? " The first 64 ranks." : "");
    for (int p = 0; p < all.count; p++) {
        if (all.used[p]) {
            fputs("<th class=\"n\">", page);
            if (!is_communication(&all, p)) {
                fprintf(page, "<span class=\"swatch b%d\"></span>", p % COLORS);
            }
            ls_page_put(page, all.names[p]);
            fputs("</th>", page);
        }
    }
    fputs("</tr>\n", page);
    for (int rank = 0; rank < all.ranks; rank++) {
        put_phase_row(page, run, &all, rank);
    }
    fputs("</table></div></section>\n", page);
}

/* ---- configuration and machine ----------------------------------------------------------------------------------- */

/* Writes a value of the line "start": a string, a number, or a list of strings, one per line without duplicates. */
static void put_value(FILE *page, const json_t *value) {
    if (json_is_number(value)) {
        ls_fprintf(page, "%.15g", json_number_value(value));
    }
    put_text(page, json_string_value(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        size_t first = 0;
        while (!json_equal(json_array_get(value, first), json_array_get(value, i))) {
            first++;
        }
        if (first == i) {
            fputs("<div>", page);
            put_text(page, json_string_value(json_array_get(value, i)));
            fputs("</div>", page);
        }
    }
}

static void put_row(FILE *page, const ls_run_record *runs, int count, const char *key) {
    bool differs = false;
    for (int r = 1; r < count; r++) {
        differs = differs || !json_equal(json_object_get(runs[r].start, key), json_object_get(runs[0].start, key));
    }
    fprintf(page, "<tr%s><th>%s</th>", differs ? " class=\"differs\"" : "", key);
    for (int r = 0; r < count; r++) {
        fputs("<td>", page);
        put_value(page, json_object_get(runs[r].start, key));
        fputs("</td>", page);
    }
    fputs("</tr>\n", page);
}

static void begin_table(FILE *page, const ls_run_record *runs, int count, const char *title) {
    fprintf(page, "<h2>%s</h2>\n<div class=\"card wide\"><table class=\"pairs\">\n", title);
    if (count > 1) {
        fputs("<tr><th></th>", page);
        for (int r = 0; r < count; r++) {
            fputs("<th>", page);
            ls_page_put(page, name_of(&runs[r]).text);
            fputs("</th>", page);
        }
        fputs("</tr>\n", page);
    }
}

static void put_tables(FILE *page, const ls_run_record *runs, int count) {
    static const char *const configuration[] = {"command", "epochs", "parameters", "dtype", "setup"};
    static const char *const machine[] = {"hosts",     "ranks", "backend", "device",
                                          "processor", "cores", "system",  "version"};
    begin_table(page, runs, count, "Configuration");
    for (size_t i = 0; i < sizeof configuration / sizeof configuration[0]; i++) {
        put_row(page, runs, count, configuration[i]);
    }
    fputs("</table></div>\n", page);
    for (int r = 0; r < count; r++) {
        const char *model = json_string_value(json_object_get(runs[r].start, "model"));
        fputs("<details class=\"card run\"><summary>Model of ", page);
        ls_page_put(page, name_of(&runs[r]).text);
        fputs("</summary><pre>", page);
        put_text(page, model);
        fputs("</pre></details>\n", page);
    }
    begin_table(page, runs, count, "Machine");
    for (size_t i = 0; i < sizeof machine / sizeof machine[0]; i++) {
        put_row(page, runs, count, machine[i]);
    }
    fputs("</table></div>\n", page);
}

ls_status ls_page_write(FILE *page, ls_run_record *runs, int count) {
    const char *metrics[MOST_METRICS];
    int metric_count = 0;
    for (int r = 0; r < count; r++) {
        metric_count = add_keys(&runs[r], "metrics", metrics, metric_count, MOST_METRICS);
    }
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n<title>Lockstep: ",
          page);
    ls_page_put(page, name_of(&runs[0]).text);
    fprintf(page, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>Training run%s</h1>\n", ls_page_style,
            count > 1 ? "s" : "");
    for (int r = 0; r < count; r++) {
        put_run(page, &runs[r], metrics, metric_count);
    }
    LS_TRY(put_curves(page, runs, count, metrics, metric_count));
    for (int r = 0; r < count; r++) {
        put_epochs(page, &runs[r], metrics, metric_count);
    }
    fputs("<h2>Phases of ranks</h2>\n", page);
    for (int r = 0; r < count; r++) {
        put_phases(page, &runs[r]);
    }
    put_tables(page, runs, count);
    fputs("</body>\n</html>\n", page);
    return LS_OK;
}
