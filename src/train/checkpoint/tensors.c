/* The tensors of a checkpoint: the table rows in content.c for the model, its optimizer and an outer optimizer. */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "formats/named.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/cause.h"
#include "parallel/data_parallel.h"
#include "parallel/outer.h"
#include "parallel/parallel.h"
#include "train/checkpoint/checkpoint.h"

/* ---- files ------------------------------------------------------------------------------------------------------- */

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

/* A function for the tensor of the model with this index: parameters first, then buffers. */
typedef ls_status tensor_visitor(void *user, int index);

/*
 * Visits one tensor after another. During the visit, this rank has all elements of the tensor, so it needs memory for
 * one unit of the other ranks' parameters (ZeRO stage 3). A rank whose visit fails continues gathering with the other
 * ranks. Collective.
 */
static ls_status visit_tensors(ls_module *model, tensor_visitor *visit, void *user) {
    const int parameters = ls_module_parameter_count(model), count = parameters + ls_module_buffer_count(model);
    ls_status status = LS_OK, visited = LS_OK;
    for (int i = 0; i < count && status == LS_OK; i++) {
        status = ls_data_parallel_gather_one(model, i < parameters ? ls_module_parameter(model, i)
                                                                   : ls_module_buffer(model, i - parameters));
        visited = status == LS_OK && visited == LS_OK ? visit(user, i) : visited;
    }
    const ls_status ended = ls_data_parallel_gather_one(model, NULL);
    return status != LS_OK ? status : ended != LS_OK ? ended : visited;
}

/* ---- saving a model ---------------------------------------------------------------------------------------------- */

typedef struct saving {
    const ls_saved *saved;
    ls_checkpoint *to;
} saving;

static ls_status copy_tensor(void *user, int index) {
    const saving *copy = user;
    return copy->to->writes_model ? ls_copies_add(&copy->to->model, "", &copy->saved->tensors[index], 1) : LS_OK;
}

ls_status ls_checkpoint_get_model(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_saved saved;
    (void)prefix;
    LS_TRY(ls_module_list_saved(trial->state.model, NULL, &saved));
    ls_status status = visit_tensors(trial->state.model, copy_tensor, &(saving){.saved = &saved, .to = to});
    if (status == LS_OK && to->manifest.divided) {
        status = ls_part_layout_add_model(&to->manifest.layout, trial->state.model, to->rank);
    }
    if (status == LS_OK && to->writes_model && saved.metadata[0] != NULL) {
        status = ls_copies_add_metadata(&to->model, saved.metadata);
    }
    ls_saved_free(&saved);
    return status;
}

/* ---- loading a model --------------------------------------------------------------------------------------------- */

typedef struct loading {
    ls_module_loading load;
    int parameters;
    int64_t *hashes; /* of the loaded parameters; nonnegative */
} loading;

static ls_status load_tensor(void *user, int index) {
    loading *own = user;
    uint64_t hash = LS_HASH_START;
    LS_TRY(ls_module_load_one(&own->load, index));
    if (index < own->parameters) {
        LS_TRY(ls_hash_elements(own->load.call, ls_module_parameter(own->load.module, index), &hash));
        own->hashes[index] = (int64_t)(hash >> 1);
    }
    return LS_OK;
}

/* Reports the first parameter that differs between the ranks. */
static ls_status report_difference(const loading *own, ls_comm *comm) {
    bool equal = true;
    int i = -1;
    while (equal && i + 1 < own->parameters) {
        LS_TRY(ls_ranks_have_equal(comm, own->hashes[++i], &equal));
    }
    return ls_fail(LS_ERR_MISMATCH,
                   "%s: %s: \"%s\" of the checkpoint differs between the ranks, which keep different shards of it "
                   "(.zero): give all ranks the same checkpoint",
                   own->load.call, own->load.path, ls_module_parameter_name(own->load.module, i));
}

/*
 * Fails on all ranks if a rank has failed, or if the ranks have loaded different parameters: once each rank keeps only
 * its own elements, the difference could not be detected.
 */
static ls_status compare_loaded(const loading *own, ls_comm *comm, bool failed) {
    const uint64_t hash = ls_hash(LS_HASH_START, own->hashes, (size_t)own->parameters * sizeof *own->hashes);
    int64_t most[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)};
    LS_TRY(ls_failure_share(comm, own->load.call, failed, most, 2));
    return most[0] == -most[1] ? LS_OK : report_difference(own, comm);
}

static ls_status check_file(loading *own) {
    LS_TRY(ls_made(own->load.file));
    own->hashes = ls_allocate_zeroed((size_t)own->parameters, sizeof *own->hashes);
    return own->hashes != NULL ? ls_module_load_check(&own->load, NULL)
                               : ls_fail_memory(own->load.call, (size_t)own->parameters * sizeof *own->hashes);
}

/*
 * Loads a model with sharded state: reads one tensor at a time, because the model may not fit into memory. All ranks
 * check names, shapes and options before any rank changes its model.
 */
static ls_status load_sharded(ls_module *model, const char *call, const char *path, const ls_safetensors *file) {
    ls_comm *comm = ls_data_parallel_comm(model);
    if (!ls_module_list(model)) {
        return ls_error_status();
    }
    loading own = {.load = {.call = call, .path = path, .module = model, .file = file, .gathers = true},
                   .parameters = ls_module_parameter_count(model)};
    const bool fails = check_file(&own) != LS_OK;
    ls_status status = ls_failure_share(comm, call, fails, NULL, 0);
    if (status == LS_OK) {
        status = visit_tensors(model, load_tensor, &own);
        status = compare_loaded(&own, comm, status != LS_OK);
    }
    ls_free(own.hashes);
    return status;
}

ls_status ls_checkpoint_set_model(ls_resumption *from) {
    char path[PATH_MAX];
    ls_module *model = from->trial->state.model;
    LS_TRY(ls_part_path(path, from->folder, LS_MODEL_NAME, from->manifest.divided ? from->rank : -1));
    const bool is_sharded = ls_data_parallel_is_sharded(model);
    if (from->model != NULL) {
        static const char call[] = "ls_trial_load";
        return is_sharded ? load_sharded(model, call, from->folder, from->model)
                          : ls_module_load_from(call, model, from->folder, from->model, NULL);
    }
    if (!is_sharded) {
        return ls_module_load(model, path);
    }
    ls_safetensors *file = ls_safetensors_open(path); /* if NULL, all ranks must fail */
    const ls_status status = load_sharded(model, "ls_module_load", path, file);
    ls_safetensors_free(file);
    return status;
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

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

static ls_status add_method(ls_copies *copies, const ls_optimizer *optimizer) {
    return ls_copies_add_metadata(copies, (const char *const[]){LS_OPTIMIZER_KEY, optimizer->type->name, NULL});
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
    LS_TRY(to->writes_optimizer ? add_method(&to->optimizer, copy.optimizer) : LS_OK);
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
    LS_TRY(ls_part_path(path, from->folder, LS_OPTIMIZER_NAME, rank));
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
    LS_TRY(add_method(&to->outer, optimizer));
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
        LS_TRY(ls_part_path(path, from->folder, LS_OUTER_NAME, part));
        return ls_optimizer_load(optimizer, path);
    }
    if (optimizer != NULL) {
        ls_log_write(LS_LOG_WARNING,
                     "checkpoint: %s has no state for the outer optimizer; it keeps its present momentum",
                     from->folder);
    }
    return LS_OK;
}
