/*
 * Ranks that meet through a store of either kind, and everything that can go wrong. Each rank is a process.
 *
 * devices: cpu
 */
#include "tests/support/files.h"
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/store.h"
#include "tests/support/processes.h"

/* Data that the ranks of one test share. */
typedef struct meeting {
    char url[128];
    int listener; /* listening socket, bound before the ranks start, as a launcher does; -1 if the store is a folder */
    int size;
    double timeout;
    volatile int *flag; /* in memory that all ranks share */
} meeting;

static bool in_folder;
static char folder[] = "/tmp/lockstep-meet-XXXXXX";
static volatile int *shared_flag;

static meeting prepare(int size, double timeout) {
    meeting m = {.listener = -1, .size = size, .timeout = timeout, .flag = shared_flag};
    *shared_flag = 0;
    if (in_folder) {
        snprintf(m.url, sizeof m.url, "file://%s/meet", folder);
    } else {
        const ls_address any = {.host = "127.0.0.1"};
        assert_int_equal(ls_socket_listen(&any, false, &m.listener), LS_OK);
        snprintf(m.url, sizeof m.url, "tcp://127.0.0.1:%d", ls_socket_port(m.listener));
    }
    return m;
}

static void finish(const meeting *m) {
    if (m->listener >= 0) {
        close(m->listener);
    }
}

static ls_store *enter_with(int rank, const meeting *m, const char *key) {
    if (rank != 0 && m->listener >= 0) {
        close(m->listener);
    }
    const ls_store_place place = {
        .url = m->url, .serve = rank == 0, .timeout = m->timeout, .key = key, .listener = rank == 0 ? m->listener : -1};
    return ls_store_open_at(&place);
}

static ls_store *enter(int rank, const meeting *m) {
    return enter_with(rank, m, "the key");
}

static ls_status join(ls_store *store, int rank, int size) {
    ls_peer_info peer_infos[8], peer_info = {.machine = "machine", .host = "host"};
    snprintf(peer_info.process, sizeof peer_info.process, "%ld", (long)getpid());
    LS_TRY(ls_store_join(store, rank, size, &peer_info, peer_infos));
    return strcmp(peer_infos[rank].process, peer_info.process) == 0 ? LS_OK : LS_ERR_INTERNAL;
}

static const char *meet_and_leave(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_OK);
    LS_MUST(ls_store_add(store, "count", 1, NULL) == LS_OK);
    if (rank == m->size - 1) {
        usleep(50000);
        *m->flag = 1;
    }
    LS_MUST(ls_store_leave(store) == LS_OK);
    LS_MUST(*m->flag == 1); /* no rank leaves before the last one arrives */
    ls_store_close(store);
    return NULL;
}

TEST(test_all_meet) {
    for (int size = 1; size <= 4; size++) {
        const meeting m = prepare(size, 20);
        processes_run(size, meet_and_leave, &m, 0);
        finish(&m);
    }
}

static const char *meet_again_and_again(int rank, const void *what) {
    const meeting *m = what;
    for (int round = 0; round < 30; round++) {
        ls_store *store = enter(rank, m);
        LS_MUST(store != NULL);
        LS_MUST(join(store, rank, m->size) == LS_OK);
        LS_MUST(ls_store_leave(store) == LS_OK);
        ls_store_close(store);
    }
    return NULL;
}

/* A rank that returns before rank 0 has removed the old store waits for the new store. */
TEST(test_the_same_ranks_meet_again) {
    meeting m = prepare(3, 20);
    finish(&m); /* the port is known; rank 0 listens on it again each time */
    m.listener = -1;
    processes_run(3, meet_again_and_again, &m, 0);
}

static const char *miss_one(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_ERR_TIMEOUT);
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "ranks 2 and 4 of 5 did not join within 0.4 s") || rank == 3);
    ls_store_close(store);
    return NULL;
}

static const char *miss_two(int number, const void *what) {
    return miss_one(number == 2 ? 3 : number, what);
}

TEST(test_missing_ranks) {
    const meeting m = prepare(5, 0.4);
    processes_run(3, miss_two, &m, 0);
    finish(&m);
}

static const char *die_while_meeting(int rank, const void *what) {
    const meeting *m = what;
    if (rank == 1) {
        process_kill_self_in(150);
    }
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 1 of 4 (process "));
    LS_MUST(failed_with(LS_ERR_PEER, "while the ranks were meeting"));
    ls_store_close(store);
    return NULL;
}

TEST(test_death_while_meeting) {
    const meeting m = prepare(4, 60); /* rank 3 never joins */
    processes_run(3, die_while_meeting, &m, 1U << 1);
    finish(&m);
}

static const char *die_later(int rank, const void *what) {
    const meeting *m = what;
    char value[4];
    size_t size;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_OK);
    if (rank == 2) {
        kill(getpid(), SIGKILL);
    }
    LS_MUST(ls_store_get(store, "from rank 2", value, sizeof value, &size) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 2 of 3"));
    LS_MUST(ls_store_set(store, "a", "b", 1) == LS_OK); /* calls that need no other rank still work */
    LS_MUST(ls_store_leave(store) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 2 of 3"));
    ls_store_close(store);
    return NULL;
}

TEST(test_death_after_meeting) {
    const meeting m = prepare(3, 60);
    processes_run(3, die_later, &m, 1U << 2);
    finish(&m);
}

static const char *lose_server(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_OK);
    if (rank == 0) {
        usleep(50000);
        kill(getpid(), SIGKILL);
    }
    LS_MUST(ls_store_wait(store, "never", 0) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 0"));
    LS_MUST(ls_store_leave(store) == LS_ERR_PEER);
    ls_store_close(store);
    return NULL;
}

TEST(test_death_of_rank_0) {
    const meeting m = prepare(3, 60);
    close(m.listener); /* when rank 0 dies, no process holds the socket */
    meeting own = m;
    own.listener = -1;
    processes_run(3, lose_server, &own, 1U);
}

static const char *come_twice(int number, const void *what) {
    const meeting *m = what;
    const int rank = number == 2 ? 1 : number;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_ERR_ARGUMENT);
    LS_MUST(failed_with(LS_ERR_ARGUMENT, "two processes joined as rank 1: process "));
    ls_store_close(store);
    return NULL;
}

TEST(test_rank_comes_twice) {
    const meeting m = prepare(3, 60);
    processes_run(3, come_twice, &m, 0);
    finish(&m);
}

static const char *disagree(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    if (rank == 1) {
        usleep(100000); /* rank 0 fails first */
    }
    LS_MUST(join(store, rank, rank == 0 ? 3 : 2) == LS_ERR_MISMATCH);
    LS_MUST(failed_with(LS_ERR_MISMATCH, "reports a world of 2 ranks"));
    ls_store_close(store);
    return NULL;
}

TEST(test_world_sizes_differ) {
    const meeting m = prepare(3, 60);
    processes_run(2, disagree, &m, 0);
    finish(&m);
}

/*
 * Joins as rank 1. Its peer information has `bytes` bytes and begins with `record`. Returns whether the message of the
 * store's refusal contains `said`.
 */
static bool join_as_another_build(ls_store *store, int size, size_t bytes, const char *record, const char *said) {
    uint8_t peer_info[sizeof(ls_peer_info) + 64] = {0}, message[4096];
    const ls_store_request request = {
        .operation = LS_STORE_JOIN, .value = {peer_info, bytes}, .amount = INT64_C(1) << 32 | size, .timeout = 300000};
    const ls_deadline deadline = ls_deadline_after(300);
    size_t length = 0;
    ls_store_reply reply;
    snprintf((char *)peer_info, sizeof peer_info, "%s", record);
    ls_request_encode(&request, message);
    return ls_socket_send(store->fd, message, ls_request_size(&request), deadline) == LS_OK &&
           ls_socket_receive(store->fd, message, LS_FRAME_HEADER, deadline) == LS_OK &&
           ls_frame_size(message, LS_REPLY_FIXED, sizeof message, &length) == LS_OK &&
           ls_socket_receive(store->fd, message, length, deadline) == LS_OK &&
           ls_reply_decode(message, length, &reply) == LS_OK && reply.status == LS_ERR_MISMATCH &&
           memmem(reply.value.data, reply.value.size, said, strlen(said)) != NULL;
}

/* Of four ranks, the last two never join. */
static const char *run_another_build(int rank, const void *what) {
    const meeting *m = what;
    const char *said = m->size == 4 ? " runs a different version of Lockstep, " : " runs Lockstep 0.0.9 (layout 0)";
    if (rank == 1) {
        ls_store *store = enter(rank, m);
        LS_MUST(store != NULL);
        const char *record = m->size == 4 ? "5a0e1b3c a boot id" : "0.0.9 (layout 0)"; /* early versions had none */
        LS_MUST(join_as_another_build(store, m->size, sizeof(ls_peer_info) + (m->size == 2 ? 0 : 64), record, said));
        ls_store_close(store);
        return NULL;
    }
    char own[LS_BUILD_CAPACITY];
    ls_build_write(own);
    const ls_init_options options = {
        .init = m->url, .world_size = m->size, .rank = rank, .timeout = m->timeout, .key = "the key"};
    LS_MUST(ls_init(&options) == NULL);
    LS_MUST(failed_with(LS_ERR_MISMATCH, "rank 1 "));
    LS_MUST(failed_with(LS_ERR_MISMATCH, said));
    LS_MUST(failed_with(LS_ERR_MISMATCH, " runs Lockstep " LS_VERSION " (layout ") &&
            failed_with(LS_ERR_MISMATCH, own));
    LS_MUST(failed_with(LS_ERR_MISMATCH, ": run the same build of Lockstep on all ranks"));
    return NULL;
}

/*
 * Ranks fail at once, not after the timeout. The other build's peer information has the same size, is larger, or does
 * not identify a build.
 */
TEST(test_builds_differ) {
    for (int size = 2; size <= 4; size++) {
        meeting m = prepare(size, 300);
        finish(&m); /* ls_init itself listens there */
        m.listener = -1;
        processes_run(2, run_another_build, &m, 0);
    }
}

static const char *come_with_another_key(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter_with(rank, m, rank == 0 ? "the key" : rank == 1 ? "another" : NULL);
    if (rank != 0) {
        LS_MUST(store == NULL && ls_error_status() == LS_ERR_DENIED);
        LS_MUST(strstr(ls_error_message(), rank == 1 ? "a different key than the job" : "was given none") != NULL);
        return NULL;
    }
    LS_MUST(join(store, rank, m->size) == LS_ERR_TIMEOUT);
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "did not join within 1.5 s (refused because of a wrong or missing key: "));
    ls_store_close(store);
    return NULL;
}

/* Both sides get an error. */
TEST(test_wrong_keys) {
    const meeting m = prepare(3, 1.5);
    processes_run(3, come_with_another_key, &m, 0);
    finish(&m);
}

static const char *stay(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    LS_MUST(join(store, rank, m->size) == LS_OK);
    if (rank == 1) {
        while (*m->flag == 0) {
            usleep(1000);
        }
    } else {
        LS_MUST(ls_store_leave(store) == LS_ERR_TIMEOUT);
        LS_MUST(failed_with(LS_ERR_TIMEOUT, "rank 1 of 2 did not call ls_finalize within 0.3 s"));
        *m->flag = 1;
    }
    ls_store_close(store);
    return NULL;
}

TEST(test_one_does_not_leave) {
    const meeting m = prepare(2, 0.3);
    processes_run(2, stay, &m, 0);
    finish(&m);
}

extern uint64_t ls_comm_tell_after_ns;

static void note_told(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    volatile int *flag = user;
    const bool begins = strncmp(line, "ls_finalize has waited ", 23) == 0;
    *flag = *flag || (level == LS_LOG_WARNING && begins && strstr(line, " s for rank 1; rank 0 called it") != NULL);
}

/* Rank 1 leaves after rank 0 has logged that it is waiting for rank 1. */
static const char *leave_when_told(int rank, const void *what) {
    const meeting *m = what;
    const double start = ls_clock_seconds();
    ls_comm_tell_after_ns = 50000000;
    ls_log_set_sink(rank == 0 ? note_told : NULL, (void *)(uintptr_t)m->flag);
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL && join(store, rank, m->size) == LS_OK);
    while (rank == 1 && *m->flag == 0 && ls_clock_seconds() - start < 30) {
        usleep(1000);
    }
    LS_MUST(ls_store_leave(store) == LS_OK && *m->flag == 1);
    ls_store_close(store);
    return NULL;
}

TEST(test_who_waits_to_leave_tells_the_log) {
    const meeting m = prepare(2, 60);
    processes_run(2, leave_when_told, &m, 0);
    finish(&m);
}

static const char *all_die(int rank, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    if (*m->flag != 0) {
        process_kill_self_in(100); /* before all ranks have joined, so that the announcement remains */
    }
    const ls_status status = join(store, rank, *m->flag != 0 ? 8 : m->size);
    kill(getpid(), SIGKILL);
    return status == LS_OK ? NULL : "not reached";
}

TEST(test_leftovers_do_not_matter) {
    if (!in_folder) {
        return;
    }
    for (int announced = 0; announced < 2; announced++) {
        const meeting m = prepare(3, 20);
        char path[128];
        snprintf(path, sizeof path, "%s/meet", folder);
        *shared_flag = announced;
        processes_run(3, all_die, &m, 7U);
        assert_int_equal(test_folder_count(path), announced);
        *shared_flag = 0;
        processes_run(3, meet_and_leave, &m, 0);
        assert_int_equal(test_folder_count(path), 0);
        rmdir(path);
    }
}

static const char *serve_taken_folder(int number, const void *what) {
    const meeting *m = what;
    ls_store *store = enter(0, m);
    if (number == 0) {
        LS_MUST(store != NULL);
        *m->flag = 1;
        while (*m->flag != 2) {
            usleep(1000);
        }
        ls_store_close(store);
        return NULL;
    }
    LS_MUST(store == NULL && failed_with(LS_ERR_STATE, "a different job is gathering"));
    return NULL;
}

TEST(test_folder_in_use) {
    if (!in_folder) {
        return;
    }
    const meeting m = prepare(2, 20);
    const pid_t first = process_start(serve_taken_folder, 0, &m);
    while (*m.flag != 1) {
        usleep(1000);
    }
    const int second = process_wait(process_start(serve_taken_folder, 1, &m));
    *m.flag = 2;
    assert_int_equal(process_wait(first), 0);
    assert_int_equal(second, 0);
}

static int set_up_flag(void **state) {
    (void)state;
    shared_flag = mmap(NULL, sizeof *shared_flag, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared_flag == MAP_FAILED;
}

static int set_up_folder(void **state) {
    in_folder = true;
    return mkdtemp(folder) == NULL || set_up_flag(state) != 0;
}

static int tear_down(void **state) {
    (void)state;
    munmap((void *)shared_flag, sizeof *shared_flag);
    if (!in_folder) {
        return 0;
    }
    char path[64];
    snprintf(path, sizeof path, "%s/meet", folder);
    rmdir(path);
    return rmdir(folder);
}

#define KIND_TESTS                                                                                                     \
    cmocka_unit_test(test_all_meet), cmocka_unit_test(test_the_same_ranks_meet_again),                                 \
        cmocka_unit_test(test_missing_ranks), cmocka_unit_test(test_death_while_meeting),                              \
        cmocka_unit_test(test_death_after_meeting), cmocka_unit_test(test_death_of_rank_0),                            \
        cmocka_unit_test(test_rank_comes_twice), cmocka_unit_test(test_world_sizes_differ),                            \
        cmocka_unit_test(test_builds_differ), cmocka_unit_test(test_wrong_keys),                                       \
        cmocka_unit_test(test_one_does_not_leave), cmocka_unit_test(test_who_waits_to_leave_tells_the_log),            \
        cmocka_unit_test(test_leftovers_do_not_matter), cmocka_unit_test(test_folder_in_use)

int main(void) {
    const struct CMUnitTest tests[] = {KIND_TESTS};
    const int failures = cmocka_run_group_tests_name("meeting on TCP", tests, set_up_flag, tear_down);
    return failures + cmocka_run_group_tests_name("meeting in a folder", tests, set_up_folder, tear_down);
}
