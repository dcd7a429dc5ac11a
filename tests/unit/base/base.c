/*
 * base: status strings, log, memory hooks, element types, half precision, Philox.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/float16.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/share.h"
#include "base/status.h"
#include "base/threads.h"

TEST(test_error_message_quotes_its_cause) {
    assert_int_equal(ls_error_set(LS_ERR_IO, "cannot open %s", "a.gz"), LS_ERR_IO);
    assert_int_equal(ls_fail(LS_ERR_FORMAT, "dataset: %s", ls_error_message()), LS_ERR_FORMAT);
    assert_string_equal(ls_error_message(), "dataset: cannot open a.gz");
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    char longer[3 * LS_ERROR_CAPACITY];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)ls_fail(LS_ERR_IO, "%s", longer);
    assert_int_equal(strlen(ls_error_message()), LS_ERROR_CAPACITY - 1);
    assert_int_equal(ls_error_set_text(LS_ERR_IO, "100 %s"), LS_ERR_IO);
    assert_string_equal(ls_error_message(), "100 %s");
    assert_int_equal(ls_error_set_text(LS_ERR_STATE, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "");
}

static void keep_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    snprintf(user, 256, "%s", line);
}

/* Escape sequences, newlines and similar bytes in foreign strings must not reach a terminal. */
TEST(test_messages_are_printable) {
    static const struct {
        const char *text, *shown;
    } rows[] = {
        {"plain text ~", "plain text ~"},
        {"", ""},
        {"\033[2J\033]0;title\a\b\r\nlockstep: fine\t\177", "?[2J?]0;title????lockstep: fine??"},
        {"Gr\xc3\xbc\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80",
         "Gr\xc3\xbc\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\x9b"
         "31m \xc2\x9b"
         "31m \xc2\x80\xc2\x9f\xc2\xa0",
         "?31m ?31m ??\xc2\xa0"},                                  /* CSI as one byte and as two bytes */
        {"\xc0\x9b \xe0\x82\x9b \xf0\x80\x82\x9b", "?? ??? ????"}, /* overlong encodings */
        {"\xed\xa0\x80 \xf4\x90\x80\x80 \xff\xfe", "??? ???? ??"}, /* no characters */
        {"a\xe2\x80\xae"
         "b\xe2\x80\xa8"
         "c\xe2\x81\xa6"
         "d",
         "a?b?c?d"}, /* right-to-left mark, line separator */
        {"cut \xe2\x82", "cut ??"},
    };
    char line[256];
    ls_log_set_sink(keep_line, line);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)ls_fail(LS_ERR_IO, "%s", rows[i].text);
        assert_string_equal(ls_error_message(), rows[i].shown);
        ls_log_write(LS_LOG_ERROR, "%s", rows[i].text);
        assert_string_equal(line, rows[i].shown);
    }
    ls_log_set_sink(NULL, NULL);
}

static void *fail_in_thread(void *good) {
    const bool fresh = ls_error_status() == LS_OK && strcmp(ls_error_message(), "") == 0;
    (void)ls_fail(LS_ERR_FORMAT, "in a thread");
    *(bool *)good = fresh && strcmp(ls_error_message(), "in a thread") == 0;
    return NULL;
}

TEST(test_every_thread_has_its_own_message) {
    pthread_t thread;
    bool good = false;
    (void)ls_fail(LS_ERR_IO, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, &good), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(good);
    assert_string_equal(ls_error_message(), "here");
    assert_int_equal(ls_error_status(), LS_ERR_IO);
}

#ifndef LS_SANITIZED
/* A thread's first error, when there is no memory left for its message. */
static void *fail_without_memory(void *unused) {
    (void)unused;
    if (setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_cur = 1, .rlim_max = 1}) != 0) {
        _exit(2);
    }
    if (malloc((size_t)1 << 30) != NULL) { /* QEMU's user mode ignores the limit: the loop would use up all memory */
        _exit(4);
    }
    for (size_t size = 65536; size >= 16; size /= 2) {
        while (malloc(size) != NULL) {
        }
    }
    const ls_status status = ls_fail_memory("ls_zeros", 4096);
    const bool missing = ls_fail_missing("ls_relu: x") == LS_ERR_MEMORY;
    const bool said = strstr(ls_error_message(), "out of memory") != NULL;
    _exit(status == LS_ERR_MEMORY && missing && said && ls_error_status() == LS_ERR_MEMORY ? 0 : 1);
}

TEST(test_an_error_without_memory_for_its_text) {
    const pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, fail_without_memory, NULL) == 0) {
            (void)pthread_join(thread, NULL);
        }
        _exit(3);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
#endif

TEST(test_status_names) {
    assert_string_equal(ls_status_name(LS_OK), "LS_OK");
    for (int status = LS_OK; status <= LS_ERR_DEVICE; status++) {
        assert_memory_equal(ls_status_name((ls_status)status), "LS_", 3);
    }
    assert_string_equal(ls_status_name((ls_status)999), "unknown");
    assert_string_equal(ls_status_name((ls_status)-1), "unknown");
}

static void remember_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    snprintf(user, 64, "%d|%s", rank, line);
}

/* If more lines arrive, the number of lines hidden in an interval is logged before the next interval begins. */
TEST(test_log_limit_tells_what_it_hid) {
    ls_log_limit limit = {0};
    int passed = 0;
    for (int i = 0; i < 25; i++) {
        passed += ls_log_limit_pass(&limit);
    }
    assert_int_equal(passed, 10);
    assert_int_equal(ls_log_limit_hidden(&limit), 0); /* the interval has not ended */
    limit.until = ls_clock_ns();
    assert_false(ls_log_limit_pass(&limit));
    assert_int_equal(ls_log_limit_hidden(&limit), 16);
    assert_true(ls_log_limit_pass(&limit));
    assert_int_equal(ls_log_limit_hidden(&limit), 0);
}

TEST(test_log_levels_and_rank) {
    char seen[64] = "";
    ls_log_set_sink(remember_line, seen);
    ls_log_set_level(LS_LOG_INFO);
    ls_log_set_rank(3);
    ls_log_write(LS_LOG_DEBUG, "too low");
    assert_string_equal(seen, "");
    ls_log_write(LS_LOG_INFO, "joined %d", 7);
    assert_string_equal(seen, "3|joined 7");
    ls_log_write_text(LS_LOG_INFO, "100 %s");
    assert_string_equal(seen, "3|100 %s");
    ls_log_write_text(LS_LOG_INFO, NULL);
    assert_string_equal(seen, "3|100 %s");
    ls_log_set_rank(-1);
    ls_log_set_sink(NULL, NULL);
}

static size_t live_blocks;

static void *count_allocate(size_t size, size_t alignment, void *user) {
    (void)user;
    live_blocks++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void count_release(void *memory, void *user) {
    (void)user;
    live_blocks--;
    free(memory);
}

TEST(test_memory_goes_through_the_hooks) {
    ls_set_allocator(&(ls_allocator){.allocate = count_allocate, .release = count_release});
    char *text = ls_duplicate_string("rank");
    text = ls_reallocate(text, 5, 100);
    assert_string_equal(text, "rank");
    void *aligned = ls_allocate_aligned(10, 4096);
    assert_int_equal((uintptr_t)aligned % 4096, 0);
    assert_int_equal(live_blocks, 2);
    assert_null(ls_allocate_zeroed(SIZE_MAX / 2, 3));
    ls_free(text);
    ls_free(aligned);
    ls_free(NULL);
    assert_int_equal(live_blocks, 0);
    ls_set_allocator(NULL);
}

/* Existing items keep their values, and growing takes few allocations. */
TEST(test_arrays_grow_by_doubling) {
    int *items = NULL, moves = 0;
    for (int count = 0; count < 1000; count++) {
        int *grown = ls_grow(items, (size_t)count, sizeof *items);
        assert_non_null(grown);
        moves += grown != items;
        items = grown;
        items[count] = count;
    }
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(items[i], i);
    }
    assert_in_range(moves, 1, 10);
    ls_free(items);
}

TEST(test_shares_are_even_and_leave_nothing_out) {
    for (int64_t total = 0; total < 12; total++) {
        for (int64_t shares = 1; shares < 6; shares++) {
            int64_t end = 0;
            for (int64_t i = 0; i < shares; i++) {
                const ls_share share = ls_share_of(total, shares, i);
                assert_int_equal(share.start, end);
                assert_int_equal(share.count, (total + shares - 1 - i) / shares);
                end += share.count;
            }
            assert_int_equal(end, total);
        }
    }
}

TEST(test_limit_of_threads_is_lowered_only) {
    const char *text = getenv("OMP_NUM_THREADS");
    char *before = text != NULL ? strdup(text) : NULL;
    unsetenv("OMP_NUM_THREADS");
    ls_threads_share(1);
    ls_threads_share_at_most(1);
    assert_int_equal(ls_threads_limit(), INT_MAX);
    ls_threads_share_at_most(2);
    const int half = ls_threads_limit();
    assert_in_range(half, 1, INT_MAX / 2);
    ls_threads_share_at_most(1);
    assert_int_equal(ls_threads_limit(), half);
    ls_threads_share_at_most(INT_MAX);
    assert_int_equal(ls_threads_limit(), 1);
    ls_threads_share_at_most(2);
    assert_int_equal(ls_threads_limit(), 1);
    ls_threads_share(1);
    setenv("OMP_NUM_THREADS", "3", 1);
    ls_threads_share_at_most(2);
    assert_int_equal(ls_threads_limit(), INT_MAX);
    unsetenv("OMP_NUM_THREADS");
    if (before != NULL) {
        setenv("OMP_NUM_THREADS", before, 1);
    }
    free(before);
}

TEST(test_half_precision_round_trips) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float from_f16 = ls_f16_to_float((uint16_t)bits);
        const float from_bf16 = ls_bf16_to_float((uint16_t)bits);
        if (!isnan(from_f16)) {
            assert_int_equal(ls_f16_from_float(from_f16), bits);
        }
        if (!isnan(from_bf16)) {
            assert_int_equal(ls_bf16_from_float(from_bf16), bits);
        }
    }
    assert_true(isnan(ls_f16_to_float(ls_f16_from_float(NAN))));
    assert_true(isnan(ls_bf16_to_float(ls_bf16_from_float(NAN))));
    assert_int_equal(ls_f16_from_float(65519.0F), 0x7bff);
    assert_int_equal(ls_f16_from_float(65520.0F), 0x7c00);
    assert_int_equal(ls_f16_from_float(0x1p-25F), 0); /* a tie rounds to even */
    assert_int_equal(ls_bf16_from_float(1.00390625F), 0x3f80);
    assert_int_equal(ls_bf16_from_float(1.01171875F), 0x3f82);
}

/*
 * The results for counter and key of zeros, of ones, and of the digits of pi, from the Random123 distribution's
 * kat_vectors.
 */
TEST(test_philox_known_answers) {
    uint32_t words[4];
    ls_random_block(0, 0, 0, words);
    assert_int_equal(words[0], 0x6627e8d5U);
    assert_int_equal(words[1], 0xe169c58dU);
    assert_int_equal(words[2], 0xbc57ac4cU);
    assert_int_equal(words[3], 0x9b00dbd8U);
    ls_random_block(UINT64_MAX, UINT64_MAX, UINT64_MAX, words);
    assert_int_equal(words[0], 0x408f276dU);
    assert_int_equal(words[1], 0x41c83b0eU);
    assert_int_equal(words[2], 0xa20bc7c6U);
    assert_int_equal(words[3], 0x6d5451fdU);
    ls_random_block(0x299f31d0a4093822U, 0x0370734413198a2eU, 0x85a308d3243f6a88U, words);
    assert_int_equal(words[0], 0xd16cfe09U);
    assert_int_equal(words[1], 0x94fdccebU);
    assert_int_equal(words[2], 0x5001e420U);
    assert_int_equal(words[3], 0x24126ea1U);
}

TEST(test_random_moments) {
    const int count = 20000;
    double sum = 0;
    double squares = 0;
    double normal_sum = 0;
    double normal_squares = 0;
    for (int i = 0; i < count; i++) {
        const double uniform = ls_random_uniform(5, 1, (uint64_t)i);
        assert_true(uniform >= 0 && uniform < 1);
        sum += uniform;
        squares += uniform * uniform;
        const double normal = ls_random_normal(5, 2, (uint64_t)i);
        normal_sum += normal;
        normal_squares += normal * normal;
        assert_true(ls_random_below(5, 3, (uint64_t)i, 7) < 7);
    }
    assert_true(fabs(sum / count - 0.5) < 0.01);
    assert_true(fabs(squares / count - 1.0 / 3) < 0.01);
    assert_true(fabs(normal_sum / count) < 0.03);
    assert_true(fabs(normal_squares / count - 1) < 0.05);
}

TEST(test_streams_advance_and_restore) {
    ls_seed(9);
    const ls_random_state first = ls_random_next_stream();
    const ls_random_state saved = ls_random_get_state();
    const ls_random_state second = ls_random_next_stream();
    assert_int_equal(first.seed, 9);
    assert_int_not_equal(first.stream, second.stream);
    ls_random_set_state(saved);
    assert_int_equal(ls_random_next_stream().stream, second.stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_message_quotes_its_cause),
        cmocka_unit_test(test_messages_are_printable),
        cmocka_unit_test(test_every_thread_has_its_own_message),
#ifndef LS_SANITIZED
        cmocka_unit_test(test_an_error_without_memory_for_its_text),
#endif
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_log_limit_tells_what_it_hid),
        cmocka_unit_test(test_log_levels_and_rank),
        cmocka_unit_test(test_memory_goes_through_the_hooks),
        cmocka_unit_test(test_arrays_grow_by_doubling),
        cmocka_unit_test(test_shares_are_even_and_leave_nothing_out),
        cmocka_unit_test(test_limit_of_threads_is_lowered_only),
        cmocka_unit_test(test_half_precision_round_trips),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_random_moments),
        cmocka_unit_test(test_streams_advance_and_restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
