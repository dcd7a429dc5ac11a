/* Saves tensors as HDF5 files through the plug-in hdf5. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/memory.h"
#include "formats/array_file.h"
#include "formats/named.h"
#include "tensor/device.h"

static const char call[] = "ls_hdf5_save";

/* Describes the tensors for the plug-in. Stores references to the elements on the host in `dense`. */
static ls_status describe(const ls_named *tensors, int count, ls_tensor **dense, ls_array_data *arrays) {
    for (int i = 0; i < count; i++) {
        const ls_tensor *tensor = tensors[i].tensor;
        const ls_dtype dtype = (ls_dtype)tensor->dtype;
        dense[i] = ls_tensor_dense_on_host(call, tensor, dtype == LS_BF16 ? LS_F32 : dtype);
        if (dense[i] == NULL) {
            return ls_error_status();
        }
        arrays[i] = (ls_array_data){.name = tensors[i].name,
                                    .dtype = (ls_dtype)dense[i]->dtype,
                                    .shape = ls_shape_make(tensor->ndim, tensor->size),
                                    .data = ls_host_data(dense[i])};
    }
    return LS_OK;
}

/* Returns an upper bound of the file's size: the elements, and HDF5's headers, names and groups. */
static off_t most_bytes(const ls_array_data *arrays, int count) {
    enum { FILE_HEADER = 1 << 12, VARIABLE_HEADER = 640, GROUP = 1 << 11, NAME_COPIES = 4 };
    size_t bytes = FILE_HEADER;
    for (int i = 0; i < count; i++) {
        size_t elements = 1;
        for (int axis = 0; axis < arrays[i].shape.ndim; axis++) {
            elements *= (size_t)arrays[i].shape.size[axis];
        }
        bytes += elements * ls_dtype_size(arrays[i].dtype) + VARIABLE_HEADER + NAME_COPIES * strlen(arrays[i].name);
        for (const char *slash = strchr(arrays[i].name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
            bytes += GROUP;
        }
    }
    return (off_t)bytes;
}

/*
 * Fails if the disk does not have enough space. If HDF5 itself finds the disk full, it cannot close the file, and
 * crashes when the program exits. HDF5 frees the space when it creates its file, and then uses it.
 */
static ls_status check_space(const ls_new_file *file, const ls_array_data *arrays, int count) {
    if (fallocate(fileno(file->stream), 0, 0, most_bytes(arrays, count)) == 0 ||
        (errno != ENOSPC && errno != EDQUOT && errno != EFBIG)) { /* not every file system can allocate space */
        return LS_OK;
    }
    return ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
}

static ls_status write_file(const char *path, const ls_array_data *arrays, int count) {
    ls_new_file file;
    LS_TRY(ls_file_create(call, path, &file));
    ls_status status = check_space(&file, arrays, count);
    if (status == LS_OK) {
        status = ls_array_file_write(call, file.temporary, path, arrays, count);
    }
    return ls_file_commit(call, &file, status);
}

ls_status ls_hdf5_save(const char *path, const ls_named *tensors, int count) {
    LS_TRY(ls_named_check(call, tensors, count));
    LS_TRY(ls_array_file_need(call, LS_ARRAY_HDF5));
    const size_t size = (size_t)count * (sizeof(ls_tensor *) + sizeof(ls_array_data));
    ls_tensor **dense = ls_allocate_zeroed((size_t)count, sizeof *dense);
    ls_array_data *arrays = ls_allocate_zeroed((size_t)count, sizeof *arrays);
    ls_status status =
        dense != NULL && arrays != NULL ? describe(tensors, count, dense, arrays) : ls_fail_memory(call, size);
    if (status == LS_OK) {
        status = write_file(path, arrays, count);
    }
    for (int i = 0; dense != NULL && i < count; i++) {
        ls_tensor_drop(dense[i]);
    }
    ls_free(dense);
    ls_free(arrays);
    return status;
}
