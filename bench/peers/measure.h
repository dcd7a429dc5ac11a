/*
 * How the peers are measured: as `lockstep bench` measures Lockstep (src/cli/bench_rank.c), so that the figures can be
 * put side by side. Every iteration begins at a barrier, outside the time, and takes as long as on the rank where it
 * takes longest; calls of less than 10 us are timed in groups; the result of each size is checked; one JSON object per
 * size, with the keys of `lockstep bench --json`. Elements are f32, the reduction is a sum.
 *
 * A peer gives the calls; peer_measure does the rest. A peer that fails ends the process.
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
    PEER_PINGPONG, /* rank 2k to 2k+1 and back; half of that is reported */
    PEER_BARRIER,
    PEER_COLLECTIVES
} peer_collective;

/* One call. Buffers are cut into parts of `count` elements: one, or one for each rank. */
typedef struct peer_call {
    peer_collective collective;
    float *send; /* NULL in place */
    float *receive;
    size_t count;
} peer_call;

typedef struct peer {
    const char *name; /* printed as the backend */
    int rank, ranks;
    bool (*supports)(peer_collective collective);
    void (*open)(const peer_call *call); /* before the calls on one pair of buffers; NULL: nothing to do */
    void (*run)(const peer_call *call);
    void (*close)(void); /* NULL: nothing to do */
    void (*barrier)(void);
    void (*most)(double *values, size_t count); /* each becomes the largest of all ranks */
} peer;

/*
 * Measures what the command line asks for: COLLECTIVE [--sizes 4,1K,64K] [--iterations K] [--fresh]. `--fresh`: each
 * rank writes its buffer before every call, outside the time. Rank 0 prints. Returns the exit status: 0, 1 for a wrong
 * result, 2 for wrong words.
 */
int peer_measure(const peer *self, int argc, char **argv);

#ifdef __cplusplus
}
#endif

#endif
