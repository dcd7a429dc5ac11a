/*
 * Convolution. Images have the shape [n, channels, ...], but oneDNN's fast code needs blocks of channels. So pieces of
 * a few samples are reordered, which are then still in the L2 cache when they are used. The pieces are distributed over
 * the threads. The number of samples in a piece depends only on the shapes, and the gradient of the weight is the sum
 * over pieces in their order, so the bits do not depend on the number of threads.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor/device/onednn/plan.h"

/*
 * The size of a piece in bytes of both images. For the gradient of the weight, for which each piece produces a matrix
 * to add, a piece also has at least this number of positions.
 */
enum { PIECE_BYTES = 512 * 1024, WEIGHT_POSITIONS = 1500 };

/* The operands of a plan, in this order. */
enum { LARGE, SMALL, WEIGHT, BIAS };

enum { ALIGNMENT = 64 };

/* A convolution, without the number of samples. */
typedef struct conv_shape {
    ls_conv_work work;
    int64_t channels, outputs, groups;
    int64_t size[3], out[3];
    const ls_window *window;
    bool bias, in_bf16;
} conv_shape;

typedef struct conv_arguments {
    conv_shape shape;
    int64_t samples, large_step, small_step; /* numbers per sample */
    float *large, *small, *weight;
    const float *bias;
} conv_arguments;

/* ---- plans ------------------------------------------------------------------------------------------------------- */

typedef struct conv_task {
    const conv_shape *shape;
    int64_t samples;
} conv_task;

static ls_plan_key key_of(const conv_task *task) {
    const conv_shape *shape = task->shape;
    const ls_window *w = shape->window;
    ls_plan_key key = {{0}};
    int64_t *at = key.number;
    *at++ = (int64_t)shape->work;
    *at++ = task->samples;
    *at++ = shape->channels;
    *at++ = shape->outputs;
    *at++ = shape->groups;
    *at++ = shape->bias + 2 * shape->in_bf16;
    for (int i = 0; i < 3; i++) {
        *at++ = shape->size[i];
        *at++ = shape->out[i];
        *at++ = w->kernel[i];
        *at++ = w->stride[i];
        *at++ = w->dilation[i];
        *at++ = w->before[i];
    }
    return key;
}

/*
 * Blocks of 16 channels are fastest if few of their channels are empty. If more than a fifth would be empty, the
 * channels-last layout is faster, for any number of channels. A few input channels are read directly. For depthwise
 * convolutions, only blocks are fast.
 */
static dnnl_format_tag_t best_tag(const conv_shape *shape, bool volume) {
    const int64_t in = shape->channels / shape->groups, out = shape->outputs / shape->groups;
    const int64_t blocks = ((in + 15) / 16 * 16) * ((out + 15) / 16 * 16);
    if (in < 8 || blocks * 4 <= in * out * 5) {
        return dnnl_format_tag_any;
    }
    return volume ? dnnl_ndhwc : dnnl_nhwc;
}

/* Returns the first axis that is passed to oneDNN, which gets the axes of an image or of a volume. */
static int first_axis(const conv_shape *shape) {
    return shape->size[0] == 1 && shape->out[0] == 1 && shape->window->kernel[0] == 1 ? 1 : 0;
}

/* Returns the padding after the image in the last window. It is negative if strides skip the end of the image. */
static int64_t padding_after(const conv_shape *shape, int i) {
    const ls_window *w = shape->window;
    const int64_t reach = (int64_t)w->dilation[i] * (w->kernel[i] - 1) + 1;
    return (shape->out[i] - 1) * w->stride[i] + reach - shape->size[i] - w->before[i];
}

/* Layouts of a convolution: as given (with the bias), as wanted by oneDNN, and, for a gradient, the layouts of the
 * forward pass. */
enum { GIVEN = 0, WANTED = 4, HINT = 7, LAYOUTS = 10 };
typedef struct conv_layouts {
    ls_layout own[LAYOUTS];
} conv_layouts;

static void free_layouts(conv_layouts *layouts) {
    for (int i = 0; i < LAYOUTS; i++) {
        ls_layout_free(layouts->own[i]);
    }
}

static ls_conv_layouts layouts_at(const conv_task *task, const conv_layouts *layouts, int first) {
    const conv_shape *shape = task->shape;
    ls_conv_layouts all = {.large = layouts->own[first + LARGE],
                           .small = layouts->own[first + SMALL],
                           .weight = layouts->own[first + WEIGHT],
                           .bias = shape->bias ? layouts->own[GIVEN + BIAS] : NULL};
    const int axis = first_axis(shape);
    for (int i = axis; i < 3; i++) {
        all.stride[i - axis] = shape->window->stride[i];
        all.dilation[i - axis] = shape->window->dilation[i] - 1;
        all.before[i - axis] = shape->window->before[i];
        all.after[i - axis] = padding_after(shape, i);
    }
    return all;
}

static bool make_layouts(const conv_task *task, conv_layouts *layouts) {
    const conv_shape *shape = task->shape;
    const int64_t groups = shape->groups;
    const int first = first_axis(shape), axes = 3 - first;
    dnnl_dims_t large = {task->samples, shape->channels}, small = {task->samples, shape->outputs};
    dnnl_dims_t weight = {shape->outputs, shape->channels};
    int weight_axes = 2;
    if (groups > 1) {
        weight[0] = groups, weight[1] = shape->outputs / groups, weight[2] = shape->channels / groups;
        weight_axes = 3;
    }
    for (int i = 0; i < axes; i++) {
        large[2 + i] = shape->size[first + i];
        small[2 + i] = shape->out[first + i];
        weight[weight_axes + i] = shape->window->kernel[first + i];
    }
    weight_axes += axes;
    const dnnl_format_tag_t plain = axes == 3 ? dnnl_abcde : dnnl_abcd, any = dnnl_format_tag_any;
    const dnnl_format_tag_t plain_weight = weight_axes == 6 ? dnnl_abcdef : weight_axes == 5 ? dnnl_abcde : dnnl_abcd;
    const dnnl_format_tag_t tag = best_tag(shape, axes == 3);
    const int64_t outputs = shape->outputs;
    layouts->own[GIVEN + LARGE] = ls_layout_new(2 + axes, large, dnnl_f32, plain);
    layouts->own[GIVEN + SMALL] = ls_layout_new(2 + axes, small, dnnl_f32, plain);
    layouts->own[GIVEN + WEIGHT] = ls_layout_new(weight_axes, weight, dnnl_f32, plain_weight);
    layouts->own[GIVEN + BIAS] = ls_layout_new(1, &outputs, dnnl_f32, dnnl_a);
    const dnnl_data_type_t from = shape->in_bf16 ? dnnl_bf16 : dnnl_f32;
    const ls_conv_work work = shape->work;
    /* for a forward pass in bf16, oneDNN computes a gradient in f32 */
    for (int i = WANTED; i <= HINT; i += HINT - WANTED) {
        const bool hint = i == HINT;
        layouts->own[i + LARGE] = ls_layout_new(2 + axes, large, work == LS_CONV_LARGE && !hint ? dnnl_f32 : from, tag);
        layouts->own[i + SMALL] = ls_layout_new(2 + axes, small, work == LS_CONV_SMALL && !hint ? dnnl_f32 : from, tag);
        layouts->own[i + WEIGHT] =
            ls_layout_new(weight_axes, weight, work == LS_CONV_WEIGHT && !hint ? dnnl_f32 : from, any);
    }
    for (int i = 0; i < LAYOUTS; i++) {
        if (layouts->own[i] == NULL) {
            return false;
        }
    }
    return true;
}

static dnnl_status_t describe(const conv_task *task, const conv_layouts *layouts, dnnl_primitive_desc_t *made) {
    const ls_conv_layouts wanted = layouts_at(task, layouts, WANTED), hint = layouts_at(task, layouts, HINT);
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    }
    if (status == dnnl_success) {
        status = ls_describe_conv(made, ls_onednn_engine, task->shape->work, &wanted, &hint, attributes);
    }
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    return status;
}

/* oneDNN's reference code is slower than our own code. */
static bool is_worth_it(const_dnnl_primitive_desc_t description) {
    const char *name = NULL;
    return dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&name) == dnnl_success &&
           name != NULL && strstr(name, "ref") == NULL && strstr(name, "gemm") == NULL;
}

static dnnl_status_t make_plan(ls_plan *plan, int slots, const void *context) {
    const conv_task *task = context;
    const ls_conv_work work = task->shape->work;
    const bool weight = work == LS_CONV_WEIGHT;
    conv_layouts layouts = {.own = {NULL}};
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status = make_layouts(task, &layouts) ? describe(task, &layouts, &description) : dnnl_out_of_memory;
    if (status == dnnl_success) {
        const ls_operand_plan operands[] = {
            [LARGE] = {work == LS_CONV_LARGE ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC,
                       work == LS_CONV_LARGE ? dnnl_query_diff_src_md : dnnl_query_src_md, work == LS_CONV_LARGE,
                       layouts.own[GIVEN + LARGE]},
            [SMALL] = {work == LS_CONV_SMALL ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST,
                       work == LS_CONV_SMALL ? dnnl_query_dst_md : dnnl_query_diff_dst_md, work == LS_CONV_SMALL,
                       layouts.own[GIVEN + SMALL]},
            [WEIGHT] = {weight ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS,
                        weight ? dnnl_query_diff_weights_md : dnnl_query_weights_md, weight,
                        layouts.own[GIVEN + WEIGHT]},
            [BIAS] = {DNNL_ARG_BIAS, dnnl_query_undef, false, layouts.own[GIVEN + BIAS]}};
        status = is_worth_it(description)
                     ? ls_plan_build(plan, description, slots, operands, task->shape->bias ? BIAS + 1 : BIAS)
                     : dnnl_unimplemented;
        (void)dnnl_primitive_desc_destroy(description);
    }
    free_layouts(&layouts);
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A plan for pieces of `samples` samples, with its memory. */
typedef struct conv_run {
    const conv_arguments *call;
    ls_plan *plan;
    int64_t samples;
    int threads;
    size_t offset[3], scratch, slot; /* offsets within a thread's part of the memory; `slot` is the size of the part */
    char *weight;                    /* the weight in the plan's layout, or the sum of its gradients */
    char *parts;                     /* the threads' parts of the memory */
} conv_run;

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t divide_room(conv_run *run) {
    const bool gradient = run->call->shape.work == LS_CONV_WEIGHT;
    size_t bytes = 0;
    for (int i = 0; i < WEIGHT + (gradient ? 1 : 0); i++) {
        run->offset[i] = bytes;
        bytes += i == WEIGHT || run->plan->operand[i].reorder != NULL ? aligned(run->plan->operand[i].bytes) : 0;
    }
    run->scratch = bytes;
    run->slot = bytes + aligned(run->plan->scratch_bytes);
    return aligned(run->plan->operand[WEIGHT].bytes) + (size_t)run->threads * run->slot;
}

/* Runs one piece. For the gradient of the weight, the result stays in the primitive's layout. */
static dnnl_status_t run_piece(const conv_run *run, int slot, int64_t first) {
    const conv_arguments *call = run->call;
    char *room = run->parts + (size_t)slot * run->slot;
    const bool gradient = call->shape.work == LS_CONV_WEIGHT;
    void *const given[] = {call->large + first * call->large_step, call->small + first * call->small_step};
    for (int i = LARGE; i <= SMALL; i++) {
        dnnl_status_t status = ls_plan_place(run->plan, slot, i, given[i], room + run->offset[i]);
        if (status == dnnl_success && !run->plan->operand[i].output) {
            status = ls_plan_reorder(run->plan, slot, i);
        }
        if (status != dnnl_success) {
            return status;
        }
    }
    void *weight = gradient ? room + run->offset[WEIGHT] : run->weight;
    void *plain = gradient || run->plan->operand[WEIGHT].reorder != NULL ? weight : call->weight;
    dnnl_status_t status = ls_plan_place(run->plan, slot, WEIGHT, plain, weight);
    if (status == dnnl_success && call->shape.bias) {
        status = ls_plan_place(run->plan, slot, BIAS, (void *)(uintptr_t)call->bias, NULL);
    }
    if (status == dnnl_success) {
        status = ls_plan_execute(run->plan, slot, room + run->scratch);
    }
    for (int i = LARGE; i <= SMALL && status == dnnl_success; i++) {
        status = run->plan->operand[i].output ? ls_plan_reorder(run->plan, slot, i) : status;
    }
    return status;
}

/* Runs the pieces [first, last), one after another in each thread. */
static dnnl_status_t run_pieces(const conv_run *run, int64_t first, int64_t last) {
    int failed = (int)dnnl_success; /* a dnnl_status_t */
#ifdef _OPENMP
#pragma omp parallel for num_threads(run->threads) schedule(static) reduction(max : failed)
#endif
    for (int slot = 0; slot < run->threads; slot++) {
        const int64_t count = last - first, begin = first + count * slot / run->threads;
        const int64_t end = first + count * (slot + 1) / run->threads;
        int status = (int)dnnl_success;
        for (int64_t piece = begin; piece < end && status == (int)dnnl_success; piece++) {
            status = (int)run_piece(run, slot, piece * run->samples);
        }
        failed = status > failed ? status : failed;
    }
    return (dnnl_status_t)failed;
}

/* Sums the pieces' gradients, in the pieces' order, in the primitive's layout. */
static dnnl_status_t sum_gradients(const conv_run *run, int64_t pieces) {
    const size_t count = run->plan->operand[WEIGHT].bytes / sizeof(float);
    float *restrict sum = (float *)(void *)run->weight;
    conv_run wave = *run; /* one piece for each thread */
    for (int64_t first = 0; first < pieces; first += wave.threads) {
        wave.threads = pieces - first < run->threads ? (int)(pieces - first) : run->threads;
        const dnnl_status_t status = run_pieces(&wave, first, first + wave.threads);
        if (status != dnnl_success) {
            return status;
        }
        for (int slot = 0; slot < wave.threads; slot++) {
            const char *part = run->parts + (size_t)slot * run->slot + run->offset[WEIGHT];
            const float *from = (const float *)(const void *)part;
            for (size_t k = 0; k < count; k++) {
                sum[k] = first + slot == 0 ? from[k] : sum[k] + from[k];
            }
        }
    }
    return dnnl_success;
}

/* Adds the sum to d_weight. Uses the first thread's part of the memory, whose gradient is no longer needed. */
static dnnl_status_t give_gradient(const conv_run *run, int64_t numbers) {
    char *plain = run->parts + run->offset[WEIGHT];
    dnnl_status_t status = ls_plan_place(run->plan, 0, WEIGHT, plain, run->weight);
    if (status == dnnl_success) {
        status = ls_plan_reorder(run->plan, 0, WEIGHT);
    }
    const float *restrict from =
        (const float *)(const void *)(run->plan->operand[WEIGHT].reorder != NULL ? plain : run->weight);
    float *restrict to = run->call->weight;
    for (int64_t i = 0; i < numbers && status == dnnl_success; i++) {
        to[i] += from[i];
    }
    return status;
}

static int64_t weight_numbers(const conv_shape *shape) {
    int64_t count = shape->outputs * (shape->channels / shape->groups);
    for (int i = 0; i < 3; i++) {
        count *= shape->window->kernel[i];
    }
    return count;
}

static dnnl_status_t run_in_room(conv_run *run, int64_t pieces) {
    if (run->call->shape.work == LS_CONV_WEIGHT) {
        const dnnl_status_t status = sum_gradients(run, pieces);
        return status == dnnl_success ? give_gradient(run, weight_numbers(&run->call->shape)) : status;
    }
    dnnl_status_t status = ls_plan_place(run->plan, 0, WEIGHT, run->call->weight, run->weight);
    if (status == dnnl_success) {
        status = ls_plan_reorder(run->plan, 0, WEIGHT);
    }
    return status == dnnl_success ? run_pieces(run, 0, pieces) : status;
}

/* Runs `pieces` pieces of `samples` samples each. */
static ls_status run_plan(const conv_arguments *call, int64_t samples, int64_t pieces, int threads) {
    const conv_task task = {.shape = &call->shape, .samples = samples};
    const ls_plan_key key = key_of(&task);
    ls_plan *plan = ls_plan_take(&key, threads, make_plan, &task);
    if (plan == NULL) {
        return ls_onednn_host->fail_memory("convolution", sizeof *plan);
    }
    ls_status status = LS_ERR_UNSUPPORTED;
    if (!plan->refused) {
        conv_run run = {.call = call, .plan = plan, .samples = samples};
        run.threads = threads < plan->slots ? threads : plan->slots;
        run.threads = pieces < run.threads ? (int)pieces : run.threads;
        const size_t bytes = divide_room(&run);
        run.weight = ls_onednn_host->allocate(bytes);
        if (run.weight == NULL) {
            status = ls_onednn_host->fail_memory("convolution", bytes);
        } else {
            run.parts = run.weight + aligned(plan->operand[WEIGHT].bytes);
            const dnnl_status_t ran = run_in_room(&run, pieces);
            status = ran == dnnl_success ? LS_OK : ls_onednn_host->fail_memory("convolution in oneDNN", bytes);
            ls_onednn_host->release(run.weight, bytes);
        }
    }
    ls_plan_give(plan);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static int64_t product(const int64_t size[3]) {
    return size[0] * size[1] * size[2];
}

/* Returns the number of samples of a piece. */
static int64_t samples_at_once(const conv_arguments *call) {
    const int64_t bytes = (call->large_step + call->small_step) * (int64_t)sizeof(float);
    int64_t most = PIECE_BYTES / bytes > 1 ? PIECE_BYTES / bytes : 1;
    if (call->shape.work == LS_CONV_WEIGHT) {
        const int64_t positions = product(call->shape.out);
        const int64_t least = (WEIGHT_POSITIONS + positions - 1) / positions;
        most = most > least ? most : least;
    }
    const int64_t pieces = (call->samples + most - 1) / most;
    return (call->samples + pieces - 1) / pieces;
}

static bool is_refused(const conv_arguments *call, int64_t samples, int threads) {
    const conv_task task = {.shape = &call->shape, .samples = samples};
    const ls_plan_key key = key_of(&task);
    ls_plan *plan = ls_plan_take(&key, threads, make_plan, &task);
    const bool refused = plan == NULL || plan->refused;
    if (plan != NULL) {
        ls_plan_give(plan);
    }
    return refused;
}

/* Runs all full pieces, and then the remaining samples. */
static ls_status run_call(const conv_arguments *call, int threads) {
    threads = threads < LS_PLAN_SLOTS ? threads : LS_PLAN_SLOTS;
    const int64_t samples = samples_at_once(call);
    const int64_t pieces = call->samples / samples, left = call->samples % samples;
    if (left > 0) {
        if (is_refused(call, samples, threads)) { /* before any result is written */
            return LS_ERR_UNSUPPORTED;
        }
        conv_arguments rest = *call;
        rest.large += pieces * samples * call->large_step;
        rest.small += pieces * samples * call->small_step;
        rest.samples = left;
        LS_TRY(run_plan(&rest, left, 1, threads));
    }
    return run_plan(call, samples, pieces, threads);
}

ls_status ls_onednn_conv(ls_conv_work work, const ls_tensor *large, const ls_tensor *small, const ls_tensor *weight,
                         const ls_tensor *bias, const ls_window *window, bool in_bf16) {
    conv_arguments call = {.shape = {.work = work,
                                     .channels = large->size[1],
                                     .outputs = small->size[1],
                                     .groups = window->groups,
                                     .window = window,
                                     .bias = bias != NULL,
                                     .in_bf16 = in_bf16},
                           .samples = large->size[0],
                           .large = large->data,
                           .small = small->data,
                           .weight = weight->data,
                           .bias = bias != NULL ? bias->data : NULL};
    for (int i = 0; i < 3; i++) {
        call.shape.size[i] = large->size[2 + i];
        call.shape.out[i] = small->size[2 + i];
        if (padding_after(&call.shape, i) <= -window->stride[i]) {
            return LS_ERR_UNSUPPORTED; /* positions that no window covers, beyond what oneDNN accepts as rounding */
        }
    }
    call.large_step = call.shape.channels * product(call.shape.size);
    call.small_step = call.shape.outputs * product(call.shape.out);
    const int team = ls_onednn_team(), before = ls_onednn_set_threads(1);
    const ls_status status = run_call(&call, team);
    (void)ls_onednn_set_threads(before);
    return status;
}
