/*
 * Random programs: sequences of calls on the world and on communicators split from it and from each other, of any kind,
 * size, dtype, reduction and root, in ordinary and in shared memory, in place or not, mixed with messages; blocking, or
 * asynchronous with each rank polling and waiting in its own order. All ranks draw the same program from its seed. The
 * expected results are computed serially (support/steps.h). LOCKSTEP_TEST_SEED and LOCKSTEP_TEST_PROGRAMS select other
 * programs.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend/shm/sizes.h"
#include "tests/support/reference.h"
#include "tests/support/seeds.h"
#include "tests/support/steps.h"

enum { PROGRAMS = 60, SEED = 20260101, STEPS_MOST = 24, GROUPS = 4, POOLS = 3 };

/* One communicator of a program. */
typedef struct group {
    ls_comm *comm; /* NULL if this rank is not a member */
    step *open[STEPS_MOST];
    int opened;
    unsigned char *pools[POOLS]; /* memory from ls_comm_alloc */
    size_t pool_bytes[POOLS];
    bool taken[POOLS];
} group;

typedef struct program {
    uint64_t state; /* of the choices common to all ranks */
    uint64_t own;   /* of this rank's own choices */
    group groups[GROUPS];
    bool each_its_way; /* each rank decides which calls are asynchronous */
} program;

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = reference_mix(*state);
    return *state % below;
}

/* ---- ending steps ------------------------------------------------------------------------------------------------ */

static ls_status end_one(program *p, group *g, int index) {
    step *s = g->open[index];
    g->open[index] = g->open[--g->opened];
    for (uint64_t looks = draw(&p->own, 3); looks > 0; looks--) {
        (void)ls_work_done(s->works[0]);
    }
    if (draw(&p->own, 4) == 0) {
        while (!ls_work_done(s->works[0])) {
        }
    }
    LS_TRY(step_end(s));
    for (int i = 0; i < POOLS; i++) {
        g->taken[i] = g->taken[i] && s->shared != g->pools[i];
    }
    free(s);
    return LS_OK;
}

/* Waits for all work on one communicator, in an order that each rank chooses. */
static ls_status end_group(program *p, group *g) {
    while (g->opened > 0) {
        LS_TRY(end_one(p, g, (int)draw(&p->own, (uint64_t)g->opened)));
    }
    return LS_OK;
}

/* Waits for all work on all communicators, in an order that each rank chooses. */
static ls_status end_all(program *p) {
    int opened = 0;
    for (int i = 0; i < GROUPS; i++) {
        opened += p->groups[i].opened;
    }
    for (; opened > 0; opened--) {
        group *g = p->groups;
        int index = (int)draw(&p->own, (uint64_t)opened);
        for (; index >= g->opened; g++) {
            index -= g->opened;
        }
        LS_TRY(end_one(p, g, index));
    }
    return LS_OK;
}

/* ---- drawing steps ----------------------------------------------------------------------------------------------- */

static size_t draw_count(uint64_t *state) {
    static const size_t scales[] = {1, 4, 30, 400, 6000, 40000};
    static const size_t overs[] = LS_SHM_SWITCH_OVERS;
    const uint64_t scale = draw(state, 8);
    if (scale < 6) {
        return draw(state, scales[scale] + 1);
    }
    const size_t over = overs[draw(state, sizeof overs / sizeof overs[0])] >> draw(state, 4);
    return over + draw(state, 3) - (over > 0);
}

/* Makes the same number of draws in every case, so that ranks outside the communicator stay in step. */
static step draw_step(program *p, ls_comm *comm) {
    uint64_t *state = &p->state;
    const int size = comm == NULL ? 1 : ls_comm_size(comm);
    step s = {.comm = comm, .call = (step_call)draw(state, STEP_CALLS)};
    s.dtype = (ls_dtype)draw(state, LS_DTYPE_COUNT);
    s.reduction = (ls_reduction)draw(state, LS_REDUCTION_COUNT);
    s.count = draw_count(state);
    s.root = (int)(draw(state, 840) % (uint64_t)size);
    s.other = (int)(draw(state, 840) % (uint64_t)size);
    s.tag = (int)draw(state, 2);
    s.seed = draw(state, UINT64_MAX);
    s.in_place = draw(state, 3) == 0;
    s.own_part = draw(state, 2) == 0;
    s.gaps = draw(state, 2) == 0;
    s.later = draw(state, 2) == 0;
    if (p->each_its_way) {
        s.later = draw(&p->own, 2) == 0;
    }
    s.shift = draw(&p->own, 3) == 0 ? draw(&p->own, 64) : 0;
    if (step_reduces(s.call) && !reference_reduces(s.dtype, s.reduction)) {
        s.reduction = LS_MAX; /* is defined for all dtypes */
    }
    return s;
}

/* Selects shared memory for the step if this rank has a free block that is large enough. */
static void choose_memory(program *p, group *g, step *s) {
    const size_t room = step_room(ls_comm_size(s->comm), s->count, 16);
    const uint64_t start = draw(&p->own, POOLS);
    const bool wanted = draw(&p->own, 4) != 0;
    for (uint64_t i = 0; i < POOLS && wanted; i++) {
        const uint64_t at = (start + i) % POOLS;
        if (g->pools[at] != NULL && !g->taken[at] && room <= g->pool_bytes[at]) {
            g->taken[at] = true;
            s->shared = g->pools[at];
            return;
        }
    }
}

static ls_status run_step(program *p, group *g) {
    const step drawn = draw_step(p, g->comm);
    if (g->comm == NULL) {
        return LS_OK;
    }
    step *s = malloc(sizeof *s);
    LS_CHECK(s != NULL);
    *s = drawn;
    choose_memory(p, g, s);
    LS_TRY(step_begin(s));
    g->open[g->opened++] = s;
    if (!s->later) {
        return end_one(p, g, g->opened - 1);
    }
    if (g->opened == STEPS_MOST || draw(&p->own, 6) == 0) { /* waiting early cannot deadlock */
        (void)ls_work_done(g->open[draw(&p->own, (uint64_t)g->opened)]->works[0]);
    }
    return LS_OK;
}

/* ---- communicators and memory ------------------------------------------------------------------------------------ */

/* Splits a randomly chosen communicator with an index below `index`. */
static ls_status make_group(program *p, int index) {
    const ls_comm *world = p->groups[0].comm;
    const uint64_t way = draw(&p->state, UINT64_MAX);
    const uint64_t parent = draw(&p->state, (uint64_t)index);
    const uint64_t colors = 1 + draw(&p->state, 3);
    const uint64_t none = draw(&p->state, 4); /* if 0, some ranks may join no communicator */
    const uint64_t rank = (uint64_t)ls_comm_rank(world);
    if (p->groups[parent].comm == NULL) {
        return LS_OK;
    }
    const int color = (int)(reference_mix(way + rank) % (colors + (none == 0))) - (none == 0);
    const int key = (int)(reference_mix(way ^ (rank + 77)) % 7) - 3;
    return ls_comm_split(p->groups[parent].comm, color, key, &p->groups[index].comm);
}

static ls_status make_pool(program *p, group *g) {
    const uint64_t slot = draw(&p->state, POOLS);
    const size_t bytes = (size_t)1 << (10 + draw(&p->state, 11));
    if (g->comm == NULL || g->pools[slot] != NULL) {
        return LS_OK;
    }
    g->pools[slot] = ls_comm_alloc(g->comm, bytes);
    g->pool_bytes[slot] = bytes;
    LS_CHECK(g->pools[slot] != NULL);
    return LS_OK;
}

static void free_group(program *p, group *g) {
    for (int i = 0; i < POOLS; i++) {
        if (g->pools[i] != NULL && draw(&p->own, 2) == 0) { /* otherwise it is freed with the communicator */
            ls_comm_release(g->comm, g->pools[i]);
            g->pools[i] = NULL;
        }
    }
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static ls_status run_steps(program *p, int groups) {
    const int steps = 4 + (int)draw(&p->state, STEPS_MOST - 4);
    int current = (int)draw(&p->state, (uint64_t)groups);
    for (int i = 0; i < steps; i++) {
        if (draw(&p->state, 3) == 0) {
            current = (int)draw(&p->state, (uint64_t)groups);
        }
        if (draw(&p->state, 6) == 0) {
            LS_TRY(make_pool(p, &p->groups[current]));
        }
        LS_TRY(run_step(p, &p->groups[current]));
        if (draw(&p->state, 8) == 0) {
            LS_TRY(end_group(p, &p->groups[current]));
        }
    }
    return end_all(p);
}

static ls_status run_program(ls_comm *world, uint64_t seed) {
    program p = {.state = seed, .own = reference_mix(seed * 31 + (uint64_t)ls_comm_rank(world))};
    p.groups[0].comm = world;
    const int groups = 1 + (int)draw(&p.state, GROUPS);
    p.each_its_way = draw(&p.state, 3) == 0;
    for (int i = 1; i < groups; i++) {
        LS_TRY(make_group(&p, i));
    }
    LS_TRY(run_steps(&p, groups));
    const int first = (int)draw(&p.own, (uint64_t)groups); /* the groups may be freed in any order */
    for (int i = 0; i < groups; i++) {
        group *g = &p.groups[(first + i) % groups];
        free_group(&p, g);
        for (int k = 0; k < POOLS && g->comm == world; k++) {
            ls_comm_release(world, g->pools[k]);
        }
        if (g->comm != world) {
            ls_comm_free(g->comm);
        }
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const uint64_t first = seeds_number("LOCKSTEP_TEST_SEED", SEED + 1000 * (uint64_t)ls_comm_size(world));
    const uint64_t programs = seeds_number("LOCKSTEP_TEST_PROGRAMS", PROGRAMS);
    if (ls_comm_rank(world) == 0) {
        printf("%d ranks of %s: seeds %llu to %llu\n", ls_comm_size(world), ls_comm_backend(world),
               (unsigned long long)first, (unsigned long long)(first + programs - 1));
    }
    for (uint64_t seed = first; seed < first + programs; seed++) {
        const ls_status status = run_program(world, seed);
        if (status != LS_OK) {
            char message[LS_ERROR_CAPACITY];
            snprintf(message, sizeof message, "%s", ls_error_message());
            return ls_fail(status, "seed %llu: %s", (unsigned long long)seed, message);
        }
    }
    return ls_comm_barrier(world, NULL);
}
