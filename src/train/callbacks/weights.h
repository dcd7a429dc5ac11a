/* The modules whose weights a callback sets. */
#ifndef LS_TRAIN_CALLBACKS_WEIGHTS_H
#define LS_TRAIN_CALLBACKS_WEIGHTS_H

#include "train/callbacks/callback.h"

/* Called with each module below a model, or itself, whose type's name has one of the words in it (NULL: the usual
 * ones), in the order of children, and the module's full name. */
typedef ls_status (*ls_module_visitor)(ls_module *module, const char *name, void *user);
ls_status ls_visit_modules(ls_module *model, const char *const *words, ls_module_visitor visit, void *user);

/* The parameter "weight" of the module itself; NULL where it has none, or one of fewer than two axes. */
ls_tensor *ls_weight_of(const ls_module *module);

/* Draws it by the rule: a function of seed and name. */
ls_status ls_draw_weight(ls_tensor *weight, const char *name, ls_weight_rule rule, double slope, double gain,
                         uint64_t seed);

#endif
