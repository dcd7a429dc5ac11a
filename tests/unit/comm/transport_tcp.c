/*
 * Messages over the TCP transport: sizes around every limit, order, any order of calls, both directions at once,
 * simultaneous connects, completed sends that no longer need their rank, and leftover data.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>

#include "base/random.h"
#include "tests/support/allocator.h"
#include "tests/support/processes.h"
#include "tests/support/tcp_net.h"

#define LARGE ((size_t)10 << 20)

static const size_t sizes[] = {0,
                               1,
                               100,
                               LS_TRANSPORT_LEAST_EAGER,
                               LS_TCP_EAGER - 1,
                               LS_TCP_EAGER,
                               LS_TCP_EAGER + 1,
                               LS_TCP_PIECE - 1,
                               LS_TCP_PIECE,
                               LS_TCP_PIECE + 1,
                               LS_TCP_PIECE * 3 + 5};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- one after the other ----------------------------------------------------------------------------------------- */

/* Sends each size twice. The receive starts before the send, and then after the first bytes have arrived. */
TEST(every_size_arrives) {
    tcp_net net;
    tcp_net_start(&net, 2);
    for (uint64_t i = 0; i < 2 * SIZES; i++) {
        const size_t bytes = sizes[i / 2];
        ls_transfer send = tcp_net_message(1, 3, bytes, i), receive = tcp_net_room(0, 3, bytes);
        if (i % 2 == 0) {
            assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
        }
        assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
        assert_true(!send.ended || bytes <= net.ends[0]->eager);
        if (i % 2 == 1) {
            for (int turn = 0; turn < 20; turn++) {
                tcp_net_turn(&net);
            }
            assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
        }
        TCP_NET_UNTIL(&net, send.ended && receive.ended) {
        }
        assert_true(tcp_net_holds(&receive, i, bytes));
        assert_int_equal(net.ends[0]->messages, i + 1);
        free(send.data);
        free(receive.data);
    }
    assert_int_equal(net.ends[1]->messages, 0);
    assert_int_equal(net.ends[1]->bytes, 0);
    tcp_net_end(&net);
}

/* A message may be shorter than its buffer. The receive returns its length and its sender. */
TEST(a_receive_tells_what_came) {
    tcp_net net;
    tcp_net_start(&net, 3);
    ls_transfer small = tcp_net_message(0, 1, 7, 1), large = tcp_net_message(0, 2, LS_TCP_EAGER + 7, 2);
    ls_transfer any = tcp_net_room(-1, 1, LS_TRANSPORT_LEAST_EAGER), named = tcp_net_room(2, 2, 2 * LS_TCP_EAGER);
    assert_int_equal(tcp_net_receive(&net, 0, &any), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 0, &named), LS_OK);
    assert_int_equal(tcp_net_send(&net, 2, &small), LS_OK);
    assert_int_equal(tcp_net_send(&net, 2, &large), LS_OK);
    TCP_NET_UNTIL(&net, any.ended && named.ended) {
    }
    assert_int_equal(any.peer, 2);
    assert_true(tcp_net_holds(&any, 1, 7));
    assert_true(tcp_net_holds(&named, 2, LS_TCP_EAGER + 7));
    assert_int_equal(net.ends[2]->bytes, 7 + LS_TCP_EAGER + 7);
    ls_transfer *all[] = {&small, &large, &any, &named};
    for (size_t i = 0; i < 4; i++) {
        free(all[i]->data);
    }
    tcp_net_end(&net);
}

/* ---- any order of calls ------------------------------------------------------------------------------------------ */

enum { MESSAGES = 40, CHANNELS = 3, ROUNDS = 25 };

/* The data that one rank sends to the other. */
typedef struct flow {
    int from;
    int channels[MESSAGES];
    ls_transfer sends[MESSAGES];
    ls_transfer receives[MESSAGES];
    bool posted[MESSAGES];
    int sent;
    int received;
} flow;

static uint64_t seed, thrown;

static size_t dice(size_t bound) {
    return (size_t)ls_random_below(seed, 1, thrown++, bound);
}

static void begin_flow(flow *f, int from) {
    *f = (flow){.from = from};
    for (int i = 0; i < MESSAGES; i++) {
        const size_t bytes = sizes[dice(SIZES)];
        f->channels[i] = (int)dice(CHANNELS) * 5;
        f->sends[i] = tcp_net_message(1 - from, f->channels[i], bytes, (uint64_t)i);
        f->receives[i] = tcp_net_room(from, f->channels[i], bytes);
    }
}

static void send_next(tcp_net *net, flow *f) {
    if (f->sent < MESSAGES) {
        assert_int_equal(tcp_net_send(net, f->from, &f->sends[f->sent++]), LS_OK);
    }
}

/* Posts the next receive of one of the channels. */
static void receive_next(tcp_net *net, flow *f) {
    const int channel = (int)dice(CHANNELS) * 5;
    for (int i = 0; i < MESSAGES; i++) {
        if (!f->posted[i] && f->channels[i] == channel) {
            f->posted[i] = true;
            f->received++;
            assert_int_equal(tcp_net_receive(net, 1 - f->from, &f->receives[i]), LS_OK);
            return;
        }
    }
}

static bool flow_ended(const flow *f) {
    bool ended = true;
    for (int i = 0; i < MESSAGES; i++) {
        ended = ended && f->sends[i].ended && f->receives[i].ended;
    }
    return ended;
}

static void end_flow(flow *f) {
    for (int i = 0; i < MESSAGES; i++) {
        assert_true(tcp_net_holds(&f->receives[i], (uint64_t)i, f->sends[i].bytes));
        free(f->sends[i].data);
        free(f->receives[i].data);
    }
}

/* Two ranks send, receive and poll at random from the start, when both may connect. */
TEST(any_order_of_calls_gives_the_same) {
    static flow flows[2];
    for (seed = 0; seed < ROUNDS; seed++) {
        tcp_net net;
        bool moved;
        thrown = 0;
        tcp_net_start(&net, 2);
        begin_flow(&flows[0], 0);
        begin_flow(&flows[1], 1);
        const double end = ls_clock_seconds() + TCP_NET_LONGEST;
        while (!flow_ended(&flows[0]) || !flow_ended(&flows[1])) {
            const size_t what = dice(6);
            flow *f = &flows[what % 2];
            assert_true(ls_clock_seconds() < end);
            if (what < 2) {
                send_next(&net, f);
            } else if (what < 4) {
                receive_next(&net, f);
            } else {
                assert_int_equal(net.ends[f->from]->transport->progress(net.ends[f->from], 0, &moved), LS_OK);
            }
        }
        end_flow(&flows[0]);
        end_flow(&flows[1]);
        tcp_net_end(&net);
    }
}

enum { EARLY = 3000 };

/*
 * Small sends end without a receive, once the other rank has read messages for which it had no buffer. Larger sends end
 * if the other rank is not too far behind.
 */
TEST(many_messages_come_before_their_receives) {
    tcp_net net;
    static ls_transfer sends[EARLY], receives[EARLY];
    int ended = 0;
    tcp_net_start(&net, 2);
    for (uint64_t i = 0; i < EARLY; i++) {
        sends[i] = tcp_net_message(1, 0, i % 10 == 0 ? LS_TCP_EAGER : 100, i);
        assert_int_equal(tcp_net_send(&net, 0, &sends[i]), LS_OK);
    }
    const size_t unclaimed = (EARLY + 9) / 10 * (size_t)LS_TCP_EAGER;
    assert_true(unclaimed > LS_TCP_UNCLAIMED + LS_TCP_EAGER);
    TCP_NET_UNTIL(&net, ended == EARLY - (int)((unclaimed - LS_TCP_UNCLAIMED) / LS_TCP_EAGER) + 1) {
        ended = 0;
        for (int i = 0; i < EARLY; i++) {
            ended += sends[i].ended;
        }
    }
    for (uint64_t i = 0; i < EARLY; i++) {
        receives[i] = tcp_net_room(0, 0, sends[i].bytes);
        assert_int_equal(tcp_net_receive(&net, 1, &receives[i]), LS_OK);
    }
    TCP_NET_UNTIL(&net, ended == 2 * EARLY) {
        ended = 0;
        for (int i = 0; i < EARLY; i++) {
            ended += sends[i].ended + receives[i].ended;
        }
    }
    for (uint64_t i = 0; i < EARLY; i++) {
        assert_true(tcp_net_holds(&receives[i], i, sends[i].bytes));
        free(receives[i].data);
        free(sends[i].data);
    }
    tcp_net_end(&net);
}

/* Sends to rank 1 until a send finds no room, and cancels that send. Returns the number of completed sends. */
static uint64_t send_while_there_is_room(tcp_net *net, uint64_t most) {
    for (uint64_t i = 0; i < most; i++) {
        ls_transfer send = tcp_net_message(1, 0, LS_TCP_EAGER, i);
        assert_int_equal(tcp_net_send(net, 0, &send), LS_OK);
        if (!send.ended) {
            tcp_net_withdraw(net, 0, &send);
        }
        free(send.data);
        if (!send.ended) {
            return i;
        }
    }
    return most;
}

/* Only rank 1 polls. It receives all messages whose sends have completed. */
TEST(what_has_ended_needs_its_rank_no_more) {
    tcp_net net;
    bool moved;
    tcp_net_start(&net, 2);
    ls_transfer first = tcp_net_message(1, 1, 1, 0);
    assert_int_equal(tcp_net_send(&net, 0, &first), LS_OK);
    TCP_NET_UNTIL(&net, first.ended) {
    }
    const uint64_t count = send_while_there_is_room(&net, 2000);
    assert_true(count > 0);
    for (uint64_t i = 0; i < count; i++) {
        const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
        ls_transfer receive = tcp_net_room(0, 0, LS_TCP_EAGER);
        assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
        while (!receive.ended) {
            assert_true(ls_clock_seconds() < limit);
            assert_int_equal(net.ends[1]->transport->progress(net.ends[1], 1000000, &moved), LS_OK);
        }
        assert_true(tcp_net_holds(&receive, i, LS_TCP_EAGER));
        free(receive.data);
    }
    free(first.data);
    tcp_net_end(&net);
}

/*
 * Rank 0 first sends on one communicator, and polls the other only after the send has completed. Rank 1 waits on the
 * first, which it has not polled before, and answers on the second.
 */
TEST(a_rank_may_go_on_to_another_communicator) {
    tcp_net first, second;
    bool moved;
    tcp_net_start(&first, 2);
    tcp_net_start(&second, 2);
    ls_transfer send = tcp_net_message(1, 0, 100, 1), receive = tcp_net_room(0, 0, 100);
    ls_transfer answer = tcp_net_message(0, 0, 100, 2), awaited = tcp_net_room(1, 0, 100);
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    assert_int_equal(tcp_net_send(&first, 0, &send), LS_OK);
    while (!send.ended) {
        assert_true(ls_clock_seconds() < limit);
        assert_int_equal(first.ends[0]->transport->progress(first.ends[0], 1000000, &moved), LS_OK);
    }
    assert_int_equal(tcp_net_receive(&second, 0, &awaited), LS_OK);
    assert_int_equal(tcp_net_receive(&first, 1, &receive), LS_OK);
    for (bool told = false; !awaited.ended; tcp_net_turn_until(&second, limit)) {
        assert_int_equal(first.ends[1]->transport->progress(first.ends[1], 0, &moved), LS_OK);
        if (receive.ended && !told) {
            assert_int_equal(tcp_net_send(&second, 1, &answer), LS_OK);
            told = true;
        }
    }
    assert_true(tcp_net_holds(&receive, 1, 100) && tcp_net_holds(&awaited, 2, 100));
    ls_transfer *all[] = {&send, &receive, &answer, &awaited};
    tcp_net_end(&first);
    tcp_net_end(&second);
    for (size_t i = 0; i < 4; i++) {
        free(all[i]->data);
    }
}

/* Receives from any rank: the messages of each rank arrive in order. */
TEST(any_rank_may_send) {
    enum { EACH = 38, RANKS = TCP_NET_MOST };
    tcp_net net;
    uint64_t came[RANKS] = {0};
    static ls_transfer sends[EACH][RANKS];
    tcp_net_start(&net, RANKS);
    for (uint64_t i = 0; i < EACH; i++) {
        for (int rank = 1; rank < RANKS; rank++) {
            sends[i][rank] = tcp_net_message(0, 15, i * 100 + (uint64_t)rank, i);
            assert_int_equal(tcp_net_send(&net, rank, &sends[i][rank]), LS_OK);
        }
    }
    for (int i = 0; i < EACH * (RANKS - 1); i++) {
        ls_transfer receive = tcp_net_room(-1, 15, LS_TRANSPORT_LEAST_EAGER);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        TCP_NET_UNTIL(&net, receive.ended) {
        }
        assert_in_range(receive.peer, 1, RANKS - 1);
        const uint64_t number = came[receive.peer]++;
        assert_true(tcp_net_holds(&receive, number, number * 100 + (uint64_t)receive.peer));
        free(receive.data);
    }
    tcp_net_end(&net);
    for (int i = 0; i < EACH; i++) {
        for (int rank = 1; rank < RANKS; rank++) {
            free(sends[i][rank].data);
        }
    }
}

/* ---- at the same time -------------------------------------------------------------------------------------------- */

/* A thread that acts as a rank. Returns NULL or an error message. */
typedef struct actor {
    tcp_net *net;
    int rank;
    const char *(*act)(tcp_net *net, int rank);
    const char *failure;
    pthread_t thread;
} actor;

static void *run_actor(void *argument) {
    actor *a = argument;
    a->failure = a->act(a->net, a->rank);
    return NULL;
}

static void run_actors(tcp_net *net, const char *(*act)(tcp_net *net, int rank)) {
    actor actors[TCP_NET_MOST];
    for (int rank = 0; rank < net->size; rank++) {
        actors[rank] = (actor){.net = net, .rank = rank, .act = act};
        assert_int_equal(pthread_create(&actors[rank].thread, NULL, run_actor, &actors[rank]), 0);
    }
    for (int rank = 0; rank < net->size; rank++) {
        assert_int_equal(pthread_join(actors[rank].thread, NULL), 0); /* no actor waits longer than a minute */
    }
    for (int rank = 0; rank < net->size; rank++) {
        if (actors[rank].failure != NULL) {
            fail_msg("rank %d: %s", rank, actors[rank].failure);
        }
    }
}

/* Waits as the engine does. Returns NULL or an error message. */
static const char *wait_for(tcp_net *net, int rank, const ls_transfer *transfers, int count) {
    ls_endpoint *end = net->ends[rank];
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    for (int i = 0; i < count;) {
        bool moved;
        if (transfers[i].ended) {
            i++;
            continue;
        }
        LS_MUST(ls_clock_seconds() < limit);
        LS_MUST(end->transport->progress(end, 1000000000, &moved) == LS_OK);
    }
    return NULL;
}

static const char *exchange_large(tcp_net *net, int rank) {
    enum { EACH = 3 };
    ls_transfer transfers[2 * EACH];
    for (int i = 0; i < EACH; i++) {
        transfers[i] = tcp_net_message(1 - rank, i % 2, LARGE, (uint64_t)(10 * rank + i));
        transfers[EACH + i] = tcp_net_room(1 - rank, i % 2, LARGE);
        LS_MUST(tcp_net_send(net, rank, &transfers[i]) == LS_OK);
        LS_MUST(tcp_net_receive(net, rank, &transfers[EACH + i]) == LS_OK);
    }
    const char *failure = wait_for(net, rank, transfers, 2 * EACH);
    for (int i = 0; i < EACH; i++) {
        LS_MUST(failure != NULL || tcp_net_holds(&transfers[EACH + i], (uint64_t)(10 * (1 - rank) + i), LARGE));
        free(transfers[i].data);
        free(transfers[EACH + i].data);
    }
    return failure;
}

TEST(large_messages_cross) {
    tcp_net net;
    tcp_net_start(&net, 2);
    run_actors(&net, exchange_large);
    tcp_net_end(&net);
}

static const char *exchange_small(tcp_net *net, int rank) {
    ls_transfer transfers[2 * TCP_NET_MOST] = {{0}};
    int count = 0;
    for (int i = 1; i < net->size; i++) {
        const int peer = (rank + i) % net->size;
        transfers[count] = tcp_net_message(peer, 0, 50, (uint64_t)rank);
        transfers[count + 1] = tcp_net_room(peer, 0, 50);
        LS_MUST(tcp_net_receive(net, rank, &transfers[count + 1]) == LS_OK);
        LS_MUST(tcp_net_send(net, rank, &transfers[count]) == LS_OK);
        count += 2;
    }
    const char *failure = wait_for(net, rank, transfers, count);
    for (int i = 0; i < count; i += 2) {
        LS_MUST(failure != NULL || tcp_net_holds(&transfers[i + 1], (uint64_t)transfers[i + 1].peer, 50));
        free(transfers[i].data);
        free(transfers[i + 1].data);
    }
    return failure;
}

static int count_connections(const tcp_net *net) {
    int count = 0;
    for (int rank = 0; rank < net->size; rank++) {
        for (int peer = 0; peer < net->size; peer++) {
            count += ((const ls_tcp *)net->ends[rank])->peers[peer].socket >= 0;
            count += ((const ls_tcp *)net->ends[rank])->peers[peer].incoming >= 0;
        }
        count += ((const ls_tcp *)net->ends[rank])->unproven_count;
    }
    return count;
}

/* However the attempts of two ranks overlap, there is finally one connection per direction, and nothing is lost. */
TEST(all_connect_at_once) {
    for (int round = 0; round < 200; round++) {
        tcp_net net;
        tcp_net_start(&net, round % 4 == 0 ? TCP_NET_MOST : 2);
        run_actors(&net, exchange_small);
        TCP_NET_UNTIL(&net, count_connections(&net) == 2 * net.size * (net.size - 1)) {
        }
        tcp_net_end(&net);
    }
}

/* ---- endings ----------------------------------------------------------------------------------------------------- */

enum { LAST = 4000 };

static ls_transfer last[2][LAST];

/*
 * Rank 0 sends much data to a rank to which it is not yet connected, and closes its endpoint. Rank 1 sends much data
 * that no rank reads.
 */
static const char *leave_or_listen(tcp_net *net, int rank) {
    ls_endpoint *end = net->ends[rank];
    static ls_transfer receives[LAST];
    for (int i = 0; i < LAST; i++) {
        ls_transfer *send = &last[rank][i];
        *send = tcp_net_message(1 - rank, 0, LS_TRANSPORT_LEAST_EAGER, (uint64_t)i);
        LS_MUST(tcp_net_send(net, rank, send) == LS_OK);
    }
    if (rank == 0) {
        end->transport->close(end, (uint64_t)(TCP_NET_LONGEST * 1e9), NULL, NULL);
        net->ends[0] = NULL;
        return NULL;
    }
    for (int i = 0; i < LAST; i++) {
        receives[i] = tcp_net_room(0, 0, LS_TRANSPORT_LEAST_EAGER);
        LS_MUST(tcp_net_receive(net, 1, &receives[i]) == LS_OK);
    }
    const char *failure = wait_for(net, 1, receives, LAST);
    for (int i = 0; i < LAST; i++) {
        LS_MUST(failure != NULL || tcp_net_holds(&receives[i], (uint64_t)i, LS_TRANSPORT_LEAST_EAGER));
        free(receives[i].data);
    }
    return failure;
}

TEST(what_is_small_still_goes) {
    tcp_net net;
    tcp_net_start(&net, 2);
    run_actors(&net, leave_or_listen);
    TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 1, 0)) {
    }
    tcp_net_end(&net);
    for (int i = 0; i < LAST; i++) {
        free(last[0][i].data);
        free(last[1][i].data);
    }
}

/* Each allocation fails once. The result is an error, and nothing is left behind. */
TEST(no_memory_is_an_error) {
    test_allocator allocator;
    int failures = 0;
    for (long fail = 0;; fail++) {
        tcp_net net;
        bool moved, all = true;
        char early[200] = "", late[200], large[LS_TCP_EAGER + 1] = "", place[LS_TCP_EAGER + 1];
        ls_transfer transfers[] = {{.peer = 1, .data = early, .bytes = sizeof early},
                                   {.peer = 0, .data = late, .bytes = sizeof late},
                                   {.peer = 1, .data = large, .bytes = sizeof large},
                                   {.peer = 0, .data = place, .bytes = sizeof place}};
        tcp_net_listen(&net, 2);
        test_allocator_start(&allocator);
        atomic_store(&allocator.fail_once, fail);
        ls_status status = LS_OK;
        for (int rank = 0; rank < 2 && status == LS_OK; rank++) {
            net.ends[rank] = ls_tcp_open(&(ls_tcp_options){.rank = rank,
                                                           .size = 2,
                                                           .listener = net.listeners[rank],
                                                           .peer_infos = net.peer_infos,
                                                           .key = &net.key});
            net.listeners[rank] = -1;
            status = net.ends[rank] != NULL ? LS_OK : ls_error_status();
        }
        for (int turn = 0; turn < 400 && status == LS_OK; turn++) {
            if (turn % 100 == 0) {
                status = turn / 100 % 2 == 0 ? tcp_net_send(&net, 0, &transfers[turn / 100])
                                             : tcp_net_receive(&net, 1, &transfers[turn / 100]);
            }
            for (int rank = 0; rank < 2 && status == LS_OK; rank++) {
                status = net.ends[rank]->transport->progress(net.ends[rank], 0, &moved);
            }
        }
        for (int i = 0; i < 4; i++) {
            all = all && transfers[i].ended;
        }
        const bool failed = atomic_load(&allocator.calls) > fail;
        tcp_net_end(&net);
        assert_int_equal(test_allocator_stop(&allocator), 0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_true(failed || all);
        failures += failed;
        if (!failed) {
            break;
        }
    }
    assert_true(failures > 8);
}

/* The time during which a process was stopped does not count as waiting time. */
TEST(time_stands_still_in_a_stopped_process) {
    tcp_net net;
    tcp_net_start(&net, 1);
    ls_endpoint *end = net.ends[0];
    ls_tcp *tcp = (ls_tcp *)end;
    bool moved;
    const uint64_t before = end->transport->now_ns(end);
    tcp->awake.polled_ns -= UINT64_C(3600000000000);
    assert_true(end->transport->now_ns(end) - before < LS_STOPPED_NS + UINT64_C(200000000));
    assert_int_equal(end->transport->progress(end, 1000000, &moved), LS_OK);
    assert_false(moved);
    assert_true(end->transport->now_ns(end) - before < UINT64_C(60000000000));
    tcp_net_end(&net);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP_NET_TEST(every_size_arrives),
        TCP_NET_TEST(a_receive_tells_what_came),
        TCP_NET_TEST(any_order_of_calls_gives_the_same),
        TCP_NET_TEST(many_messages_come_before_their_receives),
        TCP_NET_TEST(what_has_ended_needs_its_rank_no_more),
        TCP_NET_TEST(a_rank_may_go_on_to_another_communicator),
        TCP_NET_TEST(any_rank_may_send),
        TCP_NET_TEST(large_messages_cross),
        TCP_NET_TEST(all_connect_at_once),
        TCP_NET_TEST(what_is_small_still_goes),
        TCP_NET_TEST(no_memory_is_an_error),
        TCP_NET_TEST(time_stands_still_in_a_stopped_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
