#include "comm/reduce.h"

#include <string.h>

#include "base/status.h"
#include "base/tree.h"
#include "comm/reduce_kernels.h"

/* Accumulators are combined in tiles, so that the tree's inner nodes stay in the L1 cache. */
#define TILE_BYTES 4096
#define TREE_DEPTH 13 /* log2(LS_REDUCE_MAX_RANKS) + 1 */

static const char *const reduction_names[LS_REDUCTION_COUNT] = {
    [LS_SUM] = "sum",   [LS_AVG] = "avg",       [LS_PROD] = "prod",     [LS_MIN] = "min",   [LS_MAX] = "max",
    [LS_LAND] = "land", [LS_LOR] = "lor",       [LS_LXOR] = "lxor",     [LS_BAND] = "band", [LS_BOR] = "bor",
    [LS_BXOR] = "bxor", [LS_MINLOC] = "minloc", [LS_MAXLOC] = "maxloc",
};

const char *ls_reduction_name(ls_reduction reduction) {
    return (unsigned)reduction < LS_REDUCTION_COUNT ? reduction_names[reduction] : "unknown";
}

ls_status ls_reduce_check(const char *call, ls_dtype dtype, ls_reduction reduction) {
    if (ls_dtype_size(dtype) == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %d is not a dtype", call, (int)dtype);
    }
    if ((unsigned)reduction >= LS_REDUCTION_COUNT) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %d is not a reduction", call, (int)reduction);
    }
    if (ls_reduce_find(dtype, reduction)->combine == NULL) {
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: %s is not defined for %s", call, ls_reduction_name(reduction),
                       ls_dtype_name(dtype));
    }
    return LS_OK;
}

size_t ls_reduce_width(ls_dtype dtype, ls_reduction reduction) {
    return ls_reduce_find(dtype, reduction)->width;
}

/* One tile of all ranks: its position in the sources, and scratch for one accumulator tile per level of the tree. */
typedef struct tile {
    const ls_reduce_kernel *kernel;
    const void *const *sources;
    size_t offset; /* bytes into every source */
    size_t count;
    char (*scratch)[TILE_BYTES];
} tile;

static const void *leaf(const tile *t, int rank, int level) {
    const char *source = (const char *)t->sources[rank] + t->offset;
    if (t->kernel->widen == NULL) {
        return source;
    }
    t->kernel->widen(t->scratch[level], source, t->count);
    return t->scratch[level];
}

/* Returns the reduction of ranks [first, first + ranks). The result is either a source itself or computed into
 * `into`, or into the level's scratch if `into` is NULL. */
static const void *tree(const tile *t, int first, int ranks, int level, void *into) {
    if (ranks == 1) {
        return leaf(t, first, level);
    }
    const int left = ls_tree_left(ranks);
    const void *a = tree(t, first, left, level, NULL);
    const void *b = tree(t, first + left, ranks - left, level + 1, NULL);
    void *result = into != NULL ? into : t->scratch[level];
    t->kernel->combine(result, a, b, t->count);
    return result;
}

/* Returns true if results are truth values (0 or 1), which the elements of a single rank need not be. */
static bool gives_truth(const ls_reduce_task *task) {
    return task->dtype == LS_BOOL || task->reduction == LS_LAND || task->reduction == LS_LOR ||
           task->reduction == LS_LXOR;
}

/* Reduces two ranks, the usual case on a small machine, in one pass without a tree. */
static void reduce_two(const ls_reduce_task *task, const ls_reduce_kernel *kernel) {
    const size_t step = task->copies == 1 ? task->count : TILE_BYTES / kernel->width;
    for (size_t done = 0; done < task->count; done += step) {
        const size_t count = task->count - done < step ? task->count - done : step;
        const size_t offset = done * kernel->width;
        char *first = (char *)task->destinations[0] + offset;
        kernel->two(first, (const char *)task->sources[0] + offset, (const char *)task->sources[1] + offset, count);
        for (int i = 1; i < task->copies; i++) {
            memcpy((char *)task->destinations[i] + offset, first, count * kernel->width);
        }
    }
}

static void reduce_many(const ls_reduce_task *task, const ls_reduce_kernel *kernel) {
    _Alignas(64) char scratch[TREE_DEPTH][TILE_BYTES];
    const size_t step = TILE_BYTES / kernel->accumulator;
    const int divisor = task->reduction == LS_AVG ? task->ranks : 1;
    tile t = {.kernel = kernel, .sources = task->sources, .scratch = scratch};
    for (size_t done = 0; done < task->count; done += t.count) {
        t.count = task->count - done < step ? task->count - done : step;
        t.offset = done * kernel->width;
        const size_t bytes = t.count * kernel->width;
        char *first = (char *)task->destinations[0] + t.offset;
        const void *result = tree(&t, 0, task->ranks, 0, kernel->finish == NULL ? first : NULL);
        if (kernel->finish != NULL) {
            kernel->finish(first, result, t.count, divisor);
        } else if (result != first) {
            memcpy(first, result, bytes);
        }
        for (int i = 1; i < task->copies; i++) {
            memcpy((char *)task->destinations[i] + t.offset, first, bytes);
        }
    }
}

void ls_reduce_buffers(const ls_reduce_task *task) {
    const ls_reduce_kernel *kernel = ls_reduce_find(task->dtype, task->reduction);
    if (task->ranks == 2 && kernel->two != NULL) {
        reduce_two(task, kernel);
    } else if (task->ranks == 1 && gives_truth(task)) {
        const void *const twice[2] = {task->sources[0], task->sources[0]};
        ls_reduce_task same = *task;
        same.ranks = 2;
        same.sources = twice;
        same.reduction = LS_LOR;
        ls_reduce_buffers(&same);
    } else {
        reduce_many(task, kernel);
    }
}
