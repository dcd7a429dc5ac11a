/* Passes of recurrent layers over their sequences, used by the modules. */
#ifndef LS_AUTOGRAD_OPS_RECURRENT_H
#define LS_AUTOGRAD_OPS_RECURRENT_H

#include <lockstep/autograd.h>

typedef enum ls_recurrence {
    LS_RECURRENCE_TANH, /* h = tanh(x + W h + b) */
    LS_RECURRENCE_RELU, /* h = relu(x + W h + b) */
    LS_RECURRENCE_LSTM, /* Hochreiter and Schmidhuber, Neural Computation 9, 1997; PyTorch's order of gates: i, f, g, o
                         */
    LS_RECURRENCE_GRU   /* Cho et al., arXiv 1406.1078; r, z, n */
} ls_recurrence;

/* Returns the width of a step's gates as a multiple of the hidden width: 4 for LSTM, 3 for GRU, otherwise 1. */
int64_t ls_recurrence_gates(ls_recurrence kind);
/* Returns the number of tensors passed from step to step: h, and for the LSTM also the cell state c. */
int64_t ls_recurrence_states(ls_recurrence kind);

/*
 * Runs one layer in one direction (with `reverse`, from the last step to the first).
 *   - x [steps, n, gates * hidden]: the input's contribution to the gates.
 *   - weight [gates * hidden, hidden], bias [gates * hidden] (may be NULL): compute the previous step's contribution.
 *   - state [states, n, hidden]: the initial state; NULL selects zeros.
 *   - lengths (i64 [n]; NULL selects all steps): the number of steps of each sequence. After its last step, a
 *     sequence's state stays unchanged.
 *
 * Returns [steps + 1, n, hidden]: h before all steps and after each step. Rows 1 to `steps` correspond to x. With
 * `reverse`, the initial state comes last, and rows 0 to steps - 1 correspond to x. For the LSTM, one more row follows:
 * the last c.
 */
ls_tensor *ls_recur(ls_recurrence kind, ls_tensor *x, ls_tensor *weight, ls_tensor *bias, ls_tensor *state,
                    ls_tensor *lengths, bool reverse);

#endif
