#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "comm/backend/shm/shm.h"

#define PAGE ((size_t)4096)

/* Each rank's report to the others on its part of the memory. */
typedef struct part_report {
    int32_t status;
    uint32_t unused;
    uint64_t place; /* between threads, the address of all parts, set by rank 0 */
} part_report;

_Static_assert(sizeof(part_report) <= LS_SHM_PAYLOAD, "a report travels in a cell");

/*
 * Between threads, this header precedes the memory and counts the ranks that still hold it. The memory stays in a list
 * of the world until the last of these ranks has released it. A rank that fails during the call may never learn of the
 * memory, and then does not release it.
 */
typedef struct ls_shm_lent {
    int holders;
    struct ls_shm_lent *next;
    struct ls_shm_lent **link; /* the pointer that points to this element */
} ls_shm_lent;

static pthread_mutex_t lending = PTHREAD_MUTEX_INITIALIZER;

void *ls_shm_lend(const ls_shm *shm, int holders, size_t bytes) {
    unsigned char *block = ls_allocate_aligned(PAGE + bytes, PAGE);
    if (block == NULL) {
        return NULL;
    }
    ls_shm_lent *lent = (ls_shm_lent *)(void *)block;
    memset(block, 0, PAGE + bytes);
    pthread_mutex_lock(&lending);
    *lent = (ls_shm_lent){.holders = holders, .next = shm->world->lent, .link = &shm->world->lent};
    if (lent->next != NULL) {
        lent->next->link = &lent->next;
    }
    shm->world->lent = lent;
    pthread_mutex_unlock(&lending);
    return block + PAGE;
}

void ls_shm_let_go(void *memory, int holders) {
    ls_shm_lent *lent = (ls_shm_lent *)(void *)((unsigned char *)memory - PAGE);
    pthread_mutex_lock(&lending);
    lent->holders -= holders;
    const bool last = lent->holders == 0;
    if (last) {
        *lent->link = lent->next;
        if (lent->next != NULL) {
            lent->next->link = lent->link;
        }
    }
    pthread_mutex_unlock(&lending);
    if (last) {
        ls_free(lent);
    }
}

ls_shm_control *ls_shm_hold_world(ls_shm_control *world) {
    atomic_fetch_add(&world->holders, 1);
    return world;
}

void ls_shm_drop_world(ls_shm_control *world) {
    if (world == NULL || atomic_fetch_sub(&world->holders, 1) != 1) {
        return;
    }
    while (world->lent != NULL) {
        ls_shm_lent *next = world->lent->next;
        ls_free(world->lent);
        world->lent = next;
    }
    ls_free(world);
}

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

const ls_shm_region *ls_shm_region_of(const ls_shm *shm, uint32_t id) {
    for (int i = 0; id != 0 && i < shm->region_count; i++) {
        if (shm->regions[i].id == id && shm->regions[i].base != NULL) {
            return &shm->regions[i];
        }
    }
    return NULL;
}

unsigned char *ls_shm_region_at(ls_shm *shm, const ls_shm_region *region, int rank, uint64_t offset, size_t bytes) {
    if (offset <= region->stride && bytes <= region->stride - offset) {
        return region->base + (size_t)rank * region->stride + offset;
    }
    char name[64];
    ls_call_describe(shm->call.operation, shm->call.sequence, name, sizeof name);
    (void)ls_shm_abort(
        shm,
        ls_fail(LS_ERR_PEER, "%s: rank %d refers to memory from ls_comm_alloc that it has not allocated", name, rank),
        rank);
    return NULL;
}

const ls_shm_region *ls_shm_region_common(const ls_shm *shm) {
    const uint32_t id = ls_shm_cell_of(shm, shm->rank)->region;
    for (int rank = 0; rank < shm->size; rank++) {
        if (ls_shm_cell_of(shm, rank)->region != id) {
            return NULL;
        }
    }
    return ls_shm_region_of(shm, id);
}

bool ls_shm_region_any(const ls_shm *shm) {
    for (int rank = 0; rank < shm->size; rank++) {
        if (ls_shm_cell_of(shm, rank)->region != 0) {
            return true;
        }
    }
    return false;
}

/* Returns this rank's part to the system. The other ranks no longer access it, or never have. */
static void give_back(const ls_shm *shm, uint64_t offset, size_t stride) {
    (void)fallocate(shm->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)(offset + (uint64_t)shm->rank * stride), (off_t)stride);
}

void ls_shm_region_free(ls_shm *shm, ls_shm_region *region) {
    if (region->base == NULL) {
        return;
    }
    if (shm->file < 0) {
        ls_shm_let_go(region->base, 1);
    } else {
        munmap(region->base, region->stride * (size_t)shm->size);
        give_back(shm, region->offset, region->stride);
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

/* Returns an entry for a new region, or NULL if out of memory. */
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

/* Between threads, rank 0 allocates for all ranks; between processes, each rank reserves its own part, on its own
 * NUMA node. */
static part_report reserve(ls_shm *shm, size_t stride) {
    part_report own = {.status = LS_OK};
    const size_t bytes = stride * (size_t)shm->size;
    if (shm->file >= 0) {
        const uint64_t offset = shm->file_end + (uint64_t)shm->rank * stride;
        own.status = (int32_t)ls_shm_file_reserve("ls_comm_alloc", shm->file, offset, stride);
    } else if (shm->rank == 0) {
        void *memory = ls_shm_lend(shm, shm->size, bytes);
        if (memory == NULL) {
            own.status = (int32_t)ls_fail_memory("ls_comm_alloc", bytes);
            return own;
        }
        own.place = (uint64_t)(uintptr_t)memory;
    }
    return own;
}

/* Makes the reserved memory a region of this rank. `region` is a free entry, or NULL if there was no memory for an
   entry. */
static ls_status attach(ls_shm *shm, ls_shm_region *region, uint64_t place, size_t stride) {
    if (region == NULL) {
        return ls_fail_memory("ls_comm_alloc", sizeof *region);
    }
    if (shm->file < 0) {
        region->base = (unsigned char *)(uintptr_t)place;
    } else {
        LS_TRY(ls_shm_file_map("ls_comm_alloc", shm->file, shm->file_end, stride * (size_t)shm->size, &region->base));
    }
    region->id = ++shm->last_region;
    region->stride = stride;
    region->offset = shm->file_end;
    return LS_OK;
}

/* Takes one step: publishes this rank's report and returns the first failure, preferring this rank's own. Sets the
 * position that rank 0 reported. */
static ls_status settle(ls_shm *shm, part_report *own, size_t bytes) {
    memcpy(ls_shm_next_cell(shm)->payload, own, sizeof *own);
    ls_shm_post(shm);
    LS_TRY(ls_shm_wait(shm));
    int failed = -1;
    for (int rank = shm->size - 1; rank >= 0; rank--) {
        part_report other;
        memcpy(&other, ls_shm_cell_of(shm, rank)->payload, sizeof other);
        failed = other.status != LS_OK ? rank : failed;
        own->place = other.place;
    }
    if (own->status != LS_OK || failed < 0) {
        return (ls_status)own->status;
    }
    return ls_fail(LS_ERR_MEMORY, "ls_comm_alloc: rank %d cannot reserve %zu bytes of shared memory", failed, bytes);
}

/* Runs after all ranks have made the same call, and rank 0 has checked that there is enough memory. */
static ls_status begin(ls_shm *shm, size_t size, uint64_t sequence) {
    const ls_call call = {.operation = LS_OP_ALLOC, .width = 1, .total = size, .sequence = sequence};
    ls_shm_cell *cell = NULL;
    LS_TRY(ls_shm_declare(shm, &call, &cell));
    if (size > SIZE_MAX / 4 / (size_t)shm->size) {
        size = SIZE_MAX / 4 / (size_t)shm->size;
    }
    part_report own = {.status = LS_OK};
    if (shm->rank == 0) {
        own.status = (int32_t)ls_shm_check_memory("ls_comm_alloc", size * (size_t)shm->size);
    }
    const ls_status status = settle(shm, &own, size);
    if (status != LS_OK && status != LS_ERR_MEMORY) {
        return status;
    }
    const ls_status agreed =
        ls_shm_agree(shm, &shm->call); /* must come first: the reports are valid only if all ranks made this call */
    return agreed != LS_OK ? agreed : status;
}

/* Frees this rank's memory if a different rank could not get its memory. */
static void undo(ls_shm *shm, ls_shm_region *region, const part_report *own, size_t stride) {
    if (region != NULL && region->base != NULL) {
        ls_shm_region_free(shm, region);
    } else if (shm->file >= 0) {
        give_back(shm, shm->file_end, stride);
    } else if (own->place != 0) {
        ls_shm_region unattached = {.base = (unsigned char *)(uintptr_t)own->place};
        ls_shm_region_free(shm, &unattached);
    }
}

ls_status ls_shm_alloc(void *state, size_t size, uint64_t sequence, void **memory) {
    ls_shm *shm = state;
    LS_TRY(begin(shm, size, sequence));
    const size_t stride = size == 0 ? PAGE : (size + PAGE - 1) & ~(PAGE - 1);
    part_report own = reserve(shm, stride);
    ls_shm_region *region = NULL;
    ls_status status = settle(shm, &own, size);
    if (status == LS_OK) {
        region = free_entry(shm);
        own.status = (int32_t)attach(shm, region, own.place, stride);
        status = settle(shm, &own, size);
    }
    if (status != LS_OK) {
        undo(shm, region, &own, stride);
        return status;
    }
    shm->file_end += shm->file < 0 ? 0 : stride * (size_t)shm->size;
    *memory = region->base + (size_t)shm->rank * region->stride;
    return LS_OK;
}
