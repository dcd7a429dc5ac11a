/*
 * The state of an optimizer, as named tensors that use its memory, and the restoring of this state. A name consists of
 * the parameter's name and PyTorch's name for the state.
 */
#include <lockstep/formats.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "formats/named.h"
#include "optim/optimizer.h"
#include "tensor/scope.h"

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Returns the model's name for the parameter, or writes the parameter's index into `room` and returns `room`. */
static const char *parameter_name(const ls_optimizer *optimizer, const ls_tensor *parameter, int number,
                                  char room[16]) {
    const int count = optimizer->model != NULL ? ls_module_parameter_count(optimizer->model) : 0;
    for (int i = 0; i < count; i++) {
        if (ls_module_parameter(optimizer->model, i) == parameter) {
            return ls_module_parameter_name(optimizer->model, i);
        }
    }
    snprintf(room, 16, "%d", number);
    return room;
}

static ls_status list_slot(const ls_optimizer *optimizer, const ls_parameter_group *group, ls_optimizer_slot *slot,
                           int number, ls_state_list *list) {
    const ls_optimizer_type *type = group->by->type;
    ls_state_word words[LS_OPTIMIZER_STATES];
    const int states = type->states(group->by, words);
    const ls_tensor *parameter = slot->parameter;
    char room[16];
    const char *name = parameter_name(optimizer, parameter, number, room);
    const int first = list->count;
    for (int k = 0; k < states; k++) {
        char *memory = group->state[k] + slot->state_offset;
        const ls_state_shard shard = {.slot = slot, .sharding = group->sharding, .memory = memory};
        LS_TRY(group->sharding != NULL ? ls_state_add_shard(list, name, words[k], shard)
                                       : ls_state_add(list, name, words[k], ls_shape_of(parameter),
                                                      (ls_dtype)parameter->dtype, group->device, memory));
    }
    if (type->product_word != NULL) {
        LS_TRY(ls_state_add(list, name, (ls_state_word){type->product_word, LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_F64,
                            &ls_cpu, &slot->product));
    }
    LS_TRY(
        ls_state_add(list, name, (ls_state_word){"step", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu, &slot->t));
    for (int i = first; i < list->count; i++) {
        list->shards[i].slot = slot;
    }
    return LS_OK;
}

static ls_status list_all(ls_optimizer *optimizer, ls_state_list *list) {
    int number = 0;
    for (int g = 0; g < optimizer->group_count; g++) {
        ls_parameter_group *group = &optimizer->groups[g];
        char owner[32];
        snprintf(owner, sizeof owner, LS_GROUP_STATES "%d", g);
        LS_TRY(ls_state_add(list, owner, (ls_state_word){"lr", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_F64, &ls_cpu,
                            &group->learning_rate));
        for (int i = 0; optimizer->type->states != NULL && i < group->count; i++) {
            LS_TRY(ls_slot_check_here(optimizer, group, i));
            LS_TRY(list_slot(optimizer, group, &group->slots[i], number++, list));
        }
    }
    return optimizer->type->list != NULL ? optimizer->type->list(optimizer, list) : LS_OK;
}

ls_status ls_optimizer_state(ls_optimizer *optimizer, const ls_named **tensors, int *count) {
    if (optimizer == NULL) {
        return ls_fail_missing("ls_optimizer_state: the optimizer");
    }
    if (tensors == NULL || count == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_optimizer_state: an argument is NULL");
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_state", optimizer));
    ls_state_forget(&optimizer->listed);
    LS_TRY(list_all(optimizer, &optimizer->listed));
    LS_TRY(ls_state_list_share(&optimizer->listed));
    *tensors = optimizer->listed.items;
    *count = optimizer->listed.count;
    return LS_OK;
}

/* Visits a state of which this rank has only a part, as a complete tensor. */
static ls_status visit_whole(const ls_state_list *list, int i, ls_state_visitor *visit, void *user,
                             ls_status *visited) {
    const ls_tensor *parameter = list->shards[i].slot->parameter;
    ls_tensor *whole = ls_tensor_like_owned("list of states", parameter, (ls_dtype)parameter->dtype);
    const ls_status status = whole != NULL ? ls_state_share(&list->shards[i], whole) : ls_error_status();
    if (status == LS_OK && *visited == LS_OK) {
        *visited = visit(user, &(ls_named){.name = list->names[i], .tensor = whole}, parameter);
    }
    ls_tensor_drop(whole);
    return status;
}

ls_status ls_optimizer_visit_state(ls_optimizer *optimizer, bool gathers, ls_state_visitor *visit, void *user) {
    ls_state_list list = {.shapes = true};
    LS_TRY(ls_optimizer_check_here("ls_optimizer_state", optimizer));
    ls_status status = list_all(optimizer, &list), visited = LS_OK;
    for (int i = 0; i < list.count && status == LS_OK; i++) {
        const ls_optimizer_slot *slot = list.shards[i].slot;
        if (gathers && list.shards[i].sharding != NULL) {
            status = visit_whole(&list, i, visit, user, &visited);
        } else if (visited == LS_OK) {
            visited = visit(user, &list.items[i], slot != NULL ? slot->parameter : NULL);
        }
    }
    ls_state_forget(&list);
    return status != LS_OK ? status : visited;
}

void ls_optimizer_forget_state(ls_optimizer *optimizer) {
    ls_state_forget(&optimizer->listed);
}

/* ---- restoring --------------------------------------------------------------------------------------------------- */

/* The tensors to restore: the tensors of a file, or of the user. */
typedef struct restoring {
    const char *call;
    const ls_named *given;
    int count;
    const ls_safetensors *file; /* NULL for tensors of the user */
} restoring;

/* Fails unless the given tensors match the list in names, shapes and dtypes. */
static ls_status check_fits(const restoring *from, const char *type, const ls_state_list *list) {
    for (int i = 0; i < list->count; i++) {
        const ls_named *own = &list->items[i];
        const ls_tensor *tensor = ls_state_find(from->given, from->count, own->name);
        if (tensor == NULL) {
            return ls_fail(LS_ERR_FORMAT, "%s: the file has no tensor %s, which this %s needs", from->call, own->name,
                           type);
        }
        if (!ls_tensor_same_shape(tensor, own->tensor) || tensor->dtype != own->tensor->dtype) {
            return ls_fail(LS_ERR_SHAPE, "%s: %s is %s of %s in the file, but %s of %s in this %s", from->call,
                           own->name, LS_SHAPE_TEXT(tensor), ls_dtype_name((ls_dtype)tensor->dtype),
                           LS_SHAPE_TEXT(own->tensor), ls_dtype_name((ls_dtype)own->tensor->dtype), type);
        }
    }
    for (int i = 0; i < from->count; i++) {
        const char *name = from->given[i].name;
        if (ls_state_find(list->items, list->count, name) == NULL) {
            return ls_fail(LS_ERR_FORMAT, "%s: the file has a tensor %s that this %s does not have", from->call, name,
                           type);
        }
        if (ls_state_find(from->given, i, name) != NULL) {
            return ls_fail(LS_ERR_FORMAT, "%s: two tensors are named %s", from->call, name);
        }
    }
    return LS_OK;
}

/* Computes the minimum and the maximum of a nonempty tensor. Both are NaN if any element is NaN. */
static ls_status find_extremes(const ls_tensor *tensor, double *least, double *largest) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    *least = ls_item(ls_min((ls_tensor *)tensor));
    *largest = ls_item(ls_max((ls_tensor *)tensor));
    return ls_scope_end(scope);
}

/* A function for state `i` of the list and the given tensor, with its elements. */
typedef ls_status state_action(const restoring *from, const ls_state_list *list, int i, const ls_tensor *tensor);

/* Checks the numbers, because an invalid number would reach the weights in the next step. */
static ls_status check_numbers(const restoring *from, const ls_state_list *list, int i, const ls_tensor *tensor) {
    const double lowest = list->ranges[i] == LS_STATE_NOT_NEGATIVE ? 0 : -DBL_MAX;
    const double highest = tensor->dtype == LS_I64 ? 0x1p53 : DBL_MAX;
    double least = 0, largest = 0;
    if (tensor->count > 0 && list->ranges[i] != LS_STATE_UNCHECKED) {
        LS_TRY(find_extremes(tensor, &least, &largest));
    }
    return least >= lowest && largest <= highest
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: %s contains %g, but its values must be between %g and %g", from->call,
                         list->items[i].name, least >= lowest ? largest : least, lowest, highest);
}

static ls_status copy_state(const restoring *from, const ls_state_list *list, int i, const ls_tensor *tensor) {
    (void)from;
    return list->shards[i].sharding != NULL ? ls_state_keep(&list->shards[i], tensor)
                                            : ls_copy_into(list->items[i].tensor, tensor);
}

/* Calls the function for one state after another, so that an open file needs memory for only one tensor. */
static ls_status for_each_state(const restoring *from, const ls_state_list *list, state_action *act) {
    for (int i = 0; i < list->count; i++) {
        ls_tensor *tensor =
            ls_safetensors_fetch(from->file, ls_state_find(from->given, from->count, list->items[i].name));
        const ls_status status = tensor != NULL ? act(from, list, i, tensor) : ls_error_status();
        ls_tensor_drop(tensor);
        LS_TRY(status);
    }
    return LS_OK;
}

/* Reads the tensors of an open file twice, so that an invalid number changes nothing. */
static ls_status restore(const restoring *from, const char *type, const ls_state_list *list) {
    LS_TRY(check_fits(from, type, list));
    LS_TRY(for_each_state(from, list, check_numbers));
    return for_each_state(from, list, copy_state);
}

ls_status ls_state_restore(const char *call, const char *type, const ls_state_list *list, const ls_named *given,
                           int count) {
    return restore(&(restoring){.call = call, .given = given, .count = count}, type, list);
}

static ls_status copy_fitting(const restoring *from, ls_optimizer *optimizer) {
    ls_state_list list = {.shapes = true};
    ls_status status = list_all(optimizer, &list);
    status = status == LS_OK ? restore(from, optimizer->type->name, &list) : status;
    if (status == LS_OK) {
        ls_optimizer_restored(optimizer);
    }
    ls_state_forget(&list);
    return status;
}

/*
 * For methods whose state grows, creates a new state for the given tensors. If they fit, frees the old state; otherwise
 * restores it.
 */
static ls_status set_state(const restoring *from, ls_optimizer *optimizer) {
    const ls_optimizer_type *type = optimizer->type;
    struct ls_descent *remembered = optimizer->descent;
    optimizer->descent = NULL;
    ls_status status =
        type->make_room != NULL ? type->make_room(from->call, optimizer, from->given, from->count) : LS_OK;
    if (status == LS_OK) {
        status = copy_fitting(from, optimizer);
    }
    struct ls_descent *kept = status == LS_OK ? optimizer->descent : remembered;
    optimizer->descent = status == LS_OK ? remembered : optimizer->descent;
    if (type->forget != NULL) {
        type->forget(optimizer);
    }
    optimizer->descent = kept;
    return status;
}

ls_status ls_state_check_given(const char *call, const void *owner, const ls_named *given, int count) {
    bool whole = owner != NULL && count >= 0 && (given != NULL || count == 0);
    for (int i = 0; whole && i < count; i++) {
        whole = given[i].name != NULL && given[i].tensor != NULL;
    }
    LS_TRY(whole ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: the owner, the list, a name or a tensor is NULL", call));
    for (int i = 0; i < count; i++) {
        if (ls_tensor_is_gone(given[i].tensor)) {
            char where[200];
            snprintf(where, sizeof where, "%s: %s", call, given[i].name);
            return ls_tensor_refuse_gone(where, 0, given[i].tensor);
        }
    }
    return LS_OK;
}

ls_status ls_optimizer_set_state(ls_optimizer *optimizer, const ls_named *tensors, int count) {
    LS_TRY(ls_state_check_given("ls_optimizer_set_state", optimizer, tensors, count));
    LS_TRY(ls_optimizer_check_here("ls_optimizer_set_state", optimizer));
    return set_state(&(restoring){.call = "ls_optimizer_set_state", .given = tensors, .count = count}, optimizer);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

ls_status ls_optimizer_save(ls_optimizer *optimizer, const char *path, const char *const *metadata) {
    const ls_named *tensors = NULL;
    int count = 0;
    size_t pairs = 0;
    LS_TRY(ls_optimizer_state(optimizer, &tensors, &count));
    LS_TRY(ls_metadata_count("ls_optimizer_save", metadata, &pairs));
    const char **all = ls_allocate_for("ls_optimizer_save", 2 * pairs + 3, sizeof *all);
    LS_TRY(ls_made(all));
    all[0] = LS_OPTIMIZER_KEY;
    all[1] = optimizer->type->name;
    size_t used = 2;
    for (size_t i = 0; i < 2 * pairs; i += 2) {
        if (strcmp(metadata[i], LS_OPTIMIZER_KEY) != 0) { /* the program may have copied it from an earlier file */
            all[used++] = metadata[i];
            all[used++] = metadata[i + 1];
        }
    }
    const ls_status status = ls_safetensors_save(path, tensors, count, all);
    ls_free(all);
    return status;
}

ls_status ls_optimizer_check_method(const ls_optimizer *optimizer, const char *path, const ls_safetensors *file) {
    const char *saved = ls_safetensors_metadata(file, LS_OPTIMIZER_KEY), *own = optimizer->type->name;
    return saved == NULL || strcmp(saved, own) == 0
               ? LS_OK
               : ls_fail(
                     LS_ERR_FORMAT,
                     "ls_optimizer_load: %s has the state of %s, but this optimizer is %s: continue with %s, or load "
                     "only the model",
                     path, saved, own, saved);
}

/* Only a sharded optimizer reads one tensor at a time: all others read the whole file before the state changes. */
ls_status ls_optimizer_load(ls_optimizer *optimizer, const char *path) {
    if (optimizer == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_optimizer_load: the optimizer is NULL");
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_load", optimizer));
    ls_safetensors *file = ls_optimizer_is_sharded(optimizer) ? ls_safetensors_open(path) : ls_safetensors_load(path);
    const ls_status status = file != NULL ? ls_optimizer_load_from(optimizer, path, file) : ls_error_status();
    ls_safetensors_free(file);
    return status;
}

ls_status ls_optimizer_load_from(ls_optimizer *optimizer, const char *path, const ls_safetensors *file) {
    LS_TRY(ls_optimizer_check_method(optimizer, path, file));
    const int count = ls_safetensors_count(file);
    ls_named *given = ls_allocate_zeroed((size_t)count, sizeof *given);
    ls_status status = given != NULL ? LS_OK : ls_fail_memory("ls_optimizer_load", (size_t)count * sizeof *given);
    for (int i = 0; status == LS_OK && i < count; i++) {
        given[i] = ls_safetensors_at(file, i);
    }
    if (status == LS_OK) {
        char call[280];
        snprintf(call, sizeof call, "ls_optimizer_load: %.250s", path);
        status = set_state(&(restoring){.call = call, .given = given, .count = count, .file = file}, optimizer);
    }
    ls_free(given);
    return status;
}
