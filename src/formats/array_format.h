/*
 * Plug-ins for array files: lockstep-hdf5.so and lockstep-netcdf.so. This header is the whole interface between a
 * plug-in and the core. Only src/formats/hdf5 includes hdf5.h, and only src/formats/netcdf includes netcdf.h.
 *
 * A plug-in exports ls_array_format_module (lockstep/sys/module.h) and uses no symbols from the core. It reports a
 * failure as a string in `reason`, and the core composes the message. The core makes one call at a time, because the
 * libraries are not thread-safe in every build, and libnetcdf calls HDF5 (formats/array_file.c).
 */
#ifndef LS_FORMATS_ARRAY_FORMAT_H
#define LS_FORMATS_ARRAY_FORMAT_H

#include <stdio.h>

#include <lockstep/sys/module.h>
#include <lockstep/tensor.h>

enum { LS_ARRAY_REASON = 512, LS_ARRAY_NUMBERS = 4 };

typedef enum ls_array_kind { LS_ARRAY_FLOATING, LS_ARRAY_SIGNED, LS_ARRAY_UNSIGNED } ls_array_kind;

/* An exact number from a file: `real` if it is a floating-point number, otherwise `integer`. */
typedef struct ls_array_number {
    ls_array_kind kind;
    double real;
    int64_t integer; /* the bits of an unsigned integer */
} ls_array_number;

/* A variable of a file. */
typedef struct ls_array {
    int64_t id; /* the plug-in's identifier of the variable */
    int group;  /* NetCDF only: the group of the variable */
    int ndim;
    int64_t size[LS_MAX_DIMS];
    int64_t chunk[LS_MAX_DIMS]; /* sizes of a chunk; chunk[0] is 0 if the variable is not stored in chunks */
    ls_array_kind kind;         /* of the stored elements */
    int bytes;                  /* per stored element */
    bool default_fill;          /* unwritten elements have NetCDF's default fill value */
    /* From the attributes, which the core reads (formats/array_attributes.c): value = stored * scale + offset. */
    bool packed;
    double scale, offset;
    int missing_count;
    ls_array_number missing[LS_ARRAY_NUMBERS]; /* stored values that mean "missing", of the same kind as the elements */
} ls_array;

typedef enum ls_array_found { LS_ARRAY_FOUND, LS_ARRAY_ABSENT, LS_ARRAY_REFUSED } ls_array_found;

/* Receives the name of a variable, and the name of its group or "". Returns false to stop the list. */
typedef bool ls_array_add_name(void *user, const char *group, const char *name);

/* A tensor to write. */
typedef struct ls_array_data {
    const char *name;
    ls_dtype dtype;
    ls_shape shape;
    const void *data; /* dense, on the host */
} ls_array_data;

struct ls_array_format {
    const char *version; /* of the library: "1.10.8" */

    /* Opens a file for reading, and sets `*file` to its number in the plug-in. Fails with a reason. */
    bool (*open)(const char *path, int64_t *file, char reason[LS_ARRAY_REASON]);
    void (*close)(int64_t file);

    /* Describes a variable without its attributes. LS_ARRAY_REFUSED comes with a reason: no tensor can hold the
     * variable. */
    ls_array_found (*find)(int64_t file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]);
    void (*release)(const ls_array *array);

    /*
     * Reads an attribute of 1 to LS_ARRAY_NUMBERS numbers. Returns their count, 0 if there is no such attribute, or -1
     * if the attribute is not numeric or has a different count. The numbers are floating-point numbers. With
     * `as_elements`, they are integers if both the elements and the attribute are integers. With `as_elements` and
     * floating-point elements, they are rounded to the type of the elements.
     */
    int (*attribute)(const ls_array *array, const char *name, bool as_elements,
                     ls_array_number numbers[LS_ARRAY_NUMBERS]);

    /* Calls `add` for each variable. */
    void (*list)(int64_t file, ls_array_add_name *add, void *user);

    /*
     * Reads a hyperslab, converted to `dtype`: f32, f64, i64, i32 or u8. Fails with a reason. The caller has checked
     * that the hyperslab is inside the variable, and that `dtype` can represent all stored integers. Unsigned 8-byte
     * integers are an exception: i64 gets their bits.
     */
    bool (*read)(const ls_array *array, const int64_t *start, const int64_t *count, ls_dtype dtype, void *to,
                 char reason[LS_ARRAY_REASON]);

    /*
     * Overwrites an existing file. Fails with a reason. Sets `*refused` to the index of the tensor whose name the
     * library rejects. `write` is NULL if the plug-in cannot write.
     */
    bool (*write)(const char *path, const ls_array_data *arrays, int count, int *refused, char reason[LS_ARRAY_REASON]);
};

/*
 * Returns whether NetCDF defines a default fill value for these elements, and sets it. Bytes have no fill value,
 * because every byte may be data.
 */
static inline bool ls_array_default_fill(ls_array_kind kind, int bytes, ls_array_number *fill) {
    *fill = (ls_array_number){.kind = kind};
    if (kind == LS_ARRAY_FLOATING) {
        fill->real = 9.9692099683868690e+36;
        return bytes >= 4;
    }
    const bool is_signed = kind == LS_ARRAY_SIGNED;
    fill->integer = bytes == 2   ? (is_signed ? -INT16_MAX : UINT16_MAX)
                    : bytes == 4 ? (is_signed ? -INT32_MAX : (int64_t)UINT32_MAX)
                                 : (is_signed ? -INT64_MAX + 1 : -2);
    return bytes > 1;
}

/* ---- reasons that both plug-ins give; these functions return false ----------------------------------------------- */

static inline bool ls_array_refuse_type(const char *elements, char reason[LS_ARRAY_REASON]) {
    (void)snprintf(reason, LS_ARRAY_REASON, "its elements are %s, but must be integers or floating-point numbers",
                   elements);
    return false;
}

static inline bool ls_array_refuse_axes(int ndim, char reason[LS_ARRAY_REASON]) {
    if (ndim < 1) {
        (void)snprintf(reason, LS_ARRAY_REASON, "it is a single value without axes");
    } else {
        (void)snprintf(reason, LS_ARRAY_REASON, "it has %d axes, the limit is %d", ndim, LS_MAX_DIMS);
    }
    return false;
}

static inline bool ls_array_refuse_filter(int64_t filter, const char *name, char reason[LS_ARRAY_REASON]) {
    (void)snprintf(reason, LS_ARRAY_REASON,
                   "it is compressed with filter %lld (%.60s), which this HDF5 does not have: install the filter and "
                   "set HDF5_PLUGIN_PATH to its folder",
                   (long long)filter, name[0] != '\0' ? name : "without a name");
    return false;
}

#endif
