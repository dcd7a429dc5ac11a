/* What `lockstep doctor` makes of two cores: of known measurements, and that it does not measure cores in use. */
#include "tests/support/unit.h"

#include "cli/doctor_cores.c" /* the command is no library */
#include "cli/doctor_report.c"

static void judge(double speedup, size_t notes, ls_report *report) {
    assert_int_equal(ls_report_begin(report, true), LS_OK);
    ls_report_section(report, "cores");
    report_pair(report, (const int[]){3, 7}, speedup);
    assert_int_equal(json_array_size(report->notes), notes);
    assert_int_equal(json_array_size(report->problems), 0);
}

static void test_two_cores(void **state) {
    (void)state;
    ls_report report;
    judge(1.97, 0, &report);
    assert_true(json_real_value(json_object_get(report.section, "pair_speedup")) == 1.97);
    json_decref(report.root);
}

static void test_hardware_threads_of_one_core(void **state) {
    (void)state;
    ls_report report;
    judge(1.2, 1, &report);
    assert_non_null(strstr(json_string_value(json_array_get(report.notes, 0)), "cores 3 and 7 look like one core"));
    json_decref(report.root);
}

static void test_cores_in_use_are_not_judged(void **state) {
    (void)state;
    ls_report report;
    judge(0.0, 0, &report);
    assert_true(json_is_null(json_object_get(report.section, "pair_speedup")));
    json_decref(report.root);
}

/* Two threads on one core take it from each other: neither is alone there. */
static void test_a_core_that_others_use_is_not_measured(void **state) {
    (void)state;
    usable_cores usable;
    find_usable(&usable);
    json_decref(usable.list);
    assert_true(usable.physical >= 1);
    const int same[2] = {usable.pair[0], usable.pair[0]};
    assert_true(work_on(same, 2) == 0.0);
    assert_true(pair_speedup(same) == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_cores),
        cmocka_unit_test(test_hardware_threads_of_one_core),
        cmocka_unit_test(test_cores_in_use_are_not_judged),
        cmocka_unit_test(test_a_core_that_others_use_is_not_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
