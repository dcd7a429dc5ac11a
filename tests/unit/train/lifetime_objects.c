/*
 * Objects with one owner that a program uses after it has freed them, or frees twice: stores, reducers, wire formats,
 * schedules, scalers, averages, trials, callbacks, metrics and files. Every call fails with LS_ERR_STATE and a message
 * with the call and the free function. A second free does nothing.
 *
 * devices: cpu
 */
#include <lockstep/lockstep.h>

#include "tests/support/allocator.h"
#include "tests/support/files.h"
#include "tests/support/trials.h"

#define FREED(object, function) "the " object " has already been freed (" function "); free it only after its last use"

/* For functions that do not return a status. */
#define EXPECT_FREED(call, text)                                                                                       \
    do {                                                                                                               \
        (void)ls_error_set(LS_OK, "%s", "");                                                                           \
        (void)(call);                                                                                                  \
        expect_error(ls_error_status(), LS_ERR_STATE, text);                                                           \
    } while (0)

/* ---- communication ----------------------------------------------------------------------------------------------- */

TEST(test_a_closed_store) {
    const char text[] = FREED("store", "ls_store_close");
    char value[8];
    size_t size;
    bool swapped;
    for (int folder = 0; folder < 2; folder++) {
        char url[300] = "tcp://127.0.0.1:0";
        if (folder == 1) {
            snprintf(url, sizeof url, "file://%s", test_path("store"));
        }
        ls_store *store = ls_store_open(url, &(ls_store_options){.serve = true, .timeout = 5});
        assert_non_null(store);
        assert_int_equal(ls_store_set(store, "key", "value", 5), LS_OK);
        ls_store_close(store);
        expect_error(ls_store_set(store, "key", "value", 5), LS_ERR_STATE, text);
        expect_message("ls_store_set: ");
        expect_error(ls_store_get(store, "key", value, sizeof value, &size), LS_ERR_STATE, text);
        expect_error(ls_store_add(store, "key", 1, NULL), LS_ERR_STATE, text);
        expect_error(ls_store_wait(store, "key", 1), LS_ERR_STATE, text);
        expect_error(ls_store_compare_set(store, "key", NULL, 0, "v", 1, &swapped), LS_ERR_STATE, text);
        assert_int_equal(ls_store_port(store), 0);
        ls_store_close(store);
    }
}

TEST(test_a_freed_reducer) {
    const char text[] = FREED("reducer", "ls_reducer_free");
    ls_comm *comm = ls_init(NULL);
    ls_module *model = ls_nn_linear(2, 2);
    ls_tensor *tensor = ls_ones(LS_SHAPE(2), LS_F32);
    ls_reducer *reducer = ls_reducer_new(comm, NULL);
    assert_non_null(reducer);
    assert_int_equal(ls_reducer_add(reducer, tensor), LS_OK);
    ls_reducer_free(reducer);
    for (int i = 0; i < 100; i++) { /* its reducers do not shorten the time during which a freed one is detected */
        assert_int_equal(ls_allreduce_many(comm, &tensor, 1, LS_SUM), LS_OK);
    }
    expect_error(ls_reducer_add(reducer, tensor), LS_ERR_STATE, text);
    expect_message("ls_reducer_add: ");
    expect_error(ls_reducer_finish(reducer), LS_ERR_STATE, text);
    expect_error(ls_distribute_gradients(model, reducer), LS_ERR_STATE, text);
    ls_reducer_free(reducer);
    ls_release(tensor);
    ls_module_free(model);
    assert_int_equal(ls_finalize(), LS_OK);
}

static ls_status encode(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    (void)first;
    (void)user;
    memcpy(encoded, gradients, (size_t)count * sizeof *gradients);
    return LS_OK;
}

static ls_status decode(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    (void)first;
    (void)user;
    memcpy(gradients, encoded, (size_t)count * sizeof *gradients);
    return LS_OK;
}

static void count_release(void *user) {
    ++*(int *)user;
}

TEST(test_a_freed_wire_format) {
    int released = 0;
    const ls_wire_functions functions = {.name = "own", .encode = encode, .decode = decode, .release = count_release};
    ls_comm *comm = ls_init(NULL);
    for (int held = 0; held < 2; held++) { /* while a module holds a reference, too */
        released = 0;
        ls_module *model = ls_nn_linear(2, 2), *other = ls_nn_linear(2, 2);
        ls_wire_format *format = ls_wire_format_new(&functions, &released);
        const ls_data_parallel_options options = {.wire = format};
        ls_module *parallel = held == 1 ? ls_data_parallel(model, comm, &options) : model;
        assert_non_null(parallel);
        ls_wire_format_free(format);
        ls_wire_format_free(format);
        assert_int_equal(released, held == 0);
        EXPECT_FREED(ls_data_parallel(ls_module_retain(other), comm, &options),
                     FREED("wire format", "ls_wire_format_free"));
        expect_message("ls_data_parallel: ");
        ls_module_free(other);
        ls_module_free(other);
        ls_module_free(parallel);
        assert_int_equal(released, 1);
        ls_wire_format_free(format);
        assert_int_equal(released, 1);
    }
    assert_int_equal(ls_finalize(), LS_OK);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

TEST(test_a_freed_schedule) {
    const char text[] = FREED("schedule", "ls_schedule_free");
    const ls_named *tensors;
    int count;
    setting s = make_setting();
    ls_schedule *schedule = ls_schedule_multi_step(s.optimizer, (const int64_t[]){2, 4}, 2, 0.5);
    assert_non_null(schedule);
    assert_int_equal(ls_schedule_state(schedule, &tensors, &count), LS_OK);
    ls_schedule_free(schedule);
    expect_error(ls_schedule_advance(schedule), LS_ERR_STATE, text);
    expect_message("ls_schedule_advance: ");
    expect_error(ls_schedule_advance_by(schedule, 1), LS_ERR_STATE, text);
    expect_error(ls_schedule_state(schedule, &tensors, &count), LS_ERR_STATE, text);
    expect_error(ls_schedule_set_state(schedule, NULL, 0), LS_ERR_STATE, text);
    EXPECT_FREED(ls_schedule_warm_up(schedule, 2, 0.5), text);
    EXPECT_FREED(ls_scheduler(schedule, NULL), text);
    ls_schedule_free(schedule);
    free_setting(&s);
}

TEST(test_a_freed_scaler) {
    const char text[] = FREED("scaler", "ls_grad_scaler_free");
    const ls_named *tensors;
    int count;
    setting s = make_setting();
    ls_tensor *loss = ls_ones(LS_SCALAR, LS_F32);
    ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
    assert_non_null(scaler);
    ls_trial_options options = options_of(&s);
    options.grad_scaler = scaler;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    ls_grad_scaler_free(scaler);
    EXPECT_FREED(ls_grad_scaler_scale(scaler, loss), text);
    expect_message("ls_grad_scaler_scale: ");
    expect_error(ls_grad_scaler_unscale(scaler, s.optimizer), LS_ERR_STATE, text);
    expect_error(ls_grad_scaler_step(scaler, s.optimizer), LS_ERR_STATE, text);
    expect_error(ls_grad_scaler_update(scaler), LS_ERR_STATE, text);
    expect_error(ls_grad_scaler_state(scaler, &tensors, &count), LS_ERR_STATE, text);
    expect_error(ls_grad_scaler_set_state(scaler, NULL, 0), LS_ERR_STATE, text);
    expect_error(ls_trial_run(trial, 1), LS_ERR_STATE, text);
    assert_true(ls_grad_scaler_get_scale(scaler) == 1 && ls_grad_scaler_skipped(scaler) == 0);
    ls_grad_scaler_free(scaler);
    ls_trial_free(trial);
    ls_release(loss);
    free_setting(&s);
}

TEST(test_freed_averages) {
    const char text[] = FREED("average of the model", "ls_ema_free");
    const ls_named *tensors;
    int count;
    ls_module *model = ls_nn_linear(2, 2);
    ls_ema *ema = ls_ema_new(model, 0.5);
    assert_int_equal(ls_ema_update(ema), LS_OK);
    ls_ema_free(ema);
    expect_error(ls_ema_update(ema), LS_ERR_STATE, text);
    expect_message("ls_ema_update: ");
    expect_error(ls_ema_swap(ema), LS_ERR_STATE, text);
    expect_error(ls_ema_put(ema), LS_ERR_STATE, text);
    expect_error(ls_ema_state(ema, &tensors, &count), LS_ERR_STATE, text);
    expect_error(ls_ema_set_state(ema, NULL, 0), LS_ERR_STATE, text);
    assert_int_equal(ls_ema_count(ema), 0);
    ls_ema_free(ema);
    ls_module_free(model);
}

TEST(test_a_freed_trial) {
    const char text[] = FREED("trial", "ls_trial_free");
    int64_t count = 1;
    ls_tensor *outputs = NULL;
    setting s = make_setting();
    const ls_trial_options options = options_of(&s);
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    ls_trial_free(trial);
    expect_error(ls_trial_run(trial, 2), LS_ERR_STATE, text);
    expect_message("ls_trial_run: ");
    expect_error(ls_trial_evaluate(trial, s.validate, "test"), LS_ERR_STATE, text);
    expect_error(ls_trial_predict(trial, s.validate, false, &outputs), LS_ERR_STATE, text);
    expect_error(ls_trial_replay(trial, NULL, 0, false), LS_ERR_STATE, text);
    expect_error(ls_trial_write_history(trial, test_path("history.csv")), LS_ERR_STATE, text);
    expect_error(ls_trial_save(trial, test_path("saved")), LS_ERR_STATE, text);
    expect_error(ls_trial_load(trial, test_path("saved")), LS_ERR_STATE, text);
    EXPECT_FREED(ls_trial_metric(trial, "loss"), text);
    EXPECT_FREED(ls_trial_metric_values(trial, "loss", &count), text);
    EXPECT_FREED(ls_trial_history(trial, 0, "loss"), text);
    EXPECT_FREED(ls_trial_throughput(trial), text);
    assert_true(isnan(ls_trial_metric(trial, "loss")) && isnan(ls_trial_history(trial, 0, "loss")));
    assert_true(count == 0 && ls_trial_history_count(trial) == 0 && ls_trial_throughput(trial) == 0);
    ls_trial_free(trial);
    free_setting(&s);
}

/* A callback is freed by the program (0), or with the trial (1) or the callback (2) that owned it. */
TEST(test_freed_callbacks) {
    for (int owner = 0; owner < 3; owner++) {
        int released = 0;
        setting s = make_setting();
        ls_callback *callback =
            ls_callback_new(&(ls_callback_hooks){.name = "own", .release = count_release}, &released);
        ls_callback *const callbacks[] = {callback};
        ls_trial_options options = options_of(&s);
        options.callbacks = callbacks;
        options.callback_count = 1;
        if (owner == 0) {
            ls_callback_free(callback);
        } else if (owner == 1) {
            ls_trial_free(ls_trial_new(&options));
        } else {
            ls_callback_free(ls_once(callback));
        }
        ls_callback_free(callback);
        assert_int_equal(released, 1);
        EXPECT_FREED(ls_trial_new(&options), "ls_trial_new: callback 0 was freed, by ls_callback_free or with");
        EXPECT_FREED(ls_once(callback), "ls_once: callback 0 was freed");
        EXPECT_FREED(ls_callback_array(callbacks, 1), "ls_callback_array: callback 0 was freed");
        options.callback_count = 0;
        ls_trial *trial = ls_trial_new(&options);
        assert_non_null(trial);
        expect_error(ls_trial_replay(trial, callbacks, 1, false), LS_ERR_STATE,
                     "ls_trial_replay: callback 0 was freed");
        ls_trial_free(trial);
        assert_int_equal(released, 1);
        free_setting(&s);
    }
    ls_callback *stopping = ls_early_stopping(NULL);
    ls_callback_free(stopping);
    ls_callback_free(stopping);
    assert_false(ls_early_stopping_stopped(stopping));
}

/* A metric is freed by the program (0), or with the trial that owned it (1). */
TEST(test_freed_metrics) {
    for (int owner = 0; owner < 2; owner++) {
        setting s = make_setting();
        ls_metric *metric = ls_metric_named("acc");
        ls_metric *const metrics[] = {metric};
        ls_trial_options options = options_of(&s);
        options.custom_metrics = metrics;
        options.custom_metric_count = 1;
        if (owner == 0) {
            ls_metric_free(metric);
        } else {
            options.metrics = NULL;
            ls_trial *trial = ls_trial_new(&options);
            assert_non_null(trial);
            ls_trial_free(trial);
        }
        ls_metric_free(metric);
        EXPECT_FREED(ls_trial_new(&options), "ls_trial_new: a metric was freed, by ls_metric_free or with");
        EXPECT_FREED(ls_metric_running(metric, NULL), "a metric was freed");
        EXPECT_FREED(ls_metric_std(metric, false), "a metric was freed");
        EXPECT_FREED(ls_metric_array(metrics, 1), "ls_metric_array: a metric was freed");
        assert_string_equal(ls_metric_name(metric), "");
        free_setting(&s);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

TEST(test_freed_classes) {
    const char text[] = FREED("table of classes", "ls_csv_classes_free");
    const char *path = test_file("classes.csv", "c\na\nb\n", 6);
    ls_csv_classes *classes = ls_csv_classes_read(path, "c", NULL);
    assert_non_null(classes);
    ls_csv_classes_free(classes);
    const ls_csv_text column = {.column = "c", .classes = classes};
    EXPECT_FREED(ls_csv_read(path, &(ls_csv_options){.text = &column, .text_count = 1}), text);
    expect_message("ls_csv_read: ");
    EXPECT_FREED(ls_csv_classes_find(classes, "a"), text);
    EXPECT_FREED(ls_csv_classes_name(classes, 0), text);
    assert_int_equal(ls_csv_classes_count(classes), 0);
    assert_int_equal(ls_csv_classes_find(classes, "a"), -1);
    ls_csv_classes_free(classes);
}

TEST(test_freed_files) {
    ls_named tensor = {"one", ls_ones(LS_SHAPE(2), LS_F32)};
    char path[300];
    snprintf(path, sizeof path, "%s", test_path("one.safetensors"));
    assert_int_equal(ls_safetensors_save(path, &tensor, 1, NULL), LS_OK);
    ls_safetensors *file = ls_safetensors_load(path);
    assert_non_null(file);
    ls_safetensors_free(file);
    EXPECT_FREED(ls_safetensors_find(file, "one"), "ls_safetensors_find: " FREED("file", "ls_safetensors_free"));
    EXPECT_FREED(ls_safetensors_at(file, 0), FREED("file", "ls_safetensors_free"));
    EXPECT_FREED(ls_safetensors_metadata(file, "key"), FREED("file", "ls_safetensors_free"));
    assert_true(ls_safetensors_count(file) == 0 && ls_safetensors_at(file, 0).name == NULL);
    ls_safetensors_free(file);

    snprintf(path, sizeof path, "%s", test_path("one.npz"));
    assert_int_equal(ls_npz_save(path, &tensor, 1), LS_OK);
    ls_npz *archive = ls_npz_load(path);
    assert_non_null(archive);
    ls_npz_free(archive);
    EXPECT_FREED(ls_npz_find(archive, "one"), "ls_npz_find: " FREED("file", "ls_npz_free"));
    EXPECT_FREED(ls_npz_at(archive, 0), FREED("file", "ls_npz_free"));
    assert_true(ls_npz_count(archive) == 0 && ls_npz_at(archive, 0).name == NULL);
    ls_npz_free(archive);
    ls_release(tensor.tensor);
}

TEST(test_a_closed_writer) {
    const char text[] = FREED("writer", "ls_events_close");
    ls_events *events = ls_events_open(test_path("events"), NULL);
    ls_tensor *tensor = ls_ones(LS_SHAPE(2, 2), LS_F32);
    const ls_events_node node = {.name = "node", .op = "op"};
    assert_non_null(events);
    assert_int_equal(ls_events_close(events), LS_OK);
    expect_error(ls_events_scalar(events, "tag", 0, 1), LS_ERR_STATE, text);
    expect_message("ls_events_scalar: ");
    expect_error(ls_events_text(events, "tag", 0, "text"), LS_ERR_STATE, text);
    expect_error(ls_events_histogram(events, "tag", 0, tensor), LS_ERR_STATE, text);
    expect_error(ls_events_image(events, "tag", 0, tensor), LS_ERR_STATE, text);
    expect_error(ls_events_graph(events, &node, 1), LS_ERR_STATE, text);
    expect_error(ls_events_flush(events), LS_ERR_STATE, text);
    assert_null(ls_events_path(events));
    expect_error(ls_events_close(events), LS_ERR_STATE, text);
    ls_release(tensor);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The number of kept records is bounded, and all are freed when the thread's state is freed. */
TEST(test_records_do_not_accumulate) {
    test_allocator allocator;
    long live[2];
    ls_thread_end();
    test_allocator_start(&allocator);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 300; i++) {
            ls_grad_scaler_free(ls_grad_scaler_new(NULL));
            ls_callback_free(ls_callback_new(&(ls_callback_hooks){.name = "own"}, NULL));
        }
        live[half] = atomic_load(&allocator.live);
    }
    assert_int_equal(live[0], live[1]);
    ls_thread_end();
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_closed_store),
        cmocka_unit_test(test_a_freed_reducer),
        cmocka_unit_test(test_a_freed_wire_format),
        cmocka_unit_test(test_a_freed_schedule),
        cmocka_unit_test(test_a_freed_scaler),
        cmocka_unit_test(test_freed_averages),
        cmocka_unit_test(test_a_freed_trial),
        cmocka_unit_test(test_freed_callbacks),
        cmocka_unit_test(test_freed_metrics),
        cmocka_unit_test(test_freed_classes),
        cmocka_unit_test(test_freed_files),
        cmocka_unit_test(test_a_closed_writer),
        cmocka_unit_test(test_records_do_not_accumulate),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
