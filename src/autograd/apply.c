#include <stdatomic.h>

#include "autograd/captured_step.h"
#include "autograd/mixing.h"
#include "autograd/tape.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/poll.h"
#include "comm/public_call.h"

bool ls_no_grad(bool on) {
    ls_thread_state *thread = ls_thread();
    const bool before = thread != NULL && thread->no_grad;
    if (thread != NULL) {
        thread->no_grad = on;
    }
    return before;
}

ls_dtype ls_autocast(ls_dtype dtype) {
    static atomic_bool told[LS_DTYPE_COUNT];
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_F32;
    }
    const ls_dtype before = thread->autocast;
    if (dtype != LS_F32 && dtype != LS_BF16 && dtype != LS_F16) {
        (void)ls_fail(LS_ERR_ARGUMENT,
                      "ls_autocast: the dtype is %s, but must be LS_BF16 or LS_F16, or LS_F32 to end autocast",
                      ls_dtype_name(dtype));
        (void)ls_scope_failed_status();
        return before;
    }
    thread->autocast = dtype;
    const ls_device *device = dtype != LS_F32 && dtype != before ? ls_device_default() : NULL;
    if (device != NULL && device->gains_by != NULL && !device->gains_by(device, dtype) &&
        !atomic_exchange(&told[dtype], true)) {
        ls_log_write(LS_LOG_WARNING, "ls_autocast: on device %s, matrix products in %s are not faster than in f32",
                     device->name, ls_dtype_name(dtype));
    }
    return before;
}

/* An input is NULL if the operation that made it failed (the error is noted already), or if the caller erred. */
static ls_tensor *refuse_missing(const ls_op *op, int i) {
    (void)ls_scope_fail_null("%s: argument %d", op->name, i + 1);
    return ls_scope_failed();
}

bool ls_inputs_are_here(const char *call, ls_tensor *const *inputs, int input_count) {
    for (int i = 0; i < input_count; i++) {
        if (inputs[i] != NULL && ls_tensor_is_gone(inputs[i])) {
            return ls_tensor_refuse_gone(call, i + 1, inputs[i]) == LS_OK;
        }
    }
    return true;
}

__attribute__((noinline, cold)) static ls_tensor *refuse_gone(const ls_op *op, int i, const ls_tensor *input) {
    (void)ls_tensor_refuse_gone(op->name, i + 1, input);
    return NULL;
}

static ls_tensor *refuse_devices(const ls_op *op, const ls_device *first, const ls_device *other, int i) {
    (void)ls_fail(LS_ERR_ARGUMENT, "%s: argument %d is on %s, but the arguments before it are on %s", op->name, i + 1,
                  other->name, first->name);
    return ls_scope_failed();
}

static void drop_saved(ls_op_call *call) {
    for (int i = 0; i < LS_NODE_SAVED; i++) {
        if (call->saved[i] != NULL) {
            ls_tensor_drop(call->saved[i]);
        }
    }
}

static ls_tensor *apply(const ls_op *op, ls_tensor *const *inputs, int input_count,
                        const ls_op_parameters *parameters) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    bool wanted = false;
    bool of_gradient = false;
    unsigned spread = 0;
    const ls_device *device = NULL;
    for (int i = 0; i < input_count; i++) {
        if (inputs[i] != NULL) {
            if (ls_tensor_is_gone(inputs[i])) {
                return refuse_gone(op, i, inputs[i]);
            }
            wanted = wanted || inputs[i]->needs_grad;
            of_gradient = of_gradient || inputs[i]->node == &ls_tape_gradient;
            spread |= inputs[i]->spread;
            const ls_device *own = inputs[i]->storage->device;
            if (device != NULL && own != device) {
                return refuse_devices(op, device, own, i);
            }
            device = own;
        } else if (i >= 8 || (op->optional >> i & 1U) == 0) {
            return refuse_missing(op, i);
        }
    }
    if (__builtin_expect(thread->capture != NULL, 0)) {
        ls_capture_operation(thread->capture, op, inputs, input_count);
    }
    ls_op_call call = {.op = op,
                       .inputs = inputs,
                       .input_count = input_count,
                       .parameters = parameters,
                       .of_gradient = of_gradient,
                       .rounds_to = thread->autocast,
                       .records = wanted && !thread->no_grad && op->backward != NULL};
    ls_status status = op->shape(&call);
    if (status == LS_OK && op->forward != NULL) {
        status = op->forward(&call);
    }
    if (__builtin_expect(spread != 0, 0) && status == LS_OK) {
        ls_mixing_follow(&call);
    }
    /* A result of an integer dtype has no gradient, whatever the inputs are. */
    const bool records = call.records && status == LS_OK && ls_dtype_is_floating((ls_dtype)call.output->dtype);
    if (records) {
        status = ls_tape_record(thread, &call);
    } else if (of_gradient && status == LS_OK && !thread->no_grad &&
               ls_dtype_is_floating((ls_dtype)call.output->dtype)) {
        call.output->node = &ls_tape_gradient;
    }
    if (!records || status != LS_OK) {
        drop_saved(&call);
    }
    if (status != LS_OK) {
        ls_release(call.output);
        return ls_scope_failed();
    }
    return call.output;
}

__attribute__((noinline)) static ls_tensor *apply_communicating(const ls_op *op, ls_tensor *const *inputs,
                                                                int input_count, const ls_op_parameters *parameters) {
    const ls_public_call call = op->public_call != LS_PUBLIC_NONE ? (ls_public_call)op->public_call : ls_public_present;
    const ls_public_call outer = ls_public_begin(call);
    ls_tensor *result = apply(op, inputs, input_count, parameters);
    (void)ls_public_end(outer, LS_OK);
    return result;
}

ls_tensor *ls_apply(const ls_op *op, ls_tensor *const *inputs, int input_count, const ls_op_parameters *parameters) {
    const uint64_t began = ls_trace_now();
    ls_tensor *result = __builtin_expect(op->communicates, 0) ? apply_communicating(op, inputs, input_count, parameters)
                                                              : apply(op, inputs, input_count, parameters);
    ls_trace_add(LS_TRACE_FORWARD, began, -1, "%s", op->name);
    ls_comm_poll(); /* .zero = 3 gathers parameters during the forward pass */
    return result;
}
