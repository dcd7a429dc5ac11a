/*
 * The random networks of networks.txt as data-parallel models on several ranks: training by replays of a captured step
 * is bit-identical to training by the function of the step. Two of three networks average gradients during the backward
 * pass. The test skips networks whose layers or losses are not allowed in ls_data_parallel, and steps with ls_bce_loss,
 * which cannot be captured. LOCKSTEP_TEST_LONG trains 200 steps.
 *
 * ranks: 2 3
 * devices: cpu
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>

#include "tests/support/networks.h"
#include "tests/support/ranks.h"

enum { STEPS = 40, LONG_STEPS = 200, NETWORKS = 300, COMPARED = 253 };

/* One of two equal networks. */
typedef struct twin {
    network_training training;
    ls_tensor *first_x;
    ls_step *step;
} twin;

static ls_status make_twin(twin *self, ls_comm *world, const network *one) {
    const char *failed = NULL;
    ls_module *model = network_module(one, LS_F32, &failed);
    LS_CHECK(model != NULL);
    network_set_numbers(one, model);
    const ls_data_parallel_options parallel = {.overlap = one->number % 3 != 0 ? LS_OVERLAP_ON : LS_OVERLAP_OFF,
                                               .bucket_bytes = one->number % 3 == 1 ? 1 : 1024};
    model = ls_data_parallel(model, world, &parallel);
    ls_tensor *x = network_input(one, LS_F32);
    ls_optimizer *optimizer = one->number % 2 == 0
                                  ? ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.01, .momentum = 0.9})
                                  : ls_adam(model, &(ls_adam_options){.learning_rate = 0.001});
    *self = (twin){.training = {.one = one, .model = model, .optimizer = optimizer, .x = x},
                   .first_x = x != NULL ? ls_detach(ls_clone(x)) : NULL};
    LS_CHECK(optimizer != NULL && self->first_x != NULL);
    return LS_OK;
}

static void free_twin(twin *self) {
    ls_step_free(self->step);
    ls_optimizer_free(self->training.optimizer);
    ls_module_free(self->training.model);
}

/* Changes the input. The ranks have different inputs. */
static ls_status change_input(const twin *self, ls_comm *world, int step) {
    if (!ls_dtype_is_floating(ls_dtype_of(self->training.x))) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    (void)ls_no_grad(true);
    LS_TRY(ls_copy_into(self->training.x, ls_mul(self->first_x, 1 - 0.004 * step - 0.1 * ls_comm_rank(world))));
    return ls_scope_end(scope);
}

/* Runs the function. Returns its status, with the errors of its scope. */
static ls_status run(twin *self) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = network_train(&self->training) != NULL ? LS_OK : ls_error_status();
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Captures the step. If that is impossible, self->step is NULL. The errors of its scope are dropped. */
static void capture(twin *self) {
    ls_scope *scope = ls_scope_begin();
    self->step = ls_step_capture(network_train, &self->training, NULL);
    (void)ls_scope_end(scope);
}

static ls_status check_replays(twin *eager, twin *captured, ls_comm *world) {
    const int steps = getenv("LOCKSTEP_TEST_LONG") != NULL ? LONG_STEPS : IS_SANITIZED ? STEPS / 4 : STEPS;
    for (int i = 0; i <= steps; i++) {
        LS_TRY(i > 0 ? change_input(eager, world, i) : LS_OK);
        LS_TRY(i > 0 ? change_input(captured, world, i) : LS_OK);
        LS_TRY(i > 0 ? run(eager) : LS_OK);
        LS_TRY(i > 0 ? ls_step_replay(captured->step) : LS_OK);
        if (ls_module_hash(eager->training.model) != ls_module_hash(captured->training.model)) {
            network_print(eager->training.one, "the parameters differ");
            return ls_fail(LS_ERR_INTERNAL, "network %d, step %d: the parameters differ", eager->training.one->number,
                           i);
        }
    }
    return ranks_have_same_module(world, captured->training.model);
}

static ls_status check_network(ls_comm *world, const network *one, int *compared) {
    twin eager, captured;
    ls_scope *scope = ls_scope_begin();
    network_keep_tensors(true);
    LS_TRY(make_twin(&eager, world, one));
    LS_TRY(make_twin(&captured, world, one));
    LS_TRY(change_input(&eager, world, 0));
    LS_TRY(change_input(&captured, world, 0));
    if (run(&eager) == LS_OK) {
        capture(&captured);
    }
    if (captured.step != NULL) {
        ++*compared;
        LS_TRY(check_replays(&eager, &captured, world));
    }
    free_twin(&captured);
    free_twin(&eager);
    network_keep_tensors(false);
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    FILE *file = fopen(LS_FIXTURES "/networks.txt", "r");
    LS_CHECK(file != NULL);
    static _Thread_local network one;
    int count = 0, compared = 0;
    ls_log_set_level(LS_LOG_OFF); /* many of these losses are not means over samples */
    ls_status status = LS_OK;
    for (; status == LS_OK && network_read(file, count, &one); count++) {
        status = check_network(world, &one, &compared);
    }
    fclose(file);
    LS_TRY(status);
    LS_CHECK(count == NETWORKS);
    LS_CHECK(compared == COMPARED);
    return ls_comm_barrier(world, NULL);
}
