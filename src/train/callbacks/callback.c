/* Functions that callbacks share. */
#include "train/callbacks/callback.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/slices.h"

ls_callback *ls_callback_of(const char *maker, const void *self, size_t size, const ls_callback_hooks *hooks) {
    void *copy = ls_allocate_for(maker, 1, size);
    return copy != NULL ? ls_callback_make(hooks, memcpy(copy, self, size)) : NULL;
}

void ls_callback_describe_nothing(void *user, char *text, size_t size) {
    (void)user;
    snprintf(text, size, "%s", "");
}

void *ls_callback_memory(const ls_callback *callback, void (*release)(void *user)) {
    return callback != NULL && callback->hooks.release == release ? callback->user : NULL;
}

ls_status ls_callback_needs_hooks(const ls_trial_state *state, const char *call, const char *instead) {
    return state->trial->options.step == NULL
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: the trial has a user step, during which no hooks are called: call %s in the user step",
                         call, instead);
}

ls_status ls_callback_needs_whole(const ls_trial_state *state, const char *call, bool layers, const char *instead) {
    for (int i = 0; i < ls_module_parameter_count(state->model); i++) {
        const ls_tensor *parameter = ls_module_parameter(state->model, i);
        const ls_leaf *leaf = parameter->leaf;
        const bool sharded = leaf != NULL && layers && leaf->divisions[LS_DIVIDED_TENSOR].add != NULL;
        if (leaf != NULL && (leaf->shard || sharded)) {
            return ls_fail(LS_ERR_UNSUPPORTED, "%s: each rank has only a part of parameter %d, %s (%s): %s", call, i,
                           LS_SHAPE_TEXT(parameter), sharded ? "a sharded layer" : ".zero = 2 or 3", instead);
        }
    }
    return LS_OK;
}

ls_status ls_callback_needs_parameters(const ls_trial_state *state, const char *call, const char *instead) {
    const bool averages = ls_data_parallel_comm(state->model) != NULL;
    const ls_shards *shards = averages ? ((const ls_data_parallel_state *)state->model->state)->shards : NULL;
    return shards == NULL || shards->stage < 3 || shards->unit_count == 0 || shards->gathered
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: with .zero = 3 in ls_data_parallel, each rank has only a part of the parameters: %suse "
                         ".zero = 2, or call ls_data_parallel_gather(model, true) before ls_trial_new",
                         call, instead);
}

ls_status ls_callback_check_name(const char *call, const char *name) {
    return name == NULL || strlen(name) < LS_METRIC_NAME_LIMIT
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is longer than %d bytes", call, name,
                         LS_METRIC_NAME_LIMIT - 1);
}

void ls_callback_copy_name(char copy[LS_METRIC_NAME_LIMIT], const char *name) {
    snprintf(copy, LS_METRIC_NAME_LIMIT, "%s", name);
}

ls_status ls_callback_metric(const ls_trial_state *state, const char *call, const char *name, double *value) {
    const double *last = ls_history_find(&state->trial->latest, name);
    *value = last != NULL ? *last : NAN;
    return last != NULL ? LS_OK : ls_metrics_refuse(state->trial, call, name, false);
}

/* The losses of one slice, or of all slices. */
typedef struct slice_losses {
    ls_step_loss mean;
    double sum;
    double sums; /* number of slices of ranks on which the loss is a sum */
} slice_losses;

/* Returns the mean of the losses of all slices or, if the criterion is a sum, their sum. */
static ls_status loss_of_slices(const ls_trial *trial, double *loss) {
    const ls_data_parallel_state *state = trial->state.model->state;
    const ls_slices *slices = state->slices;
    slice_losses all = {.sum = 0};
    slice_losses *own = ls_allocate_for("ls_trial", (size_t)slices->count, sizeof *own);
    LS_TRY(ls_made(own));
    for (int i = 0; i < slices->count; i++) {
        const ls_step_loss mean = slices->losses[i];
        own[i] = (slice_losses){
            .mean = mean, .sum = mean.divisor != 0 ? mean.loss / mean.divisor : 0, .sums = trial->slices_sum};
    }
    const ls_status status =
        ls_slices_add(state, (const double *)(const void *)own, sizeof all / sizeof(double), (double *)(void *)&all);
    ls_free(own);
    *loss = all.sums > 0 ? all.sum : all.mean.divisor > 0 ? all.mean.loss / all.mean.divisor : NAN;
    return status;
}

ls_status ls_callback_batch_loss(const ls_trial_state *state, double *loss) {
    const bool alone = ls_comm_size(state->comm) <= 1;
    double sums[2] = {0, 0};
    if (ls_data_parallel_slices(state->model) != NULL) {
        return loss_of_slices(state->trial, loss);
    }
    if (state->count > 0 && state->loss != NULL) {
        const ls_tensor *divisor = alone ? NULL : ls_trial_loss_divisor(state->trial);
        sums[1] = divisor != NULL ? ls_item(divisor) : (double)state->count;
        const double factor = divisor != NULL ? sums[1] : ls_trial_loss_samples(state->trial);
        sums[0] = sums[1] != 0 ? ls_item(state->loss) * factor : 0;
    }
    if (!alone) {
        LS_TRY(ls_comm_allreduce(state->comm, sums, sums, 2, LS_F64, LS_SUM, NULL));
    }
    *loss = sums[1] > 0 && !isnan(sums[0]) ? sums[0] / sums[1] : NAN;
    return LS_OK;
}

ls_status ls_callback_cut_lines(const char *call, const char *path, FILE *file, ls_callback_keeps keeps, void *user) {
    char *line = NULL;
    size_t room = 0;
    struct stat about;
    long end = ftell(file);
    if (fstat(fileno(file), &about) == 0 && !S_ISREG(about.st_mode)) { /* reads from a device may never end */
        return ls_fail(LS_ERR_IO, "%s: %s is not a regular file: choose a different path", call, path);
    }
    for (ssize_t length; (length = getline(&line, &room, file)) > 0 && line[length - 1] == '\n' && keeps(user, line);) {
        end = ftell(file);
    }
    free(line);
    return ferror(file) == 0 && ftruncate(fileno(file), end) == 0 && fseek(file, end, SEEK_SET) == 0
               ? LS_OK
               : ls_fail(LS_ERR_IO, "%s: cannot cut %s: %s", call, path, strerror(errno));
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

ls_status ls_callback_list_real(ls_state_list *list, const char *word, double *number) {
    return ls_state_add(list, "", (ls_state_word){word, LS_STATE_ANY}, LS_SCALAR, LS_F64, &ls_cpu, number);
}

ls_status ls_callback_list_count(ls_state_list *list, const char *word, int64_t *number) {
    return ls_state_add(list, "", (ls_state_word){word, LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu, number);
}

ls_status ls_callback_state(void *self, ls_callback_list make, ls_state_list *listed, const ls_named **tensors,
                            int *count) {
    ls_state_forget(listed);
    LS_TRY(make(self, listed));
    *tensors = listed->items;
    *count = listed->count;
    return LS_OK;
}

ls_status ls_callback_set_state(const char *call, void *self, ls_callback_list make, const ls_named *tensors,
                                int count) {
    ls_state_list list = {0};
    ls_status status = make(self, &list);
    if (status == LS_OK) {
        status = ls_state_restore(call, "callback", &list, tensors, count);
    }
    ls_state_forget(&list);
    return status;
}
