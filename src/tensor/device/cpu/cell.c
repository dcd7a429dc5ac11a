/* Cells of recurrent layers and their gradients: one pass over the gates of a step. */
#include "tensor/device/cpu/exponential.h"
#include "tensor/device/cpu/floating.h"

#include <string.h>

#define REAL     float
#define FN(name) name##_f32
#define TANH     ls_tanh_f32
#define SIGMOID  ls_sigmoid_f32
#include "tensor/device/cpu/cell.inc"

#define REAL     double
#define FN(name) name##_f64
#define TANH     tanh
#define SIGMOID  ls_sigmoid_f64
#include "tensor/device/cpu/cell.inc"

static ls_status check_lengths(const ls_cell *cell) {
    const int64_t *length = ls_data_or_null(cell->lengths);
    for (int64_t i = 0; length != NULL && i < cell->lengths->count; i++) {
        if (length[i] < 0 || length[i] > cell->steps) {
            return ls_fail(LS_ERR_ARGUMENT, "lengths[%lld] is %lld, but x has %lld steps", (long long)i,
                           (long long)length[i], (long long)cell->steps);
        }
    }
    return LS_OK;
}

#define CELL(name)                                                                                                     \
    ls_status ls_cpu_##name(ls_stream *stream, const ls_cell *cell) {                                                  \
        (void)stream;                                                                                                  \
        LS_TRY(check_lengths(cell));                                                                                   \
        return LS_FLOATING(cell->x->dtype, name, cell);                                                                \
    }                                                                                                                  \
    ls_status ls_cpu_##name##_backward(ls_stream *stream, const ls_cell_gradient *cell) {                              \
        (void)stream;                                                                                                  \
        return LS_FLOATING(cell->d_x->dtype, name##_backward, cell);                                                   \
    }

CELL(rnn_cell)
CELL(lstm_cell)
CELL(gru_cell)
