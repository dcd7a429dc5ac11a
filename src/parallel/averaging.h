/*
 * Declarations shared by the pass of a data-parallel module (averaging.c), the averaging of gradients and the tail
 * after the gradients.
 */
#ifndef LS_PARALLEL_AVERAGING_H
#define LS_PARALLEL_AVERAGING_H

#include "autograd/tape.h"
#include "parallel/data_parallel.h"

/*
 * The bits that describe a pass. LS_PASS_HOLDS: the model had a gradient before the pass. LS_PASS_COUNTS: LS_PASS_HOLDS
 * is compared; not on a rank that skips the pass, because it may keep older gradients. LS_PASS_NUMBER: the number of
 * the module, modulo 32. In a pass, all ranks have the same number, and all ranks with LS_PASS_COUNTS the same
 * LS_PASS_HOLDS, because each step of a program usually begins with ls_optimizer_zero_grad.
 */
enum { LS_PASS_HOLDS, LS_PASS_COUNTS, LS_PASS_NUMBER, LS_PASS_BITS = LS_PASS_NUMBER + 5 };

/* Doubles that ranks exchange after the gradients, in this order. Averaging replaces them with means over ranks. */
typedef struct ls_tail {
    double weight;
    double samples;
    double agree;   /* positive if the ranks must agree on scaling factors, and then average again */
    double given;   /* 1 if this pass produced a gradient for the model; SKIPPED if this rank skipped the pass */
    double failed;  /* positive if the pass failed on this rank */
    double remains; /* positive if outputs remain on the tape */
    double stale;   /* positive if this rank's buckets belong to an earlier pass (overlap.h) */
    double factors; /* 1 if this rank has a factor: see state->factor. ls_means_compare uses these three numbers */
    double factor;
    double factor_square;
    double pass[LS_PASS_BITS]; /* set by ls_tail_write: see ls_pass_describe */
} ls_tail;

/*
 * A rank that skips a pass does not know whether the pass produces a gradient for the model. The sum of this value over
 * all ranks is less than one half.
 */
static const double SKIPPED = 0x1p-20;

/*
 * Returns the leaf of the model's parameter `index`, or NULL if the parameter requires no gradient. The model's lists
 * must be collected.
 */
static inline ls_leaf *ls_data_parallel_leaf(const ls_data_parallel_state *state, int index) {
    return state->model->parameters.items[index].tensor->leaf;
}

/* Sets the number of samples of this rank's part of the batch, and forgets the loss of the previous pass. */
static inline void ls_data_parallel_begin_part(ls_data_parallel_state *state, int64_t samples) {
    state->samples = state->part.samples = samples;
    state->loss = NULL;
    state->last = (ls_step_loss){.loss = 0};
    state->has_no_loss = false;
}

/* Prepares the state for the replay of a captured pass, which has no forward pass of the module. */
static inline void ls_data_parallel_begin_replay(ls_data_parallel_state *state, int64_t samples) {
    state->told = state->located = false;
    state->overlap.abandoned = state->overlap.begun; /* of an earlier pass */
    ls_data_parallel_begin_part(state, samples);
}

/* averaging.c: prepares the forward pass of a captured step. The begin and the end of the backward pass are calls of
 * the record. */
void ls_data_parallel_capture(ls_data_parallel_state *state, ls_capture *capture);

/* batch_shares.c: stores what this rank sends to the other ranks about its inputs. ls_data_parallel_share_bytes returns
 * its size. */
size_t ls_data_parallel_share_bytes(const ls_data_parallel_state *state);
void ls_data_parallel_describe(const ls_data_parallel_state *state, ls_rank_inputs *own);

/* The number of samples that a rank reports if it has no input because of a failure. */
enum { LS_SHARE_FAILED = -1 };

/*
 * Exchanges the descriptions, and finds the position of this rank's samples in the global batch. Fails on all ranks if
 * a rank reports LS_SHARE_FAILED. Collective. In a captured step, ls_data_parallel_capture_shares makes the exchange of
 * this rank's inputs a call of the record.
 */
ls_status ls_data_parallel_exchange(ls_data_parallel_state *state, const ls_rank_inputs *own, size_t bytes);

/* Takes part in the exchange after this rank has failed: all ranks get this thread's error. Returns its status. */
ls_status ls_data_parallel_refuse_share(ls_data_parallel_state *state);
ls_status ls_data_parallel_capture_shares(ls_data_parallel_state *state, ls_capture *capture);

/* Returns the description of a rank, after an exchange. */
static inline const ls_rank_inputs *ls_data_parallel_share(const ls_data_parallel_state *state, int rank) {
    return ls_object_of(&state->shares, rank);
}

/*
 * gradient_tail.c: the description of a pass.
 *   - ls_pass_note_gradients notes, before a pass, whether the model has a gradient.
 *   - ls_pass_describe writes this rank's bits. `own` contains `given`.
 *   - ls_tail_is_mixed returns whether the ranks are in different passes, according to an averaged tail: of different
 *     modules, or of different steps. Their gradients must not be averaged with each other.
 *   - ls_tail_check shares the cause of a failure, according to an averaged tail, and fails on all ranks if they are in
 *     different passes. `failed`: this rank has failed.
 */
void ls_pass_note_gradients(ls_data_parallel_state *state);
void ls_pass_describe(const ls_data_parallel_state *state, const ls_tail *own, double *bits);
bool ls_tail_is_mixed(const ls_data_parallel_state *state, const ls_tail *mean);
ls_status ls_tail_check(ls_data_parallel_state *state, const ls_tail *mean, bool failed);

/* gradient_tail.c: prepares the memory of the tail. ls_tail_count returns the number of elements in the tail. */
ls_status ls_tail_open(ls_data_parallel_state *state);
int64_t ls_tail_count(const ls_data_parallel_state *state);

/* Returns the elements of the tail in host memory, and their dtype. */
void *ls_tail_memory(const ls_data_parallel_state *state);
ls_dtype ls_tail_dtype(const ls_data_parallel_state *state);

/* Writes this rank's tail, with its marks. */
void ls_tail_write(const ls_data_parallel_state *state, const ls_tail *own);

/* Reduces the tail over the ranks like the gradients, in a separate call. */
ls_status ls_tail_reduce(const ls_data_parallel_state *state);

/* Returns the tail; after an averaging, this is the mean over ranks. */
ls_tail ls_tail_read(const ls_data_parallel_state *state);

/*
 * With PowerSGD: returns whether a parameter's gradient must be averaged, according to an averaged tail. If not, either
 * no rank has a gradient, or all ranks have the same gradient from an earlier pass, which stays bit-identical.
 */
bool ls_tail_has_new_gradient(const ls_data_parallel_state *state, int index);

/* Reads from an averaged tail which parameters have a gradient, and which buffers have changed, on any rank. */
ls_status ls_tail_read_marks(const ls_data_parallel_state *state);

/*
 * Returns whether there is an average: the pass produced a gradient for the model on some rank, or all ranks skipped
 * the pass.
 */
bool ls_tail_is_given(const ls_data_parallel_state *state, const ls_tail *mean);

/* Starts averaging the scaling factors. The mean, which ls_weight_read returns, is bit-identical to the mean in the
 * tail. */
ls_status ls_weight_start(ls_data_parallel_state *state, double weight, ls_work **work);
double ls_weight_read(const ls_data_parallel_state *state);

/*
 * overlap.c. ls_overlap_open prepares the private communicators. ls_overlap_begin begins a pass on this rank with
 * scaling factor `weight`, unless it has already begun. ls_overlap_end averages the remaining gradients, and stores
 * copies of gradients in `kept`, which the caller drops. ls_overlap_abandon ends a pass that has failed.
 * ls_overlap_capture records a call for each complete gradient of a captured pass; in replays, these calls launch
 * buckets. ls_overlap_recover begins the averaging of the next pass if ls_overlap.stale is set. ls_overlap_stop frees
 * the private communicators, which ends all calls in flight; later passes average their gradients at their end.
 */
ls_status ls_overlap_open(ls_data_parallel_state *state);
void ls_overlap_close(ls_data_parallel_state *state);
void ls_overlap_stop(ls_data_parallel_state *state);
void ls_overlap_abandon(ls_data_parallel_state *state);
void ls_overlap_capture(ls_data_parallel_state *state);
ls_status ls_overlap_recover(ls_data_parallel_state *state, const ls_tail *own);
ls_status ls_overlap_begin(ls_data_parallel_state *state, double weight);
ls_status ls_overlap_end(ls_data_parallel_state *state, ls_tail own, ls_tensor **kept, ls_tail *mean);

/*
 * The same for the last slice of each rank (slices.h). ls_overlap_begin_slice begins its backward pass, with scaling
 * factor `weight`. ls_overlap_send_slice launches the remaining buckets, even if the slice has failed or is empty.
 * ls_overlap_end_slices adds up the tails and the buckets over the ranks. If the tails do not arrive, the buckets stay
 * in flight (ls_overlap.begun); the next step launches no buckets, and fails with ls_overlap_refuse_stale.
 */
ls_status ls_overlap_refuse_stale(void);
ls_status ls_overlap_begin_slice(ls_data_parallel_state *state, double weight);
ls_status ls_overlap_send_slice(ls_data_parallel_state *state, double weight);
ls_status ls_overlap_end_slices(ls_data_parallel_state *state);

/*
 * gradient_average.c: returns whether a gradient is sent: its parameter is not frozen, or has an older gradient. `user`
 * is the state.
 */
bool ls_gradient_is_sent(const void *user, const ls_leaf *leaf);

/* Creates the buckets of the gradients that are sent, unless they are the same as in the last pass. */
void ls_gradients_cut(ls_data_parallel_state *state);

/* Returns whether the current pass has produced a gradient for the model on this rank. */
bool ls_gradients_were_given(const ls_data_parallel_state *state);

/* Checks that the model still has its initial parameters and buffers. Collects its lists. */
ls_status ls_gradients_check(const ls_data_parallel_state *state);

/*
 * Copies the existing gradients: kept[i], which the caller drops, is a copy of flat buffer i. ls_gradients_restore
 * copies them back.
 */
ls_status ls_gradients_keep(const ls_data_parallel_state *state, ls_tensor **kept);
ls_status ls_gradients_restore(const ls_data_parallel_state *state, ls_tensor *const *kept);

/*
 * cause.c: adds an explanation to the current error if ranks that send different gradients, or numbers of a
 * user-defined format, may have caused it. Returns its status.
 */
ls_status ls_gradients_explain(const ls_wire_format *format, ls_status status);

/* Ends a call in which a rank reported a failed pass. */
ls_status ls_averaging_share_cause(ls_data_parallel_state *state, bool failed);

/*
 * Call this after the buckets of a pass have been averaged and decoded with result `status`. If a user-defined format
 * has failed on any rank, fails on all ranks. With `decoded`, also fails if such a format has decoded different
 * gradients on different ranks. Collective for such formats.
 */
ls_status ls_gradients_agree(ls_data_parallel_state *state, ls_status status, bool decoded);

/*
 * Averages the gradients after the backward pass: see average_gradients in averaging.c. Stores in `kept` copies of
 * accumulated gradients, for the caller to drop.
 */
ls_status ls_gradients_average_at_once(ls_data_parallel_state *state, ls_tail own, ls_tensor **kept, ls_tail *mean);

#endif
