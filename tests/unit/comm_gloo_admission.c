/*
 * How the ranks of backend gloo get connected, against unauthenticated connections (silent, noisy, guessing,
 * repeating what they heard, gone again), and with ranks that die or are stopped meanwhile: the connections are refused
 * and the join goes on; a death is seen at once and silence after the timeout. With real processes on both stores.
 */
#include "tests/support/unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/random.h"
#include "comm/backend/gloo/gloo.h"
#include "comm/comm.h"
#include "comm/store.h"
#include "tests/support/files.h"
#include "tests/support/gloo_peer.h"
#include "tests/support/unauthenticated.h"

#define LONG_TIMEOUT 60.0 /* a timeout that no test waits for */
#define SILENT       1.5  /* one that a test waits for */
#define AT_ONCE      5.0  /* what the contract's second may become on a busy machine */

enum { CONNECTIONS = 100, GARBAGE = 60 };

static bool no_gloo(void) {
    return ls_backend_find("gloo") == NULL;
}

/* ---- unauthenticated connections -----------------------------------------------------------------------------------
 */

/* More than there is room for hold their connections open, and some go away. */
static void silent_connections_keep_nobody_out(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    ls_forks forks;
    int connections[CONNECTIONS];
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, ranks_meet, NULL);
    ls_store *store = gloo_peer_store(&forks);
    const ls_gloo_card card = gloo_peer_card(store);
    ls_store_close(store);
    for (int i = 0; i < CONNECTIONS; i++) {
        connections[i] = gloo_peer_connect(&card);
        if (i % 5 == 0) {
            close(connections[i]);
        }
    }
    const double start = ls_clock_seconds();
    ls_forks_start_late(&forks, 1);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    assert_true(ls_clock_seconds() - start < AT_ONCE);
    for (int i = 0; i < CONNECTIONS; i++) {
        if (i % 5 != 0) {
            close(connections[i]);
        }
    }
    ls_forks_end(&forks);
}

/* Answers of about the right form by somebody who does not know the key. */
static ls_gloo_answer forge(uint64_t i, const ls_gloo_challenge *challenge) {
    static const int32_t ranks[] = {1, 0, 2, -1, INT32_MAX};
    ls_gloo_answer answer = {.greeting = LS_GLOO_GREETING, .rank = ranks[i / 4 % 5], .size = 2};
    if (i % 4 == 1) { /* what it was sent itself */
        memcpy(answer.nonce, challenge->nonce, sizeof answer.nonce);
        memcpy(answer.proof, challenge->nonce, sizeof answer.proof);
    } else if (i % 4 == 2) {
        answer.greeting[0] = 'x';
    } else if (i % 4 == 3) {
        answer.size = 3;
    }
    return answer;
}

/* Gets in, and is lost in the first call. */
static const char *deserted_rank(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 1 is gone"));
    return NULL;
}

static void send_garbage(int connection, uint64_t i) {
    unsigned char garbage[4096];
    for (size_t k = 0; k < sizeof garbage; k++) {
        garbage[k] = (unsigned char)ls_random_below(7, i, k, 256);
    }
    assert_true(send(connection, garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
}

/* It knows how to get in, also that what is right on one connection is wrong on another. */
static void guesses_and_repetitions_are_turned_away(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    ls_forks forks;
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, deserted_rank, NULL);
    gloo_peer v = gloo_peer_begin(&forks);
    const ls_gloo_answer right = gloo_peer_answer(&v);
    for (uint64_t i = 0; i < GARBAGE; i++) {
        const int connection = gloo_peer_connect(&v.card);
        const ls_gloo_challenge other = gloo_peer_hear(connection);
        const ls_gloo_answer forged = forge(i, &other);
        if (i % 3 == 0) {
            send_garbage(connection, i);
        } else {
            gloo_peer_tell(connection, i % 3 == 1 ? &right : &forged);
        }
        assert_true(connection_is_refused(connection));
        close(connection);
    }
    gloo_peer_get_in(&v, &right);
    close(v.socket);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_store_close(v.store);
    ls_forks_end(&forks);
}

/* ---- ranks that die or are silent ----------------------------------------------------------------------------------
 */

typedef enum fate { DIES, SILENCE } fate;

typedef struct meeting {
    char url[128];
    int listener;
    int size;
    int victim;
    fate how;
} meeting;

static _Atomic double *ended; /* when the victim did */

static ls_store *enter(int rank, const meeting *m) {
    ls_card cards[8];
    ls_card card = {.machine = "machine", .host = "host"};
    const ls_store_place place = {.url = m->url,
                                  .serve = rank == 0,
                                  .timeout = LONG_TIMEOUT,
                                  .key = "the key",
                                  .listener = rank == 0 ? m->listener : -1};
    if (rank != 0 && m->listener >= 0) {
        close(m->listener);
    }
    ls_store *store = ls_store_open_at(&place);
    return store != NULL && ls_store_join(store, rank, m->size, &card, cards) == LS_OK ? store : NULL;
}

/* Says where it listens, and neither connects nor lets anybody in. */
static const char *half_come(ls_store *store, const meeting *m) {
    char name[32];
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ls_gloo_card card = {.length = sizeof here};
    socklen_t length = sizeof here;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    LS_MUST(bind(listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(listener, 16) == 0);
    LS_MUST(getsockname(listener, (struct sockaddr *)&here, &length) == 0);
    memcpy(&card.address, &here, sizeof here);
    snprintf(name, sizeof name, "test/gloo/%d", m->victim);
    LS_MUST(ls_store_set(store, name, &card, sizeof card) == LS_OK);
    usleep(m->how == SILENCE ? 2500000 : 300000);
    atomic_store(ended, ls_clock_seconds());
    if (m->how != SILENCE) {
        kill(getpid(), SIGKILL);
    }
    close(listener);
    return NULL;
}

static const char *come(int rank, const void *what) {
    const meeting *m = what;
    char name[32];
    ls_store *store = enter(rank, m);
    LS_MUST(store != NULL);
    if (rank == m->victim) {
        return half_come(store, m);
    }
    const ls_join join = {.rank = rank,
                          .size = m->size,
                          .local_rank = rank,
                          .local_size = m->size,
                          .store = store,
                          .prefix = "test/",
                          .timeout = m->how == SILENCE ? SILENT : LONG_TIMEOUT};
    ls_comm *world = ls_comm_open(ls_backend_find("gloo"), &join);
    LS_MUST(world == NULL);
    snprintf(name, sizeof name, "rank %d", m->victim);
    LS_MUST(failed_with(m->how == SILENCE ? LS_ERR_TIMEOUT : LS_ERR_PEER, name));
    LS_MUST(m->how == SILENCE || ls_clock_seconds() - atomic_load(ended) < AT_ONCE);
    /* So that the store sees no death before the victim's end, and no other's before all have seen the victim's. */
    usleep(m->how == SILENCE ? 1500000 : 500000);
    ls_store_close(store);
    return NULL;
}

static void meet(int victim, fate how, bool in_folder) {
    meeting m = {.listener = -1, .size = 3, .victim = victim, .how = how};
    if (in_folder) {
        snprintf(m.url, sizeof m.url, "file://%s", test_path("meet"));
    } else {
        const ls_address any = {.host = "127.0.0.1"};
        assert_int_equal(ls_socket_listen(&any, false, &m.listener), LS_OK);
        snprintf(m.url, sizeof m.url, "tcp://127.0.0.1:%d", ls_socket_port(m.listener));
    }
    processes_run(m.size, come, &m, how == SILENCE ? 0 : 1U << victim);
    if (m.listener >= 0) {
        close(m.listener);
    }
}

/* Rank 0 waits for rank 1 to connect, and rank 2 for rank 1 to let it in; or both for rank 2 to connect. */
static void a_death_while_connecting_is_seen(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    for (int in_folder = 0; in_folder < 2; in_folder++) {
        meet(1, DIES, in_folder != 0);
        meet(2, DIES, in_folder != 0);
    }
}

static void silence_while_connecting_ends_at_the_timeout(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    meet(1, SILENCE, false);
}

static const char *lonely_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world == NULL && failed_with(LS_ERR_TIMEOUT, "ls_comm_open: rank 2 did not say where it listens within"));
    usleep(rank == 0 ? 1000000 : 0); /* it serves the store, without which the other is told something else */
    return NULL;
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    ls_forks forks;
    ls_forks_start(&forks, 3, 1U << 2, SILENT, lonely_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
}

int main(void) {
    unsetenv("LOCKSTEP_KEY");
    setenv("LOCKSTEP_TEST_BACKEND", "gloo", 1);
    ended = mmap(NULL, sizeof *ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_connections_keep_nobody_out),
        cmocka_unit_test(guesses_and_repetitions_are_turned_away),
        cmocka_unit_test(a_death_while_connecting_is_seen),
        cmocka_unit_test(silence_while_connecting_ends_at_the_timeout),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
