#include "parallel/buffers.h"

#include "base/status.h"
#include "comm/reduce.h"

const ls_device *ls_reducing_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype,
                                    ls_reduction reduction) {
    return device->library_stream != NULL && ls_comm_takes(comm, true, dtype, reduction) ? device : NULL;
}

const ls_device *ls_moving_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype) {
    return device->library_stream != NULL && ls_comm_takes(comm, false, dtype, (ls_reduction)0) ? device : NULL;
}

ls_status ls_buffer_begin(ls_host_view *view, const ls_tensor *tensor, int access, const ls_device *on) {
    if (on == NULL) {
        return ls_host_view_begin(view, tensor, access);
    }
    *view = (ls_host_view){.memory = tensor->data, .tensor = tensor};
    return LS_OK;
}

ls_tensor *ls_buffer_dense(const char *call, const ls_tensor *tensor, const ls_device *on) {
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    return on != NULL ? ls_tensor_dense(call, tensor, dtype) : ls_tensor_dense_on_host(call, tensor, dtype);
}

void ls_comm_use_device(ls_comm *comm, const ls_device *on) {
    ls_comm_use_stream(comm, on != NULL ? on->library_stream(ls_device_stream(on)) : NULL);
}

void ls_reduce_to(void *result, ls_dtype dtype, ls_reduction reduction, const void *const *sources, int ranks,
                  size_t count) {
    ls_reduce_buffers(&(ls_reduce_task){.dtype = dtype,
                                        .reduction = reduction,
                                        .ranks = ranks,
                                        .sources = sources,
                                        .copies = 1,
                                        .destinations = (void *[]){result},
                                        .count = count});
}
