/*
 * Recurrent layers: one operation for all steps of a layer in one direction. A step is a matrix product and a kernel
 * for the cell's gates. The gradients of weight and bias are computed from all steps at once.
 */
#include "autograd/ops/recurrent.h"

#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/samples.h"

enum { X, WEIGHT, BIAS, STATE, LENGTHS, INPUTS };
enum { SAVED_OUTPUT, SAVED_GATES, SAVED_CELLS };
/* Indices in integer[] of the parameters. */
enum { KIND, REVERSE };
/* With at least this number of steps, transposing the weight pays off. */
enum { FEW_STEPS = 4 };

int64_t ls_recurrence_gates(ls_recurrence kind) {
    return kind == LS_RECURRENCE_LSTM ? 4 : kind == LS_RECURRENCE_GRU ? 3 : 1;
}

int64_t ls_recurrence_states(ls_recurrence kind) {
    return kind == LS_RECURRENCE_LSTM ? 2 : 1;
}

/* Properties of a call that the forward and backward rules need. */
typedef struct pass {
    ls_recurrence kind;
    bool reverse;
    int64_t steps, n, hidden, gates; /* gates: total width of all gates */
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_dtype dtype;
} pass;

static pass pass_of(const ls_tensor *x, const ls_tensor *weight, const ls_op_parameters *parameters) {
    return (pass){.kind = (ls_recurrence)parameters->integer[KIND],
                  .reverse = parameters->integer[REVERSE] != 0,
                  .steps = x->size[0],
                  .n = x->size[1],
                  .hidden = weight->size[1],
                  .gates = weight->size[0],
                  .kernels = ls_kernels_of(x),
                  .stream = ls_stream_of(x),
                  .dtype = (ls_dtype)x->dtype};
}

/* Step `i` of the pass processes position step_at of x. The states before and after the step are these rows of the
 * output. */
static int64_t step_at(const pass *p, int64_t i) {
    return p->reverse ? p->steps - 1 - i : i;
}

static int64_t row_before(const pass *p, int64_t i) {
    return p->reverse ? p->steps - i : i;
}

static int64_t row_after(const pass *p, int64_t i) {
    return p->reverse ? p->steps - 1 - i : i + 1;
}

static ls_status recur_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[X];
    const pass p = pass_of(x, call->inputs[WEIGHT], call->parameters);
    const int64_t size[] = {p.steps + ls_recurrence_states(p.kind), p.n, p.hidden};
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), 3, size, p.dtype);
    return ls_made(call->output);
}

/* ---- forwards ---------------------------------------------------------------------------------------------------- */

/* Copies state `which` of the input, or writes zeros if it is NULL. */
static ls_status begin_state(const pass *p, ls_tensor *row, const ls_tensor *state, int64_t which) {
    if (state == NULL) {
        return p->kernels->fill(p->stream, row, 0);
    }
    const ls_tensor from = ls_stack_view_select(state, 0, which);
    return p->kernels->copy(p->stream, row, &from);
}

/* Memory that the steps of a call need in addition to its tensors. */
typedef struct workspace {
    ls_tensor *recurrent; /* [n, gates] */
    ls_tensor *turned; /* [hidden, gates]: the transposed weight, with which products are faster; NULL if there are few
                          steps */
} workspace;

static ls_status forward_step(const ls_op_call *call, const pass *p, int64_t i, const workspace *work) {
    const ls_tensor *weight = work->turned != NULL ? work->turned : call->inputs[WEIGHT], *bias = call->inputs[BIAS];
    ls_tensor *kept = call->saved[SAVED_GATES], *cells = call->saved[SAVED_CELLS];
    const ls_tensor x = ls_stack_view_select(call->inputs[X], 0, step_at(p, i));
    const ls_tensor before = ls_stack_view_select(call->output, 0, row_before(p, i));
    ls_tensor after = ls_stack_view_select(call->output, 0, row_after(p, i)), c, c_before, kept_row;
    const ls_gemm gemm = {.dtype = p->dtype,
                          .m = p->n,
                          .n = p->gates,
                          .k = p->hidden,
                          .a = before.data,
                          .lda = p->hidden,
                          .b = weight->data,
                          .ldb = weight->size[1],
                          .transpose_b = work->turned == NULL,
                          .c = work->recurrent->data,
                          .ldc = p->gates,
                          .bias = bias != NULL ? bias->data : NULL};
    LS_TRY(p->kernels->gemm(p->stream, &gemm));
    ls_cell cell = {.x = &x,
                    .recurrent = work->recurrent,
                    .h_before = &before,
                    .h = &after,
                    .lengths = call->inputs[LENGTHS],
                    .step = step_at(p, i),
                    .steps = p->steps,
                    .relu = p->kind == LS_RECURRENCE_RELU};
    if (cells != NULL) {
        c_before = ls_stack_view_select(cells, 0, row_before(p, i));
        c = ls_stack_view_select(cells, 0, row_after(p, i));
        cell.c_before = &c_before;
        cell.c = &c;
    }
    if (kept != NULL) {
        kept_row = ls_stack_view_select(kept, 0, step_at(p, i));
        cell.kept = &kept_row;
    }
    const ls_status status = LS_KERNEL_AT(cell, p->kernels, call->op->kernel)(p->stream, &cell);
    return status == LS_OK ? LS_OK : ls_fail(status, "%s: %s", call->op->name, ls_error_message());
}

/* Computes the states after all steps and, for the LSTM, the extra row with the last c. */
static ls_status forward_steps(const ls_op_call *call, const pass *p, const workspace *work) {
    ls_tensor *cells = call->saved[SAVED_CELLS];
    ls_tensor first = ls_stack_view_select(call->output, 0, row_before(p, 0));
    LS_TRY(begin_state(p, &first, call->inputs[STATE], 0));
    if (cells != NULL) {
        first = ls_stack_view_select(cells, 0, row_before(p, 0));
        LS_TRY(begin_state(p, &first, call->inputs[STATE], 1));
    }
    for (int64_t i = 0; i < p->steps && p->n > 0; i++) {
        LS_TRY(forward_step(call, p, i, work));
    }
    if (cells != NULL) {
        const ls_tensor last = ls_stack_view_select(cells, 0, row_before(p, p->steps));
        ls_tensor row = ls_stack_view_select(call->output, 0, p->steps + 1);
        return p->kernels->copy(p->stream, &row, &last);
    }
    return LS_OK;
}

static ls_status make_workspace(const ls_op_call *call, const pass *p, workspace *work) {
    const ls_tensor *weight = call->inputs[WEIGHT];
    const ls_device *device = ls_tensor_device(weight);
    const char *name = call->op->name;
    work->recurrent = ls_tensor_new_owned(name, device, 2, (const int64_t[]){p->n, p->gates}, p->dtype);
    LS_TRY(ls_made(work->recurrent));
    if (p->steps < FEW_STEPS) {
        return LS_OK;
    }
    const int64_t size[] = {p->hidden, p->gates}, stride[] = {1, p->hidden};
    const ls_tensor view = ls_stack_view(weight, 2, size, stride, 0);
    work->turned = ls_tensor_new_owned(name, device, 2, size, p->dtype);
    LS_TRY(ls_made(work->turned));
    return p->kernels->copy(p->stream, work->turned, &view);
}

static ls_status recur_forward(ls_op_call *call) {
    const char *name = call->op->name;
    const pass p = pass_of(call->inputs[X], call->inputs[WEIGHT], call->parameters);
    const ls_device *device = ls_tensor_device(call->output);
    if (p.kind == LS_RECURRENCE_LSTM) {
        call->saved[SAVED_CELLS] =
            ls_tensor_new_owned(name, device, 3, (const int64_t[]){p.steps + 1, p.n, p.hidden}, p.dtype);
        LS_TRY(ls_made(call->saved[SAVED_CELLS]));
    }
    if (call->records && ls_recurrence_gates(p.kind) > 1) {
        call->saved[SAVED_GATES] =
            ls_tensor_new_owned(name, device, 3, (const int64_t[]){p.steps, p.n, 4 * p.hidden}, p.dtype);
        LS_TRY(ls_made(call->saved[SAVED_GATES]));
    }
    workspace work = {.recurrent = NULL};
    ls_status status = make_workspace(call, &p, &work);
    status = status == LS_OK ? forward_steps(call, &p, &work) : status;
    ls_tensor_drop(work.recurrent);
    ls_tensor_drop(work.turned);
    return status;
}

/* ---- backwards --------------------------------------------------------------------------------------------------- */

/* Tensors of a backward pass, outside of any scope. */
typedef struct gradients {
    ls_tensor *g;           /* of the output, dense */
    ls_tensor *d_x;         /* [steps, n, gates] */
    ls_tensor *d_recurrent; /* [steps, n, gates]: d_x itself, except for GRU */
    ls_tensor *state;       /* [states, n, hidden]: the gradient at the current step of the pass */
} gradients;

static ls_status backward_step(const ls_node *node, const pass *p, const gradients *d, int64_t i) {
    const int64_t t = step_at(p, i);
    const bool lstm = p->kind == LS_RECURRENCE_LSTM, gru = p->kind == LS_RECURRENCE_GRU;
    ls_tensor d_x = ls_stack_view_select(d->d_x, 0, t), dh = ls_stack_view_select(d->state, 0, 0), dc, d_recurrent;
    ls_tensor kept, before, after;
    const ls_tensor g = ls_stack_view_select(d->g, 0, row_after(p, i));
    const ls_tensor *states = node->saved[lstm ? SAVED_CELLS : SAVED_OUTPUT];
    before = ls_stack_view_select(states, 0, row_before(p, i));
    after = ls_stack_view_select(states, 0, row_after(p, i));
    ls_cell_gradient cell = {.d_x = &d_x,
                             .dh = &dh,
                             .g = &g,
                             .before = &before,
                             .after = &after,
                             .lengths = node->inputs[LENGTHS],
                             .step = t,
                             .relu = p->kind == LS_RECURRENCE_RELU};
    if (lstm) {
        dc = ls_stack_view_select(d->state, 0, 1);
        cell.dc = &dc;
    }
    if (gru) {
        d_recurrent = ls_stack_view_select(d->d_recurrent, 0, t);
        cell.d_recurrent = &d_recurrent;
    }
    if (lstm || gru) {
        kept = ls_stack_view_select(node->saved[SAVED_GATES], 0, t);
        cell.kept = &kept;
    }
    LS_TRY(LS_KERNEL_AT(cell_backward, p->kernels, node->op->kernel_backward)(p->stream, &cell));
    if (i == 0 && !ls_wants(node, STATE)) {
        return LS_OK;
    }
    const ls_gemm gemm = {.dtype = p->dtype,
                          .m = p->n,
                          .n = p->hidden,
                          .k = p->gates,
                          .a = gru ? d_recurrent.data : d_x.data,
                          .lda = p->gates,
                          .b = node->inputs[WEIGHT]->data,
                          .ldb = p->hidden,
                          .c = dh.data,
                          .ldc = p->hidden,
                          .accumulate = true};
    return p->kernels->gemm(p->stream, &gemm);
}

static ls_status backward_steps(const ls_node *node, const pass *p, const gradients *d) {
    ls_tensor dh = ls_stack_view_select(d->state, 0, 0);
    LS_TRY(p->kernels->fill(p->stream, &dh, 0));
    if (p->kind == LS_RECURRENCE_LSTM) {
        ls_tensor dc = ls_stack_view_select(d->state, 0, 1);
        const ls_tensor last = ls_stack_view_select(d->g, 0, p->steps + 1);
        LS_TRY(p->kernels->copy(p->stream, &dc, &last));
    }
    for (int64_t i = p->steps - 1; i >= 0 && p->n > 0; i--) {
        LS_TRY(backward_step(node, p, d, i));
    }
    const ls_tensor first = ls_stack_view_select(d->g, 0, row_before(p, 0));
    return p->kernels->axpy(p->stream, p->dtype, first.count, 1, first.data, dh.data);
}

/* Computes one product over all steps: the gates of each step with its previous state. */
static ls_status give_weight(ls_node *node, const pass *p, const gradients *d) {
    bool accumulate;
    ls_tensor *dw = ls_gradient_place(node, WEIGHT, &accumulate);
    LS_TRY(ls_made(dw));
    const int64_t rows = p->steps * p->n;
    if (rows == 0) {
        return accumulate ? LS_OK : p->kernels->fill(p->stream, dw, 0);
    }
    const ls_tensor before = ls_stack_view_slice(node->saved[SAVED_OUTPUT], 0, p->reverse ? 1 : 0, p->steps, 1);
    const ls_gemm gemm = {.dtype = p->dtype,
                          .m = p->gates,
                          .n = p->hidden,
                          .k = rows,
                          .a = d->d_recurrent->data,
                          .lda = p->gates,
                          .transpose_a = true,
                          .b = before.data,
                          .ldb = p->hidden,
                          .c = dw->data,
                          .ldc = p->hidden,
                          .accumulate = accumulate};
    return p->kernels->gemm(p->stream, &gemm);
}

static ls_status give_bias(ls_node *node, const pass *p, const gradients *d) {
    ls_tensor *db = ls_gradient_place_zeroed(node, BIAS);
    LS_TRY(ls_made(db));
    const ls_tensor matrix = ls_stack_view_dense(d->d_recurrent, 2, (const int64_t[]){p->steps * p->n, p->gates});
    return p->kernels->add_sum(p->stream, db, &matrix);
}

static ls_status make_gradients(const ls_node *node, const pass *p, ls_tensor *gradient, gradients *d) {
    const ls_tensor *x = node->inputs[X];
    const char *name = node->op->name;
    d->g = ls_dense(name, gradient);
    LS_TRY(ls_made(d->g));
    d->d_x = ls_tensor_like_owned(name, x, p->dtype);
    LS_TRY(ls_made(d->d_x));
    d->d_recurrent = p->kind == LS_RECURRENCE_GRU ? ls_tensor_like_owned(name, x, p->dtype) : ls_tensor_hold(d->d_x);
    LS_TRY(ls_made(d->d_recurrent));
    d->state = ls_tensor_new_owned(name, ls_tensor_device(x), 3,
                                   (const int64_t[]){ls_recurrence_states(p->kind), p->n, p->hidden}, p->dtype);
    return ls_made(d->state);
}

static ls_status recur_backward(ls_node *node, ls_tensor *gradient) {
    const pass p = pass_of(node->inputs[X], node->inputs[WEIGHT], &node->parameters);
    gradients d = {0};
    ls_status status = make_gradients(node, &p, gradient, &d);
    status = status == LS_OK ? backward_steps(node, &p, &d) : status;
    status = status == LS_OK && ls_wants(node, WEIGHT) ? give_weight(node, &p, &d) : status;
    status = status == LS_OK && ls_wants(node, BIAS) ? give_bias(node, &p, &d) : status;
    status = status == LS_OK ? ls_accumulate(node, X, d.d_x) : status;
    status = status == LS_OK ? ls_accumulate(node, STATE, d.state) : status;
    ls_tensor_drop(d.g);
    ls_tensor_drop(d.d_x);
    ls_tensor_drop(d.d_recurrent);
    ls_tensor_drop(d.state);
    return status;
}

/* Samples lie along the second axis. */
static ls_samples_use recur_samples(ls_samples_call *call) {
    const int axis = ls_sample_axis(call, X);
    return axis == 1 ? LS_SAMPLES_KEPT : axis < 0 ? LS_SAMPLES_UNKNOWN : LS_SAMPLES_MIXED;
}

#define READS (1U << WEIGHT | 1U << LENGTHS)
#define ROW(text, cell)                                                                                                \
    {                                                                                                                  \
        .name = (text), .shape = recur_shape, .forward = recur_forward, .backward = recur_backward,                    \
        .over_samples = recur_samples, .kernel = LS_KERNEL(cell), .kernel_backward = LS_KERNEL(cell##_backward),       \
        .saves_output = true, .optional = 1U << BIAS | 1U << STATE | 1U << LENGTHS, .reads = {                         \
            READS,                                                                                                     \
            READS,                                                                                                     \
            READS,                                                                                                     \
            READS                                                                                                      \
        }                                                                                                              \
    }

static const ls_op rnn_op = ROW("RNN", rnn_cell);
static const ls_op lstm_op = ROW("LSTM", lstm_cell);
static const ls_op gru_op = ROW("GRU", gru_cell);

const ls_op *const ls_recurrent_ops[] = {&rnn_op, &lstm_op, &gru_op, NULL};

ls_tensor *ls_recur(ls_recurrence kind, ls_tensor *x, ls_tensor *weight, ls_tensor *bias, ls_tensor *state,
                    ls_tensor *lengths, bool reverse) {
    const ls_op *op = kind == LS_RECURRENCE_LSTM ? &lstm_op : kind == LS_RECURRENCE_GRU ? &gru_op : &rnn_op;
    ls_tensor *const inputs[INPUTS] = {x, weight, bias, state, lengths};
    if (!ls_inputs_are_given(op->name, inputs, 2) || !ls_inputs_are_here(op->name, inputs, INPUTS) ||
        ls_check_floating(op->name, inputs, LENGTHS) != LS_OK) {
        return ls_scope_failed();
    }
    const ls_op_parameters parameters = {.integer = {[KIND] = kind, [REVERSE] = reverse}};
    return ls_apply_dense(op, inputs, INPUTS, LENGTHS, &parameters, (1U << INPUTS) - 1);
}
