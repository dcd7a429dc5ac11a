/*
 * When ranks of backend shm that share cores stop yielding. A sched_yield that takes as long as a time slice simulates
 * a different program that uses the core.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "lockstep/comm.h"

enum { RANKS = 3, CALLS = 1500, FIRST_CALLS = 200 };

static atomic_bool core_is_taken;
static atomic_uint yields;

int sched_yield(void) {
    atomic_fetch_add(&yields, 1);
    if (atomic_load(&core_is_taken)) {
        return nanosleep(&(struct timespec){.tv_nsec = 1500000}, NULL);
    }
    return (int)syscall(SYS_sched_yield);
}

static ls_status call(ls_comm *comm, int calls) {
    for (int i = 0; i < calls; i++) {
        LS_TRY(ls_comm_barrier(comm, NULL));
    }
    return LS_OK;
}

static ls_status wait_on_one_core(ls_comm *comm, void *taken) {
    LS_TRY(call(comm, FIRST_CALLS)); /* warm-up, long enough to forget earlier yields */
    atomic_store(&yields, 0);
    atomic_store(&core_is_taken, *(bool *)taken);
    LS_TRY(call(comm, CALLS));
    atomic_store(&core_is_taken, false);
    return LS_OK;
}

static unsigned yields_where(bool taken) {
    assert_int_equal(ls_run_threads(RANKS, wait_on_one_core, &taken), LS_OK);
    return atomic_load(&yields);
}

TEST(ranks_yield_while_it_is_cheap) {
    const unsigned among_themselves = yields_where(false);
    const unsigned beside_another = yields_where(true);
    print_message("%d barriers of %d ranks: %u yields among themselves, %u where one takes a slice\n", CALLS, RANKS,
                  among_themselves, beside_another);
    assert_true(among_themselves > 0); /* on a busy machine, a yield is slow in either case */
    assert_true(beside_another < CALLS);
}

/* All ranks, which are threads of this process, share one core. */
static int bind_to_one_core(void **state) {
    (void)state;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    return sched_setaffinity(0, sizeof one, &one);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_yield_while_it_is_cheap)};
    return cmocka_run_group_tests(tests, bind_to_one_core, NULL);
}
