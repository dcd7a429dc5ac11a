/*
 * Local SGD (Stich, Local SGD Converges Fast and Communicates Little, 2018) and DiLoCo (Douillard et al., DiLoCo:
 * Distributed Low-Communication Training of Language Models, 2023, algorithm 1).
 *
 * Between outer steps, each rank trains alone. In an outer step, each rank computes the difference between the
 * parameters after the last outer step (the anchors) and its current parameters. The mean of the differences over the
 * ranks is the gradient of the outer optimizer, which starts from the anchors. The differences are written to the flat
 * buffers of the gradients, so an outer step is one all-reduce per dtype. All ranks get bit-identical results, because
 * their anchors, differences and momentum are equal.
 *
 * With learning rate 1 and without momentum, the result is the mean of the parameters. The ranks then average the
 * parameters themselves, and need no anchors.
 */
#include "parallel/outer.h"

#include <math.h>
#include <string.h>

#include "base/describe.h"
#include "base/freed.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/option.h"
#include "comm/hold.h"
#include "comm/public_call.h"
#include "comm/separate.h"
#include "nn/module.h"
#include "parallel/cause.h"
#include "parallel/data_parallel.h"
#include "parallel/parallel.h"
#include "tensor/capture.h"

struct ls_outer {
    ls_module *model; /* holds a reference; NULL in a record that ls_outer_free has retired */
    ls_comm *comm;    /* held */
    ls_outer_options options;
    ls_optimizer *optimizer; /* NULL if outer steps only average the parameters; there are then no anchors */
    ls_flat flats[LS_FLAT_LIMIT];
    ls_storage *anchors[LS_FLAT_LIMIT];
    int flat_count;
    ls_averaged_buffers buffers;
    uint64_t loads; /* number of loads of the parameters from files when the anchors were copied */
    int64_t total;  /* total number of training steps */
    int64_t since;  /* training steps since the last outer step */
    bool compared;  /* the ranks have compared their replicas before an outer step */
    bool marked;    /* the model counts this outer optimizer in `unsynchronized` */
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

static ls_tensor view(const ls_outer *outer, int flat, ls_storage *storage) {
    return ls_flat_view(storage, outer->flats[flat].dtype, outer->flats[flat].count);
}

/* Finds the flat buffers, which move when a different module lays out the parameters again. Fails if a layer was
 * added. */
static ls_status find_flats(const char *call, ls_outer *outer) {
    ls_flat flats[LS_FLAT_LIMIT];
    LS_TRY(ls_module_is_here(outer->model) ? LS_OK : LS_ERR_STATE);
    const int count = ls_module_flatten(outer->model, flats);
    bool same = count == outer->flat_count && !ls_module_has_grown(outer->model);
    for (int i = 0; i < count && same; i++) {
        same = flats[i].dtype == outer->flats[i].dtype && flats[i].count == outer->flats[i].count;
    }
    if (count >= 0 && !same) {
        return ls_fail(LS_ERR_STATE, "%s: the model's parameters have changed since ls_outer_new: add all layers first",
                       call);
    }
    for (int i = 0; i < count; i++) {
        outer->flats[i] = flats[i];
    }
    return count >= 0 ? LS_OK : ls_error_status();
}

static void parameters_changed(const ls_outer *outer, const char *call) {
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_tensor *parameter = ls_module_parameter(outer->model, i);
        if (parameter->leaf != NULL) {
            ls_tensor_changed(parameter, call);
        }
    }
}

/* ---- an outer step ----------------------------------------------------------------------------------------------- */

static bool is_frozen(const ls_tensor *parameter) {
    return parameter->leaf != NULL && !parameter->needs_grad;
}

static bool has_frozen(const ls_outer *outer) {
    bool any = false;
    for (int i = 0; i < ls_module_parameter_count(outer->model) && !any; i++) {
        any = is_frozen(ls_module_parameter(outer->model, i));
    }
    return any;
}

/* Returns whether all ranks have the same elements of all frozen parameters. Collective if there are such
 * parameters. */
static ls_status compare_frozen(const ls_outer *outer, bool *equal) {
    uint64_t hash = LS_HASH_START;
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_tensor *parameter = ls_module_parameter(outer->model, i);
        LS_TRY(is_frozen(parameter) ? ls_hash_elements("ls_outer_step", parameter, &hash) : LS_OK);
    }
    *equal = true;
    return has_frozen(outer) ? ls_ranks_have_equal(outer->comm, (int64_t)(hash >> 1), equal) : LS_OK;
}

/* Averages the frozen parameters that differ between ranks. The mean of equal numbers could differ from them by
 * rounding, so the other parameters keep their bits. */
static ls_status average_frozen(const ls_outer *outer) {
    bool all_equal = true;
    LS_TRY(compare_frozen(outer, &all_equal));
    for (int i = 0; i < ls_module_parameter_count(outer->model) && !all_equal; i++) {
        const ls_tensor *parameter = ls_module_parameter(outer->model, i);
        bool equal = true;
        LS_TRY(is_frozen(parameter) ? ls_elements_are_equal("ls_outer_step", outer->comm, parameter, &equal) : LS_OK);
        LS_TRY(equal ? LS_OK : ls_allreduce_in_place(outer->comm, parameter, LS_AVG));
    }
    return LS_OK;
}

/* Averages the parameters that are not frozen: the flat buffers contain the frozen parameters, too. */
static ls_status average_trained(const ls_outer *outer) {
    ls_reducer *reducer = ls_reducer_new(outer->comm, &(ls_reducer_options){.bucket_bytes = SIZE_MAX});
    ls_status status = ls_made(reducer);
    for (int i = 0; i < ls_module_parameter_count(outer->model) && status == LS_OK; i++) {
        ls_tensor *parameter = ls_module_parameter(outer->model, i);
        const bool trained = parameter->leaf != NULL && !is_frozen(parameter);
        status = trained ? ls_reducer_add(reducer, parameter) : LS_OK;
    }
    status = status == LS_OK ? ls_reducer_finish(reducer) : status;
    ls_reducer_free(reducer);
    return status;
}

static ls_status average_parameters(const ls_outer *outer) {
    LS_TRY(average_frozen(outer));
    if (has_frozen(outer)) {
        return average_trained(outer);
    }
    for (int i = 0; i < outer->flat_count; i++) {
        const ls_tensor parameters = view(outer, i, outer->flats[i].parameters);
        LS_TRY(ls_allreduce_in_place(outer->comm, &parameters, LS_AVG));
    }
    return LS_OK;
}

/* Copies frozen parameters to the memory of their gradients, or back. */
static ls_status keep_frozen(const ls_outer *outer, bool back) {
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        ls_tensor *parameter = ls_module_parameter(outer->model, i);
        if (is_frozen(parameter)) {
            ls_tensor *gradient = parameter->leaf->gradient;
            LS_TRY(ls_kernels_of(parameter)->copy(ls_stream_of(parameter), back ? parameter : gradient,
                                                  back ? gradient : parameter));
        }
    }
    return LS_OK;
}

/* Writes the mean differences to the gradients, and copies the anchors to the parameters that are not frozen. */
static ls_status average_differences(const ls_outer *outer) {
    LS_TRY(average_frozen(outer));
    for (int i = 0; i < outer->flat_count; i++) {
        ls_tensor difference = view(outer, i, outer->flats[i].gradients),
                  parameters = view(outer, i, outer->flats[i].parameters);
        const ls_tensor anchors = view(outer, i, outer->anchors[i]);
        LS_TRY(ls_kernels_of(&parameters)
                   ->sub(ls_stream_of(&parameters), &difference, (const ls_tensor *[]){&anchors, &parameters}, NULL));
        LS_TRY(ls_allreduce_in_place(outer->comm, &difference, LS_AVG));
    }
    LS_TRY(keep_frozen(outer, false));
    for (int i = 0; i < outer->flat_count; i++) {
        ls_tensor parameters = view(outer, i, outer->flats[i].parameters);
        const ls_tensor anchors = view(outer, i, outer->anchors[i]);
        LS_TRY(ls_kernels_of(&parameters)->copy(ls_stream_of(&parameters), &parameters, &anchors));
    }
    return keep_frozen(outer, true);
}

static uint64_t count_loads(const ls_outer *outer) {
    uint64_t loads = 0;
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_leaf *leaf = ls_module_parameter(outer->model, i)->leaf;
        loads += leaf != NULL ? leaf->loads : 0;
    }
    return loads;
}

/* Copies the parameters to the anchors, if the outer optimizer needs them. */
static ls_status take_anchors(ls_outer *outer) {
    outer->loads = count_loads(outer);
    for (int i = 0; i < outer->flat_count && outer->optimizer != NULL; i++) {
        ls_tensor anchors = view(outer, i, outer->anchors[i]);
        const ls_tensor parameters = view(outer, i, outer->flats[i].parameters);
        LS_TRY(ls_kernels_of(&anchors)->copy(ls_stream_of(&anchors), &anchors, &parameters));
    }
    return LS_OK;
}

/* The gradients contain the mean differences. The program's own gradients, which these replace, may be missing. */
static ls_status step_optimizer(ls_outer *outer) {
    ls_module_zero_grad(outer->model);
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_tensor *parameter = ls_module_parameter(outer->model, i);
        if (parameter->leaf != NULL && !is_frozen(parameter)) {
            parameter->leaf->has_gradient = true;
        }
    }
    LS_TRY(ls_optimizer_step(outer->optimizer));
    ls_module_zero_grad(outer->model);
    return take_anchors(outer);
}

/* Parameters of integer dtypes have no mean: all ranks get the parameters of rank 0. */
static ls_status broadcast_integers(const char *call, const ls_outer *outer) {
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_tensor *parameter = ls_module_parameter(outer->model, i);
        if (parameter->leaf == NULL) {
            ls_tensor_changed(parameter, call);
            LS_TRY(ls_broadcast_in_place(outer->comm, parameter, 0));
        }
    }
    return LS_OK;
}

static ls_status average_buffers(ls_outer *outer) {
    ls_averaged_buffers *buffers = &outer->buffers;
    const size_t count = (size_t)buffers->count;
    if (count == 0) {
        return LS_OK;
    }
    uint8_t *changed = ls_record_allocate(count);
    if (changed == NULL) {
        return ls_fail_memory("ls_outer_step", count);
    }
    for (size_t i = 0; i < count; i++) {
        changed[i] = ls_buffer_has_changed(buffers, (int)i);
    }
    const ls_status status = ls_comm_allreduce(outer->comm, changed, changed, count, LS_U8, LS_MAX, NULL);
    for (size_t i = 0; i < count; i++) {
        buffers->records[i].changed = changed[i] != 0;
    }
    ls_record_release(changed, count);
    return status == LS_OK ? ls_buffers_average(buffers, 1) : status;
}

/* Fails on every rank if the ranks have taken different numbers of steps or train different parameters, or if any rank
 * has loaded parameters since the anchors were copied. */
static ls_status agree_on_steps(const char *call, const ls_outer *outer) {
    const int64_t steps[2] = {outer->total, outer->since};
    uint64_t hash = ls_hash(LS_HASH_START, steps, sizeof steps);
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_tensor *parameter = ls_module_parameter(outer->model, i);
        const uint8_t trained = parameter->needs_grad;
        hash = ls_hash(hash, &trained, 1);
    }
    const int64_t number = (int64_t)(hash >> 1);
    const bool loaded = outer->optimizer != NULL && count_loads(outer) != outer->loads;
    int64_t most[3] = {number, -number, loaded};
    LS_TRY(ls_comm_allreduce(outer->comm, most, most, 3, LS_I64, LS_MAX, NULL));
    if (most[2] != 0) {
        return ls_fail(LS_ERR_STATE,
                       "%s: ls_module_load has changed the parameters of a rank since the last outer step: load the "
                       "same weights on rank 0 or on all ranks, then create the outer optimizer again (ls_outer_new)",
                       call);
    }
    return most[0] == -most[1]
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH,
                         "%s: the ranks have taken different numbers of training steps (%lld here), or have frozen "
                         "different parameters: call ls_outer_step on every rank after every step",
                         call, (long long)outer->total);
}

/* Warns before the first outer step if the training so far was identical on all ranks. */
static ls_status compare_replicas(ls_outer *outer) {
    bool equal = false;
    if (outer->compared || ls_comm_size(outer->comm) == 1) {
        return LS_OK;
    }
    outer->compared = true;
    LS_TRY(ls_replicas_are_equal(outer->model, outer->comm, &equal));
    if (equal && ls_comm_rank(outer->comm) == 0) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_outer_step: the %d ranks still have equal parameters after %lld training steps; do they train "
                     "on the same samples? Set .comm of ls_loader_options, so that the ranks share each batch",
                     ls_comm_size(outer->comm), (long long)outer->since);
    }
    return LS_OK;
}

static void set_since(ls_outer *outer, int64_t since) {
    const bool differ = since > 0 && ls_comm_size(outer->comm) > 1;
    if (differ != outer->marked) {
        ls_module_add_unsynchronized(outer->model, differ ? 1 : -1);
        outer->marked = differ;
    }
    outer->since = since;
}

static ls_status average(const char *call, ls_outer *outer) {
    LS_TRY(agree_on_steps(call, outer));
    if (outer->since == 0) {
        return LS_OK;
    }
    LS_TRY(compare_replicas(outer));
    parameters_changed(outer, call);
    if (outer->optimizer == NULL) {
        LS_TRY(average_parameters(outer));
    } else {
        LS_TRY(average_differences(outer));
        LS_TRY(step_optimizer(outer));
    }
    LS_TRY(broadcast_integers(call, outer));
    LS_TRY(average_buffers(outer));
    set_since(outer, 0);
    return LS_OK;
}

static ls_status run_outer_step(ls_public_call call, ls_outer *outer) {
    const ls_public_call public = ls_public_begin(call);
    return ls_public_end(public, average(ls_public_name(call), outer));
}

ls_status ls_outer_check_here(const char *call, const ls_outer *outer) {
    return outer->model != NULL ? LS_OK : ls_fail_freed(call, "outer optimizer", "ls_outer_free");
}

static ls_status check(const char *call, ls_outer *outer) {
    if (outer == NULL) {
        return ls_fail_missing("%s: the outer optimizer", call);
    }
    LS_TRY(ls_outer_check_here(call, outer));
    LS_TRY(ls_comm_check_open(call, outer->comm));
    return find_flats(call, outer);
}

ls_status ls_outer_step(ls_outer *outer) {
    ls_capture_refuse_here("ls_outer_step", LS_CAPTURE_COMMUNICATES);
    LS_TRY(check("ls_outer_step", outer));
    outer->total++;
    set_since(outer, outer->since + 1);
    return outer->since >= outer->options.steps ? run_outer_step(LS_PUBLIC_OUTER_STEP, outer) : LS_OK;
}

ls_status ls_outer_sync(ls_outer *outer) {
    ls_capture_refuse_here("ls_outer_sync", LS_CAPTURE_COMMUNICATES);
    LS_TRY(check("ls_outer_sync", outer));
    return run_outer_step(LS_PUBLIC_OUTER_SYNC, outer);
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static void choose_options(ls_outer_options *options) {
    options->steps = options->steps != 0 ? options->steps : 32;
    options->learning_rate = ls_option(options->learning_rate, 0.7);
    options->momentum = ls_option(options->momentum, 0.9);
}

static ls_status check_options(const ls_outer_options *options) {
    const char *const call = "ls_outer_new";
    if (options->steps < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .steps is %lld, but must not be negative", call,
                       (long long)options->steps);
    }
    LS_TRY(ls_option_within(call, "learning_rate", options->learning_rate, 0, INFINITY));
    LS_TRY(ls_option_within(call, "momentum", options->momentum, 0, nextafter(1, 0)));
    return options->learning_rate > 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: .learning_rate must be above 0", call);
}

static ls_status compare_options(const ls_outer *outer) {
    char text[160];
    ls_outer_describe(outer, text, sizeof text);
    return ls_options_compare("ls_outer_new", outer->comm, text);
}

/* Rejects models whose ranks do not train independent replicas. */
static ls_status check_model(const ls_outer *outer) {
    if (ls_data_parallel_comm(outer->model) == outer->comm && ls_data_parallel_averages(outer->model)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_outer_new: the model averages gradients over the same ranks in every step "
                       "(ls_data_parallel): pass the model itself, or call ls_data_parallel_no_sync(model, true) "
                       "first");
    }
    for (int i = 0; i < ls_module_parameter_count(outer->model); i++) {
        const ls_leaf *leaf = ls_module_parameter(outer->model, i)->leaf;
        if (leaf != NULL && leaf->sharding != NULL) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "ls_outer_new: the model shards the state of optimizers over ranks: omit .zero of "
                           "ls_data_parallel_options");
        }
        for (int k = 0; leaf != NULL && k < LS_DIVISIONS; k++) {
            if (leaf->divisions[k].add != NULL && leaf->divisions[k].user == outer->comm) {
                return ls_fail(LS_ERR_UNSUPPORTED,
                               "ls_outer_new: \"%s\" is sharded over the ranks of the communicator: pass a "
                               "communicator of the ranks that have the same shards (ls_comm_split)",
                               ls_module_parameter_name(outer->model, i));
            }
        }
    }
    return LS_OK;
}

static ls_status make_optimizer(ls_outer *outer) {
    const ls_outer_options *options = &outer->options;
    if (options->learning_rate == 1 && options->momentum == 0) {
        return LS_OK;
    }
    outer->optimizer = ls_sgd(outer->model, &(ls_sgd_options){.learning_rate = options->learning_rate,
                                                              .momentum = options->momentum,
                                                              .nesterov = options->momentum > 0});
    LS_TRY(ls_made(outer->optimizer));
    for (int i = 0; i < outer->flat_count; i++) {
        const ls_storage *parameters = outer->flats[i].parameters;
        outer->anchors[i] = ls_storage_for("ls_outer_new", parameters->device, parameters->bytes, LS_MEMORY_OPTIMIZER);
        LS_TRY(ls_made(outer->anchors[i]));
    }
    return LS_OK;
}

/* Runs the checks and allocations that may fail on only some ranks. */
static ls_status prepare_here(ls_outer *outer) {
    LS_TRY(check_model(outer));
    outer->flat_count = ls_module_flatten(outer->model, outer->flats);
    LS_TRY(outer->flat_count >= 0 ? LS_OK : ls_error_status());
    if (outer->flat_count == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_outer_new: the model has no parameters that require gradients");
    }
    return make_optimizer(outer);
}

/* Parameters change only after all ranks have passed their checks. */
static ls_status prepare(ls_outer *outer) {
    LS_TRY(ls_module_list(outer->model) ? LS_OK : ls_error_status());
    LS_TRY(compare_options(outer)); /* first, so that options that are invalid on one rank only fail on all ranks */
    LS_TRY(check_options(&outer->options));
    LS_TRY(ls_failure_share(outer->comm, "ls_outer_new", prepare_here(outer) != LS_OK, NULL, 0));
    LS_TRY(ls_copy_parameters("ls_outer_new", outer->model, outer->comm, 0));
    ls_training_is_checked();
    return ls_outer_restart(outer);
}

ls_outer *ls_outer_new(ls_module *model, ls_comm *comm, const ls_outer_options *options) {
    if (model == NULL || comm == NULL) {
        (void)ls_fail_missing("ls_outer_new: the %s", model == NULL ? "model" : "communicator");
        return NULL;
    }
    ls_outer_options chosen = options != NULL ? *options : (ls_outer_options){0};
    if (!ls_module_is_here(model) || ls_comm_check_open("ls_outer_new", comm) != LS_OK) {
        return NULL;
    }
    choose_options(&chosen);
    ls_outer *outer = ls_allocate_for("ls_outer_new", 1, sizeof *outer);
    if (outer == NULL) {
        return NULL;
    }
    ls_module_hold(model);
    outer->model = model;
    outer->comm = ls_comm_hold(comm);
    outer->options = chosen;
    const ls_public_call public = ls_public_begin(LS_PUBLIC_OUTER_NEW);
    if (ls_public_end(public, prepare(outer)) != LS_OK) {
        ls_outer_free(outer);
        return NULL;
    }
    return outer;
}

void ls_outer_free(ls_outer *outer) {
    if (outer == NULL || outer->model == NULL) {
        return;
    }
    set_since(outer, 0);
    ls_optimizer_free(outer->optimizer);
    for (int i = 0; i < LS_FLAT_LIMIT; i++) {
        ls_storage_drop(outer->anchors[i]);
    }
    ls_buffers_close(&outer->buffers);
    ls_comm_drop(outer->comm);
    ls_module_drop(outer->model);
    *outer = (ls_outer){.model = NULL};
    ls_retire(outer, LS_RETIRED_SINGLE);
}

/* ---- for trials -------------------------------------------------------------------------------------------------- */

ls_optimizer *ls_outer_optimizer(const ls_outer *outer) {
    return outer != NULL ? outer->optimizer : NULL;
}

bool ls_outer_has_local_steps(const ls_outer *outer) {
    return outer->since > 0;
}

const ls_module *ls_outer_model(const ls_outer *outer) {
    return outer->model;
}

ls_comm *ls_outer_comm(const ls_outer *outer) {
    return outer->comm;
}

ls_status ls_outer_check(const ls_outer *outer) {
    LS_TRY(ls_outer_check_here("ls_outer", outer));
    return ls_replicas_compare("ls_outer", outer->model, outer->comm);
}

ls_status ls_outer_restart(ls_outer *outer) {
    LS_TRY(ls_outer_check_here("ls_outer", outer));
    set_since(outer, 0);
    outer->total = 0;
    LS_TRY(ls_buffers_watch(&outer->buffers, "ls_outer_step", outer->model, outer->comm));
    return take_anchors(outer);
}

void ls_outer_describe(const ls_outer *outer, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_outer_options, steps),
                                      LS_FIELD(ls_outer_options, learning_rate),
                                      LS_FIELD(ls_outer_options, momentum),
                                      {.name = NULL}};
    ls_describe(text, size, "ls_outer", fields, &outer->options);
}
