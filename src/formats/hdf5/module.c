/* Plug-in hdf5: reads variables of HDF5 files. */
#include "formats/hdf5/hdf5_file.h"

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bool hdf5_open(const char *path, int64_t *file, char reason[LS_ARRAY_REASON]) {
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    *file = ls_hdf5_open_for_reading(path, reason);
    ls_hdf5_restore(before);
    return *file >= 0;
}

static void hdf5_close(int64_t file) {
    (void)H5Fclose(file);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

typedef struct visitor {
    ls_array_add_name *add;
    void *user;
} visitor;

static herr_t add_object(hid_t group, const char *name, const H5O_info_t *info, void *user) {
    const visitor *own = user;
    (void)group;
    return info->type != H5O_TYPE_DATASET || own->add(own->user, "", name) ? 0 : 1; /* 1 ends the visit */
}

static void hdf5_list(int64_t file, ls_array_add_name *add, void *user) {
    visitor own = {add, user};
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
#if H5_VERSION_GE(1, 12, 0)
    (void)H5Ovisit1(file, H5_INDEX_NAME, H5_ITER_INC, (H5O_iterate1_t)add_object, &own);
#else
    (void)H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, add_object, &own);
#endif
    ls_hdf5_restore(before);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

static ls_array_found find(hid_t file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    if (H5Lexists(file, name, H5P_DEFAULT) <= 0) { /* fails if a parent group of the path is missing */
        return LS_ARRAY_ABSENT;
    }
    array->id = H5Dopen2(file, name, H5P_DEFAULT);
    if (array->id < 0) {
        (void)ls_hdf5_explain(reason);
        return LS_ARRAY_REFUSED;
    }
    if (!ls_hdf5_describe(array->id, array, reason)) {
        (void)H5Dclose(array->id);
        return LS_ARRAY_REFUSED;
    }
    return LS_ARRAY_FOUND;
}

static ls_array_found hdf5_find(int64_t file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    const ls_array_found found = find(file, name, array, reason);
    ls_hdf5_restore(before);
    return found;
}

static void hdf5_release(const ls_array *array) {
    (void)H5Dclose(array->id);
}

static int hdf5_attribute(const ls_array *array, const char *name, bool as_elements,
                          ls_array_number numbers[LS_ARRAY_NUMBERS]) {
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    const int count = ls_hdf5_attribute(array, name, as_elements, numbers);
    ls_hdf5_restore(before);
    return count;
}

static hid_t memory_type(const ls_array *array, ls_dtype dtype) {
    const bool bits = array->kind == LS_ARRAY_UNSIGNED && array->bytes == 8;
    return dtype == LS_F32           ? H5T_NATIVE_FLOAT
           : dtype == LS_F64         ? H5T_NATIVE_DOUBLE
           : dtype == LS_I64 && bits ? H5T_NATIVE_UINT64
           : dtype == LS_I64         ? H5T_NATIVE_INT64
           : dtype == LS_I32         ? H5T_NATIVE_INT32
                                     : H5T_NATIVE_UINT8;
}

static bool hdf5_read(const ls_array *array, const int64_t *start, const int64_t *count, ls_dtype dtype, void *to,
                      char reason[LS_ARRAY_REASON]) {
    hsize_t from[LS_MAX_DIMS], size[LS_MAX_DIMS];
    for (int i = 0; i < array->ndim; i++) {
        from[i] = (hsize_t)start[i];
        size[i] = (hsize_t)count[i];
    }
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    const hid_t file_space = H5Dget_space(array->id);
    const hid_t memory_space = H5Screate_simple(array->ndim, size, NULL);
    const bool good = (H5Sselect_hyperslab(file_space, H5S_SELECT_SET, from, NULL, size, NULL) >= 0 &&
                       H5Dread(array->id, memory_type(array, dtype), memory_space, file_space, H5P_DEFAULT, to) >= 0) ||
                      ls_hdf5_explain(reason);
    (void)H5Sclose(memory_space);
    (void)H5Sclose(file_space);
    ls_hdf5_restore(before);
    return good;
}

/* ---- the plug-in ------------------------------------------------------------------------------------------------- */

LS_API ls_array_format_module_function ls_array_format_module;

const ls_array_format *ls_array_format_module(int abi_version) {
    static char version[64];
    static const ls_array_format format = {.version = version,
                                           .open = hdf5_open,
                                           .close = hdf5_close,
                                           .find = hdf5_find,
                                           .release = hdf5_release,
                                           .attribute = hdf5_attribute,
                                           .list = hdf5_list,
                                           .read = hdf5_read,
                                           .write = ls_hdf5_write};
    unsigned major = 0, minor = 0, release = 0;
    (void)H5get_libversion(&major, &minor, &release);
    (void)snprintf(version, sizeof version, "%u.%u.%u", major, minor, release);
    return abi_version == LS_ARRAY_FORMAT_ABI ? &format : NULL;
}
