/*
 * Reductions by recursive halving and doubling (R. Rabenseifner, "Optimization of collective reduction operations",
 * ICCS 2004), in the order of the tree of sums. Ranks form blocks of powers of two, the largest first, as in that tree.
 * Within a block, each rank sends one half of the vector to the rank at distance 1, and keeps the sum of the other
 * half. It then sends half of this half to the rank at distance 2, and so on with distances 4, 8, ..., until each rank
 * holds the block's sum of one part. The last block sends its sums to the previous block, which adds them to its own
 * ("binary blocks": Rabenseifner and Traeff, EuroPVM/MPI 2004), up to the first block. An all-reduce returns the
 * results in the reverse order.
 *
 * A broadcast is the second half of this algorithm (R. van de Geijn's scatter and all-gather): in the first block, the
 * root sends half of its data, each receiver sends half of what it received, and so on, until each rank has one part.
 * Ranks are numbered from the root.
 *
 * The vector, or each pipeline segment, is divided into as many positions as the first block has ranks. In a
 * reduce_scatter(v), a position is the part of one rank of the first block, together with the part of the rank with the
 * same index in the later blocks, if there is one.
 */
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/pieces.h"
#include "comm/reduce_kernels.h"

/* Positions `from` to `to` - 1. */
typedef struct span {
    int from;
    int to;
} span;

static const ls_reduce_kernel *kernel_of(const ls_engine *engine) {
    return ls_reduce_find(engine->call.dtype, engine->call.reduction);
}

/* Returns the index of this rank in its block. */
static int index_of(const ls_engine *engine) {
    return engine->segment->halving.rank - engine->segment->halving.first;
}

/* Returns the positions that a rank holds after `levels` levels: each bit of its index selects a half. */
static span span_after(const ls_engine *engine, int index, int levels) {
    int at = 0;
    for (int level = 0; level < levels; level++) {
        at = 2 * at + (index >> level & 1);
    }
    const int width = engine->segment->halving.positions >> levels;
    return (span){at * width, (at + 1) * width};
}

static ls_status next_level(ls_engine *engine, bool *finished);

static span own_span(const ls_engine *engine) {
    return span_after(engine, index_of(engine), engine->segment->halving.levels);
}

/* Returns the number of elements before a position. */
static size_t place(const ls_engine *engine, int position) {
    const ls_halving *halving = &engine->segment->halving;
    return ls_reduction_scatters(engine)
               ? engine->rabenseifner.places[position]
               : (size_t)ls_share_of((int64_t)halving->count, halving->positions, position).start;
}

static size_t count_of(const ls_engine *engine, span positions) {
    return place(engine, positions.to) - place(engine, positions.from);
}

/* Returns the rank for a number counted from the root of a broadcast. With a power of two of ranks, uses exclusive
 * or, so that blocks of ranks, such as the ranks of a machine, remain blocks. */
static int rank_of(const ls_engine *engine, int number) {
    const int root = engine->segment->halving.root;
    return engine->shape.butterfly ? number ^ root : (number + root) % engine->size;
}

/* `to`, like `from` in take, is counted from the root: see rank_of. */
static ls_status give(ls_engine *engine, int to, const unsigned char *data, size_t bytes) {
    const int rank = rank_of(engine, to);
    return bytes == 0 ? LS_OK : ls_engine_send(engine, rank, LS_CHANNEL_DATA, data, bytes);
}

static ls_status take(ls_engine *engine, int from, unsigned char *data, size_t bytes) {
    const int rank = rank_of(engine, from);
    return bytes == 0 ? LS_OK : ls_engine_receive(engine, rank, LS_CHANNEL_DATA, data, bytes, NULL);
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

static void find_block(ls_engine *engine) {
    ls_halving *halving = &engine->segment->halving;
    const int root = engine->call.operation == LS_OP_BROADCAST ? engine->call.root : 0;
    *halving = (ls_halving){.root = root,
                            .rank = engine->shape.butterfly ? engine->rank ^ root
                                                            : (engine->rank - root + engine->size) % engine->size,
                            .count = engine->call.count};
    for (int width = 1 << engine->shape.levels, first = 0; width > 0; width /= 2) {
        if ((engine->size & width) == 0) {
            continue;
        }
        halving->positions = halving->positions == 0 ? width : halving->positions;
        if (halving->rank < first) {
            halving->after = width;
            break;
        }
        halving->before = halving->width;
        halving->width = width;
        halving->first = first;
        first += width;
    }
    while (1 << halving->levels < halving->width) {
        halving->levels++;
    }
}

/* Returns the rank whose part is at a position. The part of rank `positions` after it follows, if that rank exists. */
static int rank_at(const ls_engine *engine, int position) {
    int levels = 0;
    while (1 << levels < engine->segment->halving.positions) {
        levels++;
    }
    return span_after(engine, position, levels).from;
}

static ls_status find_places(ls_engine *engine) {
    ls_halving *halving = &engine->segment->halving;
    const size_t bytes = ((size_t)halving->positions + 1) * sizeof *engine->rabenseifner.places;
    char name[64];
    if (engine->rabenseifner.places == NULL) {
        engine->rabenseifner.places = ls_allocate(bytes);
        if (engine->rabenseifner.places == NULL) {
            return ls_fail_memory(ls_engine_call_name(engine, name), bytes);
        }
    }
    size_t at = 0;
    for (int position = 0; position < halving->positions; position++) {
        engine->rabenseifner.places[position] = at;
        for (int rank = rank_at(engine, position); rank < engine->size; rank += halving->positions) {
            at += ls_reduced_by(engine, rank).count;
        }
    }
    engine->rabenseifner.places[halving->positions] = at;
    return LS_OK;
}

/* Accumulators of elements. */
static void widen(const ls_engine *engine, unsigned char *into, ls_piece piece) {
    const ls_reduce_kernel *kernel = kernel_of(engine);
    if (piece.count == 0 || engine->dry) {
        return;
    }
    const unsigned char *from = (const unsigned char *)engine->call.send + piece.at * kernel->width;
    if (kernel->widen != NULL) {
        kernel->widen(into, from, piece.count);
    } else {
        memcpy(into, from, piece.count * kernel->width);
    }
}

static void copy_parts(ls_engine *engine) {
    const ls_halving *halving = &engine->segment->halving;
    unsigned char *into = halving->held;
    if (!ls_reduction_scatters(engine)) {
        widen(engine, into, (ls_piece){halving->count, halving->start});
        return;
    }
    for (int position = 0; position < halving->positions; position++) {
        for (int rank = rank_at(engine, position); rank < engine->size; rank += halving->positions) {
            const ls_piece piece = ls_reduced_by(engine, rank);
            widen(engine, into, piece);
            into += piece.count * kernel_of(engine)->accumulator;
        }
    }
}

/* Returns true if this rank's input must first be copied into accumulators. */
static bool copies(const ls_engine *engine) {
    return kernel_of(engine)->widen != NULL || ls_reduction_scatters(engine);
}

/* Returns the size in bytes of the scratch memory for a part. */
static size_t room_of_part(const ls_engine *engine) {
    const ls_halving *halving = &engine->segment->halving;
    size_t elements = copies(engine) ? place(engine, halving->positions) : 0;
    const size_t own = count_of(engine, own_span(engine));
    /* Room for sums from the next block, and for results in flight to other ranks. */
    elements += (halving->after != 0 ? own : 0) + (halving->before == 0 ? own : 0);
    for (int level = 1; level <= halving->levels; level++) {
        elements += count_of(engine, span_after(engine, index_of(engine), level));
    }
    return (elements * kernel_of(engine)->accumulator + 63) / 64 * 64;
}

/* Assigns the part of the vector that begins at element `start` to this segment. */
static void begin_part(ls_engine *engine, size_t start) {
    ls_halving *halving = &engine->segment->halving;
    const size_t left = engine->call.count - start;
    find_block(engine);
    if (!ls_reduction_scatters(engine)) {
        halving->start = start;
        halving->count = left < engine->rabenseifner.part ? left : engine->rabenseifner.part;
    }
    halving->room = engine->scratch + (size_t)(engine->segment - engine->segments) * engine->rabenseifner.part_room;
    engine->segment->step = 0;
    if (copies(engine)) {
        halving->held = halving->room;
        halving->room += place(engine, halving->positions) * kernel_of(engine)->accumulator;
        copy_parts(engine);
    } else {
        halving->held = (unsigned char *)(uintptr_t)engine->call.send + halving->start * engine->call.width;
    }
}

/* Returns the number of segments at the start of the call. */
static int segments_of(const ls_engine *engine) {
    const size_t count = engine->call.count;
    const size_t parts =
        engine->rabenseifner.part < count ? (count + engine->rabenseifner.part - 1) / engine->rabenseifner.part : 1;
    return parts < LS_ENGINE_SEGMENTS ? (int)parts : LS_ENGINE_SEGMENTS;
}

ls_status ls_rabenseifner_prepare(ls_engine *engine) {
    ls_halving *halving = &engine->segment->halving;
    engine->rabenseifner.part = engine->call.count;
    find_block(engine);
    if (ls_flows[engine->call.operation].moves) {
        return LS_OK;
    }
    LS_TRY(ls_reduction_scatters(engine) ? find_places(engine) : LS_OK);
    if (ls_reduces_to_all(engine->call.operation)) {
        engine->rabenseifner.part = ls_segment_count(engine);
        halving->count = engine->rabenseifner.part;
    }
    engine->rabenseifner.part_room = room_of_part(engine);
    LS_TRY(ls_engine_scratch(engine, engine->rabenseifner.part_room * (size_t)segments_of(engine)));
    begin_part(engine, 0);
    return LS_OK;
}

/* ---- halving, and sending sums to the first block ---------------------------------------------------------------- */

/* Adds the data received in `room` to the sums of these positions, which begin at `kept`. */
static void add(ls_engine *engine, unsigned char *kept, span positions, bool before) {
    ls_halving *halving = &engine->segment->halving;
    const ls_reduce_kernel *kernel = kernel_of(engine);
    const size_t count = count_of(engine, positions);
    if (count != 0 && !engine->dry) {
        kernel->combine(halving->room, before ? halving->room : kept, before ? kept : halving->room, count);
    }
    halving->held = halving->room;
    halving->room += count * kernel->accumulator;
}

/* Returns the accumulators of `positions` within the held accumulators, which cover the positions `all`. */
static unsigned char *among(const ls_engine *engine, span all, span positions) {
    return engine->segment->halving.held +
           (place(engine, positions.from) - place(engine, all.from)) * kernel_of(engine)->accumulator;
}

static void end_level(ls_engine *engine, int level) {
    const int index = index_of(engine);
    const span all = span_after(engine, index, level);
    const span kept = span_after(engine, index, level + 1);
    add(engine, among(engine, all, kept), kept, (index >> level & 1) != 0);
}

ls_status ls_rabenseifner_level(ls_engine *engine) {
    if (engine->segment->step > 0) {
        end_level(engine, engine->segment->step - 1);
    }
    const int level = engine->segment->step++;
    const int index = index_of(engine);
    const int partner = index ^ 1 << level;
    const span all = span_after(engine, index, level);
    const span kept = span_after(engine, index, level + 1);
    const span given = span_after(engine, partner, level + 1);
    const size_t bytes = kernel_of(engine)->accumulator;
    LS_TRY(give(engine, engine->segment->halving.first + partner, among(engine, all, given),
                count_of(engine, given) * bytes));
    return take(engine, engine->segment->halving.first + partner, engine->segment->halving.room,
                count_of(engine, kept) * bytes);
}

static ls_status hand_on(ls_engine *engine, bool *finished);
static ls_status conclude(ls_engine *engine, bool *finished);

static ls_status add_block(ls_engine *engine, bool *finished) {
    add(engine, engine->segment->halving.held, own_span(engine), false);
    engine->segment->step = 0;
    return engine->segment->halving.before != 0 ? hand_on(engine, finished) : conclude(engine, finished);
}

static ls_status next_level(ls_engine *engine, bool *finished) {
    const ls_halving *halving = &engine->segment->halving;
    engine->segment->stage = next_level;
    if (engine->segment->step < halving->levels) {
        return ls_rabenseifner_level(engine);
    }
    if (halving->levels > 0) {
        end_level(engine, halving->levels - 1);
    }
    engine->segment->step = 0;
    if (halving->after != 0) {
        const int from = halving->first + halving->width + (index_of(engine) & (halving->after - 1));
        engine->segment->stage = add_block;
        return take(engine, from, halving->room, count_of(engine, own_span(engine)) * kernel_of(engine)->accumulator);
    }
    return halving->before != 0 ? hand_on(engine, finished) : conclude(engine, finished);
}

/* Returns the next rank of the previous block that holds part of this rank's positions (every `width`-th rank does),
 * and sets `*positions` to the positions that it holds. */
static int next_before(const ls_engine *engine, span *positions) {
    const ls_halving *halving = &engine->segment->halving;
    const int index = index_of(engine) + engine->segment->step * halving->width;
    int levels = 0;
    while (1 << levels < halving->before) {
        levels++;
    }
    *positions = span_after(engine, index, levels);
    return halving->first - halving->before + index;
}

static bool has_more_before(const ls_engine *engine) {
    return engine->segment->step < engine->segment->halving.before / engine->segment->halving.width;
}

static ls_status hand_on(ls_engine *engine, bool *finished) {
    (void)finished;
    for (int i = 0; i < LS_ENGINE_WINDOW && has_more_before(engine); i++, engine->segment->step++) {
        span positions;
        const int to = next_before(engine, &positions);
        LS_TRY(give(engine, to, among(engine, own_span(engine), positions),
                    count_of(engine, positions) * kernel_of(engine)->accumulator));
    }
    engine->segment->stage = has_more_before(engine) ? hand_on : conclude;
    return LS_OK;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void finish(const ls_engine *engine, unsigned char *into, const unsigned char *from, size_t count) {
    const ls_reduce_kernel *kernel = kernel_of(engine);
    if (count == 0 || engine->dry) {
        return;
    }
    if (kernel->finish != NULL) {
        kernel->finish(into, from, count, engine->call.reduction == LS_AVG ? engine->size : 1);
    } else {
        memcpy(into, from, count * kernel->width);
    }
}

/* Ends a part. A segment's next part does not depend on which segment is ready first, because this order differs
 * between ranks. */
static ls_status end(ls_engine *engine, bool *finished) {
    const size_t ahead = engine->rabenseifner.part * LS_ENGINE_SEGMENTS;
    if (ahead < engine->call.count - engine->segment->halving.start) {
        begin_part(engine, engine->segment->halving.start + ahead);
        engine->segment->stage = next_level;
        return LS_OK;
    }
    engine->segment->stage = NULL;
    *finished = true;
    for (int segment = 0; segment < LS_ENGINE_SEGMENTS; segment++) {
        *finished = *finished && engine->segments[segment].stage == NULL;
    }
    return LS_OK;
}

/* Returns the buffer that holds the result at these positions. */
static ls_stretch result_at(const ls_engine *engine, span positions) {
    const size_t width = engine->call.width;
    const size_t at = engine->segment->halving.start + place(engine, positions.from);
    return (ls_stretch){(unsigned char *)engine->call.receive + at * width, count_of(engine, positions) * width};
}

static ls_status double_part(ls_engine *engine, bool *finished) {
    if (engine->segment->step == 0) {
        return end(engine, finished);
    }
    const int level = --engine->segment->step;
    const int partner = index_of(engine) ^ 1 << level;
    const ls_stretch own = result_at(engine, span_after(engine, index_of(engine), level + 1));
    const ls_stretch more = result_at(engine, span_after(engine, partner, level + 1));
    engine->segment->stage = double_part;
    LS_TRY(give(engine, engine->segment->halving.first + partner, own.data, own.bytes));
    return take(engine, engine->segment->halving.first + partner, more.data, more.bytes);
}

/* Runs when this rank's own result is in its final place. */
static ls_status spread(ls_engine *engine, bool *finished) {
    const ls_halving *halving = &engine->segment->halving;
    const int index = index_of(engine);
    engine->segment->step = halving->levels;
    if (halving->after != 0) {
        const ls_stretch own = result_at(engine, own_span(engine));
        LS_TRY(give(engine, halving->first + halving->width + (index & (halving->after - 1)), own.data, own.bytes));
    }
    return double_part(engine, finished);
}

static ls_status fetch(ls_engine *engine, bool *finished) {
    (void)finished;
    for (int i = 0; i < LS_ENGINE_WINDOW && has_more_before(engine); i++, engine->segment->step++) {
        span positions;
        const int from = next_before(engine, &positions);
        const ls_stretch result = result_at(engine, positions);
        LS_TRY(take(engine, from, result.data, result.bytes));
    }
    engine->segment->stage = has_more_before(engine) ? fetch : spread;
    return LS_OK;
}

/* Scatters a broadcast within the first block. */
static ls_status hand_down(ls_engine *engine, bool *finished) {
    const int index = index_of(engine);
    if (engine->segment->step == engine->segment->halving.levels) {
        return spread(engine, finished);
    }
    const int level = engine->segment->step++;
    const int distance = 1 << level;
    engine->segment->stage = hand_down;
    if (index < distance) {
        const ls_stretch half = result_at(engine, span_after(engine, index + distance, level + 1));
        return give(engine, index + distance, half.data, half.bytes);
    }
    const ls_stretch own = result_at(engine, span_after(engine, index, level + 1));
    return index < 2 * distance ? take(engine, index - distance, own.data, own.bytes) : LS_OK;
}

ls_status ls_van_de_geijn_run(ls_engine *engine, bool *finished) {
    engine->segment->step = 0;
    return engine->segment->halving.before == 0 ? hand_down(engine, finished) : fetch(engine, finished);
}

/* Returns what a rank of the first block sends to the root. */
static ls_stretch sent_to_root(const ls_engine *engine, int to) {
    const ls_halving *halving = &engine->segment->halving;
    const bool sends = to == engine->call.root && halving->before == 0;
    return (ls_stretch){halving->room, sends ? count_of(engine, own_span(engine)) * engine->call.width : 0};
}

static ls_stretch received_by_root(const ls_engine *engine, int from) {
    const bool receives = engine->rank == engine->call.root && from < engine->segment->halving.positions;
    return receives ? result_at(engine, (span){rank_at(engine, from), rank_at(engine, from) + 1})
                    : (ls_stretch){NULL, 0};
}

/* Sends or receives the results of a reduce-scatter: a rank of the first block has its own part, and the part of the
 * rank `positions` after it. */
static ls_status scatter(ls_engine *engine) {
    const ls_halving *halving = &engine->segment->halving;
    const int other = engine->rank + halving->positions;
    const size_t own = ls_reduced_by(engine, engine->rank).count;
    engine->segment->stage = end;
    if (halving->before != 0) {
        return take(engine, engine->rank - halving->positions, engine->call.receive, own * engine->call.width);
    }
    finish(engine, engine->call.receive, halving->held, own);
    if (other >= engine->size) {
        return LS_OK;
    }
    const size_t more = ls_reduced_by(engine, other).count;
    finish(engine, halving->room, halving->held + own * kernel_of(engine)->accumulator, more);
    return give(engine, other, halving->room, more * engine->call.width);
}

/* Runs when the first block has the sums of all ranks, and the later blocks have sent their sums. */
static ls_status conclude(ls_engine *engine, bool *finished) {
    static const ls_traffic to_root = {.sent = sent_to_root, .received = received_by_root};
    const ls_halving *halving = &engine->segment->halving;
    const span own = own_span(engine);
    const bool has = halving->before == 0;
    engine->segment->step = 0;
    if (ls_reduction_scatters(engine)) {
        return scatter(engine);
    }
    if (engine->call.operation == LS_OP_REDUCE) {
        finish(engine, halving->room, halving->held, has ? count_of(engine, own) : 0);
        return ls_direct_begin(engine, &to_root, end);
    }
    if (!has) {
        return fetch(engine, finished);
    }
    finish(engine, result_at(engine, own).data, halving->held, count_of(engine, own));
    return spread(engine, finished);
}

/* ------------------------------------------------------------------------------------------------------------------ */

ls_status ls_rabenseifner_run(ls_engine *engine, bool *finished) {
    (void)finished;
    ls_segment *first = engine->segment;
    const int segments = segments_of(engine);
    first->stage = next_level; /* runs after the level that overlapped with the last step of the header exchange */
    for (int segment = 1; segment < segments; segment++) {
        engine->segment = &engine->segments[segment];
        begin_part(engine, (size_t)segment * engine->rabenseifner.part);
        engine->segment->stage = next_level;
    }
    engine->segment = first;
    return LS_OK;
}

void ls_rabenseifner_free(ls_engine *engine) {
    ls_free(engine->rabenseifner.places);
}
