/*
 * Messages between launchers, and from ranks to launchers: decoding restores every encoded message, and damaged bytes
 * are parsed strictly.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "cli/node_message.c" /* the command's code is not in a library */

#include "comm/rank_report.h"
#include "tests/support/fuzz.h"

enum { ROUNDS = 40000 };

static const ls_node_message messages[] = {
    {.word = LS_NODE_JOIN, .numbers = {1, 2, 8}, .text = "host-1.example"},
    {.word = LS_NODE_REFUSED, .text = "node 1 is taken"},
    {.word = LS_NODE_NEWS, .text = "waiting for node 3 of 4"},
    {.word = LS_NODE_START, .numbers = {0, 8, 16}, .text = "00112233445566778899aabbccddeeff"},
    {.word = LS_NODE_FAILED, .numbers = {9, 2147483647, 256, 1}, .text = "host ls_comm_barrier #3: rank 1 died"},
    {.word = LS_NODE_END, .numbers = {-1, 1, -2147483647}, .text = "the launcher is gone"},
    {.word = LS_NODE_SIGNAL, .numbers = {2, 1}},
    {.word = LS_NODE_DONE},
    {.word = LS_NODE_OVER, .numbers = {1}},
    {.word = LS_NODE_ASK},
    {.word = LS_NODE_HERE},
};

TEST(test_right_messages) {
    for (size_t i = 0; i < LS_NODE_WORDS; i++) {
        uint8_t frame[LS_NODE_FRAME];
        ls_node_message read;
        assert_int_equal(messages[i].word, i);
        const size_t size = ls_node_message_write(&messages[i], frame);
        assert_int_equal(ls_node_message_read(frame + LS_FRAME_HEADER, size - LS_FRAME_HEADER, &read), LS_OK);
        assert_memory_equal(&read, &messages[i], sizeof read);
    }
    ls_node_message longest = {.word = LS_NODE_NEWS}, read;
    uint8_t frame[LS_NODE_FRAME];
    memset(longest.text, 'x', sizeof longest.text - 1);
    const size_t size = ls_node_message_write(&longest, frame);
    assert_int_equal(ls_node_message_read(frame + LS_FRAME_HEADER, size - LS_FRAME_HEADER, &read), LS_OK);
    assert_string_equal(read.text, longest.text);
}

/* Counts of damaged messages by result. */
typedef struct tally {
    size_t accepted, refused;
} tally;

static void damage_message(uint64_t number, void *argument) {
    tally *counts = argument;
    uint8_t frame[LS_NODE_FRAME];
    ls_node_message read;
    const size_t whole = ls_node_message_write(&messages[number % LS_NODE_WORDS], frame) - LS_FRAME_HEADER;
    const size_t size = fuzz_mutate(frame + LS_FRAME_HEADER, whole, sizeof frame - LS_FRAME_HEADER);
    uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a sanitizer detects the first byte beyond the end */
    memcpy(exact, frame + LS_FRAME_HEADER, size);
    if (ls_node_message_read(exact, size, &read) == LS_OK) {
        char shown[LS_NODE_TEXT]; /* without characters that move a terminal's cursor */
        counts->accepted++;
        assert_true(read.word < LS_NODE_WORDS);
        memcpy(shown, read.text, sizeof shown);
        ls_text_make_printable(shown);
        assert_string_equal(read.text, shown);
    } else {
        counts->refused++;
        assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    }
    free(exact);
}

TEST(test_damaged_messages) {
    tally counts = {0};
    const uint64_t rounds = fuzz_run("messages of launchers", ROUNDS, damage_message, &counts);
    assert_true(rounds < ROUNDS || (counts.accepted > rounds / 20 && counts.refused > rounds / 20));
}

static const char record[] = "lockstep-failure 1 8 3 1 4711 ls_comm_barrier #3: rank 1 died";

static void damage_record(uint64_t number, void *argument) {
    (void)number;
    tally *counts = argument;
    uint8_t bytes[2 * LS_REPORT_TEXT];
    memcpy(bytes, record, sizeof record);
    const size_t size = fuzz_mutate(bytes, sizeof record - 1, sizeof bytes - 1);
    char *exact = malloc(size + 1);
    memcpy(exact, bytes, size);
    exact[size] = '\0';
    ls_rank_report report;
    if (ls_rank_report_read(exact, &report)) {
        counts->accepted++;
        assert_true(report.status > LS_OK && report.status <= LS_ERR_DEVICE);
        assert_true(report.sentence[0] != '\0' && strlen(report.sentence) < sizeof report.sentence);
    } else {
        counts->refused++;
    }
    free(exact);
}

TEST(test_records_of_ranks) {
    static const char *const wrong[] = {
        "", "lockstep-failure 1 8 3 1 4711 ", "lockstep-failure 1 0 3 1 4711 no failure",
        "lockstep-failure 1 99 3 1 4711 no status", "lockstep-failure 2 8 3 1 4711 later"};
    ls_rank_report report;
    assert_true(ls_rank_report_read(record, &report));
    assert_int_equal(report.status, LS_ERR_PEER);
    assert_int_equal(report.rank, 3);
    assert_int_equal(report.failed_rank, 1);
    assert_int_equal(report.process, 4711);
    assert_string_equal(report.sentence, "ls_comm_barrier #3: rank 1 died");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(ls_rank_report_read(wrong[i], &report));
    }
    tally counts = {0};
    const uint64_t rounds = fuzz_run("records of ranks", ROUNDS, damage_record, &counts);
    assert_true(rounds < ROUNDS || (counts.accepted > rounds / 20 && counts.refused > rounds / 20));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right_messages), cmocka_unit_test(test_damaged_messages),
                                       cmocka_unit_test(test_records_of_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
