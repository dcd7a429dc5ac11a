/*
 * The message of a communicator call that fails in a function of the program does not name the public function that has
 * called this function: ls_data_parallel_step, with and without slices, and ls_pipeline_backward.
 *
 * ranks: 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>

typedef struct program {
    ls_module *module;
    ls_comm *left; /* all ranks except the last one have left it; NULL on these ranks */
    bool refused;
} program;

static ls_status begin(program *t, ls_comm *world, ls_module *module) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    *t = (program){.module = module};
    LS_TRY(ls_comm_split(world, 0, ls_comm_rank(world), &t->left));
    if (!last) {
        ls_comm_free(t->left);
        t->left = NULL;
    }
    return ls_comm_barrier(world, NULL);
}

/* Fails on the last rank. */
static ls_tensor *loss_of_output(program *t, ls_tensor *output) {
    if (t->left != NULL) {
        static const char expected[] = "ls_comm_barrier #";
        t->refused = ls_comm_barrier(t->left, NULL) == LS_ERR_PEER &&
                     strncmp(ls_error_message(), expected, strlen(expected)) == 0;
        return NULL;
    }
    return ls_mean(ls_square(output));
}

static ls_tensor *loss_of_batch(const ls_batch *batch, void *user) {
    program *t = (program *)user;
    return loss_of_output(t, ls_forward(t->module, batch->input));
}

static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)target;
    return loss_of_output(user, output);
}

static ls_status end(program *t, ls_status status) {
    LS_CHECK(status == (t->left != NULL ? LS_ERR_PEER : LS_ERR_MISMATCH));
    LS_CHECK(t->left == NULL || t->refused);
    ls_comm_free(t->left);
    ls_module_free(t->module);
    return LS_OK;
}

static ls_status in_step(ls_comm *world, int shards) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    program t;
    LS_TRY(
        begin(&t, world, ls_data_parallel(ls_nn_linear(2, 1), world, &(ls_data_parallel_options){.shards = shards})));
    ls_scope *scope = ls_scope_begin();
    const ls_batch batch = {
        .input = ls_ones(LS_SHAPE(4, 2), LS_F32), .count = 4, .first = 4 * rank, .global_count = 4 * size};
    const ls_status status = ls_data_parallel_step(t.module, &batch, loss_of_batch, &t);
    (void)!ls_scope_end(scope);
    return end(&t, status);
}

static ls_status in_pipeline(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_linear(2, 2), ls_nn_linear(2, 2), ls_nn_linear(2, 2), ls_nn_linear(2, 1));
    program t;
    LS_TRY(begin(&t, world, ls_pipeline(model, world, &(ls_pipeline_options){.micro_batches = 2})));
    ls_scope *scope = ls_scope_begin();
    double loss = 0;
    const ls_status status = ls_pipeline_backward(t.module, ls_ones(LS_SHAPE(4, 2), LS_F32),
                                                  ls_ones(LS_SHAPE(4, 1), LS_F32), criterion, &t, &loss);
    (void)!ls_scope_end(scope);
    return end(&t, status);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(in_step(world, 0));
    LS_TRY(in_step(world, 2 * ls_comm_size(world)));
    LS_TRY(in_pipeline(world));
    return ls_comm_barrier(world, NULL);
}
