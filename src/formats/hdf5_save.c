/* Saves tensors as HDF5 files through the plug-in hdf5. */
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

static ls_status write_file(const char *path, const ls_array_data *arrays, int count) {
    ls_new_file file;
    LS_TRY(ls_file_create(call, path, &file));
    return ls_file_commit(call, &file, ls_array_file_write(call, file.temporary, path, arrays, count));
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
