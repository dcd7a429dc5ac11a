/*
 * All-reduce. A little: every rank sends all of its own with the call, and adds everything up. More: rank r adds up the
 * r-th part, chunk by chunk as it comes from the others, and sends them each chunk of the sum as soon as it is there.
 * The order is that of ls_reduce, the same on every rank.
 */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/gloo.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

#define WHOLE_BYTES ((size_t)64 << 10) /* that a rank may send so that each adds up everything */

static size_t bytes_of(const ls_gloo *gloo, size_t count) {
    return count * gloo->call.width;
}

/* What `rank` adds up, in elements. */
static ls_piece part_of(const ls_gloo *gloo, int rank) {
    const size_t size = (size_t)gloo->size;
    const size_t index = (size_t)rank;
    const size_t share = gloo->call.count / size;
    const size_t more = gloo->call.count % size;
    return (ls_piece){share + (index < more), share * index + (index < more ? index : more)};
}

static void add(ls_gloo *gloo, void *result, size_t bytes) {
    ls_reduce_buffers(&(ls_reduce_task){.dtype = gloo->call.dtype,
                                        .reduction = gloo->call.reduction,
                                        .ranks = gloo->size,
                                        .sources = gloo->sources,
                                        .copies = 1,
                                        .destinations = &result,
                                        .count = bytes / gloo->call.width});
}

/* Adds up what came with the calls. */
static void add_carried(ls_gloo *gloo, const ls_piece *piece) {
    const size_t at = bytes_of(gloo, piece->at);
    for (int rank = 0; rank < gloo->size; rank++) {
        gloo->sources[rank] = gloo->peers[rank].call->data;
    }
    gloo->sources[gloo->rank] = (const unsigned char *)gloo->call.send + at;
    if (piece->count != 0) {
        add(gloo, (unsigned char *)gloo->call.receive + at, bytes_of(gloo, piece->count));
    }
}

static ls_status end(ls_gloo *gloo, bool *finished) {
    (void)gloo;
    *finished = true;
    return LS_OK;
}

/* Whether all have sent what this rank adds up: else a rank sent another count than its call says. */
static ls_status check_counts(ls_gloo *gloo, size_t wanted) {
    for (int rank = 0; rank < gloo->size; rank++) {
        const uint64_t count = gloo->headers[rank]->count;
        if (count != wanted) {
            char name[64];
            ls_call_describe(gloo->call.operation, gloo->call.sequence, name, sizeof name);
            return ls_gloo_give_up(gloo,
                                   ls_fail(LS_ERR_PEER, "%s: rank %d sent %llu elements where %zu belong", name, rank,
                                           (unsigned long long)count, wanted),
                                   rank);
        }
    }
    return LS_OK;
}

static ls_status add_whole(ls_gloo *gloo, bool *finished) {
    const ls_piece all = {gloo->call.count, 0};
    LS_TRY(ls_gloo_agree(gloo));
    LS_TRY(check_counts(gloo, all.count));
    add_carried(gloo, &all);
    return end(gloo, finished);
}

/* ---- in parts ------------------------------------------------------------------------------------------------------
 */

ls_status ls_gloo_add(ls_gloo *gloo) {
    size_t there = gloo->own;
    for (int rank = 0; rank < gloo->size && gloo->adding; rank++) {
        const size_t came = gloo->peers[rank].came[LS_GLOO_PARTS];
        there = rank != gloo->rank && came < there ? came : there;
    }
    const size_t begin = bytes_of(gloo, part_of(gloo, gloo->rank).at);
    while (gloo->adding && gloo->reduced < there) {
        const size_t at = gloo->reduced % LS_GLOO_WINDOW;
        size_t bytes = there - gloo->reduced;
        bytes = bytes < LS_GLOO_WINDOW - at ? bytes : LS_GLOO_WINDOW - at;
        for (int rank = 0; rank < gloo->size; rank++) {
            gloo->sources[rank] = gloo->peers[rank].window + at;
        }
        gloo->sources[gloo->rank] = (const unsigned char *)gloo->call.send + begin + gloo->reduced;
        add(gloo, (unsigned char *)gloo->call.receive + begin + gloo->reduced, bytes);
        gloo->reduced += bytes;
        ls_gloo_ready(gloo, gloo->reduced);
        if (gloo->reduced == gloo->own) {
            gloo->adding = false;
            gloo->open--;
        }
    }
    return LS_OK;
}

/* Sends a rank its part, if that did not go with the call, and queues the sum of this rank's own. */
static ls_status accumulate_part(ls_gloo *gloo, int peer, bool carried) {
    const ls_piece theirs = part_of(gloo, peer);
    const ls_piece own = part_of(gloo, gloo->rank);
    if (!carried && theirs.count != 0) {
        const ls_gloo_run run = {.open = &gloo->open,
                                 .slot = LS_GLOO_PARTS,
                                 .data = (const unsigned char *)gloo->call.send + bytes_of(gloo, theirs.at),
                                 .bytes = bytes_of(gloo, theirs.count),
                                 .window = LS_GLOO_WINDOW};
        LS_TRY(ls_gloo_send_data(gloo, peer, &run, false));
    }
    if (own.count != 0) {
        const ls_gloo_run run = {.open = &gloo->open,
                                 .slot = LS_GLOO_SUMS,
                                 .data = (const unsigned char *)gloo->call.receive + bytes_of(gloo, own.at),
                                 .bytes = bytes_of(gloo, own.count)};
        LS_TRY(ls_gloo_send_data(gloo, peer, &run, true));
    }
    ls_gloo_expect(gloo, peer, LS_GLOO_SUMS);
    return LS_OK;
}

/* Whether parts travel with the call: the first is the largest. */
static bool parts_are_carried(const ls_gloo *gloo) {
    return bytes_of(gloo, part_of(gloo, 0).count) <= LS_GLOO_ROOM;
}

static ls_status add_parts(ls_gloo *gloo, bool *finished) {
    const bool carried = parts_are_carried(gloo);
    const ls_piece own = part_of(gloo, gloo->rank);
    *finished = false;
    gloo->stage = end;
    LS_TRY(ls_gloo_agree(gloo));
    LS_TRY(check_counts(gloo, own.count));
    for (int i = 1; i < gloo->size; i++) {
        LS_TRY(accumulate_part(gloo, (gloo->rank + i) % gloo->size, carried));
    }
    if (carried) {
        add_carried(gloo, &own);
        ls_gloo_ready(gloo, bytes_of(gloo, own.count));
        return LS_OK;
    }
    gloo->adding = true;
    gloo->open++;
    return ls_gloo_add(gloo);
}

/* Memory for parts of sums: it stays for the next call. */
static ls_status open_windows(ls_gloo *gloo) {
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_gloo_peer *other = &gloo->peers[peer];
        if (peer == gloo->rank || other->window != NULL) {
            continue;
        }
        other->window = ls_allocate_aligned(LS_GLOO_WINDOW, 4096);
        if (other->window == NULL) {
            return ls_gloo_give_up(gloo, ls_fail_memory("ls_comm_allreduce", LS_GLOO_WINDOW), gloo->rank);
        }
        LS_TRY(ls_gloo_aim(gloo, peer, LS_GLOO_PARTS, other->window, LS_GLOO_WINDOW));
    }
    return LS_OK;
}

static ls_status begin_parts(ls_gloo *gloo) {
    if (!parts_are_carried(gloo)) {
        LS_TRY(open_windows(gloo));
    }
    gloo->own = bytes_of(gloo, part_of(gloo, gloo->rank).count);
    gloo->reduced = 0;
    for (int peer = 0; peer < gloo->size; peer++) {
        const ls_piece piece = part_of(gloo, peer);
        if (peer != gloo->rank && piece.count != 0) {
            unsigned char *sum = (unsigned char *)gloo->call.receive + bytes_of(gloo, piece.at);
            LS_TRY(ls_gloo_aim(gloo, peer, LS_GLOO_SUMS, sum, bytes_of(gloo, piece.count)));
        }
    }
    return LS_OK;
}

ls_status ls_gloo_allreduce(void *state, const ls_call *call) {
    ls_gloo *gloo = state;
    const size_t bytes = call->count * call->width;
    const bool whole = bytes <= LS_GLOO_ROOM && bytes * (size_t)(gloo->size - 1) <= WHOLE_BYTES;
    LS_TRY(ls_gloo_begin(gloo, call, whole ? add_whole : add_parts));
    if (!whole) {
        LS_TRY(begin_parts(gloo));
    }
    for (int i = 0; i < gloo->size; i++) {
        const int peer = (gloo->rank + i) % gloo->size;
        const ls_piece piece = whole ? (ls_piece){call->count, 0} : part_of(gloo, peer);
        const size_t at = piece.at * call->width;
        LS_TRY(ls_gloo_tell(gloo, peer, piece.count != 0 ? (const unsigned char *)call->send + at : NULL, piece.count));
    }
    return LS_OK;
}
