/*
 * Learns the next step of a wave from its last two steps, which are in an HDF5 file:
 *
 *     lockstep run -n 2 build/examples/forecast
 */
#include <math.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

enum { STEPS = 2000, POINTS = 64 };

/* Writes u [STEPS, POINTS]: two waves that travel at different speeds. */
static ls_status write_file(const char *path) {
    ls_tensor *u = ls_empty(LS_SHAPE(STEPS, POINTS), LS_F32);
    for (int64_t i = 0; i < STEPS * POINTS; i++) {
        const double t = (double)(i / POINTS), x = (double)(i % POINTS) * 6.283185 / POINTS;
        ((float *)ls_data(u))[i] = (float)(sin(x - 0.1 * t) + 0.5 * sin(3 * x + 0.07 * t));
    }
    const ls_status status = ls_hdf5_save(path, &(ls_named){"u", u}, 1);
    ls_release(u);
    return status;
}

static ls_status train(ls_comm *world, const char *path) {
    static const char *const names[] = {"u"};
    const ls_array_options data = {.input = {.variables = names, .variable_count = 1, .steps = 2},
                                   .target = {.variables = names, .variable_count = 1, .first = 2}};
    const ls_loader_options loading = {.global_batch_size = 32, .comm = world, .seed = 1, .shuffle_window = 2};
    ls_loader *loader = ls_loader_new(ls_hdf5_dataset(path, &data), &loading);
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_flatten(), ls_nn_linear(2 * POINTS, POINTS)), world, NULL);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_trial *trial = ls_trial_new(
        &(ls_trial_options){.model = model, .optimizer = optimizer, .criterion = ls_criterion_mse, .train = loader});
    const ls_status status = trial != NULL ? ls_trial_run(trial, 5) : ls_error_status();
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return status;
}

int main(int argc, char **argv) {
    const char *path = "forecast.h5";
    const argument table[] = {{"--file", ARGUMENT_TEXT, &path, "the file to write (default: forecast.h5)"}};
    arguments_read(argc, argv, "Learns the next step of a wave from an HDF5 file.", table, 1);
    ls_comm *world = ls_init(NULL);
    const bool good = world != NULL && (ls_comm_rank(world) > 0 || write_file(path) == LS_OK) &&
                      ls_comm_barrier(world, NULL) == LS_OK && train(world, path) == LS_OK && ls_finalize() == LS_OK;
    if (!good) {
        fprintf(stderr, "forecast: %s\n", ls_error_message());
    }
    return good ? 0 : 1;
}
