/*
 * How the ranks of backend gloo get connected: a rank that does not come, or is silent, is named after the timeout, one
 * that dies meanwhile at once, and what is connected in place of a rank without being of the job is refused. With real
 * processes.
 */
#include "tests/support/unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/store.h"
#include "tests/support/forks.h"

#define LONG_TIMEOUT 60.0 /* a timeout that no test waits for */
#define SILENT       1.5  /* one that a test waits for */
#define AT_ONCE      10.0 /* what the contract's second may become on a busy machine */

static bool no_gloo(void) {
    return ls_backend_find("gloo") == NULL;
}

/* ---- ranks that die or are silent ----------------------------------------------------------------------------------
 */

typedef enum fate { DIES_BEFORE, DIES, SILENCE } fate; /* before it told the others where it listens, or after */

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
                                  .key = "the key of this meeting",
                                  .listener = rank == 0 ? m->listener : -1};
    if (rank != 0 && m->listener >= 0) {
        close(m->listener);
    }
    ls_store *store = ls_store_open_at(&place);
    return store != NULL && ls_store_join(store, rank, m->size, &card, cards) == LS_OK ? store : NULL;
}

/* Tells as its own what rank 0 told under this name, with another port. */
static const char *tell_as_own(ls_store *store, const char *name, int rank, uint16_t port) {
    static unsigned char told[1 << 16];
    const unsigned char local[4] = {127, 0, 0, 1};
    char key[64];
    size_t size = 0;
    snprintf(key, sizeof key, "test/gloo/%s0", name);
    LS_MUST(ls_store_get(store, key, told, sizeof told, &size) == LS_OK);
    for (size_t i = 4; i + 4 <= size; i++) { /* an address: family, port, host */
        if (memcmp(told + i, local, sizeof local) == 0) {
            memcpy(told + i - 2, &port, sizeof port);
        }
    }
    snprintf(key, sizeof key, "test/gloo/%s%d", name, rank);
    LS_MUST(ls_store_set(store, key, told, size) == LS_OK);
    snprintf(key, sizeof key, "test/gloo/%s%d?", name, rank);
    LS_MUST(ls_store_add(store, key, 1, NULL) == LS_OK);
    return NULL;
}

/* Says where it listens, and neither connects nor lets anybody in. */
static const char *half_come(ls_store *store, const meeting *m) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    LS_MUST(bind(listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(listener, 16) == 0);
    LS_MUST(getsockname(listener, (struct sockaddr *)&here, &length) == 0);
    if (m->how != DIES_BEFORE) {
        const char *wrong = tell_as_own(store, "rank_", m->victim, here.sin_port);
        wrong = wrong == NULL ? tell_as_own(store, "", m->victim, here.sin_port) : wrong;
        LS_MUST(wrong == NULL);
    }
    usleep(m->how == SILENCE ? 4000000 : 300000);
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
    usleep(m->how == SILENCE ? 2500000 : 500000);
    ls_store_close(store);
    return NULL;
}

static void meet(int victim, fate how) {
    meeting m = {.listener = -1, .size = 2, .victim = victim, .how = how};
    const ls_address any = {.host = "127.0.0.1"};
    assert_int_equal(ls_socket_listen(&any, false, &m.listener), LS_OK);
    snprintf(m.url, sizeof m.url, "tcp://127.0.0.1:%d", ls_socket_port(m.listener));
    processes_run(m.size, come, &m, how == SILENCE ? 0 : 1U << victim);
    close(m.listener);
}

/* Which of two ranks connects to which depends on their ports: several times. */
static void a_death_while_connecting_is_seen(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    meet(1, DIES_BEFORE);
    for (int i = 0; i < 6; i++) {
        meet(1, DIES);
    }
}

static void silence_while_connecting_ends_at_the_timeout(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    meet(1, SILENCE);
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

/* ---- who is not of the job -----------------------------------------------------------------------------------------
 */

/* Either learns it by itself, or that the other refuses it. */
static const char *deceived_rank(ls_comm *world, int rank, const void *argument) {
    char name[64];
    (void)argument;
    snprintf(name, sizeof name, "in place of rank %d is not of this job", 1 - rank);
    LS_MUST(world == NULL && (failed_with(LS_ERR_DENIED, name) || (rank == 1 && failed_with(LS_ERR_PEER, "rank 0"))));
    usleep(rank == 0 ? 1000000 : 0);
    return NULL;
}

/* Rank 1 is given another secret of rank 0 than the true one, as somebody would have to guess it. */
static void without_the_secrets_nobody_is_let_in(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    static unsigned char told[1 << 16];
    char url[128];
    size_t size = 0;
    ls_forks forks;
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, deceived_rank, NULL);
    snprintf(url, sizeof url, "file://%s", forks.folder);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = LONG_TIMEOUT});
    assert_non_null(store);
    assert_int_equal(ls_store_get(store, "test/gloo/0", told, sizeof told, &size), LS_OK);
    told[size - 1] ^= 1;
    assert_int_equal(ls_store_set(store, "test/gloo/0", told, size), LS_OK);
    ls_forks_start_late(&forks, 1);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_store_close(store);
    ls_forks_end(&forks);
}

int main(void) {
    unsetenv("LOCKSTEP_KEY");
    setenv("LOCKSTEP_TEST_BACKEND", "gloo", 1);
    ended = mmap(NULL, sizeof *ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_while_connecting_is_seen),
        cmocka_unit_test(silence_while_connecting_ends_at_the_timeout),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(without_the_secrets_nobody_is_let_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
