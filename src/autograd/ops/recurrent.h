/* The passes of recurrent layers over their sequences, which the modules are made of. */
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

/* How many parts of the hidden width a step's gates have: 1, 4 for LSTM, 3 for GRU. */
int64_t ls_recurrence_gates(ls_recurrence kind);
/* How many tensors go from step to step: h, and c of the LSTM. */
int64_t ls_recurrence_states(ls_recurrence kind);

/*
 * One layer in one direction (`reverse`: from the last step to the first) over x [steps, n, gates * hidden], the
 * input's part of the gates; weight [gates * hidden, hidden] and bias [gates * hidden] (may be NULL) make that of the
 * step before; state [states, n, hidden] is where it begins (NULL: zeros); lengths (i64 [n], NULL: all steps) how many
 * steps each sequence has: in the steps behind them its state stays as it is.
 *
 * The result is [steps + 1, n, hidden]: h before all steps and behind each of them, so that rows 1 to `steps` are those
 * of x; in reverse the first comes last, and rows 0 to steps - 1 are those of x. The LSTM has one row more: the last c.
 */
ls_tensor *ls_recur(ls_recurrence kind, ls_tensor *x, ls_tensor *weight, ls_tensor *bias, ls_tensor *state,
                    ls_tensor *lengths, bool reverse);

#endif
