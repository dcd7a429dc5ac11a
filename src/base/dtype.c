#include <lockstep/base.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[LS_DTYPE_COUNT] = {
    [LS_F32] = {"f32", 4}, [LS_F64] = {"f64", 8}, [LS_BF16] = {"bf16", 2}, [LS_F16] = {"f16", 2},
    [LS_I64] = {"i64", 8}, [LS_I32] = {"i32", 4}, [LS_U8] = {"u8", 1},     [LS_BOOL] = {"bool", 1},
};

size_t ls_dtype_size(ls_dtype dtype) {
    return (size_t)dtype < LS_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *ls_dtype_name(ls_dtype dtype) {
    return (size_t)dtype < LS_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

bool ls_dtype_is_floating(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_BF16 || dtype == LS_F16;
}
