/* The tensors of a checkpoint: the table rows in content.c for the model, its optimizer and an outer optimizer. */
#include <string.h>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "parallel/outer.h"
#include "train/checkpoint/checkpoint.h"

/* ---- model and optimizer ----------------------------------------------------------------------------------------- */

bool ls_checkpoint_has_part(const ls_resumption *from, const char *name, int rank) {
    char file[LS_FILE_NAME_LIMIT];
    ls_part_name(file, name, rank);
    for (int i = 0; i < from->manifest.file_count; i++) {
        if (strcmp(from->manifest.files[i].name, file) == 0) {
            return true;
        }
    }
    return false;
}

static ls_status part_path(const ls_resumption *from, const char *name, int rank, char path[PATH_MAX]) {
    char file[LS_FILE_NAME_LIMIT];
    ls_part_name(file, name, rank);
    return ls_path_join(path, from->folder, file);
}

/*
 * Copies one tensor after another, so that a rank needs no memory for the parameters of other ranks (ZeRO stage 3),
 * except for its copies. A rank whose copy fails continues gathering with the other ranks.
 */
static ls_status copy_tensors(ls_module *model, const ls_saved *saved, ls_checkpoint *to) {
    ls_status status = LS_OK, copied = LS_OK;
    for (int i = 0; i < saved->count && status == LS_OK; i++) {
        status = ls_data_parallel_gather_one(model, saved->tensors[i].tensor);
        if (status == LS_OK && copied == LS_OK && to->writes_model) {
            copied = ls_copies_add(&to->model, "", &saved->tensors[i], 1);
        }
    }
    const ls_status ended = ls_data_parallel_gather_one(model, NULL);
    return status != LS_OK ? status : ended != LS_OK ? ended : copied;
}

ls_status ls_checkpoint_get_model(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_saved saved;
    (void)prefix;
    LS_TRY(ls_module_list_saved(trial->state.model, NULL, &saved));
    ls_status status = copy_tensors(trial->state.model, &saved, to);
    if (status == LS_OK && to->manifest.divided) {
        status = ls_part_layout_add_model(&to->manifest.layout, trial->state.model, to->rank);
    }
    if (status == LS_OK && to->writes_model && saved.metadata[0] != NULL) {
        status = ls_copies_add_metadata(&to->model, saved.metadata);
    }
    ls_saved_free(&saved);
    return status;
}

/* Ends ls_data_parallel_make_whole, unless the program has already gathered the parameters itself. If `status` is an
 * error, keeps it and its message. */
static ls_status end_whole(ls_module *model, bool was_whole, ls_status status) {
    if (was_whole) {
        return status;
    }
    ls_saved_error error;
    ls_error_save(&error);
    const ls_status ended = ls_data_parallel_make_whole(model, false);
    return status != LS_OK ? ls_error_put_back(&error) : ended;
}

ls_status ls_checkpoint_set_model(ls_resumption *from) {
    char path[PATH_MAX];
    ls_module *model = from->trial->state.model;
    LS_TRY(part_path(from, LS_MODEL_NAME, from->manifest.divided ? from->rank : -1, path));
    const bool was_whole = ls_data_parallel_is_whole(model);
    LS_TRY(ls_data_parallel_make_whole(model, true));
    return end_whole(model, was_whole,
                     from->model != NULL ? ls_module_load_from("ls_trial_load", model, from->folder, from->model, NULL)
                                         : ls_module_load(model, path));
}

typedef struct copying {
    ls_checkpoint *to;
    const ls_optimizer *optimizer;
    const ls_module *model;
    bool lists; /* the state is in the layout */
} copying;

static ls_status copy_state(void *user, const ls_named *state, const ls_tensor *parameter) {
    copying *copy = user;
    LS_TRY(copy->to->writes_optimizer ? ls_copies_add(&copy->to->optimizer, "", state, 1) : LS_OK);
    copy->lists = copy->lists && ls_state_has_layout(copy->optimizer, copy->model, state, parameter);
    return copy->lists ? ls_part_layout_add_state(&copy->to->manifest.layout, state, parameter, copy->to->rank) : LS_OK;
}

ls_status ls_checkpoint_get_optimizer(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_part_layout *layout = &to->manifest.layout;
    copying copy = {.to = to,
                    .optimizer = trial->options.optimizer,
                    .model = trial->state.model,
                    .lists = to->manifest.divided && trial->options.outer == NULL};
    const int before = layout->count;
    (void)prefix;
    if (copy.optimizer == NULL || (!to->writes_optimizer && !ls_optimizer_is_sharded(copy.optimizer))) {
        return LS_OK;
    }
    LS_TRY(ls_optimizer_visit_state(trial->options.optimizer, true, copy_state, &copy));
    if (!copy.lists) {
        ls_part_layout_cut(layout, before);
    }
    return LS_OK;
}

/*
 * With `.outer`, each rank has its own state. A rank without one, and all ranks of a trial without `.outer`, take the
 * state of rank 0.
 */
ls_status ls_checkpoint_set_optimizer(ls_resumption *from) {
    char path[PATH_MAX];
    if (from->trial->options.optimizer == NULL) {
        return LS_OK;
    }
    if (from->optimizer != NULL) {
        return ls_optimizer_load_from(from->trial->options.optimizer, from->folder, from->optimizer);
    }
    const bool has_own = from->manifest.divided || (from->trial->options.outer != NULL &&
                                                    ls_checkpoint_has_part(from, LS_OPTIMIZER_NAME, from->rank));
    const int rank = has_own ? from->rank : ls_checkpoint_has_part(from, LS_OPTIMIZER_NAME, 0) ? 0 : -1;
    LS_TRY(part_path(from, LS_OPTIMIZER_NAME, rank, path));
    return ls_optimizer_load(from->trial->options.optimizer, path);
}

ls_status ls_checkpoint_get_outer(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_optimizer *optimizer = ls_outer_optimizer(trial->options.outer);
    const ls_named *tensors = NULL;
    int count = 0;
    (void)prefix;
    if (!to->writes_model || optimizer == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_optimizer_state(optimizer, &tensors, &count));
    return ls_copies_add(&to->outer, "", tensors, count);
}

/* Runs after the row of the model has restored the parameters. */
ls_status ls_checkpoint_set_outer(ls_resumption *from) {
    ls_outer *outer = from->trial->options.outer;
    ls_optimizer *optimizer = ls_outer_optimizer(outer);
    if (outer == NULL) {
        return LS_OK;
    }
    const int part = from->manifest.divided ? from->rank : -1;
    char path[PATH_MAX];
    LS_TRY(ls_outer_restart(outer));
    if (optimizer != NULL && ls_checkpoint_has_part(from, LS_OUTER_NAME, part)) {
        LS_TRY(part_path(from, LS_OUTER_NAME, part, path));
        return ls_optimizer_load(optimizer, path);
    }
    if (optimizer != NULL) {
        ls_log_write(LS_LOG_WARNING,
                     "checkpoint: %s has no state for the outer optimizer; it keeps its present momentum",
                     from->folder);
    }
    return LS_OK;
}
