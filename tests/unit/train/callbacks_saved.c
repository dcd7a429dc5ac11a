/*
 * The state of built-in callbacks, which a checkpoint saves and another trial loads.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/files.h"
#include "tests/support/trials.h"

#include <lockstep/lockstep.h>

#include "train/trial.h"

/* Copies of named tensors, as in a checkpoint. */
typedef struct copies {
    ls_named items[64];
    char names[64][64];
    int count;
} copies;

static void copy_state(const ls_callback *callback, copies *c) {
    const ls_named *tensors;
    assert_int_equal(callback->hooks.state(callback->user, &tensors, &c->count), LS_OK);
    assert_in_range(c->count, 0, 64);
    for (int i = 0; i < c->count; i++) {
        snprintf(c->names[i], sizeof c->names[i], "%s", tensors[i].name);
        c->items[i] = (ls_named){c->names[i], ls_clone(tensors[i].tensor)};
    }
}

static void free_copies(copies *c) {
    for (int i = 0; i < c->count; i++) {
        ls_release(c->items[i].tensor);
    }
}

static bool same_state(const ls_callback *callback, const copies *c) {
    const ls_named *tensors;
    int count;
    bool same = callback->hooks.state(callback->user, &tensors, &count) == LS_OK && count == c->count;
    for (int i = 0; same && i < count; i++) {
        same = strcmp(tensors[i].name, c->items[i].name) == 0 && ls_equal(tensors[i].tensor, c->items[i].tensor);
    }
    return same;
}

/* A trial that has run some epochs with one callback, and is not freed yet. */
typedef struct worked {
    setting s;
    ls_trial *trial;
    ls_callback *callback;
} worked;

static worked work(ls_callback *(*make)(ls_optimizer *optimizer), int64_t epochs) {
    worked w = {.s = make_setting()};
    assert_int_equal(ls_optimizer_set_learning_rate(w.s.optimizer, -1, 0.1), LS_OK);
    w.callback = make(w.s.optimizer);
    ls_trial_options options = options_of(&w.s);
    options.callbacks = &w.callback;
    options.callback_count = 1;
    w.trial = ls_trial_new(&options);
    assert_non_null(w.trial);
    assert_int_equal(ls_trial_run(w.trial, epochs), LS_OK);
    return w;
}

static void stop_work(worked *w) {
    ls_trial_free(w->trial);
    free_setting(&w->s);
}

static ls_callback *make_stopping(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .patience = 5, .restore_best = true});
}

static ls_callback *make_scheduler(ls_optimizer *optimizer) {
    return ls_scheduler(ls_schedule_exponential(optimizer, 0.5), NULL);
}

static ls_callback *make_averaging(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.5});
}

static ls_callback *make_timer(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_timer(&(ls_timer_options){.no_table = true});
}

static ls_callback *make_once(ls_optimizer *optimizer) {
    return ls_once(make_stopping(optimizer));
}

static ls_callback *make_epochs(ls_optimizer *optimizer) {
    return ls_once_per_epoch(make_stopping(optimizer));
}

static ls_callback *make_several(ls_optimizer *optimizer) {
    return ls_callbacks_of((ls_callback *[]){make_stopping(optimizer), make_scheduler(optimizer)}, 2);
}

/* A callback after 3 epochs passes its state to a callback after 1 epoch. */
static void round_trip(ls_callback *(*make)(ls_optimizer *optimizer)) {
    worked first = work(make, 3), second = work(make, 1);
    copies c;
    copy_state(first.callback, &c);
    assert_true(c.count > 0);
    assert_false(same_state(second.callback, &c));
    assert_int_equal(second.callback->hooks.set_state(second.callback->user, c.items, c.count), LS_OK);
    assert_true(same_state(second.callback, &c));
    assert_int_not_equal(second.callback->hooks.set_state(second.callback->user, c.items, c.count - 1), LS_OK);
    expect_message("the file has no tensor");
    c.items[c.count] = (ls_named){"9.other", c.items[0].tensor};
    assert_int_not_equal(second.callback->hooks.set_state(second.callback->user, c.items, c.count + 1), LS_OK);
    assert_true(same_state(second.callback, &c));
    free_copies(&c);
    stop_work(&first);
    stop_work(&second);
}

TEST(test_states) {
    round_trip(make_stopping);
    round_trip(make_scheduler);
    round_trip(make_averaging);
    round_trip(make_timer);
    round_trip(make_once);
    round_trip(make_epochs);
    round_trip(make_several);
}

static ls_callback *make_impatient(ls_optimizer *optimizer) {
    (void)optimizer;
    return ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .mode = LS_MONITOR_MAX});
}

/* A run that resumes from a stopped run also stops there, and the next run continues. */
TEST(test_stopped_before) {
    worked first = work(make_impatient, 8), second = work(make_impatient, 0);
    copies c;
    assert_int_equal(ls_trial_history_count(first.trial), 2);
    copy_state(first.callback, &c);
    assert_int_equal(second.callback->hooks.set_state(second.callback->user, c.items, c.count), LS_OK);
    assert_int_equal(ls_trial_run(second.trial, 8), LS_OK);
    assert_int_equal(ls_trial_history_count(second.trial), 0);
    assert_int_equal(ls_trial_run(second.trial, 8), LS_OK);
    assert_int_equal(ls_trial_history_count(second.trial), 1);
    free_copies(&c);
    stop_work(&first);
    stop_work(&second);
}

/* A run that resumes with a smaller patience than the epochs already waited has been ended by the callback. */
TEST(test_smaller_patience) {
    worked first = work(make_impatient, 1), second = work(make_impatient, 0);
    copies c;
    copy_state(first.callback, &c);
    for (int i = 0; i < c.count; i++) { /* a callback with .patience = 9 that has waited for 3 epochs */
        if (strcmp(c.items[i].name, "wait") == 0) {
            assert_int_equal(ls_fill(c.items[i].tensor, 3), LS_OK);
        }
    }
    assert_int_equal(second.callback->hooks.set_state(second.callback->user, c.items, c.count), LS_OK);
    assert_false(ls_early_stopping_stopped(second.callback));
    assert_int_equal(ls_trial_run(second.trial, 8), LS_OK);
    assert_int_equal(ls_trial_history_count(second.trial), 0);
    assert_true(ls_early_stopping_stopped(second.callback));
    free_copies(&c);
    stop_work(&first);
    stop_work(&second);
}

/* A callback with a state and a description of `length` bytes. */
typedef struct described {
    int length;
    ls_tensor *number;
    ls_named named;
} described;

static ls_status get_number(void *user, const ls_named **tensors, int *count) {
    described *self = user;
    self->named = (ls_named){.name = "number", .tensor = self->number};
    *tensors = &self->named;
    *count = 1;
    return LS_OK;
}

static ls_status set_number(void *user, const ls_named *tensors, int count) {
    return count == 1 ? ls_copy_into(((described *)user)->number, tensors[0].tensor) : LS_ERR_FORMAT;
}

static void write_long(void *user, char *text, size_t size) {
    const described *self = user;
    snprintf(text, size, "%*s", self->length, "x");
}

/* Descriptions of nested groups are cut at every length without damage. */
TEST(test_long_descriptions) {
    const ls_callback_hooks hooks = {
        .name = "own", .describe = write_long, .state = get_number, .set_state = set_number};
    for (int length = 440; length < 530; length++) {
        setting s = make_setting();
        described numbers[3];
        ls_callback *callbacks[3];
        for (int i = 0; i < 3; i++) {
            numbers[i] = (described){.length = i == 0 ? length : 1, .number = ls_ones(LS_SHAPE(1), LS_F64)};
            callbacks[i] = ls_callback_new(&hooks, &numbers[i]);
        }
        ls_callback *inner = ls_callbacks_of(callbacks + 1, 2);
        ls_callback *outer = ls_callbacks_of((ls_callback *[]){callbacks[0], inner}, 2);
        ls_trial_options options = options_of(&s);
        options.callbacks = &outer;
        options.callback_count = 1;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_save(trial, test_path("long")), LS_OK);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ls_fill(numbers[i].number, 0), LS_OK);
        }
        assert_int_equal(ls_trial_load(trial, test_path("long")), LS_OK);
        for (int i = 0; i < 3; i++) {
            assert_true(ls_item(numbers[i].number) == 1);
            ls_release(numbers[i].number);
        }
        ls_trial_free(trial);
        free_setting(&s);
    }
}

/*
 * A checkpoint of Lockstep 0.1.0 without descriptions of the callbacks: names and order determine the states. This
 * trial wrote it with the library of commit 425dd573: ls_trial_run(trial, 3), then ls_trial_save, with a learning rate
 * of 0.1 for make_setting.
 */
TEST(test_old_checkpoint) {
    setting s = make_setting();
    ls_callback *callbacks[] = {
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "acc", .patience = 40}),
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .patience = 5}),
    };
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    options.metrics = LS_METRICS("loss", "acc");
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_load(trial, LS_FIXTURES "/checkpoint_callbacks"), LS_OK);
    assert_true(ls_early_stopping_best(callbacks[0]) == 0.36363636363636365);
    assert_true(ls_early_stopping_best(callbacks[1]) == 1.1091816219368256);
    ls_trial_free(trial);
    free_setting(&s);
}

/* With `grouped`, both schedules are in a group with a callback of the program. */
static ls_trial *make_scheduled(const setting *s, double gamma, bool grouped) {
    assert_int_equal(ls_optimizer_set_learning_rate(s->optimizer, -1, 0.1), LS_OK);
    ls_callback *callbacks[3] = {
        ls_scheduler(ls_schedule_exponential(s->optimizer, 0.5), NULL),
        ls_scheduler(ls_schedule_exponential(s->optimizer, gamma), &(ls_scheduler_options){.per_step = true})};
    ls_trial_options options = options_of(s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    if (grouped) {
        callbacks[2] = ls_callback_new(&(ls_callback_hooks){.name = "own"}, NULL);
        callbacks[0] = ls_callbacks_of(callbacks, 3);
        options.callback_count = 1;
    }
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    return trial;
}

/* Loads a checkpoint of `saved` in a new trial, and returns its learning rate. */
static double rate_after(ls_trial *saved, double gamma, bool grouped) {
    const char *folder = test_path("rates");
    assert_int_equal(ls_trial_save(saved, folder), LS_OK);
    setting s = make_setting();
    ls_trial *trial = make_scheduled(&s, gamma, grouped);
    assert_int_equal(ls_trial_load(trial, folder), LS_OK);
    const double rate = ls_optimizer_learning_rate(s.optimizer, 0);
    ls_trial_free(trial);
    free_setting(&s);
    return rate;
}

/* A trial resumes with the saved learning rates. Only a schedule with different options sets the rates for its current
 * step. */
TEST(test_learning_rates) {
    for (int grouped = 0; grouped < 2; grouped++) {
        setting s = make_setting();
        ls_trial *trial = make_scheduled(&s, 0.75, grouped == 1);
        assert_int_equal(ls_trial_run(trial, 1), LS_OK);
        assert_true(ls_optimizer_learning_rate(s.optimizer, 0) == 0.05);
        assert_true(rate_after(trial, 0.75, grouped == 1) == 0.05);
        assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.125), LS_OK);
        assert_true(rate_after(trial, 0.75, grouped == 1) == 0.125);
        assert_float_equal(rate_after(trial, 0.5, grouped == 1), 0.1 * pow(0.5, 3), 1e-12); /* after three steps */
        ls_trial_free(trial);
        free_setting(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),           cmocka_unit_test(test_stopped_before),
        cmocka_unit_test(test_smaller_patience), cmocka_unit_test(test_long_descriptions),
        cmocka_unit_test(test_old_checkpoint),   cmocka_unit_test(test_learning_rates),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
