/*
 * The transport that the engine is tested over (tests/simulated/network.h): messages, their order and their time.
 * simulated_ends.c has what becomes of ranks that end.
 */
#include "tests/support/unit.h"

#include "tests/simulated/driver.h"

#include <lockstep/base.h>

enum { LATENCY = 5000, OVERHEAD = 300, SMALL = 1000, LARGE = 100000 };

static const sim_options plain = {.ranks = 3, .latency_ns = LATENCY, .overhead_ns = OVERHEAD, .bytes_per_ns = 2};

static void send(sim_network *network, int from, ls_transfer *transfer) {
    ls_endpoint *endpoint = sim_endpoint(network, from);
    assert_int_equal(endpoint->transport->send(endpoint, transfer), LS_OK);
}

static void receive(sim_network *network, int to, ls_transfer *transfer) {
    ls_endpoint *endpoint = sim_endpoint(network, to);
    assert_int_equal(endpoint->transport->receive(endpoint, transfer), LS_OK);
}

static ls_status progress(sim_network *network, int rank, uint64_t wait_ns) {
    bool moved = false;
    ls_endpoint *endpoint = sim_endpoint(network, rank);
    return endpoint->transport->progress(endpoint, wait_ns, &moved);
}

/* Gives turns until a transfer has ended, and returns the time of its rank; SIM_NEVER: it does not end. */
static uint64_t end_of(sim_network *network, const ls_transfer *transfer) {
    for (int rank = 0; !transfer->ended && rank >= 0;) {
        rank = sim_next(network);
        if (rank >= 0) {
            assert_int_equal(progress(network, rank, 0), LS_OK);
            if (transfer->ended) {
                return sim_time_of(network, rank);
            }
        }
    }
    return SIM_NEVER;
}

static void settle(sim_network *network) {
    const ls_transfer never = {.ended = false};
    assert_true(end_of(network, &never) == SIM_NEVER);
}

static void fill(unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (unsigned char)(i * 7 + i / 251);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void a_message_takes_what_the_model_says(void **state) {
    (void)state;
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
            sim_network *network = sim_new(&plain);
            ls_transfer out = {.peer = 2, .channel = 1, .data = data, .bytes = cases[i].bytes};
            ls_transfer in = {.peer = 0, .channel = 1, .data = into, .bytes = LARGE};
            memset(into, 0, sizeof into);
            receive(network, 2, &in);
            send(network, 0, &out);
            assert_int_equal(out.ended, cases[i].bytes == 0);
            assert_false(out.receives);
            assert_true(in.receives);
            if (end == 0) {
                assert_int_equal(cases[i].bytes == 0 ? sim_time_of(network, 0) : end_of(network, &out), cases[i].left);
            } else {
                assert_int_equal(end_of(network, &in), cases[i].arrives);
                assert_int_equal(in.bytes, cases[i].bytes);
                assert_memory_equal(into, data, in.bytes);
            }
            assert_int_equal(sim_endpoint(network, 0)->messages, 1);
            assert_int_equal(sim_endpoint(network, 0)->bytes, cases[i].bytes);
            assert_int_equal(sim_endpoint(network, 2)->messages, 0);
            sim_free(network);
        }
    }
}

/* One rank's messages leave one after the other. */
static void a_link_carries_one_message_at_a_time(void **state) {
    (void)state;
    static unsigned char data[SMALL], into[2][SMALL];
    sim_network *network = sim_new(&plain);
    ls_transfer out[2], in[2];
    for (int i = 0; i < 2; i++) {
        out[i] = (ls_transfer){.peer = i + 1, .data = data, .bytes = SMALL};
        in[i] = (ls_transfer){.peer = 0, .data = into[i], .bytes = SMALL};
        receive(network, i + 1, &in[i]);
        send(network, 0, &out[i]);
    }
    assert_int_equal(end_of(network, &in[0]), 2 * OVERHEAD + LATENCY + SMALL / 2);
    assert_int_equal(end_of(network, &in[1]), 2 * OVERHEAD + LATENCY + SMALL);
    sim_free(network);
}

static void a_wait_ends_with_a_turn(void **state) {
    (void)state;
    sim_network *network = sim_new(&(sim_options){.ranks = 2});
    assert_int_equal(sim_next(network), 0);
    assert_int_equal(progress(network, 0, 700), LS_OK);
    assert_int_equal(sim_next(network), 1);
    assert_int_equal(progress(network, 1, 400), LS_OK);
    assert_int_equal(progress(network, 1, 900), LS_OK); /* the latest counts */
    assert_int_equal(sim_next(network), 0);
    assert_int_equal(sim_now(network), 700);
    assert_int_equal(sim_next(network), 1);
    assert_int_equal(sim_now(network), 900);
    assert_int_equal(progress(network, 1, UINT64_MAX), LS_OK);
    assert_int_equal(sim_next(network), -1);
    sim_free(network);
}

/* A process that is stopped and goes on: its waits are as long as they were for others, on its own clock. */
static void a_paused_rank_has_a_clock_that_stands_still(void **state) {
    (void)state;
    sim_network *network = sim_new(&(sim_options){.ranks = 2, .latency_ns = 100});
    ls_endpoint *paused = sim_endpoint(network, 1);
    unsigned char byte = 1;
    ls_transfer out = {.peer = 1, .data = &byte, .bytes = 1};
    sim_pause(network, 1, 50, 10000);
    assert_int_equal(sim_next(network), 0);
    send(network, 0, &out);
    assert_int_equal(sim_next(network), 1);
    assert_int_equal(progress(network, 1, 200), LS_OK);
    assert_int_equal(sim_next(network), 1); /* the message came at 100 */
    assert_int_equal(sim_now(network), 10000);
    assert_int_equal(paused->transport->now_ns(paused), 50);
    assert_int_equal(progress(network, 1, 150), LS_OK);
    assert_int_equal(sim_next(network), 1);
    assert_int_equal(sim_now(network), 10150);
    assert_int_equal(paused->transport->now_ns(paused), 200);
    sim_free(network);
    network = sim_new(&(sim_options){.ranks = 1});
    assert_int_equal(sim_next(network), 0);
    assert_int_equal(progress(network, 0, 200), LS_OK);
    sim_pause(network, 0, 50, 10000); /* in the midst of its wait */
    assert_int_equal(sim_next(network), 0);
    assert_int_equal(sim_now(network), 10150);
    sim_free(network);
}

static void a_slow_rank_has_its_turns_late(void **state) {
    (void)state;
    sim_network *network = sim_new(&(sim_options){.ranks = 1});
    assert_int_equal(sim_next(network), 0);
    sim_slow(network, 0, 100, 200, 1000);
    const uint64_t turns[] = {50, 1100, 1150}; /* the second one is called at 100 */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(progress(network, 0, 50), LS_OK);
        assert_int_equal(sim_next(network), 0);
        assert_int_equal(sim_now(network), turns[i]);
    }
    sim_free(network);
}

static void ranks_begin_at_random_times(void **state) {
    (void)state;
    enum { RANKS = 16, MOST = 5000 };
    sim_network *network = sim_new(&(sim_options){.ranks = RANKS, .most_start_ns = MOST});
    bool seen[RANKS] = {false};
    int in_order = 0;
    for (int i = 0; i < RANKS; i++) {
        const int rank = sim_next(network);
        assert_in_range(rank, 0, RANKS - 1);
        assert_false(seen[rank]);
        assert_true(sim_now(network) <= MOST);
        seen[rank] = true;
        in_order += rank == i;
    }
    assert_true(in_order < RANKS);
    assert_int_equal(sim_next(network), -1);
    sim_free(network);
}

/* ---- messages and receives --------------------------------------------------------------------------------------- */

static void a_large_send_waits_for_its_receive(void **state) {
    (void)state;
    static unsigned char data[LARGE], into[LARGE];
    fill(data, LARGE);
    sim_network *network = sim_new(&plain);
    ls_transfer large = {.peer = 1, .channel = 3, .data = data, .bytes = LARGE};
    ls_transfer small = {.peer = 1, .channel = 3, .data = data, .bytes = SMALL};
    ls_transfer in = {.peer = 0, .channel = 3, .data = into, .bytes = LARGE};
    ls_transfer next = {.peer = 0, .channel = 3, .data = into, .bytes = LARGE};
    send(network, 0, &large);
    send(network, 0, &small);
    settle(network);
    assert_false(large.ended);
    assert_true(small.ended);
    receive(network, 1, &in); /* the large one was first */
    assert_false(in.ended);
    settle(network);
    assert_true(large.ended && in.ended);
    assert_int_equal(in.bytes, LARGE);
    assert_memory_equal(into, data, LARGE);
    receive(network, 1, &next);
    assert_true(next.ended);
    assert_int_equal(next.bytes, SMALL);
    sim_free(network);
}

static void any_rank_is_received_from(void **state) {
    (void)state;
    enum { RANKS = 5 };
    sim_network *network = sim_new(&(sim_options){.ranks = RANKS, .latency_ns = 10, .most_delay_ns = 1000});
    int said[RANKS], heard[RANKS], heard_in_order = 0;
    ls_transfer out[RANKS], in[RANKS];
    for (int rank = 1; rank < RANKS; rank++) {
        said[rank] = 100 + rank;
        out[rank] = (ls_transfer){.peer = 0, .channel = 2, .data = &said[rank], .bytes = sizeof(int)};
        in[rank] = (ls_transfer){.peer = -1, .channel = 2, .data = &heard[rank], .bytes = sizeof(int)};
        send(network, rank, &out[rank]);
        if (rank % 2 == 1) {
            receive(network, 0, &in[rank]);
        }
    }
    settle(network);
    for (int rank = 2; rank < RANKS; rank += 2) {
        receive(network, 0, &in[rank]); /* messages are there already */
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
    sim_free(network);
}

static void what_was_withdrawn_is_left_alone(void **state) {
    (void)state;
    static unsigned char data[LARGE], into[LARGE];
    sim_network *network = sim_new(&plain);
    ls_endpoint *sender = sim_endpoint(network, 0);
    ls_endpoint *receiver = sim_endpoint(network, 1);
    ls_transfer large = {.peer = 1, .channel = 0, .data = data, .bytes = LARGE};
    ls_transfer small = {.peer = 1, .channel = 1, .data = data, .bytes = SMALL};
    ls_transfer in[] = {{.peer = 0, .channel = 0, .data = into, .bytes = LARGE},
                        {.peer = 0, .channel = 1, .data = into, .bytes = LARGE},
                        {.peer = 0, .channel = 2, .data = into, .bytes = LARGE}};
    for (int i = 0; i < 3; i++) {
        receive(network, 1, &in[i]);
    }
    send(network, 0, &large);
    send(network, 0, &small);
    sender->transport->withdraw(sender, &large);
    sender->transport->withdraw(sender, &small);
    receiver->transport->withdraw(receiver, &in[2]);
    memset(data, 1, sizeof data); /* not the transport's any more */
    settle(network);
    assert_false(large.ended || small.ended || in[0].ended || in[2].ended);
    assert_true(in[1].ended); /* it had begun */
    assert_int_equal(into[0], 0);
    receiver->transport->withdraw(receiver, &in[0]);
    sim_free(network);
}

static void a_message_without_room_is_told(void **state) {
    (void)state;
    static unsigned char data[LARGE], into[SMALL];
    const size_t sizes[] = {SMALL + 1, LARGE};
    for (int i = 0; i < 4; i++) {
        sim_network *network = sim_new(&plain);
        ls_transfer out = {.peer = 1, .data = data, .bytes = sizes[i % 2]};
        ls_transfer in = {.peer = 0, .data = into, .bytes = SMALL};
        ls_status status = LS_OK;
        if (i < 2) {
            receive(network, 1, &in);
        }
        send(network, 0, &out);
        for (int rank; status == LS_OK && (rank = sim_next(network)) >= 0;) {
            status = progress(network, rank, 0);
        }
        if (i >= 2) { /* it was there first */
            receive(network, 1, &in);
            status = progress(network, 1, 0);
        }
        assert_int_equal(status, LS_ERR_PEER);
        assert_non_null(strstr(ls_error_message(), "rank 0 sent"));
        assert_false(in.ended);
        sim_free(network);
    }
}

static void wrong_use_is_told(void **state) {
    (void)state;
    static unsigned char data[SMALL];
    sim_network *network = sim_new(&plain);
    ls_endpoint *endpoint = sim_endpoint(network, 0);
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
    receive(network, 0, &any);
    assert_int_equal(transport->receive(endpoint, &any), LS_ERR_INTERNAL); /* it is under way */
    assert_int_equal(transport->receive(endpoint, &named), LS_ERR_INTERNAL);
    ls_transfer out = {.peer = 1, .data = data, .bytes = SMALL};
    send(network, 0, &out);
    assert_int_equal(transport->send(endpoint, &out), LS_ERR_INTERNAL);
    data[SMALL - 1]++; /* too early */
    ls_status status = LS_OK;
    for (int rank; status == LS_OK && (rank = sim_next(network)) >= 0;) {
        status = progress(network, rank, 0);
    }
    assert_int_equal(status, LS_ERR_INTERNAL);
    assert_non_null(strstr(ls_error_message(), "written to before"));
    sim_free(network);
}

/* ---- random traffic ---------------------------------------------------------------------------------------------- */

enum { TALKERS = 4, EACH = 12, CHANNELS = 3 };

/* A message is number `number` of its channel from `from`. */
typedef struct note {
    int from;
    int number;
} note;

/* Every rank sends EACH messages to every other one on each channel, some of them large. */
typedef struct talker {
    sim_network *network;
    bool begun;
    int overtakings; /* a message of one channel that came before an earlier one of another */
    ls_transfer out[TALKERS][CHANNELS][EACH];
    ls_transfer in[TALKERS][CHANNELS][EACH];
    note *said[TALKERS][CHANNELS][EACH];
    note *heard[TALKERS][CHANNELS][EACH];
} talker;

enum { NOTE_ROOM = 8000 };

static size_t size_of_note(int from, int to, int channel, int number) {
    const uint32_t random = ls_random_u32((uint64_t)(from * TALKERS + to), (uint64_t)channel, (uint64_t)number);
    return random % 3 == 0 ? LS_TRANSPORT_LEAST_EAGER + 1 + random % 3000 : sizeof(note) + random % 100;
}

static void begin_talking(talker *t, int rank) {
    t->begun = true;
    for (int number = 0; number < EACH; number++) {
        for (int channel = 0; channel < CHANNELS; channel++) {
            for (int peer = 0; peer < TALKERS; peer++) {
                if (peer != rank) {
                    t->said[peer][channel][number] = calloc(1, NOTE_ROOM);
                    t->heard[peer][channel][number] = calloc(1, NOTE_ROOM);
                    *t->said[peer][channel][number] = (note){.from = rank, .number = number};
                    t->out[peer][channel][number] = (ls_transfer){.peer = peer,
                                                                  .channel = channel,
                                                                  .data = t->said[peer][channel][number],
                                                                  .bytes = size_of_note(rank, peer, channel, number)};
                    t->in[peer][channel][number] = (ls_transfer){
                        .peer = peer, .channel = channel, .data = t->heard[peer][channel][number], .bytes = NOTE_ROOM};
                    send(t->network, rank, &t->out[peer][channel][number]);
                    receive(t->network, rank, &t->in[peer][channel][number]);
                }
            }
        }
    }
}

static bool talk(void *state, int rank) {
    talker *t = state;
    if (!t->begun) {
        begin_talking(t, rank);
    }
    assert_int_equal(progress(t->network, rank, 0), LS_OK);
    int open = 0;
    for (int peer = 0; peer < TALKERS; peer++) {
        for (int channel = 0; peer != rank && channel < CHANNELS; channel++) {
            for (int number = 0; number < EACH; number++) {
                const bool ended = t->in[peer][channel][number].ended;
                open += !ended + !t->out[peer][channel][number].ended;
                t->overtakings += ended && channel > 0 && !t->in[peer][channel - 1][number].ended;
            }
        }
    }
    return open == 0;
}

/* Runs it and checks what came; the trace. */
static uint64_t talk_all(const sim_options *options, int *overtakings) {
    talker *talkers = calloc(TALKERS, sizeof *talkers);
    sim_network *network = sim_new(options);
    for (int rank = 0; rank < TALKERS; rank++) {
        talkers[rank].network = network;
    }
    const sim_outcome outcome = sim_run(network, talk, talkers, sizeof *talkers, 0);
    assert_string_equal(outcome.text, "");
    assert_true(outcome.finished);
    for (int rank = 0; rank < TALKERS; rank++) {
        *overtakings += talkers[rank].overtakings;
        for (int peer = 0; peer < TALKERS; peer++) {
            for (int channel = 0; peer != rank && channel < CHANNELS; channel++) {
                for (int number = 0; number < EACH; number++) {
                    const note *heard = talkers[rank].heard[peer][channel][number];
                    assert_int_equal(heard->from, peer);
                    assert_int_equal(heard->number, number);
                    assert_int_equal(talkers[rank].in[peer][channel][number].bytes,
                                     size_of_note(peer, rank, channel, number));
                    free(talkers[rank].said[peer][channel][number]);
                    free(talkers[rank].heard[peer][channel][number]);
                }
            }
        }
    }
    const uint64_t trace = sim_trace(network);
    sim_free(network);
    free(talkers);
    return trace;
}

static void messages_of_a_channel_keep_their_order(void **state) {
    (void)state;
    int overtakings = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        talk_all(&(sim_options){.ranks = TALKERS,
                                .seed = seed,
                                .latency_ns = 1000,
                                .overhead_ns = seed % 2 * 100,
                                .bytes_per_ns = (double)(seed % 3),
                                .most_delay_ns = 20000,
                                .most_start_ns = 5000},
                 &overtakings);
    }
    assert_true(overtakings > 0);
}

static void a_seed_is_a_run(void **state) {
    (void)state;
    uint64_t traces[4];
    int overtakings = 0;
    for (uint64_t i = 0; i < 4; i++) {
        const sim_options options = {.ranks = TALKERS, .seed = i / 2, .latency_ns = 1000, .most_delay_ns = 500};
        traces[i] = talk_all(&options, &overtakings);
    }
    assert_true(traces[0] == traces[1]);
    assert_true(traces[2] == traces[3]);
    assert_true(traces[0] != traces[2]);
}

/* ---- many ranks -------------------------------------------------------------------------------------------------- */

/* A barrier: in round k each rank sends to the one 2^k behind it and receives from the one 2^k before it. */
enum { MANY = 1024, ROUNDS = 10, BARRIERS = 2 };

typedef struct crowd {
    sim_network *network;
    int rounds;
    ls_transfer out[BARRIERS * ROUNDS];
    ls_transfer in;
    unsigned char sent;
    unsigned char came;
} crowd;

static bool barriers(void *state, int rank) {
    crowd *one = state;
    for (;;) {
        assert_int_equal(progress(one->network, rank, 0), LS_OK);
        if (one->rounds > 0 && !one->in.ended) {
            return false;
        }
        if (one->rounds == BARRIERS * ROUNDS) {
            return true;
        }
        const int distance = 1 << one->rounds % ROUNDS;
        ls_transfer *out = &one->out[one->rounds++];
        *out = (ls_transfer){.peer = (rank + distance) % MANY, .data = &one->sent, .bytes = 1};
        one->in = (ls_transfer){.peer = (rank + MANY - distance) % MANY, .data = &one->came, .bytes = 1};
        send(one->network, rank, out);
        receive(one->network, rank, &one->in);
    }
}

static void a_thousand_ranks_are_no_effort(void **state) {
    (void)state;
    crowd *ranks = calloc(MANY, sizeof *ranks);
    sim_network *network = sim_new(&(sim_options){.ranks = MANY, .latency_ns = LATENCY, .overhead_ns = OVERHEAD});
    for (int rank = 0; rank < MANY; rank++) {
        ranks[rank].network = network;
    }
    const sim_outcome outcome = sim_run(network, barriers, ranks, sizeof *ranks, 0);
    assert_true(outcome.finished);
    assert_int_equal(outcome.ended_ns, BARRIERS * ROUNDS * (2 * OVERHEAD + LATENCY));
    /* A turn to begin with, and of each message an arrival and a turn. */
    assert_true(sim_events(network) <= MANY * (1 + 2 * BARRIERS * ROUNDS));
    for (int rank = 0; rank < MANY; rank++) {
        assert_int_equal(sim_endpoint(network, rank)->messages, BARRIERS * ROUNDS);
    }
    sim_free(network);
    free(ranks);
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    sim_network *network;
    bool begun;
    ls_transfer in;
    unsigned char byte;
} waiter;

/* Ranks 1 and 2 wait for each other. */
static bool wait_in_a_circle(void *state, int rank) {
    waiter *one = state;
    if (rank == 0) {
        return true;
    }
    if (!one->begun) {
        one->begun = true;
        one->in = (ls_transfer){.peer = 3 - rank, .channel = 5, .data = &one->byte, .bytes = 1};
        receive(one->network, rank, &one->in);
    }
    assert_int_equal(progress(one->network, rank, 0), LS_OK);
    return one->in.ended;
}

static bool wait_always(void *state, int rank) {
    waiter *one = state;
    assert_int_equal(progress(one->network, rank, 100), LS_OK);
    return rank == 0;
}

static void the_driver_tells_who_is_not_done(void **state) {
    (void)state;
    sim_step *const steps[] = {wait_in_a_circle, wait_always};
    const char *const says[] = {"2 of 3 ranks are not done and nothing can happen any more, at 0 ns; rank 1 at 0 ns, "
                                "receives from rank 2 on channel 5 (1 bytes); rank 2 at 0 ns, receives from rank 1 on "
                                "channel 5 (1 bytes)",
                                "2 of 3 ranks are not done by the limit: at 1100 ns; rank 1 at 1100 ns; rank 2 at "
                                "1000 ns"};
    for (int i = 0; i < 2; i++) {
        waiter ranks[3] = {{.begun = false}};
        sim_network *network = sim_new(&(sim_options){.ranks = 3});
        for (int rank = 0; rank < 3; rank++) {
            ranks[rank].network = network;
        }
        const sim_outcome outcome = sim_run(network, steps[i], ranks, sizeof *ranks, 1000);
        assert_false(outcome.finished);
        assert_int_equal(outcome.unfinished, 2);
        assert_string_equal(outcome.text, says[i]);
        sim_free(network);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_takes_what_the_model_says),
        cmocka_unit_test(a_link_carries_one_message_at_a_time),
        cmocka_unit_test(a_wait_ends_with_a_turn),
        cmocka_unit_test(a_paused_rank_has_a_clock_that_stands_still),
        cmocka_unit_test(a_slow_rank_has_its_turns_late),
        cmocka_unit_test(ranks_begin_at_random_times),
        cmocka_unit_test(a_large_send_waits_for_its_receive),
        cmocka_unit_test(any_rank_is_received_from),
        cmocka_unit_test(what_was_withdrawn_is_left_alone),
        cmocka_unit_test(a_message_without_room_is_told),
        cmocka_unit_test(wrong_use_is_told),
        cmocka_unit_test(messages_of_a_channel_keep_their_order),
        cmocka_unit_test(a_seed_is_a_run),
        cmocka_unit_test(a_thousand_ranks_are_no_effort),
        cmocka_unit_test(the_driver_tells_who_is_not_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
