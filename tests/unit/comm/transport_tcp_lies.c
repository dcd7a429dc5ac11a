/*
 * A rank that has the key but sends invalid data: an error names it, and no memory outside the buffers is read or
 * written. Also transfers that are canceled in flight.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/fuzz.h"
#include "tests/support/tcp_net.h"

enum { LARGE = LS_TCP_EAGER + 1000, ROUNDS = 4000 };

/* Runs until rank 0 gets the expected error, which is not a failure of the test. */
static ls_status turn_until_gone(tcp_net *net) {
    ls_endpoint *end = net->ends[0];
    ls_status status = LS_OK;
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    while (!tcp_net_is_gone(net, 0, 1)) {
        bool moved;
        assert_true(ls_clock_seconds() < limit);
        const ls_status next = end->transport->progress(end, 1000000, &moved);
        status = status == LS_OK ? next : status;
    }
    return status;
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

typedef struct lie {
    ls_tcp_header header;
    const char *message;
} lie;

/*
 * Rank 0 has a receive of 100 bytes from rank 1 on channel 1; a receive of LARGE bytes on channel 2, for which message
 * 1 was cleared; a receive from any rank on channel 3; and a send of LARGE bytes, its message 1, which was cleared.
 */
static const lie lies[] = {
    {{.kind = 0}, "rank 1 sent an invalid header: kind 0, channel 0, 0 bytes, number 0"},
    {{.kind = LS_TCP_CONTENT + 1}, "sent an invalid header"},
    {{.kind = LS_TCP_MESSAGE, .channel = LS_TRANSPORT_CHANNELS, .bytes = 1}, "channel 16, 1 bytes"},
    {{.kind = LS_TCP_MESSAGE, .channel = UINT32_MAX}, "channel 4294967295"},
    {{.kind = LS_TCP_MESSAGE, .bytes = LS_TCP_EAGER + 1}, "sent an invalid header"},
    {{.kind = LS_TCP_MESSAGE, .bytes = UINT64_MAX}, "18446744073709551615 bytes"},
    {{.kind = LS_TCP_MESSAGE, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_MESSAGE, .channel = 1, .bytes = 101},
     "rank 1 sent a message of 101 bytes, but its receive has room for only 100"},
    {{.kind = LS_TCP_ANNOUNCE, .bytes = LS_TRANSPORT_LEAST_EAGER, .number = 2}, "sent an invalid header"},
    {{.kind = LS_TCP_ANNOUNCE, .channel = LS_TRANSPORT_CHANNELS, .bytes = LARGE, .number = 2},
     "sent an invalid header"},
    {{.kind = LS_TCP_ANNOUNCE, .bytes = LARGE, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_ANNOUNCE, .bytes = LARGE, .number = 3}, "sent an invalid header"},
    {{.kind = LS_TCP_ANNOUNCE, .channel = 1, .bytes = UINT64_MAX, .number = 2}, "receive has room for only 100"},
    {{.kind = LS_TCP_ANNOUNCE, .channel = 3, .bytes = LARGE, .number = 2}, "but a rank may send at most"},
    {{.kind = LS_TCP_CLEAR, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_CLEAR, .number = 2}, "sent an invalid header"},
    {{.kind = LS_TCP_CLEAR, .number = 0}, "sent an invalid header"},
    {{.kind = LS_TCP_CLAIMED, .number = 0}, "sent an invalid header"},
    {{.kind = LS_TCP_CLAIMED, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_CLAIMED, .number = UINT64_MAX}, "sent an invalid header"},
    {{.kind = LS_TCP_CLAIMED, .channel = 1, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_CONTENT, .bytes = 1, .number = 2}, "sent an invalid header"},
    {{.kind = LS_TCP_CONTENT, .bytes = LARGE + 1, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_CONTENT, .bytes = 0, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_CONTENT, .bytes = UINT64_MAX, .number = 1}, "sent an invalid header"},
    {{.kind = LS_TCP_CONTENT, .channel = 1, .bytes = 1, .number = 1}, "sent an invalid header"},
};

/* The state described above. The test acts as rank 1. */
typedef struct scene {
    tcp_net net;
    int socket; /* on which rank 1 sends */
    int heard;  /* on which it reads */
    ls_transfer receives[3];
    ls_transfer send;
} scene;

static void tell_header(scene *s, const ls_tcp_header *header) {
    tcp_net_tell(s->socket, header, sizeof *header);
}

/* Closes the socket without leaving a port in TIME_WAIT, because there are thousands of rounds. */
static void end_by_hand(int socket) {
    const struct linger none = {.l_onoff = 1};
    assert_int_equal(setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
    close(socket);
}

static void begin_scene(scene *s) {
    static const size_t rooms[] = {100, LARGE, 2 * LARGE};
    ls_tcp_header heard[2];
    ls_tcp_hello hello;
    tcp_net_listen(&s->net, 2);
    tcp_net_open(&s->net, 0);
    s->socket = tcp_net_enter(&s->net, 0, 1);
    for (int i = 0; i < 3; i++) {
        s->receives[i] = tcp_net_room(i < 2 ? 1 : -1, i + 1, rooms[i]);
        assert_int_equal(tcp_net_receive(&s->net, 0, &s->receives[i]), LS_OK);
    }
    s->send = tcp_net_message(1, 0, LARGE, 4);
    assert_int_equal(tcp_net_send(&s->net, 0, &s->send), LS_OK);
    tell_header(s, &(ls_tcp_header){.kind = LS_TCP_ANNOUNCE, .channel = 2, .bytes = LARGE, .number = 1});
    tell_header(s, &(ls_tcp_header){.kind = LS_TCP_CLEAR, .number = 1});
    s->heard = tcp_net_accept(&s->net, 1, &hello);
    assert_true(tcp_net_hear(&s->net, s->heard, heard, sizeof heard));
    assert_true(heard[0].kind == LS_TCP_ANNOUNCE && heard[0].bytes == LARGE && heard[0].number == 1);
    assert_true(heard[1].kind == LS_TCP_CLEAR && heard[1].number == 1);
    TCP_NET_UNTIL(&s->net, s->send.ended) {
    }
}

static void end_scene(scene *s) {
    tcp_net_end(&s->net);
    end_by_hand(s->socket);
    end_by_hand(s->heard);
    for (int i = 0; i < 3; i++) {
        free(s->receives[i].data);
    }
    free(s->send.data);
}

TEST(every_lie_is_an_error) {
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        scene s;
        begin_scene(&s);
        tell_header(&s, &lies[i].header);
        if (turn_until_gone(&s.net) != LS_ERR_PEER || strstr(ls_error_message(), lies[i].message) == NULL) {
            fail_msg("lie %zu: %s", i, ls_error_message());
        }
        for (int k = 0; k < 3; k++) {
            assert_false(s.receives[k].ended);
        }
        end_scene(&s);
    }
}

/* A message arrived before its receive, and the buffer of the receive is too small. */
TEST(a_late_receive_without_room_is_an_error) {
    for (int large = 0; large < 2; large++) {
        tcp_net net;
        const size_t bytes = large ? LARGE : 10;
        tcp_net_start(&net, 2);
        ls_transfer send = tcp_net_message(0, 0, bytes, 0), first = tcp_net_message(0, 1, 1, 0);
        ls_transfer receive = tcp_net_room(1, 0, bytes - 1), mark = tcp_net_room(1, 1, 1);
        assert_int_equal(tcp_net_send(&net, 1, &send), LS_OK);
        assert_int_equal(tcp_net_send(&net, 1, &first), LS_OK);
        assert_int_equal(tcp_net_receive(&net, 0, &mark), LS_OK);
        TCP_NET_UNTIL(&net, mark.ended) {
        }
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_ERR_PEER);
        assert_int_equal(net.ends[0]->blamed, 1 + 1);
        expect_message(large ? "of 66536 bytes, but its receive has room for only 66535"
                             : "rank 1 sent a message of 10 bytes, but its receive has ");
        ls_transfer *all[] = {&send, &first, &receive, &mark};
        tcp_net_end(&net);
        for (size_t i = 0; i < 4; i++) {
            free(all[i]->data);
        }
    }
}

typedef struct tally {
    size_t accepted, refused;
} tally;

/* Makes a stream of valid frames. */
static size_t make_frames(uint8_t *bytes, size_t capacity) {
    size_t size = 0;
    uint64_t announced = 1;
    for (size_t left = 1 + fuzz_below(6); left > 0; left--) {
        ls_tcp_header header = {.kind = LS_TCP_MESSAGE, .channel = (uint32_t)fuzz_below(LS_TRANSPORT_CHANNELS)};
        size_t body = 0;
        if (fuzz_below(4) == 0) {
            header = (ls_tcp_header){
                .kind = LS_TCP_ANNOUNCE, .channel = 5, .bytes = LARGE + fuzz_below(1000), .number = ++announced};
        } else if (fuzz_below(3) == 0) {
            body = 1 + fuzz_below(100);
            header = (ls_tcp_header){.kind = LS_TCP_CONTENT, .bytes = body, .number = 1};
        } else {
            body = fuzz_below(100);
            header.bytes = body;
        }
        if (size + sizeof header + body > capacity) {
            break;
        }
        memcpy(bytes + size, &header, sizeof header);
        size += sizeof header;
        for (size_t i = 0; i < body; i++) {
            bytes[size++] = (uint8_t)i;
        }
    }
    return size;
}

static void damage_frames(uint64_t number, void *argument) {
    tally *counts = argument;
    uint8_t bytes[2048];
    scene s;
    begin_scene(&s);
    size_t size = make_frames(bytes, sizeof bytes);
    if (number % 8 == 0) {
        size = fuzz_below(sizeof bytes);
        for (size_t i = 0; i < size; i++) {
            bytes[i] = (uint8_t)fuzz_below(256);
        }
    } else if (number % 8 > 1) {
        size = fuzz_mutate(bytes, size, sizeof bytes);
    }
    const size_t cut = fuzz_below(size + 1);
    tcp_net_tell(s.socket, bytes, cut);
    bool moved;
    const ls_status first = s.net.ends[0]->transport->progress(s.net.ends[0], 0, &moved);
    if (first == LS_OK) {
        tcp_net_tell(s.socket, bytes + cut, size - cut);
    }
    shutdown(s.socket, SHUT_WR);
    const ls_status rest = turn_until_gone(&s.net);
    const ls_status status = first != LS_OK ? first : rest;
    assert_true(status == LS_OK || status == LS_ERR_PEER);
    assert_true(status == LS_OK || strstr(ls_error_message(), "rank 1 sent a") == ls_error_message());
    assert_true(number % 8 != 1 || status == LS_OK || strstr(ls_error_message(), "room") != NULL);
    counts->accepted += status == LS_OK;
    counts->refused += status != LS_OK;
    end_scene(&s);
}

TEST(damaged_frames_are_errors) {
    tally counts = {0};
    const uint64_t rounds = fuzz_run("frames", ROUNDS, damage_frames, &counts);
    assert_true(rounds < ROUNDS || (counts.accepted > rounds / 20 && counts.refused > rounds / 20));
}

/* ---- withdrawn transfers ----------------------------------------------------------------------------------------- */

/* After a receive from any rank is canceled, the next message belongs to the next receive. */
TEST(a_receive_from_any_rank_is_taken_back) {
    tcp_net net;
    tcp_net_start(&net, 3);
    ls_transfer send = tcp_net_message(0, 1, 20, 1), any = tcp_net_room(-1, 1, 100), next = tcp_net_room(-1, 1, 100);
    assert_int_equal(tcp_net_receive(&net, 0, &any), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 0, &next), LS_OK);
    tcp_net_withdraw(&net, 0, &any);
    free(any.data);
    assert_int_equal(tcp_net_send(&net, 2, &send), LS_OK);
    TCP_NET_UNTIL(&net, next.ended) {
    }
    assert_true(tcp_net_holds(&next, 1, 20) && next.peer == 2);
    free(send.data);
    free(next.data);
    tcp_net_end(&net);
}

/*
 * A message arrives in two halves, and its receive is canceled in between. Later messages are intact. If the receive
 * was late, the next receive gets the message.
 */
TEST(a_message_on_its_way_is_lost) {
    for (int late = 0; late < 2; late++) {
        tcp_net net;
        unsigned char body[100] = {7, [60] = 8};
        const ls_tcp_header header = {.kind = LS_TCP_MESSAGE, .channel = 1, .bytes = sizeof body};
        tcp_net_listen(&net, 2);
        tcp_net_open(&net, 0);
        const int socket = tcp_net_enter(&net, 0, 1);
        ls_tcp *tcp = (ls_tcp *)net.ends[0];
        ls_transfer any = tcp_net_room(-1, 1, 100), next = tcp_net_room(-1, 1, 100);
        if (late == 0) {
            assert_int_equal(tcp_net_receive(&net, 0, &any), LS_OK);
        }
        tcp_net_tell(socket, &header, sizeof header);
        tcp_net_tell(socket, body, 50);
        TCP_NET_UNTIL(&net, tcp->peers[1].body.left == 50) {
        }
        if (late == 1) {
            assert_int_equal(tcp_net_receive(&net, 0, &any), LS_OK);
        }
        tcp_net_withdraw(&net, 0, &any);
        free(any.data);
        assert_int_equal(tcp_net_receive(&net, 0, &next), LS_OK);
        tcp_net_tell(socket, body + 50, 50);
        tcp_net_tell(socket, &header, sizeof header);
        tcp_net_tell(socket, body, sizeof body);
        TCP_NET_UNTIL(&net, next.ended) {
        }
        assert_memory_equal(next.data, body, sizeof body);
        close(socket);
        tcp_net_end(&net);
        free(next.data);
    }
}

/* A rank dies while sending a message to a receive from any rank. The receive then waits for other ranks. */
TEST(a_torn_message_leaves_its_receive_to_others) {
    for (int late = 0; late < 2; late++) {
        tcp_net net;
        const ls_tcp_header header = {.kind = LS_TCP_MESSAGE, .channel = 1, .bytes = 100};
        tcp_net_listen(&net, 3);
        tcp_net_open(&net, 0);
        tcp_net_open(&net, 2);
        const int socket = tcp_net_enter(&net, 0, 1);
        ls_tcp *tcp = (ls_tcp *)net.ends[0];
        ls_transfer any = tcp_net_room(-1, 1, 100), send = tcp_net_message(0, 1, 60, 8);
        if (late == 0) {
            assert_int_equal(tcp_net_receive(&net, 0, &any), LS_OK);
        }
        tcp_net_tell(socket, &header, sizeof header);
        tcp_net_tell(socket, &header, 1);
        TCP_NET_UNTIL(&net, tcp->peers[1].body.left == 99) {
        }
        if (late == 1) {
            assert_int_equal(tcp_net_receive(&net, 0, &any), LS_OK);
        }
        close(socket);
        TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 0, 1)) {
        }
        assert_false(any.ended);
        assert_int_equal(tcp_net_send(&net, 2, &send), LS_OK);
        TCP_NET_UNTIL(&net, any.ended) {
        }
        assert_true(tcp_net_holds(&any, 8, 60) && any.peer == 2);
        tcp_net_end(&net);
        free(any.data);
        free(send.data);
    }
}

enum { HUGE = 2 << 20 };

/* Situations in which cancellations occurred: a piece was being written, or pieces were being received. */
typedef struct moments {
    int writing, reading;
} moments;

/*
 * Cancels one side of a large message after a number of polls. Returns false if it had ended before. A small message
 * still arrives and, if the receive was canceled, the large send ends.
 */
static bool take_back_large(int side, int looks, moments *met) {
    tcp_net net;
    tcp_net_start(&net, 2);
    ls_transfer large[] = {tcp_net_message(1, 1, HUGE, 1), tcp_net_room(0, 1, HUGE)};
    ls_transfer small = tcp_net_message(1, 2, 1000, 2), last = tcp_net_room(0, 2, 1000);
    assert_int_equal(tcp_net_send(&net, 0, &large[0]), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 1, &large[1]), LS_OK);
    if (side == 0) { /* less room than a piece needs, so that pieces are written in parts */
        const int room = LS_TCP_FAR_PIECE / 4;
        assert_int_equal(
            setsockopt(((ls_tcp *)net.ends[0])->peers[1].socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
    }
    for (int i = 0; i < looks; i++) {
        tcp_net_turn(&net);
    }
    for (int i = 0; side == 0 && i < HUGE / LS_TCP_FAR_PIECE; i++) { /* until no room is left */
        bool moved;
        assert_int_equal(net.ends[0]->transport->progress(net.ends[0], 0, &moved), LS_OK);
    }
    const bool under_way = !large[side].ended;
    const bool reading = side == 1 && ((ls_tcp *)net.ends[1])->peers[0].awaited != NULL;
    met->writing += side == 0 && ((ls_tcp *)net.ends[0])->peers[1].frame.content != NULL;
    met->reading += reading;
    tcp_net_withdraw(&net, side, &large[side]);
    free(large[side].data);
    assert_int_equal(tcp_net_send(&net, 0, &small), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 1, &last), LS_OK);
    TCP_NET_UNTIL(&net, last.ended && (!reading || large[0].ended)) {
    }
    assert_true(tcp_net_holds(&last, 2, 1000));
    assert_true(!under_way || !large[side].ended);
    tcp_net_end(&net);
    free(large[1 - side].data);
    free(small.data);
    free(last.data);
    return under_way;
}

TEST(large_messages_are_taken_back) {
    moments met = {0};
    for (int side = 0; side < 2; side++) {
        for (int looks = 0; take_back_large(side, looks, &met); looks++) {
        }
    }
    assert_true(met.writing > 0 && met.reading > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP_NET_TEST(every_lie_is_an_error),         TCP_NET_TEST(a_late_receive_without_room_is_an_error),
        TCP_NET_TEST(damaged_frames_are_errors),     TCP_NET_TEST(a_receive_from_any_rank_is_taken_back),
        TCP_NET_TEST(a_message_on_its_way_is_lost),  TCP_NET_TEST(a_torn_message_leaves_its_receive_to_others),
        TCP_NET_TEST(large_messages_are_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
