/*
 * Ranks as state machines that make a series of calls to the engine on a simulated network (comm/transport/simulated).
 * Their results are compared with a reference, and their messages are counted.
 */
#ifndef LS_TESTS_SIMULATED_ENGINE_WORLD_H
#define LS_TESTS_SIMULATED_ENGINE_WORLD_H

#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/transport/simulated/driver.h"
#include "tests/simulated/calls.h"

enum { WORLD_RESULTS = 16 };

typedef struct world {
    ls_sim_network *network;
    int size;
    uint64_t seed;
    const call_plan *plans; /* the plans of the calls; NULL selects random plans */
    int calls;              /* per rank */
    int odd_rank;           /* makes a different call at odd_call; -1 if there is none */
    int odd_call;
    bool faulty;            /* calls may fail */
    ls_algorithm_id forced; /* for calls that support it; if `used` is set, at least one call must use it */
    int *used;              /* counts the calls that used `forced` */
    bool halving;           /* forces Rabenseifner, van de Geijn and Bruck instead of the default algorithms */
    size_t part;            /* bytes of a part; 0 selects the default */
    int levels;
    struct rank_state *ranks;
    struct {
        int call; /* 1 + its index */
        unsigned char *data;
    } results[WORLD_RESULTS]; /* of reductions, on all ranks */
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

/* Returns whether LOCKSTEP_TEST_LONG is set. */
bool world_is_long(void);

/* Returns the plan of the call with this index. */
call_plan world_plan(const world *w, int index);

/* Returns network options that depend on the seed: eager limit, delays. */
ls_sim_options world_options(int ranks, uint64_t seed);

/* Returns whether ranks of a one-machine world share its cores, which depends on the seed. */
bool world_shares_cores(uint64_t seed);

/* Opens a world. The caller must have set seed, plans (may be NULL), calls, odd_rank and the other options. */
void world_open(world *w, const ls_sim_options *options);
ls_sim_outcome world_run(world *w);
void world_close(world *w);

#endif
