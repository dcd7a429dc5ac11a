/*
 * The exchange of headers: all ranks learn what each of them calls, and inline data is combined on the way. Blocks of
 * ranks are the blocks of the tree of sums: aligned at powers of two; the last block may be shorter.
 *
 * - If the number of ranks P is a power of two, the ranks of the two halves of a block exchange what they know in pairs
 *   (recursive doubling: log2 P steps, one message per step).
 * - Otherwise, headers are sent up a tree to rank 0 and down again, two levels per step: a rank receives from three
 *   blocks, and combines the second with the third first, in the order of sums. Such a step takes little longer than a
 *   step of a binomial tree, and there are half as many steps. A rank sends at most 1.5 ceil(log2 P) messages, and all
 *   ranks together send 2 (P - 1).
 * - If several machines have several ranks each, only the first rank of a machine takes part in recursive doubling,
 *   with the headers of its machine. Each step of a tree is either within machines or between them. So each machine
 *   sends one message per step.
 * - If ranks share cores, headers are sent along a tree, too: 2 (P - 1) messages instead of P log2 P, because each
 *   message takes a turn on a core. If waiting ranks poll, a step takes one turn of each rank. Then up to 32 blocks are
 *   merged in a step, and the result is sent down a different tree, in which a rank sends at most 2 ceil(log2 P)
 *   messages: two steps for up to 325 ranks.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/engine/inside.h"

/* ---- combining the headers of blocks of ranks -------------------------------------------------------------------- */

static void add_callers(ls_call_group *group, const ls_call_group *more) {
    for (int i = 0; i < more->callers && i < LS_ENGINE_LISTED && group->callers + i < LS_ENGINE_LISTED; i++) {
        group->ranks[group->callers + i] = more->ranks[i];
    }
    group->callers += more->callers;
}

/* Adds the groups of a packet to the `*count` groups in `groups`. */
static void add_groups(ls_call_group *groups, uint32_t *count, uint32_t *others, const ls_packet *packet) {
    const ls_envelope *envelope = ls_packet_envelope(packet);
    *others += envelope->others;
    for (uint32_t i = 0; i < envelope->groups; i++) {
        const ls_call_group *each = &ls_packet_groups(packet)[i];
        uint32_t same = 0;
        while (same < *count && !ls_agreement_same(&groups[same].call, &each->call)) {
            same++;
        }
        if (same < *count) {
            add_callers(&groups[same], each);
        } else if (*count < LS_ENGINE_GROUPS) {
            groups[(*count)++] = *each;
        } else {
            *others += (uint32_t)each->callers;
        }
    }
}

/* Combines the headers of the ranks from `first` on into `into`, which contains the headers of adjacent ranks. */
static void join(const ls_engine *engine, ls_packet *into, const ls_packet *other, int first) {
    ls_envelope *own = ls_packet_envelope(into);
    const ls_envelope *theirs = ls_packet_envelope(other);
    const bool before = first < engine->rank;
    ls_call_group groups[LS_ENGINE_GROUPS];
    uint32_t count = 0;
    uint32_t others = 0;
    add_groups(groups, &count, &others, before ? other : into);
    add_groups(groups, &count, &others, before ? into : other);
    const ls_call_header call = ls_call_header_of(&engine->call);
    if (count == 1 && ls_agreement_same(&groups[0].call, &call)) { /* otherwise no rank needs the data */
        ls_payload_join(engine, into, other, before);
    } else {
        own->bytes = 0;
    }
    own->groups = count;
    own->others = others;
    own->has_payload |= theirs->has_payload;
    own->refused |= theirs->refused;
    own->balance += theirs->balance;
    memcpy(ls_packet_groups(into), groups, count * sizeof *groups);
    into->bytes = sizeof *own + count * sizeof *groups + own->bytes;
}

/* ---- packets that have arrived ----------------------------------------------------------------------------------- */

static ls_status fail_unsound(const ls_engine *engine, int from, const char *why) {
    char name[64];
    return ls_fail(LS_ERR_PEER, "%s: rank %d sent an invalid envelope: %s", ls_engine_call_name(engine, name), from,
                   why);
}

static ls_status check_group(const ls_engine *engine, int from, const ls_call_group *group, int first, int last) {
    char why[LS_HEADER_WHY];
    if (!ls_call_header_is_sound(&group->call, engine->size, why)) {
        return fail_unsound(engine, from, why);
    }
    bool sound = group->callers > 0 && group->callers <= last - first;
    for (int i = 0; sound && i < group->callers && i < LS_ENGINE_LISTED; i++) {
        sound = group->ranks[i] >= first && group->ranks[i] < last;
    }
    return sound ? LS_OK : fail_unsound(engine, from, "it describes other ranks");
}

/* Returns true if all ranks in a packet make the same call as this rank. */
static bool is_alike(const ls_engine *engine, const ls_packet *packet) {
    const ls_call_header own = ls_call_header_of(&engine->call);
    return ls_packet_envelope(packet)->groups == 1 && ls_agreement_same(&ls_packet_groups(packet)->call, &own);
}

/* Checks the envelope fields that follow from the call itself if all ranks make the same call. */
static ls_status check_alike(const ls_engine *engine, int from, const ls_envelope *envelope) {
    const bool varies = ls_agreement_varies(engine->call.operation) && engine->payload != LS_PAYLOAD_MISMATCH;
    const bool carries = engine->payload != LS_PAYLOAD_NONE && engine->payload != LS_PAYLOAD_MISMATCH;
    if (envelope->balance != 0 && !varies) {
        return fail_unsound(engine, from, "a balance of counts that all ranks share");
    }
    if (envelope->has_payload > 1 || envelope->refused > 1 || (envelope->has_payload != 0 && !carries)) {
        return fail_unsound(engine, from, "data travels otherwise in this call");
    }
    return LS_OK;
}

/* Checks that `transfer` delivered an envelope about the ranks `first` to `last` - 1. Fails with LS_ERR_PEER if it did
 * not, or if the sender has left. The sender remains the blamed rank until its data has also been checked. */
static ls_status check_packet(ls_engine *engine, ls_packet *packet, const ls_transfer *transfer, int first, int last) {
    const ls_envelope *envelope = ls_packet_envelope(packet);
    char name[64];
    packet->bytes = transfer->bytes;
    ls_failure_blame(engine, transfer->peer); /* if the checks below fail, the sender is to blame */
    if (packet->bytes < sizeof *envelope || envelope->groups > LS_ENGINE_GROUPS ||
        envelope->bytes > engine->shape.inline_most ||
        packet->bytes != sizeof *envelope + envelope->groups * sizeof(ls_call_group) + envelope->bytes) {
        return fail_unsound(engine, transfer->peer, "its sizes do not fit");
    }
    if (envelope->groups == 0) {
        ls_failure_desert(engine, transfer->peer, (ls_leave_reason)(envelope->reason & 7));
        return ls_fail(LS_ERR_PEER, "%s: rank %d %s", ls_engine_call_name(engine, name), transfer->peer,
                       ls_leave_describe((ls_leave_reason)envelope->reason));
    }
    uint64_t callers = envelope->others;
    for (uint32_t i = 0; i < envelope->groups; i++) {
        const ls_call_group *group = &ls_packet_groups(packet)[i];
        LS_TRY(check_group(engine, transfer->peer, group, first, last));
        callers += (uint64_t)group->callers;
    }
    if (callers != (uint64_t)(last - first)) {
        return fail_unsound(engine, transfer->peer, "the number of ranks in it is wrong");
    }
    return is_alike(engine, packet) ? check_alike(engine, transfer->peer, envelope) : LS_OK;
}

/* Also checks the inline data. If everything is valid, no rank has failed. */
static ls_status check_block(ls_engine *engine, ls_packet *packet, const ls_transfer *transfer, int first, int last) {
    LS_TRY(check_packet(engine, packet, transfer, first, last));
    LS_TRY(is_alike(engine, packet) ? ls_payload_check(engine, packet, transfer->peer, first, last) : LS_OK);
    ls_failure_blame(engine, -1);
    return LS_OK;
}

/* Returns true if LOCKSTEP_ALGORITHM differs between the ranks. */
static bool settings_differ(const ls_packet *packet) {
    bool differ = false;
    for (uint32_t i = 1; i < ls_packet_envelope(packet)->groups; i++) {
        differ = differ || ls_packet_groups(packet)[i].call.algorithm != ls_packet_groups(packet)[0].call.algorithm;
    }
    return differ;
}

/* Writes "ranks 1, 2 called allreduce of 10 f32, sum (#3)". Returns the length. */
static size_t describe_group(const ls_call_group *group, bool with_algorithm, char *text, size_t capacity) {
    ls_rank_list ranks = {.count = 0};
    char detail[192];
    char more[48] = "";
    char algorithm[128] = "";
    for (int k = 0; k < group->callers && k < LS_ENGINE_LISTED; k++) {
        ls_rank_list_add(&ranks, group->ranks[k]);
    }
    if (group->callers > LS_ENGINE_LISTED) {
        snprintf(more, sizeof more, " and %d more", group->callers - LS_ENGINE_LISTED);
    }
    if (with_algorithm) {
        (void)ls_algorithm_describe(group->call.algorithm, algorithm, sizeof algorithm);
    }
    return (size_t)snprintf(text, capacity, "%s%s called %s%s (#%llu)", ranks.text, more,
                            ls_call_header_detail(&group->call, detail, sizeof detail), algorithm,
                            (unsigned long long)group->call.sequence);
}

/* Fails with "rank 0 called barrier (#3); ranks 1, 2 called ...". */
static ls_status fail_disagreement(const ls_engine *engine) {
    const ls_envelope *own = ls_packet_envelope(&engine->headers.own);
    const bool differ = settings_differ(&engine->headers.own);
    char calls[768];
    size_t length = 0;
    for (uint32_t i = 0; i < own->groups && length < sizeof calls - 3; i++) {
        length += (size_t)snprintf(calls + length, sizeof calls - length, "%s", i == 0 ? "" : "; ");
        length +=
            describe_group(&ls_packet_groups(&engine->headers.own)[i], differ, calls + length, sizeof calls - length);
    }
    if (own->others != 0 && length < sizeof calls - 1) {
        snprintf(calls + length, sizeof calls - length, "; %u more ranks made other calls", own->others);
    }
    char name[64];
    return ls_fail(LS_ERR_MISMATCH, "%s: the ranks made different calls%s: %s", ls_engine_call_name(engine, name),
                   differ ? " (" LS_ALGORITHM_VARIABLE " must be the same on all ranks)" : "", calls);
}

/* Runs when the exchange of headers has finished. */
static ls_status conclude(ls_engine *engine, bool *finished) {
    const ls_envelope *own = ls_packet_envelope(&engine->headers.own);
    if (own->groups != 1) {
        return fail_disagreement(engine);
    }
    if (own->balance != 0) {
        return engine->headers.unbalanced(engine, finished);
    }
    if (own->has_payload == 0) {
        return engine->headers.agreed(engine, finished);
    }
    *finished = true;
    return ls_payload_deliver(engine);
}

/* ---- recursive doubling ------------------------------------------------------------------------------------------ */

static ls_status read_partner(ls_engine *engine, bool *finished);
static ls_status tell_children(ls_engine *engine);

static ls_status begin_level(ls_engine *engine) {
    const int partner = engine->rank ^ (1 << engine->headers.level);
    engine->segment->stage = read_partner;
    LS_TRY(ls_engine_receive(engine, partner, LS_CHANNEL_HEADERS, engine->headers.incoming[LS_ENGINE_ABOVE].memory,
                             ls_engine_packet_room(engine), &engine->headers.coming[LS_ENGINE_ABOVE]));
    return ls_engine_send(engine, partner, LS_CHANNEL_HEADERS, engine->headers.own.memory, engine->headers.own.bytes);
}

static ls_status read_partner(ls_engine *engine, bool *finished) {
    const int width = 1 << engine->headers.level;
    const int first = (engine->rank ^ width) & ~(width - 1);
    ls_packet *theirs = &engine->headers.incoming[LS_ENGINE_ABOVE];
    LS_TRY(check_block(engine, theirs, engine->headers.coming[LS_ENGINE_ABOVE], first, first + width));
    join(engine, &engine->headers.own, theirs, first);
    LS_TRY(++engine->headers.level < engine->shape.levels ? begin_level(engine) : LS_OK);
    if (engine->shape.tree_levels > 0) {
        return engine->headers.level < engine->shape.levels ? LS_OK : tell_children(engine);
    }
    if (engine->algorithm->after_level != NULL && ls_packet_envelope(&engine->headers.own)->groups == 1) {
        LS_TRY(engine->algorithm->after_level(engine)); /* runs concurrently with the exchange of the next level */
    }
    return engine->headers.level < engine->shape.levels ? LS_OK : conclude(engine, finished);
}

/* ---- a tree ------------------------------------------------------------------------------------------------------ */

/* Returns true if this rank is the root of a tree. Each machine may have a tree. */
static bool is_root(const ls_engine *engine) {
    return engine->headers.parent < 0;
}

/* Returns true if any of the ranks `first` to `last` - 1 needs the data of all ranks. */
static bool is_wanted(const ls_engine *engine, int first, int last) {
    const ls_call *call = &engine->call;
    const bool to_root = ls_flows[call->operation].to_root && engine->payload != LS_PAYLOAD_MISMATCH;
    return !to_root || (call->root >= first && call->root < last);
}

static ls_status tell_children(ls_engine *engine) {
    engine->segment->stage = conclude;
    const ls_packet *own = &engine->headers.own;
    ls_packet *bare = &engine->headers.bare;
    bare->bytes = own->bytes - ls_packet_envelope(own)->bytes;
    memcpy(bare->memory, own->memory, bare->bytes);
    ls_packet_envelope(bare)->bytes = 0;
    for (int i = engine->headers.down_count; i-- > 0;) {
        const ls_child_block *child = &engine->headers.down[i];
        const ls_packet *packet = is_wanted(engine, child->rank, child->last) ? own : bare;
        LS_TRY(ls_engine_send(engine, child->rank, LS_CHANNEL_HEADERS, packet->memory, packet->bytes));
    }
    return LS_OK;
}

/* Returns the size in bytes of the data in this rank's result; SIZE_MAX if only the sender knows. */
static size_t result_bytes(const ls_engine *engine, bool has_payload) {
    const bool wanted = is_wanted(engine, engine->rank, engine->headers.down_last);
    if (!has_payload && engine->payload != LS_PAYLOAD_MISMATCH) {
        return engine->payload == LS_PAYLOAD_ROOT ? SIZE_MAX : 0;
    }
    return wanted ? ls_payload_bytes(engine, 0, engine->size) : 0;
}

static ls_status read_result(ls_engine *engine, bool *finished) {
    (void)finished;
    ls_packet *result = &engine->headers.incoming[LS_ENGINE_ABOVE];
    const ls_transfer *coming = engine->headers.coming[LS_ENGINE_ABOVE];
    LS_TRY(check_packet(engine, result, coming, 0, engine->size));
    const ls_envelope *envelope = ls_packet_envelope(result);
    if (envelope->groups == 1) {
        const ls_call_header call = ls_call_header_of(&engine->call);
        const size_t bytes = result_bytes(engine, envelope->has_payload != 0);
        if (!ls_agreement_same(&ls_packet_groups(result)->call, &call)) {
            return fail_unsound(engine, coming->peer,
                                "it says that all ranks make a call that this rank does not make");
        }
        if (envelope->has_payload < ls_packet_envelope(&engine->headers.own)->has_payload ||
            (bytes != SIZE_MAX && envelope->bytes != bytes)) {
            return fail_unsound(engine, coming->peer, "its data does not belong to this call");
        }
    }
    ls_failure_blame(engine, -1);
    const ls_packet own = engine->headers.own;
    engine->headers.own = *result;
    *result = own;
    return tell_children(engine);
}

/* Combines the packets from blocks of ranks with this rank's packet, in the order of the tree of sums, narrow blocks
 * first: a block whose offset has `width` as its lowest bit is combined into the block `width` positions before it. */
static void join_children(ls_engine *engine) {
    for (int width = 1; width < engine->size; width *= 2) {
        for (int i = 0; i < engine->headers.child_count; i++) {
            const int place = engine->headers.children[i].rank - engine->rank;
            int into = i - 1;
            if ((place & (2 * width - 1)) != width) {
                continue;
            }
            while (into >= 0 && engine->headers.children[into].rank != engine->headers.children[i].rank - width) {
                into--;
            }
            join(engine, into < 0 ? &engine->headers.own : &engine->headers.incoming[into],
                 &engine->headers.incoming[i], engine->headers.children[i].rank);
        }
    }
}

static ls_status read_children(ls_engine *engine, bool *finished) {
    (void)finished;
    for (int i = 0; i < engine->headers.child_count; i++) {
        const ls_child_block *child = &engine->headers.children[i];
        LS_TRY(check_block(engine, &engine->headers.incoming[i], engine->headers.coming[i], child->rank, child->last));
    }
    join_children(engine);
    if (is_root(engine)) {
        engine->headers.level = engine->shape.tree_levels;
        return engine->headers.level < engine->shape.levels ? begin_level(engine) : tell_children(engine);
    }
    engine->segment->stage = read_result;
    LS_TRY(ls_engine_receive(engine, engine->headers.down_parent, LS_CHANNEL_HEADERS,
                             engine->headers.incoming[LS_ENGINE_ABOVE].memory, ls_engine_packet_room(engine),
                             &engine->headers.coming[LS_ENGINE_ABOVE]));
    return ls_engine_send(engine, engine->headers.parent, LS_CHANNEL_HEADERS, engine->headers.own.memory,
                          engine->headers.own.bytes);
}

static ls_status begin_tree(ls_engine *engine) {
    engine->segment->stage = read_children;
    for (int i = 0; i < engine->headers.child_count; i++) {
        LS_TRY(ls_engine_receive(engine, engine->headers.children[i].rank, LS_CHANNEL_HEADERS,
                                 engine->headers.incoming[i].memory, ls_engine_packet_room(engine),
                                 &engine->headers.coming[i]));
    }
    return LS_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

ls_status ls_headers_begin(ls_engine *engine, ls_engine_stage *agreed, ls_engine_stage *unbalanced) {
    engine->headers.agreed = agreed;
    engine->headers.unbalanced = unbalanced;
    engine->headers.level = 0;
    if (engine->size == 1) {
        engine->segment->stage = conclude;
        return LS_OK;
    }
    return engine->shape.tree_levels == 0 ? begin_level(engine) : begin_tree(engine);
}

static int block_end(const ls_engine *engine, int first, int width) {
    const int end = first + width;
    return end < engine->size ? end : engine->size;
}

/* Adds the children of a step in which `radix` blocks of `width` ranks are merged into one block whose first rank is
   this rank. */
static void add_children(ls_engine *engine, int width, int radix) {
    for (int i = 1; i < radix && engine->rank + i * width < engine->size; i++) {
        const int first = engine->rank + i * width;
        engine->headers.children[engine->headers.child_count++] =
            (ls_child_block){.rank = first, .last = block_end(engine, first, width)};
    }
}

/* Sets the tree down to the same tree that the headers are sent up. */
static void find_way_down(ls_engine *engine, int block_last) {
    engine->headers.down_parent = engine->headers.parent;
    engine->headers.down_last = block_last;
    engine->headers.down_count = engine->headers.child_count;
    memcpy(engine->headers.down, engine->headers.children, sizeof engine->headers.down);
}

/* Returns the number of parts into which the ranks after the first rank of a block are divided if the first rank may
 * send `sends` messages. */
static int count_parts(const ls_child_block *block, int sends) {
    const int rest = block->last - block->rank - 1;
    return rest < sends ? rest : sends;
}

static ls_child_block part_of(const ls_child_block *block, int parts, int i) {
    const ls_share share = ls_share_of(block->last - block->rank - 1, parts, i);
    const int first = block->rank + 1 + (int)share.start;
    return (ls_child_block){.rank = first, .last = first + (int)share.count};
}

/* Finds a tree that distributes the result in as few steps as possible, in which no rank sends more than 2 ceil(log2
 * P) messages in total. */
static void find_wide_way_down(ls_engine *engine) {
    ls_child_block block = {.rank = 0, .last = engine->size};
    int sends = 2 * engine->shape.levels;
    engine->headers.down_parent = -1;
    while (block.rank != engine->rank) {
        const int parts = count_parts(&block, sends);
        int i = 0;
        while (engine->rank >= part_of(&block, parts, i).last) {
            i++;
        }
        engine->headers.down_parent = block.rank;
        block = part_of(&block, parts, i);
        sends = 2 * engine->shape.levels - 1; /* ranks other than the root send one message up the tree */
    }
    engine->headers.down_last = block.last;
    engine->headers.down_count = count_parts(&block, sends);
    for (int i = 0; i < engine->headers.down_count; i++) {
        engine->headers.down[i] = part_of(&block, engine->headers.down_count, i);
    }
}

/* Finds the tree up. No step crosses a width of `blocks`, the number of ranks per machine, or of `top`. Returns one
 * past the last rank for which this rank sends to its parent. */
static int find_way_up(ls_engine *engine, int blocks, int top) {
    const int most_bits = engine->shape.takes_turns ? LS_ENGINE_STEP_POLLED : LS_ENGINE_STEP;
    int block_last = engine->size;
    engine->headers.parent = -1;
    for (int width = 1, bits; width < top; width <<= bits) {
        const int limit = width < blocks ? blocks : top;
        for (bits = most_bits; bits > 1 && width << bits > limit;) {
            bits--;
        }
        engine->shape.tree_levels += bits;
        engine->shape.tree_steps++;
        engine->shape.tree_messages += (1 << bits) - 1;
        const int place = engine->rank & ((width << bits) - 1);
        if (engine->headers.parent < 0 && place == 0) {
            add_children(engine, width, 1 << bits);
        } else if (engine->headers.parent < 0) {
            engine->headers.parent = engine->rank - place;
            block_last = block_end(engine, engine->rank, width);
        }
    }
    return block_last;
}

void ls_headers_find_shape(ls_engine *engine) {
    const int blocks = engine->place.block_ranks > 1 ? engine->place.block_ranks : 1;
    engine->shape.butterfly = (engine->size & (engine->size - 1)) == 0;
    while (1 << engine->shape.levels < engine->size) {
        engine->shape.levels++;
    }
    engine->shape.shares_cores = engine->endpoint->oversubscribed && engine->size > 4;
    engine->shape.takes_turns = engine->shape.shares_cores && engine->endpoint->polls;
    engine->shape.inline_most = engine->shape.shares_cores ? LS_INLINE_MOST_SHARED : LS_INLINE_MOST;
    const bool everywhere = !engine->shape.butterfly || engine->shape.shares_cores;
    const int block_last = find_way_up(engine, blocks,
                                       everywhere              ? 1 << engine->shape.levels
                                       : blocks < engine->size ? blocks
                                                               : 1);
    if (engine->shape.takes_turns) {
        find_wide_way_down(engine);
    } else {
        find_way_down(engine, block_last);
    }
}

static bool make_packets(ls_engine *engine) {
    ls_engine_headers *self = &engine->headers;
    const size_t each = (ls_engine_packet_room(engine) + 63) / 64 * 64;
    const size_t packets = (size_t)self->child_count + 2;
    unsigned char *memory = ls_allocate_aligned(each * packets + LS_PACKET_HEADERS_MOST, 64);
    self->memory = memory;
    if (memory == NULL) {
        return false;
    }
    self->own.memory = memory;
    self->incoming[LS_ENGINE_ABOVE].memory = memory + each;
    for (int i = 0; i < self->child_count; i++) {
        self->incoming[i].memory = memory + each * (size_t)(i + 2);
    }
    self->bare.memory = memory + each * packets;
    return true;
}

bool ls_headers_open(ls_engine *engine) {
    ls_headers_find_shape(engine);
    return make_packets(engine);
}

void ls_headers_free(ls_engine *engine) {
    ls_free(engine->headers.memory);
}

int ls_headers_partners(const ls_engine *engine, int partners[LS_ENGINE_PARTNERS]) {
    int count = 0;
    if (!is_root(engine)) {
        partners[count++] = engine->headers.parent;
    }
    for (int i = 0; i < engine->headers.down_count; i++) {
        partners[count++] = engine->headers.down[i].rank;
    }
    for (int level = engine->shape.tree_levels; is_root(engine) && level < engine->shape.levels; level++) {
        partners[count++] = engine->rank ^ (1 << level);
    }
    return count;
}
