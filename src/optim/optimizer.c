#include "optim/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/captured_step.h"
#include "autograd/ops/ops.h"
#include "base/freed.h"
#include "base/memory.h"
#include "base/trace.h"
#include "comm/separate.h"
#include "nn/module.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static void group_free(ls_parameter_group *group) {
    for (int k = 0; k < LS_OPTIMIZER_STATES; k++) {
        ls_storage_drop(group->blocks[k]);
    }
    if (group->sharding != NULL) {
        group->sharding->hold(group->sharding, false);
    }
    ls_free(group->slots);
}

/* Fills the elements of a state that belong to the slot. */
static ls_status fill_state(char *state, const ls_optimizer_slot *slot, double value) {
    ls_tensor numbers = ls_stack_view_dense(slot->parameter, 1, &slot->own.count);
    numbers.data = state + slot->state_offset;
    return ls_kernels_of(slot->parameter)->fill(ls_stream_of(slot->parameter), &numbers, value);
}

static ls_status allocate_states(const ls_optimizer *optimizer, ls_parameter_group *group) {
    const size_t bytes = group->state_bytes;
    const ls_optimizer *by = group->by;
    ls_state_word words[LS_OPTIMIZER_STATES];
    const int states = by->type->states != NULL ? by->type->states(by, words) : 0;
    const double start = by->type->state_start != NULL ? by->type->state_start(by) : 0;
    for (int k = 0; k < states; k++) {
        ls_stream *stream = ls_device_stream(group->device);
        group->blocks[k] = ls_storage_for(optimizer->type->name, group->device, bytes, LS_MEMORY_OPTIMIZER);
        LS_TRY(ls_made(group->blocks[k]));
        group->state[k] = group->blocks[k]->memory;
        LS_TRY(group->device->clear(stream, group->state[k], bytes));
        for (int i = 0; start != 0 && i < group->count; i++) {
            LS_TRY(fill_state(group->state[k], &group->slots[i], start));
        }
    }
    return LS_OK;
}

static bool has_parameter(const ls_parameter_group *group, const ls_tensor *parameter) {
    for (int i = 0; i < group->count; i++) {
        if (group->slots[i].parameter == parameter) {
            return true;
        }
    }
    return false;
}

bool ls_optimizer_has(const ls_optimizer *optimizer, const ls_tensor *parameter) {
    bool found = false;
    for (int g = 0; !found && g < optimizer->group_count; g++) {
        found = has_parameter(&optimizer->groups[g], parameter);
    }
    return found;
}

static ls_status check_parameter(const ls_optimizer *optimizer, const ls_parameter_group *made,
                                 const ls_tensor *parameter) {
    const int index = made->count;
    const char *call = optimizer->type->name;
    if (parameter != NULL && ls_tensor_is_freed(parameter)) {
        return ls_tensor_refuse_gone(call, index + 1, parameter);
    }
    if (parameter == NULL || parameter->leaf == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: parameter %d %s", call, index,
                       parameter == NULL ? "is NULL" : "does not require a gradient: call ls_set_requires_grad first");
    }
    if (parameter->dtype != LS_F32 && parameter->dtype != LS_F64) {
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: parameter %d is of %s; optimizers work on f32 and f64", call, index,
                       ls_dtype_name((ls_dtype)parameter->dtype));
    }
    if (!parameter->contiguous) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: parameter %d is not contiguous; use ls_contiguous", call, index);
    }
    if (ls_tensor_device(parameter) != made->device) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "%s: parameter %d is on %s, but the parameters before it are on %s; a group must be on one device", call,
            index, ls_tensor_device(parameter)->name, made->device->name);
    }
    if (has_parameter(made, parameter) || ls_optimizer_has(optimizer, parameter)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: parameter %d is in a group already", call, index);
    }
    return LS_OK;
}

static ls_status group_init(const ls_optimizer *optimizer, ls_parameter_group *group, ls_tensor *const *parameters,
                            int count) {
    group->slots = ls_allocate_zeroed((size_t)count, sizeof *group->slots);
    if (group->slots == NULL) {
        return ls_fail_memory(optimizer->type->name, (size_t)count * sizeof *group->slots);
    }
    group->device = count > 0 && parameters[0] != NULL && !ls_tensor_is_freed(parameters[0])
                        ? ls_tensor_device(parameters[0])
                        : &ls_cpu;
    for (int i = 0; i < count; i++) {
        LS_TRY(check_parameter(optimizer, group, parameters[i]));
        group->slots[group->count++] = (ls_optimizer_slot){.parameter = parameters[i], .product = 1};
        ls_storage_set_kind(parameters[i]->storage, LS_MEMORY_PARAMETERS);
    }
    LS_TRY(ls_group_lay_out(optimizer, group));
    if (group->by->type->check_group != NULL) {
        LS_TRY(group->by->type->check_group(optimizer, group));
    }
    return allocate_states(optimizer, group);
}

static bool is_matrix(const ls_tensor *parameter) {
    return parameter != NULL && !ls_tensor_is_freed(parameter) && parameter->ndim == 2;
}

/* Returns the optimizer for a group of these parameters: `others` if it exists and the group contains no matrix. */
static const ls_optimizer *choose_method(const ls_optimizer *optimizer, ls_tensor *const *parameters, int count,
                                         bool others) {
    bool matrices = count == 0;
    for (int i = 0; i < count; i++) {
        matrices = matrices || is_matrix(parameters[i]);
    }
    return optimizer->others != NULL && (others || !matrices) ? optimizer->others : optimizer;
}

ls_status ls_optimizer_add_group(ls_optimizer *optimizer, ls_tensor *const *parameters, int count,
                                 const ls_group_options *options) {
    static const ls_group_options defaults;
    options = options != NULL ? options : &defaults;
    if (optimizer == NULL) {
        return ls_fail_missing("ls_optimizer_add_group: the optimizer");
    }
    if (count < 0 || (parameters == NULL && count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_optimizer_add_group: the parameters are missing (count %d)", count);
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_add_group", optimizer));
    LS_TRY(ls_option_within(optimizer->type->name, "learning_rate", options->learning_rate, 0, INFINITY));
    LS_TRY(ls_option_within(optimizer->type->name, "weight_decay", options->weight_decay, 0, INFINITY));
    if (options->adamw && optimizer->others == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .adamw of a group is supported by ls_muon only", optimizer->type->name);
    }
    const ls_optimizer *by = choose_method(optimizer, parameters, count, options->adamw);
    ls_parameter_group group = {
        .by = by,
        .learning_rate = ls_option(options->learning_rate, by->learning_rate),
        .weight_decay = ls_option(options->weight_decay, by->weight_decay),
    };
    ls_status status = group_init(optimizer, &group, parameters, count);
    ls_parameter_group *groups =
        status == LS_OK ? ls_grow(optimizer->groups, (size_t)optimizer->group_count, sizeof group) : NULL;
    if (groups == NULL) {
        group_free(&group);
        return status != LS_OK
                   ? status
                   : ls_fail_memory(optimizer->type->name, ((size_t)optimizer->group_count + 1) * sizeof group);
    }
    groups[optimizer->group_count++] = group;
    optimizer->groups = groups;
    return LS_OK;
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

/*
 * Adds a group of the parameters that require a gradient. For a matrix method, takes either only the matrices or only
 * the other parameters.
 */
static ls_status add_trained(ls_optimizer *optimizer, const ls_module *model, bool matrices) {
    const int count = ls_module_parameter_count(model);
    ls_tensor **trained = ls_allocate_zeroed((size_t)count, sizeof(ls_tensor *));
    if (trained == NULL) {
        return ls_fail_memory(optimizer->type->name, (size_t)count * sizeof(ls_tensor *));
    }
    int used = 0;
    for (int i = 0; i < count; i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        if (parameter->leaf != NULL && (optimizer->others == NULL || is_matrix(parameter) == matrices)) {
            trained[used++] = parameter;
        }
    }
    const ls_status status = ls_optimizer_add_group(optimizer, trained, used, &(ls_group_options){.adamw = !matrices});
    ls_free(trained);
    return status;
}

static ls_status add_model(ls_optimizer *optimizer, ls_module *model) {
    ls_flat flats[LS_FLAT_LIMIT];
    if (ls_module_flatten(model, flats) < 0) {
        return ls_error_status();
    }
    LS_TRY(add_trained(optimizer, model, true));
    return optimizer->others != NULL ? add_trained(optimizer, model, false) : LS_OK;
}

static ls_optimizer *copy_of(const ls_optimizer *initial) {
    const char *call = initial->type->name;
    if (ls_option_within(call, "learning_rate", initial->learning_rate, 0, INFINITY) != LS_OK ||
        ls_option_within(call, "weight_decay", initial->weight_decay, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    ls_optimizer *optimizer = ls_allocate(sizeof *optimizer);
    if (optimizer == NULL) {
        (void)ls_fail_memory(call, sizeof *optimizer);
        return NULL;
    }
    *optimizer = *initial;
    optimizer->weight_decay = ls_option(initial->weight_decay, 0);
    return optimizer;
}

ls_optimizer *ls_optimizer_new(const ls_optimizer *initial, ls_module *model) {
    ls_optimizer *optimizer = copy_of(initial);
    if (optimizer == NULL) {
        ls_optimizer_free(initial->others);
        return NULL;
    }
    optimizer->model = model;
    if (model != NULL && add_model(optimizer, model) != LS_OK) {
        ls_optimizer_free(optimizer);
        return NULL;
    }
    return optimizer;
}

ls_status ls_optimizer_check_here(const char *call, const ls_optimizer *optimizer) {
    return optimizer->type != NULL ? LS_OK : ls_fail_freed(call, "optimizer", "ls_optimizer_free");
}

void ls_optimizer_free(ls_optimizer *optimizer) {
    if (optimizer == NULL || optimizer->type == NULL) {
        return;
    }
    if (optimizer->type->forget != NULL) {
        optimizer->type->forget(optimizer);
    }
    for (int g = 0; g < optimizer->group_count; g++) {
        group_free(&optimizer->groups[g]);
    }
    ls_optimizer_free(optimizer->others);
    ls_state_forget(&optimizer->listed);
    ls_free(optimizer->groups);
    *optimizer = (ls_optimizer){.type = NULL, .captures = optimizer->captures};
    if (optimizer->captures == 0) {
        ls_retire(optimizer, LS_RETIRED_SINGLE);
    }
}

int64_t ls_optimizer_pending(const ls_optimizer *optimizer) {
    return optimizer->type->pending != NULL ? optimizer->type->pending(optimizer) : 0;
}

int ls_optimizer_group_count(const ls_optimizer *optimizer) {
    return optimizer != NULL ? optimizer->group_count : 0;
}

double ls_optimizer_learning_rate(const ls_optimizer *optimizer, int group) {
    ls_capture_refuse_here("ls_optimizer_learning_rate", LS_CAPTURE_NUMBER);
    return optimizer != NULL && group >= 0 && group < optimizer->group_count ? optimizer->groups[group].learning_rate
                                                                             : 0;
}

ls_status ls_optimizer_set_learning_rate(ls_optimizer *optimizer, int group, double learning_rate) {
    ls_capture_refuse_here("ls_optimizer_set_learning_rate", LS_CAPTURE_STATE);
    if (optimizer == NULL) {
        return ls_fail_missing("ls_optimizer_set_learning_rate: the optimizer");
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_set_learning_rate", optimizer));
    if (group < -1 || group >= optimizer->group_count) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_optimizer_set_learning_rate: there is no group %d", group);
    }
    LS_TRY(ls_option_within(optimizer->type->name, "learning_rate", learning_rate, 0, INFINITY));
    for (int g = 0; g < optimizer->group_count; g++) {
        if (group == -1 || group == g) {
            optimizer->groups[g].learning_rate = learning_rate;
        }
    }
    return LS_OK;
}

void ls_optimizer_describe(const ls_optimizer *optimizer, int group, char *text, size_t size) {
    static const ls_field rates[] = {
        LS_FIELD(ls_parameter_group, learning_rate), LS_FIELD(ls_parameter_group, weight_decay), {.name = NULL}};
    const ls_parameter_group *of = &optimizer->groups[group];
    char name[32];
    ls_describe(text, size, of->by->type->name, of->by->type->fields, &of->by->options);
    const size_t length = strlen(text);
    snprintf(name, sizeof name, ", group %d", group);
    ls_describe(text + length, size - length, name, rates, of);
}

double ls_optimizer_momentum(const ls_optimizer *optimizer) {
    ls_capture_refuse_here("ls_optimizer_momentum", LS_CAPTURE_NUMBER);
    const bool has = optimizer != NULL && optimizer->type != NULL && optimizer->type->momentum != NULL;
    const double *momentum = has ? optimizer->type->momentum((ls_optimizer *)optimizer) : NULL;
    return momentum != NULL ? *momentum : 0;
}

ls_status ls_optimizer_set_momentum(ls_optimizer *optimizer, double momentum) {
    ls_capture_refuse_here("ls_optimizer_set_momentum", LS_CAPTURE_STATE);
    if (optimizer == NULL) {
        return ls_fail_missing("ls_optimizer_set_momentum: the optimizer");
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_set_momentum", optimizer));
    const char *call = optimizer->type->name;
    double *own = optimizer->type->momentum != NULL ? optimizer->type->momentum(optimizer) : NULL;
    if (own == NULL) {
        return ls_fail(LS_ERR_STATE, "ls_optimizer_set_momentum: %s %s", call,
                       optimizer->type->momentum != NULL ? "was created without momentum: create it with a momentum"
                                                         : "is a method without momentum");
    }
    if (!(momentum > 0 && momentum < 1)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: momentum is %g, but must be between 0 and 1", call, momentum);
    }
    *own = momentum;
    return LS_OK;
}

/* ---- stepping ---------------------------------------------------------------------------------------------------- */

static bool takes_part(const ls_optimizer_slot *slot) {
    return slot->parameter->leaf != NULL && slot->parameter->leaf->has_gradient;
}

/*
 * Returns whether `next` begins at the end of the padding after `slot`, for both parameters and gradients, and has
 * taken the same number of steps.
 */
static bool adjoins(const ls_optimizer_slot *slot, const ls_optimizer_slot *next) {
    const size_t distance = next->offset - slot->offset;
    const ls_tensor *gradient = next->parameter->leaf->gradient;
    return next->parameter->dtype == slot->parameter->dtype && next->t == slot->t && next->product == slot->product &&
           next->parameter->leaf->shard == slot->parameter->leaf->shard &&
           next->parameter->storage->whole == slot->parameter->storage->whole &&
           (char *)next->parameter->data == (char *)slot->parameter->data + distance &&
           gradient->storage->whole == slot->parameter->leaf->gradient->storage->whole &&
           (char *)gradient->data == (char *)slot->parameter->leaf->gradient->data + distance;
}

bool ls_group_next_run(const ls_parameter_group *group, bool one_by_one, int *first, int *last) {
    while (*first < group->count && !takes_part(&group->slots[*first])) {
        (*first)++;
    }
    int end = *first;
    while (!one_by_one && end + 1 < group->count && takes_part(&group->slots[end + 1]) &&
           adjoins(&group->slots[end], &group->slots[end + 1])) {
        end++;
    }
    *last = end;
    return *first < group->count;
}

/* Steps the slots from `first` to `last`, which are adjacent in the state buffers. Sets run->product. */
static ls_status step_own(const ls_parameter_group *group, const ls_optimizer_slot *first,
                          const ls_optimizer_slot *last, ls_run *run) {
    const ls_tensor *parameter = first->parameter;
    const size_t width = ls_dtype_size(run->dtype), before = (size_t)first->own.first * width;
    run->count = (int64_t)((last->state_offset - first->state_offset) / width) + last->own.count;
    run->tensor = parameter;
    run->parameter = (char *)parameter->data + before;
    run->gradient = (const char *)parameter->leaf->gradient->data + before;
    for (int k = 0; k < LS_OPTIMIZER_STATES; k++) {
        run->state[k] = group->state[k] != NULL ? group->state[k] + first->state_offset : NULL;
    }
    return group->by->type->step(group->by, ls_kernels_of(parameter), ls_stream_of(parameter), run,
                                 group->learning_rate, group->weight_decay);
}

static ls_status step_run(const ls_optimizer *optimizer, const ls_parameter_group *group, int first, int last) {
    const ls_optimizer_type *type = group->by->type;
    const ls_optimizer_slot *begin = &group->slots[first];
    const double factor = type->product_factor != NULL ? type->product_factor(group->by, begin->t + 1) : 1;
    ls_run run = {
        .dtype = (ls_dtype)begin->parameter->dtype,
        .first = begin->t == 0,
        .t = begin->t + 1,
        .product = begin->product * factor,
    };
    int from = first, to = last;
    LS_TRY(ls_run_own(group, &from, &to) ? step_own(group, &group->slots[from], &group->slots[to], &run) : LS_OK);
    for (int i = first; i <= last; i++) {
        ls_optimizer_slot *slot = &group->slots[i];
        slot->t++;
        slot->product = run.product;
        ls_tensor_changed(slot->parameter, optimizer->type->name);
    }
    return LS_OK;
}

ls_status ls_group_check_whole(const ls_optimizer *optimizer, const ls_parameter_group *group) {
    for (int i = 0; i < group->count; i++) {
        if (group->slots[i].parameter->leaf->divisions[LS_DIVIDED_TENSOR].add != NULL) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: parameter %d is sharded over ranks, but this method needs whole tensors",
                           optimizer->type->name, i);
        }
    }
    return LS_OK;
}

ls_status ls_slot_check_here(const ls_optimizer *optimizer, const ls_parameter_group *group, int i) {
    return !ls_tensor_is_freed(group->slots[i].parameter)
               ? LS_OK
               : ls_fail(LS_ERR_STATE, "%s: parameter %d was freed: free the optimizer before the model",
                         optimizer->type->name, i);
}

ls_status ls_group_check_place(const ls_optimizer *optimizer, const ls_parameter_group *group) {
    for (int i = 0; i < group->count; i++) {
        LS_TRY(ls_slot_check_here(optimizer, group, i));
        const ls_device *device = ls_tensor_device(group->slots[i].parameter);
        if (__builtin_expect(device != group->device, 0)) {
            return ls_fail(
                LS_ERR_STATE,
                "%s: parameter %d is on %s, but its state is on %s: create the optimizer after moving the model",
                optimizer->type->name, i, device->name, group->device->name);
        }
        LS_TRY(ls_slot_check_sharding(optimizer, group, i));
    }
    return LS_OK;
}

void ls_optimizer_begin_step(ls_optimizer *optimizer) {
    if (__builtin_expect(optimizer->steps < 2, 0)) {
        optimizer->steps++;
        ls_training_note_step();
    }
}

static ls_status step_groups(ls_optimizer *optimizer) {
    for (int g = 0; g < optimizer->group_count; g++) {
        LS_TRY(ls_group_check_place(optimizer, &optimizer->groups[g]));
    }
    for (int g = 0; g < optimizer->group_count; g++) {
        ls_parameter_group *group = &optimizer->groups[g];
        const bool one_by_one = group->by->type->one_by_one;
        for (int first = 0, last; ls_group_next_run(group, one_by_one, &first, &last); first = last + 1) {
            LS_TRY(step_run(optimizer, group, first, last));
        }
    }
    return LS_OK;
}

/* A captured step repeats the step of the optimizer as one call, so rates and counters change as usual. */
static ls_status replay_step(void *optimizer) {
    return ls_optimizer_step(optimizer);
}

/* Adding a group changes what ls_optimizer_zero_grad and ls_optimizer_step do. */
static ls_status check_captured(void *object, int group_count) {
    const ls_optimizer *optimizer = object;
    LS_TRY(ls_optimizer_check_here("ls_step_replay", optimizer));
    return optimizer->group_count == group_count
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "ls_step_replay: %s has %d groups, but had %d when the step was captured: capture "
                         "the step again",
                         optimizer->type->name, optimizer->group_count, group_count);
}

/* Keeps the memory of the optimizer, so that no other optimizer gets its address. */
static void hold_captured(void *object, bool hold) {
    ls_optimizer *optimizer = object;
    optimizer->captures += hold ? 1 : -1;
    if (optimizer->captures == 0 && optimizer->type == NULL) {
        ls_retire(optimizer, LS_RETIRED_SINGLE);
    }
}

__attribute__((noinline, cold)) static ls_status capture_step(ls_optimizer *optimizer, ls_capture *capture) {
    ls_capture_add_guard(capture, &(ls_capture_guard){.check = check_captured,
                                                      .hold = hold_captured,
                                                      .object = optimizer,
                                                      .state = optimizer->group_count});
    ls_capture_call_begin(capture);
    const ls_status status = ls_optimizer_step(optimizer);
    ls_capture_call_end(capture, status, replay_step, optimizer);
    return status;
}

ls_status ls_optimizer_check_groups(const char *call, const ls_optimizer *optimizer) {
    return optimizer->group_count > 0 ? LS_OK
                                      : ls_fail(LS_ERR_STATE,
                                                "%s: the optimizer has no parameters: %s got NULL as the model, and "
                                                "ls_optimizer_add_group was not called",
                                                call, optimizer->type->name);
}

ls_status ls_optimizer_step(ls_optimizer *optimizer) {
    if (optimizer == NULL) {
        return ls_fail_missing("ls_optimizer_step: the optimizer");
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_step", optimizer));
    LS_TRY(ls_optimizer_check_groups("ls_optimizer_step", optimizer));
    if (optimizer->type->step == NULL) {
        return ls_fail(LS_ERR_STATE,
                       "ls_optimizer_step: %s evaluates the loss itself: call ls_optimizer_step_closure with a "
                       "function that evaluates it",
                       optimizer->type->name);
    }
    ls_capture *capture = ls_thread_present != NULL ? ls_thread_present->capture : NULL;
    if (__builtin_expect(capture != NULL && capture->paused == 0, 0)) {
        return capture_step(optimizer, capture);
    }
    LS_TRY(ls_optimizer_check_shards(optimizer));
    ls_optimizer_begin_step(optimizer);
    const uint64_t began = ls_trace_now();
    const ls_status status = ls_optimizer_share_step(optimizer, step_groups(optimizer));
    ls_trace_add(LS_TRACE_TRAINING, began, -1, "optimizer step");
    return status;
}

void ls_optimizer_zero_grad(ls_optimizer *optimizer) {
    const bool captures = ls_thread_present != NULL && ls_thread_present->capture != NULL;
    for (int g = 0; optimizer != NULL && g < optimizer->group_count; g++) {
        for (int i = 0; i < optimizer->groups[g].count; i++) {
            ls_tensor *parameter = optimizer->groups[g].slots[i].parameter;
            if (__builtin_expect(captures, 0)) {
                ls_zero_grad(parameter);
            } else {
                ls_leaf_forget_gradient(parameter);
            }
        }
    }
}
