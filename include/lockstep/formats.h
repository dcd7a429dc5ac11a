/**
 * @file formats.h
 * Files that others read and write: IDX (MNIST), CSV, safetensors, time lines. IDX and CSV may be gzipped; every reader
 * checks what it reads and names the file and the place when something is wrong.
 *
 * Memory: whatever a file says, reading it takes at most twice what it holds and what it truly can give, and about
 * 1.5 MiB: of IDX the tensor; of CSV one line of text (with its numbers as doubles) and the tensor; of safetensors the
 * file, with less than 1 KiB for each tensor.
 *
 * Writers make a new file beside `path`, sync it and rename it to `path`, so that a reader sees the old file or the
 * whole new one. A symbolic link at `path` is replaced, not followed; LS_ERR_IO where a device, a pipe or a socket is.
 */
#ifndef LOCKSTEP_FORMATS_H
#define LOCKSTEP_FORMATS_H

#include <lockstep/comm.h>
#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Reads an IDX file (Y. LeCun's MNIST page describes it), gzipped or not, as a tensor with the file's sizes: unsigned
 * bytes as u8, all other integers as i32, floats as f32 and f64. LS_ERR_IO when it cannot be read, LS_ERR_FORMAT
 * when it is cut short, too long or not IDX.
 */
LS_API ls_tensor *ls_idx_read(const char *path);

/** Writes a tensor of u8, i32, f32 or f64 as an IDX file; gzipped when `path` ends in ".gz". */
LS_API ls_status ls_idx_write(const char *path, const ls_tensor *tensor) LS_WARN_UNUSED;

/** How to read a CSV file. Zero fields: a header line, commas, all columns, f32. */
typedef struct ls_csv_options {
    char separator;             /**< 0: ',' */
    bool no_header;             /**< the first line is data; columns are then called "0", "1", ... */
    const char *const *columns; /**< the names of the columns to read, in this order; NULL: all */
    int column_count;
    bool all_but; /**< read all columns but the named ones, in the file's order */
    ls_dtype dtype;
} ls_csv_options;

/**
 * Reads numbers as a tensor [rows, columns], gzipped or not. Fields may be quoted, and a line may have 16 MiB. An error
 * names the line and the column. `options` may be NULL.
 */
LS_API ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options);

/** A tensor and its name. */
typedef struct ls_named {
    const char *name;
    ls_tensor *tensor;
} ls_named;

/**
 * Writes the tensors (contiguous) as a safetensors file. `metadata` is pairs of text, key then value, ended by NULL; it
 * may be NULL.
 */
LS_API ls_status ls_safetensors_save(const char *path, const ls_named *tensors, int count,
                                     const char *const *metadata) LS_WARN_UNUSED;

/** A safetensors file in memory. Opaque. */
typedef struct ls_safetensors ls_safetensors;

/**
 * Reads a safetensors file; NULL and an error when it is not a good one: names must differ, the tensors' bytes lie side
 * by side, and an entry has a dtype, a shape and data_offsets. The numbers may be any, NaN too.
 */
LS_API ls_safetensors *ls_safetensors_load(const char *path);
/** The number of tensors in it. */
LS_API int ls_safetensors_count(const ls_safetensors *file);
/** Tensor `index`, in the order of its data, lent; name and tensor are NULL out of range. */
LS_API ls_named ls_safetensors_at(const ls_safetensors *file, int index);
/** The tensor of that name, lent; NULL when there is none. */
LS_API ls_tensor *ls_safetensors_find(const ls_safetensors *file, const char *name);
/** The text that the metadata holds for `key`, lent; NULL when there is none. */
LS_API const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key);
/** Frees it with its tensors. NULL is allowed. */
LS_API void ls_safetensors_free(ls_safetensors *file);

/**
 * Begins a trace: from now on this thread notes when it did what: communication and waiting for it, operations and
 * their gradients, micro-batches of a pipeline, optimizer steps, batches from a loader, and what ls_trace_span adds. A
 * span takes about 0.1 us and 80 bytes; a million are kept. LS_ERR_STATE when a trace runs.
 */
LS_API ls_status ls_trace_start(void) LS_WARN_UNUSED;

/**
 * Ends the trace and writes those of all ranks of `comm` into one file on rank 0, in Chrome's trace event format, which
 * chrome://tracing and ui.perfetto.dev open; each rank is a process there. Times of ranks on other machines are
 * shifted to rank 0's clock, as well as a barrier tells. LS_ERR_STATE where no trace runs, and LS_ERR_IO on every rank
 * when the file cannot be written. A collective call; the `path` of the others does not matter.
 */
LS_API ls_status ls_trace_stop(ls_comm *comm, const char *path) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
