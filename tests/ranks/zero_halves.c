/*
 * ZeRO with gradients that are sent as bf16 or f16: in every stage, parameters and states are bit-identical to training
 * without .zero that sends them in the same dtype. Also in 16-bit arithmetic (ls_autocast), with a loss scale.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/optimizers.h"

enum { INPUTS = 9, WIDTH = 160, OUTPUTS = 3, STEPS = 4, SEED = 5 };

/* How a model is trained. */
typedef struct manner {
    ls_dtype wire;
    ls_dtype autocast; /* LS_F32: off */
    int method;        /* optimizers.h */
    bool uneven;       /* the ranks have different numbers of samples */
} manner;

/* The linear layers are units. Normalization is not a unit, so its parameters are averaged after the backward pass. */
static ls_module *wrap(ls_comm *world, int zero, ls_dtype wire) {
    ls_seed(SEED);
    return ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_batch_norm_1d(WIDTH, NULL), ls_nn_tanh(),
                                          ls_nn_linear(WIDTH, WIDTH), ls_nn_dropout(0.2), ls_nn_relu(),
                                          ls_nn_linear(WIDTH, OUTPUTS)),
                            world, &(ls_data_parallel_options){.zero = zero, .reduce_dtype = wire});
}

static ls_status step(ls_module *module, ls_optimizer *optimizer, ls_grad_scaler *scaler, const manner *how, int rank,
                      int number) {
    const int64_t samples = how->uneven ? 2 + rank : 3;
    double norm;
    ls_seed(100 + (uint64_t)(10 * number + rank));
    ls_tensor *x = ls_randn(LS_SHAPE(samples, INPUTS), LS_F32), *y = ls_randn(LS_SHAPE(samples, OUTPUTS), LS_F32);
    ls_seed(SEED); /* dropout needs one seed on all ranks */
    ls_optimizer_zero_grad(optimizer);
    (void)ls_autocast(how->autocast); /* until the scope ends */
    ls_tensor *loss = ls_mse_loss(ls_to(ls_forward(module, x), LS_F32), y, LS_LOSS_MEAN);
    LS_TRY(ls_backward(ls_grad_scaler_scale(scaler, loss)));
    LS_TRY(ls_grad_scaler_unscale(scaler, optimizer));
    LS_TRY(ls_clip_grad_norm(module, 0.7, &norm));
    LS_TRY(ls_grad_scaler_step(scaler, optimizer));
    return ls_grad_scaler_update(scaler);
}

/* Trains, and returns the hashes of the parameters and of the optimizer's state. */
static ls_status train(ls_comm *world, int zero, const manner *how, uint64_t hashes[2]) {
    ls_module *module = wrap(world, zero, how->wire);
    LS_CHECK(module != NULL);
    ls_optimizer *optimizer = optimizer_make(how->method, module);
    /* the first steps overflow in f16 */
    ls_grad_scaler *scaler = ls_grad_scaler_new(
        &(ls_grad_scaler_options){.initial_scale = how->wire == LS_F16 ? 0x1p17 : 0x1p4, .growth_interval = 2});
    for (int i = 0; i < STEPS; i++) {
        ls_scope *scope = ls_scope_begin();
        const ls_status status = step(module, optimizer, scaler, how, ls_comm_rank(world), i);
        const ls_status ended = ls_scope_end(scope);
        LS_TRY(status != LS_OK ? status : ended);
    }
    LS_CHECK(ls_grad_scaler_skipped(scaler) < STEPS);
    LS_CHECK(ls_data_parallel_check(module) == LS_OK);
    LS_TRY(ls_data_parallel_gather(module, true));
    hashes[0] = ls_module_hash(module);
    LS_TRY(ls_data_parallel_gather(module, false));
    const ls_named *states;
    int count;
    LS_TRY(ls_optimizer_state(optimizer, &states, &count));
    hashes[1] = 0;
    for (int i = 0; i < count; i++) {
        const ls_tensor *state = states[i].tensor;
        for (int64_t k = 0; k < ls_numel(state) && ls_dtype_of(state) == LS_F32; k++) {
            uint32_t bits;
            memcpy(&bits, (const float *)ls_data_const(state) + k, sizeof bits);
            hashes[1] = hashes[1] * 31 + bits;
        }
    }
    ls_grad_scaler_free(scaler);
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return LS_OK;
}

static ls_status same_bits(ls_comm *world, const manner *how) {
    uint64_t want[2], is[2], exact[2];
    LS_TRY(train(world, 0, how, want));
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(train(world, zero, how, is));
        if (is[0] != want[0] || is[1] != want[1]) {
            return ls_fail(LS_ERR_INTERNAL, ".zero = %d with %s gradients, autocast %s and %s: the %s differ", zero,
                           ls_dtype_name(how->wire), ls_dtype_name(how->autocast), optimizer_names[how->method],
                           is[0] != want[0] ? "parameters" : "states");
        }
    }
    manner plain = *how;
    plain.wire = LS_F32;
    LS_TRY(train(world, 3, &plain, exact));
    LS_CHECK(how->wire == LS_F16 || (exact[0] == want[0]) == (ls_comm_size(world) == 1)); /* gradients are rounded */
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    static const ls_dtype halves[] = {LS_BF16, LS_F16};
    ls_log_set_level(LS_LOG_OFF); /* f16 is not faster on the CPU */
    static const int methods[] = {OPTIMIZER_MOMENTUM, OPTIMIZER_ADAM, OPTIMIZER_LAMB, OPTIMIZER_MUON};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 4; k++) {
            LS_TRY(same_bits(world, &(manner){.wire = halves[i], .autocast = LS_F32, .method = methods[k]}));
        }
        for (int k = 0; k < 2; k++) {
            LS_TRY(same_bits(world, &(manner){.wire = halves[i], .autocast = halves[k], .method = OPTIMIZER_ADAM}));
        }
        LS_TRY(same_bits(world,
                         &(manner){.wire = halves[i], .autocast = LS_F32, .method = OPTIMIZER_ADAM, .uneven = true}));
    }
    return LS_OK;
}
