/**
 * @file tensor.h
 * Tensors and scopes: functions that create, inspect, change and print tensors, and that begin and end scopes.
 * Operations on tensors are in autograd.h.
 *
 * ```c
 * ls_scope *scope = ls_scope_begin();
 * ls_tensor *a = ls_randn(LS_SHAPE(2, 3), LS_F32);
 * ls_tensor *sum = ls_keep(ls_add(a, ls_ones(LS_SHAPE(2, 3), LS_F32)));
 * ls_status status = ls_scope_end(scope);
 * if (status == LS_OK) {
 *     ls_print(sum);
 * }
 * ls_release(sum);
 * ```
 *
 * Ownership (docs/explanation/scopes-and-ownership.md):
 * - A tensor that a function creates belongs to the innermost scope of the thread. ls_scope_end frees the tensor.
 * - A tensor created outside any scope belongs to the caller, who frees it with ls_release.
 * - Constructors (of data.h, nn.h and parallel.h) take ownership of the tensors, data sets and modules that they are
 *   given, even if they fail. Each owner holds one reference, and dropping the last reference frees the object. One
 *   tensor may therefore be a parameter of two modules, and one data set may feed two loaders.
 * - If a constructor takes ownership of a tensor in a scope, the tensor also stays in the scope until the scope ends.
 *   If a constructor takes ownership of a tensor created outside any scope, the tensor no longer belongs to the caller.
 *
 * Do not use a freed tensor. Calls fail with LS_ERR_STATE at first; after the library has reused the tensor's record,
 * the behavior is undefined.
 *
 * Only one thread at a time may use a tensor, a data set or a module.
 */
#ifndef LOCKSTEP_TENSOR_H
#define LOCKSTEP_TENSOR_H

#include <lockstep/base.h>

#ifdef __cplusplus
#include <initializer_list>
extern "C" {
#endif

/** The maximum number of dimensions of a tensor. */
enum { LS_MAX_DIMS = 8 };

/** An n-dimensional array of numbers. Opaque. */
typedef struct ls_tensor ls_tensor;

/** A group of tensors that are freed together. Opaque. */
typedef struct ls_scope ls_scope;

/** A tensor with its name: an entry of a file or of a saved state. */
typedef struct ls_named {
    const char *name;
    ls_tensor *tensor;
} ls_named;

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/**
 * The sizes of a tensor, outermost axis first. A single number has the shape with ndim 0. LS_SHAPE(64, 784) makes a
 * shape.
 */
typedef struct ls_shape {
    int ndim;
    int64_t size[LS_MAX_DIMS];
} ls_shape;

/**
 * The axes of an operation. Negative axes count from the end. Count 0 selects all axes (except in ls_permute).
 * LS_AXES(0, -1) and LS_ALL_AXES make axes.
 */
typedef struct ls_axes {
    int count;
    int axis[LS_MAX_DIMS];
} ls_axes;

/**
 * Returns a shape with `ndim` sizes. Copies the sizes. Returns an invalid shape, with ndim -1, if `ndim` is negative or
 * greater than LS_MAX_DIMS, or if `size` is NULL and `ndim` is positive. Every function rejects an invalid shape.
 */
LS_API ls_shape ls_shape_make(int ndim, const int64_t *size);

/**
 * Returns a list of `count` axes. Copies the axes. Returns an invalid list, with count -1, if `count` is negative or
 * greater than LS_MAX_DIMS, or if `axis` is NULL and `count` is positive. Every function rejects an invalid list.
 */
LS_API ls_axes ls_axes_make(int count, const int *axis);

#ifndef __cplusplus
/*
 * LS_SHAPE and LS_AXES call no function, so programs that open the library with dlopen can use them. A list that is one
 * item too long compiles, and functions then reject it because of its length.
 */
#define LS_LIST(type, item, ...)                                                                                       \
    (((union {                                                                                                         \
         struct {                                                                                                      \
             int length;                                                                                               \
             item items[LS_MAX_DIMS + 1];                                                                              \
         } list;                                                                                                       \
         type value;                                                                                                   \
     }){.list = {(int)(sizeof((const item[]){__VA_ARGS__}) / sizeof(item)), {__VA_ARGS__}}})                           \
         .value)
/** Makes an ls_shape: LS_SHAPE(64, 784) has two dimensions. */
#define LS_SHAPE(...) LS_LIST(ls_shape, int64_t, __VA_ARGS__)
/** Makes an ls_axes: LS_AXES(0, -1) has two axes. */
#define LS_AXES(...) LS_LIST(ls_axes, int, __VA_ARGS__)
/** The shape of a single number. */
#define LS_SCALAR ((ls_shape){0, {0}})
/** All axes. */
#define LS_ALL_AXES ((ls_axes){0, {0}})
#endif

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

/**
 * Begins a scope on this thread, inside the thread's innermost scope. Returns NULL if out of memory. End the scope with
 * ls_scope_end.
 */
LS_API ls_scope *ls_scope_begin(void);

/**
 * Ends the scope. Call this function even if an operation in the scope failed.
 *
 * - Frees the tensors and the tape of the scope, except tensors that ls_keep moved or that a constructor owns.
 * - Restores this thread's ls_no_grad and ls_autocast settings to their values at ls_scope_begin.
 * - Returns the status of the first failed operation on tensors in the scope, and makes ls_error_message() return its
 *   message. Otherwise returns LS_OK. Failures in an inner scope do not count. Failures of functions that are not
 *   operations on tensors, such as ls_optimizer_step and ls_comm_barrier, may not count either: check their results.
 *
 * The scope must be the innermost open scope of this thread. Otherwise the call fails with LS_ERR_STATE and changes
 * nothing. If `scope` is NULL because ls_scope_begin failed, returns the status of the thread's last error.
 */
LS_API ls_status ls_scope_end(ls_scope *scope);

/**
 * Ends the open scopes of this thread, whose handles become invalid, and frees its tape and the memory that it keeps
 * for reuse. The library does this when a thread ends. Call this function earlier if release functions of
 * ls_from_memory must run before that, for example when an interpreter exits. Tensors outside any scope stay valid, and
 * the thread can continue to use the library. The default device, ls_no_grad and ls_autocast return to their initial
 * values, and ls_memory_stats no longer counts tensors outside any scope. Captured steps of the thread cannot be
 * replayed any more: capture them again. A trace that the thread has started (ls_trace_start) is dropped.
 *
 * Do not call this function in a function that the library calls, such as a hook, a module's forward function or the
 * function of ls_data_parallel_step. In a hook, and in a function for which the library has opened a scope, the call
 * fails with LS_ERR_STATE and changes nothing. The innermost scope records the failure, so its ls_scope_end fails.
 */
LS_API void ls_thread_end(void);

/**
 * Moves the tensor out of its scope into the enclosing scope, together with the part of the tape that its gradient
 * needs. If there is no enclosing scope, returns ownership to the caller, who frees the tensor with ls_release. Does
 * not change a tensor without scope, such as a borrowed tensor (ls_grad). Returns the tensor. Returns NULL if the
 * tensor is NULL or was freed.
 */
LS_API ls_tensor *ls_keep(ls_tensor *tensor);

/**
 * Frees a tensor immediately, inside or outside a scope. Memory and history that other tensors or the tape still need
 * stay alive. Does nothing if the caller only borrows the tensor (ls_grad, ls_module_parameter). NULL is allowed.
 */
LS_API void ls_release(ls_tensor *tensor);

/**
 * Returns a new tensor that shares the memory of `tensor`, but not its history. A change to one tensor is visible in
 * the other. Returns NULL if `tensor` is NULL or was freed.
 *
 * Optimizers, ls_data_parallel and ls_sync_parameters move the parameters of a model into new memory once. They fail
 * with LS_ERR_UNSUPPORTED if an alias of a parameter exists at this time (ls_alias, ls_detach), or if two parameters
 * share memory. Create an alias, or a view, after these calls. To tie two layers, add the same tensor to both.
 */
LS_API ls_tensor *ls_alias(const ls_tensor *tensor);

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/**
 * Returns a tensor with undefined elements. Like all functions in this section except ls_from_memory and
 * ls_from_strided, creates the tensor on the default device (ls_use_device). All functions in this section return NULL
 * and set an error on failure:
 *
 * - LS_ERR_SHAPE if the shape is invalid or has a negative size
 * - LS_ERR_ARGUMENT if `dtype` is not a dtype
 * - LS_ERR_MEMORY if the tensor does not fit in memory
 * - the error of ls_default_device if there is no default device
 */
LS_API ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype);
/** Returns a tensor filled with zeros. */
LS_API ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype);
/** Returns a tensor filled with ones. */
LS_API ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype);
/**
 * Returns a tensor with every element set to `value`. Fails with LS_ERR_ARGUMENT if `dtype` is an integer type or bool
 * and cannot represent `value` exactly.
 */
LS_API ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value);
/**
 * Returns a tensor with the elements 0, 1, 2, ... in row-major order. Numbers that `dtype` cannot represent are rounded
 * (floating-point types) or wrap around (integer types). Fails with LS_ERR_ARGUMENT if `dtype` is bool.
 */
LS_API ls_tensor *ls_arange(ls_shape shape, ls_dtype dtype);
/**
 * Returns a tensor of uniformly distributed numbers in [0, 1). Uses the next stream of the generator (ls_seed). Fails
 * with LS_ERR_ARGUMENT if `dtype` is not a floating-point type.
 */
LS_API ls_tensor *ls_rand(ls_shape shape, ls_dtype dtype);
/**
 * Returns a tensor of normally distributed numbers with mean 0 and standard deviation 1. Uses the next stream of the
 * generator. Fails with LS_ERR_ARGUMENT if `dtype` is not a floating-point type.
 */
LS_API ls_tensor *ls_randn(ls_shape shape, ls_dtype dtype);
/**
 * Returns a tensor of uniformly distributed integers in [low, high). Uses the next stream of the generator. Fails with
 * LS_ERR_ARGUMENT if the range is empty or exceeds the range in which `dtype` has every integer. For floating-point
 * types, this is -2^24 to 2^24 (f32), 2^53 (f64), 2^8 (bf16) or 2^11 (f16).
 */
LS_API ls_tensor *ls_randint(ls_shape shape, ls_dtype dtype, int64_t low, int64_t high);
/** Returns the numbers 0 to n - 1 in random order, as an i64 tensor [n]. Uses the next stream of the generator. */
LS_API ls_tensor *ls_randperm(int64_t n);
/**
 * Returns a tensor with elements copied from `data`, which is dense and in row-major order. Fails with LS_ERR_ARGUMENT
 * if `data` is NULL, unless the shape has no elements.
 */
LS_API ls_tensor *ls_from(ls_shape shape, ls_dtype dtype, const void *data);
/**
 * Returns a tensor on "cpu" that uses `data` as its memory. The data is dense, in row-major order and aligned to the
 * size of an element. Calls `release(data, user)` when nothing refers to the memory any longer, or immediately on
 * failure. If `release` is NULL, borrows the memory, which must outlive the tensor and its views. Fails with
 * LS_ERR_ARGUMENT if `data` is misaligned, or is NULL although the shape has elements. Fails with LS_ERR_SHAPE if the
 * size in bytes exceeds int64_t. If `data` is NULL, ls_data returns NULL for the tensor, without an error.
 */
LS_API ls_tensor *ls_from_memory(ls_shape shape, ls_dtype dtype, void *data, void (*release)(void *data, void *user),
                                 void *user);
/**
 * Does the same as ls_from_memory for memory with strides, such as a part of an array or a column-major array.
 * stride[i] is the distance in elements between neighbors along axis i. `data` points to the first element. Uses the
 * memory without a copy. Copies `stride`; NULL selects the strides of dense memory. Elements must not share memory. The
 * stride of each axis must exceed the distance from the first to the last element along all axes with smaller strides;
 * otherwise the call fails with LS_ERR_ARGUMENT. Ignores the strides of axes of size 1, and all strides if the shape
 * has no elements. Fails with LS_ERR_SHAPE if a distance in bytes exceeds int64_t.
 */
LS_API ls_tensor *ls_from_strided(ls_shape shape, const int64_t *stride, ls_dtype dtype, void *data,
                                  void (*release)(void *data, void *user), void *user);
/** Returns `value` as a tensor of shape []. Fails as ls_full does. */
LS_API ls_tensor *ls_scalar(double value, ls_dtype dtype);

/* ---- devices ----------------------------------------------------------------------------------------------------
 * A device stores tensors and computes with them. Its name is "cpu", or "cuda:0", "cuda:1" and so on for a GPU ("cuda"
 * is short for "cuda:0"). The first use of a GPU name loads the GPU plug-in (docs/reference/gpu.md).
 *
 * All tensors of an operation must be on the same device. The result is on this device too. ls_to_device moves tensors.
 * A GPU works asynchronously: if an operation fails on the GPU, the next call that needs a result on the host (ls_item,
 * ls_print, ls_device_wait, ...) returns the error.
 */

/** Returns a borrowed pointer to the name of the tensor's device. Returns NULL if `tensor` is NULL. */
LS_API const char *ls_device_of(const ls_tensor *tensor);
/**
 * Sets the default device of this thread. A new tensor is created on this device unless another tensor determines the
 * device. Examples are the tensors from ls_zeros and ls_from, the parameters of layers and the batches of loaders.
 * Functions that read files return tensors on "cpu". Initially, the default device is the value of LOCKSTEP_DEVICE, or
 * "cpu" if LOCKSTEP_DEVICE is not set or empty. Fails with
 * - LS_ERR_ARGUMENT if no device has this name,
 * - LS_ERR_UNSUPPORTED if the GPU plug-in cannot be loaded,
 * - LS_ERR_DEVICE if there is no usable GPU.
 *
 * The message says which names are valid, or why the device is not available.
 */
LS_API ls_status ls_use_device(const char *name) LS_WARN_UNUSED;
/**
 * Returns a borrowed pointer to the name of this thread's default device. Returns NULL and sets an error if the device
 * in LOCKSTEP_DEVICE does not exist or cannot be used.
 */
LS_API const char *ls_default_device(void);
/**
 * Waits until the device has finished all work that this thread started on it. Returns the first error of this work
 * since the previous wait. Also fails as ls_use_device does.
 */
LS_API ls_status ls_device_wait(const char *name) LS_WARN_UNUSED;

/* ---- inspection -------------------------------------------------------------------------------------------------- */

/** Returns the number of dimensions, or 0 if `tensor` is NULL. */
LS_API int ls_ndim(const ls_tensor *tensor);
/** Returns the size along `axis`, or 0 if this axis does not exist. A negative axis counts from the end. */
LS_API int64_t ls_size(const ls_tensor *tensor, int axis);
/**
 * Returns the stride along `axis` in elements, or 0 if this axis does not exist. A negative axis counts from the end.
 */
LS_API int64_t ls_stride(const ls_tensor *tensor, int axis);
/** Returns the shape of the tensor. Returns a shape with ndim 0 if `tensor` is NULL. */
LS_API ls_shape ls_shape_of(const ls_tensor *tensor);
/** Returns the number of elements, or 0 if `tensor` is NULL. */
LS_API int64_t ls_numel(const ls_tensor *tensor);
/** Returns the dtype, or LS_F32 if `tensor` is NULL. */
LS_API ls_dtype ls_dtype_of(const ls_tensor *tensor);
/** Returns true if the elements are stored densely in row-major order. */
LS_API bool ls_is_contiguous(const ls_tensor *tensor);
/**
 * Returns a borrowed pointer for reading the elements of a tensor. The pointer is valid until the tensor is freed or
 * its elements move. After these calls, get the pointer again, because they move elements:
 *
 * - Constructors of optimizers, ls_data_parallel, ls_sync_parameters, ls_sync_gradients, ls_distribute_gradients and
 *   ls_outer_new place the parameters of the model, and their gradients, in common memory.
 * - ls_backward may move the gradients of the parameters of ls_data_parallel.
 * - ls_module_to_device moves the parameters, their gradients and the buffers.
 *
 * Returns NULL and sets an error:
 * - LS_ERR_STATE if the tensor was freed, if its scope has ended, or if this rank has only a part of it (.zero = 3 in
 *   ls_data_parallel).
 * - LS_ERR_STATE if the tensor is not contiguous: call ls_contiguous first.
 * - LS_ERR_STATE if the tensor is on a device whose memory the program cannot read: call ls_to_device(tensor, "cpu")
 *   first.
 * - LS_ERR_ARGUMENT if `tensor` is NULL.
 *
 * The program may send the elements to other ranks through this pointer. The library therefore no longer tracks whether
 * the elements combine samples of a data-parallel module: it does not warn if the tensor is later used as a constant in
 * a loss.
 */
LS_API const void *ls_data_const(const ls_tensor *tensor);
/**
 * Returns a borrowed pointer for writing the elements of a tensor. Lifetime, errors and the effect on tracking are the
 * same as for ls_data_const. The library does not notice writes through this pointer: call ls_mark_changed after them.
 */
LS_API void *ls_data(ls_tensor *tensor);
/**
 * Does the same as ls_data for tensors that need not be contiguous. Returns a pointer to the first element; element
 * (i, j) is i * ls_stride(tensor, 0) + j * ls_stride(tensor, 1) elements after it. Do not write to a tensor that
 * repeats its elements (ls_expand), because each write changes several of them.
 */
LS_API void *ls_data_strided(ls_tensor *tensor);
/**
 * Returns the only element of a tensor as a double. Returns NAN and sets an error if `tensor` is NULL without an
 * earlier failure (LS_ERR_ARGUMENT) or does not have exactly one element (LS_ERR_SHAPE).
 */
LS_API double ls_item(const ls_tensor *tensor);
/**
 * Returns the element at `index` as a double. `index` has one number per dimension, and negative numbers count from the
 * end. `index` may be NULL if the tensor has no dimensions. Returns NAN and sets LS_ERR_ARGUMENT if an argument is NULL
 * or the index is out of range.
 */
LS_API double ls_at(const ls_tensor *tensor, const int64_t *index);
/**
 * Returns true if both tensors have the same shape, the same dtype and the same bits in every element. Returns false if
 * one of them is NULL. Returns false and sets an error if a tensor was freed or its elements cannot be copied to the
 * host.
 */
LS_API bool ls_equal(const ls_tensor *a, const ls_tensor *b);
/**
 * Returns true if the shapes are equal and |a - b| <= absolute + relative * |b| for all elements. The dtypes may
 * differ. The differences of integers are exact. Otherwise, the elements are compared as f64. NaN counts as equal to
 * NaN, and an infinity only to the same infinity. Returns false if a tensor is NULL. Fails as ls_equal does.
 */
LS_API bool ls_allclose(const ls_tensor *a, const ls_tensor *b, double relative, double absolute);

/**
 * Formats the tensor as PyTorch prints it: in aligned columns with 4 digits, and without the middle of large tensors.
 * Writes at most `capacity` bytes into `text`, including the terminating zero byte. Returns the length of the complete
 * text, as snprintf does.
 */
LS_API size_t ls_format(const ls_tensor *tensor, char *text, size_t capacity);
/** Prints the text of ls_format, followed by a newline, to standard output. */
LS_API void ls_print(const ls_tensor *tensor);

/* ---- in-place changes -------------------------------------------------------------------------------------------
 * These functions are never recorded. They fail with LS_ERR_STATE if the tensor is
 * - the result of a recorded operation that no backward pass has consumed,
 * - a leaf that requires a gradient, or a consumed result, unless recording is switched off (ls_no_grad),
 * - a view that repeats its elements (ls_expand).
 *
 * A recorded operation keeps its inputs, not copies of them. If the library changes an input in place, through the
 * tensor or any view of it, and the backward pass needs the old values, ls_backward fails with LS_ERR_STATE. Such
 * changes are made, for example, by these functions, optimizer steps, ls_batch_norm (running statistics) and
 * ls_sync_parameters. Change an input after the backward pass, or change a copy: ls_clone(ls_detach(x)).
 *
 * The library does not notice writes through ls_data, whether by the program or by ls_comm_recv and similar calls: call
 * ls_mark_changed after them.
 */

/**
 * Copies `source` into `dest`, with broadcasting and conversion to the dtype of `dest` (ls_to). Fails with LS_ERR_SHAPE
 * if the shape of `source` does not broadcast to the shape of `dest`. Fails with LS_ERR_ARGUMENT if `dest` is NULL, or
 * if `source` is NULL without an earlier failure.
 */
LS_API ls_status ls_copy_into(ls_tensor *dest, const ls_tensor *source) LS_WARN_UNUSED;
/**
 * Sets every element to `value`. Fails with LS_ERR_ARGUMENT if the tensor is NULL, or if its dtype is an integer type
 * or bool and cannot represent `value` exactly.
 */
LS_API ls_status ls_fill(ls_tensor *tensor, double value) LS_WARN_UNUSED;
/**
 * Notifies the library that the program has written elements through ls_data. If a backward pass needs the old values,
 * it then fails with LS_ERR_STATE instead of computing a wrong gradient. ls_copy_into and ls_fill call this function
 * themselves. If several ls_from_memory tensors share memory, call it for each of them, because they are not views of
 * each other. NULL is allowed.
 */
LS_API void ls_mark_changed(ls_tensor *tensor);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/** The kinds of tensor memory. */
typedef enum ls_memory_kind {
    LS_MEMORY_PARAMETERS = 0, /**< parameters and buffers of modules */
    LS_MEMORY_GRADIENTS,      /**< gradients of parameters and other leaves, even if they are sent in place */
    LS_MEMORY_OPTIMIZER,      /**< state of optimizers and of ls_outer, and averages of weights (ls_ema) */
    LS_MEMORY_BUCKETS,        /**< buffers for ls_data_parallel and ls_reducer; error feedback of PowerSGD */
    LS_MEMORY_DATA,           /**< data sets in memory, and batches of loaders */
    LS_MEMORY_ACTIVATIONS,    /**< all other tensors: results of operations, and the program's tensors */
    LS_MEMORY_KINDS           /**< the number of kinds */
} ls_memory_kind;

/** Bytes of tensor memory by kind. */
typedef struct ls_memory {
    int64_t total;                  /**< sum of `bytes` */
    int64_t peak_total;             /**< maximum of the total since ls_memory_reset_peak, or since the thread started */
    int64_t bytes[LS_MEMORY_KINDS]; /**< current bytes of each kind */
    int64_t peak[LS_MEMORY_KINDS];  /**< bytes of each kind at the time of `peak_total`, which is their sum */
} ls_memory;

/**
 * Writes the bytes of tensor memory of this thread, and so of this rank, to `*memory`: memory on all devices that the
 * thread and the threads of its loaders have allocated and not freed.
 *
 * ```c
 * ls_memory memory;
 * if (ls_memory_stats(&memory) == LS_OK) {
 *     printf("activations: %lld bytes at the peak\n", (long long)memory.peak[LS_MEMORY_ACTIVATIONS]);
 * }
 * ```
 *
 * - Gaps for alignment between parameters count. Freed memory that Lockstep keeps for reuse does not.
 * - Not counted: the program's memory (ls_from_memory), records of tensors and of the tape, work space of libraries,
 *   and buffers of communicators.
 * - Fails with LS_ERR_ARGUMENT if `memory` is NULL, and with LS_ERR_STATE in a thread of a loader.
 */
LS_API ls_status ls_memory_stats(ls_memory *memory) LS_WARN_UNUSED;
/** Resets the peak to the current total. Fails with LS_ERR_STATE in a thread of a loader. */
LS_API ls_status ls_memory_reset_peak(void);
/** Returns the name of a kind, for example "gradients", or "unknown" if the value is not a kind. */
LS_API const char *ls_memory_kind_name(ls_memory_kind kind);

#ifdef __cplusplus
}

static inline ls_shape ls_shape_of_list(std::initializer_list<int64_t> sizes) {
    return ls_shape_make(static_cast<int>(sizes.size()), sizes.begin());
}
static inline ls_axes ls_axes_of_list(std::initializer_list<int> axes) {
    return ls_axes_make(static_cast<int>(axes.size()), axes.begin());
}
#define LS_SHAPE(...) ls_shape_of_list({__VA_ARGS__})
#define LS_AXES(...)  ls_axes_of_list({__VA_ARGS__})
#define LS_SCALAR     ls_shape_make(0, nullptr)
#define LS_ALL_AXES   ls_axes_make(0, nullptr)
#endif

#endif
