/**
 * @file formats.h
 * Files in common formats: IDX (MNIST), CSV, PNG, JPEG, NumPy arrays, safetensors, TensorBoard's event files.
 *
 * ```c
 * const ls_csv_options options = {.separator = ';'};
 * ls_tensor *table = ls_csv_read("measured.csv", &options);
 * if (table == NULL || ls_npy_write("measured.npy", table) != LS_OK) {
 *     printf("%s\n", ls_error_message());
 * }
 * ```
 *
 * - IDX, CSV and .npy files may be gzipped. Only zeros may follow the gzipped bytes (LS_ERR_FORMAT).
 * - Readers check the sizes, types and checksums in the file. The error message names the file, and the position if it
 *   is known.
 * - A reader needs at most twice the memory of the data below, plus about 1.5 MiB, whatever sizes the file declares:
 *   - IDX, .npy: the tensor
 *   - CSV: one line of text (with its numbers, 8 bytes each), the names of columns and classes, and the tensor
 *   - safetensors, .npz: the tensors, the header or directory, and less than 1 KiB per tensor
 *   - event files: the largest record
 * - Writers, except the writer of event files, create a new file next to `path`, sync it and rename it to `path`. So
 *   other processes see the old file or the complete new file. Fails with LS_ERR_IO if `path` is a device, a pipe or a
 *   socket, or a link to one, such as /dev/stdout. Other symbolic links at `path` are replaced, not followed.
 * - Writers of several tensors fail with LS_ERR_ARGUMENT if two of them have the same name.
 */
#ifndef LOCKSTEP_FORMATS_H
#define LOCKSTEP_FORMATS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Reads an IDX file (described on Y. LeCun's MNIST page), gzipped or not. Returns a tensor with the file's sizes:
 * unsigned bytes as u8, other integers as i32, floats as f32 and f64. Fails with LS_ERR_IO if the file cannot be read,
 * with LS_ERR_FORMAT if it is truncated, too long or not an IDX file, and with LS_ERR_UNSUPPORTED for more than
 * LS_MAX_DIMS axes.
 */
LS_API ls_tensor *ls_idx_read(const char *path);

/**
 * Writes a tensor (contiguous, one axis or more) of u8, i32, f32 or f64 as an IDX file, gzipped if `path` ends in
 * ".gz". Other dtypes and layouts fail with LS_ERR_ARGUMENT, and sizes from 2^32 on with LS_ERR_SHAPE.
 */
LS_API ls_status ls_idx_write(const char *path, const ls_tensor *tensor) LS_WARN_UNUSED;

/** The distinct strings of a CSV column, sorted by their bytes; the position of a string is its class number. Opaque.
 */
typedef struct ls_csv_classes ls_csv_classes;

/** A CSV column of text. */
typedef struct ls_csv_text {
    const char *column;            /**< name or number of the column */
    const ls_csv_classes *classes; /**< borrowed classes of the strings; NULL selects the classes of this file */
} ls_csv_text;

/**
 * How to read a CSV file. Fields that are zero select a header line, commas, all columns, f32, no text and no empty
 * fields. A column is identified by its name in the header or, if no column has that name, by its number, starting with
 * "0".
 */
typedef struct ls_csv_options {
    char separator;             /**< 0 selects the default, ',' */
    bool no_header;             /**< whether the first line is data; the columns are then named "0", "1", ... */
    const char *const *columns; /**< the columns to read, in this order; NULL selects all */
    int column_count;           /**< number of `columns`, required with `columns` */
    bool all_but;               /**< whether to read all columns except `columns`, in the file's order */
    ls_dtype dtype;
    const ls_csv_text *text; /**< the columns of text, which are read as class numbers */
    int text_count;          /**< number of elements of `text`, required with `text` */
    double empty; /**< value that replaces an empty field (may be NAN); 0 makes an empty field an error, and LS_ZERO
                     selects 0 */
    bool class_target; /**< for ls_csv_dataset: whether the only target column holds class numbers */
} ls_csv_options;

/**
 * Reads numbers from a CSV file, gzipped or not, as a tensor [rows, columns]. `options` may be NULL.
 *
 * - Fields may be quoted (RFC 4180). A line must be shorter than 16 MiB. Lines end with LF, CR LF or CR.
 * - Spaces around an unquoted field are ignored.
 * - Empty lines are ignored, even if the file has one column. In a file with one column, write an empty field as "".
 * - `nan`, `inf` and hexadecimal numbers are read as by strtod.
 * - A string in a column of `.text` becomes its class number. If its classes are not given, each such column needs one
 *   more pass over the file.
 * - Without `.no_header`, the first line is the header even if it contains data, which is then lost. The library only
 *   logs a warning if all fields of the line are numbers, unless `.columns` selects all columns by name.
 * - Integers are exact in an integer dtype. Other numbers are rounded to f64 and then to the dtype, for bf16 and f16
 *   through f32. The result may therefore differ from the nearest number by one unit in the last place. LS_BOOL reads a
 *   number that is 0 in f64 as false, and any other number as true.
 * - Fails with LS_ERR_FORMAT, with the line and the column, if a field is empty (see `empty`), is not a number, or is
 *   not one of the classes. Also fails if a number overflows the dtype, or if the dtype is an integer dtype and
 *   the number is not an integer after it is rounded to f64. For i64, integers of magnitude 2^53 or more must be
 *   decimal, without a point or an exponent.
 * - Fails with LS_ERR_FORMAT too if the file lacks a column, or if two columns have its name.
 */
LS_API ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options);

/**
 * Reads the classes of a column, given by its name or number: its distinct nonempty strings, at most 10,000
 * (LS_ERR_FORMAT). Uses `separator` and `no_header` of the options, which may be NULL. Use the result in ls_csv_text to
 * read several files with the same class numbers. Returns ownership to the caller; free it with ls_csv_classes_free
 * after the last use. Returns NULL on failure.
 */
LS_API ls_csv_classes *ls_csv_classes_read(const char *path, const char *column, const ls_csv_options *options);
/** Returns the number of classes. Returns 0 for NULL. */
LS_API int ls_csv_classes_count(const ls_csv_classes *classes);
/** Returns a borrowed pointer to the string of a class. Returns NULL after the last class. */
LS_API const char *ls_csv_classes_name(const ls_csv_classes *classes, int64_t number);
/** Returns the class of a string. Returns -1 if no class has this string. */
LS_API int ls_csv_classes_find(const ls_csv_classes *classes, const char *name);
/** Frees the classes. NULL is allowed. */
LS_API void ls_csv_classes_free(ls_csv_classes *classes);

/**
 * Writes the tensors (contiguous) as a safetensors file. `metadata` contains keys and values alternately, terminated by
 * NULL. `metadata` may be NULL. Fails with LS_ERR_ARGUMENT if two tensors have the same name, if two keys are equal, if
 * a key has no value, or if a name, a key or a value is not UTF-8.
 */
LS_API ls_status ls_safetensors_save(const char *path, const ls_named *tensors, int count,
                                     const char *const *metadata) LS_WARN_UNUSED;

/** A safetensors file in memory. Opaque. */
typedef struct ls_safetensors ls_safetensors;

/**
 * Reads a safetensors file. Returns ownership to the caller; free it with ls_safetensors_free. Fails with LS_ERR_FORMAT
 * if the file is invalid (names must be unique, the tensors' bytes must have no gaps, and an entry must have dtype,
 * shape and data_offsets), or if a tensor has more than LS_MAX_DIMS axes. Elements may have any value, including NaN.
 *
 * Integers without a dtype in this library are converted: I8, I16 and U16 to i32, U32 and U64 to i64. A tensor with a
 * different dtype (F8_E4M3, ...), or with a U64 that does not fit i64, is skipped. ls_safetensors_find then fails for
 * its name.
 */
LS_API ls_safetensors *ls_safetensors_load(const char *path);
/** Returns the number of tensors. */
LS_API int ls_safetensors_count(const ls_safetensors *file);
/**
 * Returns the name and the tensor at `index`, in data order, as borrowed pointers. Both are NULL if the index is out
 * of range.
 */
LS_API ls_named ls_safetensors_at(const ls_safetensors *file, int index);
/**
 * Returns a borrowed pointer to the tensor with this name. Returns NULL if there is no such tensor. Returns NULL with
 * LS_ERR_UNSUPPORTED, and the dtype in the message, if the tensor was skipped.
 */
LS_API ls_tensor *ls_safetensors_find(const ls_safetensors *file, const char *name);
/** Returns a borrowed pointer to the metadata of `key`. Returns NULL if the key does not exist. */
LS_API const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key);
/** Frees the file and its tensors. NULL is allowed. */
LS_API void ls_safetensors_free(ls_safetensors *file);

/**
 * Reads a PNG or JPEG file as u8 [channels, height, width]. `channels` is 1 for gray, 3 for red, green and blue, or 0
 * for the channels of the file. Ignores the alpha channel, keeps the upper 8 of 16 bits, and converts colors to gray by
 * ITU-R BT.601. Needs memory for the file and twice the image (for JPEG, five times the image). Loads libpng or libjpeg
 * when the first such file is read.
 *
 * - LS_ERR_IO: the file cannot be read.
 * - LS_ERR_FORMAT: the file is damaged or truncated, is neither PNG nor JPEG, is larger than 1 GiB, or has more than
 *   2^28 pixels or more pixels than its bytes can encode. Also for JPEG files with arithmetic coding or over 500 scans.
 * - LS_ERR_UNSUPPORTED: libpng or libjpeg is missing.
 */
LS_API ls_tensor *ls_image_read(const char *path, int64_t channels);

/*
 * ---- NumPy ------------------------------------------------------------------------------------------------------
 * Arrays of floating-point numbers, integers and bool, as in np.save and np.savez. Integers without a dtype in this
 * library are converted by the readers: int8, int16 and uint16 to i32, uint32 and uint64 to i64. Fails with
 * LS_ERR_UNSUPPORTED if a value does not fit, for any other dtype, and for more than LS_MAX_DIMS axes. NumPy has no
 * bf16, so bf16 cannot be written.
 */

/**
 * Reads a .npy file of version 1, 2 or 3, gzipped or not, in C or Fortran order, with either byte order. Returns a
 * tensor with the array's shape. Fails with LS_ERR_IO if the file cannot be read, and with LS_ERR_FORMAT if it is
 * truncated, too long or not a .npy file.
 */
LS_API ls_tensor *ls_npy_read(const char *path);

/** Writes a tensor (contiguous) as a .npy file for np.load. Fails with LS_ERR_ARGUMENT for bf16. */
LS_API ls_status ls_npy_write(const char *path, const ls_tensor *tensor) LS_WARN_UNUSED;

/** Writes the tensors (contiguous) as an uncompressed .npz file of less than 4 GiB. np.load returns them by name. */
LS_API ls_status ls_npz_save(const char *path, const ls_named *tensors, int count) LS_WARN_UNUSED;

/** An .npz file in memory. Opaque. */
typedef struct ls_npz ls_npz;

/**
 * Reads an .npz file, compressed or not. Returns ownership to the caller; free it with ls_npz_free. Returns NULL if the
 * file is invalid: all members must be arrays with unique names and correct checksums. Skips arrays that no tensor can
 * hold, without checking their elements; ls_npz_find then fails for their names.
 */
LS_API ls_npz *ls_npz_load(const char *path);
/** Returns the number of tensors. */
LS_API int ls_npz_count(const ls_npz *file);
/**
 * Returns the name and the tensor at `index`, in file order, as borrowed pointers. Both are NULL if the index is out
 * of range.
 */
LS_API ls_named ls_npz_at(const ls_npz *file, int index);
/**
 * Returns a borrowed pointer to the tensor with this name. Returns NULL if there is no such tensor, and sets
 * LS_ERR_UNSUPPORTED if it was skipped.
 */
LS_API ls_tensor *ls_npz_find(const ls_npz *file, const char *name);
/** Frees the file and its tensors. NULL is allowed. */
LS_API void ls_npz_free(ls_npz *file);

/**
 * Writes the tensors (contiguous) to an HDF5 file, each as an HDF5 dataset with its name, which h5py reads. Slashes in
 * a name create groups. HDF5 has no bf16: such tensors are written as f32. Fails with LS_ERR_UNSUPPORTED if the plug-in
 * lockstep-hdf5.so or the HDF5 library is not installed, and with LS_ERR_ARGUMENT if HDF5 rejects a name, such as "a/b"
 * next to "a". ls_hdf5_dataset (hdf5.h) reads HDF5 files.
 */
LS_API ls_status ls_hdf5_save(const char *path, const ls_named *tensors, int count) LS_WARN_UNUSED;

/*
 * ---- TensorBoard's event files ----------------------------------------------------------------------------------
 * `tensorboard --logdir FOLDER` shows the files of a folder while they are written. A tag names a series; slashes group
 * series. A step is the position of a value in its series. Tags and texts are UTF-8. Only one thread at a time may use
 * a writer. Several writers may write into one folder.
 *
 * - LS_ERR_ARGUMENT, LS_ERR_SHAPE: the value cannot be shown, and is not written.
 * - LS_ERR_IO: the disk is full or fails; the message names the file. The writer keeps up to 1 MiB of records and
 *   writes them when space is available again. The file ends with a complete record.
 */

/** A writer of an event file. Opaque. */
typedef struct ls_events ls_events;

/** Options for ls_events_open. */
typedef struct ls_events_options {
    /**
     * Seconds between writes to the file, checked at each record. The writer also writes when 64 KiB of records are
     * waiting. 0 selects the default, 10. LS_ZERO writes each record at once.
     */
    double flush_seconds;
    const char *suffix; /**< suffix of the file name; NULL selects none */
} ls_events_options;

/**
 * Creates a new event file in `folder`, named like TensorBoard's own files. Creates the folder if it is missing.
 * `options` may be NULL. Returns ownership to the caller; free it with ls_events_close. Returns NULL with
 * LS_ERR_IO if the file cannot be created or written, and with LS_ERR_ARGUMENT if `folder` is NULL or empty or
 * `.flush_seconds` is negative or NaN.
 */
LS_API ls_events *ls_events_open(const char *folder, const ls_events_options *options);

/** Returns a borrowed pointer to the path of the file. Returns NULL for NULL. */
LS_API const char *ls_events_path(const ls_events *events);

/**
 * Writes a point of a curve, with its value as f32. Allocates memory only if the tag is longer than 32 KiB, or while
 * records wait for disk space.
 */
LS_API ls_status ls_events_scalar(ls_events *events, const char *tag, int64_t step, double value) LS_WARN_UNUSED;

/**
 * Writes the distribution of a tensor's elements: number, minimum, maximum, sum, sum of squares, and the counts in
 * TensorBoard's buckets (powers of 1.1). The tensor may have any shape, dtype and device, but must not be empty, and
 * all elements must be finite.
 */
LS_API ls_status ls_events_histogram(ls_events *events, const char *tag, int64_t step,
                                     const ls_tensor *tensor) LS_WARN_UNUSED;

/**
 * Writes an image: gray [height, width] or [1, height, width], RGB [3, height, width], or RGB with opacity [4, height,
 * width]. Pixels are u8, or floating-point numbers that are clamped to 0 to 1. The tensor may be on any device.
 */
LS_API ls_status ls_events_image(ls_events *events, const char *tag, int64_t step,
                                 const ls_tensor *tensor) LS_WARN_UNUSED;

/** Writes text, which TensorBoard renders as Markdown. */
LS_API ls_status ls_events_text(ls_events *events, const char *tag, int64_t step, const char *text) LS_WARN_UNUSED;

/** A node of a graph, for example of a model. Names must be unique; slashes in names group nodes. */
typedef struct ls_events_node {
    const char *name;
    const char *op;            /**< operation of the node, for example "Linear" */
    const char *const *inputs; /**< names of the input nodes, terminated by NULL; NULL means no inputs */
} ls_events_node;

/**
 * Writes a graph. TensorBoard shows one graph per file. Fails with LS_ERR_ARGUMENT if a node has no name or operation,
 * two nodes have the same name, or an input is not the name of a node.
 */
LS_API ls_status ls_events_graph(ls_events *events, const ls_events_node *nodes, int count) LS_WARN_UNUSED;

/** Writes all pending records to the file. */
LS_API ls_status ls_events_flush(ls_events *events) LS_WARN_UNUSED;

/** Writes the pending records, syncs and closes the file, and frees the writer, even on failure. NULL is allowed. */
LS_API ls_status ls_events_close(ls_events *events) LS_WARN_UNUSED;

/** The kind of an item in an event file. */
typedef enum ls_events_kind {
    LS_EVENTS_SCALAR,
    LS_EVENTS_HISTOGRAM,
    LS_EVENTS_IMAGE,
    LS_EVENTS_TEXT,
    LS_EVENTS_GRAPH, /**< no tag */
    LS_EVENTS_OTHER  /**< audio, tensors, plug-in data */
} ls_events_kind;

/** An item of an event file. */
typedef struct ls_events_item {
    ls_events_kind kind;
    const char *tag; /**< borrowed until the callback returns */
    int64_t step;
    double wall_time; /**< seconds since 1970 */
    double value;     /**< value of a scalar; 0 for items of other kinds */
} ls_events_item;

/**
 * Calls `each` with every value and graph of an event file, in the file's order. Reads files from any writer, including
 * scalars that TensorFlow 2 writes as tensors. A tensor without the name of its plug-in has the kind of the earlier
 * values with its tag, because TensorFlow's FileWriter names the plug-in only once per tag. In a file with more than
 * 40,000 tags of texts, histograms and images, such a tensor may be LS_EVENTS_OTHER. An incomplete last record ends the
 * reading without an error, because the file is still being written. If `each` returns a status other than LS_OK, stops
 * and returns this status. Fails with LS_ERR_IO if the file cannot be read. If a record is damaged, fails with
 * LS_ERR_FORMAT after the items before the damage; the message gives the byte offset of the record.
 */
LS_API ls_status ls_events_read(const char *path, ls_status (*each)(const ls_events_item *item, void *user),
                                void *user) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
