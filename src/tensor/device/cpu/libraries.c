#include "tensor/device/cpu/libraries.h"

#include "base/library.h"

static ls_library onednn = {.use = "matrix product",
                            .title = "oneDNN",
                            .package = "libdnnl2",
                            .files = {"libdnnl.so.3", "libdnnl.so.2"},
                            .functions = {"dnnl_sgemm"}};
static ls_library openblas = {.use = "matrix product",
                              .title = "OpenBLAS",
                              .package = "libopenblas0-openmp",
                              .files = {"libopenblas.so.0"},
                              .functions = {"cblas_dgemm"}};

const ls_onednn *ls_onednn_open(void) {
    return ls_library_get(&onednn);
}

const ls_openblas *ls_openblas_open(void) {
    return ls_library_get(&openblas);
}
