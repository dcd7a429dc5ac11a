/*
 * Bit-identical results at every world size (.shards of ls_data_parallel_options).
 *
 * With S shards, a global batch is split into S slices, which are the shares that S ranks would have. Each rank runs
 * some of the slices, one after another, with the shapes and the scaling factors that S ranks would have. All sums over
 * slices are computed in the order of the balanced tree over S (base/tree.h). The results therefore equal the results
 * of S ranks.
 */
#ifndef LS_PARALLEL_SLICES_H
#define LS_PARALLEL_SLICES_H

#include "parallel/averaging.h"
#include "parallel/divisor_sums.h"

/* Number of blocks of LS_DIVISORS sums over samples. A loss has fewer than 256 sums (autograd/samples.h). */
enum { LS_FACTOR_BLOCKS = 32 };

/* The properties of a slice that the ranks exchange before the backward passes. */
typedef struct ls_slice_record {
    double divisor;   /* divisor of the loss: see averaging.c */
    double irregular; /* 1 if the loss is not one mean over samples */
    double meets;     /* 1 if a layer has requested the statistics of all slices */
    ls_divisor_sums blocks[LS_FACTOR_BLOCKS];
} ls_slice_record;

/* Pieces of memory whose contents differ between slices (slice_meetings.h). */
enum { LS_SLICE_PIECES = 4 };
typedef struct ls_slice_piece {
    void *memory;
    size_t bytes;
} ls_slice_piece;

struct ls_slices {
    int total;            /* S */
    int first, count;     /* slices of this rank */
    int running;          /* the slice of this rank, from 0, for which a function currently runs; -1 if none */
    int64_t first_sample; /* index of that slice's first sample in the global batch */
    bool begins;          /* the function has called ls_forward of the module for that slice */
    bool measures;        /* the function runs only to determine the scaling factors, and will run again */
    bool counts;          /* the function runs for the first time with a backward pass, so metrics count this run */
    double loss_factor;   /* factor of the losses in `losses`, which may include the factor of a gradient scaler */
    bool irregular; /* a loss of this step is not one mean over samples, and the slices have not agreed on factors */
    ls_slice_record sum;        /* of all slices */
    ls_slice_record *own;       /* records of this rank's slices */
    ls_step_loss *losses;       /* losses of this rank's slices in the last step */
    struct ls_slice_sums *sums; /* slice_sums.c */
    bool sends;                 /* the current slice sends its buckets during its backward pass (overlap.h) */
    /* slice_meetings.c */
    bool must_meet; /* a layer has requested the statistics of all slices, but the slices do not synchronize */
    bool meets;     /* the slices run together, and synchronize */
    struct ls_slice_run *runs;              /* this rank's slices; NULL until the slices first synchronize */
    struct ls_slice_run *present;           /* the slice that currently runs; NULL if none runs */
    uint64_t calls;                         /* number of communicator calls that synchronize slices */
    ls_slice_piece pieces[LS_SLICE_PIECES]; /* of the trial; borrowed */
    int piece_count;
};

/* Returns the number of ranks whose gradients are averaged or, with `.shards`, the number of slices. */
static inline int ls_data_parallel_ranks(const ls_data_parallel_state *state) {
    return state->slices != NULL ? state->slices->total : ls_comm_size(state->comm);
}

/*
 * Returns whether each rank has one node of the tree over the slices, and the tree over these nodes is the tree over
 * the ranks.
 */
static inline bool ls_slices_are_regular(int shards, int ranks) {
    const int each = shards / ranks;
    return shards % ranks == 0 && (each & (each - 1)) == 0;
}

/* Returns whether the last slice of each rank sends its buckets during its backward pass (overlap.h). Once false, it
 * stays false. */
static inline bool ls_slices_overlap(const ls_data_parallel_state *state) {
    return state->overlap.on && !state->slices->meets && !ls_gradient_reducer_is_shared(&state->reducer);
}

/* Opens the slices of this rank. */
ls_status ls_slices_open(ls_data_parallel_state *state, int shards);
void ls_slices_close(ls_slices *slices, int parameter_count);

/* Prepares the forward pass of the running slice. Fails with LS_ERR_STATE if no slice is running. */
ls_status ls_slice_begin_forward(ls_data_parallel_state *state);

/* Begins the backward pass of a slice, and sets the scaling factors of its loss. */
ls_status ls_slice_begin_backward(ls_data_parallel_state *state, ls_batch_loss *loss);

/* slice_step.c: runs a training step; see ls_data_parallel_step. `batch` and `function` may be NULL: the step then
 * fails on all ranks. */
ls_status ls_slices_step(ls_data_parallel_state *state, const ls_batch *batch, ls_loss_function function, void *user);

/* Returns whether the batch has an input with samples, but no count: a mistake of the program. */
bool ls_step_lacks_count(const ls_batch *batch);

/* Fails with LS_ERR_ARGUMENT if the batch or the function of ls_data_parallel_step is NULL, or if only one of the input
 * and the count of the batch says that there are samples. Also for steps without slices. */
ls_status ls_step_check_arguments(const ls_batch *batch, ls_loss_function function);

/* Fails with LS_ERR_ARGUMENT if the batch is not this rank's share. */
ls_status ls_slices_check_batch(const ls_slices *slices, const ls_batch *batch);

/* Sets *part to a slice of the batch; `slice` is numbered over all ranks. The tensors of *part belong to the
 * innermost scope. */
ls_status ls_slice_cut(const ls_slices *slices, const ls_batch *batch, int slice, ls_batch *part);

/* Call these before and after a function runs for the slice. */
void ls_slice_enter(ls_slices *slices, int slice, const ls_batch *part);
void ls_slice_leave(ls_slices *slices);

/*
 * Calls the function for each slice of this rank, even if the slice is empty, in its own scope. Fails with
 * LS_ERR_ARGUMENT if the batch is not this rank's share.
 */
ls_status ls_slices_visit(ls_slices *slices, const ls_batch *batch,
                          ls_status (*function)(const ls_batch *slice, void *user), void *user);

/* Adds up the losses of all slices in the last step. Reports to all ranks whether this rank has failed. Collective. */
ls_status ls_slices_loss(const ls_data_parallel_state *state, bool failed, ls_step_loss *sums);

/*
 * slice_sums.c: averages the gradients and tails of all slices. `run` prepares the buckets and the tail of a slice,
 * whose number counts over all ranks. It must not fail. Collective.
 */
ls_status ls_slices_average(ls_data_parallel_state *state, void (*run)(void *user, int slice), void *user);

/* Allocates and frees the memory of these sums. */
ls_status ls_slice_sums_open(ls_data_parallel_state *state);
void ls_slice_sums_close(struct ls_slice_sums *sums);

/*
 * Adds up `width` numbers per slice in the order of the tree. `numbers` contains the numbers of this rank's slices.
 * Collective.
 */
ls_status ls_slices_add(const ls_data_parallel_state *state, const double *numbers, size_t width, double *sums);

#endif
