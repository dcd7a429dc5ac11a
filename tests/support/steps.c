#include "tests/support/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/device_buffers.h"
#include "tests/support/reference.h"

#define GUARD      64
#define GUARD_BYTE 0xa5
#define MOST_SHIFT 64
#define GAP        3

/* Properties of a call. */
typedef struct nature {
    const char *name;
    bool reduces;
    bool to_root;   /* only the root receives */
    bool from_root; /* only the root sends */
    bool cuts;      /* each rank is sent its own part */
    bool assembles; /* the parts from all ranks are assembled */
    bool varies;    /* counts per rank */
} nature;

static const nature natures[STEP_CALLS] = {
    [STEP_BARRIER] = {.name = "barrier"},
    [STEP_BROADCAST] = {"broadcast", .from_root = true},
    [STEP_ALLREDUCE] = {"allreduce", .reduces = true},
    [STEP_REDUCE] = {"reduce", .reduces = true, .to_root = true},
    [STEP_REDUCE_SCATTER] = {"reduce_scatter", .reduces = true, .cuts = true},
    [STEP_REDUCE_SCATTERV] = {"reduce_scatterv", .reduces = true, .cuts = true, .varies = true},
    [STEP_GATHER] = {"gather", .to_root = true, .assembles = true},
    [STEP_GATHERV] = {"gatherv", .to_root = true, .assembles = true, .varies = true},
    [STEP_ALLGATHER] = {"allgather", .assembles = true},
    [STEP_ALLGATHERV] = {"allgatherv", .assembles = true, .varies = true},
    [STEP_SCATTER] = {"scatter", .from_root = true, .cuts = true},
    [STEP_SCATTERV] = {"scatterv", .from_root = true, .cuts = true, .varies = true},
    [STEP_ALLTOALL] = {"alltoall", .cuts = true, .assembles = true},
    [STEP_ALLTOALLV] = {"alltoallv", .cuts = true, .assembles = true, .varies = true},
    [STEP_MESSAGE] = {"message", .from_root = true},
    [STEP_RING] = {.name = "ring"},
};

const char *step_name(step_call call) {
    return natures[call].name;
}

bool step_reduces(step_call call) {
    return natures[call].reduces;
}

bool step_varies(step_call call) {
    return natures[call].varies;
}

/* ---- counts per pair of ranks ------------------------------------------------------------------------------------ */

/*
 * Returns how many elements one rank sends to another in calls with counts per rank: none, all or a number in between.
 */
static size_t varied(const step *s, int from, int to) {
    const uint64_t random = reference_mix(s->seed ^ (uint64_t)(from * 64 + to + 5));
    switch (random % 4) {
    case 0:
        return 0;
    case 1:
        return s->count;
    default:
        return (size_t)((random >> 8) % (s->count + 1));
    }
}

size_t step_piece(const step *s, int from, int to) {
    const nature *n = &natures[s->call];
    const int size = ls_comm_size(s->comm);
    if (s->call == STEP_BARRIER || (n->to_root && to != s->root) || (n->from_root && from != s->root) ||
        (s->call == STEP_MESSAGE && to != s->other) || (s->call == STEP_RING && to != (from + s->root) % size)) {
        return 0;
    }
    if (!n->varies) {
        return s->count;
    }
    const bool by_both = n->cuts && n->assembles;
    return by_both ? varied(s, from, to) : varied(s, n->cuts ? to : from, 0);
}

/* Lays out parts one after another or, with gaps, apart and in reverse order. */
static void lay_out(const step *s, step_parts *parts) {
    const int size = ls_comm_size(s->comm);
    const bool gaps = s->gaps && step_varies(s->call) && !step_reduces(s->call);
    size_t at = gaps ? GAP : 0;
    for (int i = 0; i < size; i++) {
        const int rank = gaps ? size - 1 - i : i;
        parts->places[rank] = at;
        at += parts->counts[rank] + (gaps ? GAP : 0);
    }
    parts->elements = at;
}

/* Lays out the data that this rank sends. */
static void lay_out_sent(step *s) {
    const nature *n = &natures[s->call];
    const int rank = ls_comm_rank(s->comm);
    const int size = ls_comm_size(s->comm);
    for (int to = 0; to < size; to++) {
        s->out.counts[to] = step_piece(s, rank, to);
    }
    if (n->cuts) {
        lay_out(s, &s->out);
        if (n->from_root && rank != s->root) {
            s->out.elements = 0;
        }
    } else if (n->varies) {
        s->out.elements = varied(s, rank, 0);
    } else {
        const bool sends = s->call == STEP_MESSAGE ? rank == s->root : s->call != STEP_BARRIER;
        s->out.elements = sends ? s->count : 0;
    }
}

/* Lays out the data that this rank receives. */
static void lay_out_received(step *s) {
    const nature *n = &natures[s->call];
    const int rank = ls_comm_rank(s->comm);
    const int size = ls_comm_size(s->comm);
    for (int from = 0; from < size; from++) {
        s->in.counts[from] = step_piece(s, from, rank);
    }
    if (n->assembles) {
        lay_out(s, &s->in);
        if (n->to_root && rank != s->root) {
            s->in.elements = 0;
        }
    } else if (s->call == STEP_RING) {
        s->in.elements = s->count;
    } else {
        s->in.elements = n->from_root ? s->in.counts[s->root] : s->in.counts[rank];
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t width_of(const step *s) {
    return step_reduces(s->call) ? reference_width(s->dtype, s->reduction) : ls_dtype_size(s->dtype);
}

size_t step_room(int ranks, size_t count, size_t width) {
    const size_t side = (size_t)ranks * (count + GAP) + GAP;
    return 2 * side * width + 3 * GUARD + 2 * MOST_SHIFT;
}

/* Returns whether the only buffer of an in-place call is the send buffer, not the receive buffer. */
static bool receives_into_sent(const step *s) {
    return s->call == STEP_BROADCAST || s->call == STEP_ALLREDUCE || s->call == STEP_REDUCE ||
           s->call == STEP_REDUCE_SCATTER || s->call == STEP_REDUCE_SCATTERV || s->call == STEP_SCATTER ||
           s->call == STEP_ALLTOALL;
}

static bool is_in_place(const step *s) {
    const nature *n = &natures[s->call];
    const bool has_both = !(n->to_root || n->from_root) || ls_comm_rank(s->comm) == s->root;
    return s->call == STEP_BROADCAST ||
           (s->in_place && has_both && (receives_into_sent(s) || s->call == STEP_GATHER || s->call == STEP_ALLGATHER));
}

/* Determines the positions of this rank's buffers in its block. */
static ls_status place_buffers(step *s) {
    const size_t width = width_of(s);
    const int rank = ls_comm_rank(s->comm);
    const bool joint = is_in_place(s);
    const size_t sent = joint && !receives_into_sent(s) ? 0 : s->out.elements * width;
    const size_t received = joint && receives_into_sent(s) ? 0 : s->in.elements * width;
    const size_t between = GUARD + s->shift * 3 % MOST_SHIFT;
    const size_t first = GUARD + s->shift % MOST_SHIFT;
    s->bytes = first + sent + between + received + GUARD;
    s->block = s->shared != NULL ? s->shared : malloc(s->bytes);
    s->image = malloc(s->bytes);
    if (s->block == NULL || s->image == NULL) {
        return ls_fail(LS_ERR_MEMORY, "a test wants %zu bytes", 2 * s->bytes);
    }
    memset(s->block, GUARD_BYTE, s->bytes);
    s->send = s->block + first;
    s->receive = s->send + sent + between;
    if (joint && receives_into_sent(s)) {
        const bool own = s->call == STEP_SCATTER || (natures[s->call].reduces && natures[s->call].cuts && s->own_part);
        s->receive = s->send + (own ? s->out.places[rank] * width : 0);
    } else if (joint) {
        s->send = s->receive + s->in.places[rank] * width;
    }
    return LS_OK;
}

static void write_sent(const step *s) {
    const nature *n = &natures[s->call];
    const int rank = ls_comm_rank(s->comm);
    const size_t width = width_of(s);
    if (n->reduces) {
        const reference r = {s->dtype, s->reduction, s->seed};
        reference_fill(&r, rank, s->out.elements, s->send);
        return;
    }
    for (int to = 0; to < ls_comm_size(s->comm) && n->cuts && s->out.elements != 0; to++) {
        reference_send(s->seed, s->dtype, rank, to, s->out.counts[to], s->send + s->out.places[to] * width);
    }
    if (!n->cuts && !(n->from_root && rank != s->root)) {
        reference_send(s->seed, s->dtype, rank, -1, s->out.elements, s->send);
    }
}

/* Writes the data that this rank must receive into the image. */
static void write_received(const step *s) {
    const nature *n = &natures[s->call];
    const int rank = ls_comm_rank(s->comm);
    const int size = ls_comm_size(s->comm);
    const size_t width = width_of(s);
    unsigned char *at = s->image + (s->receive - s->block);
    if (n->reduces) {
        const reference r = {s->dtype, s->reduction, s->seed};
        reference_reduce(&r, size, n->cuts ? s->out.places[rank] : 0, s->in.elements, at);
        return;
    }
    for (int from = 0; from < size; from++) {
        if (s->in.counts[from] != 0) {
            reference_send(s->seed, s->dtype, from, n->cuts ? rank : -1, s->in.counts[from],
                           at + (n->assembles ? s->in.places[from] * width : 0));
        }
    }
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static ls_status begin_message(step *s, ls_work **work) {
    const int rank = ls_comm_rank(s->comm);
    const int size = ls_comm_size(s->comm);
    const bool ring = s->call == STEP_RING;
    if (ring ||
        rank == s->root) { /* a rank that also receives must not wait first for its own message to be received */
        const int to = ring ? (rank + s->root) % size : s->other;
        LS_TRY(ls_comm_send(s->comm, s->send, s->count, s->dtype, to, s->tag,
                            ring || to == rank || s->later ? &s->works[1] : NULL));
    }
    if (ring || rank == s->other) {
        const int from = ring ? (rank + size - s->root % size) % size : s->root;
        return ls_comm_recv(s->comm, s->receive, s->count, s->dtype, from, s->tag, work);
    }
    return LS_OK;
}

static ls_status begin_varied(step *s, ls_work **work) {
    const bool root = ls_comm_rank(s->comm) == s->root;
    const size_t *in_places = s->gaps ? s->in.places : NULL;
    const size_t *out_places = s->gaps ? s->out.places : NULL;
    switch (s->call) {
    case STEP_GATHERV:
        return ls_comm_gatherv(s->comm, s->send, s->out.elements, s->receive, root ? s->in.counts : NULL, in_places,
                               s->dtype, s->root, work);
    case STEP_ALLGATHERV:
        return ls_comm_allgatherv(s->comm, s->send, s->receive, s->in.counts, in_places, s->dtype, work);
    case STEP_SCATTERV:
        return ls_comm_scatterv(s->comm, s->send, root ? s->out.counts : NULL, out_places, s->receive, s->in.elements,
                                s->dtype, s->root, work);
    case STEP_ALLTOALLV:
        return ls_comm_alltoallv(s->comm, s->send, s->out.counts, out_places, s->receive, s->in.counts, in_places,
                                 s->dtype, work);
    default:
        return ls_comm_reduce_scatterv(s->comm, s->send, s->receive, s->out.counts, s->dtype, s->reduction, work);
    }
}

static ls_status make(step *s, ls_work **work) {
    const bool root = ls_comm_rank(s->comm) == s->root;
    switch (s->call) {
    case STEP_BARRIER:
        return ls_comm_barrier(s->comm, work);
    case STEP_BROADCAST:
        return ls_comm_broadcast(s->comm, s->receive, s->count, s->dtype, s->root, work);
    case STEP_ALLREDUCE:
        return ls_comm_allreduce(s->comm, s->send, s->receive, s->count, s->dtype, s->reduction, work);
    case STEP_REDUCE:
        return ls_comm_reduce(s->comm, s->send, root ? s->receive : NULL, s->count, s->dtype, s->reduction, s->root,
                              work);
    case STEP_REDUCE_SCATTER:
        return ls_comm_reduce_scatter(s->comm, s->send, s->receive, s->count, s->dtype, s->reduction, work);
    case STEP_GATHER:
        return ls_comm_gather(s->comm, s->send, root ? s->receive : NULL, s->count, s->dtype, s->root, work);
    case STEP_ALLGATHER:
        return ls_comm_allgather(s->comm, s->send, s->receive, s->count, s->dtype, work);
    case STEP_SCATTER:
        return ls_comm_scatter(s->comm, root ? s->send : NULL, s->receive, s->count, s->dtype, s->root, work);
    case STEP_ALLTOALL:
        return ls_comm_alltoall(s->comm, s->send, s->receive, s->count, s->dtype, work);
    case STEP_MESSAGE:
    case STEP_RING:
        return begin_message(s, work);
    default:
        return begin_varied(s, work);
    }
}

/*
 * With LOCKSTEP_TEST_STREAM=1, a backend that accepts device memory gets a call with a stream. NCCL's test double
 * (tests/nccl_double) treats this memory as GPU memory.
 */
ls_status step_make(step *s, ls_work **work) {
    const bool collective = s->call != STEP_BARRIER && s->call != STEP_MESSAGE && s->call != STEP_RING;
    const bool on_device = getenv("LOCKSTEP_TEST_STREAM") != NULL && collective &&
                           ls_comm_takes(s->comm, step_reduces(s->call), s->dtype, s->reduction);
    ls_comm_use_stream(s->comm, on_device ? s->comm : NULL);
    const ls_status status = make(s, work);
    ls_comm_use_stream(s->comm, NULL);
    return status;
}

const char *step_describe(const step *s, char *text, size_t capacity) {
    const nature *n = &natures[s->call];
    snprintf(
        text, capacity, "%s of %zu %s%s%s, rank %d of %d, root %d, other %d, tag %d, seed %llu%s%s%s%s%s, shift %zu",
        n->name, s->count, ls_dtype_name(s->dtype), n->reduces ? ", " : "",
        n->reduces ? ls_reduction_name(s->reduction) : "", ls_comm_rank(s->comm), ls_comm_size(s->comm), s->root,
        s->other, s->tag, (unsigned long long)s->seed, s->in_place ? ", in place" : "", s->own_part ? ", own part" : "",
        s->gaps ? ", gaps" : "", s->later ? ", as work" : "", s->shared != NULL ? ", shared memory" : "", s->shift);
    return text;
}

static ls_status fail_step(const step *s, ls_status status, const char *what) {
    char text[400];
    return ls_fail(status, "%s: %s", step_describe(s, text, sizeof text), what);
}

void step_discard(step *s) {
    free(s->image);
    if (s->shared == NULL) {
        free(s->block);
    }
}

ls_status step_prepare(step *s) {
    if (ls_comm_size(s->comm) > STEP_RANKS_MOST) {
        return ls_fail(LS_ERR_ARGUMENT, "steps are for %d ranks at most", STEP_RANKS_MOST);
    }
    lay_out_sent(s);
    lay_out_received(s);
    LS_TRY(place_buffers(s));
    write_sent(s);
    memcpy(s->image, s->block, s->bytes);
    write_received(s);
    return LS_OK;
}

void step_expect_nothing(step *s) {
    memcpy(s->image, s->block, s->bytes);
}

/* Adds the description of the step to the failure of a call. */
static ls_status fail_as(const step *s, ls_status status) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    return status == LS_OK ? LS_OK : fail_step(s, status, message);
}

ls_status step_begin(step *s) {
    LS_TRY(step_prepare(s));
    return fail_as(s, step_make(s, s->later ? &s->works[0] : NULL));
}

/* Reports the first byte that differs from the expected byte. */
static ls_status fail_memory_differs(const step *s) {
    char text[160];
    size_t at = 0;
    while (s->block[at] == s->image[at]) {
        at++;
    }
    snprintf(text, sizeof text, "byte %zd of what is received (%zd of what is sent) is 0x%02x, not 0x%02x",
             s->block + at - s->receive, s->block + at - s->send, s->block[at], s->image[at]);
    return fail_step(s, LS_ERR_INTERNAL, text);
}

ls_status step_verify(step *s) {
    const ls_status status = memcmp(s->block, s->image, s->bytes) == 0 ? LS_OK : fail_memory_differs(s);
    step_discard(s);
    return status;
}

ls_status step_end(step *s) {
    LS_TRY(fail_as(s, ls_work_wait(s->works[0])));
    LS_TRY(fail_as(s, ls_work_wait(s->works[1])));
    return step_verify(s);
}
