/*
 * Accounts: counts of tensor memory by kind (ls_memory_stats). Each thread has an account, which counts the memory that
 * the thread allocates. The threads of a loader use the account of the thread that reads its batches.
 *
 * Only the owner of an account writes its counts, without atomic operations. Other threads, which free the owner's
 * tensors or allocate for the owner, add to `others`; the owner moves these changes to its counts later. An account is
 * freed after its thread has ended and all its memory has been freed.
 */
#ifndef LS_TENSOR_ACCOUNT_H
#define LS_TENSOR_ACCOUNT_H

#include <stdatomic.h>

#include "tensor/scope.h"

/* The maximum of the total since the watch began, and the counts at that time. */
typedef struct ls_memory_watch {
    int64_t total;
    int64_t bytes[LS_MEMORY_KINDS];
    struct ls_memory_watch *next;
} ls_memory_watch;

struct ls_account {
    int64_t total;
    int64_t bytes[LS_MEMORY_KINDS]; /* all kinds except LS_MEMORY_ACTIVATIONS, which is the rest of the total */
    /*
     * If the total exceeds this number, the owner must call ls_account_update. It is the smallest total of the watches,
     * or INT64_MIN if another thread has added to `others`.
     */
    _Atomic(int64_t) limit;
    ls_memory_watch *watches;    /* the last is since_reset */
    ls_memory_watch since_reset; /* for ls_memory_stats */
    int64_t collected;           /* number of bytes moved from `others` so far */
    _Atomic(int64_t) others[LS_MEMORY_KINDS];
    /*
     * The sum of the bytes that other threads have allocated minus freed, the number of calls to ls_account_hold, and
     * LS_ACCOUNT_OWNED or, after the owner has ended, the owner's bytes.
     */
    _Atomic(int64_t) held;
};

#define LS_ACCOUNT_OWNED ((int64_t)1 << 62)

/* Creates the account of a new thread. Returns NULL, without a message, if out of memory. */
ls_account *ls_account_new(void);
/* Must be called when the thread ends. */
void ls_account_leave(ls_thread_state *thread);
/* Assigns another thread's account to a thread that has not allocated anything yet. NULL is allowed. */
void ls_account_join(ls_thread_state *thread, ls_account *account);

/* Returns the account for memory that the thread allocates. */
static inline ls_account *ls_account_of(const ls_thread_state *thread) {
    return __builtin_expect(thread->account != NULL, 1) ? thread->account : thread->joined_account;
}

/* Keeps an account alive for threads that do not own it. NULL is allowed. */
ls_account *ls_account_hold(ls_account *account);
void ls_account_drop(ls_account *account);

/* Adds bytes, possibly negative, from a thread that does not own the account. May free the account. */
void ls_account_add_elsewhere(ls_account *account, ls_memory_kind kind, int64_t bytes);
/* Adds the changes made by other threads to the counts, and updates the watches whose maximum was exceeded. */
void ls_account_update(ls_account *account);

static inline bool ls_account_is_own(const ls_thread_state *thread, const ls_account *account) {
    return __builtin_expect(thread != NULL && account == thread->account, 1);
}

/*
 * Counts activations on the thread that owns the account. If the account must be updated first, does nothing and
 * returns false.
 */
static inline bool ls_account_try_add(ls_account *account, size_t bytes) {
    const int64_t total = account->total + (int64_t)bytes;
    const bool fits = total <= atomic_load_explicit(&account->limit, memory_order_relaxed);
    if (fits) {
        account->total = total;
    }
    return fits;
}

/* Counts a new, nonempty block. `thread` is the calling thread. */
static inline void ls_account_begin(const ls_thread_state *thread, ls_account *account, ls_memory_kind kind,
                                    size_t bytes) {
    if (!ls_account_is_own(thread, account)) {
        ls_account_add_elsewhere(account, kind, (int64_t)bytes);
        return;
    }
    account->total += (int64_t)bytes;
    if (kind != LS_MEMORY_ACTIVATIONS) {
        account->bytes[kind] += (int64_t)bytes;
    }
    if (__builtin_expect(account->total > atomic_load_explicit(&account->limit, memory_order_relaxed), 0)) {
        ls_account_update(account);
    }
}

/* Counts the end of such a block. `thread` may be NULL if the calling thread has no state. */
static inline void ls_account_end(const ls_thread_state *thread, ls_account *account, ls_memory_kind kind,
                                  size_t bytes) {
    if (!ls_account_is_own(thread, account)) {
        ls_account_add_elsewhere(account, kind, -(int64_t)bytes);
        return;
    }
    account->total -= (int64_t)bytes;
    if (kind != LS_MEMORY_ACTIVATIONS) {
        account->bytes[kind] -= (int64_t)bytes;
    }
}

/* Moves the count of a block to a different kind. `thread` is the calling thread. */
void ls_account_move(const ls_thread_state *thread, ls_account *account, ls_memory_kind from, ls_memory_kind to,
                     size_t bytes);

/* The calls below are for the owner, after ls_account_update. */

/* Copies the counts of all kinds. */
void ls_account_copy(const ls_account *account, int64_t bytes[LS_MEMORY_KINDS]);
void ls_account_watch(ls_account *account, ls_memory_watch *watch);
void ls_account_unwatch(ls_account *account, ls_memory_watch *watch);
/* Resets the peak of ls_memory_stats to the current total. */
void ls_account_reset(ls_account *account);

/* memory.c: watches the calling thread's account from now on. Fails with LS_ERR_MEMORY if out of memory. Also fails in
 * a loader thread. */
ls_status ls_memory_watch_begin(const char *call, ls_memory_watch *watch) LS_WARN_UNUSED;
/* Must be called on the same thread. */
void ls_memory_watch_end(ls_memory_watch *watch);

#endif
