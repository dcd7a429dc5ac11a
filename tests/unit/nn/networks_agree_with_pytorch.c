/*
 * 300 small random networks reproduce PyTorch's loss, gradients and statistics for the same inputs, to within 1e-9 in
 * f64, if their layers support f64, and to within 1e-4 in f32 (tests/fixtures/make_networks.py).
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/networks.h"
#include "tests/support/unit.h"

#include <math.h>

enum { NETWORKS = 300, WITH_F64 = 254 };

/* ---- networks ---------------------------------------------------------------------------------------------------- */

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
    ls_tensor *x = network_input(one, dtype);
    ls_module *model = network_module(one, dtype, &failed);
    char what[400] = "";
    if (x == NULL || model == NULL) {
        snprintf(what, sizeof what, "\"%s\" is not known, or: %s", failed != NULL ? failed : one->lines[0],
                 ls_error_message());
    } else {
        network_set_numbers(one, model);
        ls_tensor *y = ls_forward(model, x);
        ls_tensor *loss = y != NULL ? network_loss(one, y) : NULL;
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
        assert_null(network_loss(&one, network_input(&one, LS_F32)));
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
