/*
 * Recomputation (activation checkpointing; Chen et al., arXiv 1604.06174). A call of the module runs without recording,
 * and one node represents it on the tape. The rule of the node runs the module again, with recording, and walks the
 * nodes that this run has recorded.
 */
#include <stddef.h>

#include "autograd/batch.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "nn/module.h"

/* A call of the module, with the state that its second run needs. */
typedef struct recomputation {
    ls_module *module;
    ls_modes modes;
    ls_random_state random;
    ls_dtype autocast;
    bool in_batch;         /* the call ran on a part of a global batch */
    ls_batch_part part;    /* this part during both runs */
    ls_batch_part *global; /* the module's part during the first run, then NULL */
    int input_count;
    int tensor_count; /* inputs and parameters */
    size_t bytes;
    uint32_t *versions;   /* of the storages of the inputs and parameters */
    ls_tensor *tensors[]; /* inputs, then parameters; the node holds them */
} recomputation;

static void free_recomputation(recomputation *r) {
    ls_modes_free(&r->modes);
    ls_module_drop(r->module);
    ls_record_release(r, r->bytes);
}

/* The call and its node each hold the record, one after the other. */
static void hold_recomputation(void *context, bool hold) {
    if (!hold) {
        free_recomputation(context);
    }
}

/* The first run needs the index of its samples. The second run uses the same index. */
static ls_status locate(ls_batch_part *part) {
    recomputation *r = (recomputation *)(void *)((char *)part - offsetof(recomputation, part));
    if (r->global != NULL) {
        LS_TRY(r->global->locate(r->global));
        part->first = r->global->first;
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

/* Ends the scopes down to `scope`. Keeps the error if `status` is one. */
static ls_status end_scopes(ls_thread_state *thread, ls_scope *scope, ls_status status) {
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status;
    for (bool last = false; !last;) { /* the module may have left scopes open */
        last = thread->scope == scope;
        const ls_status ended = ls_scope_end(thread->scope);
        if (status == LS_OK && ended != LS_OK) {
            status = ended;
            ls_error_save(&cause);
        }
    }
    return status == LS_OK ? LS_OK : ls_error_put_back(&cause);
}

/* ---- the second run ---------------------------------------------------------------------------------------------- */

static ls_status check_unchanged(const recomputation *r, ls_tensor *const *tensors) {
    for (int i = 0; i < r->tensor_count; i++) {
        if (tensors[i] != NULL && tensors[i]->storage->version != r->versions[i]) {
            return ls_refuse_changed("ls_recompute", tensors[i], false);
        }
    }
    return LS_OK;
}

static ls_status check_output(const recomputation *r, const ls_tensor *output, const ls_tensor *gradient) {
    return output->dtype == gradient->dtype && ls_tensor_same_shape(output, gradient)
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "ls_recompute: the second forward pass of %s gave %s of %s, but the first gave %s of %s",
                         r->module->type->name, LS_SHAPE_TEXT(output), ls_dtype_name((ls_dtype)output->dtype),
                         LS_SHAPE_TEXT(gradient), ls_dtype_name((ls_dtype)gradient->dtype));
}

/* Runs the module as in the first run, with recording, in the innermost scope. */
static ls_status run_again(recomputation *r, ls_thread_state *thread, ls_tensor *const *inputs, ls_tensor **output) {
    ls_modes present;
    LS_TRY(ls_modes_take(&present, r->module));
    const ls_random_state random = ls_random_get_state();
    ls_batch_part *part = thread->batch;
    ls_loss_divisor *divisor = thread->divisor;
    const bool recomputes = thread->recomputes;
    const ls_dtype autocast = thread->autocast;
    ls_modes_set(&r->modes, r->module);
    ls_random_set_state(r->random);
    thread->no_grad = false;
    thread->autocast = r->autocast;
    thread->batch = r->in_batch ? &r->part : NULL;
    thread->divisor = NULL;
    thread->recomputes = true;
    const ls_status status = ls_module_run_once(r->module, inputs, r->input_count, output, 1);
    thread->recomputes = recomputes;
    thread->autocast = autocast;
    thread->divisor = divisor;
    thread->batch = part;
    ls_random_set_state(random);
    ls_modes_put(&present, r->module);
    return status;
}

static ls_status recompute_backward(ls_node *node, ls_tensor *gradient) {
    recomputation *r = node->parameters.context;
    LS_TRY(check_unchanged(r, node->inputs));
    ls_thread_state *thread = ls_thread();
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_tensor *output = NULL;
    ls_status status = run_again(r, thread, node->inputs, &output);
    status = status == LS_OK ? check_output(r, output, gradient) : status;
    status = status == LS_OK ? ls_walk_recorded(r->module->type->name, scope, output, gradient) : status;
    return end_scopes(thread, scope, status);
}

/* After a data-parallel module, only the module could say what it does with samples. */
static ls_samples_use unknown_samples(ls_samples_call *call) {
    (void)call;
    return LS_SAMPLES_UNKNOWN;
}

static const ls_op recompute_op = {.name = "ls_recompute",
                                   .backward = recompute_backward,
                                   .over_samples = unknown_samples,
                                   .hold = hold_recomputation,
                                   .optional = 0xFF};

/* ---- the first run ----------------------------------------------------------------------------------------------- */

/* Runs the module without recording, and sets *output to a view of the result in the innermost scope. */
static ls_status run_first(ls_thread_state *thread, ls_module *module, ls_tensor *const *inputs, int input_count,
                           ls_tensor **output) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    (void)ls_no_grad(true);
    ls_tensor *made = NULL;
    ls_status status = ls_module_run_once(module, inputs, input_count, &made, 1);
    ls_tensor *kept = NULL;
    uint32_t spread = 0;
    if (status == LS_OK) {
        kept = ls_tensor_view_owned(made, made->ndim, made->size, made->stride, 0);
        spread = made->spread;
        status = kept != NULL ? LS_OK : ls_error_status();
    }
    status = end_scopes(thread, scope, status);
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
    const int parameters = ls_module_parameter_count(module);
    const size_t tensors = (size_t)input_count + (size_t)parameters;
    const size_t bytes = sizeof(recomputation) + tensors * (sizeof(ls_tensor *) + sizeof(uint32_t));
    recomputation *r = ls_record_allocate(bytes);
    if (r == NULL) {
        (void)ls_fail_memory("ls_recompute", bytes);
        return NULL;
    }
    *r = (recomputation){.module = module,
                         .random = ls_random_get_state(),
                         .autocast = thread->autocast,
                         .in_batch = thread->batch != NULL,
                         .input_count = input_count,
                         .tensor_count = (int)tensors,
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
        ls_record_release(r, bytes);
        return NULL;
    }
    ls_module_hold(module);
    return r;
}

static bool wants_gradient(const recomputation *r) {
    bool wants = false;
    for (int i = 0; i < r->tensor_count; i++) {
        wants = wants || (r->tensors[i] != NULL && r->tensors[i]->needs_grad);
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
    thread->batch = r->in_batch ? &r->part : NULL;
    ls_status status = run_first(thread, r->module, inputs, r->input_count, outputs);
    thread->batch = r->global;
    r->global = NULL;
    const bool recorded = status == LS_OK && ls_dtype_is_floating((ls_dtype)outputs[0]->dtype);
    if (recorded) {
        status = record(thread, r, outputs[0]);
    }
    if (!recorded || status != LS_OK) {
        free_recomputation(r);
    }
    return status;
}

static ls_status run_recomputed(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                int output_count) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    if (thread->no_grad && output_count == 1) { /* frees the tensors between input and output, as with recording */
        return run_first(thread, module, inputs, input_count, outputs);
    }
    if (thread->no_grad) {
        return ls_module_run_once(module, inputs, input_count, outputs, output_count);
    }
    if (output_count != 1) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_recompute: %s gives %d outputs, but recomputation needs exactly one",
                       module->type->name, output_count);
    }
    recomputation *r = make_recomputation(thread, module, inputs, input_count);
    if (r == NULL) {
        return ls_error_status();
    }
    if (!wants_gradient(r)) {
        free_recomputation(r);
        return ls_module_run_once(module, inputs, input_count, outputs, output_count);
    }
    return run_recorded(thread, r, inputs, outputs);
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
