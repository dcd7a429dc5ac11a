/*
 * Keeps a batch in a variable while the loader advances.
 *
 * ranks: 1
 * says: ls_sum: .*earlier batch.*ls_clone
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_arange(LS_SHAPE(100), LS_F32), ls_arange(LS_SHAPE(100), LS_F32)),
                      &(ls_loader_options){.batch_size = 10, .no_shuffle = true});
    ls_batch batch;
    bool more;
    if (loader == NULL || ls_loader_next(loader, &batch, &more) != LS_OK) {
        return failed();
    }
    ls_tensor *first = batch.input;
    if (ls_loader_next(loader, &batch, &more) != LS_OK) {
        return failed();
    }
    printf("%g\n", ls_item(ls_sum(first)));
    ls_loader_free(loader);
    return ended(ls_error_status());
}
