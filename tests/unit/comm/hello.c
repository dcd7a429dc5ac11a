/*
 * The hello of every connection: its bytes, the proof in it, and processes of a different build. The store, the sockets
 * of transport/tcp and all waiting ranks refuse them at once.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <sys/socket.h>
#include <unistd.h>

#include "comm/channel/hello.h"
#include "comm/store.h"
#include "comm/store_roster.h"
#include "comm/store_socket.h"
#include "tests/support/tcp_net.h"

#define KEY         "a key of this test, long enough"
#define OTHER_BUILD "9.8.7 (layout 0123456789abcdef)"

enum { SECONDS = 60, BUILD_AT = 16 };

static ls_key make_key(const char *text) {
    ls_key key;
    assert_int_equal(ls_key_read(&key, text), LS_OK);
    return key;
}

TEST(proofs_cover_key_role_and_nonces) {
    const ls_key key = make_key(KEY), other_key = make_key("another key, also long enough");
    uint8_t bytes[LS_PROVEN_HELLO_SIZE], nonce[LS_NONCE_SIZE], other_nonce[LS_NONCE_SIZE];
    ls_hello own, read;
    assert_int_equal(ls_auth_nonce(nonce), LS_OK);
    assert_int_equal(ls_auth_nonce(other_nonce), LS_OK);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    ls_hello_prove(&own, &key, "client", nonce);
    ls_hello_encode(&own, true, bytes);
    assert_int_equal(ls_hello_decode(bytes, true, &read), LS_OK);
    assert_true(read.keyed);
    assert_int_equal(ls_hello_check_build(&read, "the client"), LS_OK);
    assert_true(ls_hello_is_proven(&read, &key, "client", nonce));
    assert_false(ls_hello_is_proven(&read, &other_key, "client", nonce));
    assert_false(ls_hello_is_proven(&read, &key, "server", nonce));
    assert_false(ls_hello_is_proven(&read, &key, "client", other_nonce));
    read.nonce[0] ^= 1;
    assert_false(ls_hello_is_proven(&read, &key, "client", nonce));
}

TEST(damaged_bytes_and_other_versions) {
    uint8_t right[LS_HELLO_SIZE], bytes[LS_HELLO_SIZE];
    ls_hello own, read;
    assert_int_equal(ls_hello_make(&own, false), LS_OK);
    ls_hello_encode(&own, false, right);
    for (size_t i = 0; i < LS_HELLO_SIZE - LS_NONCE_SIZE; i++) {
        memcpy(bytes, right, sizeof bytes);
        bytes[i] ^= 0x80; /* neither a printable character nor a flag */
        const bool is_version = i == 8 || i == 9;
        assert_int_equal(ls_hello_decode(bytes, false, &read), is_version ? LS_ERR_MISMATCH : LS_ERR_FORMAT);
    }
    memcpy(bytes, right, sizeof bytes);
    memset(bytes + BUILD_AT, 'x', LS_BUILD_CAPACITY); /* a string that is not null-terminated */
    assert_int_equal(ls_hello_decode(bytes, false, &read), LS_ERR_FORMAT);
}

static void expect_both_builds(void) {
    char own[LS_BUILD_CAPACITY];
    ls_build_write(own);
    expect_message("runs Lockstep " OTHER_BUILD ", but ");
    expect_message(own);
}

/* A client that knows the key has a different build: the client, all waiting ranks, and ranks that arrive later get
   the error. */
TEST(a_store_refuses_another_build_at_once) {
    const ls_key key = make_key(KEY);
    uint8_t bytes[LS_PROVEN_HELLO_SIZE], header[LS_FRAME_HEADER], body[1024];
    ls_hello server, own;
    ls_store_reply reply;
    ls_peer_info peer_infos[2], peer_info = {.machine = "machine", .host = "host"};
    size_t size = 0;
    int connection;
    bool retry;
    const ls_deadline deadline = ls_deadline_after(SECONDS);
    ls_store *store =
        ls_store_open("tcp://127.0.0.1:0", &(ls_store_options){.serve = true, .timeout = SECONDS, .key = KEY});
    assert_non_null(store);
    const ls_address there = {.host = "127.0.0.1", .port = ls_store_port(store)};
    assert_int_equal(ls_socket_connect(&there, true, deadline, &connection, &retry), LS_OK);
    assert_int_equal(ls_socket_receive(connection, bytes, LS_HELLO_SIZE, deadline), LS_OK);
    assert_int_equal(ls_hello_decode(bytes, false, &server), LS_OK);
    assert_int_equal(ls_hello_check_build(&server, "the server"), LS_OK);
    assert_int_equal(ls_hello_make(&own, true), LS_OK);
    snprintf(own.build, sizeof own.build, OTHER_BUILD);
    ls_hello_prove(&own, &key, "client", server.nonce);
    ls_hello_encode(&own, true, bytes);
    assert_int_equal(ls_socket_send(connection, bytes, sizeof bytes, deadline), LS_OK);
    assert_int_equal(ls_socket_receive(connection, header, sizeof header, deadline), LS_OK);
    assert_int_equal(ls_frame_size(header, LS_REPLY_FIXED, sizeof body, &size), LS_OK);
    assert_int_equal(ls_socket_receive(connection, body, size, deadline), LS_OK);
    assert_int_equal(ls_reply_decode(body, size, &reply), LS_OK);
    assert_int_equal(reply.status, LS_ERR_MISMATCH);
    assert_non_null(memmem(reply.value.data, reply.value.size, OTHER_BUILD, strlen(OTHER_BUILD)));
    ls_build_write(peer_info.build);
    assert_int_equal(ls_store_join(store, 0, 2, &peer_info, peer_infos), LS_ERR_MISMATCH);
    expect_both_builds();
    close(connection);
    ls_store_close(store);
}

/* The proof of rank 1 is valid, but the rank runs a different build. */
TEST(a_connection_refuses_another_build) {
    tcp_net net;
    ls_status status = LS_OK;
    bool moved = false;
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    ls_tcp_hello hello = tcp_net_hello(&net.key, net.peer_infos, 2, 1, 0);
    memset(hello.hello + BUILD_AT, 0, LS_BUILD_CAPACITY);
    memcpy(hello.hello + BUILD_AT, OTHER_BUILD, strlen(OTHER_BUILD));
    const int socket = tcp_net_call(&net, 0);
    tcp_net_tell(socket, &hello, sizeof hello);
    for (const double start = ls_clock_seconds(); status == LS_OK && ls_clock_seconds() - start < SECONDS;) {
        status = net.ends[0]->transport->progress(net.ends[0], 1000000, &moved);
    }
    assert_int_equal(status, LS_ERR_MISMATCH);
    expect_message("rank 1 runs Lockstep");
    expect_both_builds();
    close(socket);
    tcp_net_end(&net);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proofs_cover_key_role_and_nonces),
        cmocka_unit_test(damaged_bytes_and_other_versions),
        cmocka_unit_test(a_store_refuses_another_build_at_once),
        cmocka_unit_test(a_connection_refuses_another_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
