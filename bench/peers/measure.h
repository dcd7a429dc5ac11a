/*
 * Measures the peers with the method of `lockstep bench` (src/cli/bench_rank.c), so that the figures are comparable.
 * Each iteration begins with a barrier, which is not timed, and takes as long as the slowest rank. Calls of less than
 * 10 us are timed in groups. The result of each size is checked. The output is one JSON object per size, with the keys
 * of `lockstep bench --json`. Elements are f32; the reduction is a sum.
 *
 * A peer provides the calls; peer_measure does the rest. A peer that fails ends the process.
 */
#ifndef PEERS_MEASURE_H
#define PEERS_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum peer_collective {
    PEER_ALLREDUCE, /* in place */
    PEER_BROADCAST, /* in place, from rank 0 */
    PEER_ALLGATHER,
    PEER_REDUCE_SCATTER,
    PEER_ALLTOALL,
    PEER_PINGPONG, /* from rank 2k to 2k+1 and back; half the time is reported */
    PEER_BARRIER,
    PEER_COLLECTIVES
} peer_collective;

/* One call. Buffers consist of one part of `count` elements, or of one such part per rank. */
typedef struct peer_call {
    peer_collective collective;
    float *send; /* NULL: in place */
    float *receive;
    size_t count;
} peer_call;

typedef struct peer {
    const char *name; /* printed as the name of the backend */
    int rank, ranks;
    bool (*supports)(peer_collective collective);
    void (*open)(const peer_call *call); /* called before the calls on a pair of buffers; may be NULL */
    void (*run)(const peer_call *call);
    void (*close)(void); /* NULL: nothing to do */
    void (*barrier)(void);
    void (*most)(double *values, size_t count); /* replaces each value with its maximum over ranks */
} peer;

/*
 * Measures according to the command line: COLLECTIVE [--sizes 4,1K,64K] [--iterations K] [--fresh]. With --fresh, each
 * rank writes its buffer before every call, untimed. Rank 0 prints the results. Returns the exit status: 0 on success,
 * 1 for a wrong result, 2 for wrong arguments.
 */
int peer_measure(const peer *self, int argc, char **argv);

#ifdef __cplusplus
}
#endif

#endif
