/* The parts of a record that capture.c shares with the files that add and change calls. */
#ifndef LS_TENSOR_CAPTURE_RECORD_H
#define LS_TENSOR_CAPTURE_RECORD_H

#include "tensor/capture.h"

/* Memory that is allocated during the capture. */
struct ls_captured_block {
    ls_storage *storage; /* NULL once it is freed */
    char *memory;
    size_t bytes;
    size_t place;    /* in the arena */
    int first, last; /* the calls that use it; first is -1 for a block that needs no place */
    bool written;
};

enum { LS_MAP_OPERANDS = 3, LS_MAP_PARAMETERS = 2 };

/* A recorded call of a map, with copies of its tensors. */
typedef struct ls_captured_map {
    ls_map_kernel *kernel;
    ls_stream *stream;
    ls_tensor *y;
    const ls_tensor *operands[LS_MAP_OPERANDS]; /* NULL after the last operand */
    double parameters[LS_MAP_PARAMETERS];
} ls_captured_map;

/*
 * capture_kernels.c. Return the arguments of a call of a map or of a matrix product as a borrowed pointer; NULL for
 * other calls.
 */
const ls_captured_map *ls_captured_map_of(const ls_captured_call *call);
ls_gemm *ls_captured_gemm(const ls_captured_call *call);

/* capture.c: makes a call do nothing. It stays in the record, because the record refers to calls by their indices. */
void ls_captured_call_drop(ls_captured_call *call);

#endif
