/**
 * @file hdf5.h
 * Data sets from files of arrays: HDF5 and NetCDF.
 *
 * ```c
 * const char *const inputs[] = {"u", "v"};
 * const char *const targets[] = {"pressure"};
 * const ls_array_options options = {.input = {.variables = inputs, .variable_count = 2},
 *                                   .target = {.variables = targets, .variable_count = 1}};
 * ls_dataset *data = ls_netcdf_dataset("flow.nc", &options);
 * ls_loader *batches = ls_loader_new(data, &(ls_loader_options){.batch_size = 32, .shuffle_window = 16});
 * ls_loader_free(batches);
 * ```
 *
 * The plug-ins lockstep-hdf5.so and lockstep-netcdf.so contain all code that needs HDF5 or NetCDF. The library loads
 * them on first use.
 */
#ifndef LOCKSTEP_HDF5_H
#define LOCKSTEP_HDF5_H

#include <lockstep/data.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The input or the target of a sample: variables in the file, and the part of them that belongs to a sample. Only
 * `variables` is required, with its count.
 *
 * A variable contributes [steps, slab...] to a sample, or [slab...] if `steps` is 0. Several variables are stacked
 * along a first axis: [variables, steps, slab...]. Their slabs must have the same shape.
 */
typedef struct ls_array_field {
    const char *const *variables; /**< names of the variables, including their groups, such as "run1/u" */
    int variable_count;
    /**
     * The dtype of the batches: f32, f64, i64, i32 or u8. For an integer dtype, the file must store the variables in an
     * integer type whose whole range fits. f32 and f64 round values that they cannot represent.
     */
    ls_dtype dtype;
    int64_t first; /**< offset of the first step from the sample's own step, at least 0; use 1 for the target of a
                      forecast */
    int64_t steps; /**< number of consecutive steps per sample, which form an extra axis; 0 selects one step and no
                      extra axis */
    /** First index along each axis other than the sample axis. The empty shape selects 0 for all axes. */
    ls_shape offset;
    /** Number of elements along each axis other than the sample axis; 0 selects the rest of the axis, and the empty
     * shape selects the rest of all axes. */
    ls_shape extent;
} ls_array_field;

/** Options for ls_hdf5_dataset and ls_netcdf_dataset. The variables of both fields are required. */
typedef struct ls_array_options {
    ls_array_field input;
    ls_array_field target;
    int axis;       /**< sample axis of all variables; all must have the same size along it */
    int64_t stride; /**< stride between samples, in steps along the sample axis; 0 selects the default, 1 */
    double missing; /**< value that replaces missing elements; 0 makes a missing element an error, and LS_ZERO selects
                       0. With NAN, a missing element is an error if `.dtype` of the field is an integer dtype */
    /**
     * Size of the cache for the blocks of all variables together, in bytes. Counts the decompressed elements in the
     * slab, in the dtype of the batches. Memory that HDF5 or NetCDF use themselves is not included. 0 selects 64 MiB,
     * or twice the size of the blocks that ls_dataset_block samples need if this is larger. A cache
     * that is smaller than one block of each variable fails with LS_ERR_ARGUMENT.
     */
    int64_t cache_bytes;
} ls_array_options;

/**
 * Returns a data set with samples from variables in an HDF5 file. Sample i begins at step i * stride of the sample
 * axis. Incomplete samples at the end are dropped. Copies the path, the options and the names. Returns ownership to the
 * caller; free the data set with ls_dataset_free.
 *
 * - The file stays open and may be larger than memory. Each batch reads the blocks that it needs: whole chunks along
 *   the sample axis, or 64 KiB of a variable without chunks. The least recently used blocks are evicted.
 * - Every process reads the file independently, so the serial HDF5 library is sufficient on any number of ranks. Use
 *   .shuffle_window of ls_loader_options for a compressed file: each rank then decompresses little more than its part.
 * - An element is missing if it equals the attribute `_FillValue` or `missing_value` of its variable. In NetCDF-4
 *   files, NetCDF's default fill value replaces an absent `_FillValue`, except for variables of one-byte types and in
 *   no-fill mode.
 * - All other elements that were never written have the fill value of the variable, 0 by default. In no-fill mode, they
 *   may have any value.
 * - Values of variables with the attributes `scale_factor` and `add_offset` are unpacked, into f32 or f64.
 * - HDF5 is called by one thread at a time. A program that calls HDF5 itself while a loader with threads is running
 *   needs an HDF5 built with thread safety, such as Debian's.
 *
 * Fails with:
 *
 * - LS_ERR_UNSUPPORTED: the plug-in or the HDF5 library is not installed, the plug-in belongs to a different version of
 *   Lockstep, or a variable cannot be used (see below)
 * - LS_ERR_IO: the file does not exist or may not be read; when samples are read: a block is damaged, or the file was
 *   truncated
 * - LS_ERR_STATE, when samples are read: the data set was created before ls_spawn or fork
 * - LS_ERR_FORMAT: HDF5 cannot open the file, because it is damaged, not an HDF5 file, or being written by another
 *   program; when samples are read: one of their elements is missing, without `.missing` or with NAN and an integer
 *   dtype
 * - LS_ERR_ARGUMENT: a variable does not exist (the message lists the variables), no sample is complete, or an
 *   option is wrong
 * - LS_ERR_SHAPE: the variables differ in their number of steps or in their slabs, or a batch would have too many axes
 *
 * A variable cannot be used in these cases (LS_ERR_UNSUPPORTED):
 *
 * - The name belongs to a group, or to an object that HDF5 cannot open.
 * - The elements are neither integers, nor floating-point numbers, nor an enumeration of integers.
 * - The variable is a single value without axes, or has more than LS_MAX_DIMS axes.
 * - The variable is compressed with a filter that this HDF5 library lacks.
 * - The attribute `scale_factor`, `add_offset` or `_FillValue` is not one number, or the attribute `missing_value` is
 *   not one to three numbers.
 * - The variable has the attribute `_Unsigned`.
 * - The variable is virtual, and a source is missing, virtual too, or named by a pattern.
 */
LS_API ls_dataset *ls_hdf5_dataset(const char *path, const ls_array_options *options);

/**
 * Returns a data set with samples from variables in a NetCDF file, classic (CDF-1, CDF-2, CDF-5) or NetCDF-4.
 * Ownership, copies, blocks and errors are as for ls_hdf5_dataset.
 *
 * - Missing elements are as for ls_hdf5_dataset. Classic files are treated like NetCDF-4 files.
 * - HDF5 virtual variables are rejected with LS_ERR_UNSUPPORTED: use ls_hdf5_dataset. Enumerations and other
 *   user-defined types fail with LS_ERR_UNSUPPORTED too.
 * - Passing the name of a group, or of a variable that the NetCDF library does not list, fails with LS_ERR_ARGUMENT.
 * - A classic file fails with LS_ERR_FORMAT if it is shorter than its header declares. The message gives both sizes.
 * - When the NetCDF library opens its first file, it switches off HDF5's error printing for the whole program. A
 *   program that wants HDF5 to print errors must call H5Eset_auto2 after ls_netcdf_dataset.
 */
LS_API ls_dataset *ls_netcdf_dataset(const char *path, const ls_array_options *options);

#ifdef __cplusplus
}
#endif

#endif
