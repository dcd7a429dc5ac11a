/* Replacements for kernels that a device does not have. */
#include "tensor/device.h"

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

#define COMPLETE(name, type)                      kernels->name = kernels->name != NULL ? kernels->name : lacks_##name;
#define COMPLETE_MAP(name, operands, parameters_) COMPLETE(name, map)

void ls_kernels_complete(ls_kernels *kernels) {
    LS_MAPS(COMPLETE_MAP)
    LS_OTHER_KERNELS(COMPLETE)
}
