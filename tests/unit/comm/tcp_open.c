/*
 * Opening backend tcp over a failing store: the error names the store, and blames no rank.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "comm/backend.h"
#include "comm/store_message.h"
#include "comm/store_socket.h"
#include "tests/support/processes.h"

enum { ROOM = 4096, SECONDS = 20 };

static const char *greet(int fd, const ls_key *key) {
    uint8_t bytes[ROOM];
    ls_hello own, client;
    LS_MUST(ls_hello_make(&own, true) == LS_OK);
    ls_hello_encode(&own, false, bytes);
    LS_MUST(ls_socket_send(fd, bytes, LS_HELLO_SIZE, ls_deadline_after(SECONDS)) == LS_OK);
    LS_MUST(ls_socket_receive(fd, bytes, LS_PROVEN_HELLO_SIZE, ls_deadline_after(SECONDS)) == LS_OK);
    LS_MUST(ls_hello_decode(bytes, true, &client) == LS_OK);
    ls_hello_prove(&own, key, "server", client.nonce);
    const ls_store_reply reply = {.status = LS_OK, .value = {own.proof, sizeof own.proof}};
    ls_reply_encode(&reply, bytes);
    LS_MUST(ls_socket_send(fd, bytes, ls_reply_size(&reply), ls_deadline_after(SECONDS)) == LS_OK);
    return NULL;
}

/* Answers requests: sets succeed, gets time out. The store closes at the first wait. */
static const char *serve_some(int listener, const void *key) {
    uint8_t bytes[ROOM];
    (void)poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, -1);
    const int fd = accept(listener, NULL, NULL);
    LS_MUST(fd >= 0);
    LS_MUST(greet(fd, key) == NULL);
    for (;;) {
        size_t size = 0;
        ls_store_request request;
        LS_MUST(ls_socket_receive(fd, bytes, LS_FRAME_HEADER, ls_deadline_after(SECONDS)) == LS_OK);
        LS_MUST(ls_frame_size(bytes, LS_REQUEST_FIXED, ROOM, &size) == LS_OK);
        LS_MUST(ls_socket_receive(fd, bytes, size, ls_deadline_after(SECONDS)) == LS_OK);
        LS_MUST(ls_request_decode(bytes, size, &request) == LS_OK);
        if (request.operation == LS_STORE_WAIT) {
            close(fd);
            return NULL;
        }
        const bool gets = request.operation == LS_STORE_GET;
        const ls_store_reply reply = {.status = gets ? LS_ERR_TIMEOUT : LS_OK, .value = {"late", gets ? 4 : 0}};
        ls_reply_encode(&reply, bytes);
        LS_MUST(ls_socket_send(fd, bytes, ls_reply_size(&reply), ls_deadline_after(SECONDS)) == LS_OK);
    }
}

TEST(a_failing_store_blames_no_rank) {
    int listener;
    char url[64];
    void *state = NULL;
    ls_key key;
    const ls_address any = {.host = "127.0.0.1"};
    assert_int_equal(ls_key_read(&key, "a key of the test"), LS_OK);
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ls_socket_port(listener));
    const pid_t server = process_start(serve_some, listener, &key);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = SECONDS, .key = "a key of the test"});
    assert_non_null(store);
    const ls_join_context join = {.rank = 1,
                                  .size = 3,
                                  .local_rank = 1,
                                  .local_size = 3,
                                  .store = store,
                                  .prefix = "test/",
                                  .timeout = SECONDS,
                                  .address = "127.0.0.1"};
    assert_int_equal(ls_backend_tcp.open(&join, &state), LS_ERR_PEER);
    assert_null(strstr(ls_error_message(), "publish its address"));
    expect_message("the store");
    assert_int_equal(process_wait(server), 0);
    ls_store_close(store);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failing_store_blames_no_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
