/* Metrics by name. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "train/metrics/metric.h"

static const ls_metric_kind *const kinds[] = {&ls_metric_loss, &ls_metric_acc, &ls_metric_binary_acc,
                                              &ls_metric_binary_acc_logits};
enum { KINDS = sizeof kinds / sizeof *kinds };

ls_metric_rule *ls_metric_rule_make(const ls_metric_kind *kind) {
    ls_metric_rule *rule = ls_allocate_zeroed(1, sizeof *rule);
    if (rule == NULL) {
        (void)ls_fail_memory("ls_metric", sizeof *rule);
        return NULL;
    }
    rule->kind = kind;
    rule->aggregate = kind->aggregate;
    rule->width = kind->aggregate->width;
    snprintf(rule->name, sizeof rule->name, "%s", kind->name);
    return rule;
}

ls_metric ls_metric_of_rule(ls_metric_rule *rule) {
    return rule != NULL ? (ls_metric){.name = rule->name, .rule = rule} : (ls_metric){.invalid = true};
}

ls_metric ls_metric_named(const char *name) {
    for (int i = 0; name != NULL && i < KINDS; i++) {
        if (strcmp(kinds[i]->name, name) == 0) {
            return ls_metric_of_rule(ls_metric_rule_make(kinds[i]));
        }
    }
    (void)ls_fail(LS_ERR_ARGUMENT,
                  "ls_trial_new: there is no metric \"%s\"; there are \"loss\", \"acc\", \"binary_acc\" and "
                  "\"binary_acc_logits\", and custom_metrics",
                  name != NULL ? name : "");
    return ls_metric_of_rule(NULL);
}
