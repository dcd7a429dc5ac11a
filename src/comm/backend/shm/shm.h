/*
 * Backend shm: ranks of one machine over shared memory. Between processes, this is a memfd (without a name, so nothing
 * remains after any exit); between the threads of ls_run_threads, it is ordinary memory, with the same code.
 *
 * All ranks go through the same sequence of steps. To take step k, a rank writes its cell and its slot of step k, and
 * publishes k in the cell (ls_shm_post). When all ranks have published k (ls_shm_wait), each rank may read the data
 * that the other ranks wrote for k. A rank writes for step k + 2 only after all ranks have published k + 1 and so have
 * finished reading k. Two slots per rank are therefore enough for any sequence of calls (see LS_SHM_CELLS for why there
 * are more cells). All code here follows one rule:
 *
 *  - Data that is published with step k is in the cell k % LS_SHM_CELLS and the slot k & 1. It is read only between
 *    waiting for k and posting k + 1.
 *
 * The cache line of a call's first step also contains the data that ranks must agree on, so the check costs only a
 * comparison.
 */
#ifndef LS_COMM_BACKEND_SHM_H
#define LS_COMM_BACKEND_SHM_H

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/status.h"
#include "base/wait.h"
#include "comm/backend.h"
#include "comm/backend/shm/algorithm.h"
#include "comm/backend/shm/distance.h"
#include "comm/backend/shm/point.h"
#include "comm/backend/shm/sizes.h"
#include "comm/channel/hello.h"

/* Number of cells per rank. Two would suffice. With four, all ranks have long read the next step's cell when a step
 * is posted, so its cache line can be claimed at once, without contention. */
#define LS_SHM_CELLS 4

/* The data that a rank publishes with a step. The first bytes of the payload share the cache line of the step
 * number. */
typedef struct ls_shm_cell {
    _Alignas(128) _Atomic uint64_t step;
    uint64_t signature; /* operation, dtype, reduction, public call, root */
    uint64_t count;
    uint32_t sequence; /* lower half of the call's sequence number */
    uint32_t region;   /* id of the ls_comm_alloc memory that contains the buffers; 0 if none */
    uint64_t send;     /* offset of the send buffer in the rank's part of that memory */
    uint64_t receive;
    unsigned char payload[LS_SHM_PAYLOAD];
} ls_shm_cell;

/*
 * The state of a rank's sends. READABLE: other ranks may read the rank's send buffers (rendezvous protocol). QUEUED:
 * messages also wait for free packets, and the rank sends these messages during ls_finalize. WITHDRAWN: ls_finalize is
 * about to return, and the program may then free the buffers.
 */
typedef enum ls_shm_final_sends {
    LS_SHM_SENDS_READABLE = 0,
    LS_SHM_SENDS_QUEUED,
    LS_SHM_SENDS_WITHDRAWN
} ls_shm_final_sends;

/* The data of a rank that other ranks need. */
typedef struct ls_shm_rank {
    _Alignas(128) _Atomic uint32_t left; /* an ls_leave_reason, set when the rank makes no more calls */
    int32_t process;
    _Atomic int32_t core;    /* core on which the rank ran at its latest wait */
    _Atomic uint32_t asleep; /* or about to sleep */
    uint64_t process_space;  /* inode of its PID namespace, in which its PID is valid */
    _Atomic uint32_t sends;  /* an ls_shm_final_sends */
    uint64_t magic; /* address of a number that other ranks read to test whether they can read this rank's memory */
    _Alignas(64) _Atomic uint64_t latest; /* latest call: 256 times its number plus its operation; 0 if none */
    _Atomic uint64_t awaited; /* message that this rank has long been awaiting: 2^32 (sender + 1) + tag; 0 if none */
    _Atomic uint32_t reading; /* between threads: this rank is reading another rank's memory */
    uint32_t peer_reads;      /* this rank can read the memory of other ranks */
    _Atomic int32_t file;     /* descriptor of the memfd plus 1; negative after close; 0 if none is open */
    uint64_t sizes;           /* hash of its ls_shm_sizes */
    cpu_set_t cores;
    _Alignas(64) _Atomic uint32_t answers[LS_SHM_ANNOUNCED]; /* answers to its announced messages: see point.h */
} ls_shm_rank;

enum { LS_SHM_SOUND = 0, LS_SHM_BEING_REVOKED, LS_SHM_REVOKED };

/* The header of the shared memory. */
typedef struct ls_shm_control {
    _Alignas(128) _Atomic uint32_t sleepers; /* number of ranks asleep or about to sleep; a posting rank checks it */
    _Atomic uint32_t revoked;
    _Alignas(128) _Atomic uint32_t wake; /* futex word; changes whenever sleepers must poll again */
    _Alignas(128) uint32_t failure;      /* an ls_status, after revocation */
    int32_t failed_rank;                 /* rank that exited or failed */
    struct ls_shm_lent *lent;            /* world of threads: memory shared by some ranks, see ls_shm_lend */
    atomic_int holders;                  /* world of threads: number of holders, namely its states and ls_run_threads */
    char message[LS_ERROR_CAPACITY];
} ls_shm_control;

/* The memory of one ls_comm_alloc: `stride` bytes per rank, in rank order. */
typedef struct ls_shm_region {
    uint32_t id;
    unsigned char *base; /* rank 0's part; NULL if this entry is free */
    size_t stride;
    uint64_t offset; /* offset in the memfd; unused between threads */
} ls_shm_region;

/* The start of the payload of a call's first cell. Calls with the algorithm "cells" do not have it. */
typedef struct ls_shm_note {
    uint32_t far;    /* true if cache lines of the latest slots that this rank polled arrived slowly */
    uint32_t into;   /* reductions: region of the receive buffer, if the cell's region is not 0 */
    uint64_t offset; /* data movement: offset of the buffer in the rank's part of the cell's region */
} ls_shm_note;

typedef struct ls_shm ls_shm;

/* The next stage of a call. It runs after all ranks have taken this rank's latest step, and either ends the call or
 * posts a step. A failure ends the call. */
typedef ls_status ls_shm_stage(ls_shm *shm, bool *finished);

struct ls_shm {
    int rank;
    int size;
    bool part; /* created from another communicator by ls_comm_split */
    ls_shm_control *control;
    ls_shm_rank *ranks;
    ls_shm_cell *cells;   /* LS_SHM_CELLS per rank */
    unsigned char *slots; /* two per rank, of `slot` bytes */
    size_t slot;
    size_t mapped;
    int file; /* the memfd; -1 between threads */
    uint64_t timeout_ns;
    uint64_t spin_ns;
    ls_shm_sizes sizes[LS_OP_COUNT];
    const char *algorithm_name; /* of the latest call */
    int core;                   /* core of this rank, as published */
    unsigned oversubscribed;    /* 0, or the number of waits since this rank detected that it shares a core */

    unsigned long_yields;  /* consecutive waits with a long yield */
    unsigned waits_asleep; /* number of upcoming waits that do not yield: see ls_shm_yields */

    uint64_t step;    /* latest step that this rank has published */
    int seen;         /* ranks below this number are known to have published it, too */
    ls_awake waited;  /* time waited for the other ranks to publish it */
    uint64_t told_ns; /* time waited at the latest notice in the log, in nanoseconds */

    ls_call call;
    bool past_caches; /* slots of the call are written with stores that bypass the caches */
    ls_shm_stage *stage;
    size_t chunk;         /* elements per step */
    size_t done;          /* elements that are finished */
    size_t most;          /* size in bytes of the largest piece of the call */
    const void **sources; /* scratch: one pointer per rank */
    void **destinations;

    ls_shm_region *regions;
    int region_count;
    uint32_t last_region;
    uint64_t file_end; /* start of the next region; equal on all ranks */

    bool peer_reads; /* all ranks can read each other's memory */
    ls_shm_distance distance;
    uint64_t magic;        /* see ls_shm_rank */
    ls_shm_control *world; /* between threads: the world of this communicator */
    ls_shm_point point;
};

/* ---- segment.c, free_memory.c: memory ---------------------------------------------------------------------------- */

/* Returns the size in bytes of the shared memory for `size` ranks, and sets the addresses of its parts. */
size_t ls_shm_layout(ls_shm *shm, unsigned char *base);

/* Creates a memfd of `bytes` bytes that are all reserved, and that cannot shrink. */
ls_status ls_shm_file_create(const char *call, size_t bytes, int *file);

/* In free_memory.c: fails with LS_ERR_MEMORY if the machine or the cgroup has less free memory. */
ls_status ls_shm_check_memory(const char *call, size_t bytes);

/* Reserves [offset, offset + bytes) of the memfd. Fails with LS_ERR_MEMORY, never with a signal, if there is no room.
 */
ls_status ls_shm_file_reserve(const char *call, int file, uint64_t offset, size_t bytes);

/* Maps this range of the memfd, with all pages present. */
ls_status ls_shm_file_map(const char *call, int file, uint64_t offset, size_t bytes, unsigned char **base);

/* ---- share.c: passes the memfd from rank 0 to the others --------------------------------------------------------- */

/* The data with which other ranks connect to rank 0. */
typedef struct ls_shm_connect_request {
    char name[40];
    uint8_t secret[16];
} ls_shm_connect_request;

/* On rank 0: listens for this number of ranks. The caller closes the listener. */
ls_status ls_shm_share_listen(int ranks, ls_shm_connect_request *ticket, int *listener);

/* Pass the connect request through the store. */
ls_status ls_shm_share_announce(const ls_join_context *join, const ls_shm_connect_request *ticket);
ls_status ls_shm_share_find(const ls_join_context *join, ls_shm_connect_request *ticket);

/* On rank 0: passes the memory of `made` to all other ranks, and returns after each has confirmed. Fails if a rank
 * dies. The ranks are `ranks` of `parent`, or the ranks of the store if both are NULL. */
ls_status ls_shm_share_serve(const ls_join_context *join, const ls_shm_connect_request *ticket, int listener,
                             const ls_shm *made, const ls_shm *parent, const int *ranks);

/* On other ranks: receives the memory over a connection that stays open until they confirm. */
ls_status ls_shm_share_receive(const ls_join_context *join, const ls_shm_connect_request *from, int *connection,
                               int *file, size_t *bytes);

/* Reports to rank 0 whether this rank could map the memory (`status` and this thread's message), and closes the
 * connection. Fails if any rank could not map the memory. */
ls_status ls_shm_share_confirm(const ls_join_context *join, int connection, ls_status status);

/* ---- shm.c: joining; split.c: joining the ranks of another communicator ------------------------------------------ */

/* Create a state without shared memory, or free a state in any condition. */
ls_status ls_shm_make(const ls_join_context *join, ls_shm **shm);
void ls_shm_forget(ls_shm *shm);

/* On rank 0, creates the shared memory; on other ranks, gets it through the connect request. */
ls_status ls_shm_create(ls_shm *shm);
ls_status ls_shm_attach(ls_shm *shm, const ls_join_context *join, const ls_shm_connect_request *ticket);

/* Takes the first step, after which all ranks have published their data and choose how to wait and to read. */
ls_status ls_shm_settle_in(ls_shm *shm);

/* ---- sync.c: steps, waiting, failures ---------------------------------------------------------------------------- */

static inline ls_shm_cell *ls_shm_cell_at(const ls_shm *shm, int rank, uint64_t step) {
    return &shm->cells[LS_SHM_CELLS * (size_t)rank + step % LS_SHM_CELLS];
}

/* Returns this rank's cell for its next step. */
static inline ls_shm_cell *ls_shm_next_cell(const ls_shm *shm) {
    return ls_shm_cell_at(shm, shm->rank, shm->step + 1);
}

/* Returns the cell that `rank` published with the current step. */
static inline const ls_shm_cell *ls_shm_cell_of(const ls_shm *shm, int rank) {
    return ls_shm_cell_at(shm, rank, shm->step);
}

/* Divides a slot into `places` areas, after `taken` bytes that are in use. Returns the size in bytes of each area,
 * which is the part of a piece that passes through the slot in one step. It is a multiple of the cache line size if
 * possible. */
static inline size_t ls_shm_place(const ls_shm *shm, int places, size_t taken) {
    const size_t room = (shm->slot - taken) / (size_t)places;
    const size_t place = room < shm->sizes[shm->call.operation].chunk ? room : shm->sizes[shm->call.operation].chunk;
    return place < 64 ? place : place & ~(size_t)63;
}

/* Returns the slot of `rank` for `step`. */
static inline unsigned char *ls_shm_slot(const ls_shm *shm, int rank, uint64_t step) {
    return shm->slots + (2 * (size_t)rank + (step & 1)) * shm->slot;
}

/* Publishes the next step, with the data written for it. */
void ls_shm_post(ls_shm *shm);

/* Returns true if all ranks have published this rank's latest step. */
bool ls_shm_ready(ls_shm *shm);

/* Returns true if all ranks publish this rank's latest step, now or during a short wait. The wait lasts the time by
 * which concurrent ranks typically differ. */
bool ls_shm_meet(ls_shm *shm);

/* Waits until all ranks have published this rank's latest step. Fails if a rank died, left, or did not arrive within
 * the timeout. */
ls_status ls_shm_wait(ls_shm *shm);

/* Wakes `rank` if it is asleep. */
void ls_shm_wake(ls_shm *shm, int rank);

/* Returns true if the wait is over. */
typedef bool ls_shm_condition(ls_shm *shm, const void *context);

/*
 * If ranks share cores, a rank that waits for a rank on its own core yields at once, because that rank cannot run
 * otherwise. Other ranks are running now, or a different rank yields to them. It is cheaper to poll for these ranks
 * first, LS_SHM_YIELD_LOOKS times, than to switch to a process that is waiting too, and back. After LS_SHM_YIELDS
 * rounds, the rank sleeps.
 */
#define LS_SHM_YIELDS      16
#define LS_SHM_YIELD_LOOKS 64

/*
 * Returns how often a wait may yield; called once per wait. Returns 0 for a while after long yields in several
 * consecutive waits: then another program uses the core, and would get a scheduler time slice of several milliseconds
 * in every wait. A sleeping rank gets the core back when it is woken.
 */
unsigned ls_shm_yields(ls_shm *shm);

/* Yields. Returns false after a long yield; the caller then sleeps. Only the first long yield of a wait is counted
   (`*counted`). */
bool ls_shm_yield(ls_shm *shm, bool *counted);

/* Publish the core of this rank if it has changed, and return the latest core of `rank`. */
void ls_shm_tell_core(ls_shm *shm);

static inline int ls_shm_core_of(const ls_shm *shm, int rank) {
    return atomic_load_explicit(&shm->ranks[rank].core, memory_order_relaxed);
}

/* Sleeps until woken, but only for a short time. Does not sleep if a message can progress, or if `met` returns true. */
ls_status ls_shm_sleep(ls_shm *shm, ls_shm_condition *met, const void *context);

/* Revokes the communicator with this thread's error, caused by the exit or the failure of `failed_rank`, unless
 * another rank has already revoked it. Returns the status of the revocation. */
ls_status ls_shm_abort(ls_shm *shm, ls_status status, int failed_rank);

/* Same as ls_shm_abort, after a failed send or receive, which is not a call of all ranks. Notifies the other ranks that
 * this rank gave up, and why. This rank keeps its error. */
ls_status ls_shm_give_up(ls_shm *shm, ls_status status, int failed_rank);

/* Fails `call` because the rank has left or died. `more` is appended to the message. */
ls_status ls_shm_fail_left(ls_shm *shm, const ls_call *call, int rank, const char *more);

/* Returns true if the process of `rank` is alive: the kernel then still holds its lock. */
bool ls_shm_alive(const ls_shm *shm, int rank);

/* Returns true if the rank may have freed its buffers. This is not the case for a rank that waits in ls_finalize. */
static inline bool ls_shm_has_left(const ls_shm *shm, int rank) {
    const uint32_t left = atomic_load(&shm->ranks[rank].left);
    return left != LS_LEAVE_NONE &&
           (left != LS_LEAVE_FINALIZED || atomic_load(&shm->ranks[rank].sends) == LS_SHM_SENDS_WITHDRAWN);
}

/* Returns the reason why the rank makes no more calls, or LS_LEAVE_NONE. */
static inline ls_leave_reason ls_shm_left(const ls_shm *shm, int rank) {
    return (ls_leave_reason)atomic_load(&shm->ranks[rank].left);
}

/* Returns true if the rank waits in ls_finalize, and still sends messages that it began to send before. */
static inline bool ls_shm_sends_on(const ls_shm *shm, int rank) {
    return atomic_load(&shm->ranks[rank].sends) == LS_SHM_SENDS_QUEUED && ls_shm_alive(shm, rank);
}

/* Publishes which call this rank begins, for ranks that wait long for it. */
static inline void ls_shm_note_call(ls_shm *shm, const ls_call *call) {
    atomic_store_explicit(&shm->ranks[shm->rank].latest, call->sequence << 8 | (uint64_t)call->operation,
                          memory_order_relaxed);
}

/* Logs the ranks that this rank waits for if it has waited long enough (`waited_ns`). */
void ls_shm_tell_waiting(ls_shm *shm, const ls_call *call, const ls_rank_list *awaited, uint64_t waited_ns,
                         uint64_t *told_ns, const char *more);

/* Claims a cache line for writing, without waiting for it. The compiler's own write prefetch becomes a read prefetch
 * unless it may assume that the instruction exists; but every 64-bit processor accepts the instruction, at worst as
 * a no-op. */
static inline void ls_shm_claim(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* In copy.c: copies `bytes` bytes, which are part of a copy of `all` bytes, without memcpy's slow cases. If `all` is
 * at least LS_SHM_COPY_PAST_CACHE, it uses stores that bypass the caches, which could not hold the data and would
 * first have to read it. */
void ls_shm_copy(void *into, const void *from, size_t bytes, size_t all);

/* ---- distance.c: the distance between the cores ------------------------------------------------------------------ */

/* Before the first step of a call: publishes this rank's measurement in `cell`, and chooses how it writes its slots,
 * for pieces of up to `bytes` bytes. */
void ls_shm_tell_distance(ls_shm *shm, ls_shm_cell *cell, size_t bytes);

/* After the first step of a call through slots: occasionally measures the time to load lines that rank `from` has
 * written for this rank. The lines are `bytes` bytes at offset `at` in that rank's slot. This costs little, because
 * the data is needed soon. */
void ls_shm_look(ls_shm *shm, int from, size_t at, size_t bytes);

/* Afterwards, sets the number of following calls for which the cores are considered distant; the number is the same on
 * all ranks. `bytes` is the size of the largest piece on any rank. */
void ls_shm_learn_distance(ls_shm *shm, size_t bytes);

/* Returns true if the distance can matter to a call whose largest piece on any rank has `bytes` bytes. */
static inline bool ls_shm_minds_distance(const ls_shm *shm, size_t bytes) {
    return bytes > LS_SHM_FAR_LEAST || shm->sizes[shm->call.operation].past != LS_SHM_PAST_BY_DISTANCE;
}

/* Copies data into a slot of this rank. */
static inline void ls_shm_put(const ls_shm *shm, void *slot, const void *from, size_t bytes) {
    ls_shm_copy(slot, from, bytes, shm->past_caches ? SIZE_MAX : 0);
}

/* Does the same for data that only rank `to` reads. If that rank shares this rank's core, the data is in its caches. */
static inline void ls_shm_put_for(const ls_shm *shm, int to, void *slot, const void *from, size_t bytes) {
    const bool beside = shm->spin_ns == 0 && ls_shm_core_of(shm, to) == shm->core;
    ls_shm_copy(slot, from, bytes, shm->past_caches && !beside ? SIZE_MAX : 0);
}

/* ---- peer_read.c: reading from the memory of other ranks --------------------------------------------------------- */

/* Publish the address of this rank's test number, and test whether this rank can read the number of the next rank. */
void ls_shm_peer_read_offer(ls_shm *shm);
bool ls_shm_peer_read_probe(ls_shm *shm);

/* Copies `bytes` bytes at `address` in the memory of `rank`, for `call`. */
ls_status ls_shm_peer_read(ls_shm *shm, const ls_call *call, int rank, void *into, uint64_t address, size_t bytes);

/* After a failure: waits until no other thread reads from this rank's buffers. */
void ls_shm_peer_read_settle(const ls_shm *shm);

/* For callers that poll: fails in the same cases as ls_shm_wait, without waiting. */
ls_status ls_shm_check(ls_shm *shm);

static inline bool ls_shm_is_revoked(const ls_shm *shm) {
    return atomic_load(&shm->control->revoked) == LS_SHM_REVOKED;
}

/* Fails with the reason for the revocation if the communicator is revoked. Afterwards, as after ls_shm_abort, no
 * rank reads from this rank's buffers. */
ls_status ls_shm_sound(const ls_shm *shm);

/* Aborts with this thread's error, whose status is `status`, and keeps this error. The other ranks fail, too. See
 * ls_backend.abort. */
void ls_shm_resign(void *state, ls_status status, int failed_rank);

/* Records that this rank takes no further steps, and wakes the others. */
void ls_shm_leave(ls_shm *shm, ls_leave_reason reason);

/* Takes the lock that shows to the other ranks that this process is alive. */
ls_status ls_shm_vouch(ls_shm *shm);

/* Closes the memfd of a rank that has published its data, which releases its lock. */
void ls_shm_close_file(ls_shm *shm);

/* Publish the data of this rank and, after all ranks have done so, choose whether to spin. */
void ls_shm_introduce(ls_shm *shm);
void ls_shm_choose_spin(ls_shm *shm);

/* ---- agree.c: agreement on calls --------------------------------------------------------------------------------- */

/* Writes the properties that ranks must agree on into `cell`. */
void ls_shm_sign(ls_shm_cell *cell, const ls_call *call);

/* Begins a call: writes it into this rank's next cell, whose remaining fields the caller fills. Fails if the
 * communicator is revoked. */
ls_status ls_shm_declare(ls_shm *shm, const ls_call *call, ls_shm_cell **cell);

/* After the first step: fails with LS_ERR_MISMATCH and lists the calls, unless all ranks have declared the same call
 * as this rank, `call`. */
ls_status ls_shm_agree(const ls_shm *shm, const ls_call *call);

/* ---- cells.c: calls that fit into cells -------------------------------------------------------------------------- */

bool ls_shm_fits_cells(const ls_shm *shm, const ls_call *call);
ls_status ls_shm_begin_cells(void *state, const ls_call *call);
bool ls_shm_quick(void *state, const ls_call *call, ls_status *status);

/* ---- collectives.c, alloc.c -------------------------------------------------------------------------------------- */

ls_status ls_shm_broadcast(void *state, const ls_call *call);
ls_status ls_shm_reduce(void *state, const ls_call *call); /* allreduce too */
ls_status ls_shm_reduce_scatter(void *state, const ls_call *call);
ls_status ls_shm_progress(void *state, bool wait, bool *finished);

/* In exchange.c: executes calls that only move data between the buffers of the ranks. */
ls_status ls_shm_exchange(void *state, const ls_call *call);

/* The stage that ends a call. */
ls_status ls_shm_end(ls_shm *shm, bool *finished);

/* split.c */
ls_status ls_shm_split(void *state, const ls_join_context *join, const int *ranks, void **result);

ls_status ls_shm_alloc(void *state, size_t size, uint64_t sequence, void **memory);
void ls_shm_release(void *state, void *memory);

/* Between threads: allocates `bytes` zeroed bytes that `holders` ranks hold until each has released them. A rank
 * that fails before it learns of the memory never releases it; such memory is freed with the world. Returns NULL if
 * out of memory. */
void *ls_shm_lend(const ls_shm *shm, int holders, size_t bytes);
void ls_shm_let_go(void *memory, int holders);

/* The memory of a world of threads lives as long as it has holders, because allocations in it may outlive
 * ls_run_threads. */
ls_shm_control *ls_shm_hold_world(ls_shm_control *world);
void ls_shm_drop_world(ls_shm_control *world);

/* Returns the region in which this rank's part contains all `bytes` bytes at `memory`, or NULL. */
const ls_shm_region *ls_shm_region_find(const ls_shm *shm, const void *memory, size_t bytes);

/* Returns the region with this id; NULL if the id is 0, or if this rank has freed the region. */
const ls_shm_region *ls_shm_region_of(const ls_shm *shm, uint32_t id);

/* Return the region that contains the buffers of all ranks, according to their cells, or NULL; and return whether
 * any rank's buffers are in a region. */
const ls_shm_region *ls_shm_region_common(const ls_shm *shm);
bool ls_shm_region_any(const ls_shm *shm);

/*
 * Returns the address of `bytes` bytes at `offset` in a rank's part of the region. If the range is not within the part,
 * revokes the communicator with LS_ERR_PEER and returns NULL: any rank can corrupt shared memory.
 */
unsigned char *ls_shm_region_at(ls_shm *shm, const ls_shm_region *region, int rank, uint64_t offset, size_t bytes);

/* Frees a region. Does nothing if its entry is free. */
void ls_shm_region_free(ls_shm *shm, ls_shm_region *region);

#endif
