/*
 * A sequence of layers cut into stages, one per rank. A batch is cut into micro-batches, which follow each other
 * through the stages. Messages are the schedule's own: a stage's input is a leaf, whose gradient goes back to the stage
 * before. Sends are begun and left alone until the end of the step, receives are waited for; so stages can get ahead of
 * each other, and no schedule of a stage can keep another from its own.
 *
 * GPipe (Huang et al., arXiv 1811.06965): all micro-batches forwards, then all backwards. 1F1B (Narayanan et al.,
 * arXiv 1806.03377): as soon as a micro-batch has come back, the next goes out, so a stage holds at most as many as
 * there are stages from it to the end. The same sums in the same order, thus the same bits.
 */
#include "parallel/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "tensor/scope.h"

enum { FORWARD_TAG = 1 << 28, BACKWARD_TAG, LOSS_TAG };

/* ---- messages between stages ------------------------------------------------------------------------------------- */

/* What goes ahead of a tensor. */
typedef struct announcement {
    int64_t dtype;
    int64_t ndim;
    int64_t size[LS_MAX_DIMS];
} announcement;

/* A tensor on its way to another stage. */
typedef struct parcel {
    announcement head;
    ls_tensor *content; /* dense, held */
    ls_work *work[2];
} parcel;

static ls_status post(ls_comm *comm, parcel *p, const ls_tensor *tensor, int to, int tag) {
    p->head = (announcement){.dtype = tensor->dtype, .ndim = tensor->ndim};
    memcpy(p->head.size, tensor->size, (size_t)tensor->ndim * sizeof *tensor->size);
    p->content = ls_tensor_dense("ls_pipeline", tensor, (ls_dtype)tensor->dtype);
    if (p->content == NULL) {
        return ls_error_status();
    }
    LS_TRY(ls_comm_send(comm, &p->head, sizeof p->head, LS_U8, to, tag, &p->work[0]));
    return ls_comm_send(comm, p->content->data, (size_t)tensor->count, (ls_dtype)tensor->dtype, to, tag, &p->work[1]);
}

static ls_status settle(parcel *p) {
    const ls_status head = ls_work_wait(p->work[0]);
    const ls_status content = ls_work_wait(p->work[1]);
    ls_tensor_drop(p->content);
    *p = (parcel){0};
    return head != LS_OK ? head : content;
}

/* The next tensor from another stage, in the innermost scope. */
static ls_tensor *fetch(ls_comm *comm, int from, int tag) {
    announcement head;
    if (ls_comm_recv(comm, &head, sizeof head, LS_U8, from, tag, NULL) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *tensor = ls_tensor_new("ls_pipeline", (int)head.ndim, head.size, (ls_dtype)head.dtype);
    return tensor != NULL && ls_comm_recv(comm, tensor->data, (size_t)tensor->count, (ls_dtype)tensor->dtype, from, tag,
                                          NULL) == LS_OK
               ? tensor
               : ls_scope_failed();
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* A micro-batch between its way out and its way back. */
typedef struct journey {
    ls_tensor *input;  /* a leaf, where a stage is before this one */
    ls_tensor *output; /* the last stage's is its loss, weighted by its samples */
    parcel sent[2];    /* forwards, backwards */
} journey;

typedef struct trip {
    const ls_pipeline_state *state;
    ls_comm *comm;
    int stage;
    int stages;
    int count; /* micro-batches */
    int64_t rows;
    ls_tensor *input;
    ls_tensor *target;
    ls_pipeline_criterion criterion;
    journey *journeys;
    double loss;
} trip;

static bool is_last(const trip *t) {
    return t->stage == t->stages - 1;
}

static int64_t first_row(const trip *t, int number) {
    return t->rows / t->count * number + (number < t->rows % t->count ? number : t->rows % t->count);
}

static ls_tensor *rows_of(const trip *t, ls_tensor *all, int number) {
    const int64_t start = first_row(t, number);
    return ls_narrow(all, 0, start, first_row(t, number + 1) - start);
}

/* What the stage works on: a part of the batch, or what the stage before sends, as a leaf. */
static ls_tensor *stage_input(const trip *t, int number) {
    if (t->stage == 0) {
        return rows_of(t, t->input, number);
    }
    ls_tensor *input = fetch(t->comm, t->stage - 1, FORWARD_TAG);
    if (input != NULL && ls_dtype_is_floating((ls_dtype)input->dtype) && ls_set_requires_grad(input, true) != LS_OK) {
        return NULL;
    }
    return input;
}

static ls_tensor *weighted_loss(trip *t, ls_tensor *output, int number) {
    ls_tensor *target = rows_of(t, t->target, number);
    ls_tensor *loss = t->criterion(output, target);
    const double weight = (double)ls_size(target, 0) / (double)t->rows;
    loss = loss != NULL ? ls_mul_number(loss, weight) : NULL;
    t->loss += loss != NULL ? ls_item(loss) : 0;
    return loss;
}

static ls_status go_forward_in_scope(trip *t, int number) {
    journey *j = &t->journeys[number];
    ls_tensor *input = stage_input(t, number);
    const uint64_t began = ls_trace_now();
    ls_tensor *output = ls_forward(t->state->stage, input);
    if (output != NULL && is_last(t)) {
        output = weighted_loss(t, output, number);
    }
    ls_trace_add(LS_TRACE_PIPELINE, began, -1, "forward %d", number + 1);
    if (output == NULL) {
        return ls_scope_failed_status();
    }
    /* What lives on between the ways belongs to the step, not to the scope. */
    j->input = ls_tensor_hold(input);
    j->output = ls_tensor_hold(output);
    (void)ls_keep(output);
    return is_last(t) ? LS_OK : post(t->comm, &j->sent[0], output, t->stage + 1, FORWARD_TAG);
}

static ls_status go_forward(trip *t, int number) {
    ls_thread_state *thread = ls_thread();
    ls_scope *scope = ls_scope_begin();
    thread->segment = (uint32_t)number + 1;
    const ls_status status = go_forward_in_scope(t, number);
    const ls_status ended = ls_scope_end(scope);
    thread->segment = 0;
    return status != LS_OK ? status : ended;
}

static ls_status go_backward_in_scope(trip *t, int number) {
    journey *j = &t->journeys[number];
    ls_backward_options options = {0};
    if (!is_last(t)) {
        options.gradient = fetch(t->comm, t->stage + 1, BACKWARD_TAG);
        if (options.gradient == NULL) {
            return ls_error_status();
        }
    }
    const uint64_t began = ls_trace_now();
    if (j->output->needs_grad) {
        LS_TRY(ls_backward_with(j->output, &options));
    }
    ls_trace_add(LS_TRACE_PIPELINE, began, -1, "backward %d", number + 1);
    if (t->stage == 0) {
        return LS_OK;
    }
    ls_tensor *gradient = ls_grad(j->input);
    if (gradient == NULL) { /* the stage makes nothing of its input */
        gradient = ls_zeros(ls_shape_of(j->input), ls_dtype_of(j->input));
    }
    return gradient != NULL ? post(t->comm, &j->sent[1], gradient, t->stage - 1, BACKWARD_TAG) : ls_error_status();
}

static ls_status go_backward(trip *t, int number) {
    ls_thread_state *thread = ls_thread();
    journey *j = &t->journeys[number];
    ls_scope *scope = ls_scope_begin();
    thread->segment = (uint32_t)number + 1;
    const ls_status status = go_backward_in_scope(t, number);
    const ls_status ended = ls_scope_end(scope);
    thread->segment = 0;
    ls_release(j->output);
    ls_tensor_drop(j->output);
    ls_tensor_drop(j->input);
    j->output = j->input = NULL;
    return status != LS_OK ? status : ended;
}

/* How many micro-batches go out before the first comes back. */
static int lead_of(const trip *t) {
    if (t->state->schedule == LS_PIPELINE_GPIPE) {
        return t->count;
    }
    const int lead = t->stages - t->stage;
    return lead < t->count ? lead : t->count;
}

static ls_status run_schedule(trip *t) {
    const int lead = lead_of(t);
    for (int number = 0; number < lead; number++) {
        LS_TRY(go_forward(t, number));
    }
    for (int number = 0; number < t->count; number++) {
        LS_TRY(go_backward(t, number));
        if (number + lead < t->count) {
            LS_TRY(go_forward(t, number + lead));
        }
    }
    return LS_OK;
}

/* Waits for what was sent; what a failed step has left goes. */
static ls_status unpack(trip *t, ls_status status) {
    for (int number = 0; number < t->count; number++) {
        journey *j = &t->journeys[number];
        for (int way = 0; way < 2; way++) {
            const ls_status settled = settle(&j->sent[way]);
            status = status == LS_OK ? settled : status;
        }
        if (j->output != NULL) {
            ls_release(j->output);
            ls_tensor_drop(j->output);
            ls_tensor_drop(j->input);
        }
    }
    return status;
}

/* The first stage has the input, the last the target: all learn how many rows there are, or that they differ. */
static ls_status agree_on_rows(trip *t) {
    int64_t least = INT64_MAX;
    int64_t most = 0;
    if (t->stage == 0) {
        least = most = ls_size(t->input, 0);
    }
    if (is_last(t)) {
        const int64_t rows = ls_size(t->target, 0);
        least = rows < least ? rows : least;
        most = rows > most ? rows : most;
    }
    int64_t bounds[2] = {least, -most};
    LS_TRY(ls_comm_allreduce(t->comm, bounds, bounds, 2, LS_I64, LS_MIN, NULL));
    if (bounds[0] != -bounds[1] || bounds[0] == 0) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_pipeline_backward: between %lld and %lld samples in input and target: they must be as many, "
                       "and there must be some",
                       (long long)bounds[0], (long long)-bounds[1]);
    }
    t->rows = bounds[0];
    t->count = (int)(t->state->micro_batches < t->rows ? t->state->micro_batches : t->rows);
    return LS_OK;
}

/* By messages: the last stage, which is done first, need not wait for the others, as it would in a broadcast. */
static ls_status share_loss(trip *t) {
    if (!is_last(t)) {
        return ls_comm_recv(t->comm, &t->loss, 1, LS_F64, t->stages - 1, LOSS_TAG, NULL);
    }
    for (int stage = 0; stage < t->stages - 1; stage++) {
        LS_TRY(ls_comm_send(t->comm, &t->loss, 1, LS_F64, stage, LOSS_TAG, NULL));
    }
    return LS_OK;
}

static ls_status run(trip *t, double *loss) {
    LS_TRY(agree_on_rows(t));
    const size_t bytes = (size_t)t->count * sizeof *t->journeys;
    t->journeys = ls_allocate_zeroed((size_t)t->count, sizeof *t->journeys);
    if (t->journeys == NULL) {
        return ls_fail_memory("ls_pipeline_backward", bytes);
    }
    ls_status status = unpack(t, run_schedule(t));
    ls_free(t->journeys);
    LS_TRY(status);
    status = share_loss(t);
    if (loss != NULL) {
        *loss = t->loss;
    }
    return status;
}

static const ls_pipeline_state *state_of(const char *call, const ls_module *module) {
    if (module == NULL || module->type != &ls_pipeline_type) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the module %s", call,
                            module == NULL ? "is NULL" : "was not made by ls_pipeline");
    }
    return module->state;
}

ls_status ls_pipeline_backward(ls_module *module, ls_tensor *input, ls_tensor *target, ls_pipeline_criterion criterion,
                               double *loss) {
    static const char call[] = "ls_pipeline_backward";
    const ls_pipeline_state *state = state_of(call, module);
    if (state == NULL) {
        return ls_error_status();
    }
    trip t = {.state = state,
              .comm = state->comm,
              .stage = ls_comm_rank(state->comm),
              .stages = ls_comm_size(state->comm),
              .input = input,
              .target = target,
              .criterion = criterion};
    const ls_status status = run(&t, loss);
    if (status != LS_OK) {
        (void)ls_scope_failed();
    }
    return status;
}

/* ---- without gradients ------------------------------------------------------------------------------------------- */

static ls_tensor *pass_on(const ls_pipeline_state *state, ls_tensor *input) {
    const int stage = ls_comm_rank(state->comm);
    const int stages = ls_comm_size(state->comm);
    ls_tensor *x = stage == 0 ? input : fetch(state->comm, stage - 1, FORWARD_TAG);
    ls_tensor *y = ls_forward(state->stage, x);
    if (stage < stages - 1 && y != NULL) {
        parcel sent = {0};
        const ls_status posted = post(state->comm, &sent, y, stage + 1, FORWARD_TAG);
        if (posted != LS_OK || settle(&sent) != LS_OK) {
            y = ls_scope_failed();
        }
    }
    return ls_broadcast(state->comm, stage == stages - 1 ? y : NULL, stages - 1);
}

ls_tensor *ls_pipeline_forward(ls_module *self, ls_tensor *input) {
    const bool before = ls_no_grad(true);
    ls_tensor *output = pass_on(self->state, input);
    (void)ls_no_grad(before);
    return output;
}
