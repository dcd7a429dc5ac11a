/*
 * How the launchers of a multi-machine job connect under difficult conditions: many unauthenticated connections while a
 * launcher greets, a node 0 that closes a connection, and a node 0 that is stopped. tests/shell/several_nodes.sh tests
 * normal jobs and other errors of launchers.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "cli/node_message.c" /* the command's code is not in a library */
#include "cli/nodes.c"

#include <pthread.h>
#include <sys/resource.h>

#include "tests/support/fuzz.h"
#include "tests/support/unauthenticated.h"

#define KEY "the secret of this job"

enum { CROWD = 3 * MOST_PENDING };

typedef struct plan {
    char rendezvous[32];
    double timeout;
} plan;

static ls_nodes_options options_of(const plan *p, int node) {
    return (ls_nodes_options){
        .nodes = 2, .node = node, .ranks = 1, .rendezvous = p->rendezvous, .key = KEY, .timeout = p->timeout};
}

/* ---- launchers driven by hand ------------------------------------------------------------------------------------ */

static int connect_to(int port, double timeout) {
    const ls_address address = {.host = "127.0.0.1", .port = port};
    const ls_deadline deadline = ls_deadline_after(timeout);
    int connection = -1;
    bool retry = true;
    while (retry && ls_socket_connect(&address, true, deadline, &connection, &retry) != LS_OK) {
        assert_true(retry && !ls_deadline_passed(deadline));
        usleep(1000);
    }
    return connection;
}

static void hear(int connection, void *bytes, size_t size) {
    assert_int_equal(ls_socket_receive(connection, bytes, size, ls_deadline_after(20)), LS_OK);
}

static void tell(int connection, const void *bytes, size_t size) {
    assert_int_equal(ls_socket_send(connection, bytes, size, ls_deadline_after(20)), LS_OK);
}

/* ---- many connections -------------------------------------------------------------------------------------------- */

static const char *gathers(int number, const void *what) {
    ls_nodes *nodes = NULL;
    (void)number;
    const ls_nodes_options options = options_of(what, 0);
    LS_MUST(ls_nodes_open(&options, &nodes) == LS_OK);
    ls_nodes_close(nodes);
    return NULL;
}

/* A connection from an address of its own has enough time for its proof, although other connections occupy all
 * slots. */
TEST(a_crowd_pushes_out_nobody_who_greets) {
    plan p = {.timeout = 60};
    int crowd[CROWD];
    uint8_t bytes[LS_PROVEN_HELLO_SIZE], reply[LS_FRAME_HEADER + LS_REPLY_FIXED + LS_PROOF_SIZE];
    uint8_t frame[LS_NODE_FRAME];
    ls_hello theirs, own;
    ls_key key;
    const int port = free_port();
    snprintf(p.rendezvous, sizeof p.rendezvous, "127.0.0.1:%d", port);
    const pid_t zero = process_start(gathers, 0, &p);
    const int launcher = connect_to(port, 20);
    hear(launcher, bytes, LS_HELLO_SIZE);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = connect_from("127.0.0.2", port);
        assert_true(crowd[i] >= 0);
    }
    usleep(1200000); /* meanwhile, node 0 can process all connections */
    assert_int_equal(ls_key_read(&key, KEY), LS_OK);
    assert_int_equal(ls_hello_decode(bytes, false, &theirs), LS_OK);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_prove(&own, &key, "client", theirs.nonce);
    ls_hello_encode(&own, true, bytes);
    tell(launcher, bytes, sizeof bytes);
    hear(launcher, reply, sizeof reply);
    tell(launcher, frame,
         ls_node_message_write(&(ls_node_message){.word = LS_NODE_JOIN, .numbers = {1, 2, 1}, .text = "here"}, frame));
    assert_int_equal(process_wait(zero), 0);
    close(launcher);
    for (int i = 0; i < CROWD; i++) {
        close(crowd[i]);
    }
}

/* Silent connections that occupied all slots first are closed to make room. */
TEST(a_crowd_keeps_nobody_out) {
    plan p = {.timeout = 60};
    int crowd[CROWD];
    const int port = free_port();
    ls_nodes *nodes = NULL;
    snprintf(p.rendezvous, sizeof p.rendezvous, "127.0.0.1:%d", port);
    const pid_t zero = process_start(gathers, 0, &p);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = connect_to(port, 20);
    }
    const double start = ls_clock_seconds();
    const ls_nodes_options options = options_of(&p, 1);
    assert_int_equal(ls_nodes_open(&options, &nodes), LS_OK);
    assert_true(ls_clock_seconds() - start < 15);
    ls_nodes_close(nodes);
    assert_int_equal(process_wait(zero), 0);
    for (int i = 0; i < CROWD; i++) {
        close(crowd[i]);
    }
}

/* ---- a faulty node 0 --------------------------------------------------------------------------------------------- */

/* Connects to the test, which acts as node 0, and waits for the start, which never comes. */
static const char *waits_in_vain(int number, const void *what) {
    ls_nodes *nodes = NULL;
    ls_start start;
    (void)number;
    const ls_nodes_options options = options_of(what, 1);
    LS_MUST(ls_nodes_open(&options, &nodes) == LS_OK);
    const double begin = ls_clock_seconds();
    LS_MUST(ls_nodes_start(nodes, 0, &start) == LS_ERR_TIMEOUT);
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "lockstep run: node 0 at 127.0.0.1:"));
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "neither started the job nor sent a message within 1 s"));
    const double took = ls_clock_seconds() - begin;
    LS_MUST(took >= 1.0 && took < 10.0);
    ls_nodes_close(nodes);
    return NULL;
}

/* Greets as node 0. Then closes the connection instead of sending the proof, or sends the proof. */
static int greet_one(int listener, const ls_key *key, bool hang_up) {
    uint8_t bytes[LS_PROVEN_HELLO_SIZE];
    uint8_t answer[LS_FRAME_HEADER + LS_REPLY_FIXED + LS_PROOF_SIZE];
    ls_hello theirs, own;
    assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 20000), 1);
    const int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_encode(&own, false, bytes);
    tell(client, bytes, LS_HELLO_SIZE);
    hear(client, bytes, sizeof bytes);
    assert_int_equal(ls_hello_decode(bytes, true, &theirs), LS_OK);
    if (hang_up) {
        close(client);
        return -1;
    }
    ls_hello_prove(&own, key, "server", theirs.nonce);
    ls_reply_encode(&(ls_store_reply){.status = LS_OK, .value = {own.proof, sizeof own.proof}}, answer);
    tell(client, answer, sizeof answer);
    return client;
}

TEST(a_node_0_that_hangs_up_and_one_that_is_silent) {
    plan p = {.timeout = 1};
    const ls_address any = {.host = "127.0.0.1"};
    ls_key key;
    int listener;
    assert_int_equal(ls_key_read(&key, KEY), LS_OK);
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    snprintf(p.rendezvous, sizeof p.rendezvous, "127.0.0.1:%d", ls_socket_port(listener));
    const pid_t one = process_start(waits_in_vain, 1, &p);
    assert_int_equal(greet_one(listener, &key, true), -1);
    const int client = greet_one(listener, &key, false);
    assert_int_equal(process_wait(one), 0);
    close(client);
    close(listener);
}

/* ---- damaged messages -------------------------------------------------------------------------------------------- */

enum { FUZZED_NODES = 4, TO_NODE_0 = 300, FROM_NODE_0 = 60 };

static const ls_node_message said[] = {
    {.word = LS_NODE_JOIN, .numbers = {1, FUZZED_NODES, 1}, .text = "here"},
    {.word = LS_NODE_NEWS, .text = "waiting for node 3 of 4"},
    {.word = LS_NODE_START, .numbers = {0, 1, 2}, .text = "00112233445566778899aabbccddeeff"},
    {.word = LS_NODE_FAILED, .numbers = {9, 4711, 256, 1}, .text = "host"},
    {.word = LS_NODE_REFUSED, .text = "node 1 is taken"},
    {.word = LS_NODE_OVER, .numbers = {1}},
};

/*
 * Connects to node 0 with the key. In some rounds, all its messages, including the hello, are damaged; in others, only
 * those after the hello.
 */
static void damage_to_node_0(uint64_t number, void *argument) {
    const int *port = argument;
    uint8_t bytes[LS_NODE_FRAME];
    ls_hello theirs, own;
    ls_key key;
    const int connection = connect_to(*port, 20);
    hear(connection, bytes, LS_HELLO_SIZE);
    assert_int_equal(ls_key_read(&key, KEY), LS_OK);
    assert_int_equal(ls_hello_decode(bytes, false, &theirs), LS_OK);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_prove(&own, &key, "client", theirs.nonce);
    ls_hello_encode(&own, true, bytes);
    size_t size = number % 4 == 0 ? fuzz_mutate(bytes, LS_PROVEN_HELLO_SIZE, sizeof bytes) : LS_PROVEN_HELLO_SIZE;
    ls_status status = ls_socket_send(connection, bytes, size, ls_deadline_after(20));
    for (int i = 0; i < 3 && status == LS_OK; i++) {
        const ls_node_message *message = &said[i > 0 ? fuzz_below(sizeof said / sizeof *said) : 0];
        size = fuzz_mutate(bytes, ls_node_message_write(message, bytes), sizeof bytes);
        status = ls_socket_send(connection, bytes, size, ls_deadline_after(20));
    }
    shutdown(connection, SHUT_WR);
    struct pollfd item = {.fd = connection, .events = POLLIN};
    while (poll(&item, 1, 40000) == 1 && recv(connection, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    if (item.revents == 0) {
        fail_msg("node 0 neither answers nor closes");
    }
    close(connection);
}

static const char *gathers_four(int number, const void *what) {
    ls_nodes *nodes = NULL;
    (void)number;
    ls_nodes_options options = options_of(what, 0);
    options.nodes = FUZZED_NODES;
    LS_MUST(ls_nodes_open(&options, &nodes) == LS_OK);
    ls_nodes_close(nodes);
    return NULL;
}

static const char *comes_as_one_of_four(int number, const void *what) {
    ls_nodes *nodes = NULL;
    ls_nodes_options options = options_of(what, number);
    options.nodes = FUZZED_NODES;
    LS_MUST(ls_nodes_open(&options, &nodes) == LS_OK);
    while (poll(&(struct pollfd){.fd = nodes->others[0].link->fd, .events = POLLRDHUP}, 1, -1) <= 0) {
    } /* waits until node 0 has received all bytes */
    ls_nodes_close(nodes);
    return NULL;
}

/* Whatever bytes launchers send, node 0 continues, and correct launchers can still join. */
TEST(damaged_messages_to_node_0) {
    plan p = {.timeout = 3600};
    pid_t others[FUZZED_NODES];
    int port = free_port();
    snprintf(p.rendezvous, sizeof p.rendezvous, "127.0.0.1:%d", port);
    const pid_t zero = process_start(gathers_four, 0, &p);
    fuzz_run("messages to node 0", TO_NODE_0, damage_to_node_0, &port);
    for (int i = 1; i < FUZZED_NODES; i++) {
        others[i] = process_start(comes_as_one_of_four, i, &p);
    }
    assert_int_equal(process_wait(zero), 0);
    for (int i = 1; i < FUZZED_NODES; i++) {
        assert_int_equal(process_wait(others[i]), 0);
    }
}

/* A node 0 that greets correctly and then sends arbitrary bytes. */
static void *say_anything(void *argument) {
    const int *listener = argument;
    uint8_t bytes[LS_NODE_FRAME];
    ls_key key;
    assert_int_equal(ls_key_read(&key, KEY), LS_OK);
    const int client = greet_one(*listener, &key, false);
    for (int i = 0; i < 3; i++) {
        const size_t whole = ls_node_message_write(&said[fuzz_below(sizeof said / sizeof *said)], bytes);
        const size_t size = fuzz_mutate(bytes, whole, sizeof bytes);
        if (ls_socket_send(client, bytes, size, ls_deadline_after(20)) != LS_OK) {
            break;
        }
    }
    close(client);
    return NULL;
}

static void damage_from_node_0(uint64_t number, void *argument) {
    (void)number;
    (void)argument;
    plan p = {.timeout = 10};
    const ls_address any = {.host = "127.0.0.1"};
    int listener;
    pthread_t thread;
    ls_nodes *nodes = NULL;
    ls_start started;
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    snprintf(p.rendezvous, sizeof p.rendezvous, "127.0.0.1:%d", ls_socket_port(listener));
    assert_int_equal(pthread_create(&thread, NULL, say_anything, &listener), 0);
    const ls_nodes_options options = options_of(&p, 1);
    const ls_status opened = ls_nodes_open(&options, &nodes);
    if (opened == LS_OK) {
        const ls_status status = ls_nodes_start(nodes, 0, &started);
        assert_true(status == LS_OK || strlen(ls_error_message()) > 10);
    }
    pthread_join(thread, NULL);
    ls_nodes_close(nodes);
    close(listener);
    assert_int_equal(opened, LS_OK);
}

TEST(damaged_messages_from_node_0) {
    fuzz_run("messages from node 0", FROM_NODE_0, damage_from_node_0, NULL);
}

int main(void) {
    struct rlimit files; /* the connections need more descriptors than the default limit */
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max < 2 * CROWD) {
        return 1;
    }
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    unsetenv("LOCKSTEP_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_pushes_out_nobody_who_greets),
        cmocka_unit_test(a_crowd_keeps_nobody_out),
        cmocka_unit_test(a_node_0_that_hangs_up_and_one_that_is_silent),
        cmocka_unit_test(damaged_messages_to_node_0),
        cmocka_unit_test(damaged_messages_from_node_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
