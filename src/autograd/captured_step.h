/* What operations, leaves, modules and optimizers report while a thread captures a step (ls_step_capture). */
#ifndef LS_AUTOGRAD_CAPTURED_STEP_H
#define LS_AUTOGRAD_CAPTURED_STEP_H

#include <lockstep/step.h>

#include "autograd/op.h"
#include "base/status.h"
#include "tensor/capture.h"

/*
 * Like ls_step_capture with .fallback, without the log: if the step cannot be captured, sets *refusal to the reason,
 * and ls_step_is_captured returns false.
 */
ls_step *ls_step_capture_if_possible(ls_step_function function, void *user, ls_saved_error *refusal);

/*
 * The two parts of ls_step_replay for a captured step. ls_step_check fails with LS_ERR_STATE, and changes nothing, if
 * the step must be captured again. They do not notify other ranks of a failure before the exchange of gradients begins.
 */
ls_status ls_step_check(const ls_step *step);
ls_status ls_step_run(ls_step *step);

/*
 * Returns a view of a tensor of the step, without history. Every run of the step writes the elements. The view belongs
 * to no scope, so the program only borrows it; the caller drops it. Returns NULL, with an error, if out of memory.
 */
ls_tensor *ls_step_view(const ls_tensor *tensor);

/* Notes the inputs of an operation, before it runs. */
void ls_capture_operation(ls_capture *capture, const ls_op *op, ls_tensor *const *inputs, int input_count);

/* Notes that the gradient of a leaf is about to be cleared. */
void ls_capture_zero_grad(ls_capture *capture, ls_tensor *tensor);

/*
 * A call to the library that a replay repeats as a whole, such as the step of an optimizer. Its kernel calls are not
 * recorded: ls_capture_call_begin pauses the record, and ls_capture_call_end resumes it. If `status` is LS_OK, the
 * replay will call run(object). The call may communicate. ls_capture_call_end returns whether it has recorded the call;
 * the caller may then set the object, and copy the tensors of the call with ls_capture_tensor.
 */
void ls_capture_call_begin(ls_capture *capture);
bool ls_capture_call_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object), void *object);

/*
 * Does the same as ls_capture_call_end for a call before which a failed replay must notify the other ranks. Then
 * notify(object, begun) sends the other ranks the error; `begun` is true if the exchange has early calls, and the
 * replay has reached the first one. A step has at most LS_STEP_EXCHANGES such calls.
 */
void ls_capture_exchange_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object),
                             void (*notify)(void *object, bool begun), void *object);

/*
 * ls_capture_enter notes that the latest call enters an object, and ls_capture_leave that the latest call leaves it. If
 * a replay fails between the two calls, it calls leave(object). Objects do not nest.
 */
void ls_capture_enter(ls_capture *capture, void (*leave)(void *object), void *object);
void ls_capture_leave(ls_capture *capture);

/*
 * An exchange may consist of several calls. ls_capture_exchange_end records the last call; the calls before it are
 * early calls. Only the first early call of an exchange begins with ls_capture_call_begin. The others, and calls that
 * do not use gradients, begin with ls_capture_pause, which records no marks of gradients. From the second early
 * call to the end of the exchange, replays poll after the calls of each node, as backward passes do.
 */
void ls_capture_pause(ls_capture *capture);
void ls_capture_early_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object), void *object);

/* Records a poll of the communicators, if the present exchange has at least two early calls. */
void ls_capture_poll(ls_capture *capture);

/* Notes that the latest exchange has averaged gradients over ranks, and has decided which leaves have gradients. A step
 * has at most one such exchange. */
void ls_capture_gradients_settled(ls_capture *capture);

/*
 * The scaling factors of a pass may differ in each replay. The factor of the loss comes first, then the factors of its
 * sums over samples, in the order of the tapes. Before the pass begins, ls_capture_scale_by sets an array of `count`
 * addresses. After a kernel call that scales with factor `which`, ls_capture_factor stores the factor's address in the
 * record as element `which` of the array.
 */
enum { LS_FACTOR_NONE = -1, LS_FACTOR_OF_LOSS, LS_FACTOR_OF_SUMS };
void ls_capture_scale_by(ls_capture *capture, double **at, int count);
void ls_capture_factor(ls_capture *capture, int which);

/* Returns whether replays of the current pass may change its scaling factors. */
bool ls_capture_changes_factors(const ls_capture *capture);

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
