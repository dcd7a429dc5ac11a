#include "tensor/account.h"

#include <string.h>

#include "base/memory.h"

/* ---- accounts ---------------------------------------------------------------------------------------------------- */

ls_account *ls_account_new(void) {
    ls_account *account = ls_allocate_aligned(sizeof *account, LS_CACHE_ALIGNMENT);
    if (account != NULL) {
        memset(account, 0, sizeof *account);
        atomic_init(&account->held, LS_ACCOUNT_OWNED);
        account->watches = &account->since_reset;
    }
    return account;
}

static void add_held(ls_account *account, int64_t number) {
    if (atomic_fetch_add_explicit(&account->held, number, memory_order_acq_rel) == -number) {
        ls_free(account);
    }
}

ls_account *ls_account_hold(ls_account *account) {
    if (account != NULL) {
        add_held(account, 1);
    }
    return account;
}

void ls_account_drop(ls_account *account) {
    if (account != NULL) {
        add_held(account, -1);
    }
}

void ls_account_leave(ls_thread_state *thread) {
    ls_account *account = thread->account;
    ls_account_drop(thread->joined_account);
    thread->account = thread->joined_account = NULL;
    if (account != NULL) {
        add_held(account, account->total - account->collected - LS_ACCOUNT_OWNED);
    }
}

void ls_account_join(ls_thread_state *thread, ls_account *account) {
    if (account != NULL) {
        ls_account_leave(thread);
        thread->joined_account = ls_account_hold(account);
    }
}

static void add_to_others(ls_account *account, ls_memory_kind kind, int64_t bytes) {
    atomic_fetch_add_explicit(&account->others[kind], bytes, memory_order_relaxed);
    atomic_store_explicit(&account->limit, INT64_MIN, memory_order_relaxed);
}

void ls_account_add_elsewhere(ls_account *account, ls_memory_kind kind, int64_t bytes) {
    add_to_others(account, kind, bytes);
    add_held(account, bytes);
}

void ls_account_move(const ls_thread_state *thread, ls_account *account, ls_memory_kind from, ls_memory_kind to,
                     size_t bytes) {
    if (!ls_account_is_own(thread, account)) {
        add_to_others(account, from, -(int64_t)bytes);
        add_to_others(account, to, (int64_t)bytes);
        return;
    }
    account->bytes[from] -= (int64_t)bytes;
    account->bytes[to] += (int64_t)bytes;
    ls_account_update(account);
}

/* ---- counts and peaks -------------------------------------------------------------------------------------------- */

static void collect(ls_account *account) {
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        const int64_t bytes = atomic_exchange_explicit(&account->others[i], 0, memory_order_relaxed);
        account->bytes[i] += bytes;
        account->total += bytes;
        account->collected += bytes;
    }
}

void ls_account_copy(const ls_account *account, int64_t bytes[LS_MEMORY_KINDS]) {
    int64_t rest = account->total;
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        bytes[i] = i != LS_MEMORY_ACTIVATIONS ? account->bytes[i] : 0;
        rest -= bytes[i];
    }
    bytes[LS_MEMORY_ACTIVATIONS] = rest;
}

static void take(const ls_account *account, ls_memory_watch *watch) {
    watch->total = account->total;
    ls_account_copy(account, watch->bytes);
}

/*
 * Another thread may have set the limit to INT64_MIN after the last call of collect. Its change is then collected
 * together with the next change, or by ls_memory_stats.
 */
static void set_limit(ls_account *account) {
    int64_t least = INT64_MAX;
    for (const ls_memory_watch *watch = account->watches; watch != NULL; watch = watch->next) {
        least = watch->total < least ? watch->total : least;
    }
    atomic_store_explicit(&account->limit, least, memory_order_relaxed);
}

void ls_account_update(ls_account *account) {
    collect(account);
    for (ls_memory_watch *watch = account->watches; watch != NULL; watch = watch->next) {
        if (account->total >= watch->total) {
            take(account, watch);
        }
    }
    set_limit(account);
}

void ls_account_watch(ls_account *account, ls_memory_watch *watch) {
    take(account, watch);
    watch->next = account->watches;
    account->watches = watch;
    set_limit(account);
}

void ls_account_unwatch(ls_account *account, ls_memory_watch *watch) {
    ls_memory_watch **link = &account->watches;
    while (*link != watch) {
        link = &(*link)->next;
    }
    *link = watch->next;
    set_limit(account);
}

void ls_account_reset(ls_account *account) {
    take(account, &account->since_reset);
    set_limit(account);
}
