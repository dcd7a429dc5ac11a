/* The loop shared by L-BFGS and conjugate gradients: its start, its state, and steps along a direction. */
#include "optim/descent.h"

#include <math.h>

#include "base/memory.h"
#include "nn/module.h"

/* ---- start and end ----------------------------------------------------------------------------------------------- */

ls_status ls_descent_check_group(const ls_optimizer *optimizer, const ls_parameter_group *group) {
    const char *call = optimizer->type->name;
    if (optimizer->group_count > 0) {
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: it already has a group of parameters, and can have only one", call);
    }
    if (group->weight_decay != 0) {
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: weight_decay is %g, but must be 0; add the decay to the loss instead",
                       call, group->weight_decay);
    }
    LS_TRY(ls_group_check_whole(optimizer, group));
    for (int i = 0; i < group->count && optimizer->comm == NULL; i++) {
        if (group->slots[i].parameter->leaf->divisions[LS_DIVIDED_MODEL].add != NULL) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: parameter %d belongs to one stage of a pipeline: set .comm to the pipeline's "
                           "communicator",
                           call, i);
        }
    }
    for (int i = 1; i < group->count; i++) {
        const int first = group->slots[0].parameter->dtype, dtype = group->slots[i].parameter->dtype;
        if (dtype != first) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: parameter %d is %s, but parameter 0 is %s; all must have the same dtype", call, i,
                           ls_dtype_name((ls_dtype)dtype), ls_dtype_name((ls_dtype)first));
        }
    }
    return LS_OK;
}

ls_status ls_descent_limits(const char *call, double evaluations, int *max_iterations, int *max_evaluations,
                            double *tolerance_gradient, double *tolerance_change) {
    LS_TRY(ls_option_within(call, "max_iterations", *max_iterations, 0, INT32_MAX));
    LS_TRY(ls_option_within(call, "max_evaluations", *max_evaluations, 0, INT32_MAX));
    LS_TRY(ls_option_within(call, "tolerance_gradient", *tolerance_gradient, 0, INFINITY));
    LS_TRY(ls_option_within(call, "tolerance_change", *tolerance_change, 0, INFINITY));
    *max_iterations = *max_iterations != 0 ? *max_iterations : 20;
    *max_evaluations = *max_evaluations != 0 ? *max_evaluations : (int)fmin(*max_iterations * evaluations, INT32_MAX);
    *tolerance_gradient = ls_option(*tolerance_gradient, 1e-7);
    *tolerance_change = ls_option(*tolerance_change, 1e-9);
    return LS_OK;
}

void ls_descent_free(ls_descent *descent) {
    if (descent == NULL) {
        return;
    }
    for (int i = 0; i < LS_DESCENT_GRADIENTS; i++) {
        ls_vector_free(descent, descent->gradient[i]);
    }
    ls_vector_free(descent, descent->previous_gradient);
    ls_vector_free(descent, descent->direction);
    ls_vector_free(descent, descent->start);
    if (descent->number != NULL) {
        const ls_device *device = descent->group->device;
        ls_account_end(ls_thread(), descent->account, LS_MEMORY_OPTIMIZER, sizeof *descent->number);
        device->release(device, descent->number, sizeof *descent->number);
    }
    ls_free(descent->frozen);
    ls_free(descent);
}

/* Returns the number of vectors that every method keeps. */
static int vector_count(bool searches) {
    return searches ? 6 : 4;
}

static ls_status allocate_vectors(ls_descent *descent, bool searches) {
    void **const vectors[] = {&descent->direction,   &descent->previous_gradient, &descent->gradient[0],
                              &descent->gradient[1], &descent->gradient[2],       &descent->start};
    const int count = vector_count(searches);
    const ls_device *device = descent->group->device;
    descent->number = device->allocate(device, sizeof *descent->number);
    if (descent->number != NULL) {
        ls_account_begin(ls_thread_present, descent->account, LS_MEMORY_OPTIMIZER, sizeof *descent->number);
    }
    descent->frozen = ls_allocate_zeroed((size_t)descent->group->count, sizeof *descent->frozen);
    if (descent->number == NULL || descent->frozen == NULL) {
        return ls_fail_memory(descent->optimizer->type->name, (size_t)descent->group->count);
    }
    for (int i = 0; i < count; i++) {
        *vectors[i] = ls_vector_new(descent);
        if (*vectors[i] == NULL) {
            return ls_error_status();
        }
    }
    return LS_OK;
}

static bool has_parameters(const ls_optimizer *optimizer) {
    return optimizer->group_count > 0 && optimizer->groups[0].count > 0;
}

/* Creates optimizer->descent on the first step. */
static ls_status begin(ls_optimizer *optimizer, bool searches) {
    if (optimizer->descent != NULL) {
        return LS_OK;
    }
    const ls_tensor *first = optimizer->groups[0].slots[0].parameter;
    ls_descent *descent = ls_allocate(sizeof *descent);
    if (descent == NULL) {
        return ls_fail_memory(optimizer->type->name, sizeof *descent);
    }
    *descent = (ls_descent){
        .optimizer = optimizer,
        .group = &optimizer->groups[0],
        .account = ls_account_of(ls_thread_present),
        .kernels = ls_kernels_of(first),
        .stream = ls_stream_of(first),
        .dtype = (ls_dtype)first->dtype,
        .count = (int64_t)(optimizer->groups[0].bytes / ls_dtype_size((ls_dtype)first->dtype)),
    };
    const ls_status status = allocate_vectors(descent, searches);
    if (status != LS_OK) {
        ls_descent_free(descent);
        return status;
    }
    optimizer->descent = descent;
    return LS_OK;
}

int64_t ls_descent_pending(const ls_optimizer *optimizer, bool searches, int pairs) {
    if (!has_parameters(optimizer)) {
        return 0;
    }
    const ls_descent *descent = optimizer->descent;
    const int64_t vectors = vector_count(searches) + 2 * (int64_t)pairs - (descent != NULL ? descent->vectors : 0);
    return vectors * (int64_t)optimizer->groups[0].bytes + (descent != NULL ? 0 : (int64_t)sizeof *descent->number);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

ls_shape ls_vector_shape(const ls_descent *descent) {
    return LS_SHAPE(descent->count);
}

ls_status ls_descent_list(ls_optimizer *optimizer, ls_state_list *list) {
    ls_descent *descent = optimizer->descent;
    if (descent == NULL || descent->iterations == 0) {
        return LS_OK;
    }
    const ls_shape vector = ls_vector_shape(descent);
    LS_TRY(ls_state_add(list, "", (ls_state_word){"n_iter", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu,
                        &descent->iterations));
    LS_TRY(ls_state_add(list, "", (ls_state_word){"restarted", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu,
                        &descent->restarted));
    LS_TRY(ls_state_add(list, "", (ls_state_word){"t", LS_STATE_ANY}, LS_SCALAR, LS_F64, &ls_cpu, &descent->step));
    LS_TRY(ls_state_add(list, "", (ls_state_word){"slope", LS_STATE_ANY}, LS_SCALAR, LS_F64, &ls_cpu, &descent->slope));
    LS_TRY(ls_state_add(list, "", (ls_state_word){"d", LS_STATE_ANY}, vector, descent->dtype, descent->group->device,
                        descent->direction));
    return ls_state_add(list, "", (ls_state_word){"prev_flat_grad", LS_STATE_ANY}, vector, descent->dtype,
                        descent->group->device, descent->previous_gradient);
}

ls_status ls_descent_make_room(ls_optimizer *optimizer, bool searches, const ls_named *given, int count) {
    if (!has_parameters(optimizer) || ls_state_find(given, count, "n_iter") == NULL) {
        return LS_OK;
    }
    LS_TRY(begin(optimizer, searches));
    optimizer->descent->iterations = 1; /* any positive number; the true count comes from the given state */
    return LS_OK;
}

/* ---- stepping ---------------------------------------------------------------------------------------------------- */

/* Evaluates the loss at the current parameters. The loss must be finite there. */
static ls_status arrive(ls_descent *descent) {
    LS_TRY(ls_descent_evaluate(descent, descent->gradient[0], &descent->loss));
    if (!isfinite(descent->loss)) {
        const int evaluations = descent->optimizer->last_step.evaluations;
        return ls_fail(LS_ERR_STATE, "%s: the loss of evaluation %d is not finite; %s", descent->optimizer->type->name,
                       evaluations,
                       evaluations == 1 ? "begin elsewhere" : "a smaller learning_rate or strong_wolfe may help");
    }
    return LS_OK;
}

/* Moves along the direction. With fixed steps, the last move is not evaluated, because the next step begins with
 * this evaluation. */
static ls_status move(ls_descent *descent, const ls_descent_options *options, bool last) {
    if (options->searches) {
        LS_TRY(ls_descent_gather_parameters(descent, descent->start));
        return ls_line_search(descent, options);
    }
    LS_TRY(ls_descent_move(descent, descent->step));
    return last ? LS_OK : arrive(descent);
}

static ls_status check_gradient(const ls_descent *descent, const ls_descent_options *options, ls_stop_reason *reason) {
    double gradient = 0;
    LS_TRY(ls_vector_largest(descent, descent->gradient[0], &gradient));
    *reason = gradient <= options->tolerance_gradient ? LS_STOP_GRADIENT : LS_STOP_NONE;
    return LS_OK;
}

/* Returns whether the gradient is almost zero, or the last move changed almost nothing. */
static ls_status check_converged(const ls_descent *descent, const ls_descent_options *options, double loss_before,
                                 ls_stop_reason *reason) {
    double direction = 0;
    LS_TRY(check_gradient(descent, options, reason));
    LS_TRY(ls_vector_largest(descent, descent->direction, &direction));
    if (*reason == LS_STOP_NONE && (fabs(descent->step) * direction <= options->tolerance_change ||
                                    fabs(descent->loss - loss_before) < options->tolerance_change)) {
        *reason = LS_STOP_CHANGE;
    }
    return LS_OK;
}

/* Chooses one direction and moves along it. Sets `*reason` if the loop should stop. */
static ls_status iterate(ls_descent *descent, const ls_descent_options *options, ls_descent_direct direct,
                         ls_stop_reason *reason) {
    const ls_step_info *info = &descent->optimizer->last_step;
    LS_TRY(direct(descent->optimizer, descent));
    descent->forgets = false;
    LS_TRY(ls_vector_dot(descent, descent->gradient[0], descent->direction, &descent->slope));
    LS_TRY(ls_vector_copy(descent, descent->previous_gradient, descent->gradient[0]));
    if (!isfinite(descent->slope)) {
        return ls_fail(LS_ERR_STATE, "%s: the gradient of evaluation %d is not finite", descent->optimizer->type->name,
                       info->evaluations);
    }
    if (descent->slope > -options->tolerance_change) {
        *reason = LS_STOP_DIRECTION;
        return LS_OK;
    }
    const double loss_before = descent->loss;
    const bool last = info->iterations == options->max_iterations;
    LS_TRY(move(descent, options, last));
    if (last || info->evaluations >= options->max_evaluations) {
        *reason = last ? LS_STOP_ITERATIONS : LS_STOP_EVALUATIONS;
        return LS_OK;
    }
    return check_converged(descent, options, loss_before, reason);
}

/*
 * Makes the method forget its previous directions if parameters were frozen or unfrozen since the last step, because
 * these directions belong to a different set of variables. The first step after `begin` only records the set: a resumed
 * program may freeze its parameters before or after it loads the state. Collective if the parameters are sharded.
 */
static ls_status compare_frozen(ls_descent *descent) {
    double changed = 0;
    for (int i = 0; i < descent->group->count; i++) {
        const bool frozen = !ls_requires_grad(descent->group->slots[i].parameter);
        changed = descent->knows_frozen && frozen != descent->frozen[i] ? 1 : changed;
        descent->frozen[i] = frozen;
    }
    descent->knows_frozen = true;
    LS_TRY(ls_descent_combine(descent, &changed, LS_MAX));
    descent->forgets = descent->forgets || changed != 0;
    return LS_OK;
}

static ls_status begin_part(ls_optimizer *optimizer, bool searches) {
    if (!has_parameters(optimizer)) {
        return ls_fail(
            LS_ERR_STATE,
            "%s: rank %d of .comm has no parameters: add the rank's part of the parameters, even if the part is empty",
            optimizer->type->name, ls_comm_rank(optimizer->comm));
    }
    return begin(optimizer, searches);
}

ls_status ls_descend(ls_optimizer *optimizer, const ls_descent_options *options, ls_descent_direct direct,
                     ls_closure closure, void *user, double *first_loss) {
    if (!has_parameters(optimizer) && optimizer->comm == NULL) {
        optimizer->last_step.reason = LS_STOP_GRADIENT;
        LS_TRY(ls_optimizer_evaluate(optimizer, closure, user, first_loss));
        return isfinite(*first_loss) ? LS_OK
                                     : ls_fail(LS_ERR_STATE, "%s: the loss is %g, but must be finite",
                                               optimizer->type->name, *first_loss);
    }
    const ls_status begun = begin_part(optimizer, options->searches);
    if (begun != LS_OK) { /* fails during the first evaluation of the other ranks */
        return ls_descent_agree(optimizer, begun, first_loss);
    }
    ls_descent *descent = optimizer->descent;
    descent->closure = closure;
    descent->user = user;
    LS_TRY(arrive(descent));
    *first_loss = descent->loss;
    LS_TRY(compare_frozen(descent));
    ls_step_info *info = &optimizer->last_step;
    LS_TRY(check_gradient(descent, options, &info->reason));
    while (info->reason == LS_STOP_NONE) {
        descent->iterations++;
        info->iterations++;
        LS_TRY(iterate(descent, options, direct, &info->reason));
    }
    return LS_OK;
}
