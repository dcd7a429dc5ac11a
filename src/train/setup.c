/*
 * Detects setups that a program cannot intend. A trial that would train nothing fails. If the ranks train separate
 * models, or all do the same work, rank 0 logs one warning: after the first step, or after the first epoch if a user
 * step or the program's hooks may still synchronize the ranks.
 */
#include "train/setup.h"

#include "comm/hold.h"
#include "comm/meter.h"
#include "comm/separate.h"
#include "data/loader.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/parallel.h"
#include "parallel/pipeline.h"

/* ---- trials that train nothing ----------------------------------------------------------------------------------- */

/* Checks the model and all its descendants: a descendant may be the module passed to ls_data_parallel. */
static ls_status check_grown(const ls_module *model) {
    for (int i = 0; i < model->child_count; i++) {
        LS_TRY(check_grown(model->children[i].module));
    }
    return ls_module_has_grown(model)
               ? ls_fail(LS_ERR_STATE,
                         "ls_trial_run: a layer was added to the model after ls_data_parallel, ls_outer_new or a "
                         "recomputed forward pass (ls_recompute), and is missing from the list of parameters for "
                         "training and checkpoints: add all layers first")
               : LS_OK;
}

/* The output of a pipeline has no gradient: the default step would train only terms that hooks add to the loss. */
static ls_status check_step(const ls_module *model) {
    return !ls_module_has_pipeline(model)
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "ls_trial_run: the default step cannot train a pipeline (ls_pipeline), whose output has no "
                         "gradient: call ls_pipeline_backward in a user step (.step)");
}

/* Checks that the optimizer contains every parameter of its own model. */
static ls_status check_complete(const ls_optimizer *optimizer) {
    const ls_module *model = optimizer->model;
    LS_TRY(check_grown(model));
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        if (parameter->needs_grad && !ls_optimizer_has(optimizer, parameter)) {
            return ls_fail(LS_ERR_STATE,
                           "ls_trial_run: parameter \"%s\" was added to the model after %s was called, and would not "
                           "be trained: create the optimizer after all layers",
                           ls_module_parameter_name(model, i), optimizer->type->name);
        }
    }
    return LS_OK;
}

static ls_status check_optimizer(const ls_trial *trial) {
    const ls_module *model = trial->state.model;
    const ls_optimizer *optimizer = trial->options.optimizer;
    bool trainable = false, trained = false;
    for (int i = 0; i < ls_module_parameter_count(model) && !trained; i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        trainable = trainable || parameter->needs_grad;
        trained = ls_optimizer_has(optimizer, parameter);
    }
    if (trainable && !trained) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_run: the optimizer has no parameter of the trial's model%s: give %s that model",
                       ls_optimizer_group_count(optimizer) == 0 ? ", and none at all" : "", optimizer->type->name);
    }
    return optimizer->model != NULL ? check_complete(optimizer) : LS_OK;
}

/* Warns once per trial about a module created by ls_nn_standardize that does nothing. */
static void check_standardize(ls_trial *trial) {
    if (!trial->watch.standardize_reported && ls_trial_rank(&trial->state) == 0 &&
        ls_standardize_is_unfitted(trial->state.model)) {
        trial->watch.standardize_reported = true;
        ls_log_write(LS_LOG_WARNING,
                     "ls_trial_run: a module created by ls_nn_standardize has its initial mean 0 and deviation "
                     "1, so it changes nothing: call ls_nn_standardize_fit before the run");
    }
}

static ls_status check_batches(const ls_trial *trial) {
    const ls_loader *loader = trial->options.train;
    const ls_dataset *dataset = ls_loader_dataset(loader);
    if (ls_loader_batch_count(loader) != 0) {
        return LS_OK;
    }
    return dataset != NULL && ls_dataset_count(dataset) > 0
               ? ls_fail(LS_ERR_ARGUMENT,
                         "ls_trial_run: the training loader has no batches: drop_last leaves out the only batch, "
                         "because an epoch has fewer samples than the global batch of %lld; make batches smaller",
                         (long long)ls_loader_global_batch(loader))
               : ls_fail(LS_ERR_ARGUMENT, "ls_trial_run: the training loader has no batches");
}

/* ---- loaders of pipelines ---------------------------------------------------------------------------------------- */

ls_status ls_trial_check_stages(const char *call, const char *name, const ls_trial *trial, const ls_loader *loader) {
    ls_comm *stages = ls_module_pipeline_comm(trial->state.model);
    bool equal = true;
    if (stages == NULL || ls_comm_size(stages) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_check_open(call, stages));
    LS_TRY(ls_ranks_have_equal(stages, ls_loader_share(loader), &equal));
    return equal ? LS_OK
                 : ls_fail(LS_ERR_MISMATCH,
                           "%s: the %s gives each stage of the pipeline (ls_pipeline) different samples: remove .comm "
                           "from ls_loader_options, or set it to the communicator of the ranks with the same stage",
                           call, name);
}

/* ---- all checks -------------------------------------------------------------------------------------------------- */

static ls_status check_own(ls_trial *trial) {
    LS_TRY(check_grown(trial->state.model));
    LS_TRY(trial->options.step == NULL ? check_step(trial->state.model) : LS_OK);
    LS_TRY(trial->options.step == NULL ? check_optimizer(trial) : LS_OK);
    check_standardize(trial);
    return check_batches(trial);
}

/* If a check fails on one rank, this rank still takes part in the exchanges. The first error is reported. */
ls_status ls_trial_check_setup(ls_trial *trial) {
    const ls_loader *const loaders[] = {trial->options.train, trial->options.validate};
    static const char *const names[] = {"training loader", "validation loader"};
    ls_saved_error first = {.status = LS_OK};
    ls_error_save_first(&first, check_own(trial));
    for (int i = 0; i < 2; i++) {
        ls_error_save_first(&first, ls_trial_check_stages("ls_trial_run", names[i], trial, loaders[i]));
    }
    return ls_error_put_back_first(&first);
}

/* ---- ranks that train separate models ---------------------------------------------------------------------------- */

static bool speaks(const ls_comm *comm) {
    return ls_comm_rank(comm) == 0;
}

/* Checks a trial without a communicator in a job with several ranks. If nothing communicates, each rank trains
 * alone. */
static void look_alone(const ls_trial *trial) {
    const ls_comm *world = ls_world();
    const ls_module *model = trial->state.model;
    const bool communicates = ls_comm_metered.nanoseconds != trial->watch.communication;
    if (world != NULL && ls_comm_size(world) > 1 && speaks(world) && !communicates &&
        model->type != &ls_pipeline_type && !ls_model_is_divided(model)) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_trial_run: the job has %d ranks, and each rank that runs this trial trains its own model: "
                     "train ls_data_parallel(model, world, NULL), and give the loader .comm = world; for separate "
                     "models, give each trial a .comm of one rank (ls_comm_split)",
                     ls_comm_size(world));
    }
}

/* Warns if the ranks, whose models are equal and do not communicate, also have equal batches. Hooks that communicate
 * may divide the batch. */
static ls_status look_at_batches(const ls_trial *trial, bool hooks_communicate) {
    ls_comm *comm = trial->state.comm;
    bool equal = false;
    LS_TRY(ls_ranks_have_equal(comm, trial->watch.batch, &equal));
    if (equal && trial->watch.batch != 0 && !hooks_communicate && speaks(comm)) {
        ls_log_write(
            LS_LOG_WARNING,
            "ls_trial_run: the %d ranks do the same work: each trains the same model on all samples. To divide the "
            "work, train ls_data_parallel(model, comm, NULL), and set .comm of ls_loader_options",
            ls_comm_size(comm));
    }
    return LS_OK;
}

/*
 * Checks a trial with several ranks but without ls_data_parallel. Hooks may synchronize the ranks. If a model
 * communicates, its parameters may differ between ranks, for example if each rank has a part of a domain.
 */
static ls_status look_at_models(ls_trial *trial) {
    enum { DIVIDED, HOOKS, PARTS };
    ls_comm *comm = trial->state.comm;
    uint8_t some[PARTS] = {[DIVIDED] = trial->watch.model_communicates ||
                                       trial->state.model->type == &ls_pipeline_type ||
                                       ls_model_is_divided(trial->state.model),
                           [HOOKS] = trial->watch.hooks_communicate};
    bool equal = true;
    LS_TRY(ls_comm_allreduce(comm, some, some, PARTS, LS_U8, LS_MAX, NULL));
    if (some[DIVIDED] != 0) {
        return LS_OK;
    }
    LS_TRY(ls_replicas_are_equal(trial->state.model, comm, &equal));
    if (equal) {
        return look_at_batches(trial, some[HOOKS] != 0);
    }
    if (speaks(comm)) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_trial_run: the %d ranks train different models, since nothing averages their gradients: train "
                     "ls_data_parallel(model, comm, NULL)",
                     ls_comm_size(comm));
    }
    return LS_OK;
}

void ls_trial_watch_begin(ls_trial *trial) {
    if (!trial->watch.ended && !trial->watch.begun) {
        trial->watch.begun = true;
        trial->watch.model_communicates = trial->watch.hooks_communicate = false;
        ls_comm_metered.users++;
        trial->watch.communication = ls_comm_metered.nanoseconds;
    }
}

void ls_trial_watch_end(ls_trial *trial) {
    ls_training_is_checked();
    ls_comm_metered.users -= trial->watch.begun;
    trial->watch.begun = false;
}

/* Returns whether the user step or the program's hooks may synchronize the ranks later. */
static bool may_follow(const ls_trial *trial) {
    return trial->watch.user_hooks || trial->watch.user_step;
}

ls_status ls_trial_watch_step(ls_trial *trial) {
    if (trial->watch.begun && (ls_data_parallel_comm(trial->state.model) != NULL || trial->options.outer != NULL)) {
        ls_trial_watch_end(trial);
        trial->watch.ended = true;
    }
    if (trial->watch.begun && trial->watch.batch == 0 && ls_comm_size(trial->state.comm) > 1) {
        LS_TRY(ls_batch_hash(&trial->watch.batch));
    }
    return may_follow(trial) ? LS_OK : ls_trial_watch_epoch(trial);
}

ls_status ls_trial_watch_epoch(ls_trial *trial) {
    ls_comm *comm = trial->state.comm;
    if (!trial->watch.begun) {
        return LS_OK;
    }
    if (comm == NULL) {
        look_alone(trial);
    }
    ls_trial_watch_end(trial);
    trial->watch.ended = true;
    return ls_comm_size(comm) > 1 ? look_at_models(trial) : LS_OK;
}
