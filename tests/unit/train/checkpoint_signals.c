/*
 * Signals during computation: during a product, oneDNN points the stack pointer into the heap, and a handler without
 * its own stack would write there.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include <lockstep/autograd.h>

#include "train/checkpoint/checkpoint.h"

enum { ROWS = 64, INNER = 784, COLUMNS = 256, LEAST_SIGNALS = 60, MOST_PRODUCTS = 100000 };

typedef struct flood {
    pthread_t target;
    atomic_bool over;
    atomic_int sent;
} flood;

static void *send_signals(void *user) {
    flood *self = user;
    while (!atomic_load(&self->over)) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        pthread_kill(self->target, SIGUSR1);
        atomic_fetch_add(&self->sent, 1);
    }
    return NULL;
}

static void multiply(void) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *product = ls_matmul(ls_ones(LS_SHAPE(ROWS, INNER), LS_F32),
                                   ls_transpose(ls_ones(LS_SHAPE(COLUMNS, INNER), LS_F32), 0, 1));
    assert_true(ls_item(ls_min(product)) == INNER && ls_item(ls_max(product)) == INNER);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_signals_within_products) {
    flood self = {.target = pthread_self()};
    uint32_t before;
    void *stack = NULL;
    stack_t first, last;
    assert_int_equal(sigaltstack(NULL, &first), 0); /* a sanitizer makes one */
    pthread_t sender;
    assert_int_equal(ls_signals_begin(&before, &stack), LS_OK);
    assert_int_equal(ls_signals_since(before), 0);
    assert_int_equal(pthread_create(&sender, NULL, send_signals, &self), 0);
    for (int i = 0; i < MOST_PRODUCTS && (i < LEAST_SIGNALS || atomic_load(&self.sent) < LEAST_SIGNALS); i++) {
        multiply();
    }
    atomic_store(&self.over, true);
    assert_int_equal(pthread_join(sender, NULL), 0);
    assert_int_equal(ls_signals_since(before), SIGUSR1);
    ls_signals_end(stack);
    assert_int_equal(sigaltstack(NULL, &last), 0);
    assert_int_equal(last.ss_flags, first.ss_flags);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals_within_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
