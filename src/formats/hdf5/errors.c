/* Switches HDF5's error messages off, and returns them as reasons. */
#include "formats/hdf5/hdf5_file.h"

ls_hdf5_silence ls_hdf5_silence_errors(void) {
    ls_hdf5_silence before = {NULL, NULL};
    (void)H5Eget_auto2(H5E_DEFAULT, &before.handler, &before.data);
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return before;
}

void ls_hdf5_restore(ls_hdf5_silence before) {
    (void)H5Eset_auto2(H5E_DEFAULT, before.handler, before.data);
}

static herr_t take_first(unsigned number, const H5E_error2_t *error, void *reason) {
    if (number == 0 && error->desc != NULL) {
        (void)snprintf(reason, LS_ARRAY_REASON, "%s", error->desc);
    }
    return 0;
}

bool ls_hdf5_explain(char reason[LS_ARRAY_REASON]) {
    (void)snprintf(reason, LS_ARRAY_REASON, "HDF5 gives no reason");
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, reason);
    return false;
}
