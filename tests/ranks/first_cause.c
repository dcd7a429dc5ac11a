/*
 * An operation fails on one rank during a training step. This rank keeps its own message. All other ranks get
 * LS_ERR_MISMATCH with the number of the failed rank and its message, and all ranks continue together with the next
 * step. The operation may fail before, between, inside or after the data-parallel models of the step, and the models
 * may or may not communicate in their forward passes (batch normalization).
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/parallel.h>

enum { ROWS = 8, WIDTH = 4 };

static const char reason[] = "ls_add: [8, 4] does not broadcast with [3, 3]";

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int failing_rank(ls_comm *world) {
    return ls_comm_size(world) - 1;
}

static bool fails_here(ls_comm *world) {
    return ls_comm_rank(world) == failing_rank(world);
}

/* Checks the result of a step. `status` is the result, `own` the expected status on the failed rank, and `words` a
 * part of its message. */
static ls_status expect_cause(ls_comm *world, ls_status status, ls_status own, const char *words) {
    char expected[200];
    snprintf(expected, sizeof expected, "rank %d failed: %s", failing_rank(world), words);
    LS_CHECK(status == (fails_here(world) ? own : LS_ERR_MISMATCH));
    LS_EXPECT_MESSAGE(fails_here(world) ? words : expected);
    LS_CHECK(strstr(ls_error_message(), "different calls") == NULL);
    return LS_OK;
}

/* ---- data-parallel models ---------------------------------------------------------------------------------------- */

/* Where an operation fails. */
typedef enum place { NOWHERE, BEFORE, INSIDE, BETWEEN, AFTER, PLACES } place;

static _Thread_local bool fails_inside;

static ls_tensor *spoil(ls_tensor *x, bool spoils) {
    return spoils ? ls_add(x, ls_ones(LS_SHAPE(3, 3), LS_F32)) : x;
}

static ls_tensor *pass_on(ls_tensor *x, void *user) {
    (void)user;
    return spoil(x, fails_inside);
}

static ls_module *make_model(ls_comm *world, bool normalized) {
    ls_module *middle = ls_nn_function("PassOn", pass_on, NULL);
    ls_module *model = normalized ? ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_batch_norm_1d(WIDTH, NULL), middle,
                                                  ls_nn_batch_norm_1d(WIDTH, NULL), ls_nn_linear(WIDTH, WIDTH))
                                  : ls_sequential(ls_nn_linear(WIDTH, WIDTH), middle, ls_nn_linear(WIDTH, WIDTH));
    return ls_data_parallel(model, world, NULL);
}

/* Runs a step as a beginner writes it: checks only the end of the scope. */
static ls_status take_step(ls_comm *world, ls_module *const *models, place where) {
    const bool here = fails_here(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = spoil(ls_rand(LS_SHAPE(ROWS, WIDTH), LS_F32), here && where == BEFORE);
    x = spoil(ls_forward(models[0], x), here && where == BETWEEN);
    fails_inside = here && where == INSIDE;
    x = spoil(ls_forward(models[1], x), here && where == AFTER);
    fails_inside = false;
    (void)!ls_backward(ls_mean(ls_square(x)));
    return ls_scope_end(scope);
}

static ls_status steps(ls_comm *world) {
    for (int kinds = 0; kinds < 4; kinds++) {
        ls_module *models[] = {make_model(world, kinds % 2 != 0), make_model(world, kinds / 2 != 0)};
        LS_CHECK(models[0] != NULL && models[1] != NULL);
        for (place where = BEFORE; where < PLACES; where++) {
            LS_TRY(expect_cause(world, take_step(world, models, where), LS_ERR_SHAPE, reason));
            LS_TRY(take_step(world, models, NOWHERE));
        }
        ls_module_free(models[0]);
        ls_module_free(models[1]);
    }
    return LS_OK;
}

/* ---- a rank without samples -------------------------------------------------------------------------------------- */

/* How a step with an empty share fails: on the last rank, on all ranks with samples, or on the rank without samples. */
typedef enum skipped { GOOD, NO_INPUT, INSIDE_MODEL, NO_LOSS, NO_HISTORY, WRONG_LOSS, MIXED, REFUSED, SKIPPED } skipped;

static _Thread_local skipped present;

static ls_tensor *change(ls_tensor *x, void *user) {
    const bool here = *(const bool *)user;
    if (present == REFUSED && ls_size(x, 0) == 0) {
        return ls_add(x, ls_ones(LS_SHAPE(3, 3), LS_F32));
    }
    return present == MIXED ? ls_softmax(x, 0) : spoil(x, here && present == INSIDE_MODEL);
}

/* Runs a step in which rank 0 has no samples. */
static ls_status skip_or_step(ls_comm *world, ls_module *model, skipped how) {
    const bool here = fails_here(world);
    present = how;
    if (ls_comm_rank(world) == 0) {
        return ls_data_parallel_skip(model);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = spoil(ls_rand(LS_SHAPE(ROWS, WIDTH), LS_F32), here && how == NO_INPUT);
    x = spoil(ls_forward(model, x), here && how == NO_LOSS);
    x = here && how == WRONG_LOSS ? ls_softmax(x, 0) : x;
    x = here && how == NO_HISTORY ? ls_detach(x) : x;
    (void)!ls_backward(ls_mean(ls_square(x)));
    return ls_scope_end(scope);
}

static ls_status expect_failure(ls_comm *world, ls_status status, skipped how) {
    const int rank = ls_comm_rank(world), origin = how == REFUSED ? 0 : how == MIXED ? 1 : failing_rank(world);
    const bool own = how == MIXED ? rank > 0 : rank == origin;
    char expected[40];
    snprintf(expected, sizeof expected, "rank %d failed: ", origin);
    LS_CHECK(own ? status != LS_OK && status != LS_ERR_MISMATCH : status == LS_ERR_MISMATCH);
    LS_CHECK(own || strstr(ls_error_message(), expected) != NULL);
    LS_CHECK(strstr(ls_error_message(), "different calls") == NULL);
    return LS_OK;
}

static ls_status check_gradients(ls_module *model, bool has) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        LS_CHECK((ls_grad(ls_module_parameter(model, i)) != NULL) == has);
    }
    return LS_OK;
}

/*
 * Excludes impossible cases: a model that communicates learns the history of other ranks, and a model that does not
 * communicate is not run on an empty share.
 */
static bool is_possible(skipped how, bool normalized) {
    return !(how == NO_HISTORY && normalized) && !(how == REFUSED && !normalized);
}

static ls_status empty_shares(ls_comm *world, bool normalized) {
    bool here = fails_here(world);
    ls_module *middle = ls_nn_function("Change", change, &here);
    ls_module *batch_norm = normalized ? ls_nn_batch_norm_1d(WIDTH, NULL) : ls_nn_tanh();
    ls_module *again = normalized ? ls_nn_batch_norm_1d(WIDTH, NULL) : ls_nn_tanh();
    ls_module *model = ls_data_parallel(
        ls_sequential(ls_nn_linear(WIDTH, WIDTH), batch_norm, middle, again, ls_nn_linear(WIDTH, WIDTH)), world, NULL);
    for (skipped how = NO_INPUT; how < SKIPPED; how++) {
        if (!is_possible(how, normalized)) {
            continue;
        }
        LS_TRY(skip_or_step(world, model, GOOD));
        LS_TRY(check_gradients(model, true));
        LS_TRY(expect_failure(world, skip_or_step(world, model, how), how));
    }
    LS_TRY(skip_or_step(world, model, GOOD));
    LS_TRY(expect_failure(world, skip_or_step(world, model, NO_LOSS), NO_LOSS));
    LS_TRY(check_gradients(model, false));
    ls_module_free(model);
    return LS_OK;
}

/* A pass over detached outputs gives the model no gradient; a rank that skips the pass cannot know this. */
static ls_status detached_outputs(ls_comm *world) {
    ls_module *models[] = {make_model(world, false), make_model(world, false)};
    ls_scope *scope = ls_scope_begin();
    if (ls_comm_rank(world) == 0) {
        LS_CHECK(ls_data_parallel_skip(models[0]) == LS_ERR_MISMATCH);
    } else {
        ls_tensor *x = ls_forward(models[0], ls_rand(LS_SHAPE(ROWS, WIDTH), LS_F32));
        LS_CHECK(ls_backward(ls_mean(ls_forward(models[1], ls_detach(x)))) == LS_ERR_MISMATCH);
    }
    LS_EXPECT_MESSAGE("every rank needs samples");
    (void)!ls_scope_end(scope);
    ls_module_free(models[0]);
    ls_module_free(models[1]);
    return LS_OK;
}

/*
 * Two backward passes after one forward pass. Each call of ls_data_parallel_skip runs a normalized model again, so the
 * ranks make different calls of a communicator, which is then freed.
 */
static ls_status passes_of_one_output(ls_comm *world) {
    ls_comm *comm = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &comm));
    ls_module *model = make_model(comm, true);
    ls_scope *scope = ls_scope_begin();
    if (ls_comm_rank(world) == 0) {
        LS_TRY(ls_data_parallel_skip(model));
        LS_CHECK(ls_data_parallel_skip(model) == LS_ERR_MISMATCH);
    } else {
        ls_tensor *y = ls_forward(model, ls_rand(LS_SHAPE(ROWS, WIDTH), LS_F32));
        LS_TRY(ls_backward_with(ls_mean(y), &(ls_backward_options){.keep_tape = true}));
        LS_CHECK(ls_backward(ls_mean(ls_square(y))) == LS_ERR_MISMATCH);
    }
    (void)!ls_scope_end(scope);
    ls_module_free(model);
    ls_comm_free(comm);
    return ls_comm_barrier(world, NULL);
}

static ls_status skipping(ls_comm *world) {
    LS_TRY(empty_shares(world, false));
    LS_TRY(empty_shares(world, true));
    LS_TRY(passes_of_one_output(world));
    return detached_outputs(world);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static ls_tensor *leaf(ls_shape shape) {
    ls_tensor *x = ls_ones(shape, LS_F32);
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

static ls_status call_with_nothing(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_allreduce(world, spoil(leaf(LS_SHAPE(ROWS, WIDTH)), fails_here(world)), LS_SUM) == NULL);
    return expect_cause(world, ls_scope_end(scope), LS_ERR_SHAPE, reason);
}

static ls_status no_loss(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *sum = spoil(ls_allreduce(world, leaf(LS_SHAPE(ROWS, WIDTH)), LS_SUM), fails_here(world));
    (void)!ls_backward(ls_mean(sum));
    return expect_cause(world, ls_scope_end(scope), LS_ERR_SHAPE, reason);
}

static ls_status refuse(ls_tensor *tensor, void *user) {
    (void)tensor;
    return ls_error_set(LS_ERR_UNSUPPORTED, "%s", (const char *)user);
}

/* A hook fails in the backward pass, before the pass reaches the communication. */
static ls_status in_a_pass(ls_comm *world, ls_module *model) {
    static char words[] = "the hook refuses";
    ls_scope *scope = ls_scope_begin();
    ls_tensor *first = leaf(LS_SHAPE(ROWS, WIDTH)), *second = leaf(LS_SHAPE(ROWS, WIDTH));
    if (fails_here(world)) {
        LS_TRY(ls_add_grad_hook(second, refuse, words));
    }
    ls_tensor *x = model != NULL ? ls_forward(model, first) : ls_allreduce(world, first, LS_SUM);
    (void)!ls_backward(ls_mean(ls_mul(x, second)));
    return expect_cause(world, ls_scope_end(scope), LS_ERR_UNSUPPORTED, words);
}

static ls_status passes(ls_comm *world) {
    ls_module *plain = make_model(world, false), *normalized = make_model(world, true);
    LS_TRY(in_a_pass(world, NULL));
    LS_TRY(in_a_pass(world, normalized));
    LS_TRY(in_a_pass(world, plain));
    ls_module_free(plain);
    ls_module_free(normalized);
    return LS_OK;
}

/* One rank has a different loss, which needs numbers from all ranks before the pass. */
static ls_status other_loss(ls_comm *world, int passes_before) {
    ls_module *model = make_model(world, false);
    for (int i = 0; i < passes_before + 3; i++) {
        ls_scope *scope = ls_scope_begin();
        const bool sums = i == passes_before && fails_here(world);
        ls_tensor *loss = ls_square(ls_forward(model, ls_ones(LS_SHAPE(ROWS, WIDTH), LS_F32)));
        const ls_status status = ls_backward(sums ? ls_sum(loss) : ls_mean(loss));
        if (i == passes_before) {
            LS_CHECK(status == LS_ERR_MISMATCH);
            LS_EXPECT_MESSAGE("compute the same loss on all ranks");
            LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL);
        } else {
            LS_CHECK(status == LS_OK);
        }
        (void)ls_scope_end(scope);
    }
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(steps(world));
    LS_TRY(call_with_nothing(world));
    LS_TRY(no_loss(world));
    LS_TRY(passes(world));
    LS_TRY(ls_comm_size(world) > 1 ? skipping(world) : LS_OK);
    for (int before = 0; before < 3 && ls_comm_size(world) > 1; before++) {
        LS_TRY(other_loss(world, before));
    }
    return ls_comm_barrier(world, NULL);
}
