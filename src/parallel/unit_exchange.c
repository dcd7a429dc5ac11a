#include "parallel/unit_exchange.h"

#include <string.h>

#include "base/memory.h"
#include "parallel/parallel.h"
#include "tensor/device.h"

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static size_t bytes_of(const ls_sharded_unit *unit, const ls_range *range) {
    return (size_t)range->count * ls_dtype_size(unit->shards->flats[range->flat].dtype);
}

static size_t all_bytes(const ls_sharded_unit *unit) {
    size_t bytes = 0;
    for (int k = 0; k < unit->range_count; k++) {
        bytes += bytes_of(unit, &unit->ranges[k]);
    }
    return bytes;
}

static size_t own_bytes(const ls_sharded_unit *unit) {
    size_t bytes = 0;
    for (int k = 0; k < unit->range_count; k++) {
        const ls_range own = ls_shards_own(unit->shards, &unit->ranges[k]);
        bytes += bytes_of(unit, &own);
    }
    return bytes;
}

static void count_gradients(ls_sharded_unit *unit, size_t bytes) {
    ls_shards_count(unit->shards, LS_MEMORY_GRADIENTS, (int64_t)bytes - unit->gradient_bytes);
    unit->gradient_bytes = (int64_t)bytes;
}

/* Adds the bytes of the unit's parameters that other ranks own to the account. If `more` is false, subtracts them. */
static void count_parameters(const ls_sharded_unit *unit, bool more) {
    const int64_t others = (int64_t)(all_bytes(unit) - own_bytes(unit));
    ls_shards_count(unit->shards, LS_MEMORY_PARAMETERS, more ? others : -others);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static void mark_absent(ls_sharded_unit *unit, bool absent) {
    for (int i = 0; i < unit->parameter_count && unit->absent != absent; i++) {
        unit->parameters[i]->references += absent ? LS_ABSENT : -LS_ABSENT;
    }
    unit->absent = absent;
}

static void discard_parameters(const ls_sharded_unit *unit) {
    for (int k = 0; k < unit->range_count; k++) {
        ls_shards_discard(unit->shards, &unit->ranges[k], false);
    }
    count_parameters(unit, false);
}

void ls_unit_reshard(ls_sharded_unit *unit) {
    if (!unit->shards->decided || unit->shards->stage < 3 || unit->shards->gathered || unit->runs > 0 || unit->absent) {
        return;
    }
    discard_parameters(unit);
    mark_absent(unit, true);
}

/* Waits for the parameters in flight. Returns the first failure. */
static ls_status wait_for_parameters(ls_sharded_unit *unit) {
    ls_saved_error first = {.status = LS_OK};
    unit->shards->prefetched = NULL;
    for (int k = 0; k < unit->range_count; k++) {
        ls_error_save_first(&first, ls_shards_end_share(unit->shards, &unit->shards->parameter_exchanges[k]));
    }
    return ls_error_put_back_first(&first);
}

/* Discards prefetched parameters that are not needed now. */
static ls_status drop_prefetched(ls_shards *shards) {
    ls_sharded_unit *unit = shards->prefetched;
    if (unit == NULL) {
        return LS_OK;
    }
    const ls_status status = wait_for_parameters(unit);
    discard_parameters(unit);
    return status;
}

/*
 * Waits on shards->comm until all ranks have entered the unit. A rank that has failed makes a different call on this
 * communicator, so the other ranks fail here and do not wait on the private communicator for its parameters.
 */
static ls_status meet(const ls_sharded_unit *unit) {
    const ls_range *first = &unit->ranges[0];
    bool equal = true;
    LS_TRY(ls_ranks_have_equal(unit->shards->comm, first->offset * LS_FLAT_LIMIT + first->flat, &equal));
    return equal ? LS_OK
                 : ls_fail(LS_ERR_MISMATCH,
                           "ls_data_parallel: the ranks run different modules (%s on this rank), but .zero = 3 in "
                           "ls_data_parallel gathers the parameters of each module on all ranks together: run the same "
                           "modules in the same order on all ranks",
                           unit->module->type->name);
}

static ls_status use_prefetched(ls_sharded_unit *unit) {
    const ls_status met = meet(unit);
    if (met != LS_OK) { /* a failed ls_shards_share also sets this flag */
        unit->shards->failed = true;
        return met;
    }
    const ls_status status = wait_for_parameters(unit);
    if (status != LS_OK) {
        discard_parameters(unit);
        return status;
    }
    mark_absent(unit, false);
    return LS_OK;
}

ls_status ls_unit_gather(ls_sharded_unit *unit) {
    ls_shards *shards = unit->shards;
    if (!unit->absent || unit->range_count == 0) {
        mark_absent(unit, false);
        return LS_OK;
    }
    if (shards->prefetched == unit) {
        return use_prefetched(unit);
    }
    if (shards->prefetched != NULL) { /* the prediction was wrong */
        shards->latest->next[shards->latest_backward] = NULL;
        LS_TRY(drop_prefetched(shards));
    }
    for (int k = 0; k < unit->range_count; k++) {
        LS_TRY(ls_shards_share(shards, &unit->ranges[k]));
    }
    count_parameters(unit, true);
    mark_absent(unit, false);
    return LS_OK;
}

ls_status ls_unit_prefetch(ls_sharded_unit *unit, bool backward) {
    ls_shards *shards = unit->shards;
    if (shards->private_comm == NULL || shards->gathered) {
        return LS_OK;
    }
    if (shards->latest != NULL && shards->latest_backward == backward) {
        shards->latest->next[backward] = unit;
    }
    shards->latest = unit;
    shards->latest_backward = backward;
    ls_sharded_unit *next = unit->next[backward];
    if (next == NULL || !next->absent) {
        return LS_OK;
    }
    shards->prefetched = next;
    count_parameters(next, true);
    for (int k = 0; k < next->range_count; k++) {
        LS_TRY(ls_shards_begin_share(shards, &next->ranges[k], &shards->parameter_exchanges[k]));
    }
    return LS_OK;
}

/* ---- averaging of gradients -------------------------------------------------------------------------------------- */

/* The marks of a parameter, on which the ranks agree. */
enum { GIVEN = 1, FROZEN = 2, TRAINED = 4 };

/* Agrees on which parameters have a gradient on any rank. Fails on all ranks if a parameter is frozen on only some
 * ranks. */
static ls_status agree_on_marks(ls_sharded_unit *unit) {
    const size_t count = (size_t)unit->parameter_count;
    for (size_t i = 0; i < count; i++) {
        unit->marks[i] |= unit->parameters[i]->leaf->has_gradient ? GIVEN : 0;
    }
    LS_TRY(ls_comm_allreduce(unit->shards->comm, unit->marks, unit->marks, count, LS_U8, LS_BOR, NULL));
    for (size_t i = 0; i < count; i++) {
        if ((unit->marks[i] & (FROZEN | TRAINED)) == (FROZEN | TRAINED)) {
            return ls_fail(LS_ERR_MISMATCH,
                           "ls_backward: a parameter %s of %s is frozen (ls_set_requires_grad) on some ranks only: "
                           "freeze it on all ranks or on none",
                           LS_SHAPE_TEXT(unit->parameters[i]), unit->module->type->name);
        }
    }
    return LS_OK;
}

/* Adds the gradients of earlier passes to this rank's own elements. */
static ls_status add_earlier(ls_sharded_unit *unit) {
    const char *from = unit->earlier;
    for (int k = 0; k < unit->range_count && from != NULL; k++) {
        const ls_range own = ls_shards_own(unit->shards, &unit->ranges[k]);
        const ls_dtype dtype = unit->shards->flats[own.flat].dtype;
        LS_TRY(ls_device_kernels(&ls_cpu)->axpy(ls_device_stream(&ls_cpu), dtype, own.count, 1, from,
                                                ls_shards_elements(unit->shards, &own, true)));
        from += bytes_of(unit, &own);
    }
    return LS_OK;
}

static void discard_gradients(ls_sharded_unit *unit) {
    ls_free(unit->earlier);
    unit->earlier = NULL;
    for (int k = 0; k < unit->range_count; k++) {
        ls_shards_discard(unit->shards, &unit->ranges[k], true);
    }
    count_gradients(unit, own_bytes(unit));
}

/* Frees the gradients that this rank does not own, after a failure. */
static void forget_gradients(ls_sharded_unit *unit) {
    unit->shards->failed = true;
    discard_gradients(unit);
}

ls_status ls_units_end_average(ls_shards *shards) {
    ls_sharded_unit *unit = shards->averaging;
    ls_saved_error first = {.status = LS_OK};
    if (unit == NULL) {
        return LS_OK;
    }
    shards->averaging = NULL;
    for (int k = 0; k < unit->range_count; k++) {
        ls_error_save_first(&first, ls_shards_end_reduce(shards, &unit->ranges[k], &shards->gradient_exchanges[k]));
    }
    const ls_status status = first.status == LS_OK ? add_earlier(unit) : ls_error_put_back(&first);
    for (int i = 0; i < unit->parameter_count && status == LS_OK; i++) {
        unit->parameters[i]->leaf->has_gradient = (unit->marks[i] & GIVEN) != 0;
    }
    discard_gradients(unit);
    shards->failed = shards->failed || status != LS_OK;
    return status;
}

static ls_status begin_average(ls_sharded_unit *unit) {
    ls_shards *shards = unit->shards;
    LS_TRY(ls_units_end_average(shards));
    LS_TRY(agree_on_marks(unit));
    shards->averaging = unit;
    for (int k = 0; k < unit->range_count; k++) {
        LS_TRY(ls_shards_begin_reduce(shards, &unit->ranges[k], &shards->gradient_exchanges[k]));
    }
    return LS_OK;
}

/* Missing gradients must be zero. On failure, discards the gradients of the unit. Collective. */
static ls_status average(ls_sharded_unit *unit) {
    ls_saved_error cause;
    const ls_status status = begin_average(unit);
    if (status == LS_OK) {
        const bool stays = unit->shards->private_comm != NULL && unit->shards->in_pass;
        return stays ? LS_OK : ls_units_end_average(unit->shards);
    }
    ls_error_save(&cause);
    (void)ls_units_end_average(unit->shards);
    forget_gradients(unit);
    return ls_error_put_back(&cause);
}

/* ---- the backward pass of a unit --------------------------------------------------------------------------------- */

/* Rejects hooks: a hook would see neither the mean nor all elements. */
static ls_status refuse_hooks(const ls_sharded_unit *unit) {
    for (int i = 0; i < unit->parameter_count; i++) {
        if (unit->parameters[i]->leaf->hooks != NULL) {
            return ls_fail(
                LS_ERR_UNSUPPORTED,
                "ls_backward: a parameter has a gradient hook, but .zero = %d in ls_data_parallel keeps only "
                "parts of gradients: use .zero = 1",
                unit->shards->stage);
        }
    }
    return LS_OK;
}

static ls_status clear_missing(const ls_sharded_unit *unit) {
    for (int i = 0; i < unit->parameter_count; i++) {
        const ls_leaf *leaf = unit->parameters[i]->leaf;
        if (!leaf->has_gradient) {
            LS_TRY(ls_kernels_of(leaf->gradient)->fill(ls_stream_of(leaf->gradient), leaf->gradient, 0));
        }
    }
    return LS_OK;
}

/* Moves the gradients of earlier passes elsewhere: they are already means, and this rank has its own elements of
 * them. */
static ls_status keep_earlier(ls_sharded_unit *unit) {
    bool any = false;
    for (int i = 0; i < unit->parameter_count; i++) {
        any = any || unit->parameters[i]->leaf->has_gradient;
    }
    const size_t bytes = own_bytes(unit);
    if (!any || bytes == 0) {
        return LS_OK;
    }
    LS_TRY(clear_missing(unit));
    unit->earlier = ls_allocate(bytes);
    if (unit->earlier == NULL) {
        return ls_fail_memory("ls_backward", bytes);
    }
    char *to = unit->earlier;
    for (int k = 0; k < unit->range_count; k++) {
        const ls_range own = ls_shards_own(unit->shards, &unit->ranges[k]);
        memcpy(to, ls_shards_elements(unit->shards, &own, true), bytes_of(unit, &own));
        to += bytes_of(unit, &own);
    }
    return LS_OK;
}

static void open_gradients(const ls_sharded_unit *unit, bool open) {
    for (int i = 0; i < unit->parameter_count; i++) {
        unit->parameters[i]->leaf->open = open;
    }
}

ls_status ls_unit_begin_gradients(ls_sharded_unit *unit) {
    LS_TRY(refuse_hooks(unit));
    LS_TRY(unit->shards->averaging == unit ? ls_units_end_average(unit->shards) : LS_OK);
    LS_TRY(keep_earlier(unit));
    for (int i = 0; i < unit->parameter_count; i++) {
        ls_leaf *leaf = unit->parameters[i]->leaf;
        unit->marks[i] = (leaf->has_gradient ? GIVEN : 0) | (leaf->tensor->needs_grad ? TRAINED : FROZEN);
        leaf->has_gradient = false;
    }
    open_gradients(unit, true);
    count_gradients(unit, all_bytes(unit));
    return LS_OK;
}

ls_status ls_unit_end_gradients(ls_sharded_unit *unit, ls_status status) {
    open_gradients(unit, false);
    if (status != LS_OK) {
        forget_gradients(unit);
        return status;
    }
    LS_TRY(clear_missing(unit));
    return average(unit);
}

/* ---- all exchanges ----------------------------------------------------------------------------------------------- */

ls_status ls_units_settle(ls_shards *shards, bool forget) {
    const ls_status dropped = drop_prefetched(shards), averaged = ls_units_end_average(shards);
    for (int i = 0; i < shards->unit_count && forget; i++) {
        shards->units[i].next[0] = shards->units[i].next[1] = NULL;
    }
    shards->latest = forget ? NULL : shards->latest;
    return dropped != LS_OK ? dropped : averaged;
}

void ls_units_cancel(ls_shards *shards) {
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_comm_free(shards->private_comm); /* ends the exchanges */
    shards->private_comm = NULL;
    (void)ls_units_settle(shards, true);
    (void)ls_error_put_back(&cause);
}
