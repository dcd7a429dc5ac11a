/*
 * Ranks that die in the simulated network (comm/transport/simulated): which ranks are notified, which messages still
 * arrive, and broken links between live ranks.
 *
 * devices: cpu
 */
#include "tests/simulated/entries.h"
#include "tests/simulated/faults.h"

enum { RANKS = 4, LATENCY = 1000, NOTICE = 50000, DEATH = 20000, LARGE = 10000 };

static const ls_sim_options plain = {.ranks = RANKS, .latency_ns = LATENCY, .notice_ns = NOTICE};

static bool is_gone(ls_sim_network *network, int rank, int peer) {
    const ls_endpoint *endpoint = ls_sim_endpoint(network, rank);
    return endpoint->transport->peer(endpoint, peer) == LS_PEER_GONE;
}

/* When each rank learned of each death: `seen[rank][peer]` is the first time at which the rank knew that the peer
 * was dead. */
typedef struct sightings {
    uint64_t seen[RANKS][RANKS];
} sightings;

static void settle(ls_sim_network *network, sightings *all) {
    for (int rank; (rank = ls_sim_next(network)) >= 0;) {
        bool news = false;
        assert_true(ls_sim_is_alive(network, rank));
        const bool moved = sim_progress(network, rank, 0);
        for (int peer = 0; peer < RANKS; peer++) {
            if (is_gone(network, rank, peer) && all->seen[rank][peer] == 0) {
                all->seen[rank][peer] = ls_sim_now(network);
                news = true;
            }
        }
        assert_true(moved || !news);
    }
}

/* Ranks with different relations to rank 0: rank 1 sends to it, rank 2 waits for it, rank 3 does neither. */
typedef struct world {
    ls_sim_network *network;
    sightings all;
    unsigned char byte, came;
    ls_transfer to, from;
} world;

static void begin_world(world *w) {
    *w = (world){.network = ls_sim_new(&plain)};
    w->to = (ls_transfer){.peer = 0, .data = &w->byte, .bytes = 1};
    w->from = (ls_transfer){.peer = 0, .data = &w->came, .bytes = 1};
    sim_send(w->network, 1, &w->to);
    sim_receive(w->network, 2, &w->from);
}

static void end_world(world *w) {
    settle(w->network, &w->all);
    ls_sim_free(w->network);
}

static void assert_seen(const world *w, int peer, uint64_t by_1, uint64_t by_2, uint64_t by_3) {
    assert_int_equal(w->all.seen[1][peer], by_1);
    assert_int_equal(w->all.seen[2][peer], by_2);
    assert_int_equal(w->all.seen[3][peer], by_3);
}

TEST(a_death_is_noticed_by_those_connected) {
    world w;
    begin_world(&w);
    sim_kill(w.network, 0, DEATH);
    assert_true(ls_sim_is_alive(w.network, 0));
    end_world(&w);
    assert_seen(&w, 0, DEATH + NOTICE, DEATH + NOTICE, 0);
    assert_seen(&w, 1, 0, 0, 0);
    assert_true(w.to.ended);
    assert_false(w.from.ended);
}

TEST(who_connects_later_notices_then) {
    world w;
    begin_world(&w);
    sim_kill(w.network, 0, DEATH);
    settle(w.network, &w.all);
    assert_false(ls_sim_is_alive(w.network, 0));
    ls_transfer in = {.peer = 0, .data = &w.came, .bytes = 1};
    sim_receive(w.network, 3, &in);
    end_world(&w);
    assert_seen(&w, 0, DEATH + NOTICE, DEATH + NOTICE, DEATH + 2 * NOTICE);
    assert_false(in.ended);
}

TEST(nothing_is_sent_to_who_is_gone) {
    world w;
    begin_world(&w);
    sim_kill(w.network, 0, DEATH);
    settle(w.network, &w.all);
    const uint64_t messages = ls_sim_endpoint(w.network, 1)->messages;
    sim_send(w.network, 1, &w.to);
    settle(w.network, &w.all);
    assert_false(w.to.ended);
    assert_int_equal(ls_sim_endpoint(w.network, 1)->messages, messages);
    end_world(&w);
}

TEST(a_stop_is_not_noticed_until_it_is_a_death) {
    for (int dies = 0; dies < 2; dies++) {
        world w;
        begin_world(&w);
        sim_stop(w.network, 0, DEATH);
        if (dies) {
            sim_kill(w.network, 0, 2 * DEATH);
        }
        settle(w.network, &w.all);
        assert_int_equal(ls_sim_is_alive(w.network, 0), !dies && ls_sim_now(w.network) < DEATH);
        end_world(&w);
        assert_seen(&w, 0, dies ? 2 * DEATH + NOTICE : 0, dies ? 2 * DEATH + NOTICE : 0, 0);
    }
}

TEST(a_closed_endpoint_is_gone_after_its_messages) {
    /* A slow link: the second message is sent completely after 2000 ns. */
    enum { LINK = 1000, EAGER = LS_TRANSPORT_LEAST_EAGER };
    static unsigned char data[EAGER], into[2][EAGER];
    for (int lingers = 0; lingers < 2; lingers++) {
        ls_sim_network *network = ls_sim_new(&(ls_sim_options){
            .ranks = RANKS, .latency_ns = LATENCY, .bytes_per_ns = (double)EAGER / LINK, .notice_ns = 1});
        sightings all = {0};
        ls_transfer out[2], in[2];
        ls_endpoint *endpoint = ls_sim_endpoint(network, 0);
        for (int i = 0; i < 2; i++) {
            out[i] = (ls_transfer){.peer = 1, .data = data, .bytes = EAGER};
            in[i] = (ls_transfer){.peer = 0, .data = into[i], .bytes = EAGER};
            sim_send(network, 0, &out[i]);
            sim_receive(network, 1, &in[i]);
        }
        endpoint->transport->close(endpoint, lingers ? 2 * LINK : 2 * LINK - 1, NULL, NULL);
        memset(out, 0xff, sizeof out); /* the caller may use its memory again */
        settle(network, &all);
        assert_true(in[0].ended);
        assert_int_equal(in[1].ended, lingers);
        assert_int_equal(all.seen[1][0], 2 * LINK + LATENCY); /* not before messages that may still arrive */
        ls_sim_free(network);
    }
}

/* A rank dies during its turn, between two of its operations. */
TEST(a_rank_dies_after_so_many_packets) {
    enum { MESSAGES = 5 };
    for (int silent = 0; silent < 2; silent++) {
        for (int after = 0; after <= MESSAGES; after++) {
            unsigned char data[MESSAGES] = {0}, into[MESSAGES];
            ls_transfer out[MESSAGES], in[MESSAGES];
            ls_sim_network *network = ls_sim_new(&plain);
            sightings all = {0};
            (silent ? sim_stop_after : sim_kill_after)(network, 0, (uint64_t)after);
            for (int i = 0; i < MESSAGES; i++) {
                out[i] = (ls_transfer){.peer = 1, .data = &data[i], .bytes = 1};
                in[i] = (ls_transfer){.peer = 0, .data = &into[i], .bytes = 1};
                sim_send(network, 0, &out[i]);
                sim_receive(network, 1, &in[i]);
                assert_int_equal(out[i].ended, i < after);
            }
            assert_false(ls_sim_is_alive(network, 0));
            settle(network, &all);
            for (int i = 0; silent && i < MESSAGES; i++) {
                assert_int_equal(in[i].ended, i < after); /* everything that was sent arrives */
            }
            assert_int_equal(is_gone(network, 1, 0), !silent);
            ls_sim_free(network);
        }
    }
}

TEST(a_rank_dies_after_so_many_that_came) {
    enum { MESSAGES = 5 };
    for (int after = 1; after < MESSAGES; after++) {
        unsigned char data[MESSAGES] = {0}, into[MESSAGES];
        ls_transfer out[MESSAGES], in[MESSAGES];
        ls_sim_network *network = ls_sim_new(&plain);
        sightings all = {0};
        sim_kill_after(network, 0, (uint64_t)after);
        for (int i = 0; i < MESSAGES; i++) {
            out[i] = (ls_transfer){.peer = 0, .data = &data[i], .bytes = 1};
            in[i] = (ls_transfer){.peer = 1, .data = &into[i], .bytes = 1};
            sim_send(network, 1, &out[i]);
            sim_receive(network, 0, &in[i]);
        }
        settle(network, &all);
        for (int i = 0; i < MESSAGES; i++) {
            assert_int_equal(in[i].ended, i < after);
        }
        assert_int_equal(all.seen[1][0], LATENCY + NOTICE);
        ls_sim_free(network);
    }
}

/* The rank's simulated processor reaches the time of its death before the network's clock does. */
TEST(nothing_that_a_rank_does_after_its_end_counts) {
    enum { OVERHEAD = 300 };
    unsigned char byte = 0, came = 0;
    ls_sim_network *network =
        ls_sim_new(&(ls_sim_options){.ranks = RANKS, .latency_ns = LATENCY, .overhead_ns = OVERHEAD});
    sightings all = {0};
    ls_transfer out = {.peer = 1, .data = &byte, .bytes = 1};
    ls_transfer in = {.peer = 0, .data = &came, .bytes = 1};
    sim_stop(network, 0, OVERHEAD - 100);
    sim_receive(network, 1, &in);
    sim_send(network, 0, &out);
    assert_false(ls_sim_is_alive(network, 0));
    settle(network, &all);
    assert_false(out.ended || in.ended);
    ls_sim_free(network);
}

/* The memory of a dead rank may already be freed. */
TEST(the_memory_of_the_dead_is_left_alone) {
    static unsigned char data[LS_TRANSPORT_LEAST_EAGER], into[LS_TRANSPORT_LEAST_EAGER];
    ls_sim_network *network =
        ls_sim_new(&(ls_sim_options){.ranks = RANKS, .latency_ns = LATENCY, .bytes_per_ns = 1, .notice_ns = NOTICE});
    sightings all = {0};
    ls_transfer out = {.peer = 1, .data = data, .bytes = sizeof data};
    ls_transfer in = {.peer = 0, .data = into, .bytes = sizeof into};
    sim_stop_after(network, 0, 1);
    sim_receive(network, 1, &in);
    sim_send(network, 0, &out);
    assert_false(out.ended);
    out.data = NULL;
    settle(network, &all);
    assert_true(in.ended);
    ls_sim_free(network);
}

/* Depending on the seed, all, none or the first of a dead rank's messages in flight arrive; none arrives after the
 * notification. */
TEST(what_was_under_way_may_arrive) {
    enum { SEEDS = 100, MESSAGES = 8 };
    int how_many[MESSAGES + 1] = {0};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        unsigned char data[MESSAGES] = {0}, into[MESSAGES];
        ls_transfer out[MESSAGES], in[MESSAGES];
        ls_sim_network *network = ls_sim_new(&(ls_sim_options){
            .ranks = RANKS, .seed = seed, .latency_ns = 10, .most_delay_ns = 10000, .notice_ns = 100});
        for (int i = 0; i < MESSAGES; i++) {
            out[i] = (ls_transfer){.peer = 1, .data = &data[i], .bytes = 1};
            in[i] = (ls_transfer){.peer = 0, .data = &into[i], .bytes = 1};
            sim_send(network, 0, &out[i]);
            sim_receive(network, 1, &in[i]);
        }
        sim_kill(network, 0, 100);
        for (int rank, came = 0; (rank = ls_sim_next(network)) >= 0;) {
            const bool was_gone = is_gone(network, 1, 0);
            const int before = came;
            sim_progress(network, rank, 0);
            while (came < MESSAGES && in[came].ended) {
                came++;
            }
            assert_true(!was_gone || came == before);
        }
        assert_true(is_gone(network, 1, 0));
        int came = 0;
        for (int i = 0; i < MESSAGES; i++) {
            came += in[i].ended;
            assert_true(i == 0 || in[i - 1].ended || !in[i].ended);
        }
        how_many[came]++;
        ls_sim_free(network);
    }
    assert_true(how_many[0] > 0 && how_many[MESSAGES] > 0);
    assert_true(how_many[0] + how_many[MESSAGES] < SEEDS);
}

TEST(a_lost_link_is_seen_by_both_or_never) {
    for (int noticed = 0; noticed < 2; noticed++) {
        world w;
        begin_world(&w);
        sim_cut(w.network, 0, 1, DEATH, noticed);
        sim_cut(w.network, 3, 0, DEATH, noticed);
        settle(w.network, &w.all);
        assert_true(w.to.ended);
        assert_seen(&w, 0, noticed ? DEATH + NOTICE : 0, 0, 0);
        assert_int_equal(w.all.seen[0][1], noticed ? DEATH + NOTICE : 0); /* a message from this rank has arrived */
        assert_int_equal(w.all.seen[0][3], 0);
        ls_transfer lost = {.peer = 0, .channel = 1, .data = &w.byte, .bytes = 1};
        ls_transfer waits = {.peer = 3, .channel = 1, .data = &w.came, .bytes = 1};
        ls_transfer other = {.peer = 2, .data = &w.byte, .bytes = 1};
        sim_receive(w.network, 0, &waits);
        sim_send(w.network, 3, &lost);
        sim_send(w.network, 0, &other);
        end_world(&w);
        assert_false(waits.ended);
        assert_true(w.from.ended); /* rank 2 still receives from rank 0 */
        const uint64_t again = noticed ? DEATH + 2 * NOTICE : 0;
        assert_int_equal(w.all.seen[0][3], again);
        assert_int_equal(w.all.seen[3][0], again);
    }
}

/* A link breaks, then the rank at its other end dies: one turn reports both. */
TEST(what_is_gone_is_told_once) {
    ls_sim_network *network = ls_sim_new(&plain);
    unsigned char came = 0;
    ls_transfer in = {.peer = 0, .data = &came, .bytes = 1};
    int turns = 0;
    sim_receive(network, 2, &in);
    sim_cut(network, 0, 2, DEATH, true);
    sim_kill(network, 0, 2 * DEATH);
    for (int rank; (rank = ls_sim_next(network)) >= 0;) {
        turns += rank == 2;
    }
    assert_int_equal(turns, 2);
    ls_sim_free(network);
}

TEST(a_large_send_to_the_dead_does_not_end) {
    static unsigned char data[LARGE], into[LARGE];
    /* Before the answer, and while the payload is in flight. */
    const uint64_t times[] = {LATENCY / 2, 2 * LATENCY + LATENCY / 2};
    for (int i = 0; i < 2; i++) {
        ls_sim_network *network = ls_sim_new(&plain);
        sightings all = {0};
        ls_transfer out = {.peer = 1, .data = data, .bytes = LARGE};
        ls_transfer in = {.peer = 0, .data = into, .bytes = LARGE};
        sim_send(network, 0, &out);
        sim_receive(network, 1, &in);
        sim_kill(network, 1, times[i]);
        settle(network, &all);
        assert_int_equal(out.ended, i == 1);
        assert_false(in.ended);
        assert_int_equal(all.seen[0][1], times[i] + NOTICE);
        ls_sim_free(network);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_noticed_by_those_connected),
        cmocka_unit_test(who_connects_later_notices_then),
        cmocka_unit_test(nothing_is_sent_to_who_is_gone),
        cmocka_unit_test(a_stop_is_not_noticed_until_it_is_a_death),
        cmocka_unit_test(a_closed_endpoint_is_gone_after_its_messages),
        cmocka_unit_test(a_rank_dies_after_so_many_packets),
        cmocka_unit_test(what_was_under_way_may_arrive),
        cmocka_unit_test(a_lost_link_is_seen_by_both_or_never),
        cmocka_unit_test(a_rank_dies_after_so_many_that_came),
        cmocka_unit_test(nothing_that_a_rank_does_after_its_end_counts),
        cmocka_unit_test(the_memory_of_the_dead_is_left_alone),
        cmocka_unit_test(what_is_gone_is_told_once),
        cmocka_unit_test(a_large_send_to_the_dead_does_not_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
