/*
 * Reduce-scatter: each rank reduces its own part. By size in bytes:
 *  - Data that fits into the cells uses them (cells.c).
 *  - If every rank's `send` lies in the same ls_comm_alloc, ranks read directly from there, in two steps.
 *  - Otherwise, data passes through the slots in rounds of one step each: a slot has an area for the next elements of
 *    every part.
 */
#include <string.h>

#include "comm/backend/shm/shm.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

static ls_piece part(const ls_shm *shm, int rank) {
    return ls_piece_part(shm->call.send_counts, shm->call.send_displacements, shm->call.count, rank);
}

/* Returns the number of elements of the largest part. */
static size_t largest(const ls_shm *shm) {
    size_t most = 0;
    for (int rank = 0; rank < shm->size; rank++) {
        const size_t count = part(shm, rank).count;
        most = count > most ? count : most;
    }
    return most;
}

/* Returns the number of elements that fit into an area of a slot; areas begin at multiples of 64 bytes if slots are
 * large enough. */
static size_t place_count(const ls_shm *shm) {
    return ls_shm_place(shm, shm->size, 0) / shm->call.width;
}

/* If the call is in place at the start of `send`, the result could overwrite elements of the rank's own part that
 * have not been read yet. */
static bool keeps_own(const ls_shm *shm) {
    return shm->call.receive != shm->call.send || part(shm, shm->rank).at == 0;
}

static size_t portion(const ls_shm *shm, int rank, size_t done) {
    const size_t count = part(shm, rank).count;
    const size_t most = place_count(shm);
    return count <= done ? 0 : count - done < most ? count - done : most;
}

/* Copies the elements from `done` on of every part into this rank's next slot. */
static void put_parts(const ls_shm *shm, size_t done) {
    const size_t width = shm->call.width;
    unsigned char *slot = ls_shm_slot(shm, shm->rank, shm->step + 1);
    for (int rank = 0; rank < shm->size; rank++) {
        const size_t count = portion(shm, rank, done);
        if (count != 0 && (rank != shm->rank || !keeps_own(shm))) {
            ls_shm_put_for(shm, rank, slot + (size_t)rank * place_count(shm) * width,
                           (const unsigned char *)shm->call.send + (part(shm, rank).at + done) * width, count * width);
        }
    }
}

/* Reduces `count` elements from shm->sources into `receive`, beginning at element `done`. */
static void reduce_into(const ls_shm *shm, size_t done, size_t count) {
    void *result = (unsigned char *)shm->call.receive + done * shm->call.width;
    if (count != 0) {
        ls_reduce_buffers(&(ls_reduce_task){.dtype = shm->call.dtype,
                                            .reduction = shm->call.reduction,
                                            .ranks = shm->size,
                                            .sources = shm->sources,
                                            .copies = 1,
                                            .destinations = &result,
                                            .count = count});
    }
}

static ls_status scatter_rounds(ls_shm *shm, bool *finished) {
    const size_t width = shm->call.width;
    const size_t done = shm->done;
    const size_t next = done + place_count(shm);
    *finished = next >= shm->most;
    if (!*finished) {
        put_parts(shm, next);
    }
    for (int rank = 0; rank < shm->size; rank++) {
        shm->sources[rank] = ls_shm_slot(shm, rank, shm->step) + (size_t)shm->rank * place_count(shm) * width;
    }
    if (keeps_own(shm)) {
        shm->sources[shm->rank] = (const unsigned char *)shm->call.send + (part(shm, shm->rank).at + done) * width;
    }
    reduce_into(shm, done, portion(shm, shm->rank, done));
    shm->done = next;
    if (!*finished) {
        ls_shm_post(shm);
    }
    return LS_OK;
}

/* Reduces directly from the memory of all ranks. No other rank reads a rank's own part, so the result may be written
 * there. */
static ls_status scatter_direct(ls_shm *shm, const ls_shm_region *region) {
    const ls_piece own = part(shm, shm->rank);
    const size_t at = own.at * shm->call.width;
    for (int rank = 0; rank < shm->size; rank++) {
        const uint64_t offset = ls_shm_cell_of(shm, rank)->send;
        const unsigned char *from = ls_shm_region_at(shm, region, rank, offset, at + own.count * shm->call.width);
        if (from == NULL) {
            return ls_error_status();
        }
        shm->sources[rank] = from + at;
    }
    reduce_into(shm, 0, own.count);
    return LS_OK;
}

static ls_status scatter_choose(ls_shm *shm, bool *finished) {
    LS_TRY(ls_shm_agree(shm, &shm->call));
    const ls_shm_region *region = ls_shm_region_common(shm);
    if (region != NULL) {
        shm->algorithm_name = "direct";
        LS_TRY(scatter_direct(shm, region));
        shm->stage = ls_shm_end;
    } else {
        shm->algorithm_name = "slots";
        shm->stage = scatter_rounds;
        if (!ls_shm_region_any(shm)) {
            ls_shm_look(shm, (shm->rank + 1) % shm->size, (size_t)shm->rank * place_count(shm) * shm->call.width,
                        portion(shm, shm->rank, 0) * shm->call.width);
            ls_shm_learn_distance(shm, shm->most * shm->call.width);
            return scatter_rounds(shm, finished);
        }
        put_parts(shm, 0);
    }
    ls_shm_post(shm);
    return LS_OK;
}

/* Tells the other ranks where this rank's buffer is, if they can access it and the result does not overwrite what
   they read. */
static void declare_send(const ls_shm *shm, ls_shm_cell *cell, size_t end) {
    const ls_shm_region *region = ls_shm_region_find(shm, shm->call.send, end * shm->call.width);
    if (region != NULL && keeps_own(shm)) {
        const unsigned char *own = region->base + (size_t)shm->rank * region->stride;
        cell->region = region->id;
        cell->send = (uint64_t)((const unsigned char *)shm->call.send - own);
    }
}

ls_status ls_shm_reduce_scatter(void *state, const ls_call *call) {
    ls_shm *shm = state;
    ls_shm_cell *cell = NULL;
    if (ls_shm_fits_cells(shm, call)) {
        return ls_shm_begin_cells(shm, call);
    }
    LS_TRY(ls_shm_declare(shm, call, &cell));
    const ls_piece last = part(shm, shm->size - 1);
    shm->most = largest(shm);
    ls_shm_tell_distance(shm, cell, shm->most * call->width);
    shm->stage = scatter_choose;
    if (shm->most * call->width >= shm->sizes[call->operation].direct) {
        declare_send(shm, cell, last.at + last.count);
    }
    if (cell->region == 0) {
        put_parts(shm, 0);
    }
    ls_shm_post(shm);
    return LS_OK;
}
