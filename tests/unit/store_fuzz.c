/*
 * Damaged bytes against everything that reads bytes of others: the messages of the TCP store, the announcement of the
 * store in a folder, and a live server. Mutations come from the library's own generator, so every run is the same.
 */
#include "tests/support/unit.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/random.h"
#include "comm/store.h"
#include "comm/store_announcement.h"
#include "comm/store_roster.h"
#include "comm/store_server.h"
#include "tests/support/processes.h"

enum { ROUNDS = 20000, LIVE_ROUNDS = 300, CLIENT_ROUNDS = 80, ROOM = 768 };

static uint64_t dice; /* the index of the next random number */

static size_t throw_below(size_t bound) {
    return (size_t)ls_random_below(1, 2, dice++, bound);
}

/* Changes bits, bytes and the length a few times; returns the new size. */
static size_t mutate(uint8_t *bytes, size_t size) {
    static const uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    for (size_t times = 1 + throw_below(4); times > 0; times--) {
        const size_t at = size > 0 ? throw_below(size) : 0;
        switch (throw_below(5)) {
        case 0:
            size = at;
            break;
        case 1:
            if (size < ROOM) {
                memmove(bytes + at + 1, bytes + at, size - at);
                bytes[at] = (uint8_t)throw_below(256);
                size++;
            }
            break;
        case 2:
            bytes[at] = edges[throw_below(sizeof edges)];
            break;
        default:
            bytes[at] ^= (uint8_t)(1U << throw_below(8));
        }
    }
    return size;
}

/* A right request of each operation, one after the other. */
static size_t make_request(size_t number, uint8_t *bytes) {
    static char endless[sizeof(ls_card)]; /* what a rank tells of itself, but with texts that have no end */
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

static void test_right_messages(void **state) {
    (void)state;
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

/* What is read from damaged bytes lies within them and keeps the rules; whatever is refused has a reason. */
static void test_damaged_messages(void **state) {
    (void)state;
    size_t accepted = 0, refused = 0;
    for (size_t i = 0; i < ROUNDS; i++) {
        uint8_t bytes[ROOM];
        const size_t size = make_request(i, bytes) - LS_FRAME_HEADER;
        memmove(bytes, bytes + LS_FRAME_HEADER, size);
        const size_t damaged = mutate(bytes, size);
        uint8_t *exact = malloc(damaged > 0 ? damaged : 1); /* so that a sanitizer sees the first byte too far */
        memcpy(exact, bytes, damaged);
        ls_store_request request;
        if (ls_request_decode(exact, damaged, &request) == LS_OK) {
            accepted++;
            assert_true(lies_in(request.key, exact, damaged) && lies_in(request.value, exact, damaged) &&
                        lies_in(request.expected, exact, damaged));
            assert_int_equal(ls_request_size(&request), LS_FRAME_HEADER + damaged);
            assert_true(request.key.size <= LS_STORE_KEY_MAX);
        } else {
            refused++;
            assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
            assert_true(strlen(ls_error_message()) > 10);
        }
        free(exact);
    }
    assert_true(accepted > ROUNDS / 20 && refused > ROUNDS / 20);
}

static void test_damaged_replies(void **state) {
    (void)state;
    size_t accepted = 0;
    for (size_t i = 0; i < ROUNDS; i++) {
        uint8_t bytes[ROOM];
        const ls_store_reply reply = {.status = LS_OK, .number = (int64_t)i, .value = {"some value", i % 11}};
        ls_reply_encode(&reply, bytes);
        const size_t damaged = mutate(bytes, ls_reply_size(&reply));
        size_t body;
        ls_store_reply read;
        if (damaged >= LS_FRAME_HEADER && ls_frame_size(bytes, LS_REPLY_FIXED, LS_REPLY_MAX, &body) == LS_OK) {
            assert_true(body >= LS_REPLY_FIXED && body <= LS_REPLY_MAX);
            if (body <= damaged - LS_FRAME_HEADER && ls_reply_decode(bytes + LS_FRAME_HEADER, body, &read) == LS_OK) {
                accepted++;
                assert_true(lies_in(read.value, bytes, damaged));
                assert_true(read.status >= LS_OK && read.status <= LS_ERR_INTERNAL);
            }
        }
    }
    assert_true(accepted > ROUNDS / 20);
}

static void test_damaged_hellos(void **state) {
    (void)state;
    for (size_t i = 0; i < ROUNDS; i++) {
        uint8_t bytes[ROOM] = {0}, again[ROOM] = {0};
        ls_hello hello = {.keyed = i % 2}, read;
        const bool client = i / 2 % 2 == 0;
        const size_t size = client ? LS_CLIENT_HELLO_SIZE : LS_SERVER_HELLO_SIZE;
        memset(hello.nonce, (int)(i % 256), sizeof hello.nonce);
        ls_hello_encode(&hello, client, bytes);
        mutate(bytes, size);
        if (ls_hello_decode(bytes, client, &read) == LS_OK) {
            ls_hello_encode(&read, client, again);
            assert_memory_equal(bytes, again, size);
        }
    }
}

static void test_damaged_announcements(void **state) {
    (void)state;
    ls_key key;
    ls_announcement announcement, read;
    char text[LS_ANNOUNCEMENT_SIZE + 1], again[LS_ANNOUNCEMENT_SIZE + 1];
    assert_int_equal(ls_key_read(&key, "key"), LS_OK);
    assert_int_equal(ls_announcement_make(&announcement, &key), LS_OK);
    ls_announcement_write(&announcement, text);
    assert_int_equal(strlen(text), LS_ANNOUNCEMENT_SIZE);
    assert_int_equal(ls_announcement_read(text, LS_ANNOUNCEMENT_SIZE, &read), LS_OK);
    assert_int_equal(ls_announcement_check(&read, &key), LS_OK);
    for (size_t i = 0; i < ROUNDS; i++) {
        uint8_t bytes[ROOM];
        memcpy(bytes, text, LS_ANNOUNCEMENT_SIZE);
        const size_t damaged = mutate(bytes, LS_ANNOUNCEMENT_SIZE);
        if (ls_announcement_read((char *)bytes, damaged, &read) == LS_OK) {
            ls_announcement_write(&read, again);
            if (strncasecmp(again, (char *)bytes, LS_ANNOUNCEMENT_SIZE) != 0) { /* hexadecimal digits of either case */
                fail_msg("read as %s", again);
            }
            if (strcmp(again, text) != 0 && memcmp(&read.keyed, &announcement.keyed, sizeof read.keyed) == 0) {
                assert_int_equal(ls_announcement_check(&read, &key), LS_ERR_DENIED);
            }
        }
    }
}

static void ignore_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)line;
    (void)user;
}

/* One client that greets rightly (or not) and then sends damaged requests, reading whatever comes until it is closed.
 */
static void annoy(int listener, const ls_key *key, size_t round) {
    int fd;
    const ls_deadline deadline = ls_deadline_after(20);
    uint8_t bytes[ROOM];
    ls_hello server, own = {.keyed = true};
    assert_int_equal(ls_socket_connect_to_listener(listener, deadline, &fd), LS_OK);
    assert_int_equal(ls_socket_receive(fd, bytes, LS_SERVER_HELLO_SIZE, deadline), LS_OK);
    assert_int_equal(ls_hello_decode(bytes, false, &server), LS_OK);
    ls_auth_prove(key, "client", own.nonce, server.nonce, own.proof);
    ls_hello_encode(&own, true, bytes);
    size_t size = LS_CLIENT_HELLO_SIZE;
    if (round % 4 == 0) {
        size = mutate(bytes, size);
    }
    ls_status status = ls_socket_send(fd, bytes, size, deadline);
    for (size_t i = 0; i < 3 && status == LS_OK; i++) {
        size = mutate(bytes, make_request(round + i, bytes));
        status = ls_socket_send(fd, bytes, size, deadline);
    }
    shutdown(fd, SHUT_WR);
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) != 0) { /* the server ends every such conversation */
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (poll(&item, 1, 20000) == 0) {
            fail_msg("round %zu: the server neither answers nor closes", round);
        }
        if (item.revents & (POLLHUP | POLLERR)) {
            break;
        }
    }
    close(fd);
}

static void test_live_server(void **state) {
    (void)state;
    ls_key key;
    int listener;
    const ls_address any = {.host = "127.0.0.1"};
    ls_log_set_sink(ignore_line, NULL);
    assert_int_equal(ls_key_read(&key, "key"), LS_OK);
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ls_socket_port(listener));
    ls_store_server *server = ls_store_server_start(listener, &key);
    assert_non_null(server);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = 20, .key = "key"});
    assert_non_null(store);
    for (size_t round = 0; round < LIVE_ROUNDS; round++) {
        annoy(listener, &key, round);
    }
    assert_int_equal(ls_store_set(store, "still", "here", 4), LS_OK);
    ls_store_close(store);
    ls_store_server_stop(server);
    ls_log_set_sink(NULL, NULL);
}

/* ---- a server that is none -----------------------------------------------------------------------------------------
 */

/* Greets one client, more or less rightly, answers with damaged bytes and goes. */
static const char *fool(int listener, const ls_key *key, size_t round) {
    uint8_t bytes[ROOM];
    ls_hello own = {.keyed = true}, client;
    const ls_deadline deadline = ls_deadline_after(20);
    (void)poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, -1);
    const int fd = accept(listener, NULL, NULL);
    LS_MUST(fd >= 0);
    ls_hello_encode(&own, false, bytes);
    size_t size = LS_SERVER_HELLO_SIZE;
    if (round % 3 == 0) {
        size = mutate(bytes, size);
    }
    ls_status status = ls_socket_send(fd, bytes, size, deadline);
    status = status == LS_OK ? ls_socket_receive(fd, bytes, LS_CLIENT_HELLO_SIZE, ls_deadline_after(0.2)) : status;
    if (status == LS_OK && ls_hello_decode(bytes, true, &client) == LS_OK) {
        uint8_t proof[LS_PROOF_SIZE];
        ls_auth_prove(key, "server", own.nonce, client.nonce, proof);
        const ls_store_reply reply = {.status = LS_OK, .value = {proof, sizeof proof}};
        ls_reply_encode(&reply, bytes);
        size = ls_reply_size(&reply);
        (void)ls_socket_send(fd, bytes, round % 3 == 1 ? mutate(bytes, size) : size, deadline);
        ls_reply_encode(&(ls_store_reply){.status = LS_OK, .number = 7, .value = {"value", 5}}, bytes);
        size = mutate(bytes, LS_FRAME_HEADER + LS_REPLY_FIXED + 5);
        (void)ls_socket_send(fd, bytes, size, deadline);
    }
    close(fd);
    return NULL;
}

static const char *foolish_server(int listener, const void *key) {
    signal(SIGPIPE, SIG_IGN);
    for (size_t round = 0;; round++) {
        LS_MUST(fool(listener, key, round) == NULL);
    }
}

/* A client of a server that sends anything gets an error or an answer, in time. */
static void test_foolish_server(void **state) {
    (void)state;
    ls_key key;
    int listener;
    char url[64];
    const ls_address any = {.host = "127.0.0.1"};
    size_t refused = 0;
    assert_int_equal(ls_key_read(&key, "key"), LS_OK);
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ls_socket_port(listener));
    const pid_t server = process_start(foolish_server, listener, &key);
    for (size_t round = 0; round < CLIENT_ROUNDS; round++) {
        char value[16] = "";
        size_t size = 0;
        const double start = ls_clock_seconds();
        ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = 0.2, .key = "key"});
        const ls_status status =
            store == NULL ? ls_error_status() : ls_store_get(store, "key", value, sizeof value, &size);
        refused += status != LS_OK;
        assert_true(status == LS_OK || strlen(ls_error_message()) > 10);
        assert_true(size <= sizeof value && ls_clock_seconds() - start < 10);
        ls_store_close(store);
    }
    assert_true(refused > CLIENT_ROUNDS / 4);
    kill(server, SIGKILL);
    assert_int_equal(process_wait(server), -SIGKILL);
    close(listener);
}

/* Whoever listens there may say anything: its words reach no terminal as they are. */
static const char *rude_server(int listener, const void *key) {
    static const char words[] = "\033]0;owned\a\033[2Jall is well\n\xc2\x9b"
                                "1A";
    uint8_t bytes[ROOM];
    ls_hello own = {.keyed = true};
    (void)key;
    (void)poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, -1);
    const int fd = accept(listener, NULL, NULL);
    LS_MUST(fd >= 0);
    ls_hello_encode(&own, false, bytes);
    LS_MUST(ls_socket_send(fd, bytes, LS_SERVER_HELLO_SIZE, ls_deadline_after(20)) == LS_OK);
    LS_MUST(ls_socket_receive(fd, bytes, LS_CLIENT_HELLO_SIZE, ls_deadline_after(20)) == LS_OK);
    const ls_store_reply reply = {.status = LS_ERR_DENIED, .value = {words, sizeof words - 1}};
    ls_reply_encode(&reply, bytes);
    LS_MUST(ls_socket_send(fd, bytes, ls_reply_size(&reply), ls_deadline_after(20)) == LS_OK);
    close(fd);
    return NULL;
}

static void test_rude_server(void **state) {
    (void)state;
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
