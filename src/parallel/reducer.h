/*
 * The gradients of a data-parallel module, split into buckets. One all-reduce averages the gradients of a bucket.
 *
 * The gradients of each dtype lie in one flat buffer. If the all-reduce works on host memory, the buffers of its
 * packets (wire.h) are in memory of the communicator. On the CPU, the flat buffers themselves serve as packet buffers,
 * so gradients that are sent unchanged need no copy.
 */
#ifndef LS_PARALLEL_REDUCER_H
#define LS_PARALLEL_REDUCER_H

#include "nn/spans.h"
#include "parallel/wire.h"

/* Gradients of one flat buffer that are averaged together. */
typedef struct ls_bucket {
    ls_wire_packet packet;
    const ls_span *spans; /* in descending order of offset */
    int span_count;
    int flat;
    int64_t end; /* end offset of the encoded gradients in the flat buffer */
} ls_bucket;

typedef struct ls_gradient_reducer {
    ls_module *model; /* borrowed */
    ls_comm *comm;    /* borrowed */
    const ls_wire_format *format;
    ls_reduction reduction;
    ls_flat flats[LS_FLAT_LIMIT]; /* the reducer holds references to the memory of the gradients */
    int flat_count;
    bool keeps_memory;           /* gradients stay where they are, and are averaged in place */
    ls_flat_memory *wire_memory; /* then returns memory for encoded gradients if the format converts */
    bool in_place; /* the communicator accepts memory of the gradients' device, which is not the CPU; or keeps_memory is
                      set */
    ls_storage *wire[LS_FLAT_LIMIT]; /* the packet buffers of each flat buffer */
    ls_storage *scratch;             /* device memory for a format that converts, if the wire is on the host */
    ls_span *extents;                /* NULL selects the flat buffers */
    int extent_count;
    ls_span *spans; /* the capacity of these arrays is one element per parameter */
    ls_wire_piece *pieces;
    ls_bucket *buckets;
    int bucket_count;
} ls_gradient_reducer;

/*
 * Returns communicator memory. It is zeroed, because kernels also check the gaps between parameters for Inf and NaN.
 * Returns NULL with an error. Collective.
 */
ls_storage *ls_comm_storage(ls_comm *comm, size_t bytes);

/*
 * Prepares the memory of a reducer. The members up to `flat_count` must be set. On the wire, `extra` elements follow
 * the last flat buffer, if ls_gradient_reducer_has_extra. Collective.
 */
ls_status ls_gradient_reducer_open(ls_gradient_reducer *reducer, int64_t extra);
void ls_gradient_reducer_close(ls_gradient_reducer *reducer);

/*
 * Call this before a reducer takes the gradients of a module, whose lists must be collected. Returns whether another
 * reducer already has some of these gradients. For that reducer, ls_gradient_reducer_is_shared then returns true.
 */
bool ls_gradient_reducer_claim(const ls_module *module);
bool ls_gradient_reducer_is_shared(const ls_gradient_reducer *reducer);

/* Returns whether extra values can be sent after the last gradients, in the same all-reduce. */
static inline bool ls_gradient_reducer_has_extra(const ls_gradient_reducer *reducer) {
    return !reducer->in_place && !reducer->format->converts;
}

/* Returns whether the extra values follow the gradients of a bucket. */
static inline bool ls_bucket_has_extra(const ls_gradient_reducer *reducer, const ls_bucket *bucket) {
    return bucket->flat == reducer->flat_count - 1 && bucket->end == reducer->flats[bucket->flat].count;
}

/* Returns the memory of these extra values. */
void *ls_gradient_reducer_extra(const ls_gradient_reducer *reducer);

/* Returns the index of the flat buffer that contains the gradient of a leaf, or of the leaf's bucket; -1 if there is
 * none. */
int ls_gradient_reducer_flat_of(const ls_gradient_reducer *reducer, const ls_leaf *leaf);
int ls_gradient_reducer_bucket_of(const ls_gradient_reducer *reducer, const ls_leaf *leaf);

/*
 * Moves gradients back to their flat buffers, if the model was laid out again as part of a larger model or in parts.
 * ls_gradient_reducer_is_home returns whether all gradients are in their flat buffers.
 */
bool ls_gradient_reducer_is_home(const ls_gradient_reducer *reducer);
ls_status ls_gradient_reducer_reclaim(ls_gradient_reducer *reducer);

/*
 * Splits all gradients into `count` extents of about `bytes` bytes, which ls_gradient_reducer_cut uses from then on.
 * Without this call, each flat buffer is one extent. Returns LS_ERR_MEMORY on failure.
 */
ls_status ls_gradient_reducer_divide(ls_gradient_reducer *reducer, size_t bytes);

/*
 * Creates a bucket for the included gradients of each extent, in the order of the flat buffers, and by descending
 * offset. A divided reducer also creates buckets without gradients, so that all ranks have the same number of buckets.
 */
void ls_gradient_reducer_cut(ls_gradient_reducer *reducer, bool (*includes)(const void *user, const ls_leaf *leaf),
                             const void *user);

/* Multiplies the gradients of a bucket by `factor`, and sets missing gradients to zero. */
ls_status ls_bucket_prepare(const ls_gradient_reducer *reducer, const ls_bucket *bucket, double factor);
ls_status ls_gradient_reducer_scale(const ls_gradient_reducer *reducer, double factor);

/* Writes the averaged gradients of a bucket to the flat buffer. The bucket's all-reduce must have finished. */
ls_status ls_bucket_decode(const ls_gradient_reducer *reducer, const ls_bucket *bucket);

#endif
