/*
 * Determines which reductions MPI may compute. Some libraries compute wrong results: Open MPI 4.1.4 saturates sums of
 * MPI_UINT8_T, and MPICH 4.0.2 compares MPI_UINT8_T as signed numbers. So each pair of dtype and reduction is checked
 * once per process, on vectors that are long enough for the library's vector instructions and leave a remainder.
 */
#include <pthread.h>
#include <string.h>

#include "comm/reduce.h"
#include "comm/transport/mpi/inside.h"

enum { CHECKED = 259, WIDEST = 8 };

/* For signed integers, sums and products use unsigned MPI types, which wrap around. */
MPI_Datatype ls_mpi_type_of(ls_dtype dtype, ls_reduction reduction) {
    const bool floats = dtype == LS_F32 || dtype == LS_F64;
    const bool averages = reduction == LS_AVG;
    const bool extreme = reduction == LS_MIN || reduction == LS_MAX;
    if (floats && !averages && reduction != LS_SUM && reduction != LS_PROD) { /* undefined for NaN in MPI */
        return MPI_DATATYPE_NULL;
    }
    if (!floats && averages) { /* the sum may overflow the element type */
        return MPI_DATATYPE_NULL;
    }
    switch (dtype) {
    case LS_F32:
        return MPI_FLOAT;
    case LS_F64:
        return MPI_DOUBLE;
    case LS_I64:
        return extreme ? MPI_INT64_T : MPI_UINT64_T;
    case LS_I32:
        return extreme ? MPI_INT32_T : MPI_UINT32_T;
    case LS_U8:
        return MPI_UINT8_T;
    default: /* bool, and also bf16 and f16, which are added in f32 */
        return MPI_DATATYPE_NULL;
    }
}

MPI_Op ls_mpi_op_of(ls_reduction reduction) {
    switch (reduction) {
    case LS_SUM:
    case LS_AVG:
        return MPI_SUM;
    case LS_PROD:
        return MPI_PROD;
    case LS_MIN:
        return MPI_MIN;
    case LS_MAX:
        return MPI_MAX;
    case LS_LAND:
        return MPI_LAND;
    case LS_LOR:
        return MPI_LOR;
    case LS_LXOR:
        return MPI_LXOR;
    case LS_BAND:
        return MPI_BAND;
    case LS_BOR:
        return MPI_BOR;
    case LS_BXOR:
        return MPI_BXOR;
    default:
        return MPI_OP_NULL;
    }
}

/* Fills a vector with integers of all bit patterns, some of them 0, or with small integral floating-point numbers,
 * whose sums and products are exact. */
static void fill(unsigned char *vector, ls_dtype dtype, uint64_t seed) {
    const size_t width = ls_dtype_size(dtype);
    for (uint64_t i = 0; i < CHECKED; i++) {
        uint64_t bits = (seed + i) * UINT64_C(0x9e3779b97f4a7c15);
        bits = (bits ^ (bits >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
        const uint64_t integer = (bits >> 56) % 5 != 0 ? bits : 0;
        const double number = (double)(bits >> 60) - 8;
        const float narrow = (float)number;
        const void *element = dtype == LS_F64   ? (const void *)&number
                              : dtype == LS_F32 ? &narrow
                                                : (const void *)&integer;
        memcpy(vector + i * width, element, width);
    }
}

static bool is_correct(ls_dtype dtype, ls_reduction reduction) {
    _Alignas(64) unsigned char left[CHECKED * WIDEST], right[CHECKED * WIDEST], expected[CHECKED * WIDEST];
    const MPI_Datatype type = ls_mpi_type_of(dtype, reduction);
    const MPI_Op op = ls_mpi_op_of(reduction);
    if (type == MPI_DATATYPE_NULL || op == MPI_OP_NULL) {
        return false;
    }
    fill(left, dtype, 1);
    fill(right, dtype, UINT64_C(1) << 32);
    const ls_reduce_task task = {.dtype = dtype,
                                 .reduction = reduction == LS_AVG ? LS_SUM : reduction, /* the engine divides */
                                 .ranks = 2,
                                 .sources = (const void *const[]){left, right},
                                 .copies = 1,
                                 .destinations = (void *const[]){expected},
                                 .count = CHECKED};
    ls_reduce_buffers(&task);
    return MPI_Reduce_local(left, right, CHECKED, type, op) == MPI_SUCCESS &&
           memcmp(right, expected, CHECKED * ls_dtype_size(dtype)) == 0;
}

static ls_mpi_reductions checked;

static void check_all(void) {
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            if (is_correct((ls_dtype)dtype, (ls_reduction)reduction)) {
                checked.correct[dtype] |= (uint16_t)(1U << reduction);
            }
        }
    }
}

ls_mpi_reductions ls_mpi_check_reductions(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, check_all);
    return checked;
}
