/*
 * libgloo behind a C header: a context of all ranks of a communicator, and the collectives that it has. All that waits
 * here waits until it is done, or until ls_gloo_end from another thread ends it; timeouts are the engine's.
 *
 * No exception leaves. A function that fails says why in `why`, LS_GLOO_WHY bytes.
 */
#ifndef LS_COMM_BACKEND_GLOO_LIBRARY_H
#define LS_COMM_BACKEND_GLOO_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LS_GLOO_WHY = 256,
    LS_GLOO_ADDRESS = 192 /* bytes of what a rank must know of another to connect to it, at most */
};

typedef struct ls_gloo_context ls_gloo_context;

/* This rank's end of a context, with a place for each other rank where that can connect to it. `host` is an address of
 * this machine. NULL: failed. */
ls_gloo_context *ls_gloo_new(const char *host, int rank, int size, char *why);

/* Writes what `peer` must know of it. Returns its bytes; 0: more than LS_GLOO_ADDRESS. */
size_t ls_gloo_address(ls_gloo_context *context, int peer, char address[LS_GLOO_ADDRESS]);

/* Connects with `peer`, which does the same; all ranks in the order of ranks. */
bool ls_gloo_connect(ls_gloo_context *context, int peer, const char *address, size_t bytes, char *why);

typedef enum ls_gloo_kind {
    LS_GLOO_BROADCAST = 0,
    LS_GLOO_ALLREDUCE,
    LS_GLOO_REDUCE,
    LS_GLOO_GATHER,
    LS_GLOO_ALLGATHER,
    LS_GLOO_ALLGATHERV,
    LS_GLOO_SCATTER,
    LS_GLOO_ALLTOALL,
    LS_GLOO_ALLTOALLV
} ls_gloo_kind;

typedef struct ls_gloo_collective {
    ls_gloo_kind kind;
    int root;
    const void *send; /* NULL in allgather(v): this rank's part is in `receive` already */
    void *receive;    /* reduce, gather: used on the root alone */
    size_t count;     /* elements, not 0; in alltoall, gather and scatter for each rank, in allgather of each */
    size_t width;     /* bytes of one */
    const size_t *send_counts;    /* alltoallv: elements for each rank, one after the other, none of them 0 */
    const size_t *receive_counts; /* and from each; allgatherv too */
    void (*reduce)(const void *argument, void *result, const void *a, const void *b, size_t count);
    const void *argument;
} ls_gloo_collective;

/* Carries one out: all ranks the same ones in the same order. */
bool ls_gloo_make(ls_gloo_context *context, const ls_gloo_collective *collective, char *why);

/* Closes all connections and ends all waits: whatever is in here, or comes later, fails. */
void ls_gloo_end(ls_gloo_context *context);

/* Nobody may be in here any more. */
void ls_gloo_free(ls_gloo_context *context);

#ifdef __cplusplus
}
#endif

#endif
