#include "train/replicas.h"

#include "data/loader.h"
#include "nn/module.h"
#include "parallel/data_parallel.h"
#include "parallel/outer.h"
#include "parallel/slices.h"
#include "train/agree.h"

/* With two levels of replicas, the communicator of one level lacks some ranks, so metrics and failures would not
 * reach all ranks. */
static ls_status check_ranks(const ls_trial_options *options) {
    const ls_comm *between = ls_outer_comm(options->outer), *inside = ls_data_parallel_comm(options->model);
    const ls_comm *comm = options->comm != NULL ? options->comm : between;
    const int levels = ls_comm_size(between) * (inside != NULL && inside != between ? ls_comm_size(inside) : 1);
    return ls_comm_size(comm) >= levels
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "ls_trial_new: with .outer, %d ranks train the model, but the trial's communicator has %d: "
                         "set .comm to a communicator of all ranks",
                         levels, ls_comm_size(comm));
}

ls_status ls_trial_check_outer(const ls_trial_options *options) {
    const ls_outer *outer = options->outer;
    if (outer == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_outer_check_here("ls_trial_new", outer));
    if (ls_outer_model(outer) != options->model) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "ls_trial_new: .outer was created for a different model: pass the trial's .model to ls_outer_new");
    }
    return check_ranks(options);
}

ls_status ls_trial_outer_begin(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_restart(trial->options.outer) : LS_OK;
}

ls_status ls_trial_outer_step(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_step(trial->options.outer) : LS_OK;
}

ls_status ls_trial_outer_sync(const ls_trial *trial) {
    return trial->options.outer != NULL ? ls_outer_sync(trial->options.outer) : LS_OK;
}

bool ls_trial_awaits_outer_step(const ls_trial *trial) {
    return trial->options.outer != NULL && ls_outer_has_local_steps(trial->options.outer);
}

/*
 * With two levels of replicas, the checks compare the ranks of two communicators. All ranks therefore run both checks,
 * and share the result.
 */
ls_status ls_trial_check_replicas(ls_trial *trial) {
    ls_module *model = trial->state.model;
    LS_TRY(ls_module_check_synchronized("ls_trial", model));
    const bool averages = ls_data_parallel_comm(model) != NULL && ls_data_parallel_averages(model);
    const ls_status inside = averages ? ls_data_parallel_check(model) : LS_OK;
    if (trial->options.outer == NULL) {
        return inside;
    }
    const ls_status between = ls_outer_check(trial->options.outer);
    return ls_trial_agree_at_end(trial, inside != LS_OK ? inside : between);
}

static int shards_of(const ls_module *model) {
    const ls_slices *slices = ls_data_parallel_slices(model);
    return slices != NULL ? slices->total : 0;
}

int ls_trial_shards(const ls_trial *trial) {
    return shards_of(trial->state.model);
}

static ls_status check_loader(const char *call, const ls_loader *loader, int shards) {
    const int own = loader != NULL ? ls_loader_shards(loader) : -1;
    const bool equal = own == shards || (own == 1 && shards == 0); /* one slice is equivalent to a single rank */
    return own < 0 || equal ? LS_OK
                            : ls_fail(LS_ERR_ARGUMENT,
                                      "%s: the model has .shards = %d, but a loader has %d: set .shards in "
                                      "ls_loader_options to the number in ls_data_parallel_options",
                                      call, shards, own);
}

ls_status ls_trial_check_shards(const ls_trial_options *options) {
    const int shards = shards_of(options->model);
    LS_TRY(check_loader("ls_trial_new", options->train, shards));
    LS_TRY(check_loader("ls_trial_new", options->validate, shards));
    if (shards == 0) {
        return LS_OK;
    }
    if (options->step != NULL || options->outer != NULL) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_trial_new: the model has .shards = %d, which cannot be combined with .%s of the trial: %s",
                       shards, options->step != NULL ? "step" : "outer",
                       options->step != NULL ? "train in a loop with ls_data_parallel_step" : "omit .shards or .outer");
    }
    const int ranks = ls_comm_size(ls_data_parallel_comm(options->model));
    return options->comm == NULL || ls_comm_size(options->comm) == ranks
               ? LS_OK
               : ls_fail(
                     LS_ERR_ARGUMENT,
                     "ls_trial_new: with .shards, %d ranks train the model, but the trial's communicator has %d: set "
                     ".comm to the communicator passed to ls_data_parallel",
                     ranks, ls_comm_size(options->comm));
}

ls_status ls_trial_check_loader(const char *call, const ls_trial *trial, const ls_loader *loader) {
    return check_loader(call, loader, ls_trial_shards(trial));
}
