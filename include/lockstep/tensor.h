/**
 * @file tensor.h
 * Tensors and scopes: making, inspecting, copying and printing arrays, and who frees them. Operations on tensors are in
 * autograd.h.
 *
 * Ownership: a tensor that a call returns belongs to the innermost scope of its thread and is freed by ls_scope_end;
 * ls_keep lifts it out of that scope. With no scope open it belongs to the caller, who gives it back with ls_release.
 *
 * Constructors (of data.h, nn.h and parallel.h) take over the tensors, data sets and modules they are given, even when
 * they fail. Taking over is taking one reference: the object goes with its last. A tensor of a scope stays in it as
 * well until the scope ends; one that belongs to the caller, who made it with no scope open, is his no longer. What has
 * been taken over can be taken over again, so that one tensor may be a parameter of two modules, one data set feed two
 * loaders.
 *
 * A tensor, a data set, a module is used by one thread at a time.
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

/** Frees together what was made together. Opaque. */
typedef struct ls_scope ls_scope;

/** A tensor and its name: an entry of a file or of a saved state. */
typedef struct ls_named {
    const char *name;
    ls_tensor *tensor;
} ls_named;

/* ---- shapes --------------------------------------------------------------------------------------------------- */

/** The sizes of a tensor, outermost first; ndim 0 is a single number. Write LS_SHAPE(64, 784). */
typedef struct ls_shape {
    int ndim;
    int64_t size[LS_MAX_DIMS];
} ls_shape;

/** Axes to work over, negative ones counted from the end; count 0 means all. Write LS_AXES(0, -1) or LS_ALL_AXES. */
typedef struct ls_axes {
    int count;
    int axis[LS_MAX_DIMS];
} ls_axes;

/** Returns a shape of `ndim` sizes (copied). If there are more than LS_MAX_DIMS, ndim is -1, which every call refuses.
 */
LS_API ls_shape ls_shape_make(int ndim, const int64_t *size);

/** Returns `count` axes (copied). If there are more than LS_MAX_DIMS, count is -1, which every call refuses. */
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
/** LS_SHAPE(64, 784) is an ls_shape of two dimensions. */
#define LS_SHAPE(...) LS_LIST(ls_shape, int64_t, __VA_ARGS__)
/** LS_AXES(0, -1) is an ls_axes of two axes. */
#define LS_AXES(...) LS_LIST(ls_axes, int, __VA_ARGS__)
/** The shape of a single number. */
#define LS_SCALAR ((ls_shape){0, {0}})
/** All axes. */
#define LS_ALL_AXES ((ls_axes){0, {0}})
#endif

/* ---- scopes --------------------------------------------------------------------------------------------------- */

/** Opens a scope on this thread, inside the one that is open. NULL when there is no memory. */
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
 * Lifts the tensor out of its scope, into the scope around that one, or, where there is none, to the caller. The part
 * of the tape that its gradient needs goes with it. Returns the tensor. NULL is allowed.
 */
LS_API ls_tensor *ls_keep(ls_tensor *tensor);

/** Frees a tensor now, in a scope or not. What others still need of it (its memory, its place on the tape) lives on,
 * and one that was taken over stays with who did so. NULL is allowed. */
LS_API void ls_release(ls_tensor *tensor);

/**
 * Returns one more tensor over the same memory, without history: a change to one is seen through the other.
 *
 * Optimizers, ls_data_parallel and ls_sync_parameters move a model's parameters into memory of their own, once: an
 * alias made before that keeps the old memory. To tie two layers, add the same tensor to both; two parameters that
 * share memory are refused there with LS_ERR_UNSUPPORTED.
 */
LS_API ls_tensor *ls_alias(const ls_tensor *tensor);

/* ---- making --------------------------------------------------------------------------------------------------- */

/** A tensor whose elements are not set. All calls that make tensors return NULL and set an error on failure. */
LS_API ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype);
/** Every element is 0. */
LS_API ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype);
/** Every element is 1. */
LS_API ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype);
/** Every element is `value`. Fails with LS_ERR_ARGUMENT if an integer dtype or bool cannot hold it exactly. */
LS_API ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value);
/** 0, 1, 2, ... in row-major order; any dtype but bool. */
LS_API ls_tensor *ls_arange(ls_shape shape, ls_dtype dtype);
/** Uniform in [0, 1); a floating dtype. Takes the next stream of ls_seed's generator. */
LS_API ls_tensor *ls_rand(ls_shape shape, ls_dtype dtype);
/** Normal with mean 0 and deviation 1; a floating dtype. Takes the next stream of ls_seed's generator. */
LS_API ls_tensor *ls_randn(ls_shape shape, ls_dtype dtype);
/** Integers in [low, high); takes the next stream. */
LS_API ls_tensor *ls_randint(ls_shape shape, ls_dtype dtype, int64_t low, int64_t high);
/** The numbers 0 to n - 1 shuffled, as i64; takes the next stream. */
LS_API ls_tensor *ls_randperm(int64_t n);
/** Copies shape-many elements of the dtype, row-major and dense, from `data`. */
LS_API ls_tensor *ls_from(ls_shape shape, ls_dtype dtype, const void *data);
/**
 * A tensor over memory of the caller's: dense, row-major, aligned for the dtype. When nothing refers to it any longer,
 * `release(data, user)` is called, at once when the call fails (it may be NULL: the memory then outlives the tensor).
 */
LS_API ls_tensor *ls_from_memory(ls_shape shape, ls_dtype dtype, void *data, void (*release)(void *data, void *user),
                                 void *user);
/** The number as a tensor of no dimensions. */
LS_API ls_tensor *ls_scalar(double value, ls_dtype dtype);

/* ---- devices ---------------------------------------------------------------------------------------------------
 *
 * A device holds tensors and computes with them: "cpu", and GPUs as "cuda:0", "cuda:1", ..., by a module that is opened
 * when the first is named ("cuda" is "cuda:0"; docs/reference/gpu.md). The tensors of an operation are on one device,
 * where its result is, too; ls_to_device moves them. A device other than "cpu" works while the program goes on: what
 * fails there is told by the next call that needs a result on the host (ls_item, ls_print, ls_device_wait, ...).
 */

/** The name of the device that the tensor is on, lent; NULL for NULL. */
LS_API const char *ls_device_of(const ls_tensor *tensor);
/**
 * Tensors that this thread makes from now on of nothing but a shape (ls_zeros, ls_from, parameters of layers, batches
 * of loaders) are on that device. At first it is what LOCKSTEP_DEVICE says, else "cpu". LS_ERR_ARGUMENT for the name of
 * none, LS_ERR_UNSUPPORTED without the module of GPUs, LS_ERR_DEVICE where there is no GPU; the message says which
 * devices there are, or why not.
 */
LS_API ls_status ls_use_device(const char *name) LS_WARN_UNUSED;
/** The name of that device, lent; NULL and an error when LOCKSTEP_DEVICE names none. */
LS_API const char *ls_default_device(void);
/** Waits until the device has done all that this thread asked of it, and returns the first failure since the last
 * wait. */
LS_API ls_status ls_device_wait(const char *name) LS_WARN_UNUSED;

/* ---- looking -------------------------------------------------------------------------------------------------- */

/** The number of dimensions; 0 for NULL. */
LS_API int ls_ndim(const ls_tensor *tensor);
/** The size along `axis` (negative: from the end); 0 when there is no such axis. */
LS_API int64_t ls_size(const ls_tensor *tensor, int axis);
/** The step along `axis` in elements; 0 when there is no such axis. */
LS_API int64_t ls_stride(const ls_tensor *tensor, int axis);
/** All sizes. */
LS_API ls_shape ls_shape_of(const ls_tensor *tensor);
/** The number of elements; 0 for NULL. */
LS_API int64_t ls_numel(const ls_tensor *tensor);
/** The dtype; LS_F32 for NULL. */
LS_API ls_dtype ls_dtype_of(const ls_tensor *tensor);
/** Whether the elements are dense in row-major order. */
LS_API bool ls_is_contiguous(const ls_tensor *tensor);
/**
 * Returns a borrowed pointer for reading the elements of a tensor. The pointer is valid until the tensor is freed.
 *
 * Returns NULL and sets LS_ERR_STATE if the tensor is not contiguous (call ls_contiguous first) or is on a device whose
 * memory the program cannot read (call ls_to_device(tensor, "cpu") first).
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
/** The single element of a tensor as a double; NAN and an error when it does not have exactly one. */
LS_API double ls_item(const ls_tensor *tensor);
/** The element at `index` (as many numbers as dimensions, negative ones from the end); NAN and an error out of range.
 */
LS_API double ls_at(const ls_tensor *tensor, const int64_t *index);
/** Whether two tensors have the same shape and dtype and the same bits in every element. */
LS_API bool ls_equal(const ls_tensor *a, const ls_tensor *b);
/** Whether |a - b| <= absolute + relative * |b| everywhere (shapes equal, NaN equal to NaN). */
LS_API bool ls_allclose(const ls_tensor *a, const ls_tensor *b, double relative, double absolute);

/**
 * Writes the tensor as PyTorch prints one: aligned columns, 4 digits, the middle of large tensors left out. Like
 * snprintf: at most `capacity` bytes with the final zero; returns the length the whole text has.
 */
LS_API size_t ls_format(const ls_tensor *tensor, char *text, size_t capacity);
/** The same to standard output, with a newline. */
LS_API void ls_print(const ls_tensor *tensor);

/*
 * ---- changing in place ------------------------------------------------------------------------------------------
 * Never recorded. LS_ERR_STATE for what a recorded operation made, for leaves that require a gradient unless ls_no_grad
 * is on, and for views that repeat their elements. A recorded operation keeps its inputs, not copies of them. When the
 * library changes one of them in place (by these calls, an optimizer's step, ls_batch_norm's running statistics,
 * ls_sync_parameters and the like), through whatever view of it, ls_backward fails with LS_ERR_STATE if it comes to
 * need the value as it was: change what was used after the backward pass, or use ls_clone of it. The library does not
 * see writes through ls_data, by the program or by ls_comm_recv and similar calls: call ls_mark_changed after them.
 */

/** Copies `source`, broadcast and converted, into `dest`. */
LS_API ls_status ls_copy_into(ls_tensor *dest, const ls_tensor *source) LS_WARN_UNUSED;
/** Sets every element. */
LS_API ls_status ls_fill(ls_tensor *tensor, double value) LS_WARN_UNUSED;
/**
 * Tells the library that the program has written elements through ls_data. A backward pass that needs the values before
 * the write then fails with LS_ERR_STATE instead of computing a wrong gradient. The calls above do this themselves.
 * NULL is allowed.
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
