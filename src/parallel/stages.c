/* Partitions a model into the stages of a pipeline: at given layers, or so that the costs of the stages are
 * balanced. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/random.h"
#include "comm/hold.h"
#include "parallel/pipeline.h"
#include "tensor/scope.h"

/* Marks the parameters of a stage as distributed over ranks: only all stages together contain all parameters of the
 * model. */
static void mark_parts(const ls_module *stage, ls_division division) {
    for (int i = 0; i < ls_module_parameter_count(stage); i++) {
        ls_leaf *leaf = ls_module_parameter(stage, i)->leaf;
        if (leaf != NULL) {
            leaf->divisions[LS_DIVIDED_MODEL] = division;
        }
    }
}

/* Removes the marks, because layers may outlive the pipeline. */
static void free_state(ls_module *self) {
    const ls_pipeline_state *state = self->state;
    mark_parts(state->stage, (ls_division){0});
    ls_comm_drop(state->comm);
}

/* An input that is NULL because of a failure reaches the forward function, which notifies the other stages. */
const ls_module_type ls_pipeline_type = {.name = "Pipeline",
                                         .optional = 1,
                                         .state_size = sizeof(ls_pipeline_state),
                                         .forward = ls_pipeline_forward,
                                         .free_state = free_state};

static const char call[] = "ls_pipeline";

/* ---- cost of a layer --------------------------------------------------------------------------------------------- */

enum { REPETITIONS = 5 };

/*
 * Returns the time in seconds of one forward and backward pass, as in the pipeline: no rank needs the gradient of the
 * first layer's input. Sets *output to the layer's output, in the scope around the innermost scope, or to NULL if a
 * pass failed.
 */
static double time_layer(ls_module *layer, bool first, ls_tensor *input, ls_tensor **output) {
    ls_scope *scope = ls_scope_open();
    ls_tensor *x = ls_detach(input);
    if (!first && x != NULL && ls_dtype_is_floating(ls_dtype_of(x))) {
        (void)ls_set_requires_grad(x, true);
    }
    const double began = ls_clock_seconds();
    ls_tensor *y = ls_forward(layer, x);
    const bool passed = y != NULL && (!ls_requires_grad(y) ||
                                      ls_backward_with(y, &(ls_backward_options){.gradient = ls_detach(y)}) == LS_OK);
    const double seconds = ls_clock_seconds() - began;
    *output = passed ? ls_keep(ls_detach(y)) : NULL;
    (void)ls_scope_close(scope);
    return seconds;
}

/* Times every layer on `sample`. Returns false if a layer failed. */
static bool time_layers(const ls_module *model, ls_tensor *sample, double *costs) {
    ls_scope *scope = ls_scope_open();
    ls_tensor *x = sample;
    for (int i = 0; i < model->child_count && x != NULL; i++) {
        ls_tensor *y = NULL;
        costs[i] = INFINITY;
        for (int k = 0; k < REPETITIONS; k++) {
            const double seconds = time_layer(model->children[i].module, i == 0, x, &y);
            costs[i] = seconds < costs[i] ? seconds : costs[i];
        }
        ls_module_zero_grad(model->children[i].module);
        x = y;
    }
    return ls_scope_close(scope) == LS_OK && x != NULL;
}

/* Copies the buffers of the model, such as the running statistics of batch normalization. */
static bool copy_buffers(const ls_module *model, ls_tensor **copies) {
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        copies[i] = ls_clone(ls_module_buffer(model, i));
        if (copies[i] == NULL) {
            return false;
        }
    }
    return true;
}

static bool restore_buffers(const ls_module *model, ls_tensor *const *copies) {
    const bool before = ls_no_grad(true);
    bool good = true;
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        good = ls_copy_into(ls_module_buffer(model, i), copies[i]) == LS_OK && good;
    }
    (void)ls_no_grad(before);
    return good;
}

/*
 * Measures the costs of all layers. Must leave the model's buffers and the random state unchanged, because only rank 0
 * measures. Returns false if a layer failed.
 */
static bool measure_layers(const ls_module *model, ls_tensor *sample, double *costs) {
    const size_t bytes = ((size_t)ls_module_buffer_count(model) + 1) * sizeof(ls_tensor *);
    ls_tensor **copies = ls_allocate(bytes);
    if (copies == NULL) {
        (void)ls_fail_memory(call, bytes);
        return false;
    }
    const ls_random_state random = ls_random_present();
    ls_scope *scope = ls_scope_open();
    bool good = copy_buffers(model, copies);
    if (good) {
        ls_saved_error cause;
        good = time_layers(model, sample, costs);
        ls_error_save(&cause);
        const bool restored = restore_buffers(model, copies);
        if (!good) {
            (void)ls_error_put_back(&cause);
        }
        good = good && restored;
    }
    good = ls_scope_close(scope) == LS_OK && good;
    ls_random_continue(random);
    ls_free(copies);
    return good;
}

static bool measure(ls_module *model, ls_tensor *sample, double *costs) {
    if (!ls_module_keep_lists(model)) { /* a layer may register a cache in its first forward pass */
        return false;
    }
    const bool good = measure_layers(model, sample, costs);
    ls_module_release_lists(model);
    return good;
}

/*
 * A layer with parameters computes three products of their size: its output and two gradients. The first layer does not
 * compute the gradient of its input.
 */
static void estimate(const ls_module *model, double *costs) {
    for (int i = 0; i < model->child_count; i++) {
        costs[i] = (i == 0 ? 2 : 3) * (double)ls_module_size(model->children[i].module) + 1;
    }
}

/* ---- boundaries of stages ---------------------------------------------------------------------------------------- */

/*
 * Returns the number of stages that are needed if no stage may cost more than `most` and each later stage must have at
 * least one layer. Stores the ends of the stages.
 */
static int fill_stages(const double *costs, int layers, int stages, double most, int *ends) {
    int stage = 0;
    double sum = 0;
    for (int i = 0; i < layers; i++) {
        const bool must = layers - i == stages - stage - 1; /* each remaining stage needs one layer */
        if (i > 0 && (sum + costs[i] > most || must) && sum > 0) {
            if (stage < stages) {
                ends[stage] = i;
            }
            stage++;
            sum = 0;
        }
        sum += costs[i];
    }
    if (stage < stages) {
        ends[stage] = layers;
    }
    return stage + 1;
}

/* Finds the partition that minimizes the cost of the most expensive stage. This cost is the sum over consecutive
 * layers. */
static void balance(const double *costs, int layers, int stages, int *ends) {
    double best = INFINITY;
    for (int first = 0; first < layers; first++) {
        double sum = 0;
        for (int last = first; last < layers; last++) {
            sum += costs[last];
            if (sum < best && fill_stages(costs, layers, stages, sum, ends) <= stages) {
                best = sum;
            }
        }
    }
    (void)fill_stages(costs, layers, stages, best, ends);
}

static ls_status take_cut(const int *cut, int layers, int stages, int *ends) {
    for (int stage = 0; stage < stages - 1; stage++) {
        const int begin = stage > 0 ? cut[stage - 1] : 0;
        if (cut[stage] <= begin || cut[stage] >= layers) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "%s: stage %d begins with layer %d of %d, but each stage needs at least one layer", call,
                           stage + 1, cut[stage], layers);
        }
        ends[stage] = cut[stage];
    }
    ends[stages - 1] = layers;
    return LS_OK;
}

/*
 * Finds the end (one past the last layer) of each stage, equal on all ranks. The ends come from the options, or rank 0
 * measures and broadcasts them.
 */
static ls_status find_ends(ls_module *model, ls_comm *comm, const ls_pipeline_options *options, int *ends) {
    const int layers = model->child_count;
    const int stages = ls_comm_size(comm);
    if (options->cut != NULL) {
        return take_cut(options->cut, layers, stages, ends);
    }
    double *costs = ls_allocate((size_t)layers * sizeof *costs);
    if (costs == NULL) {
        return ls_fail_memory(call, (size_t)layers * sizeof *costs);
    }
    ls_status status = LS_OK;
    if (options->sample == NULL) {
        estimate(model, costs);
    } else if (ls_comm_rank(comm) == 0 && !measure(model, options->sample, costs)) {
        status = ls_error_status();
        costs[0] = NAN; /* the broadcast of NAN notifies the other ranks */
    }
    const ls_status sent = ls_comm_broadcast(comm, costs, (size_t)layers, LS_F64, 0, NULL);
    const bool failed = isnan(costs[0]);
    if (!failed) {
        balance(costs, layers, stages, ends);
    }
    ls_free(costs);
    if (status == LS_OK && sent == LS_OK && failed) {
        return ls_fail(LS_ERR_STATE, "%s: rank 0 could not measure the layers on its sample", call);
    }
    return status != LS_OK ? status : sent;
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

/* Returns the layers from `begin` to `end` - 1, with their names in the model. */
static ls_module *take_layers(const ls_module *model, int begin, int end) {
    ls_module *stage = ls_module_new(model->type);
    for (int i = begin; i < end; i++) {
        (void)ls_module_add_child(stage, model->children[i].name, model->children[i].module);
    }
    return ls_module_finish(stage);
}

static int stage_of(const int *ends, int layer) {
    int stage = 0;
    while (layer >= ends[stage]) {
        stage++;
    }
    return stage;
}

/* Rejects a tensor that two stages share, because it would become two tensors on different ranks. */
static ls_status check_shared(const ls_module *model, const int *ends, const ls_child *a, const ls_child *b) {
    const int first = stage_of(ends, (int)(a - model->children));
    const int second = stage_of(ends, (int)(b - model->children));
    if (first == second) {
        return LS_OK;
    }
    if (!ls_module_list(a->module) || !ls_module_list(b->module)) {
        return ls_error_status();
    }
    const ls_named_list *const lists[] = {&a->module->parameters, &a->module->buffers};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            const char *name = ls_module_name_of(b->module, lists[k]->items[i].tensor);
            if (name != NULL) {
                return ls_fail(
                    LS_ERR_UNSUPPORTED,
                    "%s: \"%s.%s\" in stage %d (rank %d) and \"%s.%s\" in stage %d (rank %d) are the same tensor, "
                    "which cannot be on two ranks: choose stages with both in the same stage, or use separate tensors",
                    call, a->name, lists[k]->items[i].name, first, first, b->name, name, second, second);
            }
        }
    }
    return LS_OK;
}

static ls_status check_stages(const ls_module *model, const int *ends) {
    for (int i = 0; i < model->child_count; i++) {
        for (int j = i + 1; j < model->child_count; j++) {
            LS_TRY(check_shared(model, ends, &model->children[i], &model->children[j]));
        }
    }
    return LS_OK;
}

/* Fails on every rank if the options or the numbers of layers differ. Collective. */
static ls_status compare_options(const ls_module *model, ls_comm *comm, const ls_pipeline_options *options) {
    const size_t bytes = options->cut != NULL ? (size_t)(ls_comm_size(comm) - 1) * sizeof *options->cut : 0;
    char cut[64] = "NULL", text[160];
    if (options->cut != NULL) {
        snprintf(cut, sizeof cut, "set (hash %016llx)",
                 (unsigned long long)ls_hash(LS_HASH_START, options->cut, bytes));
    }
    snprintf(text, sizeof text, ".micro_batches = %d, .schedule = %d, .cut %s, and a model of %d layers",
             options->micro_batches, (int)options->schedule, cut, model->child_count);
    return ls_options_compare(call, comm, text);
}

static ls_status check(const ls_module *model, ls_comm *comm, const ls_pipeline_options *options) {
    if (comm == NULL || model == NULL) {
        return ls_fail_missing("%s: the %s", call, model == NULL ? "model" : "communicator");
    }
    if (!ls_module_is_here(model)) {
        return ls_error_status();
    }
    LS_TRY(ls_comm_check_open(call, comm));
    LS_TRY(compare_options(model, comm, options)); /* first: all ranks fail if the options of one rank are invalid */
    if (options->micro_batches < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .micro_batches is %d, but must not be negative", call,
                       options->micro_batches);
    }
    if (strcmp(model->type->name, "Sequential") != 0 || model->child_count < ls_comm_size(comm)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: %s of %d layers cannot be split into %d stages: it needs an ls_sequential with at least "
                       "one layer per stage",
                       call, model->type->name, model->child_count, ls_comm_size(comm));
    }
    return LS_OK;
}

ls_module *ls_pipeline(ls_module *model, ls_comm *comm, const ls_pipeline_options *options) {
    static const ls_pipeline_options defaults;
    options = options != NULL ? options : &defaults;
    int *ends = model != NULL && comm != NULL ? ls_allocate((size_t)ls_comm_size(comm) * sizeof *ends) : NULL;
    ls_status status = check(model, comm, options);
    status = status == LS_OK && ends == NULL ? ls_fail_memory(call, sizeof *ends) : status;
    status = status == LS_OK ? find_ends(model, comm, options, ends) : status;
    status = status == LS_OK ? check_stages(model, ends) : status;
    ls_module *module = status == LS_OK ? ls_module_new(&ls_pipeline_type) : NULL;
    if (module != NULL) {
        ls_pipeline_state *state = module->state;
        const int rank = ls_comm_rank(comm);
        state->comm = ls_comm_hold(comm);
        state->schedule = options->schedule;
        state->micro_batches = options->micro_batches > 0 ? options->micro_batches : 2 * ls_comm_size(comm);
        state->stage = ls_module_add_child(module, "", take_layers(model, rank > 0 ? ends[rank - 1] : 0, ends[rank]));
        module->division = (ls_division){.add = ls_add_over_ranks, .user = comm};
        mark_parts(state->stage, module->division);
    }
    ls_module_consume(model);
    ls_free(ends);
    return ls_module_finish(module);
}

/* ---- weights for the average of gradients ------------------------------------------------------------------------ */

static double share_of_step(const ls_gathered_steps *own, const ls_gathered_steps *all, int64_t step) {
    return all->samples[step] > 0 ? (double)own->samples[step] / (double)all->samples[step] : 0;
}

/* A single factor is correct only if all steps were distributed over the ranks in the same proportions. */
static ls_status check_steps(const ls_gathered_steps *own, const ls_gathered_steps *all, ls_comm *comm) {
    const int64_t known = own->count < LS_STEPS_KNOWN ? own->count : LS_STEPS_KNOWN;
    int64_t wrong = (own->any && own->count * all->any != all->count) || (own->count > known && own->differ);
    for (int64_t i = 1; i < known && !wrong; i++) {
        wrong = fabs(share_of_step(own, all, i) - share_of_step(own, all, 0)) > 1e-12;
    }
    LS_TRY(ls_comm_allreduce(comm, &wrong, &wrong, 1, LS_I64, LS_MAX, NULL));
    return !wrong ? LS_OK
                  : ls_fail(LS_ERR_STATE, "ls_sync_gradients: several calls to ls_pipeline_backward, which divided "
                                          "their samples over the ranks in different ways, have accumulated gradients: "
                                          "call ls_sync_gradients after each ls_pipeline_backward");
}

ls_status ls_pipeline_weigh(ls_pipeline_state *state, ls_comm *comm, double *weight) {
    const ls_gathered_steps own = state->steps;
    ls_gathered_steps all;
    LS_TRY(ls_comm_allreduce(comm, &own, &all, sizeof own / sizeof(int64_t), LS_I64, LS_SUM, NULL));
    if (all.several > 0) {
        LS_TRY(check_steps(&own, &all, comm));
    }
    *weight = all.any > 0 ? ls_comm_size(comm) * share_of_step(&own, &all, 0) : 1;
    state->steps = (ls_gathered_steps){0};
    return LS_OK;
}
