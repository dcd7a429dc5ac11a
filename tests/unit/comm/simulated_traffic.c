/*
 * Many messages in the simulated network (comm/transport/simulated), sent in the ranks' turns: their order, replay from
 * a seed, a thousand ranks, and the driver's reports.
 *
 * devices: cpu
 */
#include "comm/transport/simulated/driver.h"
#include "tests/simulated/entries.h"

enum { LATENCY = 5000, OVERHEAD = 300 };

/* ---- random traffic ---------------------------------------------------------------------------------------------- */

enum { TALKERS = 4, EACH = 12, CHANNELS = 3 };

/* The content of a message: its sender, and its number in its channel. */
typedef struct note {
    int from;
    int number;
} note;

/* Every rank sends EACH messages to every other rank on each channel, some of them large. */
typedef struct talker {
    ls_sim_network *network;
    bool begun;
    int overtakings; /* messages that overtook an earlier message of a different channel */
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
                    sim_send(t->network, rank, &t->out[peer][channel][number]);
                    sim_receive(t->network, rank, &t->in[peer][channel][number]);
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
    sim_progress(t->network, rank, 0);
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

/* Runs the network and checks the messages. Returns the trace. */
static uint64_t talk_all(const ls_sim_options *options, int *overtakings) {
    talker *talkers = calloc(TALKERS, sizeof *talkers);
    ls_sim_network *network = ls_sim_new(options);
    for (int rank = 0; rank < TALKERS; rank++) {
        talkers[rank].network = network;
    }
    const ls_sim_outcome outcome = ls_sim_run(network, talk, talkers, sizeof *talkers, 0);
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
    const uint64_t trace = ls_sim_trace(network);
    ls_sim_free(network);
    free(talkers);
    return trace;
}

TEST(messages_of_a_channel_keep_their_order) {
    int overtakings = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        talk_all(&(ls_sim_options){.ranks = TALKERS,
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

TEST(a_seed_is_a_run) {
    uint64_t traces[4];
    int overtakings = 0;
    for (uint64_t i = 0; i < 4; i++) {
        const ls_sim_options options = {.ranks = TALKERS, .seed = i / 2, .latency_ns = 1000, .most_delay_ns = 500};
        traces[i] = talk_all(&options, &overtakings);
    }
    assert_true(traces[0] == traces[1]);
    assert_true(traces[2] == traces[3]);
    assert_true(traces[0] != traces[2]);
}

/* ---- many ranks -------------------------------------------------------------------------------------------------- */

/* A dissemination barrier: in round k, each rank sends to the rank 2^k after it and receives from the rank 2^k
 * before it. */
enum { MANY = 1024, ROUNDS = 10, BARRIERS = 2 };

typedef struct crowd {
    ls_sim_network *network;
    int rounds;
    ls_transfer out[BARRIERS * ROUNDS];
    ls_transfer in;
    unsigned char sent;
    unsigned char came;
} crowd;

static bool barriers(void *state, int rank) {
    crowd *one = state;
    for (;;) {
        sim_progress(one->network, rank, 0);
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
        sim_send(one->network, rank, out);
        sim_receive(one->network, rank, &one->in);
    }
}

TEST(a_thousand_ranks_are_no_effort) {
    crowd *ranks = calloc(MANY, sizeof *ranks);
    ls_sim_network *network =
        ls_sim_new(&(ls_sim_options){.ranks = MANY, .latency_ns = LATENCY, .overhead_ns = OVERHEAD});
    for (int rank = 0; rank < MANY; rank++) {
        ranks[rank].network = network;
    }
    const ls_sim_outcome outcome = ls_sim_run(network, barriers, ranks, sizeof *ranks, 0);
    assert_true(outcome.finished);
    assert_int_equal(outcome.ended_ns, BARRIERS * ROUNDS * (2 * OVERHEAD + LATENCY));
    /* An initial turn per rank, and an arrival and a turn per message. */
    assert_true(ls_sim_events(network) <= MANY * (1 + 2 * BARRIERS * ROUNDS));
    for (int rank = 0; rank < MANY; rank++) {
        assert_int_equal(ls_sim_endpoint(network, rank)->messages, BARRIERS * ROUNDS);
    }
    ls_sim_free(network);
    free(ranks);
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

typedef struct waiter {
    ls_sim_network *network;
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
        sim_receive(one->network, rank, &one->in);
    }
    sim_progress(one->network, rank, 0);
    return one->in.ended;
}

static bool wait_always(void *state, int rank) {
    waiter *one = state;
    sim_progress(one->network, rank, 100);
    return rank == 0;
}

TEST(the_driver_tells_who_is_not_done) {
    ls_sim_step *const steps[] = {wait_in_a_circle, wait_always};
    const char *const says[] = {"2 of 3 ranks are not done and nothing can happen any more, at 0 ns; rank 1 at 0 ns, "
                                "receives from rank 2 on channel 5 (1 bytes); rank 2 at 0 ns, receives from rank 1 on "
                                "channel 5 (1 bytes)",
                                "2 of 3 ranks are not done by the limit: at 1100 ns; rank 1 at 1100 ns; rank 2 at "
                                "1000 ns"};
    for (int i = 0; i < 2; i++) {
        waiter ranks[3] = {{.begun = false}};
        ls_sim_network *network = ls_sim_new(&(ls_sim_options){.ranks = 3});
        for (int rank = 0; rank < 3; rank++) {
            ranks[rank].network = network;
        }
        const ls_sim_outcome outcome = ls_sim_run(network, steps[i], ranks, sizeof *ranks, 1000);
        assert_false(outcome.finished);
        assert_int_equal(outcome.unfinished, 2);
        assert_string_equal(outcome.text, says[i]);
        ls_sim_free(network);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_a_channel_keep_their_order),
        cmocka_unit_test(a_seed_is_a_run),
        cmocka_unit_test(a_thousand_ranks_are_no_effort),
        cmocka_unit_test(the_driver_tells_who_is_not_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
