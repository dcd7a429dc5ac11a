/* Layouts: which part of which tensor is in which rank's file. The manifest of a sharded model contains a layout. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "formats/named.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "train/checkpoint/checkpoint.h"

void ls_part_name(char file[LS_FILE_NAME_LIMIT], const char *name, int rank) {
    if (rank < 0) {
        snprintf(file, LS_FILE_NAME_LIMIT, "%s.safetensors", name);
    } else {
        snprintf(file, LS_FILE_NAME_LIMIT, "%s-%04d.safetensors", name, rank);
    }
}

ls_status ls_part_path(char path[PATH_MAX], const char *folder, const char *name, int rank) {
    char file[LS_FILE_NAME_LIMIT];
    ls_part_name(file, name, rank);
    return ls_path_join(path, folder, file);
}

void ls_part_layout_cut(ls_part_layout *layout, int count) {
    while (layout->count > count) {
        ls_free(layout->parts[--layout->count].name);
    }
}

void ls_part_layout_free(ls_part_layout *layout) {
    ls_part_layout_cut(layout, 0);
    ls_free(layout->parts);
    *layout = (ls_part_layout){0};
}

static ls_status add_part(ls_part_layout *layout, const char *name, ls_part part) {
    ls_part *parts = ls_grow(layout->parts, (size_t)layout->count, sizeof *parts);
    layout->parts = parts != NULL ? parts : layout->parts;
    part.name = parts != NULL ? ls_duplicate_string(name) : NULL;
    if (part.name == NULL) {
        return ls_fail_memory("checkpoint", ((size_t)layout->count + 1) * sizeof *parts);
    }
    parts[layout->count++] = part;
    return LS_OK;
}

static bool has_tensor(const ls_part_layout *layout, const char *name) {
    bool has = false;
    for (int i = 0; i < layout->count && !has; i++) {
        has = strcmp(layout->parts[i].name, name) == 0 && strcmp(layout->parts[i].of, LS_MODEL_NAME) == 0;
    }
    return has;
}

bool ls_part_layout_has(const ls_part_layout *layout, const char *of) {
    bool has = false;
    for (int i = 0; i < layout->count && !has; i++) {
        has = strcmp(layout->parts[i].of, of) == 0;
    }
    return has;
}

ls_status ls_part_layout_check_ranks(const ls_part_layout *layout, const char *path, int ranks) {
    for (int i = 0; i < layout->count; i++) {
        if (layout->parts[i].rank >= ranks) {
            return ls_fail(LS_ERR_FORMAT,
                           "checkpoint: %s is damaged: it lists a part of rank %d, but has only %d ranks; use a "
                           "different checkpoint",
                           path, layout->parts[i].rank, ranks);
        }
    }
    return LS_OK;
}

bool ls_part_is_same(const ls_part *a, const ls_part *b) {
    return strcmp(a->name, b->name) == 0 && a->axis == b->axis && a->first == b->first && a->count == b->count &&
           ls_shape_equal(&a->shape, &b->shape);
}

/* ---- models and optimizers --------------------------------------------------------------------------------------- */

/* Describes a tensor. If it has the parameter's shape, it is sharded like the parameter. */
static ls_part describe(const char *of, int rank, const ls_tensor *tensor, const ls_tensor *parameter) {
    ls_part part = {.rank = rank, .shape = ls_shape_of(tensor), .axis = -1, .count = 1};
    const ls_leaf *leaf = parameter != NULL ? parameter->leaf : NULL;
    snprintf(part.of, sizeof part.of, "%s", of);
    if (leaf != NULL && leaf->divisions[LS_DIVIDED_TENSOR].add != NULL && ls_tensor_same_shape(tensor, parameter)) {
        const ls_division *division = &leaf->divisions[LS_DIVIDED_TENSOR];
        part.axis = division->axis;
        part.first = division->first;
        part.count = part.shape.size[division->axis];
        part.shape.size[division->axis] = division->whole;
    }
    return part;
}

ls_status ls_part_layout_add_model(ls_part_layout *layout, const ls_module *model, int rank) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        LS_TRY(
            add_part(layout, ls_module_parameter_name(model, i), describe(LS_MODEL_NAME, rank, parameter, parameter)));
    }
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        ls_part part = describe(LS_MODEL_NAME, rank, ls_module_buffer(model, i), NULL);
        part.buffer = true;
        LS_TRY(add_part(layout, ls_module_buffer_name(model, i), part));
    }
    return LS_OK;
}

/* Returns whether the name of the state begins with its parameter's name in the model, as in "0.weight.exp_avg". */
static bool has_name_of(const ls_module *model, const char *state, const ls_tensor *parameter) {
    const char *name = ls_module_name_of(model, parameter);
    const size_t length = name != NULL ? strlen(name) : 0;
    return name != NULL && strncmp(state, name, length) == 0 && state[length] == '.';
}

bool ls_state_has_layout(const ls_optimizer *optimizer, const ls_module *model, const ls_named *state,
                         const ls_tensor *parameter) {
    return optimizer->type->list == NULL && (parameter == NULL || has_name_of(model, state->name, parameter));
}

ls_status ls_part_layout_add_state(ls_part_layout *layout, const ls_named *state, const ls_tensor *parameter,
                                   int rank) {
    return add_part(layout, state->name, describe(LS_OPTIMIZER_NAME, rank, state->tensor, parameter));
}

ls_status ls_part_layout_add_file(ls_part_layout *layout, const char *folder, const char *of, int rank) {
    char path[PATH_MAX];
    LS_TRY(ls_part_path(path, folder, of, rank));
    ls_safetensors *file = ls_safetensors_open(path);
    ls_status status = ls_made(file);
    for (int i = 0; i < ls_safetensors_count(file) && status == LS_OK; i++) {
        const ls_named named = ls_safetensors_at(file, i);
        status = add_part(layout, named.name, describe(of, rank, named.tensor, NULL));
    }
    ls_safetensors_free(file);
    return status;
}

ls_status ls_part_layout_add_rest(ls_part_layout *wanted, const ls_part_layout *layout) {
    for (int pass = 0; pass < 2; pass++) { /* parameters, then buffers, as in the file of an unsharded model */
        for (int i = 0; i < layout->count; i++) {
            ls_part part = layout->parts[i];
            if (strcmp(part.of, LS_MODEL_NAME) == 0 && part.buffer == (pass == 1) && !has_tensor(wanted, part.name)) {
                part.axis = -1;
                part.first = 0;
                part.count = 1;
                LS_TRY(add_part(wanted, part.name, part));
            }
        }
    }
    return LS_OK;
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

void ls_part_layout_hash(ls_part_layout *layout, int first, const ls_copies *copies) {
    for (int i = 0; i < copies->count; i++) {
        const ls_tensor *tensor = copies->items[i].tensor;
        snprintf(layout->parts[first + i].hash, LS_PART_HASH, "%016" PRIx64,
                 ls_hash_long(LS_HASH_START, ls_host_data(tensor), ls_tensor_bytes(tensor)));
    }
}

/* Writes the parts one after another, each followed by its name. */
static ls_status pack(const ls_part_layout *layout, ls_object *packed) {
    *packed = (ls_object){.data = NULL};
    for (int i = 0; i < layout->count; i++) {
        packed->bytes += sizeof(ls_part) + strlen(layout->parts[i].name) + 1;
    }
    char *to = ls_allocate(packed->bytes + 1);
    packed->data = to;
    for (int i = 0; to != NULL && i < layout->count; i++) {
        const size_t length = strlen(layout->parts[i].name) + 1;
        memcpy(to, &layout->parts[i], sizeof(ls_part));
        memcpy(to + sizeof(ls_part), layout->parts[i].name, length);
        to += sizeof(ls_part) + length;
    }
    return to != NULL ? LS_OK : ls_fail_memory("checkpoint", packed->bytes + 1);
}

static ls_status unpack(ls_part_layout *layout, const char *packed, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        ls_part part;
        memcpy(&part, packed + at, sizeof part);
        const char *name = packed + at + sizeof part;
        LS_TRY(add_part(layout, name, part));
        at += sizeof part + strlen(name) + 1;
    }
    return LS_OK;
}

ls_status ls_part_layout_gather(ls_part_layout *layout, ls_comm *comm) {
    const int size = comm != NULL ? ls_comm_size(comm) : 1;
    const int rank = comm != NULL ? ls_comm_rank(comm) : 0;
    if (size == 1) {
        return LS_OK;
    }
    ls_object own = {.data = NULL};
    ls_object *all = ls_allocate_zeroed((size_t)size, sizeof *all);
    ls_status status = all != NULL ? pack(layout, &own) : ls_fail_memory("checkpoint", (size_t)size * sizeof *all);
    if (status == LS_OK) {
        status = ls_comm_gather_object(comm, &own, all, 0);
        ls_free(own.data);
    }
    for (int i = 1; i < size && rank == 0; i++) {
        status = status == LS_OK ? unpack(layout, all[i].data, all[i].bytes) : status;
    }
    for (int i = 0; i < size && all != NULL; i++) {
        ls_object_free(&all[i]);
    }
    ls_free(all);
    return status;
}
