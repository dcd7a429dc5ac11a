/*
 * Loads a checkpoint into a model with a different sharding: over different ranks, in different stages, or not sharded
 * at all. Each rank reads its tensors, or its parts of them, from the files that contain them (join.c).
 */
#include <ctype.h>
#include <string.h>

#include "base/memory.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/parallel.h"
#include "train/checkpoint/checkpoint.h"

/* ---- the decision ------------------------------------------------------------------------------------------------ */

/* Returns whether the rank's files contain the same parts as its model. */
static bool is_same_split(const ls_part_layout *saved, const ls_part_layout *wanted, int rank) {
    int count = 0;
    bool same = true;
    for (int i = 0; i < saved->count && same; i++) {
        const ls_part *part = &saved->parts[i];
        if (part->rank == rank && strcmp(part->of, LS_MODEL_NAME) == 0) {
            same = count < wanted->count && ls_part_is_same(part, &wanted->parts[count]);
            count++;
        }
    }
    return same && count == wanted->count;
}

/* A manifest without a layout was written by an older version: every rank reads its own file. */
static bool wants_join(const ls_resumption *from, const ls_part_layout *wanted) {
    const ls_manifest *manifest = &from->manifest;
    return !manifest->divided ? ls_model_is_divided(from->trial->state.model)
                              : manifest->layout.count > 0 && (manifest->world_size != from->size ||
                                                               !is_same_split(&manifest->layout, wanted, from->rank));
}

/* Replaces each number with its maximum over all ranks. */
static ls_status largest(const ls_resumption *from, uint8_t *numbers, size_t count) {
    ls_comm *comm = from->trial->state.comm;
    return comm != NULL ? ls_comm_allreduce(comm, numbers, numbers, count, LS_U8, LS_MAX, NULL) : LS_OK;
}

/* ---- contents that cannot be resharded --------------------------------------------------------------------------- */

static ls_status refuse(const ls_resumption *from, const char *what) {
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "checkpoint: the model of %s is sharded differently from this trial's, and %s cannot be resharded: "
                   "resume on %d rank%s with the model that was saved",
                   from->folder, what, from->manifest.world_size, from->manifest.world_size == 1 ? "" : "s");
}

/* Returns whether the name is `end` after a prefix that ends with a separator. "callback/10.weight" does not end with
 * "0.weight". */
static bool ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), size = strlen(end);
    return length > size && !isalnum((unsigned char)name[length - size - 1]) && strcmp(name + length - size, end) == 0;
}

/* Rejects callbacks with a copy of the model, such as averages of weights, because they would get another rank's
 * parts. */
static ls_status check_callbacks(const ls_resumption *from, const ls_part_layout *wanted) {
    for (int i = 0; i < ls_safetensors_count(from->own); i++) {
        const char *name = ls_safetensors_at(from->own, i).name;
        for (int k = 0; strncmp(name, "callback/", 9) == 0 && k < wanted->count; k++) {
            if (ends_with(name, wanted->parts[k].name)) {
                return refuse(from, "the state of a callback, with a copy of the weights,");
            }
        }
    }
    return LS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static ls_status list_saved(ls_resumption *from) {
    if (from->manifest.divided) {
        return LS_OK;
    }
    const int rank = ls_checkpoint_has_part(from, LS_OPTIMIZER_NAME, 0) ? 0 : -1;
    LS_TRY(ls_part_layout_add_file(&from->layout, from->folder, LS_MODEL_NAME, -1));
    return from->manifest.optimizer ? ls_part_layout_add_file(&from->layout, from->folder, LS_OPTIMIZER_NAME, rank)
                                    : LS_OK;
}

static const ls_part_layout *saved_layout(const ls_resumption *from) {
    return from->manifest.divided ? &from->manifest.layout : &from->layout;
}

typedef struct wanted_state {
    const ls_resumption *from;
    ls_part_layout wanted;
} wanted_state;

static ls_status want_state(void *user, const ls_named *state, const ls_tensor *parameter) {
    wanted_state *own = user;
    const ls_trial *trial = own->from->trial;
    return ls_state_has_layout(trial->options.optimizer, trial->state.model, state, parameter)
               ? ls_part_layout_add_state(&own->wanted, state, parameter, own->from->rank)
               : refuse(own->from, "the state of its optimizer");
}

static ls_status join_optimizer(ls_resumption *from, uint8_t *used) {
    ls_optimizer *optimizer = from->trial->options.optimizer;
    const ls_part_layout *saved = saved_layout(from);
    wanted_state own = {.from = from};
    if (optimizer == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_part_layout_has(saved, LS_OPTIMIZER_NAME) ? LS_OK : refuse(from, "the state of its optimizer"));
    ls_status status = ls_optimizer_visit_state(optimizer, false, want_state, &own);
    if (status == LS_OK) {
        from->optimizer = ls_part_layout_join(saved, from->folder, LS_OPTIMIZER_NAME, &own.wanted, used);
        status = from->optimizer != NULL ? ls_optimizer_check_method(optimizer, from->folder, from->optimizer)
                                         : ls_error_status();
    }
    ls_part_layout_free(&own.wanted);
    return status;
}

/* Fails if the checkpoint contains a tensor that is missing in every rank's model or optimizer. */
static ls_status check_used(const ls_resumption *from, uint8_t *used) {
    const ls_part_layout *saved = saved_layout(from);
    LS_TRY(largest(from, used, (size_t)saved->count));
    for (int i = 0; i < saved->count; i++) {
        const ls_part *part = &saved->parts[i];
        if (!used[i]) {
            return ls_fail(
                LS_ERR_FORMAT,
                "checkpoint: %s: the %s of the checkpoint has a tensor %s, but the %s of this trial does not",
                from->folder, part->of, part->name, part->of);
        }
    }
    return LS_OK;
}

static ls_status join(ls_resumption *from, const ls_part_layout *wanted) {
    LS_TRY(from->trial->options.outer == NULL ? check_callbacks(from, wanted) : refuse(from, "an outer optimizer"));
    LS_TRY(list_saved(from));
    const ls_part_layout *saved = saved_layout(from);
    uint8_t *used = ls_allocate_for("checkpoint", (size_t)saved->count + 1, 1);
    LS_TRY(ls_made(used));
    from->model = ls_part_layout_join(saved, from->folder, LS_MODEL_NAME, wanted, used);
    ls_status status = from->model != NULL ? join_optimizer(from, used) : ls_error_status();
    status = status == LS_OK ? check_used(from, used) : status;
    ls_free(used);
    return status;
}

ls_status ls_checkpoint_split(ls_resumption *from) {
    const ls_module *model = from->trial->state.model;
    ls_part_layout wanted = {0};
    ls_status status = ls_part_layout_add_model(&wanted, model, from->rank);
    if (status == LS_OK) {
        uint8_t joins = wants_join(from, &wanted);
        status = largest(from, &joins, 1);
        from->joins = joins != 0;
    }
    status = status == LS_OK && from->joins ? join(from, &wanted) : status;
    ls_part_layout_free(&wanted);
    return status;
}
