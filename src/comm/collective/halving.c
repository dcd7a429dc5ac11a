/*
 * Reductions by halves (R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004), in the order of
 * the tree. Ranks are in blocks of powers of two, the largest first, as in that tree. In a block each exchanges with
 * the rank at distance 1 half of the vector, keeps the sum of the other half, and so on with the ranks at distance 2,
 * 4 ... a half of that: then each holds the block's sum of one part. The last block hands its sums to the one before
 * it, which adds them to its own ("binary blocks": Rabenseifner and Traff, EuroPVM/MPI 2004), up to the first one. An
 * all-reduce goes back the same way, with results.
 *
 * A broadcast is the second half of that: in the first block the root hands on half of what it has, each that got some
 * half of that, and so on, until each has one part. Ranks are counted from the root then.
 *
 * The vector is cut into as many positions as the first block has ranks. In a reduce_scatter(v) each has the part that
 * a rank of the first block wants, and that of the rank so many places behind that, if there is one.
 */
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "base/status.h"
#include "comm/collective/inside.h"
#include "comm/pieces.h"
#include "comm/reduce_kernels.h"

/* Positions from one to before another. */
typedef struct span {
    int from;
    int to;
} span;

static const ls_reduce_kernel *kernel_of(const ls_engine *engine) {
    return ls_reduce_find(engine->call.dtype, engine->call.reduction);
}

/* Its number in its block. */
static int index_of(const ls_engine *engine) {
    return engine->halving.rank - engine->halving.first;
}

/* What a rank holds after so many levels: each bit of its number chooses a half. */
static span span_after(const ls_engine *engine, int index, int levels) {
    int at = 0;
    for (int level = 0; level < levels; level++) {
        at = 2 * at + (index >> level & 1);
    }
    const int width = engine->halving.positions >> levels;
    return (span){at * width, (at + 1) * width};
}

static span own_span(const ls_engine *engine) {
    return span_after(engine, index_of(engine), engine->halving.levels);
}

/* Elements before a position. */
static size_t place(const ls_engine *engine, int position) {
    const ls_halving *halving = &engine->halving;
    return ls_reduction_scatters(engine)
               ? halving->places[position]
               : (size_t)ls_share_of((int64_t)engine->call.count, halving->positions, position).start;
}

static size_t count_of(const ls_engine *engine, span positions) {
    return place(engine, positions.to) - place(engine, positions.from);
}

/* `to`, as `from`, is counted from the root of a broadcast. */
static ls_status give(ls_engine *engine, int to, const unsigned char *data, size_t bytes) {
    const int rank = (to + engine->halving.root) % engine->size;
    return bytes == 0 ? LS_OK : ls_engine_send(engine, rank, LS_CHANNEL_DATA, data, bytes);
}

static ls_status take(ls_engine *engine, int from, unsigned char *data, size_t bytes) {
    const int rank = (from + engine->halving.root) % engine->size;
    return bytes == 0 ? LS_OK : ls_engine_receive(engine, rank, LS_CHANNEL_DATA, data, bytes, NULL);
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

static void find_block(ls_engine *engine) {
    ls_halving *halving = &engine->halving;
    const int root = engine->call.operation == LS_OP_BROADCAST ? engine->call.root : 0;
    *halving = (ls_halving){
        .places = halving->places, .root = root, .rank = (engine->rank - root + engine->size) % engine->size};
    for (int width = 1 << engine->levels, first = 0; width > 0; width /= 2) {
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

/* The rank whose part is at a position; that of the rank `positions` places behind it follows, if there is one. */
static int rank_at(const ls_engine *engine, int position) {
    int levels = 0;
    while (1 << levels < engine->halving.positions) {
        levels++;
    }
    return span_after(engine, position, levels).from;
}

static ls_status find_places(ls_engine *engine) {
    ls_halving *halving = &engine->halving;
    const size_t bytes = ((size_t)halving->positions + 1) * sizeof *halving->places;
    char name[64];
    if (halving->places == NULL) {
        halving->places = ls_allocate(bytes);
        if (halving->places == NULL) {
            return ls_fail_memory(ls_engine_call_name(engine, name), bytes);
        }
    }
    size_t at = 0;
    for (int position = 0; position < halving->positions; position++) {
        halving->places[position] = at;
        for (int rank = rank_at(engine, position); rank < engine->size; rank += halving->positions) {
            at += ls_reduced_by(engine, rank).count;
        }
    }
    halving->places[halving->positions] = at;
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
    const ls_halving *halving = &engine->halving;
    unsigned char *into = halving->held;
    if (!ls_reduction_scatters(engine)) {
        widen(engine, into, (ls_piece){engine->call.count, 0});
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

ls_status ls_halving_begin(ls_engine *engine) {
    ls_halving *halving = &engine->halving;
    find_block(engine);
    if (ls_flows[engine->call.operation].moves) {
        return LS_OK;
    }
    const ls_reduce_kernel *kernel = kernel_of(engine);
    LS_TRY(ls_reduction_scatters(engine) ? find_places(engine) : LS_OK);
    const bool copies = kernel->widen != NULL || ls_reduction_scatters(engine);
    const size_t copied = copies ? place(engine, halving->positions) : 0;
    const size_t own = count_of(engine, own_span(engine));
    /* Sums of the block behind, and results on their way to others. */
    size_t elements = copied + (halving->after != 0 ? own : 0) + (halving->before == 0 ? own : 0);
    for (int level = 1; level <= halving->levels; level++) {
        elements += count_of(engine, span_after(engine, index_of(engine), level));
    }
    LS_TRY(ls_engine_scratch(engine, elements * kernel->accumulator));
    halving->held = copies ? engine->scratch : (unsigned char *)(uintptr_t)engine->call.send;
    halving->room = engine->scratch + copied * kernel->accumulator;
    engine->step = 0;
    if (copies) {
        copy_parts(engine);
    }
    return LS_OK;
}

/* ---- down to one part, up to the first block --------------------------------------------------------------------- */

/* Adds what came into `room` to what this rank holds of these positions, which begins at `kept`. */
static void add(ls_engine *engine, unsigned char *kept, span positions, bool before) {
    ls_halving *halving = &engine->halving;
    const ls_reduce_kernel *kernel = kernel_of(engine);
    const size_t count = count_of(engine, positions);
    if (count != 0 && !engine->dry) {
        kernel->combine(halving->room, before ? halving->room : kept, before ? kept : halving->room, count);
    }
    halving->held = halving->room;
    halving->room += count * kernel->accumulator;
}

/* Where accumulators of positions are among those held, of which `all` are. */
static unsigned char *among(const ls_engine *engine, span all, span positions) {
    return engine->halving.held +
           (place(engine, positions.from) - place(engine, all.from)) * kernel_of(engine)->accumulator;
}

static void end_level(ls_engine *engine, int level) {
    const int index = index_of(engine);
    const span all = span_after(engine, index, level);
    const span kept = span_after(engine, index, level + 1);
    add(engine, among(engine, all, kept), kept, (index >> level & 1) != 0);
}

ls_status ls_halving_level(ls_engine *engine) {
    if (engine->step > 0) {
        end_level(engine, engine->step - 1);
    }
    const int level = engine->step++;
    const int index = index_of(engine);
    const int partner = index ^ 1 << level;
    const span all = span_after(engine, index, level);
    const span kept = span_after(engine, index, level + 1);
    const span given = span_after(engine, partner, level + 1);
    const size_t bytes = kernel_of(engine)->accumulator;
    LS_TRY(take(engine, engine->halving.first + partner, engine->halving.room, count_of(engine, kept) * bytes));
    return give(engine, engine->halving.first + partner, among(engine, all, given), count_of(engine, given) * bytes);
}

static ls_status hand_on(ls_engine *engine, bool *finished);
static ls_status conclude(ls_engine *engine, bool *finished);

static ls_status add_block(ls_engine *engine, bool *finished) {
    add(engine, engine->halving.held, own_span(engine), false);
    engine->step = 0;
    return engine->halving.before != 0 ? hand_on(engine, finished) : conclude(engine, finished);
}

static ls_status next_level(ls_engine *engine, bool *finished) {
    const ls_halving *halving = &engine->halving;
    engine->stage = next_level;
    if (engine->step < halving->levels) {
        return ls_halving_level(engine);
    }
    if (halving->levels > 0) {
        end_level(engine, halving->levels - 1);
    }
    engine->step = 0;
    if (halving->after != 0) {
        const int from = halving->first + halving->width + (index_of(engine) & (halving->after - 1));
        engine->stage = add_block;
        return take(engine, from, halving->room, count_of(engine, own_span(engine)) * kernel_of(engine)->accumulator);
    }
    return halving->before != 0 ? hand_on(engine, finished) : conclude(engine, finished);
}

/* Ranks of the block before this one that hold parts of what this rank does: every `width`-th; which is next, and what
 * it holds. */
static int next_before(const ls_engine *engine, span *positions) {
    const ls_halving *halving = &engine->halving;
    const int index = index_of(engine) + engine->step * halving->width;
    int levels = 0;
    while (1 << levels < halving->before) {
        levels++;
    }
    *positions = span_after(engine, index, levels);
    return halving->first - halving->before + index;
}

static bool has_more_before(const ls_engine *engine) {
    return engine->step < engine->halving.before / engine->halving.width;
}

static ls_status hand_on(ls_engine *engine, bool *finished) {
    (void)finished;
    for (int i = 0; i < LS_ENGINE_WINDOW && has_more_before(engine); i++, engine->step++) {
        span positions;
        const int to = next_before(engine, &positions);
        LS_TRY(give(engine, to, among(engine, own_span(engine), positions),
                    count_of(engine, positions) * kernel_of(engine)->accumulator));
    }
    engine->stage = has_more_before(engine) ? hand_on : conclude;
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

static ls_status end(ls_engine *engine, bool *finished) {
    (void)engine;
    *finished = true;
    return LS_OK;
}

/* Where the result of positions is, or goes. */
static ls_stretch result_at(const ls_engine *engine, span positions) {
    const size_t width = engine->call.width;
    return (ls_stretch){(unsigned char *)engine->call.receive + place(engine, positions.from) * width,
                        count_of(engine, positions) * width};
}

static ls_status double_part(ls_engine *engine, bool *finished) {
    if (engine->step == 0) {
        return end(engine, finished);
    }
    const int level = --engine->step;
    const int partner = index_of(engine) ^ 1 << level;
    const ls_stretch own = result_at(engine, span_after(engine, index_of(engine), level + 1));
    const ls_stretch more = result_at(engine, span_after(engine, partner, level + 1));
    engine->stage = double_part;
    LS_TRY(take(engine, engine->halving.first + partner, more.data, more.bytes));
    return give(engine, engine->halving.first + partner, own.data, own.bytes);
}

/* The own result is in its place. */
static ls_status spread(ls_engine *engine, bool *finished) {
    const ls_halving *halving = &engine->halving;
    const int index = index_of(engine);
    engine->step = halving->levels;
    if (halving->after != 0) {
        const ls_stretch own = result_at(engine, own_span(engine));
        LS_TRY(give(engine, halving->first + halving->width + (index & (halving->after - 1)), own.data, own.bytes));
    }
    return double_part(engine, finished);
}

static ls_status fetch(ls_engine *engine, bool *finished) {
    (void)finished;
    for (int i = 0; i < LS_ENGINE_WINDOW && has_more_before(engine); i++, engine->step++) {
        span positions;
        const int from = next_before(engine, &positions);
        const ls_stretch result = result_at(engine, positions);
        LS_TRY(take(engine, from, result.data, result.bytes));
    }
    engine->stage = has_more_before(engine) ? fetch : spread;
    return LS_OK;
}

/* A broadcast, in the first block. */
static ls_status hand_down(ls_engine *engine, bool *finished) {
    const int index = index_of(engine);
    if (engine->step == engine->halving.levels) {
        return spread(engine, finished);
    }
    const int level = engine->step++;
    const int distance = 1 << level;
    engine->stage = hand_down;
    if (index < distance) {
        const ls_stretch half = result_at(engine, span_after(engine, index + distance, level + 1));
        return give(engine, index + distance, half.data, half.bytes);
    }
    const ls_stretch own = result_at(engine, span_after(engine, index, level + 1));
    return index < 2 * distance ? take(engine, index - distance, own.data, own.bytes) : LS_OK;
}

ls_status ls_halving_broadcast(ls_engine *engine, bool *finished) {
    engine->step = 0;
    return engine->halving.before == 0 ? hand_down(engine, finished) : fetch(engine, finished);
}

/* To the root: what each rank of the first block has. */
static ls_stretch sent_to_root(const ls_engine *engine, int to) {
    const ls_halving *halving = &engine->halving;
    const bool sends = to == engine->call.root && halving->before == 0;
    return (ls_stretch){halving->room, sends ? count_of(engine, own_span(engine)) * engine->call.width : 0};
}

static ls_stretch received_by_root(const ls_engine *engine, int from) {
    const bool receives = engine->rank == engine->call.root && from < engine->halving.positions;
    return receives ? result_at(engine, (span){rank_at(engine, from), rank_at(engine, from) + 1})
                    : (ls_stretch){NULL, 0};
}

/* This rank's own part, and that of the rank `positions` places behind it. */
static ls_status scatter(ls_engine *engine) {
    const ls_halving *halving = &engine->halving;
    const int other = engine->rank + halving->positions;
    const size_t own = ls_reduced_by(engine, engine->rank).count;
    engine->stage = end;
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

/* The first block has the sums of all ranks; those behind it have handed theirs on. */
static ls_status conclude(ls_engine *engine, bool *finished) {
    static const ls_traffic to_root = {.sent = sent_to_root, .received = received_by_root};
    const ls_halving *halving = &engine->halving;
    const span own = own_span(engine);
    const bool has = halving->before == 0;
    engine->step = 0;
    if (ls_reduction_scatters(engine)) {
        return scatter(engine);
    }
    if (engine->call.operation == LS_OP_REDUCE) {
        finish(engine, halving->room, halving->held, has ? count_of(engine, own) : 0);
        return ls_exchange_begin(engine, &to_root, end);
    }
    if (!has) {
        return fetch(engine, finished);
    }
    finish(engine, result_at(engine, own).data, halving->held, count_of(engine, own));
    return spread(engine, finished);
}

/* ------------------------------------------------------------------------------------------------------------------ */

ls_status ls_halving_call(ls_engine *engine, bool *finished) {
    (void)finished;
    engine->stage = next_level; /* when the level that went on beside the last round has ended */
    return LS_OK;
}
