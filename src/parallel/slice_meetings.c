#include "parallel/slice_meetings.h"

#include <math.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/fiber.h"
#include "base/memory.h"
#include "comm/meter.h"
#include "tensor/scope.h"

static const char call[] = "ls_data_parallel_step";

/* A slice of this rank. It keeps its gradients and leaves from step to step. */
struct ls_slice_run {
    ls_data_parallel_state *state;
    ls_slice_function *function;
    void *user;
    int slice; /* over all ranks */
    ls_fiber *fiber;
    bool runs;        /* the slice's function has begun and has not yet returned */
    ls_status status; /* the function's result, after its return */
    double *numbers;  /* the slice's summands while the slice waits for a sum; otherwise NULL */
    int64_t count;
    ls_random_state random; /* valid while the slice does not run, like the following members */
    char *exchanged;        /* the elements of the exchanged memory */
    ls_leaf **leaves;       /* by parameter index */
    ls_leaf *memory;        /* of the leaves */
    ls_storage *gradients[LS_FLAT_LIMIT];
};

/* ---- memory that the slices exchange ----------------------------------------------------------------------------- */

enum { PIECES = 32 };

#define PIECE(object)                                                                                                  \
    { &(object), sizeof(object) }

/* Lists the memory whose contents differ between slices, except the leaves of the parameters. */
static int list_pieces(ls_data_parallel_state *state, ls_slice_piece pieces[PIECES]) {
    ls_thread_state *thread = ls_thread_present;
    ls_slices *slices = state->slices;
    const ls_slice_piece own[] = {
        PIECE(thread->scope),   PIECE(thread->walking),      PIECE(thread->pass),         PIECE(thread->batch),
        PIECE(thread->no_grad), PIECE(thread->autocast),     PIECE(thread->recomputes),   PIECE(thread->divisor),
        PIECE(thread->gone),    PIECE(state->part),          PIECE(state->located),       PIECE(state->inputs),
        PIECE(state->samples),  PIECE(state->input_count),   PIECE(state->output_count),  PIECE(state->told),
        PIECE(state->agreed),   PIECE(state->loss),          PIECE(state->divisor),       PIECE(state->follows),
        PIECE(state->factor),   PIECE(slices->running),      PIECE(slices->first_sample), PIECE(slices->begins),
        PIECE(slices->counts),  PIECE(thread->single_sample)};
    const int count = (int)(sizeof own / sizeof *own);
    _Static_assert(sizeof own / sizeof *own + LS_SLICE_PIECES <= PIECES, "room for all pieces");
    memcpy(pieces, own, sizeof own);
    for (int i = 0; i < slices->piece_count; i++) {
        pieces[count + i] = slices->pieces[i];
    }
    return count + slices->piece_count;
}

static void swap(void *a, void *b, size_t bytes) {
    char room[256];
    for (size_t done = 0; done < bytes; done += sizeof room) {
        const size_t part = bytes - done < sizeof room ? bytes - done : sizeof room;
        memcpy(room, (char *)a + done, part);
        memcpy((char *)a + done, (char *)b + done, part);
        memcpy((char *)b + done, room, part);
    }
}

static void swap_leaves(const ls_slice_run *run) {
    for (int i = 0; i < run->state->parameter_count; i++) {
        swap(&run->state->model->parameters.items[i].tensor->leaf, &run->leaves[i], sizeof(ls_leaf *));
    }
}

/* Swaps the memory of the slice with the current memory, before and after the slice runs. */
static void exchange(ls_slice_run *run) {
    ls_data_parallel_state *state = run->state;
    ls_slice_piece pieces[PIECES] = {{NULL, 0}};
    const int count = list_pieces(state, pieces);
    char *own = run->exchanged;
    for (int i = 0; i < count; i++) {
        swap(pieces[i].memory, own, pieces[i].bytes);
        own += pieces[i].bytes;
    }
    swap_leaves(run);
    const ls_random_state random = ls_random_get_state();
    ls_random_set_state(run->random);
    run->random = random;
}

/* The slice starts with a copy of the current memory. Its passes have their own numbers. */
static ls_status copy_pieces(ls_slice_run *run) {
    enum { PASSES = 16 }; /* maximum number of passes of one slice in one step */
    ls_slice_piece pieces[PIECES] = {{NULL, 0}};
    const int count = list_pieces(run->state, pieces);
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        bytes += pieces[i].bytes;
    }
    ls_free(run->exchanged);
    run->exchanged = ls_allocate(bytes);
    if (run->exchanged == NULL) {
        return ls_fail_memory(call, bytes);
    }
    char *own = run->exchanged;
    ls_thread_present->pass += PASSES;
    for (int i = 0; i < count; i++) {
        memcpy(own, pieces[i].memory, pieces[i].bytes);
        own += pieces[i].bytes;
    }
    run->random = ls_random_get_state();
    return LS_OK;
}

/* ---- the gradients of a slice ------------------------------------------------------------------------------------ */

static size_t bytes_of(const ls_gradient_reducer *reducer, int flat) {
    return (size_t)reducer->flats[flat].count * ls_dtype_size(reducer->flats[flat].dtype);
}

/* Moves the gradients of the slice's leaves, which are currently the model's leaves, into the slice's memory. */
static ls_status place_gradients(ls_slice_run *run) {
    const ls_gradient_reducer *reducer = &run->state->reducer;
    for (int i = 0; i < reducer->flat_count; i++) {
        run->gradients[i] = ls_storage_for(call, &ls_cpu, bytes_of(reducer, i), LS_MEMORY_GRADIENTS);
        LS_TRY(ls_made(run->gradients[i]));
        memset(run->gradients[i]->memory, 0, bytes_of(reducer, i)); /* includes the gaps between gradients */
        LS_TRY(ls_module_move_gradients(run->state->model, reducer->flats[i].dtype, run->gradients[i]));
    }
    return LS_OK;
}

static ls_status make_leaves(ls_slice_run *run) {
    const ls_data_parallel_state *state = run->state;
    const size_t count = (size_t)state->parameter_count;
    run->leaves = ls_allocate_zeroed(count, sizeof *run->leaves);
    run->memory = ls_allocate_zeroed(count, sizeof *run->memory);
    if (run->leaves == NULL || run->memory == NULL) {
        return ls_fail_memory(call, count * sizeof *run->memory);
    }
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        run->memory[i] = (ls_leaf){.tensor = state->model->parameters.items[i].tensor};
        run->leaves[i] = leaf != NULL ? &run->memory[i] : NULL;
    }
    swap_leaves(run);
    const ls_status status = place_gradients(run);
    swap_leaves(run);
    return status;
}

/* The slice starts with the hooks and gradients of the model, but accumulates gradients in its own memory. */
static void copy_leaves(ls_slice_run *run) {
    const ls_data_parallel_state *state = run->state;
    bool any = false;
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *from = ls_data_parallel_leaf(state, i);
        ls_leaf *own = &run->memory[i];
        ls_tensor *gradient = own->gradient;
        run->leaves[i] = from != NULL ? own : NULL;
        if (from != NULL) {
            *own = *from;
            own->gradient = gradient;
            own->uses = own->remaining = 0;
            own->touched = own->listed = own->lent = false;
            any = any || own->has_gradient;
        }
    }
    for (int i = 0; i < state->reducer.flat_count && any; i++) {
        memcpy(run->gradients[i]->memory, state->reducer.flats[i].gradients->memory, bytes_of(&state->reducer, i));
    }
}

void ls_slice_run_fetch(ls_data_parallel_state *state, int index) {
    const ls_slice_run *run = &state->slices->runs[index];
    const ls_gradient_reducer *reducer = &state->reducer;
    for (int i = 0; i < state->parameter_count; i++) {
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL) {
            leaf->has_gradient = run->memory[i].has_gradient;
        }
    }
    for (int i = 0; i < reducer->flat_count; i++) {
        memcpy(reducer->flats[i].gradients->memory, run->gradients[i]->memory, bytes_of(reducer, i));
    }
}

void ls_slice_runs_free(ls_slice_run *runs, int count, int parameter_count) {
    for (int i = 0; runs != NULL && i < count; i++) {
        for (int k = 0; runs[i].memory != NULL && k < parameter_count; k++) {
            ls_tensor_drop(runs[i].memory[k].gradient);
        }
        for (int k = 0; k < LS_FLAT_LIMIT; k++) {
            ls_storage_drop(runs[i].gradients[k]);
        }
        ls_free(runs[i].exchanged);
        ls_free(runs[i].leaves);
        ls_free(runs[i].memory);
    }
    ls_free(runs);
}

/* ---- meetings ---------------------------------------------------------------------------------------------------- */

ls_status ls_slice_meet(ls_data_parallel_state *state, double *numbers, int64_t count) {
    ls_slices *slices = state->slices;
    if (slices->present == NULL) {
        slices->must_meet = true;
        return ls_fail(LS_ERR_STATE, "%s: a layer needs the statistics of all slices", call);
    }
    ls_slice_run *run = slices->present;
    run->numbers = numbers;
    run->count = count;
    ls_fiber_suspend();
    run->numbers = NULL;
    return run->status;
}

/* The state of a rank's slices. The ranks exchange the maximum of each number. */
typedef struct slice_notice {
    double failed; /* a slice has failed */
    double waits;  /* nonzero if a slice waits for a sum */
    double ended;  /* nonzero if a slice has ended; a rank without slices waits for the others */
    double most;   /* number of elements of the sum */
    double least;  /* times -1 */
} slice_notice;

static slice_notice describe(const ls_slices *slices) {
    slice_notice own = {.least = -INFINITY};
    for (int i = 0; i < slices->count; i++) {
        const ls_slice_run *run = &slices->runs[i];
        const bool waits = run->runs && run->numbers != NULL;
        const double count = (double)run->count;
        own.failed = own.failed > 0 || (run->fiber != NULL && !run->runs && run->status != LS_OK);
        own.waits = own.waits > 0 || waits;
        own.ended = own.ended > 0 || (run->fiber != NULL && !run->runs);
        own.most = waits && count > own.most ? count : own.most;
        own.least = waits && -count > own.least ? -count : own.least;
    }
    return own;
}

static ls_status add_numbers(const ls_data_parallel_state *state, size_t count) {
    const ls_slices *slices = state->slices;
    double *own = ls_allocate_for(call, ((size_t)slices->count + 1) * count, sizeof *own);
    LS_TRY(ls_made(own));
    double *sum = own + (size_t)slices->count * count;
    for (int i = 0; i < slices->count; i++) {
        if (slices->runs[i].runs) {
            memcpy(own + (size_t)i * count, slices->runs[i].numbers, count * sizeof *own);
        }
    }
    const ls_status status = ls_slices_add(state, own, count, sum);
    for (int i = 0; i < slices->count && status == LS_OK; i++) {
        if (slices->runs[i].runs) {
            memcpy(slices->runs[i].numbers, sum, count * sizeof *sum);
        }
    }
    ls_free(own);
    return status;
}

/*
 * Synchronizes the slices of all ranks. Sets *more to false if all slices have ended. `begun` is not LS_OK if this rank
 * could not begin its slices.
 */
static ls_status meet(ls_data_parallel_state *state, ls_status begun, bool *more) {
    const uint64_t calls = ls_comm_metered.calls;
    slice_notice all = begun == LS_OK ? describe(state->slices) : (slice_notice){.failed = 1, .least = -INFINITY};
    LS_TRY(ls_comm_allreduce(state->comm, &all, &all, sizeof all / sizeof(double), LS_F64, LS_MAX, NULL));
    *more = all.waits > 0;
    ls_status status = LS_OK;
    if (all.failed > 0) {
        status = ls_fail(LS_ERR_MISMATCH, "%s: another slice has failed", call);
    } else if (all.waits > 0 && (all.ended > 0 || all.most != -all.least)) {
        status = ls_fail(LS_ERR_MISMATCH,
                         "%s: the slices' models need different statistics: run the same program for all slices", call);
    } else if (all.waits > 0) {
        status = add_numbers(state, (size_t)all.most);
    }
    state->slices->calls += ls_comm_metered.calls - calls;
    return status;
}

/* ---- fibers ------------------------------------------------------------------------------------------------------ */

/* Runs a slice on its fiber from beginning to end. */
static void run_slice(void *user) {
    ls_slice_run *run = user;
    run->status = run->function(run->user, run->slice);
    run->runs = false;
}

static void resume(ls_slice_run *run) {
    ls_slices *slices = run->state->slices;
    exchange(run);
    slices->present = run;
    (void)ls_fiber_resume(run->fiber);
    slices->present = NULL;
    exchange(run);
}

static ls_status begin(ls_data_parallel_state *state, ls_slice_function *function, void *user, int index) {
    ls_slice_run *run = &state->slices->runs[index];
    run->state = state;
    run->function = function;
    run->user = user;
    run->slice = state->slices->first + index;
    run->status = LS_OK;
    LS_TRY(run->leaves == NULL ? make_leaves(run) : LS_OK);
    copy_leaves(run);
    LS_TRY(copy_pieces(run));
    run->fiber = ls_fiber_new(run_slice, run);
    run->runs = run->fiber != NULL;
    return run->runs ? LS_OK : ls_fail_memory(call, sizeof *run);
}

static void resume_all(const ls_slices *slices) {
    for (int i = 0; i < slices->count; i++) {
        if (slices->runs[i].runs) {
            resume(&slices->runs[i]);
        }
    }
}

static void end_all(const ls_slices *slices, const ls_saved_error *cause) {
    for (int i = 0; i < slices->count && slices->runs != NULL; i++) {
        ls_slice_run *run = &slices->runs[i];
        while (run->runs) {
            run->status = cause->status;
            (void)ls_error_put_back(cause);
            resume(run);
        }
        ls_fiber_free(run->fiber);
        run->fiber = NULL;
    }
}

static ls_status begin_all(ls_data_parallel_state *state, ls_slice_function *function, void *user,
                           int64_t (*samples)(const void *user, int slice)) {
    ls_slices *slices = state->slices;
    if (slices->runs == NULL) {
        slices->runs = ls_allocate_for(call, (size_t)slices->count, sizeof *slices->runs);
        LS_TRY(ls_made(slices->runs));
    }
    ls_status status = LS_OK;
    for (int i = 0; i < slices->count && status == LS_OK; i++) {
        if (samples(user, slices->first + i) > 0) {
            status = begin(state, function, user, i);
        }
    }
    return status;
}

ls_status ls_slices_run_together(ls_data_parallel_state *state, ls_status before, ls_slice_function *function,
                                 void *user, int64_t (*samples)(const void *user, int slice)) {
    ls_slices *slices = state->slices;
    const ls_status begun = before == LS_OK ? begin_all(state, function, user, samples) : before;
    bool more = true;
    ls_status status = LS_OK;
    while (more && status == LS_OK) {
        if (begun == LS_OK) {
            resume_all(slices);
        }
        status = meet(state, begun, &more);
    }
    status = begun != LS_OK ? begun : status;
    ls_saved_error cause = {.status = LS_OK};
    ls_error_save_first(&cause, status);
    end_all(slices, &cause);
    return ls_error_put_back_first(&cause);
}
