/*
 * Operations defined by the program (ls_custom). Each call has its own ls_op rows, in a record that its nodes share.
 * There is a node for the call and, if it has several outputs, a node for each output. The nodes of the outputs store
 * their gradients in the record, for the node of the call.
 */
#include <string.h>

#include "autograd/tape.h"
#include "tensor/capture.h"

typedef struct custom {
    ls_op op;
    ls_op part; /* the row for one of several outputs */
    int references;
    ls_custom_op own;
    ls_custom_call call;
    int output_count;
    ls_tensor **gradients; /* gradients of the outputs in the backward pass `pass`; owned */
    uint64_t pass;
    ls_tensor **input_gradients; /* results of the backward function; borrowed */
    uint32_t *versions;          /* storage versions of inputs, outputs and saved tensors after the forward function */
    bool *wanted;
    size_t bytes;
    ls_tensor *tensors[]; /* storage for `call` and the two lists above: inputs, outputs and saved tensors first */
} custom;

static void forget_gradients(custom *c) {
    for (int i = 0; i < c->output_count; i++) {
        ls_tensor_drop(c->gradients[i]);
        c->gradients[i] = NULL;
    }
}

static void drop_custom(custom *c) {
    if (--c->references > 0) {
        return;
    }
    forget_gradients(c);
    for (int i = 0; i < c->call.input_count; i++) {
        ls_tensor_drop(c->call.inputs[i]);
    }
    for (int i = 0; i < c->output_count; i++) {
        ls_tensor_drop(c->call.outputs[i]);
    }
    for (int i = 0; i < c->own.saved; i++) {
        ls_tensor_drop(c->call.saved[i]);
    }
    if (c->own.release != NULL) {
        c->own.release(c->call.user);
    }
    ls_record_release(c, c->bytes);
}

static void hold_custom(void *context, bool hold) {
    custom *c = context;
    if (hold) {
        c->references++;
    } else {
        drop_custom(c);
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Calls a user function. If the function fails, sets its status as the error, with a message unless it has set one. */
static ls_status run(custom *c, const char *what, ls_status (*function)(ls_custom_call *call)) {
    const uint32_t errors = ls_error_count;
    ls_thread_state *thread = ls_thread();
    const ls_device *device = thread->device;
    if (c->own.on_host) { /* so that the tensors it creates are on the host, too */
        thread->device = &ls_cpu;
    }
    const ls_status status = function(&c->call);
    thread->device = device;
    if (status != LS_OK && ls_error_count == errors) {
        return ls_fail(status, "%s: its %s function failed with %s", c->op.name, what, ls_status_name(status));
    }
    if (status != LS_OK && ls_error_status() != status) {
        ls_error_restore(status, ls_error_message());
    }
    return status;
}

static int kept_count(const custom *c) {
    return c->call.input_count + c->output_count + c->own.saved;
}

static void note_versions(custom *c) {
    for (int i = 0; i < kept_count(c); i++) {
        c->versions[i] = c->tensors[i]->storage->version;
    }
}

static ls_status check_unchanged(const custom *c) {
    for (int i = 0; i < kept_count(c); i++) {
        if (c->tensors[i]->storage->version != c->versions[i]) {
            const int output = i - c->call.input_count;
            return ls_refuse_changed(c->op.name, c->tensors[i], output >= 0 && output < c->output_count);
        }
    }
    return LS_OK;
}

/* Replaces a tensor from the forward function with the record's own reference to its elements. */
static ls_status keep(const custom *c, const char *what, int i, ls_tensor **place) {
    ls_tensor *made = *place;
    *place = NULL;
    if (made == NULL) {
        return ls_fail(LS_ERR_STATE, "%s: its forward function returned no %s %d", c->op.name, what, i);
    }
    if (ls_tensor_is_gone(made)) {
        return ls_tensor_refuse_gone(c->op.name, 0, made);
    }
    *place = ls_tensor_view_owned(made, made->ndim, made->size, made->stride, 0);
    return *place != NULL ? LS_OK : ls_error_status();
}

static ls_status keep_made(custom *c) {
    ls_status status = LS_OK;
    for (int i = 0; i < c->output_count; i++) {
        const ls_status kept = status == LS_OK ? keep(c, "output", i, &c->call.outputs[i]) : status;
        c->call.outputs[i] = kept == LS_OK ? c->call.outputs[i] : NULL;
        status = kept;
    }
    for (int i = 0; i < c->own.saved; i++) {
        const ls_status kept = status == LS_OK ? keep(c, "saved tensor", i, &c->call.saved[i]) : status;
        c->call.saved[i] = kept == LS_OK ? c->call.saved[i] : NULL;
        status = kept;
    }
    return status;
}

/* Calls the program's function in a new scope, without recording. */
static ls_status run_forward(custom *c) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    const bool no_grad = ls_no_grad(true);
    ls_status status = run(c, "forward", c->own.forward);
    (void)ls_no_grad(no_grad);
    if (status == LS_OK) {
        status = keep_made(c);
    } else {
        memset(c->call.outputs, 0, (size_t)c->output_count * sizeof *c->call.outputs);
        memset(c->call.saved, 0, (size_t)c->own.saved * sizeof *c->call.saved);
    }
    return ls_scope_end_after(scope, status);
}

static ls_tensor *show(const ls_tensor *made) {
    return ls_tensor_view(made, made->ndim, made->size, made->stride, 0);
}

/* Sets the output. Several outputs are represented on the tape by one tensor without elements. */
static ls_status custom_shape(ls_op_call *call) {
    custom *c = call->parameters->context;
    for (int i = 0; i < call->input_count; i++) {
        c->tensors[i] = ls_tensor_dense(c->op.name, call->inputs[i], (ls_dtype)call->inputs[i]->dtype);
        if (c->tensors[i] == NULL) {
            return ls_error_status();
        }
        c->wanted[i] = call->records && call->inputs[i]->needs_grad;
    }
    LS_TRY(run_forward(c));
    note_versions(c);
    call->saved[0] = ls_tensor_hold(c->call.outputs[0]); /* so that the call does not count as linear */
    call->output = c->output_count == 1
                       ? show(c->call.outputs[0])
                       : ls_tensor_new(c->op.name, ls_tensor_device(c->call.outputs[0]), 1, &(int64_t){0}, LS_F32);
    return call->output != NULL ? LS_OK : ls_error_status();
}

static ls_status part_shape(ls_op_call *call) {
    call->output = show(call->inputs[1]);
    return call->output != NULL ? LS_OK : ls_error_status();
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Stores the gradient of output i in the record, as a dense tensor. NULL means zeros. */
static ls_status set_gradient(custom *c, int i, const ls_tensor *gradient) {
    const ls_tensor *output = c->call.outputs[i];
    if (gradient != NULL) {
        c->gradients[i] = ls_tensor_dense(c->op.name, gradient, (ls_dtype)output->dtype);
        return c->gradients[i] != NULL ? LS_OK : ls_error_status();
    }
    ls_tensor *zeros = ls_tensor_like_owned(c->op.name, output, (ls_dtype)output->dtype);
    c->gradients[i] = zeros;
    return zeros != NULL ? ls_kernels_of(zeros)->fill(ls_stream_of(zeros), zeros, 0) : ls_error_status();
}

static ls_status part_backward(ls_node *node, ls_tensor *gradient) {
    custom *c = node->parameters.context;
    const uint64_t pass = ls_thread()->pass;
    if (c->pass != pass) { /* left over from a failed pass */
        forget_gradients(c);
        c->pass = pass;
    }
    LS_TRY(set_gradient(c, (int)node->parameters.integer[0], gradient));
    return ls_accumulate(node, 0,
                         ls_tensor_new(c->op.name, ls_tensor_device(c->call.outputs[0]), 1, &(int64_t){0}, LS_F32));
}

static ls_status give_input(ls_node *node, int i, ls_tensor *gradient) {
    const ls_tensor *input = node->inputs[i];
    if (gradient == NULL) { /* zero */
        return LS_OK;
    }
    if (ls_tensor_is_gone(gradient)) {
        return ls_tensor_refuse_gone(node->op->name, 0, gradient);
    }
    if (gradient->dtype != input->dtype || !ls_tensor_same_shape(gradient, input)) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: its backward function returned a gradient of argument %d that is %s of %s, but the "
                       "argument is %s of %s",
                       node->op->name, i + 1, LS_SHAPE_TEXT(gradient), ls_dtype_name((ls_dtype)gradient->dtype),
                       LS_SHAPE_TEXT(input), ls_dtype_name((ls_dtype)input->dtype));
    }
    return ls_accumulate(node, i, gradient);
}

static ls_status custom_backward(ls_node *node, ls_tensor *gradient) {
    custom *c = node->parameters.context;
    LS_TRY(check_unchanged(c));
    if (c->output_count == 1 || c->pass != ls_thread()->pass) {
        forget_gradients(c);
    }
    ls_status status = LS_OK;
    for (int i = 0; i < c->output_count && status == LS_OK; i++) {
        if (c->gradients[i] == NULL) {
            status = set_gradient(c, i, c->output_count == 1 ? gradient : NULL);
        }
    }
    for (int i = 0; i < node->input_count; i++) {
        c->wanted[i] = ls_wants(node, i);
        c->input_gradients[i] = NULL;
    }
    if (status == LS_OK) {
        status = run(c, "backward", c->own.backward);
    }
    for (int i = 0; i < node->input_count && status == LS_OK; i++) {
        status = c->wanted[i] ? give_input(node, i, c->input_gradients[i]) : LS_OK;
    }
    forget_gradients(c);
    return status;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* Only the program can know whether the function processes samples separately. */
static ls_samples_use keeps_samples(ls_samples_call *call) {
    return call->axis == 0 ? LS_SAMPLES_KEPT : LS_SAMPLES_UNKNOWN;
}

static ls_samples_use unknown_samples(ls_samples_call *call) {
    (void)call;
    return LS_SAMPLES_UNKNOWN;
}

static void fill_rows(custom *c) {
    c->op = (ls_op){.name = c->own.name,
                    .shape = custom_shape,
                    .backward = c->own.backward != NULL ? custom_backward : NULL,
                    .over_samples = c->own.by_sample ? keeps_samples : unknown_samples,
                    .hold = hold_custom};
    c->part = (ls_op){.name = c->own.name,
                      .shape = part_shape,
                      .backward = c->op.backward != NULL ? part_backward : NULL,
                      .over_samples = keeps_samples,
                      .hold = hold_custom};
}

static int outputs_of(const ls_custom_op *op) {
    return op->outputs > 0 ? op->outputs : 1;
}

static custom *make_custom(const ls_custom_op *op, int input_count, void *user) {
    const int outputs = outputs_of(op);
    const size_t tensors = 2 * (size_t)input_count + 2 * (size_t)outputs + (size_t)op->saved;
    const size_t versions = (size_t)input_count + (size_t)outputs + (size_t)op->saved;
    const size_t bytes = sizeof(custom) + tensors * sizeof(ls_tensor *) + versions * sizeof(uint32_t) +
                         (size_t)input_count * sizeof(bool);
    custom *c = ls_record_allocate(bytes);
    if (c == NULL) {
        (void)ls_fail_memory(op->name, bytes);
        return NULL;
    }
    memset(c, 0, bytes);
    c->references = 1;
    c->bytes = bytes;
    c->own = *op;
    c->output_count = outputs;
    ls_tensor **at = c->tensors;
    c->call = (ls_custom_call){.inputs = at, .input_count = input_count, .user = user};
    c->call.outputs = at += input_count;
    c->call.saved = at += outputs;
    c->gradients = at += op->saved;
    c->input_gradients = at += outputs;
    c->versions = (uint32_t *)(void *)(at + input_count);
    c->wanted = (bool *)(c->versions + versions);
    c->call.output_gradients = c->gradients;
    c->call.input_gradients = c->input_gradients;
    c->call.wanted = c->wanted;
    fill_rows(c);
    return c;
}

static ls_status check_op(const ls_custom_op *op, ls_tensor *const *inputs, int input_count, ls_tensor **outputs) {
    if (op->name == NULL || op->forward == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_custom: the operation needs a name and a forward function");
    }
    if (op->outputs < 0 || op->saved < 0 || input_count < 0 || (inputs == NULL && input_count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: %d inputs, %d outputs, %d saved tensors: a number is negative, or the inputs are NULL",
                       op->name, input_count, op->outputs, op->saved);
    }
    if (op->outputs > 1 && outputs == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: it has %d outputs, but the array of outputs is NULL", op->name,
                       op->outputs);
    }
    return LS_OK;
}

/* Returns the outputs of a call with several outputs. */
static ls_tensor *show_parts(custom *c, ls_tensor *all, ls_tensor **outputs) {
    bool good = true;
    for (int i = 0; i < c->output_count && good; i++) {
        const ls_op_parameters which = {.context = c, .integer = {i}};
        outputs[i] = ls_apply(&c->part, (ls_tensor *[]){all, c->call.outputs[i]}, 2, &which);
        good = outputs[i] != NULL;
    }
    ls_release(all); /* the nodes hold the tensor */
    for (int i = 0; i < c->output_count && !good; i++) {
        ls_release(outputs[i]);
        outputs[i] = NULL;
    }
    return outputs[0];
}

static void apply(custom *c, ls_tensor *const *inputs, ls_tensor **outputs) {
    outputs[0] = ls_apply(&c->op, inputs, c->call.input_count, &(ls_op_parameters){.context = c});
    if (outputs[0] != NULL && c->output_count > 1) {
        outputs[0] = show_parts(c, outputs[0], outputs);
    }
}

/*
 * Returns the device of the first input that the host cannot read, or the thread's device if there are no inputs. NULL
 * means the host.
 */
static const ls_device *other_device(ls_tensor *const *inputs, int count) {
    if (count == 0) {
        const ls_device *device = ls_device_default();
        return device != NULL && !device->is_host ? device : NULL;
    }
    for (int i = 0; i < count; i++) {
        if (inputs[i] != NULL && !ls_tensor_is_gone(inputs[i]) && !ls_tensor_device(inputs[i])->is_host) {
            return ls_tensor_device(inputs[i]);
        }
    }
    return NULL;
}

/*
 * Copies the inputs to the host and the outputs to the device. The copies are recorded, so that gradients are copied
 * back.
 */
static void apply_on_host(custom *c, const ls_device *device, ls_tensor *const *inputs, ls_tensor **outputs) {
    const int count = c->call.input_count;
    const size_t bytes = (size_t)count * sizeof(ls_tensor *);
    ls_tensor **here = ls_record_allocate(bytes);
    if (here == NULL) {
        (void)ls_fail_memory(c->op.name, bytes);
        (void)ls_scope_failed();
        return;
    }
    for (int i = 0; i < count; i++) {
        here[i] = inputs[i] != NULL ? ls_tensor_to_device(inputs[i], ls_cpu.name) : NULL;
    }
    apply(c, here, outputs);
    for (int i = 0; i < count; i++) {
        ls_release(here[i]); /* the tape holds the tensors that it needs */
    }
    ls_record_release(here, bytes);
    bool good = outputs[0] != NULL;
    for (int i = 0; i < c->output_count && good; i++) {
        ls_tensor *made = outputs[i];
        outputs[i] = ls_tensor_to_device(made, device->name);
        ls_release(made);
        good = outputs[i] != NULL;
    }
    for (int i = 0; i < c->output_count && !good; i++) {
        ls_release(outputs[i]);
        outputs[i] = NULL;
    }
}

ls_tensor *ls_custom(const ls_custom_op *op, ls_tensor *const *inputs, int input_count, void *user,
                     ls_tensor **outputs) {
    ls_capture_refuse_here(op != NULL && op->name != NULL ? op->name : "ls_custom",
                           "calls user functions, which a replay does not: run the step without ls_step_capture");
    ls_tensor *only = NULL;
    if (op == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_custom: the operation is NULL");
        return ls_scope_failed();
    }
    for (int i = 0; outputs != NULL && i < outputs_of(op); i++) {
        outputs[i] = NULL;
    }
    custom *c = check_op(op, inputs, input_count, outputs) == LS_OK ? make_custom(op, input_count, user) : NULL;
    if (c == NULL) {
        if (op->release != NULL) {
            op->release(user);
        }
        return ls_scope_failed();
    }
    outputs = outputs != NULL ? outputs : &only;
    const ls_device *device = c->own.on_host ? other_device(inputs, input_count) : NULL;
    if (device != NULL) {
        apply_on_host(c, device, inputs, outputs);
    } else {
        apply(c, inputs, outputs);
    }
    drop_custom(c);
    return outputs[0];
}
