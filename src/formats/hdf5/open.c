/* Opens HDF5 files for reading. */
#include "formats/hdf5/hdf5_file.h"

hid_t ls_hdf5_open_for_reading(const char *path, char reason[LS_ARRAY_REASON]) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 10, 7)
    (void)H5Pset_file_locking(access, true, true); /* file systems that do not support locks are allowed */
#endif
    const hid_t id = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (id < 0) {
        (void)ls_hdf5_explain(reason);
    }
    (void)H5Pclose(access);
    return id;
}
