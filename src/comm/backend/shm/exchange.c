/*
 * Calls that only move data. All use one algorithm over the pieces of comm/pieces.h. By size in bytes:
 *  - Data that fits into the cells uses them (cells.c).
 *  - Above LS_SHM_DIRECT_MOVES, if all sent data lies in memory from ls_comm_alloc, each rank reads its pieces
 *    directly from there, and a second step ends the call.
 *  - Above the same size, pieces in other memory are read from the senders' own buffers in two cases, if the kernel
 *    allows it: between threads of a process, and if the number of ranks leaves each rank little room in a slot.
 *  - All other data passes through the slots in rounds of one step each.
 * If only the sender knows its counts, a call begins with an additional step in which all ranks compare counts. No rank
 * writes results before this comparison.
 *
 * A slot contains the table of pieces, if the call has one, and then one area per piece, all of the same size, or a
 * single area if all ranks are sent the same data.
 */
#include <string.h>

#include "comm/backend/shm/shm.h"
#include "comm/pieces.h"

/* The description of a piece that a sender gives its receiver. */
typedef struct exchange_entry {
    uint64_t at;    /* bytes into its buffer */
    uint64_t count; /* elements */
} exchange_entry;

/* The result of a rank's comparison of the counts sent to it with the counts it expects. */
typedef struct verdict {
    uint64_t sent;
    uint64_t wanted;
    int32_t from; /* -1: all agrees */
} verdict;

_Static_assert(sizeof(ls_shm_note) + sizeof(verdict) <= LS_SHM_PAYLOAD, "these travel in cells");

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* Returns true if only the sender knows its pieces. */
static bool has_table(const ls_call *call) {
    return call->operation == LS_OP_SCATTERV || call->operation == LS_OP_ALLTOALLV;
}

/* Returns true if the user gives counts on both sides, so that the counts may differ. */
static bool needs_verdict(const ls_call *call) {
    return call->operation == LS_OP_GATHERV || call->operation == LS_OP_SCATTERV || call->operation == LS_OP_ALLTOALLV;
}

static bool cuts(const ls_call *call) {
    return has_table(call) || ls_flows[call->operation].cuts;
}

/* Returns the size in bytes of the largest piece that this rank sends. */
static size_t largest_sent(const ls_shm *shm) {
    const ls_call *call = &shm->call;
    if (!has_table(call)) {
        return call->count * call->width;
    }
    size_t most = 0;
    for (int to = 0; to < shm->size; to++) {
        const size_t count = ls_piece_sent(call, shm->rank, to).count;
        most = count > most ? count : most;
    }
    return most * call->width;
}

static size_t table_bytes(const ls_shm *shm) {
    return has_table(&shm->call) ? (size_t)shm->size * sizeof(exchange_entry) : 0;
}

/* Returns how many bytes of each piece fit into a slot. */
static size_t place_bytes(const ls_shm *shm) {
    return ls_shm_place(shm, cuts(&shm->call) ? shm->size : 1, table_bytes(shm));
}

static size_t place_of(const ls_shm *shm, int to) {
    return table_bytes(shm) + (cuts(&shm->call) ? place_bytes(shm) * (size_t)to : 0);
}

/* Returns the maximum size of pieces that pass through the slots. If any piece is larger, all pieces are read from
 * the senders' own buffers; LS_SHM_NEVER means that this is never done. Equal on all ranks. */
static size_t most_unread(const ls_shm *shm) {
    if (!shm->peer_reads) {
        return LS_SHM_NEVER;
    }
    if (shm->sizes[shm->call.operation].read != LS_SHM_READ_BY_SHAPE) {
        return shm->sizes[shm->call.operation].read;
    }
    const bool in_slots = shm->file >= 0 && place_bytes(shm) >= LS_SHM_PLACE_LEAST;
    return in_slots ? LS_SHM_NEVER : LS_SHM_DIRECT_MOVES;
}

/* Returns true if this rank, whose largest piece is `largest`, leaves its data in its own buffer, where the other
 * ranks read it. */
static bool leaves(const ls_shm *shm, const ls_shm_cell *cell, size_t largest) {
    return cell->region != 0 || largest > most_unread(shm);
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

static unsigned char *target_of(const ls_shm *shm, ls_piece piece) {
    return (unsigned char *)shm->call.receive + piece.at * shm->call.width;
}

/* Copies at most `most` bytes, starting at `done`, of the piece that this rank sends to itself. */
static void copy_own(const ls_shm *shm, size_t done, size_t most) {
    const ls_call *call = &shm->call;
    const ls_piece sent = ls_piece_sent(call, shm->rank, shm->rank);
    const ls_piece received = ls_piece_received(call, shm->rank, shm->rank);
    const size_t bytes = received.count * call->width;
    if (done < bytes) {
        const unsigned char *from = (const unsigned char *)call->send + sent.at * call->width;
        unsigned char *to = target_of(shm, received);
        if (to != from) {
            ls_shm_copy(to + done, from + done, bytes - done < most ? bytes - done : most, bytes);
        }
    }
}

/* Copies the bytes from `done` on of every piece that this rank sends into its next slot. */
static void put_pieces(const ls_shm *shm, size_t done) {
    const ls_call *call = &shm->call;
    const size_t place = place_bytes(shm);
    unsigned char *slot = ls_shm_slot(shm, shm->rank, shm->step + 1);
    bool put = false;
    for (int to = 0; to < shm->size && !(put && !cuts(call)); to++) {
        const ls_piece piece = ls_piece_sent(call, shm->rank, to);
        const size_t bytes = piece.count * call->width;
        if (to != shm->rank && done < bytes) {
            const unsigned char *from = (const unsigned char *)call->send + piece.at * call->width + done;
            const size_t part = bytes - done < place ? bytes - done : place;
            if (cuts(call)) {
                ls_shm_put_for(shm, to, slot + place_of(shm, to), from, part);
            } else {
                ls_shm_put(shm, slot + place_of(shm, to), from, part);
            }
            put = true;
        }
    }
}

static void put_table(const ls_shm *shm) {
    unsigned char *slot = ls_shm_slot(shm, shm->rank, shm->step + 1);
    for (int to = 0; to < shm->size && has_table(&shm->call); to++) {
        const ls_piece piece = ls_piece_sent(&shm->call, shm->rank, to);
        const exchange_entry told = {.at = piece.at * shm->call.width, .count = piece.count};
        memcpy(slot + (size_t)to * sizeof told, &told, sizeof told);
    }
}

/* Returns the description by `from` of the piece that it sends to this rank. */
static exchange_entry told_by(const ls_shm *shm, int from) {
    exchange_entry told;
    if (has_table(&shm->call)) {
        memcpy(&told, ls_shm_slot(shm, from, shm->step) + (size_t)shm->rank * sizeof told, sizeof told);
        return told;
    }
    const ls_flow *flow = &ls_flows[shm->call.operation];
    const size_t part = flow->cuts ? shm->call.count * shm->call.width * (size_t)shm->rank : 0;
    return (exchange_entry){.at = part, .count = ls_piece_received(&shm->call, shm->rank, from).count};
}

/* Copies the bytes from `done` on of every piece that this rank receives from the slots of this step. */
static void take_pieces(const ls_shm *shm, size_t done) {
    const ls_call *call = &shm->call;
    const size_t place = place_bytes(shm);
    for (int from = 0; from < shm->size; from++) {
        const ls_piece piece = ls_piece_received(call, shm->rank, from);
        const size_t bytes = piece.count * call->width;
        if (from != shm->rank && done < bytes) {
            ls_shm_copy(target_of(shm, piece) + done, ls_shm_slot(shm, from, shm->step) + place_of(shm, shm->rank),
                        bytes - done < place ? bytes - done : place, bytes);
        }
    }
}

/* ---- directly from the senders' buffers -------------------------------------------------------------------------- */

/* Tells the other ranks where this rank's buffer is, if its largest piece is large enough. */
static void declare_buffer(const ls_shm *shm, ls_shm_cell *cell, size_t largest) {
    const ls_call *call = &shm->call;
    size_t end = 0;
    uint64_t offset = 0;
    cell->send = (uint64_t)(uintptr_t)call->send;
    cell->region = 0;
    for (int to = 0; to < shm->size && largest > shm->sizes[call->operation].direct_moves; to++) {
        const ls_piece piece = ls_piece_sent(call, shm->rank, to);
        end = piece.at + piece.count > end ? piece.at + piece.count : end;
    }
    const ls_shm_region *region = end != 0 ? ls_shm_region_find(shm, call->send, end * call->width) : NULL;
    if (region != NULL) {
        cell->region = region->id;
        const unsigned char *part = region->base + (size_t)shm->rank * region->stride;
        offset = (uint64_t)((const unsigned char *)call->send - part);
    }
    memcpy(cell->payload + offsetof(ls_shm_note, offset), &offset, sizeof offset);
}

static ls_status read_piece(ls_shm *shm, int from, ls_piece piece) {
    const ls_shm_cell *cell = ls_shm_cell_of(shm, from);
    const uint64_t at = told_by(shm, from).at;
    const size_t bytes = piece.count * shm->call.width;
    const ls_shm_region *region = ls_shm_region_of(shm, cell->region);
    if (region == NULL) {
        return ls_shm_peer_read(shm, &shm->call, from, target_of(shm, piece), cell->send + at, bytes);
    }
    ls_shm_note note;
    memcpy(&note, cell->payload, sizeof note);
    const uint64_t offset = note.offset <= SIZE_MAX - at ? note.offset + at : SIZE_MAX;
    const unsigned char *source = ls_shm_region_at(shm, region, from, offset, bytes);
    if (source == NULL) {
        return ls_error_status();
    }
    ls_shm_copy(target_of(shm, piece), source, bytes, bytes);
    return LS_OK;
}

/* Each rank begins with the rank after it, so that the ranks do not all read from the same rank. */
static ls_status read_pieces(ls_shm *shm) {
    for (int i = 1; i < shm->size; i++) {
        const int from = (shm->rank + i) % shm->size;
        const ls_piece piece = ls_piece_received(&shm->call, shm->rank, from);
        if (piece.count != 0) {
            LS_TRY(read_piece(shm, from, piece));
        }
    }
    return LS_OK;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static ls_status exchange_rounds(ls_shm *shm, bool *finished) {
    const size_t next = shm->done + place_bytes(shm);
    *finished = next >= shm->most;
    if (!*finished) {
        put_pieces(shm, next);
        copy_own(shm, next, place_bytes(shm)); /* just read */
    }
    take_pieces(shm, shm->done);
    shm->done = next;
    if (!*finished) {
        ls_shm_post(shm);
    }
    return LS_OK;
}

/* Returns true if all sent data lies in memory that all ranks can access. */
static bool all_in_regions(const ls_shm *shm) {
    for (int rank = 0; rank < shm->size; rank++) {
        const ls_shm_cell *cell = ls_shm_cell_of(shm, rank);
        if (cell->receive != 0 && cell->region == 0) {
            return false;
        }
    }
    return true;
}

/* Measures the distance with the piece that is received first. */
static void look(ls_shm *shm) {
    const int from = (shm->rank + 1) % shm->size;
    const size_t bytes = ls_piece_received(&shm->call, shm->rank, from).count * shm->call.width;
    const size_t place = place_bytes(shm);
    ls_shm_look(shm, from, place_of(shm, shm->rank), bytes < place ? bytes : place);
}

/* Runs when the slots of this step contain the table, and the pieces of the ranks that do not leave them in their
 * buffers; the cells contain the sizes of the pieces. */
static ls_status deliver(ls_shm *shm, bool *finished) {
    bool left = false;
    shm->most = 0;
    for (int rank = 0; rank < shm->size; rank++) {
        const ls_shm_cell *cell = ls_shm_cell_of(shm, rank);
        shm->most = cell->receive > shm->most ? cell->receive : shm->most;
        left = left || leaves(shm, cell, cell->receive);
    }
    shm->algorithm_name = "slots";
    if (!left) {
        look(shm);
        ls_shm_learn_distance(shm, shm->most);
        copy_own(shm, 0, place_bytes(shm));
        shm->stage = exchange_rounds;
        return exchange_rounds(shm, finished);
    }
    const bool direct = all_in_regions(shm);
    if (direct || shm->most > most_unread(shm)) {
        shm->algorithm_name = direct ? "direct" : "read";
        copy_own(shm, 0, SIZE_MAX);
        LS_TRY(read_pieces(shm));
        shm->stage = ls_shm_end;
    } else {
        put_pieces(shm, 0);
        copy_own(shm, 0, place_bytes(shm));
        shm->stage = exchange_rounds;
    }
    ls_shm_post(shm);
    return LS_OK;
}

static ls_status deliver_agreed(ls_shm *shm, bool *finished) {
    LS_TRY(ls_shm_agree(shm, &shm->call));
    return deliver(shm, finished);
}

/* Fills this rank's next cell and slot for `deliver`. */
static void prepare(ls_shm *shm, ls_shm_cell *cell) {
    const size_t largest = largest_sent(shm);
    cell->receive = largest;
    put_table(shm);
    declare_buffer(shm, cell, largest);
    ls_shm_tell_distance(shm, cell, largest);
    if (!leaves(shm, cell, largest)) {
        put_pieces(shm, 0);
    }
}

static ls_status deliver_judged(ls_shm *shm, bool *finished) {
    for (int rank = 0; rank < shm->size; rank++) {
        verdict found;
        memcpy(&found, ls_shm_cell_of(shm, rank)->payload + sizeof(ls_shm_note), sizeof found);
        if (found.from >= 0) {
            char name[64];
            return ls_fail(LS_ERR_MISMATCH, "%s: rank %d sends %zu %s to rank %d, which expects %zu",
                           ls_call_describe(shm->call.operation, shm->call.sequence, name, sizeof name), found.from,
                           (size_t)found.sent, ls_dtype_name(shm->call.dtype), rank, (size_t)found.wanted);
        }
    }
    return deliver(shm, finished);
}

/* Compares the counts that other ranks report sending with the counts that this rank expects. */
static verdict judge(const ls_shm *shm) {
    const ls_call *call = &shm->call;
    for (int from = 0; from < shm->size; from++) {
        const size_t wanted = ls_piece_received(call, shm->rank, from).count;
        size_t sent = 0;
        if (has_table(call)) {
            sent = told_by(shm, from).count;
        } else if (shm->rank == call->root) {
            sent = ls_shm_cell_of(shm, from)->receive / call->width;
        }
        if (sent != wanted) {
            return (verdict){.sent = sent, .wanted = wanted, .from = from};
        }
    }
    return (verdict){.from = -1};
}

static ls_status exchange_judged(ls_shm *shm, bool *finished) {
    (void)finished; /* not yet */
    LS_TRY(ls_shm_agree(shm, &shm->call));
    const verdict found = judge(shm);
    ls_shm_cell *cell = ls_shm_next_cell(shm);
    prepare(shm, cell);
    memcpy(cell->payload + sizeof(ls_shm_note), &found, sizeof found);
    shm->stage = deliver_judged;
    ls_shm_post(shm);
    return LS_OK;
}

ls_status ls_shm_exchange(void *state, const ls_call *call) {
    ls_shm *shm = state;
    ls_shm_cell *cell = NULL;
    if (ls_shm_fits_cells(shm, call)) {
        return ls_shm_begin_cells(shm, call);
    }
    LS_TRY(ls_shm_declare(shm, call, &cell));
    if (needs_verdict(call)) {
        cell->receive = largest_sent(shm);
        put_table(shm);
        shm->stage = exchange_judged;
    } else {
        prepare(shm, cell);
        shm->stage = deliver_agreed;
    }
    ls_shm_post(shm);
    return LS_OK;
}
