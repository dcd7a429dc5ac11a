/* Writes the page about one or several runs. Runs are the columns of tables. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/locale.h"
#include "base/text.h"
#include "cli/report.h"

enum { COLORS = 8, MOST_RANKS = 64, MOST_EPOCHS = 200, MOST_METRICS = 64, PHASES = 8 };

/* Times of ls_time in the order of lines of epochs. The last one is also counted in the others. */
static const char *const phase_names[PHASES] = {"data",      "forward", "backward",   "optimizer",
                                                "user step", "waiting", "validation", "communication"};
enum { COMMUNICATION = PHASES - 1 };

/* Writes a text that may be missing. */
static void put_text(FILE *page, const char *text) {
    ls_page_put(page, text != NULL ? text : "");
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef struct words {
    char text[512];
} words;

/* The path on the command line may have any bytes. */
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
                      !isfinite(number)         ? "–"
                      : number == floor(number) ? "%.0f"
                                                : "%.6g",
                      number);
    return text;
}

static double real_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const json_t *epoch_of(const ls_run_record *run, size_t i) {
    return json_array_get(run->epochs, i);
}

static double metric_of(const ls_run_record *run, size_t i, const char *name) {
    return real_of(json_object_get(epoch_of(run, i), "metrics"), name);
}

/* Returns the value after the last epoch, or the result of an evaluation. */
static double last_of(const ls_run_record *run, const char *name) {
    const size_t epochs = json_array_size(run->epochs);
    const double value = epochs > 0 ? metric_of(run, epochs - 1, name) : NAN;
    return isnan(value) ? real_of(run->results, name) : value;
}

/* The seconds of all runs of the trial until their last epoch. Each run counts from 0. */
static double seconds_of(const ls_run_record *run) {
    double sum = 0, before = 0;
    for (size_t i = 0; i < json_array_size(run->epochs); i++) {
        const double seconds = real_of(epoch_of(run, i), "seconds");
        if (isfinite(seconds)) {
            sum += seconds >= before ? seconds - before : seconds;
            before = seconds;
        }
    }
    return sum;
}

static double steps_of(const ls_run_record *run) {
    const size_t epochs = json_array_size(run->epochs);
    const double in_epochs = epochs > 0 ? real_of(epoch_of(run, epochs - 1), "step") : 0;
    const double in_curve = run->loss.count > 0 ? run->loss.x[run->loss.count - 1] : 0;
    return in_epochs > in_curve ? in_epochs : in_curve;
}

static double throughput_of(const ls_run_record *run) {
    const size_t epochs = json_array_size(run->epochs);
    return epochs > 0 ? real_of(epoch_of(run, epochs - 1), "samples_per_second") : NAN;
}

/* Lists the names of metrics of all runs, in the order of their first appearance. Borrows the names. */
static int list_metrics(const ls_run_record *runs, int count, const char *names[MOST_METRICS]) {
    int found = 0;
    for (int r = 0; r < count; r++) {
        for (size_t i = 0; i < json_array_size(runs[r].epochs); i++) {
            const char *name;
            json_t *value;
            json_object_foreach(json_object_get(epoch_of(&runs[r], i), "metrics"), name, value) {
                int k = 0;
                while (k < found && strcmp(names[k], name) != 0) {
                    k++;
                }
                if (k == found && found < MOST_METRICS) {
                    names[found++] = name;
                }
            }
        }
    }
    return found;
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

static void put_run(FILE *page, const ls_run_record *run, const char *const *metrics, int metric_count) {
    words epochs;
    (void)ls_snprintf(epochs.text, sizeof epochs.text, "%zu of %g", json_array_size(run->epochs),
                      real_of(run->start, "epochs"));
    fputs("<section class=\"card run\"><div class=\"head\"><h3>", page);
    ls_page_put(page, name_of(run).text);
    fprintf(page, "</h3><span class=\"soft\">%s; started %s", run->ended ? "ended" : "running or interrupted",
            time_text(real_of(run->start, "time")).text);
    if (run->resumes > 0) {
        fprintf(page, "; resumed %d time%s", run->resumes, run->resumes == 1 ? "" : "s");
    }
    fprintf(page, "%s</span></div><dl class=\"tiles\">", run->incomplete ? "; the last line is incomplete" : "");
    put_tile(page, "epochs", epochs.text);
    put_tile(page, "steps", number_text(steps_of(run)).text);
    put_tile(page, "ranks", number_text(real_of(run->start, "ranks")).text);
    put_tile(page, "time", duration_text(seconds_of(run)).text);
    put_tile(page, "samples/s", number_text(throughput_of(run)).text);
    for (int i = 0; i < metric_count && i < 8; i++) {
        put_tile(page, metrics[i], number_text(last_of(run, metrics[i])).text);
    }
    const char *name;
    json_t *value;
    json_object_foreach(run->results, name, value) {
        if (json_array_size(run->epochs) > 0 && isnan(metric_of(run, json_array_size(run->epochs) - 1, name)) &&
            json_is_number(value) && strcmp(name, "epoch") != 0) {
            put_tile(page, name, number_text(json_number_value(value)).text);
        }
    }
    fputs("</dl></section>\n", page);
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

/* Adds an empty curve. With one run, curves differ in color; otherwise runs do, and curves of validation are dashed. */
static ls_chart_curve *add_curve(ls_chart *chart, const ls_run_record *runs, int count, int r, const char *name) {
    ls_chart_curve *added = &chart->curves[chart->count];
    *added = (ls_chart_curve){.color = count == 1 ? chart->count % COLORS : r % COLORS,
                              .dashed = strncmp(name, "val_", 4) == 0};
    (void)snprintf(added->label, sizeof added->label, "%s%s%.100s", name, count > 1 ? " of " : "",
                   count > 1 ? name_of(&runs[r]).text : "");
    chart->count++;
    return added;
}

/* Takes the curves of the records. */
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
            const double value = strcmp(name, "samples/s") == 0 ? real_of(epoch_of(&runs[r], i), "samples_per_second")
                                                                : metric_of(&runs[r], i, name);
            status = ls_curve_add(&added->curve, real_of(epoch_of(&runs[r], i), "epoch"), value);
        }
    }
    return status;
}

/* The chart of a metric also has the metric of validation. */
static ls_status chart_metric(FILE *page, const ls_run_record *runs, int count, const char *const *metrics,
                              int metric_count, int m) {
    char pair[256];
    const char *name = metrics[m];
    const bool validation = strncmp(name, "val_", 4) == 0;
    (void)snprintf(pair, sizeof pair, "%s%s", validation ? "" : "val_", validation ? name + 4 : name);
    int other = 0;
    while (other < metric_count && strcmp(metrics[other], pair) != 0) {
        other++;
    }
    if (validation && other < metric_count) {
        return LS_OK; /* in the chart of the metric of training */
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

/* The numbers of the last epochs. */
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
        ls_fprintf(page, "<tr><td>%g</td><td class=\"n\">%s</td>", real_of(epoch_of(run, i), "epoch"),
                   number_text(real_of(epoch_of(run, i), "samples_per_second")).text);
        for (int m = 0; m < metric_count; m++) {
            fprintf(page, "<td class=\"n\">%s</td>", number_text(metric_of(run, i, metrics[m])).text);
        }
        fputs("</tr>\n", page);
    }
    fputs("</table></div></details>\n", page);
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static void add_phases(const ls_run_record *run, int rank, double seconds[PHASES]) {
    for (size_t i = 0; i < json_array_size(run->epochs); i++) {
        const json_t *phases = json_array_get(json_object_get(epoch_of(run, i), "phases"), (size_t)rank);
        for (size_t p = 0; p < PHASES && p < json_array_size(phases); p++) {
            seconds[p] += json_number_value(json_array_get(phases, p));
        }
    }
}

static double sum_of(const double seconds[PHASES]) {
    double sum = 0;
    for (int p = 0; p < COMMUNICATION; p++) {
        sum += seconds[p];
    }
    return sum;
}

static void put_phase_row(FILE *page, const ls_run_record *run, int rank, const double seconds[PHASES],
                          const bool used[PHASES], double longest) {
    const char *host = json_string_value(json_array_get(json_object_get(run->start, "hosts"), (size_t)rank));
    fprintf(page, "<tr><td>%d <span class=\"soft\">", rank);
    put_text(page, host);
    fputs("</span></td><td><div class=\"bar\">", page);
    for (int p = 0; p < COMMUNICATION; p++) {
        if (used[p]) {
            ls_fprintf(page, "<i class=\"b%d\" style=\"width:%.2f%%\" title=\"%s %.3g s\"></i>", p,
                       longest > 0 ? 100 * seconds[p] / longest : 0, phase_names[p], seconds[p]);
        }
    }
    fputs("</div></td>", page);
    for (int p = 0; p < PHASES; p++) {
        if (used[p]) {
            ls_fprintf(page, "<td class=\"n\">%.3f</td>", seconds[p]);
        }
    }
    fputs("</tr>\n", page);
}

static void put_phases(FILE *page, const ls_run_record *run) {
    double seconds[MOST_RANKS][PHASES] = {{0}}, longest = 0;
    bool used[PHASES] = {false};
    const double all = real_of(run->start, "ranks");
    const int ranks = all >= 1 && all < MOST_RANKS ? (int)all : MOST_RANKS;
    for (int rank = 0; rank < ranks; rank++) {
        add_phases(run, rank, seconds[rank]);
        longest = sum_of(seconds[rank]) > longest ? sum_of(seconds[rank]) : longest;
        for (int p = 0; p < PHASES; p++) {
            used[p] = used[p] || seconds[rank][p] > 0;
        }
    }
    if (!(longest > 0)) {
        return;
    }
    fputs("<section class=\"card run\"><h3>", page);
    ls_page_put(page, name_of(run).text);
    ls_fprintf(
        page,
        "</h3><p class=\"soft\">Seconds of all epochs. Communication is also counted in the part during which it "
        "occurs.%s</p><div class=\"wide\"><table class=\"bars\"><tr><th>rank</th><th></th>",
        all > MOST_RANKS ? " The first 64 ranks." : "");
    for (int p = 0; p < PHASES; p++) {
        if (used[p] && p != COMMUNICATION) {
            fprintf(page, "<th class=\"n\"><span class=\"swatch b%d\"></span>%s</th>", p, phase_names[p]);
        } else if (used[p]) {
            fprintf(page, "<th class=\"n\">%s</th>", phase_names[p]);
        }
    }
    fputs("</tr>\n", page);
    for (int rank = 0; rank < ranks; rank++) {
        put_phase_row(page, run, rank, seconds[rank], used, longest);
    }
    fputs("</table></div></section>\n", page);
}

/* ---- configuration and machine ----------------------------------------------------------------------------------- */

/* Writes a value of the line "start": a text, a number, or a list of texts, one per line without repetitions. */
static void put_value(FILE *page, const json_t *value) {
    if (json_is_number(value)) {
        ls_fprintf(page, "%.15g", json_number_value(value));
    }
    put_text(page, json_string_value(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i == 0 || !json_equal(json_array_get(value, i), json_array_get(value, i - 1))) {
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
    const int metric_count = list_metrics(runs, count, metrics);
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
