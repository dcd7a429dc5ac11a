/*
 * Two matrices whose inner sizes differ.
 *
 * ranks: 1
 * says: ls_matmul: \[64, 784\] x \[100, 10\]: inner sizes 784 and 100 differ
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_rand(LS_SHAPE(64, 784), LS_F32);
    ls_tensor *weight = ls_rand(LS_SHAPE(100, 10), LS_F32);
    ls_relu(ls_matmul(x, weight));
    return ended(ls_scope_end(scope));
}
