#include <float.h>
#include <math.h>

#include "optim/optimizer.h"

static int muon_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    (void)optimizer;
    words[0] = (ls_state_word){"momentum_buffer", LS_STATE_ANY};
    return 1;
}

/*
 * Adjusts the learning rate: orthogonal matrices of all shapes have singular values of 1, but the size of their
 * elements depends on the shape.
 */
static double adjusted_rate(ls_muon_rates rates, double learning_rate, double rows, double columns) {
    return rates == LS_MUON_AS_ADAMW ? learning_rate * 0.2 * sqrt(fmax(rows, columns))
                                     : learning_rate * sqrt(fmax(1, rows / columns));
}

static ls_status muon_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                           const ls_run *run, double learning_rate, double weight_decay) {
    const ls_muon_options *options = &optimizer->options.muon;
    const int64_t rows = run->tensor->size[0], columns = run->tensor->size[1];
    const ls_device *device = ls_tensor_device(run->tensor);
    const size_t bytes = (size_t)ls_muon_work(rows, columns) * ls_dtype_size(run->dtype);
    ls_storage *work = ls_storage_for(optimizer->type->name, device, bytes, LS_MEMORY_ACTIVATIONS);
    LS_TRY(ls_made(work));
    const ls_status status =
        kernels->muon(stream, &(ls_muon_step){
                                  .dtype = run->dtype,
                                  .rows = rows,
                                  .columns = columns,
                                  .parameter = run->parameter,
                                  .gradient = run->gradient,
                                  .momentum_buffer = run->state[0],
                                  .work = work->memory,
                                  .rate = adjusted_rate(options->rates, learning_rate, (double)rows, (double)columns),
                                  .momentum = options->momentum,
                                  .parameter_decay = learning_rate * weight_decay,
                                  .epsilon = options->epsilon,
                                  .a = options->a,
                                  .b = options->b,
                                  .c = options->c,
                                  .iterations = options->iterations,
                                  .nesterov = !options->no_nesterov,
                              });
    ls_storage_drop(work);
    return status;
}

static double *muon_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.muon.momentum;
}

static ls_status muon_check_group(const ls_optimizer *optimizer, const ls_parameter_group *group) {
    for (int i = 0; i < group->count; i++) {
        const ls_tensor *parameter = group->slots[i].parameter;
        if (parameter->ndim != 2) {
            return ls_fail(LS_ERR_SHAPE,
                           "ls_muon: parameter %d is %s, but the group also has matrices: put the parameter in a "
                           "separate group, or set .adamw of the group",
                           i, LS_SHAPE_TEXT(parameter));
        }
    }
    return ls_group_check_whole(optimizer, group);
}

static ls_status check_options(ls_muon_options *options) {
    const char *const call = "ls_muon";
    options->momentum = ls_option(options->momentum, 0.95);
    options->epsilon = ls_option(options->epsilon, 1e-7);
    options->iterations = options->iterations != 0 ? options->iterations : 5;
    if (options->a == 0 && options->b == 0 && options->c == 0) {
        options->a = 3.4445;
        options->b = -4.7750;
        options->c = 2.0315;
    }
    LS_TRY(ls_option_within(call, "momentum", options->momentum, 0, nextafter(1, 0)));
    LS_TRY(ls_option_within(call, "epsilon", options->epsilon, 0, INFINITY));
    LS_TRY(ls_option_within(call, "iterations", options->iterations, 1, 99));
    LS_TRY(ls_option_within(call, "a", options->a, -DBL_MAX, DBL_MAX));
    LS_TRY(ls_option_within(call, "b", options->b, -DBL_MAX, DBL_MAX));
    LS_TRY(ls_option_within(call, "c", options->c, -DBL_MAX, DBL_MAX));
    return options->rates <= LS_MUON_AS_ADAMW
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: %d is not an ls_muon_rates", call, (int)options->rates);
}

static const ls_field fields[] = {
    LS_FIELD(ls_muon_options, momentum), LS_FIELD(ls_muon_options, a),           LS_FIELD(ls_muon_options, b),
    LS_FIELD(ls_muon_options, c),        LS_FIELD(ls_muon_options, epsilon),     LS_FIELD(ls_muon_options, iterations),
    LS_FIELD(ls_muon_options, rates),    LS_FIELD(ls_muon_options, no_nesterov), {.name = NULL}};

ls_optimizer *ls_muon(ls_module *model, const ls_muon_options *options) {
    static const ls_optimizer_type type = {.name = "ls_muon",
                                           .fields = fields,
                                           .states = muon_states,
                                           .step = muon_step,
                                           .momentum = muon_momentum,
                                           .one_by_one = true,
                                           .check_group = muon_check_group};
    ls_muon_options given = options != NULL ? *options : (ls_muon_options){0};
    if (check_options(&given) != LS_OK) {
        return NULL;
    }
    ls_optimizer *others = ls_adamw(NULL, &given.adamw);
    if (others == NULL) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.muon = given,
                                            .others = others,
                                            .learning_rate = ls_option(given.learning_rate, 1e-3),
                                            .weight_decay = ls_option(given.weight_decay, 0.1)},
                            model);
}
