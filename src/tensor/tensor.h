/*
 * tensor: arrays, the scopes that free them, and the boundary to the devices that compute on them. It knows base only.
 *
 * This header: what a tensor is inside, for the floors above. A tensor is a small record over a reference-counted
 * storage; the record itself is reference-counted too (not atomically: a tensor belongs to one thread at a time). One
 * reference is held by the scope it was made in or by the user; nodes of the tape hold the others.
 */
#ifndef LS_TENSOR_TENSOR_H
#define LS_TENSOR_TENSOR_H

#include <lockstep/tensor.h>

#include "base/atomics.h"

typedef struct ls_device ls_device;
typedef struct ls_storage ls_storage;
typedef struct ls_leaf ls_leaf;           /* autograd's: what a leaf that wants a gradient carries */
typedef struct ls_tape_link ls_tape_link; /* see scope.h */

/*
 * A block of device memory and who shares it. Tensors that are laid side by side into one block have a storage each,
 * a part of the whole, so that a change to one is not taken for a change to its neighbours.
 */
struct ls_storage {
    atomic_int references;
    uint32_t version; /* counts changes in place: see ls_tensor_changed */
    const ls_device *device;
    void *memory;
    size_t bytes;
    void (*release)(void *memory, void *user); /* for memory that is not the device's; else NULL */
    void *user;
    ls_storage *whole;      /* what this is a part of, held; or itself */
    const char *changed_by; /* who changed it last, for messages; nothing when the version is 0 */
};

/* ls_tensor.spread from here on: the elements combine samples of this rank (autograd/mixing.c). */
#define LS_SPREAD_COMBINED 64

struct ls_tensor {
    void *data; /* the first element: storage memory plus offset */
    ls_storage *storage;
    int64_t count;
    int32_t references;
    uint8_t dtype;
    int8_t ndim;
    bool contiguous;
    bool needs_grad;    /* a leaf that wants a gradient, or made from something that does */
    uint32_t spread;    /* autograd's: how the samples of a data-parallel module are spread over the elements */
    ls_tape_link *node; /* what made it, weak: the tape owns nodes; NULL for leaves and where nothing is recorded */
    ls_leaf *leaf;      /* NULL for all but leaves that want a gradient */
    void (*leaf_free)(ls_leaf *leaf); /* called with leaf when the tensor is freed */
    ls_scope *scope; /* that holds one reference; NULL: the user does; &ls_nowhere: only who refers to it */
    ls_tensor *scope_older;
    ls_tensor *scope_newer;
    int64_t size[LS_MAX_DIMS];
    int64_t stride[LS_MAX_DIMS]; /* in elements; 0 repeats */
};

static inline const ls_device *ls_tensor_device(const ls_tensor *tensor) {
    return tensor->storage->device;
}

/*
 * Makers. Each gives a tensor with one reference, held by the innermost scope (or by the caller when none is open), or
 * NULL with the error set and noted in the scope.
 */

/* Dense, on the device, elements not set; `call` names the failing call in messages. */
ls_tensor *ls_tensor_new(const char *call, const ls_device *device, int ndim, const int64_t *size, ls_dtype dtype);

/* Other sizes, strides and offset (in elements, relative to base's first) over the memory of `base`. */
ls_tensor *ls_tensor_view(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride, int64_t offset);

/* The same two outside any scope: the caller holds the reference. */
ls_tensor *ls_tensor_new_owned(const char *call, const ls_device *device, int ndim, const int64_t *size,
                               ls_dtype dtype);
ls_tensor *ls_tensor_view_owned(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride,
                                int64_t offset);

/* A new one of the shape of `like`, on its device. */
static inline ls_tensor *ls_tensor_like(const char *call, const ls_tensor *like, ls_dtype dtype) {
    return ls_tensor_new(call, ls_tensor_device(like), like->ndim, like->size, dtype);
}
static inline ls_tensor *ls_tensor_like_owned(const char *call, const ls_tensor *like, ls_dtype dtype) {
    return ls_tensor_new_owned(call, ls_tensor_device(like), like->ndim, like->size, dtype);
}

/* Whether an element of the dtype can hold the number: of integers and bool exactly, of floats after rounding. */
bool ls_dtype_holds(ls_dtype dtype, double value);

/*
 * A dense tensor over the whole of `storage`, which it takes even when it fails; the sizes are the caller's to check.
 * NULL with no message when there is no memory. The caller holds the reference.
 */
ls_tensor *ls_tensor_of_storage(ls_storage *storage, int ndim, const int64_t *size, ls_dtype dtype);

/* The same over memory of the device that somebody else owns. */
ls_tensor *ls_tensor_over(const ls_device *device, const ls_shape *shape, ls_dtype dtype, void *memory);

/* Whether such strides lay the elements out densely in row-major order. */
bool ls_strides_are_dense(int ndim, const int64_t *size, const int64_t *stride);

/*
 * Every change in place goes with this, so that a backward pass that needs the elements as they were can tell. `by` is
 * the public call, as messages name it; it is kept.
 */
static inline void ls_tensor_changed(const ls_tensor *tensor, const char *by) {
    tensor->storage->version++;
    tensor->storage->changed_by = by;
}

/*
 * The record of a tensor that has gone with its scope, or was released, stays for a while, so that a program that still
 * has the pointer is told (see ls_thread_state). It has no reference, and nothing else in it means anything but the
 * shape and the dtype.
 */
static inline bool ls_tensor_is_gone(const ls_tensor *tensor) {
    return __builtin_expect(tensor->references == 0, 0);
}

/* LS_ERR_STATE, noted in the scope, for such a tensor: argument `argument` of `call`, from 1; 0: the only one. */
ls_status ls_tensor_refuse_gone(const char *call, int argument, const ls_tensor *tensor);

/* False, with that error, when the tensor, the only one of `call`, is gone. */
static inline bool ls_tensor_is_here(const char *call, const ls_tensor *tensor) {
    return !ls_tensor_is_gone(tensor) || ls_tensor_refuse_gone(call, 0, tensor) == LS_OK;
}

/* Nobody but who asks refers to the tensor, nor to its elements. */
static inline bool ls_tensor_is_alone(const ls_tensor *tensor) {
    return tensor->references == 1 && atomic_load_explicit(&tensor->storage->references, memory_order_relaxed) == 1;
}

/* Frees one whose last reference went. */
void ls_tensor_destroy(ls_tensor *tensor);

/* References. ls_tensor_drop frees with the last one; NULL is allowed. */
static inline ls_tensor *ls_tensor_hold(ls_tensor *tensor) {
    tensor->references++;
    return tensor;
}
static inline void ls_tensor_drop(ls_tensor *tensor) {
    if (tensor != NULL && --tensor->references <= 0) {
        ls_tensor_destroy(tensor);
    }
}

/*
 * A reference for a constructor that takes the tensor over: the user's, when he holds the tensor outside any scope, and
 * else a new one. So a tensor may be taken over many times, and stays in its scope, too. NULL, and one that is gone,
 * give NULL. ls_tensor_disown gives the reference back; if it is the last, who still has the pointer is told.
 */
ls_tensor *ls_tensor_own(ls_tensor *tensor);
void ls_tensor_disown(ls_tensor *tensor);

/* Takes what a module holds out of the scope it was made in, so that it goes with the module alone. Returns it. */
static inline ls_tensor *ls_out_of_scope(ls_tensor *tensor) {
    ls_release(tensor);
    return tensor;
}

/* Moves the reference that a scope or the user holds to the caller. NULL gives NULL. */
ls_tensor *ls_tensor_take(ls_tensor *tensor);

/* Hands a reference of the caller's to the innermost scope (to the user when none is open). NULL gives NULL. */
ls_tensor *ls_tensor_give(ls_tensor *tensor);

/*
 * Moves the elements of a leaf into `storage` at `offset` elements, which must have room, as a part of it: handles to
 * the tensor stay good. Used to lay parameters and gradients into flat buffers. The tensor must be contiguous.
 */
ls_status ls_tensor_move_storage(ls_tensor *tensor, ls_storage *storage, int64_t offset);

/* Moves the elements of a leaf, which must be contiguous, to a storage of its own on the device, if they are on
 * another: handles to the tensor stay good. */
ls_status ls_tensor_move_device(ls_tensor *tensor, const ls_device *device);

/* Storages. A new one has one reference; NULL with no message when there is no memory. */
ls_storage *ls_storage_new(const ls_device *device, size_t bytes);
ls_storage *ls_storage_wrap(const ls_device *device, void *memory, size_t bytes,
                            void (*release)(void *memory, void *user), void *user);
void ls_storage_drop(ls_storage *storage);

/* A reference of the caller's to x itself when it is contiguous and of that dtype, else to a dense, converted copy. */
ls_tensor *ls_tensor_dense(const char *call, const ls_tensor *x, ls_dtype dtype);

/* A reference of the caller's to x itself when it lives on the device, else to a dense copy there. */
ls_tensor *ls_tensor_on_device(const char *call, const ls_tensor *x, const ls_device *device);

/* The elements of x as that dtype, dense and on the host: a reference of the caller's, to x itself or to a copy. */
ls_tensor *ls_tensor_dense_on_host(const char *call, const ls_tensor *x, ls_dtype dtype);

/* The element `offset` elements behind the first, as it is in memory (at most 8 bytes), fetched from the device. */
ls_status ls_tensor_fetch(const ls_tensor *tensor, int64_t offset, void *element);

/* An element in memory as a number. */
double ls_element_number(ls_dtype dtype, const void *element);

/* Whether two tensors have the same sizes. */
static inline bool ls_tensor_same_shape(const ls_tensor *a, const ls_tensor *b) {
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++) {
        same = a->size[i] == b->size[i];
    }
    return same;
}

/* -ndim..ndim-1 to 0..ndim-1; -1 when out of range. */
int ls_axis_index(int axis, int ndim);

/* "[64, 784]" for messages. */
typedef struct ls_shape_text {
    char text[LS_MAX_DIMS * 22 + 3];
} ls_shape_text;
ls_shape_text ls_shape_describe(int ndim, const int64_t *size);
#define LS_SHAPE_TEXT(tensor) (ls_shape_describe((tensor)->ndim, (tensor)->size).text)

#endif
