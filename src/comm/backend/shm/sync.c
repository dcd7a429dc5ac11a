#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/backend/shm/shm.h"

#define SPIN_NS         ((uint64_t)100000)   /* spin time if every rank has a core: longer than a sleep and a wake-up */
#define LOOK_NS         ((uint64_t)20000000) /* how often a waiting rank checks whether the other ranks are alive */
#define SHORT_SLEEP_NS  ((uint64_t)50000)
#define LONG_SPIN_EVERY 64
/* After this number of consecutive waits with a long yield, waits do not yield for a while; the next constants
 * determine for how many waits. */
#define MOST_LONG_YIELDS 4
#define FEWEST_ASLEEP    64U
#define DOUBLINGS        5
#define PAUSES_PER_LOOK  64  /* polls between reads of the clock */
#define EAGER_LOOKS      128 /* polls in the first phase, about as long as concurrent ranks differ */
#define LOOK_BACKOFFS    4   /* between them */

/* Delay before the first poll. Polling too early takes the other ranks' cells from their cores, which costs two
 * transfers; a short delay costs at most that. */
#define FIRST_BACKOFFS 3

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Returns the bit by which the kernel distinguishes sleeping ranks. */
static uint32_t bit_of(int rank) {
    return UINT32_C(1) << (rank % 32);
}

static ls_futex futex_of(const ls_shm *shm) {
    return (ls_futex){.word = &shm->control->wake, .shared = shm->file >= 0};
}

/* Wakes the sleeping ranks in the mask `bits`. */
static void wake(const ls_shm *shm, uint32_t bits) {
    const ls_futex futex = futex_of(shm);
    ls_futex_wake(&futex, bits);
}

void ls_shm_wake(ls_shm *shm, int rank) {
    if (atomic_load(&shm->control->sleepers) != 0 && atomic_load(&shm->ranks[rank].asleep) != 0) {
        wake(shm, bit_of(rank));
    }
}

void ls_shm_post(ls_shm *shm) {
    const uint64_t step = shm->step + 1;
    /*
     * The store is sequentially consistent with the counter of sleepers: either a rank that falls asleep sees this
     * step, or this rank sees the sleeper. If several ranks post, the last one sees the steps of all, and wakes the
     * sleepers.
     */
    atomic_store(&ls_shm_cell_at(shm, shm->rank, step)->step, step);
    /* The other ranks no longer use the next cell, so it can be transferred to this core in the meantime. */
    ls_shm_claim(ls_shm_cell_at(shm, shm->rank, step + 1));
    shm->step = step;
    shm->seen = 0;
    shm->waited = (ls_awake){0};
    if (atomic_load(&shm->control->sleepers) != 0 && ls_shm_ready(shm)) {
        wake(shm, LS_FUTEX_ALL);
    }
}

bool ls_shm_ready(ls_shm *shm) {
    while (shm->seen < shm->size) {
        if (atomic_load(&ls_shm_cell_at(shm, shm->seen, shm->step)->step) != shm->step) {
            return false;
        }
        shm->seen++;
    }
    return true;
}

/* Returns true if `rank` has published the current step. For the slow path. */
static bool came(const ls_shm *shm, int rank) {
    return atomic_load(&ls_shm_cell_at(shm, rank, shm->step)->step) == shm->step;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Returns the failure again, after waiting until no rank reads this rank's buffers: a caller that gets this result
 * may free them. */
static ls_status repeat_failure(const ls_shm *shm) {
    char message[LS_ERROR_CAPACITY];
    const uint32_t failure = shm->control->failure;
    const ls_status status = failure > LS_OK && failure <= LS_ERR_INTERNAL ? (ls_status)failure : LS_ERR_PEER;
    ls_shm_peer_read_settle(shm);
    snprintf(message, sizeof message, "%.*s", (int)sizeof message - 1, shm->control->message);
    ls_error_restore(status, message);
    return status;
}

ls_status ls_shm_sound(const ls_shm *shm) {
    return !ls_shm_is_revoked(shm) ? LS_OK : repeat_failure(shm);
}

ls_status ls_shm_abort(ls_shm *shm, ls_status status, int failed_rank) {
    ls_shm_control *control = shm->control;
    uint32_t sound = LS_SHM_SOUND;
    if (atomic_compare_exchange_strong(&control->revoked, &sound, LS_SHM_BEING_REVOKED)) {
        control->failure = (uint32_t)status;
        control->failed_rank = failed_rank;
        memcpy(control->message, ls_error_message(), sizeof control->message);
        atomic_store(&control->revoked, LS_SHM_REVOKED);
        wake(shm, LS_FUTEX_ALL);
        ls_shm_peer_read_settle(shm);
        return status;
    }
    /* The other rank is about to write its reason. If it dies before that, this rank's own reason is used. */
    const uint64_t deadline = ls_clock_ns() + LOOK_NS;
    while (!ls_shm_is_revoked(shm)) {
        if (ls_clock_ns() > deadline) {
            return status;
        }
        ls_spin_pause();
    }
    return repeat_failure(shm);
}

/* Sets this thread's error to `message`, and inserts after the name of the call that this rank gave up. */
static void say_gave_up(const ls_shm *shm, ls_status status, const char *message) {
    const char *reason = strstr(message, ": ");
    const int call = reason != NULL ? (int)(reason - message) : 0;
    (void)ls_fail(status, "%.*s%srank %d (process %d) gave up: %s", call, message, call != 0 ? ": " : "", shm->rank,
                  (int)shm->ranks[shm->rank].process, call != 0 ? reason + 2 : message);
}

ls_status ls_shm_give_up(ls_shm *shm, ls_status status, int failed_rank) {
    char message[LS_ERROR_CAPACITY];
    memcpy(message, ls_error_message(), sizeof message);
    say_gave_up(shm, status, message);
    const uint32_t errors = ls_error_count;
    status = ls_shm_abort(shm, status, failed_rank);
    if (ls_error_count == errors) { /* otherwise another rank has failed first */
        ls_error_restore(status, message);
    }
    return status;
}

void ls_shm_resign(void *state, ls_status status, int failed_rank) {
    ls_shm *shm = state;
    char message[LS_ERROR_CAPACITY];
    memcpy(message, ls_error_message(), sizeof message);
    if (failed_rank != shm->rank) {
        (void)ls_shm_abort(shm, status, failed_rank);
        ls_error_restore(status, message);
        return;
    }
    say_gave_up(shm, LS_ERR_PEER, message);
    (void)ls_shm_abort(shm, LS_ERR_PEER, shm->rank);
    ls_error_restore(status, message);
}

ls_status ls_shm_vouch(ls_shm *shm) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = shm->rank, .l_len = 1};
    if (fcntl(shm->file, F_SETLK, &lock) != 0) {
        return ls_fail(LS_ERR_IO, "ls_comm_open: cannot lock shared memory: %s", strerror(errno));
    }
    return LS_OK;
}

static bool same_process(const ls_shm_rank *a, const ls_shm_rank *b) {
    return a->process == b->process && a->process_space == b->process_space;
}

/*
 * A process loses all its locks on a file as soon as it closes any descriptor of the file, and several ranks may be
 * threads of one process. Therefore the last of these ranks closes the descriptors of all.
 */
void ls_shm_close_file(ls_shm *shm) {
    ls_shm_rank *self = &shm->ranks[shm->rank];
    atomic_store(&self->file, -(shm->file + 1));
    for (int rank = 0; rank < shm->size; rank++) {
        if (same_process(&shm->ranks[rank], self) && atomic_load(&shm->ranks[rank].file) > 0) {
            return;
        }
    }
    for (int rank = 0; rank < shm->size; rank++) {
        const int ended = same_process(&shm->ranks[rank], self) ? atomic_exchange(&shm->ranks[rank].file, 0) : 0;
        if (ended != 0) {
            close(-ended - 1);
        }
    }
}

/*
 * Uses a record lock to detect whether the rank is alive: its process holds the lock on byte `rank` of the memfd until
 * it exits, however it exits. Unlike a PID, a lock never passes to a later process and is visible across containers.
 * Unlike a socket, it is not kept open by children of the rank.
 */
bool ls_shm_alive(const ls_shm *shm, int rank) {
    if (shm->file < 0 || same_process(&shm->ranks[rank], &shm->ranks[shm->rank])) {
        return true;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(shm->file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

ls_status ls_shm_fail_left(ls_shm *shm, const ls_call *call, int rank, const char *more) {
    char name[64];
    const ls_leave_reason reason = ls_shm_left(shm, rank);
    ls_call_describe(call->operation, call->sequence, name, sizeof name);
    if (reason == LS_LEAVE_FINALIZED) {
        (void)ls_fail(LS_ERR_PEER, "%s: rank %d %s%s", name, rank, ls_leave_describe(reason), more);
    } else {
        (void)ls_fail(LS_ERR_PEER, "%s: rank %d (process %d) %s%s", name, rank, (int)shm->ranks[rank].process,
                      reason == LS_LEAVE_NONE ? "died" : ls_leave_describe(reason), more);
    }
    return ls_shm_abort(shm, LS_ERR_PEER, reason == LS_LEAVE_FINALIZED ? shm->rank : rank);
}

static ls_rank_list list_late(const ls_shm *shm) {
    ls_rank_list late = {.count = 0};
    for (int rank = 0; rank < shm->size; rank++) {
        if (!came(shm, rank)) {
            ls_rank_list_add(&late, rank);
        }
    }
    return late;
}

static ls_status fail_late(ls_shm *shm, const ls_rank_list *late) {
    char call[64];
    ls_call_describe(shm->call.operation, shm->call.sequence, call, sizeof call);
    (void)ls_fail(LS_ERR_TIMEOUT, "%s: %s did not make this call within %g s", call, late->text,
                  (double)shm->timeout_ns * 1e-9);
    return ls_shm_abort(shm, LS_ERR_TIMEOUT, late->first);
}

void ls_shm_tell_waiting(ls_shm *shm, const ls_call *call, const ls_rank_list *awaited, uint64_t waited_ns,
                         uint64_t *told_ns, const char *more) {
    const uint64_t latest = atomic_load_explicit(&shm->ranks[awaited->first].latest, memory_order_relaxed);
    ls_comm_tell_waiting(&(ls_waiting){.call = call,
                                       .awaited = awaited,
                                       .waited_ns = waited_ns,
                                       .told_ns = told_ns,
                                       .more = more,
                                       .knows_latest = true,
                                       .latest = (ls_operation)(latest & 255),
                                       .latest_sequence = latest >> 8});
}

/* Checks for reasons to fail: a revoked communicator, a missing rank that has exited, or the timeout. */
static ls_status look(ls_shm *shm) {
    LS_TRY(ls_shm_sound(shm));
    LS_TRY(ls_call_check_threads(&shm->call));
    for (int rank = shm->seen; rank < shm->size; rank++) {
        if (came(shm, rank)) {
            continue;
        }
        const bool left = ls_shm_left(shm, rank) != LS_LEAVE_NONE;
        if ((left || !ls_shm_alive(shm, rank)) &&
            !came(shm, rank)) { /* the rank may have arrived just before leaving */
            return ls_shm_fail_left(shm, &shm->call, rank, "");
        }
    }
    const ls_rank_list late = list_late(shm);
    if (late.count == 0) {
        return LS_OK;
    }
    ls_shm_tell_waiting(shm, &shm->call, &late, shm->waited.ns, &shm->told_ns, "");
    return shm->waited.ns > shm->timeout_ns ? fail_late(shm, &late) : LS_OK;
}

ls_status ls_shm_check(ls_shm *shm) {
    const uint64_t now = ls_clock_ns();
    if (shm->waited.polled_ns != 0 && now - shm->waited.polled_ns < LOOK_NS) {
        return LS_OK;
    }
    (void)ls_awake_poll(&shm->waited, now);
    return look(shm);
}

void ls_shm_leave(ls_shm *shm, ls_leave_reason reason) {
    atomic_store(&shm->ranks[shm->rank].left, (uint32_t)reason);
    wake(shm, LS_FUTEX_ALL);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

void ls_shm_tell_core(ls_shm *shm) {
    const int core = sched_getcpu();
    if (core != shm->core) {
        shm->core = core;
        atomic_store_explicit(&shm->ranks[shm->rank].core, core, memory_order_relaxed);
    }
}

/* Returns true if a missing rank can arrive only if this rank yields the CPU. */
static bool holds_up(const ls_shm *shm) {
    for (int rank = shm->seen; rank < shm->size; rank++) {
        if (ls_shm_core_of(shm, rank) == shm->core && !came(shm, rank)) {
            return true;
        }
    }
    return false;
}

unsigned ls_shm_yields(ls_shm *shm) {
    if (shm->waits_asleep != 0) {
        shm->waits_asleep--;
        return 0;
    }
    return LS_SHM_YIELDS;
}

bool ls_shm_yield(ls_shm *shm, bool *counted) {
    if (ls_yield(ls_clock_ns())) {
        return true;
    }
    shm->long_yields += *counted ? 0 : 1;
    if (!*counted && shm->long_yields >= MOST_LONG_YIELDS) {
        const unsigned beyond = shm->long_yields - MOST_LONG_YIELDS;
        shm->waits_asleep = FEWEST_ASLEEP << (beyond < DOUBLINGS ? beyond : DOUBLINGS);
    }
    *counted = true;
    return false;
}

/* Waits by yielding, for ranks that share cores: see LS_SHM_YIELDS. */
static bool yield_and_look(ls_shm *shm) {
    const unsigned turns = ls_shm_yields(shm);
    bool counted = false;
    for (unsigned turn = 0; turn < turns; turn++) {
        ls_shm_tell_core(shm);
        for (int i = 0; i < LS_SHM_YIELD_LOOKS; i++) {
            if (ls_shm_ready(shm)) {
                shm->long_yields /= 2;
                return true;
            }
            if (holds_up(shm)) {
                break;
            }
            ls_spin_pause();
        }
        if (!ls_shm_yield(shm, &counted)) {
            break;
        }
    }
    return false;
}

/*
 * Polls for `budget` nanoseconds, and at least PAUSES_PER_LOOK times, until all ranks have published the step. Sets
 * `*came_all` to whether they have. Messages progress in the meantime. Sets `*end` to the time when it stopped.
 */
static ls_status spin(ls_shm *shm, uint64_t budget, uint64_t *end, bool *came_all) {
    *came_all = true;
    if (budget == 0 && yield_and_look(shm)) {
        return LS_OK;
    }
    uint64_t last = 0;
    for (;;) {
        bool moved = false;
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (ls_shm_ready(shm)) {
                return LS_OK;
            }
            ls_spin_pause();
        }
        LS_TRY(ls_shm_point_poll(shm, &moved));
        *end = ls_clock_ns();
        if (last == 0) {
            last = *end + budget;
        }
        if (*end >= last) {
            *came_all = false;
            return LS_OK;
        }
    }
}

ls_status ls_shm_sleep(ls_shm *shm, ls_shm_condition *met, const void *context) {
    ls_shm_control *control = shm->control;
    const ls_futex futex = futex_of(shm);
    const uint32_t word = atomic_load(futex.word);
    atomic_store(&shm->ranks[shm->rank].asleep, 1);
    atomic_fetch_add(&control->sleepers, 1);
    bool moved = false;
    const ls_status status = ls_shm_point_poll(shm, &moved);
    if (status == LS_OK && !moved && !met(shm, context) && !ls_shm_is_revoked(shm)) {
        ls_futex_sleep(&futex, word, bit_of(shm->rank), LOOK_NS);
    }
    atomic_fetch_sub(&control->sleepers, 1);
    atomic_store(&shm->ranks[shm->rank].asleep, 0);
    return status;
}

/*
 * Returns how long to spin. If two ranks share a core, because another program uses the other core, a spinning rank
 * keeps the awaited rank from running. The symptom is a sleep that ends at once after a long unsuccessful spin. From
 * then on, the rank spins briefly, with an occasional long spin, until a long spin succeeds.
 */
static uint64_t spin_budget(ls_shm *shm) {
    if (shm->oversubscribed != 0) {
        shm->oversubscribed++;
        return shm->oversubscribed % LONG_SPIN_EVERY == 0 ? shm->spin_ns : 0;
    }
    return shm->spin_ns;
}

bool ls_shm_meet(ls_shm *shm) {
    if (shm->spin_ns == 0 || shm->oversubscribed != 0) {
        return ls_shm_ready(shm);
    }
    ls_spin_back_off(FIRST_BACKOFFS);
    for (int i = 0; i < EAGER_LOOKS; i++) {
        if (ls_shm_ready(shm)) {
            return true;
        }
        ls_spin_back_off(LOOK_BACKOFFS);
    }
    return false;
}

static bool step_is_ready(ls_shm *shm, const void *context) {
    (void)context;
    return ls_shm_ready(shm);
}

ls_status ls_shm_wait(ls_shm *shm) {
    if (ls_shm_meet(shm)) {
        return LS_OK;
    }
    const uint64_t budget = spin_budget(shm);
    uint64_t asleep = 0;
    bool came_all = false;
    LS_TRY(spin(shm, budget, &asleep, &came_all));
    if (came_all) {
        shm->oversubscribed = 0;
        return LS_OK;
    }
    (void)ls_awake_poll(&shm->waited, asleep);
    while (!ls_shm_ready(shm)) {
        (void)ls_awake_poll(&shm->waited, ls_clock_ns());
        LS_TRY(look(shm));
        LS_TRY(ls_shm_sleep(shm, step_is_ready, NULL));
    }
    if (budget != 0 && shm->oversubscribed == 0 && ls_clock_ns() - asleep < SHORT_SLEEP_NS) {
        shm->oversubscribed = 1;
    }
    return LS_OK;
}

/* ---- living ranks
 * ----------------------------------------------------------------------------------------------------
 */

void ls_shm_introduce(ls_shm *shm) {
    ls_shm_rank *self = &shm->ranks[shm->rank];
    struct stat space;
    self->process = (int32_t)getpid();
    atomic_store(&self->file, shm->file + 1);
    ls_shm_peer_read_offer(shm);
    self->process_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
    if (sched_getaffinity(0, sizeof self->cores, &self->cores) != 0) {
        memset(&self->cores, 0xff, sizeof self->cores); /* too many for a cpu_set_t: treated as enough */
    }
}

void ls_shm_choose_spin(ls_shm *shm) {
    cpu_set_t all;
    CPU_ZERO(&all);
    shm->peer_reads = true;
    for (int rank = 0; rank < shm->size; rank++) {
        shm->peer_reads = shm->peer_reads && shm->ranks[rank].peer_reads != 0;
        CPU_OR(&all, &all, &shm->ranks[rank].cores);
    }
    shm->spin_ns = CPU_COUNT(&all) >= shm->size ? SPIN_NS : 0;
}
