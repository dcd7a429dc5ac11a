/* Files of tokens of one, two or four bytes: windows of tokens, read on demand. */
#include <string.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "formats/file.h"
#include "tensor/device.h"

static const char call[] = "ls_tokens_dataset";

typedef struct tokens_state {
    char *path;
    ls_source source;
    char *bytes; /* inflated contents of a gzipped file; the size of `source` is then their size. NULL if tokens are
                    read from `source` */
    int64_t context, stride, skip;
    size_t width;
} tokens_state;

static int64_t token_at(const char *bytes, int64_t index, size_t width) {
    uint32_t token = 0;
    memcpy(&token, bytes + (size_t)index * width, width);
    return token;
}

/*
 * Reads the bytes of a sample into its row of the targets: context + 1 tokens of at most 4 bytes fit, because the row
 * holds `context` elements of 8 bytes. Then fills the row of the inputs, and the row of the targets from its end, so
 * that no token overwrites bytes that are still to be read.
 */
static ls_status tokens_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const tokens_state *state = self->state;
    const int64_t context = state->context;
    for (int64_t i = 0; i < samples->count; i++) {
        int64_t *now = (int64_t *)ls_host_data(input) + i * context,
                *next = (int64_t *)ls_host_data(target) + i * context;
        const char *bytes = (const char *)next;
        const size_t first = (size_t)state->skip + (size_t)(samples->indices[i] * state->stride) * state->width;
        const size_t size = (size_t)(context + 1) * state->width;
        if (state->bytes != NULL) {
            memcpy(next, state->bytes + first, size);
        } else {
            LS_TRY(ls_source_read_at(&state->source, first, next, size));
        }
        for (int64_t at = 0; at < context; at++) {
            now[at] = token_at(bytes, at, state->width);
        }
        for (int64_t at = context; at-- > 0;) {
            next[at] = token_at(bytes, at + 1, state->width);
        }
    }
    return LS_OK;
}

static void tokens_free_state(ls_dataset *self) {
    tokens_state *state = self->state;
    if (state->path != NULL) {
        ls_source_close(&state->source);
        ls_free(state->path);
        ls_free(state->bytes);
    }
}

static ls_status check_options(const ls_tokens_options *options) {
    if (options == NULL || options->context < 1 || options->stride < 0 || options->skip_bytes < 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: the context must be at least 1 token, and stride and skip_bytes must not be negative",
                       call);
    }
    return options->width == 0 || options->width == 1 || options->width == 2 || options->width == 4
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: tokens have %d bytes, but must have 1, 2 or 4", call, options->width);
}

/* Computes the number of samples in the file. */
static ls_status count_samples(const tokens_state *state, int64_t *count) {
    const ls_source *source = &state->source;
    const int64_t size = (int64_t)source->size - state->skip, width = (int64_t)state->width;
    if (size >= 0 && size % width != 0) {
        return ls_fail(LS_ERR_FORMAT,
                       "%s: %s has %zu bytes: after the first %lld, the number of remaining bytes is not a multiple of "
                       "%lld, the size of a token",
                       call, source->path, source->size, (long long)state->skip, (long long)width);
    }
    const int64_t tokens = size / width;
    if (tokens <= state->context) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s has %zu bytes (%lld tokens), but a sample needs %lld + 1 tokens", call,
                       source->path, source->size, tokens > 0 ? (long long)tokens : 0LL, (long long)state->context);
    }
    *count = (tokens - 1 - state->context) / state->stride + 1;
    return LS_OK;
}

/* Checks the file name. The contents cannot tell: tokens may contain any bytes, including gzip's magic number. */
static bool is_gzipped(const char *path) {
    const size_t length = path != NULL ? strlen(path) : 0;
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

/* Reads all bytes of the source. */
static ls_status inflate_all(tokens_state *state) {
    enum { FIRST = 1 << 16 };
    size_t capacity = 0, size = 0, got = 0;
    do {
        const size_t larger = capacity > 0 ? 2 * capacity : FIRST;
        char *bytes = ls_reallocate(state->bytes, capacity, larger);
        if (bytes == NULL) {
            return ls_fail_memory(call, larger);
        }
        state->bytes = bytes;
        capacity = larger;
        LS_TRY(ls_source_read(&state->source, bytes + size, capacity - size, &got));
        size += got;
    } while (size == capacity);
    ls_source_close(&state->source);
    state->source.size = size;
    return LS_OK;
}

static ls_status open_tokens(const char *path, tokens_state *state, int64_t *count) {
    const bool gzipped = is_gzipped(path);
    LS_TRY(ls_source_open(call, path, gzipped, &state->source));
    state->path = ls_duplicate_string(path);
    if (state->path == NULL) {
        ls_source_close(&state->source);
        return ls_fail_memory(call, strlen(path) + 1);
    }
    state->source.path = state->path;
    if (gzipped) {
        LS_TRY(inflate_all(state));
    }
    return count_samples(state, count);
}

ls_dataset *ls_tokens_dataset(const char *path, const ls_tokens_options *options) {
    static const ls_dataset_type type = {
        .name = "tokens", .state_size = sizeof(tokens_state), .fetch = tokens_fetch, .free_state = tokens_free_state};
    if (check_options(options) != LS_OK) {
        return NULL;
    }
    tokens_state state = {.context = options->context,
                          .stride = options->stride > 0 ? options->stride : options->context,
                          .skip = options->skip_bytes,
                          .width = options->width > 0 ? (size_t)options->width : 1};
    const ls_shape shape = LS_SHAPE(options->context);
    const ls_sample_layout layout = {shape, LS_I64, shape, LS_I64};
    int64_t count = 0;
    const bool good = open_tokens(path, &state, &count) == LS_OK;
    ls_dataset *dataset = good ? ls_dataset_new(&type, count, &layout) : NULL;
    if (dataset == NULL) {
        tokens_free_state(&(ls_dataset){.state = &state});
        return NULL;
    }
    *(tokens_state *)dataset->state = state;
    dataset->serial = false;
    return dataset;
}
