/*
 * The thread's state, and functions on it that are needed by files of layers below scopes. The state is created on
 * first use. A key's destructor frees it when the thread ends; for the thread that exits the program, a destructor of
 * the library frees it.
 */
#include "tensor/scope.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "tensor/account.h"

_Thread_local ls_thread_state *ls_thread_present;

static pthread_key_t end_key;
static pthread_once_t end_key_once = PTHREAD_ONCE_INIT;
static bool end_key_works;

static void free_thread(void);

static void end_thread(void *state) {
    (void)state;
    free_thread();
}

static void make_end_key(void) {
    end_key_works = pthread_key_create(&end_key, end_thread) == 0;
}

ls_thread_state *ls_thread_make(void) {
    (void)pthread_once(&end_key_once, make_end_key);
    ls_thread_state *thread = ls_allocate_zeroed(1, sizeof *thread);
    ls_account *account = thread != NULL ? ls_account_new() : NULL;
    if (account == NULL || !end_key_works || pthread_setspecific(end_key, thread) != 0) {
        ls_free(account);
        ls_free(thread);
        (void)ls_fail_memory("thread state", sizeof *thread);
        return NULL;
    }
    static _Atomic uint64_t threads;
    thread->serial = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    thread->account = account;
    ls_cache_init(&thread->cache);
    thread->scope = &thread->root;
    thread->released = (ls_record_ring){.records = thread->released_records, .size = LS_RELEASED_RECORDS};
    thread->retired[LS_RETIRED_MODULE] =
        (ls_retired_ring){.objects = thread->retired_modules, .size = LS_RETIRED_MODULE_OBJECTS};
    thread->retired[LS_RETIRED_DATASET] =
        (ls_retired_ring){.objects = thread->retired_datasets, .size = LS_RETIRED_DATASET_OBJECTS};
    thread->retired[LS_RETIRED_SINGLE] =
        (ls_retired_ring){.objects = thread->retired_singles, .size = LS_RETIRED_SINGLE_OBJECTS};
    thread->retired[LS_RETIRED_PART] =
        (ls_retired_ring){.objects = thread->retired_parts, .size = LS_RETIRED_PART_OBJECTS};
    thread->past_batches = (ls_record_ring){.records = thread->past_batch_records, .size = LS_PAST_BATCH_RECORDS};
    ls_thread_present = thread;
    return thread;
}

void ls_retire(void *object, ls_retired_kind kind) {
    ls_thread_state *thread = ls_thread();
    void *oldest = object;
    if (thread != NULL) {
        ls_retired_ring *ring = &thread->retired[kind];
        void **place = &ring->objects[ring->next++ % ring->size];
        oldest = *place;
        *place = object;
    }
    ls_free(oldest);
}

static void empty_retired(const ls_retired_ring *ring) {
    for (unsigned i = 0; i < ring->size; i++) {
        ls_free(ring->objects[i]);
    }
}

void ls_scope_drop_callback(ls_scope_callback *callback) {
    if (callback->hold != NULL) {
        callback->hold(callback->user, false);
    }
    ls_record_release(callback, sizeof *callback);
}

void ls_scope_forget_callbacks(ls_scope *scope) {
    while (scope->callbacks != NULL) {
        ls_scope_callback *callback = scope->callbacks;
        scope->callbacks = callback->next;
        ls_scope_drop_callback(callback);
    }
}

void ls_scope_release_records(ls_thread_state *thread, ls_scope *scope) {
    while (scope->gone != NULL) {
        ls_tensor *record = scope->gone;
        scope->gone = record->scope_older;
        ls_cache_release(&thread->cache, record, sizeof *record);
    }
}

static void note_failure(bool lost) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL || thread->scope == &thread->root) {
        return;
    }
    thread->scope->lost |= lost;
    if (thread->scope->status == LS_OK) {
        thread->scope->status = ls_error_status();
        memcpy(thread->scope->message, ls_error_message(), strlen(ls_error_message()) + 1);
    }
}

void *ls_scope_failed(void) {
    note_failure(true);
    return NULL;
}

ls_status ls_scope_failed_status(void) {
    note_failure(false);
    return ls_error_status();
}

bool ls_scope_explains_null(const ls_thread_state *thread) {
    if (thread->scope == &thread->root) {
        return ls_error_status() != LS_OK;
    }
    return thread->scope->status != LS_OK || thread->scope->errors != ls_error_count;
}

ls_status ls_scope_fail_null(const char *format, ...) {
    const ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return ls_error_status();
    }
    if (thread->scope != &thread->root && thread->scope->status != LS_OK) {
        if (ls_error_status() == LS_OK) { /* the program has reset it with ls_error_set */
            ls_error_restore(thread->scope->status, thread->scope->message);
        }
        return ls_error_status();
    }
    char what[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return ls_scope_explains_null(thread) ? ls_fail_missing("%s", what) : ls_fail(LS_ERR_ARGUMENT, "%s is NULL", what);
}

static void empty_ring(ls_thread_state *thread, const ls_record_ring *ring) {
    for (unsigned i = 0; i < ring->size; i++) {
        if (ring->records[i] != NULL) {
            ls_cache_release(&thread->cache, ring->records[i], sizeof(ls_tensor));
        }
    }
}

/* Also works in a function that the library has called, because a thread may exit there. */
static void free_thread(void) {
    ls_thread_state *thread = ls_thread_present;
    if (thread == NULL) {
        return;
    }
    if (thread->end_scopes != NULL) {
        thread->end_scopes(thread);
    }
    if (thread->root.tape.first != NULL) {
        (void)thread->root.tape.first->listener->scope_ended(&thread->root.tape, NULL);
    }
    ls_scope_forget_callbacks(&thread->root);
    ls_scope_release_records(thread, &thread->root);
    if (thread->ended != NULL) {
        ls_cache_release(&thread->cache, thread->ended, sizeof *thread->ended);
    }
    empty_ring(thread, &thread->released);
    empty_ring(thread, &thread->past_batches);
    for (int kind = 0; kind < LS_RETIRED_KINDS; kind++) {
        empty_retired(&thread->retired[kind]);
    }
    ls_cache_empty(&thread->cache);
    ls_account_leave(thread);
    ls_trace_free(ls_trace_take());
    ls_thread_present = NULL;
    (void)pthread_setspecific(end_key, NULL);
    ls_free(thread);
}

/* Returns whether a function of the library has called the program's code. */
static bool runs_library(const ls_thread_state *thread) {
    bool runs = thread->hooks > 0;
    for (const ls_scope *scope = thread->scope; scope != &thread->root && !runs; scope = scope->outer) {
        runs = scope->library;
    }
    return runs;
}

void ls_thread_end(void) {
    if (ls_thread_present == NULL || !runs_library(ls_thread_present)) {
        free_thread();
        return;
    }
    (void)ls_fail(LS_ERR_STATE,
                  "ls_thread_end: called in a function that the library calls, such as a hook: the library still needs "
                  "this thread's scopes; call ls_thread_end after the library's function has returned");
    ls_thread_present->end_refused = ls_thread_present->hooks > 0;
    (void)ls_scope_failed_status();
}

__attribute__((destructor)) static void end_last_thread(void) {
    free_thread();
}

void ls_record_release_without_thread(void *record) {
    ls_free(record);
}
