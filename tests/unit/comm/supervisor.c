/*
 * The supervisor of child processes: every event in every phase, without real processes.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>

#include "comm/supervisor.h"

enum { MOST_SIGNALS = 16 };

/* Records the supervisor's calls to its owner. */
typedef struct job_record {
    int signals[MOST_SIGNALS], signal_count;
    double timer;
    int decisions;
    int decided; /* the rank of the last decision */
} job_record;

static void record_signal(void *user, int signal) {
    job_record *record = user;
    assert_true(record->signal_count < MOST_SIGNALS);
    record->signals[record->signal_count++] = signal;
}

static void record_timer(void *user, double seconds) {
    ((job_record *)user)->timer = seconds;
}

static void record_decision(void *user, const ls_failure *failure) {
    job_record *record = user;
    record->decisions++;
    record->decided = failure->rank;
}

static const ls_supervisor_owner owner = {
    .signal_all = record_signal, .set_timer = record_timer, .decided = record_decision};

static const ls_failure plain = {.rank = 1};
static const ls_failure blaming = {.rank = 2, .blames = true};

static ls_supervisor start(job_record *record, int processes, bool awaits_verdict) {
    *record = (job_record){.decided = -1};
    ls_supervisor self = {
        .owner = &owner, .user = record, .grace = 5, .awaits_verdict = awaits_verdict, .deadline = LS_DEADLINE_NEVER};
    for (int i = 0; i < processes; i++) {
        ls_supervisor_started(&self);
    }
    return self;
}

static bool end_badly(ls_supervisor *self, const ls_failure *failure) {
    ls_supervisor_ended(self);
    return ls_supervisor_failed(self, failure);
}

static void expect_signals(const job_record *record, int count, const int *signals) {
    assert_int_equal(record->signal_count, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(record->signals[i], signals[i]);
    }
}

TEST(test_a_failure_ends_the_others_and_kills_late_ones) {
    job_record record;
    ls_supervisor self = start(&record, 3, false);
    assert_true(end_badly(&self, &plain));
    assert_int_equal(self.phase, LS_SUPERVISOR_ENDING);
    assert_int_equal(self.others, 2);
    assert_int_equal(record.decided, 1);
    assert_true(record.timer == 5 && !ls_deadline_passed(self.deadline));
    expect_signals(&record, 2, (const int[]){SIGTERM, SIGCONT});
    assert_false(end_badly(&self, &blaming)); /* ended by the supervisor */
    assert_int_equal(self.verdict.failure.rank, 1);
    ls_supervisor_tick(&self);
    ls_supervisor_tick(&self); /* processes may start while others are killed */
    assert_int_equal(self.phase, LS_SUPERVISOR_KILLING);
    expect_signals(&record, 4, (const int[]){SIGTERM, SIGCONT, SIGKILL, SIGKILL});
    assert_true(record.timer < 1);
    assert_int_equal(self.others, 2);
    assert_int_equal(record.decisions, 1);
}

TEST(test_a_blamed_rank_failed_first) {
    job_record record;
    ls_supervisor self = start(&record, 3, false);
    assert_true(end_badly(&self, &blaming));
    assert_int_equal(self.phase, LS_SUPERVISOR_RUNNING);
    assert_true(record.timer == LS_BLAME_SECONDS && record.decisions == 0 && record.signal_count == 0);
    assert_false(end_badly(&self, &(ls_failure){.rank = 0, .blames = true}));
    assert_true(end_badly(&self, &plain));
    assert_int_equal(record.decided, 1);
    assert_int_equal(self.others, 2);
    assert_int_equal(self.phase, LS_SUPERVISOR_ENDING);
}

TEST(test_a_suspect_failed_first_if_no_other_failure_comes) {
    job_record record;
    ls_supervisor self = start(&record, 2, false);
    assert_true(end_badly(&self, &blaming));
    ls_supervisor_tick(&self);
    assert_int_equal(record.decided, 2);
    expect_signals(&record, 2, (const int[]){SIGTERM, SIGCONT});
    self = start(&record, 1, false);
    assert_true(end_badly(&self, &blaming));
    ls_supervisor_all_ended(&self);
    assert_int_equal(record.decided, 2);
    self = start(&record, 1, false);
    ls_supervisor_ended(&self);
    ls_supervisor_all_ended(&self);
    assert_int_equal(record.decisions, 0);
    assert_int_equal(self.phase, LS_SUPERVISOR_RUNNING);
}

/* With several nodes, node 0 decides: the processes of this node are terminated at once. */
TEST(test_another_supervisor_decides) {
    job_record record;
    ls_supervisor self = start(&record, 2, true);
    assert_true(end_badly(&self, &plain));
    assert_int_equal(self.phase, LS_SUPERVISOR_ENDING);
    assert_int_equal(record.decisions, 0);
    ls_supervisor_decide(&self, &(ls_failure){.rank = 7});
    ls_supervisor_decide(&self, &plain);
    assert_true(record.decisions == 1 && record.decided == 7);
    expect_signals(&record, 2, (const int[]){SIGTERM, SIGCONT});
    self = start(&record, 2, true);
    assert_true(end_badly(&self, &blaming));
    ls_supervisor_tick(&self);
    assert_true(self.phase == LS_SUPERVISOR_ENDING && record.decisions == 0);
    ls_supervisor_ended(&self);
    ls_supervisor_all_ended(&self);
    assert_int_equal(record.decisions, 0);
}

TEST(test_nothing_is_signaled_when_no_process_is_left) {
    job_record record;
    ls_supervisor self = start(&record, 0, true);
    self.settled = true;
    ls_supervisor_decide(&self, &plain);
    assert_true(record.decisions == 1 && record.signal_count == 0);
    ls_supervisor_kill(&self);
    assert_true(self.phase == LS_SUPERVISOR_KILLING && record.signal_count == 0);
}

TEST(test_a_signal_decides_without_a_failure) {
    job_record record;
    ls_supervisor self = start(&record, 2, false);
    self.verdict.decided = true;
    ls_supervisor_end(&self, SIGINT);
    assert_false(end_badly(&self, &plain));
    ls_supervisor_decide(&self, &plain);
    ls_supervisor_all_ended(&self);
    assert_int_equal(record.decisions, 0);
    expect_signals(&record, 2, (const int[]){SIGINT, SIGCONT});
}

TEST(test_suspects) {
    ls_verdict verdict = {0};
    assert_true(ls_verdict_suspect(&verdict, &blaming));
    assert_false(ls_verdict_suspect(&verdict, &(ls_failure){.rank = 0, .blames = true}));
    assert_true(ls_verdict_suspect(&verdict, &plain));
    assert_false(ls_verdict_suspect(&verdict, &blaming));
    assert_int_equal(verdict.failure.rank, 1);
    assert_true(ls_verdict_decide(&verdict, &verdict.failure));
    assert_false(ls_verdict_decide(&verdict, &blaming));
    assert_false(ls_verdict_suspect(&verdict, &blaming));
    assert_int_equal(verdict.failure.rank, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_failure_ends_the_others_and_kills_late_ones),
                                       cmocka_unit_test(test_a_blamed_rank_failed_first),
                                       cmocka_unit_test(test_a_suspect_failed_first_if_no_other_failure_comes),
                                       cmocka_unit_test(test_another_supervisor_decides),
                                       cmocka_unit_test(test_nothing_is_signaled_when_no_process_is_left),
                                       cmocka_unit_test(test_a_signal_decides_without_a_failure),
                                       cmocka_unit_test(test_suspects)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
