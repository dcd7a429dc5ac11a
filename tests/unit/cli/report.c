/*
 * Records of runs: lines, resumed runs, damage; and the reduction of curves.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "cli/report_record.c" /* the command is not a library */

#include <unistd.h>

#define START(epoch, step) "{\"kind\": \"start\",\"epoch\": " #epoch ",\"epochs\": 4,\"step\": " #step "}\n"
#define STEP(step, loss)   "{\"kind\": \"step\",\"step\": " #step ",\"loss\": " #loss ",\"rate\": 0.5}\n"
#define EPOCH(epoch, loss) "{\"kind\": \"epoch\",\"epoch\": " #epoch ",\"metrics\": {\"loss\": " #loss "}}\n"

static ls_status read_text(const char *text, ls_run_record *record) {
    char path[] = "/tmp/lockstep-report-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    const ls_status status = ls_run_record_read(path, record);
    (void)unlink(path);
    return status;
}

TEST(test_lines) {
    ls_run_record run;
    assert_int_equal(read_text(START(0, 0) STEP(1, 3.5) STEP(2, null)
                                   EPOCH(0, 2.5) "{\"kind\": \"later\"}\n"
                                                 "{\"kind\": \"end\",\"metrics\": {\"loss\": 2.5}}\n"
                                                 "{\"kind\": \"results\",\"metrics\": {\"test_loss\": 7}}\n",
                               &run),
                     LS_OK);
    assert_true(run.ended && !run.incomplete && run.resumes == 0);
    assert_int_equal(run.loss.count, 2);
    assert_true(run.loss.y[0] == 3.5 && isnan(run.loss.y[1]) && run.rate.y[1] == 0.5);
    assert_int_equal(json_array_size(run.epochs), 1);
    assert_true(number_of(run.results, "loss") == 2.5 && number_of(run.results, "test_loss") == 7);
    ls_run_record_free(&run);
}

TEST(test_resumed_runs_repeat_nothing) {
    ls_run_record run;
    assert_int_equal(read_text(START(0, 0) STEP(1, 1) STEP(2, 2) EPOCH(0, 1) STEP(3, 3) STEP(4, 4) EPOCH(1, 2)
                                   STEP(5, 5) START(1, 3) STEP(4, 40) EPOCH(1, 20),
                               &run),
                     LS_OK);
    assert_true(!run.ended && run.resumes == 1 && run.loss.count == 4);
    assert_true(run.loss.x[2] == 3 && run.loss.y[2] == 3 && run.loss.x[3] == 4 && run.loss.y[3] == 40);
    assert_int_equal(json_array_size(run.epochs), 2);
    assert_true(number_of(json_object_get(json_array_get(run.epochs, 1), "metrics"), "loss") == 20);
    ls_run_record_free(&run);
}

TEST(test_incomplete_line) {
    ls_run_record run;
    assert_int_equal(read_text(START(0, 0) STEP(1, 1) "{\"kind\": \"st", &run), LS_OK);
    assert_true(run.incomplete && run.loss.count == 1);
    ls_run_record_free(&run);
}

TEST(test_damage) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "is empty"},
        {"{\"kind\": \"st", "is empty"},
        {STEP(1, 1), "line 1 is damaged"},
        {START(-1, 0), "line 1 is damaged"},
        {START(0, 0) "[1]\n", "line 2 is damaged"},
        {START(0, 0) "{\"kind\": 3}\n", "line 2 is damaged"},
        {START(0, 0) STEP(1, 1) "{\"kind\": \"step\",\n" STEP(2, 1), "line 3 is damaged"},
        {START(0, 0) STEP("x", 1), "line 2 is damaged"},
        {START(0, 0) "{\"kind\": \"epoch\",\"epoch\": 0,\"metrics\": []}\n", "line 2 is damaged"},
        {START(0, 0) "{\"kind\": \"end\"}\n", "line 2 is damaged"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_run_record run;
        assert_int_equal(read_text(cases[i].text, &run), LS_ERR_FORMAT);
        expect_message(cases[i].says);
    }
}

TEST(test_reduction) {
    ls_curve curve = {.count = 0};
    for (int i = 0; i < 1000000; i++) {
        const double y = i == 777777 ? 1e9 : i == 123456 ? -1e9 : i % 100 == 0 ? (double)NAN : i % 7;
        assert_int_equal(ls_curve_add(&curve, i, y), LS_OK);
    }
    ls_curve_reduce(&curve, 2000);
    assert_in_range(curve.count, 1900, 2000);
    assert_true(curve.x[0] == 0 && curve.x[curve.count - 1] == 999999);
    bool highest = false, lowest = false;
    for (size_t i = 0; i < curve.count; i++) {
        highest = highest || (curve.x[i] == 777777 && curve.y[i] == 1e9);
        lowest = lowest || (curve.x[i] == 123456 && curve.y[i] == -1e9);
        assert_true(i == 0 || curve.x[i] > curve.x[i - 1]);
        assert_true(i == 0 || isfinite(curve.y[i]));
    }
    assert_true(highest && lowest);
    ls_curve_free(&curve);
}

TEST(test_short_curves_are_kept) {
    ls_curve curve = {.count = 0};
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(ls_curve_add(&curve, i, -i), LS_OK);
    }
    ls_curve_reduce(&curve, 2000);
    assert_int_equal(curve.count, 2000);
    ls_curve_reduce(&curve, 4);
    assert_int_equal(curve.count, 4);
    assert_true(curve.x[1] == 1 && curve.x[2] == 1998);
    ls_curve_free(&curve);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),           cmocka_unit_test(test_resumed_runs_repeat_nothing),
        cmocka_unit_test(test_incomplete_line), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_reduction),       cmocka_unit_test(test_short_curves_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
