/*
 * The values of LOCKSTEP_SHM_ALGORITHM, and the errors for other values.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "comm/backend/shm/algorithm.h"
#include "comm/backend/shm/sizes.h"

static ls_status choose(const char *text, int ranks, ls_shm_algorithm *algorithm) {
    setenv(LS_SHM_ALGORITHM_VARIABLE, text, 1);
    const ls_status status = ls_shm_algorithm_choose(ranks, algorithm);
    unsetenv(LS_SHM_ALGORITHM_VARIABLE);
    return status;
}

TEST(nothing_said) {
    ls_shm_algorithm a;
    const size_t whole[] = {LS_SHM_WHOLE_2, LS_SHM_WHOLE_2, LS_SHM_WHOLE_4, LS_SHM_WHOLE_4, LS_SHM_WHOLE_MORE};
    for (int ranks = 1; ranks <= 5; ranks++) {
        assert_int_equal(choose("", ranks, &a), LS_OK);
        assert_int_equal(a.whole, whole[ranks - 1]);
        assert_int_equal(a.cells, LS_SHM_PAYLOAD);
        assert_int_equal(a.chunk, LS_SHM_CHUNK);
        assert_int_equal(a.direct, LS_SHM_DIRECT_LEAST);
        assert_int_equal(a.direct_moves, LS_SHM_DIRECT_MOVES);
        assert_true(a.read == LS_SHM_READ_BY_SHAPE);
        assert_true(a.past == LS_SHM_PAST_BY_DISTANCE);
    }
}

TEST(all_said) {
    ls_shm_algorithm a;
    assert_int_equal(choose("cells=0,whole=4K,chunk=64K,direct=1M,direct_moves=never,read=100,past=8K", 2, &a), LS_OK);
    assert_int_equal(a.cells, 0);
    assert_int_equal(a.whole, 4096);
    assert_int_equal(a.chunk, 65536);
    assert_int_equal(a.direct, 1048576);
    assert_true(a.direct_moves == LS_SHM_NEVER);
    assert_int_equal(a.read, 100);
    assert_int_equal(a.past, 8192);
    assert_int_equal(choose("read=never,past=never", 2, &a), LS_OK);
    assert_true(a.read == LS_SHM_NEVER);
    assert_true(a.past == LS_SHM_NEVER);
    assert_int_equal(a.whole, LS_SHM_WHOLE_2);
}

TEST(wrong) {
    static const struct {
        const char *text;
        const char *says;
    } rows[] = {
        {"pull=1", "'pull=1' is no setting; there are cells=, whole="},
        {"whole", "'whole' is no setting"},
        {"=4", "'=4' is no setting"},
        {"wholes=4", "'wholes=4' is no setting"},
        {"cells=4,,read=0", "'' is no setting"},
        {"whole=", "whole: '' is no size"},
        {"whole=4X", "whole: '4X' is no size"},
        {"whole=4KK", "'4KK' is no size"},
        {"whole=-4", "'-4' is no size"},
        {"whole=never", "whole: 'never' is no size; sizes are bytes like 0, 4096 or 64K"},
        {"read=often", "read: 'often' is no size; sizes are bytes like 0, 4096 or 64K, or 'never'"},
        {"cells=81", "cells=81: sizes from 0 to 80 are possible here"},
        {"chunk=64", "chunk=64: sizes from 4096 to 1048576"},
        {"whole=17179869184G", "whole=17179869184G: sizes from 0"},
        {"read=99999999999999999999999", "read=99999999999999999999999: sizes from 0"},
        {"read=17179869184G", "read=17179869184G: sizes from 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_shm_algorithm a;
        assert_int_equal(choose(rows[i].text, 2, &a), LS_ERR_ARGUMENT);
        if (strstr(ls_error_message(), rows[i].says) == NULL ||
            strncmp(ls_error_message(), LS_SHM_ALGORITHM_VARIABLE ": ", sizeof LS_SHM_ALGORITHM_VARIABLE + 1) != 0) {
            fail_msg("%s: says '%s'", rows[i].text, ls_error_message());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_said),
        cmocka_unit_test(all_said),
        cmocka_unit_test(wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
