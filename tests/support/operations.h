/*
 * Shared code of tests of operations: values computed by PyTorch, the comparison of an operation with these values, and
 * the check of a refusal. A fixture file has lines "NAME COUNT", each followed by COUNT numbers. The scripts in the
 * same folder generate the files.
 */
#ifndef LS_TESTS_SUPPORT_OPERATIONS_H
#define LS_TESTS_SUPPORT_OPERATIONS_H

#include <lockstep/autograd.h>
#include <lockstep/loss.h>

typedef struct fixture {
    char name[64];
    int count;
    double *values;
    struct fixture *next;
} fixture;

/* Loads all fixtures of tests/fixtures/FILE. Fails the test if it cannot be read. */
fixture *fixtures_load(const char *file);
void fixtures_free(fixture *first);

/* Defines `static fixture *NAME`, and the setup NAME_begin and teardown NAME_end of a group of cmocka tests. */
#define FIXTURES(name, file)                                                                                           \
    static fixture *name;                                                                                              \
    static int name##_begin(void **state) {                                                                            \
        (void)state;                                                                                                   \
        name = fixtures_load(file);                                                                                    \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int name##_end(void **state) {                                                                              \
        (void)state;                                                                                                   \
        fixtures_free(name);                                                                                           \
        return 0;                                                                                                      \
    }

/* Returns the fixture with this name. Fails the test if it is missing. */
const fixture *fixture_find(const fixture *first, const char *name);

/*
 * Makes an f64 tensor whose element i is low + (high - low) (1 + sin(1.37 salt + 0.73 i)) / 2: the wave of the scripts.
 */
ls_tensor *wave_between(ls_shape shape, int salt, double low, double high);

/* Makes a wave from -2 to 2, as a leaf that requires a gradient. */
ls_tensor *wave(ls_shape shape, int salt);

/*
 * Fails the test unless the fixture contains the following values, in this order: `result`, the gradients of sum(result
 * * wave(result's shape, 99)) with respect to the inputs, and `extra` (may be NULL).
 */
void check_against(const fixture *first, const char *name, ls_tensor *result, ls_tensor *const *inputs, int count,
                   ls_tensor *const *extra, int extra_count);

/*
 * Fails the test unless the tensor has this shape and dtype and, in row-major order, these values, within a relative
 * error of 1e-6 or the precision of its dtype. NaN equals NaN.
 */
void check_values(const ls_tensor *tensor, ls_shape shape, ls_dtype dtype, const double *values);

/* Makes an f64 leaf that requires a gradient. */
ls_tensor *leaf_from(ls_shape shape, const double *values);

/*
 * Ends `scope`, in which the operation that returned `result` must have failed. The scope's first failure must be
 * `status`, and its message must contain `words`.
 */
void check_refused_in(ls_scope *scope, const ls_tensor *result, ls_status status, const char *words);
/* check_refused(result, status, words) does the same in a new scope. */
#define check_refused(...)                                                                                             \
    do {                                                                                                               \
        ls_scope *refusal = ls_scope_begin();                                                                          \
        check_refused_in(refusal, __VA_ARGS__);                                                                        \
    } while (0)

#endif
