#include <string.h>

#include "base/share.h"
#include "comm/backend/shm/shm.h"
#include "comm/reduce.h"

/*
 * How a buffer is transferred, by its size in bytes:
 *  - Data that fits into the cells uses them (cells.c).
 *  - Up to the algorithm's `whole`, each rank writes its whole buffer to its slot and reads all slots: one step per
 *    chunk.
 *  - Above this size, each rank of an all-reduce reduces its share. This happens directly between the buffers if all
 *    ranks send from one ls_comm_alloc and receive into the same or a different one (two steps). Otherwise, the data
 *    passes through the slots in chunks, with copying, reducing and collecting at the same time (one step per chunk,
 *    and two more).
 *  - Between two cores that are far from each other, each of these transfers costs more than the addition. So ordinary
 *    memory of any size is transferred whole, and written to the slots with stores that bypass the caches.
 */

static size_t call_bytes(const ls_shm *shm) {
    return shm->call.count * shm->call.width;
}

static bool goes_whole(const ls_shm *shm) {
    return call_bytes(shm) <= shm->sizes[shm->call.operation].whole || (shm->past_caches && shm->size == 2);
}

/* ---- the positions of the buffers -------------------------------------------------------------------------------- */

/* Returns true if this rank receives the result of the reduction. */
static bool takes_result(const ls_shm *shm) {
    return shm->call.operation != LS_OP_REDUCE || shm->rank == shm->call.root;
}

/* Tells the other ranks where this rank's buffers are, if the other ranks can access them. */
static void declare_region(ls_shm *shm, ls_shm_cell *cell) {
    const size_t bytes = call_bytes(shm);
    const unsigned char *send = shm->call.send;
    const unsigned char *receive = takes_result(shm) ? shm->call.receive : send;
    const ls_shm_region *from = ls_shm_region_find(shm, send, bytes);
    const ls_shm_region *into = receive == send ? from : ls_shm_region_find(shm, receive, bytes);
    if (from == NULL || into == NULL) {
        return;
    }
    cell->region = from->id;
    cell->send = (uint64_t)(send - (from->base + (size_t)shm->rank * from->stride));
    cell->receive = (uint64_t)(receive - (into->base + (size_t)shm->rank * into->stride));
    memcpy(cell->payload + offsetof(ls_shm_note, into), &into->id, sizeof into->id);
}

static uint32_t region_into(const ls_shm *shm, int rank) {
    ls_shm_note note;
    memcpy(&note, ls_shm_cell_of(shm, rank)->payload, sizeof note);
    return note.into;
}

/* Finds the regions that all ranks reduce from and receive into. Returns false if the regions are not the same on
 * all ranks, or if this rank has released one. */
static bool find_regions(const ls_shm *shm, const ls_shm_region **from, const ls_shm_region **into) {
    *from = ls_shm_region_common(shm);
    if (*from == NULL) {
        return false;
    }
    const uint32_t id = region_into(shm, shm->rank);
    for (int rank = 0; rank < shm->size; rank++) {
        if (region_into(shm, rank) != id) {
            return false;
        }
    }
    *into = ls_shm_region_of(shm, id);
    return *into != NULL;
}

/* Sets the elements [*first, *first + *count) that are the rank's share of `total`. Shares begin at multiples of 64
 * bytes. */
static void share(const ls_shm *shm, size_t total, int rank, size_t *first, size_t *count) {
    const size_t line = 64 / shm->call.width;
    const ls_share lines = ls_share_of((int64_t)((total + line - 1) / line), shm->size, rank);
    const size_t from = (size_t)lines.start, to = (size_t)(lines.start + lines.count);
    *first = from * line < total ? from * line : total;
    *count = (to * line < total ? to * line : total) - *first;
}

/* Divides the buffer into chunks that fit into a slot. All chunks have the same size, except that the last may be
 * slightly smaller. */
static void choose_chunk(ls_shm *shm) {
    const size_t width = shm->call.width;
    const size_t line = 64 / width;
    const size_t most = ls_shm_place(shm, 1, 0);
    const size_t chunks = (call_bytes(shm) + most - 1) / most;
    const size_t each = (shm->call.count + chunks - 1) / chunks;
    shm->chunk = (each + line - 1) / line * line;
}

/* Returns the number of elements in the chunk that begins at `from`; 0 at the end. */
static size_t chunk_at(const ls_shm *shm, size_t from) {
    if (from >= shm->call.count) {
        return 0;
    }
    return shm->call.count - from < shm->chunk ? shm->call.count - from : shm->chunk;
}

/* Finds the rank's share of the chunk at `from`. Shares begin at the same offsets in all chunks, so that a rank's
 * results can be stored in the gap that its own share leaves in the slot of the next chunk. */
static void share_of_chunk(const ls_shm *shm, size_t from, int rank, size_t *first, size_t *count) {
    const size_t end = chunk_at(shm, from);
    share(shm, shm->chunk, rank, first, count);
    const size_t last = *first + *count < end ? *first + *count : end;
    *first = *first < end ? *first : end;
    *count = last - *first;
}

static void reduce(const ls_shm *shm, int copies, size_t count) {
    const ls_reduce_task task = {.dtype = shm->call.dtype,
                                 .reduction = shm->call.reduction,
                                 .ranks = shm->size,
                                 .sources = shm->sources,
                                 .copies = copies,
                                 .destinations = shm->destinations,
                                 .count = count};
    ls_reduce_buffers(&task);
}

ls_status ls_shm_end(ls_shm *shm, bool *finished) {
    (void)shm;
    *finished = true;
    return LS_OK;
}

/* ---- all-reduce and reduce --------------------------------------------------------------------------------------- */

/* Copies the whole chunk at `from` into this rank's next slot. */
static void put_whole(const ls_shm *shm, size_t from) {
    const size_t bytes = chunk_at(shm, from) * shm->call.width;
    if (bytes != 0 && (shm->call.operation != LS_OP_REDUCE || shm->rank != shm->call.root)) {
        ls_shm_put(shm, ls_shm_slot(shm, shm->rank, shm->step + 1),
                   (const unsigned char *)shm->call.send + from * shm->call.width, bytes);
    }
}

/* Runs when the slots of this step contain the whole chunk at `done`. */
static ls_status allreduce_whole(ls_shm *shm, bool *finished) {
    const size_t at = shm->done * shm->call.width;
    const size_t count = chunk_at(shm, shm->done);
    put_whole(shm, shm->done + count);
    if (takes_result(shm)) {
        for (int rank = 0; rank < shm->size; rank++) {
            shm->sources[rank] = ls_shm_slot(shm, rank, shm->step);
        }
        shm->sources[shm->rank] = (const unsigned char *)shm->call.send + at;
        shm->destinations[0] = (unsigned char *)shm->call.receive + at;
        reduce(shm, 1, count);
    }
    shm->done += count;
    *finished = shm->done >= shm->call.count;
    if (!*finished) {
        ls_shm_post(shm);
    }
    return LS_OK;
}

/* Reduces this rank's share directly between the ranks' buffers, and stores the result in all ranks' buffers or the
 * root's. */
static ls_status allreduce_direct(ls_shm *shm, const ls_shm_region *from, const ls_shm_region *into) {
    const bool to_all = shm->call.operation != LS_OP_REDUCE;
    size_t first = 0;
    size_t count = 0;
    int copies = 0;
    share(shm, shm->call.count, shm->rank, &first, &count);
    for (int rank = 0; rank < shm->size; rank++) {
        const ls_shm_cell *cell = ls_shm_cell_of(shm, rank);
        const size_t at = first * shm->call.width;
        const unsigned char *source = ls_shm_region_at(shm, from, rank, cell->send, call_bytes(shm));
        unsigned char *goal = ls_shm_region_at(shm, into, rank, cell->receive, call_bytes(shm));
        if (source == NULL || goal == NULL) {
            return ls_error_status();
        }
        shm->sources[rank] = source + at;
        if (to_all || rank == shm->call.root) {
            shm->destinations[copies++] = goal + at;
        }
    }
    reduce(shm, copies, count);
    return LS_OK;
}

/* Copies the chunk at `from`, except this rank's own share, into this rank's slot of `step`. */
static void put_chunk(const ls_shm *shm, size_t from, uint64_t step) {
    const size_t width = shm->call.width;
    const size_t count = chunk_at(shm, from);
    size_t own = 0;
    size_t owned = 0;
    share_of_chunk(shm, from, shm->rank, &own, &owned);
    const unsigned char *source = (const unsigned char *)shm->call.send + from * width;
    unsigned char *slot = ls_shm_slot(shm, shm->rank, step);
    const size_t after = own + owned;
    ls_shm_put(shm, slot, source, own * width);
    ls_shm_put(shm, slot + after * width, source + after * width, (count - after) * width);
}

/* Reduces this rank's share of the chunk at `from` into its buffer and, for the other ranks, into the gap in its
 * next slot. */
static void reduce_chunk(const ls_shm *shm, size_t from) {
    const size_t width = shm->call.width;
    size_t own = 0;
    size_t owned = 0;
    share_of_chunk(shm, from, shm->rank, &own, &owned);
    for (int rank = 0; rank < shm->size; rank++) {
        shm->sources[rank] = ls_shm_slot(shm, rank, shm->step) + own * width;
    }
    shm->sources[shm->rank] = (const unsigned char *)shm->call.send + (from + own) * width;
    int copies = 0;
    if (takes_result(shm)) {
        shm->destinations[copies++] = (unsigned char *)shm->call.receive + (from + own) * width;
    }
    if (shm->call.operation != LS_OP_REDUCE || shm->rank != shm->call.root) {
        shm->destinations[copies++] = ls_shm_slot(shm, shm->rank, shm->step + 1) + own * width;
    }
    reduce(shm, copies, owned);
}

/* Collects the other ranks' results for the chunk at `from`. */
static void collect_chunk(const ls_shm *shm, size_t from) {
    const size_t width = shm->call.width;
    unsigned char *target = (unsigned char *)shm->call.receive + from * width;
    for (int rank = 0; rank < shm->size; rank++) {
        size_t first = 0;
        size_t shared = 0;
        share_of_chunk(shm, from, rank, &first, &shared);
        if (rank != shm->rank) {
            ls_shm_copy(target + first * width, ls_shm_slot(shm, rank, shm->step) + first * width, shared * width, 0);
        }
    }
}

/*
 * Runs one step of the pipeline. The slots of this step contain the chunk at `done` and the results of the previous
 * chunk. The slots of the next step receive the results of the chunk at `done`, and the following chunk.
 */
static ls_status allreduce_chunks(ls_shm *shm, bool *finished) {
    const size_t chunk = shm->chunk;
    const size_t at = shm->done;
    const bool last = at >= shm->call.count;
    if (!last) {
        put_chunk(shm, at + chunk, shm->step + 1);
        reduce_chunk(shm, at);
    }
    if (at != 0 && takes_result(shm)) {
        collect_chunk(shm, at - chunk);
    }
    shm->done += chunk;
    *finished = last;
    if (!last) {
        ls_shm_post(shm);
    }
    return LS_OK;
}

/* Copies the data that the other ranks need first into this rank's next slot. */
static void put_first(const ls_shm *shm) {
    if (goes_whole(shm)) {
        put_whole(shm, 0);
    } else {
        put_chunk(shm, 0, shm->step + 1);
    }
}

/* Measures how far away the next rank is, after that rank has written data for this rank. */
static void watch(ls_shm *shm) {
    size_t first = 0;
    size_t count = chunk_at(shm, 0);
    if (!ls_shm_minds_distance(shm, call_bytes(shm))) {
        return;
    }
    if (!goes_whole(shm)) {
        share_of_chunk(shm, 0, shm->rank, &first, &count);
    }
    if (takes_result(shm)) {
        ls_shm_look(shm, (shm->rank + 1) % shm->size, first * shm->call.width, count * shm->call.width);
    }
    ls_shm_learn_distance(shm, call_bytes(shm));
}

/* Runs after all ranks have declared the same call and the positions of their buffers. Ranks whose buffers lie in
 * one of their regions have not put anything into their slots yet. */
static ls_status allreduce_choose(ls_shm *shm, bool *finished) {
    LS_TRY(ls_shm_agree(shm, &shm->call));
    const ls_shm_region *from = NULL;
    const ls_shm_region *into = NULL;
    if (find_regions(shm, &from, &into)) {
        shm->algorithm_name = "direct";
        LS_TRY(allreduce_direct(shm, from, into));
        shm->stage = ls_shm_end;
    } else {
        shm->algorithm_name = goes_whole(shm) ? "whole" : "chunks";
        shm->stage = goes_whole(shm) ? allreduce_whole : allreduce_chunks;
        if (!ls_shm_region_any(shm)) {
            watch(shm);
            return shm->stage(shm, finished);
        }
        put_first(shm);
    }
    ls_shm_post(shm);
    return LS_OK;
}

ls_status ls_shm_reduce(void *state, const ls_call *call) {
    ls_shm *shm = state;
    ls_shm_cell *cell = NULL;
    if (ls_shm_fits_cells(shm, call)) {
        return ls_shm_begin_cells(shm, call);
    }
    LS_TRY(ls_shm_declare(shm, call, &cell));
    if (ls_shm_minds_distance(shm, call_bytes(shm))) {
        ls_shm_tell_distance(shm, cell, call_bytes(shm));
    }
    shm->stage = allreduce_choose;
    choose_chunk(shm);
    if (call_bytes(shm) >= shm->sizes[call->operation].direct) {
        declare_region(shm, cell);
    }
    if (cell->region == 0) {
        put_first(shm);
    }
    ls_shm_post(shm);
    return LS_OK;
}

/* ---- broadcast
 * ---------------------------------------------------------------------------------------------------------- */

/* On the root, copies the chunk at `from` into its slot of the next step. */
static void broadcast_put(const ls_shm *shm, size_t from) {
    const size_t bytes = chunk_at(shm, from) * shm->call.width;
    if (shm->rank == shm->call.root && bytes != 0) {
        ls_shm_put(shm, ls_shm_slot(shm, shm->rank, shm->step + 1),
                   (const unsigned char *)shm->call.send + from * shm->call.width, bytes);
    }
}

/* Runs when the root's slot for this step contains the chunk at `done`; meanwhile, the root fills its slot for the next
 * step. */
static ls_status broadcast_chunks(ls_shm *shm, bool *finished) {
    const size_t at = shm->done;
    const size_t count = chunk_at(shm, at);
    broadcast_put(shm, at + count);
    if (shm->rank != shm->call.root) {
        ls_shm_copy((unsigned char *)shm->call.receive + at * shm->call.width,
                    ls_shm_slot(shm, shm->call.root, shm->step), count * shm->call.width, call_bytes(shm));
    }
    shm->done += count;
    *finished = shm->done >= shm->call.count;
    if (!*finished) {
        ls_shm_post(shm);
    }
    return LS_OK;
}

static ls_status broadcast_large(ls_shm *shm, bool *finished) {
    LS_TRY(ls_shm_agree(shm, &shm->call));
    const ls_shm_region *region = ls_shm_region_common(shm);
    shm->algorithm_name = region == NULL ? "slots" : "direct";
    if (region == NULL) {
        ls_shm_look(shm, shm->call.root, 0, chunk_at(shm, 0) * shm->call.width);
        ls_shm_learn_distance(shm, call_bytes(shm));
        shm->stage = broadcast_chunks;
        return broadcast_chunks(shm, finished);
    }
    if (shm->rank != shm->call.root) {
        const uint64_t offset = ls_shm_cell_of(shm, shm->call.root)->send;
        const unsigned char *from = ls_shm_region_at(shm, region, shm->call.root, offset, call_bytes(shm));
        if (from == NULL) {
            return ls_error_status();
        }
        ls_shm_copy(shm->call.receive, from, call_bytes(shm), call_bytes(shm));
    }
    shm->stage = ls_shm_end;
    ls_shm_post(shm);
    return LS_OK;
}

ls_status ls_shm_broadcast(void *state, const ls_call *call) {
    ls_shm *shm = state;
    ls_shm_cell *cell = NULL;
    if (ls_shm_fits_cells(shm, call)) {
        return ls_shm_begin_cells(shm, call);
    }
    LS_TRY(ls_shm_declare(shm, call, &cell));
    choose_chunk(shm);
    ls_shm_tell_distance(shm, cell, call_bytes(shm));
    if (call_bytes(shm) > shm->sizes[call->operation].direct_moves) {
        declare_region(shm, cell);
    }
    broadcast_put(shm, 0);
    shm->stage = broadcast_large;
    ls_shm_post(shm);
    return LS_OK;
}

/* ---- progress
 * ------------------------------------------------------------------------------------------------------------- */

ls_status ls_shm_progress(void *state, bool wait, bool *finished) {
    ls_shm *shm = state;
    *finished = false;
    while (!*finished) {
        if (wait) {
            LS_TRY(ls_shm_wait(shm));
        } else if (!ls_shm_ready(shm)) {
            bool moved = false;
            LS_TRY(ls_shm_point_poll(shm, &moved));
            return ls_shm_check(shm);
        }
        LS_TRY(shm->stage(shm, finished));
    }
    return LS_OK;
}
