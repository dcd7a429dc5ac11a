/*
 * Sums over slices, in the order of the balanced tree over all slices of the job.
 *
 * A rank computes the sums of the tree nodes that contain only its own slices. If each rank has one such node, and the
 * nodes have the same size, a power of two, then the tree over these nodes is the tree over the ranks, and one
 * all-reduce adds them up. Otherwise, each rank gets one part of the vectors of all nodes (all-to-all), adds up this
 * part in tree order, and sends the sum to all ranks (all-gather).
 *
 * In the first case, buckets may be sent during the backward pass of this rank's last slice (overlap.h). This slice is
 * the rightmost leaf of the rank's node. So when a bucket of this slice is complete, all other sums of the bucket are
 * known.
 */
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "base/tree.h"
#include "comm/abort.h"
#include "comm/reduce_kernels.h"
#include "parallel/buffers.h"
#include "parallel/slices.h"

static const char call[] = "ls_data_parallel_step";

/* Numbers of the same dtype that are added up. */
typedef struct sum_vector {
    char *memory;
    size_t count;
    ls_dtype dtype;
    size_t offset; /* in a copy of all vectors, in bytes */
    bool sent;     /* the all-reduce of this rank's sum has started */
} sum_vector;

typedef struct ls_slice_sums {
    const ls_data_parallel_state *state;
    void (*run)(void *user, int slice);
    void *user;
    sum_vector *vectors; /* `run` stores the numbers of a slice here, and the result is stored here */
    int vector_count;
    size_t bytes;  /* size of all vectors together */
    bool overlaps; /* buckets are sent during the backward pass of this rank's last slice (overlap.h) */
    ls_tree_node nodes[LS_TREE_COVER];
    int node_count;
    ls_storage *room; /* memory of `levels` and `parts` */
    char *levels;     /* unfinished sums, one set of vectors per tree level */
    char *parts;      /* the sums of `nodes`, if the tree over the nodes is not the tree over the ranks */
} addition;

static size_t bytes_of(const sum_vector *v) {
    return v->count * ls_dtype_size(v->dtype);
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

static ls_tree_node root_of(const ls_slices *slices) {
    return (ls_tree_node){0, slices->total};
}

static ls_share slices_of(const ls_slices *slices, const ls_comm *comm, int rank) {
    return ls_share_of(slices->total, ls_comm_size(comm), rank);
}

/* Returns whether the tree over the ranks' nodes is the tree over the ranks. */
static bool is_regular(const ls_slices *slices, const ls_comm *comm) {
    return ls_slices_are_regular(slices->total, ls_comm_size(comm));
}

/* ---- the vectors of a slice -------------------------------------------------------------------------------------- */

static void list_vector(addition *s, void *memory, int64_t count, ls_dtype dtype) {
    sum_vector *v = &s->vectors[s->vector_count++];
    *v = (sum_vector){.memory = memory, .count = (size_t)count, .dtype = dtype, .offset = s->bytes};
    s->bytes += bytes_of(v);
}

/* The tail follows the gradients of a bucket, unless this bucket is sent before the tail is known. */
static void list_vectors(addition *s) {
    const ls_data_parallel_state *state = s->state;
    const ls_gradient_reducer *reducer = &state->reducer;
    bool attached = false;
    s->vector_count = 0;
    s->bytes = 0;
    for (int i = 0; i < reducer->bucket_count; i++) {
        const ls_wire_packet *packet = &reducer->buckets[i].packet;
        const bool last = !s->overlaps && ls_gradient_reducer_has_extra(reducer) &&
                          ls_bucket_has_extra(reducer, &reducer->buckets[i]);
        attached |= last;
        list_vector(s, packet->buffer, packet->total + (last ? ls_tail_count(state) : 0), packet->dtype);
    }
    if (!attached) {
        list_vector(s, ls_tail_memory(state), ls_tail_count(state), ls_tail_dtype(state));
    }
}

static void store(const addition *s, char *to) {
    for (int i = 0; i < s->vector_count; i++) {
        memcpy(to + s->vectors[i].offset, s->vectors[i].memory, bytes_of(&s->vectors[i]));
    }
}

static void add_vector(const sum_vector *v, const char *left) {
    ls_reduce_find(v->dtype, LS_SUM)->combine(v->memory, left + v->offset, v->memory, v->count);
}

/* Adds the vectors in `left` to the vectors of `s` that have not been sent. */
static void add(const addition *s, const char *left) {
    for (int i = 0; i < s->vector_count; i++) {
        if (!s->vectors[i].sent) {
            add_vector(&s->vectors[i], left);
        }
    }
}

/* Computes the sum of a tree node of this rank, and stores it in the vectors. */
static void run_node(const addition *s, ls_tree_node node, int level) {
    if (node.count == 1) {
        ls_slices *slices = s->state->slices;
        slices->sends = s->overlaps && node.first == slices->first + slices->count - 1;
        s->run(s->user, node.first);
        slices->sends = false;
        return;
    }
    char *own = s->levels + (size_t)level * s->bytes;
    const int left = ls_tree_left(node.count);
    run_node(s, (ls_tree_node){node.first, left}, level + 1);
    store(s, own);
    run_node(s, (ls_tree_node){node.first + left, node.count - left}, level + 1);
    add(s, own);
}

static int depth_of(int count) {
    int depth = 0;
    for (; count > 1; count = ls_tree_left(count)) {
        depth++;
    }
    return depth;
}

/* Adds the sums of this rank's earlier slices to an encoded bucket of the last slice, which is then sent. */
static void add_earlier(const ls_data_parallel_state *state, const ls_bucket *bucket) {
    const ls_slices *slices = state->slices;
    sum_vector *v = &slices->sums->vectors[bucket - state->reducer.buckets];
    for (int level = depth_of(slices->count) - 1; level >= 0; level--) {
        add_vector(v, slices->sums->levels + (size_t)level * slices->sums->bytes);
    }
    v->sent = true;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ls_status make_room(addition *s) {
    const ls_data_parallel_state *state = s->state;
    size_t bytes = (size_t)ls_tail_count(state) * ls_dtype_size(ls_tail_dtype(state));
    for (int i = 0; i < state->reducer.flat_count; i++) {
        bytes += (size_t)state->reducer.flats[i].count * ls_dtype_size(state->reducer.flats[i].dtype);
    }
    const size_t levels = (size_t)depth_of(state->slices->count);
    const size_t sets = levels + (is_regular(state->slices, state->comm) ? 0 : (size_t)s->node_count);
    if (sets == 0) {
        return LS_OK;
    }
    s->room = ls_storage_for(call, &ls_cpu, sets * bytes, LS_MEMORY_BUCKETS);
    LS_TRY(ls_made(s->room));
    s->levels = s->room->memory;
    s->parts = s->levels + levels * bytes;
    return LS_OK;
}

ls_status ls_slice_sums_open(ls_data_parallel_state *state) {
    ls_slices *slices = state->slices;
    const size_t vectors = (size_t)state->parameter_count + 1;
    addition *s = slices->sums = ls_allocate_for(call, 1, sizeof *s);
    LS_TRY(ls_made(s));
    s->state = state;
    state->overlap.add_earlier = add_earlier;
    s->vectors = ls_allocate_zeroed(vectors, sizeof *s->vectors);
    s->node_count = ls_tree_cover(root_of(slices), slices->first, slices->first + slices->count, s->nodes, 0);
    return s->vectors != NULL ? make_room(s) : ls_fail_memory(call, vectors * sizeof *s->vectors);
}

void ls_slice_sums_close(addition *s) {
    if (s == NULL) {
        return;
    }
    ls_storage_drop(s->room);
    ls_free(s->vectors);
    ls_free(s);
}

/* ---- sums over ranks --------------------------------------------------------------------------------------------- */

/* Fails with LS_ERR_MEMORY, and revokes the communicator, because the other ranks wait for this rank. */
static ls_status fail_for_all(const ls_data_parallel_state *state, size_t bytes) {
    return ls_comm_abort(state->comm, ls_fail_memory(call, bytes));
}

/* The nodes of all ranks, from left to right, and one span of their vectors. */
typedef struct span_exchange {
    ls_tree_node *nodes;
    int *counts; /* nodes of each rank */
    int node_count;
    ls_dtype dtype;
    size_t count;   /* elements of the span */
    char *received; /* [node_count, count] */
    char *levels;
} span_exchange;

/* Returns the sum of a node in the span. The sum was received, or is computed in the level's memory. */
static const char *sum_node(const span_exchange *x, ls_tree_node node, int level) {
    const size_t bytes = x->count * ls_dtype_size(x->dtype);
    for (int i = 0; i < x->node_count; i++) {
        if (x->nodes[i].first == node.first && x->nodes[i].count == node.count) {
            return x->received + (size_t)i * bytes;
        }
    }
    const int left = ls_tree_left(node.count);
    const char *a = sum_node(x, (ls_tree_node){node.first, left}, level);
    const char *b = sum_node(x, (ls_tree_node){node.first + left, node.count - left}, level + 1);
    char *own = x->levels + (size_t)level * bytes;
    ls_reduce_find(x->dtype, LS_SUM)->combine(own, a, b, x->count);
    return own;
}

/* Counts and displacements of the two collective calls, one of each per rank. */
typedef struct span_layout {
    size_t *sent, *sent_at, *received, *received_at, *spans, *spans_at;
} span_layout;

/* Sends span d of each node of this rank to rank d, and sends the sum of this rank's span to all ranks. */
static ls_status exchange_spans(const addition *s, span_exchange *x, const span_layout *l, const sum_vector *v,
                                const char *part, char *packed) {
    const ls_comm *comm = s->state->comm;
    const size_t width = ls_dtype_size(v->dtype);
    char *to = packed;
    size_t received = 0;
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        const ls_share span = ls_share_of((int64_t)v->count, ls_comm_size(comm), rank);
        l->spans[rank] = (size_t)span.count;
        l->spans_at[rank] = (size_t)span.start;
        l->sent[rank] = (size_t)s->node_count * (size_t)span.count;
        l->sent_at[rank] = (size_t)(to - packed) / width;
        l->received[rank] = (size_t)x->counts[rank] * x->count;
        l->received_at[rank] = received;
        received += l->received[rank];
        for (int i = 0; i < s->node_count; i++) {
            memcpy(to, part + (size_t)i * s->bytes + (size_t)span.start * width, (size_t)span.count * width);
            to += (size_t)span.count * width;
        }
    }
    LS_TRY(ls_comm_alltoallv(s->state->comm, packed, l->sent, l->sent_at, x->received, l->received, l->received_at,
                             v->dtype, NULL));
    const char *sum = sum_node(x, root_of(s->state->slices), 0);
    return ls_comm_allgatherv(s->state->comm, sum, v->memory, l->spans, l->spans_at, v->dtype, NULL);
}

/* Adds up one sum_vector over all nodes. `part` is the sum_vector of this rank's first node. */
static ls_status exchange_vector(const addition *s, span_exchange *x, const sum_vector *v, const char *part) {
    const ls_comm *comm = s->state->comm;
    const size_t ranks = (size_t)ls_comm_size(comm), width = ls_dtype_size(v->dtype);
    x->dtype = v->dtype;
    x->count = (size_t)ls_share_of((int64_t)v->count, (int64_t)ranks, ls_comm_rank(comm)).count;
    const size_t sent = (size_t)s->node_count * v->count * width;
    const size_t received = (size_t)x->node_count * x->count * width;
    const size_t levels = ((size_t)depth_of(s->state->slices->total) + 1) * x->count * width;
    const size_t bytes = sent + received + levels;
    size_t *numbers = ls_allocate_zeroed(6 * ranks, sizeof *numbers);
    char *memory = ls_allocate(bytes);
    ls_status status = numbers != NULL && memory != NULL ? LS_OK : fail_for_all(s->state, bytes);
    if (status == LS_OK) {
        const span_layout l = {numbers,
                               numbers + ranks,
                               numbers + 2 * ranks,
                               numbers + 3 * ranks,
                               numbers + 4 * ranks,
                               numbers + 5 * ranks};
        x->received = memory + sent;
        x->levels = x->received + received;
        status = exchange_spans(s, x, &l, v, part, memory);
    }
    ls_free(numbers);
    ls_free(memory);
    return status;
}

static ls_status exchange_vectors(const addition *s) {
    const ls_comm *comm = s->state->comm;
    const int ranks = ls_comm_size(comm);
    span_exchange x = {.nodes = ls_allocate_zeroed((size_t)s->state->slices->total, sizeof *x.nodes),
                       .counts = ls_allocate_zeroed((size_t)ranks, sizeof *x.counts)};
    ls_status status = x.nodes != NULL && x.counts != NULL
                           ? LS_OK
                           : fail_for_all(s->state, (size_t)s->state->slices->total * sizeof *x.nodes);
    for (int rank = 0; rank < ranks && status == LS_OK; rank++) {
        const ls_share own = slices_of(s->state->slices, comm, rank);
        const int before = x.node_count;
        x.node_count =
            ls_tree_cover(root_of(s->state->slices), (int)own.start, (int)(own.start + own.count), x.nodes, before);
        x.counts[rank] = x.node_count - before;
    }
    const char *part = s->parts;
    for (int i = 0; i < s->vector_count && status == LS_OK; i++) {
        status = exchange_vector(s, &x, &s->vectors[i], part);
        part += bytes_of(&s->vectors[i]);
    }
    ls_free(x.nodes);
    ls_free(x.counts);
    return status;
}

/* Adds up the sums of all ranks, and stores the result in the vectors. */
static ls_status add_over_ranks(const addition *s) {
    ls_comm *comm = s->state->comm;
    if (!is_regular(s->state->slices, comm)) {
        return exchange_vectors(s);
    }
    for (int i = 0; i < s->vector_count && ls_comm_size(comm) > 1; i++) {
        const sum_vector *v = &s->vectors[i];
        LS_TRY(ls_comm_allreduce(comm, v->memory, v->memory, v->count, v->dtype, LS_SUM, NULL));
    }
    return LS_OK;
}

ls_status ls_slices_average(ls_data_parallel_state *state, void (*run)(void *user, int slice), void *user) {
    const ls_slices *slices = state->slices;
    addition *s = slices->sums;
    s->run = run;
    s->user = user;
    s->overlaps = ls_slices_overlap(state);
    list_vectors(s);
    for (int i = 0; i < s->node_count; i++) {
        run_node(s, s->nodes[i], 0);
        if (!is_regular(slices, state->comm)) {
            store(s, s->parts + (size_t)i * s->bytes);
        }
    }
    LS_TRY(s->overlaps ? ls_overlap_end_slices(state) : add_over_ranks(s));
    for (int i = 0; i < s->vector_count; i++) {
        const sum_vector *v = &s->vectors[i];
        ls_reduce_find(v->dtype, LS_AVG)->finish(v->memory, v->memory, v->count, slices->total);
    }
    return LS_OK;
}

/* ---- a few numbers per slice ------------------------------------------------------------------------------------- */

/* Gathers the numbers of all slices, and adds them up. */
static ls_status add_gathered(const ls_data_parallel_state *state, const double *numbers, size_t width, double *all,
                              const void **sources, size_t *counts, double *sums) {
    const ls_slices *slices = state->slices;
    const size_t ranks = (size_t)ls_comm_size(state->comm);
    for (size_t rank = 0; rank < ranks; rank++) {
        const ls_share own = slices_of(slices, state->comm, (int)rank);
        counts[rank] = (size_t)own.count * width;
        counts[ranks + rank] = (size_t)own.start * width;
    }
    LS_TRY(ls_comm_allgatherv(state->comm, numbers, all, counts, counts + ranks, LS_F64, NULL));
    for (int i = 0; i < slices->total; i++) {
        sources[i] = all + (size_t)i * width;
    }
    ls_reduce_to(sums, LS_F64, LS_SUM, sources, slices->total, width);
    return LS_OK;
}

ls_status ls_slices_add(const ls_data_parallel_state *state, const double *numbers, size_t width, double *sums) {
    const size_t total = (size_t)state->slices->total, ranks = (size_t)ls_comm_size(state->comm);
    double *all = ls_allocate_zeroed(total * width, sizeof *all);
    const void **sources = ls_allocate_zeroed(total, sizeof *sources);
    size_t *counts = ls_allocate_zeroed(2 * ranks, sizeof *counts);
    const ls_status status = all != NULL && sources != NULL && counts != NULL
                                 ? add_gathered(state, numbers, width, all, sources, counts, sums)
                                 : fail_for_all(state, total * width * sizeof *all);
    ls_free(all);
    ls_free(sources);
    ls_free(counts);
    return status;
}
