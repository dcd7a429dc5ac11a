/*
 * `lockstep bench`: what a collective costs, by size. bench.c reads the command line and starts the ranks,
 * bench_collectives.c is the table of what can be measured, bench_rank.c measures on one rank, bench_values.c makes the
 * values and knows what each rank must find afterwards. bench_simulated.c asks a model instead, bench_textbook.c knows
 * what others would take in it.
 */
#ifndef LS_CLI_BENCH_H
#define LS_CLI_BENCH_H

#include "comm/backend.h"

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
    const char *name;       /* as in ls_comm_NAME, but for sendrecv and pingpong */
    ls_operation operation; /* of these: LS_OP_SEND */
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
    bool any_order;
    bool json;
} ls_bench_plan;

/* A cluster that is a model: see comm/transport/simulated/network.h. */
typedef struct ls_bench_cluster {
    int ranks;
    double latency_ns;
    double overhead_ns;
    double bytes_per_ns;
    size_t eager;
} ls_bench_cluster;

/* Prints what the engine would take there for each size, beside the best that textbooks know. */
ls_status ls_bench_simulate(const ls_bench_plan *plan, const ls_bench_cluster *cluster);

/* "2us", "0.5 ms" in nanoseconds; "12GB/s", "100Gbit/s" in bytes per nanosecond. LS_ERR_ARGUMENT naming the option. */
ls_status ls_bench_read_time(const char *option, const char *text, double *ns);
ls_status ls_bench_read_rate(const char *option, const char *text, double *bytes_per_ns);

/* What an algorithm takes, without agreement. */
typedef struct ls_bench_estimate {
    const char *name;
    double ns;
    double messages; /* of the rank that sends most */
    double bytes;
} ls_bench_estimate;

/* The fastest of those in textbooks for buffers of so many bytes, in the model. */
ls_bench_estimate ls_bench_textbook(ls_operation operation, const ls_bench_cluster *cluster, double bytes);

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
