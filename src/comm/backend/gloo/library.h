/*
 * A C interface to libgloo: a context of all ranks of a communicator, and Gloo's collectives. A blocking function
 * returns when its work is done, or when another thread calls ls_gloo_end. The engine handles timeouts.
 *
 * No function throws an exception. A function that fails writes the reason to `why`, which has LS_GLOO_WHY bytes.
 */
#ifndef LS_COMM_BACKEND_GLOO_LIBRARY_H
#define LS_COMM_BACKEND_GLOO_LIBRARY_H

#include "comm/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LS_GLOO_WHY = 256,
    LS_GLOO_ADDRESS = 192 /* maximum size in bytes of the address to which a peer connects */
};

typedef struct ls_gloo_context ls_gloo_context;

/* Creates this rank's part of a context, with one address for each other rank to connect to. `host` is an address of
 * this machine. Returns NULL on failure. */
ls_gloo_context *ls_gloo_new(const char *host, int rank, int size, char *why);

/* Writes the address to which `peer` connects. Returns its size in bytes, or 0 if the size exceeds LS_GLOO_ADDRESS. */
size_t ls_gloo_address(ls_gloo_context *context, int peer, char address[LS_GLOO_ADDRESS]);

/* Connects to `peer`, which does the same. All ranks connect to their peers in rank order. Returns false on failure. */
bool ls_gloo_connect(ls_gloo_context *context, int peer, const char *address, size_t bytes, char *why);

/*
 * Executes a collective that Gloo supports. All ranks execute the same collectives in the same order. If `send` is
 * NULL, this rank's part of an all-gather is already at its destination. Parts of different sizes are contiguous.
 * Returns false on failure.
 */
bool ls_gloo_make(ls_gloo_context *context, const ls_call *call, char *why);

/* Reduces `count` elements of `a` and `b` into `result`. Reductions use this function instead of Gloo's own. */
void ls_gloo_reduce(const ls_call *call, void *result, const void *a, const void *b, size_t count);

/* Closes all connections and ends all waits: all current and later calls fail. */
void ls_gloo_end(ls_gloo_context *context);

/* Frees the context. No thread may still be using it. */
void ls_gloo_free(ls_gloo_context *context);

#ifdef __cplusplus
}
#endif

#endif
