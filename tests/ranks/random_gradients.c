/*
 * Random programs of differentiable communication: collectives and messages over the world, its splits and pairs.
 * Random choices decide whether each rank uses or ignores a result. The gradient of the sum of all ranks' losses is
 * compared with finite differences. LOCKSTEP_TEST_PROGRAMS is the number of programs (default 24), LOCKSTEP_TEST_SEED
 * the first seed (default 0). A failure prints its seed.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"
#include "tests/support/seeds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { POOL = 5, WIDTH = 2, GROUPS = 4, PENDING = 8, STEPS = 14, COLLECTIVE_DICE = 4 };

/* The data that is equal on all ranks. */
typedef struct program {
    ls_comm *world;
    ls_comm *groups[GROUPS];
    uint64_t seed;
} program;

/* A message or collective that was begun and not waited for. */
typedef struct pending {
    ls_handle *handle;
    bool receives;
} pending;

/* One run on one rank. */
typedef struct run {
    const program *program;
    uint64_t common;  /* state of the random choices common to all ranks */
    uint64_t private; /* state of this rank's random choices */
    ls_tensor *pool[POOL];
    pending open[PENDING];
    int open_count;
} run;

static int common_dice(run *r, int bound) {
    return (int)(ls_random_u32(r->program->seed, 0, r->common++) % (unsigned)bound);
}

static int private_dice(run *r, int bound) {
    const uint64_t stream = 1 + (uint64_t)ls_comm_rank(r->program->world);
    return (int)(ls_random_u32(r->program->seed, stream, r->private ++) % (unsigned)bound);
}

/* Picks a tensor from the pool, and sometimes detaches it from the inputs. */
static ls_tensor *pick(run *r) {
    ls_tensor *x = r->pool[private_dice(r, POOL)];
    const int cut = private_dice(r, 5);
    return cut == 0 ? ls_full(LS_SHAPE(ls_size(x, 0), WIDTH), LS_F64, 0.3 + 0.1 * private_dice(r, 7)) : x;
}

/* Combines all rows of x into `rows` rows. */
static ls_tensor *with_rows(ls_tensor *x, int64_t rows) {
    ls_tensor *row = ls_tanh(ls_sum_axes(x, LS_AXES(0), true));
    return ls_mul(ls_expand(row, LS_SHAPE(rows, -1)), ls_add(ls_arange(LS_SHAPE(rows, 1), LS_F64), 0.5));
}

/* Keeps a result, or ignores it. */
static void use(run *r, ls_tensor *result) {
    if (private_dice(r, 3) != 0) {
        r->pool[private_dice(r, POOL)] = ls_tanh(ls_add(result, 0.1));
    }
}

static ls_tensor *turned(run *r, ls_tensor *x) {
    return private_dice(r, 2) == 0 ? ls_transpose(ls_contiguous(ls_transpose(x, 0, 1)), 0, 1) : x;
}

/* Returns the rows for a rank of the group. The last rank gets the rest of `total`. */
static int64_t cut_share(const ls_comm *group, int64_t total) {
    const int64_t each = total / (ls_comm_size(group) + 1);
    return ls_comm_rank(group) == ls_comm_size(group) - 1 ? total - each * (ls_comm_size(group) - 1) : each;
}

static void wait_for_one(run *r, int index) {
    ls_tensor *result = ls_handle_wait(r->open[index].handle);
    if (r->open[index].receives || private_dice(r, 2) == 0) {
        use(r, result);
    }
    r->open[index] = r->open[--r->open_count];
}

static void begin(run *r, ls_handle *handle, bool receives) {
    if (r->open_count == PENDING) {
        wait_for_one(r, private_dice(r, PENDING));
    }
    r->open[r->open_count++] = (pending){handle, receives};
}

/* Starts a collective, and returns NULL. */
static ls_tensor *later(run *r, ls_handle *handle) {
    begin(r, handle, true);
    return NULL;
}

/* Returns the result of a collective; NULL if this rank has only started it, whatever the other ranks do. */
static ls_tensor *collective(run *r, ls_comm *group) {
    const int kind = common_dice(r, 8);
    const ls_reduction reduction = (ls_reduction)common_dice(r, LS_MAX + 1);
    /* The root is valid for groups of any size. */
    const int root = common_dice(r, 60) % ls_comm_size(group);
    const int64_t rows = 1 + common_dice(r, 4);
    const bool chance = private_dice(r, 2) == 0;
    /* with NCCL, calls in flight on two communicators may wait for each other (docs/reference/gpu.md) */
    const bool waits = chance || strcmp(ls_comm_backend(group), "nccl") == 0;
    ls_tensor *x = turned(r, kind == 3 || kind == 5 ? pick(r) : with_rows(pick(r), rows));
    switch (kind) {
    case 0:
        return waits ? ls_allreduce(group, x, reduction) : later(r, ls_allreduce_begin(group, x, reduction));
    case 1:
        return ls_reduce(group, x, reduction, root);
    case 2:
        return waits ? ls_reduce_scatter(group, x, 0, reduction)
                     : later(r, ls_reduce_scatter_begin(group, x, 0, reduction));
    case 3:
        x = ls_comm_rank(group) == root ? x : NULL;
        return waits ? ls_broadcast(group, x, root) : later(r, ls_broadcast_begin(group, x, root));
    case 4:
        return ls_gather(group, turned(r, pick(r)), 0, root);
    case 5:
        return waits ? ls_allgather(group, x, 0) : later(r, ls_allgather_begin(group, x, 0));
    case 6:
        return ls_scatter(group, ls_comm_rank(group) == root ? turned(r, with_rows(pick(r), rows + 3)) : NULL, 0,
                          cut_share(group, rows + 3), root);
    default:
        /* The ranks' rows are placed next to each other, then split into rows again. */
        return ls_expand(
            ls_sum_axes(ls_alltoall(group, turned(r, with_rows(pick(r), rows + 3)), 1, 0, cut_share(group, rows + 3)),
                        LS_AXES(1), true),
            LS_SHAPE(-1, WIDTH));
    }
}

/* Sends one message from a rank to another, or to itself. Several may be in progress. */
static void message(run *r) {
    ls_comm *world = r->program->world;
    const int from = common_dice(r, ls_comm_size(world));
    const int to = common_dice(r, ls_comm_size(world));
    const int tag = common_dice(r, 2);
    const int64_t rows = 1 + common_dice(r, 3);
    if (ls_comm_rank(world) == from) {
        begin(r, ls_isend(world, turned(r, with_rows(pick(r), rows)), to, tag), false);
    }
    if (ls_comm_rank(world) == to) {
        begin(r, ls_irecv(world, LS_SHAPE(rows, WIDTH), LS_F64, from, tag), true);
    }
}

/* Runs a collective, sometimes only on the first half of a split world. */
static void group_step(run *r) {
    const program *p = r->program;
    const int number = common_dice(r, GROUPS);
    const bool alone = common_dice(r, 4) == 0;
    if (alone && number == 1 && ls_comm_rank(p->world) % 2 != 0) {
        r->common += COLLECTIVE_DICE;
        return;
    }
    ls_tensor *result = collective(r, p->groups[number]);
    if (result != NULL) {
        use(r, result);
    }
}

static void step(run *r) {
    if (common_dice(r, 3) == 0) {
        message(r);
    } else {
        group_step(r);
    }
    if (r->open_count > 0 && private_dice(r, 3) == 0) {
        wait_for_one(r, private_dice(r, r->open_count));
    }
    const int target = private_dice(r, POOL);
    r->pool[target] = ls_sin(ls_mul(r->pool[target], 1.25));
}

static ls_tensor *run_program(ls_tensor **inputs, int count, void *user) {
    run r = {.program = user};
    (void)count;
    for (int i = 0; i < POOL; i++) {
        r.pool[i] = ls_mul(inputs[i % 2], 0.5 + 0.2 * i);
    }
    for (int i = 0; i < STEPS; i++) {
        step(&r);
    }
    while (r.open_count > 0) {
        wait_for_one(&r, 0);
    }
    if (private_dice(&r, 4) == 0) { /* a rank without a loss */
        return ls_zeros(LS_SHAPE(1), LS_F64);
    }
    ls_tensor *loss = ls_sum(r.pool[0]);
    for (int i = 1; i < POOL; i++) {
        loss = private_dice(&r, 3) != 0 ? ls_add(loss, ls_mean(with_rows(r.pool[i], 1))) : loss;
    }
    return loss;
}

static ls_tensor *make_input(const program *p, int number) {
    const uint64_t stream = 100 + 2 * (uint64_t)ls_comm_rank(p->world) + (uint64_t)number;
    ls_tensor *x = ls_empty(LS_SHAPE(1 + number, WIDTH), LS_F64);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        ((double *)elements(x))[i] = 2 * ls_random_uniform(p->seed, stream, (uint64_t)i) - 1;
    }
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

static ls_status check_program(program *p) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *inputs[] = {make_input(p, 0), make_input(p, 1)};
    const ls_status status = ls_gradcheck_distributed(p->world, run_program, inputs, 2, p, NULL);
    const ls_status ended = ls_scope_end(scope);
    if (status != LS_OK || ended != LS_OK) {
        return ls_fail(status != LS_OK ? status : ended, "LOCKSTEP_TEST_SEED=%llu: %s", (unsigned long long)p->seed,
                       ls_error_message());
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    program p = {.world = world, .groups = {world}};
    LS_TRY(ls_comm_split(world, rank % 2, 0, &p.groups[1]));
    LS_TRY(ls_comm_split(world, rank / 2, -rank, &p.groups[2]));
    LS_TRY(ls_comm_split(world, 0, (rank * 7 + 3) % 5, &p.groups[3]));
    const uint64_t first = seeds_number("LOCKSTEP_TEST_SEED", 0);
    const uint64_t count = seeds_number("LOCKSTEP_TEST_PROGRAMS", 24);
    for (p.seed = first; p.seed < first + count; p.seed++) {
        LS_TRY(check_program(&p));
    }
    for (int i = 1; i < GROUPS; i++) {
        ls_comm_free(p.groups[i]);
    }
    return ls_comm_barrier(world, NULL);
}
