/*
 * The transport for tests of the engine (comm/transport/simulated): messages, receives, and time. simulated_traffic.c
 * tests many messages, simulated_ends.c ranks that die.
 *
 * devices: cpu
 */
#include "tests/simulated/entries.h"
#include "tests/simulated/faults.h"

enum { LATENCY = 5000, OVERHEAD = 300, SMALL = 1000, LARGE = 100000 };

static const ls_sim_options plain = {.ranks = 3, .latency_ns = LATENCY, .overhead_ns = OVERHEAD, .bytes_per_ns = 2};

/* Runs turns until a transfer has ended. Returns the time on the transfer's rank, or LS_SIM_NEVER if the transfer does
 * not end. */
static uint64_t end_of(ls_sim_network *network, const ls_transfer *transfer) {
    for (int rank = 0; !transfer->ended && rank >= 0;) {
        rank = ls_sim_next(network);
        if (rank >= 0) {
            const bool moved = sim_progress(network, rank, 0);
            if (transfer->ended) {
                assert_true(moved);
                return ls_sim_time_of(network, rank);
            }
        }
    }
    return LS_SIM_NEVER;
}

static void settle(ls_sim_network *network) {
    const ls_transfer never = {.ended = false};
    assert_true(end_of(network, &never) == LS_SIM_NEVER);
}

static void fill(unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (unsigned char)(i * 7 + i / 251);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

TEST(a_message_takes_what_the_model_says) {
    static unsigned char data[LARGE], into[LARGE];
    fill(data, LARGE);
    const struct {
        size_t bytes;
        uint64_t left, arrives;
    } cases[] = {
        {0, OVERHEAD, 2 * OVERHEAD + LATENCY},
        {SMALL, OVERHEAD + SMALL / 2, 2 * OVERHEAD + LATENCY + SMALL / 2},
        {LARGE, 4 * OVERHEAD + 2 * LATENCY + LARGE / 2 + OVERHEAD, 6 * OVERHEAD + 3 * LATENCY + LARGE / 2},
    };
    for (int i = 0; i < 3; i++) {
        for (int end = 0; end < 2; end++) {
            ls_sim_network *network = ls_sim_new(&plain);
            ls_transfer out = {.peer = 2, .channel = 1, .data = data, .bytes = cases[i].bytes};
            ls_transfer in = {.peer = 0, .channel = 1, .data = into, .bytes = LARGE};
            memset(into, 0, sizeof into);
            sim_receive(network, 2, &in);
            sim_send(network, 0, &out);
            assert_int_equal(out.ended, cases[i].bytes == 0);
            assert_false(out.receives);
            assert_true(in.receives);
            if (end == 0) {
                assert_int_equal(cases[i].bytes == 0 ? ls_sim_time_of(network, 0) : end_of(network, &out),
                                 cases[i].left);
            } else {
                assert_int_equal(end_of(network, &in), cases[i].arrives);
                assert_int_equal(in.bytes, cases[i].bytes);
                assert_memory_equal(into, data, in.bytes);
            }
            assert_int_equal(ls_sim_endpoint(network, 0)->messages, 1);
            assert_int_equal(ls_sim_endpoint(network, 0)->bytes, cases[i].bytes);
            assert_int_equal(ls_sim_endpoint(network, 2)->messages, 0);
            ls_sim_free(network);
        }
    }
}

/* A rank's messages are sent one after another. */
TEST(a_link_carries_one_message_at_a_time) {
    static unsigned char data[SMALL], into[2][SMALL];
    ls_sim_network *network = ls_sim_new(&plain);
    ls_transfer out[2], in[2];
    for (int i = 0; i < 2; i++) {
        out[i] = (ls_transfer){.peer = i + 1, .data = data, .bytes = SMALL};
        in[i] = (ls_transfer){.peer = 0, .data = into[i], .bytes = SMALL};
        sim_receive(network, i + 1, &in[i]);
        sim_send(network, 0, &out[i]);
    }
    assert_int_equal(end_of(network, &in[0]), 2 * OVERHEAD + LATENCY + SMALL / 2);
    assert_int_equal(end_of(network, &in[1]), 2 * OVERHEAD + LATENCY + SMALL);
    ls_sim_free(network);
}

/* Two ranks send to the same rank at the same time. */
TEST(a_receivers_link_may_count_too) {
    static unsigned char data[SMALL], into[2][SMALL];
    for (int both = 0; both < 2; both++) {
        ls_sim_options options = plain;
        options.both_links = both != 0;
        ls_sim_network *network = ls_sim_new(&options);
        ls_transfer out[2];
        ls_transfer in[2];
        for (int i = 0; i < 2; i++) {
            in[i] = (ls_transfer){.peer = i, .channel = 1, .data = into[i], .bytes = SMALL};
            out[i] = (ls_transfer){.peer = 2, .channel = 1, .data = data, .bytes = SMALL};
            sim_receive(network, 2, &in[i]);
            sim_send(network, i, &out[i]);
        }
        const uint64_t first = end_of(network, &in[0]);
        const uint64_t last = in[1].ended ? first : end_of(network, &in[1]);
        const uint64_t alone = 2 * OVERHEAD + LATENCY + SMALL / 2;
        assert_int_equal(first,
                         both != 0 ? alone : alone + OVERHEAD); /* otherwise, the rank receives both in one turn */
        assert_int_equal(last, both != 0 ? alone + SMALL / 2 : first);
        ls_sim_free(network);
    }
}

/* Messages of the same channel keep their order, even if the first is slow on the receiver's link. */
TEST(what_does_not_travel_is_not_written) {
    static unsigned char data[LARGE], into[2][LARGE];
    ls_sim_options options = plain;
    options.both_links = true;
    options.most_content = SMALL;
    ls_sim_network *network = ls_sim_new(&options);
    ls_transfer in[2];
    ls_transfer out[2];
    fill(data, LARGE);
    for (int i = 0; i < 2; i++) {
        const size_t bytes = i == 0 ? SMALL : LARGE;
        in[i] = (ls_transfer){.peer = 0, .channel = 1, .data = into[i], .bytes = bytes};
        out[i] = (ls_transfer){.peer = 2, .channel = 1, .data = data, .bytes = bytes};
        sim_receive(network, 2, &in[i]);
        sim_send(network, 0, &out[i]);
    }
    assert_true(end_of(network, &in[1]) != LS_SIM_NEVER);
    assert_true(in[0].ended);
    assert_int_equal(in[1].bytes, LARGE);
    assert_memory_equal(into[0], data, SMALL);
    assert_int_equal(into[1][1], 0);
    ls_sim_free(network);
}

TEST(a_wait_ends_with_a_turn) {
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = 2});
    assert_int_equal(ls_sim_next(network), 0);
    sim_progress(network, 0, 700);
    assert_int_equal(ls_sim_next(network), 1);
    sim_progress(network, 1, 400);
    sim_progress(network, 1, 900); /* the latest counts */
    assert_int_equal(ls_sim_next(network), 0);
    assert_int_equal(ls_sim_now(network), 700);
    assert_int_equal(ls_sim_next(network), 1);
    assert_int_equal(ls_sim_now(network), 900);
    sim_progress(network, 1, UINT64_MAX);
    assert_int_equal(ls_sim_next(network), -1);
    ls_sim_free(network);
}

/* A turn cancels the rank's earlier waits. Their timers then have no effect. */
TEST(a_turn_ends_a_wait) {
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = 2, .latency_ns = 100});
    unsigned char byte = 1;
    ls_transfer out = {.peer = 1, .data = &byte, .bytes = 1};
    assert_int_equal(ls_sim_next(network), 0);
    sim_send(network, 0, &out);
    assert_int_equal(ls_sim_next(network), 1);
    sim_progress(network, 1, 500);
    sim_progress(network, 1, 300);
    assert_int_equal(ls_sim_next(network), 1);
    assert_int_equal(ls_sim_now(network), 100);
    sim_progress(network, 1, 0);
    assert_int_equal(ls_sim_next(network), -1);
    ls_sim_free(network);
    network = ls_sim_new(&(ls_sim_options){.ranks = 1});
    assert_int_equal(ls_sim_next(network), 0);
    ls_sim_wait(network, 0, 500);
    ls_sim_wait(network, 0, 300);
    assert_int_equal(ls_sim_next(network), 0);
    ls_sim_wait(network, 0, 700);
    assert_int_equal(ls_sim_next(network), 0);
    assert_int_equal(ls_sim_now(network), 1000);
    assert_int_equal(ls_sim_next(network), -1);
    assert_int_equal(ls_sim_events(network), 6); /* three turns, the timers of two waits, and the timer of 500 */
    ls_sim_free(network);
}

/* A wait on a network begins at the time of the common clock, even if this network has long been idle. */
TEST(several_networks_have_one_clock) {
    ls_sim_network *networks[2];
    for (int k = 0; k < 2; k++) {
        networks[k] = ls_sim_new(&(ls_sim_options){.ranks = 1});
        assert_int_equal(ls_sim_next(networks[k]), 0);
    }
    static const uint64_t at_ns[] = {400, 700, 1000, 1200};
    ls_sim_wait(networks[0], 0, 700);
    ls_sim_wait(networks[1], 0, 400);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ls_sim_next_of(networks, 2), 0);
        assert_int_equal(ls_sim_now(networks[0]), at_ns[i]);
        assert_int_equal(ls_sim_now(networks[1]), at_ns[i]);
        if (i == 1) {
            ls_sim_wait(networks[1], 0, 500);
            ls_sim_wait(networks[0], 0, 300);
        }
    }
    assert_int_equal(ls_sim_next_of(networks, 2), -1);
    ls_sim_free(networks[0]);
    ls_sim_free(networks[1]);
}

TEST(a_busy_rank_has_its_turn_afterwards) {
    enum { MESSAGES = 50 };
    unsigned char bytes[MESSAGES] = {0}, came = 0;
    ls_transfer out[MESSAGES], in = {.peer = 1, .data = &came, .bytes = 1};
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = 3, .latency_ns = LATENCY, .overhead_ns = OVERHEAD});
    sim_receive(network, 0, &in);
    for (int i = 0; i < MESSAGES; i++) {
        out[i] = (ls_transfer){.peer = i == 0 ? 0 : 2, .data = &bytes[i], .bytes = 1};
        sim_send(network, i == 0 ? 1 : 0, &out[i]);
    }
    for (int rank = ls_sim_next(network); rank != 0 || ls_sim_now(network) == 0; rank = ls_sim_next(network)) {
        assert_in_range(rank, 0, 2);
        sim_progress(network, rank, 0);
    }
    assert_true((MESSAGES - 1) * OVERHEAD >
                OVERHEAD + LATENCY); /* the message to rank 0 arrives while rank 0 is still sending */
    assert_int_equal(ls_sim_now(network), (MESSAGES - 1) * OVERHEAD);
    ls_sim_free(network);
}

/* A process that is stopped and continued: measured by its own clock, its waits are as long as the waits of other
 * ranks. */
TEST(a_paused_rank_has_a_clock_that_stands_still) {
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = 2, .latency_ns = 100});
    ls_endpoint *paused = ls_sim_endpoint(network, 1);
    unsigned char byte = 1;
    ls_transfer out = {.peer = 1, .data = &byte, .bytes = 1};
    sim_pause(network, 1, 50, 10000);
    assert_int_equal(ls_sim_next(network), 0);
    sim_send(network, 0, &out);
    assert_int_equal(ls_sim_next(network), 1);
    sim_progress(network, 1, 200);
    assert_int_equal(ls_sim_next(network), 1); /* the message arrived at 100 */
    assert_int_equal(ls_sim_now(network), 10000);
    assert_int_equal(paused->transport->now_ns(paused), 50);
    sim_progress(network, 1, 150);
    assert_int_equal(ls_sim_next(network), 1);
    assert_int_equal(ls_sim_now(network), 10150);
    assert_int_equal(paused->transport->now_ns(paused), 200);
    ls_sim_free(network);
    network = ls_sim_new(&(ls_sim_options){.ranks = 1});
    assert_int_equal(ls_sim_next(network), 0);
    sim_progress(network, 0, 200);
    sim_pause(network, 0, 50, 10000); /* during its wait */
    assert_int_equal(ls_sim_next(network), 0);
    assert_int_equal(ls_sim_now(network), 10150);
    ls_sim_free(network);
}

TEST(a_slow_rank_has_its_turns_late) {
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = 1});
    assert_int_equal(ls_sim_next(network), 0);
    sim_slow(network, 0, 100, 200, 1000);
    const uint64_t turns[] = {50, 1100, 1150}; /* the second rank is called at 100 */
    for (int i = 0; i < 3; i++) {
        sim_progress(network, 0, 50);
        assert_int_equal(ls_sim_next(network), 0);
        assert_int_equal(ls_sim_now(network), turns[i]);
    }
    ls_sim_free(network);
}

TEST(ranks_begin_at_random_times) {
    enum { RANKS = 16, MOST = 5000 };
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = RANKS, .most_start_ns = MOST});
    bool seen[RANKS] = {false};
    int in_order = 0;
    for (int i = 0; i < RANKS; i++) {
        const int rank = ls_sim_next(network);
        assert_in_range(rank, 0, RANKS - 1);
        assert_false(seen[rank]);
        assert_true(ls_sim_now(network) <= MOST);
        seen[rank] = true;
        in_order += rank == i;
    }
    assert_true(in_order < RANKS);
    assert_int_equal(ls_sim_next(network), -1);
    ls_sim_free(network);
}

/* ---- messages and receives --------------------------------------------------------------------------------------- */

TEST(a_large_send_waits_for_its_receive) {
    static unsigned char data[LARGE], into[LARGE];
    fill(data, LARGE);
    ls_sim_network *network = ls_sim_new(&plain);
    ls_transfer large = {.peer = 1, .channel = 3, .data = data, .bytes = LARGE};
    ls_transfer small = {.peer = 1, .channel = 3, .data = data, .bytes = SMALL};
    ls_transfer in = {.peer = 0, .channel = 3, .data = into, .bytes = LARGE};
    ls_transfer next = {.peer = 0, .channel = 3, .data = into, .bytes = LARGE};
    sim_send(network, 0, &large);
    sim_send(network, 0, &small);
    settle(network);
    assert_false(large.ended);
    assert_true(small.ended);
    sim_receive(network, 1, &in); /* the large message was sent first */
    assert_false(in.ended);
    settle(network);
    assert_true(large.ended && in.ended);
    assert_int_equal(in.bytes, LARGE);
    assert_memory_equal(into, data, LARGE);
    sim_receive(network, 1, &next);
    assert_true(next.ended);
    assert_int_equal(next.bytes, SMALL);
    ls_sim_free(network);
}

TEST(any_rank_is_received_from) {
    enum { RANKS = 5 };
    ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = RANKS, .latency_ns = 10, .most_delay_ns = 1000});
    int said[RANKS], heard[RANKS], heard_in_order = 0;
    ls_transfer out[RANKS], in[RANKS];
    for (int rank = 1; rank < RANKS; rank++) {
        said[rank] = 100 + rank;
        out[rank] = (ls_transfer){.peer = 0, .channel = 2, .data = &said[rank], .bytes = sizeof(int)};
        in[rank] = (ls_transfer){.peer = -1, .channel = 2, .data = &heard[rank], .bytes = sizeof(int)};
        sim_send(network, rank, &out[rank]);
        if (rank % 2 == 1) {
            sim_receive(network, 0, &in[rank]);
        }
    }
    settle(network);
    for (int rank = 2; rank < RANKS; rank += 2) {
        sim_receive(network, 0, &in[rank]); /* messages have already arrived */
        assert_true(in[rank].ended);
    }
    for (int rank = 1; rank < RANKS; rank++) {
        assert_true(in[rank].ended);
        assert_in_range(in[rank].peer, 1, RANKS - 1);
        assert_int_equal(heard[rank], 100 + in[rank].peer);
        heard_in_order += in[rank].peer == rank;
        for (int other = 1; other < rank; other++) {
            assert_int_not_equal(in[other].peer, in[rank].peer);
        }
    }
    assert_true(heard_in_order < RANKS - 1); /* delays are random */
    ls_sim_free(network);
}

TEST(what_was_withdrawn_is_left_alone) {
    static unsigned char data[LARGE], into[LARGE];
    ls_sim_network *network = ls_sim_new(&plain);
    ls_endpoint *sender = ls_sim_endpoint(network, 0);
    ls_endpoint *receiver = ls_sim_endpoint(network, 1);
    ls_transfer large = {.peer = 1, .channel = 0, .data = data, .bytes = LARGE};
    ls_transfer small = {.peer = 1, .channel = 1, .data = data, .bytes = SMALL};
    ls_transfer in[] = {{.peer = 0, .channel = 0, .data = into, .bytes = LARGE},
                        {.peer = 0, .channel = 1, .data = into, .bytes = LARGE},
                        {.peer = 0, .channel = 2, .data = into, .bytes = LARGE}};
    for (int i = 0; i < 3; i++) {
        sim_receive(network, 1, &in[i]);
    }
    sim_send(network, 0, &large);
    sim_send(network, 0, &small);
    sender->transport->withdraw(sender, &large);
    sender->transport->withdraw(sender, &small);
    receiver->transport->withdraw(receiver, &in[2]);
    memset(data, 1, sizeof data); /* the transport no longer uses this memory */
    settle(network);
    assert_false(large.ended || small.ended || in[0].ended || in[2].ended);
    assert_true(in[1].ended); /* this receive had begun before the withdrawal */
    assert_int_equal(into[0], 0);
    receiver->transport->withdraw(receiver, &in[0]);
    ls_sim_free(network);
}

/* Runs turns until a `progress` fails, and returns its status. */
static ls_status failure_of(ls_sim_network *network) {
    ls_status status = LS_OK;
    for (int rank; status == LS_OK && (rank = ls_sim_next(network)) >= 0;) {
        bool moved = false;
        ls_endpoint *endpoint = ls_sim_endpoint(network, rank);
        status = endpoint->transport->progress(endpoint, 0, &moved);
    }
    return status;
}

TEST(a_message_without_room_is_told) {
    static unsigned char data[LARGE], into[SMALL];
    const size_t sizes[] = {SMALL + 1, LARGE};
    for (int i = 0; i < 4; i++) {
        ls_sim_network *network = ls_sim_new(&plain);
        ls_transfer out = {.peer = 1, .data = data, .bytes = sizes[i % 2]};
        ls_transfer in = {.peer = 0, .data = into, .bytes = SMALL};
        if (i < 2) {
            sim_receive(network, 1, &in);
        }
        sim_send(network, 0, &out);
        ls_status status = failure_of(network);
        if (i >= 2) { /* the message arrived before its receive */
            sim_receive(network, 1, &in);
            bool moved = false;
            ls_endpoint *endpoint = ls_sim_endpoint(network, 1);
            status = endpoint->transport->progress(endpoint, 0, &moved);
        }
        assert_int_equal(status, LS_ERR_PEER);
        expect_message("rank 0 sent");
        assert_false(in.ended);
        ls_sim_free(network);
    }
}

TEST(only_small_messages_come_from_any_rank) {
    static unsigned char data[LARGE], into[LARGE];
    for (size_t more = 0; more < 2; more++) {
        ls_sim_options options = plain;
        options.eager = LARGE;
        ls_sim_network *network = ls_sim_new(&options);
        ls_transfer out = {.peer = 0, .data = data, .bytes = LS_TRANSPORT_LEAST_EAGER + more};
        ls_transfer in = {.peer = -1, .data = into, .bytes = LARGE};
        sim_receive(network, 0, &in);
        sim_send(network, 1, &out);
        assert_int_equal(failure_of(network), more == 0 ? LS_OK : LS_ERR_INTERNAL);
        assert_int_equal(in.ended, more == 0);
        ls_sim_free(network);
    }
}

TEST(wrong_use_is_told) {
    static unsigned char data[SMALL];
    ls_sim_network *network = ls_sim_new(&plain);
    ls_endpoint *endpoint = ls_sim_endpoint(network, 0);
    const ls_transport *transport = endpoint->transport;
    const struct { int peer, channel; } wrong[] = {{0, 0}, {3, 0}, {-2, 0}, {1, -1}, {1, LS_TRANSPORT_CHANNELS}};
    for (int i = 0; i < 5; i++) {
        ls_transfer transfer = {.peer = wrong[i].peer, .channel = wrong[i].channel, .data = data, .bytes = 1};
        assert_int_equal(transport->send(endpoint, &transfer), LS_ERR_INTERNAL);
        assert_int_equal(transport->receive(endpoint, &transfer), LS_ERR_INTERNAL);
    }
    ls_transfer any = {.peer = -1, .channel = 4, .data = data, .bytes = 1};
    ls_transfer named = {.peer = 1, .channel = 4, .data = data, .bytes = 1};
    assert_int_equal(transport->send(endpoint, &any), LS_ERR_INTERNAL);
    sim_receive(network, 0, &any);
    assert_int_equal(transport->receive(endpoint, &any), LS_ERR_INTERNAL); /* a receive is already in progress */
    assert_int_equal(transport->receive(endpoint, &named), LS_ERR_INTERNAL);
    ls_transfer out = {.peer = 1, .data = data, .bytes = SMALL};
    sim_send(network, 0, &out);
    assert_int_equal(transport->send(endpoint, &out), LS_ERR_INTERNAL);
    data[SMALL - 1]++; /* too early */
    assert_int_equal(failure_of(network), LS_ERR_INTERNAL);
    expect_message("written to before");
    ls_sim_free(network);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_takes_what_the_model_says),
        cmocka_unit_test(a_link_carries_one_message_at_a_time),
        cmocka_unit_test(a_receivers_link_may_count_too),
        cmocka_unit_test(what_does_not_travel_is_not_written),
        cmocka_unit_test(a_wait_ends_with_a_turn),
        cmocka_unit_test(a_turn_ends_a_wait),
        cmocka_unit_test(several_networks_have_one_clock),
        cmocka_unit_test(a_busy_rank_has_its_turn_afterwards),
        cmocka_unit_test(a_paused_rank_has_a_clock_that_stands_still),
        cmocka_unit_test(a_slow_rank_has_its_turns_late),
        cmocka_unit_test(ranks_begin_at_random_times),
        cmocka_unit_test(a_large_send_waits_for_its_receive),
        cmocka_unit_test(any_rank_is_received_from),
        cmocka_unit_test(what_was_withdrawn_is_left_alone),
        cmocka_unit_test(a_message_without_room_is_told),
        cmocka_unit_test(only_small_messages_come_from_any_rank),
        cmocka_unit_test(wrong_use_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
