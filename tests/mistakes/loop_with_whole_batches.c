/*
 * A training loop whose loader has no .comm, so every rank trains on all samples.
 *
 * ranks: 2 3
 * on: shm tcp
 * status: 0
 * says: warning .*each of the [23] ranks trains on all samples: set .comm of ls_loader_options
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_randn(LS_SHAPE(48, 4), LS_F32), ls_zeros(LS_SHAPE(48), LS_I64)),
                      &(ls_loader_options){.batch_size = 4});
    ls_status status = optimizer != NULL && loader != NULL ? LS_OK : ls_error_status();
    ls_batch batch;
    bool more = status == LS_OK;
    while (more) {
        ls_scope *scope = ls_scope_begin();
        status = ls_loader_next(loader, &batch, &more);
        if (status == LS_OK && more) {
            ls_optimizer_zero_grad(optimizer);
            status = ls_backward(ls_cross_entropy(ls_forward(model, batch.input), batch.target, NULL));
            status = status == LS_OK ? ls_optimizer_step(optimizer) : status;
        }
        const ls_status ended = ls_scope_end(scope);
        more = more && status == LS_OK && ended == LS_OK;
    }
    ls_optimizer_free(optimizer);
    ls_loader_free(loader);
    ls_module_free(model);
    return status != LS_OK ? failed() : ended(ls_finalize());
}
