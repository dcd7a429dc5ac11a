/*
 * Whether ranks call the same: what travels, the comparison, and the sentences of LS_ERR_MISMATCH. Knows nothing of how
 * headers travel; backend shm, which has the same in less room, makes them when calls differ.
 */
#ifndef LS_COMM_AGREEMENT_H
#define LS_COMM_AGREEMENT_H

#include "comm/backend.h"

/* A call as it travels. */
typedef struct ls_call_header {
    uint32_t operation;
    int32_t dtype;
    int32_t reduction;
    int32_t root;
    int32_t tag;
    uint32_t layout;
    uint32_t on_device; /* 1: the buffers are in memory of a device */
    uint32_t algorithm; /* ls_algorithm_number: LOCKSTEP_ALGORITHM of this call */
    uint64_t agreed;
    uint64_t sequence;
    uint64_t count; /* elements for the receiver of this header */
    uint64_t bytes; /* the same */
} ls_call_header;

/* What a rank found when it compared what it is sent with what it wants. */
typedef struct ls_call_verdict {
    uint64_t sent;
    uint64_t wanted;
    int64_t from; /* -1: all agrees */
} ls_call_verdict;

/* The header of a call, without count and bytes. */
ls_call_header ls_call_header_of(const ls_call *call);

enum { LS_HEADER_WHY = 96 };

/*
 * Whether a header that came from another of `size` ranks is one: operation, dtype, reduction, root and tag exist, and
 * the bytes are those of the elements, no more than memory can hold. Whoever reads headers asks this before anything
 * else. Otherwise `why`, LS_HEADER_WHY bytes, says what is wrong: "4096 bytes for 16 elements of f32".
 */
bool ls_call_header_is_sound(const ls_call_header *header, int size, char *why);

/* ls_call_detail of the call that a header is of. Returns `text`. */
const char *ls_call_header_detail(const ls_call_header *header, char *text, size_t capacity);

/* Whether two ranks call the same. */
bool ls_agreement_same(const ls_call_header *a, const ls_call_header *b);

/* LS_ERR_MISMATCH, saying who called what, where the headers of `size` ranks are not all the same. */
ls_status ls_agreement_check(const ls_call *call, const ls_call_header *const *headers, int size);

/* Compares what the ranks send to `rank` with what it wants. */
ls_call_verdict ls_agreement_judge(const ls_call *call, int rank, const ls_call_header *const *headers, int size);

/* LS_ERR_MISMATCH where the verdict of `rank` is that something does not fit. */
ls_status ls_agreement_accept(const ls_call *call, int rank, const ls_call_verdict *verdict);

/* Whether users give counts on both sides of the operation, so that ranks have to exchange verdicts. */
bool ls_agreement_varies(ls_operation operation);

#endif
