/*
 * The name of the backend has a typing error.
 *
 * ranks: 1
 * says: "ncll"
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(&(ls_init_options){.backend = "ncll"});
    if (world == NULL) {
        return failed();
    }
    return ended(ls_finalize());
}
