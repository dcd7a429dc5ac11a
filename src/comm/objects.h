/* Objects: exchanges one block of bytes per rank. The blocks may have different lengths. */
#ifndef LS_COMM_OBJECTS_H
#define LS_COMM_OBJECTS_H

#include <lockstep/comm.h>

/* The objects of all ranks. Must be zero-initialized; the next exchange reuses its memory. */
typedef struct ls_objects {
    unsigned char *memory; /* owned */
    size_t capacity;       /* bytes */
    size_t stride;         /* bytes from one object to the next */
    size_t offset;         /* of the first object */
} ls_objects;

/*
 * Gathers an object of `bytes` bytes from each rank on every rank. Needs one call on the communicator if all objects
 * have at most LS_OBJECT_INLINE bytes, otherwise two. `call` is named in messages. This is a collective call. If out of
 * memory, aborts the communicator, because the other ranks wait for this rank.
 */
#define LS_OBJECT_INLINE 120
ls_status ls_objects_allgather(const char *call, ls_comm *comm, const void *own, size_t bytes, ls_objects *all);

/* Returns a rank's object, aligned to 8 bytes. The next exchange overwrites it. */
static inline const void *ls_object_of(const ls_objects *all, int rank) {
    return all->memory + all->offset + (size_t)rank * all->stride;
}

/* Returns the size in bytes of a rank's object. */
size_t ls_object_bytes(const ls_objects *all, int rank);

void ls_objects_free(ls_objects *all);

#endif
