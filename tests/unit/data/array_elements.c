/*
 * Elements of HDF5 and NetCDF files that a data set must not misread: packed, missing, never written, large, or 16-bit
 * elements, elements from the sources of virtual variables, or elements that are not numbers.
 *
 * devices: cpu
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/autograd.h>

#include "tests/support/array_files.h"
#include "tests/support/files.h"

static const hsize_t four[] = {4};

typedef ls_dataset *open_function(const char *path, const ls_array_options *options);

/* Returns the first batch of variable v, as f64. */
static ls_loader *begin_variable(open_function *open, const char *path, double missing, ls_batch *batch) {
    const ls_array_options options = {
        .input = {NAMES("v"), .dtype = LS_F64}, .target = {NAMES("v"), .dtype = LS_F64}, .missing = missing};
    return begin(open(path, &options), 64, batch);
}

static void expect_elements(open_function *open, const char *path, double missing, int count, const double *expected) {
    ls_batch batch;
    ls_loader *loader = begin_variable(open, path, missing, &batch);
    assert_int_equal(batch.count, count);
    for (int i = 0; i < count; i++) {
        const double value = ((const double *)elements(batch.input))[i];
        if (value != expected[i]) {
            fail_msg("element %d of %s is %.17g, not %.17g", i, path, value, expected[i]);
        }
    }
    ls_loader_free(loader);
}

static void expect_refused(open_function *open, const char *path, const char *part) {
    expect_none(open(path, &(ls_array_options){.input = {NAMES("v")}, .target = {NAMES("v")}}), LS_ERR_UNSUPPORTED,
                part);
}

/* Writes variable v of four elements. The caller closes the file. */
static hid_t write_variable(const char *path, hid_t type, hid_t memory, const void *values) {
    const hid_t file = hdf5_new_file(path);
    assert_true(hdf5_add(file, "v", type, 1, four, NULL, memory, values));
    return file;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Tests the attributes of the CF conventions in HDF5. */
SCOPED_TEST(packed_and_missing) {
    const char *path = test_path("packed.h5");
    const hid_t file = hdf5_new_file(path);
    const hsize_t size[] = {4};
    const int32_t values[] = {10, -999, 30, -5};
    const double fill = 1e300;
    const double reals[] = {1, fill, 3, 4}, singles[] = {1, 1e20, 3, 4};
    assert_true(hdf5_add(file, "t", H5T_STD_I16LE, 1, size, size, H5T_NATIVE_INT32, values));
    assert_true(hdf5_add_attribute(file, "t", "scale_factor", 0.5) && hdf5_add_attribute(file, "t", "add_offset", 7));
    assert_true(hdf5_add_attribute(file, "t", "missing_value", -999));
    assert_true(hdf5_add(file, "n", H5T_STD_I16LE, 1, size, NULL, H5T_NATIVE_INT32, values));
    assert_true(hdf5_add_attribute(file, "n", "_FillValue", -999));
    assert_true(hdf5_add(file, "f", H5T_IEEE_F32LE, 1, size, NULL, H5T_NATIVE_DOUBLE, singles));
    assert_true(hdf5_add_attribute(file, "f", "missing_value", 1e20)); /* a double that f32 cannot represent */
    assert_true(hdf5_add(file, "d", H5T_IEEE_F64LE, 1, size, NULL, H5T_NATIVE_DOUBLE, reals));
    assert_true(hdf5_add_attribute(file, "d", "_FillValue", fill));
    assert_int_equal(H5Fclose(file), 0);
    ls_array_options options = {
        .input = {NAMES("t", "d", "f")}, .target = {NAMES("n"), .dtype = LS_I32}, .missing = LS_ZERO};
    ls_batch batch;
    ls_loader *loader = begin(ls_hdf5_dataset(path, &options), 4, &batch);
    const float expected[] = {12, 1, 1, 0, 0, 0, 22, 3, 3, 4.5f, 4, 4};
    const int32_t numbers[] = {10, 0, 30, -5};
    assert_memory_equal(elements(batch.input), expected, sizeof expected);
    assert_memory_equal(elements(batch.target), numbers, sizeof numbers);
    ls_loader_free(loader);

    options = (ls_array_options){.input = {NAMES("t")}, .target = {NAMES("d"), .dtype = LS_F64}, .missing = NAN};
    loader = begin(ls_hdf5_dataset(path, &options), 4, &batch);
    assert_true(isnan(((const float *)elements(batch.input))[1]) && isnan(((const double *)elements(batch.target))[1]));
    ls_loader_free(loader);

    bool more;
    options.missing = 0;
    loader = ls_loader_new(ls_hdf5_dataset(path, &options), &(ls_loader_options){.batch_size = 4});
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT);
    expect_message("step 1 of variable \"t\"");
    expect_message("set .missing");
    ls_loader_free(loader);
    expect_none(
        ls_hdf5_dataset(path, &(ls_array_options){.input = {NAMES("t"), .dtype = LS_I32}, .target = {NAMES("d")}}),
        LS_ERR_ARGUMENT, "is packed");
    expect_none(
        ls_hdf5_dataset(
            path, &(ls_array_options){.input = {NAMES("d")}, .target = {NAMES("n"), .dtype = LS_I32}, .missing = 0.5}),
        LS_ERR_ARGUMENT, ".missing is 0.5");
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

/* Creates a NetCDF file with variable v of four elements, and leaves it in define mode. */
static int new_netcdf(const char *path, int mode, nc_type type, int *variable) {
    int file, dimension;
    assert_int_equal(nc_create(path, mode | NC_CLOBBER, &file), NC_NOERR);
    assert_int_equal(nc_def_dim(file, "step", 4, &dimension), NC_NOERR);
    assert_int_equal(nc_def_var(file, "v", type, 1, &dimension, variable), NC_NOERR);
    return file;
}

/* Integers are compared as integers: 2^53 + 1 is not the fill value 2^53, and 2^64 - 2 is not 2^64 - 1. */
SCOPED_TEST(large_integers) {
    const int64_t power = (int64_t)1 << 53, values[] = {power + 1, power, 5, -7};
    const uint64_t naturals[] = {UINT64_MAX - 1, UINT64_MAX, 5, 7};
    const char *path = test_path("large.h5");
    const double expected[] = {(double)(power + 1), 1, 5, -7}, expected_naturals[] = {0x1p64, 1, 5, 7};
    hid_t file = write_variable(path, H5T_STD_I64LE, H5T_NATIVE_INT64, values);
    assert_true(hdf5_add_attributes(file, "v", "_FillValue", H5T_NATIVE_INT64, 1, &power));
    assert_int_equal(H5Fclose(file), 0);
    ls_batch batch;
    ls_loader *loader = begin(ls_hdf5_dataset(path, &(ls_array_options){.input = {NAMES("v"), .dtype = LS_I64},
                                                                        .target = {NAMES("v"), .dtype = LS_I64},
                                                                        .missing = 1}),
                              4, &batch);
    const int64_t exact[] = {power + 1, 1, 5, -7};
    assert_memory_equal(elements(batch.input), exact, sizeof exact);
    ls_loader_free(loader);
    expect_elements(ls_hdf5_dataset, path, 1, 4, expected);
    expect_elements(ls_netcdf_dataset, path, 1, 4, expected);
    const uint64_t most = UINT64_MAX;
    file = write_variable(path, H5T_STD_U64LE, H5T_NATIVE_UINT64, naturals);
    assert_true(hdf5_add_attributes(file, "v", "missing_value", H5T_NATIVE_UINT64, 1, &most));
    assert_int_equal(H5Fclose(file), 0);
    expect_elements(ls_hdf5_dataset, path, 1, 4, expected_naturals);
    expect_elements(ls_netcdf_dataset, path, 1, 4, expected_naturals);
}

/* The attribute may have more digits than the elements: in f16, -9999 is -10000. */
SCOPED_TEST(sixteen_bits) {
    const char *path = test_path("f16.h5");
    const float values[] = {-9999, 2, 0.5f, -4};
    const double expected[] = {7, 2, 0.5, -4};
    ls_tensor *v = ls_to(ls_from(LS_SHAPE(4), LS_F32, values), LS_F16);
    assert_int_equal(ls_hdf5_save(path, &(ls_named){"v", v}, 1), LS_OK);
    const double stored[] = {-10000, 2, 0.5, -4};
    expect_elements(ls_hdf5_dataset, path, 7, 4, stored);
    const hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(hdf5_add_attributes(file, "v", "missing_value", H5T_NATIVE_INT, 1, &(int){-9999}));
    assert_int_equal(H5Fclose(file), 0);
    expect_elements(ls_hdf5_dataset, path, 7, 4, expected);
}

SCOPED_TEST(attributes_that_are_not_numbers) {
    static const char *const names[] = {"scale_factor", "add_offset", "_FillValue", "missing_value"};
    const int32_t values[] = {1, 2, 3, 4};
    const double five[] = {1, 2, 3, 4, 5};
    const char *path = test_path("attributes.h5");
    char message[64];
    for (size_t i = 0; i < 3 * sizeof names / sizeof *names; i++) {
        const char *name = names[i % 4];
        hid_t file = write_variable(path, H5T_STD_I16LE, H5T_NATIVE_INT32, values);
        assert_true(i < 4   ? hdf5_add_attributes(file, "v", name, H5T_C_S1, 1, "0.01")
                    : i < 8 ? hdf5_add_attributes(file, "v", name, H5T_NATIVE_DOUBLE, 0, NULL)
                            : hdf5_add_attributes(file, "v", name, H5T_NATIVE_DOUBLE, 5, five));
        assert_int_equal(H5Fclose(file), 0);
        snprintf(message, sizeof message, "its attribute %s must be one", name);
        expect_refused(ls_hdf5_dataset, path, message);
    }
    for (int i = 0; i < 4; i++) {
        int variable;
        int file = new_netcdf(test_path("attributes.nc"), 0, NC_SHORT, &variable);
        if (i == 2) { /* libnetcdf only writes a _FillValue of the variable's type */
            assert_int_equal(nc_close(file), NC_NOERR);
            continue;
        }
        assert_int_equal(nc_put_att_text(file, variable, names[i], 4, "0.01"), NC_NOERR);
        assert_int_equal(nc_close(file), NC_NOERR);
        snprintf(message, sizeof message, "its attribute %s must be one", names[i]);
        expect_refused(ls_netcdf_dataset, test_path("attributes.nc"), message);
    }
}

SCOPED_TEST(unsigned_attribute) {
    const int32_t values[] = {-1, 2, 3, 4};
    const char *path = test_path("unsigned.h5");
    int variable;
    const hid_t file = write_variable(path, H5T_STD_I8LE, H5T_NATIVE_INT32, values);
    assert_true(hdf5_add_attributes(file, "v", "_Unsigned", H5T_C_S1, 1, "t"));
    assert_int_equal(H5Fclose(file), 0);
    expect_refused(ls_hdf5_dataset, path, "it has the attribute _Unsigned");
    const int classic = new_netcdf(test_path("unsigned.nc"), 0, NC_BYTE, &variable);
    assert_int_equal(nc_put_att_text(classic, variable, "_Unsigned", 4, "true"), NC_NOERR);
    assert_int_equal(nc_close(classic), NC_NOERR);
    expect_refused(ls_netcdf_dataset, test_path("unsigned.nc"), "it has the attribute _Unsigned");
}

/* ---- elements that were never written ---------------------------------------------------------------------------- */

/* Writes the first three of four elements. Returns the path. */
static const char *write_three(int mode, nc_type type, bool no_fill, const double *fill) {
    const double values[] = {1, 2, 3};
    int variable;
    const int file = new_netcdf(test_path("three.nc"), mode, type, &variable);
    if (no_fill) {
        assert_int_equal(nc_def_var_fill(file, variable, NC_NOFILL, NULL), NC_NOERR);
    }
    if (fill != NULL) {
        assert_int_equal(nc_put_att_double(file, variable, "_FillValue", type, 1, fill), NC_NOERR);
    }
    assert_int_equal(nc_enddef(file), NC_NOERR);
    assert_int_equal(nc_put_vara_double(file, variable, (const size_t[]){0}, (const size_t[]){3}, values), NC_NOERR);
    assert_int_equal(nc_close(file), NC_NOERR);
    return test_path("three.nc");
}

SCOPED_TEST(never_written) {
    static const nc_type types[] = {NC_SHORT, NC_INT,    NC_FLOAT, NC_DOUBLE, NC_BYTE,
                                    NC_UBYTE, NC_USHORT, NC_UINT,  NC_INT64,  NC_UINT64};
    const double missing[] = {1, 2, 3, -5}, bytes[] = {1, 2, 3, NC_FILL_BYTE}, ubytes[] = {1, 2, 3, NC_FILL_UBYTE};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const double *expected = types[i] == NC_BYTE ? bytes : types[i] == NC_UBYTE ? ubytes : missing;
        expect_elements(ls_netcdf_dataset, write_three(NC_64BIT_DATA, types[i], false, NULL), -5, 4, expected);
        const char *path = write_three(NC_NETCDF4, types[i], false, NULL);
        expect_elements(ls_netcdf_dataset, path, -5, 4, expected);
        expect_elements(ls_hdf5_dataset, path, -5, 4, expected);
    }
    const char *path = write_three(NC_NETCDF4, NC_INT, false, &(double){-1});
    expect_elements(ls_netcdf_dataset, path, -5, 4, missing);
    expect_elements(ls_hdf5_dataset, path, -5, 4, missing);
    ls_batch batch;
    bool more;
    ls_loader *loader =
        ls_loader_new(ls_netcdf_dataset(write_three(0, NC_INT, false, NULL),
                                        &(ls_array_options){.input = {NAMES("v")}, .target = {NAMES("v")}}),
                      &(ls_loader_options){.batch_size = 4});
    expect_error(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT, "step 3 of variable \"v\"");
    ls_loader_free(loader);
}

/* A missing element is an error only in samples that contain it, not in the other samples of its block. */
SCOPED_TEST(missing_in_other_samples) {
    const int file = new_netcdf(test_path("block.nc"), NC_NETCDF4, NC_INT, &(int){0});
    assert_int_equal(nc_put_var1_int(file, 0, (const size_t[]){2}, &(int){7}), NC_NOERR); /* the others are missing */
    assert_int_equal(nc_close(file), NC_NOERR);
    open_function *const functions[] = {ls_netcdf_dataset, ls_hdf5_dataset};
    for (int i = 0; i < 4; i++) {
        ls_array_options options = {.input = {NAMES("v")}, .target = {NAMES("v")}, .stride = 1 + i / 2};
        ls_dataset *dataset = functions[i % 2](test_path("block.nc"), &options);
        ls_loader *loader =
            ls_loader_new(ls_dataset_subset(dataset, 2 / options.stride, 1), &(ls_loader_options){.batch_size = 4});
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        assert_true(batch.count == 1 && *(const float *)elements(batch.input) == 7);
        ls_loader_free(loader);
        options.input.first = 1;
        loader = ls_loader_new(functions[i % 2](test_path("block.nc"), &options), NULL);
        for (int again = 0; again < 2; again++) { /* the block is cached */
            expect_error(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT, "step 1 of variable \"v\"");
        }
        ls_loader_free(loader);
    }
}

/* NetCDF's default fill value is ordinary data in a variable without filling, and in an HDF5 file with its own fill
 * value. */
SCOPED_TEST(default_fill_values_as_data) {
    const int32_t values[] = {NC_FILL_INT, 2, 3, 4};
    const double expected[] = {NC_FILL_INT, 2, 3, 4};
    const char *path = test_path("data.h5");
    int variable;
    assert_int_equal(H5Fclose(write_variable(path, H5T_STD_I32LE, H5T_NATIVE_INT32, values)), 0);
    expect_elements(ls_hdf5_dataset, path, -5, 4, expected);
    expect_elements(ls_netcdf_dataset, path, -5, 4, expected);
    const int file = new_netcdf(test_path("data.nc"), NC_NETCDF4, NC_INT, &variable);
    assert_int_equal(nc_def_var_fill(file, variable, NC_NOFILL, NULL), NC_NOERR);
    assert_int_equal(nc_put_var_int(file, variable, values), NC_NOERR);
    assert_int_equal(nc_close(file), NC_NOERR);
    expect_elements(ls_netcdf_dataset, test_path("data.nc"), -5, 4, expected);
    expect_elements(ls_hdf5_dataset, test_path("data.nc"), -5, 4, expected);
}

/* In a variable without filling, elements that were never written may have any value. f32 cannot represent 1e300. */
SCOPED_TEST(rounded_without_fill_values) {
    const double values[] = {1e300, 0.1, -1e300, 4};
    int variable;
    const int file = new_netcdf(test_path("rounded.nc"), NC_NETCDF4, NC_DOUBLE, &variable);
    assert_int_equal(nc_def_var_fill(file, variable, NC_NOFILL, NULL), NC_NOERR);
    assert_int_equal(nc_put_var_double(file, variable, values), NC_NOERR);
    assert_int_equal(nc_close(file), NC_NOERR);
    ls_batch batch;
    ls_loader *loader = begin(
        ls_netcdf_dataset(test_path("rounded.nc"), &(ls_array_options){.input = {NAMES("v")}, .target = {NAMES("v")}}),
        4, &batch);
    for (int i = 0; i < 4; i++) {
        assert_true(((const float *)elements(batch.input))[i] == (float)values[i]);
    }
    ls_loader_free(loader);
}

/* ---- truncated classic files ------------------------------------------------------------------------------------- */

enum { RECORDS = 4 };

/*
 * Writes v, and `others` further variables, of one short for each of four steps. The steps are records unless `fixed`.
 * Returns the size of the file without padding after the last element.
 */
static int64_t write_classic(const char *path, int mode, bool fixed, int others) {
    const short values[RECORDS] = {1, 2, 3, 4};
    char name[2] = "v";
    int file, step, text, variables[3];
    struct stat about;
    assert_int_equal(nc_create(path, mode | NC_CLOBBER, &file), NC_NOERR);
    assert_int_equal(nc_def_dim(file, "letter", 3, &text), NC_NOERR);
    assert_int_equal(nc_def_dim(file, "step", fixed ? RECORDS : NC_UNLIMITED, &step), NC_NOERR);
    assert_int_equal(nc_put_att_text(file, NC_GLOBAL, "title", 7, "a title"), NC_NOERR);
    for (int i = 0; i <= others; i++, name[0]++) {
        assert_int_equal(nc_def_var(file, name, NC_SHORT, 1, &step, &variables[i]), NC_NOERR);
        assert_int_equal(nc_put_att_double(file, variables[i], "factor", NC_DOUBLE, 1, &(double){2}), NC_NOERR);
    }
    assert_int_equal(nc_enddef(file), NC_NOERR);
    for (int i = 0; i <= others; i++) {
        assert_int_equal(nc_put_vara_short(file, variables[i], (const size_t[]){0}, (const size_t[]){RECORDS}, values),
                         NC_NOERR);
    }
    assert_int_equal(nc_close(file), NC_NOERR);
    assert_int_equal(stat(path, &about), 0);
    return about.st_size - (!fixed && others > 0 ? 2 : 0);
}

/* libnetcdf would read the missing bytes as zeros. */
SCOPED_TEST(truncated_classic_files) {
    static const int modes[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA};
    const double expected[] = {1, 2, 3, 4};
    const char *path = test_path("truncated.nc");
    const ls_array_options options = {.input = {NAMES("v")}, .target = {NAMES("v")}};
    char message[128];
    for (int i = 0; i < 3 * 2 * 3; i++) {
        const bool fixed = i / 3 % 2 != 0;
        const int others = i / 6;
        const int64_t size = write_classic(path, modes[i % 3], fixed, others);
        assert_int_equal(truncate(path, size), 0);
        expect_elements(ls_netcdf_dataset, path, 0, RECORDS, expected);
        assert_int_equal(truncate(path, size - 1), 0);
        snprintf(message, sizeof message, "the file has %lld bytes, but its header declares %lld bytes",
                 (long long)size - 1, (long long)size);
        expect_none(ls_netcdf_dataset(path, &options), LS_ERR_FORMAT, message);
        for (int64_t rest = size - 2; rest >= 4; rest--) {
            assert_int_equal(truncate(path, rest), 0);
            expect_none(ls_netcdf_dataset(path, &options), LS_ERR_FORMAT, "cannot be read as NetCDF");
        }
    }
}

/* Changes each byte of the header. A file that is refused has a reason; reads outside the buffers would fail under
 * AddressSanitizer. */
SCOPED_TEST(damaged_classic_headers) {
    static const int modes[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA};
    const char *path = test_path("damaged.nc");
    const ls_array_options options = {.input = {NAMES("v")}, .target = {NAMES("v")}};
    for (int mode = 0; mode < 3; mode++) {
        const int64_t size = write_classic(path, modes[mode], false, 1);
        int refused = 0;
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        for (int64_t at = 4; at < size; at++) {
            assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
            const int byte = fgetc(file);
            assert_true(fseek(file, (long)at, SEEK_SET) == 0 && fputc(byte ^ 0x7f, file) >= 0 && fflush(file) == 0);
            ls_dataset *set = ls_netcdf_dataset(path, &options);
            refused += set == NULL;
            if (set == NULL) {
                const ls_status status = ls_error_status();
                assert_true(status == LS_ERR_FORMAT || status == LS_ERR_ARGUMENT || status == LS_ERR_SHAPE ||
                            status == LS_ERR_UNSUPPORTED);
                assert_true(strstr(ls_error_message(), "damaged.nc") != NULL);
            }
            ls_dataset_free(set);
            assert_true(fseek(file, (long)at, SEEK_SET) == 0 && fputc(byte, file) >= 0 && fflush(file) == 0);
        }
        assert_int_equal(fclose(file), 0);
        assert_true(refused > 0);
    }
}

/* The number of records is the first number of the header. */
SCOPED_TEST(unknown_number_of_records) {
    const char *path = test_path("streaming.nc");
    (void)write_classic(path, 0, false, 0);
    FILE *file = fopen(path, "r+b");
    assert_true(file != NULL && fseek(file, 4, SEEK_SET) == 0 && fputs("\xff\xff\xff\xff", file) >= 0);
    assert_int_equal(fclose(file), 0);
    expect_none(ls_netcdf_dataset(path, &(ls_array_options){.input = {NAMES("v")}, .target = {NAMES("v")}}),
                LS_ERR_FORMAT, "does not state the number of records");
}

/* ---- how variables are stored ------------------------------------------------------------------------------------ */

/* Writes v. Its first two elements are virtual: the first two elements of variable `name` in `source`. */
static void write_virtual(const char *path, const char *source, const char *name) {
    const hsize_t two[] = {2}, none[] = {0};
    const hid_t file = hdf5_new_file(path), space = H5Screate_simple(1, four, NULL);
    const hid_t part = H5Screate_simple(1, four, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    const float values[] = {5, 6, 7, 8};
    assert_true(hdf5_add(file, "own", H5T_IEEE_F32LE, 1, four, NULL, H5T_NATIVE_FLOAT, values));
    assert_true(H5Sselect_hyperslab(space, H5S_SELECT_SET, none, NULL, two, NULL) >= 0);
    assert_true(H5Sselect_hyperslab(part, H5S_SELECT_SET, none, NULL, two, NULL) >= 0);
    assert_true(H5Pset_virtual(creation, space, source, name, part) >= 0);
    const hid_t variable = H5Dcreate2(file, "v", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    assert_true(variable >= 0 && H5Dclose(variable) >= 0 && H5Pclose(creation) >= 0 && H5Sclose(space) >= 0);
    assert_true(H5Sclose(part) >= 0 && H5Fclose(file) >= 0);
}

/* HDF5 reads fill values if a source is missing. */
SCOPED_TEST(virtual_variables) {
    const float values[] = {1, 2, 3, 4};
    const double expected[] = {1, 2, 0, 0}, own[] = {5, 6, 0, 0};
    const char *path = test_path("virtual.h5"), *source = test_path("source.h5");
    char message[400];
    assert_int_equal(H5Fclose(write_variable(source, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values)), 0);
    write_virtual(path, "source.h5", "v");
    expect_elements(ls_hdf5_dataset, path, 0, 4, expected);
    expect_refused(ls_netcdf_dataset, path, "it is virtual: use ls_hdf5_dataset");
    write_virtual(path, "source.h5", "absent");
    expect_refused(ls_hdf5_dataset, path, "its source \"absent\" in ");
    write_virtual(path, source, "v");
    expect_elements(ls_hdf5_dataset, path, 0, 4, expected);
    assert_int_equal(unlink(source), 0);
    snprintf(message, sizeof message, "its source \"v\" in %s is missing", source);
    expect_refused(ls_hdf5_dataset, path, message);
    write_virtual(path, "source.h5", "v");
    expect_refused(ls_hdf5_dataset, path, message);
    write_virtual(path, ".", "own");
    expect_elements(ls_hdf5_dataset, path, 0, 4, own);
    write_virtual(path, ".", "v");
    expect_refused(ls_hdf5_dataset, path, "is virtual too");
    write_virtual(path, "source-%%.h5", "v");
    expect_refused(ls_hdf5_dataset, path, "is a pattern of names");
}

static size_t pass_through(unsigned flags, size_t count, const unsigned values[], size_t bytes, size_t *size,
                           void **buffer) {
    (void)flags, (void)count, (void)values, (void)size, (void)buffer;
    return bytes;
}

SCOPED_TEST(absent_filter) {
    enum { FILTER = 32099 };
    static const H5Z_class2_t filter = {H5Z_CLASS_T_VERS, FILTER, 1, 1, "pass", NULL, NULL, pass_through};
    const char *path = test_path("filter.h5");
    const float values[] = {1, 2, 3, 4};
    const double expected[] = {1, 2, 3, 4};
    assert_true(H5Zregister(&filter) >= 0);
    const hid_t file = hdf5_new_file(path), space = H5Screate_simple(1, four, NULL);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_chunk(creation, 1, four) >= 0 && H5Pset_filter(creation, FILTER, 0, 0, NULL) >= 0);
    const hid_t variable = H5Dcreate2(file, "v", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    assert_true(H5Dwrite(variable, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    assert_true(H5Dclose(variable) >= 0 && H5Pclose(creation) >= 0 && H5Sclose(space) >= 0 && H5Fclose(file) >= 0);
    expect_elements(ls_hdf5_dataset, path, 0, 4, expected);
    assert_true(H5Zunregister(FILTER) >= 0);
    expect_refused(ls_hdf5_dataset, path, "filter 32099 (pass)");
    expect_refused(ls_netcdf_dataset, path, "filter 32099");
}

SCOPED_TEST(axes) {
    const char *path = test_path("axes.h5");
    const hsize_t nine[] = {1, 1, 1, 1, 1, 1, 1, 1, 4};
    const float values[] = {1, 2, 3, 4};
    for (int ndim = 0; ndim < 10; ndim += 9) {
        const hid_t file = hdf5_new_file(path);
        assert_true(hdf5_add(file, "v", H5T_IEEE_F32LE, ndim, nine, NULL, H5T_NATIVE_FLOAT, values));
        assert_int_equal(H5Fclose(file), 0);
        const char *part = ndim == 0 ? "it is a single value without axes" : "it has 9 axes, the limit is 8";
        expect_refused(ls_hdf5_dataset, path, part);
        expect_refused(ls_netcdf_dataset, path, part);
    }
}

SCOPED_TEST(elements_that_are_not_numbers) {
    const char *path = test_path("pair.h5");
    const float values[8] = {0};
    const hid_t pair = H5Tcreate(H5T_COMPOUND, 8);
    assert_true(H5Tinsert(pair, "x", 0, H5T_NATIVE_FLOAT) >= 0 && H5Tinsert(pair, "y", 4, H5T_NATIVE_FLOAT) >= 0);
    assert_int_equal(H5Fclose(write_variable(path, pair, pair, values)), 0);
    assert_int_equal(H5Tclose(pair), 0);
    expect_refused(ls_hdf5_dataset, path, "its elements are of a compound type");
}

/* If a list of variables is too long for a message, the message says so. For a failed HDF5 call, it contains the
 * reason. */
SCOPED_TEST(messages) {
    const char *path = test_path("many.h5");
    const hid_t file = hdf5_new_file(path);
    const float values[4] = {0};
    char name[64];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "a_variable_with_a_long_name_%d", 100 + i);
        assert_true(hdf5_add(file, name, H5T_IEEE_F32LE, 1, four, NULL, H5T_NATIVE_FLOAT, values));
    }
    assert_int_equal(H5Fclose(file), 0);
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u")}};
    expect_none(ls_hdf5_dataset(path, &options), LS_ERR_ARGUMENT, "a_variable_with_a_long_name_100, ");
    expect_message(", ...");
    expect_none(ls_netcdf_dataset(path, &options), LS_ERR_ARGUMENT, ", ...");
    assert_int_equal(truncate(path, 300), 0);
    expect_none(ls_hdf5_dataset(path, &options), LS_ERR_FORMAT, "truncated file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_missing),
        cmocka_unit_test(missing_in_other_samples),
        cmocka_unit_test(large_integers),
        cmocka_unit_test(sixteen_bits),
        cmocka_unit_test(attributes_that_are_not_numbers),
        cmocka_unit_test(unsigned_attribute),
        cmocka_unit_test(never_written),
        cmocka_unit_test(default_fill_values_as_data),
        cmocka_unit_test(rounded_without_fill_values),
        cmocka_unit_test(truncated_classic_files),
        cmocka_unit_test(damaged_classic_headers),
        cmocka_unit_test(unknown_number_of_records),
        cmocka_unit_test(virtual_variables),
        cmocka_unit_test(absent_filter),
        cmocka_unit_test(axes),
        cmocka_unit_test(elements_that_are_not_numbers),
        cmocka_unit_test(messages),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
