/*
 * Whether the cores of the ranks are far from each other, that is, share no cache: what is known of it, and what
 * follows. Pure counting, without clock and memory of others; distance.c looks and tells.
 */
#ifndef LS_COMM_BACKEND_SHM_DISTANCE_H
#define LS_COMM_BACKEND_SHM_DISTANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A new one is all zero: near, as far as is known. */
typedef struct ls_shm_distance {
    unsigned looks;      /* chances there were to look how far the others are */
    unsigned slow_looks; /* how often in a row lines of another's slot were slow to come when this rank looked */
    unsigned far_calls; /* number of further calls in which all ranks assume that their cores are far from each other */
} ls_shm_distance;

/* Whether this rank is to look now that it can: now and then, and again as long as lines are slow. */
bool ls_shm_distance_looks(ls_shm_distance *distance);

/* It has looked: LS_SHM_WAY_LINES lines took `took_ns` to come. */
void ls_shm_distance_saw(ls_shm_distance *distance, uint64_t took_ns);

/* What this rank tells the others before a call: it was slow often enough. */
bool ls_shm_distance_is_far(const ls_shm_distance *distance);

/* After a call in which all ranks told that; `far` where one said yes. The same on all ranks. */
void ls_shm_distance_count(ls_shm_distance *distance, bool far);

/* The size beyond which pieces are written past the caches, where `setting` is what ls_shm_algorithm says of it. */
size_t ls_shm_distance_past(const ls_shm_distance *distance, size_t setting);

#endif
