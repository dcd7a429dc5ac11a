#include "tensor/device.h"
#include "tensor/scope.h"

ls_storage *ls_storage_wrap(const ls_device *device, void *memory, size_t bytes,
                            void (*release)(void *memory, void *user), void *user) {
    ls_storage *storage = ls_record_allocate(sizeof *storage);
    if (storage == NULL) {
        return NULL;
    }
    atomic_init(&storage->references, 1);
    storage->device = device;
    storage->memory = memory;
    storage->bytes = bytes;
    storage->release = release;
    storage->user = user;
    storage->whole = storage;
    storage->version = 0;
    atomic_init(&storage->aliases, 0);
    return storage;
}

ls_storage *ls_storage_new(const ls_device *device, size_t bytes) {
    void *memory = device->allocate(device, bytes);
    if (memory == NULL) {
        return NULL;
    }
    ls_storage *storage = ls_storage_wrap(device, memory, bytes, NULL, NULL);
    if (storage == NULL) {
        device->release(device, memory, bytes);
    }
    return storage;
}

void ls_storage_drop(ls_storage *storage) {
    /* A sole owner needs no atomic decrement: no other thread can obtain a reference. */
    if (atomic_load_explicit(&storage->references, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (storage->release != NULL) {
        storage->release(storage->memory, storage->user);
    } else {
        const ls_device *device = storage->device;
        device->release(device, storage->memory, storage->bytes);
    }
    ls_record_release(storage, sizeof *storage);
}
