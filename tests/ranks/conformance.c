/*
 * The conformance list of every backend. Each call runs with all sizes around the switches between algorithms, with
 * dtypes, reductions, alignments, kinds of memory, in place or not, roots, and communicators; blocking, asynchronous
 * and interleaved; and with a large buffer (6 MiB, 64 MiB with LOCKSTEP_TEST_LONG=1). The cases are chosen so that
 * every pair of values of any two parameters occurs in at least one case. Only sizes and kinds (dtype and reduction)
 * are combined by the dtype's width. LOCKSTEP_TEST_FULL=1 runs every size with every kind, memory, place and mode
 * instead (takes minutes). LOCKSTEP_TEST_CASES=N runs about N evenly chosen cases, for slow transports.
 * LOCKSTEP_TEST_FROM=K begins with case K (0 is the first), so that a long list can be run in parts.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend/shm/sizes.h"
#include "tests/support/reference.h"
#include "tests/support/seeds.h"
#include "tests/support/steps.h"

enum { GROUPS = 3, PENDING = 3, WIDTHS = 4, KINDS_MOST = 2 * LS_REDUCTION_COUNT };

static const size_t whole_buffer = 800001; /* bytes: several rounds through the slots */

/* A sanitizer makes everything slow. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const bool is_watched = true;
#else
static const bool is_watched = false;
#endif

/* What varies. */
typedef enum axis { SIZE, WIDTH, KIND, SHIFT, MEMORY, PLACE, ROOT, GROUP, MODE, AXES } axis;

enum { ORDINARY, SHARED, MIXED, MEMORIES };       /* MIXED: ordinary memory on the last rank only */
enum { WORLD, HALVES, REVERSED };                 /* communicators */
enum { WAITING, AS_WORK, INTERLEAVED, MODES };    /* INTERLEAVED: up to PENDING other calls begin before the wait */
enum { APART, IN_PLACE, IN_OWN_PART, PLACES };    /* with counts per rank, the last two leave gaps between the parts */
enum { WHOLE, DIVIDED, DIVIDED_TABLE, MEANINGS }; /* the size to which a switch between algorithms refers */

typedef struct kind {
    ls_dtype dtype;
    ls_reduction reduction;
} kind;

typedef struct conformance {
    ls_comm *groups[GROUPS];
    unsigned char *shared[GROUPS][PENDING + 1];
    kind kinds[WIDTHS][KINDS_MOST]; /* kinds to use in turn */
    int kind_count[WIDTHS];
    step *pending[PENDING];
    int pending_count;
    uint64_t cases; /* so far */
    uint64_t run;
    uint64_t share; /* one of every `share` cases is run; 0 only counts the cases */
    uint64_t from;  /* the first case to run */
} conformance;

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static const size_t switch_overs[] = LS_SHM_SWITCH_OVERS;
static const size_t few[] = {0, 1, 3, 7};

enum { OVERS = sizeof switch_overs / sizeof switch_overs[0], FEW = sizeof few / sizeof few[0] };
enum { SIZES = FEW + 1 + OVERS * MEANINGS * 3 };

/*
 * Returns the number of elements for a call of `ranks` ranks at this level: first small numbers, then a number that
 * takes several rounds, then the numbers around each switch.
 */
static size_t count_of(int level, step_call call, size_t width, size_t ranks) {
    const bool parts = call >= STEP_REDUCE_SCATTER && call <= STEP_ALLTOALLV;
    if (level < FEW) {
        return few[level];
    }
    if (level == FEW) {
        return whole_buffer / width / (parts ? ranks : 1);
    }
    level -= FEW + 1;
    const size_t over = switch_overs[level / (MEANINGS * 3)];
    const int meaning = level / 3 % MEANINGS;
    size_t bytes = over;
    if (meaning != WHOLE) { /* a part of a slot begins at a multiple of a cache line; the table has 16 bytes per rank */
        const size_t room = meaning == DIVIDED || over < 16 * ranks ? over : over - 16 * ranks;
        bytes = room / ranks < 64 ? room / ranks : room / ranks / 64 * 64;
    }
    const size_t count = bytes / width + (size_t)(level % 3);
    return count == 0 ? 0 : count - 1;
}

static size_t most_bytes(size_t ranks) {
    size_t most = whole_buffer / ranks;
    for (size_t i = 0; i < OVERS; i++) {
        most = switch_overs[i] > most ? switch_overs[i] : most;
    }
    return most + 64; /* one more element, plus gaps */
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static void list_kinds(conformance *c, step_call call) {
    memset(c->kind_count, 0, sizeof c->kind_count);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        const size_t size = ls_dtype_size((ls_dtype)dtype);
        const int width = size == 8 ? 3 : (int)size / 2;
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            if (step_reduces(call) ? reference_reduces((ls_dtype)dtype, (ls_reduction)reduction) : reduction == 0) {
                c->kinds[width][c->kind_count[width]++] = (kind){(ls_dtype)dtype, (ls_reduction)reduction};
            }
        }
    }
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

static ls_status end_pending(conformance *c) {
    for (int i = 0; i < c->pending_count; i++) {
        LS_TRY(step_end(c->pending[i]));
        free(c->pending[i]);
    }
    c->pending_count = 0;
    return LS_OK;
}

static ls_status run_step(conformance *c, step *s, int mode) {
    LS_TRY(step_begin(s));
    if (mode == INTERLEAVED) {
        c->pending[c->pending_count++] = s;
        return c->pending_count == PENDING ? end_pending(c) : LS_OK;
    }
    LS_TRY(step_end(s));
    free(s);
    return LS_OK;
}

static ls_status run_case(conformance *c, step_call call, const int level[AXES]) {
    const uint64_t number = c->cases++;
    if (c->share == 0 || number % c->share != c->from) {
        return LS_OK;
    }
    c->run++;
    ls_comm *comm = c->groups[level[GROUP]];
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    const kind k = c->kinds[level[WIDTH]][level[KIND] % c->kind_count[level[WIDTH]]];
    step *s = calloc(1, sizeof *s);
    LS_CHECK(s != NULL);
    const size_t width = step_reduces(call) ? reference_width(k.dtype, k.reduction) : ls_dtype_size(k.dtype);
    *s = (step){.call = call,
                .comm = comm,
                .dtype = k.dtype,
                .reduction = k.reduction,
                .count = count_of(level[SIZE], call, width, (size_t)size),
                .root = level[ROOT] % size,
                .other = level[ROOT] / size % size,
                .tag = (int)(number % 3),
                .seed = number,
                .in_place = level[PLACE] != APART,
                .own_part = level[PLACE] == IN_OWN_PART,
                .gaps = level[PLACE] != APART,
                .later = level[MODE] != WAITING,
                .shift = level[SHIFT] == 0 ? 0 : 1 + (size_t)(reference_mix(number) % 63)};
    if (level[MEMORY] == SHARED || (level[MEMORY] == MIXED && rank != size - 1)) {
        s->shared = c->shared[level[GROUP]][level[MODE] == INTERLEAVED ? c->pending_count : PENDING];
    }
    return run_step(c, s, level[MODE]);
}

/* ---- all cases of a call ----------------------------------------------------------------------------------------- */

static bool has_root(step_call call) {
    return call == STEP_BROADCAST || call == STEP_REDUCE || call == STEP_GATHER || call == STEP_GATHERV ||
           call == STEP_SCATTER || call == STEP_SCATTERV;
}

static void count_levels(const conformance *c, step_call call, int levels[AXES]) {
    const int size = ls_comm_size(c->groups[WORLD]);
    for (int a = 0; a < AXES; a++) {
        levels[a] = 1;
    }
    levels[GROUP] = GROUPS;
    levels[MODE] = MODES;
    if (call == STEP_BARRIER) {
        return;
    }
    levels[SIZE] = SIZES;
    levels[WIDTH] = WIDTHS;
    for (int width = 0; width < WIDTHS; width++) {
        levels[KIND] = c->kind_count[width] > levels[KIND] ? c->kind_count[width] : levels[KIND];
    }
    levels[SHIFT] = 2;
    levels[MEMORY] = MEMORIES;
    const bool scatters = call == STEP_REDUCE_SCATTER || call == STEP_REDUCE_SCATTERV;
    const bool plain = call == STEP_BROADCAST || call == STEP_MESSAGE || call == STEP_RING;
    levels[PLACE] = scatters ? PLACES : plain ? 1 : 2;
    levels[ROOT] = call == STEP_MESSAGE ? size * size : has_root(call) || call == STEP_RING ? size : 1;
}

/* The pairs of values that have occurred. */
typedef struct cover {
    int levels[AXES];
    unsigned char *met[AXES][AXES]; /* [a][b] for a < b: levels[a] times levels[b] entries */
} cover;

static unsigned char *pair_at(const cover *v, int a, int i, int b, int j) {
    return a < b ? &v->met[a][b][i * v->levels[b] + j] : &v->met[b][a][j * v->levels[a] + i];
}

/* Returns the level of axis `a` that has the most new pairs with the levels chosen so far. */
static int best_level(const cover *v, int a, const int *chosen, uint64_t turn) {
    int best = 0;
    int most = -1;
    for (int i = 0; i < v->levels[a]; i++) {
        const int level = (int)((turn + (uint64_t)i) % (uint64_t)v->levels[a]);
        int fresh = 0;
        for (int b = 0; b < AXES; b++) {
            fresh += b != a && chosen[b] >= 0 && *pair_at(v, a, level, b, chosen[b]) == 0;
        }
        if (fresh > most) {
            most = fresh;
            best = level;
        }
    }
    return best;
}

/* Runs a case with this pair. */
static ls_status run_pair(conformance *c, step_call call, const cover *v, int a, int i, int b, int j) {
    int chosen[AXES];
    for (int x = 0; x < AXES; x++) {
        chosen[x] = x == a ? i : x == b ? j : -1;
    }
    for (int x = 0; x < AXES; x++) {
        if (chosen[x] < 0) {
            chosen[x] = best_level(v, x, chosen, reference_mix(c->cases + (uint64_t)x));
        }
    }
    for (int x = 0; x < AXES; x++) {
        for (int y = x + 1; y < AXES; y++) {
            *pair_at(v, x, chosen[x], y, chosen[y]) = 1;
        }
    }
    return run_case(c, call, chosen);
}

static ls_status run_pairs(conformance *c, step_call call, const cover *v) {
    for (int a = 0; a < AXES; a++) {
        for (int b = a + 1; b < AXES; b++) {
            for (int i = 0; i < v->levels[a]; i++) {
                for (int j = 0; j < v->levels[b]; j++) {
                    if (*pair_at(v, a, i, b, j) == 0 && !(a == SIZE && b == KIND)) {
                        LS_TRY(run_pair(c, call, v, a, i, b, j));
                    }
                }
            }
        }
    }
    return LS_OK;
}

static ls_status every_pair(conformance *c, step_call call) {
    cover v;
    ls_status status = LS_OK;
    unsigned char *memory = NULL;
    count_levels(c, call, v.levels);
    for (int pass = 0; pass < 2; pass++) { /* first the sizes, then the addresses */
        size_t bytes = 0;
        for (int a = 0; a < AXES; a++) {
            for (int b = a + 1; b < AXES; b++) {
                v.met[a][b] = memory + (memory == NULL ? 0 : bytes);
                bytes += (size_t)v.levels[a] * (size_t)v.levels[b];
            }
        }
        if (pass == 0) {
            memory = calloc(bytes, 1);
            LS_CHECK(memory != NULL);
        }
    }
    status = run_pairs(c, call, &v);
    free(memory);
    return status;
}

/* Runs every size with every kind, memory, place and mode; other parameters take turns. */
static ls_status every_product(conformance *c, step_call call) {
    int levels[AXES];
    int level[AXES];
    count_levels(c, call, levels);
    const uint64_t product = (uint64_t)levels[SIZE] * (uint64_t)levels[WIDTH] * (uint64_t)levels[KIND] *
                             (uint64_t)levels[MEMORY] * (uint64_t)levels[PLACE] * (uint64_t)levels[MODE];
    for (uint64_t i = 0; i < product; i++) {
        uint64_t rest = i;
        uint64_t turn = reference_mix(i);
        for (int a = 0; a < AXES; a++) {
            const bool turns = a == SHIFT || a == ROOT || a == GROUP;
            uint64_t *from = turns ? &turn : &rest;
            level[a] = (int)(*from % (uint64_t)levels[a]);
            *from /= (uint64_t)levels[a];
        }
        if (level[KIND] < c->kind_count[level[WIDTH]]) {
            LS_TRY(run_case(c, call, level));
        }
    }
    return LS_OK;
}

static uint64_t large_mebibytes(void) {
    return seeds_number("LOCKSTEP_TEST_LONG", 0) != 0 ? 64 : 6;
}

/* Runs a size far above any slot on the larger side of the call, on all ranks of the world. */
static ls_status large(conformance *c, step_call call) {
    const size_t size = (size_t)ls_comm_size(c->groups[WORLD]);
    const bool parts = call >= STEP_REDUCE_SCATTER && call <= STEP_ALLTOALLV;
    step *s = calloc(1, sizeof *s);
    LS_CHECK(s != NULL);
    *s = (step){.call = call,
                .comm = c->groups[WORLD],
                .dtype = LS_F32,
                .reduction = LS_SUM,
                .count = ((size_t)large_mebibytes() << 20) / 4 / (parts ? size : 1),
                .root = call == STEP_RING ? 1 : (int)call % (int)size,
                .other = ((int)call + 1) % (int)size,
                .seed = 64 + (uint64_t)call,
                .in_place = call % 2 == 0,
                .shift = (size_t)call};
    return run_step(c, s, WAITING);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static ls_status make_groups(conformance *c, ls_comm *world) {
    const int rank = ls_comm_rank(world);
    c->groups[WORLD] = world;
    LS_TRY(ls_comm_split(world, rank % 2, 0, &c->groups[HALVES]));
    LS_TRY(ls_comm_split(world, 0, -rank, &c->groups[REVERSED]));
    for (int g = 0; g < GROUPS; g++) {
        const int size = ls_comm_size(c->groups[g]);
        for (int i = 0; i <= PENDING; i++) {
            c->shared[g][i] = ls_comm_alloc(c->groups[g], step_room(size, most_bytes((size_t)size), 1));
            LS_CHECK(c->shared[g][i] != NULL);
        }
    }
    return LS_OK;
}

/* Counts the cases without running them. */
static ls_status count_cases(conformance *c, bool full) {
    c->share = 0;
    c->cases = 0;
    for (int call = 0; call < STEP_CALLS; call++) {
        list_kinds(c, (step_call)call);
        LS_TRY(full ? every_product(c, (step_call)call) : every_pair(c, (step_call)call));
    }
    return LS_OK;
}

static ls_status run_list(conformance *c, bool full) {
    LS_TRY(count_cases(c, full));
    const uint64_t wanted = seeds_number("LOCKSTEP_TEST_CASES", is_watched ? 500 : c->cases);
    c->share = wanted == 0 || wanted >= c->cases ? 1 : c->cases / wanted;
    c->from = seeds_number("LOCKSTEP_TEST_FROM", 0) % c->share;
    const uint64_t all = c->cases;
    c->cases = 0;
    for (int call = 0; call < STEP_CALLS; call++) {
        list_kinds(c, (step_call)call);
        LS_TRY(full ? every_product(c, (step_call)call) : every_pair(c, (step_call)call));
        LS_TRY(end_pending(c));
        if (call != STEP_BARRIER && !is_watched) {
            LS_TRY(large(c, (step_call)call));
        }
    }
    if (ls_comm_rank(c->groups[WORLD]) == 0) {
        printf("%d ranks of %s: %llu of %llu cases (%s), %s call with %llu MiB\n", ls_comm_size(c->groups[WORLD]),
               ls_comm_backend(c->groups[WORLD]), (unsigned long long)c->run, (unsigned long long)all,
               full ? "every size with every kind, memory, place and mode" : "every pair of values",
               is_watched ? "no" : "and each", (unsigned long long)large_mebibytes());
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    conformance *c = calloc(1, sizeof *c);
    LS_CHECK(c != NULL);
    LS_TRY(make_groups(c, world));
    LS_TRY(run_list(c, seeds_number("LOCKSTEP_TEST_FULL", 0) != 0));
    ls_comm_free(c->groups[REVERSED]);
    ls_comm_free(c->groups[HALVES]);
    free(c);
    return ls_comm_barrier(world, NULL);
}
