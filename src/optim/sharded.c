/* Groups in which this rank updates only its own elements: see optim/sharding.h. */
#include <string.h>

#include "base/hash.h"
#include "nn/module.h"
#include "optim/optimizer.h"

static size_t padded(size_t bytes) {
    return (bytes + LS_FLAT_ALIGNMENT - 1) / LS_FLAT_ALIGNMENT * LS_FLAT_ALIGNMENT;
}

/* Stores the sharding of the group's parameters, which must be the same for all parameters. */
static ls_status take_sharding(const ls_optimizer *optimizer, ls_parameter_group *group) {
    const char *call = optimizer->type->name;
    ls_sharding *sharding = group->count > 0 ? group->slots[0].parameter->leaf->sharding : NULL;
    for (int i = 1; i < group->count; i++) {
        if (group->slots[i].parameter->leaf->sharding != sharding) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: parameter %d does not belong to the same ls_data_parallel with .zero as the parameters "
                           "before it: add it in a separate group",
                           call, i);
        }
    }
    for (int g = 0; g < optimizer->group_count && sharding != NULL; g++) {
        const ls_sharding *other = optimizer->groups[g].sharding;
        if (other != NULL && other != sharding) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: the parameters belong to two ls_data_parallel with .zero: create an optimizer for each",
                           call);
        }
    }
    if (sharding == NULL) {
        return LS_OK;
    }
    if (optimizer->type->step == NULL) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: the method keeps vectors of all parameters, which .zero in ls_data_parallel cannot shard: "
                       "omit .zero, or use another optimizer",
                       call);
    }
    LS_TRY(sharding->decide(sharding, call, optimizer->type->one_by_one));
    group->sharding = sharding;
    sharding->hold(sharding, true);
    return LS_OK;
}

static ls_status refuse_moved(const ls_optimizer *optimizer, int i) {
    return ls_fail(
        LS_ERR_STATE,
        "%s: parameter %d has moved to other memory since ls_data_parallel with .zero: move the model to its "
        "device before ls_data_parallel, and create optimizers for the module that ls_data_parallel "
        "returns, not for a larger module",
        optimizer->type->name, i);
}

/*
 * Keeps the distance between adjacent parameters in the blocks, including gaps, so that a run of parameters is one
 * range in each block.
 */
ls_status ls_group_lay_out(const ls_optimizer *optimizer, ls_parameter_group *group) {
    LS_TRY(take_sharding(optimizer, group));
    const ls_sharding *sharding = group->sharding;
    for (int i = 0; i < group->count; i++) {
        ls_optimizer_slot *slot = &group->slots[i];
        const size_t width = ls_dtype_size((ls_dtype)slot->parameter->dtype);
        slot->own =
            sharding != NULL ? sharding->part(sharding, slot->parameter) : (ls_shard){.count = slot->parameter->count};
        if (slot->own.count < 0) {
            return refuse_moved(optimizer, i);
        }
        slot->storage = slot->parameter->storage->whole;
        slot->offset = group->bytes;
        slot->state_offset = group->state_bytes;
        group->bytes += padded((size_t)slot->parameter->count * width);
        group->state_bytes += padded((size_t)slot->own.count * width);
    }
    return LS_OK;
}

bool ls_run_own(const ls_parameter_group *group, int *first, int *last) {
    while (*first <= *last && group->slots[*first].own.count == 0) {
        (*first)++;
    }
    while (*last > *first && group->slots[*last].own.count == 0) {
        (*last)--;
    }
    return *first <= *last;
}

bool ls_run_gradients(const ls_parameter_group *group, int first, int last, ls_run *run) {
    const bool own = group->slots[first].parameter->leaf->shard;
    if (own && !ls_run_own(group, &first, &last)) {
        return false;
    }
    const ls_optimizer_slot *from = &group->slots[first], *to = &group->slots[last];
    const size_t width = ls_dtype_size(run->dtype);
    const size_t distance = own ? to->state_offset - from->state_offset : to->offset - from->offset;
    run->gradient = (const char *)from->parameter->leaf->gradient->data + (own ? (size_t)from->own.first * width : 0);
    run->count = (int64_t)(distance / width) + (own ? to->own.count : to->parameter->count);
    return true;
}

ls_status ls_slot_refuse_sharding(const ls_optimizer *optimizer, const ls_parameter_group *group, int i) {
    return group->slots[i].parameter->leaf->sharding != group->sharding
               ? ls_fail(LS_ERR_STATE,
                         "%s: parameter %d belongs to an ls_data_parallel with .zero that was created, or freed, after "
                         "the optimizer: create the optimizer after ls_data_parallel",
                         optimizer->type->name, i)
               : refuse_moved(optimizer, i);
}

static ls_sharding *sharding_of(const ls_optimizer *optimizer) {
    ls_sharding *sharding = NULL;
    for (int g = 0; g < optimizer->group_count && sharding == NULL; g++) {
        sharding = optimizer->groups[g].sharding;
    }
    return sharding;
}

bool ls_optimizer_is_sharded(const ls_optimizer *optimizer) {
    return sharding_of(optimizer) != NULL;
}

ls_status ls_optimizer_check_shards(const ls_optimizer *optimizer) {
    const ls_sharding *sharding = sharding_of(optimizer);
    return sharding != NULL ? sharding->check(sharding, optimizer->type->name) : LS_OK;
}

/* Returns a hash of the values that must be equal on all ranks in a step: methods, options, rates and step counts. */
static uint64_t hash_method(const ls_optimizer *optimizer) {
    uint64_t hash = LS_HASH_START;
    for (int g = 0; g < optimizer->group_count; g++) {
        const ls_parameter_group *group = &optimizer->groups[g];
        const ls_optimizer_type *type = group->by->type;
        const double rates[] = {group->learning_rate, group->weight_decay};
        hash = ls_hash(hash, type->name, strlen(type->name));
        hash = ls_hash_fields(hash, type->fields, &group->by->options);
        hash = ls_hash(hash, rates, sizeof rates);
        for (int i = 0; i < group->count; i++) {
            hash = ls_hash(hash, &group->slots[i].t, sizeof group->slots[i].t);
        }
    }
    return hash;
}

ls_status ls_optimizer_share_step(const ls_optimizer *optimizer, ls_status status) {
    ls_sharding *sharding = sharding_of(optimizer);
    return sharding != NULL
               ? sharding->share_parameters(sharding, optimizer->type->name, status != LS_OK, hash_method(optimizer))
               : status;
}

ls_status ls_state_share(const ls_state_shard *shard, const ls_tensor *whole) {
    const ls_device *device = ls_tensor_device(whole);
    const size_t width = ls_dtype_size((ls_dtype)whole->dtype);
    const ls_shard own = shard->slot->own;
    LS_TRY(device->copy(ls_device_stream(device), (char *)whole->data + (size_t)own.first * width, shard->memory,
                        (size_t)own.count * width));
    return shard->sharding->share_tensor(shard->sharding, shard->slot->parameter, whole);
}

ls_status ls_state_list_share(const ls_state_list *list) {
    for (int i = 0; i < list->count; i++) {
        const ls_state_shard *shard = &list->shards[i];
        LS_TRY(shard->sharding != NULL ? ls_state_share(shard, list->items[i].tensor) : LS_OK);
    }
    return LS_OK;
}

/* Copies into the state of this rank's own elements. */
static ls_status keep_own(const ls_state_shard *shard, const ls_tensor *whole) {
    const ls_shard own = shard->slot->own;
    ls_tensor *state = ls_tensor_over(ls_tensor_device(shard->slot->parameter), &LS_SHAPE(own.count),
                                      (ls_dtype)whole->dtype, shard->memory);
    ls_tensor *elements = ls_reshape((ls_tensor *)whole, LS_SHAPE(whole->count));
    const ls_status status = state != NULL ? ls_copy_into(state, ls_narrow(elements, 0, own.first, own.count))
                                           : ls_fail_memory("list of states", sizeof *state);
    ls_tensor_drop(state);
    return status;
}

ls_status ls_state_keep(const ls_state_shard *shard, const ls_tensor *whole) {
    if (shard->slot->own.count == 0) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    const ls_status status = keep_own(shard, whole);
    ls_no_grad(before);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

void ls_optimizer_restored(const ls_optimizer *optimizer) {
    ls_sharding *sharding = sharding_of(optimizer);
    if (sharding != NULL) {
        sharding->restored(sharding);
    }
}
