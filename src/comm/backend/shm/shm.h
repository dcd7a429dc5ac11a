/*
 * shm: ranks of one machine over shared memory; between processes a memfd (no name, so nothing can be left behind),
 * between the threads of ls_run_threads ordinary memory, with the same code.
 *
 * How it works. All ranks go through the same sequence of steps. To take step k a rank writes its cell and its slot of
 * step k and publishes k in the cell (ls_shm_post); when all ranks have published k (ls_shm_wait), each may read what
 * the others wrote for k. A rank writes for k + 2 only when all have published k + 1, thus finished reading k: two
 * slots a rank are enough, for ever and for any mix of calls, and so would two cells be (LS_SHM_CELLS says why there
 * are more). The one rule for all code here:
 *
 *     what is published with step k lies in the cell k % LS_SHM_CELLS and the slot k & 1, and is read only between
 *     waiting for k and posting k + 1
 *
 * The first step of every call carries what ranks must agree on in the same cache line as the step itself, so checking
 * it costs a comparison.
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

/* Cells of a rank. Two would do; with four, the one for the next step has long been read by all when a step is posted,
 * so that its line can be claimed at once without a tug-of-war. */
#define LS_SHM_CELLS 4

/* What one rank publishes with one step. The payload's first bytes share the cache line of the step. */
typedef struct ls_shm_cell {
    _Alignas(128) _Atomic uint64_t step;
    uint64_t signature; /* operation, dtype, reduction, root */
    uint64_t count;
    uint32_t sequence; /* lower half of the call's number */
    uint32_t region;   /* ls_comm_alloc's memory that the buffers lie in; 0: none */
    uint64_t send;     /* their offsets in the rank's part of that memory */
    uint64_t receive;
    unsigned char payload[LS_SHM_PAYLOAD];
} ls_shm_cell;

/* What others need to know of a rank. */
typedef struct ls_shm_rank {
    _Alignas(128) _Atomic uint32_t left; /* an ls_leave_reason: it makes no more calls */
    int32_t process;
    _Atomic int32_t core;    /* that it ran on when it waited last */
    _Atomic uint32_t asleep; /* or about to be */
    uint64_t process_space;  /* the inode of its PID namespace: process numbers mean something only within one */
    uint64_t magic;          /* the address of a number that shows whether others can read its memory */
    _Alignas(
        64) _Atomic uint64_t latest; /* call that it began: 256 times its number, and its operation; 0: it made none */
    _Atomic uint64_t awaited;        /* message: 2^32 times its sender + 1, and its tag, where it is late; 0: none */
    _Atomic uint32_t reading;        /* between threads: it reads the memory of others */
    uint32_t peer_reads;             /* it can read from the memory of others */
    _Atomic int32_t file;            /* its descriptor of the memfd and 1; negative: it has ended; 0: none is open */
    uint64_t sizes;                  /* a hash of its sizes below */
    cpu_set_t cores;
    _Alignas(64) _Atomic uint32_t answers[LS_SHM_ANNOUNCED]; /* to the messages it has announced, see point.h */
} ls_shm_rank;

enum { LS_SHM_SOUND = 0, LS_SHM_BEING_REVOKED, LS_SHM_REVOKED };

/* The head of the shared memory. */
typedef struct ls_shm_control {
    _Alignas(128) _Atomic uint32_t sleepers; /* ranks asleep, or about to be: whoever posts must look */
    _Atomic uint32_t revoked;
    _Alignas(128) _Atomic uint32_t wake; /* the futex word; changes whenever sleepers are to look again */
    _Alignas(128) uint32_t failure;      /* an ls_status, once revoked */
    int32_t failed_rank;                 /* the rank whose end, or whose failure, it is */
    struct ls_shm_lent *lent;            /* of a world of threads: memory of some ranks, see ls_shm_lend */
    atomic_int holders;                  /* of a world of threads: states in it, and ls_run_threads */
    char message[LS_ERROR_CAPACITY];
} ls_shm_control;

/* One ls_comm_alloc: `stride` bytes per rank, one rank's part after the other. */
typedef struct ls_shm_region {
    uint32_t id;
    unsigned char *base; /* rank 0's part; NULL: this entry is free */
    size_t stride;
    uint64_t offset; /* in the memfd; unused between threads */
} ls_shm_region;

/* The payload of the first cell of a call that does not go in cells begins with this. */
typedef struct ls_shm_note {
    uint32_t far;    /* lines of the latest slots this rank looked at were slow to come */
    uint32_t into;   /* of a reduction: the region of the buffer that is received into, where the cell has a region */
    uint64_t offset; /* of a move: where its buffer begins, in the rank's part of the cell's region */
} ls_shm_note;

typedef struct ls_shm ls_shm;

/* The next part of a call, run when all ranks have taken this rank's latest step. Ends the call, as its failure does,
 * or posts a step. */
typedef ls_status ls_shm_stage(ls_shm *shm, bool *finished);

struct ls_shm {
    int rank;
    int size;
    bool part; /* it was split from another */
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
    const char *algorithm_name; /* how the latest call travelled, see ls_backend */
    int core;                   /* that this rank has told the others it runs on */
    unsigned
        oversubscribed; /* 0, or how often this rank has waited since it found that it shares a core with another */

    unsigned long_yields;  /* waits in a row with a yield that took a whole slice */
    unsigned waits_asleep; /* so many next waits do not yield, see ls_shm_yields */

    uint64_t step;    /* the latest this rank has published */
    int seen;         /* ranks before this one are known to have published it too */
    ls_awake waited;  /* for the other ranks to publish it */
    uint64_t told_ns; /* nanoseconds waited at the latest notice in the log */

    ls_call call;
    bool past_caches; /* its slots are written past the caches */
    ls_shm_stage *stage;
    size_t chunk;         /* elements that travel together */
    size_t done;          /* elements that have gone through the pipeline */
    size_t most;          /* bytes of the largest piece of the call */
    const void **sources; /* scratch: one pointer per rank */
    void **destinations;

    ls_shm_region *regions;
    int region_count;
    uint32_t last_region;
    uint64_t file_end; /* where the next region begins: all ranks count alike */

    bool peer_reads; /* all ranks can read straight from each other's memory */
    ls_shm_distance distance;
    uint64_t magic;        /* see ls_shm_rank */
    ls_shm_control *world; /* between threads: of the world this is a part of */
    ls_shm_point point;
};

/* ---- segment.c, free_memory.c: memory
 * ---------------------------------------------------------------------------------------- */

/* Bytes of shared memory for `size` ranks, and where its parts are. */
size_t ls_shm_layout(ls_shm *shm, unsigned char *base);

/* A new memfd of `bytes`, all reserved, that cannot shrink. */
ls_status ls_shm_file_create(const char *call, size_t bytes, int *file);

/* free_memory.c: LS_ERR_MEMORY when the machine or the control group cannot spare so many bytes. */
ls_status ls_shm_check_memory(const char *call, size_t bytes);

/* Reserves [offset, offset + bytes) of the memfd. LS_ERR_MEMORY, never a signal, when there is no room. */
ls_status ls_shm_file_reserve(const char *call, int file, uint64_t offset, size_t bytes);

/* Maps that part of the memfd, all pages present. */
ls_status ls_shm_file_map(const char *call, int file, uint64_t offset, size_t bytes, unsigned char **base);

/* ---- share.c: how the memfd gets from rank 0 to the others ------------------------------------------------------- */

/* Where rank 0 can be met; travels to the others. */
typedef struct ls_shm_ticket {
    char name[40];
    unsigned char secret[16];
} ls_shm_ticket;

/* Rank 0: listens for so many. The listener is the caller's. */
ls_status ls_shm_share_listen(int ranks, ls_shm_ticket *ticket, int *listener);

/* The ticket goes through the store. */
ls_status ls_shm_share_announce(const ls_join_context *join, const ls_shm_ticket *ticket);
ls_status ls_shm_share_find(const ls_join_context *join, ls_shm_ticket *ticket);

/* Rank 0: hands the memory of `made` to all other ranks and returns when each has confirmed; fails when one of them
 * dies. They are `ranks` of `parent`; where both are NULL, those of the store. */
ls_status ls_shm_share_serve(const ls_join_context *join, const ls_shm_ticket *ticket, int listener, const ls_shm *made,
                             const ls_shm *parent, const int *ranks);

/* The others: receive it over a connection that stays open until confirmed. */
ls_status ls_shm_share_receive(const ls_join_context *join, const ls_shm_ticket *from, int *connection, int *file,
                               size_t *bytes);

/* Tells rank 0 whether this rank could map it (`status` and this thread's message), closes the connection and returns
 * whether everybody could. */
ls_status ls_shm_share_confirm(const ls_join_context *join, int connection, ls_status status);

/* ---- shm.c: joining, and split.c, which joins the ranks of another communicator ---------------------------------- */

/* A state without shared memory, and its end, in whatever condition it is. */
ls_status ls_shm_make(const ls_join_context *join, ls_shm **shm);
void ls_shm_forget(ls_shm *shm);

/* Rank 0 makes the shared memory, and serves it; the others get it from the one who gave the ticket. */
ls_status ls_shm_create(ls_shm *shm);
ls_status ls_shm_attach(ls_shm *shm, const ls_join_context *join, const ls_shm_ticket *ticket);

/* The first step: all ranks have introduced themselves, and decide how to wait and to read. */
ls_status ls_shm_settle_in(ls_shm *shm);

/* ---- sync.c: steps, waiting, failures ------------------------------------------------------------------------- */

static inline ls_shm_cell *ls_shm_cell_at(const ls_shm *shm, int rank, uint64_t step) {
    return &shm->cells[LS_SHM_CELLS * (size_t)rank + step % LS_SHM_CELLS];
}

/* This rank's cell for the step it will post next. */
static inline ls_shm_cell *ls_shm_next_cell(const ls_shm *shm) {
    return ls_shm_cell_at(shm, shm->rank, shm->step + 1);
}

/* The cell that `rank` published with the current step. */
static inline const ls_shm_cell *ls_shm_cell_of(const ls_shm *shm, int rank) {
    return ls_shm_cell_at(shm, rank, shm->step);
}

/* Bytes of each of so many places in a slot, in which that much of a piece goes in one step; whole lines where it can.
 * `taken` bytes of the slot are used otherwise. */
static inline size_t ls_shm_place(const ls_shm *shm, int places, size_t taken) {
    const size_t room = (shm->slot - taken) / (size_t)places;
    const size_t place = room < shm->sizes[shm->call.operation].chunk ? room : shm->sizes[shm->call.operation].chunk;
    return place < 64 ? place : place & ~(size_t)63;
}

/* The slot of `rank` for `step`. */
static inline unsigned char *ls_shm_slot(const ls_shm *shm, int rank, uint64_t step) {
    return shm->slots + (2 * (size_t)rank + (step & 1)) * shm->slot;
}

/* Publishes the next step, with whatever was written for it. */
void ls_shm_post(ls_shm *shm);

/* Whether all ranks have published this rank's latest step. */
bool ls_shm_ready(ls_shm *shm);

/* Whether they have, or do so within a moment: not longer than ranks that run side by side are apart. */
bool ls_shm_meet(ls_shm *shm);

/* Returns when they have; fails when a rank died, left, or stayed away for the timeout. */
ls_status ls_shm_wait(ls_shm *shm);

/* Wakes `rank`, if it sleeps: there is something for it. */
void ls_shm_wake(ls_shm *shm, int rank);

/* What a rank waits for. */
typedef bool ls_shm_condition(ls_shm *shm, const void *context);

/*
 * Where ranks share cores, who waits for one that was last seen on its own core yields at once: it cannot come before.
 * Others run now, or another rank yields to them; to wait for them first, so many looks, costs less than a switch to a
 * process that waits as well, and back. Either way so often before it sleeps.
 */
#define LS_SHM_YIELDS      16
#define LS_SHM_YIELD_LOOKS 64

/*
 * How often a wait may yield, asked once in it. Not at all for a while after yields in several waits in a row took a
 * whole slice of the scheduler: another program has the core, and would get a slice, milliseconds, in every wait. Who
 * sleeps instead gets the core back when it is woken.
 */
unsigned ls_shm_yields(ls_shm *shm);

/* Yields; whether the core came back soon. If not, the caller sleeps; the first time in a wait it is *counted. */
bool ls_shm_yield(ls_shm *shm, bool *counted);

/* Tells the others which core this rank runs on, when that has changed; and where `rank` was seen last. */
void ls_shm_tell_core(ls_shm *shm);

static inline int ls_shm_core_of(const ls_shm *shm, int rank) {
    return atomic_load_explicit(&shm->ranks[rank].core, memory_order_relaxed);
}

/* Sleeps until it is woken, for a short while at most; not at all when a message can move or `met` says so. */
ls_status ls_shm_sleep(ls_shm *shm, ls_shm_condition *met, const void *context);

/* Makes this thread's error, which the end of rank `failed_rank` or its failure has caused, that of all ranks, unless
 * another rank was first. Returns what now holds. */
ls_status ls_shm_abort(ls_shm *shm, ls_status status, int failed_rank);

/* Fails `call` because the rank has left or died; `more` ends the sentence. */
ls_status ls_shm_fail_left(ls_shm *shm, const ls_call *call, int rank, const char *more);

/* Whether the kernel vouches for the process of `rank`. */
bool ls_shm_alive(const ls_shm *shm, int rank);

/* Whether it may have given its buffers back: who waits in ls_finalize has not. */
static inline bool ls_shm_has_left(const ls_shm *shm, int rank) {
    const uint32_t left = atomic_load(&shm->ranks[rank].left);
    return left != LS_LEAVE_NONE && left != LS_LEAVE_FINALIZED;
}

/* Why it makes no more calls, if it does not. */
static inline ls_leave_reason ls_shm_left(const ls_shm *shm, int rank) {
    return (ls_leave_reason)atomic_load(&shm->ranks[rank].left);
}

/* Notes which call this rank begins, for others that wait for it long. */
static inline void ls_shm_note_call(ls_shm *shm, const ls_call *call) {
    atomic_store_explicit(&shm->ranks[shm->rank].latest, call->sequence << 8 | (uint64_t)call->operation,
                          memory_order_relaxed);
}

/* Tells the log whom this rank waits for, when that has lasted long enough: `waited_ns` already. */
void ls_shm_tell_waiting(ls_shm *shm, const ls_call *call, const ls_rank_list *awaited, uint64_t waited_ns,
                         uint64_t *told_ns, const char *more);

/* Brings a cache line here to be written, without waiting for it. The compiler's own prefetch for writing is one for
 * reading wherever it must not assume the instruction; but every 64-bit processor takes it, if only as nothing. */
static inline void ls_shm_claim(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* copy.c: memcpy, without what is slow in it, of a part of so many bytes in all. From LS_SHM_COPY_PAST_CACHE in all
 * what is written does not go through the caches, which could not hold it and would first have to read it. */
void ls_shm_copy(void *into, const void *from, size_t bytes, size_t all);

/* ---- distance.c: how far the cores are from each other ----------------------------------------------------------- */

/* Before the first step of a call: tells the others in `cell` what this rank found, and chooses how it writes its
 * slots, for pieces of up to so many bytes. */
void ls_shm_tell_distance(ls_shm *shm, ls_shm_cell *cell, size_t bytes);

/* After it, where the call goes through slots: looks now and then how long the lines take to come that rank `from` has
 * put for this one, `bytes` at `at` in its slot; as they are wanted soon, that costs little. */
void ls_shm_look(ls_shm *shm, int from, size_t at, size_t bytes);

/* And then counts, alike on all ranks, for how many calls more the cores are taken to be far from each other. The call
 * has pieces of up to so many bytes on any rank. */
void ls_shm_learn_distance(ls_shm *shm, size_t bytes);

/* Whether any of this can matter to a call whose largest piece, on any rank, has so many bytes. */
static inline bool ls_shm_minds_distance(const ls_shm *shm, size_t bytes) {
    return bytes > LS_SHM_FAR_LEAST || shm->sizes[shm->call.operation].past != LS_SHM_PAST_BY_DISTANCE;
}

/* Copies into a slot of this rank. */
static inline void ls_shm_put(const ls_shm *shm, void *slot, const void *from, size_t bytes) {
    ls_shm_copy(slot, from, bytes, shm->past_caches ? SIZE_MAX : 0);
}

/* The same for what only `to` takes: one that shares this rank's core finds it in the caches. */
static inline void ls_shm_put_for(const ls_shm *shm, int to, void *slot, const void *from, size_t bytes) {
    const bool beside = shm->spin_ns == 0 && ls_shm_core_of(shm, to) == shm->core;
    ls_shm_copy(slot, from, bytes, shm->past_caches && !beside ? SIZE_MAX : 0);
}

/* ---- peer_read.c: reading from the memory of other ranks
 * ---------------------------------------------------------------
 */

/* Shows where to look for this rank's number; says whether this rank finds that of the next rank. */
void ls_shm_peer_read_offer(ls_shm *shm);
bool ls_shm_peer_read_probe(ls_shm *shm);

/* Copies `bytes` at `address` in the memory of `rank`, for `call`. */
ls_status ls_shm_peer_read(ls_shm *shm, const ls_call *call, int rank, void *into, uint64_t address, size_t bytes);

/* After a failure: returns when no other thread reads from this rank's buffers any more. */
void ls_shm_peer_read_settle(const ls_shm *shm);

/* For callers that poll: fails as ls_shm_wait would, without waiting. */
ls_status ls_shm_check(ls_shm *shm);

static inline bool ls_shm_is_revoked(const ls_shm *shm) {
    return atomic_load(&shm->control->revoked) == LS_SHM_REVOKED;
}

/* Fails with the reason of the rank that revoked the communicator, if one has. Then, as after ls_shm_abort, nobody
 * reads from this rank's buffers any more. */
ls_status ls_shm_sound(const ls_shm *shm);

/* This rank can go on no more, with this thread's error of `status`, which it keeps: the others fail, too. */
void ls_shm_resign(void *state, ls_status status);

/* Marks this rank as one that will take no further step and wakes the others. */
void ls_shm_leave(ls_shm *shm, ls_leave_reason reason);

/* Takes the lock by which the others know that this process lives. */
ls_status ls_shm_vouch(ls_shm *shm);

/* Closes the memfd, for a rank that has introduced itself; the lock goes with it. */
void ls_shm_close_file(ls_shm *shm);

/* Notes who this rank is and, once all have, decides whether to spin. */
void ls_shm_introduce(ls_shm *shm);
void ls_shm_choose_spin(ls_shm *shm);

/* ---- agree.c: what ranks must agree on -------------------------------------------------------------------------- */

/* Writes it into `cell`. */
void ls_shm_sign(ls_shm_cell *cell, const ls_call *call);

/* Begins a call: writes it into this rank's next cell, which may then be filled. Fails when the communicator was
 * revoked meanwhile. */
ls_status ls_shm_declare(ls_shm *shm, const ls_call *call, ls_shm_cell **cell);

/* After the first step: LS_ERR_MISMATCH, saying who called what, unless all ranks declared the same as this one, which
 * is `call`. */
ls_status ls_shm_agree(const ls_shm *shm, const ls_call *call);

/* ---- cells.c: calls that fit the cells --------------------------------------------------------------------------- */

bool ls_shm_fits_cells(const ls_shm *shm, const ls_call *call);
ls_status ls_shm_begin_cells(void *state, const ls_call *call);
bool ls_shm_quick(void *state, const ls_call *call, ls_status *status);

/* ---- collectives.c, alloc.c ------------------------------------------------------------------------------------- */

ls_status ls_shm_broadcast(void *state, const ls_call *call);
ls_status ls_shm_reduce(void *state, const ls_call *call); /* allreduce too */
ls_status ls_shm_reduce_scatter(void *state, const ls_call *call);
ls_status ls_shm_progress(void *state, bool wait, bool *finished);

/* exchange.c: every call that only moves data between the ranks' buffers. */
ls_status ls_shm_exchange(void *state, const ls_call *call);

/* A stage that ends a call. */
ls_status ls_shm_end(ls_shm *shm, bool *finished);

/* split.c */
ls_status ls_shm_split(void *state, const ls_join_context *join, const int *ranks, void **result);

ls_status ls_shm_alloc(void *state, size_t size, uint64_t sequence, void **memory);
void ls_shm_release(void *state, void *memory);

/* Between threads: `bytes`, cleared, that so many ranks hold until each has let go of them; whoever fails on its way
 * may never learn of them, so that what is left goes with the world, when no thread uses it any more. NULL: no memory.
 */
void *ls_shm_lend(const ls_shm *shm, int holders, size_t bytes);
void ls_shm_let_go(void *memory, int holders);

/* The memory of a world of threads is there for as long as somebody holds it: what was allocated in it may outlive
 * ls_run_threads. */
ls_shm_control *ls_shm_hold_world(ls_shm_control *world);
void ls_shm_drop_world(ls_shm_control *world);

/* The region of this rank that holds all `bytes` at `memory` in its own part; NULL: none. */
const ls_shm_region *ls_shm_region_find(const ls_shm *shm, const void *memory, size_t bytes);

/* The region that has this id on all ranks; NULL: it is 0, or this rank has given that region back. */
const ls_shm_region *ls_shm_region_of(const ls_shm *shm, uint32_t id);

/* The region in which all ranks' cells say that their buffers lie; NULL: there is none. And whether any rank's do in
 * any. */
const ls_shm_region *ls_shm_region_common(const ls_shm *shm);
bool ls_shm_region_any(const ls_shm *shm);

/*
 * The `bytes` that a rank says it has `offset` bytes into its part of the region. NULL and LS_ERR_PEER, which ends the
 * communicator, when that is not so: any rank can damage memory that all share.
 */
unsigned char *ls_shm_region_at(ls_shm *shm, const ls_shm_region *region, int rank, uint64_t offset, size_t bytes);

/* Gives back one region, or none if its entry is free. */
void ls_shm_region_free(ls_shm *shm, ls_shm_region *region);

#endif
