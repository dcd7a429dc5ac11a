/*
 * Runs one case of the gradient-check table: draws its shapes, makes its leaves in one of several memory layouts, and
 * passes them to a check.
 *
 * A case's shapes are variants separated by spaces. The inputs of a variant are separated by commas, with one character
 * per axis. A lower-case letter stands for a size from 1 to 4, a capital letter for a size from 2 to 4. Sizes are drawn
 * each time, and the same letter has the same size within a draw. '1' stands for size 1, "." for a single number.
 */
#ifndef LS_TESTS_SUPPORT_GRADCHECK_TRIALS_H
#define LS_TESTS_SUPPORT_GRADCHECK_TRIALS_H

#include <lockstep/autograd.h>

#include "base/random.h"
#include "tests/support/elements.h"
#include "tests/support/unit.h"

enum { MAX_INPUTS = 6, ROUNDS = 4, LAYOUTS = 4 };

typedef struct gradcheck_case {
    const char *name;
    ls_function function;
    const char *shapes;
    double low, high; /* range of the inputs' values; if both are 0, -1.5 to 1.5 */
    ls_gradcheck_options options;
} gradcheck_case;

/* One draw of a case: its leaves, and the memory layout of its inputs. */
typedef struct trial {
    const gradcheck_case *row;
    const char *variant;
    int round;
    int layout[MAX_INPUTS];
    ls_tensor *leaves[MAX_INPUTS];
    int count;
} trial;

/* Returns a random number; the sequence is the same in every run of the test. */
static double drawn(void) {
    static uint64_t index;
    return ls_random_uniform(20, 1, index++);
}

/* Returns the shape of a leaf whose view in this layout has the given shape. */
static ls_shape leaf_shape(ls_shape shape, int layout) {
    ls_shape leaf = shape;
    if (layout == 1) {
        for (int i = 0; i < shape.ndim; i++) {
            leaf.size[i] = shape.size[shape.ndim - 1 - i];
        }
    }
    if (layout == 2 && shape.ndim > 0) {
        leaf.size[shape.ndim - 1] = 2 * shape.size[shape.ndim - 1] + 1;
    }
    if (layout == 3 && shape.ndim > 0) {
        leaf.size[0] = shape.size[0] + 2;
    }
    return leaf;
}

/* Layouts: dense; axes reversed; every second element of the last axis; the middle of the first axis. */
static ls_tensor *in_layout(ls_tensor *leaf, int layout) {
    const int ndim = ls_ndim(leaf);
    if (ndim == 0 || layout == 0) {
        return leaf;
    }
    if (layout == 1) {
        ls_axes axes = {.count = ndim};
        for (int i = 0; i < ndim; i++) {
            axes.axis[i] = ndim - 1 - i;
        }
        return ls_permute(leaf, axes);
    }
    return layout == 2 ? ls_slice(leaf, -1, 1, ls_size(leaf, -1), 2) : ls_slice(leaf, 0, 1, -1, 1);
}

static ls_tensor *run_trial(ls_tensor **leaves, int count, void *user) {
    const trial *t = user;
    ls_tensor *inputs[MAX_INPUTS];
    for (int i = 0; i < count; i++) {
        inputs[i] = in_layout(leaves[i], t->layout[i]);
    }
    return t->row->function(inputs, count, NULL);
}

/* Reads the shapes of one variant, and returns their number. */
static int read_shapes(const char *text, ls_shape *shapes) {
    int64_t size[128];
    for (int i = 0; i < 128; i++) {
        size[i] = i >= 'a' ? 1 + (int64_t)(drawn() * 4) : i >= 'A' ? 2 + (int64_t)(drawn() * 3) : 1;
    }
    int count = 1;
    shapes[0] = LS_SCALAR;
    for (; *text != '\0' && *text != ' '; text++) {
        if (*text == ',') {
            assert_true(count < MAX_INPUTS);
            shapes[count++] = LS_SCALAR;
        } else if (*text != '.') {
            ls_shape *shape = &shapes[count - 1];
            shape->size[shape->ndim++] = size[(unsigned char)*text];
        }
    }
    return count;
}

static ls_tensor *drawn_leaf(ls_shape shape, const gradcheck_case *row) {
    const double low = row->low == 0 && row->high == 0 ? -1.5 : row->low;
    const double high = row->low == 0 && row->high == 0 ? 1.5 : row->high;
    ls_tensor *leaf = ls_empty(shape, LS_F64);
    assert_non_null(leaf);
    double *value = elements(leaf);
    for (int64_t i = 0; i < ls_numel(leaf); i++) {
        value[i] = low + (high - low) * drawn();
    }
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    return leaf;
}

/* Draws each variant of each case a few times, and passes it to `check` in its own scope. */
static void check_cases(const gradcheck_case *rows, size_t count, void (*check)(trial *t)) {
    for (size_t i = 0; i < count; i++) {
        for (const char *variant = rows[i].shapes; variant != NULL; variant = strchr(variant, ' ')) {
            variant += *variant == ' ';
            for (int round = 0; round < ROUNDS; round++) {
                trial t = {.row = &rows[i], .variant = variant, .round = round};
                ls_shape shapes[MAX_INPUTS];
                ls_scope *scope = ls_scope_begin();
                t.count = read_shapes(variant, shapes);
                for (int k = 0; k < t.count; k++) {
                    t.layout[k] = (round + k) % LAYOUTS;
                    t.leaves[k] = drawn_leaf(leaf_shape(shapes[k], t.layout[k]), &rows[i]);
                }
                check(&t);
                assert_int_equal(ls_scope_end(scope), LS_OK);
            }
        }
    }
}

#define CHECK_CASES(cases, check) check_cases(cases, sizeof(cases) / sizeof *(cases), check)

#endif
