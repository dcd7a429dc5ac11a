/* Reducers: all-reduces of many tensors, gathered into buckets. */
#include <string.h>

#include "base/freed.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/option.h"
#include "comm/hold.h"
#include "parallel/parallel.h"
#include "parallel/wire.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* Tensors of one dtype on one device that are reduced together. */
typedef struct tensor_bucket {
    ls_wire_packet packet;
    ls_tensor **tensors;   /* holds references, in the order of ls_reducer_add */
    ls_wire_piece *pieces; /* in the opposite order */
    int count;
    int capacity;
    size_t bytes;
    ls_storage *memory; /* buffer for tensors that are not adjacent in memory */
} tensor_bucket;

struct ls_reducer {
    ls_comm *comm; /* held; NULL in a record that ls_reducer_free has retired */
    ls_reduction reduction;
    double scale; /* of the results */
    size_t bucket_bytes;
    bool asynchronous;
    tensor_bucket *buckets; /* reused after ls_reducer_finish */
    int count;              /* number of buckets with tensors; tensors may still be added to the last bucket */
    int started;            /* number of buckets whose all-reduce has started */
    int capacity;
    ls_saved_error failure; /* of the first bucket that could not be reduced; LS_OK if there is none */
};

/* Makes room for one more element in an array of `count` elements. Returns false with an error on failure. */
static bool grow(void **array, int count, int *capacity, size_t width) {
    if (count < *capacity) {
        return true;
    }
    const int more = *capacity > 0 ? 2 * *capacity : 8;
    char *larger = ls_allocate_zeroed((size_t)more, width);
    if (larger == NULL) {
        (void)ls_fail_memory("ls_reducer_add", (size_t)more * width);
        return false;
    }
    memcpy(larger, *array, (size_t)count * width);
    ls_free(*array);
    *array = larger;
    *capacity = more;
    return true;
}

/* Lists the pieces of a bucket. The tensors of a piece are adjacent in memory. */
static ls_status list_pieces(tensor_bucket *bucket) {
    ls_wire_packet *packet = &bucket->packet;
    const size_t width = ls_dtype_size(packet->dtype);
    packet->total = 0;
    packet->piece_count = 0;
    ls_free(bucket->pieces);
    bucket->pieces = ls_allocate_for("ls_reducer_add", (size_t)bucket->count, sizeof *bucket->pieces);
    LS_TRY(ls_made(bucket->pieces));
    ls_wire_piece *piece = bucket->pieces - 1;
    for (int i = bucket->count - 1; i >= 0; i--) {
        const ls_tensor *tensor = bucket->tensors[i];
        ls_storage *whole = tensor->storage->whole;
        const int64_t offset = ((char *)tensor->data - (char *)whole->memory) / (int64_t)width;
        if (packet->piece_count > 0 && piece->storage == whole && piece->offset == offset + tensor->count) {
            piece->offset = offset;
            piece->count += tensor->count;
        } else {
            *++piece = (ls_wire_piece){.storage = whole, .offset = offset, .count = tensor->count};
            packet->piece_count++;
        }
        packet->total += tensor->count;
    }
    packet->pieces = bucket->pieces;
    return LS_OK;
}

static size_t memory_bytes(const tensor_bucket *bucket) {
    return bucket->memory != NULL ? bucket->memory->bytes : 0;
}

/* Chooses the buffer of the all-reduce: the piece itself if it is the only piece and the communicator accepts its
 * memory. */
static ls_status choose_buffer(const ls_reducer *reducer, tensor_bucket *bucket) {
    ls_wire_packet *packet = &bucket->packet;
    const size_t width = ls_dtype_size(packet->dtype), bytes = (size_t)packet->total * width;
    const bool single = packet->piece_count == 1;
    packet->in_place =
        single && !packet->device->is_host && ls_comm_takes(reducer->comm, true, packet->dtype, packet->reduction);
    if (single && (packet->device->is_host || packet->in_place)) {
        packet->buffer = (char *)packet->pieces[0].storage->memory + (size_t)packet->pieces[0].offset * width;
        return LS_OK;
    }
    if (bytes > memory_bytes(bucket)) {
        ls_storage_drop(bucket->memory);
        bucket->memory = ls_storage_for("ls_reducer_add", &ls_cpu, bytes, LS_MEMORY_BUCKETS);
        LS_TRY(ls_made(bucket->memory));
    }
    packet->buffer = bucket->memory != NULL ? bucket->memory->memory : NULL;
    return LS_OK;
}

static ls_status end_bucket(const ls_reducer *reducer, tensor_bucket *bucket) {
    ls_wire_packet *packet = &bucket->packet;
    LS_TRY(packet->format->decode(packet));
    for (int i = 0; i < bucket->count; i++) {
        ls_tensor *tensor = bucket->tensors[i];
        if (reducer->scale != 1) {
            LS_TRY(ls_device_kernels(packet->device)
                       ->scale(ls_device_stream(packet->device), packet->dtype, tensor->count, reducer->scale,
                               tensor->data));
        }
        ls_tensor_changed(tensor, "ls_reducer_add");
    }
    return LS_OK;
}

/* Keeps the first error for ls_reducer_finish. Returns `status`. */
static ls_status note(ls_reducer *reducer, ls_status status) {
    ls_error_save_first(&reducer->failure, status);
    return status;
}

static ls_status start(ls_reducer *reducer, tensor_bucket *bucket) {
    bucket->packet.format = &ls_wire_plain;
    bucket->packet.reduction = reducer->reduction;
    LS_TRY(list_pieces(bucket));
    LS_TRY(choose_buffer(reducer, bucket));
    LS_TRY(ls_packet_start(&bucket->packet, reducer->comm, !reducer->asynchronous));
    return reducer->asynchronous ? LS_OK : end_bucket(reducer, bucket);
}

static ls_status start_last(ls_reducer *reducer) {
    return reducer->started < reducer->count ? note(reducer, start(reducer, &reducer->buckets[reducer->started++]))
                                             : LS_OK;
}

static void empty(tensor_bucket *bucket) {
    for (int i = 0; i < bucket->count; i++) {
        ls_tensor_drop(bucket->tensors[i]);
    }
    bucket->count = 0;
    bucket->bytes = 0;
}

/* Returns the bucket for a tensor, or NULL with an error. */
static tensor_bucket *bucket_for(ls_reducer *reducer, const ls_tensor *tensor) {
    tensor_bucket *last = reducer->started < reducer->count ? &reducer->buckets[reducer->count - 1] : NULL;
    const ls_device *device = ls_tensor_device(tensor);
    if (last != NULL && last->packet.dtype == (ls_dtype)tensor->dtype && last->packet.device == device) {
        return last;
    }
    if (start_last(reducer) != LS_OK ||
        !grow((void **)&reducer->buckets, reducer->count, &reducer->capacity, sizeof *reducer->buckets)) {
        return NULL;
    }
    last = &reducer->buckets[reducer->count++];
    last->packet = (ls_wire_packet){.dtype = (ls_dtype)tensor->dtype, .device = device};
    return last;
}

ls_status ls_reducer_check_here(const char *call, const ls_reducer *reducer) {
    return reducer->comm != NULL ? LS_OK : ls_fail_freed(call, "reducer", "ls_reducer_free");
}

ls_status ls_reducer_add(ls_reducer *reducer, ls_tensor *tensor) {
    if (reducer == NULL || tensor == NULL || !ls_tensor_is_here("ls_reducer_add", tensor)) {
        return reducer != NULL && tensor != NULL
                   ? ls_error_status()
                   : ls_fail(LS_ERR_ARGUMENT, "ls_reducer_add: the %s is NULL", reducer == NULL ? "reducer" : "tensor");
    }
    LS_TRY(ls_reducer_check_here("ls_reducer_add", reducer));
    if (!tensor->contiguous) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_reducer_add: the tensor %s is not contiguous: pass a copy (ls_clone)",
                       LS_SHAPE_TEXT(tensor));
    }
    if (reducer->scale != 1 && tensor->dtype != LS_F32 && tensor->dtype != LS_F64) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_reducer_add: .scale needs tensors of f32 or f64, not %s",
                       ls_dtype_name((ls_dtype)tensor->dtype));
    }
    tensor_bucket *bucket = bucket_for(reducer, tensor);
    if (bucket == NULL || !grow((void **)&bucket->tensors, bucket->count, &bucket->capacity, sizeof(ls_tensor *))) {
        return ls_error_status();
    }
    bucket->tensors[bucket->count++] = ls_tensor_hold(tensor);
    bucket->bytes += (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
    return bucket->bytes >= reducer->bucket_bytes ? start_last(reducer) : LS_OK;
}

ls_status ls_reducer_finish(ls_reducer *reducer) {
    if (reducer == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_reducer_finish: the reducer is NULL");
    }
    LS_TRY(ls_reducer_check_here("ls_reducer_finish", reducer));
    (void)start_last(reducer);
    for (int i = 0; i < reducer->count; i++) {
        tensor_bucket *bucket = &reducer->buckets[i];
        (void)note(reducer, ls_work_finish(&bucket->packet.work));
        if (reducer->asynchronous && reducer->failure.status == LS_OK) {
            (void)note(reducer, end_bucket(reducer, bucket));
        }
        empty(bucket);
    }
    reducer->count = reducer->started = 0;
    const ls_status status = ls_error_put_back_first(&reducer->failure);
    reducer->failure.status = LS_OK;
    return status;
}

ls_reducer *ls_reducer_new(ls_comm *comm, const ls_reducer_options *options) {
    static const ls_reducer_options defaults;
    const ls_reducer_options *chosen = options != NULL ? options : &defaults;
    if (comm == NULL) {
        (void)ls_comm_fail_missing("ls_reducer_new");
        return NULL;
    }
    if (ls_comm_check_open("ls_reducer_new", comm) != LS_OK) {
        return NULL;
    }
    ls_reducer *reducer = ls_allocate_for("ls_reducer_new", 1, sizeof *reducer);
    if (reducer == NULL) {
        return NULL;
    }
    reducer->comm = ls_comm_hold(comm);
    reducer->reduction = chosen->scale == 0 ? LS_AVG : LS_SUM;
    reducer->scale = ls_option(chosen->scale, 1);
    reducer->bucket_bytes = chosen->bucket_bytes;
    reducer->asynchronous = chosen->asynchronous;
    return reducer;
}

ls_comm *ls_reducer_comm(const ls_reducer *reducer) {
    return reducer->comm;
}

/* Frees everything but the record. */
static void empty_reducer(ls_reducer *reducer) {
    for (int i = 0; i < reducer->capacity; i++) {
        tensor_bucket *bucket = &reducer->buckets[i];
        if (i < reducer->started && ls_work_finish(&bucket->packet.work) != LS_OK) {
            ls_log_write(LS_LOG_WARNING, "ls_reducer_free: an unfinished call has failed: %s", ls_error_message());
        }
        empty(bucket);
        ls_free(bucket->tensors);
        ls_free(bucket->pieces);
        ls_storage_drop(bucket->memory);
    }
    ls_free(reducer->buckets);
    ls_comm_drop(reducer->comm);
}

void ls_reducer_free(ls_reducer *reducer) {
    if (reducer != NULL && reducer->comm != NULL) {
        empty_reducer(reducer);
        *reducer = (ls_reducer){.comm = NULL};
        ls_retire(reducer, LS_RETIRED_SINGLE);
    }
}

ls_status ls_allreduce_many(ls_comm *comm, ls_tensor *const *tensors, int count, ls_reduction reduction) {
    LS_TRY(ls_check_tensor_reduction("ls_allreduce_many", reduction));
    if (tensors == NULL && count > 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_allreduce_many: the array of tensors is NULL");
    }
    ls_reducer *reducer = ls_reducer_new(comm, &(ls_reducer_options){.scale = 1, .bucket_bytes = SIZE_MAX});
    LS_TRY(ls_made(reducer));
    reducer->reduction = reduction;
    ls_status status = LS_OK;
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int i = 0; i < count && status == LS_OK; i++) {
            status =
                tensors[i] == NULL || (int)tensors[i]->dtype == dtype ? ls_reducer_add(reducer, tensors[i]) : LS_OK;
        }
    }
    status = status == LS_OK ? ls_reducer_finish(reducer) : status;
    empty_reducer(reducer);
    ls_free(reducer);
    return status;
}
