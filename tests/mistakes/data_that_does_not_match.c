/*
 * A data set has fewer targets than inputs.
 *
 * ranks: 1
 * says: ls_tensor_dataset: .*10.*9
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_dataset *data = ls_tensor_dataset(ls_zeros(LS_SHAPE(10, 4), LS_F32), ls_zeros(LS_SHAPE(9), LS_I64));
    if (data == NULL) {
        return failed();
    }
    ls_dataset_free(data);
    return 0;
}
