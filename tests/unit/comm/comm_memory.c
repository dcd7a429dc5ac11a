/*
 * Communicators and memory: a steady state makes no allocation, and an allocation failure anywhere causes an error
 * without a leak.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <stdatomic.h>
#include <unistd.h>

#include <lockstep/parallel.h>

#include "base/status.h"
#include "comm/record.h"
#include "tensor/scope.h"

/* A counting allocator that fails from allocation `fails_at` on; 0 means never. */
typedef struct counter {
    atomic_int live;
    atomic_int made;
    int fails_at;
} counter;

static void *counted_allocate(size_t size, size_t alignment, void *user) {
    counter *c = user;
    const int number = atomic_fetch_add(&c->made, 1) + 1;
    if (c->fails_at != 0 && number >= c->fails_at) {
        return NULL;
    }
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory != NULL) {
        atomic_fetch_add(&c->live, 1);
    }
    return memory;
}

static void counted_release(void *memory, void *user) {
    counter *c = user;
    if (memory != NULL) {
        atomic_fetch_sub(&c->live, 1);
    }
    free(memory);
}

static void use(counter *c) {
    ls_set_allocator(&(ls_allocator){counted_allocate, counted_release, c});
}

/* Makes one call of each kind. */
static ls_status round_of_calls(ls_comm *world, float *shared, float *buffer) {
    ls_work *works[3] = {NULL, NULL, NULL};
    ls_status status = ls_comm_allreduce(world, buffer, buffer, 5000, LS_F32, LS_AVG, &works[0]);
    if (status == LS_OK) {
        status = ls_comm_broadcast(world, buffer, 50000, LS_F32, 0, &works[1]);
    }
    if (status == LS_OK) {
        status = ls_comm_barrier(world, &works[2]);
    }
    for (int i = 0; i < 3; i++) {
        const ls_status ended = ls_work_wait(works[i]);
        status = status == LS_OK ? ended : status;
    }
    LS_TRY(status);
    LS_TRY(ls_comm_allreduce(world, shared, shared, 50000, LS_F32, LS_AVG, NULL));
    return ls_comm_allreduce(world, buffer, buffer, 50000, LS_BF16, LS_SUM, NULL);
}

static ls_status some_of_everything(ls_comm *world, void *argument) {
    counter *c = argument;
    static _Thread_local float buffer[50000];
    float *shared = ls_comm_alloc(world, sizeof buffer);
    if (shared == NULL) {
        return ls_error_status();
    }
    LS_TRY(round_of_calls(world, shared, buffer));
    LS_TRY(ls_comm_barrier(world, NULL));
    const int before = atomic_load(&c->made);
    LS_TRY(ls_comm_barrier(world, NULL));
    for (int i = 0; i < 20; i++) {
        LS_TRY(round_of_calls(world, shared, buffer));
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    return atomic_load(&c->made) == before ? LS_OK : ls_fail(LS_ERR_INTERNAL, "a round of calls allocated");
}

TEST(no_allocation_in_a_steady_state) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        counter c = {0};
        use(&c);
        const ls_status status = ls_run_threads(ranks, some_of_everything, &c);
        ls_set_allocator(NULL);
        if (status != LS_OK) {
            fail_msg("%s", ls_error_message());
        }
        assert_int_equal(c.live, 0);
    }
}

TEST(no_leak_when_memory_ends) {
    ls_status status = LS_ERR_MEMORY;
    for (int at = 1; status != LS_OK && at < 100; at++) {
        counter c = {.fails_at = at};
        use(&c);
        status = ls_run_threads(2, some_of_everything, &c);
        ls_set_allocator(NULL);
        if (status != LS_OK && status != LS_ERR_MEMORY && status != LS_ERR_PEER) {
            fail_msg("at allocation %d: %s", at, ls_error_message());
        }
        assert_int_equal(c.live, 0);
    }
    assert_int_equal(status, LS_OK); /* by now, each allocation has failed once */
}

/* ls_comm_alloc: a rank that aborts during the call may never learn the address of its memory. */
typedef struct giving_up {
    counter count;
    ls_comm *first; /* rank 0's communicator, set when rank 0 is about to allocate */
} giving_up;

static void *allocate_and_give_up(size_t size, size_t alignment, void *user) {
    giving_up *all = user;
    void *memory = counted_allocate(size, alignment, &all->count);
    if (all->first != NULL && size > 1 << 20) {
        (void)ls_comm_abort(all->first, ls_fail(LS_ERR_INTERNAL, "ls_comm_alloc: a test"));
        usleep(100000); /* the other rank, which is waiting, gets the error */
    }
    return memory;
}

static ls_status allocate_in_vain(ls_comm *world, void *argument) {
    giving_up *all = argument;
    if (ls_comm_rank(world) == 0) {
        all->first = world;
    }
    (void)ls_comm_alloc(world, 1 << 20);
    return ls_comm_check(world);
}

TEST(no_leak_when_a_rank_gives_up) {
    giving_up all = {0};
    ls_set_allocator(&(ls_allocator){allocate_and_give_up, counted_release, &all});
    const ls_status status = ls_run_threads(2, allocate_in_vain, &all);
    ls_set_allocator(NULL);
    assert_true(status != LS_OK);
    assert_int_equal(all.count.live, 0);
}

TEST(no_leak_in_a_world_of_one) {
    const ls_join_context join = {.size = 1, .local_size = 1, .prefix = "", .timeout = 1.0};
    ls_status status = LS_ERR_MEMORY;
    for (int at = 1; status != LS_OK && at < 100; at++) {
        counter c = {.fails_at = at};
        use(&c);
        ls_comm *world = ls_comm_open(&ls_backend_self, &join);
        status = world == NULL ? ls_error_status() : some_of_everything(world, &c);
        ls_comm_free(world);
        ls_set_allocator(NULL);
        assert_true(status == LS_OK || status == LS_ERR_MEMORY);
        assert_int_equal(c.live, 0);
    }
    assert_int_equal(status, LS_OK);
}

/* Begins a collective whose result is recorded, and waits for it. */
static ls_status begin_and_wait(ls_comm *world, int64_t count) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_tensor *x = ls_ones(LS_SHAPE(count, 2), LS_F32);
    if (x != NULL) {
        (void)ls_set_requires_grad(x, true);
    }
    ls_tensor *sum = ls_handle_wait(ls_allreduce_begin(world, x, LS_SUM));
    (void)ls_handle_wait(ls_allgather_begin(world, ls_transpose(sum, 0, 1), 1));
    return ls_scope_end(scope);
}

TEST(no_leak_in_begun_calls) {
    const ls_join_context join = {.size = 1, .local_size = 1, .prefix = "", .timeout = 1.0};
    ls_status status = LS_ERR_MEMORY;
    int at = 1;
    for (; status != LS_OK && at < 200; at++) {
        counter c = {0};
        ls_thread_end(); /* empties the caches of this thread */
        use(&c);
        ls_comm *world = ls_comm_open(&ls_backend_self, &join);
        assert_non_null(world);
        c.fails_at = atomic_load(&c.made) + at;
        status = begin_and_wait(world, 3);
        c.fails_at = 0;
        ls_comm_free(world);
        ls_thread_end();
        ls_set_allocator(NULL);
        assert_true(status == LS_OK || status == LS_ERR_MEMORY);
        assert_int_equal(c.live, 0);
    }
    assert_int_equal(status, LS_OK);
    assert_true(at > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_allocation_in_a_steady_state), cmocka_unit_test(no_leak_when_memory_ends),
        cmocka_unit_test(no_leak_when_a_rank_gives_up),    cmocka_unit_test(no_leak_in_a_world_of_one),
        cmocka_unit_test(no_leak_in_begun_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
