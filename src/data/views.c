/* Data sets that share the samples of other data sets: parts of one data set, and concatenations of several. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "data/dataset.h"
#include "data/order.h"
#include "tensor/device.h"
#include "tensor/scope.h"

/* ---- parts ------------------------------------------------------------------------------------------------------- */

typedef struct part_state {
    ls_dataset *whole;
    int64_t first;
    int64_t *numbers; /* sample indices in the whole data set; NULL selects first, first + 1, ... */
} part_state;

static ls_status part_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const part_state *state = self->state;
    const size_t size = (size_t)samples->count * sizeof(int64_t);
    int64_t *numbers = ls_record_allocate(size);
    if (numbers == NULL) {
        return ls_fail_memory("ls_loader_next", size);
    }
    for (int64_t i = 0; i < samples->count; i++) {
        const int64_t index = samples->indices[i];
        numbers[i] = state->numbers != NULL ? state->numbers[index] : state->first + index;
    }
    ls_samples of_whole = *samples;
    of_whole.indices = numbers;
    const ls_status status = ls_dataset_fetch(state->whole, &of_whole, input, target);
    ls_record_release(numbers, size);
    return status;
}

static void part_free_state(ls_dataset *self) {
    part_state *state = self->state;
    ls_free(state->numbers);
    ls_dataset_drop(state->whole);
}

/*
 * Makes a part of the whole data set with `count` samples and the same transforms. Takes ownership of the reference to
 * the whole data set and of `numbers`, even on failure.
 */
static ls_dataset *part_of(ls_dataset *whole, int64_t first, int64_t *numbers, int64_t count) {
    static const ls_dataset_type type = {
        .name = "part", .state_size = sizeof(part_state), .fetch = part_fetch, .free_state = part_free_state};
    ls_dataset *part = ls_dataset_new(&type, count, &whole->raw);
    if (part == NULL) {
        ls_free(numbers);
        ls_dataset_drop(whole);
        return NULL;
    }
    part->layout = whole->layout;
    part->input = whole->input;
    part->target = whole->target;
    part->earlier_steps = whole->earlier_steps;
    part->serial = whole->serial;
    part->copies = whole->copies;
    part->guard = whole->guard;
    if (numbers == NULL && whole->storage.block > 0) {
        const int64_t block = whole->storage.block;
        part->storage = whole->storage;
        part->storage.first = ((whole->storage.first - first) % block + block) % block;
    }
    *(part_state *)part->state = (part_state){.whole = whole, .first = first, .numbers = numbers};
    return part;
}

ls_dataset *ls_dataset_subset(ls_dataset *dataset, int64_t first, int64_t count) {
    dataset = ls_dataset_take("ls_dataset_subset", dataset);
    if (dataset == NULL) {
        return NULL;
    }
    if (first < 0 || count < 0 || first > dataset->count || count > dataset->count - first) {
        (void)ls_fail(LS_ERR_ARGUMENT,
                      "ls_dataset_subset: cannot take %lld samples, starting at %lld, from a data set of %lld",
                      (long long)count, (long long)first, (long long)dataset->count);
        ls_dataset_drop(dataset);
        return NULL;
    }
    return part_of(dataset, first, NULL, count);
}

/* Copies sample indices, and checks that the samples exist. Returns NULL with an error. */
static int64_t *copy_numbers(const ls_dataset *dataset, const int64_t *indices, int64_t count) {
    if (count < 0 || (indices == NULL && count > 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_dataset_select: %lld indices%s", (long long)count,
                            indices == NULL ? " at NULL" : "");
    }
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= dataset->count) {
            return ls_fail_null(LS_ERR_ARGUMENT,
                                "ls_dataset_select: index %lld is %lld, but the data set has %lld samples",
                                (long long)i, (long long)indices[i], (long long)dataset->count);
        }
    }
    const size_t size = (size_t)count * sizeof *indices;
    int64_t *numbers = ls_allocate(size);
    if (numbers == NULL) {
        (void)ls_fail_memory("ls_dataset_select", size);
        return NULL;
    }
    if (size > 0) {
        memcpy(numbers, indices, size);
    }
    return numbers;
}

ls_dataset *ls_dataset_select(ls_dataset *dataset, const int64_t *indices, int64_t count) {
    dataset = ls_dataset_take("ls_dataset_select", dataset);
    int64_t *numbers = dataset != NULL ? copy_numbers(dataset, indices, count) : NULL;
    if (numbers == NULL) {
        ls_dataset_drop(dataset);
        return NULL;
    }
    return part_of(dataset, 0, numbers, count);
}

/* ---- random parts ------------------------------------------------------------------------------------------------ */

#define SPLIT_STREAM UINT64_MAX /* a stream of random numbers that no epoch of a loader uses */

static ls_status check_fractions(const double *fractions, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        if (!(fractions[i] >= 0 && fractions[i] <= 1)) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_dataset_split: fraction %d is %g: it must be between 0 and 1", i,
                           fractions[i]);
        }
        sum += fractions[i];
    }
    return sum >= 1 - 1e-9 && sum <= 1 + 1e-12 /* otherwise the parts might contain more samples than the whole */
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_dataset_split: the fractions add up to %.13g, but must add up to 1", sum);
}

/*
 * Returns the number of samples in a part: its fraction of the samples, rounded down. Each of the first parts also gets
 * one of the remaining samples.
 */
static int64_t part_size(int64_t samples, const double *fractions, int count, int part) {
    int64_t left = samples;
    for (int i = 0; i < count; i++) {
        left -= (int64_t)floor((double)samples * fractions[i]);
    }
    const int64_t extra = ls_share_of(left, count, part).count;
    return (int64_t)floor((double)samples * fractions[part]) + extra;
}

static ls_status split(ls_dataset *dataset, const double *fractions, int count, const int64_t *order,
                       ls_dataset **parts) {
    int64_t first = 0;
    for (int i = 0; i < count; i++) {
        const int64_t size = part_size(dataset->count, fractions, count, i);
        parts[i] = ls_dataset_select(dataset, order + first, size);
        if (parts[i] == NULL) {
            return ls_error_status();
        }
        first += size;
    }
    return LS_OK;
}

/* The caller holds a reference to the data set. */
static ls_status split_at_random(ls_dataset *dataset, const double *fractions, int count, uint64_t seed,
                                 ls_dataset **parts) {
    LS_TRY(check_fractions(fractions, count));
    const size_t size = (size_t)dataset->count * sizeof(int64_t);
    int64_t *order = ls_allocate(size);
    if (order == NULL) {
        return ls_fail_memory("ls_dataset_split", size);
    }
    ls_order_identity(order, dataset->count);
    ls_order_shuffle(order, dataset->count, seed, SPLIT_STREAM);
    const ls_status status = split(dataset, fractions, count, order, parts);
    ls_free(order);
    for (int i = 0; status != LS_OK && i < count; i++) {
        ls_dataset_free(parts[i]);
        parts[i] = NULL;
    }
    return status;
}

ls_status ls_dataset_split(ls_dataset *dataset, const double *fractions, int count, uint64_t seed, ls_dataset **parts) {
    for (int i = 0; parts != NULL && i < count; i++) {
        parts[i] = NULL;
    }
    dataset = ls_dataset_take("ls_dataset_split", dataset);
    if (dataset == NULL) {
        return ls_error_status();
    }
    const ls_status status = fractions != NULL && count > 0 && parts != NULL
                                 ? split_at_random(dataset, fractions, count, seed, parts)
                                 : ls_fail(LS_ERR_ARGUMENT,
                                           "ls_dataset_split: %d parts: at least one part is needed, and the fractions "
                                           "and the array of parts must not be NULL",
                                           count);
    ls_dataset_drop(dataset);
    return status;
}

/* ---- concatenation ----------------------------------------------------------------------------------------------- */

typedef struct concat_state {
    ls_dataset **parts;
    int count;
} concat_state;

/* Copies row i of `from` to row rows[i] of `to`. `number` is the index of the first sample in `from`. */
static ls_status put_rows(ls_tensor *to, const ls_tensor *from, const int64_t *rows, const char *which,
                          int64_t number) {
    LS_TRY(ls_batch_check("ls_dataset_concat", which, number, from, ls_sample_shape(to), (ls_dtype)to->dtype));
    ls_tensor *dense = ls_tensor_dense("ls_dataset_concat", from, (ls_dtype)from->dtype);
    if (dense == NULL) {
        return ls_error_status();
    }
    const size_t row = (size_t)(dense->count / dense->size[0]) * ls_dtype_size((ls_dtype)dense->dtype);
    for (int64_t i = 0; i < dense->size[0]; i++) {
        memcpy((char *)ls_host_data(to) + (size_t)rows[i] * row, (const char *)ls_host_data(dense) + (size_t)i * row,
               row);
    }
    ls_tensor_drop(dense);
    return LS_OK;
}

/*
 * Fetches the samples of a batch that belong to one part. `first` is the index of the part's first sample in the
 * concatenation. `scratch` has room for three numbers per sample.
 */
static ls_status fetch_part(ls_dataset *part, int64_t first, const ls_samples *samples, int64_t *scratch,
                            ls_tensor *input, ls_tensor *target) {
    int64_t *rows = scratch, *numbers = rows + samples->count, *places = numbers + samples->count;
    int64_t found = 0;
    for (int64_t i = 0; i < samples->count; i++) {
        if (samples->indices[i] >= first && samples->indices[i] - first < part->count) {
            rows[found] = i;
            places[found] = samples->places[i];
            numbers[found++] = samples->indices[i] - first;
        }
    }
    if (found == 0) {
        return LS_OK;
    }
    ls_samples of_part = *samples;
    of_part.indices = numbers;
    of_part.places = places;
    of_part.count = found;
    ls_tensor *batch_input = NULL;
    ls_tensor *batch_target = NULL;
    LS_TRY(ls_dataset_batch(part, &of_part, &batch_input, &batch_target));
    ls_status status = put_rows(input, batch_input, rows, "input", first + numbers[0]);
    if (status == LS_OK) {
        status = put_rows(target, batch_target, rows, "target", first + numbers[0]);
    }
    ls_tensor_drop(batch_input);
    ls_tensor_drop(batch_target);
    return status;
}

static ls_status concat_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const concat_state *state = self->state;
    const size_t size = 3 * (size_t)samples->count * sizeof(int64_t);
    int64_t *scratch = ls_record_allocate(size);
    if (scratch == NULL) {
        return ls_fail_memory("ls_loader_next", size);
    }
    ls_status status = LS_OK;
    int64_t first = 0;
    for (int i = 0; status == LS_OK && i < state->count; i++) {
        status = fetch_part(state->parts[i], first, samples, scratch, input, target);
        first += state->parts[i]->count;
    }
    ls_record_release(scratch, size);
    return status;
}

static void concat_free_state(ls_dataset *self) {
    concat_state *state = self->state;
    for (int i = 0; i < state->count; i++) {
        ls_dataset_drop(state->parts[i]);
    }
    ls_free(state->parts);
}

static ls_status compare_samples(int part, int other, const char *which, ls_shape a, ls_dtype a_dtype, ls_shape b,
                                 ls_dtype b_dtype) {
    if (a_dtype == b_dtype && ls_shape_equal(&a, &b)) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_SHAPE,
                   "ls_dataset_concat: the %ss of data set %d are %s of %s, but in data set %d they are %s of %s",
                   which, other, ls_shape_describe(b.ndim, b.size).text, ls_dtype_name(b_dtype), part,
                   ls_shape_describe(a.ndim, a.size).text, ls_dtype_name(a_dtype));
}

/* Determines the common layout of the samples. A part without samples fits any layout. */
static ls_status find_layout(ls_dataset *const *parts, int count, ls_sample_layout *layout) {
    int like = -1;
    *layout = parts[0]->layout;
    for (int i = 0; i < count; i++) {
        const ls_sample_layout *own = &parts[i]->layout;
        if (parts[i]->count == 0) {
            continue;
        }
        if (like < 0) {
            like = i;
            *layout = *own;
        }
        LS_TRY(compare_samples(i, like, "input", own->input_shape, own->input_dtype, layout->input_shape,
                               layout->input_dtype));
        LS_TRY(compare_samples(i, like, "target", own->target_shape, own->target_dtype, layout->target_shape,
                               layout->target_dtype));
    }
    return LS_OK;
}

/* The new data set takes ownership of the references to the parts. */
static ls_dataset *concat(ls_dataset *const *parts, int count) {
    static const ls_dataset_type type = {.name = "concatenation",
                                         .state_size = sizeof(concat_state),
                                         .fetch = concat_fetch,
                                         .free_state = concat_free_state};
    ls_sample_layout layout;
    int64_t samples = 0;
    for (int i = 0; i < count; i++) {
        if (__builtin_add_overflow(samples, parts[i]->count, &samples)) {
            return ls_fail_null(LS_ERR_ARGUMENT,
                                "ls_dataset_concat: the %d data sets have more samples than int64_t can count", count);
        }
    }
    if (find_layout(parts, count, &layout) != LS_OK) {
        return NULL;
    }
    const size_t size = (size_t)count * sizeof *parts;
    ls_dataset **kept = ls_allocate(size);
    ls_dataset *dataset = kept != NULL ? ls_dataset_new(&type, samples, &layout) : NULL;
    if (dataset == NULL) {
        (void)(kept == NULL ? ls_fail_memory("ls_dataset_concat", size) : LS_OK);
        ls_free(kept);
        return NULL;
    }
    dataset->serial = false;
    for (int i = 0; i < count; i++) {
        dataset->serial = dataset->serial || parts[i]->serial;
        const int steps = parts[i]->earlier_steps + parts[i]->input.count;
        dataset->earlier_steps = steps > dataset->earlier_steps ? steps : dataset->earlier_steps;
    }
    memcpy(kept, parts, size);
    *(concat_state *)dataset->state = (concat_state){.parts = kept, .count = count};
    return dataset;
}

ls_dataset *ls_dataset_concat_of(ls_dataset *const *datasets, int count) {
    if (datasets == NULL || count < 1) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_dataset_concat: %d data sets%s", count,
                            datasets == NULL ? " at NULL" : "");
    }
    int missing = -1;
    for (int i = 0; i < count; i++) {
        missing = ls_dataset_take("ls_dataset_concat", datasets[i]) == NULL && missing < 0 ? i : missing;
    }
    ls_dataset *dataset = NULL;
    if (missing < 0) {
        dataset = concat(datasets, count);
    } else {
        (void)ls_fail_missing("ls_dataset_concat: data set %d", missing);
    }
    for (int i = 0; dataset == NULL && i < count; i++) {
        ls_dataset_drop(datasets[i]);
    }
    return dataset;
}
