/*
 * 300 small random networks have PyTorch's loss, gradients and statistics for the same numbers: to 1e-9 in f64, if
 * their layers support f64, and to 1e-4 in f32 (tests/fixtures/make_networks.py).
 *
 * devices: cpu shadow cuda
 */
#include <lockstep/loss.h>

#include "tests/support/elements.h"
#include "tests/support/networks.h"
#include "tests/support/unit.h"

#include <inttypes.h>
#include <math.h>

enum { NETWORKS = 300, WITH_F64 = 254 };

/* ---- losses ------------------------------------------------------------------------------------------------------ */

static ls_loss_reduction reduction_of(network_words *words) {
    const char *text = network_text(words, "reduction");
    if (text == NULL) {
        return LS_LOSS_MEAN;
    }
    assert_true(strcmp(text, "sum") == 0 || strcmp(text, "none") == 0);
    return strcmp(text, "sum") == 0 ? LS_LOSS_SUM : LS_LOSS_NONE;
}

/* Cross entropy or, for log probabilities, nll. */
static ls_tensor *class_loss(network_words *words, ls_tensor *y, int number, bool from_logits) {
    const ls_dtype dtype = ls_dtype_of(y);
    const ls_shape shape = ls_shape_of(y);
    const int64_t classes = shape.size[1];
    ls_shape places = {.ndim = shape.ndim - 1, .size = {shape.size[0]}};
    for (int i = 1; i < places.ndim; i++) {
        places.size[i] = shape.size[i + 1];
    }
    ls_class_loss_options options = {.reduction = reduction_of(words),
                                     .label_smoothing = network_number(words, "smoothing", 0),
                                     .ignore_index = (int64_t)network_number(words, "ignore", -1)};
    options.ignore = options.ignore_index >= 0;
    if (network_flag(words, "weighted")) {
        options.weight = network_tensor_of(number, NETWORK_CLASS_WEIGHT, LS_SHAPE(classes), dtype, 1, 1.25);
    }
    ls_tensor *target = network_flag(words, "probabilities")
                            ? network_tensor_of(number, NETWORK_TARGET, shape, dtype, 0.5, 0.5)
                            : network_below(number, NETWORK_TARGET, places, classes);
    return from_logits ? ls_cross_entropy(y, target, &options)
                       : ls_nll_loss(y, target,
                                     &(ls_nll_loss_options){.reduction = options.reduction,
                                                            .weight = options.weight,
                                                            .ignore = options.ignore,
                                                            .ignore_index = options.ignore_index});
}

static ls_tensor *distance_loss(network_words *words, ls_tensor *y, int number) {
    const ls_shape shape = ls_shape_of(y);
    const ls_loss_reduction reduction = reduction_of(words);
    const double margin = network_number(words, "margin", 0);
    ls_tensor *target = network_tensor_of(number, NETWORK_TARGET, shape, ls_dtype_of(y), 1, 0);
    if (strcmp(words->name, "triplet") == 0) {
        ls_tensor *negative = network_tensor_of(number, NETWORK_OTHER, shape, ls_dtype_of(y), 1, 0);
        return ls_triplet_margin_loss(y, target, negative, margin, reduction);
    }
    ls_tensor *sign = ls_empty(LS_SHAPE(shape.size[0]), LS_I64);
    int64_t *signs = elements(sign);
    for (int64_t i = 0; i < shape.size[0]; i++) {
        signs[i] = network_value(number, NETWORK_CLASS_WEIGHT, i) >= 0 ? 1 : -1;
    }
    return ls_cosine_embedding_loss(y, target, sign, margin, reduction);
}

static ls_tensor *bce_with_logits(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_bce_with_logits_loss(x, target, &(ls_bce_with_logits_options){.reduction = reduction});
}

/* Returns NULL if the loss is unknown. */
static ls_tensor *element_loss(network_words *words, ls_tensor *y, int number) {
    const ls_shape shape = ls_shape_of(y);
    const ls_loss_reduction reduction = reduction_of(words);
    if (strcmp(words->name, "huber") == 0) {
        ls_tensor *target = network_tensor_of(number, NETWORK_TARGET, shape, ls_dtype_of(y), 1, 0);
        return ls_huber_loss(y, target, network_number(words, "delta", 0), reduction);
    }
    static const struct {
        const char *name;
        ls_tensor *(*loss)(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
        double scale, shift; /* of its targets */
    } losses[] = {{"mse", ls_mse_loss, 1, 0},
                  {"l1", ls_l1_loss, 1, 0},
                  {"bce", ls_bce_loss, 0.5, 0.5},
                  {"bce_with_logits", bce_with_logits, 0.5, 0.5},
                  {"kl_div", ls_kl_div_loss, 0.5, 0.5}};
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        if (strcmp(losses[i].name, words->name) == 0) {
            return losses[i].loss(
                y, network_tensor_of(number, NETWORK_TARGET, shape, ls_dtype_of(y), losses[i].scale, losses[i].shift),
                reduction);
        }
    }
    return NULL;
}

/* Returns the loss in the network's last line, "loss NAME OPTIONS", or NULL if it is unknown. */
static ls_tensor *loss_of(const network *one, ls_tensor *y) {
    network_words words;
    if (!network_words_read(one->lines[one->line_count - 1] + strlen("loss "), &words)) {
        return NULL;
    }
    const bool entropy = strcmp(words.name, "cross_entropy") == 0;
    const bool distance = strcmp(words.name, "triplet") == 0 || strcmp(words.name, "cosine_embedding") == 0;
    ls_tensor *loss = entropy || strcmp(words.name, "nll") == 0 ? class_loss(&words, y, one->number, entropy)
                      : distance                                ? distance_loss(&words, y, one->number)
                                                                : element_loss(&words, y, one->number);
    if (loss != NULL && reduction_of(&words) == LS_LOSS_NONE) {
        loss = ls_sum(ls_mul(
            loss, network_tensor_of(one->number, NETWORK_ELEMENT_WEIGHT, ls_shape_of(loss), ls_dtype_of(y), 1, 0)));
    }
    return network_all_used(&words) ? loss : NULL;
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

/* Returns the input described by a line "x SIZES" or "index SIZES of COUNT", or NULL for other lines. */
static ls_tensor *input_of(const network *one, ls_dtype dtype) {
    const char *at = strchr(one->lines[0], ' ');
    const bool index = strncmp(one->lines[0], "index ", 6) == 0;
    ls_shape shape = {.ndim = 0};
    if (at == NULL || (!index && strncmp(one->lines[0], "x ", 2) != 0)) {
        return NULL;
    }
    for (char *end; *at == ' ' && at[1] != 'o'; at = end) {
        assert_true(shape.ndim < LS_MAX_DIMS);
        shape.size[shape.ndim++] = strtoll(at, &end, 10);
    }
    int64_t count = 0;
    if (index) {
        assert_int_equal(sscanf(at, " of %" SCNd64, &count), 1);
        return network_below(one->number, 0, shape, count);
    }
    assert_true(*at == '\0');
    ls_tensor *x = network_tensor_of(one->number, 0, shape, dtype, 1, 0);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

static void set_numbers(const network *one, ls_module *model) {
    const int parameters = ls_module_parameter_count(model), buffers = ls_module_buffer_count(model);
    for (int i = 0; i < parameters; i++) {
        network_fill(ls_module_parameter(model, i), one->number, 1 + i, 0.5, 0);
    }
    for (int i = 0; i < buffers; i++) {
        const bool variance = strstr(ls_module_buffer_name(model, i), "running_var") != NULL;
        network_fill(ls_module_buffer(model, i), one->number, 1 + parameters + i, 0.5, variance ? 1 : 0);
    }
}

static double element_of(const ls_tensor *tensor, const void *values, int64_t i) {
    return ls_dtype_of(tensor) == LS_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

/* Returns whether tensor `is`, number `index` of the network, has PyTorch's products. Prints a difference. */
static bool compare(const network *one, int index, const char *name, const ls_tensor *is, double largest,
                    double tolerance) {
    const network_tensor *right = &one->tensors[index];
    char what[160];
    if (is == NULL) {
        snprintf(what, sizeof what, "there is no gradient of %s", name);
        network_print(one, what);
        return false;
    }
    const double scale = right->length > 0 ? right->length : largest;
    const void *values = elements(is);
    for (int k = 0; k < NETWORK_PRODUCTS; k++) {
        double product = 0;
        for (int64_t i = 0; i < ls_numel(is); i++) {
            product += element_of(is, values, i) * network_value(one->number, NETWORK_VECTOR + 3 * index + k, i);
        }
        if (!(fabs(product - right->products[k]) <= tolerance * scale)) {
            snprintf(what, sizeof what, "%s %s, product %d: %.17g, PyTorch has %.17g (its length is %.3g)",
                     right->is_buffer ? "buffer" : "gradient of", name, k, product, right->products[k], right->length);
            network_print(one, what);
            return false;
        }
    }
    return true;
}

/* Compares all tensors for which PyTorch's values are available. */
static bool compare_all(const network *one, const ls_tensor *x, const ls_module *model, double loss, double tolerance) {
    const int parameters = ls_module_parameter_count(model), buffers = ls_module_buffer_count(model);
    const int first = ls_grad(x) != NULL ? 1 : 0;
    double largest = 0;
    for (int i = 0; i < one->tensor_count; i++) {
        largest = fmax(largest, one->tensors[i].is_buffer ? 0 : one->tensors[i].length);
    }
    if (!(fabs(loss - one->loss) <= tolerance * fabs(one->loss)) || one->tensor_count != first + parameters + buffers) {
        char what[160];
        snprintf(what, sizeof what, "the loss is %.17g, PyTorch has %.17g; %d gradients and buffers, PyTorch has %d",
                 loss, one->loss, first + parameters + buffers, one->tensor_count);
        network_print(one, what);
        return false;
    }
    bool same = first == 0 || compare(one, 0, "the input", ls_grad(x), largest, tolerance);
    for (int i = 0; i < parameters && same; i++) {
        same = compare(one, first + i, ls_module_parameter_name(model, i), ls_grad(ls_module_parameter(model, i)),
                       largest, tolerance);
    }
    for (int i = 0; i < buffers && same; i++) {
        same = compare(one, first + parameters + i, ls_module_buffer_name(model, i), ls_module_buffer(model, i),
                       largest, tolerance);
    }
    return same;
}

/* Returns whether the network has PyTorch's numbers. Prints a difference. */
static bool check_network(const network *one, ls_dtype dtype, double tolerance) {
    const char *failed = NULL;
    bool same = false;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = input_of(one, dtype);
    ls_module *model = network_module(one, dtype, &failed);
    char what[400] = "";
    if (x == NULL || model == NULL) {
        snprintf(what, sizeof what, "\"%s\" is not known, or: %s", failed != NULL ? failed : one->lines[0],
                 ls_error_message());
    } else {
        set_numbers(one, model);
        ls_tensor *y = ls_forward(model, x);
        ls_tensor *loss = y != NULL ? loss_of(one, y) : NULL;
        if (loss == NULL || ls_backward(loss) != LS_OK) {
            snprintf(what, sizeof what, "the loss is not known, or: %s", ls_error_message());
        } else {
            same = compare_all(one, x, model, ls_item(loss), tolerance);
        }
    }
    if (what[0] != '\0') {
        network_print(one, what);
    }
    same &= ls_scope_end(scope) == LS_OK;
    ls_module_free(model);
    return same;
}

static void check_networks(ls_dtype dtype, double tolerance, int count) {
    FILE *file = fopen(LS_FIXTURES "/networks.txt", "r");
    assert_non_null(file);
    static network one;
    int read = 0, run = 0, wrong = 0;
    for (; network_read(file, read, &one); read++) {
        if (dtype == LS_F32 || network_has_f64(&one)) {
            run++;
            wrong += !check_network(&one, dtype, tolerance);
        }
    }
    fclose(file);
    assert_int_equal(wrong, 0);
    assert_int_equal(read, NETWORKS);
    assert_int_equal(run, count);
}

TEST(test_networks_in_f64) {
    check_networks(LS_F64, 1e-9, WITH_F64);
}

TEST(test_networks_in_f32) {
    check_networks(LS_F32, 1e-4, NETWORKS);
}

/* Unknown lines fail the test. */
TEST(test_unknown_lines_are_refused) {
    static const char *const unknown[] = {"linear in=2 out=3 sparse",
                                          "linear in=2 out=3 rank=2",
                                          "perceptron in=2 out=3",
                                          "",
                                          "tanh x=1",
                                          "end of it",
                                          "again"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        network one = {.line_count = 3, .lines = {"x 2 2", "", "loss mse"}};
        snprintf(one.lines[1], sizeof one.lines[1], "%s", unknown[i]);
        const char *failed = NULL;
        assert_null(network_module(&one, LS_F32, &failed));
        assert_ptr_equal(failed, one.lines[1]);
    }
    static const char *const losses[] = {"loss mae", "loss mse margin=1", "loss huber delta=1 weighted"};
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        network one = {.line_count = 2, .lines = {"x 2 2"}};
        snprintf(one.lines[1], sizeof one.lines[1], "%s", losses[i]);
        ls_scope *scope = ls_scope_begin();
        assert_null(loss_of(&one, input_of(&one, LS_F32)));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_networks_in_f64),
        cmocka_unit_test(test_networks_in_f32),
        cmocka_unit_test(test_unknown_lines_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
