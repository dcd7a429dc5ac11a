#include "parallel/reducer.h"

#include <string.h>

#include "base/memory.h"
#include "comm/hold.h"
#include "parallel/buffers.h"

static const char call[] = "ls_data_parallel";

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Communicator memory that a storage uses. It is returned to the communicator when the last reference is dropped. */
typedef struct comm_memory {
    ls_comm *comm;
    bool shared; /* a later reducer averages gradients that were here */
} comm_memory;

static void release_comm_memory(void *memory, void *user) {
    comm_memory *owner = user;
    ls_comm_release(owner->comm, memory);
    ls_comm_drop(owner->comm);
    ls_free(owner);
}

ls_storage *ls_comm_storage(ls_comm *comm, size_t bytes) {
    void *memory = ls_comm_alloc(comm, bytes);
    if (memory == NULL) {
        return NULL;
    }
    comm_memory *owner = ls_allocate(sizeof *owner);
    ls_storage *storage = owner != NULL ? ls_storage_wrap(&ls_cpu, memory, bytes, release_comm_memory, owner) : NULL;
    if (storage == NULL) {
        ls_free(owner);
        ls_comm_release(comm, memory);
        (void)ls_fail_memory(call, bytes);
        return NULL;
    }
    *owner = (comm_memory){.comm = ls_comm_hold(comm)};
    ls_storage_count(storage, LS_MEMORY_BUCKETS);
    memset(memory, 0, bytes);
    return storage;
}

static comm_memory *owner_of(const ls_storage *storage) {
    return storage->release == release_comm_memory ? storage->user : NULL;
}

bool ls_gradient_reducer_claim(const ls_module *module) {
    bool shared = false;
    for (int i = 0; i < module->parameters.count; i++) {
        const ls_leaf *leaf = module->parameters.items[i].tensor->leaf;
        comm_memory *owner = leaf != NULL && leaf->gradient != NULL ? owner_of(leaf->gradient->storage->whole) : NULL;
        if (owner != NULL) {
            owner->shared = shared = true;
        }
    }
    return shared;
}

bool ls_gradient_reducer_is_shared(const ls_gradient_reducer *reducer) {
    bool shared = false;
    for (int i = 0; i < reducer->flat_count; i++) {
        const comm_memory *owner = owner_of(reducer->wire[i]);
        shared = shared || (owner != NULL && owner->shared);
    }
    return shared;
}

static const ls_device *device_of(const ls_gradient_reducer *reducer) {
    return reducer->flats[0].gradients->device;
}

static ls_dtype wire_dtype(const ls_gradient_reducer *reducer, int flat) {
    return reducer->format->converts ? reducer->format->dtype : reducer->flats[flat].dtype;
}

/* Returns whether the communicator accepts all gradients, and their encoded copies, on their device. */
static bool are_accepted(const ls_gradient_reducer *reducer) {
    bool accepted = true;
    for (int i = 0; i < reducer->flat_count && accepted; i++) {
        accepted = ls_reducing_device(reducer->comm, device_of(reducer), reducer->flats[i].dtype, LS_AVG) != NULL &&
                   ls_reducing_device(reducer->comm, device_of(reducer), wire_dtype(reducer, i), LS_AVG) != NULL;
    }
    return accepted;
}

/*
 * Checks that the sizes are equal on all ranks. Without this function, only the allocation of communicator memory for
 * gradients would check this.
 */
static ls_status agree_on_sizes(const ls_gradient_reducer *reducer) {
    int64_t least[2 * LS_FLAT_LIMIT] = {0};
    for (int i = 0; i < reducer->flat_count; i++) {
        least[i] = reducer->flats[i].count;
        least[LS_FLAT_LIMIT + i] = -reducer->flats[i].count;
    }
    LS_TRY(ls_comm_allreduce(reducer->comm, least, least, 2 * LS_FLAT_LIMIT, LS_I64, LS_MIN, NULL));
    for (int i = 0; i < LS_FLAT_LIMIT; i++) {
        if (least[i] != -least[LS_FLAT_LIMIT + i]) {
            return ls_fail(LS_ERR_MISMATCH,
                           "%s: the models of the ranks differ: they have from %lld to %lld parameter elements", call,
                           (long long)least[i], (long long)-least[LS_FLAT_LIMIT + i]);
        }
    }
    return LS_OK;
}

/* Prepares the wire of a flat buffer. The buffer then has `count` elements. */
static ls_status open_wire(ls_gradient_reducer *reducer, int index, int64_t count) {
    ls_flat *flat = &reducer->flats[index];
    const ls_device *device = device_of(reducer);
    const bool converts = reducer->format->converts;
    const size_t bytes = (size_t)count * ls_dtype_size(wire_dtype(reducer, index));
    if (reducer->in_place) {
        reducer->wire[index] = !converts               ? ls_storage_hold(flat->gradients)
                               : reducer->keeps_memory ? reducer->wire_memory(device, bytes)
                                                       : ls_storage_for(call, device, bytes, LS_MEMORY_BUCKETS);
        return reducer->wire[index] != NULL ? LS_OK : ls_fail_memory(call, bytes);
    }
    ls_storage *wire = reducer->wire[index] = ls_comm_storage(reducer->comm, bytes);
    LS_TRY(ls_made(wire));
    if (converts && !device->is_host) {
        reducer->scratch = ls_storage_for(call, device, bytes, LS_MEMORY_BUCKETS);
        return ls_made(reducer->scratch);
    }
    if (converts || !device->is_host) {
        return LS_OK;
    }
    ls_storage_set_kind(wire, LS_MEMORY_GRADIENTS);
    LS_TRY(ls_module_move_gradients(reducer->model, flat->dtype, wire));
    ls_storage_drop(flat->gradients);
    flat->gradients = ls_storage_hold(wire);
    return LS_OK;
}

static ls_status make_arrays(ls_gradient_reducer *reducer) {
    const size_t count = (size_t)reducer->model->parameters.count;
    reducer->spans = ls_allocate_zeroed(count, sizeof *reducer->spans);
    reducer->pieces = ls_allocate_zeroed(count, sizeof *reducer->pieces);
    reducer->buckets = ls_allocate_zeroed(count, sizeof *reducer->buckets);
    return reducer->spans != NULL && reducer->pieces != NULL && reducer->buckets != NULL
               ? LS_OK
               : ls_fail_memory(call, count * sizeof *reducer->buckets);
}

ls_status ls_gradient_reducer_open(ls_gradient_reducer *reducer, int64_t extra) {
    for (int i = 0; i < reducer->flat_count; i++) {
        (void)ls_storage_hold(reducer->flats[i].gradients);
    }
    LS_TRY(make_arrays(reducer));
    reducer->in_place = reducer->keeps_memory || are_accepted(reducer);
    LS_TRY(reducer->in_place ? agree_on_sizes(reducer) : LS_OK);
    const int last = ls_gradient_reducer_has_extra(reducer) ? reducer->flat_count - 1 : -1;
    for (int i = 0; i < reducer->flat_count; i++) {
        LS_TRY(open_wire(reducer, i, reducer->flats[i].count + (i == last ? extra : 0)));
    }
    return LS_OK;
}

void ls_gradient_reducer_close(ls_gradient_reducer *reducer) {
    for (int i = 0; i < reducer->flat_count; i++) {
        ls_storage_drop(reducer->flats[i].gradients);
        ls_storage_drop(reducer->wire[i]);
    }
    ls_storage_drop(reducer->scratch);
    ls_free(reducer->extents);
    ls_free(reducer->spans);
    ls_free(reducer->pieces);
    ls_free(reducer->buckets);
}

void *ls_gradient_reducer_extra(const ls_gradient_reducer *reducer) {
    const int last = reducer->flat_count - 1;
    const ls_flat *flat = &reducer->flats[last];
    return (char *)reducer->wire[last]->memory + (size_t)flat->count * ls_dtype_size(flat->dtype);
}

int ls_gradient_reducer_flat_of(const ls_gradient_reducer *reducer, const ls_leaf *leaf) {
    int i = reducer->flat_count - 1;
    while (i >= 0 && (leaf->gradient == NULL || leaf->gradient->storage->whole != reducer->flats[i].gradients)) {
        i--;
    }
    return i;
}

bool ls_gradient_reducer_is_home(const ls_gradient_reducer *reducer) {
    const ls_named_list *list = &reducer->model->parameters;
    bool home = true;
    for (int i = 0; i < list->count && home; i++) {
        home = list->items[i].tensor->leaf == NULL ||
               ls_gradient_reducer_flat_of(reducer, list->items[i].tensor->leaf) >= 0;
    }
    return home;
}

ls_status ls_gradient_reducer_reclaim(ls_gradient_reducer *reducer) {
    const ls_device *device = NULL;
    LS_TRY(ls_module_device(reducer->model, call, &device));
    for (int i = 0; i < reducer->flat_count; i++) {
        if (reducer->flats[i].gradients->device != device) {
            return ls_fail(LS_ERR_STATE, "%s: the model has moved to %s: move it before %s", call, device->name, call);
        }
        LS_TRY(ls_module_move_gradients(reducer->model, reducer->flats[i].dtype, reducer->flats[i].gradients));
    }
    return LS_OK;
}

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

static size_t width_of(const ls_gradient_reducer *reducer, int flat) {
    return ls_dtype_size(reducer->flats[flat].dtype);
}

/* Begins a bucket whose encoded gradients end at `end`. Its spans start after the first `used` spans. */
static ls_bucket *begin_bucket(ls_gradient_reducer *reducer, int index, int64_t end, int used) {
    ls_bucket *bucket = &reducer->buckets[reducer->bucket_count++];
    const ls_flat *flat = &reducer->flats[index];
    *bucket = (ls_bucket){.spans = reducer->spans + used,
                          .flat = index,
                          .end = end,
                          .packet = {.format = reducer->format,
                                     .device = flat->gradients->device,
                                     .dtype = flat->dtype,
                                     .reduction = reducer->reduction,
                                     .pieces = reducer->pieces + used,
                                     .in_place = reducer->in_place}};
    return bucket;
}

static void add_spans(const ls_gradient_reducer *reducer, ls_bucket *bucket, int count) {
    ls_wire_packet *packet = &bucket->packet;
    for (int k = 0; k < count; k++) {
        const ls_span *span = &bucket->spans[k];
        reducer->pieces[span - reducer->spans] = (ls_wire_piece){
            .storage = reducer->flats[span->flat].gradients, .offset = span->offset, .count = span->count};
        packet->total += span->count;
    }
    ls_storage *wire = reducer->wire[bucket->flat];
    const int64_t begin = bucket->end - packet->total;
    bucket->span_count = packet->piece_count = count;
    packet->buffer = (char *)wire->memory + (size_t)begin * ls_dtype_size(ls_packet_dtype(packet));
    packet->converted = (ls_wire_piece){.storage = reducer->scratch != NULL ? reducer->scratch : wire, .offset = begin};
}

ls_status ls_gradient_reducer_divide(ls_gradient_reducer *reducer, size_t bytes) {
    const size_t count = (size_t)reducer->model->parameters.count;
    reducer->extents = ls_allocate_for(call, count, sizeof *reducer->extents);
    LS_TRY(ls_made(reducer->extents));
    const ls_span_rule rule = {.bytes = bytes};
    reducer->extent_count = ls_spans_cut(reducer->model, reducer->flats, reducer->flat_count, &rule, reducer->extents);
    return LS_OK;
}

/* Creates the buckets of an extent. Device memory is not moved, so each span on a device needs its own bucket. */
static int cut_extent(ls_gradient_reducer *reducer, const ls_span *extent, const ls_span_rule *rule, int used) {
    const int count = ls_spans_cut(reducer->model, reducer->flats, reducer->flat_count, rule, reducer->spans + used);
    if (!reducer->in_place || reducer->format->converts) {
        if (count > 0 || reducer->extents != NULL) {
            add_spans(reducer, begin_bucket(reducer, extent->flat, extent->offset + extent->count, used), count);
        }
        return count;
    }
    for (int k = used; k < used + count; k++) {
        const ls_span *span = &reducer->spans[k];
        add_spans(reducer, begin_bucket(reducer, extent->flat, span->offset + span->count, k), 1);
    }
    return count;
}

void ls_gradient_reducer_cut(ls_gradient_reducer *reducer, bool (*includes)(const void *user, const ls_leaf *leaf),
                             const void *user) {
    const int count = reducer->extents != NULL ? reducer->extent_count : reducer->flat_count;
    int used = 0;
    reducer->bucket_count = 0;
    for (int i = 0; i < count; i++) {
        const ls_span extent =
            reducer->extents != NULL ? reducer->extents[i] : ls_span_of_flat(reducer->model, reducer->flats, i);
        const ls_span_rule rule = {.includes = includes, .user = user, .within = &extent};
        used += cut_extent(reducer, &extent, &rule, used);
    }
}

int ls_gradient_reducer_bucket_of(const ls_gradient_reducer *reducer, const ls_leaf *leaf) {
    const int flat = ls_gradient_reducer_flat_of(reducer, leaf);
    if (flat < 0) {
        return -1;
    }
    const char *base = reducer->flats[flat].gradients->memory;
    const int64_t offset = ((const char *)leaf->gradient->data - base) / (int64_t)width_of(reducer, flat);
    int i = reducer->bucket_count - 1;
    while (i >= 0 && (reducer->buckets[i].flat != flat || reducer->buckets[i].end <= offset)) {
        i--;
    }
    return i;
}

static ls_status scale_bucket(const ls_gradient_reducer *reducer, const ls_bucket *bucket, double factor) {
    const ls_flat *flat = &reducer->flats[bucket->flat];
    const ls_device *device = flat->gradients->device;
    for (int k = 0; k < bucket->span_count; k++) {
        char *memory =
            (char *)flat->gradients->memory + (size_t)bucket->spans[k].offset * width_of(reducer, bucket->flat);
        LS_TRY(ls_device_kernels(device)->scale(ls_device_stream(device), flat->dtype, bucket->spans[k].count, factor,
                                                memory));
    }
    return LS_OK;
}

ls_status ls_gradient_reducer_scale(const ls_gradient_reducer *reducer, double factor) {
    for (int i = 0; i < reducer->bucket_count && factor != 1; i++) {
        LS_TRY(scale_bucket(reducer, &reducer->buckets[i], factor));
    }
    return LS_OK;
}

ls_status ls_bucket_prepare(const ls_gradient_reducer *reducer, const ls_bucket *bucket, double factor) {
    LS_TRY(factor != 1 ? scale_bucket(reducer, bucket, factor) : LS_OK);
    for (int k = 0; k < bucket->span_count; k++) {
        for (int i = bucket->spans[k].first; i <= bucket->spans[k].last; i++) {
            const ls_leaf *leaf = reducer->model->parameters.items[i].tensor->leaf;
            if (leaf != NULL && !leaf->has_gradient && ls_gradient_reducer_flat_of(reducer, leaf) == bucket->flat) {
                LS_TRY(ls_kernels_of(leaf->gradient)->fill(ls_stream_of(leaf->gradient), leaf->gradient, 0));
            }
        }
    }
    return LS_OK;
}

/* Clears the gaps that encoded gradients have overwritten, because gaps between parameters must be zero. */
static void clear_gaps(const ls_gradient_reducer *reducer, const ls_bucket *bucket) {
    const size_t width = width_of(reducer, bucket->flat);
    char *memory = reducer->wire[bucket->flat]->memory;
    int64_t end = bucket->end;
    for (int k = 0; k < bucket->span_count; k++) {
        const int64_t from = bucket->spans[k].offset + bucket->spans[k].count;
        memset(memory + (size_t)from * width, 0, (size_t)(end - from) * width);
        end = bucket->spans[k].offset;
    }
}

/* Clears the elements after each gradient, into which a user-defined format may have decoded values. */
static void clear_padding(const ls_gradient_reducer *reducer, const ls_bucket *bucket) {
    const int64_t step = LS_FLAT_ALIGNMENT / (int64_t)width_of(reducer, bucket->flat);
    for (int k = 0; k < bucket->span_count; k++) {
        for (int i = bucket->spans[k].first; i <= bucket->spans[k].last; i++) {
            const ls_leaf *leaf = reducer->model->parameters.items[i].tensor->leaf;
            if (leaf != NULL && ls_gradient_reducer_flat_of(reducer, leaf) == bucket->flat) {
                char *end = ls_host_data(leaf->gradient);
                end += (size_t)leaf->gradient->count * width_of(reducer, bucket->flat);
                memset(end, 0, (size_t)(-leaf->gradient->count & (step - 1)) * width_of(reducer, bucket->flat));
            }
        }
    }
}

ls_status ls_bucket_decode(const ls_gradient_reducer *reducer, const ls_bucket *bucket) {
    LS_TRY(bucket->packet.format->decode(&bucket->packet));
    if (!reducer->in_place && reducer->wire[bucket->flat] == reducer->flats[bucket->flat].gradients) {
        clear_gaps(reducer, bucket);
    } else if (reducer->format->functions != NULL) {
        clear_padding(reducer, bucket);
    }
    return LS_OK;
}
