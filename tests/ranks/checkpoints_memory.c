/*
 * The memory of saving and loading a checkpoint with ZeRO. When saving, the writing rank needs the copies that it
 * writes, and every rank needs one unit (stage 3), or one tensor of the optimizer's state, of the other ranks. When
 * loading, on the same or on another number of ranks, every rank needs one unit (stage 3) and one tensor of a file.
 *
 * ranks: 2 4
 * devices: cpu
 */
#include "formats/file.h"
#include "tests/support/resumed.h"

enum { WIDTH = 128, LAYERS = 12 };

static const double PARAMETERS = (double)LAYERS * WIDTH * (WIDTH + 1), UNIT = 4.0 * WIDTH * (WIDTH + 1),
                    TENSOR = 4.0 * WIDTH * WIDTH;

/* Room for small tensors, such as the numbers of steps. */
static const double REST = 32768;

static ls_status make_zero(ls_comm *world, int zero, training *t) {
    ls_module *layers[LAYERS];
    *t = (training){.model = NULL};
    ls_seed(SEED);
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = ls_nn_linear(WIDTH, WIDTH);
    }
    t->model = ls_data_parallel(ls_sequential_of(layers, LAYERS), world, &(ls_data_parallel_options){.zero = zero});
    t->optimizer = ls_adam(t->model, NULL);
    t->trial = ls_trial_new(&(ls_trial_options){
        .model = t->model, .optimizer = t->optimizer, .criterion = ls_criterion_mse, .comm = world, .quiet = true});
    return t->trial != NULL ? LS_OK : ls_error_status();
}

/* Changes all parameters and states. */
static ls_status step_once(const training *t) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(t->optimizer);
    LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(t->model, ls_ones(LS_SHAPE(2, WIDTH), LS_F32))))));
    LS_TRY(ls_optimizer_step(t->optimizer));
    return ls_scope_end(scope);
}

/* Saves, and checks by how much tensor memory grew meanwhile. */
static ls_status save(ls_comm *world, int zero, const char *folder) {
    training t;
    ls_memory before, after;
    LS_TRY(make_zero(world, zero, &t));
    LS_TRY(step_once(&t));
    LS_TRY(ls_memory_reset_peak());
    LS_TRY(ls_memory_stats(&before));
    LS_TRY(ls_trial_save(t.trial, in_scratch(folder)));
    LS_TRY(ls_memory_stats(&after));
    const double grown = (double)(after.peak_total - before.total);
    const double copies = ls_comm_rank(world) == 0 ? 12 * PARAMETERS : 0; /* the model, and two states of Adam */
    const double most = copies + UNIT + REST;
    if (grown > most || grown < copies || after.total > before.total) {
        return ls_fail(LS_ERR_INTERNAL, ".zero = %d: saving took %.0f bytes, at most %.0f are expected; %.0f remain",
                       zero, grown, most, (double)(after.total - before.total));
    }
    end(&t);
    return LS_OK;
}

/* Checks that a file of the checkpoint has the bytes of the same file of the checkpoint without ZeRO. */
static ls_status same_file(const char *name, const char *folder) {
    const char *folders[] = {"zero-0", folder};
    char path[2][PATH_MAX], sums[2][LS_CHECKSUM_TEXT];
    int64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], PATH_MAX, "%s/%s/%s", scratch, folders[i], name);
        LS_TRY(ls_checksum_file("test", path[i], &bytes[i], sums[i]));
    }
    LS_CHECK(bytes[0] == bytes[1] && strcmp(sums[0], sums[1]) == 0);
    return LS_OK;
}

static ls_status same_files(const char *folder) {
    LS_TRY(same_file("model.safetensors", folder));
    return same_file("optimizer.safetensors", folder);
}

/*
 * Loads a checkpoint into a new trial, and checks by how much tensor memory grew meanwhile. Then saves the loaded trial
 * in the folder `again`.
 */
static ls_status load(ls_comm *comm, int zero, const char *folder, const char *again) {
    training t;
    ls_memory before, after;
    LS_TRY(make_zero(comm, zero, &t));
    LS_TRY(ls_memory_reset_peak());
    LS_TRY(ls_memory_stats(&before));
    LS_TRY(ls_trial_load(t.trial, in_scratch(folder)));
    LS_TRY(ls_memory_stats(&after));
    const double grown = (double)(after.peak_total - before.total);
    const bool alone = ls_comm_size(comm) == 1; /* a single rank shards nothing */
    const double most = alone ? 12 * PARAMETERS + REST : (zero == 3 ? UNIT : 0) + TENSOR + REST;
    if (grown > most || grown < TENSOR || after.total > before.total) {
        return ls_fail(LS_ERR_INTERNAL,
                       ".zero = %d, %d ranks: loading took %.0f bytes, at most %.0f are expected; %.0f remain", zero,
                       ls_comm_size(comm), grown, most, (double)(after.total - before.total));
    }
    LS_TRY(ls_trial_save(t.trial, in_scratch(again)));
    end(&t);
    return same_files(again);
}

/* Loads on all ranks, and on both halves of the ranks. */
static ls_status load_on_any_ranks(ls_comm *world, int zero, const char *folder) {
    char again[32];
    ls_comm *half = NULL;
    const int part = 2 * ls_comm_rank(world) >= ls_comm_size(world);
    snprintf(again, sizeof again, "again-%d", zero);
    LS_TRY(load(world, zero, folder, again));
    LS_TRY(ls_comm_split(world, part, ls_comm_rank(world), &half));
    snprintf(again, sizeof again, "half-%d-%d", part, zero);
    LS_TRY(load(half, zero, folder, again));
    ls_comm_free(half);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    for (int zero = 0; zero <= 3; zero++) {
        char folder[24];
        snprintf(folder, sizeof folder, "zero-%d", zero);
        LS_TRY(save(world, zero, folder));
        LS_TRY(same_files(folder));
        LS_TRY(zero > 0 ? load_on_any_ranks(world, zero, folder) : LS_OK);
    }
    return remove_scratch(world);
}
