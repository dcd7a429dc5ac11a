/*
 * Admission to the shared memory of backend shm, against other processes of the same user: any number of connections
 * that are silent, send too much, guess, only listen, or close; a damaged announcement; a rank with a different key.
 * None of them gets the memory, the job waits for none of them, and its own ranks can join.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/random.h"
#include "comm/backend/shm/shm.h"
#include "comm/comm.h"
#include "comm/store.h"
#include "tests/support/files.h"
#include "tests/support/unauthenticated.h"

#define LONG_TIMEOUT 60.0

enum { SILENT = 40, GARBAGE = 300 };

/* Opens the store, which contains rank 0's announcement. */
static ls_store *open_store(const ls_forks *forks, bool serve) {
    char url[128];
    snprintf(url, sizeof url, "file://%s", forks->folder);
    ls_store *store = ls_store_open(url, &(ls_store_options){.serve = serve, .timeout = LONG_TIMEOUT});
    assert_non_null(store);
    return store;
}

static ls_shm_connect_request read_ticket(const ls_forks *forks) {
    ls_shm_connect_request ticket;
    size_t size = 0;
    ls_store *store = open_store(forks, false);
    assert_int_equal(ls_store_get(store, "test/shm", &ticket, sizeof ticket, &size), LS_OK);
    ls_store_close(store);
    assert_int_equal(size, sizeof ticket);
    return ticket;
}

/* Opens a connection that sends no hello. */
static int connect_to(const ls_shm_connect_request *ticket) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(ticket->name);
    memcpy(address.sun_path + 1, ticket->name, length);
    const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const socklen_t used = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    assert_int_equal(connect(connection, (struct sockaddr *)&address, used), 0);
    return connection;
}

/* Both ranks are admitted. The second rank joins now. */
static void let_in(ls_forks *forks) {
    ls_forks_start_late(forks, 1);
    assert_int_equal(ls_forks_wait(forks, 0), 0);
    assert_int_equal(ls_forks_wait(forks, 1), 0);
    ls_forks_end(forks);
}

TEST(others_get_nothing) {
    ls_forks forks;
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, ranks_meet, NULL);
    const ls_shm_connect_request ticket = read_ticket(&forks);
    const int wrong = connect_to(&ticket);
    const int gone = connect_to(&ticket);
    close(gone);
    const char bytes[LS_PROVEN_HELLO_SIZE + sizeof(int32_t)] = "bytes of the right length";
    assert_int_equal(send(wrong, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_true(connection_is_refused(wrong));
    close(wrong);
    let_in(&forks);
}

/* Many connections that stay open without sending anything do not delay the job. */
TEST(silent_connections_keep_nobody_out) {
    ls_forks forks;
    int connections[SILENT];
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, ranks_meet, NULL);
    const ls_shm_connect_request ticket = read_ticket(&forks);
    for (int i = 0; i < SILENT; i++) {
        connections[i] = connect_to(&ticket);
    }
    const double start = ls_clock_seconds();
    let_in(&forks);
    assert_true(ls_clock_seconds() - start < LONG_TIMEOUT / 2);
    for (int i = 0; i < SILENT; i++) {
        assert_true(connection_is_refused(connections[i]));
        close(connections[i]);
    }
}

/* Hellos with any kind of damage: to the secret, the rank, or the length. */
TEST(garbage_is_turned_away) {
    struct {
        uint8_t hello[LS_PROVEN_HELLO_SIZE];
        int32_t rank;
    } greeting;
    ls_forks forks;
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, ranks_meet, NULL);
    const ls_shm_connect_request ticket = read_ticket(&forks);
    for (uint64_t i = 0; i < GARBAGE; i++) {
        static const int32_t ranks[] = {-1, 0, 2, INT32_MAX, INT32_MIN};
        ls_hello hello;
        ls_key key = {.size = sizeof ticket.secret};
        uint8_t nonce[LS_NONCE_SIZE] = {0};
        memcpy(key.bytes, ticket.secret, sizeof ticket.secret);
        memcpy(nonce, ticket.secret, sizeof ticket.secret);
        assert_int_equal(ls_hello_make(&hello, false), LS_OK);
        ls_hello_prove(&hello, &key, "rank 1 joins shared memory", nonce);
        ls_hello_encode(&hello, true, greeting.hello);
        greeting.rank = 1;
        size_t size = sizeof greeting;
        if (i % 3 == 0) { /* one bit of the proof */
            greeting.hello[LS_HELLO_SIZE + i / 3 % LS_PROOF_SIZE] ^= (unsigned char)(1U << (i / 48 % 8));
        } else if (i % 3 == 1) { /* a rank that does not exist, or that is not expected */
            greeting.rank = ranks[i / 3 % 5];
        } else { /* too short to contain a rank */
            size = ls_random_below(4, 5, i, sizeof greeting);
        }
        const int connection = connect_to(&ticket);
        assert_int_equal(send(connection, &greeting, size, MSG_NOSIGNAL), size);
        if (size > 0) { /* an empty message would count as silence */
            assert_true(connection_is_refused(connection));
        }
        close(connection);
    }
    let_in(&forks);
}

/* ---- a death while others connect -------------------------------------------------------------------------------- */

typedef struct contended {
    char url[128];
    int size;
} contended;

/* The ranks call a barrier after all foreign processes have found the store. Then the store is removed. */
static ls_store *join_store(const contended *p, int rank) {
    ls_peer_info peer_infos[3], peer_info = {.machine = "machine", .host = "host"};
    ls_store *store = ls_store_open(p->url, &(ls_store_options){.serve = rank == 0, .timeout = LONG_TIMEOUT});
    snprintf(peer_info.process, sizeof peer_info.process, "%d", (int)getpid());
    const bool joined = store != NULL && ls_store_wait(store, "opened 0", 0) == LS_OK &&
                        ls_store_wait(store, "opened 1", 0) == LS_OK &&
                        ls_store_join(store, rank, p->size, &peer_info, peer_infos) == LS_OK;
    return joined ? store : NULL;
}

/* Rank 1 dies before it connects to the other ranks. Their error reports its death, not its absence. */
static const char *survives(int rank, const void *what) {
    const contended *p = what;
    ls_store *store = join_store(p, rank);
    LS_MUST(store != NULL);
    if (rank == 1) {
        LS_MUST(ls_store_wait(store, "contended 0", 0) == LS_OK && ls_store_wait(store, "contended 1", 0) == LS_OK);
        raise(SIGKILL);
    }
    const ls_join_context join = {.rank = rank,
                                  .size = p->size,
                                  .local_rank = rank,
                                  .local_size = p->size,
                                  .store = store,
                                  .prefix = "test/",
                                  .timeout = LONG_TIMEOUT};
    LS_MUST(ls_comm_open(ls_backend_find("shm"), &join) == NULL);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 1"));
    ls_store_close(store);
    return NULL;
}

/* Connects without pausing until no process listens any more. */
static const char *keeps_connecting(int number, const void *what) {
    const contended *p = what;
    ls_shm_connect_request ticket;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = 0;
    char opened[16], key[16];
    snprintf(opened, sizeof opened, "opened %d", number);
    snprintf(key, sizeof key, "contended %d", number);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ls_store *store = ls_store_open(p->url, &(ls_store_options){.timeout = LONG_TIMEOUT});
    LS_MUST(store != NULL && ls_store_set(store, opened, "", 0) == LS_OK);
    LS_MUST(ls_store_get(store, "test/shm", &ticket, sizeof ticket, &size) == LS_OK);
    memcpy(address.sun_path + 1, ticket.name, strlen(ticket.name));
    const socklen_t used = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(ticket.name));
    for (int i = 0;; i++) {
        const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const bool listens = connect(connection, (struct sockaddr *)&address, used) == 0;
        if (connection >= 0) {
            close(connection);
        }
        if (!listens && i > 0) {
            break;
        }
        if (i == 100) {
            LS_MUST(ls_store_set(store, key, "", 0) == LS_OK);
        }
    }
    ls_store_close(store);
    return NULL;
}

TEST(a_death_is_seen_whoever_connects) {
    for (int size = 2; size <= 3; size++) {
        contended p = {.size = size};
        pid_t ranks[3], others[2];
        char name[16];
        snprintf(name, sizeof name, "contended%d", size);
        snprintf(p.url, sizeof p.url, "file://%s", test_path(name));
        for (int rank = 0; rank < size; rank++) {
            ranks[rank] = process_start(survives, rank, &p);
        }
        for (int i = 0; i < 2; i++) {
            others[i] = process_start(keeps_connecting, i, &p);
        }
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(process_wait(ranks[rank]), rank == 1 ? -SIGKILL : 0);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(process_wait(others[i]), 0);
        }
    }
}

/* ---- damaged announcements --------------------------------------------------------------------------------------- */

static const char *misled_rank(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world == NULL);
    LS_MUST(ls_error_status() == LS_ERR_FORMAT || ls_error_status() == LS_ERR_PEER);
    LS_MUST(strstr(ls_error_message(), "rank 0") != NULL);
    return NULL;
}

/* Rank 1 finds a value in the store that rank 0 did not write, and fails at once. */
TEST(damaged_announcements) {
    for (int i = 0; i < 4; i++) {
        ls_shm_connect_request ticket;
        ls_forks forks;
        ls_forks_start(&forks, 2, 3, LONG_TIMEOUT, misled_rank, NULL);
        ls_store *store = open_store(&forks, true);
        memset(&ticket, i == 0 ? 0xff : 0, sizeof ticket); /* not null-terminated, or empty: not the name of a socket */
        if (i >= 2) {
            snprintf(ticket.name, sizeof ticket.name, "lockstep-nobody");
        }
        assert_int_equal(ls_store_set(store, "test/shm", &ticket, i == 3 ? sizeof ticket - 1 : sizeof ticket), LS_OK);
        const double start = ls_clock_seconds();
        ls_forks_start_late(&forks, 1);
        assert_int_equal(ls_forks_wait(&forks, 1), 0);
        assert_true(ls_clock_seconds() - start < LONG_TIMEOUT / 2);
        ls_store_close(store);
        ls_forks_end(&forks);
    }
}

/* ---- ranks that do not join -------------------------------------------------------------------------------------- */

static const char *lonely_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world == NULL && ls_error_status() == LS_ERR_TIMEOUT);
    LS_MUST(strstr(ls_error_message(), "ls_comm_open: rank 2 did not publish its address within") != NULL);
    usleep(rank == 0 ? 1000000
                     : 0); /* rank 0 serves the store; without it, the other rank would get a different error */
    return NULL;
}

/* Rank 1 waits only for rank 0, which waits for rank 2. */
TEST(a_rank_that_does_not_listen_is_named) {
    ls_forks forks;
    setenv("LOCKSTEP_TEST_BACKEND", "tcp", 1);
    ls_forks_start(&forks, 3, 1U << 2, 2, lonely_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
    unsetenv("LOCKSTEP_TEST_BACKEND");
}

/* ---- another key ------------------------------------------------------------------------------------------------- */

typedef struct keys {
    char url[128];
    const char *key[2];
} keys;

/* Joins with a key that the program itself sets. */
static const char *keyed_rank(int rank, const void *argument) {
    const keys *k = argument;
    ls_init_options options = {
        .init = k->url, .world_size = 2, .rank = rank, .timeout = rank == 0 ? 2 : 10, .key = k->key[rank]};
    LS_MUST(ls_init(&options) == NULL);
    if (rank == 0) { /* rank 0 waits for a rank that never proves the key */
        LS_MUST(ls_error_status() == LS_ERR_TIMEOUT || ls_error_status() == LS_ERR_DENIED);
    } else {
        LS_MUST(failed_with(LS_ERR_DENIED, "key"));
    }
    return NULL;
}

TEST(a_wrong_key) {
    static const char *const pairs[][2] = {{"right", "wrong"}, {"right", NULL}, {NULL, "wrong"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        for (int folder = 0; folder < 2; folder++) {
            keys k = {.key = {pairs[i][0], pairs[i][1]}};
            char name[16];
            snprintf(name, sizeof name, "store%zu", i);
            if (folder == 1) {
                snprintf(k.url, sizeof k.url, "file://%s", test_path(name));
            } else {
                snprintf(k.url, sizeof k.url, "tcp://127.0.0.1:%d", free_port());
            }
            processes_run(2, keyed_rank, &k, 0);
        }
    }
}

int main(void) {
    unsetenv("LOCKSTEP_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_get_nothing),
        cmocka_unit_test(silent_connections_keep_nobody_out),
        cmocka_unit_test(garbage_is_turned_away),
        cmocka_unit_test(a_death_is_seen_whoever_connects),
        cmocka_unit_test(damaged_announcements),
        cmocka_unit_test(a_wrong_key),
        cmocka_unit_test(a_rank_that_does_not_listen_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
