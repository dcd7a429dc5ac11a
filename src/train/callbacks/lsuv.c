/* Scales weights so that the outputs of every layer have the same standard deviation. */
#include "train/callbacks/weights.h"

#include <math.h>

#include "data/loader.h"
#include "nn/module.h"
#include "parallel/pipeline.h"
#include "train/pass.h"

static const char *const maker = "ls_lsuv";

typedef struct lsuv {
    ls_lsuv_options options;
    int64_t done;
    const ls_trial_state *state;
    ls_tensor *input; /* first batch, during the initialization; NULL if this rank has no samples */
    double sums[3];   /* count, sum and sum of squares of the layer's outputs */
    ls_state_list listed;
} lsuv;

/* ---- one layer --------------------------------------------------------------------------------------------------- */

static ls_status on_layer(ls_module_call *call, void *user) {
    lsuv *self = user;
    for (int i = 0; i < call->output_count; i++) {
        ls_tensor *x = ls_to(call->outputs[i], LS_F64);
        self->sums[0] += (double)ls_numel(x);
        self->sums[1] += ls_item(ls_sum(x));
        self->sums[2] += ls_item(ls_sum(ls_square(x)));
    }
    return LS_OK;
}

static ls_status forward(lsuv *self) {
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    (void)ls_forward(self->state->model, self->input);
    return ls_scope_end(scope);
}

/* Computes the standard deviation of the layer's outputs over the global batch. */
static ls_status measure(lsuv *self, ls_module *layer, double *deviation) {
    self->sums[0] = self->sums[1] = self->sums[2] = 0;
    if (self->input != NULL) {
        const int hooks = ls_module_add_hooks(layer, &(ls_module_hooks){.user = self, .forward = on_layer});
        LS_TRY(hooks > 0 ? LS_OK : ls_error_status());
        const ls_status status = forward(self);
        LS_TRY(ls_module_remove_hooks(layer, hooks));
        LS_TRY(status);
    }
    if (ls_comm_size(self->state->comm) > 1) {
        LS_TRY(ls_comm_allreduce(self->state->comm, self->sums, self->sums, 3, LS_F64, LS_SUM, NULL));
    }
    const double mean = self->sums[1] / self->sums[0];
    *deviation = sqrt(self->sums[2] / self->sums[0] - mean * mean);
    return LS_OK;
}

static ls_status scale(ls_tensor *weight, double factor) {
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    ls_tensor *scaled = ls_mul(weight, factor);
    return ls_scope_end_after(scope, scaled != NULL ? ls_copy_into(weight, scaled) : ls_error_status());
}

static ls_status set_layer(ls_module *layer, const char *name, void *user) {
    lsuv *self = user;
    const ls_lsuv_options *o = &self->options;
    ls_tensor *weight = ls_weight_of(layer);
    if (weight == NULL) {
        return LS_OK;
    }
    LS_TRY(o->keep_weights ? LS_OK : ls_draw_weight(weight, name, LS_ORTHOGONAL, 0, 1, o->seed));
    for (int i = 0; i < o->attempts; i++) {
        double deviation;
        LS_TRY(measure(self, layer, &deviation));
        if (!(deviation > 0) || !isfinite(deviation)) {
            return ls_fail(LS_ERR_STATE, "%s: the outputs of layer \"%s\" have deviation %g", maker, name, deviation);
        }
        if (fabs(deviation - o->deviation) < o->tolerance) {
            break;
        }
        LS_TRY(scale(weight, o->deviation / deviation));
    }
    return LS_OK;
}

/* ---- the batch --------------------------------------------------------------------------------------------------- */

static ls_status set_all(lsuv *self, const ls_trial_state *state) {
    ls_loader *loader = state->trial->options.train;
    int64_t epoch, number;
    ls_batch batch;
    ls_loader_position(loader, &epoch, &number);
    LS_TRY(ls_trial_next_batch(maker, state->trial, &batch));
    self->state = state;
    self->input = batch.count > 0 ? batch.input : NULL;
    const ls_status status = ls_visit_modules(state->model, self->options.targets, set_layer, self);
    return ls_trial_seek_back(loader, epoch, number, status);
}

static ls_status on_init(ls_trial_state *state, void *user) {
    (void)user;
    LS_TRY(ls_callback_needs_parameters(state, maker, ""));
    return ls_module_has_pipeline(state->model)
               ? ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: the model is a pipeline, whose ranks have different layers: initialize the whole model "
                         "in a trial on one rank, save it, and load it with ls_module_load before ls_pipeline",
                         maker)
               : LS_OK;
}

static ls_status on_start(ls_trial_state *state, void *user) {
    lsuv *self = user;
    const ls_trial *trial = state->trial;
    if (!ls_callback_in_real_run(state) || trial->epochs_run > 0 || state->step > 0 || self->done) {
        return LS_OK;
    }
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, state->model));
    const bool before = ls_no_grad(true);
    ls_module_train(state->model, false);
    const ls_status status = set_all(self, state);
    ls_modes_put(&modes, state->model);
    ls_no_grad(before);
    self->done = status == LS_OK;
    return status;
}

static ls_status list(void *user, ls_state_list *list) {
    return ls_callback_list_count(list, "done", &((lsuv *)user)->done);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_callback_state(user, list, &((lsuv *)user)->listed, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return ls_callback_set_state(maker, user, list, tensors, count);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_lsuv_options, deviation), LS_FIELD(ls_lsuv_options, tolerance),
                                      LS_FIELD(ls_lsuv_options, attempts),  LS_FIELD(ls_lsuv_options, keep_weights),
                                      LS_FIELD(ls_lsuv_options, seed),      {.name = NULL}};
    ls_describe(text, size, maker, fields, &((const lsuv *)user)->options);
}

static void release(void *user) {
    ls_state_forget(&((lsuv *)user)->listed);
    ls_free(user);
}

ls_callback *ls_lsuv(const ls_lsuv_options *options) {
    ls_lsuv_options o = options != NULL ? *options : (ls_lsuv_options){.attempts = 0};
    o.deviation = ls_option(o.deviation, 1);
    o.tolerance = ls_option(o.tolerance, 0.1);
    o.attempts = o.attempts != 0 ? o.attempts : 10;
    if (!(o.deviation > 0 && isfinite(o.deviation)) || !(o.tolerance > 0) || o.attempts < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: deviation %g, tolerance %g and %d attempts must be positive", maker,
                            o.deviation, o.tolerance, o.attempts);
    }
    const lsuv self = {.options = o};
    return ls_callback_of(maker, &self, sizeof self,
                          &(ls_callback_hooks){.on_init = on_init,
                                               .on_start = on_start,
                                               .name = "lsuv",
                                               .describe = describe,
                                               .state = state,
                                               .set_state = set_state,
                                               .release = release});
}
