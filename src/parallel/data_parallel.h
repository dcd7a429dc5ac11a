/* Data-parallel training: what the module (data_parallel.c) and the averaging of its gradients (averaging.c) share. */
#ifndef LS_PARALLEL_DATA_PARALLEL_H
#define LS_PARALLEL_DATA_PARALLEL_H

#include "autograd/batch.h"
#include "autograd/mixing.h"
#include "autograd/samples.h"
#include "nn/module.h"
#include "parallel/parallel.h"

/* What a rank tells the others of an input. */
typedef struct ls_input_kind {
    int64_t there; /* 0: it is NULL */
    int64_t dtype;
    int64_t ndim;
    int64_t size[LS_MAX_DIMS];
} ls_input_kind;

/* And of a call. */
typedef struct ls_rank_inputs {
    int64_t samples;
    int64_t inputs;
    int64_t outputs;
    ls_input_kind first; /* input; those of further ones come behind the shares of all ranks */
} ls_rank_inputs;

/*
 * The first LS_DATA_PARALLEL_CHECKS backward passes look for a mean that divides by the count of one rank (means.c).
 * As many forward passes look for operations that mix samples. After these, one forward pass in LS_DATA_PARALLEL_EVERY
 * does, because following the samples costs about 5 % of a small step.
 */
#define LS_DATA_PARALLEL_CHECKS 100
#define LS_DATA_PARALLEL_EVERY  16

/* A buffer of the model. */
typedef struct ls_buffer_record {
    uint32_t version; /* of its storage when all ranks last had the same elements */
    bool changed;     /* on any rank since then, according to the last averaging of gradients */
} ls_buffer_record;

/* Adjacent gradients of a flat buffer that travel, with the gaps between them, in elements. */
typedef struct ls_gradient_span {
    int64_t offset;
    int64_t count;
} ls_gradient_span;

typedef struct ls_gradient_spans {
    ls_gradient_span *items;
    int count;
    int64_t total; /* elements */
} ls_gradient_spans;

typedef struct ls_data_parallel_state {
    ls_batch_part part; /* first: operations are lent it, and give it back */
    ls_module *module;  /* whose state this is */
    ls_module *model;
    ls_comm *comm;
    ls_flat flats[LS_FLAT_LIMIT];
    int flat_count;
    ls_storage *shared[LS_FLAT_LIMIT]; /* where the gradients lie: this module's own references */
    bool in_place; /* the gradients are averaged where they lie, on a device whose memory the communicator takes */
    ls_storage *common[LS_FLAT_LIMIT]; /* else where they are averaged, with the tail behind them, in memory of the
                                          communicator: `shared` itself on the CPU, else a copy on the host; the tail
                                          alone where they are averaged in place or in halves. NULL: nothing is */
    ls_gradient_span *spans;           /* room for one per parameter */
    ls_gradient_spans spans_of[LS_FLAT_LIMIT]; /* in the averaging at hand */
    ls_dtype reduce_dtype;   /* LS_BF16 or LS_F16: the one flat buffer, of f32, is averaged in it; else LS_F32 */
    ls_storage *halves;      /* of the gradients, where they are; NULL without reduce_dtype */
    ls_storage *host_halves; /* where they are averaged, in memory of the communicator: `halves` itself on the CPU; NULL
                               in place */
    int parameter_count;
    int buffer_count;
    ls_buffer_record *buffers;
    bool whole_batch;         /* something in the model works on the whole batch, when it trains */
    bool located;             /* the shares of the present forward pass are exchanged */
    ls_tensor *const *inputs; /* of that pass; lent */
    int input_count;          /* 0 on a rank without samples */
    int output_count;
    ls_rank_inputs *shares; /* of all ranks; NULL until they are first exchanged */
    ls_input_kind *more;    /* their further inputs, `more_inputs` for each rank; then room for this rank's */
    size_t more_inputs;     /* that all ranks told each other of in the present pass */
    size_t more_room;       /* for how many there is */
    int64_t samples;        /* of the last forward pass */
    bool no_sync;
    bool gathering;        /* since the last averaging there were passes under no_sync */
    bool agrees;           /* ranks agree on weights before every pass: one was irregular */
    bool agreed;           /* the present pass has its weights */
    bool pending;          /* the last pass gave the model no gradient on any rank: a later one may */
    bool told;             /* ranks have shared the cause of a failure */
    double usual;          /* divisor of a loss, or samples, that counts as 1; 0 before the first averaging */
    const ls_tensor *loss; /* of the last pass since the last forward pass, not to be followed; NULL: there was none */
    double divisor;        /* of that loss, or samples; NAN: it is not one mean over samples */
    double all_samples;    /* of the present pass that has agreed, of all ranks */
    uint64_t runs;         /* forward passes of the model */
    bool follows;          /* the present one follows the samples (mixing.h) */
    int mean_checks;       /* backward passes that means.c still checks */
    double factor; /* sum of the gradients of the loss with respect to its sums over samples, in the last pass */
} ls_data_parallel_state;

/* What a data-parallel module goes by from its first pass on, for checkpoints: with it, another takes the same bits. */
typedef struct ls_averaging_memory {
    double usual; /* as in its state */
    bool agrees;
} ls_averaging_memory;

/* Returns false while gradients are not averaged: no_sync is on, or gradients from a pass under no_sync are left.
 * Returns true for any other module. */
bool ls_data_parallel_averages(const ls_module *module);

/* False for any other module. */
bool ls_data_parallel_memory(const ls_module *module, ls_averaging_memory *memory);
void ls_data_parallel_remember(ls_module *module, ls_averaging_memory memory);

/* gradient_tail.c: how many numbers follow the gradients of flat buffer `flat`. */
int64_t ls_data_parallel_tail(const ls_data_parallel_state *state, int flat);

/*
 * gradient_spans.c: the gradients that travel. ls_gradient_spans_list finds their spans. ls_gradient_spans_pack moves
 * the spans of a flat buffer together, to where they are averaged on the host: `total` elements from
 * ls_gradient_spans_begin on, followed by the tail. ls_gradient_spans_unpack moves them back.
 */
bool ls_gradient_travels(const ls_data_parallel_state *state, const ls_leaf *leaf);
void ls_gradient_spans_list(ls_data_parallel_state *state);
void *ls_gradient_spans_begin(const ls_data_parallel_state *state, int flat);
ls_status ls_gradient_spans_pack(const ls_data_parallel_state *state, int flat);
ls_status ls_gradient_spans_unpack(const ls_data_parallel_state *state, int flat);

/*
 * means.c: warns if a loss divides a sum over samples by the count of one rank. ls_means_check checks the sums that a
 * backward pass has found on this rank. ls_means_compare compares state->factor over the ranks that have one: it gets
 * the number of these ranks, the sum of the factors and the sum of their squares.
 */
void ls_means_check(ls_data_parallel_state *state, const ls_pass_findings *findings);
void ls_means_compare(ls_data_parallel_state *state, double ranks, double sum, double sum_of_squares);

/* averaged_buffers.c: notes that the model's buffers, which are listed, are equal on all ranks. */
ls_status ls_buffers_watch(ls_data_parallel_state *state);
/* Whether this rank has changed buffer i since all ranks had the same. */
bool ls_buffer_has_changed(const ls_data_parallel_state *state, int i);
/* Notes that this rank has just changed a tensor, once, in the same way as all other ranks. */
void ls_buffers_keep_equal(ls_data_parallel_state *state, const ls_tensor *changed);
/* Makes the buffers that a rank has changed the mean over samples. This rank has `samples`, and some rank has at least
 * one. Collective. */
ls_status ls_buffers_average(ls_data_parallel_state *state, double samples);

/* gradient_average.c: the model, whose parameters are listed, has no gradients, because a pass has failed on some rank.
 */
void ls_data_parallel_forget_gradients(const ls_data_parallel_state *state);

/* The module lives on (true), also when it is freed, until false: for what is on a tape. */
void ls_data_parallel_hold(ls_data_parallel_state *state, bool hold);

/* What the module does in a pass; the user is the state. */
extern const ls_pass_watch ls_data_parallel_watch;

/*
 * Takes part in a pass without samples. `output` is what the model made of none, for what it communicated to be walked;
 * or NULL.
 */
ls_status ls_data_parallel_pass_without_samples(ls_data_parallel_state *state, ls_tensor *output);

#endif
