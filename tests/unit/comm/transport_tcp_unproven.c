/*
 * Admission to the TCP transport: foreign processes are refused and have no effect, whatever they send. A rank is
 * admitted once, however its hello arrives. The death of a rank is reported after its earlier messages have arrived.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/random.h"
#include "tests/support/processes.h"
#include "tests/support/tcp_net.h"
#include "tests/support/unauthenticated.h"

/* Sends one message from each of the two ranks to the other. */
static void exchange(tcp_net *net, int first, int second) {
    for (int i = 0; i < 2; i++) {
        const int from = i == 0 ? first : second, to = i == 0 ? second : first;
        ls_transfer send = tcp_net_message(to, 0, 1000, 5), receive = tcp_net_room(from, 0, 1000);
        assert_int_equal(tcp_net_receive(net, to, &receive), LS_OK);
        assert_int_equal(tcp_net_send(net, from, &send), LS_OK);
        TCP_NET_UNTIL(net, send.ended && receive.ended) {
        }
        assert_true(tcp_net_holds(&receive, 5, 1000));
        free(send.data);
        free(receive.data);
    }
}

/* A hello, directly followed by a message on channel 0. */
typedef struct entrance {
    ls_tcp_hello hello;
    ls_tcp_header header;
    unsigned char data[40];
} entrance;

static entrance make_entrance(const tcp_net *net, int from, int to) {
    entrance e = {.hello = tcp_net_hello(&net->key, net->peer_infos, net->size, from, to),
                  .header = {.kind = LS_TCP_MESSAGE, .bytes = sizeof e.data}};
    for (size_t i = 0; i < sizeof e.data; i++) {
        e.data[i] = tcp_net_byte(5, i);
    }
    return e;
}

static bool is_refused(tcp_net *net, int socket) {
    char byte;
    return !tcp_net_hear(net, socket, &byte, 1);
}

/* Sends the entrance to a rank, which refuses it and reads no further. */
static void try_in_vain(tcp_net *net, int rank, const entrance *e) {
    const ls_tcp *tcp = (const ls_tcp *)net->ends[rank];
    const int socket = tcp_net_call(net, rank);
    tcp_net_tell(socket, e, sizeof *e);
    assert_true(is_refused(net, socket));
    assert_null(tcp->arrivals.early);
    assert_int_equal(tcp->unproven_count, 0);
    close(socket);
}

/* ---- foreign processes ------------------------------------------------------------------------------------------- */

enum { SILENT = 3 * LS_TCP_UNPROVEN, NOISY = 100 };

/* More connections than there is room for are held open. */
TEST(silent_connections_keep_nobody_out) {
    tcp_net net;
    int sockets[SILENT];
    tcp_net_start(&net, 2);
    for (int i = 0; i < SILENT; i++) {
        sockets[i] = tcp_net_call(&net, i % 2);
        tcp_net_turn(&net);
    }
    exchange(&net, 0, 1);
    for (int i = 0; i < SILENT; i++) {
        close(sockets[i]);
    }
    TCP_NET_UNTIL(&net, ((ls_tcp *)net.ends[0])->unproven_count + ((ls_tcp *)net.ends[1])->unproven_count == 0) {
    }
    tcp_net_end(&net);
}

/* An unproven connection that is silent, or sends half of a hello, is closed after some time. */
TEST(silence_ends) {
    tcp_net net;
    tcp_net_start(&net, 2);
    ls_tcp *tcp = (ls_tcp *)net.ends[0];
    const ls_tcp_hello hello = tcp_net_hello(&net.key, net.peer_infos, 2, 1, 0);
    const int half = tcp_net_call(&net, 0), silent = tcp_net_call(&net, 0);
    tcp_net_tell(half, &hello, sizeof hello - 1);
    TCP_NET_UNTIL(&net, tcp->unproven_count == 2 && tcp->unproven[0].got == sizeof hello - 1) {
    }
    tcp->awake.ns += UINT64_C(6000000000);
    assert_true(is_refused(&net, silent) && is_refused(&net, half));
    assert_int_equal(tcp->unproven_count, 0);
    close(silent);
    close(half);
    exchange(&net, 0, 1);
    tcp_net_end(&net);
}

/* Makes a hello from rank 1 to rank 0 with error number `i`. Returns false if there is no such error. */
static bool forge(const tcp_net *net, int i, ls_tcp_hello *hello) {
    ls_key other = {0};
    tcp_net elsewhere = *net;
    *hello = tcp_net_hello(&net->key, net->peer_infos, net->size, 1, 0);
    switch (i) {
    case 0:
        hello->hello[LS_PROVEN_HELLO_SIZE - 1] ^= 1; /* the proof */
        return true;
    case 1:
        hello->hello[LS_HELLO_SIZE - 1] ^= 1; /* the nonce */
        return true;
    case 2:
        hello->hello[7] ^= 1;
        return true;
    case 3:
        hello->size++;
        return true;
    case 4: /* from a process with the peer information but without the key */
        assert_int_equal(ls_key_read(&other, "another key of sufficient length"), LS_OK);
        *hello = tcp_net_hello(&other, net->peer_infos, net->size, 1, 0);
        return true;
    case 5: /* rank 0's own hello to rank 1 */
        *hello = tcp_net_hello(&net->key, net->peer_infos, net->size, 0, 1);
        hello->rank = 1;
        return true;
    case 6: /* rank 1's hello to rank 2 */
        *hello = tcp_net_hello(&net->key, net->peer_infos, net->size, 1, 2);
        return true;
    case 7: /* rank 1's hello on a different communicator */
    case 8:
        elsewhere.peer_infos[i - 7].secret[0] ^= 1;
        *hello = tcp_net_hello(&net->key, elsewhere.peer_infos, net->size, 1, 0);
        return true;
    case 9: /* a holder of the key claims to be the receiving rank */
        *hello = tcp_net_hello(&net->key, net->peer_infos, net->size, 0, 0);
        return true;
    default:
        hello->rank = (const int[]){0, 2, 3, -1, INT32_MAX, INT32_MIN}[i - 10];
        return i < 15;
    }
}

TEST(wrong_hellos_are_turned_away) {
    tcp_net net;
    bool more = true;
    tcp_net_start(&net, 3);
    for (int i = 0; more; i++) {
        entrance e = make_entrance(&net, 1, 0);
        more = forge(&net, i, &e.hello);
        try_in_vain(&net, 0, &e);
    }
    exchange(&net, 0, 1);
    exchange(&net, 2, 0);
    tcp_net_end(&net);
}

TEST(garbage_is_turned_away) {
    tcp_net net;
    tcp_net_start(&net, 2);
    for (uint64_t i = 0; i < NOISY; i++) {
        unsigned char garbage[sizeof(entrance)];
        entrance e;
        for (size_t k = 0; k < sizeof garbage; k++) {
            garbage[k] = (unsigned char)ls_random_below(3, i, k, 256);
        }
        memcpy(&e, garbage, sizeof e);
        try_in_vain(&net, 1, &e);
        if (i % 10 == 0) {
            exchange(&net, 0, 1);
        }
    }
    tcp_net_end(&net);
}

/*
 * A foreign process listens instead of rank 1. Data that rank 0 sends there is lost, and rank 1 is treated as dead when
 * the process closes the connection or sends anything. The hello that the process received is useless elsewhere.
 */
TEST(a_listener_without_the_key_is_no_rank) {
    for (int speaks = 0; speaks < 2; speaks++) {
        tcp_net net;
        entrance e = {.header = {.kind = LS_TCP_MESSAGE}};
        tcp_net_listen(&net, 3);
        tcp_net_open(&net, 0);
        tcp_net_open(&net, 2);
        ls_transfer send = tcp_net_message(1, 0, 10, 0), receive = tcp_net_room(1, 0, 10);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
        const int socket = tcp_net_accept(&net, 1, &e.hello);
        assert_false(tcp_net_is_gone(&net, 0, 1));
        try_in_vain(&net, 0, &e);
        try_in_vain(&net, 2, &e);
        e.hello.rank = 1;
        try_in_vain(&net, 0, &e);
        try_in_vain(&net, 2, &e);
        if (speaks == 1) {
            tcp_net_tell(socket, &e, sizeof e);
        } else {
            close(socket);
        }
        TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 0, 1)) {
        }
        assert_false(receive.ended);
        if (speaks == 1) {
            close(socket);
        }
        exchange(&net, 0, 2);
        tcp_net_end(&net);
        free(send.data);
        free(receive.data);
    }
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

/* The test acts as rank 1: the message arrives with its hello in one packet, or byte by byte. */
TEST(a_hello_may_come_in_any_pieces) {
    for (size_t step = 1; step <= sizeof(entrance); step += sizeof(entrance) - 1) {
        tcp_net net;
        tcp_net_listen(&net, 2);
        tcp_net_open(&net, 0);
        const ls_tcp *tcp = (const ls_tcp *)net.ends[0];
        ls_transfer receive = tcp_net_room(-1, 0, 40);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        const entrance e = make_entrance(&net, 1, 0);
        const int socket = tcp_net_call(&net, 0);
        for (size_t told = 0; told < sizeof e; told += step) {
            tcp_net_tell(socket, (const char *)&e + told, step);
            TCP_NET_UNTIL(&net, told + step >= sizeof e.hello || tcp->unproven[0].got == told + step) {
            }
            TCP_NET_UNTIL(&net, told + step < sizeof e.hello || tcp->peers[1].incoming >= 0) {
            }
        }
        TCP_NET_UNTIL(&net, receive.ended) {
        }
        assert_true(tcp_net_holds(&receive, 5, 40) && receive.peer == 1);
        assert_int_equal(tcp->unproven_count, 0);
        close(socket);
        free(receive.data);
        tcp_net_end(&net);
    }
}

/* The same hello again, or a different valid hello, is refused while the rank is connected and after it has left. */
TEST(a_rank_gets_in_once) {
    tcp_net net;
    tcp_net_listen(&net, 3);
    tcp_net_open(&net, 0);
    tcp_net_open(&net, 2);
    ls_transfer receive = tcp_net_room(-1, 0, 40);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    const entrance first = make_entrance(&net, 1, 0), second = make_entrance(&net, 1, 0);
    const int socket = tcp_net_call(&net, 0);
    tcp_net_tell(socket, &first, sizeof first);
    assert_int_equal(net.ends[0]->transport->peer(net.ends[0], 1), LS_PEER_UNKNOWN);
    TCP_NET_UNTIL(&net, receive.ended) {
    }
    assert_int_equal(net.ends[0]->transport->peer(net.ends[0], 1), LS_PEER_REACHED);
    for (int gone = 0; gone < 2; gone++) {
        try_in_vain(&net, 0, &first);
        try_in_vain(&net, 0, &second);
        assert_int_equal(tcp_net_is_gone(&net, 0, 1), gone);
        assert_int_equal(net.ends[0]->gone, gone);
        if (gone == 0) {
            close(socket);
            TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 0, 1)) {
            }
        }
    }
    exchange(&net, 0, 2);
    free(receive.data);
    tcp_net_end(&net);
}

/* A rank that was declared dead before it connected cannot join later. */
TEST(who_is_gone_stays_gone) {
    tcp_net net;
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    tcp_net_close(&net, 1);
    ls_transfer receive = tcp_net_room(1, 0, 100);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 0, 1)) {
    }
    const entrance e = make_entrance(&net, 1, 0);
    try_in_vain(&net, 0, &e);
    assert_false(receive.ended);
    free(receive.data);
    tcp_net_end(&net);
}

/* ---- ranks that end ---------------------------------------------------------------------------------------------- */

/* Polls a rank once. With `slow`, the rank has not polled for a long time. */
static void look_once(ls_endpoint *end, bool slow) {
    bool moved;
    if (slow) {
        ((ls_tcp *)end)->awake.polled_ns -= UINT64_C(1000000000);
    }
    assert_int_equal(end->transport->progress(end, slow ? 0 : 1000000, &moved), LS_OK);
}

/* Sends to rank 0 until a send finds no room, and cancels that send. Returns the number of completed sends. */
static int send_while_there_is_room(tcp_net *net) {
    enum { MOST = 400 };
    for (int i = 0; i < MOST; i++) {
        ls_transfer send = tcp_net_message(0, 0, LS_TCP_EAGER, (uint64_t)i);
        assert_int_equal(tcp_net_send(net, 1, &send), LS_OK);
        if (!send.ended) {
            tcp_net_withdraw(net, 1, &send);
        }
        free(send.data);
        if (!send.ended) {
            return i;
        }
    }
    return MOST;
}

/*
 * Rank 1 sends as much as fits and exits before rank 0 has accepted its connection, which is queued after `waiting`
 * others. Rank 0 may poll rarely. All messages arrive, and then rank 1 is treated as dead.
 */
static void send_and_end(bool slow, int waiting) {
    tcp_net net;
    int unproven[SILENT];
    tcp_net_listen(&net, 2);
    for (int i = 0; i < waiting; i++) {
        unproven[i] = tcp_net_call(&net, 0);
    }
    tcp_net_open(&net, 1);
    const int count = send_while_there_is_room(&net);
    assert_true(count > 0);
    tcp_net_close(&net, 1);
    tcp_net_open(&net, 0);
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    for (int i = 0; i < count; i++) {
        ls_transfer receive = tcp_net_room(1, 0, LS_TCP_EAGER);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        while (!receive.ended) {
            if (tcp_net_is_gone(&net, 0, 1) || ls_clock_seconds() >= limit) {
                fail_msg("message %d of %d did not come", i, count);
            }
            look_once(net.ends[0], slow);
        }
        assert_true(tcp_net_holds(&receive, (uint64_t)i, LS_TCP_EAGER));
        free(receive.data);
    }
    while (!tcp_net_is_gone(&net, 0, 1)) {
        assert_true(ls_clock_seconds() < limit);
        look_once(net.ends[0], slow);
    }
    for (int i = 0; i < waiting; i++) {
        close(unproven[i]);
    }
    tcp_net_end(&net);
}

TEST(what_was_sent_comes_before_the_end) {
    for (int kind = 0; kind < 4; kind++) {
        send_and_end(kind % 2 == 1, kind / 2 == 1 ? SILENT : 0);
    }
}

/* Rank 1 in its own process: receives a message from rank 0, answers, and waits for another message, which never
 * arrives. */
static const char *wait_for_ever(int number, const void *what) {
    tcp_net net = *(const tcp_net *)what;
    bool moved;
    (void)number;
    close(net.listeners[0]);
    net.listeners[0] = -1;
    tcp_net_open(&net, 1);
    ls_endpoint *end = net.ends[1];
    ls_transfer send = tcp_net_message(0, 0, 100, 3), receive = tcp_net_room(0, 0, 100);
    LS_MUST(tcp_net_receive(&net, 1, &receive) == LS_OK);
    for (bool told = false;; told = told || receive.ended) {
        LS_MUST(end->transport->progress(end, 1000000000, &moved) == LS_OK);
        LS_MUST(!tcp_net_is_gone(&net, 1, 0));
        if (receive.ended && !told) {
            LS_MUST(tcp_net_send(&net, 1, &send) == LS_OK);
        }
    }
}

/* The last message of a killed rank can still be received. */
TEST(a_killed_rank_is_gone) {
    tcp_net net;
    bool moved = false;
    tcp_net_listen(&net, 2);
    const pid_t process = process_start(wait_for_ever, 1, &net);
    close(net.listeners[1]);
    net.listeners[1] = -1;
    tcp_net_open(&net, 0);
    ls_endpoint *end = net.ends[0];
    ls_transfer send = tcp_net_message(1, 0, 100, 2), receive = tcp_net_room(1, 0, 100);
    ls_transfer more = tcp_net_room(1, 0, 100);
    assert_int_equal(end->transport->peer(end, 1), LS_PEER_UNKNOWN);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
    assert_int_equal(end->transport->peer(end, 1), LS_PEER_REACHED);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 0, &more), LS_OK);
    TCP_NET_UNTIL(&net, receive.ended) {
    }
    assert_true(tcp_net_holds(&receive, 3, 100));
    assert_false(tcp_net_is_gone(&net, 0, 1));
    kill(process, SIGKILL);
    assert_int_equal(process_wait(process), -SIGKILL);
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    while (!moved && ls_clock_seconds() < limit) {
        assert_int_equal(end->transport->progress(end, 1000000000, &moved), LS_OK);
    }
    assert_true(moved && tcp_net_is_gone(&net, 0, 1));
    assert_int_equal(end->gone, 1);
    assert_false(more.ended);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK); /* neither fails nor completes */
    assert_false(send.ended);
    tcp_net_withdraw(&net, 0, &more);
    tcp_net_withdraw(&net, 0, &send);
    free(send.data);
    free(receive.data);
    free(more.data);
    tcp_net_end(&net);
}

/* No process listens any more, or the listener exits before it has accepted. */
TEST(a_rank_that_never_connected_is_gone) {
    for (int later = 0; later < 2; later++) {
        tcp_net net;
        bool moved = false;
        tcp_net_listen(&net, 2);
        tcp_net_open(&net, 0);
        if (later == 0) {
            tcp_net_close(&net, 1);
        }
        ls_transfer receive = tcp_net_room(1, 0, 100);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        tcp_net_close(&net, 1);
        const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
        while (!moved && ls_clock_seconds() < limit) {
            ls_endpoint *end = net.ends[0];
            assert_int_equal(end->transport->progress(end, 1000000000, &moved), LS_OK);
        }
        assert_true(moved && tcp_net_is_gone(&net, 0, 1));
        free(receive.data);
        tcp_net_end(&net);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP_NET_TEST(silent_connections_keep_nobody_out),
        TCP_NET_TEST(silence_ends),
        TCP_NET_TEST(wrong_hellos_are_turned_away),
        TCP_NET_TEST(garbage_is_turned_away),
        TCP_NET_TEST(a_listener_without_the_key_is_no_rank),
        TCP_NET_TEST(a_hello_may_come_in_any_pieces),
        TCP_NET_TEST(a_rank_gets_in_once),
        TCP_NET_TEST(who_is_gone_stays_gone),
        TCP_NET_TEST(what_was_sent_comes_before_the_end),
        TCP_NET_TEST(a_killed_rank_is_gone),
        TCP_NET_TEST(a_rank_that_never_connected_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
