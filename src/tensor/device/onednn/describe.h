/* A uniform interface to the part of oneDNN's interface that differs between versions 2 and 3. */
#ifndef LS_TENSOR_DEVICE_ONEDNN_DESCRIBE_H
#define LS_TENSOR_DEVICE_ONEDNN_DESCRIBE_H

#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>

#include "tensor/device/onednn/onednn.h"

/* The memory layout of a tensor, in the type that oneDNN's functions use. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t ls_layout;
#else
typedef const dnnl_memory_desc_t *ls_layout;
#endif

/* Returns a new layout, which the caller frees, or NULL if out of memory or if oneDNN does not support the layout. */
ls_layout ls_layout_new(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, dnnl_format_tag_t tag);
/* Row-major with these strides. */
ls_layout ls_layout_strided(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, const dnnl_dim_t *step);
void ls_layout_free(ls_layout layout);

/* The layouts of a convolution; `bias` may be NULL. */
typedef struct ls_conv_layouts {
    ls_layout large, small, weight, bias;
    dnnl_dims_t stride, dilation, before, after;
} ls_conv_layouts;

/* For a gradient, `hint` is the descriptor of the forward pass. */
dnnl_status_t ls_describe_conv(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_conv_work work,
                               const ls_conv_layouts *layouts, const ls_conv_layouts *hint,
                               const_dnnl_primitive_attr_t attributes);

/* Describes c = a b, or c += a b. `attributes` may be changed. */
dnnl_status_t ls_describe_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_layout a, ls_layout b,
                                 ls_layout c, bool accumulate, dnnl_primitive_attr_t attributes);

#endif
