/*
 * Makes the models of all ranks identical by hand, as in PyTorch's notes on distributed training: rank 0 sends each
 * parameter to every other rank. (ls_sync_parameters does this in one broadcast, and ls_data_parallel calls it.)
 *
 *     lockstep run -n 3 build/examples/sync_parameters
 */
#include <inttypes.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

/* The tag is the parameter's index. */
static ls_status sync_parameter(ls_tensor *parameter, ls_comm *world, int tag) {
    ls_tensor *here = ls_to_device(ls_detach(parameter), "cpu"); /* the parameter itself, unless it is on a GPU */
    void *numbers = here != NULL ? ls_data(here) : NULL;
    const size_t count = (size_t)ls_numel(parameter);
    if (numbers == NULL) {
        return ls_error_status();
    }
    if (ls_comm_rank(world) > 0) {
        const ls_status status = ls_comm_recv(world, numbers, count, LS_F32, 0, tag, NULL);
        return status == LS_OK ? ls_copy_into(parameter, here) : status;
    }
    ls_status status = LS_OK;
    for (int to = 1; to < ls_comm_size(world) && status == LS_OK; to++) {
        status = ls_comm_send(world, numbers, count, LS_F32, to, tag, NULL);
    }
    return status;
}

static ls_status sync_parameters(ls_module *model, ls_comm *world) {
    ls_status status = LS_OK;
    for (int i = 0; i < ls_module_parameter_count(model) && status == LS_OK; i++) {
        ls_scope *scope = ls_scope_begin();
        const bool before = ls_no_grad(true);
        status = sync_parameter(ls_module_parameter(model, i), world, i);
        ls_no_grad(before);
        const ls_status ended = ls_scope_end(scope);
        status = status == LS_OK ? ended : status;
    }
    return status;
}

static ls_status run(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_seed(1 + (uint64_t)rank); /* a different model on each rank */
    ls_module *model = ls_sequential(ls_nn_linear(10, 100), ls_nn_relu(), ls_nn_linear(100, 1));
    if (model == NULL) {
        return ls_error_status();
    }
    printf("rank %d before %016" PRIx64 "\n", rank, ls_module_hash(model));
    const ls_status status = sync_parameters(model, world);
    if (status == LS_OK) {
        printf("rank %d after  %016" PRIx64 "\n", rank, ls_module_hash(model));
    }
    ls_module_free(model);
    return status;
}

int main(int argc, char **argv) {
    arguments_read(argc, argv, "Rank 0 sends each parameter of its model to every other rank.", NULL, 0);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "sync_parameters: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
