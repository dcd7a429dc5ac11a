/*
 * Recomputation (activation checkpointing; Chen et al., arXiv 1604.06174). A call to the module runs without
 * recording, and a single node represents the call on the tape. In the backward pass, this node runs the module again,
 * with recording, and processes the nodes that this run recorded.
 */
#include <string.h>

#include "autograd/batch.h"
#include "autograd/captured_step.h"
#include "autograd/ops/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "comm/meter.h"
#include "nn/module.h"

/* A call to the module, with the state that its second run needs. */
typedef struct recomputation {
    ls_batch_part part;    /* first member, for `locate`; the part of a global batch during both runs, if `in_batch` */
    ls_batch_part *global; /* the module's part during the first run, then NULL */
    bool in_batch;
    uint64_t located; /* communication calls of `locate` */
    ls_module *module;
    ls_modes modes;
    ls_random_state random;
    ls_dtype autocast;
    int input_count;
    int tensor_count; /* inputs and parameters */
    int buffer_count;
    size_t bytes;
    uint32_t *
        versions; /* storage versions of the inputs and parameters before the call, and of the buffers after the call */
    ls_tensor *tensors[]; /* inputs, then parameters; the node holds references */
} recomputation;

static void free_recomputation(recomputation *r) {
    ls_modes_free(&r->modes);
    ls_module_release_lists(r->module);
    ls_module_drop(r->module);
    ls_record_release(r, r->bytes);
}

/* The call and its node each hold a reference to the record, one after the other. */
static void hold_recomputation(void *context, bool hold) {
    if (!hold) {
        free_recomputation(context);
    }
}

/* The first run computes the index of its samples. The second run reuses this index. */
static ls_status locate(ls_batch_part *part) {
    recomputation *r = (recomputation *)part;
    if (r->global != NULL) {
        const uint64_t calls = ls_comm_metered.calls;
        LS_TRY(r->global->locate(r->global));
        part->first = r->global->first;
        r->located += ls_comm_metered.calls - calls;
    }
    return LS_OK;
}

static ls_status refuse_sum(ls_batch_part *part, double *numbers, int64_t count) {
    (void)part, (void)numbers, (void)count;
    return ls_fail(LS_ERR_UNSUPPORTED, "ls_recompute: in ls_data_parallel, batch normalization computes over the "
                                       "global batch, and the second forward pass must not communicate: do not "
                                       "recompute a module that contains it");
}

static ls_status keep_cause(ls_batch_part *part, bool failed) {
    (void)part, (void)failed;
    return ls_error_status();
}

/* Runs the module once in `scope`, which is the innermost scope. */
static ls_status run_in(const ls_thread_state *thread, const ls_scope *scope, ls_module *module,
                        ls_tensor *const *inputs, int input_count, ls_tensor **output) {
    LS_TRY(ls_module_run_once(module, inputs, input_count, output, 1));
    return thread->scope == scope ? LS_OK
                                  : ls_fail(LS_ERR_STATE,
                                            "ls_recompute: the forward function of %s has left a scope open: end it "
                                            "(ls_scope_end)",
                                            module->type->name);
}

/* ---- the second run ---------------------------------------------------------------------------------------------- */

static void note_buffers(recomputation *r) {
    for (int i = 0; i < r->buffer_count; i++) {
        r->versions[r->tensor_count + i] = ls_module_buffer(r->module, i)->storage->version;
    }
}

static bool was_training(const recomputation *r) {
    bool all = true;
    for (int i = 0; i < r->modes.count; i++) {
        all = all && r->modes.training[i];
    }
    return all;
}

/* In training mode, batch normalization only updates its running statistics, and does not read them. */
static bool may_move(const recomputation *r, const ls_tensor *buffer) {
    return was_training(r) && strcmp(buffer->storage->changed_by, "ls_batch_norm") == 0;
}

static ls_status check_buffers(const recomputation *r) {
    if (ls_module_buffer_count(r->module) != r->buffer_count) {
        return ls_fail(LS_ERR_STATE, "ls_recompute: the number of buffers of %s has changed since the forward pass",
                       r->module->type->name);
    }
    for (int i = 0; i < r->buffer_count; i++) {
        const ls_tensor *buffer = ls_module_buffer(r->module, i);
        if (buffer->storage->version != r->versions[r->tensor_count + i] && !may_move(r, buffer)) {
            return ls_fail(LS_ERR_STATE,
                           "ls_recompute: buffer %s of %s was changed by %s after the first forward pass, so a second "
                           "one would differ: change buffers after the backward pass, and not in a forward function "
                           "that is recomputed",
                           ls_module_buffer_name(r->module, i), r->module->type->name, buffer->storage->changed_by);
        }
    }
    return LS_OK;
}

/* Checks that a second run can produce the gradients of the first run. */
static ls_status check_unchanged(const recomputation *r, const ls_node *node) {
    for (int i = 0; i < r->tensor_count; i++) {
        const ls_tensor *tensor = node->inputs[i];
        if (tensor != NULL && tensor->storage->version != r->versions[i]) {
            return ls_refuse_changed("ls_recompute", tensor, false);
        }
        if (tensor != NULL && tensor->needs_grad && !ls_wants(node, i)) {
            return ls_fail(LS_ERR_STATE,
                           "ls_recompute: a tensor %s of %s requires a gradient now, but did not in the forward pass: "
                           "call ls_set_requires_grad before the forward pass",
                           LS_SHAPE_TEXT(tensor), r->module->type->name);
        }
    }
    return check_buffers(r);
}

static ls_status check_output(const recomputation *r, const ls_tensor *output, const ls_tensor *gradient) {
    return output->dtype == gradient->dtype && ls_tensor_same_shape(output, gradient)
               ? LS_OK
               : ls_fail(
                     LS_ERR_STATE,
                     "ls_recompute: the second forward pass of %s returned %s of %s, but the first returned %s of %s",
                     r->module->type->name, LS_SHAPE_TEXT(output), ls_dtype_name((ls_dtype)output->dtype),
                     LS_SHAPE_TEXT(gradient), ls_dtype_name((ls_dtype)gradient->dtype));
}

/* Runs the module again as in the first run, but with recording, in the innermost scope. */
static ls_status run_again(recomputation *r, ls_thread_state *thread, ls_tensor *const *inputs, ls_tensor **output) {
    const ls_scope *scope = thread->scope;
    ls_modes present;
    LS_TRY(ls_modes_take(&present, r->module));
    const ls_random_state random = ls_random_present();
    ls_batch_part *part = thread->batch;
    ls_loss_divisor *divisor = thread->divisor;
    const bool recomputes = thread->recomputes;
    const ls_dtype autocast = thread->autocast;
    ls_modes_set(&r->modes, r->module);
    ls_random_continue(r->random);
    thread->no_grad = false;
    thread->autocast = r->autocast;
    thread->batch = r->in_batch ? &r->part : NULL;
    thread->divisor = NULL;
    thread->recomputes = true;
    const ls_status status = run_in(thread, scope, r->module, inputs, r->input_count, output);
    thread->recomputes = recomputes;
    thread->autocast = autocast;
    thread->divisor = divisor;
    thread->batch = part;
    ls_random_continue(random);
    ls_modes_put(&present, r->module);
    return status;
}

static ls_status walk_again(recomputation *r, ls_node *node, ls_tensor *gradient) {
    ls_thread_state *thread = ls_thread();
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_tensor *output = NULL;
    ls_status status = run_again(r, thread, node->inputs, &output);
    status = status == LS_OK ? check_buffers(r) : status;
    status = status == LS_OK ? check_output(r, output, gradient) : status;
    status = status == LS_OK ? ls_walk_recorded(r->module->type->name, node, scope, output, gradient) : status;
    return ls_scope_end_after(scope, status);
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* In a captured step, each enter and leave is a call of the record. */

static ls_status enter_forward(void *unit) {
    return ((ls_unit *)unit)->enter(unit, false);
}

static ls_status enter_backward(void *unit) {
    return ((ls_unit *)unit)->enter(unit, true);
}

static ls_status leave_forward(void *unit) {
    return ((ls_unit *)unit)->leave(unit, false, LS_OK);
}

static ls_status leave_backward(void *unit) {
    return ((ls_unit *)unit)->leave(unit, true, LS_OK);
}

static void abandon_forward(void *unit) {
    (void)((ls_unit *)unit)->leave(unit, false, ls_error_status());
}

static void abandon_backward(void *unit) {
    (void)((ls_unit *)unit)->leave(unit, true, ls_error_status());
}

static ls_status enter(const ls_module *module, bool backward) {
    ls_capture *capture = ls_thread_present->capture;
    ls_unit *unit = module->unit;
    if (unit == NULL || capture == NULL) {
        return unit != NULL ? unit->enter(unit, backward) : LS_OK;
    }
    ls_capture_pause(capture);
    const ls_status status = unit->enter(unit, backward);
    if (ls_capture_call_end(capture, status, backward ? enter_backward : enter_forward, unit)) {
        ls_capture_enter(capture, backward ? abandon_backward : abandon_forward, unit);
    }
    return status;
}

static ls_status leave(const ls_module *module, bool backward, ls_status status) {
    ls_capture *capture = ls_thread_present->capture;
    ls_unit *unit = module->unit;
    if (unit == NULL || capture == NULL) {
        return unit != NULL ? unit->leave(unit, backward, status) : status;
    }
    ls_capture_call_begin(capture); /* marks gradients, because the unit sets missing gradients to zero */
    status = unit->leave(unit, backward, status);
    if (ls_capture_call_end(capture, status, backward ? leave_backward : leave_forward, unit)) {
        ls_capture_leave(capture);
    }
    return status;
}

/* ---- the backward pass ------------------------------------------------------------------------------------------- */

static ls_status recompute_backward(ls_node *node, ls_tensor *gradient) {
    recomputation *r = node->parameters.context;
    LS_TRY(check_unchanged(r, node));
    LS_TRY(enter(r->module, true));
    return leave(r->module, true, walk_again(r, node, gradient));
}

/* After a data-parallel module, only the module itself could tell how its output depends on the samples. */
static ls_samples_use unknown_samples(ls_samples_call *call) {
    (void)call;
    return LS_SAMPLES_UNKNOWN;
}

static const ls_op recompute_op = {.name = "ls_recompute",
                                   .backward = recompute_backward,
                                   .over_samples = unknown_samples,
                                   .hold = hold_recomputation};

/* ---- the first run ----------------------------------------------------------------------------------------------- */

/* Runs the module without recording, and sets *output to a view of the result in the innermost scope. */
static ls_status run_first(ls_thread_state *thread, ls_module *module, ls_tensor *const *inputs, int input_count,
                           ls_tensor **output) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    (void)ls_no_grad(true);
    ls_tensor *made = NULL;
    ls_status status = run_in(thread, scope, module, inputs, input_count, &made);
    ls_tensor *kept = NULL;
    uint32_t spread = 0;
    if (status == LS_OK) {
        kept = ls_tensor_view_owned(made, made->ndim, made->size, made->stride, 0);
        spread = made->spread;
        status = kept != NULL ? LS_OK : ls_error_status();
    }
    status = ls_scope_end_after(scope, status);
    if (status == LS_OK) {
        *output = ls_tensor_view(kept, kept->ndim, kept->size, kept->stride, 0);
        status = *output != NULL ? LS_OK : ls_error_status();
    }
    if (status == LS_OK) {
        (*output)->spread = spread;
    }
    ls_tensor_drop(kept);
    return status;
}

static recomputation *make_recomputation(ls_thread_state *thread, ls_module *module, ls_tensor *const *inputs,
                                         int input_count) {
    if (!ls_module_keep_lists(module)) { /* a layer may register a cache in the first run */
        return NULL;
    }
    const int parameters = ls_module_parameter_count(module);
    const size_t tensors = (size_t)input_count + (size_t)parameters;
    const int buffers = ls_module_buffer_count(module);
    const size_t versions = tensors + (size_t)buffers;
    const size_t bytes = sizeof(recomputation) + tensors * sizeof(ls_tensor *) + versions * sizeof(uint32_t);
    recomputation *r = ls_record_allocate(bytes);
    if (r == NULL) {
        (void)ls_fail_memory("ls_recompute", bytes);
        ls_module_release_lists(module);
        return NULL;
    }
    *r = (recomputation){.module = module,
                         .random = ls_random_present(),
                         .autocast = thread->autocast,
                         .in_batch = thread->batch != NULL,
                         .input_count = input_count,
                         .tensor_count = (int)tensors,
                         .buffer_count = buffers,
                         .bytes = bytes};
    if (r->in_batch) {
        r->global = thread->batch;
        r->part = (ls_batch_part){.samples = r->global->samples,
                                  .first = r->global->first,
                                  .locate = locate,
                                  .add = refuse_sum,
                                  .share_cause = keep_cause};
    }
    r->versions = (uint32_t *)(void *)(r->tensors + tensors);
    for (int i = 0; i < r->tensor_count; i++) {
        r->tensors[i] = i < input_count ? inputs[i] : ls_module_parameter(module, i - input_count);
        r->versions[i] = r->tensors[i] != NULL ? r->tensors[i]->storage->version : 0;
    }
    if (ls_modes_take(&r->modes, module) != LS_OK) {
        ls_module_release_lists(module);
        ls_record_release(r, bytes);
        return NULL;
    }
    ls_module_hold(module);
    return r;
}

static bool wants_gradient(const ls_module *module, ls_tensor *const *inputs, int input_count) {
    bool wants = false;
    for (int i = 0; i < input_count && !wants; i++) {
        wants = inputs[i] != NULL && inputs[i]->needs_grad;
    }
    for (int i = 0; i < ls_module_parameter_count(module) && !wants; i++) {
        wants = ls_module_parameter(module, i)->needs_grad;
    }
    return wants;
}

/* Puts the node of the call on the tape, which then frees the record. */
static ls_status record(ls_thread_state *thread, recomputation *r, ls_tensor *output) {
    const ls_op_parameters parameters = {.context = r};
    const ls_op_call call = {.op = &recompute_op,
                             .inputs = r->tensors,
                             .input_count = r->tensor_count,
                             .parameters = &parameters,
                             .output = output,
                             .records = true,
                             .depends = true,
                             .rounds_to = r->autocast};
    return ls_tape_record(thread, &call);
}

static ls_status run_recorded(ls_thread_state *thread, recomputation *r, ls_tensor *const *inputs,
                              ls_tensor **outputs) {
    const uint64_t calls = ls_comm_metered.calls;
    thread->batch = r->in_batch ? &r->part : NULL;
    ls_status status = run_first(thread, r->module, inputs, r->input_count, outputs);
    thread->batch = r->global;
    r->global = NULL;
    if (status == LS_OK && ls_comm_metered.calls - calls != r->located) { /* all ranks have communicated; all fail */
        status = r->module->unit != NULL
                     ? ls_fail(LS_ERR_UNSUPPORTED,
                               "ls_data_parallel: .zero = 2 and 3 do not support layers that communicate, such as %s: "
                               "use .zero = 1",
                               r->module->type->name)
                     : ls_fail(LS_ERR_UNSUPPORTED,
                               "ls_recompute: %s communicates, which the second forward pass must not repeat: "
                               "recompute only modules that do not communicate",
                               r->module->type->name);
    }
    note_buffers(r);
    const bool recorded = status == LS_OK && ls_dtype_is_floating((ls_dtype)outputs[0]->dtype);
    if (recorded) {
        status = record(thread, r, outputs[0]);
    }
    if (!recorded || status != LS_OK) {
        free_recomputation(r);
    }
    return status;
}

/*
 * Runs the module with recording in its own scope, which frees the tensors that no gradient needs. The output requires
 * a gradient if the module reads a tensor that does.
 */
static ls_status run_plain(const ls_thread_state *thread, ls_module *module, ls_tensor *const *inputs, int input_count,
                           ls_tensor **output) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_tensor *made = NULL;
    ls_status status = run_in(thread, scope, module, inputs, input_count, &made);
    if (status == LS_OK) {
        *output = ls_keep(ls_view_as_is(made));
        status = *output != NULL ? LS_OK : ls_error_status();
    }
    return ls_scope_end_after(scope, status);
}

static ls_status run(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                     int output_count) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    const bool recorded = !thread->no_grad && wants_gradient(module, inputs, input_count);
    if (!recorded && output_count == 1) { /* frees intermediate tensors, as with recording */
        return thread->no_grad || module->unit != NULL ? run_first(thread, module, inputs, input_count, outputs)
                                                       : run_plain(thread, module, inputs, input_count, outputs);
    }
    if (!recorded) {
        return ls_module_run_once(module, inputs, input_count, outputs, output_count);
    }
    if (output_count != 1) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_recompute: %s returns %d outputs, but recomputation needs exactly one",
                       module->type->name, output_count);
    }
    recomputation *r = make_recomputation(thread, module, inputs, input_count);
    return r != NULL ? run_recorded(thread, r, inputs, outputs) : ls_error_status();
}

static ls_status run_recomputed(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                int output_count) {
    LS_TRY(enter(module, false));
    ls_status status = run(module, inputs, input_count, outputs, output_count);
    for (int i = 0; i < output_count && status == LS_OK && module->unit != NULL; i++) {
        status = module->unit->check_output(module->unit, outputs[i]);
    }
    return leave(module, false, status);
}

ls_status ls_recompute(ls_module *module, bool on) {
    if (module == NULL) {
        return ls_fail_missing("ls_recompute: the module");
    }
    if (!ls_module_is_here(module)) {
        return ls_error_status();
    }
    module->run_recomputed = on ? run_recomputed : NULL;
    return LS_OK;
}
