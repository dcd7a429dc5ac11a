#include "parallel/shards.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/pages.h"
#include "comm/abort.h"
#include "comm/hold.h"
#include "comm/public_call.h"
#include "parallel/buffers.h"
#include "parallel/cause.h"
#include "parallel/parallel.h"

static ls_shards *shards_of(const ls_sharding *sharding) {
    return (ls_shards *)(void *)sharding;
}

/* ---- ownership --------------------------------------------------------------------------------------------------- */

/*
 * Returns the boundary nearest to an element, from 0 to count. Boundaries are between two parameters or, unless `whole`
 * is set, between two blocks of one parameter.
 */
static int64_t nearest_boundary(const ls_shards *self, const ls_flat *flat, int64_t element) {
    int64_t nearest = flat->count;
    for (int i = 0; i < self->model->parameters.count; i++) {
        const ls_tensor *parameter = self->model->parameters.items[i].tensor;
        if (parameter->leaf == NULL || parameter->storage->whole != flat->parameters) {
            continue;
        }
        const int64_t begin = ls_flat_offset(flat, parameter), distance = element - begin;
        const bool inside = !self->whole && distance > 0 && distance < parameter->count;
        const int64_t lower = inside ? begin + distance / LS_NORM_BLOCK * LS_NORM_BLOCK : begin;
        const int64_t upper =
            inside && lower + LS_NORM_BLOCK < begin + parameter->count ? lower + LS_NORM_BLOCK : lower;
        const int64_t best = upper - element < element - lower ? upper : lower;
        nearest = llabs(best - element) < llabs(nearest - element) ? best : nearest;
    }
    return nearest;
}

static ls_status decide(ls_sharding *sharding, const char *call, bool whole) {
    ls_shards *self = shards_of(sharding);
    if (self->model == NULL) {
        return ls_fail(LS_ERR_STATE, "%s: the module created by ls_data_parallel was freed", call);
    }
    if (self->decided) {
        return self->whole || !whole
                   ? LS_OK
                   : ls_fail(
                         LS_ERR_UNSUPPORTED,
                         "%s: the method needs whole parameters, but .zero has sharded them for an earlier optimizer "
                         "of the model, or for its first run: create this optimizer first",
                         call);
    }
    self->whole = whole;
    self->decided = true;
    for (int i = 0; i < self->flat_count; i++) {
        const ls_flat *flat = &self->flats[i];
        for (int r = 0; r < sharding->ranks; r++) {
            const int64_t end = flat->count / sharding->ranks * (r + 1);
            self->ends[i][r] = r < sharding->ranks - 1 ? nearest_boundary(self, flat, end) : flat->count;
        }
    }
    if (self->on_decided != NULL) {
        self->on_decided(self);
    }
    return LS_OK;
}

ls_status ls_shards_decide(ls_shards *self, const char *call) {
    return self->decided ? LS_OK : decide(&self->base, call, false);
}

static ls_range owned_by(const ls_shards *self, const ls_range *range, int rank) {
    const int64_t *ends = self->ends[range->flat];
    const int64_t first = rank > 0 ? ends[rank - 1] : 0, last = range->offset + range->count;
    const int64_t begin = first > range->offset ? first : range->offset, end = ends[rank] < last ? ends[rank] : last;
    return (ls_range){
        .flat = range->flat, .offset = begin < end ? begin : range->offset, .count = begin < end ? end - begin : 0};
}

ls_range ls_shards_own(const ls_shards *self, const ls_range *range) {
    return owned_by(self, range, self->base.rank);
}

bool ls_shards_find(const ls_shards *self, const ls_tensor *parameter, ls_range *range) {
    int i = self->flat_count - 1;
    while (i >= 0 && self->flats[i].parameters != parameter->storage->whole) {
        i--;
    }
    if (i >= 0) {
        *range = (ls_range){.flat = i, .offset = ls_flat_offset(&self->flats[i], parameter), .count = parameter->count};
    }
    return i >= 0;
}

static ls_shard part(const ls_sharding *sharding, const ls_tensor *parameter) {
    ls_range range;
    if (!ls_shards_find(shards_of(sharding), parameter, &range)) {
        return (ls_shard){.count = -1};
    }
    const ls_range own = ls_shards_own(shards_of(sharding), &range);
    return (ls_shard){.first = own.offset - range.offset, .count = own.count};
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

ls_status ls_shards_check(const ls_shards *self, const char *call) {
    if (self->replicas == NULL) {
        return ls_fail(LS_ERR_STATE, "%s: the module created by ls_data_parallel was freed", call);
    }
    LS_TRY(ls_comm_check_open(call, self->comm));
    return !self->failed ? LS_OK
                         : ls_fail(LS_ERR_STATE,
                                   "%s: an earlier step failed, so the ranks may have different parameters: "
                                   "load a checkpoint (ls_optimizer_load), or stop",
                                   call);
}

/* Records a failure, after which the ranks may have different parameters. */
static ls_status note(ls_shards *self, ls_status status) {
    self->failed = self->failed || status != LS_OK;
    return status;
}

/* Sets the counts and displacements of an exchange of a range. Displacements are relative to element `base`. */
static void count(const ls_shards *self, const ls_range *range, int64_t base, size_t *counts) {
    for (int r = 0; r < self->base.ranks; r++) {
        const ls_range own = owned_by(self, range, r);
        counts[r] = (size_t)own.count;
        counts[self->base.ranks + r] = (size_t)(own.offset - base);
    }
}

/* Returns a number unique to this range, because ranges of different units may have equal counts. */
static uint64_t sign_of(const ls_range *range) {
    return (uint64_t)range->offset * LS_FLAT_LIMIT + (uint64_t)range->flat + 1;
}

/*
 * Sends all elements of a range to every rank, with the counts and displacements of `count`. `memory` contains the
 * element with displacement 0. Fails if the ranks share different ranges.
 */
static ls_status allgather(const ls_shards *self, ls_comm *comm, const ls_range *range, const size_t *counts,
                           char *memory, ls_dtype dtype, ls_work **work) {
    const size_t *displacements = counts + self->base.ranks;
    const char *own = memory + displacements[self->base.rank] * ls_dtype_size(dtype);
    ls_comm_set_check(comm, sign_of(range));
    const ls_status status = ls_comm_allgatherv(comm, own, memory, counts, displacements, dtype, work);
    ls_comm_set_check(comm, 0);
    return status;
}

/* The same for a dense tensor on any device. Waits. */
static ls_status share(const ls_shards *self, const ls_range *range, const ls_tensor *tensor) {
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    const ls_device *on = ls_moving_device(self->comm, ls_tensor_device(tensor), dtype);
    ls_host_view view;
    LS_TRY(ls_buffer_begin(&view, tensor, LS_HOST_READ | LS_HOST_WRITE, on));
    return ls_host_view_end(
        &view,
        LS_ON_DEVICE(self->comm, on, allgather(self, self->comm, range, self->counts, view.memory, dtype, NULL)));
}

ls_status ls_shards_share(ls_shards *self, const ls_range *range) {
    const ls_flat *flat = &self->flats[range->flat];
    count(self, range, 0, self->counts);
    const ls_tensor whole = ls_flat_view(flat->parameters, flat->dtype, flat->count);
    return note(self, share(self, range, &whole));
}

/* Aborts the private communicator if an exchange with overlap could not be started, because the other ranks cannot
 * detect this. Returns the status. */
static ls_status begun(ls_shards *self, ls_status status) {
    return note(self,
                status == LS_OK || self->private_comm == NULL ? status : ls_comm_abort(self->private_comm, status));
}

ls_status ls_shards_begin_share(ls_shards *self, const ls_range *range, ls_range_exchange *exchange) {
    const ls_flat *flat = &self->flats[range->flat];
    count(self, range, 0, exchange->counts);
    return begun(self, allgather(self, self->private_comm, range, exchange->counts, flat->parameters->memory,
                                 flat->dtype, &exchange->work));
}

ls_status ls_shards_end_share(ls_shards *self, ls_range_exchange *exchange) {
    return note(self, ls_work_finish(&exchange->work));
}

void *ls_shards_elements(const ls_shards *self, const ls_range *range, bool gradients) {
    const ls_flat *flat = &self->flats[range->flat];
    char *memory = gradients ? flat->gradients->memory : flat->parameters->memory;
    return memory + (size_t)range->offset * ls_dtype_size(flat->dtype);
}

int64_t ls_shards_encoded_bytes(const ls_shards *self, const ls_range *range) {
    const ls_wire_format *format = self->reducer->format;
    return format->converts ? range->count * (int64_t)ls_dtype_size(format->dtype) : 0;
}

/* Describes the gradients of a range and their encoded form, which has the same offset in the reducer's memory. */
static ls_wire_packet packet_of(const ls_shards *self, const ls_range *range, ls_wire_piece *piece) {
    const ls_flat *flat = &self->flats[range->flat];
    ls_storage *wire = self->reducer->wire[range->flat];
    *piece = (ls_wire_piece){.storage = flat->gradients, .offset = range->offset, .count = range->count};
    ls_wire_packet packet = {.format = self->reducer->format,
                             .device = flat->gradients->device,
                             .dtype = flat->dtype,
                             .pieces = piece,
                             .piece_count = 1,
                             .total = range->count,
                             .in_place = true,
                             .converted = {.storage = wire, .offset = range->offset}};
    packet.buffer = (char *)wire->memory + (size_t)range->offset * ls_dtype_size(ls_packet_dtype(&packet));
    return packet;
}

ls_status ls_shards_begin_reduce(ls_shards *self, const ls_range *range, ls_range_exchange *exchange) {
    const ls_range own = ls_shards_own(self, range);
    ls_wire_piece all_elements, own_elements;
    const ls_wire_packet all = packet_of(self, range, &all_elements), mean = packet_of(self, &own, &own_elements);
    ls_comm *comm = self->private_comm != NULL ? self->private_comm : self->comm;
    ls_shards_count(self, LS_MEMORY_BUCKETS, ls_shards_encoded_bytes(self, range));
    exchange->begun = true;
    exchange->encoded = all.format->encode(&all);
    count(self, range, 0, exchange->counts);
    ls_comm_set_check(comm, sign_of(range));
    const ls_status status =
        ls_comm_reduce_scatterv(comm, all.buffer, mean.buffer, exchange->counts, ls_packet_dtype(&all), LS_AVG,
                                self->private_comm != NULL ? &exchange->work : NULL);
    ls_comm_set_check(comm, 0);
    return begun(self, status);
}

ls_status ls_shards_end_reduce(ls_shards *self, const ls_range *range, ls_range_exchange *exchange) {
    const ls_range own = ls_shards_own(self, range);
    const int64_t encoded_bytes = ls_shards_encoded_bytes(self, range);
    ls_wire_piece all_elements, own_elements;
    const ls_wire_packet all = packet_of(self, range, &all_elements), mean = packet_of(self, &own, &own_elements);
    if (!exchange->begun) {
        return LS_OK;
    }
    exchange->begun = false;
    ls_status status = ls_work_finish(&exchange->work);
    status = exchange->encoded != LS_OK ? exchange->encoded : status == LS_OK ? mean.format->decode(&mean) : status;
    ls_pages_discard(all.buffer, all.buffer + encoded_bytes);
    ls_shards_count(self, LS_MEMORY_BUCKETS, -encoded_bytes);
    return note(self, status);
}

void ls_shards_discard(const ls_shards *self, const ls_range *range, bool gradients) {
    const size_t width = ls_dtype_size(self->flats[range->flat].dtype);
    const ls_range own = ls_shards_own(self, range);
    char *begin = ls_shards_elements(self, range, gradients), *end = begin + (size_t)range->count * width;
    char *first = ls_shards_elements(self, &own, gradients);
    ls_pages_discard(begin, own.count > 0 ? first : end);
    if (own.count > 0) {
        ls_pages_discard(first + (size_t)own.count * width, end);
    }
}

/* ---- for optimizers ---------------------------------------------------------------------------------------------- */

static ls_status check(const ls_sharding *sharding, const char *call) {
    ls_shards *self = shards_of(sharding);
    LS_TRY(ls_shards_check(self, call));
    LS_TRY(self->settle != NULL ? self->settle(self, false) : LS_OK);
    return self->averages(self->replicas)
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "%s: the gradients are not averaged yet (ls_data_parallel_no_sync); with .zero, a step needs "
                         "equal gradients on all ranks",
                         call);
}

static ls_status exchange_parameters(ls_shards *self, const char *call, bool failed, uint64_t method) {
    const int64_t own = (int64_t)(method >> 1);
    int64_t most[] = {own, -own};
    LS_TRY(note(self, ls_failure_share(self->comm, call, failed, most, 2)));
    if (most[0] != -most[1]) {
        return note(
            self,
            ls_fail(
                LS_ERR_MISMATCH,
                "%s: the ranks have different optimizers, options, learning rates, weight decays or numbers of steps: "
                "with .zero, each rank updates a part of the parameters, so use the same settings on all ranks",
                call));
    }
    for (int i = self->stage < 3 || self->gathered ? 0 : self->unit_range_count; i < self->range_count; i++) {
        LS_TRY(ls_shards_share(self, &self->ranges[i]));
    }
    return LS_OK;
}

static ls_status share_parameters(ls_sharding *sharding, const char *call, bool failed, uint64_t method) {
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_OPTIMIZER_STEP);
    return ls_public_end(outer, exchange_parameters(shards_of(sharding), call, failed, method));
}

static ls_status share_tensor(ls_sharding *sharding, const ls_tensor *parameter, const ls_tensor *tensor) {
    ls_shards *self = shards_of(sharding);
    LS_TRY(ls_comm_check_open("ls_optimizer_state", self->comm));
    ls_range range;
    if (!ls_shards_find(self, parameter, &range)) {
        return ls_fail(LS_ERR_STATE,
                       "ls_optimizer_state: a parameter has moved to other memory since ls_data_parallel with .zero: "
                       "move the model to its device before ls_data_parallel");
    }
    count(self, &range, range.offset, self->counts);
    return share(self, &range, tensor);
}

static ls_status add(ls_sharding *sharding, double *numbers, int64_t number_count) {
    ls_shards *self = shards_of(sharding);
    return ls_comm_allreduce(self->comm, numbers, numbers, (size_t)number_count, LS_F64, LS_SUM, NULL);
}

static void restored(ls_sharding *sharding) {
    ls_shards *self = shards_of(sharding);
    if (self->settle != NULL) {
        (void)self->settle(self, true);
    }
    self->failed = false;
}

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

static void release_pages(void *memory, void *user) {
    ls_pages_release(memory, (size_t)(uintptr_t)user);
}

static ls_storage *reserve(const ls_device *device, size_t bytes) {
    void *memory = device->is_host ? ls_pages_reserve(bytes) : NULL;
    ls_storage *storage =
        memory != NULL ? ls_storage_wrap(device, memory, bytes, release_pages, (void *)(uintptr_t)bytes) : NULL;
    if (storage == NULL && memory != NULL) {
        ls_pages_release(memory, bytes);
    }
    return storage;
}

ls_flat_memory *ls_shards_memory(int stage) {
    return stage >= 2 ? reserve : NULL;
}

void ls_shards_count(ls_shards *self, ls_memory_kind kind, int64_t bytes) {
    if (self->account != NULL && bytes > 0) {
        ls_account_begin(ls_thread(), self->account, kind, (size_t)bytes);
    } else if (self->account != NULL && bytes < 0) {
        ls_account_end(ls_thread(), self->account, kind, (size_t)-bytes);
    }
    self->present[kind] += bytes;
}

static void hold(ls_sharding *sharding, bool more) {
    ls_shards *self = shards_of(sharding);
    if (atomic_fetch_add(&self->references, more ? 1 : -1) != 1 || more) {
        return;
    }
    for (int i = 0; i < self->flat_count; i++) {
        ls_storage_drop(self->flats[i].parameters);
        ls_storage_drop(self->flats[i].gradients);
        ls_free(self->ends[i]);
    }
    ls_shards_count(self, LS_MEMORY_PARAMETERS, -self->present[LS_MEMORY_PARAMETERS]);
    ls_shards_count(self, LS_MEMORY_GRADIENTS, -self->present[LS_MEMORY_GRADIENTS]);
    ls_shards_count(self, LS_MEMORY_BUCKETS, -self->present[LS_MEMORY_BUCKETS]);
    ls_account_drop(self->account);
    ls_comm_drop(self->comm);
    ls_free(self->counts);
    ls_free(self->ranges);
    ls_free(self);
}

static ls_shards *make(ls_comm *comm, int stage, const ls_flat *flats, int flat_count) {
    const size_t ranks = (size_t)ls_comm_size(comm);
    ls_shards *self = ls_allocate_zeroed(1, sizeof *self);
    if (self == NULL) {
        return ls_fail_null(LS_ERR_MEMORY, "ls_data_parallel: out of memory");
    }
    self->base.hold = hold;
    atomic_init(&self->references, 1);
    self->comm = ls_comm_hold(comm);
    self->account = stage >= 2 ? ls_account_hold(ls_account_of(ls_thread_present)) : NULL;
    self->counts = ls_allocate_zeroed(2 * ranks, sizeof *self->counts);
    bool good = self->counts != NULL;
    for (; self->flat_count < flat_count; self->flat_count++) {
        const int i = self->flat_count;
        self->flats[i] = flats[i];
        (void)ls_storage_hold(flats[i].parameters);
        ls_shards_count(self, LS_MEMORY_PARAMETERS, flats[i].count * (int64_t)ls_dtype_size(flats[i].dtype));
        self->flats[i].gradients = stage >= 2 ? ls_storage_hold(flats[i].gradients) : NULL;
        self->ends[i] = ls_allocate_zeroed(ranks, sizeof **self->ends);
        good = good && self->ends[i] != NULL;
    }
    if (!good) {
        hold(&self->base, false);
        return ls_fail_null(LS_ERR_MEMORY, "ls_data_parallel: out of memory");
    }
    return self;
}

/* Sets the sharding of all leaves whose sharding is `from`. */
static void mark(const ls_module *model, ls_sharding *from, ls_sharding *to) {
    for (int i = 0; i < model->parameters.count; i++) {
        ls_leaf *leaf = model->parameters.items[i].tensor->leaf;
        if (leaf != NULL && leaf->sharding == from) {
            leaf->sharding = to;
        }
    }
}

static ls_status check_free(const ls_module *model) {
    for (int i = 0; i < model->parameters.count; i++) {
        const ls_leaf *leaf = model->parameters.items[i].tensor->leaf;
        if (leaf != NULL && leaf->sharding != NULL) {
            return ls_fail(LS_ERR_UNSUPPORTED, "ls_data_parallel: \"%s\" already belongs to another module with .zero",
                           model->parameters.items[i].name);
        }
    }
    return LS_OK;
}

ls_shards *ls_shards_open(ls_module *replicas, ls_module *model, int stage, const ls_gradient_reducer *reducer) {
    ls_comm *comm = reducer->comm;
    if (!ls_module_list(model) || check_free(model) != LS_OK) {
        return NULL;
    }
    ls_shards *self = make(comm, stage, reducer->flats, reducer->flat_count);
    if (self == NULL) {
        return NULL;
    }
    self->stage = stage;
    self->replicas = replicas;
    self->model = model;
    self->reducer = reducer;
    self->base = (ls_sharding){.ranks = ls_comm_size(comm),
                               .rank = ls_comm_rank(comm),
                               .comm = comm,
                               .decide = decide,
                               .part = part,
                               .check = check,
                               .share_parameters = share_parameters,
                               .share_tensor = share_tensor,
                               .add = add,
                               .restored = restored,
                               .hold = hold};
    mark(model, NULL, &self->base);
    return self;
}

void ls_shards_close(ls_shards *self) {
    if (self != NULL) {
        if (ls_module_list(self->model)) {
            mark(self->model, &self->base, NULL);
        }
        self->replicas = self->model = NULL;
        self->reducer = NULL;
        self->on_decided = NULL;
        self->settle = NULL;
        hold(&self->base, false);
    }
}
