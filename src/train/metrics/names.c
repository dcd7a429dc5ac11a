/* Metrics by name. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/metrics/metric.h"

static const ls_metric_kind *const kinds[] = {
    &ls_kind_loss,
    &ls_kind_acc,
    &ls_kind_binary_acc,
    &ls_kind_binary_acc_logits,
    &ls_kind_top_k_acc,
    &ls_kind_mse,
    &ls_kind_rmse,
    &ls_kind_mae,
    &ls_kind_r2,
    &ls_kind_precision,
    &ls_kind_recall,
    &ls_kind_f1,
    &ls_kind_confusion,
    &ls_kind_roc_auc,
    &ls_kind_lr,
    &ls_kind_epoch,
    &ls_kind_samples_per_second,
    &ls_kind_data_wait,
    &ls_kind_comm_wait,
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- names -------------------------------------------------------------------------------------------------------
 *
 * Every kind has its name, and more of its forms have one: what is made of a mean, and averages over classes.
 */

typedef enum ls_form { PLAIN = 0, RUNNING, VAR, STD, MACRO, MICRO, PER_CLASS, FORMS } ls_form;

static const struct {
    const char *before;
    const char *behind;
} affixes[FORMS] = {[PLAIN] = {"", ""},
                    [RUNNING] = {"running_", ""},
                    [VAR] = {"", "_var"},
                    [STD] = {"", "_std"},
                    [MACRO] = {"", "_macro"},
                    [MICRO] = {"", "_micro"},
                    [PER_CLASS] = {"", "_per_class"}};

static bool has_form(const ls_metric_kind *kind, int form) {
    return form == PLAIN || (form <= STD ? kind->aggregate->is_mean : kind->by_average != NULL);
}

/* The name of a form of a kind; false where it has no such form. */
static bool name_form(const ls_metric_kind *kind, int form, char name[LS_METRIC_NAME_LIMIT]) {
    snprintf(name, LS_METRIC_NAME_LIMIT, "%s%s%s", affixes[form].before, kind->name, affixes[form].behind);
    return has_form(kind, form);
}

static ls_metric *make_plain(const ls_metric_kind *kind, int k) {
    return kind == &ls_kind_top_k_acc ? ls_metric_top_k_acc(k) : ls_metric_make(kind);
}

static ls_metric *make_form(const ls_metric_kind *kind, int form, int k) {
    switch ((ls_form)form) {
    case RUNNING:
        return ls_metric_running(make_plain(kind, k), NULL);
    case VAR:
        return ls_metric_var(make_plain(kind, k), false);
    case STD:
        return ls_metric_std(make_plain(kind, k), false);
    case MACRO:
        return kind->by_average(&(ls_class_metric_options){.average = LS_AVERAGE_MACRO});
    case MICRO:
        return kind->by_average(&(ls_class_metric_options){.average = LS_AVERAGE_MICRO});
    case PER_CLASS:
        return kind->by_average(&(ls_class_metric_options){.average = LS_AVERAGE_NONE});
    default:
        return make_plain(kind, k);
    }
}

/* "running_top_3_acc" as "running_top_5_acc", which is how the kind is called, and the number in it; 5 of others. */
static int read_number(const char *name, char usual[LS_METRIC_NAME_LIMIT]) {
    const size_t before = strncmp(name, affixes[RUNNING].before, strlen(affixes[RUNNING].before)) == 0
                              ? strlen(affixes[RUNNING].before)
                              : 0;
    int k = 5;
    int end = 0;
    snprintf(usual, LS_METRIC_NAME_LIMIT, "%s", name);
    if (sscanf(name + before, "top_%9d%n", &k, &end) == 1 && name[before + 4] >= '0' && name[before + 4] <= '9') {
        snprintf(usual, LS_METRIC_NAME_LIMIT, "%.*stop_5%s", (int)before, name, name + before + end);
    }
    return k;
}

/* ---- what there is none of --------------------------------------------------------------------------------------- */

/* How unlike two names are; one that goes on as the other begins is like it, however long it is. */
static size_t distance_of(const char *name, const char *candidate) {
    const size_t length = strlen(name) < strlen(candidate) ? strlen(name) : strlen(candidate);
    const size_t distance = ls_word_distance(name, candidate);
    return distance > 2 && strncmp(name, candidate, length) == 0 ? 2 : distance;
}

/* Of all names there are, the one that is most like this. */
static void find_nearest(const char *name, char nearest[LS_METRIC_NAME_LIMIT]) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < KINDS * FORMS; i++) {
        char candidate[LS_METRIC_NAME_LIMIT];
        if (!name_form(kinds[i / FORMS], i % FORMS, candidate)) {
            continue;
        }
        const size_t distance = distance_of(name, candidate);
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
    for (int i = 0; i < KINDS; i++) {
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s, ", kinds[i]->name,
                                   kinds[i]->by_average != NULL ? " (_macro, _micro, _per_class)" : "");
    }
    (void)ls_fail(LS_ERR_ARGUMENT,
                  "ls_trial_new: there is no metric \"%s\"; the nearest is \"%s\"; there are %sand of each that is a "
                  "mean running_NAME, NAME_var and NAME_std, and custom_metrics",
                  name, nearest, list);
    return NULL;
}

ls_metric *ls_metric_named(const char *name) {
    char usual[LS_METRIC_NAME_LIMIT];
    if (name == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_metric_named: the name is NULL");
        return NULL;
    }
    const int k = read_number(name, usual);
    for (int i = 0; i < KINDS * FORMS; i++) {
        char candidate[LS_METRIC_NAME_LIMIT];
        if (name_form(kinds[i / FORMS], i % FORMS, candidate) && strcmp(candidate, usual) == 0) {
            return make_form(kinds[i / FORMS], i % FORMS, k);
        }
    }
    return refuse_name(name);
}
