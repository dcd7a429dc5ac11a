/*
 * Checks that all ranks make the same call: the call header, the comparison of headers, and the messages of
 * LS_ERR_MISMATCH. Does not exchange headers itself. Backend shm compares calls in a more compact form, and creates
 * these headers only if calls differ.
 */
#ifndef LS_COMM_AGREEMENT_H
#define LS_COMM_AGREEMENT_H

#include "comm/backend.h"

/* The description of a call that ranks exchange to check that their calls agree. */
typedef struct ls_call_header {
    uint32_t operation;
    int32_t dtype;
    int32_t reduction;
    int32_t root;
    int32_t tag;
    uint32_t layout;
    uint16_t on_device;   /* 1: the buffers are in device memory */
    uint16_t public_call; /* an ls_public_call; only for messages */
    uint32_t algorithm;   /* ls_algorithm_number of this call's setting of LOCKSTEP_ALGORITHM */
    uint64_t agreed;
    uint64_t sequence;
    uint64_t count; /* number of elements that the receiver of this header receives */
    uint64_t bytes; /* bytes of these elements */
} ls_call_header;

/* Returns the header of a call, without `count` and `bytes`. */
ls_call_header ls_call_header_of(const ls_call *call);

enum { LS_HEADER_WHY = 96 };

/*
 * Returns true if a header from one of `size` ranks is valid: operation, dtype, reduction, root and tag exist, and
 * `bytes` is the size of `count` elements and at most half of the address space. Every recipient of headers must call
 * this first. On failure, writes the reason to `why`, which has LS_HEADER_WHY bytes: "4096 bytes for 16 elements of
 * f32".
 */
bool ls_call_header_is_sound(const ls_call_header *header, int size, char *why);

/* Writes the description that ls_call_detail gives for the header's call. Returns `text`. */
const char *ls_call_header_detail(const ls_call_header *header, char *text, size_t capacity);

/* Returns true if two headers describe the same call. */
bool ls_agreement_same(const ls_call_header *a, const ls_call_header *b);

/* Fails with LS_ERR_MISMATCH if the headers of the `size` ranks differ. The message lists the call of each rank. */
ls_status ls_agreement_check(const ls_call *call, const ls_call_header *const *headers, int size);

/* Returns true if users pass counts on both sides of the operation, so that ranks must compare these counts. */
bool ls_agreement_varies(ls_operation operation);

#endif
