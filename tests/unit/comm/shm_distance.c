/*
 * When backend shm starts and stops treating the cores of its ranks as distant: tests the counting with simulated
 * transfer times. All ranks make the same decision, whatever each has measured.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "comm/backend/shm/algorithm.h"
#include "comm/backend/shm/distance.h"
#include "comm/backend/shm/sizes.h"

#define NEAR_NS (LS_SHM_WAY_LINES * LS_SHM_NEAR_LINE_NS)
#define FAR_NS  (NEAR_NS + 1)

enum { RANKS = 3, LARGE = 100000, CALLS = 1000 };

typedef struct job {
    ls_shm_distance ranks[RANKS];
    int looks; /* of rank 0 */
} job;

/*
 * Simulates a call with pieces of LARGE bytes, in which cache lines take this time to reach each rank. Returns whether
 * slots are written with non-temporal stores.
 */
static bool call(job *j, const uint64_t took_ns[RANKS]) {
    const bool past = LARGE > ls_shm_distance_past(&j->ranks[0], LS_SHM_PAST_BY_DISTANCE);
    bool far = false;
    for (int rank = 0; rank < RANKS; rank++) {
        ls_shm_distance *distance = &j->ranks[rank];
        assert_int_equal(LARGE > ls_shm_distance_past(distance, LS_SHM_PAST_BY_DISTANCE), past);
        far = far || ls_shm_distance_is_far(distance); /* announced before any rank reads it */
    }
    for (int rank = 0; rank < RANKS; rank++) {
        if (!past && ls_shm_distance_looks(&j->ranks[rank])) {
            j->looks += rank == 0;
            ls_shm_distance_saw(&j->ranks[rank], took_ns[rank]);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        ls_shm_distance_count(&j->ranks[rank], far);
    }
    return past;
}

static const uint64_t all_near[RANKS] = {NEAR_NS, NEAR_NS, NEAR_NS};
static const uint64_t all_far[RANKS] = {FAR_NS, FAR_NS, FAR_NS};
static const uint64_t one_far[RANKS] = {NEAR_NS, FAR_NS, NEAR_NS};

/* Returns the number of calls until the first that does, or does not, bypass the caches. */
static int calls_until(job *j, const uint64_t took_ns[RANKS], bool past) {
    int calls = 0;
    while (calls < CALLS && call(j, took_ns) != past) {
        calls++;
    }
    return calls;
}

TEST(near_stays_near) {
    job j = {0};
    assert_int_equal(calls_until(&j, all_near, true), CALLS);
    assert_int_equal(j.looks, (CALLS + LS_SHM_LOOK_EVERY - 1) / LS_SHM_LOOK_EVERY);
}

/*
 * After a series of slow measurements, a call announces them, and from the next call on, all ranks assume distant
 * cores.
 */
TEST(far_is_found_and_tried_again) {
    const uint64_t *const worlds[] = {all_far, one_far};
    for (int i = 0; i < 2; i++) {
        job j = {0};
        assert_int_equal(calls_until(&j, worlds[i], true), LS_SHM_SLOW_LOOKS + 1);
        for (int again = 0; again < 3; again++) { /* the first of these calls has been made */
            assert_int_equal(calls_until(&j, worlds[i], false), LS_SHM_FAR_CALLS - 1);
            /* This call used the caches, with a measurement; the next call announces it. */
            assert_int_equal(calls_until(&j, worlds[i], true), 1);
        }
    }
}

TEST(near_again_is_found) {
    job j = {0};
    (void)calls_until(&j, all_far, true);
    assert_int_equal(calls_until(&j, all_near, false), LS_SHM_FAR_CALLS - 1);
    assert_int_equal(calls_until(&j, all_near, true), CALLS);
    const int wait = calls_until(
        &j, all_far, true); /* the cores are distant again, which takes as long to detect as the first time */
    assert_in_range(wait, LS_SHM_SLOW_LOOKS + 1, LS_SHM_LOOK_EVERY + LS_SHM_SLOW_LOOKS);
}

/* A single slow measurement may have a different cause, so it is ignored. */
TEST(one_slow_look_is_none) {
    job j = {0};
    for (int i = 0; i < CALLS; i++) {
        assert_false(call(&j, j.ranks[0].slow_looks == LS_SHM_SLOW_LOOKS - 1 ? all_near : all_far));
    }
    assert_true(j.looks > CALLS / LS_SHM_LOOK_EVERY); /* the next call measures again */
}

TEST(sizes) {
    ls_shm_distance near = {0};
    ls_shm_distance far = {.far_calls = 1};
    assert_true(ls_shm_distance_past(&near, LS_SHM_PAST_BY_DISTANCE) == LS_SHM_NEVER);
    assert_true(ls_shm_distance_past(&far, LS_SHM_PAST_BY_DISTANCE) == LS_SHM_FAR_LEAST);
    const size_t settings[] = {0, 8192, LS_SHM_NEVER}; /* set by LOCKSTEP_ALGORITHM, and independent of the distance */
    for (int i = 0; i < 3; i++) {
        assert_true(ls_shm_distance_past(&near, settings[i]) == settings[i]);
        assert_true(ls_shm_distance_past(&far, settings[i]) == settings[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_stays_near),
        cmocka_unit_test(far_is_found_and_tried_again),
        cmocka_unit_test(near_again_is_found),
        cmocka_unit_test(one_slow_look_is_none),
        cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
