/* The table of metrics, by name. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/metrics/metric.h"

/* A classification metric has a score, or counts confusion-matrix cells. Other metrics have a type, and a mean if
 * the type needs one. */
typedef struct named_metric {
    const char *name;
    const ls_metric_type *type;
    const ls_batch_mean *of;
    ls_outputs outputs;
    ls_class_score *score;
} named_metric;

static const named_metric table[] = {
    {"loss", &ls_type_loss, &ls_mean_of_loss, 0, NULL},
    {"acc", &ls_type_mean, &ls_mean_of_matches, 0, NULL},
    {"binary_acc", &ls_type_mean, &ls_mean_of_matches, LS_OUTPUTS_PROBABILITIES, NULL},
    {"binary_acc_logits", &ls_type_mean, &ls_mean_of_matches, LS_OUTPUTS_LOGITS, NULL},
    {"top_5_acc", &ls_type_mean, &ls_mean_of_top_k, 0, NULL},
    {"mse", &ls_type_mean, &ls_mean_of_squares, 0, NULL},
    {"rmse", &ls_type_root_mean, &ls_mean_of_squares, 0, NULL},
    {"mae", &ls_type_mean, &ls_mean_of_sizes, 0, NULL},
    {"r2", &ls_type_r2, NULL, 0, NULL},
    {"precision", NULL, NULL, 0, ls_score_precision},
    {"recall", NULL, NULL, 0, ls_score_recall},
    {"f1", NULL, NULL, 0, ls_score_f1},
    {"confusion", NULL, NULL, 0, NULL},
    {"roc_auc", &ls_type_roc_auc, NULL, 0, NULL},
    {"lr", &ls_type_lr, NULL, 0, NULL},
    {"epoch", &ls_type_epoch, NULL, 0, NULL},
    {"samples_per_second", &ls_type_samples_per_second, NULL, 0, NULL},
    {"data_wait", &ls_type_data_wait, NULL, 0, NULL},
    {"comm_wait", &ls_type_comm_wait, NULL, 0, NULL},
};
enum { NAMES = sizeof table / sizeof *table };

/* ---- forms: combinations of means, and averages over classes, in the order of ls_average ------------------------- */

enum { PLAIN = 0, RUNNING, VAR, STD, MACRO, MICRO, PER_CLASS, FORMS };

static const char running[] = "running_";
static const char *const suffixes[FORMS] = {"", "", "_var", "_std", "_macro", "_micro", "_per_class"};

static bool has_form(const named_metric *metric, int form) {
    const bool is_mean = metric->type != NULL && metric->type->is_mean;
    return form == PLAIN || (form <= STD ? is_mean : metric->score != NULL);
}

/* Writes the name of a form. Returns false if there is no such form. */
static bool name_form(int index, char name[LS_METRIC_NAME_LIMIT]) {
    const int form = index % FORMS;
    const named_metric *metric = &table[index / FORMS];
    snprintf(name, LS_METRIC_NAME_LIMIT, "%s%s%s", form == RUNNING ? running : "", metric->name, suffixes[form]);
    return has_form(metric, form);
}

static ls_metric *make(const named_metric *metric, ls_average average, int k) {
    if (metric->type == NULL) {
        return ls_metric_of_classes("ls_metric_named", metric->name, metric->score,
                                    &(ls_class_metric_options){.average = average});
    }
    if (metric->of == &ls_mean_of_top_k) {
        return ls_metric_top_k_acc(k);
    }
    ls_metric *made = ls_metric_make(metric->name, metric->type, metric->of);
    if (made != NULL) {
        made->outputs = metric->outputs;
    }
    return made;
}

static ls_metric *make_form(int index, int k) {
    const int form = index % FORMS;
    ls_metric *metric =
        make(&table[index / FORMS], form < MACRO ? 0 : (ls_average)(form - MACRO + LS_AVERAGE_MACRO), k);
    return form == RUNNING ? ls_metric_running(metric, NULL)
           : form == VAR   ? ls_metric_var(metric, false)
           : form == STD   ? ls_metric_std(metric, false)
                           : metric;
}

/*
 * Rewrites "running_top_3_acc" as "running_top_5_acc", the form in the table, and returns 3. Returns 5 for names
 * without a number.
 */
static int read_number(const char *name, char usual[LS_METRIC_NAME_LIMIT]) {
    const size_t prefix = strncmp(name, running, sizeof running - 1) == 0 ? sizeof running - 1 : 0;
    int k = 5;
    int end = 0;
    snprintf(usual, LS_METRIC_NAME_LIMIT, "%s", name);
    if (sscanf(name + prefix, "top_%9d%n", &k, &end) == 1 && name[prefix + 4] >= '0' && name[prefix + 4] <= '9') {
        snprintf(usual, LS_METRIC_NAME_LIMIT, "%.*stop_5%s", (int)prefix, name, name + prefix + end);
    }
    return k;
}

/* ---- unknown names ----------------------------------------------------------------------------------------------- */

/* Returns the edit distance of two names, limited to 2 if one name is a prefix of the other. */
static size_t distance_of(const char *name, const char *candidate) {
    const size_t length = strlen(name) < strlen(candidate) ? strlen(name) : strlen(candidate);
    const size_t distance = ls_word_distance(name, candidate);
    return distance > 2 && strncmp(name, candidate, length) == 0 ? 2 : distance;
}

static void find_nearest(const char *name, char nearest[LS_METRIC_NAME_LIMIT]) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < NAMES * FORMS; i++) {
        char candidate[LS_METRIC_NAME_LIMIT];
        const size_t distance = name_form(i, candidate) ? distance_of(name, candidate) : SIZE_MAX;
        if (distance < least) {
            least = distance;
            memcpy(nearest, candidate, sizeof candidate);
        }
    }
}

static ls_metric *refuse_name(const char *name) {
    char nearest[LS_METRIC_NAME_LIMIT] = "";
    char list[512] = "";
    size_t length = 0;
    find_nearest(name, nearest);
    for (int i = 0; i < NAMES; i++) {
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s, ", table[i].name,
                                   table[i].score != NULL ? " (_macro, _micro, _per_class)" : "");
    }
    return ls_fail_null(
        LS_ERR_ARGUMENT,
        "ls_trial_new: there is no metric \"%s\"; did you mean \"%s\"? Available: %sand, for each metric that is a "
        "mean, running_NAME, NAME_var and NAME_std; other metrics can be set in .custom_metrics",
        name, nearest, list);
}

ls_metric *ls_metric_named(const char *name) {
    char usual[LS_METRIC_NAME_LIMIT];
    char candidate[LS_METRIC_NAME_LIMIT];
    if (name == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_metric_named: the name is NULL");
    }
    const int k = read_number(name, usual);
    for (int i = 0; i < NAMES * FORMS; i++) {
        if (name_form(i, candidate) && strcmp(candidate, usual) == 0) {
            return make_form(i, k);
        }
    }
    return refuse_name(name);
}
