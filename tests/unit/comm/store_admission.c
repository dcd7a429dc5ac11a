/*
 * Many unauthenticated connections that repeatedly are silent or send invalid data: holders of the key can still join,
 * and the log is not flooded.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "base/log.h"
#include "comm/store.h"
#include "comm/store_admission.h"
#include "tests/support/unauthenticated.h"

#define KEY "only the ranks know this key"

enum {
    CROWD = 1500,
    QUIET = 2
}; /* the number of connections, and the number of processes, each of which holds an equal part of them */

/* ---- unauthenticated connections --------------------------------------------------------------------------------- */

/* The address of a client. */
typedef struct client {
    int port;
    const char *from; /* a loopback address */
    const char *says; /* NULL: nothing */
    int ready;        /* the write end of a pipe, to signal that all are connected */
} client;

static int connect_as(const client *s) {
    return connect_from(s->from, s->port);
}

/* Opens many connections, and keeps them open. */
static const char *crowd(int number, const void *what) {
    const client *s = what;
    (void)number;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* this process is killed when the test exits */
    for (int i = 0; i < CROWD / QUIET; i++) {
        LS_MUST(connect_as(s) >= 0);
    }
    LS_MUST(write(s->ready, "", 1) == 1);
    pause();
    return NULL;
}

/* Opens connections as fast as possible. Each new connection replaces the oldest of the last few hundred. */
static const char *flood(int number, const void *what) {
    enum { HELD = 800 };
    const client *s = what;
    int held[HELD];
    (void)number;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < HELD; i++) {
        held[i] = -1;
    }
    for (uint64_t i = 0;; i++) {
        if (held[i % HELD] >= 0) {
            close(held[i % HELD]);
        }
        held[i % HELD] = connect_as(s);
        if (held[i % HELD] >= 0 && s->says != NULL) {
            for (int tries = 0; tries < 100 && send(held[i % HELD], s->says, strlen(s->says), MSG_NOSIGNAL) < 0;
                 tries++) {
                usleep(100);
            }
        }
        if (i == HELD) {
            LS_MUST(write(s->ready, "", 1) == 1);
        }
    }
}

static void start(pid_t *processes, int count, process_body body, client *s) {
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    s->ready = ends[1];
    for (int i = 0; i < count; i++) {
        processes[i] = process_start(body, i, s);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(read(ends[0], &byte, 1), 1);
    }
    close(ends[0]);
    close(ends[1]);
}

static void stop(const pid_t *processes, int count) {
    for (int i = 0; i < count; i++) {
        kill(processes[i], SIGKILL);
        assert_int_equal(process_wait(processes[i]), -SIGKILL);
    }
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

typedef struct job {
    int size, listener, port;
    const char *key;
} job;

static const char *meets(int rank, const void *what) {
    const job *j = what;
    char text[32];
    if (rank == 0) { /* as a launcher does, which binds the port in advance */
        snprintf(text, sizeof text, "%d", j->listener);
        setenv("LOCKSTEP_STORE_FD", text, 1);
    } else {
        close(j->listener);
    }
    snprintf(text, sizeof text, "%d", j->port);
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", j->size);
    setenv("WORLD_SIZE", text, 1);
    LS_MUST(ls_init(&(ls_init_options){.timeout = 60, .key = j->key}) != NULL);
    LS_MUST(ls_comm_barrier(ls_world(), NULL) == LS_OK);
    return ls_finalize() == LS_OK ? NULL : "ls_finalize";
}

/* Before rank 0 serves, there are more connections than slots, and than the backlog holds. They stay open. */
TEST(silent_connections_keep_no_rank_out) {
    for (int size = 2; size <= 3; size++) {
        pid_t clients[QUIET];
        const ls_address any = {.host = "127.0.0.1"};
        job j = {.size = size, .key = KEY};
        assert_int_equal(ls_socket_listen(&any, true, &j.listener), LS_OK);
        j.port = ls_socket_port(j.listener);
        client s = {.port = j.port, .from = size == 2 ? "127.0.0.1" : "127.0.0.2"};
        start(clients, QUIET, crowd, &s);
        processes_run(size, meets, &j, 0);
        stop(clients, QUIET);
        close(j.listener);
    }
}

/* Connections that are reopened as soon as they are closed: from a different address, or from the ranks' own
 * address. */
TEST(renewed_connections_keep_no_rank_out) {
    for (int size = 2; size <= 3; size++) {
        pid_t clients[1];
        const ls_address any = {.host = "127.0.0.1"};
        job j = {.size = size, .key = KEY};
        assert_int_equal(ls_socket_listen(&any, true, &j.listener), LS_OK);
        j.port = ls_socket_port(j.listener);
        client s = {.port = j.port, .from = size == 2 ? "127.0.0.1" : "127.0.0.2"};
        start(clients, 1, flood, &s);
        processes_run(size, meets, &j, 0);
        stop(clients, 1);
        close(j.listener);
    }
}

static void ignore_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)line;
    (void)user;
}

/* A slow client is not displaced by any number of connections from other addresses. */
TEST(a_slow_one_from_a_lone_address_stays) {
    pid_t clients[1];
    uint8_t bytes[LS_PROVEN_HELLO_SIZE], reply[LS_FRAME_HEADER + LS_REPLY_FIXED + LS_PROOF_SIZE];
    ls_hello theirs, own;
    ls_key key;
    int connection;
    bool retry;
    const ls_deadline deadline = ls_deadline_after(60);
    ls_log_set_sink(ignore_line, NULL);
    ls_store *store = ls_store_open("tcp://127.0.0.1:0", &(ls_store_options){.serve = true, .timeout = 60, .key = KEY});
    assert_non_null(store);
    client s = {.port = ls_store_port(store), .from = "127.0.0.2"};
    const ls_address there = {.host = "127.0.0.1", .port = s.port};
    assert_int_equal(ls_key_read(&key, KEY), LS_OK);
    assert_int_equal(ls_socket_connect(&there, true, deadline, &connection, &retry), LS_OK);
    assert_int_equal(ls_socket_receive(connection, bytes, LS_HELLO_SIZE, deadline), LS_OK);
    assert_int_equal(ls_hello_decode(bytes, false, &theirs), LS_OK);
    start(clients, 1, flood, &s);
    usleep(2500000); /* longer than the time allowed for a connection from a crowded address */
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_prove(&own, &key, "client", theirs.nonce);
    ls_hello_encode(&own, true, bytes);
    assert_int_equal(ls_socket_send(connection, bytes, sizeof bytes, deadline), LS_OK);
    assert_int_equal(ls_socket_receive(connection, reply, sizeof reply, deadline), LS_OK);
    close(connection);
    stop(clients, 1);
    ls_store_close(store);
    ls_log_set_sink(NULL, NULL);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

typedef struct lines {
    atomic_int refusals;
    _Atomic int64_t more;
} lines;

static void count_line(ls_log_level level, int rank, const char *line, void *user) {
    lines *seen = user;
    long long more = 0;
    (void)level;
    (void)rank;
    if (sscanf(line, "refused %lld more connections within", &more) == 1) {
        atomic_fetch_add(&seen->more, more);
    } else if (strstr(line, "refused a process at 127.0.0.1 port") != NULL) {
        atomic_fetch_add(&seen->refusals, 1);
    }
}

/* A few lines name clients. Some lines contain the number of further clients. */
TEST(the_log_is_not_flooded) {
    static const char nonsense[] =
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: somebody who takes the store for something else\r\n"
        "Accept: anything\r\nAccept-Language: any, of more bytes than a hello has\r\n\r\n";
    lines seen = {0};
    pid_t clients[1];
    ls_log_set_sink(count_line, &seen);
    ls_store *store = ls_store_open("tcp://127.0.0.1:0", &(ls_store_options){.serve = true, .timeout = 60, .key = KEY});
    assert_non_null(store);
    client s = {.port = ls_store_port(store), .from = "127.0.0.1", .says = nonsense};
    start(clients, 1, flood, &s);
    const double begin = ls_clock_seconds();
    while (atomic_load(&seen.more) == 0 && ls_clock_seconds() - begin < 60) {
        usleep(10000);
    }
    const double took = ls_clock_seconds() - begin;
    stop(clients, 1);
    ls_store_close(store);
    ls_log_set_sink(NULL, NULL);
    assert_true(atomic_load(&seen.more) > 100); /* many more refused connections were reported */
    assert_true(atomic_load(&seen.refusals) > 0);
    assert_true(atomic_load(&seen.refusals) <= 20 * (1 + took / LS_LOG_PERIOD));
}

int main(void) {
    struct rlimit files; /* the connections need more descriptors than the default limit */
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max < CROWD) {
        return 1;
    }
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    unsetenv("LOCKSTEP_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_connections_keep_no_rank_out),
        cmocka_unit_test(renewed_connections_keep_no_rank_out),
        cmocka_unit_test(a_slow_one_from_a_lone_address_stays),
        cmocka_unit_test(the_log_is_not_flooded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
