/*
 * A number that the tensor cannot hold.
 *
 * ranks: 1
 * says: 300.*u8
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_scope *scope = ls_scope_begin();
    ls_add(ls_zeros(LS_SHAPE(4), LS_U8), 300);
    return ended(ls_scope_end(scope));
}
