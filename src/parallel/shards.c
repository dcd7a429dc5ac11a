#include "parallel/shards.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/memory.h"
#include "comm/hold.h"
#include "parallel/buffers.h"
#include "parallel/cause.h"
#include "parallel/data_parallel.h"

/* Of one flat buffer: the elements of rank r start at displacements[r], which is a multiple of LS_FLAT_ALIGNMENT. */
typedef struct flat_shards {
    ls_flat flat; /* holds the memory of the parameters */
    size_t *counts;
    size_t *displacements;
} flat_shards;

typedef struct shards {
    ls_sharding base; /* first member */
    atomic_int references;
    ls_module *replicas; /* borrowed; NULL after ls_shards_close */
    ls_module *model;    /* borrowed, like it */
    ls_comm *comm;
    flat_shards flats[LS_FLAT_LIMIT];
    int flat_count;
    size_t *numbers; /* memory of the arrays, and of as many for one tensor */
    bool decided;
    bool whole;  /* each rank owns whole parameters */
    bool failed; /* a step failed on some rank: the ranks may have different parameters */
} shards;

static shards *shards_of(const ls_sharding *sharding) {
    return (shards *)(void *)sharding;
}

/* ---- ownership --------------------------------------------------------------------------------------------------- */

/* Returns the first element after those of rank `rank` if every rank owns equally many. */
static int64_t equal_end(const shards *self, const ls_flat *flat, int rank) {
    const int64_t step = LS_FLAT_ALIGNMENT / (int64_t)ls_dtype_size(flat->dtype);
    return flat->count / step * (rank + 1) / self->base.ranks * step;
}

/* Returns the place between two parameters that is nearest to an element. */
static int64_t nearest_end(const shards *self, const ls_flat *flat, int64_t element) {
    int64_t nearest = flat->count;
    for (int i = 0; i < self->model->parameters.count; i++) {
        const ls_tensor *parameter = self->model->parameters.items[i].tensor;
        if (parameter->leaf != NULL && parameter->storage->whole == flat->parameters) {
            const int64_t offset = ls_flat_offset(flat, parameter);
            nearest = llabs(offset - element) < llabs(nearest - element) ? offset : nearest;
        }
    }
    return nearest;
}

static void decide_flat(const shards *self, flat_shards *of) {
    int64_t begin = 0;
    for (int r = 0; r < self->base.ranks; r++) {
        const bool last = r == self->base.ranks - 1;
        int64_t end = last ? of->flat.count : equal_end(self, &of->flat, r);
        end = self->whole && !last ? nearest_end(self, &of->flat, end) : end;
        of->displacements[r] = (size_t)begin;
        of->counts[r] = (size_t)(end - begin);
        begin = end;
    }
}

static ls_status decide(ls_sharding *sharding, const char *call, bool whole) {
    shards *self = shards_of(sharding);
    if (self->model == NULL) {
        return ls_fail(LS_ERR_STATE, "%s: the module of ls_data_parallel was freed", call);
    }
    if (self->decided) {
        return self->whole || !whole
                   ? LS_OK
                   : ls_fail(LS_ERR_UNSUPPORTED,
                             "%s: the method needs whole parameters, but .zero has cut them for an earlier optimizer of "
                             "the model: create this optimizer first",
                             call);
    }
    self->whole = whole;
    self->decided = true;
    for (int i = 0; i < self->flat_count; i++) {
        decide_flat(self, &self->flats[i]);
    }
    return LS_OK;
}

/* Returns the flat buffer of a parameter; NULL if the parameter was moved to other memory. */
static const flat_shards *flat_of(const shards *self, const ls_tensor *parameter) {
    int i = self->flat_count - 1;
    while (i >= 0 && self->flats[i].flat.parameters != parameter->storage->whole) {
        i--;
    }
    return i >= 0 ? &self->flats[i] : NULL;
}

static ls_shard part(const ls_sharding *sharding, const ls_tensor *parameter, int rank) {
    const flat_shards *of = flat_of(shards_of(sharding), parameter);
    if (of == NULL) {
        return (ls_shard){.count = 0};
    }
    const int64_t offset = ls_flat_offset(&of->flat, parameter);
    const int64_t begin = (int64_t)of->displacements[rank] - offset;
    const int64_t end = begin + (int64_t)of->counts[rank];
    const int64_t first = begin > 0 ? begin : 0, last = end < parameter->count ? end : parameter->count;
    return (ls_shard){.first = first, .count = last > first ? last - first : 0};
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static ls_status check(const ls_sharding *sharding, const char *call) {
    const shards *self = shards_of(sharding);
    if (self->replicas == NULL) {
        return ls_fail(LS_ERR_STATE, "%s: the module of ls_data_parallel was freed", call);
    }
    LS_TRY(ls_comm_check_open(call, self->comm));
    if (self->failed) {
        return ls_fail(LS_ERR_STATE,
                       "%s: an earlier step has failed, so that the ranks may have different parameters: load a "
                       "checkpoint (ls_optimizer_load), or stop",
                       call);
    }
    return ls_data_parallel_averages(self->replicas)
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "%s: the gradients are not averaged yet (ls_data_parallel_no_sync); with .zero, a step needs "
                         "equal gradients on all ranks",
                         call);
}

/* Gives every rank all elements of a dense tensor of which rank r has counts[r] from displacements[r] on. */
static ls_status share(shards *self, const ls_tensor *tensor, const size_t *counts, const size_t *displacements) {
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    const ls_device *on = ls_moving_device(self->comm, ls_tensor_device(tensor), dtype);
    ls_host_view view;
    LS_TRY(ls_buffer_begin(&view, tensor, LS_HOST_READ | LS_HOST_WRITE, on));
    const char *own = (const char *)view.memory + displacements[self->base.rank] * ls_dtype_size(dtype);
    return ls_host_view_end(&view, LS_ON_DEVICE(self->comm, on,
                                                ls_comm_allgatherv(self->comm, own, view.memory, counts, displacements,
                                                                   dtype, NULL)));
}

static ls_status share_parameters(ls_sharding *sharding, const char *call, bool failed) {
    shards *self = shards_of(sharding);
    uint8_t any = failed;
    LS_TRY(ls_comm_allreduce(self->comm, &any, &any, 1, LS_U8, LS_MAX, NULL));
    if (any != 0) {
        self->failed = true;
        return ls_cause_share(self->comm, call, failed);
    }
    for (int i = 0; i < self->flat_count; i++) {
        const flat_shards *of = &self->flats[i];
        const ls_tensor flat = ls_flat_view(of->flat.parameters, of->flat.dtype, of->flat.count);
        LS_TRY(share(self, &flat, of->counts, of->displacements));
    }
    return LS_OK;
}

static ls_status share_tensor(ls_sharding *sharding, const ls_tensor *parameter, const ls_tensor *tensor) {
    shards *self = shards_of(sharding);
    const int ranks = sharding->ranks;
    size_t *counts = self->numbers + 2 * (size_t)ranks * LS_FLAT_LIMIT, *displacements = counts + ranks;
    for (int r = 0; r < ranks; r++) {
        const ls_shard of = part(sharding, parameter, r);
        counts[r] = (size_t)of.count;
        displacements[r] = of.count > 0 ? (size_t)of.first : 0;
    }
    LS_TRY(ls_comm_check_open("ls_optimizer_state", self->comm));
    return share(self, tensor, counts, displacements);
}

static void restored(ls_sharding *sharding) {
    shards_of(sharding)->failed = false;
}

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

static void hold(ls_sharding *sharding, bool more) {
    shards *self = shards_of(sharding);
    if (atomic_fetch_add(&self->references, more ? 1 : -1) != 1 || more) {
        return;
    }
    for (int i = 0; i < self->flat_count; i++) {
        ls_storage_drop(self->flats[i].flat.parameters);
    }
    ls_comm_drop(self->comm);
    ls_free(self->numbers);
    ls_free(self);
}

static shards *make(ls_comm *comm, const ls_flat *flats, int flat_count) {
    const size_t ranks = (size_t)ls_comm_size(comm);
    shards *self = ls_allocate_zeroed(1, sizeof *self);
    size_t *numbers = ls_allocate_zeroed(2 * ranks * (LS_FLAT_LIMIT + 1), sizeof *numbers);
    if (self == NULL || numbers == NULL) {
        ls_free(self);
        ls_free(numbers);
        (void)ls_fail_memory("ls_data_parallel", sizeof *self);
        return NULL;
    }
    self->numbers = numbers;
    self->comm = ls_comm_hold(comm);
    self->flat_count = flat_count;
    atomic_init(&self->references, 1);
    for (int i = 0; i < flat_count; i++) {
        flat_shards *of = &self->flats[i];
        *of = (flat_shards){.flat = flats[i], .counts = numbers, .displacements = numbers + ranks};
        of->flat.gradients = NULL;
        atomic_fetch_add_explicit(&of->flat.parameters->references, 1, memory_order_relaxed);
        numbers += 2 * ranks;
    }
    return self;
}

/* Sets the sharding of all leaves that have the sharding `from`. */
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
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "ls_data_parallel: \"%s\" already belongs to another module with .zero",
                           model->parameters.items[i].name);
        }
    }
    return LS_OK;
}

ls_status ls_shards_open(ls_module *replicas, ls_module *model, ls_comm *comm, const ls_flat *flats, int flat_count,
                         ls_sharding **sharding) {
    if (!ls_module_list(model)) {
        return ls_error_status();
    }
    LS_TRY(check_free(model));
    shards *self = make(comm, flats, flat_count);
    if (self == NULL) {
        return LS_ERR_MEMORY;
    }
    self->replicas = replicas;
    self->model = model;
    self->base = (ls_sharding){.ranks = ls_comm_size(comm),
                               .rank = ls_comm_rank(comm),
                               .decide = decide,
                               .part = part,
                               .check = check,
                               .share_parameters = share_parameters,
                               .share_tensor = share_tensor,
                               .restored = restored,
                               .hold = hold};
    mark(model, NULL, &self->base);
    *sharding = &self->base;
    return LS_OK;
}

void ls_shards_close(ls_sharding *sharding) {
    if (sharding != NULL) {
        shards *self = shards_of(sharding);
        if (ls_module_list(self->model)) {
            mark(self->model, sharding, NULL);
        }
        self->replicas = self->model = NULL;
        hold(sharding, false);
    }
}
