/* What Sequential needs to know of some layers to fuse them. */
#ifndef LS_NN_LAYERS_H
#define LS_NN_LAYERS_H

#include <lockstep/nn.h>

typedef struct ls_linear_state {
    ls_tensor *weight;
    ls_tensor *bias; /* NULL without */
} ls_linear_state;

extern const ls_module_type ls_linear_type;
extern const ls_module_type ls_relu_type;

#endif
