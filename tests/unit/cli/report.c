/*
 * Records of runs: lines, damage, the page, and the thinning of curves.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

/* The command's code is not in a library. */
#include "cli/report_chart.c"
#include "cli/report_page.c"
#include "cli/report_record.c"
#include "cli/report_style.c"

#include <unistd.h>

#include "base/draws.h"

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
    assert_true(ls_record_number(run.results, "loss") == 2.5 && ls_record_number(run.results, "test_loss") == 7);
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
        {"{\"kind\": \"st", "has no complete line"},
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
    assert_int_equal(curve.count, 2000);
    assert_true(curve.x[0] == 0 && curve.x[curve.count - 1] == 999999);
    bool highest = false, lowest = false;
    size_t gaps = 0;
    for (size_t i = 0; i < curve.count; i++) {
        highest = highest || (curve.x[i] == 777777 && curve.y[i] == 1e9);
        lowest = lowest || (curve.x[i] == 123456 && curve.y[i] == -1e9);
        assert_true(i == 0 || curve.x[i] > curve.x[i - 1]);
        gaps += isnan(curve.y[i]) ? 1 : 0;
    }
    assert_true(highest && lowest);
    assert_int_equal(gaps, 1 + 666); /* one for the first point, and one for each part */
    ls_curve_free(&curve);
}

TEST(test_short_curves_are_kept) {
    ls_curve curve = {.count = 0};
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(ls_curve_add(&curve, i, -i), LS_OK);
    }
    ls_curve_reduce(&curve, 2000);
    assert_int_equal(curve.count, 2000);
    ls_curve_reduce(&curve, 5);
    assert_int_equal(curve.count, 4); /* without a gap */
    assert_true(curve.x[1] == 1 && curve.x[2] == 1998);
    ls_curve_free(&curve);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

/* Returns the page, which the caller frees. */
static char *page_of(ls_run_record *run) {
    char *text = NULL;
    size_t size = 0;
    FILE *page = open_memstream(&text, &size);
    assert_non_null(page);
    assert_int_equal(ls_page_write(page, run, 1), LS_OK);
    assert_int_equal(fclose(page), 0);
    return text;
}

/* The times are on 1970-01-02 and the next day. */
#define FIRST   "{\"kind\": \"start\",\"epoch\": 0,\"epochs\": 4,\"step\": 0,\"time\": 86400}\n"
#define AGAIN   "{\"kind\": \"start\",\"epoch\": 1,\"epochs\": 4,\"step\": 2,\"time\": 172800}\n"
#define RESUMED "{\"kind\": \"start\",\"epoch\": 1,\"epochs\": 4,\"step\": 2,\"time\": 172800,\"resumes\": true}\n"
#define TIMED(epoch, seconds, loss)                                                                                    \
    "{\"kind\": \"epoch\",\"epoch\": " #epoch ",\"seconds\": " #seconds ",\"metrics\": {\"loss\": " #loss "}}\n"
#define RESULTS           "{\"kind\": \"results\",\"metrics\": {\"loss\": 0.5,\"test_acc\": 0.75}}\n"
#define TILE(name, value) "<dt>" name "</dt><dd>" value "</dd>"

TEST(test_pages) {
    static const struct {
        const char *record, *has[4], *lacks;
    } cases[] = {
        {FIRST, {TILE("epochs", "0 of 4"), TILE("time", "0 s"), "started 1970-01-02"}, "resumed"},
        {FIRST TIMED(0, 10, 1) TIMED(1, 20, 0.25),
         {TILE("epochs", "2 of 4"), TILE("time", "30 s"), TILE("loss", "0.25")},
         "nan"},
        /* two starts of a process: the second one is slower, or faster */
        {FIRST TIMED(0, 10, 1) AGAIN TIMED(1, 20, 2),
         {TILE("epochs", "2 of 4"), TILE("time", "30 s"), "1970-01-02"},
         "resumed"},
        {FIRST TIMED(0, 20, 1) AGAIN TIMED(1, 10, 2), {TILE("time", "30 s"), "1970-01-02"}, "1970-01-03"},
        {FIRST TIMED(0, 10, 1) RESUMED TIMED(1, 20, 2), {TILE("time", "30 s"), "1970-01-02", "resumed 1 time<"}, "nan"},
        {FIRST TIMED(0, 10, 1) RESUMED RESUMED, {"resumed 2 times<", TILE("epochs", "1 of 4")}, "nan"},
        /* the record lacks the first epochs */
        {AGAIN TIMED(2, 10, 1), {TILE("epochs", "3 of 4")}, "nan"},
        {"{\"kind\": \"start\",\"epoch\": 0,\"step\": 0}\n" TIMED(0, null, 1),
         {TILE("epochs", "1"), TILE("time", "0 s"), "started –"},
         "nan"},
        /* results of this start only; a loss that is not finite hides nothing */
        {FIRST TIMED(0, 1, 2) RESULTS, {TILE("loss", "2"), TILE("test_acc", "0.75")}, "nan"},
        {FIRST RESULTS, {TILE("loss", "0.5"), TILE("test_acc", "0.75")}, "nan"},
        {FIRST TIMED(0, 1, 2) RESULTS AGAIN TIMED(1, 1, 3), {TILE("loss", "3")}, "test_acc"},
        {FIRST TIMED(0, 1, 2) TIMED(1, 1, null) RESULTS, {TILE("loss", "–")}, ">0.5<"},
        {FIRST TIMED(0, 1, 1e20), {TILE("loss", "1e+20")}, "nan"},
        /* curves */
        {FIRST STEP(1, 3), {"Training loss", TILE("steps", "1")}, "nan"},
        {FIRST STEP(1, 3) STEP(2, 3) STEP(3, null) STEP(4, 3), {"Training loss"}, "nan"},
        {FIRST STEP(1, 1e308) STEP(2, -1e308) STEP(3, 1), {"Training loss"}, "nan"},
        {FIRST STEP(1, 1e299) STEP(2, -1e299), {"Training loss"}, "nan"},
        {FIRST STEP(1, 1e-320) STEP(2, 1e299), {"Training loss"}, "nan"},
        {FIRST STEP(1, 5e-324) STEP(2, 5e-324), {"Training loss"}, "nan"},
        {FIRST STEP(1, 2e20) STEP(2, 3e20), {"<span style=\"bottom:", "<b>3e+20</b>"}, "M</"},
        {FIRST STEP(1e300, 1), {"<h1>Training run</h1>"}, "nan"},
        {FIRST "{\"kind\": \"epoch\",\"epoch\": 0,\"metrics\": {},\"phases\": {\"data\": [1], \"user step\": [3], "
               "\"waiting\": [0], \"communication\": [2]}}\n",
         {"width:25.00%\" title=\"data 1 s\"", "</span>user step</th><th class=\"n\">communication</th>"},
         "waiting"},
        {"{\"kind\": \"start\",\"epoch\": 0,\"step\": 0,\"hosts\": [\"a\", \"b\", \"a\", \"b\"]}\n",
         {"<div>a</div><div>b</div></td>"},
         "nan"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_run_record run;
        assert_int_equal(read_text(cases[i].record, &run), LS_OK);
        char *page = page_of(&run);
        for (int k = 0; k < 4 && cases[i].has[k] != NULL; k++) {
            if (strstr(page, cases[i].has[k]) == NULL) {
                fail_msg("the page of case %zu does not have %s:\n%s", i, cases[i].has[k], strstr(page, "<body>"));
            }
        }
        const char *body = strstr(page, "<body>");
        if (cases[i].lacks != NULL && strstr(body, cases[i].lacks) != NULL) {
            fail_msg("the page of case %zu has %s:\n%s", i, cases[i].lacks, body);
        }
        assert_null(strstr(body, "inf\"")); /* in attributes */
        free(page);
        ls_run_record_free(&run);
    }
}

/* A label that is too long is cut between two characters. */
TEST(test_long_names) {
    ls_run_record runs[2];
    char path[402] = "x";
    for (int i = 0; i < 200; i++) {
        (void)strcat(path, "ä");
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(read_text(FIRST STEP(1, 3), &runs[r]), LS_OK);
        runs[r].path = path + r;
    }
    char *text = NULL;
    size_t size = 0;
    FILE *page = open_memstream(&text, &size);
    assert_int_equal(ls_page_write(page, runs, 2), LS_OK);
    assert_int_equal(fclose(page), 0);
    assert_true(ls_text_is_utf8(text));
    free(text);
    ls_run_record_free(&runs[0]);
    ls_run_record_free(&runs[1]);
}

/* Changes bytes of a record with all kinds of lines, or removes a part of it. */
TEST(test_random_damage) {
    static const char whole[] = FIRST STEP(1, 1) STEP(2, 1.5e3) TIMED(0, 10, 1) RESUMED STEP(3, null) RESULTS
        "{\"kind\": \"epoch\",\"epoch\": 1,\"metrics\": {\"loss\": 1},\"phases\": {\"data\": [1, 2],\"forward\": "
        "[3]}}\n"
        "{\"kind\": \"end\",\"metrics\": {\"loss\": 0.5}}\n";
    static const char bytes[] = "{}[]\",:\n-0189e.\\ \xc3\xff" /* and the final zero */;
    ls_draws draws = ls_draws_salted(9, 1, 0);
    int read = 0, refused = 0;
    for (int round = 0; round < 3000; round++) {
        char text[sizeof whole];
        memcpy(text, whole, sizeof whole);
        for (int64_t changes = ls_draw_below(&draws, 4); changes > 0; changes--) {
            text[ls_draw_below(&draws, sizeof whole - 1)] = bytes[ls_draw_below(&draws, sizeof bytes)];
        }
        const size_t length = strlen(text), from = (size_t)ls_draw_below(&draws, (int64_t)length + 1);
        const size_t cut = (size_t)ls_draw_below(&draws, 40);
        if (round % 2 == 0) {
            (void)memmove(text + from, from + cut < length ? text + from + cut : "",
                          from + cut < length ? length - from - cut + 1 : 1);
        }
        ls_run_record run;
        const ls_status status = read_text(text, &run);
        assert_true(status == LS_OK || status == LS_ERR_FORMAT);
        if (status == LS_OK) {
            free(page_of(&run));
            ls_run_record_free(&run);
        }
        read += status == LS_OK;
        refused += status != LS_OK;
    }
    assert_true(read > 100 && refused > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),           cmocka_unit_test(test_pages),
        cmocka_unit_test(test_random_damage),   cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_incomplete_line), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_reduction),       cmocka_unit_test(test_short_curves_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
