/* Finds and initializes the weights that a callback sets. */
#ifndef LS_TRAIN_CALLBACKS_WEIGHTS_H
#define LS_TRAIN_CALLBACKS_WEIGHTS_H

#include "train/callbacks/callback.h"

/*
 * Visits the model and its descendants, in the order of children, if the name of the module's type contains one of the
 * words. NULL selects "Linear" and "Conv". Passes the module's full name.
 */
typedef ls_status (*ls_module_visitor)(ls_module *module, const char *name, void *user);
ls_status ls_visit_modules(ls_module *model, const char *const *words, ls_module_visitor visit, void *user);

/*
 * Returns the module's own parameter "weight". Returns NULL if there is no such parameter, or if it has fewer than two
 * axes.
 */
ls_tensor *ls_weight_of(const ls_module *module);

/* Initializes the weight by the rule. The values depend only on the seed and the name. */
ls_status ls_draw_weight(ls_tensor *weight, const char *name, ls_weight_rule rule, double slope, double gain,
                         uint64_t seed);

#endif
