/*
 * The outputs of all ranks in the order of the data set. Each rank stores its rows with a key for each row: the
 * sample's index or, if the loader has no data set, the batch's index. At the end, the receiving ranks gather rows and
 * keys, and sort the rows. Ranks may have the same samples, for example with tensor parallelism. Hashes show this, and
 * only the lowest of these ranks sends its rows.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/public_call.h"
#include "data/loader.h"
#include "nn/module.h"
#include "parallel/parallel.h"
#include "parallel/pipeline.h"
#include "tensor/device.h"
#include "tensor/tensor.h"
#include "train/agree.h"
#include "train/pass.h"

/* The rows of a rank: their format, and the hashes of samples and outputs. */
typedef struct outline {
    int64_t count; /* number of rows; if 0, the other fields are not set */
    int64_t samples;
    int64_t outputs;
    int64_t of_dataset; /* the loader has a data set */
    int64_t dtype;
    int64_t ndim;
    int64_t size[LS_MAX_DIMS]; /* sizes of a batch, without the first axis */
} outline;

struct ls_prediction {
    char *rows;
    int64_t *places;
    int64_t room;    /* capacity in rows */
    size_t row_size; /* bytes */
    outline own;
};

typedef struct place {
    int64_t place;
    int64_t row;
} place;

/* ---- on each rank ------------------------------------------------------------------------------------------------ */

static ls_status no_room(int64_t rows, size_t row_size) {
    return ls_fail_memory("ls_trial_predict", (size_t)rows * (row_size + sizeof(int64_t)));
}

static ls_status make_room(ls_prediction *self, int64_t count) {
    const int64_t needed = self->own.count + count;
    if (needed <= self->room) {
        return LS_OK;
    }
    const size_t before = (size_t)self->room, after = (size_t)(2 * self->room > needed ? 2 * self->room : needed);
    char *rows = ls_reallocate(self->rows, before * self->row_size, after * self->row_size);
    self->rows = rows != NULL ? rows : self->rows;
    int64_t *places = ls_reallocate(self->places, before * sizeof *places, after * sizeof *places);
    self->places = places != NULL ? places : self->places;
    if (rows == NULL || places == NULL) {
        return no_room((int64_t)after, self->row_size);
    }
    self->room = (int64_t)after;
    return LS_OK;
}

static outline outline_of(const ls_tensor *output) {
    const ls_shape shape = ls_shape_of(output);
    outline result = {.dtype = (int64_t)ls_dtype_of(output), .ndim = shape.ndim};
    for (int i = 1; i < shape.ndim; i++) {
        result.size[i] = shape.size[i];
    }
    return result;
}

static bool alike(const outline *a, const outline *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->size, b->size, sizeof a->size) == 0;
}

static ls_status check_rows(ls_prediction *self, const ls_tensor *output, int64_t count) {
    if (ls_ndim(output) < 1 || ls_size(output, 0) != count) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_trial_predict: the model returned %s for %lld samples: it must have one row per sample",
                       LS_SHAPE_TEXT(output), (long long)count);
    }
    if (self->own.count == 0) {
        self->own = outline_of(output);
        self->row_size = (size_t)(ls_numel(output) / count) * ls_dtype_size(ls_dtype_of(output));
    }
    const outline next = outline_of(output);
    return alike(&self->own, &next)
               ? LS_OK
               : ls_fail(LS_ERR_SHAPE,
                         "ls_trial_predict: outputs %s (%s) do not match the outputs of earlier batches: "
                         "only the size of the first axis may differ",
                         LS_SHAPE_TEXT(output), ls_dtype_name(ls_dtype_of(output)));
}

static int64_t hash_more(int64_t hash, const void *bytes, size_t size) {
    return (int64_t)ls_hash_long(hash != 0 ? (uint64_t)hash : LS_HASH_START, bytes, size);
}

/*
 * Adds the last `count` rows to the hashes. The stages of a pipeline may have any input: the outputs show whether their
 * samples are the same.
 */
static ls_status add_to_hashes(ls_prediction *self, const ls_trial_state *state) {
    const int64_t count = state->count, before = self->own.count - count;
    uint64_t hash = LS_HASH_START;
    LS_TRY(ls_hash_elements("ls_trial_predict", state->model->type == &ls_pipeline_type ? state->output : state->input,
                            &hash));
    self->own.samples = hash_more(self->own.samples, &hash, sizeof hash);
    self->own.samples = hash_more(self->own.samples, self->places + before, (size_t)count * sizeof *self->places);
    self->own.outputs =
        hash_more(self->own.outputs, self->rows + (size_t)before * self->row_size, (size_t)count * self->row_size);
    return LS_OK;
}

static ls_status add_rows(ls_trial *trial) {
    ls_prediction *self = trial->prediction;
    const ls_trial_state *state = &trial->state;
    LS_TRY(check_rows(self, state->output, state->count));
    LS_TRY(make_room(self, state->count));
    ls_tensor *rows = ls_tensor_dense_on_host("ls_trial_predict", state->output, ls_dtype_of(state->output));
    LS_TRY(ls_made(rows));
    memcpy(self->rows + (size_t)self->own.count * self->row_size, ls_host_data(rows),
           (size_t)state->count * self->row_size);
    ls_tensor_drop(rows);
    const int64_t *samples = ls_loader_samples(state->loader);
    const int64_t before = state->first - trial->batch->first; /* samples in earlier slices of this rank */
    for (int64_t i = 0; i < state->count; i++) {
        self->places[self->own.count++] = samples != NULL ? samples[before + i] : state->batch;
    }
    self->own.of_dataset = samples != NULL;
    const int ranks = ls_trial_size(state);
    return ranks == 1 || ls_loader_ranks(state->loader) == ranks ? LS_OK : add_to_hashes(self, state);
}

static ls_status prediction_step(ls_trial *trial) {
    trial->state.target = NULL;
    LS_TRY(ls_trial_forward(trial));
    LS_TRY(trial->state.count > 0 ? add_rows(trial) : LS_OK);
    return LS_CALL(trial, on_step_validation);
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

static bool has_same_samples(const outline *a, const outline *b) {
    return a->count == b->count && a->samples != 0 && a->samples == b->samples;
}

/*
 * Sets the count of each rank to 0 that has the same samples and outputs as a lower rank. Without a data set, different
 * outputs are the rows of different ranks. Every rank gets the same result.
 */
static ls_status drop_replicas(outline *outlines, int ranks) {
    for (int i = 1; i < ranks; i++) {
        for (int lower = 0; lower < i && outlines[i].count > 0; lower++) {
            const bool same = has_same_samples(&outlines[i], &outlines[lower]);
            const bool equal = same && outlines[i].outputs == outlines[lower].outputs;
            if (same && !equal && outlines[i].of_dataset) {
                return ls_fail(LS_ERR_MISMATCH,
                               "ls_trial_predict: ranks %d and %d have the same samples, but different outputs: if "
                               "their models are separate, give each trial a .comm of one rank (ls_comm_split); if the "
                               "outputs are shards, end the model with ls_nn_gather_parallel",
                               lower, i);
            }
            outlines[i].count = equal ? 0 : outlines[i].count;
        }
    }
    return LS_OK;
}

/* Combines the formats of all ranks into `whole`. Every rank checks all formats, so all ranks get the same error. */
static ls_status join_outlines(const outline *outlines, int ranks, outline *whole) {
    *whole = (outline){.count = 0};
    for (int i = 0; i < ranks; i++) {
        const outline *next = &outlines[i];
        if (next->count > 0 && whole->count > 0 && !alike(next, whole)) {
            return ls_fail(
                LS_ERR_SHAPE,
                "ls_trial_predict: outputs of rank %d do not match the outputs of lower ranks: only the size "
                "of the first axis may differ",
                i);
        }
        const int64_t count = whole->count;
        *whole = next->count > 0 ? *next : *whole;
        whole->count = count + next->count;
    }
    return LS_OK;
}

static ls_status gather(ls_comm *comm, const void *send, size_t size, const outline *outlines, void *receive,
                        bool all) {
    const int ranks = ls_comm_size(comm);
    size_t *counts = ls_allocate((size_t)ranks * sizeof *counts);
    if (counts == NULL) {
        return ls_fail_memory("ls_trial_predict", (size_t)ranks * sizeof *counts);
    }
    for (int i = 0; i < ranks; i++) {
        counts[i] = (size_t)outlines[i].count * size;
    }
    const ls_status status =
        all ? ls_comm_allgatherv(comm, send, receive, counts, NULL, LS_U8, NULL)
            : ls_comm_gatherv(comm, send, counts[ls_comm_rank(comm)], receive, counts, NULL, LS_U8, 0, NULL);
    ls_free(counts);
    return status;
}

static int compare_places(const void *a, const void *b) {
    const place *x = a, *y = b;
    const bool same = x->place == y->place;
    return same ? (x->row > y->row) - (x->row < y->row) : (x->place > y->place) - (x->place < y->place);
}

/* Returns a tensor of all rows, sorted by their keys. Rows with equal keys keep their order. */
static ls_status put_in_order(const outline *whole, const char *rows, const int64_t *places, size_t row_size,
                              ls_tensor **outputs) {
    ls_shape shape = {.ndim = whole->ndim > 0 ? (int)whole->ndim : 1, .size = {whole->count}};
    for (int i = 1; i < shape.ndim; i++) {
        shape.size[i] = whole->size[i];
    }
    place *order = ls_allocate((size_t)whole->count * sizeof *order);
    ls_tensor *result = ls_tensor_new("ls_trial_predict", &ls_cpu, shape.ndim, shape.size, (ls_dtype)whole->dtype);
    if (order == NULL || result == NULL) {
        ls_free(order);
        return result == NULL ? ls_error_status() : no_room(whole->count, sizeof *order);
    }
    for (int64_t i = 0; i < whole->count; i++) {
        order[i] = (place){.place = places[i], .row = i};
    }
    qsort(order, (size_t)whole->count, sizeof *order, compare_places);
    char *memory = ls_host_data(result);
    for (int64_t i = 0; i < whole->count; i++) {
        memcpy(memory + (size_t)i * row_size, rows + (size_t)order[i].row * row_size, row_size);
    }
    ls_free(order);
    *outputs = result;
    return LS_OK;
}

static ls_status collect_from(ls_comm *comm, const ls_prediction *self, outline *outlines, bool all,
                              ls_tensor **outputs) {
    outline whole;
    LS_TRY(drop_replicas(outlines, ls_comm_size(comm)));
    LS_TRY(join_outlines(outlines, ls_comm_size(comm), &whole));
    size_t row_size = ls_dtype_size((ls_dtype)whole.dtype);
    for (int i = 1; i < whole.ndim; i++) {
        row_size *= (size_t)whole.size[i];
    }
    const bool receives = all || ls_comm_rank(comm) == 0;
    char *rows = receives ? ls_allocate((size_t)whole.count * row_size) : NULL;
    int64_t *places = receives ? ls_allocate((size_t)whole.count * sizeof *places) : NULL;
    ls_status status = LS_OK;
    if (receives && (rows == NULL || places == NULL)) {
        status = no_room(whole.count, row_size);
    }
    if (status == LS_OK) {
        status = gather(comm, self->rows, row_size, outlines, rows, all);
    }
    if (status == LS_OK) {
        status = gather(comm, self->places, sizeof *places, outlines, places, all);
    }
    if (status == LS_OK && receives) {
        status = put_in_order(&whole, rows, places, row_size, outputs);
    }
    ls_free(rows);
    ls_free(places);
    return status;
}

static ls_status collect(ls_comm *comm, const ls_prediction *self, bool all, ls_tensor **outputs) {
    if (ls_comm_size(comm) <= 1) {
        return put_in_order(&self->own, self->rows, self->places, self->row_size, outputs);
    }
    const size_t words = sizeof(outline) / sizeof(int64_t);
    outline *outlines = ls_allocate((size_t)ls_comm_size(comm) * sizeof *outlines);
    if (outlines == NULL) {
        return no_room(ls_comm_size(comm), sizeof *outlines);
    }
    ls_status status = ls_comm_allgather(comm, &self->own, outlines, words, LS_I64, NULL);
    if (status == LS_OK) {
        status = collect_from(comm, self, outlines, all, outputs);
    }
    ls_free(outlines);
    return status;
}

ls_status ls_trial_predict(ls_trial *trial, ls_loader *loader, bool on_all_ranks, ls_tensor **outputs) {
    if (trial == NULL || loader == NULL || outputs == NULL) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_predict: the trial, the loader or the pointer to the outputs is NULL");
    }
    *outputs = NULL;
    LS_TRY(ls_trial_check_here("ls_trial_predict", trial));
    if (trial->prediction != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_trial_predict: called by a hook of another prediction of this trial");
    }
    const ls_trial_pass pass = {.loader = loader,
                                .phase = LS_PHASE_PREDICTION,
                                .steps = trial->options.evaluate_steps,
                                .step = prediction_step,
                                .label = "predict"};
    ls_prediction prediction = {.rows = NULL};
    trial->prediction = &prediction;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_PREDICT);
    ls_status status = ls_trial_evaluation_pass(trial, &pass);
    trial->prediction = NULL;
    if (status == LS_OK) {
        status = collect(trial->state.comm, &prediction, on_all_ranks, outputs);
        /* In a hook, the agreement of the run follows later. */
        status = ls_trial_is_busy(trial) ? status : ls_trial_agree_at_end(trial, status);
    }
    ls_free(prediction.rows);
    ls_free(prediction.places);
    return ls_public_end(outer, status);
}
