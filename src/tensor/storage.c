#include "tensor/account.h"
#include "tensor/capture.h"
#include "tensor/device.h"

static inline ls_storage *make(ls_thread_state *thread, const ls_device *device, void *memory, size_t bytes) {
    ls_storage *storage = ls_cache_allocate(&thread->cache, sizeof *storage);
    if (storage == NULL) {
        return NULL;
    }
    atomic_init(&storage->references, 1);
    storage->device = device;
    storage->memory = memory;
    storage->bytes = bytes;
    storage->release = NULL;
    storage->whole = storage;
    storage->version = 0;
    atomic_init(&storage->aliases, 0);
    storage->kind = LS_MEMORY_ACTIVATIONS;
    storage->account = NULL;
    return storage;
}

ls_storage *ls_storage_wrap(const ls_device *device, void *memory, size_t bytes,
                            void (*release)(void *memory, void *user), void *user) {
    ls_thread_state *thread = ls_thread();
    ls_storage *storage = thread != NULL ? make(thread, device, memory, bytes) : NULL;
    if (storage != NULL) {
        storage->release = release;
        storage->user = user;
    }
    return storage;
}

void ls_storage_count(ls_storage *storage, ls_memory_kind kind) {
    if (storage->bytes > 0) {
        const ls_thread_state *thread = ls_thread_present;
        storage->kind = (uint8_t)kind;
        storage->account = ls_account_of(thread);
        ls_account_begin(thread, storage->account, kind, storage->bytes);
    }
}

/* Counts a new storage if ls_storage_new's fast path cannot. */
__attribute__((noinline, cold)) static ls_storage *count_elsewhere(ls_thread_state *thread, ls_storage *storage) {
    ls_storage_count(storage, LS_MEMORY_ACTIVATIONS);
    if (thread->capture != NULL) {
        thread->capture->add_block(thread->capture, storage);
    }
    return storage;
}

ls_storage *ls_storage_new(const ls_device *device, size_t bytes) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    void *memory = device->uses_cache ? ls_cache_allocate(&thread->cache, bytes) : device->allocate(device, bytes);
    if (memory == NULL) {
        return NULL;
    }
    ls_storage *storage = make(thread, device, memory, bytes);
    if (storage == NULL) {
        device->release(device, memory, bytes);
        return NULL;
    }
    ls_account *account = thread->account;
    if (__builtin_expect(
            bytes == 0 || account == NULL || thread->capture != NULL || !ls_account_try_add(account, bytes), 0)) {
        return count_elsewhere(thread, storage);
    }
    storage->account = account;
    return storage;
}

void ls_storage_change_kind(ls_storage *storage, ls_memory_kind kind) {
    ls_storage *whole = storage->whole;
    const ls_memory_kind before = (ls_memory_kind)whole->kind;
    if (whole->account != NULL && (kind != LS_MEMORY_DATA || before == LS_MEMORY_ACTIVATIONS)) {
        ls_account_move(ls_thread_present, whole->account, before, kind, whole->bytes);
        whole->kind = (uint8_t)kind;
    }
}

static inline void release_memory(ls_thread_state *thread, const ls_storage *storage) {
    const ls_device *device = storage->device;
    if (storage->release != NULL) {
        storage->release(storage->memory, storage->user);
    } else if (device->uses_cache && thread != NULL) {
        ls_cache_release(&thread->cache, storage->memory, storage->bytes);
    } else {
        device->release(device, storage->memory, storage->bytes);
    }
}

ls_storage *ls_storage_for(const char *call, const ls_device *device, size_t bytes, ls_memory_kind kind) {
    ls_storage *storage = ls_storage_new(device, bytes);
    if (storage == NULL) {
        (void)ls_fail_memory(call, bytes);
        return NULL;
    }
    ls_storage_set_kind(storage, kind);
    return storage;
}

void ls_storage_drop(ls_storage *storage) {
    if (storage == NULL) {
        return;
    }
    /* A sole owner needs no atomic decrement: no other thread can obtain a reference. */
    if (atomic_load_explicit(&storage->references, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    ls_thread_state *thread = ls_thread();
    release_memory(thread, storage);
    if (storage->account != NULL) {
        ls_account_end(thread, storage->account, (ls_memory_kind)storage->kind, storage->bytes);
    }
    if (__builtin_expect(thread != NULL, 1)) {
        ls_cache_release(&thread->cache, storage, sizeof *storage);
    } else {
        ls_record_release_without_thread(storage);
    }
}
