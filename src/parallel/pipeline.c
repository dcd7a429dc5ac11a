/*
 * A sequence of layers, partitioned into stages, one per rank. A batch is split into micro-batches, which pass through
 * the stages one after another. The schedule sends the messages itself: a stage's input is a leaf, whose gradient is
 * sent to the previous stage. Sends are started immediately, and waited for at the end of the step; receives are waited
 * for immediately. Stages can therefore run ahead of each other, and no stage can block another stage's schedule.
 *
 * GPipe (Huang et al., arXiv 1811.06965) runs all forward passes, then all backward passes. 1F1B (Narayanan et al.,
 * arXiv 1806.03377) starts the next micro-batch when the gradient of an earlier one has returned, so a stage holds at
 * most as many micro-batches as there are stages from this stage to the last. Both compute the same sums in the same
 * order, so their results are bit-identical.
 */
#include "parallel/pipeline.h"

#include <math.h>
#include <stdio.h>

#include "autograd/ops/ops.h"
#include "autograd/samples.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/share.h"
#include "base/trace.h"
#include "comm/hold.h"
#include "comm/public_call.h"
#include "parallel/cause.h"
#include "parallel/stage_messages.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

enum { FORWARD_TAG = 1 << 28, BACKWARD_TAG, RESULT_TAG };

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* The two directions of a micro-batch, which are also the tags of its messages. */
enum { FORWARDS = 0, BACKWARDS, WAYS };
static const int tags[WAYS] = {FORWARD_TAG, BACKWARD_TAG};

/* A micro-batch between its forward and its backward pass. */
typedef struct microbatch {
    ls_tensor *input;  /* a leaf, if there is a previous stage */
    ls_tensor *output; /* on the last stage, the loss weighted by its number of samples */
    ls_stage_message sent[WAYS];
} microbatch;

typedef struct step {
    ls_pipeline_state *state;
    ls_comm *comm;
    int stage;
    int stages;
    int count; /* micro-batches */
    int64_t rows;
    ls_tensor *input;
    ls_tensor *target;
    ls_criterion criterion;
    void *user; /* argument of the criterion */
    microbatch *microbatches;
    double loss;
    uint64_t elements; /* hash of the numbers of elements per sample in the means of the loss; 0 if not yet known */
    int sent[WAYS];    /* number of micro-batches sent in each direction */
    int got[WAYS];     /* number of micro-batches received in each direction */
    ls_stage_failure failure;
    ls_stage_message notices[WAYS];
} step;

static bool is_last(const step *t) {
    return t->stage == t->stages - 1;
}

/* Return the stage to which this stage sends in the given direction, and the stage from which it receives; -1 if
 * there is none. */
static int stage_behind(const step *t, int way) {
    const int stage = way == FORWARDS ? t->stage + 1 : t->stage - 1;
    return stage < t->stages ? stage : -1;
}

static int stage_before(const step *t, int way) {
    return stage_behind(t, way == FORWARDS ? BACKWARDS : FORWARDS);
}

static ls_status send_on(step *t, int number, int way, const ls_tensor *tensor) {
    LS_TRY(ls_stage_send(t->comm, &t->microbatches[number].sent[way], tensor, stage_behind(t, way), tags[way]));
    t->sent[way]++;
    return LS_OK;
}

static ls_tensor *take_in(step *t, int way) {
    ls_tensor *tensor = ls_stage_receive(t->comm, stage_before(t, way), tags[way], &t->failure);
    t->got[way] = tensor != NULL || !t->failure.happened || t->failure.stage == t->stage ? t->got[way] + 1 : t->count;
    return tensor;
}

static ls_tensor *rows_of(const step *t, ls_tensor *all, int number) {
    const ls_share rows = ls_share_of(t->rows, t->count, number);
    return ls_narrow(all, 0, rows.start, rows.count);
}

/* Returns the stage's input as a leaf: a part of the batch, or the previous stage's output. */
static ls_tensor *stage_input(step *t, int number) {
    if (t->stage == 0) {
        return rows_of(t, t->input, number);
    }
    ls_tensor *input = take_in(t, FORWARDS);
    if (input != NULL && ls_dtype_is_floating((ls_dtype)input->dtype) && ls_set_requires_grad(input, true) != LS_OK) {
        return NULL;
    }
    return input;
}

/*
 * Checks the criterion. Micro-batches are weighted by their number of samples before all losses are known. Every term
 * of the criterion must therefore be a mean to which every sample of every micro-batch contributes the same number of
 * elements. It must not be a sum, a weighted mean, or a mean over only some elements.
 */
static ls_status check_criterion(step *t, const ls_tensor *output, const ls_tensor *loss, int64_t rows) {
    ls_batch_loss made;
    uint64_t elements = LS_HASH_START;
    ls_samples_trace(&made, ls_thread()->scope, loss, false);
    if (output->needs_grad && loss->needs_grad && !ls_batch_loss_reaches(&made)) {
        return ls_fail(LS_ERR_STATE, "ls_pipeline_backward: the criterion's loss does not depend on the output: the "
                                     "criterion ignores it, or has called ls_no_grad or ls_detach");
    }
    bool good = made.refused == NULL;
    for (int i = made.earlier; good && !made.by_samples && i < made.sums; i++) {
        double divisor = 0;
        ls_batch_loss_divisors(&made, i, 1, &divisor, NULL);
        const double each = divisor / (double)rows;
        const bool counts = made.only < 0 || made.only == i;
        good = !counts || (isfinite(each) && each >= 1 && each == floor(each));
        elements = counts ? ls_hash(elements, &each, sizeof each) : elements;
    }
    good = good && (t->elements == 0 || t->elements == elements);
    t->elements = elements;
    return good ? LS_OK
                : ls_fail(LS_ERR_UNSUPPORTED, "ls_pipeline_backward: the criterion must be a mean over the samples, "
                                              "with equal weights: no sum, no class weights, no ignored targets");
}

static ls_tensor *weighted_loss(step *t, ls_tensor *output, int number) {
    ls_tensor *target = rows_of(t, t->target, number);
    if (output->needs_grad) {
        /* a stage may return its input, which has no node; the check of the criterion needs one */
        output = output->node == NULL ? ls_view_as_is(output) : output;
        if (output == NULL) {
            return NULL;
        }
        ls_samples_begin(output, t);
    }
    const ls_public_call own = ls_public_begin(LS_PUBLIC_NONE);
    ls_tensor *loss = t->criterion(output, target, t->user);
    (void)ls_public_end(own, LS_OK);
    if (loss == NULL && ls_scope_explains_null(ls_thread())) {
        return NULL;
    }
    if (loss == NULL) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_pipeline_backward: the criterion returned NULL without an error");
    }
    if (output->needs_grad && !loss->needs_grad) {
        return ls_fail_noted(LS_ERR_STATE,
                             "ls_pipeline_backward: the criterion's loss has no history: it does not depend on "
                             "the output, or the criterion has called ls_no_grad or ls_detach");
    }
    if (target != NULL && check_criterion(t, output, loss, ls_size(target, 0)) != LS_OK) {
        return ls_scope_failed();
    }
    loss = ls_mul_number(loss, (double)ls_size(target, 0) / (double)t->rows);
    t->loss += ls_item(loss);
    return loss;
}

/* Runs one pass of a micro-batch in its own scope. The nodes of the pass belong to the segment of the micro-batch. */
static ls_status run_in_scope(step *t, int number, ls_status (*pass)(step *t, int number)) {
    ls_thread_state *thread = ls_thread();
    ls_scope *scope = ls_scope_open();
    thread->segment = (uint32_t)number + 1;
    const ls_status status = pass(t, number);
    const ls_status ended = ls_scope_close(scope);
    thread->segment = 0;
    return status != LS_OK ? status : ended;
}

static ls_status forward_pass(step *t, int number) {
    microbatch *j = &t->microbatches[number];
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
    /* The step, not the scope, holds the tensors that the backward pass needs. */
    j->input = ls_tensor_hold(input);
    j->output = ls_tensor_hold(output);
    (void)ls_keep(output);
    return is_last(t) ? LS_OK : send_on(t, number, FORWARDS, output);
}

static ls_status backward_pass(step *t, int number) {
    microbatch *j = &t->microbatches[number];
    ls_backward_options options = {0};
    if (!is_last(t)) {
        options.gradient = take_in(t, BACKWARDS);
        LS_TRY(ls_made(options.gradient));
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
    if (gradient == NULL) { /* the stage's output does not depend on its input */
        gradient = ls_zeros(ls_shape_of(j->input), ls_dtype_of(j->input));
    }
    return gradient != NULL ? send_on(t, number, BACKWARDS, gradient) : ls_error_status();
}

/* Frees the tensors that the step holds, and therefore the tape of the micro-batch. */
static void free_tensors(microbatch *j) {
    if (j->output != NULL) {
        ls_release(j->output);
        ls_tensor_drop(j->output);
        ls_tensor_drop(j->input);
        j->output = j->input = NULL;
    }
}

static ls_status go_forward(step *t, int number) {
    return run_in_scope(t, number, forward_pass);
}

static ls_status go_backward(step *t, int number) {
    const ls_status status = run_in_scope(t, number, backward_pass);
    free_tensors(&t->microbatches[number]);
    return status;
}

/* Returns how many micro-batches start before the first one returns. */
static int lead_of(const step *t) {
    if (t->state->schedule == LS_PIPELINE_GPIPE) {
        return t->count;
    }
    const int lead = t->stages - t->stage;
    return lead < t->count ? lead : t->count;
}

static ls_status run_schedule(step *t) {
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

/* Receives and drops the remaining messages from the neighbor in this direction, up to the neighbor's own failure
 * message if there is one. */
static ls_status clear(step *t, int way) {
    const int from = stage_before(t, way);
    while (from >= 0 && t->got[way] < t->count) {
        bool failed = false;
        LS_TRY(ls_stage_discard(t->comm, from, tags[way], &failed));
        t->got[way] = failed ? t->count : t->got[way] + 1;
    }
    return LS_OK;
}

/* Makes the pipeline reject further steps, because this stage failed in a step. */
static void break_off(step *t, int stage, const char *cause) {
    t->state->broken = true;
    t->state->failed = stage;
    snprintf(t->state->cause, sizeof t->state->cause, "%s", cause);
}

/*
 * Ends the step after a failure. Notifies the neighbors that wait for this stage; they notify their neighbors. All
 * stages receive the messages that are still being sent to them, so that no sender waits forever.
 */
static void give_up(step *t) {
    ls_stage_note_failure(&t->failure, t->stage);
    break_off(t, t->failure.stage, t->failure.text);
    for (int way = 0; way < WAYS; way++) {
        const int to = stage_behind(t, way);
        if (to >= 0 && t->sent[way] < t->count) {
            (void)ls_stage_send_failure(t->comm, &t->notices[way], &t->failure, to, tags[way]);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        (void)clear(t, way);
    }
}

/*
 * Waits for all sends, and frees what a failed step has left. A neighbor that has failed refuses the data of a send,
 * with LS_ERR_MISMATCH. This stage has then finished the step, and learns of the failure in its next step.
 */
static ls_status unpack(step *t) {
    ls_status status = LS_OK;
    for (int number = 0; t->microbatches != NULL && number < t->count; number++) {
        microbatch *j = &t->microbatches[number];
        for (int way = 0; way < WAYS; way++) {
            const ls_status settled = ls_stage_send_wait(&j->sent[way]);
            status = status == LS_OK && settled != LS_ERR_MISMATCH ? settled : status;
        }
        free_tensors(j);
    }
    for (int way = 0; way < WAYS; way++) {
        (void)ls_stage_send_wait(&t->notices[way]);
    }
    return status;
}

/* The last stage's message at the end of a step. */
typedef struct result {
    double loss;
    int64_t failed;
} result;

/*
 * Uses point-to-point messages: the last stage finishes first, and would have to wait for the others in a broadcast.
 * `cause` is this stage's error message, or NULL. A message of the last stage also breaks this stage.
 */
static ls_status share_result(step *t, const char *cause) {
    result own = {.loss = t->loss, .failed = cause != NULL};
    char text[LS_ERROR_CAPACITY] = "";
    if (is_last(t)) {
        snprintf(text, sizeof text, "%s", cause != NULL ? cause : "");
        for (int stage = 0; stage < t->stages - 1; stage++) {
            LS_TRY(ls_comm_send(t->comm, &own, sizeof own, LS_U8, stage, RESULT_TAG, NULL));
            LS_TRY(cause == NULL ? LS_OK : ls_comm_send(t->comm, text, sizeof text, LS_U8, stage, RESULT_TAG, NULL));
        }
        return LS_OK;
    }
    LS_TRY(ls_comm_recv(t->comm, &own, sizeof own, LS_U8, t->stages - 1, RESULT_TAG, NULL));
    t->loss = own.loss;
    if (own.failed == 0) {
        return LS_OK;
    }
    LS_TRY(ls_comm_recv(t->comm, text, sizeof text, LS_U8, t->stages - 1, RESULT_TAG, NULL));
    text[sizeof text - 1] = '\0';
    if (!t->state->broken) {
        break_off(t, t->stages - 1, text);
    }
    return ls_fail(LS_ERR_MISMATCH, "ls_pipeline_backward: stage %d (rank %d) failed: %s", t->stages - 1, t->stages - 1,
                   text);
}

/* The backward pass of the first micro-batch would use up the tape before the pipeline. */
static ls_status refuse_history(const char *what, const ls_tensor *tensor, int rank) {
    return !tensor->needs_grad || tensor->node == NULL
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "ls_pipeline_backward: rank %d's %s has a history: make the layers before the pipeline part "
                         "of it, or call ls_detach",
                         rank, what);
}

static ls_status check_step(const step *t) {
    static const char call[] = "ls_pipeline_backward";
    if (t->state->broken) {
        return ls_fail(
            LS_ERR_STATE,
            "%s: an earlier step of this pipeline failed on stage %d (rank %d): free the pipeline and create it again; "
            "the error was: %s",
            call, t->state->failed, t->state->failed, t->state->cause);
    }
    if (ls_thread()->no_grad) {
        return ls_fail(LS_ERR_STATE, "%s: recording is off on stage %d (rank %d): call ls_no_grad(false) first", call,
                       t->stage, t->stage);
    }
    if (t->stage == 0 && !ls_inputs_are_here(call, &t->input, 1)) {
        return ls_error_status();
    }
    if (is_last(t) && !ls_inputs_are_here(call, (ls_tensor *[]){NULL, t->target}, 2)) {
        return ls_error_status();
    }
    if (t->stage == 0 && (t->input == NULL || t->input->ndim == 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: rank 0's input %s", call, t->input == NULL ? "is NULL" : "has no axes");
    }
    if (t->stage == 0) {
        LS_TRY(refuse_history("input", t->input, 0));
    }
    if (is_last(t) && (t->target == NULL || t->target->ndim == 0 || t->criterion == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: rank %d's %s", call, t->stage,
                       t->criterion == NULL ? "criterion is NULL"
                                            : (t->target == NULL ? "target is NULL" : "target has no axes"));
    }
    return is_last(t) ? refuse_history("target", t->target, t->stage) : LS_OK;
}

/* The properties that the stages compare at the beginning of a step. */
enum { INPUT_ROWS, TARGET_ROWS, TAKE_PART, INPUT_FIRST, INPUT_BATCH, TARGET_FIRST, TARGET_BATCH, KNOWN };

/* Describes which samples the tensor contains, if it is part of the loader's last batch. */
static void describe_samples(const ls_tensor *tensor, int64_t *first, int64_t *batch) {
    const ls_thread_state *thread = ls_thread();
    if (tensor->storage != NULL && (tensor->storage == thread->loaded[0] || tensor->storage == thread->loaded[1])) {
        *first = thread->loaded_first;
        *batch = thread->loaded_number;
    }
}

/* Fails if input and target are from different shares of a batch, or from different batches. */
static ls_status check_samples(const step *t, const int64_t *known) {
    const bool knows = known[INPUT_FIRST] != INT64_MAX && known[TARGET_FIRST] != INT64_MAX;
    return !knows || (known[INPUT_FIRST] == known[TARGET_FIRST] && known[INPUT_BATCH] == known[TARGET_BATCH])
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH,
                         "ls_pipeline_backward: rank 0's input begins with sample %lld of batch %lld, but rank %d's "
                         "target begins with sample %lld of batch %lld: all ranks of the pipeline must get the same "
                         "samples: give the loader no .comm (or the communicator of the data-parallel ranks)",
                         (long long)known[INPUT_FIRST], (long long)known[INPUT_BATCH], t->stages - 1,
                         (long long)known[TARGET_FIRST], (long long)known[TARGET_BATCH]);
}

/*
 * Exchanges the number of rows. The first stage has the input, and the last stage has the target. All stages learn the
 * number of rows, or that the two numbers or the samples differ, or the error message of a stage that cannot take part.
 */
static ls_status agree_on_rows(step *t) {
    const ls_status own = check_step(t);
    ls_saved_error cause;
    ls_error_save(&cause);
    int64_t known[KNOWN]; /* at most one stage knows a property, except TAKE_PART */
    for (int i = 0; i < KNOWN; i++) {
        known[i] = i != TAKE_PART ? INT64_MAX : own == LS_OK;
    }
    if (own == LS_OK && t->stage == 0) {
        known[INPUT_ROWS] = t->input->size[0];
        describe_samples(t->input, &known[INPUT_FIRST], &known[INPUT_BATCH]);
    }
    if (own == LS_OK && is_last(t)) {
        known[TARGET_ROWS] = t->target->size[0];
        describe_samples(t->target, &known[TARGET_FIRST], &known[TARGET_BATCH]);
    }
    const ls_status met = ls_comm_allreduce(t->comm, known, known, KNOWN, LS_I64, LS_MIN, NULL);
    if (own != LS_OK) {
        (void)ls_error_put_back(&cause);
    }
    if (met != LS_OK) {
        return own != LS_OK ? own : met;
    }
    if (known[TAKE_PART] == 0) {
        return ls_cause_share(t->comm, "ls_pipeline_backward", own != LS_OK);
    }
    LS_TRY(check_samples(t, known));
    if (known[INPUT_ROWS] != known[TARGET_ROWS] || known[INPUT_ROWS] == 0) {
        return ls_fail(
            LS_ERR_SHAPE,
            "ls_pipeline_backward: input and target have %lld and %lld samples; both must have the same number, "
            "at least 1",
            (long long)known[INPUT_ROWS], (long long)known[TARGET_ROWS]);
    }
    t->rows = known[INPUT_ROWS];
    t->count = (int)(t->state->micro_batches < t->rows ? t->state->micro_batches : t->rows);
    return LS_OK;
}

/* Records the number of samples of a step. The record of earlier steps is dropped when the gradients are cleared. */
static void note_samples(const step *t) {
    ls_gathered_steps *steps = &t->state->steps;
    bool gathered = false;
    for (int i = 0; i < ls_module_parameter_count(t->state->stage) && !gathered; i++) {
        const ls_leaf *leaf = ls_module_parameter(t->state->stage, i)->leaf;
        gathered = leaf != NULL && leaf->has_gradient;
    }
    if (!gathered) {
        *steps = (ls_gathered_steps){0};
    }
    if (steps->count < LS_STEPS_KNOWN) {
        steps->samples[steps->count] = t->rows;
    }
    steps->differ = steps->differ || t->rows != steps->samples[0];
    steps->count++;
    steps->any = 1;
    steps->several = steps->count > 1;
}

static ls_status run(step *t, double *loss) {
    LS_TRY(agree_on_rows(t));
    note_samples(t);
    t->microbatches = ls_allocate_for("ls_pipeline_backward", (size_t)t->count, sizeof *t->microbatches);
    ls_status status = t->microbatches != NULL ? run_schedule(t) : ls_error_status();
    ls_saved_error cause;
    ls_error_save(&cause);
    if (status != LS_OK) {
        give_up(t);
    }
    const ls_status unpacked = unpack(t);
    ls_free(t->microbatches);
    if (status == LS_OK && unpacked != LS_OK) {
        break_off(t, t->stage, ls_error_message());
    }
    const ls_status shared = share_result(t, status != LS_OK ? cause.message : NULL);
    if (status != LS_OK) {
        (void)ls_error_put_back(&cause);
        return status;
    }
    LS_TRY(unpacked);
    if (shared != LS_OK && !t->state->broken) {
        break_off(t, t->stage, ls_error_message());
    }
    if (loss != NULL) {
        *loss = t->loss;
    }
    return shared;
}

static ls_pipeline_state *state_of(const char *call, const ls_module *module) {
    if (module == NULL || module->type != &ls_pipeline_type) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the module %s", call,
                            module == NULL ? "is NULL" : "was not created by ls_pipeline");
    }
    return module->state;
}

ls_status ls_pipeline_backward(ls_module *module, ls_tensor *input, ls_tensor *target, ls_criterion criterion,
                               void *user, double *loss) {
    ls_capture_refuse_here("ls_pipeline_backward", LS_CAPTURE_COMMUNICATES);
    static const char call[] = "ls_pipeline_backward";
    ls_pipeline_state *state = state_of(call, module);
    LS_TRY(ls_made(state));
    if (ls_comm_check_open(call, state->comm) != LS_OK) {
        return ls_scope_failed_status();
    }
    step t = {.state = state,
              .comm = state->comm,
              .stage = ls_comm_rank(state->comm),
              .stages = ls_comm_size(state->comm),
              .input = input,
              .target = target,
              .criterion = criterion,
              .user = user};
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_PIPELINE_BACKWARD);
    const ls_status status = ls_public_end(outer, run(&t, loss));
    if (status != LS_OK) {
        (void)ls_scope_failed_status();
    }
    return status;
}

ls_comm *ls_module_pipeline_comm(const ls_module *module) {
    ls_comm *comm = module->type == &ls_pipeline_type ? ((const ls_pipeline_state *)module->state)->comm : NULL;
    for (int i = 0; i < module->child_count && comm == NULL; i++) {
        comm = ls_module_pipeline_comm(module->children[i].module);
    }
    return comm;
}

bool ls_module_has_pipeline(const ls_module *module) {
    return ls_module_pipeline_comm(module) != NULL;
}

/* ---- without gradients ------------------------------------------------------------------------------------------- */

static ls_tensor *pass_on(const ls_pipeline_state *state, ls_tensor *input) {
    if (ls_comm_check_open("ls_pipeline", state->comm) != LS_OK) {
        return ls_scope_failed();
    }
    const int stage = ls_comm_rank(state->comm);
    const int stages = ls_comm_size(state->comm);
    ls_stage_failure why = {0};
    ls_tensor *x = stage == 0 ? input : ls_stage_receive(state->comm, stage - 1, FORWARD_TAG, &why);
    ls_tensor *y = ls_forward(state->stage, x);
    if (stage < stages - 1) {
        ls_stage_message sent = {0};
        if (y == NULL) {
            ls_stage_note_failure(&why, stage);
        }
        const ls_status posted = y != NULL ? ls_stage_send(state->comm, &sent, y, stage + 1, FORWARD_TAG)
                                           : ls_stage_send_failure(state->comm, &sent, &why, stage + 1, FORWARD_TAG);
        if (ls_stage_send_wait(&sent) != LS_OK || posted != LS_OK) {
            y = ls_scope_failed();
        }
    }
    return ls_broadcast(state->comm, stage == stages - 1 ? y : NULL, stages - 1);
}

ls_tensor *ls_pipeline_forward(ls_module *self, ls_tensor *input) {
    ls_capture_refuse_here("ls_pipeline", LS_CAPTURE_COMMUNICATES);
    const bool before = ls_no_grad(true);
    ls_tensor *output = pass_on(self->state, input);
    (void)ls_no_grad(before);
    return output;
}
