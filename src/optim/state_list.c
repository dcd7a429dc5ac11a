/* A list of named states that point into their owner's memory. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "optim/optimizer.h"

void ls_state_forget(ls_state_list *list) {
    for (int i = 0; i < list->count; i++) {
        ls_tensor_drop(list->items[i].tensor);
        ls_free(list->names[i]);
    }
    ls_free(list->items);
    ls_free(list->names);
    ls_free(list->ranges);
    ls_free(list->shards);
    *list = (ls_state_list){0};
}

static ls_status make_room(ls_state_list *list) {
    const size_t count = (size_t)list->count;
    ls_named *items = ls_grow(list->items, count, sizeof *items);
    list->items = items != NULL ? items : list->items;
    char **names = ls_grow(list->names, count, sizeof *names);
    list->names = names != NULL ? names : list->names;
    ls_state_range *ranges = ls_grow(list->ranges, count, sizeof *ranges);
    list->ranges = ranges != NULL ? ranges : list->ranges;
    ls_state_shard *shards = ls_grow(list->shards, count, sizeof *shards);
    list->shards = shards != NULL ? shards : list->shards;
    return items != NULL && names != NULL && ranges != NULL && shards != NULL
               ? LS_OK
               : ls_fail_memory("list of states",
                                (count + 1) * (sizeof *items + sizeof *names + sizeof *ranges + sizeof *shards));
}

/* Adds a tensor, and takes ownership of it, even on failure. A NULL tensor means out of memory. */
static ls_status add(ls_state_list *list, const char *owner, ls_state_word word, ls_tensor *tensor,
                     ls_state_shard shard) {
    const size_t length = strlen(owner) + 1 + strlen(word.word) + 1;
    const ls_status status = tensor != NULL ? make_room(list) : ls_fail_memory("list of states", sizeof *tensor);
    char *name = status == LS_OK ? ls_allocate(length) : NULL;
    if (name == NULL) {
        ls_tensor_drop(tensor);
        return status != LS_OK ? status : ls_fail_memory("list of states", length);
    }
    snprintf(name, length, "%s%s%s", owner, owner[0] != '\0' ? "." : "", word.word);
    list->names[list->count] = name;
    list->ranges[list->count] = word.range;
    list->shards[list->count] = shard;
    list->items[list->count++] = (ls_named){.name = name, .tensor = tensor};
    return LS_OK;
}

ls_status ls_state_add(ls_state_list *list, const char *owner, ls_state_word word, ls_shape shape, ls_dtype dtype,
                       const ls_device *device, void *memory) {
    return add(list, owner, word, ls_tensor_over(device, &shape, dtype, memory), (ls_state_shard){.sharding = NULL});
}

ls_status ls_state_add_shard(ls_state_list *list, const char *owner, ls_state_word word, ls_state_shard shard) {
    const ls_tensor *parameter = shard.slot->parameter;
    const ls_dtype dtype = (ls_dtype)parameter->dtype;
    const ls_shape shape = ls_shape_of(parameter);
    return add(list, owner, word,
               list->shapes ? ls_tensor_over(&ls_cpu, &shape, dtype, NULL)
                            : ls_tensor_like_owned("list of states", parameter, dtype),
               shard);
}

int ls_state_select(const ls_named *all, int count, const char *prefix, ls_named *found) {
    const size_t length = strlen(prefix);
    int selected = 0;
    for (int i = 0; i < count; i++) {
        if (strncmp(all[i].name, prefix, length) == 0) {
            found[selected++] = (ls_named){.name = all[i].name + length, .tensor = all[i].tensor};
        }
    }
    return selected;
}

const ls_tensor *ls_state_find(const ls_named *tensors, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return tensors[i].tensor;
        }
    }
    return NULL;
}
