/*
 * The gradients of a data-parallel module, cut into buckets. One all-reduce averages the gradients of a bucket.
 *
 * The gradients of each dtype lie in one flat buffer. If the all-reduce works on host memory, the buffers of its
 * packets (wire.h) are in memory of the communicator. On the CPU, these are the flat buffers themselves, so gradients
 * that are sent as they are need no copy.
 */
#ifndef LS_PARALLEL_REDUCER_H
#define LS_PARALLEL_REDUCER_H

#include "nn/spans.h"
#include "parallel/wire.h"

/* Gradients of one flat buffer that are averaged together. */
typedef struct ls_bucket {
    ls_wire_packet packet;
    const ls_span *spans; /* from the highest offset to the lowest */
    int span_count;
    int flat;
    int64_t end; /* offset in the flat buffer at which the encoded gradients end */
} ls_bucket;

typedef struct ls_gradient_reducer {
    ls_module *model; /* borrowed */
    ls_comm *comm;    /* borrowed */
    const ls_wire_format *format;
    ls_flat flats[LS_FLAT_LIMIT]; /* the reducer holds the memory of the gradients */
    int flat_count;
    bool keeps_memory; /* gradients stay where they are, and are averaged there without moving */
    bool in_place; /* the communicator accepts memory of the gradients' device, which is not the CPU; or keeps_memory */
    ls_storage *wire[LS_FLAT_LIMIT]; /* the buffers of the packets of each flat buffer */
    ls_storage *scratch;             /* memory on the device for a format that converts, if the wire is on the host */
    ls_span *extents;                /* NULL: the flat buffers */
    int extent_count;
    ls_span *spans; /* capacity of these arrays: one element per parameter */
    ls_wire_piece *pieces;
    ls_bucket *buckets;
    int bucket_count;
} ls_gradient_reducer;

/*
 * Returns memory of the communicator. It is zeroed: there are gaps between parameters, which
 * kernels also check for Inf and NaN. Returns NULL with an error on failure. A collective call.
 */
ls_storage *ls_comm_storage(ls_comm *comm, size_t bytes);

/*
 * Prepares the memory of a reducer whose first members up to `flat_count` are set. The last flat buffer on the wire is
 * followed by `extra` elements, if ls_gradient_reducer_has_extra. A collective call.
 */
ls_status ls_gradient_reducer_open(ls_gradient_reducer *reducer, int64_t extra);
void ls_gradient_reducer_close(ls_gradient_reducer *reducer);

/*
 * Called before a reducer takes the gradients of a module, whose lists are collected. Returns whether another reducer
 * has taken some of them, for which ls_gradient_reducer_is_shared then returns true.
 */
bool ls_gradient_reducer_claim(const ls_module *module);
bool ls_gradient_reducer_is_shared(const ls_gradient_reducer *reducer);

/* Returns whether other values can be sent after the last gradients, in the same all-reduce. */
static inline bool ls_gradient_reducer_has_extra(const ls_gradient_reducer *reducer) {
    return !reducer->in_place && !reducer->format->converts;
}

/* Returns whether these values follow the gradients of a bucket. */
static inline bool ls_bucket_has_extra(const ls_gradient_reducer *reducer, const ls_bucket *bucket) {
    return bucket->flat == reducer->flat_count - 1 && bucket->end == reducer->flats[bucket->flat].count;
}

/* Returns the memory of these values. */
void *ls_gradient_reducer_extra(const ls_gradient_reducer *reducer);

/* Returns the index of the flat buffer that has the gradient of a leaf, or of its bucket; -1 if none has. */
int ls_gradient_reducer_flat_of(const ls_gradient_reducer *reducer, const ls_leaf *leaf);
int ls_gradient_reducer_bucket_of(const ls_gradient_reducer *reducer, const ls_leaf *leaf);

/*
 * Moves gradients back to their flat buffers, if the model was laid out again as part of a larger model or in parts.
 * ls_gradient_reducer_is_home returns whether all of them are there.
 */
bool ls_gradient_reducer_is_home(const ls_gradient_reducer *reducer);
ls_status ls_gradient_reducer_reclaim(ls_gradient_reducer *reducer);

/*
 * Cuts all gradients into `count` extents of about `bytes` bytes, which ls_gradient_reducer_cut uses from then on.
 * Without this call, each flat buffer is an extent. Returns LS_ERR_MEMORY on failure.
 */
ls_status ls_gradient_reducer_divide(ls_gradient_reducer *reducer, size_t bytes);

/*
 * Makes a bucket of the included gradients of each extent, in the order of their flat buffers, and from the highest
 * offset to the lowest. A divided reducer also makes buckets without gradients, so that all ranks have equally many.
 */
void ls_gradient_reducer_cut(ls_gradient_reducer *reducer, bool (*includes)(const void *user, const ls_leaf *leaf),
                             const void *user);

/* Multiplies the gradients of a bucket by `factor`, and sets missing gradients to zero. */
ls_status ls_bucket_prepare(const ls_gradient_reducer *reducer, const ls_bucket *bucket, double factor);
ls_status ls_bucket_scale(const ls_gradient_reducer *reducer, const ls_bucket *bucket, double factor);
ls_status ls_gradient_reducer_scale(const ls_gradient_reducer *reducer, double factor);

/* Writes the averaged gradients of a bucket, whose all-reduce has ended, to the flat buffer. */
ls_status ls_bucket_decode(const ls_gradient_reducer *reducer, const ls_bucket *bucket);

#endif
