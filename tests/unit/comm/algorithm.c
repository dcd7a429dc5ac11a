/*
 * Valid values of LOCKSTEP_ALGORITHM, and the errors for invalid values.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "comm/backend/shm/algorithm.h"
#include "comm/backend/shm/sizes.h"

static ls_status choose(const char *text, int ranks, ls_shm_sizes sizes[LS_OP_COUNT]) {
    setenv(LS_ALGORITHM_VARIABLE, text, 1);
    const ls_status status = ls_shm_sizes_choose(ranks, sizes);
    unsetenv(LS_ALGORITHM_VARIABLE);
    return status;
}

TEST(nothing_said) {
    ls_shm_sizes all[LS_OP_COUNT];
    const size_t whole[] = {LS_SHM_WHOLE_2, LS_SHM_WHOLE_2, LS_SHM_WHOLE_4, LS_SHM_WHOLE_4, LS_SHM_WHOLE_MORE};
    for (int ranks = 1; ranks <= 5; ranks++) {
        assert_int_equal(choose("", ranks, all), LS_OK);
        for (int operation = 0; operation < LS_OP_COUNT; operation++) {
            const ls_shm_sizes a = all[operation];
            assert_int_equal(a.whole, whole[ranks - 1]);
            assert_int_equal(a.cells, LS_SHM_PAYLOAD);
            assert_int_equal(a.chunk, LS_SHM_CHUNK);
            assert_int_equal(a.direct, LS_SHM_DIRECT_LEAST);
            assert_int_equal(a.direct_moves, LS_SHM_DIRECT_MOVES);
            assert_true(a.read == LS_SHM_READ_BY_SHAPE);
            assert_true(a.past == LS_SHM_PAST_BY_DISTANCE);
        }
    }
}

TEST(all_sizes_said) {
    ls_shm_sizes all[LS_OP_COUNT];
    assert_int_equal(choose("shm:cells=0,shm:whole=4K,shm:chunk=64K,shm:direct=1M,shm:direct_moves=never,shm:read=100,"
                            "shm:past=8K",
                            2, all),
                     LS_OK);
    for (int operation = 0; operation < LS_OP_COUNT; operation++) {
        const ls_shm_sizes a = all[operation];
        assert_int_equal(a.cells, 0);
        assert_int_equal(a.whole, 4096);
        assert_int_equal(a.chunk, 65536);
        assert_int_equal(a.direct, 1048576);
        assert_true(a.direct_moves == LS_SHM_NEVER);
        assert_int_equal(a.read, 100);
        assert_int_equal(a.past, 8192);
    }
    assert_int_equal(choose("shm:read=never,shm:past=never", 2, all), LS_OK);
    assert_true(all[LS_OP_SEND].read == LS_SHM_NEVER);
    assert_true(all[LS_OP_SEND].past == LS_SHM_NEVER);
    assert_int_equal(all[LS_OP_REDUCE].whole, LS_SHM_WHOLE_2);
}

/* Forcing an algorithm for one call does not affect other calls. */
TEST(algorithms_by_name) {
    ls_shm_sizes all[LS_OP_COUNT];
    assert_int_equal(choose("allreduce:chunks,alltoall:read,gather:^cells", 2, all), LS_OK);
    assert_int_equal(all[LS_OP_ALLREDUCE].cells + all[LS_OP_ALLREDUCE].whole, 0);
    assert_true(all[LS_OP_ALLREDUCE].direct == LS_SHM_NEVER);
    assert_int_equal(all[LS_OP_REDUCE].whole, LS_SHM_WHOLE_2);
    assert_int_equal(all[LS_OP_ALLTOALL].read, 0);
    assert_int_equal(all[LS_OP_ALLTOALL].cells, 0);
    assert_true(all[LS_OP_GATHER].read == LS_SHM_READ_BY_SHAPE);
    assert_int_equal(all[LS_OP_GATHER].cells, 0);
    assert_int_equal(choose("all:direct,allreduce:whole", 2, all), LS_OK); /* the last item counts */
    assert_int_equal(all[LS_OP_BROADCAST].direct_moves, 0);
    assert_int_equal(all[LS_OP_REDUCE_SCATTER].direct, 0);
    assert_true(all[LS_OP_ALLREDUCE].direct == LS_SHM_NEVER);
    assert_int_equal(all[LS_OP_BARRIER].cells, LS_SHM_PAYLOAD);
}

TEST(settings_of_the_engine) {
    const ls_algorithm_list list = ls_engine_algorithms(NULL);
    ls_algorithm_setting settings[LS_OP_COUNT] = {{.forced = LS_ALGORITHM_DEFAULT}};
    char text[128];
    setenv(LS_ALGORITHM_VARIABLE, "allreduce:rabenseifner,all:^native,allgather:bruck,shm:read=never", 1);
    assert_int_equal(ls_algorithm_read(&list, settings), LS_OK);
    assert_int_equal(settings[LS_OP_ALLREDUCE].forced, LS_ALGORITHM_RABENSEIFNER);
    assert_int_equal(settings[LS_OP_ALLGATHER].forced, LS_ALGORITHM_BRUCK);
    assert_int_equal(settings[LS_OP_BARRIER].excluded, LS_ALGORITHM_BIT(LS_ALGORITHM_NATIVE));
    const uint32_t number = ls_algorithm_number(settings[LS_OP_ALLREDUCE]);
    assert_true(ls_algorithm_is_number(number));
    assert_false(ls_algorithm_is_number(UINT32_MAX));
    assert_string_equal(ls_algorithm_describe(number, text, sizeof text),
                        ", algorithm rabenseifner, not algorithm native");
    setenv(LS_ALGORITHM_VARIABLE, "broadcast:bruck", 1);
    assert_int_equal(ls_algorithm_read(&list, settings), LS_ERR_ARGUMENT);
    expect_message("has no algorithm 'bruck' for broadcast; available: recursive_doubling, tree, van_de_geijn, direct, "
                   "native");
    const ls_algorithm_list of_tcp = ls_engine_algorithms("tcp");
    setenv(LS_ALGORITHM_VARIABLE, "all:^native", 1);
    assert_int_equal(ls_algorithm_read(&of_tcp, settings), LS_OK);
    setenv(LS_ALGORITHM_VARIABLE, "allreduce:native", 1);
    assert_int_equal(ls_algorithm_read(&list, settings), LS_OK);
    assert_int_equal(ls_algorithm_read(&of_tcp, settings), LS_ERR_ARGUMENT);
    expect_message("backend tcp has no algorithm 'native' for allreduce; available: recursive_doubling, tree, ");
    setenv("LOCKSTEP_MPI_COLLECTIVES", "mpi", 1);
    assert_int_equal(ls_algorithm_read(&list, settings), LS_ERR_ARGUMENT);
    expect_message("LOCKSTEP_MPI_COLLECTIVES is no longer supported: unset it, and set LOCKSTEP_ALGORITHM");
    unsetenv("LOCKSTEP_MPI_COLLECTIVES");
    unsetenv(LS_ALGORITHM_VARIABLE);
}

TEST(wrong) {
    static const struct {
        const char *text;
        const char *says;
    } rows[] = {
        {"shm:pull=1", "'shm:pull=1' is not a size setting of backend shm; available: cells=, whole="},
        {"shm:whole", "'shm:whole' is not a size"},
        {"shm:=4", "'shm:=4' is not a size"},
        {"shm:wholes=4", "'shm:wholes=4' is not a size"},
        {"shm:cells=4,,shm:read=0", "'': it has no colon"},
        {"whole=4K", "'whole=4K': it has no colon; write CALL:NAME or CALL:^NAME, such as allreduce:rabenseifner"},
        {"allsum:whole", "'allsum:whole': there is no such call with a choice of algorithms"},
        {"barrier:cells", "'barrier:cells': there is no such call with a choice of algorithms"},
        {"allreduce:rabenseifner",
         "backend shm has no algorithm 'rabenseifner' for allreduce; available: direct, cells, whole, chunks"},
        {"all:native", "backend shm has no algorithm 'native' for all; available: direct, cells, whole"},
        {"allreduce:^tree", "backend shm has no algorithm 'tree' for allreduce"},
        {"allreduce:default", "backend shm has no algorithm 'default' for allreduce"},
        {"allreduce:", "backend shm has no algorithm '' for allreduce"},
        {"shm:whole=", "whole: '' is not a size"},
        {"shm:whole=4X", "whole: '4X' is not a size"},
        {"shm:whole=4KK", "'4KK' is not a size"},
        {"shm:whole=-4", "'-4' is not a size"},
        {"shm:whole=never", "whole: 'never' is not a size; expected a number of bytes such as 0, 4096 or 64K"},
        {"shm:read=often",
         "read: 'often' is not a size; expected a number of bytes such as 0, 4096 or 64K, or 'never'"},
        {"shm:cells=81", "cells=81: the size must be from 0 to 80 here"},
        {"shm:chunk=64", "chunk=64: the size must be from 4096 to 1048576"},
        {"shm:whole=17179869184G", "whole=17179869184G: the size must be from 0"},
        {"shm:read=99999999999999999999999", "read=99999999999999999999999: the size must be from 0"},
        {"shm:read=17179869184G", "read=17179869184G: the size must be from 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_shm_sizes all[LS_OP_COUNT];
        assert_int_equal(choose(rows[i].text, 2, all), LS_ERR_ARGUMENT);
        if (strstr(ls_error_message(), rows[i].says) == NULL ||
            strncmp(ls_error_message(), LS_ALGORITHM_VARIABLE ": ", sizeof LS_ALGORITHM_VARIABLE + 1) != 0) {
            fail_msg("%s: says '%s'", rows[i].text, ls_error_message());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_said),
        cmocka_unit_test(all_sizes_said),
        cmocka_unit_test(algorithms_by_name),
        cmocka_unit_test(settings_of_the_engine),
        cmocka_unit_test(wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
