/*
 * What tests of operations share: values that PyTorch computed, the check of an operation against them, and the check
 * of a refusal. A file of fixtures has lines "NAME COUNT", each followed by so many numbers; the scripts beside the
 * files make them.
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

/* All fixtures of tests/fixtures/FILE; fails the test when it cannot be read. */
fixture *fixtures_load(const char *file);
void fixtures_free(fixture *first);

/* Those of operations.txt, there between the two that a group of cmocka tests begins and ends with. */
extern fixture *fixtures;
int fixtures_begin(void **state);
int fixtures_end(void **state);

/* The one of that name; fails the test when there is none. */
const fixture *fixture_find(const fixture *first, const char *name);

/* An f64 tensor whose element i is low + (high - low) (1 + sin(1.37 salt + 0.73 i)) / 2: the scripts' wave. */
ls_tensor *wave_between(ls_shape shape, int salt, double low, double high);

/* The same from -2 to 2, as a leaf that wants a gradient. */
ls_tensor *wave(ls_shape shape, int salt);

/*
 * Fails the test unless `result`, then the gradients of the inputs of sum(result * wave(result's shape, 99)), then
 * `extra` (may be NULL) are, one after the other, the values of the fixture.
 */
void check_against(const fixture *first, const char *name, ls_tensor *result, ls_tensor *const *inputs, int count,
                   ls_tensor *const *extra, int extra_count);

/* Fails the test unless the tensor has this shape and dtype and, in row-major order, these values (to 1e-6 relative, or
 * what its dtype can tell apart); NaN is equal to NaN. */
void check_values(const ls_tensor *tensor, ls_shape shape, ls_dtype dtype, const double *values);

/* An f64 leaf that wants a gradient. */
ls_tensor *leaf_from(ls_shape shape, const double *values);

/* Ends `scope`, in which `result` was to be refused: its first failure is `status` with `words` in the message. */
void check_refused_in(ls_scope *scope, const ls_tensor *result, ls_status status, const char *words);
/* check_refused(result, status, words) does so in a scope of its own. */
#define check_refused(...)                                                                                             \
    do {                                                                                                               \
        ls_scope *refusal = ls_scope_begin();                                                                          \
        check_refused_in(refusal, __VA_ARGS__);                                                                        \
    } while (0)

#endif
