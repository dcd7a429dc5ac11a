/*
 * Tracks the estimate of whether the ranks' cores are far from each other, that is, share no cache, and the decisions
 * that follow from it. Uses neither a clock nor other ranks' memory; distance.c measures and publishes.
 */
#ifndef LS_COMM_BACKEND_SHM_DISTANCE_H
#define LS_COMM_BACKEND_SHM_DISTANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialized: the cores are considered near until they are measured. */
typedef struct ls_shm_distance {
    unsigned looks;      /* number of opportunities to measure the distance to other ranks */
    unsigned slow_looks; /* number of consecutive measurements in which lines of another rank's slot arrived slowly */
    unsigned far_calls;  /* number of upcoming calls in which all ranks assume distant cores */
} ls_shm_distance;

/* Returns true if this rank must measure at this opportunity: occasionally, and repeatedly as long as lines are
 * slow. */
bool ls_shm_distance_looks(ls_shm_distance *distance);

/* Records a measurement: loading LS_SHM_WAY_LINES lines took `took_ns`. */
void ls_shm_distance_saw(ls_shm_distance *distance, uint64_t took_ns);

/* Returns what this rank reports to the others before a call: true if enough consecutive measurements were slow. */
bool ls_shm_distance_is_far(const ls_shm_distance *distance);

/* Called after a call in which all ranks reported; `far` is true if at least one rank reported true. The result is
 * the same on all ranks. */
void ls_shm_distance_count(ls_shm_distance *distance, bool far);

/* Returns the size above which pieces are written with stores that bypass the caches. `setting` is the size from
 * ls_shm_sizes. */
size_t ls_shm_distance_past(const ls_shm_distance *distance, size_t setting);

#endif
