/* Plug-in netcdf: reads variables from NetCDF files, classic (CDF-1, CDF-2, CDF-5) and NetCDF-4. */
#include <netcdf.h>
#include <netcdf_filter.h>
#include <netcdf_meta.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/array_format.h"
#include "formats/netcdf/classic.h"

static bool explain(int status, char reason[LS_ARRAY_REASON]) {
    if (status != NC_NOERR) {
        (void)snprintf(reason, LS_ARRAY_REASON, "%s", nc_strerror(status));
    }
    return status == NC_NOERR;
}

static bool netcdf_open(const char *path, int64_t *file, char reason[LS_ARRAY_REASON]) {
    int id = 0;
    /* The check comes first, because libnetcdf does not check every length in the header of a classic file. */
    const bool good = ls_netcdf_check_classic(path, reason) && explain(nc_open(path, NC_NOWRITE, &id), reason);
    *file = id;
    return good;
}

static void netcdf_close(int64_t file) {
    (void)nc_close((int)file);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Returns the path of a group, or NULL on failure. The caller frees it. */
static char *group_path(int group) {
    size_t length = 0;
    char *path = nc_inq_grpname_full(group, &length, NULL) == NC_NOERR ? calloc(1, length + 1) : NULL;
    if (path != NULL) {
        (void)nc_inq_grpname_full(group, NULL, path);
    }
    return path;
}

static bool add_variables(int group, ls_array_add_name *add, void *user) {
    char name[NC_MAX_NAME + 1] = "";
    int variables = 0;
    char *path = group_path(group);
    bool more = path != NULL;
    (void)nc_inq_nvars(group, &variables);
    for (int i = 0; more && i < variables; i++) {
        more = nc_inq_varname(group, i, name) != NC_NOERR || add(user, path + (path[0] == '/'), name);
    }
    free(path);
    return more;
}

static bool add_group(int group, ls_array_add_name *add, void *user) {
    int groups = 0;
    (void)nc_inq_grps(group, &groups, NULL);
    int *ids = calloc((size_t)groups + 1, sizeof *ids);
    bool more = ids != NULL && nc_inq_grps(group, &groups, ids) == NC_NOERR && add_variables(group, add, user);
    for (int i = 0; more && i < groups; i++) {
        more = add_group(ids[i], add, user);
    }
    free(ids);
    return more;
}

static void netcdf_list(int64_t file, ls_array_add_name *add, void *user) {
    (void)add_group((int)file, add, user);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* Finds a group by its path of `length` bytes: "GROUP" or "/GROUP". */
static bool find_group(int file, const char *path, size_t length, int *group) {
    char *full = malloc(length + 2);
    if (full == NULL) {
        return false;
    }
    (void)snprintf(full, length + 2, "%s%.*s", path[0] == '/' ? "" : "/", (int)length, path);
    const bool found = nc_inq_grp_full_ncid(file, full, group) == NC_NOERR;
    free(full);
    return found;
}

/* Finds a variable by its name or by its path, "GROUP/NAME". */
static bool find_id(int file, const char *name, int *group, int *id) {
    const char *slash = strrchr(name, '/');
    *group = file;
    if (slash != NULL && slash != name && !find_group(file, name, (size_t)(slash - name), group)) {
        return false;
    }
    return nc_inq_varid(*group, slash != NULL ? slash + 1 : name, id) == NC_NOERR;
}

static bool describe_type(ls_array *array, char reason[LS_ARRAY_REASON]) {
    static const struct {
        nc_type type;
        ls_array_kind kind;
        int bytes;
    } numbers[] = {{NC_FLOAT, LS_ARRAY_FLOATING, 4}, {NC_DOUBLE, LS_ARRAY_FLOATING, 8}, {NC_BYTE, LS_ARRAY_SIGNED, 1},
                   {NC_SHORT, LS_ARRAY_SIGNED, 2},   {NC_INT, LS_ARRAY_SIGNED, 4},      {NC_INT64, LS_ARRAY_SIGNED, 8},
                   {NC_UBYTE, LS_ARRAY_UNSIGNED, 1}, {NC_USHORT, LS_ARRAY_UNSIGNED, 2}, {NC_UINT, LS_ARRAY_UNSIGNED, 4},
                   {NC_UINT64, LS_ARRAY_UNSIGNED, 8}};
    nc_type type = NC_NAT;
    if (!explain(nc_inq_vartype(array->group, (int)array->id, &type), reason)) {
        return false;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].type == type) {
            array->kind = numbers[i].kind;
            array->bytes = numbers[i].bytes;
            return true;
        }
    }
    return ls_array_refuse_type(type == NC_CHAR || type == NC_STRING ? "texts" : "of a user-defined type", reason);
}

static bool describe_shape(ls_array *array, char reason[LS_ARRAY_REASON]) {
    int dimensions[NC_MAX_VAR_DIMS];
    if (!explain(nc_inq_varndims(array->group, (int)array->id, &array->ndim), reason)) {
        return false;
    }
    if (array->ndim < 1 || array->ndim > LS_MAX_DIMS) {
        return ls_array_refuse_axes(array->ndim, reason);
    }
    if (!explain(nc_inq_vardimid(array->group, (int)array->id, dimensions), reason)) {
        return false;
    }
    for (int i = 0; i < array->ndim; i++) {
        size_t size = 0;
        if (!explain(nc_inq_dimlen(array->group, dimensions[i], &size), reason)) {
            return false;
        }
        array->size[i] = (int64_t)size;
    }
    return true;
}

/* Before version 4.9, libnetcdf does not report which filters HDF5 has. A missing filter then makes the first read
 * fail. */
#if NC_VERSION_MAJOR > 4 || NC_VERSION_MINOR >= 9
#define IS_ABSENT(group, filter) (nc_inq_filter_avail(group, filter) != NC_NOERR)
#else
#define IS_ABSENT(group, filter) false
#endif

/* Rejects a filter that HDF5 does not have. Classic files have no filters. */
static bool check_filters(const ls_array *array, char reason[LS_ARRAY_REASON]) {
    size_t count = 0;
    const int group = array->group, id = (int)array->id;
    if (nc_inq_var_filter_ids(group, id, &count, NULL) != NC_NOERR || count == 0) {
        return true;
    }
    unsigned *filters = calloc(count, sizeof *filters);
    if (filters == NULL || nc_inq_var_filter_ids(group, id, &count, filters) != NC_NOERR) {
        free(filters);
        return explain(NC_ENOMEM, reason);
    }
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        good = !IS_ABSENT(group, filters[i]) || ls_array_refuse_filter(filters[i], "", reason);
    }
    free(filters);
    return good;
}

static bool describe_storage(ls_array *array, char reason[LS_ARRAY_REASON]) {
    int storage = NC_CONTIGUOUS, no_fill = 0;
    size_t chunk[NC_MAX_VAR_DIMS];
    const int group = array->group, id = (int)array->id;
    if (nc_inq_var_chunking(group, id, &storage, chunk) == NC_NOERR && storage == NC_CHUNKED) {
        for (int i = 0; i < array->ndim; i++) {
            array->chunk[i] = (int64_t)chunk[i];
        }
    }
    if (storage > NC_COMPACT) { /* NC_UNKNOWN_STORAGE or NC_VIRTUAL, depending on the version of libnetcdf */
        (void)snprintf(reason, LS_ARRAY_REASON, "it is virtual: use ls_hdf5_dataset, which checks the sources");
        return false;
    }
    array->default_fill = nc_inq_var_fill(group, id, &no_fill, NULL) == NC_NOERR && no_fill == 0;
    return true;
}

static ls_array_found netcdf_find(int64_t file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    int id = 0;
    if (!find_id((int)file, name, &array->group, &id)) {
        return LS_ARRAY_ABSENT;
    }
    array->id = id;
    return describe_type(array, reason) && describe_shape(array, reason) && check_filters(array, reason) &&
                   describe_storage(array, reason)
               ? LS_ARRAY_FOUND
               : LS_ARRAY_REFUSED;
}

static void netcdf_release(const ls_array *array) {
    (void)array;
}

static ls_array_number real_number(const ls_array *array, double value, bool as_elements) {
    const bool rounded = as_elements && array->kind == LS_ARRAY_FLOATING && array->bytes == 4;
    return (ls_array_number){.kind = LS_ARRAY_FLOATING, .real = rounded ? (double)(float)value : value};
}

static int netcdf_attribute(const ls_array *array, const char *name, bool as_elements,
                            ls_array_number numbers[LS_ARRAY_NUMBERS]) {
    nc_type type = NC_NAT;
    size_t count = 0;
    union {
        double reals[LS_ARRAY_NUMBERS];
        long long integers[LS_ARRAY_NUMBERS];
        unsigned long long naturals[LS_ARRAY_NUMBERS];
    } values;
    const int group = array->group, id = (int)array->id;
    const int found = nc_inq_att(group, id, name, &type, &count);
    if (found != NC_NOERR) {
        return found == NC_ENOTATT ? 0 : -1;
    }
    if (type == NC_CHAR || type >= NC_STRING || count < 1 || count > LS_ARRAY_NUMBERS) {
        return -1;
    }
    const bool real = !as_elements || array->kind == LS_ARRAY_FLOATING || type == NC_FLOAT || type == NC_DOUBLE;
    const int status = real                ? nc_get_att_double(group, id, name, values.reals)
                       : type == NC_UINT64 ? nc_get_att_ulonglong(group, id, name, values.naturals)
                                           : nc_get_att_longlong(group, id, name, values.integers);
    for (size_t i = 0; status == NC_NOERR && i < count; i++) {
        numbers[i] = real ? real_number(array, values.reals[i], as_elements)
                          : (ls_array_number){.kind = type == NC_UINT64 ? LS_ARRAY_UNSIGNED : LS_ARRAY_SIGNED,
                                              .integer = values.integers[i]};
    }
    return status == NC_NOERR ? (int)count : -1;
}

/* Reads f64 as f32. libnetcdf would fail for elements that f32 cannot represent, and not round them. */
static bool read_rounded(const ls_array *array, const size_t *start, const size_t *count, float *to,
                         char reason[LS_ARRAY_REASON]) {
    size_t elements = 1;
    for (int i = 0; i < array->ndim; i++) {
        elements *= count[i];
    }
    double *values = calloc(elements + 1, sizeof *values);
    const bool good = explain(
        values != NULL ? nc_get_vara_double(array->group, (int)array->id, start, count, values) : NC_ENOMEM, reason);
    for (size_t i = 0; good && i < elements; i++) {
        to[i] = (float)values[i];
    }
    free(values);
    return good;
}

static bool netcdf_read(const ls_array *array, const int64_t *start, const int64_t *count, ls_dtype dtype, void *to,
                        char reason[LS_ARRAY_REASON]) {
    size_t from[LS_MAX_DIMS], size[LS_MAX_DIMS];
    const int group = array->group, id = (int)array->id;
    for (int i = 0; i < array->ndim; i++) {
        from[i] = (size_t)start[i];
        size[i] = (size_t)count[i];
    }
    if (dtype == LS_F32 && array->kind == LS_ARRAY_FLOATING && array->bytes > 4) {
        return read_rounded(array, from, size, to, reason);
    }
    const bool bits = array->kind == LS_ARRAY_UNSIGNED && array->bytes == 8;
    const int status = dtype == LS_F32           ? nc_get_vara_float(group, id, from, size, to)
                       : dtype == LS_F64         ? nc_get_vara_double(group, id, from, size, to)
                       : dtype == LS_I64 && bits ? nc_get_vara_ulonglong(group, id, from, size, to)
                       : dtype == LS_I64         ? nc_get_vara_longlong(group, id, from, size, to)
                       : dtype == LS_I32         ? nc_get_vara_int(group, id, from, size, to)
                                                 : nc_get_vara_uchar(group, id, from, size, to);
    return explain(status, reason);
}

/* ---- the plug-in ------------------------------------------------------------------------------------------------- */

LS_API ls_array_format_module_function ls_array_format_module;

const ls_array_format *ls_array_format_module(int abi_version) {
    static char version[64];
    static const ls_array_format format = {.version = version,
                                           .open = netcdf_open,
                                           .close = netcdf_close,
                                           .find = netcdf_find,
                                           .release = netcdf_release,
                                           .attribute = netcdf_attribute,
                                           .list = netcdf_list,
                                           .read = netcdf_read};
    (void)snprintf(version, sizeof version, "%.*s", (int)strcspn(nc_inq_libvers(), " "), nc_inq_libvers());
    return abi_version == LS_ARRAY_FORMAT_ABI ? &format : NULL;
}
