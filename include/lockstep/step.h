/**
 * @file step.h
 * Captured steps: training steps of fixed shapes that are recorded once and replayed.
 *
 * ```c
 * static ls_tensor *step(void *user) {
 *     (void)user;
 *     ls_optimizer_zero_grad(optimizer);
 *     ls_tensor *loss = ls_mse_loss(ls_forward(model, x), target, LS_LOSS_MEAN);
 *     return ls_backward(loss) == LS_OK && ls_optimizer_step(optimizer) == LS_OK ? loss : NULL;
 * }
 *
 * static ls_status train(ls_tensor *inputs) {
 *     ls_step *captured = ls_step_capture(step, NULL, NULL);
 *     ls_status status = captured != NULL ? LS_OK : ls_error_status();
 *     for (int64_t i = 1; i < ls_size(inputs, 0) && status == LS_OK; i++) {
 *         status = ls_copy_into(x, ls_select(inputs, 0, i));
 *         status = status == LS_OK ? ls_step_replay(captured) : status;
 *     }
 *     ls_step_free(captured);
 *     return status;
 * }
 * ```
 */
#ifndef LOCKSTEP_STEP_H
#define LOCKSTEP_STEP_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A step that was recorded by ls_step_capture. */
typedef struct ls_step ls_step;

/**
 * One step of the program: usually a forward pass, ls_backward and ls_optimizer_step. Returns a result, for example the
 * loss, or NULL after an error. It runs in its own scope.
 */
typedef ls_tensor *(*ls_step_function)(void *user);

/** Options for ls_step_capture. Zero fields select defaults. */
typedef struct ls_step_capture_options {
    bool fallback; /**< on failure, logs the reason once; ls_step_replay then runs the function */
} ls_step_capture_options;

/**
 * Experimental. Runs `function` once, as a normal step, and records the kernels that it runs. ls_step_replay repeats
 * them on the same memory, without the tape and the checks of the function. The results of a replay are bit-identical
 * to the results of another call to the function. Returns ownership to the caller: free the step with ls_step_free.
 * Borrows `function` and `user` until then. Returns NULL on failure.
 *
 * - Tensors that exist before the step are its inputs. The program changes their elements between replays. Their
 *   memory, the modes of the modules, ls_no_grad and ls_autocast must stay unchanged.
 * - Numbers, shapes and decisions of `function` are recorded as they are. A replay does not call `function`.
 * - Random operations draw the numbers that another call to `function` would draw.
 * - The step belongs to the thread. Learning rates may change.
 * - Tensors, modules and optimizers may be freed before the step. Replays then fail.
 * - Overwrite inputs, and do not replace them: replays read the old tensor, or fail if it was freed.
 *
 * Fails with LS_ERR_UNSUPPORTED, after the step has run as usual, if a replay could not repeat it. The message gives
 * the operation and the remedy. A step must not contain reads or writes by the host (ls_item, ls_data), use of the
 * state of the random number generator (ls_seed, ls_random_get_state, ls_random_set_state), changes of other state
 * (ls_module_train, ls_optimizer_set_learning_rate, ls_ema_update, ls_loader_next), custom operations, hooks, other
 * devices than the CPU, or communication other than one forward pass of ls_data_parallel, its averaging of gradients
 * and ls_optimizer_step. With ls_data_parallel on several ranks, the loss must not have more than 8 sums or means over
 * the samples or depend on several data-parallel modules, and a model with dropout or batch normalization must run only
 * once. Fails with the error of `function`, with LS_ERR_ARGUMENT if `function` is NULL or returns NULL without an
 * error, and with LS_ERR_STATE inside a step that is being captured and during a backward pass. `options` may be NULL.
 */
LS_API ls_step *ls_step_capture(ls_step_function function, void *user, const ls_step_capture_options *options);

/**
 * Repeats the step. Fails with the error of an operation if an operation of the step fails, and with LS_ERR_STATE in
 * these cases:
 *
 * - A tensor, a module or a mode is not as it was when the step was captured: capture the step again. This failure
 *   changes no parameter. If the step averages gradients over ranks, the replay fails on all ranks, and the gradients
 *   of the model are dropped. A step that runs the function instead (`.fallback`) omits this check.
 * - The step was freed.
 * - The call is made on a thread other than the thread that called ls_step_capture, after ls_thread_end, in a backward
 *   pass, or in a step that is being captured.
 *
 * If the step averages gradients over ranks (ls_data_parallel), the call is collective; each of the other ranks may
 * either replay the step or run it. If a check of the tensors and modules or an operation fails on a rank, the call
 * fails on all ranks. The errors of the other ranks name this rank, except after a failure inside the backward pass of
 * a model with batch normalization. Then all ranks may get LS_ERR_MISMATCH, in this step and in the next step.
 */
LS_API ls_status ls_step_replay(ls_step *step) LS_WARN_UNUSED;

/**
 * Returns the result of the latest run of the step, as a borrowed pointer. Every replay overwrites its elements. If
 * ls_step_is_captured returns false, get the pointer again after each replay. Returns NULL for NULL, and NULL with an
 * error if the step was freed.
 */
LS_API const ls_tensor *ls_step_result(const ls_step *step);

/** Returns true if ls_step_replay repeats the recorded kernels; false if it runs the function (`.fallback`), or for
 * NULL. */
LS_API bool ls_step_is_captured(const ls_step *step);

/** Frees the step. NULL is allowed. */
LS_API void ls_step_free(ls_step *step);

#ifdef __cplusplus
}
#endif

#endif
