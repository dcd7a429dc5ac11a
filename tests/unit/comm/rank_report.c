/*
 * Reports of a rank to its launcher: which rank a report names as the failed rank.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/rank_report.h"

enum { OWN_RANK = 3 };

/* Fails on OWN_RANK with `message`, after `declared` was set as the failed rank of `declared_message`. Returns what the
 * launcher reads. */
static ls_rank_report report_of(const char *message, const char *declared_message, int declared) {
    int ends[2];
    struct stat about;
    char variable[64], text[LS_REPORT_TEXT] = "";
    ls_rank_report report = {.status = LS_OK};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    assert_int_equal(fstat(ends[0], &about), 0);
    snprintf(variable, sizeof variable, "%d:%ju", ends[0], (uintmax_t)about.st_ino);
    assert_int_equal(setenv("LOCKSTEP_REPORT", variable, 1), 0);
    ls_rank_report_open(OWN_RANK);
    (void)ls_error_set_text(LS_ERR_SHAPE, declared_message);
    ls_rank_report_set_failed_rank(declared);
    (void)ls_error_set_text(LS_ERR_SHAPE, message);
    ls_rank_report_tell(LS_ERR_SHAPE, -1);
    assert_true(recv(ends[1], text, sizeof text - 1, MSG_DONTWAIT) > 0);
    assert_true(ls_rank_report_read(text, &report));
    assert_int_equal(report.rank, OWN_RANK);
    assert_string_equal(report.sentence, message);
    close(ends[0]);
    close(ends[1]);
    unsetenv("LOCKSTEP_REPORT");
    return report;
}

TEST(test_the_error_of_another_rank) {
    const ls_rank_report report = report_of("widths differ", "widths differ", 1);
    assert_int_equal(report.status, LS_ERR_PEER);
    assert_int_equal(report.failed_rank, 1);
}

TEST(test_the_error_of_an_unknown_rank) {
    const ls_rank_report report = report_of("widths differ", "widths differ", -1);
    assert_int_equal(report.status, LS_ERR_PEER);
    assert_int_equal(report.failed_rank, -1);
}

TEST(test_a_later_error) {
    const ls_rank_report report = report_of("heights differ", "widths differ", 1);
    assert_int_equal(report.status, LS_ERR_SHAPE);
    assert_int_equal(report.failed_rank, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_error_of_another_rank),
        cmocka_unit_test(test_the_error_of_an_unknown_rank),
        cmocka_unit_test(test_a_later_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
