/*
 * Custom loaders: ownership of batches, the end of an epoch, and the position of a loader.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/data.h>

#include "data/loader.h"
#include "tensor/device.h"

/* Batch b of epoch e contains three rows of value 100 e + b. Epoch e has 4 + e batches. */
typedef struct counter {
    int64_t made;
    int64_t sought[3]; /* number of seeks, and the last target */
    ls_tensor *kept;   /* a tensor that the loader owns and returns repeatedly */
    ls_status status;  /* of the next call */
} counter;

enum { ROWS = 3, LEAST = 4 };

static int ended;

static ls_status count_next(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    counter *c = ls_loader_state(self);
    assert_true(*more && batch->number == number && batch->input == NULL);
    assert_true(ls_no_grad(true)); /* nothing is recorded */
    *more = number < LEAST + epoch;
    if (c->status != LS_OK || !*more) {
        return c->status;
    }
    c->made++;
    batch->input = ls_mul(ls_ones(LS_SHAPE(ROWS, 2), LS_F64), (double)(100 * epoch + number));
    batch->target = c->kept;
    return LS_OK;
}

static ls_status count_seek(ls_loader *self, int64_t epoch, int64_t batch) {
    counter *c = ls_loader_state(self);
    c->sought[0]++;
    c->sought[1] = epoch;
    c->sought[2] = batch;
    return epoch == 9 ? LS_ERR_UNSUPPORTED : LS_OK;
}

static void count_end(ls_loader *self) {
    ls_release(((counter *)ls_loader_state(self))->kept);
    ended++;
}

static ls_loader *make_counter(int64_t batches) {
    static const ls_loader_type type = {.name = "counter",
                                        .state_size = sizeof(counter),
                                        .next = count_next,
                                        .seek = count_seek,
                                        .free_state = count_end};
    ended = 0;
    ls_loader *loader = ls_loader_custom(&type, batches);
    assert_non_null(loader);
    ((counter *)ls_loader_state(loader))->kept = ls_zeros(LS_SHAPE(ROWS), LS_I64);
    return loader;
}

static void stands_at(const ls_loader *loader, int64_t epoch, int64_t batch) {
    int64_t is[2] = {-1, -1};
    ls_loader_position(loader, &is[0], NULL);
    ls_loader_position(loader, NULL, &is[1]);
    assert_int_equal(is[0], epoch);
    assert_int_equal(is[1], batch);
}

static void next_is(ls_loader *loader, int64_t epoch, int64_t number) {
    ls_batch batch;
    bool more = false;
    stands_at(loader, epoch, number);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_true(more);
    assert_int_equal(batch.number, number);
    assert_int_equal(batch.count, ROWS);
    assert_int_equal(batch.global_count, ROWS);
    assert_true(((const double *)elements(batch.input))[2 * ROWS - 1] == (double)(100 * epoch + number));
    assert_ptr_equal(batch.target, ((const counter *)ls_loader_state(loader))->kept);
    stands_at(loader, epoch, number + 1);
}

static void epoch_ends(ls_loader *loader, int64_t next) {
    ls_batch batch = {.number = 5};
    bool more = true;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_false(more);
    assert_true(batch.input == NULL && batch.number == 0);
    stands_at(loader, next, 0);
}

/* An epoch is ended by the loader itself, or by the number of batches with which it was created. */
TEST(test_where_epochs_end) {
    for (int counted = 0; counted < 2; counted++) {
        ls_loader *loader = make_counter(counted ? 3 : -1);
        assert_int_equal(ls_loader_batch_count(loader), counted ? 3 : -1);
        assert_null(ls_loader_dataset(loader));
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            const int64_t batches = counted ? 3 : LEAST + epoch;
            for (int64_t number = 0; number < batches; number++) {
                next_is(loader, epoch, number);
            }
            epoch_ends(loader, epoch + 1);
        }
        const counter *c = ls_loader_state(loader);
        assert_int_equal(c->made, counted ? 9 : 3 * LEAST + 3);
        assert_int_equal(c->sought[0], 0);
        ls_loader_free(loader);
        assert_int_equal(ended, 1);
    }
}

/* Batches are valid until the next batch, in a scope and outside any scope, and must not be released. */
TEST(test_whose_batches_are) {
    for (int in_scope = 0; in_scope < 2; in_scope++) {
        ls_scope *scope = in_scope ? ls_scope_begin() : NULL;
        ls_loader *loader = make_counter(-1);
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        ls_scope *inner = ls_scope_begin();
        assert_true(ls_item(ls_sum(ls_add(batch.input, 1))) == 2 * ROWS);
        assert_int_equal(ls_scope_end(inner), LS_OK);
        ls_release(batch.input); /* not owned by the caller, so it has no effect */
        assert_true(((const double *)elements(batch.input))[0] == 0);
        ls_dataset *kept = ls_tensor_dataset(batch.input, batch.input);
        next_is(loader, 0, 1);
        ls_loader *again = ls_loader_new(kept, NULL);
        assert_int_equal(ls_loader_next(again, &batch, &more), LS_OK);
        assert_true(((const double *)elements(batch.input))[1] == 0);
        ls_loader_free(again);
        ls_loader_free(loader);
        assert_int_equal(in_scope ? ls_scope_end(scope) : LS_OK, LS_OK);
    }
}

TEST(test_seek) {
    ls_loader *loader = make_counter(-1);
    const counter *c = ls_loader_state(loader);
    assert_int_equal(ls_loader_seek(loader, 0, 0), LS_OK); /* the present position */
    assert_int_equal(c->sought[0], 0);
    assert_int_equal(ls_loader_seek(loader, 2, 3), LS_OK);
    assert_true(c->sought[0] == 1 && c->sought[1] == 2 && c->sought[2] == 3);
    next_is(loader, 2, 3);
    (void)ls_error_set(LS_ERR_PEER, "an older error");
    assert_int_equal(ls_loader_seek(loader, 9, 1), LS_ERR_UNSUPPORTED);
    assert_string_equal(ls_error_message(), "ls_loader_seek: the loader counter failed with LS_ERR_UNSUPPORTED");
    next_is(loader, 2, 4);
    assert_int_equal(ls_loader_seek(loader, 0, -1), LS_ERR_ARGUMENT);
    expect_message("epoch 0, batch -1");
    assert_int_equal(ls_loader_seek(NULL, 0, 0), LS_ERR_ARGUMENT);
    stands_at(NULL, 0, 0);
    ls_loader_free(loader);
    loader = make_counter(3);
    assert_int_equal(ls_loader_seek(loader, 1, 3), LS_OK);
    epoch_ends(loader, 2);
    assert_int_equal(ls_loader_seek(loader, 1, 4), LS_ERR_ARGUMENT);
    expect_message("an epoch has 3 batches");
    ls_loader_free(loader);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static ls_tensor *given[2]; /* the tensors of the next batch */
static int64_t counts[2];
static int64_t given_first;

static ls_status give(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)self;
    (void)epoch;
    (void)number;
    (void)more;
    *batch = (ls_batch){.input = given[0],
                        .target = given[1],
                        .first = given_first,
                        .count = counts[0],
                        .global_count = counts[1],
                        .number = 9};
    return LS_OK;
}

static ls_status compute_nonsense(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    batch->target = ls_matmul(ls_ones(LS_SHAPE(2, 3), LS_F32), ls_ones(LS_SHAPE(2, 3), LS_F32));
    return give(self, epoch, number, batch, more);
}

/* Returns the NULL of a failed operation without reporting the failure. */
static ls_status give_failed(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    const ls_status status = give(self, epoch, number, batch, more);
    batch->input = ls_matmul(ls_ones(LS_SHAPE(2, 3), LS_F32), ls_ones(LS_SHAPE(2, 3), LS_F32));
    return status;
}

static void expect_failure(const ls_loader_type *type, ls_status status, const char *reason) {
    ls_loader *loader = ls_loader_custom(type, 3);
    ls_batch batch;
    bool more = true;
    (void)ls_error_set(LS_ERR_PEER, "an older error");
    assert_int_equal(ls_loader_next(loader, &batch, &more), status);
    expect_message(reason);
    assert_true(!more && batch.input == NULL);
    stands_at(loader, 0, 0);
    ls_loader_free(loader);
}

TEST(test_batches_that_are_none) {
    static const ls_loader_type giving = {.name = "giving", .next = give};
    static const ls_loader_type nonsense = {.name = "nonsense", .next = compute_nonsense};
    expect_failure(&giving, LS_ERR_ARGUMENT,
                   "the loader giving returned batch 0 of epoch 0 with an input that is NULL");
    given[0] = ls_scalar(1, LS_F32);
    expect_failure(&giving, LS_ERR_ARGUMENT, "an input without axes");
    counts[0] = 5;
    counts[1] = 4;
    ls_release(given[0]);
    given[0] = ls_ones(LS_SHAPE(5, 2), LS_F32);
    expect_failure(&giving, LS_ERR_ARGUMENT, "5 samples on this rank, but 4 on all ranks together");
    counts[1] = 10;
    given_first = 6;
    expect_failure(&giving, LS_ERR_ARGUMENT, "samples 6 to 10 of 10: set .first");
    given_first = 5;
    expect_failure(&nonsense, LS_ERR_SHAPE, "ls_matmul: ");
    ls_scope *scope = ls_scope_begin();
    given[1] = ls_ones(LS_SHAPE(5), LS_F32);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    expect_failure(&giving, LS_ERR_STATE, "belongs to a scope that has ended");
    given[1] = NULL; /* a loader that returns only inputs */
    ls_loader *loader = ls_loader_custom(&giving, 3);
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_true(batch.first == 5 && batch.count == 5 && batch.global_count == 10 && batch.number == 0 &&
                batch.target == NULL);
    ls_loader_free(loader);
    ls_release(given[0]);
}

TEST(test_failed_operations_on_a_device) {
    static const ls_loader_type failing = {.name = "failing", .next = give_failed};
    ls_loader *loader = ls_loader_custom(&failing, 3);
    ls_batch batch;
    bool more;
    expect_error(ls_loader_next_on(loader, &ls_cpu, &batch, &more), LS_ERR_SHAPE, "ls_matmul: ");
    assert_true(!more && batch.input == NULL);
    ls_loader_free(loader);
}

TEST(test_a_failure_can_be_repeated) {
    ls_loader *loader = make_counter(-1);
    counter *c = ls_loader_state(loader);
    next_is(loader, 0, 0);
    c->status = LS_ERR_IO;
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_IO);
    assert_string_equal(ls_error_message(), "ls_loader_next: the loader counter failed with LS_ERR_IO");
    c->status = LS_OK;
    next_is(loader, 0, 1);
    ls_loader_free(loader);
    static const ls_loader_type unnamed = {.next = give};
    assert_null(ls_loader_custom(&unnamed, 1));
    static const ls_loader_type idle = {.name = "idle"};
    assert_null(ls_loader_custom(&idle, 1));
    static const ls_loader_type giving = {.name = "giving", .next = give};
    assert_null(ls_loader_custom(&giving, -2));
    assert_null(ls_loader_custom(NULL, 1));
    assert_null(ls_loader_state(NULL));
}

/* A program that does not check the constructor of its loader learns why the constructor failed. */
TEST(test_a_loader_that_could_not_be_made) {
    ls_batch batch;
    bool more = true;
    ls_loader *loader = ls_loader_new(ls_mnist_dataset("absent", true), NULL);
    assert_null(loader);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_IO);
    expect_message("there is no folder \"absent\"");
    expect_message("ls_loader_next: the loader is NULL");
    assert_false(more);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where_epochs_end),
        cmocka_unit_test(test_whose_batches_are),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_batches_that_are_none),
        cmocka_unit_test(test_failed_operations_on_a_device),
        cmocka_unit_test(test_a_failure_can_be_repeated),
        cmocka_unit_test(test_a_loader_that_could_not_be_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
