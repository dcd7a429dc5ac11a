/*
 * The path of the data folder has a typing error.
 *
 * ranks: 1
 * says: there is no folder "no-such-folder"
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_loader *loader = ls_loader_new(ls_mnist_dataset("no-such-folder", true), NULL);
    if (loader == NULL) {
        return failed();
    }
    ls_loader_free(loader);
    return 0;
}
