/*
 * tensor: arrays, the scopes that free them, and the interface to devices. It depends only on base.
 *
 * This header defines the members of a tensor, for the layers above. A tensor is a small record that refers to a
 * reference-counted storage. The record is also reference-counted (not atomically: a tensor belongs to one thread at a
 * time). The scope in which the tensor was created, or the user, holds one reference; nodes of the tape hold the
 * others.
 */
#ifndef LS_TENSOR_TENSOR_H
#define LS_TENSOR_TENSOR_H

#include <lockstep/tensor.h>

#include "base/atomics.h"

typedef struct ls_device ls_device;
typedef struct ls_storage ls_storage;
typedef struct ls_account ls_account;     /* see account.h */
typedef struct ls_leaf ls_leaf;           /* for autograd: the data of a leaf that requires a gradient */
typedef struct ls_tape_link ls_tape_link; /* see scope.h */

/*
 * A block of device memory, shared by reference counting. Tensors that share a block have separate storages, each a
 * part of the whole, so that a change to one tensor does not count as a change to the others.
 */
struct ls_storage {
    /* The first cache line, which all storages use. */
    atomic_int references;
    uint32_t version;   /* number of in-place changes: see ls_tensor_changed */
    atomic_int aliases; /* number of tensors created by ls_alias and ls_detach */
    uint8_t kind;       /* an ls_memory_kind, if the storage is counted */
    const ls_device *device;
    void *memory;
    size_t bytes;
    void (*release)(void *memory, void *user); /* frees memory that does not belong to the device; otherwise NULL */
    ls_storage *whole;      /* the storage of which this storage is a part, held; or this storage itself */
    ls_account *account;    /* counts the storage's bytes; NULL if they are not counted, because the storage is empty, a
                               part, or the program's */
    void *user;             /* for `release` */
    const char *changed_by; /* the last call that changed the storage, for messages; not set if the version is 0 */
};

/* For this and larger values of ls_tensor.spread, the elements combine samples of this rank (autograd/mixing.c). */
#define LS_SPREAD_COMBINED 64

struct ls_tensor {
    void *data; /* the first element: storage memory plus offset */
    ls_storage *storage;
    int64_t count;
    int32_t references;
    uint8_t dtype;
    int8_t ndim;
    bool contiguous;
    bool needs_grad;    /* the tensor is a leaf that requires a gradient, or was computed from such a leaf */
    uint32_t spread;    /* for autograd: the position of a data-parallel module's samples in the elements */
    bool is_alias;      /* made by ls_alias or ls_detach */
    ls_tape_link *node; /* the node that made the tensor; a weak reference, because the tape owns the nodes. NULL for
                           leaves and without recording */
    ls_leaf *leaf;      /* NULL except for leaves that require a gradient */
    void (*leaf_free)(ls_leaf *leaf); /* called with leaf when the tensor is freed */
    ls_scope *scope; /* the scope that holds one reference; NULL if the user holds it; &ls_nowhere if only other objects
                        hold references */
    ls_tensor *scope_older;
    ls_tensor *scope_newer;
    int64_t size[LS_MAX_DIMS];
    int64_t stride[LS_MAX_DIMS]; /* in elements; 0 repeats */
};

static inline const ls_device *ls_tensor_device(const ls_tensor *tensor) {
    return tensor->storage->device;
}

/*
 * Constructors. Each returns a tensor with one reference, held by the innermost scope (or by the caller if no scope is
 * open), or NULL with the error set and noted in the scope.
 */

/* Returns a dense, uninitialized tensor on the device. Error messages name `call`. */
ls_tensor *ls_tensor_new(const char *call, const ls_device *device, int ndim, const int64_t *size, ls_dtype dtype);

/* Returns a view of `base` with the given sizes, strides and offset (in elements, relative to base's first element). */
ls_tensor *ls_tensor_view(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride, int64_t offset);

/* The same two functions outside any scope: the caller holds the reference. */
ls_tensor *ls_tensor_new_owned(const char *call, const ls_device *device, int ndim, const int64_t *size,
                               ls_dtype dtype);
ls_tensor *ls_tensor_view_owned(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride,
                                int64_t offset);

/* Returns a new tensor with the shape and device of `like`. */
static inline ls_tensor *ls_tensor_like(const char *call, const ls_tensor *like, ls_dtype dtype) {
    return ls_tensor_new(call, ls_tensor_device(like), like->ndim, like->size, dtype);
}
static inline ls_tensor *ls_tensor_like_owned(const char *call, const ls_tensor *like, ls_dtype dtype) {
    return ls_tensor_new_owned(call, ls_tensor_device(like), like->ndim, like->size, dtype);
}

/* Returns whether an element of the dtype can represent the number: integers and bool exactly, floats after
 * rounding. */
bool ls_dtype_holds(ls_dtype dtype, double value);

/*
 * Returns a dense tensor over the whole of `storage`. Consumes the storage, even on failure. The caller must check the
 * sizes. Returns NULL, without a message, if out of memory. The caller holds the reference.
 */
ls_tensor *ls_tensor_of_storage(ls_storage *storage, int ndim, const int64_t *size, ls_dtype dtype);

/* Returns a dense tensor over device memory that another object owns. */
ls_tensor *ls_tensor_over(const ls_device *device, const ls_shape *shape, ls_dtype dtype, void *memory);

/* Returns whether these strides are dense in row-major order. */
bool ls_strides_are_dense(int ndim, const int64_t *size, const int64_t *stride);

/*
 * Must be called for every in-place change, so that a backward pass that needs the previous elements can detect it.
 * `by` is the name of the public call for messages; the pointer is stored.
 */
static inline void ls_tensor_changed(const ls_tensor *tensor, const char *by) {
    tensor->storage->version++;
    tensor->storage->changed_by = by;
}

/*
 * Added to the reference count of a tensor while its elements are not on this rank: a parameter of another rank (ZeRO,
 * stage 3). Only its shape, dtype and gradient may be used. The mark may remain until the tensor is freed.
 */
enum { LS_ABSENT = 1 << 30 };

/*
 * Returns whether the tensor was freed with its scope, or released. Its record remains for a while, so that a program
 * that still has the pointer gets an error (see ls_thread_state). The record has no references, and only its shape and
 * dtype are valid.
 */
static inline bool ls_tensor_is_freed(const ls_tensor *tensor) {
    return __builtin_expect(tensor->references == 0, 0);
}

/* Returns whether the tensor was freed, or is absent. */
static inline bool ls_tensor_is_gone(const ls_tensor *tensor) {
    return __builtin_expect((uint32_t)tensor->references - 1 >= (uint32_t)LS_ABSENT - 1, 0);
}

/*
 * Fails with LS_ERR_STATE, noted in the scope, because the tensor was freed or is absent. `argument` is its position
 * among the arguments of `call`, counted from 1; 0 means the only argument.
 */
ls_status ls_tensor_refuse_gone(const char *call, int argument, const ls_tensor *tensor);

/* Returns false, with the error of ls_tensor_refuse_gone, if the tensor was freed. The tensor is the only tensor
 * argument of `call`. */
static inline bool ls_tensor_exists(const char *call, const ls_tensor *tensor) {
    return !ls_tensor_is_freed(tensor) || ls_tensor_refuse_gone(call, 0, tensor) == LS_OK;
}

/* Same as ls_tensor_exists, for a call that uses the elements: also returns false if the tensor is absent. */
static inline bool ls_tensor_is_here(const char *call, const ls_tensor *tensor) {
    return !ls_tensor_is_gone(tensor) || ls_tensor_refuse_gone(call, 0, tensor) == LS_OK;
}

/*
 * Fails, in the name of the public `call`, if the tensor cannot be changed in place: it is the result of a recorded
 * operation, requires a gradient while recording is on, or repeats its elements.
 */
ls_status ls_tensor_check_changeable(const char *call, const ls_tensor *tensor);

/* Returns whether the caller has the only reference to the tensor and its elements. */
static inline bool ls_tensor_is_alone(const ls_tensor *tensor) {
    return tensor->references == 1 && atomic_load_explicit(&tensor->storage->references, memory_order_relaxed) == 1;
}

/* Frees a tensor that has no references. */
void ls_tensor_destroy(ls_tensor *tensor);

/* Adds and drops references. ls_tensor_drop frees the tensor when its last reference is dropped; NULL is allowed. */
static inline ls_tensor *ls_tensor_hold(ls_tensor *tensor) {
    tensor->references++;
    return tensor;
}
static inline void ls_tensor_drop(ls_tensor *tensor) {
    if (tensor != NULL && (--tensor->references & ~LS_ABSENT) <= 0) {
        ls_tensor_destroy(tensor);
    }
}

/*
 * Returns a reference for a constructor that takes ownership of the tensor: the user's reference if the user holds the
 * tensor outside any scope, otherwise a new reference. So several objects may own a tensor, and the tensor also remains
 * in its scope. Returns NULL for NULL and for a freed tensor. ls_tensor_disown drops the reference; if it is the last,
 * a program that still uses the pointer gets an error.
 */
ls_tensor *ls_tensor_own(ls_tensor *tensor);
void ls_tensor_disown(ls_tensor *tensor);

/* Removes a module's tensor from the scope in which it was created, so that only the module keeps it alive. Returns
 * the tensor. */
static inline ls_tensor *ls_out_of_scope(ls_tensor *tensor) {
    ls_release(tensor);
    return tensor;
}

/* Transfers the reference of a scope or the user to the caller. Returns NULL for NULL. */
ls_tensor *ls_tensor_take(ls_tensor *tensor);

/* Transfers the caller's reference to the innermost scope, or to the user if no scope is open. Returns NULL for
 * NULL. */
ls_tensor *ls_tensor_give(ls_tensor *tensor);

/*
 * Moves the elements of a leaf into `storage`, which must be large enough, at an offset of `offset` elements; they
 * become a part of it. Pointers to the tensor stay valid. Used to place parameters and gradients in flat buffers. The
 * tensor must be contiguous. Without `elements`, the tensor gets the elements that the storage already contains there.
 */
ls_status ls_tensor_move_storage(ls_tensor *tensor, ls_storage *storage, int64_t offset, bool elements);

/*
 * Moves the elements of a leaf, which must be contiguous, to a new storage on the device, unless they are already
 * there. Pointers to the tensor stay valid.
 */
ls_status ls_tensor_move_device(ls_tensor *tensor, const ls_device *device);

/*
 * Returns whether the program has other tensors over the same memory, created by ls_alias or ls_detach, or has the
 * tensor of which this tensor is an alias.
 */
bool ls_tensor_has_alias(const ls_tensor *tensor);

/* Records that the tensor is about to leave its storage. */
static inline void ls_tensor_end_alias(ls_tensor *tensor) {
    if (__builtin_expect(tensor->is_alias, 0)) {
        atomic_fetch_sub_explicit(&tensor->storage->aliases, 1, memory_order_relaxed);
        tensor->is_alias = false;
    }
}

/* Create and free storages. A new storage has one reference. If out of memory, all return NULL, but only ls_storage_for
 * sets an error. It also sets the kind. */
ls_storage *ls_storage_for(const char *call, const ls_device *device, size_t bytes, ls_memory_kind kind);
ls_storage *ls_storage_new(const ls_device *device, size_t bytes);
ls_storage *ls_storage_wrap(const ls_device *device, void *memory, size_t bytes,
                            void (*release)(void *memory, void *user), void *user);
void ls_storage_drop(ls_storage *storage); /* NULL is allowed */

static inline ls_storage *ls_storage_hold(ls_storage *storage) {
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
    return storage;
}

/* Charges memory that ls_storage_wrap has wrapped to the calling thread. */
void ls_storage_count(ls_storage *storage, ls_memory_kind kind);
/*
 * Changes the kind under which the storage, or the whole of which it is a part, is counted. Only activations become
 * data. Does nothing if the storage is not counted.
 */
void ls_storage_change_kind(ls_storage *storage, ls_memory_kind kind);
static inline void ls_storage_set_kind(ls_storage *storage, ls_memory_kind kind) {
    if (storage->whole->kind != kind) {
        ls_storage_change_kind(storage, kind);
    }
}

/*
 * Returns x itself if it is contiguous and has this dtype, otherwise a dense, converted copy. Returns ownership of the
 * reference to the caller.
 */
ls_tensor *ls_tensor_dense(const char *call, const ls_tensor *x, ls_dtype dtype);

/* Returns x itself if it is on the device, otherwise a dense copy there. Returns ownership of the reference to the
 * caller. */
ls_tensor *ls_tensor_on_device(const char *call, const ls_tensor *x, const ls_device *device);

/* Returns the elements of x in this dtype, dense and on the host: x itself or a copy. Returns ownership of the
 * reference to the caller. */
ls_tensor *ls_tensor_dense_on_host(const char *call, const ls_tensor *x, ls_dtype dtype);

/* Copies one element, at `offset` elements after the first, from the device in its memory format (at most 8 bytes). */
ls_status ls_tensor_fetch(const ls_tensor *tensor, int64_t offset, void *element);

/* Returns the first element as a number; NAN, with an error, if a device fails. */
double ls_tensor_number(const ls_tensor *tensor);

/* Converts an element in memory to a number. */
double ls_element_number(ls_dtype dtype, const void *element);

/* Returns whether two tensors have the same sizes. */
static inline bool ls_tensor_same_shape(const ls_tensor *a, const ls_tensor *b) {
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++) {
        same = a->size[i] == b->size[i];
    }
    return same;
}

/* Returns whether two shapes are equal. */
static inline bool ls_shape_equal(const ls_shape *a, const ls_shape *b) {
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++) {
        same = a->size[i] == b->size[i];
    }
    return same;
}

/* Maps -ndim..ndim-1 to 0..ndim-1. Returns -1 if the axis is out of range. */
int ls_axis_index(int axis, int ndim);

/* "[64, 784]" for messages. */
typedef struct ls_shape_text {
    char text[LS_MAX_DIMS * 22 + 3];
} ls_shape_text;
ls_shape_text ls_shape_describe(int ndim, const int64_t *size);
#define LS_SHAPE_TEXT(tensor) (ls_shape_describe((tensor)->ndim, (tensor)->size).text)

#endif
