/* Plug-in netcdf: reads variables of NetCDF files, classic (CDF-1, CDF-2, CDF-5) and NetCDF-4. */
#include <netcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/array_format.h"

typedef struct netcdf_file {
    int id;
} netcdf_file;

static bool explain(int status, char reason[LS_ARRAY_REASON]) {
    if (status != NC_NOERR) {
        (void)snprintf(reason, LS_ARRAY_REASON, "%s", nc_strerror(status));
    }
    return status == NC_NOERR;
}

static void *netcdf_open(const char *path, char reason[LS_ARRAY_REASON]) {
    netcdf_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        (void)explain(NC_ENOMEM, reason);
    } else if (!explain(nc_open(path, NC_NOWRITE, &file->id), reason)) {
        free(file);
        file = NULL;
    }
    return file;
}

static void netcdf_close(void *opened) {
    netcdf_file *file = opened;
    (void)nc_close(file->id);
    free(file);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

typedef struct netcdf_names {
    char *text;
    size_t size, length;
} netcdf_names;

/* Appends "GROUP/NAME" if it fits. */
static void add_name(netcdf_names *list, const char *group, const char *name) {
    const size_t left = list->size - list->length;
    const int written = snprintf(list->text + list->length, left, "%s%s%s%s", list->length > 0 ? ", " : "", group,
                                 group[0] != '\0' ? "/" : "", name);
    if (written < 0 || (size_t)written >= left) {
        list->text[list->length] = '\0';
    } else {
        list->length += (size_t)written;
    }
}

static void add_group(int group, netcdf_names *list) {
    char path[1024] = "", name[NC_MAX_NAME + 1] = "";
    size_t length = 0;
    int variables = 0, groups = 0;
    if (nc_inq_grpname_full(group, &length, NULL) == NC_NOERR && length > 1 && length < sizeof path) {
        (void)nc_inq_grpname_full(group, NULL, path);
    }
    (void)nc_inq_nvars(group, &variables);
    for (int i = 0; i < variables; i++) {
        if (nc_inq_varname(group, i, name) == NC_NOERR) {
            add_name(list, path[0] == '/' ? path + 1 : path, name);
        }
    }
    (void)nc_inq_grps(group, &groups, NULL);
    int *ids = calloc((size_t)groups + 1, sizeof *ids);
    if (ids != NULL && nc_inq_grps(group, &groups, ids) == NC_NOERR) {
        for (int i = 0; i < groups; i++) {
            add_group(ids[i], list);
        }
    }
    free(ids);
}

static void netcdf_list(void *opened, char *text, size_t size) {
    const netcdf_file *file = opened;
    text[0] = '\0';
    add_group(file->id, &(netcdf_names){.text = text, .size = size});
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* Finds a variable by its name or by its path, "GROUP/NAME". */
static bool find_id(const netcdf_file *file, const char *name, int *group, int *id) {
    const char *slash = strrchr(name, '/');
    char path[NC_MAX_NAME + 1];
    *group = file->id;
    if (slash != NULL && slash != name) {
        if ((size_t)snprintf(path, sizeof path, "%s%.*s", name[0] == '/' ? "" : "/", (int)(slash - name), name) >=
                sizeof path ||
            nc_inq_grp_full_ncid(file->id, path, group) != NC_NOERR) {
            return false;
        }
    }
    return nc_inq_varid(*group, slash != NULL ? slash + 1 : name, id) == NC_NOERR;
}

static bool describe_type(nc_type type, ls_array *array, char reason[LS_ARRAY_REASON]) {
    static const struct {
        nc_type type;
        ls_array_kind kind;
        int bytes;
    } numbers[] = {{NC_FLOAT, LS_ARRAY_FLOATING, 4}, {NC_DOUBLE, LS_ARRAY_FLOATING, 8}, {NC_BYTE, LS_ARRAY_SIGNED, 1},
                   {NC_SHORT, LS_ARRAY_SIGNED, 2},   {NC_INT, LS_ARRAY_SIGNED, 4},      {NC_INT64, LS_ARRAY_SIGNED, 8},
                   {NC_UBYTE, LS_ARRAY_UNSIGNED, 1}, {NC_USHORT, LS_ARRAY_UNSIGNED, 2}, {NC_UINT, LS_ARRAY_UNSIGNED, 4},
                   {NC_UINT64, LS_ARRAY_UNSIGNED, 8}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].type == type) {
            array->kind = numbers[i].kind;
            array->bytes = numbers[i].bytes;
            return true;
        }
    }
    (void)snprintf(reason, LS_ARRAY_REASON, "its elements are %s, but must be integers or floating-point numbers",
                   type == NC_CHAR || type == NC_STRING ? "texts" : "of a user-defined type");
    return false;
}

static bool describe_shape(int group, int id, ls_array *array, char reason[LS_ARRAY_REASON]) {
    int dimensions[NC_MAX_VAR_DIMS], storage = NC_CONTIGUOUS;
    size_t chunk[NC_MAX_VAR_DIMS];
    if (!explain(nc_inq_varndims(group, id, &array->ndim), reason)) {
        return false;
    }
    if (array->ndim < 1 || array->ndim > LS_MAX_DIMS) {
        (void)snprintf(reason, LS_ARRAY_REASON, "%s",
                       array->ndim < 1 ? "it is a single value without axes" : "it has more than 8 axes");
        return false;
    }
    if (!explain(nc_inq_vardimid(group, id, dimensions), reason)) {
        return false;
    }
    const bool chunked = nc_inq_var_chunking(group, id, &storage, chunk) == NC_NOERR && storage == NC_CHUNKED;
    for (int i = 0; i < array->ndim; i++) {
        size_t size = 0;
        if (!explain(nc_inq_dimlen(group, dimensions[i], &size), reason)) {
            return false;
        }
        array->size[i] = (int64_t)size;
        array->chunk[i] = chunked ? (int64_t)chunk[i] : 0;
    }
    return true;
}

/* Reads the numbers of an attribute. Returns their count; 0 if there is no such attribute of numbers, -1 if too many.
 */
static int read_attribute(int group, int id, const char *name, double *values, size_t capacity) {
    nc_type type = NC_NAT;
    size_t count = 0;
    if (nc_inq_att(group, id, name, &type, &count) != NC_NOERR || type == NC_CHAR || type == NC_STRING || count == 0) {
        return 0;
    }
    return count <= capacity && nc_get_att_double(group, id, name, values) == NC_NOERR ? (int)count : -1;
}

/* Elements that were never written have NetCDF's default fill value. For floating-point numbers it means "missing". */
static void add_default_fill(nc_type type, ls_array *array) {
    if (type == NC_FLOAT || type == NC_DOUBLE) {
        array->missing[array->missing_count++] = type == NC_FLOAT ? (double)NC_FILL_FLOAT : NC_FILL_DOUBLE;
    }
}

static bool describe_attributes(int group, int id, nc_type type, ls_array *array, char reason[LS_ARRAY_REASON]) {
    array->scale = 1;
    const int scales = read_attribute(group, id, "scale_factor", &array->scale, 1);
    const int offsets = read_attribute(group, id, "add_offset", &array->offset, 1);
    const int fills = read_attribute(group, id, "_FillValue", array->missing, 1);
    const int others =
        read_attribute(group, id, "missing_value", array->missing + (fills > 0), LS_ARRAY_MISSING - 1 - (fills <= 0));
    int unsigned_attribute = 0;
    if (nc_inq_attid(group, id, "_Unsigned", &unsigned_attribute) == NC_NOERR) {
        (void)snprintf(reason, LS_ARRAY_REASON, "it has the attribute _Unsigned: convert it to an unsigned type");
        return false;
    }
    if (scales < 0 || offsets < 0 || fills < 0 || others < 0) {
        (void)snprintf(reason, LS_ARRAY_REASON,
                       "one of its attributes scale_factor, add_offset, _FillValue and missing_value cannot be read or "
                       "has too many numbers");
        return false;
    }
    array->packed = scales > 0 || offsets > 0;
    array->missing_count = fills + others;
    if (fills == 0) {
        add_default_fill(type, array);
    }
    return true;
}

static ls_array_found netcdf_find(void *opened, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    int group = 0, id = 0;
    nc_type type = NC_NAT;
    if (!find_id(opened, name, &group, &id)) {
        return LS_ARRAY_ABSENT;
    }
    array->group = group;
    array->id = id;
    const bool good = explain(nc_inq_vartype(group, id, &type), reason) && describe_type(type, array, reason) &&
                      describe_shape(group, id, array, reason) && describe_attributes(group, id, type, array, reason);
    return good ? LS_ARRAY_FOUND : LS_ARRAY_REFUSED;
}

static void netcdf_release(void *opened, const ls_array *array) {
    (void)opened;
    (void)array;
}

static bool netcdf_read(void *opened, const ls_array *array, const int64_t *start, const int64_t *count, ls_dtype dtype,
                        void *to, char reason[LS_ARRAY_REASON]) {
    size_t from[LS_MAX_DIMS], size[LS_MAX_DIMS];
    const int group = array->group, id = (int)array->id;
    (void)opened;
    for (int i = 0; i < array->ndim; i++) {
        from[i] = (size_t)start[i];
        size[i] = (size_t)count[i];
    }
    const int status = dtype == LS_F32   ? nc_get_vara_float(group, id, from, size, to)
                       : dtype == LS_F64 ? nc_get_vara_double(group, id, from, size, to)
                       : dtype == LS_I64 ? nc_get_vara_longlong(group, id, from, size, to)
                       : dtype == LS_I32 ? nc_get_vara_int(group, id, from, size, to)
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
                                           .list = netcdf_list,
                                           .read = netcdf_read};
    (void)snprintf(version, sizeof version, "%.*s", (int)strcspn(nc_inq_libvers(), " "), nc_inq_libvers());
    return abi_version == LS_ARRAY_FORMAT_ABI ? &format : NULL;
}
