/* Properties of layers that Sequential uses to fuse layers, and the weights of layers. */
#ifndef LS_NN_LAYERS_H
#define LS_NN_LAYERS_H

#include <lockstep/nn.h>

#include "autograd/ops/weight_norm.h"

/* A weight: plain, or given by the norms and directions of its rows. */
typedef struct ls_layer_weight {
    ls_tensor *direction; /* the weight itself if `length` is NULL */
    ls_tensor *length;
} ls_layer_weight;

typedef struct ls_linear_state {
    ls_layer_weight weight;
    ls_tensor *bias; /* NULL without a bias */
} ls_linear_state;

/*
 * Adds the parameter "weight", uniform in +-bound. With `normed`, instead adds "weight_v", the weight itself, and
 * "weight_g", its norms.
 */
ls_layer_weight ls_layer_add_weight(ls_module *module, ls_shape shape, ls_dtype dtype, double bound, bool normed);

/* Returns the layer's weight as a borrowed pointer: the parameter itself, or a tensor in the current scope. Returns
   NULL on failure. */
static inline ls_tensor *ls_layer_weight_of(const ls_layer_weight *weight) {
    return weight->length == NULL ? weight->direction : ls_weight_norm(weight->direction, weight->length);
}

extern const ls_module_type ls_linear_type;
extern const ls_module_type ls_relu_type;
extern const ls_module_type ls_standardize_type; /* has the buffers "mean" and "deviation" */

/* Returns whether a module of type ls_standardize_type treats NaN as a missing value. */
bool ls_standardize_skips_nan(const ls_module *module);
/* Returns the module of type ls_standardize_type in the model with this buffer "mean", or NULL. */
const ls_module *ls_standardize_of_mean(const ls_module *model, const ls_tensor *mean);
/* Returns whether the model contains a module of type ls_standardize_type with its initial mean and deviation. */
bool ls_standardize_is_unfitted(const ls_module *model);

/*
 * Returns whether the module is a MaxPool without padding. A ReLU after such a layer gives the same result and
 * gradients as a ReLU before it, on fewer elements.
 */
bool ls_layer_is_plain_max_pool(const ls_module *module);

#endif
