/*
 * `lockstep bench`: measures the time of a collective for various sizes. bench.c reads the command line and starts the
 * ranks. bench_collectives.c contains the table of collectives. bench_rank.c measures on one rank. bench_values.c
 * creates the values and knows the expected results. bench_simulated.c computes the times in a network model instead,
 * and bench_textbook.c computes the times of well-known algorithms in the same model.
 */
#ifndef LS_CLI_BENCH_H
#define LS_CLI_BENCH_H

#include "comm/backend.h"

enum { LS_BENCH_SIZES = 64 };

/* One call of this rank. Buffers consist of parts of `count` elements. */
typedef struct ls_bench_call {
    ls_comm *comm;
    int rank, ranks;
    const void *send;
    void *receive;
    size_t count;
    ls_dtype dtype;
    ls_reduction reduction;
    ls_work **work; /* receives the work of a nonblocking call; NULL if the call waits. Ignored by messages */
} ls_bench_call;

/*
 * The origin of a part of a result: part `part` of the data that `rank` sends. LS_BENCH_ALL means the reduction over
 * all ranks; LS_BENCH_NOBODY means that nothing is received.
 */
typedef struct ls_bench_origin {
    int rank;
    int part;
} ls_bench_origin;

enum { LS_BENCH_NOBODY = -2, LS_BENCH_ALL = -1, LS_BENCH_ROOT = 0 };

/* The number of parts of a buffer. */
typedef enum ls_bench_parts { LS_BENCH_NOTHING = 0, LS_BENCH_ONE, LS_BENCH_ONE_PER_RANK } ls_bench_parts;

/* The rank whose data a result contains. */
typedef enum ls_bench_source {
    LS_BENCH_FROM_ALL = 0, /* the reduction over all ranks */
    LS_BENCH_FROM_ROOT,
    LS_BENCH_FROM_EACH,    /* part `part` of the result comes from rank `part` */
    LS_BENCH_FROM_BEFORE,  /* the previous rank */
    LS_BENCH_FROM_PARTNER, /* the other rank of the pair. With an odd number of ranks, the last rank has no partner */
} ls_bench_source;

/* A row of the table: everything specific to one collective. */
typedef struct ls_bench_collective {
    const char *name;       /* NAME of ls_comm_NAME, except for sendrecv and pingpong */
    ls_operation operation; /* sendrecv and pingpong: LS_OP_SEND */
    ls_status (*run)(const ls_bench_call *call);
    ls_bench_parts send, receive;
    ls_bench_source source;
    bool own_part; /* a rank receives only its own part of that data */
    int shares; /* bus bandwidth / algorithm bandwidth, as defined by nccl-tests, is shares (n-1)/n; 1 if `shares` is 0
                 */
    bool in_place;            /* has only one buffer */
    bool may_be_in_place;     /* supports --in-place */
    bool both_ways;           /* one call is two consecutive messages, so half of its time counts */
    bool root_alone_receives; /* only the root's buffer is changed */
    bool reduces;
} ls_bench_collective;

/* Returns the table row with this name, ignoring dashes and underscores. On failure, the error message lists the
 * names. */
const ls_bench_collective *ls_bench_find(const char *name);

/* Returns the origin of part `part` of the data that this rank receives. */
ls_bench_origin ls_bench_origin_of(const ls_bench_collective *collective, const ls_bench_call *call, int part);

/* Writes the names of all rows, separated by ", ". Returns `text`. */
const char *ls_bench_names(char *text, size_t capacity);

/* The checked options. */
typedef struct ls_bench_plan {
    const ls_bench_collective *collective;
    const char *backend; /* NULL selects the default */
    ls_dtype dtype;
    ls_reduction reduction;
    size_t sizes[LS_BENCH_SIZES];
    int size_count;
    int iterations; /* 0 selects as many as fit into a fixed time */
    bool registered;
    bool in_place; /* the result overwrites the input */
    bool fresh;    /* ranks write their input before each call */
    bool any_order;
    bool json;
    int compute_ms; /* milliseconds of computation between the start of a call and the wait for it */
} ls_bench_plan;

/* A simulated cluster: see comm/transport/simulated/network.h. */
typedef struct ls_bench_cluster {
    int ranks;
    double latency_ns;
    double overhead_ns;
    double bytes_per_ns;
    size_t eager;
} ls_bench_cluster;

/* Prints the simulated time of the engine for each size, next to the best of the well-known algorithms. */
ls_status ls_bench_simulate(const ls_bench_plan *plan, const ls_bench_cluster *cluster);

/*
 * Reads "2us" or "0.5 ms" as nanoseconds, and "12GB/s" or "100Gbit/s" as bytes per nanosecond. Fails with
 * LS_ERR_ARGUMENT and a message that names the option.
 */
ls_status ls_bench_read_time(const char *option, const char *text, double *ns);
ls_status ls_bench_read_rate(const char *option, const char *text, double *bytes_per_ns);

/* The cost of an algorithm, without the agreement. */
typedef struct ls_bench_estimate {
    const char *name;
    double ns;
    double messages; /* number of messages of the rank that sends the most messages */
    double bytes;
} ls_bench_estimate;

/* Returns the cost of the fastest well-known algorithm for buffers of `bytes` bytes. */
ls_bench_estimate ls_bench_textbook(ls_operation operation, const ls_bench_cluster *cluster, double bytes);

/*
 * Joins the job as one of its ranks and measures; rank 0 prints the results. Sets *wrong on all ranks if any rank found
 * a wrong result.
 */
ls_status ls_bench_rank(const ls_bench_plan *plan, bool *wrong);

/* Returns the size of an element in bytes; for minloc and maxloc, the size of a pair. */
size_t ls_bench_width(ls_dtype dtype, ls_reduction reduction);

/* Fills `total` elements with the values that `rank` sends. */
void ls_bench_fill(const ls_bench_call *call, void *buffer, size_t total);

/*
 * Checks part `part` of the received data against its origin. If an element is wrong, returns false with an error
 * message that names the element. Sums and products of floating-point types may have rounding differences.
 */
bool ls_bench_check(const ls_bench_call *call, ls_bench_origin origin, int part);

#endif
