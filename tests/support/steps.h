/*
 * One call of a test, on every rank: its buffers with what is sent, the call itself, and a look at everything around
 * them when it has ended. All ranks describe the same step; what each must receive follows from that
 * (support/reference.h). The conformance list and the random programs are sequences of steps.
 */
#ifndef LS_TESTS_SUPPORT_STEPS_H
#define LS_TESTS_SUPPORT_STEPS_H

#include <lockstep/comm.h>

enum { STEP_RANKS_MOST = 16 };

typedef enum step_call {
    STEP_BARRIER,
    STEP_BROADCAST,
    STEP_ALLREDUCE,
    STEP_REDUCE,
    STEP_REDUCE_SCATTER,
    STEP_REDUCE_SCATTERV,
    STEP_GATHER,
    STEP_GATHERV,
    STEP_ALLGATHER,
    STEP_ALLGATHERV,
    STEP_SCATTER,
    STEP_SCATTERV,
    STEP_ALLTOALL,
    STEP_ALLTOALLV,
    STEP_MESSAGE, /* from rank `root` to rank `other` */
    STEP_RING,    /* from each rank to the one `root` further, all at once */
    STEP_CALLS
} step_call;

/* Whether the call reduces; whether it is given counts per rank. */
bool step_reduces(step_call call);
bool step_varies(step_call call);

/* Elements of one side of a call, by rank of the other side. */
typedef struct step_parts {
    size_t counts[STEP_RANKS_MOST];
    size_t places[STEP_RANKS_MOST]; /* in elements from the start of the buffer */
    size_t elements;                /* of the whole buffer, gaps included */
} step_parts;

typedef struct step {
    /* The call: the same on all ranks. */
    step_call call;
    ls_comm *comm;
    ls_dtype dtype;
    ls_reduction reduction;
    size_t count; /* as the call has it; with counts per rank, none is larger */
    int root;
    int other;
    int tag;
    uint64_t seed; /* of contents and of counts per rank */
    bool in_place; /* where the call knows that */
    bool own_part; /* reduce-scatter in place: at the own part, not at the start */
    bool gaps;     /* with counts per rank: displacements, parts in reverse order */

    /* How this rank makes it. */
    bool later;            /* as work */
    size_t shift;          /* bytes off any alignment */
    unsigned char *shared; /* step_room bytes of ls_comm_alloc to work in; NULL: ordinary memory */

    /* Between begin and end. */
    step_parts out;
    step_parts in;
    unsigned char *block; /* guard, what is sent, guard, room to receive, guard */
    unsigned char *image; /* how the block must look in the end */
    size_t bytes;
    unsigned char *send;
    unsigned char *receive;
    ls_work *works[2];
} step;

/* Bytes that `shared` must have for any step of up to `count` elements of `width` bytes on `ranks` ranks. */
size_t step_room(int ranks, size_t count, size_t width);

/* Makes the call. The step stays where it is until step_end. Errors begin with which step it is. */
ls_status step_begin(step *s);

/* Waits for the call and looks at all of its memory: LS_ERR_INTERNAL, saying which step it is, when something differs.
 */
ls_status step_end(step *s);

/* The same in parts, for calls that are to fail. Lays out the buffers and what must come of them. */
ls_status step_prepare(step *s);

/* From now on, nothing must come of them. */
void step_expect_nothing(step *s);

/* Only the call, with its own error; `work` NULL: waits. */
ls_status step_make(step *s, ls_work **work);

/* Only the look at the memory, and its end. */
ls_status step_verify(step *s);

/* Ends the memory without a look. */
void step_discard(step *s);

/* Elements that rank `from` sends to rank `to`; of a reduction, those that `to` gets. */
size_t step_piece(const step *s, int from, int to);

/* "broadcast", ... of the public call; "message" and "ring" are sends and receives. */
const char *step_name(step_call call);

/* Writes what step it is. Returns `text`. */
const char *step_describe(const step *s, char *text, size_t capacity);

#endif
