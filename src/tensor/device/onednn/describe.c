#include "tensor/device/onednn/describe.h"

#include <stdlib.h>

#if DNNL_VERSION_MAJOR >= 3

ls_layout ls_layout_new(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t made = NULL;
    return dnnl_memory_desc_create_with_tag(&made, ndim, size, type, tag) == dnnl_success ? made : NULL;
}

ls_layout ls_layout_strided(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, const dnnl_dim_t *step) {
    dnnl_memory_desc_t made = NULL;
    return dnnl_memory_desc_create_with_strides(&made, ndim, size, type, step) == dnnl_success ? made : NULL;
}

void ls_layout_free(ls_layout layout) {
    if (layout != NULL) {
        (void)dnnl_memory_desc_destroy((dnnl_memory_desc_t)(uintptr_t)layout);
    }
}

static dnnl_status_t describe_forward(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const ls_conv_layouts *l,
                                      const_dnnl_primitive_attr_t attributes) {
    return dnnl_convolution_forward_primitive_desc_create(made, engine, dnnl_forward_training, dnnl_convolution_direct,
                                                          l->large, l->weight, l->bias, l->small, l->stride,
                                                          l->dilation, l->before, l->after, attributes);
}

static dnnl_status_t describe_backward(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_conv_work work,
                                       const ls_conv_layouts *l, dnnl_primitive_desc_t forward,
                                       const_dnnl_primitive_attr_t attributes) {
    if (work == LS_CONV_LARGE) {
        return dnnl_convolution_backward_data_primitive_desc_create(made, engine, dnnl_convolution_direct, l->large,
                                                                    l->weight, l->small, l->stride, l->dilation,
                                                                    l->before, l->after, forward, attributes);
    }
    return dnnl_convolution_backward_weights_primitive_desc_create(made, engine, dnnl_convolution_direct, l->large,
                                                                   l->weight, NULL, l->small, l->stride, l->dilation,
                                                                   l->before, l->after, forward, attributes);
}

static dnnl_status_t append_sum(dnnl_post_ops_t after) {
    return dnnl_post_ops_append_sum(after, 1.0F, 0, dnnl_data_type_undef);
}

static dnnl_status_t describe_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_layout a, ls_layout b,
                                     ls_layout c, const_dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(made, engine, a, b, NULL, c, attributes);
}

#else

static ls_layout kept(dnnl_memory_desc_t *made, dnnl_status_t status) {
    if (status != dnnl_success) {
        free(made);
        return NULL;
    }
    return made;
}

ls_layout ls_layout_new(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t *made = malloc(sizeof *made);
    return made != NULL ? kept(made, dnnl_memory_desc_init_by_tag(made, ndim, size, type, tag)) : NULL;
}

ls_layout ls_layout_strided(int ndim, const dnnl_dim_t *size, dnnl_data_type_t type, const dnnl_dim_t *step) {
    dnnl_memory_desc_t *made = malloc(sizeof *made);
    return made != NULL ? kept(made, dnnl_memory_desc_init_by_strides(made, ndim, size, type, step)) : NULL;
}

void ls_layout_free(ls_layout layout) {
    free((void *)(uintptr_t)layout);
}

static dnnl_status_t describe_forward(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const ls_conv_layouts *l,
                                      const_dnnl_primitive_attr_t attributes) {
    dnnl_convolution_desc_t what;
    const dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &what, dnnl_forward_training, dnnl_convolution_direct, l->large, l->weight, l->bias, l->small, l->stride,
        l->dilation, l->before, l->after);
    return status == dnnl_success ? dnnl_primitive_desc_create(made, &what, attributes, engine, NULL) : status;
}

static dnnl_status_t describe_backward(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_conv_work work,
                                       const ls_conv_layouts *l, dnnl_primitive_desc_t forward,
                                       const_dnnl_primitive_attr_t attributes) {
    dnnl_convolution_desc_t what;
    const dnnl_status_t status =
        work == LS_CONV_LARGE
            ? dnnl_dilated_convolution_backward_data_desc_init(&what, dnnl_convolution_direct, l->large, l->weight,
                                                               l->small, l->stride, l->dilation, l->before, l->after)
            : dnnl_dilated_convolution_backward_weights_desc_init(&what, dnnl_convolution_direct, l->large, l->weight,
                                                                  NULL, l->small, l->stride, l->dilation, l->before,
                                                                  l->after);
    return status == dnnl_success ? dnnl_primitive_desc_create(made, &what, attributes, engine, forward) : status;
}

static dnnl_status_t append_sum(dnnl_post_ops_t after) {
    return dnnl_post_ops_append_sum(after, 1.0F);
}

static dnnl_status_t describe_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_layout a, ls_layout b,
                                     ls_layout c, const_dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t what;
    const dnnl_status_t status = dnnl_matmul_desc_init(&what, a, b, NULL, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(made, &what, attributes, engine, NULL) : status;
}

#endif

dnnl_status_t ls_describe_conv(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_conv_work work,
                               const ls_conv_layouts *layouts, const ls_conv_layouts *hint,
                               const_dnnl_primitive_attr_t attributes) {
    if (work == LS_CONV_SMALL) {
        return describe_forward(made, engine, layouts, attributes);
    }
    dnnl_primitive_desc_t forward = NULL;
    dnnl_status_t status = describe_forward(&forward, engine, hint, NULL);
    if (status == dnnl_success) {
        status = describe_backward(made, engine, work, layouts, forward, attributes);
        (void)dnnl_primitive_desc_destroy(forward);
    }
    return status;
}

dnnl_status_t ls_describe_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, ls_layout a, ls_layout b,
                                 ls_layout c, bool accumulate, dnnl_primitive_attr_t attributes) {
    dnnl_status_t status = dnnl_success;
    if (accumulate) {
        dnnl_post_ops_t after = NULL;
        status = dnnl_post_ops_create(&after);
        if (status == dnnl_success) {
            status = append_sum(after);
        }
        if (status == dnnl_success) {
            status = dnnl_primitive_attr_set_post_ops(attributes, after);
        }
        if (after != NULL) {
            (void)dnnl_post_ops_destroy(after);
        }
    }
    return status == dnnl_success ? describe_matmul(made, engine, a, b, c, attributes) : status;
}
