/*
 * Data sets from HDF5 and NetCDF files: the selection of elements for each sample, conversions, missing elements, the
 * cache of blocks, and the message for each mistake.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/allocator.h"
#include "tests/support/array_files.h"
#include "tests/support/files.h"

enum { STEPS = 50, HEIGHT = 6, WIDTH = 5, FIELD = HEIGHT * WIDTH };

#define assert_shape(tensor, ...) assert_has_shape(tensor, LS_SHAPE(__VA_ARGS__))
static void assert_has_shape(const ls_tensor *tensor, ls_shape shape) {
    assert_int_equal(ls_ndim(tensor), shape.ndim);
    for (int i = 0; i < shape.ndim; i++) {
        assert_int_equal(ls_size(tensor, i), shape.size[i]);
    }
}

/*
 * Writes a file with u and run/v, [steps, height, width] in chunks of 8 steps; label, i64 [steps], without chunks;
 * wide, [height, steps, width] in chunks; short, which has one step less; text and pair, which are not numbers.
 */
static const char *write_flow(void) {
    static char path[320];
    const hsize_t size[] = {STEPS, HEIGHT, WIDTH}, chunk[] = {8, HEIGHT, 3}, wide[] = {HEIGHT, STEPS, WIDTH};
    const hsize_t wide_chunk[] = {4, 8, WIDTH}, shorter[] = {STEPS - 1};
    int64_t labels[STEPS];
    char text[STEPS] = "";
    snprintf(path, sizeof path, "%s", test_path("flow.h5"));
    const hid_t file = hdf5_new_file(path);
    for (int64_t i = 0; i < STEPS; i++) {
        labels[i] = i % 7;
    }
    assert_true(hdf5_add_values(file, "u", 0, 3, size, chunk));
    assert_true(hdf5_add_values(file, "run/v", 1, 3, size, NULL));
    assert_true(hdf5_add_values(file, "wide", 2, 3, wide, wide_chunk));
    assert_true(hdf5_add_values(file, "short", 3, 1, shorter, NULL));
    assert_true(hdf5_add(file, "label", H5T_STD_I64LE, 1, size, NULL, H5T_NATIVE_INT64, labels));
    assert_true(hdf5_add(file, "text", H5T_C_S1, 1, size, NULL, H5T_C_S1, text));
    assert_int_equal(H5Fclose(file), 0);
    return path;
}

/* ---- which elements ---------------------------------------------------------------------------------------------- */

static void plain_variables(void **state) {
    (void)state;
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("label"), .dtype = LS_I64}};
    ls_dataset *dataset = ls_hdf5_dataset(write_flow(), &options);
    assert_non_null(dataset);
    assert_int_equal(ls_dataset_count(dataset), STEPS);
    assert_int_equal(ls_dataset_block(dataset), 8);
    ls_batch batch;
    ls_loader *loader = begin(dataset, STEPS, &batch);
    assert_shape(batch.input, STEPS, HEIGHT, WIDTH);
    assert_shape(batch.target, STEPS);
    for (int64_t i = 0; i < STEPS * FIELD; i++) {
        assert_true(((const float *)elements(batch.input))[i] == array_value(0, i));
    }
    for (int64_t i = 0; i < STEPS; i++) {
        assert_int_equal(((const int64_t *)elements(batch.target))[i], i % 7);
    }
    ls_loader_free(loader);
}

/* Several variables with a slab, windows of steps, a stride, and targets one step after the inputs. */
static void slabs_and_windows(void **state) {
    (void)state;
    enum { STRIDE = 3, WINDOW = 4, COUNT = (STEPS - WINDOW - 1) / STRIDE + 1 };
    const ls_array_options options = {
        .input = {NAMES("u", "run/v"), .steps = WINDOW, .offset = LS_SHAPE(1, 2), .extent = LS_SHAPE(4, 0)},
        .target = {NAMES("u"), .first = WINDOW, .dtype = LS_F64},
        .stride = STRIDE};
    ls_batch batch;
    ls_loader *loader = begin(ls_hdf5_dataset(write_flow(), &options), 64, &batch);
    assert_int_equal(batch.count, COUNT);
    assert_shape(batch.input, COUNT, 2, WINDOW, 4, WIDTH - 2);
    assert_shape(batch.target, COUNT, HEIGHT, WIDTH);
    int64_t at = 0;
    for (int64_t sample = 0; sample < COUNT; sample++) {
        for (int variable = 0; variable < 2; variable++) {
            for (int64_t step = sample * STRIDE; step < sample * STRIDE + WINDOW; step++) {
                for (int64_t y = 1; y < 5; y++) {
                    for (int64_t x = 2; x < WIDTH; x++, at++) {
                        const float value = array_value(variable, step * FIELD + y * WIDTH + x);
                        assert_true(((const float *)elements(batch.input))[at] == value);
                    }
                }
            }
        }
        for (int64_t i = 0; i < FIELD; i++) {
            const double value = array_value(0, (sample * STRIDE + WINDOW) * FIELD + i);
            assert_true(((const double *)elements(batch.target))[sample * FIELD + i] == value);
        }
    }
    ls_loader_free(loader);
}

static void another_sample_axis(void **state) {
    (void)state;
    const ls_array_options options = {
        .input = {NAMES("wide")}, .target = {NAMES("wide"), .extent = LS_SHAPE(1, 1)}, .axis = 1};
    ls_batch batch;
    ls_loader *loader = begin(ls_hdf5_dataset(write_flow(), &options), STEPS, &batch);
    assert_shape(batch.input, STEPS, HEIGHT, WIDTH);
    assert_shape(batch.target, STEPS, 1, 1);
    for (int64_t step = 0; step < STEPS; step++) {
        for (int64_t y = 0; y < HEIGHT; y++) {
            for (int64_t x = 0; x < WIDTH; x++) {
                const float value = array_value(2, (y * STEPS + step) * WIDTH + x);
                assert_true(((const float *)elements(batch.input))[step * FIELD + y * WIDTH + x] == value);
            }
        }
        assert_true(((const float *)elements(batch.target))[step] == array_value(2, step * WIDTH));
    }
    ls_loader_free(loader);
}

/* ---- conversions ------------------------------------------------------------------------------------------------- */

/* Integers of other sizes and byte orders, booleans of h5py, 16-bit floats, which HDF5 converts. */
static void stored_types(void **state) {
    (void)state;
    const char *path = test_path("types.h5");
    const hid_t file = hdf5_new_file(path), bools = H5Tenum_create(H5T_STD_I8LE);
    const hsize_t size[] = {3};
    const int32_t values[] = {-2, 0, 100};
    const int8_t truth8[] = {1, 0, 1};
    assert_true(H5Tenum_insert(bools, "FALSE", &(int8_t){0}) >= 0 && H5Tenum_insert(bools, "TRUE", &(int8_t){1}) >= 0);
    assert_true(hdf5_add(file, "i2", H5T_STD_I16BE, 1, size, NULL, H5T_NATIVE_INT32, values));
    assert_true(hdf5_add(file, "f8", H5T_IEEE_F64BE, 1, size, NULL, H5T_NATIVE_INT32, values));
    assert_true(hdf5_add(file, "u1", H5T_STD_U8LE, 1, size, NULL, H5T_NATIVE_INT8, truth8));
    assert_true(hdf5_add(file, "flag", bools, 1, size, NULL, bools, truth8));
    assert_int_equal(H5Tclose(bools), 0);
    assert_int_equal(H5Fclose(file), 0);
    const ls_array_options options = {.input = {NAMES("i2", "f8", "flag")}, .target = {NAMES("i2"), .dtype = LS_I32}};
    ls_batch batch;
    ls_loader *loader = begin(ls_hdf5_dataset(path, &options), 3, &batch);
    const float *rows = elements(batch.input);
    for (int i = 0; i < 3; i++) {
        assert_true(rows[3 * i] == (float)values[i] && rows[3 * i + 1] == (float)values[i]);
        assert_true(rows[3 * i + 2] == (float)truth8[i]);
        assert_int_equal(((const int32_t *)elements(batch.target))[i], values[i]);
    }
    ls_loader_free(loader);
    const ls_array_options bytes = {.input = {NAMES("u1"), .dtype = LS_U8}, .target = {NAMES("flag"), .dtype = LS_I64}};
    loader = begin(ls_hdf5_dataset(path, &bytes), 3, &batch);
    assert_memory_equal(elements(batch.input), truth8, 3);
    assert_int_equal(((const int64_t *)elements(batch.target))[2], 1);
    ls_loader_free(loader);
}

/* ---- NetCDF ------------------------------------------------------------------------------------------------------ */

/* Writes a file with t [time, x] and a class per step. If the format has groups, a group contains another variable. */
static const char *write_netcdf(const char *name, int mode) {
    static char path[320];
    int file, time, x, group, t, class, other = 0;
    const size_t start[] = {0, 0}, count[] = {STEPS - 1, WIDTH};
    const bool netcdf4 = (mode & NC_NETCDF4) != 0;
    int numbers[STEPS];
    snprintf(path, sizeof path, "%s", test_path(name));
    assert_int_equal(nc_create(path, mode | NC_CLOBBER, &file), NC_NOERR);
    assert_int_equal(nc_def_dim(file, "time", NC_UNLIMITED, &time), NC_NOERR);
    assert_int_equal(nc_def_dim(file, "x", WIDTH, &x), NC_NOERR);
    assert_int_equal(nc_def_var(file, "t", NC_FLOAT, 2, (const int[]){time, x}, &t), NC_NOERR);
    assert_int_equal(nc_def_var(file, "class", NC_INT, 1, &time, &class), NC_NOERR);
    if (netcdf4) {
        assert_int_equal(nc_def_var_chunking(file, t, NC_CHUNKED, (const size_t[]){7, WIDTH}), NC_NOERR);
        assert_int_equal(nc_def_var_deflate(file, t, 1, 1, 4), NC_NOERR);
        assert_int_equal(nc_def_grp(file, "ocean", &group), NC_NOERR);
        assert_int_equal(nc_def_var(group, "t", NC_DOUBLE, 2, (const int[]){time, x}, &other), NC_NOERR);
    }
    assert_int_equal(nc_enddef(file), NC_NOERR);
    float *values = array_values(0, STEPS * WIDTH);
    for (int i = 0; i < STEPS; i++) {
        numbers[i] = i % 3;
    }
    assert_int_equal(nc_put_vara_float(file, t, start, count, values), NC_NOERR);
    assert_int_equal(nc_put_vara_int(file, class, start, (const size_t[]){STEPS}, numbers), NC_NOERR);
    if (netcdf4) {
        assert_int_equal(nc_put_vara_float(group, other, start, count, values), NC_NOERR);
    }
    free(values);
    assert_int_equal(nc_close(file), NC_NOERR);
    return path;
}

/* NAN replaces the missing elements of floating-point dtypes. In integer dtypes, a missing element stays an error. */
static void integers_without_missing_elements(void) {
    const char *path = write_netcdf("integers.nc", NC_NETCDF4);
    ls_array_options options = {
        .input = {NAMES("t")}, .target = {NAMES("class"), .dtype = LS_I64}, .missing = (double)NAN};
    ls_batch batch;
    ls_loader *loader = begin(ls_netcdf_dataset(path, &options), STEPS, &batch);
    const float *rows = elements(batch.input);
    assert_true(isnan(rows[(STEPS - 1) * WIDTH]) && rows[0] == array_value(0, 0));
    assert_int_equal(((const int64_t *)elements(batch.target))[STEPS - 1], (STEPS - 1) % 3);
    ls_loader_free(loader);
    const ls_array_options classes = {
        .input = {NAMES("class")}, .target = {NAMES("class"), .dtype = LS_I64}, .missing = (double)NAN};
    ls_loader_free(begin(ls_hdf5_dataset(path, &classes), STEPS, &batch));
    int file, class, fill = NC_FILL_INT;
    assert_int_equal(nc_open(path, NC_WRITE, &file), NC_NOERR);
    assert_int_equal(nc_inq_varid(file, "class", &class), NC_NOERR);
    assert_int_equal(nc_put_var1_int(file, class, (const size_t[]){2}, &fill), NC_NOERR);
    assert_int_equal(nc_close(file), NC_NOERR);
    bool more;
    loader = ls_loader_new(ls_netcdf_dataset(path, &options), &(ls_loader_options){.batch_size = STEPS});
    expect_error(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT,
                 "has a missing element: set .missing to a value that .dtype i64 can hold");
    ls_loader_free(loader);
    options.missing = 0.5;
    expect_none(ls_netcdf_dataset(path, &options), LS_ERR_ARGUMENT, ".missing is 0.5, which .dtype i64 cannot hold");
}

/* The last step of t was not written, so its elements are missing. */
static void netcdf_files(void **state) {
    (void)state;
    static const int modes[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA, NC_NETCDF4};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const char *path = write_netcdf("flow.nc", modes[i]);
        const ls_array_options options = {.input = {NAMES(modes[i] == NC_NETCDF4 ? "ocean/t" : "t")},
                                          .target = {NAMES("class"), .dtype = LS_I64},
                                          .missing = -1};
        ls_batch batch;
        ls_loader *loader = begin(ls_netcdf_dataset(path, &options), STEPS, &batch);
        assert_shape(batch.input, STEPS, WIDTH);
        const float *rows = elements(batch.input);
        for (int at = 0; at < STEPS * WIDTH; at++) {
            assert_true(rows[at] == (at < (STEPS - 1) * WIDTH ? array_value(0, at) : -1));
        }
        for (int at = 0; at < STEPS; at++) {
            assert_int_equal(((const int64_t *)elements(batch.target))[at], at % 3);
        }
        ls_loader_free(loader);
    }
    integers_without_missing_elements();
    const ls_array_options options = {.input = {NAMES("t")}, .target = {NAMES("class")}};
    ls_dataset *dataset = ls_netcdf_dataset(write_netcdf("flow4.nc", NC_NETCDF4), &options);
    assert_int_equal(ls_dataset_block(dataset), 7);
    ls_dataset_free(dataset);
    expect_none(ls_hdf5_dataset(write_netcdf("flow3.nc", 0), &options), LS_ERR_FORMAT, "use ls_netcdf_dataset");
    expect_none(ls_netcdf_dataset(write_netcdf("flow4.nc", NC_NETCDF4),
                                  &(ls_array_options){.input = {NAMES("ocean/u")}, .target = {NAMES("class")}}),
                LS_ERR_ARGUMENT, "available: t, class, ocean/t");
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

/* Any cache, order and number of threads gives the same samples. */
static void any_cache(void **state) {
    (void)state;
    ls_array_options options = {.input = {NAMES("u", "run/v")}, .target = {NAMES("u"), .first = 1}};
    const int64_t block = 8 * FIELD * 4, blocks[] = {0, block + STEPS * FIELD * 4, 3 * (block + STEPS * FIELD * 4)};
    const char *path = write_flow();
    for (int i = 0; i < 6; i++) {
        bool more = true;
        ls_batch batch;
        int64_t seen = 0;
        options.cache_bytes = blocks[i % 3];
        ls_dataset *dataset = ls_hdf5_dataset(path, &options);
        assert_non_null(dataset);
        ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 4, .threads = i < 3 ? 0 : 3});
        for (; ls_loader_next(loader, &batch, &more) == LS_OK && more; seen += batch.count) {
            const float *in = elements(batch.input), *out = elements(batch.target);
            for (int64_t sample = 0; sample < batch.count; sample++, in += 2 * FIELD, out += FIELD) {
                int64_t step = 0;
                while (step < STEPS && in[0] != array_value(0, step * FIELD)) {
                    step++;
                }
                for (int64_t at = 0; at < FIELD; at++) {
                    assert_true(in[at] == array_value(0, step * FIELD + at));
                    assert_true(in[FIELD + at] == array_value(1, step * FIELD + at));
                    assert_true(out[at] == array_value(0, (step + 1) * FIELD + at));
                }
            }
        }
        assert_int_equal(seen, STEPS - 1);
        ls_loader_free(loader);
    }
    options.cache_bytes = 100;
    expect_none(ls_hdf5_dataset(path, &options), LS_ERR_ARGUMENT, "set .cache_bytes to at least twice this size");
    options = (ls_array_options){.input = {NAMES("u")}, .target = {NAMES("u")}, .cache_bytes = 4 * block};
    ls_dataset *dataset = ls_hdf5_dataset(path, &options);
    /* Each block may need a different block of the labels, which are not stored in chunks. */
    const ls_array_options labels = {
        .input = {NAMES("u")}, .target = {NAMES("label"), .dtype = LS_I64}, .cache_bytes = 6 * (block + STEPS * 8) - 1};
    assert_null(ls_loader_new(ls_hdf5_dataset(path, &labels), &(ls_loader_options){.shuffle_window = 3}));
    expect_message("windows of 2");
    assert_null(ls_loader_new(ls_dataset_retain(dataset), &(ls_loader_options){.shuffle_window = 3}));
    expect_message("windows of 2");
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.shuffle_window = 2});
    assert_non_null(loader);
    ls_loader_free(loader);
    ls_dataset_free(dataset);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

static void mistakes(void **state) {
    (void)state;
    const char *path = write_flow();
    const struct {
        ls_array_options options;
        ls_status status;
        const char *part;
    } cases[] = {
        {{.target = {NAMES("u")}}, LS_ERR_ARGUMENT, "no variable is specified for the input; set .input.variables"},
        {{.input = {NAMES("w")}, .target = {NAMES("u")}}, LS_ERR_ARGUMENT, "no variable \"w\" in "},
        {{.input = {NAMES("w")}, .target = {NAMES("u")}},
         LS_ERR_ARGUMENT,
         "available: label, run/v, short, text, u, wide"},
        {{.input = {NAMES("none/w")}, .target = {NAMES("u")}}, LS_ERR_ARGUMENT, "available: label"},
        {{.input = {NAMES("run")}, .target = {NAMES("u")}}, LS_ERR_UNSUPPORTED, "variable \"run\""},
        {{.input = {NAMES("text")}, .target = {NAMES("u")}}, LS_ERR_UNSUPPORTED, "its elements are texts"},
        {{.input = {NAMES("u"), .dtype = LS_I64}, .target = {NAMES("u")}},
         LS_ERR_ARGUMENT,
         "floating-point numbers of 4 bytes, which .dtype i64 cannot hold"},
        {{.input = {NAMES("label"), .dtype = LS_I32}, .target = {NAMES("u")}},
         LS_ERR_ARGUMENT,
         "signed integers of 8 bytes, which .dtype i32 cannot hold"},
        {{.input = {NAMES("u"), .dtype = LS_BF16}, .target = {NAMES("u")}}, LS_ERR_ARGUMENT, ".dtype is bf16"},
        {{.input = {NAMES("u")}, .target = {NAMES("short")}}, LS_ERR_SHAPE, "\"short\" of "},
        {{.input = {NAMES("u")}, .target = {NAMES("short")}},
         LS_ERR_SHAPE,
         "has 49 steps along axis 0, but variable \"u\" has 50"},
        {{.input = {NAMES("u", "label")}, .target = {NAMES("u")}}, LS_ERR_SHAPE, "slabs of the same shape"},
        {{.input = {NAMES("u")}, .target = {NAMES("u")}, .axis = 3}, LS_ERR_ARGUMENT, "has 3 axes"},
        {{.input = {NAMES("u"), .offset = LS_SHAPE(1)}, .target = {NAMES("u")}},
         LS_ERR_ARGUMENT,
         "has 2 axes besides the sample axis"},
        {{.input = {NAMES("u"), .offset = LS_SHAPE(0, 3), .extent = LS_SHAPE(0, 3)}, .target = {NAMES("u")}},
         LS_ERR_ARGUMENT,
         "do not fit axis 2"},
        {{.input = {NAMES("u"), .steps = 51}, .target = {NAMES("u")}}, LS_ERR_ARGUMENT, "a sample needs 51"},
        {{.input = {NAMES("u"), .first = -1}, .target = {NAMES("u")}}, LS_ERR_ARGUMENT, "must be 0 or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_none(ls_hdf5_dataset(path, &cases[i].options), cases[i].status, cases[i].part);
    }
    const ls_array_options good = {.input = {NAMES("u")}, .target = {NAMES("u")}};
    expect_none(ls_hdf5_dataset(path, NULL), LS_ERR_ARGUMENT, "the options are NULL");
    expect_none(ls_hdf5_dataset(NULL, &good), LS_ERR_ARGUMENT, "the path is NULL");
    expect_none(ls_hdf5_dataset(test_path("absent.h5"), &good), LS_ERR_IO, "No such file");
    expect_none(ls_hdf5_dataset(test_path("."), &good), LS_ERR_IO, "is not a regular file");
    FILE *other = fopen(test_path("other.h5"), "w");
    assert_true(other != NULL && fputs("step,u\n0,1\n", other) >= 0 && fclose(other) == 0);
    expect_none(ls_hdf5_dataset(test_path("other.h5"), &good), LS_ERR_FORMAT,
                "damaged, incomplete or in a different format");
    expect_none(ls_netcdf_dataset(test_path("other.h5"), &good), LS_ERR_FORMAT, "cannot be read as NetCDF");
}

/* A chunk that was changed after it was written does not match its checksum. A truncated file cannot be opened. */
static void damaged_files(void **state) {
    (void)state;
    const char *path = write_flow();
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u")}};
    ls_batch batch;
    bool more;
    haddr_t address = 0;
    hsize_t size = 0, offset[3];
    unsigned filter = 0;
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), u = H5Dopen2(file, "u", H5P_DEFAULT);
    const hid_t space = H5Dget_space(u);
    assert_true(H5Dget_chunk_info(u, space, 3, offset, &filter, &address, &size) >= 0);
    assert_true(H5Sclose(space) >= 0 && H5Dclose(u) >= 0 && H5Fclose(file) >= 0);
    FILE *bytes = fopen(path, "r+");
    assert_true(fseek(bytes, (long)address + 20, SEEK_SET) == 0);
    assert_true(fwrite("\1\2\3\4\5\6\7", 1, 7, bytes) == 7 && fclose(bytes) == 0);
    ls_loader *loader = ls_loader_new(ls_hdf5_dataset(path, &options), &(ls_loader_options){.batch_size = STEPS});
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_IO);
    expect_message("cannot read variable \"u\" of ");
    expect_message("Fletcher32 checksum");
    expect_message("damaged or has changed");
    ls_loader_free(loader);
    assert_int_equal(truncate(path, 2000), 0);
    expect_none(ls_hdf5_dataset(path, &options), LS_ERR_FORMAT, "damaged, incomplete");
}

/* After the end of a file that was truncated after it was opened, HDF5 itself would read zeros. */
static void truncated_file(void **state) {
    (void)state;
    const char *path = test_path("truncated.h5");
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_hdf5_save(path, &(ls_named){"u", ls_ones(LS_SHAPE(64, 1 << 14), LS_F32)}, 1), LS_OK);
    ls_loader *loader =
        ls_loader_new(ls_hdf5_dataset(path, &(ls_array_options){.input = {NAMES("u")}, .target = {NAMES("u")}}),
                      &(ls_loader_options){.batch_size = 4, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_int_equal(truncate(path, 1 << 12), 0);
    expect_error(ls_loader_next(loader, &batch, &more), LS_ERR_IO,
                 "truncated.h5 was truncated while it was being read");
    ls_loader_free(loader);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* A forked process must not read a file that its parent has opened. */
static void forked_process(void **state) {
    (void)state;
    int child = 0;
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u")}};
    ls_loader *loader = ls_loader_new(ls_hdf5_dataset(write_flow(), &options), NULL);
    const pid_t process = fork();
    if (process == 0) {
        ls_batch batch;
        bool more;
        const ls_status status = ls_loader_next(loader, &batch, &more);
        _exit(status == LS_ERR_STATE && strstr(ls_error_message(), "after ls_spawn or fork") != NULL ? 0 : 1);
    }
    assert_int_equal(waitpid(process, &child, 0), process);
    assert_true(WIFEXITED(child) && WEXITSTATUS(child) == 0);
    ls_loader_free(loader);
}

/* Reads batches until `stop` is set. */
typedef struct background_reader {
    ls_loader *loader;
    atomic_bool stop;
    ls_status status;
} background_reader;

static void *read_batches(void *argument) {
    background_reader *reader = argument;
    ls_batch batch;
    bool more;
    while (reader->status == LS_OK && !atomic_load(&reader->stop)) {
        reader->status = ls_loader_next(reader->loader, &batch, &more);
    }
    return NULL;
}

/* In a forked process, the parent's loader fails, and a new loader can read. Returns an exit status. */
static int read_in_child(const char *path, const ls_array_options *options, ls_dataset *inherited) {
    ls_batch batch;
    bool more;
    alarm(20);                           /* kills a process that hangs */
    if (ls_use_device("cpu") != LS_OK) { /* a forked process lacks the threads of other devices */
        return 3;
    }
    ls_loader *loader = ls_loader_new(inherited, NULL);
    if (ls_loader_next(loader, &batch, &more) != LS_ERR_STATE) {
        return 1;
    }
    ls_loader_free(loader);
    loader = ls_loader_new(ls_hdf5_dataset(path, options), NULL);
    return loader != NULL && ls_loader_next(loader, &batch, &more) == LS_OK ? 0 : 2;
}

/* A process that is forked while another thread reads a block must not wait for locks that this thread holds. */
static void forks_while_a_thread_reads(void **state) {
    (void)state;
    enum { FORKS = 60 };
    const char *path = write_flow();
    /* One block at a time, in random order, so nearly every sample is a read. */
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u")}, .cache_bytes = 8 * FIELD * 4};
    ls_dataset *dataset = ls_hdf5_dataset(path, &options);
    background_reader reader = {.loader = ls_loader_new(ls_dataset_retain(dataset), NULL)};
    assert_non_null(reader.loader);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_batches, &reader), 0);
    for (int i = 0; i < FORKS; i++) {
        int child = 0;
        const pid_t process = fork();
        if (process == 0) {
            _exit(read_in_child(path, &options, dataset));
        }
        assert_int_equal(waitpid(process, &child, 0), process);
        if (!WIFEXITED(child) || WEXITSTATUS(child) != 0) {
            fail_msg("child %d ended with status %x", i, (unsigned)child);
        }
    }
    atomic_store(&reader.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(reader.status, LS_OK);
    ls_loader_free(reader.loader);
    ls_dataset_free(dataset);
}

/* ---- resources --------------------------------------------------------------------------------------------------- */

static const char *read_path, *written_path;

/* Reads an epoch, with conversions of types and axes. */
static ls_status read_all(const ls_array_options *options, const ls_loader_options *loading) {
    ls_loader *loader = ls_loader_new(ls_hdf5_dataset(read_path, options), loading);
    ls_batch batch;
    bool more = loader != NULL;
    ls_status status = loader != NULL ? LS_OK : ls_error_status();
    while (more && status == LS_OK) {
        status = ls_loader_next(loader, &batch, &more);
    }
    ls_loader_free(loader);
    return status;
}

static ls_status read_rows(void) {
    const ls_array_options options = {.input = {NAMES("u", "run/v"), .steps = 2}, .target = {NAMES("u")}};
    return read_all(&options, &(ls_loader_options){.batch_size = 8, .shuffle_window = 2});
}

static ls_status read_columns(void) {
    const ls_array_options options = {.input = {NAMES("wide")}, .target = {NAMES("wide")}, .axis = 1};
    return read_all(&options, &(ls_loader_options){.batch_size = 8});
}

static ls_status save(void) {
    ls_scope *scope = ls_scope_begin();
    const ls_named tensors[] = {{"a", ls_ones(LS_SHAPE(3), LS_BF16)}, {"b/c", ls_ones(LS_SHAPE(2, 2), LS_F64)}};
    ls_status status = scope != NULL ? ls_error_status() : LS_ERR_MEMORY;
    if (scope != NULL && tensors[0].tensor != NULL && tensors[1].tensor != NULL) {
        status = ls_hdf5_save(written_path, tensors, 2);
    }
    const ls_status ended = scope != NULL ? ls_scope_end(scope) : LS_OK;
    return status == LS_OK ? ended : status;
}

/* Runs `program` once, with allocator call `n` failing. Returns whether this call took place. */
static bool run_out(ls_status (*program)(void), long n) {
    test_allocator allocator;
    (void)ls_error_set(LS_OK, "%s", "");
    test_allocator_start(&allocator);
    atomic_store(&allocator.fail_from, n);
    const ls_status status = program();
    const long calls = atomic_load(&allocator.calls), left = test_allocator_stop(&allocator);
    if (left != 0 || status != (calls <= n ? LS_OK : LS_ERR_MEMORY)) {
        fail_msg("allocation %ld fails: status %d, %ld blocks are left: %s", n, status, left, ls_error_message());
    }
    return calls > n;
}

/* Wherever memory runs out, the error is reported, everything is freed and every file is closed. */
static void memory_runs_out(void **state) {
    (void)state;
    static ls_status (*const programs[])(void) = {read_rows, read_columns, save};
    read_path = write_flow();
    written_path = test_path("written.h5");
    assert_int_equal(save(), LS_OK); /* opens the plug-in */
    const int descriptors = test_descriptors_count();
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        long n = 0;
        while (run_out(programs[i], n)) {
            n++;
        }
        assert_true(n > 4);
        assert_int_equal(test_descriptors_count(), descriptors);
    }
}

static void saved_tensors(void **state) {
    (void)state;
    const char *path = test_path("saved.h5");
    ls_scope *scope = ls_scope_begin();
    const ls_named tensors[] = {{"layer/weight", ls_arange(LS_SHAPE(4, 3), LS_BF16)},
                                {"label", ls_arange(LS_SHAPE(4), LS_I64)}};
    assert_int_equal(ls_hdf5_save(path, tensors, 2), LS_OK);
    const ls_array_options options = {.input = {NAMES("layer/weight")}, .target = {NAMES("label"), .dtype = LS_I32}};
    expect_none(ls_hdf5_dataset(path, &options), LS_ERR_ARGUMENT, ".dtype i32 cannot hold");
    const ls_array_options good = {.input = {NAMES("layer/weight")}, .target = {NAMES("label"), .dtype = LS_I64}};
    ls_batch batch;
    ls_loader *loader = begin(ls_hdf5_dataset(path, &good), 4, &batch);
    for (int i = 0; i < 12; i++) {
        assert_true(((const float *)elements(batch.input))[i] == (float)i);
    }
    ls_loader_free(loader);
    expect_error(ls_hdf5_save(path, &(ls_named){"x", NULL}, 1), LS_ERR_ARGUMENT, "is NULL");
    expect_error(ls_hdf5_save(path, (const ls_named[]){{"a", tensors[1].tensor}, {"a/b", tensors[1].tensor}}, 2),
                 LS_ERR_ARGUMENT, "HDF5 cannot add tensor \"a/b\" to ");
    assert_null(strstr(ls_error_message(), "gives no reason"));
    expect_error(ls_hdf5_save("/nowhere/x.h5", tensors, 2), LS_ERR_IO, "cannot write /nowhere/x.h5");
    struct rlimit before; /* a file size limit simulates a full disk; after it, HDF5 must not crash at the exit */
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 1000, .rlim_max = before.rlim_max});
    const ls_status full = ls_hdf5_save(path, tensors, 2);
    setrlimit(RLIMIT_FSIZE, &before);
    expect_error(full, LS_ERR_IO, path);
    loader = begin(ls_hdf5_dataset(path, &good), 4, &batch); /* the failures did not change the file */
    ls_loader_free(loader);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_variables),
        cmocka_unit_test(slabs_and_windows),
        cmocka_unit_test(another_sample_axis),
        cmocka_unit_test(stored_types),
        cmocka_unit_test(netcdf_files),
        cmocka_unit_test(any_cache),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(truncated_file),
        cmocka_unit_test(forked_process),
        cmocka_unit_test(forks_while_a_thread_reads),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(saved_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
