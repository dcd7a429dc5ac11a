/*
 * Convolution. oneDNN computes the larger f32 convolutions. All others are matrix products over im2col: the values in a
 * window at one output position form a column, and the columns of several positions form a matrix. For each sample and
 * group,
 *     y = weight columns     d_weight = d_y columns^T     d_columns = weight^T d_y
 * The number of positions per product depends only on the sizes: their columns fit into the L2 cache. If a window is a
 * single position, the image itself is the matrix of columns.
 */
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"
#include "tensor/scope.h"

#include <string.h>

/*
 * One sample and group of both sides of a convolution: the large side, from which windows are taken, and the small
 * side, which has one output per window.
 */
typedef struct conv_part {
    const ls_window *window;
    int64_t channels, size[3], plane; /* sizes of the large side; `plane` is the size of a channel */
    int64_t outputs, out[3], positions;
    int64_t taps;   /* channels times positions of the window: the height of a column */
    bool is_column; /* the large side is itself the matrix of columns */
} conv_part;

/* Size of the columns of one product in bytes, and its minimum number of positions. */
enum { COLUMN_BYTES = 256 * 1024, FEWEST_POSITIONS = 32 };

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/conv.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/conv.inc"

static conv_part part_of(const ls_tensor *large, const ls_tensor *small, const ls_window *window) {
    conv_part part = {.window = window,
                      .channels = large->size[1] / window->groups,
                      .outputs = small->size[1] / window->groups,
                      .plane = 1,
                      .positions = 1,
                      .is_column = true};
    part.taps = part.channels;
    for (int i = 0; i < 3; i++) {
        part.size[i] = large->size[2 + i];
        part.out[i] = small->size[2 + i];
        part.plane *= part.size[i];
        part.positions *= part.out[i];
        part.taps *= window->kernel[i];
        part.is_column = part.is_column && window->kernel[i] == 1 && window->stride[i] == 1 && window->before[i] == 0 &&
                         part.size[i] == part.out[i];
    }
    return part;
}

/* Returns the number of positions per product. */
static int64_t positions_at_once(const conv_part *part, ls_dtype dtype) {
    if (part->is_column) {
        return part->positions;
    }
    const int64_t column = part->taps * (int64_t)ls_dtype_size(dtype);
    const int64_t fit = column > 0 ? COLUMN_BYTES / column : COLUMN_BYTES;
    const int64_t count = fit > FEWEST_POSITIONS ? fit : FEWEST_POSITIONS;
    return count < part->positions ? count : part->positions;
}

typedef struct conv_sides {
    const conv_part *part;
    ls_dtype dtype;
    char *large, *small, *weight; /* data of one sample and group */
} conv_sides;

static void move_columns(const conv_sides *sides, int64_t first, int64_t count, void *columns, bool back) {
    if (sides->part->is_column) {
        return;
    }
    void *large = sides->large;
    if (sides->dtype == LS_F32) {
        (back ? add_columns_f32 : take_columns_f32)(sides->part, large, first, count, columns);
    } else {
        (back ? add_columns_f64 : take_columns_f64)(sides->part, large, first, count, columns);
    }
}

/* Computes the product for `count` positions, beginning with position `first`. */
static ls_status multiply(const conv_sides *sides, ls_conv_work work, int64_t first, int64_t count, void *room) {
    const conv_part *part = sides->part;
    void *columns = part->is_column ? sides->large : room;
    void *outputs = sides->small + first * (int64_t)ls_dtype_size(sides->dtype);
    ls_gemm gemm = {.dtype = sides->dtype};
    if (work != LS_CONV_LARGE) {
        move_columns(sides, first, count, columns, false);
    }
    if (work == LS_CONV_SMALL) {
        gemm.m = part->outputs, gemm.n = count, gemm.k = part->taps;
        gemm.a = sides->weight, gemm.lda = part->taps;
        gemm.b = columns, gemm.ldb = count;
        gemm.c = outputs, gemm.ldc = part->positions;
    } else if (work == LS_CONV_LARGE) {
        gemm.m = part->taps, gemm.n = count, gemm.k = part->outputs;
        gemm.a = sides->weight, gemm.lda = part->taps, gemm.transpose_a = true;
        gemm.b = outputs, gemm.ldb = part->positions;
        gemm.c = columns, gemm.ldc = count;
    } else {
        gemm.m = part->outputs, gemm.n = part->taps, gemm.k = count;
        gemm.a = outputs, gemm.lda = part->positions;
        gemm.b = columns, gemm.ldb = count, gemm.transpose_b = true;
        gemm.c = sides->weight, gemm.ldc = part->taps, gemm.accumulate = true;
    }
    LS_TRY(ls_cpu_gemm(NULL, &gemm));
    if (work == LS_CONV_LARGE) {
        move_columns(sides, first, count, columns, true);
    }
    return LS_OK;
}

/* Iterates over samples, groups and positions. */
static ls_status walk(const conv_part *part, ls_conv_work work, const ls_tensor *large, const ls_tensor *small,
                      const ls_tensor *weight) {
    const ls_dtype dtype = (ls_dtype)large->dtype;
    const int64_t width = (int64_t)ls_dtype_size(dtype);
    const int64_t groups = part->window->groups;
    const int64_t at_once = positions_at_once(part, dtype);
    const size_t bytes = part->is_column ? 1 : (size_t)(part->taps * at_once * width) + 1;
    void *room = ls_record_allocate(bytes);
    if (room == NULL) {
        return ls_fail_memory("convolution", bytes);
    }
    ls_status status = LS_OK;
    for (int64_t i = 0; i < large->size[0] * groups && status == LS_OK; i++) {
        const conv_sides sides = {.part = part,
                                  .dtype = dtype,
                                  .large = (char *)large->data + i * part->channels * part->plane * width,
                                  .small = (char *)small->data + i * part->outputs * part->positions * width,
                                  .weight = (char *)weight->data + i % groups * part->outputs * part->taps * width};
        for (int64_t first = 0; first < part->positions && status == LS_OK; first += at_once) {
            const int64_t left = part->positions - first;
            status = multiply(&sides, work, first, left < at_once ? left : at_once, room);
        }
    }
    ls_record_release(room, bytes);
    return status;
}

static ls_status check_dtype(const char *name, const ls_tensor *x) {
    return x->dtype == LS_F32 || x->dtype == LS_F64 ? LS_OK : ls_no_kernel(name, (ls_dtype)x->dtype);
}

static ls_status add_bias(ls_tensor *y, const ls_tensor *bias) {
    if (bias == NULL || y->count == 0) {
        return LS_OK;
    }
    const int64_t plane = y->count / (y->size[0] * y->size[1]);
    return LS_FLOATING(y->dtype, add_to_planes, y->size[0], y->size[1], plane, y->data, bias->data);
}

/* ---- oneDNN ------------------------------------------------------------------------------------------------------ */

/* The minimum number of multiplications for oneDNN. Below it, oneDNN saves less time than it needs to generate its
 * code. */
enum { FEWEST_MULTIPLICATIONS = 1 << 20, FEW_CHANNELS = 5 };

/*
 * oneDNN copies the operands of a 1x1 convolution, which our products read in place. For an image with few channels,
 * oneDNN's gradient computes sixteen channels.
 */
static bool is_for_onednn(const conv_part *part, ls_conv_work work, int64_t samples) {
    const double groups = (double)part->window->groups;
    const double multiplications =
        (double)samples * (double)part->positions * (double)part->taps * (double)part->outputs * groups;
    const bool few = part->channels < FEW_CHANNELS && (groups == 1 || part->outputs > 1);
    return multiplications >= FEWEST_MULTIPLICATIONS && !part->is_column && !(work == LS_CONV_LARGE && few);
}

/* The tensors of one call, and the dtype to which operands are rounded. */
typedef struct conv_call {
    ls_conv_work work;
    const ls_tensor *large, *small, *weight, *bias;
    ls_dtype rounds_to;
} conv_call;

/* Returns LS_ERR_UNSUPPORTED, without setting an error, if our own code must compute the convolution. */
static ls_status by_onednn(const conv_part *part, const conv_call *call) {
    if (call->large->dtype != LS_F32 || !is_for_onednn(part, call->work, call->large->size[0])) {
        return LS_ERR_UNSUPPORTED;
    }
    const ls_onednn *onednn = ls_onednn_open();
    return onednn != NULL ? onednn->conv(call->work, call->large, call->small, call->weight, call->bias, part->window,
                                         call->rounds_to == LS_BF16)
                          : LS_ERR_UNSUPPORTED;
}

static ls_status make(const conv_part *part, const conv_call *call) {
    const ls_status status = by_onednn(part, call);
    if (status != LS_ERR_UNSUPPORTED) {
        return status;
    }
    if (call->work == LS_CONV_LARGE && !part->is_column) {
        ls_tensor zeros = *call->large;
        LS_TRY(ls_cpu_fill(NULL, &zeros, 0));
    }
    LS_TRY(walk(part, call->work, call->large, call->small, call->weight));
    ls_tensor y = *call->small;
    return call->work == LS_CONV_SMALL ? add_bias(&y, call->bias) : LS_OK;
}

/* Computes one of the three tensors from rounded copies of the other two. */
static ls_status make_rounded(const conv_part *part, const conv_call *call) {
    conv_call own = *call;
    own.rounds_to = LS_F32;
    const ls_tensor **first = call->work == LS_CONV_LARGE ? &own.small : &own.large;
    const ls_tensor **second = call->work == LS_CONV_WEIGHT ? &own.small : &own.weight;
    ls_tensor one = {.data = NULL}, other = {.data = NULL};
    ls_status status = ls_rounded_begin(*first, call->rounds_to, &one);
    if (status == LS_OK) {
        status = ls_rounded_begin(*second, call->rounds_to, &other);
    }
    if (status == LS_OK) {
        *first = &one;
        *second = &other;
        status = make(part, &own);
    }
    ls_rounded_end(&other);
    ls_rounded_end(&one);
    return status;
}

static ls_status convolve(const conv_part *part, const conv_call *call) {
    const bool rounds = call->rounds_to != LS_F32 && call->large->dtype == LS_F32;
    if (rounds && is_for_onednn(part, call->work, call->large->size[0]) && ls_rounding_pays(call->rounds_to)) {
        const ls_status status = by_onednn(part, call);
        if (status != LS_ERR_UNSUPPORTED) {
            return status;
        }
    }
    return rounds ? make_rounded(part, call) : make(part, call);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

ls_status ls_cpu_conv(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *weight,
                      const ls_tensor *bias, const ls_window *window, ls_dtype rounds_to) {
    const conv_part part = part_of(x, y, window);
    (void)stream;
    LS_TRY(check_dtype("conv", x));
    return convolve(&part, &(conv_call){LS_CONV_SMALL, x, y, weight, bias, rounds_to});
}

ls_status ls_cpu_conv_transpose(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *weight,
                                const ls_tensor *bias, const ls_window *window, ls_dtype rounds_to) {
    const conv_part part = part_of(y, x, window);
    (void)stream;
    LS_TRY(check_dtype("conv_transpose", x));
    LS_TRY(convolve(&part, &(conv_call){LS_CONV_LARGE, y, x, weight, NULL, rounds_to}));
    return add_bias(y, bias);
}

ls_status ls_cpu_conv_weight(ls_stream *stream, ls_tensor *d_weight, const ls_tensor *large, const ls_tensor *small,
                             const ls_window *window, ls_dtype rounds_to) {
    const conv_part part = part_of(large, small, window);
    (void)stream;
    LS_TRY(check_dtype("conv_weight", large));
    return convolve(&part, &(conv_call){LS_CONV_WEIGHT, large, small, d_weight, NULL, rounds_to});
}
