/*
 * Gloo behind a C header: connections from this rank to each other one, over sockets that connect.h made, which carry
 * Gloo's TCP transport in its synchronous mode, in which the calling thread moves the data and nothing else does. What
 * travels is Gloo's: an operation writes some bytes into memory that the receiver has set aim at under a small number,
 * a slot. Operations between two ranks arrive in order, and the receiver must know of which slot the next one is.
 *
 * No exception leaves. A function that fails says why in `why`, LS_GLOO_WHY bytes; after that its connection is of no
 * use. One thread at a time.
 */
#ifndef LS_COMM_BACKEND_GLOO_WIRE_H
#define LS_COMM_BACKEND_GLOO_WIRE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_GLOO_SLOTS = 5, LS_GLOO_WHY = 256 };

typedef struct ls_gloo_wire ls_gloo_wire;

/* No connections yet. `host` is an address of this machine. NULL: failed. */
ls_gloo_wire *ls_gloo_wire_make(const char *host, int rank, int size, double timeout, char *why);

/* Closes all connections; what was sent still arrives. */
void ls_gloo_wire_free(ls_gloo_wire *wire);

/* Gives a socket a large send buffer; returns its bytes. */
size_t ls_gloo_wire_widen(int socket);

/* Takes over a socket that is connected with `peer`, for operations of no more than `largest` bytes. */
bool ls_gloo_wire_adopt(ls_gloo_wire *wire, int peer, int socket, size_t largest, char *why);

/* The socket, to wait on and nothing else. */
int ls_gloo_wire_socket(ls_gloo_wire *wire, int peer);

/* What arrives under `slot` from `peer` goes into these bytes from now on. NULL: nothing may arrive. */
bool ls_gloo_wire_aim(ls_gloo_wire *wire, int peer, int slot, void *memory, size_t bytes, char *why);

/* Writes bytes `at` into the peer's aim. Blocks where the system has no room for them. */
bool ls_gloo_wire_send(ls_gloo_wire *wire, int peer, int slot, const void *data, size_t bytes, size_t at, char *why);

/* Whether an operation has come, or begun to: 1, 0; -1 the connection has ended. */
int ls_gloo_wire_peek(ls_gloo_wire *wire, int peer, char *why);

/* What the next operation must be: of `slot`, `least` to `most` bytes that go `at` so many bytes into its aim. */
typedef struct ls_gloo_operation {
    int slot;
    size_t at;
    size_t least;
    size_t most;
} ls_gloo_operation;

/*
 * Takes the next operation into its aim and says how many bytes it has; waits for it, at most a fifth of the timeout.
 * Fails before anything is read where it is another than is expected: libgloo's own check of where data goes wraps.
 */
bool ls_gloo_wire_take(ls_gloo_wire *wire, int peer, const ls_gloo_operation *expected, size_t *bytes, char *why);

#ifdef __cplusplus
}
#endif

#endif
