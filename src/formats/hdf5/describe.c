/* Describes variables of HDF5 files and reads their attributes. */
#include "formats/hdf5/hdf5_file.h"

static bool describe_number(hid_t type, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const H5T_class_t class = H5Tget_class(type);
    array->bytes = (int)H5Tget_size(type);
    if (class == H5T_FLOAT || class == H5T_INTEGER) {
        array->kind = class == H5T_FLOAT                  ? LS_ARRAY_FLOATING
                      : H5Tget_sign(type) == H5T_SGN_NONE ? LS_ARRAY_UNSIGNED
                                                          : LS_ARRAY_SIGNED;
        return true;
    }
    return ls_array_refuse_type(class == H5T_STRING     ? "texts"
                                : class == H5T_COMPOUND ? "of a compound type"
                                : class == H5T_VLEN     ? "lists of variable length"
                                : class == H5T_ARRAY    ? "of an array type"
                                                        : "not numbers",
                                reason);
}

/* An enumeration, such as h5py's type for booleans, is treated as its integer type. */
static bool describe_type(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const hid_t type = H5Dget_type(variable);
    if (type < 0) {
        return ls_hdf5_explain(reason);
    }
    const hid_t base = H5Tget_class(type) == H5T_ENUM ? H5Tget_super(type) : H5Tcopy(type);
    const bool good = base >= 0 ? describe_number(base, array, reason) : ls_hdf5_explain(reason);
    (void)H5Tclose(base);
    (void)H5Tclose(type);
    return good;
}

static bool describe_shape(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    hsize_t size[H5S_MAX_RANK];
    const hid_t space = H5Dget_space(variable);
    array->ndim = H5Sget_simple_extent_dims(space, size, NULL);
    const bool good = array->ndim >= 0 || ls_hdf5_explain(reason);
    (void)H5Sclose(space);
    if (good && (array->ndim < 1 || array->ndim > LS_MAX_DIMS)) {
        return ls_array_refuse_axes(array->ndim, reason);
    }
    for (int i = 0; i < array->ndim; i++) {
        array->size[i] = (int64_t)size[i];
    }
    return good;
}

/* Rejects a filter that this HDF5 library does not have. */
static bool check_filter(hid_t creation, unsigned number, char reason[LS_ARRAY_REASON]) {
    unsigned flags = 0, configuration = 0;
    size_t values = 0;
    char name[64] = "";
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, number, &flags, &values, NULL, sizeof name, name, &configuration);
    return H5Zfilter_avail(filter) > 0 || ls_array_refuse_filter(filter, name, reason);
}

/* NetCDF-4 stores its default fill value in the variable. A different fill value, such as 0, may also be data. */
static bool has_default_fill(hid_t creation, const ls_array *array) {
    H5D_fill_value_t defined = H5D_FILL_VALUE_UNDEFINED;
    ls_array_number fill;
    union {
        double real;
        int64_t integer;
    } value = {.integer = 0};
    const hid_t type = array->kind == LS_ARRAY_FLOATING   ? H5T_NATIVE_DOUBLE
                       : array->kind == LS_ARRAY_UNSIGNED ? H5T_NATIVE_UINT64
                                                          : H5T_NATIVE_INT64;
    if (H5Pfill_value_defined(creation, &defined) < 0 || defined != H5D_FILL_VALUE_USER_DEFINED ||
        !ls_array_default_fill(array->kind, array->bytes, &fill) || H5Pget_fill_value(creation, type, &value) < 0) {
        return false;
    }
    return array->kind == LS_ARRAY_FLOATING ? value.real == fill.real : value.integer == fill.integer;
}

static bool describe_storage(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    hsize_t chunk[H5S_MAX_RANK];
    const hid_t creation = H5Dget_create_plist(variable);
    const H5D_layout_t layout = H5Pget_layout(creation);
    if (layout == H5D_CHUNKED && H5Pget_chunk(creation, array->ndim, chunk) == array->ndim) {
        for (int i = 0; i < array->ndim; i++) {
            array->chunk[i] = (int64_t)chunk[i];
        }
    }
    array->default_fill = has_default_fill(creation, array);
    bool good = layout != H5D_VIRTUAL || ls_hdf5_check_sources(variable, creation, reason);
    for (int i = 0; good && i < H5Pget_nfilters(creation); i++) {
        good = check_filter(creation, (unsigned)i, reason);
    }
    (void)H5Pclose(creation);
    return good;
}

bool ls_hdf5_describe(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]) {
    return describe_type(variable, array, reason) && describe_shape(variable, array, reason) &&
           describe_storage(variable, array, reason);
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

/* The numbers of an attribute. */
typedef union attribute_values {
    double reals[LS_ARRAY_NUMBERS];
    int64_t integers[LS_ARRAY_NUMBERS];
} attribute_values;

static void round_to_elements(const ls_array *array, size_t count, double *reals) {
    if (array->bytes < (int)sizeof *reals) {
        const hid_t type = H5Dget_type(array->id);
        (void)H5Tconvert(H5T_NATIVE_DOUBLE, type, count, reals, NULL, H5P_DEFAULT);
        (void)H5Tconvert(type, H5T_NATIVE_DOUBLE, count, reals, NULL, H5P_DEFAULT);
        (void)H5Tclose(type);
    }
}

/* Returns the kind of the numbers in an attribute. Sets their count, or -1 if the attribute is not numeric. */
static ls_array_kind inspect(hid_t attribute, int *count) {
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const H5T_class_t class = H5Tget_class(type);
    const hssize_t points = H5Sget_simple_extent_npoints(space);
    const ls_array_kind kind = class == H5T_FLOAT                                            ? LS_ARRAY_FLOATING
                               : H5Tget_sign(type) == H5T_SGN_NONE && H5Tget_size(type) == 8 ? LS_ARRAY_UNSIGNED
                                                                                             : LS_ARRAY_SIGNED;
    const bool good =
        (class == H5T_FLOAT || class == H5T_INTEGER) && points > 0 && points <= (hssize_t)LS_ARRAY_NUMBERS;
    *count = good ? (int)points : -1;
    (void)H5Sclose(space);
    (void)H5Tclose(type);
    return kind;
}

int ls_hdf5_attribute(const ls_array *array, const char *name, bool as_elements,
                      ls_array_number numbers[LS_ARRAY_NUMBERS]) {
    const htri_t exists = H5Aexists(array->id, name);
    if (exists <= 0) {
        return exists < 0 ? -1 : 0;
    }
    int count = 0;
    attribute_values values = {.integers = {0}};
    const hid_t attribute = H5Aopen(array->id, name, H5P_DEFAULT);
    ls_array_kind kind = inspect(attribute, &count);
    kind = as_elements && array->kind != LS_ARRAY_FLOATING ? kind : LS_ARRAY_FLOATING;
    const hid_t memory = kind == LS_ARRAY_FLOATING   ? H5T_NATIVE_DOUBLE
                         : kind == LS_ARRAY_UNSIGNED ? H5T_NATIVE_UINT64
                                                     : H5T_NATIVE_INT64;
    count = count > 0 && H5Aread(attribute, memory, &values) >= 0 ? count : -1;
    if (count > 0 && as_elements && array->kind == LS_ARRAY_FLOATING) {
        round_to_elements(array, (size_t)count, values.reals);
    }
    for (int i = 0; i < count; i++) {
        numbers[i] = kind == LS_ARRAY_FLOATING ? (ls_array_number){.kind = kind, .real = values.reals[i]}
                                               : (ls_array_number){.kind = kind, .integer = values.integers[i]};
    }
    (void)H5Aclose(attribute);
    return count;
}
