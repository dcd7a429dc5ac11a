/* Ranks as state machines that make calls of the engine on a simulated network (comm/transport/simulated), one after
 * the other; their results are compared with those of a reference, and their messages counted. */
#ifndef LS_TESTS_SIMULATED_ENGINE_WORLD_H
#define LS_TESTS_SIMULATED_ENGINE_WORLD_H

#include "base/status.h"
#include "comm/collective/inside.h"
#include "comm/transport/simulated/driver.h"
#include "tests/simulated/calls.h"

enum { WORLD_RESULTS = 16 };

typedef struct world {
    ls_sim_network *network;
    int size;
    uint64_t seed;
    const call_plan *plans; /* of the calls; NULL: random ones */
    int calls;              /* of each rank */
    int odd_rank;           /* calls something else at odd_call; -1: none does */
    int odd_call;
    bool faulty;   /* calls may fail */
    ls_way wanted; /* of reductions, broadcasts and all-gathers; LS_WAY_WHOLE: as they are otherwise */
    size_t part;   /* bytes of a part; 0: as otherwise */
    int levels;
    struct rank_state *ranks;
    struct {
        int call; /* 1 + its index */
        unsigned char *data;
    } results[WORLD_RESULTS]; /* of calls that reduce, on all ranks */
} world;

typedef struct rank_state {
    world *world;
    ls_engine *engine;
    int rank;
    int done; /* calls */
    bool begun;
    bool over; /* a call has failed */
    call_side side;
    void *request[2];
    uint64_t messages; /* sent before the call */
    uint64_t bytes;
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} rank_state;

/* The number in an environment variable, or else `otherwise`. */
uint64_t world_number(const char *name, uint64_t otherwise);

/* LOCKSTEP_TEST_LONG is set. */
bool world_is_long(void);

/* The call of that index. */
call_plan world_plan(const world *w, int index);

/* A network that differs by the seed: eager limit, delays. */
ls_sim_options world_options(int ranks, uint64_t seed);

/* Whether ranks of a world that has one machine share its cores: so many seeds have that. */
bool world_shares_cores(uint64_t seed);

/* Sets all but what the caller has set of the struct: seed, plans or none, calls, odd_rank ... */
void world_open(world *w, const ls_sim_options *options);
ls_sim_outcome world_run(world *w);
void world_close(world *w);

#endif
