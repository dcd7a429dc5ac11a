/*
 * Array files (HDF5, NetCDF), which plug-ins read and write: formats/array_format.h. Only one thread at a time calls
 * into the plug-ins.
 */
#ifndef LS_FORMATS_ARRAY_FILE_H
#define LS_FORMATS_ARRAY_FILE_H

#include <sys/types.h>

#include "base/status.h"
#include "formats/array_format.h"

typedef enum ls_array_library { LS_ARRAY_HDF5, LS_ARRAY_NETCDF, LS_ARRAY_LIBRARIES } ls_array_library;

typedef struct ls_array_file {
    const char *call; /* begins the messages; borrowed */
    ls_array_library library;
    char *path;
    bool open;
    int64_t id;     /* the plug-in's identifier of the file */
    pid_t process;  /* the process that opened the file */
    int descriptor; /* of the same file, to detect that it was truncated; -1 on failure */
    int64_t bytes;  /* size of the file when it was opened */
} ls_array_file;

/*
 * Returns the plug-in for files of this library. If the plug-in cannot be used, returns NULL and sets `*reason` to the
 * end of a sentence.
 */
const ls_array_format *ls_array_format_open(ls_array_library library, const char **reason);

/* Fails with LS_ERR_UNSUPPORTED, and states the remedy, if the plug-in cannot be used. */
ls_status ls_array_file_need(const char *call, ls_array_library library);

/* Opens a file for reading. */
ls_status ls_array_file_open(const char *call, ls_array_library library, const char *path, ls_array_file *file);
/* Does nothing if the file was not opened. */
void ls_array_file_close(ls_array_file *file);

/*
 * Describes a variable. Release it with ls_array_file_release. Fails with LS_ERR_ARGUMENT, and lists the file's
 * variables, if there is no such variable. Fails with LS_ERR_UNSUPPORTED if no tensor can hold the variable.
 */
ls_status ls_array_file_find(const ls_array_file *file, const char *name, ls_array *array);
void ls_array_file_release(const ls_array_file *file, const ls_array *array);

/*
 * Reads the attributes of the CF conventions. Fails with a reason if the values would be wrong. Called by
 * ls_array_file_find.
 */
bool ls_array_read_attributes(const ls_array_format *format, ls_array *array, char reason[LS_ARRAY_REASON]);

/*
 * Returns whether this process inherited the file through a fork. The process must not read it then, because it shares
 * the file position with its parent.
 */
bool ls_array_file_is_inherited(const ls_array_file *file);

/* Reads a hyperslab: see `read` of ls_array_format. Fails with LS_ERR_IO. */
ls_status ls_array_file_read(const ls_array_file *file, const char *name, const ls_array *array, const int64_t *start,
                             const int64_t *count, ls_dtype dtype, void *to);

/* Overwrites the HDF5 file `temporary`. Messages name `path` instead. Fails with LS_ERR_ARGUMENT if a name is
 * invalid. */
ls_status ls_array_file_write(const char *call, const char *temporary, const char *path, const ls_array_data *arrays,
                              int count);

#endif
