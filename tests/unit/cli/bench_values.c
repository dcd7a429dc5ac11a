/*
 * The result check of `lockstep bench`: a result with one wrong element or value must fail.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "cli/bench_values.c" /* the command's code is not in a library */

#include "base/memory.h"

enum { RANKS = 3, COUNT = 1000 };

/* Reduces the data of three ranks with the library's functions. */
static void reduce_all(ls_bench_call *call, void *result) {
    const size_t bytes = COUNT * ls_bench_width(call->dtype, call->reduction);
    void *sources[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        sources[rank] = ls_allocate(bytes);
        assert_non_null(sources[rank]);
        call->rank = rank;
        ls_bench_fill(call, sources[rank], COUNT);
    }
    const ls_reduce_task task = {.dtype = call->dtype,
                                 .reduction = call->reduction,
                                 .ranks = RANKS,
                                 .sources = (const void *const *)sources,
                                 .copies = 1,
                                 .destinations = &result,
                                 .count = COUNT};
    ls_reduce_buffers(&task);
    for (int rank = 0; rank < RANKS; rank++) {
        ls_free(sources[rank]);
    }
}

TEST(every_reduction_agrees) {
    static char result[COUNT * WIDEST];
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            if (ls_reduce_check("", (ls_dtype)dtype, (ls_reduction)reduction) != LS_OK) {
                continue;
            }
            ls_bench_call call = {.ranks = RANKS,
                                  .receive = result,
                                  .count = COUNT,
                                  .dtype = (ls_dtype)dtype,
                                  .reduction = (ls_reduction)reduction};
            reduce_all(&call, result);
            if (!ls_bench_check(&call, (ls_bench_origin){LS_BENCH_ALL, 0}, 0)) {
                fail_msg("%s of %s: %s", ls_reduction_name(call.reduction), ls_dtype_name(call.dtype),
                         ls_error_message());
            }
            const size_t last = COUNT * ls_bench_width(call.dtype, call.reduction) - 1;
            result[last] = (char)(result[last] ^ 0x41);
            assert_false(ls_bench_check(&call, (ls_bench_origin){LS_BENCH_ALL, 0}, 0));
        }
    }
}

/* Parts of one rank's data: a different rank's data, a different part and a shifted part must fail. */
TEST(copies_are_told_apart) {
    float sent[2 * COUNT];
    float received[2 * COUNT];
    ls_bench_call call = {.ranks = RANKS, .rank = 1, .receive = received, .count = COUNT, .dtype = LS_F32};
    ls_bench_fill(&call, sent, 2 * COUNT);
    memcpy(received + COUNT, sent + COUNT, sizeof(float[COUNT]));
    assert_true(ls_bench_check(&call, (ls_bench_origin){1, 1}, 1));
    assert_false(ls_bench_check(&call, (ls_bench_origin){1, 0}, 1));
    assert_false(ls_bench_check(&call, (ls_bench_origin){0, 1}, 1));
    assert_false(ls_bench_check(&call, (ls_bench_origin){2, 1}, 1));
    assert_false(ls_bench_check(&call, (ls_bench_origin){LS_BENCH_ALL, 1}, 1));
    received[COUNT + 777] += 1.0F;
    assert_false(ls_bench_check(&call, (ls_bench_origin){1, 1}, 1));
    expect_message("element 777 of part 1 on rank 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reduction_agrees),
        cmocka_unit_test(copies_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
