/**
 * @file formats.h
 * Files that others read and write: IDX (MNIST), CSV, NumPy's arrays, safetensors, TensorBoard's event files.
 * IDX, CSV and .npy may be gzipped; every reader checks what it reads and names the file and the place when
 * something is wrong.
 *
 * Memory: whatever a file says, reading it takes at most twice what it holds and what it truly can give, and about
 * 1.5 MiB: of IDX and .npy the tensor; of CSV one line of text (with its numbers as doubles), the names of columns and
 * classes, and the tensor; of safetensors and .npz the tensors, with less than 1 KiB for each beside its elements; of
 * event files the largest record.
 *
 * Writers, but those of event files, make a new file beside `path`, sync it and rename it to `path`, so that a reader
 * sees the old file or the whole new one. A symbolic link at `path` is replaced, not followed; LS_ERR_IO where a
 * device, a pipe or a socket is.
 */
#ifndef LOCKSTEP_FORMATS_H
#define LOCKSTEP_FORMATS_H

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

/** The different texts of a CSV column, sorted by their bytes; the number of a text is its class. Opaque. */
typedef struct ls_csv_classes ls_csv_classes;

/** A CSV column of text. */
typedef struct ls_csv_text {
    const char *column;            /**< its name or number */
    const ls_csv_classes *classes; /**< borrowed: the classes of its texts; NULL: those that this file has */
} ls_csv_text;

/**
 * How to read a CSV file. Zero fields: a header line, commas, all columns, f32, no text, no empty fields. A column is
 * named by its name in the header or, if no column has that name, by its number from "0" on.
 */
typedef struct ls_csv_options {
    char separator;             /**< 0: ',' */
    bool no_header;             /**< the first line is data; columns are then called "0", "1", ... */
    const char *const *columns; /**< the columns to read, in this order; NULL: all */
    int column_count;
    bool all_but; /**< read all columns but the named ones, in the file's order */
    ls_dtype dtype;
    const ls_csv_text *text; /**< the columns of text, which are read as class numbers */
    int text_count;
    double empty;      /**< the value of an empty field, which may be NAN; 0: an error, LS_ZERO: 0 */
    bool class_target; /**< ls_csv_dataset: the one target column holds class numbers */
} ls_csv_options;

/**
 * Reads numbers as a tensor [rows, columns], gzipped or not. Fields may be quoted (RFC 4180), and a line may have 16
 * MiB. Spaces around a field that is not quoted are ignored. A text of a column in `.text` becomes its class number;
 * without a table of its own, such a column takes one more pass over the file. An error names the line and the column:
 * LS_ERR_FORMAT for a field that is not a number, is empty, does not fit an integer dtype or is not one of the classes.
 * `options` may be NULL.
 */
LS_API ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options);

/**
 * Reads the classes of a column, given by its name or number: its different texts that are not empty, at most 10,000.
 * Of the options, separator and no_header count; `options` may be NULL. Give the result to ls_csv_text to read several
 * files with the same class numbers, and free it after them. Returns NULL on failure.
 */
LS_API ls_csv_classes *ls_csv_classes_read(const char *path, const char *column, const ls_csv_options *options);
/** Returns the number of classes; 0 for NULL. */
LS_API int ls_csv_classes_count(const ls_csv_classes *classes);
/** Returns the text of a class, borrowed; NULL after the last. */
LS_API const char *ls_csv_classes_name(const ls_csv_classes *classes, int64_t number);
/** Returns the class of a text; -1 if there is none. */
LS_API int ls_csv_classes_find(const ls_csv_classes *classes, const char *name);
/** Frees the classes. NULL is allowed. */
LS_API void ls_csv_classes_free(ls_csv_classes *classes);

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
 *
 * Integers for which there is no dtype are converted: I8, I16 and U16 to i32; U32 and U64 to i64. A tensor of another
 * dtype (F8_E4M3, say), or a U64 that does not fit, is left out: ls_safetensors_find of its name fails.
 */
LS_API ls_safetensors *ls_safetensors_load(const char *path);
/** The number of tensors in it. */
LS_API int ls_safetensors_count(const ls_safetensors *file);
/** Tensor `index`, in the order of its data, lent; name and tensor are NULL out of range. */
LS_API ls_named ls_safetensors_at(const ls_safetensors *file, int index);
/**
 * The tensor of that name, lent; NULL when there is none. NULL with LS_ERR_UNSUPPORTED, naming tensor and dtype, when
 * the file has a tensor of that name that was left out.
 */
LS_API ls_tensor *ls_safetensors_find(const ls_safetensors *file, const char *name);
/** The text that the metadata holds for `key`, lent; NULL when there is none. */
LS_API const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key);
/** Frees it with its tensors. NULL is allowed. */
LS_API void ls_safetensors_free(ls_safetensors *file);

/**
 * Reads a PNG or JPEG file, of any kind that is usual, as u8 [channels, height, width]: 1 channel is gray, 3 are red,
 * green and blue, 0 what the file has. Opacity is left out, 16 bits become the upper 8, and colours become gray by
 * ITU-R BT.601. libpng and libjpeg are opened when the first such file comes: LS_ERR_UNSUPPORTED where they are
 * missing. LS_ERR_IO when it cannot be read; LS_ERR_FORMAT when it is damaged, cut short, of more than 2^28 pixels or
 * more than its bytes can give, or neither PNG nor JPEG. Takes the memory of the file and twice the picture, of a JPEG
 * file five times.
 */
LS_API ls_tensor *ls_image_read(const char *path, int64_t channels);

/*
 * ---- NumPy ------------------------------------------------------------------------------------------------------
 * Arrays of floating numbers, integers and bool, as np.save and np.savez write them. Integers for which there is no
 * dtype are converted when they are read: int8, int16 and uint16 to i32; uint32 and uint64 to i64, LS_ERR_UNSUPPORTED
 * if a value does not fit. Arrays of other dtypes are LS_ERR_UNSUPPORTED (bf16, which NumPy does not have, is not
 * written).
 */

/**
 * Reads a .npy file of version 1, 2 or 3, gzipped or not, as a tensor with the array's shape: in C or Fortran order, of
 * either byte order. LS_ERR_IO when it cannot be read, LS_ERR_FORMAT when it is cut short, too long, or no .npy file.
 */
LS_API ls_tensor *ls_npy_read(const char *path);

/** Writes a tensor (contiguous) as a .npy file, which np.load reads. LS_ERR_ARGUMENT for bf16. */
LS_API ls_status ls_npy_write(const char *path, const ls_tensor *tensor) LS_WARN_UNUSED;

/** Writes the tensors (contiguous) as an .npz file, not compressed, of less than 4 GiB; np.load gives them by name. */
LS_API ls_status ls_npz_save(const char *path, const ls_named *tensors, int count) LS_WARN_UNUSED;

/** An .npz file in memory. Opaque. */
typedef struct ls_npz ls_npz;

/**
 * Reads an .npz file, compressed or not; NULL and an error when it is not a good one: all members are arrays, their
 * names differ, and their checksums are right. An array that no tensor can hold is left out: ls_npz_find of its name
 * fails.
 */
LS_API ls_npz *ls_npz_load(const char *path);
/** The number of tensors in it. */
LS_API int ls_npz_count(const ls_npz *file);
/** Tensor `index`, in the order of the file, lent; name and tensor are NULL out of range. */
LS_API ls_named ls_npz_at(const ls_npz *file, int index);
/** The tensor of that name, lent; NULL when there is none, with LS_ERR_UNSUPPORTED if it was left out. */
LS_API ls_tensor *ls_npz_find(const ls_npz *file, const char *name);
/** Frees it with its tensors. NULL is allowed. */
LS_API void ls_npz_free(ls_npz *file);

/*
 * ---- TensorBoard's event files ----------------------------------------------------------------------------------
 * `tensorboard --logdir FOLDER` shows what is written into the folder while it is written. A tag names a series, with
 * slashes that group series; a step is where in the series a value belongs. Tags and texts are UTF-8.
 *
 * The calls that write return LS_ERR_ARGUMENT and LS_ERR_SHAPE for what cannot be shown, which then is left out, and
 * LS_ERR_IO, naming the file, when the disk takes no more. Then up to 1 MiB of what was said is kept, to be written
 * when there is room again, and the file ends with a whole record. A writer is used by one thread at a time; several
 * may write into one folder.
 */

/** Writes an event file. Opaque. */
typedef struct ls_events ls_events;

/** Options of ls_events_open. */
typedef struct ls_events_options {
    double flush_seconds; /**< what is older goes to the file with the next record; 0: 10, LS_ZERO: all at once */
    const char *suffix;   /**< at the end of the file's name; NULL: nothing */
} ls_events_options;

/**
 * Begins a new event file, named as TensorBoard's own writers name theirs, in `folder`, which is made where it is
 * missing. `options` may be NULL. Free it with ls_events_close. NULL and LS_ERR_IO when the file cannot be made or
 * written.
 */
LS_API ls_events *ls_events_open(const char *folder, const ls_events_options *options);

/** The file's path, lent; NULL for NULL. */
LS_API const char *ls_events_path(const ls_events *events);

/** A number of a curve; the file keeps it as f32. Allocates nothing. */
LS_API ls_status ls_events_scalar(ls_events *events, const char *tag, int64_t step, double value) LS_WARN_UNUSED;

/**
 * How the elements of a tensor, of any shape, dtype and device, are distributed: their number, extremes, sum, sum of
 * squares, and how many are between limits that are TensorBoard's own, powers of 1.1. Elements must be finite, and
 * there must be some.
 */
LS_API ls_status ls_events_histogram(ls_events *events, const char *tag, int64_t step,
                                     const ls_tensor *tensor) LS_WARN_UNUSED;

/**
 * A picture: [height, width] is gray, [channels, height, width] gray (1), red, green, blue (3) or these and opacity
 * (4). Pixels are u8, or floating numbers from 0 to 1; what lies outside is taken for the nearer of the two. On any
 * device.
 */
LS_API ls_status ls_events_image(ls_events *events, const char *tag, int64_t step,
                                 const ls_tensor *tensor) LS_WARN_UNUSED;

/** A text, shown as Markdown. */
LS_API ls_status ls_events_text(ls_events *events, const char *tag, int64_t step, const char *text) LS_WARN_UNUSED;

/** A node of a graph, of a model for one. Names differ; slashes in them group nodes. */
typedef struct ls_events_node {
    const char *name;
    const char *op;            /**< what it does: "Linear" */
    const char *const *inputs; /**< names of the nodes that its inputs come from, ended by NULL; NULL: it has none */
} ls_events_node;

/** A graph; TensorBoard shows one of a file. */
LS_API ls_status ls_events_graph(ls_events *events, const ls_events_node *nodes, int count) LS_WARN_UNUSED;

/** Writes what has not been written yet. */
LS_API ls_status ls_events_flush(ls_events *events) LS_WARN_UNUSED;

/** Writes what is left, syncs and closes the file; frees the writer, whatever the status. NULL is allowed. */
LS_API ls_status ls_events_close(ls_events *events) LS_WARN_UNUSED;

/** What an event file has under a tag. */
typedef enum ls_events_kind {
    LS_EVENTS_SCALAR,
    LS_EVENTS_HISTOGRAM,
    LS_EVENTS_IMAGE,
    LS_EVENTS_TEXT,
    LS_EVENTS_GRAPH, /**< without a tag */
    LS_EVENTS_OTHER  /**< sound, tensors, what plug-ins write */
} ls_events_kind;

/** One of it. */
typedef struct ls_events_item {
    ls_events_kind kind;
    const char *tag; /**< lent until the callback returns */
    int64_t step;
    double wall_time; /**< seconds since 1970 */
    double value;     /**< of a scalar; 0 of others */
} ls_events_item;

/**
 * Calls `each` with every item of an event file, in the file's order, by whatever writer (scalars that are tensors, as
 * TensorFlow 2 writes them, too). A file whose last record is cut short is still being written: it ends before that.
 * LS_ERR_IO when it cannot be read; LS_ERR_FORMAT, naming the byte, where a record is damaged: what came before has
 * then been given. A status other than LS_OK from `each` ends the reading and is returned.
 */
LS_API ls_status ls_events_read(const char *path, ls_status (*each)(const ls_events_item *item, void *user),
                                void *user) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
