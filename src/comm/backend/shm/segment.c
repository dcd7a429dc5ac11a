#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/backend/shm/shm.h"

#define PAGE          ((size_t)4096)
#define SLOT_PER_RANK ((size_t)32) /* size in bytes: one table entry plus a little data */

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

static size_t pages(size_t bytes) {
    return (bytes + PAGE - 1) & ~(PAGE - 1);
}

/* The shape of the pipes between the ranks. */
typedef struct shape {
    int ranks; /* maximum number of ranks for this shape */
    size_t depth;
    size_t more; /* bytes of payload after those in a packet's head */
} shape;

static const shape shapes[] = {{4, 8, LS_SHM_PACKET_MORE_4},
                               {16, 8, LS_SHM_PACKET_MORE_16},
                               {64, 4, LS_SHM_PACKET_MORE_64},
                               {256, 2, 0},
                               {1 << 30, 1, 0}};

/* Returns the size in bytes of the shared memory for all pipes of `size` ranks, and sets their shape. */
static size_t point_layout(ls_shm_point *point, int size) {
    const shape *row = shapes;
    while (size > row->ranks) {
        row++;
    }
    point->depth = row->depth;
    point->stride = sizeof(ls_shm_packet) + row->more;
    return (size_t)size * (size_t)size * point->depth * point->stride;
}

/* Must change when the meaning of the shared memory changes but no size does. */
#define LAYOUT_VERSION 2

#define MIX(hash, number) (((hash) ^ (uint64_t)(number)) * UINT64_C(0x100000001b3))
#define SIZES             MIX(MIX(LS_SHM_CELLS, sizeof(ls_shm_control)), MIX(sizeof(ls_shm_rank), sizeof(ls_shm_cell)))
#define ROOM              MIX(MIX(LS_SHM_SLOT_MOST, LS_SHM_SLOT_PART), MIX(LS_SHM_SLOT_LEAST, LS_SHM_SLOTS_TOGETHER))
#define PACKETS                                                                                                        \
    MIX(MIX(MIX(sizeof(ls_shm_packet), LS_SHM_PACKET_PAYLOAD), MIX(LS_SHM_PACKET_MORE_4, LS_SHM_PACKET_MORE_16)),      \
        MIX(LS_SHM_PACKET_MORE_64, LS_SHM_ANNOUNCED))
#define PLACES                                                                                                         \
    MIX(MIX(offsetof(ls_shm_rank, sizes), offsetof(ls_shm_rank, answers)),                                             \
        MIX(offsetof(ls_shm_cell, payload), offsetof(ls_shm_control, message)))

const uint64_t ls_shm_layout_number =
    MIX(MIX(MIX(LAYOUT_VERSION, SIZES), MIX(ROOM, PACKETS)), MIX(PLACES, MIX(LS_OP_COUNT, LS_REDUCTION_COUNT)));

size_t ls_shm_layout(ls_shm *shm, unsigned char *base) {
    const size_t size = (size_t)shm->size;
    size_t slot = shm->part ? LS_SHM_SLOT_PART : LS_SHM_SLOT_MOST;
    while (slot > LS_SHM_SLOT_LEAST && 2 * slot * size > LS_SHM_SLOTS_TOGETHER) {
        slot /= 2;
    }
    while (slot < SLOT_PER_RANK * size) {
        slot *= 2;
    }
    const size_t ranks = sizeof(ls_shm_control);
    const size_t cells = ranks + size * sizeof(ls_shm_rank);
    const size_t pipes = cells + LS_SHM_CELLS * size * sizeof(ls_shm_cell);
    const size_t slots = pages(pipes + point_layout(&shm->point, shm->size));
    if (base != NULL) {
        shm->control = (ls_shm_control *)base;
        shm->ranks = (ls_shm_rank *)(base + ranks);
        shm->cells = (ls_shm_cell *)(base + cells);
        shm->point.pipes = base + pipes;
        shm->slots = base + slots;
        shm->slot = slot;
    }
    return slots + 2 * size * slot;
}

ls_status ls_shm_file_reserve(const char *call, int file, uint64_t offset, size_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur) {
        /* Otherwise the kernel would send SIGXFSZ. */
        return ls_fail(LS_ERR_MEMORY,
                       "%s: %zu bytes of shared memory exceed this process's file size limit (ulimit -f)", call, bytes);
    }
    int failure = 0;
    do {
        failure = fallocate(file, 0, (off_t)offset, (off_t)bytes) == 0 ? 0 : errno;
    } while (failure == EINTR);
    if (failure != 0) {
        return ls_fail(LS_ERR_MEMORY, "%s: cannot reserve %zu bytes of shared memory: %s", call, bytes,
                       strerror(failure));
    }
    return LS_OK;
}

ls_status ls_shm_file_create(const char *call, size_t bytes, int *file) {
    LS_TRY(ls_shm_check_memory(call, bytes));
    int made = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (made < 0 && errno == EINVAL) { /* kernels before 6.3 do not support the last flag */
        made = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (made < 0) {
        return ls_fail(LS_ERR_IO, "%s: cannot create shared memory (memfd_create): %s", call, strerror(errno));
    }
    const ls_status status = ls_shm_file_reserve(call, made, 0, bytes);
    if (status != LS_OK) {
        close(made);
        return status;
    }
    /* Prevents shrinking, so that accessing a mapped page never causes a bus error. Best effort: the file is private
     * to the job. */
    (void)fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK);
    *file = made;
    return LS_OK;
}

ls_status ls_shm_file_map(const char *call, int file, uint64_t offset, size_t bytes, unsigned char **base) {
    void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, (off_t)offset);
    if (mapping == MAP_FAILED) {
        return ls_fail(LS_ERR_MEMORY, "%s: cannot map %zu bytes of shared memory: %s", call, bytes, strerror(errno));
    }
    *base = mapping;
    return LS_OK;
}
