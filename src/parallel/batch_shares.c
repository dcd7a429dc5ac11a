/*
 * The exchange of the ranks' shares of a global batch: the number of samples and the kinds of the inputs. A captured
 * step (ls_step_capture) repeats the exchange.
 */
#include <string.h>

#include "autograd/captured_step.h"
#include "comm/hold.h"
#include "parallel/averaging.h"
#include "parallel/cause.h"

static ls_input_kind kind_of(const ls_data_parallel_state *state, int i) {
    const ls_tensor *input = i < state->input_count ? state->inputs[i] : NULL;
    if (input == NULL) {
        return (ls_input_kind){0};
    }
    ls_input_kind kind = {.there = 1, .dtype = input->dtype, .ndim = input->ndim};
    memcpy(kind.size, input->size, (size_t)input->ndim * sizeof *kind.size);
    return kind;
}

size_t ls_data_parallel_share_bytes(const ls_data_parallel_state *state) {
    return sizeof(ls_rank_inputs) + (size_t)state->input_count * sizeof(ls_input_kind);
}

void ls_data_parallel_describe(const ls_data_parallel_state *state, ls_rank_inputs *own) {
    *own =
        (ls_rank_inputs){.samples = state->part.samples, .inputs = state->input_count, .outputs = state->output_count};
    for (int i = 0; i < state->input_count; i++) {
        own->kind[i] = kind_of(state, i);
    }
}

ls_status ls_data_parallel_exchange(ls_data_parallel_state *state, const ls_rank_inputs *own, size_t bytes) {
    const int size = ls_comm_size(state->comm);
    LS_TRY(ls_objects_allgather("ls_data_parallel", state->comm, own, bytes, &state->shares));
    bool failed = false;
    for (int i = 0; i < size; i++) {
        failed = failed || ls_data_parallel_share(state, i)->samples == LS_SHARE_FAILED;
    }
    state->told |= failed;
    if (failed) {
        return ls_cause_share(state->comm, "ls_forward", own->samples == LS_SHARE_FAILED);
    }
    state->part.first = 0;
    for (int i = 0; i < ls_comm_rank(state->comm); i++) {
        state->part.first += ls_data_parallel_share(state, i)->samples;
    }
    state->located = true;
    return LS_OK;
}

ls_status ls_data_parallel_refuse_share(ls_data_parallel_state *state) {
    const ls_rank_inputs own = {.samples = LS_SHARE_FAILED};
    return ls_data_parallel_exchange(state, &own, sizeof own);
}

/* ---- captured steps ---------------------------------------------------------------------------------------------- */

typedef struct captured_shares {
    ls_data_parallel_state *state;
    ls_capture *capture;
    int64_t first; /* index of this rank's first sample in the captured step */
    size_t bytes;  /* of `own` */
    ls_rank_inputs *own;
} captured_shares;

/* Drops the gradients after a failed replay, so that no rank uses gradients that other ranks do not have. */
static void forget_gradients(const ls_data_parallel_state *state) {
    if (ls_module_list(state->model)) {
        ls_data_parallel_forget_gradients(state);
    }
}

static ls_status exchange_again(const captured_shares *shares) {
    ls_data_parallel_state *state = shares->state;
    ls_data_parallel_begin_replay(state, shares->own->samples);
    LS_TRY(ls_comm_check_open("ls_data_parallel", state->comm));
    return ls_data_parallel_exchange(state, shares->own, shares->bytes);
}

static ls_status replay_shares(void *object) {
    const captured_shares *shares = object;
    const ls_data_parallel_state *state = shares->state;
    const ls_status status = exchange_again(shares);
    if (status != LS_OK) {
        forget_gradients(state);
        return status;
    }
    ls_capture_move_samples(shares->capture, state->part.first - shares->first);
    return LS_OK;
}

/* The replay fails before this exchange. */
static void notify_in_shares(void *object, bool begun) {
    const captured_shares *shares = object;
    (void)begun;
    ls_data_parallel_begin_replay(shares->state, LS_SHARE_FAILED);
    (void)ls_data_parallel_refuse_share(shares->state);
    forget_gradients(shares->state);
}

ls_status ls_data_parallel_capture_shares(ls_data_parallel_state *state, ls_capture *capture) {
    const size_t bytes = ls_data_parallel_share_bytes(state);
    captured_shares *shares = ls_capture_allocate(capture, sizeof *shares + bytes);
    if (shares == NULL) {
        (void)ls_fail_memory("ls_data_parallel", sizeof *shares + bytes);
        return ls_data_parallel_refuse_share(state);
    }
    shares->own = (ls_rank_inputs *)(void *)(shares + 1);
    ls_data_parallel_describe(state, shares->own);
    ls_capture_call_begin(capture);
    const ls_status status = ls_data_parallel_exchange(state, shares->own, bytes);
    shares->state = state;
    shares->capture = capture;
    shares->first = state->part.first;
    shares->bytes = bytes;
    ls_capture_exchange_end(capture, status, replay_shares, notify_in_shares, shares);
    return status;
}
