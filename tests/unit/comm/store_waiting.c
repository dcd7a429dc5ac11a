/*
 * Ranks that wait for rank 0 report this, and unauthenticated connections delay no rank.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "base/log.h"
#include "comm/store_roster.h"
#include "tests/support/files.h"

#define LONG_TIMEOUT (LS_REPORT_SECONDS + 3) /* a report appears well before the timeout, even on a busy machine */

/* The log lines of ranks that wait for rank 0. */
typedef struct said {
    int vanished, nowhere, otherwise;
} said;

static void note_waiting(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    said *heard = user;
    if (level == LS_LOG_WARNING && strstr(line, "waiting for rank 0 (cannot connect to 127.0.0.1:") != NULL) {
        heard->vanished++;
    } else if (level == LS_LOG_WARNING && strstr(line, "waiting for rank 0 to create the store in /") != NULL) {
        heard->nowhere++;
    } else {
        heard->otherwise++;
    }
}

static void *find_no_folder(void *status) {
    char url[512];
    snprintf(url, sizeof url, "file://%s", test_path("absent"));
    const ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = LONG_TIMEOUT});
    *(ls_status *)status = store == NULL ? ls_error_status() : LS_OK;
    return NULL;
}

/* As with a firewall, a listener with a full queue does not answer. At the same time, there is no announcement of
 * rank 0 in its folder. */
TEST(test_waiting_for_rank_0_is_told) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    char url[64];
    int waiting[4];
    said heard = {0};
    ls_status other = LS_OK;
    pthread_t thread;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    for (int i = 0; i < 4; i++) {
        waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(waiting[i], (struct sockaddr *)&address, size);
    }
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    ls_log_set_sink(note_waiting, &heard);
    assert_int_equal(pthread_create(&thread, NULL, find_no_folder, &other), 0);
    assert_null(ls_store_open(url, &(ls_store_options){.timeout = LONG_TIMEOUT}));
    assert_int_equal(pthread_join(thread, NULL), 0);
    ls_log_set_sink(NULL, NULL);
    assert_int_equal(ls_error_status(), LS_ERR_TIMEOUT);
    expect_message("rank 0 did not answer within 8 s (cannot connect to 127.0.0.1");
    assert_int_equal(other, LS_ERR_TIMEOUT);
    assert_true(heard.vanished == 1 && heard.nowhere == 1 && heard.otherwise == 0);
    for (int i = 0; i < 4; i++) {
        close(waiting[i]);
    }
    close(listener);
}

/* Opens many silent connections, then a connection of the job. */
static void connect_many(int port_from) {
    int port = 0;
    char url[64];
    if (read(port_from, &port, sizeof port) != (ssize_t)sizeof port) {
        _exit(2);
    }
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 150; i++) {
        const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection < 0 || connect(connection, (const struct sockaddr *)&address, sizeof address) != 0) {
            _exit(3);
        }
    }
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = 10});
    _exit(store != NULL && ls_store_set(store, "a", "b", 1) == LS_OK ? 0 : 1);
}

TEST(test_unauthenticated_connections_leave_room) {
    int ends[2], how = 0;
    struct rlimit before;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const pid_t others = fork();
    if (others == 0) {
        close(ends[1]); /* its read end is closed when this process exits */
        connect_many(ends[0]);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max}), 0);
    ls_log_set_level(LS_LOG_ERROR);
    ls_store *store = ls_store_open("tcp://127.0.0.1:0", &(ls_store_options){.serve = true, .timeout = 20});
    assert_non_null(store);
    const int port = ls_store_port(store);
    assert_int_equal(write(ends[1], &port, sizeof port), sizeof port);
    assert_int_equal(waitpid(others, &how, 0), others);
    ls_store_close(store);
    ls_log_set_level(LS_LOG_WARNING);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(how, 0);
    close(ends[0]);
    close(ends[1]);
}

static void note_refusal(ls_log_level level, int rank, const char *line, void *count) {
    (void)rank;
    if (level == LS_LOG_WARNING && strstr(line, "cannot accept a connection: Too many open files") != NULL) {
        ++*(atomic_int *)count;
    }
}

static void come_once(int port_from) {
    int port = 0;
    char url[64];
    if (read(port_from, &port, sizeof port) != (ssize_t)sizeof port) {
        _exit(2);
    }
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = 10});
    _exit(store != NULL && ls_store_set(store, "a", "b", 1) == LS_OK ? 0 : 1);
}

/*
 * Rank 0 has no descriptor left for new connections. It reports this once, not at each attempt, and continues when a
 * descriptor is free.
 */
TEST(test_no_descriptor_is_told_once) {
    int ends[2], how = 0;
    atomic_int told = 0;
    struct rlimit before;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const pid_t client = fork();
    if (client == 0) {
        close(ends[1]);
        come_once(ends[0]);
    }
    ls_log_set_sink(note_refusal, &told);
    ls_store *store = ls_store_open("tcp://127.0.0.1:0", &(ls_store_options){.serve = true, .timeout = 20});
    assert_non_null(store);
    const int port = ls_store_port(store);
    const int lowest = dup(ends[0]);
    close(lowest);
    assert_int_equal(
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max}), 0);
    assert_int_equal(write(ends[1], &port, sizeof port), sizeof port);
    for (int looks = 0; told == 0 && looks < 6000; looks++) {
        usleep(10000);
    }
    usleep(600000); /* many tries */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(waitpid(client, &how, 0), client);
    ls_store_close(store);
    ls_log_set_sink(NULL, NULL);
    assert_int_equal(how, 0);
    assert_int_equal(told, 1);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waiting_for_rank_0_is_told),
                                       cmocka_unit_test(test_unauthenticated_connections_leave_room),
                                       cmocka_unit_test(test_no_descriptor_is_told_once)};
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
