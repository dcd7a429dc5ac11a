/*
 * Pages: reserved memory, whose pages return to the system one by one, and free memory of malloc.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/pages.h"

enum { PAGES = 4, THREADS = 8 };

/* Only the pages that lie entirely between the addresses read as zero. */
TEST(test_whole_pages_are_discarded) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory = ls_pages_reserve(PAGES * page);
    assert_non_null(memory);
    for (size_t i = 0; i < PAGES * page; i++) {
        assert_int_equal(memory[i], 0);
    }
    memset(memory, 1, PAGES * page);
    ls_pages_discard(memory + 1, memory + 3 * page + 1);
    for (size_t i = 0; i < PAGES * page; i++) {
        assert_int_equal(memory[i], i < page || i >= 3 * page);
    }
    ls_pages_discard(memory + 1, memory + page);
    assert_int_equal(memory[page - 1], 1);
    ls_pages_release(memory, PAGES * page);
}

static pthread_barrier_t start;

static void *trim(void *unused) {
    (void)pthread_barrier_wait(&start);
    ls_pages_trim();
    return unused;
}

/*
 * Under the address sanitizer, which provides malloc, the first call initializes the memory of the C library. Only a
 * sanitizer detects a failure here: in other builds, this test passes even if ls_pages_trim does not lock.
 */
TEST(test_threads_trim_at_once) {
    pthread_t threads[THREADS];
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, trim, NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(pthread_barrier_destroy(&start), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_pages_are_discarded),
        cmocka_unit_test(test_threads_trim_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
