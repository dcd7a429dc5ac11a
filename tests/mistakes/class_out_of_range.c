/*
 * A label that is not a class.
 *
 * ranks: 1
 * says: ls_cross_entropy: .*10.*10 classes
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    const int64_t labels[4] = {1, 3, 10, 0}; /* classes are 0 to 9 */
    ls_scope *scope = ls_scope_begin();
    ls_cross_entropy(ls_rand(LS_SHAPE(4, 10), LS_F32), ls_from(LS_SHAPE(4), LS_I64, labels), NULL);
    return ended(ls_scope_end(scope));
}
