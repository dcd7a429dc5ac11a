/* The tail: numbers that ranks exchange after the gradients when they average gradients. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/slices.h"

bool ls_gradient_is_sent(const void *user, const ls_leaf *leaf) {
    const ls_data_parallel_state *state = user;
    /* An older gradient is equal on all ranks, unless it was accumulated under no_sync, and must keep its value. */
    return !leaf->shard && (leaf->tensor->needs_grad || leaf->has_gradient || state->gathering);
}

/* Layout of the tail, which follows the gradients of the widest dtype: the numbers of an ls_tail, then the marks. */
enum { MARKS = sizeof(ls_tail) / sizeof(double) };
_Static_assert(MARKS == 10 + LS_PASS_BITS, "each member of ls_tail is a double");

int64_t ls_tail_count(const ls_data_parallel_state *state) {
    return MARKS + state->parameter_count + state->buffers.count;
}

ls_dtype ls_tail_dtype(const ls_data_parallel_state *state) {
    return state->reducer.flats[state->reducer.flat_count - 1].dtype;
}

/* The tail is sent after the gradients of the same dtype, or in a separate buffer. */
void *ls_tail_memory(const ls_data_parallel_state *state) {
    return state->tail != NULL ? state->tail : ls_gradient_reducer_extra(&state->reducer);
}

ls_status ls_tail_open(ls_data_parallel_state *state) {
    const size_t bytes = (size_t)ls_tail_count(state) * ls_dtype_size(ls_tail_dtype(state));
    state->tail = ls_gradient_reducer_has_extra(&state->reducer) ? NULL : ls_allocate_zeroed(1, bytes);
    return state->tail != NULL || ls_gradient_reducer_has_extra(&state->reducer)
               ? LS_OK
               : ls_fail_memory("ls_data_parallel", bytes);
}

/* Writes number `index` of the tail, as f64 if `wide` is set, otherwise as f32. */
static void write_number(void *tail, bool wide, int64_t index, double value) {
    if (wide) {
        ((double *)tail)[index] = value;
    } else {
        ((float *)tail)[index] = (float)value;
    }
}

static double read_number(const void *tail, bool wide, int64_t index) {
    return wide ? ((const double *)tail)[index] : (double)((const float *)tail)[index];
}

static bool is_tail_wide(const ls_data_parallel_state *state) {
    return ls_tail_dtype(state) == LS_F64;
}

bool ls_tail_is_given(const ls_data_parallel_state *state, const ls_tail *mean) {
    const double ranks = ls_data_parallel_ranks(state);
    return mean->given * ranks > 0.5 || mean->given * ranks > (ranks - 0.5) * SKIPPED;
}

/*
 * Returns the mark of a parameter whose gradient this rank does not exchange. It is larger than the sum of all other
 * marks. The mean over ranks therefore equals this mark if the parameter is frozen on all ranks, is at least 2 if it is
 * frozen on some ranks, and is at most 1 if it is frozen on no rank.
 */
static double frozen_mark(const ls_data_parallel_state *state) {
    return 2.0 * ls_data_parallel_ranks(state);
}

/*
 * With PowerSGD, the mark of a parameter whose gradient is from earlier passes and equal on all ranks. The sum of this
 * mark over all ranks is less than one half.
 */
static const double OLD = 0x1p-20;

static double mark_of(const ls_data_parallel_state *state, const ls_tail *own, const ls_leaf *leaf) {
    if (leaf == NULL) {
        return 0;
    }
    if (!ls_gradient_is_sent(state, leaf)) {
        return frozen_mark(state);
    }
    const bool given = own->given == 1 && leaf->given == ls_thread_present->pass;
    return !leaf->has_gradient ? 0 : state->powersgd != NULL && !state->gathering && !given ? OLD : 1;
}

bool ls_tail_has_new_gradient(const ls_data_parallel_state *state, int index) {
    const double mark = read_number(ls_tail_memory(state), is_tail_wide(state), MARKS + index);
    const bool frozen = mark > 1.5;
    return !frozen && mark > 0 && fabs(mark / OLD - 1) > 0.25 / ls_data_parallel_ranks(state);
}

void ls_pass_note_gradients(ls_data_parallel_state *state) {
    state->holds = false;
    if (state->gathering || !ls_module_list(state->model)) {
        return; /* under no_sync, the ranks may have gradients of different parameters */
    }
    for (int i = 0; i < state->parameter_count && !state->holds; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        state->holds = leaf != NULL && leaf->has_gradient;
    }
}

void ls_pass_describe(const ls_data_parallel_state *state, const ls_tail *own, double *bits) {
    const bool counts = own->given != SKIPPED || state->agreed; /* otherwise the rank's gradients have no weight */
    bits[LS_PASS_HOLDS] = counts && state->holds;
    bits[LS_PASS_COUNTS] = counts;
    for (int i = LS_PASS_NUMBER; i < LS_PASS_BITS; i++) {
        bits[i] = state->number >> (i - LS_PASS_NUMBER) & 1;
    }
}

/* `part` is a mean over ranks: whether only some of the ranks that make up the mean `all` have the bit. */
static bool is_partial(const ls_data_parallel_state *state, double part, double all) {
    const double margin = 0.25 / ls_data_parallel_ranks(state);
    return part > margin && part < all - margin;
}

bool ls_tail_is_mixed(const ls_data_parallel_state *state, const ls_tail *mean) {
    /* A rank that fails before a pass has not noted its gradients. */
    bool mixed = mean->failed == 0 && is_partial(state, mean->pass[LS_PASS_HOLDS], mean->pass[LS_PASS_COUNTS]);
    for (int i = LS_PASS_NUMBER; i < LS_PASS_BITS; i++) {
        mixed |= is_partial(state, mean->pass[i], 1);
    }
    return mixed;
}

ls_status ls_tail_check(ls_data_parallel_state *state, const ls_tail *mean, bool failed) {
    if (mean->failed > 0) {
        return ls_averaging_share_cause(state, failed);
    }
    if (!ls_tail_is_mixed(state, mean)) {
        return LS_OK;
    }
    state->told = true;
    ls_data_parallel_forget_gradients(state);
    return ls_fail(LS_ERR_MISMATCH,
                   "ls_backward: the ranks are in different passes of data-parallel modules: on all ranks, each pass "
                   "must use outputs of the same modules, and the ranks must clear gradients and run passes of their "
                   "own between the same passes; a rank without samples calls ls_data_parallel_skip for each pass");
}

void ls_tail_write(const ls_data_parallel_state *state, const ls_tail *own) {
    void *to = ls_tail_memory(state);
    const bool wide = is_tail_wide(state);
    ls_tail tail = *own;
    ls_pass_describe(state, own, tail.pass);
    double numbers[MARKS];
    memcpy(numbers, &tail, sizeof numbers);
    for (int i = 0; i < MARKS; i++) {
        write_number(to, wide, i, numbers[i]);
    }
    for (int i = 0; i < state->parameter_count; i++) {
        write_number(to, wide, MARKS + i, mark_of(state, own, ls_data_parallel_leaf(state, i)));
    }
    for (int i = 0; i < state->buffers.count; i++) {
        write_number(to, wide, MARKS + state->parameter_count + i, ls_buffer_has_changed(&state->buffers, i) ? 1 : 0);
    }
}

/* Returns whether the mean of a mark over ranks shows that the parameter is frozen on only some ranks. */
static bool is_frozen_in_part(const ls_data_parallel_state *state, double mark) {
    return mark > 1.5 && mark < frozen_mark(state) - 0.75;
}

/* Fails on all ranks, because all ranks read the same marks. */
static ls_status refuse_frozen(const ls_data_parallel_state *state, int index, double mark) {
    return ls_fail(LS_ERR_MISMATCH,
                   "ls_data_parallel: the parameter \"%s\" is frozen (ls_set_requires_grad) on %d of %d %s: "
                   "freeze it on all ranks or on none",
                   state->model->parameters.items[index].name, (int)(mark / 2 + 0.01), ls_data_parallel_ranks(state),
                   state->slices != NULL ? "slices" : "ranks");
}

ls_tail ls_tail_read(const ls_data_parallel_state *state) {
    const void *from = ls_tail_memory(state);
    const bool wide = is_tail_wide(state);
    double numbers[MARKS] = {0};
    for (int i = 0; i < MARKS; i++) {
        numbers[i] = read_number(from, wide, i);
    }
    ls_tail tail;
    memcpy(&tail, numbers, sizeof tail);
    return tail;
}

ls_status ls_tail_read_marks(const ls_data_parallel_state *state) {
    const void *from = ls_tail_memory(state);
    const bool wide = is_tail_wide(state);
    for (int i = 0; i < state->parameter_count; i++) {
        const double mark = read_number(from, wide, MARKS + i);
        if (is_frozen_in_part(state, mark)) {
            return refuse_frozen(state, i, mark);
        }
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL && ls_gradient_is_sent(state, leaf)) {
            leaf->has_gradient = mark > 0;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
    for (int i = 0; i < state->buffers.count; i++) {
        state->buffers.records[i].changed = read_number(from, wide, MARKS + state->parameter_count + i) > 0;
    }
    return LS_OK;
}

ls_status ls_weight_start(ls_data_parallel_state *state, double weight, ls_work **work) {
    ls_overlap *overlap = &state->overlap;
    write_number(&overlap->mean_weight, is_tail_wide(state), 0, weight);
    return ls_comm_allreduce(overlap->bucket_comms[0], &overlap->mean_weight, &overlap->mean_weight, 1,
                             ls_tail_dtype(state), LS_AVG, work);
}

double ls_weight_read(const ls_data_parallel_state *state) {
    return read_number(&state->overlap.mean_weight, is_tail_wide(state), 0);
}

ls_status ls_tail_reduce(const ls_data_parallel_state *state) {
    void *memory = ls_tail_memory(state);
    return ls_comm_allreduce(state->comm, memory, memory, (size_t)ls_tail_count(state), ls_tail_dtype(state),
                             state->reducer.reduction, NULL);
}
