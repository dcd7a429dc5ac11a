/*
 * Damaged bytes, and all code that reads foreign bytes: the messages of the TCP store, the announcement of the folder
 * store, and a live server.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/store.h"
#include "comm/store_announcement.h"
#include "comm/store_roster.h"
#include "tests/support/fuzz.h"
#include "tests/support/processes.h"

enum { ROUNDS = 20000, LIVE_ROUNDS = 300, CLIENT_ROUNDS = 80, ROOM = 768 };

/* Makes a valid request. The operations take turns. */
static size_t make_request(size_t number, uint8_t *bytes) {
    static char endless[sizeof(ls_peer_info)]; /* a rank's peer information, whose strings are not null-terminated */
    memset(endless, 'x', sizeof endless);
    const ls_store_request requests[] = {
        {.operation = LS_STORE_SET, .key = {"key", 3}, .value = {"value", 5}},
        {.operation = LS_STORE_GET, .key = {"key", 3}, .timeout = 1},
        {.operation = LS_STORE_ADD, .key = {"n", 1}, .amount = -3},
        {.operation = LS_STORE_WAIT, .key = {"key", 3}, .timeout = 1},
        {.operation = LS_STORE_COMPARE_SET, .key = {"key", 3}, .expected = {"value", 5}, .value = {"new", 3}},
        {.operation = LS_STORE_JOIN, .value = {endless, sizeof endless}, .amount = (1LL << 32) | 2},
        {.operation = LS_STORE_LEAVE},
    };
    _Static_assert(sizeof requests / sizeof *requests == LS_STORE_OPERATION_END - 1, "one request of each operation");
    const ls_store_request *request = &requests[number % (sizeof requests / sizeof *requests)];
    ls_request_encode(request, bytes);
    return ls_request_size(request);
}

static bool lies_in(ls_bytes part, const uint8_t *bytes, size_t size) {
    const uint8_t *data = part.data;
    return data >= bytes && part.size <= size && data + part.size <= bytes + size;
}

TEST(test_right_messages) {
    uint8_t bytes[ROOM];
    for (size_t i = 0; i < 7; i++) {
        size_t body;
        ls_store_request request;
        const size_t size = make_request(i, bytes);
        assert_int_equal(ls_frame_size(bytes, LS_REQUEST_FIXED, LS_REQUEST_MAX, &body), LS_OK);
        assert_int_equal(body, size - LS_FRAME_HEADER);
        assert_int_equal(ls_request_decode(bytes + LS_FRAME_HEADER, body, &request), LS_OK);
        uint8_t again[ROOM];
        assert_int_equal(ls_request_size(&request), size);
        ls_request_encode(&request, again);
        if (request.operation != LS_STORE_GET && request.operation != LS_STORE_WAIT) {
            assert_memory_equal(bytes, again, size);
        }
    }
    const ls_store_reply reply = {.status = LS_ERR_PEER, .number = INT64_MIN, .value = {"why", 3}};
    ls_store_reply read;
    ls_reply_encode(&reply, bytes);
    assert_int_equal(ls_reply_decode(bytes + LS_FRAME_HEADER, LS_REPLY_FIXED + 3, &read), LS_OK);
    assert_int_equal(read.status, LS_ERR_PEER);
    assert_true(read.number == INT64_MIN);
    assert_memory_equal(read.value.data, "why", 3);
}

/* Counts of damaged messages by result. */
typedef struct tally {
    size_t accepted, refused;
} tally;

static void assert_both(const tally *counts, uint64_t rounds) {
    assert_true(rounds < ROUNDS || (counts->accepted > rounds / 20 && counts->refused > rounds / 20));
}

static void damage_request(uint64_t number, void *argument) {
    tally *counts = argument;
    uint8_t bytes[ROOM];
    const size_t size = make_request(number, bytes) - LS_FRAME_HEADER;
    memmove(bytes, bytes + LS_FRAME_HEADER, size);
    const size_t damaged = fuzz_mutate(bytes, size, ROOM);
    uint8_t *exact = malloc(damaged > 0 ? damaged : 1); /* so that a sanitizer detects the first byte beyond the end */
    memcpy(exact, bytes, damaged);
    ls_store_request request;
    if (ls_request_decode(exact, damaged, &request) == LS_OK) {
        counts->accepted++;
        assert_true(lies_in(request.key, exact, damaged) && lies_in(request.value, exact, damaged) &&
                    lies_in(request.expected, exact, damaged));
        assert_int_equal(ls_request_size(&request), LS_FRAME_HEADER + damaged);
        assert_true(request.key.size <= LS_STORE_KEY_MAX);
    } else {
        counts->refused++;
        assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
        assert_true(strlen(ls_error_message()) > 10);
    }
    free(exact);
}

/* If the parser accepts damaged bytes, the parsed fields lie within these bytes and are valid. If it rejects them, the
 * error has a reason. */
TEST(test_damaged_messages) {
    tally counts = {0};
    assert_both(&counts, fuzz_run("requests", ROUNDS, damage_request, &counts));
}

static void damage_reply(uint64_t number, void *argument) {
    tally *counts = argument;
    uint8_t bytes[ROOM];
    const ls_store_reply reply = {.status = LS_OK, .number = (int64_t)number, .value = {"some value", number % 11}};
    ls_reply_encode(&reply, bytes);
    const size_t damaged = fuzz_mutate(bytes, ls_reply_size(&reply), ROOM);
    size_t body;
    ls_store_reply read;
    counts->refused++;
    if (damaged >= LS_FRAME_HEADER && ls_frame_size(bytes, LS_REPLY_FIXED, LS_REPLY_MAX, &body) == LS_OK) {
        assert_true(body >= LS_REPLY_FIXED && body <= LS_REPLY_MAX);
        if (body <= damaged - LS_FRAME_HEADER && ls_reply_decode(bytes + LS_FRAME_HEADER, body, &read) == LS_OK) {
            counts->refused--;
            counts->accepted++;
            assert_true(lies_in(read.value, bytes, damaged));
            assert_true(read.status >= LS_OK && read.status <= LS_ERR_DEVICE);
        }
    }
}

TEST(test_damaged_replies) {
    tally counts = {0};
    assert_both(&counts, fuzz_run("replies", ROUNDS, damage_reply, &counts));
}

static void damage_hello(uint64_t number, void *argument) {
    (void)argument;
    uint8_t bytes[ROOM] = {0}, again[ROOM] = {0};
    ls_hello hello = {.keyed = number % 2}, read;
    const bool client = number / 2 % 2 == 0;
    const size_t size = client ? LS_PROVEN_HELLO_SIZE : LS_HELLO_SIZE;
    memset(hello.nonce, (int)(number % 256), sizeof hello.nonce);
    ls_build_write(hello.build);
    ls_hello_encode(&hello, client, bytes);
    fuzz_mutate(bytes, size, ROOM);
    if (ls_hello_decode(bytes, client, &read) == LS_OK) {
        ls_hello_encode(&read, client, again);
        assert_memory_equal(bytes, again, size);
    }
}

TEST(test_damaged_hellos) {
    fuzz_run("hellos", ROUNDS, damage_hello, NULL);
}

typedef struct announced {
    char text[LS_ANNOUNCEMENT_CAPACITY];
    size_t size;
} announced;

/*
 * Serializing the parsed announcement gives the same bytes, and a different secret or host means a different key or
 * address.
 */
static void damage_announcement(uint64_t number, void *argument) {
    (void)number;
    const announced *right = argument;
    ls_announcement read;
    uint8_t bytes[ROOM];
    char again[LS_ANNOUNCEMENT_CAPACITY];
    memcpy(bytes, right->text, right->size);
    const size_t damaged = fuzz_mutate(bytes, right->size, ROOM);
    if (ls_announcement_read((char *)bytes, damaged, &read) == LS_OK) {
        assert_int_equal(ls_announcement_write(&read, again), damaged);
        assert_memory_equal(again, bytes, damaged);
    } else {
        assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    }
}

TEST(test_damaged_announcements) {
    static const char *const hosts[] = {"10.0.0.3", "fe80::1%eth0", "a-host.of-a.cluster"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        ls_announcement right = {.address.port = 4711, .keyed = i == 1}, read, other;
        ls_key none = {.size = 0}, given, key, same, another;
        announced text;
        snprintf(right.address.host, sizeof right.address.host, "%s", hosts[i]);
        assert_int_equal(ls_auth_nonce(right.secret), LS_OK);
        text.size = ls_announcement_write(&right, text.text);
        assert_int_equal(ls_announcement_read(text.text, text.size, &read), LS_OK);
        assert_string_equal(read.address.host, hosts[i]);
        assert_int_equal(read.address.port, 4711);
        assert_int_equal(read.keyed, right.keyed);
        assert_memory_equal(read.secret, right.secret, sizeof right.secret);
        assert_int_equal(ls_key_read(&given, "a key that is long"), LS_OK);
        ls_announcement_key(&right, &given, &key);
        ls_announcement_key(&read, &given, &same);
        ls_announcement_key(&right, &none, &another);
        assert_memory_equal(key.bytes, same.bytes, key.size);
        assert_memory_not_equal(key.bytes, another.bytes, key.size);
        other = right;
        other.secret[5] ^= 1;
        ls_announcement_key(&other, &given, &another);
        assert_memory_not_equal(key.bytes, another.bytes, key.size);
        fuzz_run("announcements", ROUNDS, damage_announcement, &text);
    }
}

static void ignore_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)line;
    (void)user;
}

/* A running store server, and its clients. */
typedef struct served {
    ls_address address;
    ls_key key;
} served;

/*
 * A client that greets correctly or incorrectly and then sends damaged requests. It reads all replies until the
 * connection is closed.
 */
static void annoy(uint64_t round, void *argument) {
    const served *there = argument;
    int fd;
    bool retry;
    const ls_deadline deadline = ls_deadline_after(20);
    uint8_t bytes[ROOM];
    ls_hello server, own;
    assert_int_equal(ls_socket_connect(&there->address, true, deadline, &fd, &retry), LS_OK);
    assert_int_equal(ls_socket_receive(fd, bytes, LS_HELLO_SIZE, deadline), LS_OK);
    assert_int_equal(ls_hello_decode(bytes, false, &server), LS_OK);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_prove(&own, &there->key, "client", server.nonce);
    ls_hello_encode(&own, true, bytes);
    size_t size = LS_PROVEN_HELLO_SIZE;
    if (round % 4 == 0) {
        size = fuzz_mutate(bytes, size, ROOM);
    }
    ls_status status = ls_socket_send(fd, bytes, size, deadline);
    for (size_t i = 0; i < 3 && status == LS_OK; i++) {
        size = fuzz_mutate(bytes, make_request(round + i, bytes), ROOM);
        status = ls_socket_send(fd, bytes, size, deadline);
    }
    shutdown(fd, SHUT_WR);
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) != 0) { /* the server closes every such connection */
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (poll(&item, 1, 20000) == 0) {
            fail_msg("the server neither answers nor closes");
        }
        if (item.revents & (POLLHUP | POLLERR)) {
            break;
        }
    }
    close(fd);
}

TEST(test_live_server) {
    served there = {.address.host = "127.0.0.1"};
    ls_log_set_sink(ignore_line, NULL);
    assert_int_equal(ls_key_read(&there.key, "key"), LS_OK);
    ls_store *store =
        ls_store_open("tcp://127.0.0.1:0", &(ls_store_options){.serve = true, .timeout = 20, .key = "key"});
    assert_non_null(store);
    there.address.port = ls_store_port(store);
    fuzz_run("a live server", LIVE_ROUNDS, annoy, &there);
    assert_int_equal(ls_store_set(store, "still", "here", 4), LS_OK);
    ls_store_close(store);
    ls_log_set_sink(NULL, NULL);
}

/* ---- a false server ---------------------------------------------------------------------------------------------- */

/* A server on a separate thread. It greets more or less correctly, answers with damaged bytes and closes the
 * connection. */
typedef struct fool {
    ls_key key;
    int listener;
    int stop; /* becomes readable when no more clients will connect */
    uint64_t number;
} fool;

/* One client. */
static void mislead(const fool *self, int fd) {
    uint8_t bytes[ROOM];
    ls_hello own, client;
    const ls_deadline deadline = ls_deadline_after(20);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_encode(&own, false, bytes);
    size_t size = LS_HELLO_SIZE;
    if (self->number % 3 == 0) {
        size = fuzz_mutate(bytes, size, ROOM);
    }
    if (ls_socket_send(fd, bytes, size, deadline) != LS_OK ||
        ls_socket_receive(fd, bytes, LS_PROVEN_HELLO_SIZE, ls_deadline_after(0.2)) != LS_OK ||
        ls_hello_decode(bytes, true, &client) != LS_OK) {
        return;
    }
    ls_hello_prove(&own, &self->key, "server", client.nonce);
    const ls_store_reply reply = {.status = LS_OK, .value = {own.proof, sizeof own.proof}};
    ls_reply_encode(&reply, bytes);
    size = ls_reply_size(&reply);
    size = self->number % 3 == 1 ? fuzz_mutate(bytes, size, ROOM) : size;
    (void)ls_socket_send(fd, bytes, size, deadline);
    ls_reply_encode(&(ls_store_reply){.status = LS_OK, .number = 7, .value = {"value", 5}}, bytes);
    size = fuzz_mutate(bytes, LS_FRAME_HEADER + LS_REPLY_FIXED + 5, ROOM);
    (void)ls_socket_send(fd, bytes, size, deadline);
}

static void *mislead_all(void *argument) {
    const fool *self = argument;
    struct pollfd polls[2] = {{.fd = self->listener, .events = POLLIN}, {.fd = self->stop, .events = POLLIN}};
    while (poll(polls, 2, -1) > 0 && polls[1].revents == 0) {
        const int fd = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            mislead(self, fd);
            close(fd);
        }
    }
    return NULL;
}

/* A client of a server that sends arbitrary bytes gets an error or an answer in time. */
static void be_misled(uint64_t number, void *argument) {
    tally *counts = argument;
    fool server = {.number = number};
    pthread_t thread;
    int ends[2];
    char url[64], value[16] = "";
    size_t size = 0;
    const ls_address any = {.host = "127.0.0.1"};
    assert_int_equal(ls_key_read(&server.key, "key"), LS_OK);
    assert_int_equal(ls_socket_listen(&any, true, &server.listener), LS_OK);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    server.stop = ends[0];
    assert_int_equal(pthread_create(&thread, NULL, mislead_all, &server), 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ls_socket_port(server.listener));
    const double start = ls_clock_seconds();
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = 0.2, .key = "key"});
    const ls_status status = store == NULL ? ls_error_status() : ls_store_get(store, "key", value, sizeof value, &size);
    const double took = ls_clock_seconds() - start;
    counts->refused += status != LS_OK;
    assert_true(status == LS_OK || strlen(ls_error_message()) > 10);
    assert_true(size <= sizeof value);
    assert_true(took < 10);
    ls_store_close(store);
    assert_int_equal(write(ends[1], "", 1), 1);
    pthread_join(thread, NULL);
    close(ends[0]);
    close(ends[1]);
    close(server.listener);
}

TEST(test_foolish_server) {
    tally counts = {0};
    const uint64_t rounds = fuzz_run("a foolish server", CLIENT_ROUNDS, be_misled, &counts);
    assert_true(rounds < CLIENT_ROUNDS || counts.refused > rounds / 4);
}

/* A foreign listener may send any bytes: its text does not reach a terminal unchanged. */
static const char *rude_server(int listener, const void *key) {
    static const char words[] = "\033]0;owned\a\033[2Jall is well\n\xc2\x9b"
                                "1A";
    uint8_t bytes[ROOM];
    ls_hello own;
    (void)key;
    (void)poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, -1);
    const int fd = accept(listener, NULL, NULL);
    LS_MUST(fd >= 0);
    LS_MUST(ls_hello_make(&own, true) == LS_OK);
    ls_hello_encode(&own, false, bytes);
    LS_MUST(ls_socket_send(fd, bytes, LS_HELLO_SIZE, ls_deadline_after(20)) == LS_OK);
    LS_MUST(ls_socket_receive(fd, bytes, LS_PROVEN_HELLO_SIZE, ls_deadline_after(20)) == LS_OK);
    const ls_store_reply reply = {.status = LS_ERR_DENIED, .value = {words, sizeof words - 1}};
    ls_reply_encode(&reply, bytes);
    LS_MUST(ls_socket_send(fd, bytes, ls_reply_size(&reply), ls_deadline_after(20)) == LS_OK);
    close(fd);
    return NULL;
}

TEST(test_rude_server) {
    int listener;
    char url[64];
    const ls_address any = {.host = "127.0.0.1"};
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ls_socket_port(listener));
    const pid_t server = process_start(rude_server, listener, NULL);
    assert_null(ls_store_open(url, &(ls_store_options){.timeout = 20, .key = "key"}));
    assert_true(failed_with(LS_ERR_DENIED, "?]0;owned??[2Jall is well??1A"));
    assert_int_equal(process_wait(server), 0);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_messages),        cmocka_unit_test(test_damaged_messages),
        cmocka_unit_test(test_damaged_replies),       cmocka_unit_test(test_damaged_hellos),
        cmocka_unit_test(test_damaged_announcements), cmocka_unit_test(test_live_server),
        cmocka_unit_test(test_foolish_server),        cmocka_unit_test(test_rude_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
