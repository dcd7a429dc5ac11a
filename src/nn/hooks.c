/*
 * Hooks of modules: their lists, and calls to modules with hooks. For backward hooks, the inputs and outputs of the
 * call pass through gate operations, which only store the gradients that flow back through them. A node that is
 * recorded before the module runs calls the hooks with these gradients. The backward pass reaches this node after all
 * nodes of the module.
 */
#include <string.h>

#include "autograd/tape.h"
#include "base/memory.h"
#include "nn/module.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Frees removed hooks if no call is iterating over the list. */
static void sweep(ls_module *module) {
    if (module->hooks_run > 0) {
        return;
    }
    ls_hook *removed = NULL;
    for (ls_hook **place = &module->hooks; *place != NULL;) {
        ls_hook *hook = *place;
        if (hook->removed) {
            *place = hook->next;
            hook->next = removed;
            removed = hook;
        } else {
            place = &hook->next;
        }
    }
    while (removed != NULL) { /* the list must be consistent here, because `release` may use it */
        ls_hook *hook = removed;
        removed = hook->next;
        ls_hook_free(hook);
    }
}

ls_status ls_module_remove_hooks(ls_module *module, int number) {
    if (module == NULL) {
        return ls_fail_missing("ls_module_remove_hooks: the module");
    }
    if (!ls_module_is_here(module)) {
        return ls_error_status();
    }
    for (ls_hook *hook = module->hooks; hook != NULL; hook = hook->next) {
        if (hook->number == number && !hook->removed) {
            hook->removed = true;
            sweep(module);
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_ARGUMENT, "ls_module_remove_hooks: %s has no hooks with number %d", module->type->name,
                   number);
}

/* ---- calling them ------------------------------------------------------------------------------------------------ */

typedef enum hook_kind { FORWARD_PRE, FORWARD, BACKWARD } hook_kind;

static ls_module_hook function_of(const ls_hook *hook, hook_kind kind) {
    return kind == FORWARD_PRE ? hook->own.forward_pre : kind == FORWARD ? hook->own.forward : hook->own.backward;
}

/* Returns whether a hook with a number up to `last` has a function of this kind. */
static bool has_hook(const ls_module *module, hook_kind kind, int last) {
    bool has = false;
    for (const ls_hook *hook = module->hooks; hook != NULL && !has; hook = hook->next) {
        has = !hook->removed && hook->number <= last && function_of(hook, kind) != NULL;
    }
    return has;
}

/* Repeats the checks of the call after a hook, which may have changed the call. */
static ls_status check(const ls_module_call *call, hook_kind kind, uint32_t errors) {
    return kind == FORWARD_PRE ? ls_module_check_call(call->module, call->inputs, call->input_count, call->output_count)
           : kind == FORWARD   ? ls_module_check_outputs(call->module, call->outputs, call->output_count, errors)
                               : LS_OK;
}

/* Calls the hooks of this kind with numbers up to `last`. Stops at the first failure. */
static ls_status call_hooks(ls_module_call *call, hook_kind kind, int last) {
    static const char *const names[] = {"forward_pre", "forward", "backward"};
    ls_module *module = call->module;
    ls_status status = LS_OK;
    module->hooks_run++;
    for (const ls_hook *hook = module->hooks; hook != NULL && hook->number <= last && status == LS_OK;
         hook = hook->next) {
        const ls_module_hook function = function_of(hook, kind);
        if (hook->removed || function == NULL) {
            continue;
        }
        const uint32_t errors = ls_error_count;
        status = function(call, hook->own.user);
        if (status != LS_OK && ls_error_count == errors) {
            (void)ls_fail(status, "%s: its %s hook failed with %s", module->type->name, names[kind],
                          ls_status_name(status));
        }
        status = status == LS_OK ? check(call, kind, errors) : status;
    }
    module->hooks_run--;
    sweep(module);
    return status;
}

/* ---- backward hooks ---------------------------------------------------------------------------------------------- */

/* State shared by the nodes of one call. */
typedef struct passage {
    int references;
    ls_module *module;
    int last; /* the number of the module's latest hook at the time of the call */
    int input_count;
    int output_count;
    uint64_t pass; /* the backward pass to which the gradients belong */
    size_t bytes;
    ls_tensor *gradients[]; /* gradients of the inputs, then of the outputs; owned */
} passage;

static void forget_gradients(passage *p) {
    for (int i = 0; i < p->input_count + p->output_count; i++) {
        ls_tensor_drop(p->gradients[i]);
        p->gradients[i] = NULL;
    }
}

static void drop_passage(passage *p) {
    if (--p->references == 0) {
        forget_gradients(p);
        ls_module_drop(p->module);
        ls_record_release(p, p->bytes);
    }
}

static void hold_passage(void *context, bool hold) {
    passage *p = context;
    if (hold) {
        p->references++;
    } else {
        drop_passage(p);
    }
}

/* At this point, the backward pass has processed all nodes that the module recorded. */
static ls_status token_backward(ls_node *node, ls_tensor *gradient) {
    (void)gradient;
    passage *p = node->parameters.context;
    ls_module_call call = {.module = p->module,
                           .input_count = p->input_count,
                           .output_count = p->output_count,
                           .input_gradients = p->gradients,
                           .output_gradients = p->gradients + p->input_count};
    const ls_status status = call_hooks(&call, BACKWARD, p->last);
    forget_gradients(p);
    return status;
}

/* Makes a view of the whole tensor, so that the tape records it as an output. */
static ls_status gate_shape(ls_op_call *call) {
    ls_tensor *x = call->inputs[0];
    call->output = ls_tensor_view(x, x->ndim, x->size, x->stride, 0);
    return call->output != NULL ? LS_OK : ls_error_status();
}

static ls_status gate_backward(ls_node *node, ls_tensor *gradient) {
    passage *p = node->parameters.context;
    const uint64_t pass = ls_thread()->pass;
    if (p->pass != pass) { /* left over from a failed pass */
        forget_gradients(p);
        p->pass = pass;
    }
    ls_tensor **place = &p->gradients[node->parameters.integer[0]];
    ls_tensor_drop(*place);
    *place = ls_tensor_dense(node->op->name, gradient, (ls_dtype)gradient->dtype);
    if (*place == NULL) {
        return ls_error_status();
    }
    if (node->input_count > 1) { /* an output: its second input makes the backward pass reach the node of the call */
        LS_TRY(ls_accumulate(
            node, 1, ls_tensor_new(node->op->name, ls_tensor_device(node->inputs[1]), 1, &(int64_t){0}, LS_F32)));
    }
    return ls_accumulate(node, 0, gradient);
}

static const ls_op token_op = {.name = "ls_forward", .backward = token_backward, .hold = hold_passage};
static const ls_op gate_op = {
    .name = "ls_forward", .shape = gate_shape, .backward = gate_backward, .hold = hold_passage};

static passage *make_passage(const ls_module_call *call, int last) {
    const size_t gradients = (size_t)call->input_count + (size_t)call->output_count;
    const size_t bytes = sizeof(passage) + gradients * sizeof(ls_tensor *);
    passage *p = ls_record_allocate(bytes);
    if (p == NULL) {
        (void)ls_fail_memory("ls_forward", bytes);
        return NULL;
    }
    memset(p, 0, bytes);
    ls_module_hold(call->module);
    p->references = 1;
    p->module = call->module;
    p->last = last;
    p->input_count = call->input_count;
    p->output_count = call->output_count;
    p->bytes = bytes;
    return p;
}

/* Returns the output of the call's gate `number`. `token` is NULL for an input. */
static ls_tensor *through_gate(passage *p, int number, ls_tensor *tensor, ls_tensor *token) {
    const ls_op_parameters parameters = {.context = p, .integer = {number}};
    return ls_apply(&gate_op, (ls_tensor *[]){tensor, token}, token != NULL ? 2 : 1, &parameters);
}

/* Returns the device of the first input, or the default device if there is no input. */
static const ls_device *device_of(const ls_module_call *call) {
    for (int i = 0; i < call->input_count; i++) {
        if (call->inputs[i] != NULL) {
            return ls_tensor_device(call->inputs[i]);
        }
    }
    return ls_device_default();
}

/* Records the node of the call, whose output is an empty tensor. It has no inputs, because the call's inputs may not
 * require gradients. */
static ls_tensor *make_token(passage *p, const ls_module_call *call) {
    ls_thread_state *thread = ls_thread();
    const ls_device *device = thread != NULL ? device_of(call) : NULL;
    ls_tensor *token =
        device != NULL ? ls_tensor_new(token_op.name, device, 1, &(int64_t){0}, LS_F32) : ls_scope_failed();
    if (token == NULL) {
        return NULL;
    }
    const ls_op_parameters parameters = {.context = p};
    const ls_op_call recorded = {.op = &token_op, .parameters = &parameters, .output = token, .records = true};
    if (ls_tape_record(thread, &recorded) != LS_OK) {
        ls_release(token);
        return ls_scope_failed();
    }
    return token;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static ls_status run_watched(ls_module_call *call, passage *p) {
    ls_tensor *token = make_token(p, call);
    if (token == NULL) {
        return ls_error_status();
    }
    ls_status status = LS_OK;
    for (int i = 0; i < call->input_count && status == LS_OK; i++) {
        if (call->inputs[i] != NULL && call->inputs[i]->needs_grad) {
            call->inputs[i] = through_gate(p, i, call->inputs[i], NULL);
            status = call->inputs[i] != NULL ? LS_OK : ls_error_status();
        }
    }
    status = status == LS_OK
                 ? ls_module_run(call->module, call->inputs, call->input_count, call->outputs, call->output_count)
                 : status;
    status = status == LS_OK ? call_hooks(call, FORWARD, p->last) : status;
    for (int i = 0; i < call->output_count && status == LS_OK; i++) {
        if (call->outputs[i]->needs_grad) {
            call->outputs[i] = through_gate(p, call->input_count + i, call->outputs[i], token);
            status = call->outputs[i] != NULL ? LS_OK : ls_error_status();
        }
    }
    ls_release(token); /* the gates of the outputs hold references to the token */
    return status;
}

static ls_status run_between(ls_module_call *call) {
    ls_module *module = call->module;
    const int last = module->last_hook;
    LS_TRY(call_hooks(call, FORWARD_PRE, last));
    const ls_thread_state *thread = ls_thread();
    if (thread != NULL && !thread->no_grad && has_hook(module, BACKWARD, last)) {
        passage *p = make_passage(call, last);
        const ls_status status = p != NULL ? run_watched(call, p) : ls_error_status();
        if (p != NULL) {
            drop_passage(p);
        }
        return status;
    }
    LS_TRY(ls_module_run(module, call->inputs, call->input_count, call->outputs, call->output_count));
    return call_hooks(call, FORWARD, last);
}

static ls_status run_hooked(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                            int output_count) {
    ls_capture_refuse_here(
        module->type->name,
        "has hooks, which a replay does not call: remove them, or run the step without ls_step_capture");
    const size_t bytes = ((size_t)input_count + 1) * sizeof(ls_tensor *);
    ls_tensor **own = ls_record_allocate(bytes); /* a copy: the caller's array stays unchanged */
    if (own == NULL) {
        return ls_fail_memory("ls_forward", bytes);
    }
    for (int i = 0; i < input_count; i++) {
        own[i] = inputs[i];
    }
    ls_module_hold(module); /* a hook may free the module */
    ls_module_call call = {
        .module = module, .inputs = own, .input_count = input_count, .outputs = outputs, .output_count = output_count};
    const ls_status status = run_between(&call);
    ls_module_drop(module);
    ls_record_release(own, bytes);
    return status;
}

int ls_module_add_hooks(ls_module *module, const ls_module_hooks *hooks) {
    ls_hook *hook =
        module != NULL && hooks != NULL && ls_module_is_here(module) ? ls_allocate_zeroed(1, sizeof *hook) : NULL;
    if (hook == NULL) {
        if (module == NULL || hooks == NULL) {
            (void)ls_fail_missing("ls_module_add_hooks: the %s", module == NULL ? "module" : "hooks");
        } else if (ls_module_is_here(module)) {
            (void)ls_fail_memory("ls_module_add_hooks", sizeof *hook);
        }
        if (hooks != NULL && hooks->release != NULL) {
            hooks->release(hooks->user);
        }
        return 0;
    }
    *hook = (ls_hook){.own = *hooks, .number = ++module->last_hook};
    ls_hook **place = &module->hooks;
    while (*place != NULL) {
        place = &(*place)->next;
    }
    *place = hook;
    module->run_hooked = run_hooked;
    return hook->number;
}
