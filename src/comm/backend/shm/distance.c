/*
 * How far the cores of the ranks are from each other: whether they share a cache. Where they do not, lines that a rank
 * has just written come slowly to another, and so does the right to write them again come back; then it is faster to
 * write slots past the caches, into memory, and to read them from there. That does not tell how far the cores are, so
 * after some calls the usual way is tried again.
 */
#include <string.h>

#include "comm/backend/shm/shm.h"

#define LOOK_BYTES (64 * (LS_SHM_WAY_LINES + 1))

_Static_assert(sizeof(ls_shm_note) <= LS_SHM_PAYLOAD, "it travels in cells");

void ls_shm_tell_distance(ls_shm *shm, ls_shm_cell *cell, size_t bytes) {
    const uint64_t far = shm->slow_looks >= LS_SHM_SLOW_LOOKS;
    memcpy(cell->payload + offsetof(ls_shm_note, far), &far, sizeof far);
    const size_t by_distance = shm->far_calls != 0 ? LS_SHM_FAR_LEAST : LS_SHM_NEVER;
    shm->past_caches = bytes > (shm->algorithm.past == LS_SHM_PAST_BY_DISTANCE ? by_distance : shm->algorithm.past);
}

/* The first line is not counted: with it comes what the processor must know of the page. */
static void look(ls_shm *shm, const volatile unsigned char *lines) {
    (void)lines[0];
    const uint64_t began = ls_clock_ns();
    for (size_t i = 1; i <= LS_SHM_WAY_LINES; i++) {
        (void)lines[64 * i];
    }
    const uint64_t took = ls_clock_ns() - began;
    shm->slow_looks = took > LS_SHM_WAY_LINES * LS_SHM_NEAR_LINE_NS ? shm->slow_looks + 1 : 0;
}

void ls_shm_look(ls_shm *shm, int from, size_t at, size_t bytes) {
    if (from != shm->rank && shm->far_calls == 0 && !shm->past_caches && bytes >= LOOK_BYTES &&
        (shm->slow_looks != 0 || shm->looks++ % LS_SHM_LOOK_EVERY == 0)) {
        look(shm, ls_shm_slot(shm, from, shm->step) + at);
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
    if (shm->far_calls != 0) {
        shm->far_calls--;
    } else if (far) {
        shm->far_calls = LS_SHM_FAR_CALLS;
        shm->slow_looks = LS_SHM_SLOW_LOOKS - 1; /* when it is tried again, one look is enough */
    }
}
