/*
 * Messages on a simulated network: every rank first posts all its sends, of any size and tag, to any ranks. Then it
 * receives its messages in a random order, which preserves the order of messages with the same sender and tag. Each
 * message arrives once, in order and complete. Messages without a receive are stored only up to the engine's limit,
 * unless a later message is requested first. With even seeds, receives with tag 0 are from any rank. When a rank dies,
 * all ranks that wait for it get an error that names it. A failing seed is printed, and LOCKSTEP_ENGINE_SEED=N runs
 * only this seed; LOCKSTEP_ENGINE_SEEDS=N runs N seeds of each kind.
 *
 * devices: cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/engine/inside.h"
#include "comm/transport/simulated/driver.h"
#include "tests/simulated/calls.h"
#include "tests/simulated/faults.h"
#include "tests/support/seeds.h"
#include "tests/support/unit.h"

enum { MOST_RANKS = 16, EACH = 30, MOST_BYTES = 20000, AT_ONCE = 3 };

#define PATIENCE UINT64_C(100000000)

typedef struct message {
    int from;
    int to;
    int tag;
    size_t bytes;
    uint64_t turn; /* position in its receiver's order */
} message;

typedef struct rank_state {
    struct world *world;
    ls_engine *engine;
    int rank;
    int sends; /* posted */
    int received;
    int order[MOST_RANKS * EACH]; /* messages for this rank in the order of its receives, */
    int count;                    /* how many */
    int next;                     /* and the next of them to post */
    void *requests[MOST_RANKS * EACH];
    unsigned char *buffers[MOST_RANKS * EACH]; /* of the messages that this rank sends or receives */
    int sources[MOST_RANKS * EACH];            /* for receives from any rank, the sender */
    int got[MOST_RANKS * EACH];                /* the message */
    sim_result result;
} rank_state;

typedef struct world {
    ls_sim_network *network;
    uint64_t seed;
    int ranks;
    int tags;
    size_t bytes;
    size_t kept_most; /* bytes of unexpected messages that a rank keeps */
    bool any;         /* receives with tag 0 are from any rank, and these messages have the same size */
    int count;
    message messages[MOST_RANKS * EACH];
    rank_state states[MOST_RANKS];
    bool faulty;
} world;

/* Returns a byte of a message. The first bytes are the number of the message. */
static unsigned char byte_of(int which, size_t at) {
    return at < sizeof which ? (unsigned char)(which >> (8 * at))
                             : (unsigned char)((size_t)which * 31 + at * 7 + (at >> 8));
}

static bool is_from_any(const world *w, int which) {
    return w->any && w->messages[which].tag == 0;
}

/* ---- a plan ------------------------------------------------------------------------------------------------------ */

static void draw_messages(world *w, uint64_t *random) {
    w->count = w->ranks * EACH;
    for (int i = 0; i < w->count; i++) {
        message *m = &w->messages[i];
        m->from = (int)call_draw(random, (uint64_t)w->ranks);
        m->to = (m->from + 1 + (int)call_draw(random, (uint64_t)w->ranks - 1)) % w->ranks;
        m->tag = (int)call_draw(random, (uint64_t)w->tags);
        m->bytes = call_draw(random, 3) == 0 ? call_draw(random, 100) : call_draw(random, MOST_BYTES);
        m->bytes = w->any && m->tag == 0 ? w->bytes : m->bytes;
        m->turn = w->tags == 1 ? (uint64_t)i : call_draw(random, 1 << 20);
    }
}

/* Restores the order of messages with the same sender and tag. */
static void keep_pairs_in_order(world *w) {
    for (int i = 0; i < w->count; i++) {
        for (int k = i + 1; k < w->count; k++) {
            message *a = &w->messages[i], *b = &w->messages[k];
            if (a->from == b->from && a->to == b->to && a->tag == b->tag && a->turn > b->turn) {
                const uint64_t turn = a->turn;
                a->turn = b->turn;
                b->turn = turn;
            }
        }
    }
}

static void order_receives(world *w) {
    for (int i = 0; i < w->count; i++) {
        rank_state *r = &w->states[w->messages[i].to];
        int at = r->count++;
        for (; at > 0 && w->messages[r->order[at - 1]].turn > w->messages[i].turn; at--) {
            r->order[at] = r->order[at - 1];
        }
        r->order[at] = i;
    }
}

/* ---- a rank's turn ----------------------------------------------------------------------------------------------- */

static ls_status post(rank_state *r, int which, ls_operation operation) {
    const message *m = &r->world->messages[which];
    const bool sends = operation == LS_OP_SEND;
    const bool any = !sends && is_from_any(r->world, which);
    r->buffers[which] = malloc(m->bytes + 1);
    for (size_t i = 0; i < m->bytes; i++) {
        r->buffers[which][i] = sends ? byte_of(which, i) : 0;
    }
    const ls_call call = {.operation = any ? LS_OP_RECV_ANY : operation,
                          .dtype = LS_U8,
                          .root = sends ? m->to
                                  : any ? LS_ANY_RANK
                                        : m->from,
                          .tag = m->tag,
                          .source = any ? &r->sources[which] : NULL,
                          .count = m->bytes,
                          .width = 1,
                          .send = r->buffers[which],
                          .receive = r->buffers[which],
                          .sequence = (uint64_t)which + 1};
    return ls_engine_post(r->engine, &call, &r->requests[which]);
}

/* Posts all sends first, then receives, a few at a time. */
static ls_status post_all(rank_state *r) {
    world *w = r->world;
    for (; r->sends < w->count; r->sends++) {
        LS_TRY(w->messages[r->sends].from == r->rank ? post(r, r->sends, LS_OP_SEND) : LS_OK);
    }
    for (; r->next < r->count && r->next - r->received < AT_ONCE; r->next++) {
        LS_TRY(post(r, r->order[r->next], LS_OP_RECV));
    }
    return LS_OK;
}

static void check_content(const rank_state *r, int which) {
    const message *m = &r->world->messages[which];
    for (size_t i = 0; i < m->bytes; i++) {
        if (r->buffers[which][i] != byte_of(r->got[which], i)) {
            fail_msg("seed %llu: rank %d, message %d from %d of %zu bytes: byte %zu is wrong",
                     (unsigned long long)r->world->seed, r->rank, which, m->from, m->bytes, i);
        }
    }
}

/* Finds the message that a receive from any rank got. */
static void check_sender(rank_state *r, int which) {
    const world *w = r->world;
    int got = 0;
    memcpy(&got, r->buffers[which], sizeof got);
    r->got[which] = got;
    if (got < 0 || got >= w->count || w->messages[got].from != r->sources[which] || w->messages[got].to != r->rank ||
        w->messages[got].tag != 0) {
        fail_msg("seed %llu: rank %d got message %d from rank %d", (unsigned long long)w->seed, r->rank, got,
                 r->sources[which]);
    }
}

static void end(rank_state *r, int which) {
    if (r->world->messages[which].to == r->rank) {
        r->got[which] = which;
        if (is_from_any(r->world, which)) {
            check_sender(r, which);
        }
        check_content(r, which);
        r->received++;
    }
    free(r->buffers[which]);
    r->buffers[which] = NULL;
}

/* Checks all posted calls. Sets `*open` to the number of unfinished calls. */
static ls_status look(rank_state *r, int *open) {
    *open = 0;
    for (int i = 0; i < r->world->count; i++) {
        bool ended = r->requests[i] == NULL;
        if (r->buffers[i] == NULL) {
            continue;
        }
        if (!ended) {
            const ls_status status = ls_engine_test(r->engine, r->requests[i], false, &ended);
            r->requests[i] = ended || status != LS_OK ? NULL : r->requests[i];
            LS_TRY(status);
        }
        if (ended) {
            end(r, i);
        } else {
            (*open)++;
        }
    }
    return LS_OK;
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    (void)rank;
    for (bool moved = true; moved && !r->result.over;) {
        int open = 0;
        ls_status status = post_all(r);
        status = status == LS_OK ? look(r, &open) : status;
        if (status != LS_OK) {
            sim_note_failure(&r->result, status);
            break;
        }
        const size_t kept = ls_messages_match(r->engine)->kept;
        if (r->world->tags == 1 && kept > r->world->kept_most) {
            fail_msg("seed %llu: rank %d keeps %zu bytes", (unsigned long long)r->world->seed, r->rank, kept);
        }
        if (open == 0 && r->received == r->count) {
            return true;
        }
        ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
        const int received = r->received;
        moved = false;
        assert_int_equal(endpoint->transport->progress(endpoint, PATIENCE, &moved), LS_OK);
        moved = moved || r->received != received || r->next - r->received < (r->next < r->count ? AT_ONCE : 0);
    }
    return r->result.over;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void open_world(world *w, uint64_t seed) {
    static const size_t kept[] = {0, 5000, 40000, 1 << 20};
    uint64_t random = seed;
    *w = (world){
        .seed = seed, .ranks = 2 + (int)call_draw(&random, MOST_RANKS - 1), .tags = 1 + (int)call_draw(&random, 4)};
    w->any = seed % 2 == 0;
    w->bytes = sizeof(int) + call_draw(&random, call_draw(&random, 2) == 0 ? 100 : MOST_BYTES);
    draw_messages(w, &random);
    keep_pairs_in_order(w);
    order_receives(w);
    w->network = ls_sim_new(&(ls_sim_options){.ranks = w->ranks,
                                              .seed = seed,
                                              .latency_ns = 2000,
                                              .overhead_ns = 300,
                                              .bytes_per_ns = 12,
                                              .eager = seed % 2 == 0 ? 4096 : 16384,
                                              .most_delay_ns = seed % 3 == 0 ? 20000 : 0,
                                              .most_start_ns = 5000,
                                              .notice_ns = 100000});
    w->kept_most = kept[call_draw(&random, 4)];
    for (int rank = 0; rank < w->ranks; rank++) {
        rank_state *r = &w->states[rank];
        r->world = w;
        r->rank = rank;
        r->engine = ls_engine_new(ls_sim_endpoint(w->network, rank), 2.0);
        assert_non_null(r->engine);
        ls_messages_limit(r->engine, w->kept_most);
    }
}

static void close_world(world *w) {
    for (int rank = 0; rank < w->ranks; rank++) {
        ls_engine_close(w->states[rank].engine);
    }
    ls_sim_free(w->network);
    for (int rank = 0; rank < w->ranks; rank++) {
        for (int i = 0; i < w->count; i++) {
            free(w->states[rank].buffers[i]);
        }
    }
}

static void run_world(world *w) {
    const ls_sim_outcome outcome = ls_sim_run(w->network, step, w->states, sizeof *w->states, 0);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks: not finished: %s", (unsigned long long)w->seed, w->ranks, outcome.text);
    }
}

/* Checks that each sender's messages have arrived in the order of the receives, each once. */
static void check_turns(const rank_state *r) {
    int latest[MOST_RANKS];
    memset(latest, -1, sizeof latest);
    for (int i = 0; i < r->count; i++) {
        const int got = r->got[r->order[i]];
        const int from = r->world->messages[got].from;
        if (is_from_any(r->world, r->order[i]) && got <= latest[from]) {
            fail_msg("seed %llu: rank %d got message %d of rank %d after message %d",
                     (unsigned long long)r->world->seed, r->rank, got, from, latest[from]);
        }
        latest[from] = is_from_any(r->world, r->order[i]) ? got : latest[from];
    }
}

static void check_order(uint64_t seed, void *context) {
    (void)context;
    static world w;
    open_world(&w, seed);
    run_world(&w);
    for (int rank = 0; rank < w.ranks; rank++) {
        const sim_result *result = &w.states[rank].result;
        if (result->over) {
            fail_msg("seed %llu: rank %d of %d: %s", (unsigned long long)seed, rank, w.ranks, result->text);
        }
        check_turns(&w.states[rank]);
    }
    close_world(&w);
}

static void check_death(uint64_t seed, void *noticed) {
    static world w;
    open_world(&w, seed);
    const int victim = sim_kill_one(w.network, seed, 60);
    run_world(&w);
    for (int rank = 0; rank < w.ranks; rank++) {
        const sim_result *result = &w.states[rank].result;
        if (rank != victim && result->over) {
            sim_expect_blame(result, seed, rank, victim);
            (*(int *)noticed)++;
        }
    }
    close_world(&w);
}

TEST(everything_arrives) {
    (void)seeds_run(500, check_order, NULL);
}

TEST(deaths) {
    int noticed = 0; /* by any rank */
    assert_true(!seeds_run(500, check_death, &noticed) || noticed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_arrives),
        cmocka_unit_test(deaths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
