/*
 * Compares counts in calls in which each rank has its own counts (gatherv, scatterv, alltoallv). Each rank adds a hash
 * of sender, receiver and count for each count that it sends, and subtracts the hash for each count that it expects.
 * The sum over all ranks is 0 if all counts match, and otherwise with a probability of 2^-64, so one number in the
 * agreement suffices. Only if the sum is not 0, the ranks exchange their counts to find the ranks whose counts differ.
 */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"
#include "comm/pieces.h"

/* Returns 0 for count 0, so that ranks that exchange nothing need no hash. Mixes bits like splitmix64. */
static uint64_t hash(int from, int to, size_t count) {
    if (count == 0) {
        return 0;
    }
    uint64_t x = (uint64_t)count * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)from << 32 | (uint64_t)to);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t ls_counts_balance(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    uint64_t balance = 0;
    if (!ls_agreement_varies(call->operation)) {
        return 0;
    }
    for (int other = 0; other < engine->size; other++) {
        balance += hash(engine->rank, other, ls_piece_sent(call, engine->rank, other).count);
        balance -= hash(other, engine->rank, ls_piece_received(call, engine->rank, other).count);
    }
    return balance;
}

static ls_stretch sent(const ls_engine *engine, int to) {
    return (ls_stretch){(unsigned char *)&engine->counts.own[to], sizeof *engine->counts.own};
}

static ls_stretch received(const ls_engine *engine, int from) {
    return (ls_stretch){(unsigned char *)&engine->counts.found[from], sizeof *engine->counts.found};
}

/* Runs after the second exchange: all ranks know the first mismatch. */
static ls_status fail(ls_engine *engine, bool *finished) {
    (void)finished;
    ls_count_mismatch mismatch;
    char name[64];
    ls_engine_call_name(engine, name);
    memcpy(&mismatch, ls_packet_data(ls_headers_packet(engine)), sizeof mismatch);
    if (mismatch.from < 0) {
        return ls_fail(LS_ERR_MISMATCH, "%s: the counts of the ranks do not match", name);
    }
    return ls_fail(LS_ERR_MISMATCH, "%s: rank %d sends %llu %s to rank %d, which expects %llu", name,
                   (int)mismatch.from, (unsigned long long)mismatch.sent, ls_dtype_name(engine->call.dtype),
                   (int)mismatch.to, (unsigned long long)mismatch.wanted);
}

static ls_status compare(ls_engine *engine, bool *finished) {
    (void)finished;
    ls_count_mismatch mismatch = {.from = -1};
    for (int from = 0; from < engine->size && mismatch.from < 0; from++) {
        const size_t wanted = ls_piece_received(&engine->call, engine->rank, from).count;
        if (engine->counts.found[from] != wanted) {
            mismatch = (ls_count_mismatch){
                .from = from, .to = engine->rank, .sent = engine->counts.found[from], .wanted = wanted};
        }
    }
    ls_payload_begin_mismatch(engine, &mismatch);
    return ls_headers_begin(engine, fail, NULL); /* these packets have no balance */
}

ls_status ls_counts_find(ls_engine *engine, bool *finished) {
    static const ls_traffic traffic = {.sent = sent, .received = received};
    (void)finished;
    if (engine->counts.own == NULL) {
        engine->counts.own = ls_allocate_zeroed(2 * (size_t)engine->size, sizeof *engine->counts.own);
        if (engine->counts.own == NULL) {
            return ls_fail_memory("ls_comm_alltoallv", 2 * (size_t)engine->size * sizeof *engine->counts.own);
        }
        engine->counts.found = engine->counts.own + engine->size;
    }
    for (int to = 0; to < engine->size; to++) {
        engine->counts.own[to] = ls_piece_sent(&engine->call, engine->rank, to).count;
    }
    return ls_direct_begin(engine, &traffic, compare);
}

void ls_counts_free(ls_engine *engine) {
    ls_free(engine->counts.own);
}
