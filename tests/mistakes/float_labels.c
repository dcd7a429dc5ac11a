/*
 * Labels in a floating-point dtype.
 *
 * ranks: 1
 * says: ls_cross_entropy: .*f32
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_scope *scope = ls_scope_begin();
    ls_cross_entropy(ls_rand(LS_SHAPE(4, 10), LS_F32), ls_zeros(LS_SHAPE(4), LS_F32), NULL);
    return ended(ls_scope_end(scope));
}
