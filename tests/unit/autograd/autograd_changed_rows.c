/*
 * Values that a gradient depends on are changed in place between the forward and the backward pass, for every row of
 * every family of operations. The inputs and outputs of each node are changed in turn: once without the library's
 * knowledge, which shows whether the gradient depends on them, and once through the library. If the gradient depends on
 * them, the backward pass must be refused. If the pass is refused, the change must have had an effect in at least one
 * trial.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/gradcheck_cases.h"

enum { OUTPUT = LS_NODE_INPUTS, MAX_SEEN = 1024 };

/* An input or output of a row whose change was refused, and whether it had an effect in some trial. */
typedef struct seen {
    const ls_op *op;
    int place;
    bool mattered;
} seen;

static seen all_seen[MAX_SEEN];
static int seen_count;

static seen *seen_of(const ls_op *op, int place) {
    for (int i = 0; i < seen_count; i++) {
        if (all_seen[i].op == op && all_seen[i].place == place) {
            return &all_seen[i];
        }
    }
    assert_true(seen_count < MAX_SEEN);
    all_seen[seen_count] = (seen){.op = op, .place = place};
    return &all_seen[seen_count++];
}

/* Returns different valid values for x: drawn again or, for indices and booleans, increased by one. */
static ls_tensor *other_values(const ls_tensor *x, const gradcheck_case *row) {
    if (ls_dtype_is_floating((ls_dtype)x->dtype)) {
        ls_tensor *drawn_anew = ls_detach(drawn_leaf(ls_shape_of(x), row));
        return x->dtype == LS_F64 ? drawn_anew : ls_to(drawn_anew, (ls_dtype)x->dtype);
    }
    ls_tensor *other = ls_tensor_like("other_values", x, (ls_dtype)x->dtype);
    ls_tensor *dense = ls_tensor_dense("other_values", x, (ls_dtype)x->dtype);
    const size_t width = ls_dtype_size((ls_dtype)x->dtype);
    const char *from = elements(dense);
    char *to = elements(other);
    for (int64_t i = 0; i < x->count; i++) {
        memcpy(to + (size_t)i * width, from + (size_t)((i + 1) % x->count) * width, width);
    }
    ls_tensor_drop(dense);
    return other;
}

static void overwrite(ls_tensor *x, const ls_tensor *values) {
    ls_tensor *there = ls_tensor_on_device("overwrite", values, ls_tensor_device(x));
    assert_int_equal(ls_kernels_of(x)->copy(ls_stream_of(x), x, there), LS_OK);
    ls_tensor_drop(there);
}

/* Copies the leaves' gradients after a backward pass over the kept tape. */
static ls_status pass(trial *t, ls_tensor *y, ls_tensor *weight, ls_tensor **gradients) {
    for (int i = 0; i < t->count; i++) {
        ls_zero_grad(t->leaves[i]);
    }
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward_with(y, &(ls_backward_options){.gradient = weight, .keep_tape = true});
    (void)ls_scope_end(scope);
    for (int i = 0; i < t->count; i++) {
        ls_tensor *gradient = status == LS_OK ? ls_grad(t->leaves[i]) : NULL;
        gradients[i] = gradient != NULL ? ls_clone(gradient) : NULL;
    }
    return status;
}

static bool equal(const trial *t, ls_tensor *const *a, ls_tensor *const *b) {
    bool same = true;
    for (int i = 0; i < t->count; i++) {
        same = same && ((a[i] == NULL && b[i] == NULL) || (a[i] != NULL && b[i] != NULL && ls_equal(a[i], b[i])));
    }
    return same;
}

/* Changes x, an input or output of the node, in both ways, and restores everything afterwards. */
static void check_place(trial *t, const ls_node *node, int place, ls_tensor *x, ls_tensor *y, ls_tensor *weight) {
    ls_tensor *before[MAX_INPUTS], *unseen[MAX_INPUTS], *known[MAX_INPUTS];
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(pass(t, y, weight, before), LS_OK);
    ls_tensor *values = ls_tensor_give(ls_tensor_dense("check_place", x, (ls_dtype)x->dtype));
    if (values == x) {
        values = ls_clone(ls_detach(x));
    }
    const ls_tensor *other = other_values(x, t->row);
    overwrite(x, other);
    const bool mattered = pass(t, y, weight, unseen) != LS_OK || !equal(t, before, unseen);
    const uint32_t version = x->storage->version;
    ls_tensor_changed(x, "a test");
    const ls_status status = pass(t, y, weight, known);
    assert_true(status == LS_OK || status == LS_ERR_STATE);
    assert_true(status == LS_OK || strstr(ls_error_message(), "later modified in place (by a test)") != NULL);
    if (mattered && status == LS_OK) {
        fail_msg("%s, round %d, variant %.12s: %s: the value of %s %d counts, but its change is not noticed",
                 t->row->name, t->round, t->variant, node->op->name, place == OUTPUT ? "the output," : "input", place);
    }
    char own[80]; /* a different row may have refused the change: it reads the same elements, and its own input is
                     tested, too */
    snprintf(own, sizeof own, "ls_backward: %s saved ", node->op->name);
    if (status != LS_OK && strncmp(ls_error_message(), own, strlen(own)) == 0) {
        seen *s = seen_of(node->op, place);
        s->mattered = s->mattered || mattered;
    }
    x->storage->version = version;
    overwrite(x, values);
    (void)ls_scope_end(scope);
}

static void check_trial(trial *t) {
    ls_tensor *y = run_trial(t->leaves, t->count, t);
    assert_non_null(y);
    ls_tensor *weight = ls_randn(ls_shape_of(y), LS_F64);
    const ls_tape *tape = &ls_thread()->scope->tape;
    const bool before = ls_no_grad(true);
    for (const ls_tape_link *link = tape->first; link != NULL; link = link->next) {
        const ls_node *node = (const ls_node *)link;
        for (int i = 0; i < node->input_count && i < LS_NODE_INPUTS; i++) {
            if (node->inputs[i] != NULL && node->inputs[i]->count > 0) {
                check_place(t, node, i, node->inputs[i], y, weight);
            }
        }
        if (node->output->count > 0) {
            check_place(t, node, OUTPUT, node->output, y, weight);
        }
    }
    (void)ls_no_grad(before);
}

TEST(test_every_change_that_counts_is_noticed) {
    CHECK_CASES(elementwise_cases, check_trial);
    CHECK_CASES(reduce_cases, check_trial);
    CHECK_CASES(shape_cases, check_trial);
    CHECK_CASES(matrix_cases, check_trial);
    CHECK_CASES(image_cases, check_trial);
    CHECK_CASES(loss_cases, check_trial);
}

/* Must run after the test above, which fills all_seen. */
static void test_no_change_is_refused_that_counts_for_nothing(void **state) {
    int wrong = 0;
    (void)state;
    for (int i = 0; i < seen_count; i++) {
        if (!all_seen[i].mattered) {
            print_error("%s: a change of place %d is refused and never made a difference\n", all_seen[i].op->name,
                        all_seen[i].place);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
    assert_true(seen_count > 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_change_that_counts_is_noticed),
        cmocka_unit_test(test_no_change_is_refused_that_counts_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
