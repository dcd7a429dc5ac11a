/*
 * The buffers of a data-parallel module. Initially, they are equal on all ranks. A storage counts its changes, so a
 * rank knows which buffers it has changed since they were last equal. After the gradients, it sends a mark for each
 * buffer. If any rank has changed a buffer, a second all-reduce averages all changed floating-point buffers.
 *
 * The mean over samples is computed in f64. A rank with n samples adds n x, and the sum is divided by the sum of n. A
 * buffer that is equal on all ranks stays bit-identical: for f32, n x and its sums are exact in f64; for f64, the upper
 * and lower halves of the digits of x are summed separately. n is scaled by a power of two so that no finite x
 * overflows. f64 elements below 1e-297 lose digits, because n x is then subnormal.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/data_parallel.h"
#include "tensor/scope.h"

static const double SAMPLE = 0x1p-32; /* the weight of one sample */
static const double NOTHING = -0.0;   /* x + NOTHING is x, even for x = -0.0 */

static ls_tensor *buffer_at(const ls_averaged_buffers *buffers, int i) {
    return buffers->model->buffers.items[i].tensor;
}

static void note_equal(ls_averaged_buffers *buffers, int i) {
    buffers->records[i].version = buffer_at(buffers, i)->storage->version;
}

ls_status ls_buffers_watch(ls_averaged_buffers *buffers, const char *call, ls_module *model, ls_comm *comm) {
    if (!ls_module_keep_lists(model)) { /* before ls_buffers_close releases them */
        return ls_error_status();
    }
    ls_buffers_close(buffers);
    *buffers =
        (ls_averaged_buffers){.call = call, .model = model, .comm = comm, .count = ls_module_buffer_count(model)};
    buffers->records = ls_allocate_zeroed((size_t)buffers->count, sizeof *buffers->records);
    if (buffers->records == NULL && buffers->count > 0) {
        const size_t bytes = (size_t)buffers->count * sizeof *buffers->records;
        buffers->count = 0;
        return ls_fail_memory(call, bytes);
    }
    for (int i = 0; i < buffers->count; i++) {
        note_equal(buffers, i);
    }
    return LS_OK;
}

void ls_buffers_close(ls_averaged_buffers *buffers) {
    ls_free(buffers->records);
    if (buffers->model != NULL) {
        ls_module_release_lists(buffers->model);
    }
    *buffers = (ls_averaged_buffers){.call = buffers->call, .comm = buffers->comm};
}

bool ls_buffer_has_changed(const ls_averaged_buffers *buffers, int i) {
    return buffers->records[i].version != buffer_at(buffers, i)->storage->version;
}

void ls_buffers_keep_equal(ls_averaged_buffers *buffers, const ls_tensor *changed) {
    if (!ls_module_list(buffers->model)) {
        return; /* the buffer then counts as changed */
    }
    for (int i = 0; i < buffers->count; i++) {
        const ls_storage *storage = buffer_at(buffers, i)->storage;
        if (storage == changed->storage && buffers->records[i].version + 1 == storage->version) {
            buffers->records[i].version = storage->version;
        }
    }
}

/* ---- the mean over samples --------------------------------------------------------------------------------------- */

static bool has_mean(const ls_tensor *buffer) {
    return ls_dtype_is_floating((ls_dtype)buffer->dtype);
}

/* Returns the number of summands that the buffer needs. */
static size_t summands_of(const ls_tensor *buffer) {
    return (size_t)buffer->count * (buffer->dtype == LS_F64 ? 2 : 1);
}

/* Returns the upper half of the digits of x. */
static double upper_half(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~((UINT64_C(1) << 27) - 1);
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* Writes this rank's summands. A rank without samples adds nothing, whatever the buffer contains. */
static ls_status write_summands(const char *call, ls_tensor *buffer, double weight, double *to) {
    ls_tensor *numbers = ls_tensor_dense_on_host(call, buffer, LS_F64);
    LS_TRY(ls_made(numbers));
    const double *x = ls_host_data(numbers);
    const bool split = buffer->dtype == LS_F64;
    for (int64_t i = 0; i < buffer->count; i++) {
        const double upper = split && isfinite(x[i]) ? upper_half(x[i]) : x[i];
        to[i] = weight != 0 ? weight * upper : NOTHING;
        if (split) {
            to[buffer->count + i] = weight != 0 && x[i] != upper ? weight * (x[i] - upper) : NOTHING;
        }
    }
    ls_tensor_drop(numbers);
    return LS_OK;
}

/* Stores f64 elements from host memory in the buffer. */
static ls_status store(const char *call, ls_tensor *buffer, double *numbers) {
    const ls_shape shape = ls_shape_of(buffer);
    ls_tensor *host = ls_tensor_over(&ls_cpu, &shape, LS_F64, numbers);
    if (host == NULL) {
        return ls_fail_memory(call, sizeof *host);
    }
    ls_tensor *there = ls_tensor_on_device(call, host, ls_tensor_device(buffer));
    ls_tensor_drop(host);
    LS_TRY(ls_made(there));
    const ls_kernels *kernels = ls_kernels_of(buffer);
    const ls_status status =
        (buffer->dtype == LS_F64 ? kernels->copy : kernels->cast)(ls_stream_of(buffer), buffer, there);
    ls_tensor_drop(there);
    return status;
}

static ls_status store_mean(const char *call, ls_tensor *buffer, double weight, double *sums) {
    for (int64_t i = 0; i < buffer->count; i++) {
        sums[i] = sums[i] / weight + (buffer->dtype == LS_F64 ? sums[buffer->count + i] / weight : NOTHING);
    }
    ls_tensor_changed(buffer, call);
    return store(call, buffer, sums);
}

/* Calls the function for each floating-point buffer that any rank has changed, with the buffer's elements in `sums`. */
static ls_status for_each_mean(const ls_averaged_buffers *buffers, double weight, double *sums,
                               ls_status (*function)(const char *call, ls_tensor *buffer, double weight,
                                                     double *sums)) {
    for (int i = 0; i < buffers->count; i++) {
        ls_tensor *buffer = buffer_at(buffers, i);
        if (buffers->records[i].changed && has_mean(buffer)) {
            LS_TRY(function(buffers->call, buffer, weight, sums));
            sums += summands_of(buffer);
        }
    }
    return LS_OK;
}

/* numbers[0] is the sum of the samples' weights. The `count` summands of the buffers follow. */
static ls_status average_numbers(const ls_averaged_buffers *buffers, double samples, void *room, size_t count) {
    double *numbers = room;
    numbers[0] = samples * SAMPLE;
    LS_TRY(for_each_mean(buffers, numbers[0], numbers + 1, write_summands));
    LS_TRY(ls_comm_allreduce(buffers->comm, numbers, numbers, 1 + count, LS_F64, LS_SUM, NULL));
    return for_each_mean(buffers, numbers[0], numbers + 1, store_mean);
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

static size_t bytes_of(const ls_tensor *buffer) {
    return (size_t)buffer->count * ls_dtype_size((ls_dtype)buffer->dtype);
}

/* Copies the integer buffers that any rank has changed to `bytes`, or back. */
static ls_status copy_integers(const ls_averaged_buffers *buffers, char *bytes, bool back) {
    for (int i = 0; i < buffers->count; i++) {
        const ls_tensor *buffer = buffer_at(buffers, i);
        if (!buffers->records[i].changed || has_mean(buffer) || buffer->count == 0) {
            continue;
        }
        ls_host_view view;
        LS_TRY(ls_host_view_begin(&view, buffer, back ? LS_HOST_WRITE : LS_HOST_READ));
        memcpy(back ? view.memory : bytes, back ? bytes : view.memory, bytes_of(buffer));
        LS_TRY(ls_host_view_end(&view, LS_OK));
        if (back) {
            ls_tensor_changed(buffer, buffers->call);
        }
        bytes += bytes_of(buffer);
    }
    return LS_OK;
}

/* Integers have no mean: all ranks take the integer buffers of the first rank that has samples. */
static ls_status take_integers(const ls_averaged_buffers *buffers, double samples, void *room, size_t count) {
    int64_t first = samples > 0 ? ls_comm_rank(buffers->comm) : INT64_MAX;
    LS_TRY(copy_integers(buffers, room, false));
    LS_TRY(ls_comm_allreduce(buffers->comm, &first, &first, 1, LS_I64, LS_MIN, NULL));
    LS_TRY(ls_comm_broadcast(buffers->comm, room, count, LS_U8, (int)first, NULL));
    return copy_integers(buffers, room, true);
}

/* ---- all buffers ------------------------------------------------------------------------------------------------- */

/* Calls the function with `bytes` bytes of memory. Does nothing if `bytes` is 0. */
static ls_status with_room(const ls_averaged_buffers *buffers, double samples, size_t bytes, size_t count,
                           ls_status (*function)(const ls_averaged_buffers *buffers, double samples, void *room,
                                                 size_t count)) {
    if (count == 0) {
        return LS_OK;
    }
    void *room = ls_record_allocate(bytes);
    const ls_status status =
        room != NULL ? function(buffers, samples, room, count) : ls_fail_memory(buffers->call, bytes);
    ls_record_release(room, bytes);
    return status;
}

ls_status ls_buffers_average(ls_averaged_buffers *buffers, double samples) {
    size_t summands = 0;
    size_t integers = 0;
    for (int i = 0; i < buffers->count; i++) {
        const ls_tensor *buffer = buffer_at(buffers, i);
        if (buffers->records[i].changed) {
            summands += has_mean(buffer) ? summands_of(buffer) : 0;
            integers += has_mean(buffer) ? 0 : bytes_of(buffer);
        }
    }
    LS_TRY(with_room(buffers, samples, (1 + summands) * sizeof(double), summands, average_numbers));
    LS_TRY(with_room(buffers, samples, integers, integers, take_integers));
    for (int i = 0; i < buffers->count; i++) {
        if (buffers->records[i].changed) {
            note_equal(buffers, i);
        }
    }
    return LS_OK;
}
