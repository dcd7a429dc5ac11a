#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "comm/backend/shm/shm.h"

#define PAGE ((size_t)4096)

/* What rank 0 tells the others about the memory it reserved. */
typedef struct grant {
    int32_t status;
    uint32_t unused;
    uint64_t place; /* offset in the memfd, or, between threads, the address */
} grant;

_Static_assert(sizeof(grant) <= LS_SHM_PAYLOAD, "a grant travels in a cell");

/* Between threads, memory begins with the number of ranks that still hold it. */
typedef struct lent {
    _Alignas(64) _Atomic int holders;
} lent;

const ls_shm_region *ls_shm_region_find(const ls_shm *shm, const void *memory, size_t bytes) {
    for (int i = 0; i < shm->region_count; i++) {
        const ls_shm_region *region = &shm->regions[i];
        if (region->base == NULL) {
            continue;
        }
        const uintptr_t part = (uintptr_t)(region->base + (size_t)shm->rank * region->stride);
        const uintptr_t at = (uintptr_t)memory;
        if (at >= part && at - part < region->stride && bytes <= region->stride - (at - part)) {
            return region;
        }
    }
    return NULL;
}

void ls_shm_region_free(ls_shm *shm, ls_shm_region *region) {
    if (region->base == NULL) {
        return;
    }
    if (shm->file < 0) {
        lent *memory = (lent *)(void *)(region->base - sizeof(lent));
        if (atomic_fetch_sub(&memory->holders, 1) == 1) {
            ls_free(memory);
        }
    } else {
        /* Each rank gives its own part back to the machine; the others no longer touch it. */
        (void)fallocate(shm->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)(region->offset + (uint64_t)shm->rank * region->stride), (off_t)region->stride);
        munmap(region->base, region->stride * (size_t)shm->size);
    }
    region->base = NULL;
}

void ls_shm_release(void *state, void *memory) {
    ls_shm *shm = state;
    for (int i = 0; i < shm->region_count; i++) {
        ls_shm_region *region = &shm->regions[i];
        if (region->base != NULL && memory == region->base + (size_t)shm->rank * region->stride) {
            ls_shm_region_free(shm, region);
            return;
        }
    }
}

/* An entry for a new region; NULL when there is no memory for one. */
static ls_shm_region *free_entry(ls_shm *shm) {
    for (int i = 0; i < shm->region_count; i++) {
        if (shm->regions[i].base == NULL) {
            return &shm->regions[i];
        }
    }
    const size_t old = (size_t)shm->region_count * sizeof *shm->regions;
    ls_shm_region *grown = ls_reallocate(shm->regions, old, old + sizeof *shm->regions);
    if (grown == NULL) {
        return NULL;
    }
    shm->regions = grown;
    grown[shm->region_count] = (ls_shm_region){0};
    return &grown[shm->region_count++];
}

/* Rank 0 reserves the memory of all. */
static grant reserve(ls_shm *shm, size_t stride) {
    grant result = {.status = LS_OK};
    const size_t bytes = stride * (size_t)shm->size;
    if (shm->file < 0) {
        lent *memory = ls_allocate_aligned(sizeof(lent) + bytes, 64);
        if (memory == NULL) {
            result.status = (int32_t)ls_fail_memory("ls_comm_alloc", bytes);
            return result;
        }
        memset((void *)memory, 0, sizeof(lent) + bytes);
        atomic_init(&memory->holders, shm->size);
        result.place = (uint64_t)(uintptr_t)(memory + 1);
        return result;
    }
    result.status = (int32_t)ls_shm_file_reserve("ls_comm_alloc", shm->file, shm->file_end, bytes);
    result.place = shm->file_end;
    if (result.status == LS_OK) {
        shm->file_end += bytes;
    }
    return result;
}

/* Makes the granted memory this rank's own region. */
static ls_status attach(ls_shm *shm, const grant *granted, size_t stride, ls_shm_region **result) {
    ls_shm_region *region = free_entry(shm);
    if (region == NULL) {
        return ls_fail_memory("ls_comm_alloc", sizeof *region);
    }
    if (shm->file < 0) {
        region->base = (unsigned char *)(uintptr_t)granted->place;
    } else {
        LS_TRY(ls_shm_file_map("ls_comm_alloc", shm->file, granted->place, stride * (size_t)shm->size, &region->base));
    }
    region->id = ++shm->last_region;
    region->stride = stride;
    region->offset = granted->place;
    *result = region;
    return LS_OK;
}

/* Publishes this rank's status; the first failure of all ranks, or LS_OK. */
static ls_status settle(ls_shm *shm, ls_status own, size_t bytes) {
    grant report = {.status = (int32_t)own};
    memcpy(ls_shm_next_cell(shm)->payload, &report, sizeof report);
    ls_shm_post(shm);
    LS_TRY(ls_shm_wait(shm));
    for (int rank = 0; rank < shm->size; rank++) {
        memcpy(&report, ls_shm_cell_of(shm, rank)->payload, sizeof report);
        if (report.status != LS_OK && own == LS_OK) {
            return ls_fail(LS_ERR_MEMORY, "ls_comm_alloc: rank %d cannot reach the %zu bytes it asked for", rank,
                           bytes);
        }
    }
    return own;
}

static ls_status begin(ls_shm *shm, size_t size, uint64_t sequence) {
    const ls_call call = {.operation = LS_OP_ALLOC, .count = size, .width = 1, .sequence = sequence};
    ls_shm_cell *cell = NULL;
    LS_TRY(ls_shm_declare(shm, &call, &cell));
    ls_shm_post(shm);
    LS_TRY(ls_shm_wait(shm));
    LS_TRY(ls_shm_agree(shm));
    if (size > SIZE_MAX / 4 / (size_t)shm->size) {
        return ls_fail(LS_ERR_MEMORY, "ls_comm_alloc: %zu bytes for each of %d ranks are more than memory can hold",
                       size, shm->size);
    }
    return LS_OK;
}

ls_status ls_shm_alloc(void *state, size_t size, uint64_t sequence, void **memory) {
    ls_shm *shm = state;
    LS_TRY(begin(shm, size, sequence));
    const size_t stride = size == 0 ? PAGE : (size + PAGE - 1) & ~(PAGE - 1);
    grant granted = {0};
    if (shm->rank == 0) {
        granted = reserve(shm, stride);
        memcpy(ls_shm_next_cell(shm)->payload, &granted, sizeof granted);
    }
    ls_shm_post(shm);
    LS_TRY(ls_shm_wait(shm));
    if (shm->rank != 0) {
        memcpy(&granted, ls_shm_cell_of(shm, 0)->payload, sizeof granted);
    }
    if (granted.status != LS_OK) { /* all ranks know it */
        return shm->rank == 0
                   ? LS_ERR_MEMORY
                   : ls_fail(LS_ERR_MEMORY, "ls_comm_alloc: rank 0 cannot reserve %zu bytes for each of %d ranks", size,
                             shm->size);
    }
    ls_shm_region *region = NULL;
    const ls_status status = settle(shm, attach(shm, &granted, stride, &region), size);
    if (status != LS_OK) {
        if (region != NULL) {
            ls_shm_region_free(shm, region);
        }
        return status;
    }
    *memory = region->base + (size_t)shm->rank * region->stride;
    return LS_OK;
}
