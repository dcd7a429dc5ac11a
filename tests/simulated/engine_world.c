#include "tests/simulated/engine_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/unit.h"

#define TIMEOUT_S 2.0
/* Enough bytes for multi-part and rendezvous messages. For calls that may fail, larger sizes test nothing more. */
#define FAULTY_BYTES ((size_t)12000)
#define PATIENCE     UINT64_C(100000000)

bool world_is_long(void) {
    return getenv("LOCKSTEP_TEST_LONG") != NULL;
}

call_plan world_plan(const world *w, int index) {
    const size_t most_bytes = w->faulty ? FAULTY_BYTES : CALL_MOST_BYTES;
    return w->plans != NULL ? w->plans[index]
                            : call_plan_draw(w->seed * 1000003 + (uint64_t)index, w->size, most_bytes, world_is_long());
}

/* ---- a rank's turn ----------------------------------------------------------------------------------------------- */

static ls_status begin_ring(rank_state *r) {
    const int size = r->world->size;
    ls_call send = r->side.call;
    ls_call receive = r->side.call;
    send.operation = LS_OP_SEND;
    send.root = (r->rank + 1) % size;
    send.tag = receive.tag = 7;
    receive.operation = LS_OP_RECV;
    receive.root = (r->rank + size - 1) % size;
    LS_TRY(ls_engine_post(r->engine, &send, &r->request[0]));
    return ls_engine_post(r->engine, &receive, &r->request[1]);
}

static ls_status begin(rank_state *r) {
    const world *w = r->world;
    call_plan plan = world_plan(w, r->done);
    if (r->rank == w->odd_rank && r->done == w->odd_call) {
        const bool barrier = plan.operation != LS_OP_BARRIER;
        plan = (call_plan){.operation = barrier ? LS_OP_BARRIER : LS_OP_ALLREDUCE,
                           .dtype = LS_F32,
                           .reduction = LS_SUM,
                           .count = barrier ? 0 : 3};
    }
    call_side_begin(&r->side, &plan, w->size, r->rank, (uint64_t)r->done + 1);
    r->begun = true;
    r->messages = ls_engine_endpoint(r->engine)->messages;
    r->bytes = ls_engine_endpoint(r->engine)->bytes;
    return plan.operation == CALL_RING ? begin_ring(r) : ls_engine_begin(r->engine, &r->side.call);
}

static ls_status go_on(rank_state *r, bool *finished) {
    if (r->side.plan.operation != CALL_RING) {
        return ls_engine_progress(r->engine, false, finished);
    }
    *finished = true;
    for (int i = 0; i < 2; i++) {
        bool ended = r->request[i] == NULL;
        if (!ended) {
            const ls_status status = ls_engine_test(r->engine, r->request[i], false, &ended);
            r->request[i] = ended || status != LS_OK ? NULL : r->request[i];
            LS_TRY(status);
        }
        *finished = *finished && ended;
    }
    return LS_OK;
}

/* Returns the result of the reduction, computed once for all ranks. */
static const unsigned char *reduced(const rank_state *r) {
    world *w = r->world;
    const int slot = r->done % WORLD_RESULTS;
    if (call_reduces(&r->side.plan) && w->results[slot].call != r->done + 1) {
        free(w->results[slot].data);
        w->results[slot].data = call_reduce(&r->side.plan, w->size);
        w->results[slot].call = r->done + 1;
    }
    return w->results[slot].data;
}

static void LS_PRINTF(2, 3) wrong(const rank_state *r, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    fail_msg("seed %llu: %d ranks, call %d (%s of %zu, root %d): rank %d %s", (unsigned long long)r->world->seed,
             r->world->size, r->done, ls_operation_name(r->side.call.operation), r->side.plan.count, r->side.plan.root,
             r->rank, what);
}

/* Checks how many messages a small call has sent, and how many bytes a large reduction has sent. */
static void count_messages(const rank_state *r) {
    const call_plan *plan = &r->side.plan;
    const size_t bytes = call_width(plan) * plan->count * (size_t)r->world->size;
    const bool direct = plan->operation == CALL_RING || plan->operation == LS_OP_ALLTOALLV ||
                        plan->operation == LS_OP_GATHERV || plan->operation == LS_OP_ALLTOALL;
    const uint64_t messages = ls_engine_endpoint(r->engine)->messages - r->messages;
    const uint64_t sent = ls_engine_endpoint(r->engine)->bytes - r->bytes;
    const uint64_t rounds = (uint64_t)(2 * r->world->levels);
    if (r->world->faulty || r->world->halving || r->world->forced != LS_ALGORITHM_DEFAULT) {
        return;
    }
    if (!direct && bytes <= 1024 && messages > rounds) {
        wrong(r, "sent %llu messages", (unsigned long long)messages);
    }
    const double buffer = (double)(call_width(plan) * plan->count);
    const double most = 2.1 * buffer + (double)(rounds * (sizeof(ls_envelope) + sizeof(ls_call_group)));
    const bool spread =
        buffer >= 65536 && !r->engine->shape.shares_cores; /* otherwise all data passes through the root */
    if (plan->operation == LS_OP_ALLREDUCE && plan->dtype == LS_F32 && spread && (double)sent > most) {
        wrong(r, "sent %llu bytes", (unsigned long long)sent);
    }
}

static void note_failure(rank_state *r, ls_status status) {
    r->status = status;
    snprintf(r->message, sizeof r->message, "%s", ls_error_message());
    const bool odd = r->done == r->world->odd_call && r->world->odd_rank >= 0 && status == LS_ERR_MISMATCH;
    if (!odd && !r->world->faulty) {
        fail_msg("seed %llu: rank %d of %d, call %d: %s", (unsigned long long)r->world->seed, r->rank, r->world->size,
                 r->done, r->message);
    }
    r->over = !odd;
    call_side_end(&r->side); /* the call has ended, so the engine no longer uses the memory */
    r->begun = false;
    r->done++;
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    (void)rank;
    for (bool moved = true; moved && !r->over && r->done < r->world->calls;) {
        bool finished = false;
        ls_status status = r->begun ? LS_OK : begin(r);
        status = status == LS_OK ? go_on(r, &finished) : status;
        if (status != LS_OK) {
            note_failure(r, status);
            continue;
        }
        if (finished) {
            if (!call_side_is_right(&r->side, reduced(r))) {
                wrong(r, "has what is wrong");
            }
            count_messages(r);
            if (r->world->used != NULL && r->engine->algorithm->id == r->world->forced) {
                (*r->world->used)++;
            }
            call_side_end(&r->side);
            r->begun = false;
            r->done++;
            continue;
        }
        ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
        moved = false;
        assert_int_equal(endpoint->transport->progress(endpoint, PATIENCE, &moved), LS_OK);
    }
    return r->over || r->done == r->world->calls;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

bool world_shares_cores(uint64_t seed) {
    return seed % 5 == 2 || seed % 5 == 3;
}

void world_open(world *w, const ls_sim_options *options) {
    w->network = ls_sim_new(options);
    w->size = options->ranks;
    w->ranks = calloc((size_t)w->size, sizeof *w->ranks);
    while (1 << w->levels < w->size) {
        w->levels++;
    }
    for (int rank = 0; rank < w->size; rank++) {
        w->ranks[rank] = (rank_state){.world = w, .rank = rank};
        ls_endpoint *endpoint = ls_sim_endpoint(w->network, rank);
        endpoint->oversubscribed = options->machine_ranks == 0 && world_shares_cores(w->seed);
        endpoint->polls = w->seed % 5 == 3;
        w->ranks[rank].engine = ls_engine_new(endpoint, TIMEOUT_S);
        assert_non_null(w->ranks[rank].engine);
        static const ls_algorithm_id halving[] = {LS_ALGORITHM_RABENSEIFNER, LS_ALGORITHM_VAN_DE_GEIJN,
                                                  LS_ALGORITHM_BRUCK};
        for (int i = 0; w->halving && i < 3; i++) {
            ls_algorithm_force(w->ranks[rank].engine, halving[i]);
        }
        if (w->forced != LS_ALGORITHM_DEFAULT) {
            ls_algorithm_force(w->ranks[rank].engine, w->forced);
        }
        w->ranks[rank].engine->part_wanted = w->part;
    }
}

void world_close(world *w) {
    for (int rank = 0; rank < w->size; rank++) {
        ls_engine_close(w->ranks[rank].engine);
        call_side_end(&w->ranks[rank].side);
    }
    ls_sim_free(w->network);
    for (int i = 0; i < WORLD_RESULTS; i++) {
        free(w->results[i].data);
    }
    free(w->ranks);
}

ls_sim_outcome world_run(world *w) {
    return ls_sim_run(w->network, step, w->ranks, sizeof *w->ranks, 0);
}

ls_sim_options world_options(int ranks, uint64_t seed) {
    return (ls_sim_options){.ranks = ranks,
                            .seed = seed,
                            .latency_ns = 2000,
                            .overhead_ns = 300,
                            .bytes_per_ns = 12,
                            .eager = seed % 2 == 0 ? 4096 : 65536,
                            .most_delay_ns = seed % 3 == 0 ? 20000 : 0,
                            .most_start_ns = 5000,
                            .notice_ns = 100000};
}
