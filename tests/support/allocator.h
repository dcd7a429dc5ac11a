/*
 * An allocator that counts, and that can be told to fail: for tests that a steady state allocates nothing, that nothing
 * leaks, and that every failing allocation is an error and no crash. Lockstep keeps caches for each thread, so a count
 * starts, and ends, with ls_thread_end() behind it; under a sanitizer nothing is cached.
 */
#ifndef LS_TESTS_SUPPORT_ALLOCATOR_H
#define LS_TESTS_SUPPORT_ALLOCATOR_H

#include <stdatomic.h>
#include <stdlib.h>

#include <lockstep/base.h>

#include "tensor/scope.h"

typedef struct test_allocator {
    atomic_long live;      /* blocks given and not taken back */
    atomic_long calls;     /* of allocate */
    atomic_long fail_from; /* this call and all after it give NULL; -1: none */
    atomic_long fail_once; /* this call alone gives NULL; -1: none */
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

/* Puts the allocator to work from nothing: this thread's caches are empty before. */
static inline void test_allocator_start(test_allocator *allocator) {
    ls_thread_end();
    atomic_init(&allocator->live, 0);
    atomic_init(&allocator->calls, 0);
    atomic_init(&allocator->fail_from, -1);
    atomic_init(&allocator->fail_once, -1);
    ls_set_allocator(&(ls_allocator){.allocate = test_allocate, .release = test_release, .user = allocator});
}

/* Empties this thread's caches, puts the C library back and returns how many blocks were not given back. */
static inline long test_allocator_stop(test_allocator *allocator) {
    ls_thread_end();
    ls_set_allocator(NULL);
    return atomic_load(&allocator->live);
}

#endif
