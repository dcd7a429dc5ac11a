/* The part of oneDNN's interface that versions 2 and 3 do not have alike, made alike. */
#ifndef LS_TENSOR_DEVICE_ONEDNN_DESCRIBE_H
#define LS_TENSOR_DEVICE_ONEDNN_DESCRIBE_H

#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>

#include "tensor/device/onednn/onednn.h"

/* How the numbers of a tensor lie in memory; what oneDNN's functions take. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t ls_layout;
#else
typedef const dnnl_memory_desc_t *ls_layout;
#endif

/* A layout of one's own, to be freed; NULL where there is no memory, or oneDNN refuses. */
ls_layout ls_layout_new(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, dnnl_format_tag_t tag);
/* Row-major with these steps. */
ls_layout ls_layout_strided(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, const dnnl_dim_t *step);
void ls_layout_free(ls_layout layout);

/* A convolution; `bias` may be NULL. */
typedef struct ls_conv_layouts {
    ls_layout large, small, weight, bias;
    dnnl_dims_t stride, dilation, before, after;
} ls_conv_layouts;

/* `hint`: of the forward pass, for a gradient. */
dnnl_status_t ls_describe_conv(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_conv_work work,
                               const ls_conv_layouts *layouts, const ls_conv_layouts *hint,
                               const_dnnl_primitive_attr_t attributes);

/* c = a b, or c += a b. `attributes` may be changed. */
dnnl_status_t ls_describe_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_layout a, ls_layout b,
                                 ls_layout c, bool accumulate, dnnl_primitive_attr_t attributes);

#endif
