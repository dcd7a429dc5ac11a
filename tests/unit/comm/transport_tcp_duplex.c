/*
 * The TCP transport sends large messages in both directions at once: although this rank is sending a large message, it
 * soon sends a clear-to-send for the other rank's message. From rank 0's view, rank 1 is on a different machine. The
 * test acts as rank 1.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/support/tcp_net.h"

/* More than the kernel buffers between two sockets if neither is read. */
#define LARGE ((size_t)64 << 20)

enum { TURNS = 50 };

static ls_tcp_peer *peer_of(const tcp_net *net) {
    return &((ls_tcp *)net->ends[0])->peers[1];
}

/* Runs rank 0, while no rank reads its message, until the kernel accepts no more of it. */
static void fill(tcp_net *net, const ls_transfer *send) {
    size_t before = SIZE_MAX;
    TCP_NET_UNTIL(net, send->moved > 0 && send->moved == before) {
        before = send->moved;
        for (int turn = 0; turn < TURNS; turn++) {
            tcp_net_turn(net);
        }
    }
}

/* Reads rank 0's frames until it clears a message. Returns the number of payload bytes before that. */
static size_t read_to_clear(tcp_net *net, int from) {
    static unsigned char content[LS_TCP_PIECE];
    ls_tcp_header header = {0};
    for (size_t bytes = 0;; bytes += (size_t)header.bytes) {
        assert_true(tcp_net_hear(net, from, &header, sizeof header));
        if (header.kind == LS_TCP_CLEAR) {
            return bytes;
        }
        assert_true(header.kind == LS_TCP_CONTENT && header.bytes <= LS_TCP_PIECE);
        assert_true(tcp_net_hear(net, from, content, (size_t)header.bytes));
    }
}

TEST(a_clear_overtakes_a_large_message) {
    tcp_net net;
    ls_tcp_hello hello;
    ls_tcp_header header;
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    ls_transfer send = tcp_net_message(1, 0, LARGE, 1), receive = tcp_net_room(1, 0, LARGE);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    const int from = tcp_net_accept(&net, 1, &hello);
    const int to = tcp_net_enter(&net, 0, 1);
    assert_true(tcp_net_hear(&net, from, &header, sizeof header));
    assert_int_equal(header.kind, LS_TCP_ANNOUNCE);
    tcp_net_tell(to, &(ls_tcp_header){.kind = LS_TCP_CLEAR, .number = 1}, sizeof header);
    fill(&net, &send);

    int unsent = 0;
    assert_int_equal(ioctl(peer_of(&net)->socket, SIOCOUTQNSD, &unsent), 0);
    assert_true(unsent <= LS_TCP_UNSENT + LS_TCP_FAR_PIECE + (int)sizeof header);

    const size_t given = send.moved;
    tcp_net_tell(to, &(ls_tcp_header){.kind = LS_TCP_ANNOUNCE, .bytes = LARGE, .number = 1}, sizeof header);
    TCP_NET_UNTIL(&net, peer_of(&net)->heard_of == 1) {
    }
    assert_true(read_to_clear(&net, from) <= given + LS_TCP_FAR_PIECE);

    close(from);
    close(to);
    tcp_net_end(&net);
    free(send.data);
    free(receive.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP_NET_TEST(a_clear_overtakes_a_large_message),
    };
    return cmocka_run_group_tests_name("transport_tcp_duplex", tests, NULL, NULL);
}
