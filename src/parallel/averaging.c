/*
 * Averages the gradients of a data-parallel module over the ranks, so that they equal the gradients that a single
 * process would compute for the global batch.
 *
 * Usually the loss is one mean over samples (samples.h). Its divisor d_r is rank r's part of the divisor in a single
 * process: the number of samples or elements, or the total weight of the targets that are not ignored. The gradient of
 * a single process is sum(d_r g_r) / sum(d_r). Each rank scales its own gradient by w_r = d_r / d, where d is a number
 * on which all ranks agree: the largest divisor of the first pass. w_r is usually 1, and no scaling is needed. The
 * tail, the numbers sent after the gradients, begins with w_r. The average over ranks of w_r g_r, divided by the
 * average of w_r, is the gradient of a single process. Terms of the loss that depend only on parameters are equal on
 * all ranks, and remain equal.
 *
 * The tail also contains the number of samples, and a mark for each parameter and buffer. A parameter's mark is 1 if
 * this rank has a gradient for it. A buffer's mark is 1 if this rank has changed it (averaged_buffers.c). All ranks
 * thus learn which parameters any rank has used, and which buffers are no longer equal.
 *
 * In other cases, the ranks agree on the sums D of the divisors before the backward pass. These cases are losses that
 * are a sum, losses with several sums or means, communication inside the model, and gradients accumulated under
 * no_sync. With P ranks, a loss that is one mean multiplied by a tensor that requires a gradient is scaled by P d_r /
 * D. Any other loss is scaled by P / R, where R is the number of ranks that have samples, so that terms of parameters
 * alone count once, even if they are parameters of other modules. In such a loss, the gradient of each mean is scaled
 * by R d_r / D, and the gradient of each sum by R. Sums in a loss that has one mean are not scaled, because the program
 * exchanges them itself. A loss without a sum or a mean is scaled by P n_r / N, where n_r is the number of samples of
 * rank r, and N their total. The plain average over ranks is then the gradient of a single process. A loss that depends
 * on neither the parameters nor the output of the module is not scaled.
 *
 * If gradients are exchanged as 16-bit floats (reduce_dtype) or by PowerSGD, the tail is sent first, separately, in
 * f32. The average of w_r is then known before the gradients are encoded, and each rank scales its gradients by w_r
 * divided by this average.
 *
 * A pass may produce no gradient for the model on any rank, because ls_detach has detached the model or the loss does
 * not depend on it. The gradients then stay unchanged, and the module watches the next pass. The ranks learn this from
 * the tail, or under no_sync from a small call. If the tail is sent with the gradients, a rank whose model got no
 * gradient keeps a copy of its older gradients until then.
 *
 * The program, which is the same on all ranks, decides whether the ranks agree before a pass. But a rank without
 * samples does not run the program. So the ranks first average once with a tail that only marks this case. They agree
 * before every later pass.
 */
#include <math.h>
#include <string.h>

#include "autograd/captured_step.h"
#include "autograd/tape.h"
#include "comm/hold.h"
#include "parallel/averaging.h"
#include "parallel/divisor_sums.h"
#include "parallel/slices.h"
#include "parallel/unit_exchange.h"

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/*
 * Averages the gradients over the ranks, scaled by each rank's own.weight. Sets *mean to the mean of the tails. If the
 * pass produced no gradient for the model on any rank, leaves the gradients unchanged. After a failure, the model has
 * no gradients.
 */
static ls_status average_gradients(ls_data_parallel_state *state, ls_tail own, ls_tail *mean) {
    LS_TRY(ls_gradients_check(state));
    ls_tensor *kept[LS_FLAT_LIMIT] = {NULL};
    ls_status status = state->overlap.stale ? ls_overlap_recover(state, &own) : LS_OK;
    if (status == LS_OK) {
        status = state->overlap.begun ? ls_overlap_end(state, own, kept, mean)
                                      : ls_gradients_average_at_once(state, own, kept, mean);
    }
    for (int i = 0; i < state->reducer.flat_count; i++) {
        ls_tensor_drop(kept[i]);
    }
    if (status != LS_OK) {
        ls_data_parallel_forget_gradients(state);
    }
    return status;
}

/* ---- the usual case ---------------------------------------------------------------------------------------------- */

/*
 * Averages with the divisors of the losses as weights: d_r is `divisor`. `own` contains the rest of the tail. The first
 * pass agrees on the usual divisor only at its end, and averages all gradients at once.
 */
static ls_status average_by_divisor(ls_data_parallel_state *state, double divisor, ls_tail own, ls_tail *mean) {
    const bool first = state->usual == 0;
    *mean = (ls_tail){.failed = 0};
    if (first) {
        LS_TRY(ls_agree_on_usual(state, divisor));
    } else {
        LS_TRY(ls_overlap_begin(state, own.agree > 0 ? 1 : ls_divisor_weight(state, divisor)));
    }
    own.weight = own.agree > 0 ? 1 : ls_divisor_weight(state, divisor);
    const ls_status status = average_gradients(state, own, mean);
    if (first && status != LS_OK && ls_tail_is_mixed(state, mean)) {
        state->usual = 0; /* the ranks have agreed on it for different modules */
    }
    return status;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

static bool agrees_anyway(const ls_data_parallel_state *state) {
    return state->agrees || state->no_sync || state->gathering;
}

static bool agrees(void *user, const ls_batch_loss *loss) {
    return agrees_anyway(user) || loss->irregular || loss->weighed;
}

/* Agrees on the scaling factors of a pass, and begins the pass. `loss` is NULL on a rank without samples. */
static ls_status begin_agreed(ls_data_parallel_state *state, ls_batch_loss *loss) {
    if (!agrees_anyway(state)) {
        ls_tail mean;
        LS_TRY(average_by_divisor(state, 0, (ls_tail){.agree = 1}, &mean));
        state->agrees = true;
    }
    LS_TRY(ls_agree_on_factors(state, loss, false));
    /* under no_sync, a pass only waits for the buckets of a failed pass */
    return state->no_sync && !state->overlap.begun ? LS_OK : ls_overlap_begin(state, 1);
}

/* Ends a pass whose gradients stay on their ranks until a later pass averages them. */
static ls_status gather(ls_data_parallel_state *state, const ls_tail *own, ls_tail *mean) {
    double numbers[3 + LS_PASS_BITS] = {own->given, own->failed, own->remains};
    ls_pass_describe(state, own, numbers + 3);
    LS_TRY(ls_comm_allreduce(state->comm, numbers, numbers, 3 + LS_PASS_BITS, LS_F64, LS_AVG, NULL));
    *mean = (ls_tail){.given = numbers[0], .failed = numbers[1], .remains = numbers[2]};
    memcpy(mean->pass, numbers + 3, sizeof mean->pass);
    return ls_tail_check(state, mean, own->failed > 0);
}

/*
 * If a pass produced no gradient for the model on any rank, the module watches the next pass. A rank that skipped the
 * pass cannot detect this itself. If outputs remain on any rank, the module watches later passes that depend on
 * them, too.
 */
static ls_status decide_pending(ls_data_parallel_state *state, const ls_tail *mean) {
    state->pending = !ls_tail_is_given(state, mean);
    state->remains = mean->remains > 0;
    if (!state->pending || !(mean->given > 0)) {
        return LS_OK;
    }
    state->told = true;
    return ls_fail(LS_ERR_MISMATCH, "ls_backward: a rank without samples called ls_data_parallel_skip for a pass that "
                                    "gives the model no gradient: with such passes, every rank needs samples");
}

/* Ends the averaging of units in flight. Returns whether this rank has failed, now or before. */
static double end_units(const ls_data_parallel_state *state, double failed) {
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_status status = LS_OK;
    if (state->shards != NULL) {
        state->shards->in_pass = false;
        status = ls_units_end_average(state->shards);
    }
    if (failed > 0) {
        (void)ls_error_put_back(&cause);
    }
    return status != LS_OK ? 1 : failed;
}

/* Averages at the end of a pass for which the ranks have agreed on scaling factors. */
static ls_status average_agreed(ls_data_parallel_state *state, double samples, ls_tail own) {
    ls_tail mean;
    own.failed = end_units(state, own.failed);
    own.weight = 1;
    LS_TRY(state->no_sync ? gather(state, &own, &mean) : average_gradients(state, own, &mean));
    LS_TRY(decide_pending(state, &mean));
    if (state->no_sync || state->pending) {
        state->gathering |= !state->pending;
        return LS_OK;
    }
    state->gathering = false;
    return state->all_samples > 0 ? ls_buffers_average(&state->buffers, samples) : LS_OK;
}

/*
 * The ranks have averaged, but another rank expects that all ranks agree on scaling factors first. Fails in the
 * agreement, so that the ranks make the same calls again, and drop the gradients.
 */
static ls_status refuse_other_loss(ls_data_parallel_state *state) {
    state->agrees = true;
    (void)ls_fail(LS_ERR_MISMATCH, "ls_backward: the loss on another rank is a sum over samples or has several "
                                   "terms, but not the loss on this rank: compute the same loss on all ranks");
    return ls_agree_on_factors(state, NULL, true);
}

static ls_status end_pass(ls_data_parallel_state *state) {
    const double samples = (double)state->samples;
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    ls_tail own = {.samples = samples, .given = ls_gradients_were_given(state), .remains = ls_samples_remain(state)};
    if (state->agreed) { /* the next agreement compares the factors */
        return average_agreed(state, samples, own);
    }
    own.factors = state->factor != 0;
    own.factor = state->factor;
    own.factor_square = state->factor * state->factor;
    state->factor = 0;
    ls_tail mean;
    LS_TRY(average_by_divisor(state, state->divisor, own, &mean));
    LS_TRY(mean.agree > 0 ? refuse_other_loss(state) : LS_OK);
    LS_TRY(decide_pending(state, &mean));
    ls_means_compare(state, mean.factors, mean.factor, mean.factor_square, true);
    return !state->pending && mean.samples > 0 ? ls_buffers_average(&state->buffers, samples) : LS_OK;
}

static ls_status finish_pass(ls_data_parallel_state *state, const ls_pass_findings *findings) {
    if (findings != NULL && state->mean_checks > 0) {
        ls_means_check(state, findings);
    }
    if (state->slices != NULL) {
        return LS_OK; /* ls_slices_step averages */
    }
    LS_TRY(end_pass(state));
    return ls_batches_compare(state);
}

/*
 * Records that a pass has failed, on all ranks. The ranks may hold different outputs now. If the program continues, the
 * module takes part in later passes that depend on these outputs.
 */
static void note_failure(ls_data_parallel_state *state) {
    state->pending = false;
    state->remains = state->slices == NULL; /* slices have one pass per step (ls_slices_step) */
}

/* Only a pass with overlap has calls in flight. Buckets are in flight only after the first pass. */
static void pass_is_abandoned(void *user, bool missed) {
    ls_data_parallel_state *state = user;
    if (state->slices != NULL) {
        return; /* ls_slices_step launches the remaining buckets */
    }
    (void)end_units(state, 1);
    const bool listed = ls_module_list(state->model);
    if (missed && state->usual != 0 && listed) {
        (void)ls_overlap_begin(state, 1);
    }
    ls_overlap_abandon(state);
    if (listed) {
        ls_data_parallel_forget_gradients(state);
    }
    note_failure(state);
}

/* ---- captured steps (ls_step_capture) ---------------------------------------------------------------------------- */

/* A captured pass. A replay has no tape, so it takes these values from the captured pass. */
typedef struct captured_pass {
    ls_data_parallel_state *state;
    int64_t samples;
    double divisor;        /* of the only mean */
    const ls_tensor *only; /* that divisor, if the step computes it; otherwise NULL */
    ls_batch_loss loss;    /* its pointers are NULL */
    double divisors[LS_DIVISORS];
    const ls_tensor *divisor_tensors[LS_DIVISORS];    /* divisors that the step computes; NULL for other sums */
    double *factors[LS_FACTOR_OF_SUMS + LS_DIVISORS]; /* addresses in the record; NULL if no call uses the factor */
    bool has_shares;                                  /* a replay has already exchanged the shares */
    bool has_findings;
    ls_pass_findings findings;
} captured_pass;

/* Prepares the state for a pass without a forward pass of the module. */
static void begin_replay(const captured_pass *pass) {
    ls_data_parallel_state *state = pass->state;
    if (!pass->has_shares) {
        ls_data_parallel_begin_replay(state, pass->samples);
    }
    state->agreed = false;
    state->divisor = pass->divisor;
    ls_pass_note_gradients(state);
    state->runs++;
}

/* Begins a pass for which the ranks need not agree on scaling factors. */
static ls_status begin_usual(ls_data_parallel_state *state) {
    return state->usual != 0 ? ls_overlap_begin(state, ls_divisor_weight(state, state->divisor)) : LS_OK;
}

static void read_divisors(captured_pass *pass) {
    for (int i = 0; i < pass->loss.sums && i < LS_DIVISORS; i++) {
        pass->divisors[i] =
            pass->divisor_tensors[i] != NULL ? ls_tensor_number(pass->divisor_tensors[i]) : pass->divisors[i];
    }
    pass->divisor = pass->only != NULL ? ls_tensor_number(pass->only) : pass->divisor;
}

static ls_status replay_begin(void *object) {
    captured_pass *pass = object;
    read_divisors(pass);
    begin_replay(pass);
    LS_TRY(ls_comm_check_open("ls_data_parallel", pass->state->comm));
    return begin_usual(pass->state);
}

static ls_status replay_begin_agreed(void *object) {
    captured_pass *pass = object;
    double factors[LS_FACTOR_OF_SUMS + LS_DIVISORS];
    read_divisors(pass);
    begin_replay(pass);
    LS_TRY(ls_comm_check_open("ls_data_parallel", pass->state->comm));
    LS_TRY(ls_agree_again(pass->state, &pass->loss, pass->divisors, factors, factors + LS_FACTOR_OF_SUMS));
    for (int i = 0; i < LS_FACTOR_OF_SUMS + LS_DIVISORS; i++) {
        if (pass->factors[i] != NULL) {
            *pass->factors[i] = factors[i];
        }
    }
    return ls_overlap_begin(pass->state, 1);
}

static ls_status replay_end(void *object) {
    const captured_pass *pass = object;
    return finish_pass(pass->state, pass->has_findings ? &pass->findings : NULL);
}

/* Called if a replay fails before the end of this pass. If the pass has begun, sends the error in the tail. Otherwise
 * sends it before the pass, as a failed forward pass does, unless the exchange of shares has already sent it. */
static void notify_in_end(void *object, bool begun) {
    const captured_pass *pass = object;
    if (begun && pass->state->told) { /* the agreement has failed on all ranks */
        pass_is_abandoned(pass->state, false);
    } else if (begun) {
        (void)ls_data_parallel_watch.fail(pass->state, true);
        ls_overlap_abandon(pass->state); /* for an error that prevents the exchange in `fail` */
    } else if (!pass->has_shares || !pass->state->told) {
        begin_replay(pass);
        (void)ls_watch_tell(&ls_data_parallel_watch, pass->state, false);
    }
}

static captured_pass *record_pass(ls_data_parallel_state *state, ls_capture *capture,
                                  const ls_pass_findings *findings) {
    captured_pass *pass = ls_capture_allocate(capture, sizeof *pass);
    if (pass != NULL) {
        *pass = (captured_pass){.state = state,
                                .samples = state->samples,
                                .divisor = state->divisor,
                                .has_shares = state->located,
                                .has_findings = findings != NULL};
        pass->findings = findings != NULL ? *findings : pass->findings;
    }
    return pass;
}

/* Stores the counts of the loss, and the divisors of its first sums. */
static void record_loss(captured_pass *pass, const ls_batch_loss *loss) {
    if (pass == NULL) {
        return;
    }
    pass->loss = *loss;
    pass->loss.output = NULL;
    pass->loss.innermost = NULL;
    pass->loss.refused = NULL;
    ls_batch_loss_divisors(loss, 0, LS_DIVISORS, pass->divisors, pass->divisor_tensors);
    if (loss->only >= 0) {
        double divisor;
        ls_batch_loss_divisors(loss, loss->only, 1, &divisor, &pass->only);
    }
}

/* Replaces the divisors' tensors with copies for the latest call, which begins the pass. */
static void record_divisors(captured_pass *pass, ls_capture *capture) {
    if (pass == NULL) {
        return;
    }
    pass->only = ls_capture_tensor(capture, pass->only, false);
    for (int i = 0; i < LS_DIVISORS; i++) {
        pass->divisor_tensors[i] = ls_capture_tensor(capture, pass->divisor_tensors[i], false);
    }
}

static ls_status capture_begin(ls_data_parallel_state *state, ls_capture *capture, const ls_batch_loss *loss) {
    captured_pass *pass = record_pass(state, capture, NULL);
    record_loss(pass, loss);
    ls_overlap_capture(state);
    ls_capture_call_begin(capture);
    const ls_status status = begin_usual(state);
    ls_capture_early_end(capture, status, replay_begin, pass);
    record_divisors(pass, capture);
    return status;
}

/* The first pass that agrees may begin with an additional exchange, which replays do not repeat. */
static ls_status capture_begin_agreed(ls_data_parallel_state *state, ls_capture *capture, ls_batch_loss *loss) {
    captured_pass *pass = record_pass(state, capture, NULL);
    const bool weighed = loss->weighed;
    record_loss(pass, loss);
    if (pass != NULL) {
        ls_capture_scale_by(capture, pass->factors, LS_FACTOR_OF_SUMS + LS_DIVISORS);
    }
    ls_overlap_capture(state);
    ls_capture_call_begin(capture);
    const ls_status status = begin_agreed(state, loss);
    ls_capture_early_end(capture, status, replay_begin_agreed, pass);
    record_divisors(pass, capture);
    const char *why = loss->sums > LS_DIVISORS ? LS_CAPTURE_MANY_SUMS
                      : weighed                ? LS_CAPTURE_MODULES
                      : loss->unrelated        ? LS_CAPTURE_UNRELATED
                                               : NULL;
    if (why != NULL) {
        ls_capture_refuse(capture, "ls_data_parallel", why);
    }
    return status;
}

static ls_status capture_end(ls_data_parallel_state *state, ls_capture *capture, const ls_pass_findings *findings) {
    captured_pass *pass = record_pass(state, capture, findings);
    ls_capture_scale_by(capture, NULL, 0);
    ls_capture_call_begin(capture);
    const ls_status status = finish_pass(state, findings);
    ls_capture_exchange_end(capture, status, replay_end, notify_in_end, pass);
    if (status == LS_OK) {
        ls_capture_gradients_settled(capture);
    }
    if (state->pending) {
        ls_capture_refuse(capture, "ls_backward",
                          "gives a data-parallel model no gradient: detach the loss from the "
                          "model outside the step, or run it without ls_step_capture");
    }
    return status;
}

/*
 * Fails if the calls of a replay would differ from the calls of ranks that run the step. `agreed` is true if the ranks
 * agreed on the scaling factors of the captured pass.
 */
static ls_status check_captured(void *object, int agreed) {
    const ls_data_parallel_state *state = object;
    const bool same = agreed ? state->agrees : !agrees_anyway(state);
    return same ? LS_OK
                : ls_fail(LS_ERR_STATE,
                          "ls_step_replay: since ls_step_capture, a loss needed numbers from all ranks, or "
                          "gradients were accumulated without synchronization: capture the step again");
}

/* Fails under no_sync, which skips the exchanges of the step. */
static ls_status check_synchronizes(void *object, int unused) {
    const ls_data_parallel_state *state = object;
    (void)unused;
    return !state->no_sync
               ? LS_OK
               : ls_fail(LS_ERR_STATE, "ls_step_replay: since ls_step_capture, ls_data_parallel_no_sync was "
                                       "switched on: switch it off, or capture the step again");
}

static void hold_captured(void *object, bool hold) {
    const ls_data_parallel_state *state = object;
    ls_module_hold_record(state->module, hold);
}

void ls_data_parallel_capture(ls_data_parallel_state *state, ls_capture *capture) {
    if (state->slices != NULL || state->no_sync || (state->gathering && !state->agrees)) {
        ls_capture_refuse(capture, "ls_data_parallel", LS_CAPTURE_COMMUNICATES);
    }
    ls_capture_add_guard(capture,
                         &(ls_capture_guard){.check = check_synchronizes, .hold = hold_captured, .object = state});
}

/* Runs and records the beginning of a pass. */
static ls_status capture_pass(ls_data_parallel_state *state, ls_capture *capture, ls_batch_loss *loss, bool agreed) {
    const ls_status status = agreed ? capture_begin_agreed(state, capture, loss) : capture_begin(state, capture, loss);
    ls_capture_add_guard(
        capture, &(ls_capture_guard){.check = check_captured, .hold = hold_captured, .object = state, .state = agreed});
    return status;
}

/* ---- the functions of a pass ------------------------------------------------------------------------------------- */

static ls_status pass_begins(void *user, ls_batch_loss *loss, bool agreed) {
    ls_data_parallel_state *state = user;
    ls_capture *capture = ls_thread_present->capture;
    LS_TRY(ls_comm_check_open("ls_data_parallel", state->comm));
    loss->watched |= state->mean_checks > 0;
    state->agreed = state->told = false;
    state->pass = ls_thread_present->pass;
    if (state->shards != NULL) {
        state->shards->in_pass = true;
    }
    state->loss = loss->output;
    state->divisor = ls_batch_loss_divisor(loss, state->samples);
    if (state->slices != NULL) {
        return ls_slice_begin_backward(state, loss);
    }
    state->watched++;
    ls_pass_note_gradients(state);
    return capture != NULL ? capture_pass(state, capture, loss, agreed)
           : agreed        ? begin_agreed(state, loss)
                           : begin_usual(state);
}

static ls_status pass_ends(void *user, const ls_pass_findings *findings) {
    ls_capture *capture = ls_thread_present->capture;
    const ls_status status = capture == NULL ? finish_pass(user, findings) : capture_end(user, capture, findings);
    if (status != LS_OK) {
        note_failure(user);
    }
    return status;
}

static ls_telling pass_fails(void *user, bool begun) {
    ls_data_parallel_state *state = user;
    if (state->slices != NULL) {
        return LS_TOLD; /* ls_slices_step notifies the other ranks */
    }
    state->told = false;
    state->watched++;
    ls_tail mean = {.agree = 1};
    if (ls_module_list(state->model) && ls_comm_check_open("ls_data_parallel", state->comm) == LS_OK) {
        (void)(begun && state->agreed           ? average_agreed(state, 0, (ls_tail){.failed = 1})
               : !begun && agrees_anyway(state) ? ls_agree_on_factors(state, NULL, true)
                                                : average_by_divisor(state, 0, (ls_tail){.failed = 1}, &mean));
    }
    if (!state->told) {
        return LS_NOT_TOLD;
    }
    note_failure(state);
    return !begun && mean.agree == 0 ? LS_TOLD_IN_PASS : LS_TOLD;
}

static ls_stay pass_stays(void *user) {
    const ls_data_parallel_state *state = user;
    return state->pending ? LS_STAYS : state->remains ? LS_STAYS_IF_REACHED : LS_STAYS_NOT;
}

static ls_reach pass_reach(void *user, const ls_batch_loss *loss) {
    return ls_samples_reach(loss, user);
}

void ls_data_parallel_hold(void *state, bool hold) {
    (hold ? ls_module_hold : ls_module_drop)(((ls_data_parallel_state *)state)->module);
}

const ls_pass_watch ls_data_parallel_watch = {.reach = pass_reach,
                                              .agrees = agrees,
                                              .begin = pass_begins,
                                              .end = pass_ends,
                                              .fail = pass_fails,
                                              .abandon = pass_is_abandoned,
                                              .stays = pass_stays,
                                              .hold = ls_data_parallel_hold};

/* ---- a rank without samples -------------------------------------------------------------------------------------- */

/* Performs the communication of the model's backward pass on a rank without samples. */
static ls_status walk_empty(const ls_data_parallel_state *state, ls_tensor *output) {
    if (output == NULL || (!ls_tape_communicates() && !ls_data_parallel_has_units(state))) {
        return LS_OK;
    }
    ls_tensor *zeros = ls_zeros(ls_shape_of(output), ls_dtype_of(output));
    return zeros != NULL ? ls_backward_with(output, &(ls_backward_options){.gradient = zeros}) : ls_error_status();
}

static ls_status end_pass_without_samples(ls_data_parallel_state *state, ls_tensor *output) {
    state->samples = 0;
    ls_pass_note_gradients(state);
    if (!agrees_anyway(state)) {
        ls_tail mean;
        LS_TRY(average_by_divisor(state, 0, (ls_tail){.given = SKIPPED}, &mean));
        if (!(mean.agree > 0)) {
            LS_TRY(decide_pending(state, &mean));
            ls_means_compare(state, mean.factors, mean.factor, mean.factor_square, true);
            return mean.samples > 0 ? ls_buffers_average(&state->buffers, 0) : LS_OK;
        }
        state->agrees = true;
    }
    LS_TRY(begin_agreed(state, NULL));
    LS_TRY(walk_empty(state, output));
    return average_agreed(state, 0, (ls_tail){.given = SKIPPED});
}

ls_status ls_data_parallel_pass_without_samples(ls_data_parallel_state *state, ls_tensor *output) {
    LS_TRY(end_pass_without_samples(state, output));
    return ls_batches_compare(state);
}
