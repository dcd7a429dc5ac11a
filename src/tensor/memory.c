/* The public memory counts, and memory watches, of the calling thread. */
#include <string.h>

#include "tensor/account.h"

/* Returns the calling thread's account, updated, or NULL with the error set. */
static ls_account *own_account(const char *call) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    if (thread->account == NULL) {
        return ls_fail_null(LS_ERR_STATE,
                            "%s: this is a thread of a loader, and its tensors are counted for the thread that reads "
                            "the batches: make the call in that thread",
                            call);
    }
    ls_account_update(thread->account);
    return thread->account;
}

ls_status ls_memory_watch_begin(const char *call, ls_memory_watch *watch) {
    ls_account *account = own_account(call);
    if (account == NULL) {
        return ls_error_status();
    }
    ls_account_watch(account, watch);
    return LS_OK;
}

void ls_memory_watch_end(ls_memory_watch *watch) {
    ls_account *account = ls_thread_present->account;
    ls_account_update(account);
    ls_account_unwatch(account, watch);
}

ls_status ls_memory_stats(ls_memory *memory) {
    static const char call[] = "ls_memory_stats";
    if (memory == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the argument is NULL", call);
    }
    const ls_account *account = own_account(call);
    if (account == NULL) {
        return ls_error_status();
    }
    *memory = (ls_memory){.total = account->total, .peak_total = account->since_reset.total};
    ls_account_copy(account, memory->bytes);
    memcpy(memory->peak, account->since_reset.bytes, sizeof memory->peak);
    return LS_OK;
}

ls_status ls_memory_reset_peak(void) {
    ls_account *account = own_account("ls_memory_reset_peak");
    if (account == NULL) {
        return ls_error_status();
    }
    ls_account_reset(account);
    return LS_OK;
}

const char *ls_memory_kind_name(ls_memory_kind kind) {
    static const char *const names[LS_MEMORY_KINDS] = {"parameters", "gradients", "optimizer",
                                                       "buckets",    "data",      "activations"};
    const size_t index = (size_t)kind;
    return index < LS_MEMORY_KINDS ? names[index] : "unknown";
}
