/* HDF5 and NetCDF files for tests, written with these libraries, and data sets that read them. */
#ifndef LS_TESTS_ARRAY_FILES_H
#define LS_TESTS_ARRAY_FILES_H

#include <hdf5.h>
#include <netcdf.h>
#include <stdint.h>
#include <stdlib.h>

#include <lockstep/hdf5.h>

#include "tests/support/unit.h"

/* Initializes the variables of an ls_array_field. */
#define NAMES(...)                                                                                                     \
    .variables = (const char *const[]){__VA_ARGS__},                                                                   \
    .variable_count = sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

/* Fails the test unless a constructor returned NULL and this error. */
#define expect_none(dataset, status, part)                                                                             \
    do {                                                                                                               \
        assert_null(dataset);                                                                                          \
        assert_int_equal(ls_error_status(), status);                                                                   \
        expect_message(part);                                                                                          \
    } while (0)

static inline hid_t hdf5_new_file(const char *path) {
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

/* Reads the first batch of the samples in order. The caller frees the loader. */
static inline ls_loader *begin(ls_dataset *dataset, int64_t batch_size, ls_batch *batch) {
    bool more;
    assert_non_null(dataset);
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = batch_size, .no_shuffle = true});
    assert_int_equal(ls_loader_next(loader, batch, &more), LS_OK);
    return loader;
}

/* Returns element `i` of variable `number` in the files. */
static inline float array_value(int number, int64_t i) {
    return (float)((i * 7 + number * 1000) % 4093) * 0.25f;
}

/* Returns `count` elements of variable `number`. The caller frees them. */
static inline float *array_values(int number, int64_t count) {
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; values != NULL && i < count; i++) {
        values[i] = array_value(number, i);
    }
    return values;
}

/*
 * Adds a variable to an open file, stored as `type`. It is compressed in chunks, unless `chunk` is NULL. `memory` is
 * the type of the data. Returns whether all calls succeeded.
 */
static inline bool hdf5_add(hid_t file, const char *name, hid_t type, int ndim, const hsize_t *size,
                            const hsize_t *chunk, hid_t memory, const void *data) {
    const hid_t space = H5Screate_simple(ndim, size, NULL);
    const hid_t links = H5Pcreate(H5P_LINK_CREATE), creation = H5Pcreate(H5P_DATASET_CREATE);
    bool good = H5Pset_create_intermediate_group(links, 1) >= 0;
    if (chunk != NULL) {
        good = H5Pset_chunk(creation, ndim, chunk) >= 0 && H5Pset_shuffle(creation) >= 0 &&
               H5Pset_deflate(creation, 1) >= 0 && H5Pset_fletcher32(creation) >= 0 && good;
    }
    const hid_t variable = H5Dcreate2(file, name, type, space, links, creation, H5P_DEFAULT);
    good = variable >= 0 && H5Dwrite(variable, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0 && good;
    good = H5Dclose(variable) >= 0 && good;
    (void)H5Pclose(creation);
    (void)H5Pclose(links);
    (void)H5Sclose(space);
    return good;
}

/* Adds array_values(number, ...) as f32. */
static inline bool hdf5_add_values(hid_t file, const char *name, int number, int ndim, const hsize_t *size,
                                   const hsize_t *chunk) {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        count *= (int64_t)size[i];
    }
    float *values = array_values(number, count);
    const bool good =
        values != NULL && hdf5_add(file, name, H5T_IEEE_F32LE, ndim, size, chunk, H5T_NATIVE_FLOAT, values);
    free(values);
    return good;
}

/* Adds an attribute of `count` values to a variable. `type` is the type in memory and in the file. */
static inline bool hdf5_add_attributes(hid_t file, const char *variable, const char *name, hid_t type, hsize_t count,
                                       const void *values) {
    const hid_t space = H5Screate_simple(1, &count, NULL), owner = H5Dopen2(file, variable, H5P_DEFAULT);
    const hid_t attribute = H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool good = attribute >= 0 && (count == 0 || H5Awrite(attribute, type, values) >= 0);
    (void)H5Aclose(attribute);
    (void)H5Dclose(owner);
    (void)H5Sclose(space);
    return good;
}

/* Adds an attribute of one double. */
static inline bool hdf5_add_attribute(hid_t file, const char *variable, const char *name, double value) {
    return hdf5_add_attributes(file, variable, name, H5T_NATIVE_DOUBLE, 1, &value);
}

#endif
