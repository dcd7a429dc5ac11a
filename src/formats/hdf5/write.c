/* Writes tensors as HDF5 variables. */
#include <stdlib.h>

#include "formats/hdf5/hdf5_file.h"

/* IEEE 754 binary16: sign in bit 15, 5 exponent bits, 10 fraction bits. */
static hid_t half_type(void) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (H5Tset_fields(type, 15, 10, 5, 0, 10) < 0 || H5Tset_ebias(type, 15) < 0 || H5Tset_size(type, 2) < 0) {
        (void)H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

/* h5py's type of booleans. */
static hid_t bool_type(void) {
    const hid_t type = H5Tenum_create(H5T_STD_I8LE);
    (void)H5Tenum_insert(type, "FALSE", &(int8_t){0});
    (void)H5Tenum_insert(type, "TRUE", &(int8_t){1});
    return type;
}

/* Returns the type of the elements in the file and in memory. The core has already converted bf16, which HDF5 lacks,
 * to f32. */
static hid_t new_type(ls_dtype dtype) {
    switch (dtype) {
    case LS_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case LS_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case LS_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case LS_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case LS_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case LS_F16:
        return half_type();
    case LS_BOOL:
        return bool_type();
    default:
        return H5I_INVALID_HID;
    }
}

static hid_t new_space(ls_shape shape) {
    hsize_t size[LS_MAX_DIMS];
    for (int i = 0; i < shape.ndim; i++) {
        size[i] = (hsize_t)shape.size[i];
    }
    return shape.ndim > 0 ? H5Screate_simple(shape.ndim, size, NULL) : H5Screate(H5S_SCALAR);
}

/* `creation` makes HDF5 create the groups for a name with slashes. */
static bool write_one(hid_t file, hid_t creation, const ls_array_data *array, bool *refused,
                      char reason[LS_ARRAY_REASON]) {
    const hid_t type = new_type(array->dtype);
    const hid_t space = new_space(array->shape);
    const hid_t variable = H5Dcreate2(file, array->name, type, space, creation, H5P_DEFAULT, H5P_DEFAULT);
    bool good = variable >= 0 || ls_hdf5_explain(reason);
    *refused = !good;
    good =
        good && (H5Dwrite(variable, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, array->data) >= 0 || ls_hdf5_explain(reason));
    if (variable >= 0 && H5Dclose(variable) < 0 && good) {
        good = ls_hdf5_explain(reason);
    }
    (void)H5Sclose(space);
    (void)H5Tclose(type);
    return good;
}

bool ls_hdf5_write(const char *path, const ls_array_data *arrays, int count, int *refused,
                   char reason[LS_ARRAY_REASON]) {
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    const hid_t creation = H5Pcreate(H5P_LINK_CREATE);
    (void)H5Pset_create_intermediate_group(creation, 1);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    bool good = file >= 0 || ls_hdf5_explain(reason);
    for (int i = 0; good && i < count; i++) {
        bool refused_name = false;
        good = write_one(file, creation, &arrays[i], &refused_name, reason);
        *refused = refused_name ? i : *refused;
    }
    if (file >= 0 && H5Fclose(file) < 0 && good) { /* writes the data that HDF5 still buffers */
        good = ls_hdf5_explain(reason);
    }
    (void)H5Pclose(creation);
    ls_hdf5_restore(before);
    return good;
}
