// A C++20 program whose trial has callbacks of its own and ready-made ones. LS_CALLBACKS lists variables and results of
// constructors, and the array lives until ls_trial_new: two trials have their options before either is made.
#include <lockstep/lockstep.h>

#include <cstdio>

static ls_status count(ls_trial_state *, void *user) {
    ++*static_cast<int *>(user);
    return LS_OK;
}

static bool made_options_twice(ls_module *model, ls_optimizer *optimizer, ls_loader *loader) {
    int calls[2][2] = {};
    ls_early_stopping_options stopping = {};
    stopping.monitor = "loss";
    ls_callback_hooks hooks = {};
    hooks.name = "mine";
    hooks.on_end_epoch = count;
    ls_callback *stop[2] = {};
    ls_trial_options options[2] = {};
    for (int i = 0; i < 2; i++) {
        ls_callback *const mine = ls_callback_new(&hooks, &calls[i][0]);
        stop[i] = ls_early_stopping(&stopping);
        options[i] = {
            .model = model,
            .optimizer = optimizer,
            .criterion = ls_criterion_mse,
            .train = loader,
            LS_CALLBACKS(mine, stop[i], ls_once(ls_callback_new(&hooks, &calls[i][1])), ls_gradient_norm_clipping(1)),
            .quiet = true};
    }
    bool right = true;
    for (int i = 0; i < 2; i++) {
        ls_trial *trial = ls_trial_new(&options[i]);
        right = right && trial != nullptr && ls_trial_run(trial, 2) == LS_OK && calls[i][0] == 2 && calls[i][1] == 1;
        right = right && ls_early_stopping_best(stop[i]) == ls_trial_history(trial, 1, "loss");
        ls_trial_free(trial);
    }
    ls_trial_options refused = {.model = model,
                                .optimizer = optimizer,
                                .criterion = ls_criterion_mse,
                                .train = loader,
                                LS_CALLBACKS(ls_gradient_norm_clipping(-1), ls_callback_new(&hooks, calls))};
    return right && ls_trial_new(&refused) == nullptr;
}

int main() {
    ls_comm *world = ls_init(nullptr);
    if (world == nullptr) {
        std::printf("%s\n", ls_error_message());
        return 1;
    }
    ls_loader_options loading = {};
    loading.batch_size = 4;
    loading.comm = world;
    ls_loader *loader = ls_loader_new(
        ls_tensor_dataset(ls_randn(LS_SHAPE(32, 4), LS_F32), ls_zeros(LS_SHAPE(32, 2), LS_F32)), &loading);
    ls_module *model = ls_data_parallel(ls_nn_linear(4, 2), world, nullptr);
    ls_optimizer *optimizer = ls_sgd(model, nullptr);
    const bool right = made_options_twice(model, optimizer, loader);
    std::printf("%d ranks: %s\n", ls_comm_size(world), right ? "right" : "wrong");
    std::printf("%s\n", ls_error_message());
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return ls_finalize() == LS_OK && right ? 0 : 1;
}
