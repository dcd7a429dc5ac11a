/*
 * libgloo behind a C header: a Gloo context of all ranks, its collectives, and messages between two ranks. What a
 * function waits for is moved by Gloo's own thread; any number of threads may be in here at once, but for opening,
 * ending and freeing.
 *
 * No exception leaves. A function that fails says why in `why`, LS_GLOO_WHY bytes.
 */
#ifndef LS_COMM_BACKEND_GLOO_WIRE_H
#define LS_COMM_BACKEND_GLOO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_GLOO_WHY = 256 };

typedef struct ls_gloo_wire ls_gloo_wire;

/* How a rank meets the others: what ranks tell each other goes through a store, which may fail (false). */
typedef struct ls_gloo_meeting {
    const char *host; /* an address of this machine */
    int rank;
    int size;
    double timeout; /* seconds, for each connection */
    bool (*set)(void *context, const char *key, const void *value, size_t size);
    bool (*get)(void *context, const char *key, void *value, size_t capacity, size_t *size); /* waits until it is set */
    void *context;
    bool (*is_vain)(void *context); /* asked now and then while ranks connect: whether to give up */
} ls_gloo_meeting;

/* Connects with all others. NULL: failed. */
ls_gloo_wire *ls_gloo_wire_open(const ls_gloo_meeting *meeting, char *why);

/* Closes all connections and ends all waits: whatever is in here, or comes later, fails. */
void ls_gloo_wire_end(ls_gloo_wire *wire);

/* Nobody may be in here any more. */
void ls_gloo_wire_free(ls_gloo_wire *wire);

/* ---- collectives ------------------------------------------------------------------------------------------------- */

typedef enum ls_gloo_kind_of_work {
    LS_GLOO_BROADCAST = 0,
    LS_GLOO_ALLREDUCE,
    LS_GLOO_REDUCE,
    LS_GLOO_GATHER,
    LS_GLOO_ALLGATHER,
    LS_GLOO_SCATTER,
    LS_GLOO_ALLTOALL,
    LS_GLOO_BARRIER,
    LS_GLOO_EXCHANGE /* parts anywhere in the buffers, of any size */
} ls_gloo_kind_of_work;

/* Bytes of a buffer. */
typedef struct ls_gloo_part {
    size_t bytes;
    size_t at;
} ls_gloo_part;

typedef struct ls_gloo_work {
    ls_gloo_kind_of_work kind;
    uint32_t tag; /* another one than of the calls before and after */
    int root;
    const void *send; /* may be `receive`, or its own part of that */
    void *receive;    /* reduce, gather: used on the root alone */
    size_t count;     /* elements, not 0 but in an exchange: in alltoall, gather and scatter for each rank */
    size_t width;     /* bytes of one */
    void (*reduce)(const void *argument, void *result, const void *a, const void *b, size_t count);
    const void *argument;
    const ls_gloo_part *sent; /* exchange: to each rank, from each rank */
    const ls_gloo_part *received;
} ls_gloo_work;

/* Carries it out; waits for as long as it takes. */
bool ls_gloo_wire_work(ls_gloo_wire *wire, const ls_gloo_work *work, char *why);

/* ---- messages ----------------------------------------------------------------------------------------------------
 *
 * Messages between two ranks arrive in the order in which they were sent under a number below 2^61; they are received
 * with as many bytes as were sent, or more.
 */

/* Sends a copy of both parts; waits for nothing. A connection that broke is no failure: who receives from there meets
 * it. False: no memory. */
bool ls_gloo_wire_send(ls_gloo_wire *wire, int peer, uint64_t number, const void *head, size_t head_bytes,
                       const void *data, size_t bytes);

/* Waits until the system has taken all copies but `most`, which it delivers whatever becomes of this process. Where it
 * has not within `seconds` (0: there is no limit) all connections are closed. */
void ls_gloo_wire_flush(ls_gloo_wire *wire, int peer, size_t most, double seconds);

/* The rank takes nothing any more: nobody waits for that. */
void ls_gloo_wire_close(ls_gloo_wire *wire, int peer);

typedef struct ls_gloo_loan ls_gloo_loan;

/* Sends memory itself, which must stay until the receiver has it: then comes ls_gloo_wire_return. NULL: no memory. */
ls_gloo_loan *ls_gloo_wire_lend(ls_gloo_wire *wire, int peer, uint64_t number, const void *data, size_t bytes);
void ls_gloo_wire_return(ls_gloo_loan *loan);

/* Waits for a message. */
bool ls_gloo_wire_receive(ls_gloo_wire *wire, int peer, uint64_t number, void *memory, size_t bytes, char *why);

/* Receives all messages of a rank under number 0, of `bytes` at most each. There is room for several, so a few arrive
 * also while this process is stopped. NULL: failed. */
typedef struct ls_gloo_inbox ls_gloo_inbox;
ls_gloo_inbox *ls_gloo_wire_inbox(ls_gloo_wire *wire, int peer, size_t bytes, char *why);

/* Waits for the next, which is lent until it is asked again. NULL: failed. */
const void *ls_gloo_inbox_next(ls_gloo_inbox *inbox, char *why);
void ls_gloo_inbox_free(ls_gloo_inbox *inbox);

#ifdef __cplusplus
}
#endif

#endif
