/* Calls to a module, with their checks. Modules with hooks are run by hooks.c. */
#include <stdio.h>

#include "autograd/captured_step.h"
#include "nn/module.h"
#include "tensor/scope.h"

/* Writes a count of inputs or outputs in words: "2 inputs". */
static void count_in_words(char *text, size_t capacity, int count, const char *what) {
    if (count == 0) {
        snprintf(text, capacity, "any number of %ss", what);
    } else {
        snprintf(text, capacity, "%d %s%s", count, what, count > 1 ? "s" : "");
    }
}

__attribute__((noinline, cold)) static ls_status refuse_counts(const ls_module *module, int inputs, int outputs) {
    const ls_module_type *type = module->type;
    char taken[32], given[32];
    count_in_words(taken, sizeof taken, type->forward != NULL ? 1 : type->inputs, "input");
    count_in_words(given, sizeof given, type->forward != NULL ? 1 : type->outputs, "output");
    return ls_fail(LS_ERR_ARGUMENT,
                   "%s: this module takes %s and returns %s, but the call passes %d and requests %d (%s)", type->name,
                   taken, given, inputs, outputs,
                   inputs == 1 && outputs == 1 ? "call it with ls_forward_many" : "ls_forward_many");
}

__attribute__((noinline, cold)) ls_status ls_module_refuse_missing(const ls_module *module, const char *input) {
    const ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    if (thread->scope->status != LS_OK) {
        ls_error_restore(thread->scope->status, thread->scope->message);
    } else if (!ls_scope_explains_null(thread)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is NULL", module->type->name, input);
    }
    return ls_error_status();
}

__attribute__((noinline, cold)) static ls_status refuse_missing(const ls_module *module, int i) {
    char input[32];
    snprintf(input, sizeof input, "input %d", i);
    return ls_module_refuse_missing(module, input);
}

/* The call without hooks is inlined into both entry points, because every layer in every step makes it. */
#define INLINE __attribute__((always_inline)) static inline

INLINE ls_status check_inputs(const ls_module *module, ls_tensor *const *inputs, int count) {
    for (int i = 0; i < count; i++) {
        if (__builtin_expect(inputs[i] == NULL, 0)) {
            /* A module with a variable number of inputs checks them itself. */
            const bool known = module->type->forward != NULL || module->type->inputs > 0;
            const bool optional = !known || (i < 64 && (module->type->optional >> i & 1U) != 0);
            LS_TRY(optional ? LS_OK : refuse_missing(module, i));
        } else if (ls_tensor_is_gone(inputs[i])) {
            return ls_tensor_refuse_gone(module->type->name, i + 1, inputs[i]);
        }
    }
    return LS_OK;
}

INLINE ls_status check_call(const ls_module *module, ls_tensor *const *inputs, int input_count, int output_count) {
    if (__builtin_expect(module == NULL, 0)) {
        return ls_fail_missing("ls_forward: the module");
    }
    if (__builtin_expect(ls_owners_are_gone(&module->owners), 0)) {
        return ls_module_is_here(module) ? LS_OK : ls_error_status();
    }
    const ls_module_type *type = module->type;
    const bool counts = type->forward != NULL ? input_count == 1 && output_count == 1
                                              : (type->inputs == 0 || input_count == type->inputs) &&
                                                    (type->outputs == 0 || output_count == type->outputs);
    if (__builtin_expect(!counts || input_count < 0 || output_count < 1, 0)) {
        return refuse_counts(module, input_count, output_count);
    }
    return check_inputs(module, inputs, input_count);
}

/*
 * Reports an output that is NULL or was freed. A NULL output comes from a failed operation if the error count is above
 * `errors`, otherwise from a mistake in the forward function.
 */
__attribute__((noinline, cold)) static ls_status refuse_output(const ls_module *module, const ls_tensor *output, int i,
                                                               uint32_t errors) {
    const ls_thread_state *thread = ls_thread();
    if (output == NULL && ls_error_count != errors && thread != NULL && thread->scope->status != LS_OK) {
        ls_error_restore(thread->scope->status, thread->scope->message);
        return thread->scope->status;
    }
    return output != NULL ? ls_tensor_refuse_gone(module->type->name, 0, output)
                          : ls_fail(LS_ERR_STATE, "%s: its forward function%s returned no output %d",
                                    module->type->name, module->hooks != NULL ? " or a hook" : "", i);
}

INLINE ls_status check_outputs(const ls_module *module, ls_tensor *const *outputs, int count, uint32_t errors) {
    for (int i = 0; i < count; i++) {
        if (__builtin_expect(outputs[i] == NULL || ls_tensor_is_gone(outputs[i]), 0)) {
            return refuse_output(module, outputs[i], i, errors);
        }
    }
    return LS_OK;
}

/*
 * Returns the status of a failed forward function. The cause is an error since the error count was `errors`, or an
 * earlier failure that made an input NULL. If the function has set no error, sets one.
 */
__attribute__((noinline, cold)) static ls_status failed(const ls_module *module, ls_status status, uint32_t errors) {
    const ls_thread_state *thread = ls_thread();
    if (ls_error_status() != LS_OK &&
        (ls_error_count != errors || (thread != NULL && ls_scope_explains_null(thread)))) {
        return status != LS_OK ? status : ls_error_status();
    }
    return status == LS_OK
               ? refuse_output(module, NULL, 0, errors)
               : ls_fail(status, "%s: its forward function failed with %s", module->type->name, ls_status_name(status));
}

INLINE ls_status run_once(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                          int output_count) {
    const uint32_t errors = ls_error_count;
    ls_status status = LS_OK;
    bool good = true;
    if (module->type->forward != NULL) {
        outputs[0] = module->type->forward(module, inputs[0]);
        good = outputs[0] != NULL;
    } else {
        status = module->type->forward_many(module, inputs, input_count, outputs, output_count);
        good = status == LS_OK;
    }
    return __builtin_expect(good, 1) ? check_outputs(module, outputs, output_count, errors)
                                     : failed(module, status, errors);
}

INLINE ls_status run(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                     int output_count) {
    return __builtin_expect(module->run_recomputed == NULL, 1)
               ? run_once(module, inputs, input_count, outputs, output_count)
               : module->run_recomputed(module, inputs, input_count, outputs, output_count);
}

INLINE ls_status run_with_hooks(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                int output_count) {
    return __builtin_expect(module->hooks == NULL, 1)
               ? run(module, inputs, input_count, outputs, output_count)
               : module->run_hooked(module, inputs, input_count, outputs, output_count);
}

/* A captured step does the same only while the modules that it calls stay in their modes. */
static ls_status check_captured(void *object, int training) {
    const ls_module *module = object;
    if (module->owners.freed || ls_owners_are_gone(&module->owners)) {
        return ls_fail(LS_ERR_STATE, "ls_step_replay: a module of the step, %s, was freed: capture the step again",
                       module->type->name);
    }
    if (module->hooks != NULL) {
        return ls_fail(
            LS_ERR_STATE,
            "ls_step_replay: a hook was added to a module of the step, %s, and a replay does not call hooks: "
            "run the step without ls_step_capture",
            module->type->name);
    }
    return module->training == training ? LS_OK
                                        : ls_fail(LS_ERR_STATE,
                                                  "ls_step_replay: %s was in %s mode when the step was captured: call "
                                                  "ls_module_train before the replay, or capture the step again",
                                                  module->type->name, training ? "training" : "evaluation");
}

__attribute__((noinline, cold)) static void note_captured(ls_capture *capture, ls_module *module) {
    ls_capture_add_guard(capture, &(ls_capture_guard){.check = check_captured,
                                                      .hold = ls_module_hold_record,
                                                      .object = module,
                                                      .state = module->training});
    for (int i = 0; i < module->own_buffers.count; i++) {
        capture->note_tensor(capture, module->type->name, module->own_buffers.items[i].tensor);
    }
}

INLINE void note_call(ls_module *module) {
    if (__builtin_expect(ls_thread_present != NULL && ls_thread_present->capture != NULL, 0)) {
        note_captured(ls_thread_present->capture, module);
    }
}

void ls_module_note_call(ls_module *module) {
    note_call(module);
}

INLINE bool is_outside(void) {
    const ls_thread_state *thread = ls_thread();
    return thread != NULL && thread->scope->outer == NULL;
}

/*
 * Runs the module in its own scope: outside any scope, nothing else frees the tensors between its layers. The scope
 * absorbs errors that the module has handled, so the call succeeds, as it does in a caller's scope.
 */
__attribute__((noinline)) static ls_status run_outside(ls_module *module, ls_tensor *const *inputs, int input_count,
                                                       ls_tensor **outputs, int output_count) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_status status = run_with_hooks(module, inputs, input_count, outputs, output_count);
    if (status == LS_OK) {
        ls_scope_end_inner(scope); /* frees an output that belongs to a scope that the module left open */
        status = check_outputs(module, outputs, output_count, ls_error_count);
    }
    if (status != LS_OK) {
        return ls_scope_end_after(scope, status);
    }
    for (int i = 0; i < output_count; i++) {
        (void)ls_keep(outputs[i]);
    }
    (void)ls_scope_end(scope);
    return LS_OK;
}

static void clear(ls_tensor **outputs, int count) {
    for (int i = 0; i < count; i++) {
        outputs[i] = NULL;
    }
}

INLINE ls_status forward(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                         int output_count) {
    ls_status status = check_call(module, inputs, input_count, output_count);
    clear(outputs, output_count);
    if (status == LS_OK) {
        note_call(module);
        if (__builtin_expect(module->replica_runs != NULL, 0)) {
            module->replica_runs(module->replica);
        }
        status = __builtin_expect(is_outside(), 0) ? run_outside(module, inputs, input_count, outputs, output_count)
                                                   : run_with_hooks(module, inputs, input_count, outputs, output_count);
    }
    if (__builtin_expect(status != LS_OK, 0)) {
        clear(outputs, output_count);
        (void)ls_scope_failed();
    }
    return status;
}

ls_status ls_module_check_call(const ls_module *module, ls_tensor *const *inputs, int input_count, int output_count) {
    return check_call(module, inputs, input_count, output_count);
}

ls_status ls_module_check_outputs(const ls_module *module, ls_tensor *const *outputs, int count, uint32_t errors) {
    return check_outputs(module, outputs, count, errors);
}

ls_status ls_module_run(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count) {
    return run(module, inputs, input_count, outputs, output_count);
}

ls_status ls_module_run_once(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                             int output_count) {
    return run_once(module, inputs, input_count, outputs, output_count);
}

static ls_status check_arrays(ls_tensor *const *inputs, int input_count, ls_tensor **outputs, int output_count) {
    if ((inputs == NULL && input_count > 0) || outputs == NULL) {
        clear(outputs, outputs != NULL ? output_count : 0);
        return ls_fail(LS_ERR_ARGUMENT, "ls_forward_many: the array of %s is NULL",
                       outputs == NULL ? "outputs" : "inputs");
    }
    const uintptr_t first_input = (uintptr_t)inputs, first_output = (uintptr_t)outputs;
    if (first_output < (uintptr_t)(inputs + (input_count > 0 ? input_count : 0)) &&
        first_input < (uintptr_t)(outputs + (output_count > 0 ? output_count : 0))) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_forward_many: inputs and outputs must be different arrays");
    }
    return LS_OK;
}

ls_status ls_forward_many(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                          int output_count) {
    return check_arrays(inputs, input_count, outputs, output_count) == LS_OK
               ? forward(module, inputs, input_count, outputs, output_count)
               : ls_scope_failed_status();
}

ls_tensor *ls_forward(ls_module *module, ls_tensor *input) {
    ls_tensor *output = NULL;
    return forward(module, &input, 1, &output, 1) == LS_OK ? output : NULL;
}
