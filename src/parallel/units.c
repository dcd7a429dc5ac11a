#include "parallel/unit_exchange.h"

#include "base/memory.h"
#include "base/pages.h"
#include "comm/hold.h"
#include "parallel/cause.h"
#include "parallel/parallel.h"
#include "tensor/scope.h"

static ls_sharded_unit *unit_of(ls_unit *unit) {
    return (ls_sharded_unit *)(void *)unit;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static void reshard_all(ls_shards *shards) {
    for (int i = 0; i < shards->unit_count; i++) {
        ls_unit_reshard(&shards->units[i]);
    }
}

static const char call[] = "ls_data_parallel_gather";

static ls_status check_aliases(const ls_shards *shards) {
    for (int i = 0; i < shards->unit_count; i++) {
        const ls_sharded_unit *unit = &shards->units[i];
        for (int k = 0; k < unit->parameter_count; k++) {
            if (ls_tensor_has_alias(unit->parameters[k])) {
                return ls_fail(LS_ERR_STATE,
                               "%s: an ls_alias or ls_detach of a parameter %s exists, which would "
                               "lose its elements: release it, or use ls_clone",
                               call, LS_SHAPE_TEXT(unit->parameters[k]));
            }
        }
    }
    return LS_OK;
}

/*
 * Returns a number that increases with every change of a parameter. Includes parameters outside units: the next step
 * replaces them by the owners' elements on all ranks, which would hide a difference.
 */
static uint64_t versions_of(const ls_shards *shards) {
    uint64_t sum = 0;
    for (int i = 0; i < shards->model->parameters.count; i++) {
        sum += shards->model->parameters.items[i].tensor->storage->version;
    }
    return sum;
}

/*
 * If a rank has changed parameters, all ranks must have made the same change, because the ranks cannot detect a
 * difference after resharding. A failure on one rank is a failure on all ranks.
 */
static ls_status check_before_resharding(const ls_shards *shards) {
    int64_t changed = versions_of(shards) != shards->versions;
    LS_TRY(ls_failure_share(shards->comm, call, check_aliases(shards) != LS_OK, &changed, 1));
    return changed != 0 ? ls_replicas_compare(call, shards->model, shards->comm) : LS_OK;
}

ls_status ls_units_gather(ls_shards *shards, bool on) {
    if (shards == NULL || shards->stage < 3 || shards->gathered == on) {
        return LS_OK;
    }
    LS_TRY(ls_units_settle(shards, false));
    if (!on) {
        LS_TRY(check_before_resharding(shards));
        shards->gathered = false;
        reshard_all(shards);
        return LS_OK;
    }
    LS_TRY(ls_comm_check_open(call, shards->comm));
    for (int i = 0; i < shards->unit_count; i++) {
        LS_TRY(ls_unit_gather(&shards->units[i]));
    }
    shards->gathered = true;
    shards->versions = versions_of(shards);
    return LS_OK;
}

static bool has_parameter(const ls_sharded_unit *unit, const ls_tensor *parameter) {
    bool has = false;
    for (int i = 0; i < unit->parameter_count && !has; i++) {
        has = unit->parameters[i] == parameter;
    }
    return has;
}

ls_status ls_units_gather_one(ls_shards *shards, const ls_tensor *parameter) {
    ls_sharded_unit *wanted = NULL;
    if (shards == NULL || shards->stage < 3 || shards->gathered) {
        return LS_OK;
    }
    LS_TRY(ls_units_settle(shards, false));
    for (int i = 0; i < shards->unit_count; i++) {
        if (has_parameter(&shards->units[i], parameter)) {
            wanted = &shards->units[i];
        } else {
            ls_unit_reshard(&shards->units[i]);
        }
    }
    return wanted != NULL ? ls_unit_gather(wanted) : LS_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static ls_status enter(ls_unit *base, bool backward) {
    ls_sharded_unit *unit = unit_of(base);
    const char *by = backward ? "ls_backward" : "ls_forward";
    LS_TRY(ls_shards_check(unit->shards, by));
    LS_TRY(ls_shards_decide(unit->shards, by));
    const bool communicates = unit->absent && unit->range_count > 0;
    LS_TRY(ls_unit_gather(unit));
    ls_status status = communicates ? ls_unit_prefetch(unit, backward) : LS_OK;
    status = status == LS_OK && backward ? ls_unit_begin_gradients(unit) : status;
    if (status != LS_OK) {
        unit->shards->failed = true;
        ls_unit_reshard(unit);
        return status;
    }
    unit->runs++;
    return LS_OK;
}

static ls_status leave(ls_unit *base, bool backward, ls_status status) {
    ls_sharded_unit *unit = unit_of(base);
    unit->runs--;
    status = backward ? ls_unit_end_gradients(unit, status) : status;
    ls_unit_reshard(unit);
    return status;
}

static ls_status refuse_view(const ls_sharded_unit *unit) {
    return ls_fail(
        LS_ERR_UNSUPPORTED,
        "ls_forward: %s returns or keeps a view of its parameter, which .zero = 3 in ls_data_parallel removes "
        "after the call: use ls_clone",
        unit->module->type->name);
}

static ls_status check_output(const ls_unit *base, const ls_tensor *output) {
    const ls_sharded_unit *unit = (const ls_sharded_unit *)(const void *)base;
    const bool reshards = unit->shards->stage == 3 && !unit->shards->gathered;
    for (int i = 0; i < unit->parameter_count && reshards; i++) {
        if (output->storage == unit->parameters[i]->storage || ls_tensor_has_alias(unit->parameters[i])) {
            return refuse_view(unit);
        }
    }
    return LS_OK;
}

/* ---- making and freeing ------------------------------------------------------------------------------------------ */

/* Calls the function for the outermost recomputed modules. */
static ls_status for_each_recomputed(ls_module *module, ls_shards *shards,
                                     ls_status (*function)(ls_shards *shards, ls_module *module)) {
    if (module->run_recomputed != NULL) {
        return function(shards, module);
    }
    for (int i = 0; i < module->child_count; i++) {
        LS_TRY(for_each_recomputed(module->children[i].module, shards, function));
    }
    return LS_OK;
}

static ls_status count_unit(ls_shards *shards, ls_module *module) {
    (void)module;
    shards->unit_count++;
    return LS_OK;
}

/* Counts the modules outside `unit`, starting at `module`, that directly contain the parameter. */
static int owners_outside(const ls_module *module, const ls_module *unit, const ls_tensor *parameter) {
    int count = 0;
    for (int i = 0; module != unit && i < module->own_parameters.count; i++) {
        count += module->own_parameters.items[i].tensor == parameter;
    }
    for (int i = 0; module != unit && i < module->child_count; i++) {
        count += owners_outside(module->children[i].module, unit, parameter);
    }
    return count;
}

/* Adds the range of a parameter, including the gap after it, to a list. Adjacent ranges are merged. */
static void add_range(const ls_shards *shards, const ls_tensor *parameter, ls_range *ranges, int *count) {
    ls_range range = {.count = 0};
    (void)ls_shards_find(shards, parameter, &range);
    const int64_t step = LS_FLAT_ALIGNMENT / (int64_t)ls_dtype_size((ls_dtype)parameter->dtype);
    range.count = (range.count + step - 1) / step * step;
    ls_range *last = *count > 0 ? &ranges[*count - 1] : NULL;
    if (last != NULL && last->flat == range.flat && last->offset + last->count == range.offset) {
        last->count += range.count;
    } else {
        ranges[(*count)++] = range;
    }
}

static ls_status fill_unit(ls_sharded_unit *unit) {
    ls_shards *shards = unit->shards;
    const size_t most = (size_t)ls_module_parameter_count(unit->module);
    unit->ranges = ls_allocate_zeroed(most, sizeof *unit->ranges);
    unit->parameters = ls_allocate_zeroed(most, sizeof *unit->parameters);
    unit->marks = ls_allocate_zeroed(most, sizeof *unit->marks);
    if (unit->ranges == NULL || unit->parameters == NULL || unit->marks == NULL) {
        return ls_fail_memory("ls_data_parallel", most * sizeof *unit->ranges);
    }
    for (size_t i = 0; i < most; i++) {
        ls_tensor *parameter = ls_module_parameter(unit->module, (int)i);
        if (parameter->leaf != NULL && owners_outside(shards->model, unit->module, parameter) == 0) {
            unit->parameters[unit->parameter_count++] = parameter;
            add_range(shards, parameter, unit->ranges, &unit->range_count);
            parameter->leaf->shard = true;
        }
    }
    return LS_OK;
}

static ls_status add_unit(ls_shards *shards, ls_module *module) {
    for (int i = 0; i < shards->unit_count; i++) {
        if (shards->units[i].module == module) { /* a module that occurs twice in the model */
            return LS_OK;
        }
    }
    ls_sharded_unit *unit = &shards->units[shards->unit_count++];
    *unit = (ls_sharded_unit){
        .base = {.enter = enter, .leave = leave, .check_output = check_output}, .shards = shards, .module = module};
    module->unit = &unit->base;
    return fill_unit(unit);
}

/*
 * Applies ls_recompute to the layers of an ls_sequential, including nested ones. Layers with buffers (batch
 * normalization) are not recomputed.
 */
static ls_status recompute_layers(const ls_module *model) {
    for (int i = 0; i < model->child_count && model->sequential; i++) {
        ls_module *layer = model->children[i].module;
        if (layer->sequential) {
            LS_TRY(recompute_layers(layer));
        } else if (ls_module_parameter_count(layer) > 0 && ls_module_buffer_count(layer) == 0) {
            LS_TRY(ls_recompute(layer, true));
        }
    }
    return LS_OK;
}

/* Lists the ranges of the units, then all other ranges. */
static ls_status list_ranges(ls_shards *shards) {
    const ls_named_list *list = &shards->model->parameters;
    shards->ranges = ls_allocate_for("ls_data_parallel", (size_t)list->count, sizeof *shards->ranges);
    LS_TRY(ls_made(shards->ranges));
    for (int i = 0; i < shards->unit_count; i++) {
        for (int k = 0; k < shards->units[i].range_count; k++) {
            shards->ranges[shards->range_count++] = shards->units[i].ranges[k];
        }
    }
    shards->unit_range_count = shards->range_count;
    int rest = 0;
    for (int flat = 0; flat < shards->flat_count; flat++) {
        for (int i = 0; i < list->count; i++) {
            const ls_tensor *parameter = list->items[i].tensor;
            if (parameter->leaf != NULL && !parameter->leaf->shard &&
                parameter->storage->whole == shards->flats[flat].parameters) {
                add_range(shards, parameter, shards->ranges + shards->unit_range_count, &rest);
            }
        }
    }
    shards->range_count += rest;
    for (int i = shards->unit_range_count; i < shards->range_count; i++) {
        const ls_range *range = &shards->ranges[i];
        ls_shards_count(shards, LS_MEMORY_GRADIENTS,
                        range->count * (int64_t)ls_dtype_size(shards->flats[range->flat].dtype));
        ls_shards_count(shards, LS_MEMORY_BUCKETS, ls_shards_encoded_bytes(shards, range));
    }
    return LS_OK;
}

/* Allocates the exchanges. The number of a unit's ranges stays the same if the program adds parameters later. */
static ls_status make_exchanges(ls_shards *shards) {
    size_t most = 0;
    for (int i = 0; i < shards->unit_count; i++) {
        const size_t ranges = (size_t)shards->units[i].range_count;
        most = ranges > most ? ranges : most;
    }
    const size_t numbers = 2 * (size_t)shards->base.ranks;
    ls_range_exchange *exchanges = ls_allocate_zeroed(2 * most, sizeof *exchanges);
    size_t *counts = ls_allocate_zeroed(2 * most * numbers, sizeof *counts);
    shards->parameter_exchanges = exchanges;
    shards->exchange_counts = counts;
    if (exchanges == NULL || counts == NULL) {
        return ls_fail_memory("ls_data_parallel", 2 * most * numbers * sizeof *counts);
    }
    shards->gradient_exchanges = exchanges + most;
    for (size_t k = 0; k < 2 * most; k++) {
        exchanges[k].counts = counts + k * numbers;
    }
    return LS_OK;
}

static ls_status make_units(ls_shards *shards) {
    LS_TRY(for_each_recomputed(shards->model, shards, count_unit));
    if (shards->unit_count == 0) {
        LS_TRY(recompute_layers(shards->model));
        LS_TRY(for_each_recomputed(shards->model, shards, count_unit));
    }
    if (shards->unit_count == 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_data_parallel: .zero = %d shards the modules that are recomputed, but no module is: call "
                       "ls_recompute for the blocks of the model",
                       shards->stage);
    }
    const size_t count = (size_t)shards->unit_count;
    shards->unit_count = 0;
    shards->units = ls_allocate_for("ls_data_parallel", count, sizeof *shards->units);
    LS_TRY(ls_made(shards->units));
    shards->on_decided = reshard_all;
    LS_TRY(for_each_recomputed(shards->model, shards, add_unit));
    return make_exchanges(shards);
}

ls_status ls_units_open(ls_shards *shards, bool overlaps) {
    LS_TRY(shards->stage >= 2 ? make_units(shards) : LS_OK);
    LS_TRY(list_ranges(shards));
    if (shards->stage >= 2 && overlaps) {
        LS_TRY(ls_comm_split(shards->comm, 0, shards->base.rank, &shards->private_comm));
        ls_comm_set_internal(shards->private_comm);
        shards->settle = ls_units_settle;
    }
    if (shards->stage >= 2) { /* the old memory of the parameters, before the new layout */
        ls_cache_empty(&ls_thread()->cache);
        ls_pages_trim();
    }
    return LS_OK;
}

/* Absent parameters stay absent, because the program may also have them in a different module. */
void ls_units_close(ls_shards *shards) {
    if (shards == NULL) {
        return;
    }
    ls_units_cancel(shards);
    for (int i = 0; i < shards->unit_count; i++) {
        ls_sharded_unit *unit = &shards->units[i];
        for (int k = 0; k < unit->parameter_count; k++) {
            unit->parameters[k]->leaf->shard = false;
            unit->parameters[k]->leaf->has_gradient = false;
        }
        unit->module->unit = NULL;
        ls_free(unit->ranges);
        ls_free(unit->parameters);
        ls_free(unit->marks);
    }
    ls_free(shards->units);
    ls_free(shards->parameter_exchanges);
    ls_free(shards->exchange_counts);
    shards->units = NULL;
    shards->unit_count = 0;
}
