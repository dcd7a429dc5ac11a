/**
 * @file tensor.h
 * Creates, inspects, copies and prints tensors, and opens and ends scopes. Operations on tensors are in autograd.h.
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
 * - A tensor that a call returns belongs to the innermost scope of its thread. ls_scope_end frees it.
 * - A tensor that is created outside any scope belongs to the caller, who frees it with ls_release.
 * - Constructors (of data.h, nn.h and parallel.h) take ownership of their tensors, data sets and modules, also if they
 *   fail. Each of them holds one reference, and the last reference frees the object. So one tensor may be a parameter
 *   of two modules, and one data set may feed two loaders.
 * - A tensor in a scope also stays in the scope until the scope ends. A tensor created outside any scope no longer
 *   belongs to the caller after a constructor took ownership of it.
 *
 * Only one thread may use a tensor, a data set or a module at a time.
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

/** A tensor and its name: an entry of a file or of a saved state. */
typedef struct ls_named {
    const char *name;
    ls_tensor *tensor;
} ls_named;

/* ---- shapes --------------------------------------------------------------------------------------------------- */

/** The sizes of a tensor, outermost first. ndim 0 is the shape of a single number. Write LS_SHAPE(64, 784). */
typedef struct ls_shape {
    int ndim;
    int64_t size[LS_MAX_DIMS];
} ls_shape;

/**
 * Axes of an operation. Negative axes count from the end. count 0 selects all axes. Write LS_AXES(0, -1) or
 * LS_ALL_AXES.
 */
typedef struct ls_axes {
    int count;
    int axis[LS_MAX_DIMS];
} ls_axes;

/**
 * Returns a shape with `ndim` sizes, which it copies. The ndim of the result is -1, and every call refuses it, if ndim
 * is negative or above LS_MAX_DIMS, or if `size` is NULL with ndim > 0.
 */
LS_API ls_shape ls_shape_make(int ndim, const int64_t *size);

/**
 * Returns `count` axes, which it copies. The count of the result is -1, and every call refuses it, if count is negative
 * or above LS_MAX_DIMS, or if `axis` is NULL with count > 0.
 */
LS_API ls_axes ls_axes_make(int count, const int *axis);

#ifndef __cplusplus
/* LS_SHAPE and LS_AXES call no function, so programs that open the library with dlopen can use them. A list with one
 * item too many compiles, and calls refuse it because of its length. */
#define LS_LIST(type, item, ...)                                                                                       \
    (((union {                                                                                                         \
         struct {                                                                                                      \
             int length;                                                                                               \
             item items[LS_MAX_DIMS + 1];                                                                              \
         } list;                                                                                                       \
         type value;                                                                                                   \
     }){.list = {(int)(sizeof((const item[]){__VA_ARGS__}) / sizeof(item)), {__VA_ARGS__}}})                           \
         .value)
/** An ls_shape: LS_SHAPE(64, 784) has two dimensions. */
#define LS_SHAPE(...) LS_LIST(ls_shape, int64_t, __VA_ARGS__)
/** An ls_axes: LS_AXES(0, -1) has two axes. */
#define LS_AXES(...) LS_LIST(ls_axes, int, __VA_ARGS__)
/** The shape of a single number. */
#define LS_SCALAR ((ls_shape){0, {0}})
/** All axes. */
#define LS_ALL_AXES ((ls_axes){0, {0}})
#endif

/* ---- scopes --------------------------------------------------------------------------------------------------- */

/** Opens a scope on this thread, inside its innermost scope. Returns NULL if out of memory. */
LS_API ls_scope *ls_scope_begin(void);

/**
 * Ends the scope, also if an operation in it failed.
 *
 * - It frees everything created in the scope. A later use of such a tensor is LS_ERR_STATE.
 * - It restores the modes ls_no_grad and ls_autocast of this thread to their state at ls_scope_begin.
 * - It returns the first error in the scope, and ls_error_message() returns the message of this error. It returns LS_OK
 *   if there was no error.
 *
 * The scope must be the innermost open scope of this thread. Otherwise the call fails with LS_ERR_STATE and changes
 * nothing.
 */
LS_API ls_status ls_scope_end(ls_scope *scope);

/**
 * Moves the tensor to the enclosing scope, with the part of the tape that its gradient needs. Without an enclosing
 * scope, returns ownership to the caller, who frees it with ls_release. Returns the tensor. NULL is allowed.
 */
LS_API ls_tensor *ls_keep(ls_tensor *tensor);

/**
 * Frees a tensor immediately, inside or outside a scope. Other tensors and the tape keep the memory and the record that
 * they still need. A constructor that took ownership of the tensor keeps it. NULL is allowed.
 */
LS_API void ls_release(ls_tensor *tensor);

/**
 * Returns another tensor with the same memory and without history. A change of one tensor is visible in the other.
 *
 * Optimizers, ls_data_parallel and ls_sync_parameters move the parameters of a model into new memory once. An alias
 * from before this move keeps the old memory. These calls fail with LS_ERR_UNSUPPORTED if two parameters share memory.
 * To tie two layers, add the same tensor to both.
 */
LS_API ls_tensor *ls_alias(const ls_tensor *tensor);

/* ---- creation --------------------------------------------------------------------------------------------------- */

/** Returns a tensor with undefined elements. All calls that create tensors return NULL and set an error on failure. */
LS_API ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype);
/** Returns a tensor of zeros. */
LS_API ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype);
/** Returns a tensor of ones. */
LS_API ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype);
/**
 * Returns a tensor of elements `value`. Fails with LS_ERR_ARGUMENT if an integer dtype or bool cannot hold it exactly.
 */
LS_API ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value);
/** Returns a tensor of 0, 1, 2, ... in row-major order, in any dtype except bool. */
LS_API ls_tensor *ls_arange(ls_shape shape, ls_dtype dtype);
/** Returns uniform numbers in [0, 1), in a floating dtype. Uses the next stream of the generator (ls_seed). */
LS_API ls_tensor *ls_rand(ls_shape shape, ls_dtype dtype);
/** Returns normal numbers with mean 0 and deviation 1, in a floating dtype. Uses the next stream of the generator. */
LS_API ls_tensor *ls_randn(ls_shape shape, ls_dtype dtype);
/** Returns random integers in [low, high). Uses the next stream of the generator. */
LS_API ls_tensor *ls_randint(ls_shape shape, ls_dtype dtype, int64_t low, int64_t high);
/** Returns the numbers 0 to n - 1 in random order, as i64. Uses the next stream of the generator. */
LS_API ls_tensor *ls_randperm(int64_t n);
/** Copies the elements of a tensor from `data`, which is dense and in row-major order. */
LS_API ls_tensor *ls_from(ls_shape shape, ls_dtype dtype, const void *data);
/**
 * Returns a tensor that uses `data` as its memory: dense, in row-major order, aligned for the dtype. Calls
 * `release(data, user)` when nothing refers to the memory any longer, or immediately if the call fails. If `release` is
 * NULL, the memory must outlive the tensor.
 */
LS_API ls_tensor *ls_from_memory(ls_shape shape, ls_dtype dtype, void *data, void (*release)(void *data, void *user),
                                 void *user);
/** Returns `value` as a tensor without dimensions. */
LS_API ls_tensor *ls_scalar(double value, ls_dtype dtype);

/* ---- devices ----------------------------------------------------------------------------------------------------
 * A device holds tensors and computes on them: "cpu", or a GPU as "cuda:0", "cuda:1" and so on ("cuda" is "cuda:0").
 * The first use of a GPU's name loads the GPU plug-in (docs/reference/gpu.md).
 *
 * The tensors of an operation are on one device, and its result is there too. ls_to_device moves tensors. A GPU works
 * asynchronously: the next call that needs a result on the host (ls_item, ls_print, ls_device_wait, ...) returns the
 * error of an operation that failed there.
 */

/** Returns a borrowed pointer to the name of the tensor's device, or NULL for NULL. */
LS_API const char *ls_device_of(const ls_tensor *tensor);
/**
 * Sets the default device of this thread. New tensors that no other tensor determines (of ls_zeros and ls_from,
 * parameters of layers, batches of loaders) are created there. Initially the default is the value of LOCKSTEP_DEVICE,
 * or "cpu" if it is not set. Fails with
 * - LS_ERR_ARGUMENT if no device has this name,
 * - LS_ERR_UNSUPPORTED if the GPU plug-in cannot be loaded,
 * - LS_ERR_DEVICE if there is no usable GPU.
 *
 * The message lists the available devices, or the reason that they are not available.
 */
LS_API ls_status ls_use_device(const char *name) LS_WARN_UNUSED;
/**
 * Returns a borrowed pointer to the name of the default device. Returns NULL and sets an error if no device has the
 * name in LOCKSTEP_DEVICE.
 */
LS_API const char *ls_default_device(void);
/** Waits until the device has finished the work of this thread. Returns the first error since the previous wait. */
LS_API ls_status ls_device_wait(const char *name) LS_WARN_UNUSED;

/* ---- inspection ------------------------------------------------------------------------------------------------- */

/** Returns the number of dimensions, or 0 for NULL. */
LS_API int ls_ndim(const ls_tensor *tensor);
/** Returns the size along `axis` (negative: from the end), or 0 if this axis does not exist. */
LS_API int64_t ls_size(const ls_tensor *tensor, int axis);
/** Returns the stride along `axis` in elements, or 0 if this axis does not exist. */
LS_API int64_t ls_stride(const ls_tensor *tensor, int axis);
/** Returns all sizes. */
LS_API ls_shape ls_shape_of(const ls_tensor *tensor);
/** Returns the number of elements, or 0 for NULL. */
LS_API int64_t ls_numel(const ls_tensor *tensor);
/** Returns the dtype, or LS_F32 for NULL. */
LS_API ls_dtype ls_dtype_of(const ls_tensor *tensor);
/** Returns true if the elements are dense in row-major order. */
LS_API bool ls_is_contiguous(const ls_tensor *tensor);
/**
 * Returns a borrowed pointer for reading the elements of a tensor. The pointer is valid until the tensor is freed.
 *
 * Returns NULL and sets LS_ERR_STATE if the tensor is not contiguous (call ls_contiguous first) or is on a device whose
 * memory the program cannot read (call ls_to_device(tensor, "cpu") first). Sets LS_ERR_ARGUMENT for NULL.
 *
 * The program may send the elements to other ranks through this pointer. So if the elements combine samples of a
 * data-parallel module, the library stops following them: it no longer warns if the tensor is a constant in a loss.
 */
LS_API const void *ls_data_const(const ls_tensor *tensor);
/**
 * Returns a borrowed pointer for writing the elements of a tensor, with the lifetime, errors and effect of
 * ls_data_const. The library does not see writes through this pointer: call ls_mark_changed after them.
 */
LS_API void *ls_data(ls_tensor *tensor);
/**
 * Returns the single element of a tensor as a double. Returns NAN and sets an error if the tensor does not have exactly
 * one element.
 */
LS_API double ls_item(const ls_tensor *tensor);
/**
 * Returns the element at `index`, which has one number per dimension (negative: from the end). Returns NAN and sets an
 * error if the index is out of range.
 */
LS_API double ls_at(const ls_tensor *tensor, const int64_t *index);
/**
 * Returns true if both tensors have the same shape, the same dtype and the same bits in every element. Returns false
 * for NULL. Returns false and sets an error if a tensor was freed or its elements cannot be copied to the host.
 */
LS_API bool ls_equal(const ls_tensor *a, const ls_tensor *b);
/**
 * Returns true if the shapes are equal and |a - b| <= absolute + relative * |b| for all elements. NaN equals NaN.
 * Returns false for NULL, and fails in the same way as ls_equal.
 */
LS_API bool ls_allclose(const ls_tensor *a, const ls_tensor *b, double relative, double absolute);

/**
 * Writes the tensor as PyTorch prints it: aligned columns, 4 digits, without the middle of large tensors. Writes at
 * most `capacity` bytes with the final zero, as snprintf does. Returns the length of the whole text.
 */
LS_API size_t ls_format(const ls_tensor *tensor, char *text, size_t capacity);
/** Prints the tensor like ls_format to standard output, with a newline. */
LS_API void ls_print(const ls_tensor *tensor);

/* ---- in-place changes -------------------------------------------------------------------------------------------
 * These calls are never recorded. They fail with LS_ERR_STATE for
 * - the result of a recorded operation,
 * - a leaf that requires a gradient, unless ls_no_grad is on,
 * - a view that repeats its elements.
 *
 * A recorded operation keeps its inputs, not copies of them. If the library changes an input in place, through any view
 * of it, and the backward pass needs the old value, ls_backward fails with LS_ERR_STATE. These calls, optimizer steps,
 * ls_batch_norm (running statistics) and ls_sync_parameters are such changes. Change an input after the backward pass,
 * or use ls_clone of it.
 *
 * The library does not see writes through ls_data, by the program or by ls_comm_recv and similar calls: call
 * ls_mark_changed after them.
 */

/** Copies `source`, with broadcasting and conversion, into `dest`. */
LS_API ls_status ls_copy_into(ls_tensor *dest, const ls_tensor *source) LS_WARN_UNUSED;
/** Sets every element to `value`. LS_ERR_ARGUMENT: the dtype of the tensor cannot hold it. */
LS_API ls_status ls_fill(ls_tensor *tensor, double value) LS_WARN_UNUSED;
/**
 * Tells the library that the program has written elements through ls_data. A backward pass that needs the old values
 * then fails with LS_ERR_STATE instead of computing a wrong gradient. ls_copy_into and ls_fill do this themselves. NULL
 * is allowed.
 */
LS_API void ls_mark_changed(ls_tensor *tensor);

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
