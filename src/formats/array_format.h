/*
 * Plug-ins for files of arrays: lockstep-hdf5.so and lockstep-netcdf.so. This header is the whole interface between a
 * plug-in and the core. Only src/formats/hdf5 includes hdf5.h, and only src/formats/netcdf includes netcdf.h.
 *
 * A plug-in exports ls_array_format_module (lockstep/sys/module.h) and needs no symbol of the core. It reports a
 * failure as a text in `reason`, and the core composes the message. The core makes one call at a time, because the
 * libraries are not thread-safe in every build, and libnetcdf calls HDF5 (formats/array_file.c).
 */
#ifndef LS_FORMATS_ARRAY_FORMAT_H
#define LS_FORMATS_ARRAY_FORMAT_H

#include <lockstep/sys/module.h>
#include <lockstep/tensor.h>

enum { LS_ARRAY_REASON = 512, LS_ARRAY_MISSING = 4 };

typedef enum ls_array_kind { LS_ARRAY_FLOATING, LS_ARRAY_SIGNED, LS_ARRAY_UNSIGNED } ls_array_kind;

/* A variable of a file. */
typedef struct ls_array {
    int64_t id; /* its number in the plug-in */
    int group;  /* netcdf: the group of the variable */
    int ndim;
    int64_t size[LS_MAX_DIMS];
    int64_t chunk[LS_MAX_DIMS]; /* sizes of a chunk; chunk[0] is 0 if the variable is not stored in chunks */
    ls_array_kind kind;         /* of the stored elements */
    int bytes;                  /* per stored element */
    /* Attributes of the CF conventions: value = stored * scale + offset, and stored values that mean "missing". */
    bool packed;
    double scale, offset;
    int missing_count;
    double missing[LS_ARRAY_MISSING];
} ls_array;

typedef enum ls_array_found { LS_ARRAY_FOUND, LS_ARRAY_ABSENT, LS_ARRAY_REFUSED } ls_array_found;

/* A tensor to write. */
typedef struct ls_array_data {
    const char *name;
    ls_dtype dtype;
    ls_shape shape;
    const void *data; /* dense, on the host */
} ls_array_data;

struct ls_array_format {
    const char *version; /* of the library: "1.10.8" */

    /* Opens a file for reading. Returns NULL with a reason. */
    void *(*open)(const char *path, char reason[LS_ARRAY_REASON]);
    void (*close)(void *file);

    /* Describes a variable. LS_ARRAY_REFUSED has a reason: no tensor can hold the variable. */
    ls_array_found (*find)(void *file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]);
    void (*release)(void *file, const ls_array *array);

    /* Writes the names of variables into `text`, separated by ", ", as many as fit. */
    void (*list)(void *file, char *text, size_t size);

    /*
     * Reads a hyperslab, converted to `dtype`: f32, f64, i64, i32 or u8. Fails with a reason. The caller has checked
     * that the hyperslab is inside the variable, and that `dtype` holds all stored integers.
     */
    bool (*read)(void *file, const ls_array *array, const int64_t *start, const int64_t *count, ls_dtype dtype,
                 void *to, char reason[LS_ARRAY_REASON]);

    /* Overwrites an existing file. NULL: the plug-in cannot write. */
    bool (*write)(const char *path, const ls_array_data *arrays, int count, char reason[LS_ARRAY_REASON]);
};

#endif
