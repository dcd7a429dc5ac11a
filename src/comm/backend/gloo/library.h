/*
 * libgloo behind a C header: a context of all ranks of a communicator, and the collectives that it has. All that waits
 * here waits until it is done, or until ls_gloo_end from another thread ends it; timeouts are the engine's.
 *
 * No exception leaves. A function that fails says why in `why`, LS_GLOO_WHY bytes.
 */
#ifndef LS_COMM_BACKEND_GLOO_LIBRARY_H
#define LS_COMM_BACKEND_GLOO_LIBRARY_H

#include "comm/backend.h"

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

/* Makes one of the collectives that it has: all ranks the same ones in the same order. Where `send` is NULL, this
 * rank's part of an all-gather is in its place already. Parts of different size lie one after the other. */
bool ls_gloo_make(ls_gloo_context *context, const ls_call *call, char *why);

/* What reductions use, which is not libgloo's. */
void ls_gloo_reduce(const ls_call *call, void *result, const void *a, const void *b, size_t count);

/* Closes all connections and ends all waits: whatever is in here, or comes later, fails. */
void ls_gloo_end(ls_gloo_context *context);

/* Nobody may be in here any more. */
void ls_gloo_free(ls_gloo_context *context);

#ifdef __cplusplus
}
#endif

#endif
