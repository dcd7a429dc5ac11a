/*
 * Data-parallel training: declarations shared by the module (data_parallel.c), its construction (prepare.c) and the
 * averaging of its gradients (averaging.c).
 */
#ifndef LS_PARALLEL_DATA_PARALLEL_H
#define LS_PARALLEL_DATA_PARALLEL_H

#include "autograd/batch.h"
#include "autograd/mixing.h"
#include "autograd/samples.h"
#include "comm/objects.h"
#include "nn/module.h"
#include "parallel/overlap.h"
#include "parallel/parallel.h"
#include "parallel/shards.h"

/* Properties of an input that a rank sends to the other ranks. */
typedef struct ls_input_kind {
    int64_t there; /* 0 if the input is NULL */
    int64_t dtype;
    int64_t ndim;
    int64_t size[LS_MAX_DIMS];
} ls_input_kind;

/* Properties of a call that a rank sends to the other ranks, followed by the kinds of its inputs. */
typedef struct ls_rank_inputs {
    int64_t samples;
    int64_t inputs;
    int64_t outputs;
    ls_input_kind kind[];
} ls_rank_inputs;

/*
 * The first LS_DATA_PARALLEL_CHECKS backward passes check for means that divide by the count of a single rank
 * (means.c). The same number of forward passes checks for operations that mix samples. After these, only one in
 * LS_DATA_PARALLEL_EVERY forward passes is checked, because tracking the samples takes about 5 % of a small step.
 */
#define LS_DATA_PARALLEL_CHECKS 100
#define LS_DATA_PARALLEL_EVERY  16

/* The loss of ls_data_parallel_step on a rank or in a slice. */
typedef struct ls_step_loss {
    double loss;      /* times the divisor */
    double divisor;   /* divisor of the mean; number of samples if the loss is not one mean over samples */
    double irregular; /* nonzero if the loss is not one mean over samples */
    double failed;    /* only in ls_slices_loss: positive if the call failed on this rank */
} ls_step_loss;

typedef struct ls_powersgd ls_powersgd;
typedef struct ls_slices ls_slices;

/* A buffer of the model. */
typedef struct ls_buffer_record {
    uint32_t version; /* version of its storage when the buffer was last equal on all ranks */
    bool changed;     /* changed on any rank since then, according to the last averaging of gradients */
} ls_buffer_record;

/* The buffers of a model that the ranks average. */
typedef struct ls_averaged_buffers {
    const char *call; /* name of the public function, for messages */
    ls_module *model; /* borrowed, like `comm` */
    ls_comm *comm;
    ls_buffer_record *records;
    int count;
} ls_averaged_buffers;

typedef struct ls_data_parallel_state {
    ls_batch_part part; /* first member: operations borrow it and pass it to its functions */
    ls_module *module;  /* the module that owns this state */
    int number;         /* number of the module, from 1, the same on all ranks */
    uint64_t pass;      /* number of the last backward pass of this thread that averages */
    ls_module *model;
    ls_comm *comm;
    ls_gradient_reducer reducer;
    ls_wire_format *own_format; /* holds a reference; NULL if no user-defined format is used */
    uint64_t sent;              /* hash of the gradients that its buckets send */
    ls_overlap overlap;
    ls_powersgd *powersgd; /* NULL if gradients are sent unchanged, or as 16-bit floats */
    ls_shards *shards;     /* NULL if every rank has the complete state of optimizers */
    ls_slices *slices;     /* of `.shards`; NULL: without */
    void *tail; /* values that are sent separately from the gradients; NULL if they follow the gradients on the wire */
    int parameter_count;
    ls_averaged_buffers buffers;
    bool whole_batch;         /* a module of the model computes over the global batch in training mode */
    bool located;             /* the shares of the current forward pass have been exchanged */
    ls_tensor *const *inputs; /* of that pass; borrowed */
    int input_count;          /* 0 on a rank without samples */
    int output_count;
    ls_objects shares; /* an ls_rank_inputs for each rank */
    int64_t samples;   /* number of samples in the last forward pass */
    bool no_sync;
    bool gathering; /* there were passes under no_sync since the last averaging */
    bool agrees;    /* ranks agree on scaling factors before every pass, because an earlier pass was irregular */
    bool agreed;    /* the scaling factors of the current pass are set */
    bool pending;   /* the last pass produced no gradient for the model on any rank, but a later pass may */
    bool remains;   /* the last pass has failed, or outputs remain on the tape of any rank */
    bool holds;     /* the model had a gradient before the current pass (ls_pass_note_gradients) */
    bool told;      /* the ranks have shared the cause of a failure */
    bool compared;  /* the ranks have compared their batches */
    double usual;   /* divisor of a loss (or number of samples) that has weight 1; 0 before the first averaging */
    /* Loss of the last backward pass since the last forward pass, only for comparison; NULL if there was no such
     * pass. */
    const ls_tensor *loss;
    double divisor;     /* divisor of that loss, or number of samples; NAN if the loss is not one mean over samples */
    ls_step_loss last;  /* loss of the last ls_data_parallel_step without `.shards`, until the next forward pass */
    bool has_no_loss;   /* ls_data_parallel_step or ls_data_parallel_skip ran the last pass: the program has no loss */
    uint32_t errors;    /* ls_error_count after that pass */
    double all_samples; /* total number of samples over all ranks in the current pass, if they have agreed */
    uint64_t runs;      /* number of forward passes of the model */
    uint64_t watched;   /* number of passes that have begun, and of failures before a pass */
    bool follows;       /* the current forward pass tracks the samples (mixing.h) */
    int mean_checks;    /* number of remaining backward passes that means.c checks */
    int own_divisions;  /* number of most recent consecutive passes that divided a sum by a count of this rank */
    double factor;      /* sum of the gradients of the last pass's loss with respect to its sums over samples, or, if it
                           has no sums, to its means; 0 if the factor cannot be compared between ranks */
    bool scales_means;  /* the last pass's loss has means over samples, and no sums */
} ls_data_parallel_state;

/*
 * prepare.c: agrees on the options with the other ranks, checks them, and allocates the memory. The module, the model
 * and the communicator of the state are already set. Collective. ls_data_parallel_close frees the members of the state,
 * even after a failure.
 */
ls_status ls_data_parallel_prepare(ls_data_parallel_state *state, const ls_data_parallel_options *options);
void ls_data_parallel_close(ls_data_parallel_state *state);

/*
 * Numbers that have affected a data-parallel module's results since its first pass. A checkpoint stores them, so that a
 * restored module computes bit-identical results.
 */
typedef struct ls_averaging_memory {
    double usual; /* like the member of the module's state */
    bool agrees;
} ls_averaging_memory;

/*
 * Returns false while gradients are not averaged: no_sync is on, or gradients from a pass under no_sync have not yet
 * been averaged. Returns true for modules of other types.
 */
bool ls_data_parallel_averages(const ls_module *module);

/* Stores the numbers. Returns false for modules of other types. */
bool ls_data_parallel_memory(const ls_module *module, ls_averaging_memory *memory);
void ls_data_parallel_remember(ls_module *module, ls_averaging_memory memory);

/*
 * Returns a borrowed pointer to the numbers that this rank's PowerSGD (powersgd.h) keeps between passes, and sets
 * *count. Returns NULL for a module without PowerSGD. ls_data_parallel_restart_powersgd resets them to their initial
 * values.
 */
float *ls_data_parallel_powersgd(const ls_module *module, int64_t *count);
void ls_data_parallel_restart_powersgd(ls_module *module);

/*
 * means.c: warns if a loss scales a sum or mean over samples by a number of a single rank, or combines samples with
 * constants from samples of a single rank. ls_means_check checks the findings of a backward pass on this rank.
 * ls_means_compare compares state->factor over the ranks that have a factor. It gets the number of these ranks, the sum
 * of their factors and the sum of the squares, or the means of these three numbers over all ranks. `of_means` is true
 * for factors of means.
 */
void ls_means_check(ls_data_parallel_state *state, const ls_pass_findings *findings);
void ls_means_compare(ls_data_parallel_state *state, double ranks, double sum, double sum_of_squares, bool of_means);

/*
 * replicas.c: warns after the first pass if all ranks trained on the same batch, from loaders that do not split
 * batches. Collective.
 */
ls_status ls_batches_compare(ls_data_parallel_state *state);

/*
 * averaged_buffers.c: records that the model's buffers are equal on all ranks. The model's lists must be collected.
 * `buffers` is initially zero; close it with ls_buffers_close. A second call replaces its contents.
 */
ls_status ls_buffers_watch(ls_averaged_buffers *buffers, const char *call, ls_module *model, ls_comm *comm);
void ls_buffers_close(ls_averaged_buffers *buffers);
/* Returns whether this rank has changed buffer i since the buffers were last equal on all ranks. */
bool ls_buffer_has_changed(const ls_averaged_buffers *buffers, int i);
/* Records that this rank has just changed a tensor in the same way as all other ranks. Call it once per change. */
void ls_buffers_keep_equal(ls_averaged_buffers *buffers, const ls_tensor *changed);
/*
 * Replaces the buffers that any rank has changed with their mean over samples. `samples` is this rank's number of
 * samples; at least one rank must have samples. Collective.
 */
ls_status ls_buffers_average(ls_averaged_buffers *buffers, double samples);

/*
 * cause.c: removes the gradients of the model after a pass has failed on a rank. The model's lists must be collected.
 */
void ls_data_parallel_forget_gradients(const ls_data_parallel_state *state);

/* Returns the state of a data-parallel module. For NULL and other modules, returns NULL with an error of `call`. */
ls_data_parallel_state *ls_data_parallel_state_of(const char *call, const ls_module *module);

/* Returns the slices of a data-parallel module with `.shards` as a borrowed pointer. Returns NULL for other modules. */
ls_slices *ls_data_parallel_slices(const ls_module *module);

/* Returns whether gradients, and possibly parameters, are sharded, so that every pass needs all ranks. */
static inline bool ls_data_parallel_has_units(const ls_data_parallel_state *state) {
    return state->shards != NULL && state->shards->stage >= 2;
}

/* On a rank without samples, takes part in a forward pass without gradients if the pass needs all ranks; the call is
 * then collective. */
ls_status ls_data_parallel_join_forward(ls_module *module);

/* Returns whether the module is a data-parallel module with sharded state (`.zero`). */
bool ls_data_parallel_is_sharded(const ls_module *module);

/*
 * Gathers all elements of `parameter` on this rank until the next such call; NULL releases them. Uses the memory of one
 * unit (parallel/units.h). Collective. Other modules are allowed.
 */
ls_status ls_data_parallel_gather_one(ls_module *module, const ls_tensor *parameter);

/* If `hold`, keeps the module of a state alive for nodes on a tape, even after it is freed. Otherwise, ends this. */
void ls_data_parallel_hold(void *state, bool hold);

/* The module's functions for a backward pass. Their user argument is the state. */
extern const ls_pass_watch ls_data_parallel_watch;

/*
 * Takes part in a pass without samples. `output` is the model's output for an empty batch, whose communication must be
 * performed, or NULL.
 */
ls_status ls_data_parallel_pass_without_samples(ls_data_parallel_state *state, ls_tensor *output);

#endif
