/*
 * Wherever memory runs out, built-in callbacks fail with a reason and free everything.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"
#include "train/trial.h"

#include <lockstep/lockstep.h>

#include "base/status.h"
#include "tests/support/allocator.h"
#include "train/trial.h"

enum { SAMPLES = 4, SIDE = 3, CLASSES = 2, LISTED = 14 };

static ls_loader *make_loader(void) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return NULL;
    }
    ls_tensor *pictures = ls_rand(LS_SHAPE(SAMPLES, SIDE, SIDE), LS_F32);
    ls_dataset *set = ls_tensor_dataset(pictures, ls_randint(LS_SHAPE(SAMPLES), LS_I64, 0, CLASSES));
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2});
    (void)ls_scope_end(scope);
    return loader;
}

static ls_callback *make_callbacks(ls_optimizer *optimizer) {
    static const char *const layers[] = {"1", NULL};
    ls_callback *const list[LISTED] = {
        ls_initialize(NULL),
        ls_lsuv(&(ls_lsuv_options){.attempts = 1}),
        ls_rate_finder(&(ls_rate_finder_options){.steps = 3, .highest = 1e-5}),
        ls_once_per_epoch(ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .restore_best = true})),
        ls_terminate_on_nan(&(ls_terminate_on_nan_options){.by_layer = true}),
        ls_callbacks_of((ls_callback *[]){ls_gradient_norm_clipping(1), ls_once(ls_weight_decay(0.1, 2))}, 2),
        ls_scheduler(ls_schedule_step(optimizer, 1, 0.5), NULL),
        ls_cutmix(&(ls_cutmix_options){.classes = CLASSES}),
        ls_cutout(&(ls_cutout_options){.length = 1, .noise = true}),
        ls_mixup(NULL),
        ls_label_smoothing(0.1, 0),
        ls_manifold_mixup(&(ls_manifold_mixup_options){.layers = layers}),
        ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.5}),
        ls_csv_log("/dev/null", NULL)};
    return ls_callbacks_of(list, LISTED);
}

/* Restores a callback's own state. */
static ls_status repeat_state(const ls_callback *callback) {
    const ls_named *tensors;
    int count;
    LS_TRY(callback->hooks.state(callback->user, &tensors, &count));
    ls_named *copies = calloc((size_t)count, sizeof *copies);
    ls_scope *scope = ls_scope_begin();
    ls_status status = scope != NULL ? LS_OK : ls_error_status();
    for (int i = 0; status == LS_OK && i < count; i++) {
        copies[i] = (ls_named){tensors[i].name, ls_clone(tensors[i].tensor)};
        status = copies[i].tensor != NULL ? LS_OK : ls_error_status();
    }
    status = status == LS_OK ? callback->hooks.set_state(callback->user, copies, count) : status;
    const ls_status ended = scope != NULL ? ls_scope_end(scope) : LS_OK;
    free(copies);
    return status != LS_OK ? status : ended;
}

static ls_status train(ls_module *model, ls_optimizer *optimizer, ls_loader *loader) {
    ls_callback *all = make_callbacks(optimizer);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .validate = loader,
                                                       .callbacks = &all,
                                                       .callback_count = 1,
                                                       .quiet = true});
    ls_status status = trial != NULL ? ls_trial_run(trial, 1) : ls_error_status();
    status = status == LS_OK ? repeat_state(all) : status;
    ls_trial_free(trial);
    return status;
}

static ls_status whole_program(void) {
    ls_seed(1);
    ls_loader *loader = make_loader();
    ls_module *model = loader == NULL ? NULL
                                      : ls_sequential(ls_nn_flatten(), ls_nn_linear((int64_t)SIDE * SIDE, 3),
                                                      ls_nn_linear(3, CLASSES));
    ls_optimizer *optimizer = model != NULL ? ls_sgd(model, NULL) : NULL;
    const ls_status status = optimizer != NULL ? train(model, optimizer, loader) : ls_error_status();
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return status;
}

/*
 * Runs once, with allocator call `n` failing, alone or together with all later calls. Returns whether this call took
 * place.
 */
static bool run_once(long n, bool once) {
    (void)ls_error_set(LS_OK, "%s", "");
    test_allocator allocator;
    test_allocator_start(&allocator);
    atomic_store(once ? &allocator.fail_once : &allocator.fail_from, n);
    const ls_status status = whole_program();
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    const long calls = atomic_load(&allocator.calls);
    const long left = test_allocator_stop(&allocator);
    if (left != 0 || (status != LS_OK && (status != LS_ERR_MEMORY || message[0] == '\0')) ||
        (calls > n && status == LS_OK && !once) || (calls <= n && status != LS_OK)) {
        fail_msg("allocation %ld of %ld fails: %s, %ld blocks are left: %s", n, calls, ls_status_name(status), left,
                 message);
    }
    return calls > n;
}

static void check_every_allocation(bool once) {
    long n = 0;
    while (run_once(n, once)) {
        n++;
    }
    assert_true(n > 100);
}

TEST(test_all_memory_from_there_on) {
    check_every_allocation(false);
}

TEST(test_one_block) {
    check_every_allocation(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_memory_from_there_on),
        cmocka_unit_test(test_one_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
