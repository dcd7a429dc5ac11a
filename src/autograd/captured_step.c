/* Captured steps: the inputs, the gradients and the objects on which a record depends, and the public calls. */
#include "autograd/captured_record.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/step.h>

#include "autograd/tape.h"
#include "base/freed.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/trace.h"
#include "comm/meter.h"

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static captured_input *find_input(const ls_step *step, const ls_tensor *tensor) {
    for (int i = 0; i < step->input_count; i++) {
        if (step->inputs[i].tensor == tensor) {
            return &step->inputs[i];
        }
    }
    return NULL;
}

static void check_leaf(ls_step *step, const char *operation, const ls_tensor *tensor) {
    const ls_leaf *leaf = tensor->leaf;
    if (leaf->hooks != NULL) {
        ls_capture_refuse(&step->capture, operation,
                          "uses a leaf with a gradient hook, which a replay does not call: change the gradient by "
                          "operations of the step");
    }
    if (leaf->divisions[LS_DIVIDED_TENSOR].add != NULL || leaf->divisions[LS_DIVIDED_MODEL].add != NULL) {
        ls_capture_refuse(&step->capture, operation,
                          "uses a parameter of a sharded layer or of .shards in ls_data_parallel: run the step without "
                          "ls_step_capture");
    }
}

/* Returns whether a scope of the step holds the tensor. */
static bool is_made_in_step(const ls_step *step, const ls_tensor *tensor) {
    for (const ls_scope *scope = ls_thread_present->scope; scope != step->outer; scope = scope->outer) {
        if (tensor->scope == scope) {
            return true;
        }
    }
    return false;
}

static captured_input *add_input(ls_step *step, ls_tensor *tensor, const char *operation, int argument) {
    captured_input *inputs = ls_grow(step->inputs, (size_t)step->input_count, sizeof *inputs);
    if (inputs == NULL) {
        ls_step_refuse_memory(step);
        return NULL;
    }
    step->inputs = inputs;
    captured_input *input = &inputs[step->input_count++];
    *input = (captured_input){.tensor = ls_tensor_hold(tensor),
                              .data = tensor->data,
                              .operation = operation,
                              .argument = argument,
                              .needs_grad = tensor->needs_grad,
                              .made_in_step = is_made_in_step(step, tensor),
                              .in_program = tensor->scope != &ls_nowhere};
    ls_leaf *leaf = tensor->leaf;
    if (leaf != NULL) {
        check_leaf(step, operation, tensor);
        input->has_before = leaf->has_gradient;
        input->given = leaf->given;
        if (leaf->gradient != NULL) {
            (void)ls_capture_add_storage(&step->capture, leaf->gradient->storage);
        }
    }
    return input;
}

/* Records argument `argument` of an operation. */
static void note_input(ls_step *step, ls_tensor *input, const char *operation, int argument) {
    if (ls_tensor_device(input) != &ls_cpu) {
        ls_capture_refuse(&step->capture, operation,
                          "computes on a device other than \"cpu\": only steps on the CPU can be captured");
    } else if (ls_capture_add_storage(&step->capture, input->storage) && find_input(step, input) == NULL) {
        (void)add_input(step, input, operation, argument);
    }
}

void ls_capture_operation(ls_capture *capture, const ls_op *op, ls_tensor *const *inputs, int input_count) {
    if (!ls_capture_records(capture)) {
        return;
    }
    capture->operation = op->name;
    if (op->communicates && !op->captures) {
        ls_capture_refuse(capture, op->name, LS_CAPTURE_COMMUNICATES);
    }
    for (int i = 0; i < input_count && ls_capture_records(capture); i++) {
        if (inputs[i] != NULL) {
            note_input(ls_step_of(capture), inputs[i], op->name, i + 1);
        }
    }
}

static void note_tensor(ls_capture *capture, const char *call, ls_tensor *tensor) {
    if (ls_capture_records(capture)) {
        note_input(ls_step_of(capture), tensor, call, 0);
    }
}

void ls_capture_zero_grad(ls_capture *capture, ls_tensor *tensor) {
    ls_step *step = ls_step_of(capture);
    if (!ls_capture_records(capture) || ls_tensor_is_freed(tensor) || tensor->leaf == NULL ||
        !ls_capture_add_storage(capture, tensor->storage)) {
        return;
    }
    captured_input *input = find_input(step, tensor);
    const bool unused = input == NULL || input->given == tensor->leaf->given;
    input = input != NULL ? input : add_input(step, tensor, "ls_zero_grad", 1);
    if (input != NULL) {
        input->zeroed |= unused;
        input->cleared = true;
    }
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static captured_modes modes_of(const ls_thread_state *thread) {
    return (captured_modes){.no_grad = thread->no_grad, .autocast = thread->autocast};
}

static ls_status refuse_input(const captured_input *input, const char *what) {
    char which[32] = "a tensor passed to";
    if (input->argument > 0) {
        snprintf(which, sizeof which, "argument %d of", input->argument);
    }
    return ls_fail(LS_ERR_STATE, "ls_step_replay: %s %s, %s, %s: capture the step again", which, input->operation,
                   LS_SHAPE_TEXT(input->tensor), what);
}

static ls_status check_tensor(const captured_input *input) {
    const ls_tensor *tensor = input->tensor;
    if (__builtin_expect(tensor->references <= 1, 0)) {
        return refuse_input(input, "was freed");
    }
    if (__builtin_expect(input->in_program && tensor->scope == &ls_nowhere, 0)) {
        return refuse_input(input, "was freed by the program, or given to another object, which still holds it");
    }
    if (__builtin_expect(tensor->data != input->data, 0)) {
        return refuse_input(input, "has moved to other memory (a new optimizer, or ls_module_to_device)");
    }
    if (__builtin_expect(tensor->needs_grad != input->needs_grad, 0)) {
        return refuse_input(input, tensor->needs_grad ? "requires a gradient now" : "requires no gradient any more");
    }
    return LS_OK;
}

/* Checks everything that the function and the program must leave as it is, except gradients. */
static ls_status check_objects(const ls_step *step) {
    const captured_modes modes = modes_of(ls_thread_present);
    if (modes.no_grad != step->modes.no_grad || modes.autocast != step->modes.autocast) {
        return ls_fail(LS_ERR_STATE, "ls_step_replay: ls_no_grad or ls_autocast have changed since ls_step_capture: "
                                     "call ls_step_replay in the same mode, or set the mode in the function");
    }
    for (int i = 0; i < step->input_count; i++) {
        LS_TRY(check_tensor(&step->inputs[i]));
    }
    for (int i = 0; i < step->guard_count; i++) {
        LS_TRY(step->guards[i].check(step->guards[i].object, step->guards[i].state));
    }
    return LS_OK;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

ls_tensor *ls_step_view(const ls_tensor *tensor) {
    ls_tensor *view = ls_tensor_view_owned(tensor, tensor->ndim, tensor->size, tensor->stride, 0);
    if (view != NULL) {
        view->scope = &ls_nowhere; /* ls_release has no effect */
    }
    return view;
}

/* Replaces the result of the step with a view without history, which belongs to the step. */
static ls_status take_result(ls_step *step, const char *call, const ls_tensor *result, uint32_t errors) {
    if (result == NULL) {
        return ls_error_count != errors && ls_error_status() != LS_OK
                   ? ls_error_status()
                   : ls_fail(LS_ERR_ARGUMENT, "%s: the function of the step returned NULL without an error", call);
    }
    if (!ls_tensor_is_here(call, result)) {
        return ls_error_status();
    }
    ls_tensor *view = ls_step_view(result);
    if (view == NULL) {
        return ls_error_status();
    }
    ls_tensor_drop(step->result);
    step->result = view;
    return LS_OK;
}

/* Runs the function of the step in its own scope. */
static ls_status run_function(ls_step *step, const char *call) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    const uint32_t errors = ls_error_count;
    const ls_tensor *result = step->function(step->user);
    return ls_scope_end_after(scope, take_result(step, call, result, errors));
}

/*
 * Drops tensors that the step created on memory from before the step. Modules and operations also make tensors outside
 * of scopes; only the record holds these tensors now.
 */
static void drop_temporary_inputs(ls_step *step) {
    int count = 0;
    for (int i = 0; i < step->input_count; i++) {
        const captured_input input = step->inputs[i];
        if (input.made_in_step || (!input.in_program && input.tensor->references == 1)) {
            if (input.tensor->leaf != NULL) {
                ls_capture_refuse(&step->capture, input.operation,
                                  "uses a leaf that the step makes over other memory: make it before the step");
            }
            ls_tensor_drop(input.tensor);
        } else {
            step->inputs[count++] = input;
        }
    }
    step->input_count = count;
}

static void note_gradients(ls_step *step) {
    for (int i = 0; i < step->input_count; i++) {
        captured_input *input = &step->inputs[i];
        const ls_leaf *leaf = input->tensor->leaf;
        input->gradient = leaf != NULL ? leaf->gradient : NULL;
        input->gradient_data = input->gradient != NULL ? input->gradient->data : NULL;
    }
}

static ls_status capture(ls_step *step) {
    const uint64_t calls = ls_comm_metered.calls;
    ls_capture_begin(&step->capture);
    ls_status status = run_function(step, "ls_step_capture");
    if (ls_comm_metered.calls - step->exchanged != calls) {
        ls_capture_refuse(&step->capture, "a call on a communicator", LS_CAPTURE_COMMUNICATES);
    }
    drop_temporary_inputs(step);
    if (status == LS_OK && ls_capture_records(&step->capture)) {
        ls_step_record_marks(step);
    }
    ls_capture_end(&step->capture);
    note_gradients(step);
    return status;
}

/* Frees the record, but not the result. */
static void forget(ls_step *step) {
    for (int i = 0; i < step->input_count; i++) {
        ls_tensor_drop(step->inputs[i].tensor);
    }
    for (int i = 0; i < step->guard_count; i++) {
        step->guards[i].hold(step->guards[i].object, false);
    }
    ls_free(step->inputs);
    ls_free(step->guards);
    ls_free(step->entries);
    step->inputs = NULL;
    step->guards = NULL;
    step->entries = NULL;
    step->input_count = step->guard_count = step->entry_count = 0;
    ls_capture_clear(&step->capture);
}

/* Ends the record. Fails with the reason if a replay could not repeat the step, or would always fail. */
static ls_status finish(ls_step *step) {
    if (ls_capture_records(&step->capture) && check_objects(step) != LS_OK) {
        char why[LS_ERROR_CAPACITY];
        snprintf(why, sizeof why,
                 "changes what replays check: make the change outside the function. A replay would fail with \"%s\"",
                 ls_error_message());
        ls_capture_refuse(&step->capture, "the function", why);
    }
    ls_capture_fuse_products(&step->capture);
    ls_capture_chain(&step->capture);
    return ls_capture_plan(&step->capture);
}

static ls_status check_caller(const char *call, const ls_thread_state *thread) {
    if (thread->capture != NULL) {
        ls_capture_refuse(thread->capture, call,
                          "is called inside a step that is captured: capture only one of the two steps");
        return ls_fail(LS_ERR_STATE, "%s: called inside a step that is captured: capture only one of the two steps",
                       call);
    }
    return thread->walking == NULL
               ? LS_OK
               : ls_fail(LS_ERR_STATE, "%s: called during a backward pass, by a hook or a backward function", call);
}

static void *noted(ls_step *step) {
    ls_step_free(step);
    return ls_scope_failed();
}

/* Allocates the record of a step of this thread. */
static ls_step *allocate(ls_step_function function, void *user) {
    const char *const call = "ls_step_capture";
    const ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    if (function == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the function is NULL", call);
    }
    if (check_caller(call, thread) != LS_OK) {
        return NULL;
    }
    ls_step *step = ls_allocate_zeroed(1, sizeof *step);
    if (step == NULL) {
        (void)ls_fail_memory(call, sizeof *step);
        return NULL;
    }
    step->function = function;
    step->user = user;
    step->thread_serial = thread->serial;
    step->outer = thread->scope;
    step->modes = modes_of(thread);
    step->capture.note_tensor = note_tensor;
    return step;
}

ls_step *ls_step_capture_if_possible(ls_step_function function, void *user, ls_saved_error *refusal) {
    ls_step *step = allocate(function, user);
    if (step == NULL) {
        return ls_scope_failed();
    }
    if (capture(step) != LS_OK) {
        return noted(step);
    }
    ls_saved_error before;
    ls_error_save(&before);
    const ls_status status = finish(step);
    if (status != LS_OK && status != LS_ERR_UNSUPPORTED) {
        return noted(step);
    }
    if (status != LS_OK) {
        ls_error_save(refusal);
        (void)ls_error_put_back(&before);
        step->eager = true;
        forget(step);
    }
    return step;
}

ls_step *ls_step_capture(ls_step_function function, void *user, const ls_step_capture_options *options) {
    ls_saved_error refusal;
    ls_step *step = ls_step_capture_if_possible(function, user, &refusal);
    if (step == NULL || !step->eager) {
        return step;
    }
    if (options == NULL || !options->fallback) {
        (void)ls_error_put_back(&refusal);
        return noted(step);
    }
    ls_log_write(LS_LOG_WARNING, "%s; ls_step_replay runs the function instead", refusal.message);
    return step;
}

/* ---- replaying --------------------------------------------------------------------------------------------------- */

static ls_status check_gradient(const captured_input *input) {
    const ls_leaf *leaf = input->tensor->leaf;
    if (leaf == NULL) {
        return LS_OK;
    }
    if (leaf->hooks != NULL) {
        return refuse_input(input, "has a gradient hook now, which a replay does not call");
    }
    if (leaf->gradient != input->gradient || (leaf->gradient != NULL && leaf->gradient->data != input->gradient_data)) {
        return refuse_input(input, "has its gradient in different memory than in the captured step");
    }
    if (!input->zeroed && leaf->has_gradient != input->has_before) {
        return refuse_input(input, leaf->has_gradient
                                       ? "has a gradient, which the captured step overwrites instead of adding to it; "
                                         "call ls_zero_grad in the function or before each replay"
                                       : "has no gradient, but had one when the step was captured");
    }
    return LS_OK;
}

static ls_status check_thread(const ls_step *step) {
    const ls_thread_state *thread = ls_thread();
    return thread != NULL && thread->serial == step->thread_serial
               ? LS_OK
               : ls_fail(LS_ERR_STATE, "ls_step_replay: another thread has captured the step, or this thread before "
                                       "ls_thread_end: capture the step again on this thread");
}

/* Checks everything that a replay needs, except the thread. */
static ls_status check_record(const ls_step *step) {
    LS_TRY(check_objects(step));
    for (int i = 0; i < step->input_count; i++) {
        LS_TRY(check_gradient(&step->inputs[i]));
    }
    return LS_OK;
}

ls_status ls_step_check(const ls_step *step) {
    LS_TRY(check_thread(step));
    return check_record(step);
}

static ls_status run(ls_step *step) {
    const uint64_t began = ls_trace_now();
    ls_thread_present->pass++;
    for (int i = 0; i < step->input_count; i++) {
        if (step->inputs[i].zeroed) {
            step->inputs[i].tensor->leaf->has_gradient = false;
        }
    }
    const ls_status status = ls_capture_run(&step->capture);
    if (status != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_step_leave_entered(step);
        (void)ls_error_put_back(&cause);
    }
    ls_trace_add(LS_TRACE_TRAINING, began, -1, "replay");
    return status;
}

/*
 * Sends the error of a replay to the ranks that wait in its later exchanges; without `all`, only in exchanges that have
 * begun. Returns the status of the step. If this rank failed only because other ranks made different calls, an exchange
 * may report their error, which then replaces LS_ERR_MISMATCH.
 */
static ls_status notify_other_ranks(const ls_step *step, ls_status status, bool all) {
    if (status == LS_OK) {
        return LS_OK;
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status;
    for (int i = 0; i < step->exchange_count; i++) {
        const captured_exchange *exchange = &step->exchanges[i];
        const bool begun = step->capture.failed >= exchange->begin;
        if (step->capture.failed < exchange->call && (all || begun)) {
            (void)ls_error_put_back(&cause);
            exchange->notify(exchange->object, begun);
            if (cause.status == LS_ERR_MISMATCH) {
                ls_error_save(&cause);
            }
        }
    }
    return ls_error_put_back(&cause);
}

ls_status ls_step_run(ls_step *step) {
    return notify_other_ranks(step, run(step), false);
}

static ls_status check_here(const char *call, const ls_step *step) {
    if (step == NULL) {
        return ls_fail_missing("ls_step_replay: the step");
    }
    return step->function != NULL ? LS_OK : ls_fail_freed(call, "step", "ls_step_free");
}

static ls_status check_replay(const ls_step *step) {
    const ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    LS_TRY(check_here("ls_step_replay", step));
    LS_TRY(check_thread(step));
    return check_caller("ls_step_replay", thread);
}

ls_status ls_step_replay(ls_step *step) {
    ls_status status = check_replay(step);
    if (status == LS_OK && step->eager) {
        status = run_function(step, "ls_step_replay");
    } else if (status == LS_OK) {
        step->capture.failed = 0;
        status = check_record(step);
        status = status == LS_OK ? run(step) : status;
        status = notify_other_ranks(step, status, true);
    }
    return status == LS_OK ? LS_OK : ls_scope_failed_status();
}

bool ls_step_is_captured(const ls_step *step) {
    return step != NULL && check_here("ls_step_is_captured", step) == LS_OK && !step->eager;
}

const ls_tensor *ls_step_result(const ls_step *step) {
    return step == NULL ? NULL : check_here("ls_step_result", step) == LS_OK ? step->result : ls_scope_failed();
}

void ls_step_free(ls_step *step) {
    if (step == NULL || step->function == NULL) {
        return;
    }
    forget(step);
    ls_tensor_drop(step->result);
    *step = (ls_step){.function = NULL};
    ls_retire(step, LS_RETIRED_SINGLE);
}
