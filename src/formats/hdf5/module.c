/* Plug-in hdf5: reads variables of HDF5 files. */
#include <stdlib.h>

#include "formats/hdf5/hdf5_file.h"

typedef struct hdf5_file {
    hid_t id;
} hdf5_file;

/* ---- files ------------------------------------------------------------------------------------------------------- */

static hid_t open_for_reading(const char *path) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 10, 7)
    (void)H5Pset_file_locking(access, true, true); /* file systems without locks are allowed */
#endif
    const hid_t id = H5Fopen(path, H5F_ACC_RDONLY, access);
    (void)H5Pclose(access);
    return id;
}

static void *hdf5_open(const char *path, char reason[LS_ARRAY_REASON]) {
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    hdf5_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        (void)snprintf(reason, LS_ARRAY_REASON, "out of memory");
    } else if ((file->id = open_for_reading(path)) < 0) {
        ls_hdf5_explain(reason);
        free(file);
        file = NULL;
    }
    ls_hdf5_restore(before);
    return file;
}

static void hdf5_close(void *opened) {
    hdf5_file *file = opened;
    (void)H5Fclose(file->id);
    free(file);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

typedef struct hdf5_names {
    char *text;
    size_t size, length;
} hdf5_names;

static herr_t add_name(hid_t group, const char *name, const H5O_info_t *info, void *user) {
    hdf5_names *list = user;
    (void)group;
    if (info->type != H5O_TYPE_DATASET) {
        return 0;
    }
    const size_t left = list->size - list->length;
    const int written = snprintf(list->text + list->length, left, "%s%s", list->length > 0 ? ", " : "", name);
    if (written < 0 || (size_t)written >= left) {
        list->text[list->length] = '\0';
        return 1; /* stops */
    }
    list->length += (size_t)written;
    return 0;
}

static void hdf5_list(void *opened, char *text, size_t size) {
    const hdf5_file *file = opened;
    hdf5_names list = {.text = text, .size = size};
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    text[0] = '\0';
#if H5_VERSION_GE(1, 12, 0)
    (void)H5Ovisit1(file->id, H5_INDEX_NAME, H5_ITER_INC, (H5O_iterate1_t)add_name, &list);
#else
    (void)H5Ovisit(file->id, H5_INDEX_NAME, H5_ITER_INC, add_name, &list);
#endif
    ls_hdf5_restore(before);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

static ls_array_found refuse(char reason[LS_ARRAY_REASON], const char *why) {
    (void)snprintf(reason, LS_ARRAY_REASON, "%s", why);
    return LS_ARRAY_REFUSED;
}

static ls_array_found describe_number(hid_t type, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const H5T_class_t class = H5Tget_class(type);
    array->bytes = (int)H5Tget_size(type);
    if (class == H5T_FLOAT) {
        array->kind = LS_ARRAY_FLOATING;
        return LS_ARRAY_FOUND;
    }
    if (class == H5T_INTEGER) {
        array->kind = H5Tget_sign(type) == H5T_SGN_NONE ? LS_ARRAY_UNSIGNED : LS_ARRAY_SIGNED;
        return LS_ARRAY_FOUND;
    }
    (void)snprintf(reason, LS_ARRAY_REASON, "its elements are %s, but must be integers or floating-point numbers",
                   class == H5T_STRING     ? "texts"
                   : class == H5T_COMPOUND ? "of a compound type"
                   : class == H5T_VLEN     ? "lists of variable length"
                   : class == H5T_ARRAY    ? "of an array type"
                                           : "no numbers");
    return LS_ARRAY_REFUSED;
}

/* An enumeration, such as h5py's type of booleans, counts as its integers. */
static ls_array_found describe_type(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const hid_t type = H5Dget_type(variable);
    if (type < 0) {
        ls_hdf5_explain(reason);
        return LS_ARRAY_REFUSED;
    }
    const hid_t base = H5Tget_class(type) == H5T_ENUM ? H5Tget_super(type) : H5Tcopy(type);
    const ls_array_found found = describe_number(base, array, reason);
    (void)H5Tclose(base);
    (void)H5Tclose(type);
    return found;
}

static ls_array_found describe_shape(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    hsize_t size[H5S_MAX_RANK];
    const hid_t space = H5Dget_space(variable);
    array->ndim = H5Sget_simple_extent_ndims(space);
    const int got = H5Sget_simple_extent_dims(space, size, NULL);
    (void)H5Sclose(space);
    if (got < 0) {
        ls_hdf5_explain(reason);
        return LS_ARRAY_REFUSED;
    }
    if (array->ndim < 1 || array->ndim > LS_MAX_DIMS) {
        return refuse(reason, array->ndim < 1 ? "it is a single value without axes" : "it has more than 8 axes");
    }
    for (int i = 0; i < array->ndim; i++) {
        array->size[i] = (int64_t)size[i];
    }
    return LS_ARRAY_FOUND;
}

/* Describes how the variable is stored. Refuses a variable that this HDF5 cannot decompress. */
static ls_array_found describe_storage(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    hsize_t chunk[H5S_MAX_RANK];
    const hid_t creation = H5Dget_create_plist(variable);
    ls_array_found found = LS_ARRAY_FOUND;
    if (H5Pget_layout(creation) == H5D_CHUNKED && H5Pget_chunk(creation, array->ndim, chunk) == array->ndim) {
        for (int i = 0; i < array->ndim; i++) {
            array->chunk[i] = (int64_t)chunk[i];
        }
    }
    for (int i = 0; found == LS_ARRAY_FOUND && i < H5Pget_nfilters(creation); i++) {
        unsigned flags = 0, configuration = 0;
        size_t values = 0;
        char name[64] = "";
        const H5Z_filter_t filter =
            H5Pget_filter2(creation, (unsigned)i, &flags, &values, NULL, sizeof name, name, &configuration);
        if (H5Zfilter_avail(filter) <= 0) {
            (void)snprintf(reason, LS_ARRAY_REASON,
                           "it is compressed with filter %d (%.60s), which this HDF5 does not have: install the filter "
                           "and set HDF5_PLUGIN_PATH to its folder",
                           (int)filter, name[0] != '\0' ? name : "without a name");
            found = LS_ARRAY_REFUSED;
        }
    }
    (void)H5Pclose(creation);
    return found;
}

/* Reads the numbers of an attribute. Returns their count; 0 if there is no such attribute of numbers, -1 if too many.
 */
static int read_attribute(hid_t variable, const char *name, double *values, int capacity) {
    if (H5Aexists(variable, name) <= 0) {
        return 0;
    }
    const hid_t attribute = H5Aopen(variable, name, H5P_DEFAULT);
    const hid_t type = H5Aget_type(attribute);
    const hid_t space = H5Aget_space(attribute);
    const hssize_t count = H5Sget_simple_extent_npoints(space);
    const H5T_class_t class = H5Tget_class(type);
    int got = 0;
    if ((class == H5T_FLOAT || class == H5T_INTEGER) && count > 0) {
        got = count <= capacity && H5Aread(attribute, H5T_NATIVE_DOUBLE, values) >= 0 ? (int)count : -1;
    }
    (void)H5Sclose(space);
    (void)H5Tclose(type);
    (void)H5Aclose(attribute);
    return got;
}

static ls_array_found describe_attributes(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    array->scale = 1;
    const int scales = read_attribute(variable, "scale_factor", &array->scale, 1);
    const int offsets = read_attribute(variable, "add_offset", &array->offset, 1);
    const int fills = read_attribute(variable, "_FillValue", array->missing, 1);
    const int others = read_attribute(variable, "missing_value", array->missing + (fills > 0), LS_ARRAY_MISSING - 1);
    if (scales < 0 || offsets < 0 || fills < 0 || others < 0) {
        return refuse(reason, "one of its attributes scale_factor, add_offset, _FillValue and missing_value cannot be "
                              "read or has too many numbers");
    }
    array->packed = scales > 0 || offsets > 0;
    array->missing_count = fills + others;
    return LS_ARRAY_FOUND;
}

static ls_array_found describe(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    ls_array_found found = describe_type(variable, array, reason);
    found = found == LS_ARRAY_FOUND ? describe_shape(variable, array, reason) : found;
    found = found == LS_ARRAY_FOUND ? describe_storage(variable, array, reason) : found;
    return found == LS_ARRAY_FOUND ? describe_attributes(variable, array, reason) : found;
}

static ls_array_found find(const hdf5_file *file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    if (H5Lexists(file->id, name, H5P_DEFAULT) <= 0) { /* fails if a group of the path is missing */
        return LS_ARRAY_ABSENT;
    }
    const hid_t variable = H5Dopen2(file->id, name, H5P_DEFAULT);
    if (variable < 0) {
        ls_hdf5_explain(reason);
        return LS_ARRAY_REFUSED;
    }
    const ls_array_found found = describe(variable, array, reason);
    array->id = variable;
    if (found != LS_ARRAY_FOUND) {
        (void)H5Dclose(variable);
    }
    return found;
}

static ls_array_found hdf5_find(void *opened, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    const ls_array_found found = find(opened, name, array, reason);
    ls_hdf5_restore(before);
    return found;
}

static void hdf5_release(void *opened, const ls_array *array) {
    (void)opened;
    (void)H5Dclose(array->id);
}

static hid_t memory_type(ls_dtype dtype) {
    return dtype == LS_F32   ? H5T_NATIVE_FLOAT
           : dtype == LS_F64 ? H5T_NATIVE_DOUBLE
           : dtype == LS_I64 ? H5T_NATIVE_INT64
           : dtype == LS_I32 ? H5T_NATIVE_INT32
                             : H5T_NATIVE_UINT8;
}

static bool hdf5_read(void *opened, const ls_array *array, const int64_t *start, const int64_t *count, ls_dtype dtype,
                      void *to, char reason[LS_ARRAY_REASON]) {
    hsize_t from[LS_MAX_DIMS], size[LS_MAX_DIMS];
    (void)opened;
    for (int i = 0; i < array->ndim; i++) {
        from[i] = (hsize_t)start[i];
        size[i] = (hsize_t)count[i];
    }
    const ls_hdf5_silence before = ls_hdf5_silence_errors();
    const hid_t file_space = H5Dget_space(array->id);
    const hid_t memory_space = H5Screate_simple(array->ndim, size, NULL);
    const bool good = H5Sselect_hyperslab(file_space, H5S_SELECT_SET, from, NULL, size, NULL) >= 0 &&
                      H5Dread(array->id, memory_type(dtype), memory_space, file_space, H5P_DEFAULT, to) >= 0;
    if (!good) {
        ls_hdf5_explain(reason);
    }
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
                                           .list = hdf5_list,
                                           .read = hdf5_read,
                                           .write = ls_hdf5_write};
    unsigned major = 0, minor = 0, release = 0;
    (void)H5get_libversion(&major, &minor, &release);
    (void)snprintf(version, sizeof version, "%u.%u.%u", major, minor, release);
    return abi_version == LS_ARRAY_FORMAT_ABI ? &format : NULL;
}
