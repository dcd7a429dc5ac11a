/*
 * A counting allocator that can be told to fail. Tests use it to check that a steady state allocates nothing, that
 * nothing leaks, and that each failed allocation causes an error instead of a crash. Lockstep keeps caches per thread,
 * so counting starts and ends after ls_thread_end(). With a sanitizer, nothing is cached.
 */
#ifndef LS_TESTS_SUPPORT_ALLOCATOR_H
#define LS_TESTS_SUPPORT_ALLOCATOR_H

#include <stdatomic.h>
#include <stdlib.h>

#include <lockstep/base.h>

#include "tensor/scope.h"

typedef struct test_allocator {
    atomic_long live;      /* blocks allocated but not freed */
    atomic_long calls;     /* of allocate */
    atomic_long fail_from; /* number of the first call that returns NULL, like all later calls; -1: none */
    atomic_long fail_once; /* number of the one call that returns NULL; -1: none */
} test_allocator;

static inline void *test_allocate(size_t size, size_t alignment, void *user) {
    test_allocator *allocator = user;
    const long call = atomic_fetch_add(&allocator->calls, 1);
    const long from = atomic_load(&allocator->fail_from);
    if ((from >= 0 && call >= from) || call == atomic_load(&allocator->fail_once)) {
        return NULL;
    }
    atomic_fetch_add(&allocator->live, 1);
    void *memory = NULL;
    return posix_memalign(&memory, alignment > sizeof(void *) ? alignment : sizeof(void *), size) == 0 ? memory : NULL;
}

static inline void test_release(void *memory, void *user) {
    test_allocator *allocator = user;
    atomic_fetch_sub(&allocator->live, 1);
    free(memory);
}

/* Empties this thread's caches, and then installs the allocator. */
static inline void test_allocator_start(test_allocator *allocator) {
    ls_thread_end();
    atomic_init(&allocator->live, 0);
    atomic_init(&allocator->calls, 0);
    atomic_init(&allocator->fail_from, -1);
    atomic_init(&allocator->fail_once, -1);
    ls_set_allocator(&(ls_allocator){.allocate = test_allocate, .release = test_release, .user = allocator});
}

/* Empties this thread's caches, restores the C library's allocator and returns the number of blocks that were not
 * freed. */
static inline long test_allocator_stop(test_allocator *allocator) {
    ls_thread_end();
    ls_set_allocator(NULL);
    return atomic_load(&allocator->live);
}

#endif
