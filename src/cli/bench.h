/*
 * `lockstep bench`: what a collective costs, by size. bench.c reads the command line and starts the ranks,
 * bench_collectives.c is the table of what can be measured, bench_rank.c measures on one rank, bench_values.c makes the
 * values and knows what each rank must find afterwards.
 */
#ifndef LS_CLI_BENCH_H
#define LS_CLI_BENCH_H

#include <lockstep/comm.h>

enum { LS_BENCH_SIZES = 64 };

/* One call, as the rank makes it. Buffers are cut into parts of `count` elements. */
typedef struct ls_bench_call {
    ls_comm *comm;
    int rank, ranks;
    const void *send;
    void *receive;
    size_t count;
    ls_dtype dtype;
    ls_reduction reduction;
} ls_bench_call;

/*
 * Where a part of a result comes from: part `part` of what `rank` sends, with rank LS_BENCH_ALL of all reduced, with
 * LS_BENCH_NOBODY of no one: nothing is received.
 */
typedef struct ls_bench_origin {
    int rank;
    int part;
} ls_bench_origin;

enum { LS_BENCH_NOBODY = -2, LS_BENCH_ALL = -1, LS_BENCH_ROOT = 0 };

/* How many parts a buffer has. */
typedef enum ls_bench_parts { LS_BENCH_NOTHING = 0, LS_BENCH_ONE, LS_BENCH_ONE_PER_RANK } ls_bench_parts;

/* One row: all that is special about a collective. */
typedef struct ls_bench_collective {
    const char *name; /* as in ls_comm_NAME, but for sendrecv */
    ls_bench_parts send, receive;
    bool in_place;            /* sends what it receives into: there is one buffer */
    bool may_be_in_place;     /* where --in-place asks for it */
    bool both_ways;           /* a call is two messages, one after the other: half of its time counts */
    bool root_alone_receives; /* the others' buffer is left as it is */
    bool reduces;
    double (*bus_factor)(int ranks); /* bus bandwidth / algorithm bandwidth, as nccl-tests defines them */
    ls_status (*run)(const ls_bench_call *call);
    ls_bench_origin (*origin)(const ls_bench_call *call, int part); /* of part `part` of what this rank receives */
} ls_bench_collective;

/* The row of that name, dashes and underscores aside; NULL with an error that lists the names. */
const ls_bench_collective *ls_bench_find(const char *name);

/* Writes the names of all rows, separated by ", ". Returns `text`. */
const char *ls_bench_names(char *text, size_t capacity);

/* What was asked for, checked. */
typedef struct ls_bench_plan {
    const ls_bench_collective *collective;
    const char *backend; /* NULL: the one that fits */
    ls_dtype dtype;
    ls_reduction reduction;
    size_t sizes[LS_BENCH_SIZES];
    int size_count;
    int iterations; /* 0: by time */
    bool registered;
    bool in_place; /* one buffer, which the result replaces */
    bool fresh;    /* ranks write what they send before each call */
    bool json;
} ls_bench_plan;

/* Joins the job as one of its ranks and measures; rank 0 prints. *wrong: some rank found a wrong result. */
ls_status ls_bench_rank(const ls_bench_plan *plan, bool *wrong);

/* Bytes of one element; of a pair for minloc and maxloc. */
size_t ls_bench_width(ls_dtype dtype, ls_reduction reduction);

/* Fills `total` elements with the values that `rank` sends. */
void ls_bench_fill(const ls_bench_call *call, void *buffer, size_t total);

/*
 * Whether part `part` of what was received is what `origin` sent, or the reduction of what all sent. Where not, the
 * error message says which element is wrong. Sums and products of floating types may differ by their rounding.
 */
bool ls_bench_check(const ls_bench_call *call, ls_bench_origin origin, int part);

#endif
