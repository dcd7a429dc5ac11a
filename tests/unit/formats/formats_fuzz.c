/*
 * Damaged files and all code that reads them: IDX, CSV and safetensors, and loading into models and optimizers. The
 * program's argument, if any, is the only test to run.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>
#include <lockstep/optim.h>

#include <jansson.h>
#include <math.h>

#include "formats/named.h"
#include "tests/support/damage.h"
#include "tests/support/files.h"
#include "tests/support/fuzz.h"

enum { KINDS = 6 };

/* ---- the formats ------------------------------------------------------------------------------------------------- */

static void round_idx(uint64_t number, void *argument) {
    static const uint8_t heads[][12] = {{0, 0, 8, 2, 0, 0, 0, 4, 0, 0, 0, 6},
                                        {0, 0, 0x0B, 2, 0, 0, 0, 4, 0, 0, 0, 3},
                                        {0, 0, 0x0D, 2, 0, 0, 0, 2, 0, 0, 0, 3},
                                        {0, 0, 0x0E, 2, 0, 0, 0, 1, 0, 0, 0, 3}};
    content c = {.size = 36};
    memcpy(c.bytes, heads[number % 4], 12);
    for (size_t i = 12; i < c.size; i++) {
        c.bytes[i] = (uint8_t)i;
    }
    if (fuzz_below(4) == 0) { /* one-byte elements with different sizes, which may be valid again */
        c.bytes[4 + fuzz_below(8)] = (uint8_t)fuzz_below(7);
    } else {
        content_damage(&c);
    }
    ls_tensor *tensor = ls_idx_read(number / 4 % 3 == 0 ? content_gzipped_file(&c) : content_file(&c));
    if (tensor == NULL) {
        tally_refused(argument);
        return;
    }
    ((tally *)argument)->accepted++;
    tally_touch(tensor);
    ls_release(tensor);
}

TEST(test_idx) {
    tally counts = {0};
    fuzz_run("idx", 3000, round_idx, &counts);
    tally_assert_both(&counts);
}

static void round_csv(uint64_t number, void *argument) {
    static const char *const texts[] = {
        "a,\"b\",c\n1,2,3\n4,\"5\",6\r\n7,8e2,9\n",
        "\xEF\xBB\xBFx;\"y \"\"z\"\"\";t\n1;2;\"3\"\n\n  4;\"-5\";6",
        "0.1,0.2\n0.3,-0.4\n\"1\",\"2\"\n",
        "a,c,d\n\"x, \"\"y\"\"\",,1\n\"two\nlines\",7, \nz,8,9\r\n",
    };
    static const char *const names[] = {"c", "a"};
    const ls_csv_options options[] = {
        {0},
        {.separator = ';', .dtype = LS_F64},
        {.no_header = true, .dtype = LS_I64},
        {.columns = names, .column_count = 2, .dtype = LS_BF16},
        {.columns = names, .column_count = 1, .all_but = true, .dtype = LS_U8},
        {.text = (const ls_csv_text[]){{.column = "a"}, {.column = "1"}}, .text_count = 2, .empty = NAN},
    };
    content c = {0};
    const char *text = texts[number % 4];
    content_replace(&c, 0, 0, text, strlen(text));
    content_damage(&c);
    const char *path = number / 4 % 3 == 0 ? content_gzipped_file(&c) : content_file(&c);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        ls_tensor *tensor = ls_csv_read(path, &options[i]);
        if (tensor == NULL) {
            tally_refused(argument);
            continue;
        }
        ((tally *)argument)->accepted++;
        assert_int_equal(ls_ndim(tensor), 2);
        assert_int_equal(ls_dtype_of(tensor), options[i].dtype);
        assert_true((uint64_t)ls_size(tensor, 0) <= c.size + 1);
        tally_touch(tensor);
        ls_release(tensor);
    }
}

TEST(test_csv) {
    tally counts = {0};
    fuzz_run("csv", 1000, round_csv, &counts);
    tally_assert_both(&counts);
}

/* A second JSON reader finds exactly the same names in the header. */
static void check_against_jansson(const ls_safetensors *file, const content *c) {
    uint64_t length = 0;
    memcpy(&length, c->bytes, sizeof length);
    json_t *header = json_loadb((const char *)c->bytes + 8, (size_t)length, 0, NULL);
    assert_true(json_is_object(header));
    const bool metadata = json_object_get(header, "__metadata__") != NULL;
    const ls_named_set *all = ls_safetensors_set(file);
    assert_int_equal(json_object_size(header), all->count + all->refused_count + metadata);
    for (int i = 0; i < all->refused_count; i++) {
        assert_non_null(json_object_get(header, all->refused[i].name));
        assert_null(ls_safetensors_find(file, all->refused[i].name));
        assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    }
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_named item = ls_safetensors_at(file, i);
        const json_t *entry = json_object_get(header, item.name);
        const json_t *shape = json_object_get(entry, "shape");
        assert_int_equal(json_array_size(shape), ls_ndim(item.tensor));
        for (int axis = 0; axis < ls_ndim(item.tensor); axis++) {
            assert_int_equal(json_integer_value(json_array_get(shape, (size_t)axis)), ls_size(item.tensor, axis));
        }
    }
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(header, "__metadata__"), key, value) {
        assert_non_null(ls_safetensors_metadata(file, key));
    }
    json_decref(header);
}

/* Usually damages the header and corrects its length. Sometimes damages arbitrary bytes. */
static void damage_safetensors(content *c) {
    uint64_t length = 0;
    memcpy(&length, c->bytes, sizeof length);
    if (fuzz_below(4) == 0) {
        content_damage(c);
        return;
    }
    content header = {.size = (size_t)length};
    memcpy(header.bytes, c->bytes + 8, header.size);
    content_damage(&header);
    content_replace(c, 8, (size_t)length, header.bytes, header.size);
    length = header.size;
    memcpy(c->bytes, &length, sizeof length);
}

static const content *good_safetensors(void) {
    static content good;
    if (good.size == 0) {
        ls_tensor *tensor = ls_ones(LS_SHAPE(2, 3), LS_F32), *bytes = ls_ones(LS_SHAPE(7), LS_U8);
        ls_tensor *none = ls_ones(LS_SHAPE(0, 3), LS_F64);
        const ls_named named[] = {{"first", tensor}, {"sec\"ond \xc3\xa4", bytes}, {"none", none}, {"4", tensor}};
        const char *const metadata[] = {"format", "pt", "n\xc3\xb6te", "line\n\ttab \\ \"", NULL};
        const char *path = test_path("good");
        assert_int_equal(ls_safetensors_save(path, named, 4, metadata), LS_OK);
        content_read(&good, path);
        ls_release(tensor);
        ls_release(bytes);
        ls_release(none);
    }
    return &good;
}

static void round_safetensors(uint64_t number, void *argument) {
    (void)number;
    content c = *good_safetensors();
    damage_safetensors(&c);
    ls_safetensors *file = ls_safetensors_load(content_file(&c));
    if (file == NULL) {
        tally_refused(argument);
        return;
    }
    ((tally *)argument)->accepted++;
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        tally_touch(ls_safetensors_at(file, i).tensor);
    }
    check_against_jansson(file, &c);
    ls_safetensors_free(file);
}

TEST(test_safetensors) {
    tally counts = {0};
    fuzz_run("safetensors", 6000, round_safetensors, &counts);
    tally_assert_both(&counts);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static ls_module *make_model(void) {
    ls_seed(3);
    ls_module *model = ls_sequential(ls_nn_linear(3, 4), ls_nn_batch_norm_1d(4, NULL), ls_nn_linear(4, 2));
    assert_non_null(model);
    return model;
}

typedef struct loading {
    tally counts;
    content good;
    ls_module *model;
    ls_optimizer *optimizer;
    char weights[320]; /* the file that restores the weights */
} loading;

/* Damages the data after the header, too. */
static const char *damaged_state(const content *good) {
    content c = *good;
    if (fuzz_below(2) == 0) {
        damage_safetensors(&c);
    } else {
        uint64_t length;
        memcpy(&length, c.bytes, sizeof length);
        for (size_t times = 1 + fuzz_below(3); times > 0; times--) {
            static const double numbers[] = {-1, 0x1p70, NAN, INFINITY, -0.0, 1e-310};
            static const int64_t integers[] = {-1, INT64_MAX, INT64_MIN, 1};
            const size_t words = (c.size - 8 - (size_t)length) / 8;
            const bool floating = fuzz_below(2) == 0;
            const void *word = floating ? (const void *)&numbers[fuzz_below(6)] : &integers[fuzz_below(4)];
            memcpy(c.bytes + 8 + length + 8 * fuzz_below(words), word, 8);
        }
    }
    return content_file(&c);
}

static void round_module(uint64_t number, void *argument) {
    (void)number;
    loading *load = argument;
    const uint64_t before = ls_module_hash(load->model);
    if (ls_module_load(load->model, damaged_state(&load->good)) == LS_OK) {
        load->counts.accepted++;
    } else {
        tally_refused(&load->counts);
        assert_true(ls_module_hash(load->model) == before);
    }
}

TEST(test_module) {
    loading load = {.model = make_model()};
    assert_int_equal(ls_module_save(load.model, test_path("model"), NULL), LS_OK);
    content_read(&load.good, test_path("model"));
    fuzz_run("module", 4000, round_module, &load);
    tally_assert_both(&load.counts);
    ls_module_free(load.model);
}

static ls_status loss_of(void *argument, double *value) {
    ls_module *model = argument;
    ls_seed(11);
    ls_tensor *loss = ls_mean(ls_square(ls_forward(model, ls_randn(LS_SHAPE(5, 3), LS_F32))));
    *value = ls_item(loss);
    return ls_backward(loss);
}

static ls_optimizer *make_optimizer(int kind, ls_module *model) {
    switch (kind) {
    case 0:
        return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
    case 1:
        return ls_adam(model, &(ls_adam_options){.amsgrad = true});
    case 2:
        return ls_rmsprop(model, &(ls_rmsprop_options){.momentum = 0.9, .centered = true});
    case 3:
        return ls_adagrad(model, NULL);
    case 4:
        return ls_lbfgs(model, &(ls_lbfgs_options){.max_iterations = 3, .history_size = 4});
    default:
        return ls_conjugate_gradient(model, &(ls_conjugate_gradient_options){.max_iterations = 3});
    }
}

static uint64_t hash_of(ls_optimizer *optimizer) {
    const ls_named *tensors;
    int count;
    uint64_t hash = 1469598103934665603U;
    assert_int_equal(ls_optimizer_state(optimizer, &tensors, &count), LS_OK);
    for (int i = 0; i < count; i++) {
        const uint8_t *bytes = ls_data_const(tensors[i].tensor);
        const size_t size = (size_t)ls_numel(tensors[i].tensor) * ls_dtype_size(ls_dtype_of(tensors[i].tensor));
        for (size_t byte = 0; byte < size; byte++) {
            hash = (hash ^ bytes[byte]) * 1099511628211U;
        }
    }
    return hash;
}

static void round_optimizer(uint64_t number, void *argument) {
    loading *load = (loading *)argument + number % KINDS;
    const uint64_t before = hash_of(load->optimizer);
    if (ls_optimizer_load(load->optimizer, damaged_state(&load->good)) != LS_OK) {
        tally_refused(&load->counts);
        assert_true(hash_of(load->optimizer) == before);
        return;
    }
    load->counts.accepted++;
    if (number / KINDS % 8 == 0) { /* an arbitrary link must do no harm */
        double loss;
        (void)!ls_optimizer_step_closure(load->optimizer, loss_of, load->model, &loss);
        assert_int_equal(ls_module_load(load->model, load->weights), LS_OK);
    }
}

static void test_optimizer(void **state) {
    (void)state;
    static loading loads[KINDS];
    for (int kind = 0; kind < KINDS; kind++) {
        double loss;
        loading *load = &loads[kind];
        load->model = make_model();
        load->optimizer = make_optimizer(kind, load->model);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ls_optimizer_step_closure(load->optimizer, loss_of, load->model, &loss), LS_OK);
        }
        assert_int_equal(ls_optimizer_save(load->optimizer, test_path("state"), NULL), LS_OK);
        content_read(&load->good, test_path("state"));
        char name[16];
        snprintf(name, sizeof name, "model%d", kind);
        snprintf(load->weights, sizeof load->weights, "%s", test_path(name));
        assert_int_equal(ls_module_save(load->model, load->weights, NULL), LS_OK);
    }
    fuzz_run("optimizer", 1000 * KINDS, round_optimizer, loads);
    for (int kind = 0; kind < KINDS; kind++) {
        tally_assert_both(&loads[kind].counts);
        ls_optimizer_free(loads[kind].optimizer);
        ls_module_free(loads[kind].model);
    }
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx),    cmocka_unit_test(test_csv),       cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_module), cmocka_unit_test(test_optimizer),
    };
    cmocka_set_test_filter(count > 1 ? arguments[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
