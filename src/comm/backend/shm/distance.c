/*
 * Estimates whether the ranks' cores are far from each other, that is, share no cache. If they share none, cache lines
 * that a rank has just written reach other ranks slowly, and ownership of these lines returns slowly. Then it is faster
 * to write slots with stores that bypass the caches, and to read them from memory. Such writes do not reveal the
 * distance of the cores, so after some calls cached writes are tried again.
 */
#include <string.h>

#include "comm/backend/shm/shm.h"

#define LOOK_BYTES (64 * (LS_SHM_WAY_LINES + 1))

_Static_assert(sizeof(ls_shm_note) <= LS_SHM_PAYLOAD, "it travels in cells");

/* ---- counting ---------------------------------------------------------------------------------------------------- */

bool ls_shm_distance_looks(ls_shm_distance *distance) {
    return distance->far_calls == 0 && (distance->slow_looks != 0 || distance->looks++ % LS_SHM_LOOK_EVERY == 0);
}

void ls_shm_distance_saw(ls_shm_distance *distance, uint64_t took_ns) {
    const bool slow = took_ns > LS_SHM_WAY_LINES * LS_SHM_NEAR_LINE_NS;
    distance->slow_looks = slow ? distance->slow_looks + 1 : 0;
}

bool ls_shm_distance_is_far(const ls_shm_distance *distance) {
    return distance->slow_looks >= LS_SHM_SLOW_LOOKS;
}

void ls_shm_distance_count(ls_shm_distance *distance, bool far) {
    if (distance->far_calls != 0) {
        distance->far_calls--;
    } else if (far) {
        distance->far_calls = LS_SHM_FAR_CALLS;
        distance->slow_looks = LS_SHM_SLOW_LOOKS - 1; /* one slow measurement suffices next time */
    }
}

size_t ls_shm_distance_past(const ls_shm_distance *distance, size_t setting) {
    if (setting != LS_SHM_PAST_BY_DISTANCE) {
        return setting;
    }
    return distance->far_calls != 0 ? LS_SHM_FAR_LEAST : LS_SHM_NEVER;
}

/* ---- measuring and publishing ------------------------------------------------------------------------------------ */

void ls_shm_tell_distance(ls_shm *shm, ls_shm_cell *cell, size_t bytes) {
    const uint32_t far = ls_shm_distance_is_far(&shm->distance);
    memcpy(cell->payload + offsetof(ls_shm_note, far), &far, sizeof far);
    shm->past_caches = bytes > ls_shm_distance_past(&shm->distance, shm->sizes[shm->call.operation].past);
}

/* The first line is not timed, because its load includes the address translation of the page. */
static uint64_t way_ns(const volatile unsigned char *lines) {
    (void)lines[0];
    const uint64_t began = ls_clock_ns();
    for (size_t i = 1; i <= LS_SHM_WAY_LINES; i++) {
        (void)lines[64 * i];
    }
    return ls_clock_ns() - began;
}

void ls_shm_look(ls_shm *shm, int from, size_t at, size_t bytes) {
    if (from != shm->rank && !shm->past_caches && bytes >= LOOK_BYTES && ls_shm_distance_looks(&shm->distance)) {
        ls_shm_distance_saw(&shm->distance, way_ns(ls_shm_slot(shm, from, shm->step) + at));
    }
}

void ls_shm_learn_distance(ls_shm *shm, size_t bytes) {
    bool far = false;
    if (bytes <= LS_SHM_FAR_LEAST) {
        return;
    }
    for (int rank = 0; rank < shm->size; rank++) {
        ls_shm_note note;
        memcpy(&note, ls_shm_cell_of(shm, rank)->payload, sizeof note);
        far = far || note.far != 0;
    }
    ls_shm_distance_count(&shm->distance, far);
}
