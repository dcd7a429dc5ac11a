/*
 * Late or partial data over the TCP transport: a hello after many silent connections, after its time limit, or on a
 * connection that was closed because it was missing; frames split at any byte; waiting messages.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/fuzz.h"
#include "tests/support/tcp_net.h"

/* ---- hellos ------------------------------------------------------------------------------------------------------ */

/* The test acts as rank 1 and connects to rank 0, which polls. Then it sends a hello that rank 0 has not read. */
static int begin_late(tcp_net *net, int *others, int count) {
    tcp_net_listen(net, 2);
    tcp_net_open(net, 0);
    const ls_tcp *tcp = (const ls_tcp *)net->ends[0];
    const ls_tcp_hello hello = tcp_net_hello(&net->key, net->peer_infos, 2, 1, 0);
    const int socket = tcp_net_call(net, 0);
    TCP_NET_UNTIL(net, tcp->unproven_count == 1) {
    }
    for (int i = 0; i < count; i++) {
        others[i] = tcp_net_call(net, 0);
        TCP_NET_UNTIL(net, tcp->unproven_count == i + 2 || i + 2 > LS_TCP_UNPROVEN) {
        }
    }
    tcp_net_tell(socket, &hello, sizeof hello);
    return socket;
}

/* Rank 0 reads the hello. */
static void end_late(tcp_net *net, int socket) {
    ls_transfer receive = tcp_net_room(-1, 4, 0);
    assert_int_equal(tcp_net_receive(net, 0, &receive), LS_OK);
    tcp_net_tell(socket, &(ls_tcp_header){.kind = LS_TCP_MESSAGE, .channel = 4}, sizeof(ls_tcp_header));
    TCP_NET_UNTIL(net, receive.ended) {
    }
    assert_int_equal(receive.peer, 1);
    close(socket);
    tcp_net_end(net);
}

/* The oldest connection is closed to make room for a new one, but not after it has sent its hello. */
TEST(a_hello_is_heard_before_room_is_made) {
    tcp_net net;
    int others[LS_TCP_UNPROVEN];
    const int socket = begin_late(&net, others, LS_TCP_UNPROVEN);
    end_late(&net, socket);
    for (int i = 0; i < LS_TCP_UNPROVEN; i++) {
        close(others[i]);
    }
}

/* A rank that has not polled for a long time finds a hello whose time limit has passed. */
TEST(a_hello_is_heard_before_its_time_is_over) {
    tcp_net net;
    const int socket = begin_late(&net, NULL, 0);
    ls_tcp *tcp = (ls_tcp *)net.ends[0];
    tcp->awake.ns += UINT64_C(6000000000);
    assert_int_equal(ls_tcp_tend(tcp), LS_OK); /* as if there were more events than one poll returns */
    assert_int_equal(tcp->peers[1].was_connected, 1);
    end_late(&net, socket);
}

/*
 * A connection opens while its rank does not poll, and the other side closes it after waiting for a hello. Nothing was
 * sent on it, so the rank connects again.
 */
TEST(who_came_too_late_comes_again) {
    tcp_net net;
    ls_tcp_hello hello;
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    const ls_tcp_peer *peer = &((const ls_tcp *)net.ends[0])->peers[1];
    struct pollfd there = {.fd = net.listeners[1], .events = POLLIN};
    assert_int_equal(listen(net.listeners[1], 0), 0);
    const int first =
        tcp_net_call(&net, 1); /* there is no room for further connections, so they wait in the kernel's queue */
    ls_transfer send = tcp_net_message(1, 0, 30, 1);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
    assert_int_equal(peer->stage, LS_TCP_CONNECTING);
    close(accept4(net.listeners[1], NULL, NULL, SOCK_CLOEXEC));
    assert_int_equal(poll(&there, 1, (int)(TCP_NET_LONGEST * 1e3)), 1);
    close(accept4(net.listeners[1], NULL, NULL, SOCK_CLOEXEC));
    assert_int_equal(peer->stage, LS_TCP_CONNECTING);

    const int second = tcp_net_accept(&net, 1, &hello);
    assert_int_equal(hello.rank, 0);
    TCP_NET_UNTIL(&net, send.ended) {
    }
    assert_false(tcp_net_is_gone(&net, 0, 1));
    close(first);
    close(second);
    free(send.data);
    tcp_net_end(&net);
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

enum { PARTS = 60, STREAM = PARTS * (LS_TCP_EAGER + sizeof(ls_tcp_header)) };

static void tell_some(tcp_net *net, int socket, const uint8_t *bytes, size_t size) {
    for (size_t told = 0; told < size;) {
        const ssize_t step = send(socket, bytes + told, size - told, MSG_NOSIGNAL | MSG_DONTWAIT);
        told += step > 0 ? (size_t)step : 0;
        if (step < 0) {
            tcp_net_turn(net);
        }
    }
    tcp_net_turn(net);
}

/* Headers and bodies are split anywhere, even when more data is pending than is read at once. */
static void cut_frames(uint64_t number, void *argument) {
    (void)number;
    uint8_t *stream = argument;
    size_t size = 0;
    tcp_net net;
    ls_transfer receives[PARTS];
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    const int socket = tcp_net_enter(&net, 0, 1);
    for (uint64_t i = 0; i < PARTS; i++) {
        const size_t bytes = fuzz_below(4) == 0 ? LS_TCP_EAGER - fuzz_below(50) : fuzz_below(200);
        const ls_tcp_header header = {.kind = LS_TCP_MESSAGE, .channel = 3, .bytes = bytes};
        memcpy(stream + size, &header, sizeof header);
        size += sizeof header;
        for (size_t k = 0; k < bytes; k++) {
            stream[size++] = tcp_net_byte(i, k);
        }
        receives[i] = tcp_net_room(1, 3, bytes);
        if (fuzz_below(2) == 0 && (i == 0 || receives[i - 1].receives)) {
            assert_int_equal(tcp_net_receive(&net, 0, &receives[i]), LS_OK);
        }
    }
    for (size_t at = 0; at < size;) {
        const size_t most = fuzz_below(2) == 0 ? 50 : 4 * LS_TCP_BUFFER;
        const size_t step = 1 + fuzz_below(size - at < most ? size - at : most);
        tell_some(&net, socket, stream + at, step);
        at += step;
    }
    for (uint64_t i = 0; i < PARTS; i++) {
        if (!receives[i].receives) {
            assert_int_equal(tcp_net_receive(&net, 0, &receives[i]), LS_OK);
        }
    }
    TCP_NET_UNTIL(&net, receives[PARTS - 1].ended) {
    }
    for (uint64_t i = 0; i < PARTS; i++) {
        assert_true(tcp_net_holds(&receives[i], i, receives[i].bytes));
        free(receives[i].data);
    }
    close(socket);
    tcp_net_end(&net);
}

TEST(frames_come_in_any_parts) {
    uint8_t *stream = malloc(STREAM);
    assert_non_null(stream);
    fuzz_run("parts", 60, cut_frames, stream);
    free(stream);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

enum { WAITING = 150 };

/* More data is pending than is written at once, and more is added meanwhile. */
TEST(what_waits_keeps_its_order) {
    static ls_transfer sends[WAITING], receives[WAITING];
    tcp_net net;
    bool moved;
    tcp_net_start(&net, 2);
    for (int i = 0; i < WAITING; i++) {
        sends[i] = tcp_net_message(1, 0, LS_TCP_EAGER, (uint64_t)i);
        receives[i] = tcp_net_room(0, 0, LS_TCP_EAGER);
        for (int look = 0; i > WAITING * 2 / 3 && look < 8; look++) { /* then there is room for more */
            ls_endpoint *end = net.ends[look < 7 ? 1 : 0];
            assert_int_equal(end->transport->progress(end, 0, &moved), LS_OK);
        }
        assert_int_equal(tcp_net_send(&net, 0, &sends[i]), LS_OK);
    }
    for (int i = 0; i < WAITING; i++) {
        assert_int_equal(tcp_net_receive(&net, 1, &receives[i]), LS_OK);
    }
    TCP_NET_UNTIL(&net, receives[WAITING - 1].ended && sends[WAITING - 1].ended) {
    }
    for (int i = 0; i < WAITING; i++) {
        assert_true(tcp_net_holds(&receives[i], (uint64_t)i, LS_TCP_EAGER));
        free(sends[i].data);
        free(receives[i].data);
    }
    tcp_net_end(&net);
}

/* A large send is canceled before its receive exists. */
TEST(what_is_cleared_too_late_is_no_lie) {
    tcp_net net;
    tcp_net_start(&net, 2);
    const ls_tcp *sender = (const ls_tcp *)net.ends[0], *receiver = (const ls_tcp *)net.ends[1];
    ls_transfer send = tcp_net_message(1, 0, LS_TCP_EAGER + 1, 1), receive = tcp_net_room(0, 0, LS_TCP_EAGER + 1);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
    TCP_NET_UNTIL(&net, receiver->arrivals.early != NULL) {
    }
    tcp_net_withdraw(&net, 0, &send);
    free(send.data);
    assert_int_equal(sender->peers[1].withdrawn, 1);
    assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
    TCP_NET_UNTIL(&net, sender->peers[1].withdrawn == 0) {
    }
    assert_false(receive.ended || tcp_net_is_gone(&net, 0, 1));
    tcp_net_end(&net);
    free(receive.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP_NET_TEST(a_hello_is_heard_before_room_is_made), TCP_NET_TEST(a_hello_is_heard_before_its_time_is_over),
        TCP_NET_TEST(who_came_too_late_comes_again),        TCP_NET_TEST(frames_come_in_any_parts),
        TCP_NET_TEST(what_waits_keeps_its_order),           TCP_NET_TEST(what_is_cleared_too_late_is_no_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
