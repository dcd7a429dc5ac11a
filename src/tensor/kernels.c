/* Replacements for kernels that a device does not have: a composition of its other kernels, or an error. */
#include "tensor/device.h"

#include <lockstep/sys/module.h>

#include "base/status.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* each parameter list is the kernel's */

static ls_status lacks(const char *name) {
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "the tensors' device has no kernel \"%s\": copy them with ls_to_device(tensor, \"cpu\")", name);
}

#define LACKS(name, type)                                                                                              \
    static ls_status lacks_##name(LS_PARAMETERS_##type) {                                                              \
        return lacks(#name);                                                                                           \
    }
#define LACKS_MAP(name, operands, parameters) LACKS(name, map)

LS_MAPS(LACKS_MAP)
LS_OTHER_KERNELS(LACKS)

/* ---- rotary, composed of maps ------------------------------------------------------------------------------------ */

/* Views the first (part 0) or the second (part 1) elements of the pairs. */
static ls_tensor part_of_pairs(const ls_tensor *x, bool halves, int part) {
    ls_tensor view = *x;
    const int last = x->ndim - 1;
    const int64_t pairs = x->size[last] / 2, step = x->stride[last];
    const int64_t offset = part * step * (halves ? pairs : 1);
    view.data = (char *)x->data + offset * (int64_t)ls_dtype_size((ls_dtype)x->dtype);
    view.count = x->count / 2;
    view.size[last] = pairs;
    view.stride[last] = halves ? step : 2 * step;
    view.contiguous = ls_strides_are_dense(view.ndim, view.size, view.stride);
    return view;
}

/* Computes one part of y; `sum` and `product` have the shape of this part. */
static ls_status rotate_part(int part, ls_tensor *sum, ls_tensor *product, LS_PARAMETERS_rotary) {
    const ls_kernels *kernels = ls_kernels_of(y);
    const ls_tensor from = part_of_pairs(x, halves, part), other = part_of_pairs(x, halves, 1 - part);
    ls_tensor to = part_of_pairs(y, halves, part), *result = accumulate ? sum : &to;
    ls_map_kernel *const combine = (part == 0) != backward ? kernels->sub : kernels->add;
    LS_TRY(kernels->mul(stream, sum, (const ls_tensor *const[]){&from, cosine}, NULL));
    LS_TRY(kernels->mul(stream, product, (const ls_tensor *const[]){&other, sine}, NULL));
    LS_TRY(combine(stream, result, (const ls_tensor *const[]){sum, product}, NULL));
    if (accumulate) {
        return kernels->add(stream, &to, (const ls_tensor *const[]){&to, sum}, NULL);
    }
    return backward && part == 0
               ? kernels->add_number(stream, &to, (const ls_tensor *const[]){&to}, (const double[]){0})
               : LS_OK;
}

static ls_status compose_rotary(LS_PARAMETERS_rotary) {
    ls_tensor *room = ls_tensor_like_owned("ls_rotary", y, (ls_dtype)y->dtype);
    ls_status status = room != NULL ? LS_OK : ls_error_status();
    for (int part = 0; part < 2 && status == LS_OK; part++) {
        ls_tensor sum = part_of_pairs(room, true, 0), product = part_of_pairs(room, true, 1);
        status = rotate_part(part, &sum, &product, stream, y, x, cosine, sine, halves, backward, accumulate);
    }
    ls_tensor_drop(room);
    return status;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define COMPLETE(name, type)                      kernels->name = kernels->name != NULL ? kernels->name : lacks_##name;
#define COMPLETE_MAP(name, operands, parameters_) COMPLETE(name, map)

/* The plug-in for GPUs fills such a table: if you add a kernel, increase LS_CUDA_ABI and the number of kernels here. */
_Static_assert(LS_CUDA_ABI == 4 && sizeof(ls_kernels) == 156 * sizeof(ls_map_kernel *), "increase LS_CUDA_ABI");

void ls_kernels_complete(ls_kernels *kernels) {
    kernels->rotary = kernels->rotary != NULL ? kernels->rotary : compose_rotary;
    LS_MAPS(COMPLETE_MAP)
    LS_OTHER_KERNELS(COMPLETE)
}
