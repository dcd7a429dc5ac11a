/* Data sets from HDF5 and NetCDF files: copies rows of cached blocks into batches. */
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "data/blocks.h"
#include "data/dataset.h"
#include "tensor/device.h"

enum { DEFAULT_CACHE = 64 << 20 };

/* The input or target of a sample. */
typedef struct sample_field {
    int64_t first, steps; /* at least 1 step */
    int count;
    int *variables; /* indices of the variables in `blocks` */
} sample_field;

typedef struct arrays_state {
    ls_array_file file;
    sample_field fields[2];
    ls_blocks *blocks;
    int block_count;
    int64_t stride;
    bool has_lock;
    pthread_mutex_t lock; /* protects the caches */
} arrays_state;

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Copies the steps of one variable of one sample. */
static ls_status copy_steps(ls_blocks *blocks, int64_t row, int64_t steps, char *to) {
    for (int64_t i = 0; i < steps; i++) {
        const void *from = NULL;
        LS_TRY(ls_blocks_row(blocks, row + i, &from));
        memcpy(to + (size_t)i * blocks->row_bytes, from, blocks->row_bytes);
    }
    return LS_OK;
}

static ls_status copy_field(const arrays_state *state, const sample_field *f, const ls_samples *samples,
                            ls_tensor *batch) {
    const size_t size =
        (size_t)f->steps * state->blocks[f->variables[0]].row_bytes; /* bytes of a variable in a sample */
    for (int i = 0; i < f->count; i++) {
        ls_blocks *blocks = &state->blocks[f->variables[i]];
        for (int64_t at = 0; at < samples->count; at++) {
            char *to = (char *)ls_host_data(batch) + (size_t)(at * f->count + i) * size;
            LS_TRY(copy_steps(blocks, samples->indices[at] * state->stride + f->first, f->steps, to));
        }
    }
    return LS_OK;
}

static ls_status arrays_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    arrays_state *state = self->state;
    if (ls_array_file_is_inherited(&state->file)) { /* another thread may have held the lock during the fork */
        return ls_fail(LS_ERR_STATE,
                       "ls_loader_next: %s was opened by process %lld, the parent of this process: create the data set "
                       "after ls_spawn or fork",
                       state->file.path, (long long)state->file.process);
    }
    (void)pthread_mutex_lock(&state->lock);
    ls_status status = copy_field(state, &state->fields[0], samples, input);
    status = status == LS_OK ? copy_field(state, &state->fields[1], samples, target) : status;
    (void)pthread_mutex_unlock(&state->lock);
    return status;
}

static void free_arrays(arrays_state *state) {
    for (int i = 0; i < state->block_count; i++) {
        ls_blocks_close(&state->blocks[i]);
    }
    ls_array_file_close(&state->file);
    ls_free(state->blocks);
    ls_free(state->fields[0].variables);
    ls_free(state->fields[1].variables);
    if (state->has_lock) {
        (void)pthread_mutex_destroy(&state->lock);
    }
}

static void arrays_free_state(ls_dataset *self) {
    free_arrays(self->state);
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static ls_status check_field(const char *call, const char *which, const ls_array_field *given) {
    if (given->variables == NULL || given->variable_count < 1) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: no variable is specified for the %s; set .%s.%s", call, which, which,
                       given->variables == NULL ? "variables" : "variable_count to the number of variables");
    }
    return given->first >= 0 && given->steps >= 0 && given->first < INT64_MAX / 4 && given->steps < INT64_MAX / 4
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: .first is %lld and .steps is %lld for the %s: both must be 0 or more",
                         call, (long long)given->first, (long long)given->steps, which);
}

static ls_status check_options(const char *call, const ls_array_options *options) {
    if (options == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the options are NULL, but must name the variables", call);
    }
    LS_TRY(check_field(call, "input", &options->input));
    LS_TRY(check_field(call, "target", &options->target));
    return options->stride >= 0 && options->cache_bytes >= 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: .stride and .cache_bytes must be 0 or more", call);
}

/* Returns the index of an open variable with the same elements, or -1 if no variable matches. */
static int find_open_variable(const arrays_state *state, const ls_blocks *like) {
    for (int i = 0; i < state->block_count; i++) {
        const ls_blocks *b = &state->blocks[i];
        if (strcmp(b->name, like->name) == 0 && b->dtype == like->dtype &&
            memcmp(b->start, like->start, sizeof b->start) == 0 &&
            memcmp(b->extent, like->extent, sizeof b->extent) == 0) {
            return i;
        }
    }
    return -1;
}

/* Compares a new variable with the first variable of the file and with the first variable of its field. */
static ls_status check_same_layout(const arrays_state *state, const ls_blocks *first, const ls_blocks *b) {
    const ls_blocks *any = &state->blocks[0];
    if (b->rows != any->rows) {
        return ls_fail(
            LS_ERR_SHAPE, "%s: variable \"%s\" of %s has %lld steps along axis %d, but variable \"%s\" has %lld",
            b->file->call, b->name, b->file->path, (long long)b->rows, b->axis, any->name, (long long)any->rows);
    }
    const ls_shape slab = ls_blocks_slab(b), other = ls_blocks_slab(first);
    if (!ls_shape_equal(&slab, &other)) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: variables of the same field must have slabs of the same shape, but a step of \"%s\" is %s, "
                       "and a step of \"%s\" is %s: set .offset and .extent",
                       b->file->call, b->name, ls_shape_describe(slab.ndim, slab.size).text, first->name,
                       ls_shape_describe(other.ndim, other.size).text);
    }
    return LS_OK;
}

static ls_status add_variable(arrays_state *state, const ls_array_field *given, const ls_array_options *options,
                              sample_field *f) {
    ls_blocks *b = &state->blocks[state->block_count];
    ls_status status = ls_blocks_open(&state->file, given->variables[f->count], given, options, b);
    const int same = status == LS_OK ? find_open_variable(state, b) : -1;
    f->variables[f->count] = same >= 0 ? same : state->block_count;
    if (status == LS_OK) {
        status = check_same_layout(state, &state->blocks[f->variables[0]], b);
    }
    if (status == LS_OK) {
        f->count++;
    }
    if (status == LS_OK && same < 0) {
        state->block_count++;
    } else {
        ls_blocks_close(b);
    }
    return status;
}

static ls_status open_field(arrays_state *state, const ls_array_field *given, const ls_array_options *options,
                            sample_field *f) {
    const size_t size = (size_t)given->variable_count * sizeof *f->variables;
    f->first = given->first;
    f->steps = given->steps > 0 ? given->steps : 1;
    f->variables = ls_allocate(size);
    if (f->variables == NULL) {
        return ls_fail_memory(state->file.call, size);
    }
    for (int i = 0; i < given->variable_count; i++) {
        LS_TRY(add_variable(state, given, options, f));
    }
    return LS_OK;
}

/* Returns the shape of a sample's input or target: [variables, steps, slab...]. */
static ls_status shape_of(const arrays_state *state, const ls_array_field *given, const sample_field *f,
                          ls_shape *shape) {
    const ls_shape slab = ls_blocks_slab(&state->blocks[f->variables[0]]);
    const int extra = (given->variable_count > 1) + (given->steps > 0);
    if (slab.ndim + extra >= LS_MAX_DIMS) {
        return ls_fail(LS_ERR_SHAPE, "%s: a batch of variable \"%s\" would have %d axes, but the limit is %d",
                       state->file.call, given->variables[0], slab.ndim + extra + 1, LS_MAX_DIMS);
    }
    *shape = (ls_shape){.ndim = extra + slab.ndim};
    if (given->variable_count > 1) {
        shape->size[0] = given->variable_count;
    }
    if (given->steps > 0) {
        shape->size[extra - 1] = given->steps;
    }
    memcpy(shape->size + extra, slab.size, (size_t)slab.ndim * sizeof *slab.size);
    return LS_OK;
}

/* Returns the length of the run of consecutive steps that covers all steps of one sample. */
static int64_t sample_span(const arrays_state *state) {
    const sample_field *f = state->fields;
    const int64_t ends[] = {f[0].first + f[0].steps, f[1].first + f[1].steps};
    return ends[0] > ends[1] ? ends[0] : ends[1];
}

static ls_status count_samples(const arrays_state *state, int64_t *count) {
    const int64_t needed = sample_span(state), rows = state->blocks[0].rows;
    if (rows < needed) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s has %lld steps along axis %d, but a sample needs %lld",
                       state->file.call, state->file.path, (long long)rows, state->blocks[0].axis, (long long)needed);
    }
    *count = (rows - needed) / state->stride + 1;
    return LS_OK;
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Returns the largest number of blocks that `rows` rows of a variable can touch if the first row is a multiple of
   `step`. */
static int64_t count_blocks(const ls_blocks *b, int64_t step, int64_t rows) {
    const int64_t last_begin = b->block_rows - greatest_divisor(b->block_rows, step); /* in a block */
    const int64_t count = (last_begin + rows - 1) / b->block_rows + 1;
    return count < b->block_count ? count : b->block_count;
}

/* Returns the variable with the most bytes per step. Its blocks are the blocks of the data set. */
static const ls_blocks *largest(const arrays_state *state) {
    const ls_blocks *found = &state->blocks[0];
    for (int i = 1; i < state->block_count; i++) {
        found = state->blocks[i].row_bytes > found->row_bytes ? &state->blocks[i] : found;
    }
    return found;
}

/* Returns how many blocks of this variable must be in memory for one block of the largest variable. */
static int64_t blocks_for_one(const arrays_state *state, const ls_blocks *b) {
    const int64_t rows = largest(state)->block_rows;
    return count_blocks(b, rows, rows);
}

/*
 * Sets the number of samples per block of the data set. Returns how many blocks of the largest variable these samples
 * need. With a stride that does not divide the variable's blocks, several of them become one block of the data set.
 */
static int64_t set_block(const arrays_state *state, ls_sample_storage *storage) {
    enum { MOST_JOINED = 8 };
    const ls_blocks *b = largest(state);
    const int64_t divisor = greatest_divisor(b->block_rows, state->stride);
    const bool joined = state->stride < b->block_rows && state->stride / divisor <= MOST_JOINED;
    storage->block = joined                          ? b->block_rows / divisor
                     : b->block_rows > state->stride ? b->block_rows / state->stride
                                                     : 1;
    const int64_t rows = (storage->block - 1) * state->stride + sample_span(state);
    return count_blocks(b, storage->block * state->stride, rows);
}

/* Divides the cache memory among the variables, and sets the number of blocks of samples that fit. */
static ls_status reserve(const arrays_state *state, int64_t cache_bytes, ls_sample_storage *storage) {
    const int64_t needed = set_block(state, storage);
    double least = 0; /* bytes for one block of the largest variable; may exceed INT64_MAX */
    for (int i = 0; i < state->block_count; i++) {
        const ls_blocks *b = &state->blocks[i];
        least += (double)b->row_bytes * (double)b->block_rows * (double)blocks_for_one(state, b);
    }
    if (cache_bytes > 0 && (double)cache_bytes < least) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "%s: .cache_bytes is %lld, but one block of each variable of %s has %.0f bytes: set .cache_bytes "
            "to at least twice this size",
            state->file.call, (long long)cache_bytes, state->file.path, least);
    }
    const double two = 2 * (double)needed * least, usual = two > DEFAULT_CACHE ? two : DEFAULT_CACHE;
    const double most = (cache_bytes > 0 ? (double)cache_bytes : usual) / least;
    storage->cached = INT64_MAX;
    for (int i = 0; i < state->block_count; i++) {
        ls_blocks *b = &state->blocks[i];
        const int64_t each = blocks_for_one(state, b);
        const double slots = most * (double)each;
        LS_TRY(ls_blocks_reserve(b, slots < (double)b->block_count ? (int64_t)slots : b->block_count));
        const int64_t held = b->slot_count / each / needed;
        storage->cached = b->slot_count < b->block_count && held < storage->cached ? held : storage->cached;
    }
    return LS_OK;
}

static ls_status open_arrays(arrays_state *state, const ls_array_options *options, ls_sample_layout *layout) {
    state->stride = options->stride > 0 ? options->stride : 1;
    const size_t variables = (size_t)options->input.variable_count + (size_t)options->target.variable_count;
    state->blocks = ls_allocate_zeroed(variables, sizeof *state->blocks);
    if (state->blocks == NULL) {
        return ls_fail_memory(state->file.call, variables * sizeof *state->blocks);
    }
    LS_TRY(open_field(state, &options->input, options, &state->fields[0]));
    LS_TRY(open_field(state, &options->target, options, &state->fields[1]));
    *layout = (ls_sample_layout){.input_dtype = options->input.dtype, .target_dtype = options->target.dtype};
    LS_TRY(shape_of(state, &options->input, &state->fields[0], &layout->input_shape));
    return shape_of(state, &options->target, &state->fields[1], &layout->target_shape);
}

static ls_dataset *new_dataset(const char *call, ls_array_library library, const char *path,
                               const ls_array_options *options) {
    static const ls_dataset_type type = {
        .name = "arrays", .state_size = sizeof(arrays_state), .fetch = arrays_fetch, .free_state = arrays_free_state};
    ls_sample_layout layout;
    int64_t count = 0;
    if (check_options(call, options) != LS_OK) {
        return NULL;
    }
    /* The blocks keep the address of the file, so the state is built in place. */
    ls_dataset *dataset = ls_dataset_new(&type, 0, &(ls_sample_layout){0});
    if (dataset == NULL) {
        return NULL;
    }
    arrays_state *state = dataset->state;
    (void)pthread_mutex_init(&state->lock, NULL);
    state->has_lock = true;
    if (ls_array_file_open(call, library, path, &state->file) != LS_OK ||
        open_arrays(state, options, &layout) != LS_OK || count_samples(state, &count) != LS_OK ||
        reserve(state, options->cache_bytes, &dataset->storage) != LS_OK) {
        ls_dataset_free(dataset);
        return NULL;
    }
    dataset->count = count;
    dataset->raw = dataset->layout = layout;
    dataset->serial = false;
    dataset->copies = true;
    return dataset;
}

ls_dataset *ls_hdf5_dataset(const char *path, const ls_array_options *options) {
    return new_dataset("ls_hdf5_dataset", LS_ARRAY_HDF5, path, options);
}

ls_dataset *ls_netcdf_dataset(const char *path, const ls_array_options *options) {
    return new_dataset("ls_netcdf_dataset", LS_ARRAY_NETCDF, path, options);
}
