/* What operations, leaves, modules and optimizers report while a thread captures a step (ls_step_capture). */
#ifndef LS_AUTOGRAD_CAPTURED_STEP_H
#define LS_AUTOGRAD_CAPTURED_STEP_H

#include "autograd/op.h"
#include "tensor/capture.h"

/* Notes the inputs of an operation, before it runs. */
void ls_capture_operation(ls_capture *capture, const ls_op *op, ls_tensor *const *inputs, int input_count);

/* Notes that the gradient of a leaf is about to be cleared. */
void ls_capture_zero_grad(ls_capture *capture, ls_tensor *tensor);

/*
 * A call of the library that a replay repeats as a whole, such as the step of an optimizer. Its kernel calls are not
 * recorded: ls_capture_call_begin pauses the record, and ls_capture_call_end resumes it. If `status` is LS_OK, the
 * replay will call run(object).
 */
void ls_capture_call_begin(ls_capture *capture);
void ls_capture_call_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object), void *object);

/*
 * An object whose state decides what the step does, and its state now. Each replay first calls `check`, which fails if
 * the state has changed. `hold` keeps the memory of the object (true), until called with false.
 */
typedef struct ls_capture_guard {
    ls_status (*check)(void *object, int state);
    void (*hold)(void *object, bool hold);
    void *object;
    int state;
} ls_capture_guard;

void ls_capture_add_guard(ls_capture *capture, const ls_capture_guard *guard);

#endif
