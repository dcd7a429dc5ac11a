/*
 * Joins tensors from the files of a checkpoint: reads any range of a tensor, along any axis, from the parts that the
 * layout lists. Parts with the same range on several ranks are replicas; only one of them is read.
 */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/named.h"
#include "optim/optimizer.h"
#include "tensor/device.h"
#include "train/checkpoint/checkpoint.h"

typedef struct joining {
    const char *folder;
    const ls_part_layout *layout, *wanted;
    const char *of;
    const ls_part **parts; /* parts of the file `of`, sorted by name, range and rank */
    int *targets;          /* for each of these parts, the wanted part to which it contributes; -1 if none */
    int count;
    int rank;           /* the rank whose file is read */
    ls_tensor **made;   /* the tensor of each wanted part; NULL until it is created */
    const char **names; /* names of the tensors in `made` */
} joining;

static int compare(const void *a, const void *b) {
    const ls_part *x = *(const ls_part *const *)a, *y = *(const ls_part *const *)b;
    const int names = strcmp(x->name, y->name);
    return names != 0             ? names
           : x->first != y->first ? (x->first < y->first ? -1 : 1)
           : x->count != y->count ? (x->count < y->count ? -1 : 1)
                                  : x->rank - y->rank;
}

/* Finds the parts of a tensor: `*count` parts, starting at the returned index. Sets *count to 0 if the layout lacks
 * the tensor. */
static int find(const joining *join, const char *name, int *count) {
    int low = 0, high = join->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (strcmp(join->parts[middle]->name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *count = 0;
    while (low + *count < join->count && strcmp(join->parts[low + *count]->name, name) == 0) {
        (*count)++;
    }
    return low;
}

static void range_of(const ls_part *part, int axis, int64_t *first, int64_t *count) {
    *first = axis == part->axis ? part->first : 0;
    *count = axis == part->axis ? part->count : part->shape.size[axis];
}

/* Returns the number of indices along the axis that both parts contain, starting at `*first`. If the result is not
 * positive, there are none. */
static int64_t common(const ls_part *a, const ls_part *b, int axis, int64_t *first) {
    int64_t from[2], count[2];
    range_of(a, axis, &from[0], &count[0]);
    range_of(b, axis, &from[1], &count[1]);
    const int64_t ends[2] = {from[0] + count[0], from[1] + count[1]};
    *first = from[0] > from[1] ? from[0] : from[1];
    return (ends[0] < ends[1] ? ends[0] : ends[1]) - *first;
}

static bool needs(const ls_part *want, const ls_part *part) {
    int64_t first;
    return want->axis < 0 ? part->count > 0
                          : common(want, part, want->axis, &first) > 0 &&
                                (part->axis < 0 || common(want, part, part->axis, &first) > 0);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static const char *shape_text(const ls_shape *shape, ls_shape_text *room) {
    *room = ls_shape_describe(shape->ndim, shape->size);
    return room->text;
}

static bool is_replica(const ls_part *part, const ls_part *before) {
    return part->first == before->first && part->count == before->count;
}

static ls_status fail_range(const joining *join, const ls_part *part, int64_t from, int64_t to, const char *where) {
    return ls_fail(LS_ERR_FORMAT,
                   "checkpoint: %s is damaged: indices %lld to %lld of %s along axis %d are in %s; use a different "
                   "checkpoint",
                   join->folder, (long long)from, (long long)to - 1, part->name, part->axis, where);
}

/* Checks that the parts of a tensor, ignoring replicas, contain each element of the complete tensor exactly once. */
static ls_status check_parts(const joining *join, const ls_part *const *parts, int count) {
    const ls_part *before = NULL;
    int64_t end = 0;
    for (int i = 0; i < count; i++) {
        const ls_part *part = parts[i];
        if (part->axis != parts[0]->axis || !ls_shape_equal(&part->shape, &parts[0]->shape)) {
            return ls_fail(
                LS_ERR_FORMAT,
                "checkpoint: %s is damaged: ranks %d and %d have parts of %s that do not fit together; use a "
                "different checkpoint",
                join->folder, parts[0]->rank, part->rank, part->name);
        }
        if (before != NULL && is_replica(part, before)) {
            if (strcmp(part->hash, before->hash) != 0) {
                return ls_fail(LS_ERR_UNSUPPORTED,
                               "checkpoint: %s: %s of rank %d differs from %s of rank %d: such a model can be resumed "
                               "only with the same parts on the same ranks",
                               join->folder, part->name, part->rank, part->name, before->rank);
            }
            continue;
        }
        if (part->count > 0 && part->first != end) {
            return part->first > end ? fail_range(join, part, end, part->first, "no file")
                                     : fail_range(join, part, part->first, end, "several files");
        }
        end += part->count;
        before = part->count > 0 ? part : before;
    }
    const int64_t whole = parts[0]->axis < 0 ? 1 : parts[0]->shape.size[parts[0]->axis];
    return end == whole ? LS_OK : fail_range(join, parts[0], end, whole, "no file");
}

/* ---- selection of parts ------------------------------------------------------------------------------------------ */

/* Selects the parts that contribute to wanted part `k`. */
static ls_status select_parts(joining *join, int k, uint8_t *used) {
    const ls_part *want = &join->wanted->parts[k];
    int count;
    const int first = find(join, want->name, &count);
    if (count == 0) {
        return LS_OK; /* loading the model or optimizer reports the missing tensor */
    }
    const ls_part *const *parts = join->parts + first;
    ls_shape_text there, here;
    LS_TRY(check_parts(join, parts, count));
    if (want->axis >= 0 && !ls_shape_equal(&want->shape, &parts[0]->shape)) {
        return ls_fail(LS_ERR_SHAPE, "checkpoint: %s: %s is %s there and %s in the model", join->folder, want->name,
                       shape_text(&parts[0]->shape, &there), shape_text(&want->shape, &here));
    }
    join->names[k] = parts[0]->name;
    for (int i = 0; i < count; i++) {
        const bool again = i > 0 && is_replica(parts[i], parts[i - 1]);
        const bool reads = want->axis < 0 || want->count > 0 ? needs(want, parts[i]) : i == 0; /* for its dtype */
        join->targets[first + i] = reads && !again ? k : -1;
        if (used != NULL) {
            used[parts[i] - join->layout->parts] = 1;
        }
    }
    return LS_OK;
}

/* Returns the part of the tensor that must be read from the current file, or -1 if none. */
static int find_target(const joining *join, const char *name) {
    int count;
    const int first = find(join, name, &count);
    for (int i = first; i < first + count; i++) {
        if (join->parts[i]->rank == join->rank && join->targets[i] >= 0) {
            return i;
        }
    }
    return -1;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static ls_status copy_common(ls_tensor *to, const ls_part *want, ls_tensor *from, const ls_part *part) {
    ls_scope *scope = ls_scope_open();
    const bool before = ls_no_grad(true);
    const int axes[] = {part->axis, want->axis != part->axis ? want->axis : -1};
    bool any = true;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        int64_t first, at[2], ignored;
        if (axes[i] >= 0 && any) {
            const int64_t count = common(part, want, axes[i], &first);
            range_of(part, axes[i], &at[0], &ignored);
            range_of(want, axes[i], &at[1], &ignored);
            any = count > 0;
            from = any ? ls_narrow(from, axes[i], first - at[0], count) : from;
            to = any ? ls_narrow(to, axes[i], first - at[1], count) : to;
        }
    }
    const ls_status status = any ? ls_copy_into(to, from) : LS_OK;
    (void)ls_no_grad(before);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

/* Returns the shape of a part. For a complete wanted tensor, this is the shape in the layout. */
static ls_shape shape_of(const ls_part *part, const ls_shape *whole) {
    ls_shape shape = *whole;
    if (part->axis >= 0) {
        shape.size[part->axis] = part->count;
    }
    return shape;
}

/* Adds part `i`, which is this tensor of the open file. */
static ls_status add_part(const joining *join, int i, const ls_safetensors *file, const ls_tensor *tensor) {
    const ls_part *part = join->parts[i];
    const int k = join->targets[i];
    ls_part want = join->wanted->parts[k];
    want.shape = part->shape;
    const ls_shape own = shape_of(part, &part->shape), shape = shape_of(&want, &part->shape), is = ls_shape_of(tensor);
    if (join->made[k] == NULL) {
        join->made[k] = ls_tensor_new_owned("checkpoint", &ls_cpu, shape.ndim, shape.size, ls_dtype_of(tensor));
        LS_TRY(ls_made(join->made[k]));
    }
    if (!ls_shape_equal(&is, &own) || ls_dtype_of(join->made[k]) != ls_dtype_of(tensor)) {
        return ls_fail(LS_ERR_FORMAT,
                       "checkpoint: %s is damaged: %s of rank %d has a different shape or dtype than in the "
                       "manifest or on the other ranks; use a different checkpoint",
                       join->folder, part->name, part->rank);
    }
    ls_tensor *elements = ls_safetensors_fetch(file, tensor);
    const ls_status status = elements != NULL ? copy_common(join->made[k], &want, elements, part) : ls_error_status();
    ls_tensor_drop(elements);
    return status;
}

/* Reads the wanted parts from a rank's file, one after another. */
static ls_status read_file(joining *join, ls_safetensors *joined) {
    char path[PATH_MAX];
    LS_TRY(ls_part_path(path, join->folder, join->of, join->rank));
    ls_safetensors *file = ls_safetensors_open(path);
    ls_status status = ls_made(file);
    bool is_source = false; /* the states of groups may come from a stage with a different optimizer */
    for (int i = 0; status == LS_OK && i < ls_safetensors_count(file); i++) {
        const ls_named named = ls_safetensors_at(file, i);
        const int part = find_target(join, named.name);
        is_source = is_source || (part >= 0 && strncmp(named.name, LS_GROUP_STATES, strlen(LS_GROUP_STATES)) != 0);
        status = part >= 0 ? add_part(join, part, file, named.tensor) : LS_OK;
    }
    status = status == LS_OK && is_source ? ls_safetensors_add_metadata("checkpoint", joined, file) : status;
    ls_safetensors_free(file);
    return status;
}

static ls_status read_files(joining *join, ls_safetensors *joined) {
    int last = -1;
    for (int i = 0; i < join->count; i++) {
        last = join->parts[i]->rank > last ? join->parts[i]->rank : last;
    }
    for (int rank = -1; rank <= last; rank++) {
        bool any = false;
        for (int i = 0; i < join->count && !any; i++) {
            any = join->parts[i]->rank == rank && join->targets[i] >= 0;
        }
        join->rank = rank;
        LS_TRY(any ? read_file(join, joined) : LS_OK);
    }
    for (int k = 0; k < join->wanted->count; k++) {
        if (join->made[k] != NULL) {
            ls_safetensors_add(joined, join->names[k], join->made[k]);
            join->made[k] = NULL;
        }
    }
    return LS_OK;
}

static ls_status join_all(joining *join, ls_safetensors *joined, uint8_t *used) {
    const int parts = join->layout->count;
    join->parts = ls_allocate_zeroed((size_t)parts, sizeof *join->parts);
    join->targets = ls_allocate_zeroed((size_t)parts, sizeof *join->targets);
    join->made = ls_allocate_zeroed((size_t)join->wanted->count, sizeof *join->made);
    join->names = ls_allocate_zeroed((size_t)join->wanted->count, sizeof *join->names);
    if (join->parts == NULL || join->targets == NULL || join->made == NULL || join->names == NULL) {
        return ls_fail_memory("checkpoint", (size_t)parts * (sizeof *join->parts + sizeof *join->targets));
    }
    for (int i = 0; i < parts; i++) {
        if (strcmp(join->layout->parts[i].of, join->of) == 0) {
            join->targets[join->count] = -1;
            join->parts[join->count++] = &join->layout->parts[i];
        }
    }
    qsort(join->parts, (size_t)join->count, sizeof *join->parts, compare);
    for (int k = 0; k < join->wanted->count; k++) {
        LS_TRY(select_parts(join, k, used));
    }
    return read_files(join, joined);
}

ls_safetensors *ls_part_layout_join(const ls_part_layout *layout, const char *folder, const char *of,
                                    const ls_part_layout *wanted, uint8_t *used) {
    joining join = {.folder = folder, .layout = layout, .wanted = wanted, .of = of};
    ls_safetensors *joined = ls_safetensors_new("checkpoint", (size_t)wanted->count);
    if (joined != NULL && join_all(&join, joined, used) != LS_OK) {
        ls_safetensors_free(joined);
        joined = NULL;
    }
    for (int k = 0; join.made != NULL && k < wanted->count; k++) {
        ls_tensor_drop(join.made[k]);
    }
    ls_free(join.parts);
    ls_free(join.targets);
    ls_free(join.made);
    ls_free(join.names);
    return joined;
}

ls_safetensors *ls_part_layout_join_model(const ls_part_layout *layout, const char *folder, const ls_module *module) {
    ls_part_layout wanted = {0};
    ls_status status = module != NULL ? ls_part_layout_add_model(&wanted, module, 0) : LS_OK;
    status = status == LS_OK ? ls_part_layout_add_rest(&wanted, layout) : status;
    ls_safetensors *joined = status == LS_OK ? ls_part_layout_join(layout, folder, LS_MODEL_NAME, &wanted, NULL) : NULL;
    ls_part_layout_free(&wanted);
    return joined;
}
