/* Accumulation of the gradients from backward rules, in leaves and in nodes, with as few copies as possible. */
#include "autograd/tape.h"

/* Returns whether only the holder of this reference can read the memory, and one loop can add to it. */
static bool exclusive(const ls_tensor *tensor) {
    return tensor->references == 1 && tensor->contiguous &&
           atomic_load_explicit(&tensor->storage->references, memory_order_relaxed) == 1;
}

/* Returns whether the running rule made the tensor and nothing else refers to it. */
static bool can_be_taken(const ls_thread_state *thread, const ls_tensor *tensor) {
    return tensor->scope == thread->scope && tensor->references == 1;
}

/* Returns whether a gradient of `gradient`'s shape can belong to an `input` that was broadcast. */
static bool reduces_to(const ls_tensor *gradient, const ls_tensor *input) {
    const int more = gradient->ndim - input->ndim;
    for (int i = 0; i < input->ndim && more >= 0; i++) {
        if (input->size[i] != gradient->size[more + i] && input->size[i] != 1) {
            return false;
        }
    }
    return more >= 0;
}

/* Computes y = the sum of x over the axes that y lacks or in which y has size 1. */
static ls_status sum_to(ls_tensor *y, const ls_tensor *x) {
    ls_tensor padded = *y; /* a view of y, on the stack, with x's number of dimensions */
    const int more = x->ndim - y->ndim;
    padded.ndim = x->ndim;
    for (int i = 0; i < x->ndim; i++) {
        padded.size[i] = i < more ? 1 : y->size[i - more];
        padded.stride[i] = i < more ? 0 : y->stride[i - more];
    }
    return ls_kernels_of(y)->sum(ls_stream_of(y), &padded, x);
}

/* Computes y = x, or y += x. x may have more axes than y, and larger ones. For adding or summing, both must be f32
 * or f64. */
static ls_status combine(ls_tensor *y, const ls_tensor *x, bool add) {
    const ls_kernels *kernels = ls_kernels_of(y);
    if (ls_tensor_same_shape(y, x)) {
        return add ? kernels->add(ls_stream_of(y), y, (const ls_tensor *const[]){y, x}, NULL)
                   : kernels->copy(ls_stream_of(y), y, x);
    }
    return add ? kernels->add_sum(ls_stream_of(y), y, x) : sum_to(y, x);
}

static bool is_half(const ls_tensor *tensor) {
    return tensor->dtype == LS_BF16 || tensor->dtype == LS_F16;
}

/* Returns a copy in f32, in the scope of the pass. */
static ls_tensor *widen(const ls_tensor *x) {
    ls_tensor *wide = ls_tensor_like("ls_backward", x, LS_F32);
    return wide != NULL && ls_kernels_of(x)->cast(ls_stream_of(x), wide, x) == LS_OK ? wide : NULL;
}

/* Same as combine, for any floating-point dtype; 16-bit floats are computed in f32. */
static ls_status combine_any(ls_tensor *y, const ls_tensor *x, bool add) {
    if (!is_half(y)) {
        return combine(y, x, add);
    }
    ls_tensor *wide_y = widen(y);
    const ls_tensor *wide_x = wide_y != NULL ? widen(x) : NULL;
    if (wide_x == NULL) {
        return ls_error_status();
    }
    LS_TRY(combine(wide_y, wide_x, add));
    return ls_kernels_of(y)->cast(ls_stream_of(y), y, wide_y);
}

static ls_tensor *new_like(const ls_tensor *input) {
    return ls_tensor_like_owned("ls_backward", input, (ls_dtype)input->dtype);
}

static ls_status gather_in_leaf(ls_backward_pass *pass, ls_leaf *leaf, ls_tensor *gradient) {
    LS_TRY(ls_leaf_touch(pass, leaf));
    const bool add = leaf->has_gradient;
    if (leaf->gradient == NULL && can_be_taken(pass->thread, gradient) && exclusive(gradient) &&
        ls_tensor_same_shape(leaf->tensor, gradient)) {
        leaf->gradient = ls_tensor_take(gradient);
        ls_storage_set_kind(gradient->storage, LS_MEMORY_GRADIENTS);
    } else {
        LS_TRY(ls_leaf_make_room(leaf));
        ls_leaf_changed(leaf, "ls_backward");
        LS_TRY(combine_any(leaf->gradient, gradient, add));
    }
    leaf->has_gradient = true;
    return LS_OK;
}

/* From its first gradient until it is walked, a node holds a reference to its output, so that neither is freed. */
static void start_gradient(ls_node *node, ls_tensor *gradient) {
    node->gradient = gradient;
    if (!node->holds_output) {
        node->holds_output = true;
        ls_tensor_hold(node->output);
    }
}

static ls_status start_in_node(ls_backward_pass *pass, ls_node *node, ls_tensor *gradient) {
    if (ls_tensor_same_shape(node->output, gradient)) {
        start_gradient(node,
                       can_be_taken(pass->thread, gradient) ? ls_tensor_take(gradient) : ls_tensor_hold(gradient));
        return LS_OK;
    }
    ls_tensor *sum = new_like(node->output);
    if (sum == NULL) {
        return ls_error_status();
    }
    start_gradient(node, sum);
    return combine_any(sum, gradient, false);
}

static ls_status add_in_node(ls_backward_pass *pass, ls_node *node, ls_tensor *gradient) {
    ls_tensor *old = node->gradient;
    if (exclusive(old)) {
        return combine_any(old, gradient, true);
    }
    ls_tensor *sum = NULL;
    if (can_be_taken(pass->thread, gradient) && exclusive(gradient) && ls_tensor_same_shape(old, gradient)) {
        LS_TRY(combine_any(gradient, old, true));
        sum = ls_tensor_take(gradient);
    } else {
        sum = new_like(node->output);
        if (sum == NULL) {
            return ls_error_status();
        }
        ls_status status = combine(sum, old, false);
        status = status == LS_OK ? combine_any(sum, gradient, true) : status;
        if (status != LS_OK) {
            ls_tensor_drop(sum);
            return status;
        }
    }
    node->gradient = sum;
    ls_tensor_drop(old);
    return LS_OK;
}

/*
 * Returns the node that accumulates the gradient of a tensor that is not a leaf. Returns NULL and sets the error if the
 * node was freed.
 */
static ls_node *gathering_node(const char *call, const ls_tensor *input) {
    if (input->node == NULL || input->node->tape == NULL) {
        (void)ls_fail(LS_ERR_STATE,
                      "ls_backward: %s depends on a part of the tape that an earlier backward pass has used up; set "
                      "keep_tape in ls_backward_with to keep it",
                      call);
        return NULL;
    }
    return (ls_node *)input->node;
}

ls_status ls_gather_gradient(const char *call, int i, ls_tensor *input, ls_tensor *gradient) {
    ls_backward_pass *pass = ls_thread()->walking;
    if (gradient->dtype != input->dtype || !reduces_to(gradient, input)) {
        return ls_fail(LS_ERR_INTERNAL,
                       "%s: its backward function returned a gradient of input %d that is %s of %s, but the input is "
                       "%s of %s",
                       call, i, LS_SHAPE_TEXT(gradient), ls_dtype_name((ls_dtype)gradient->dtype), LS_SHAPE_TEXT(input),
                       ls_dtype_name((ls_dtype)input->dtype));
    }
    if (ls_tensor_device(gradient) != ls_tensor_device(input)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the gradient of argument %d is on %s, but the argument is on %s", call,
                       i + 1, ls_tensor_device(gradient)->name, ls_tensor_device(input)->name);
    }
    if (input->leaf != NULL) {
        return gather_in_leaf(pass, input->leaf, gradient);
    }
    ls_node *node = gathering_node(call, input);
    if (node == NULL) {
        return ls_scope_failed_status();
    }
    return node->gradient == NULL ? start_in_node(pass, node, gradient) : add_in_node(pass, node, gradient);
}

ls_status ls_accumulate(ls_node *node, int i, ls_tensor *gradient) {
    if (gradient == NULL) {
        return ls_error_status() != LS_OK
                   ? ls_error_status()
                   : ls_fail(LS_ERR_INTERNAL, "%s: its backward function returned no gradient", node->op->name);
    }
    return ls_wants(node, i) ? ls_gather_gradient(node->op->name, i, node->inputs[i], gradient) : LS_OK;
}

static ls_tensor *place_of_node(ls_node *node, bool *accumulate) {
    ls_tensor *old = node->gradient;
    *accumulate = old != NULL;
    if (old != NULL && exclusive(old)) {
        return old;
    }
    ls_tensor *own = new_like(node->output);
    if (own == NULL) {
        return NULL;
    }
    if (old == NULL) {
        start_gradient(node, own);
        return own;
    }
    if (combine(own, old, false) != LS_OK) {
        ls_tensor_drop(own);
        return ls_scope_failed();
    }
    node->gradient = own;
    ls_tensor_drop(old);
    return own;
}

/*
 * ls_grad has given the program the gradient to which the rule is to add, so the program may have used it as an input.
 * The rule must not write into its own inputs. (Rules that return a new tensor have finished reading before it is
 * added.)
 */
__attribute__((noinline, cold)) static ls_status change_lent(const ls_node *node, const ls_leaf *leaf) {
    for (int k = 0; node->reads >> k != 0; k++) {
        if ((node->reads >> k & 1U) != 0 && node->inputs[k]->storage == leaf->gradient->storage) {
            return ls_fail(LS_ERR_STATE,
                           "ls_backward: %s was given the gradient %s of a leaf, which this backward pass modifies: "
                           "pass a copy (ls_clone)",
                           node->op->name, LS_SHAPE_TEXT(leaf->gradient));
        }
    }
    ls_tensor_changed(leaf->gradient, "ls_backward");
    return LS_OK;
}

ls_tensor *ls_gradient_place(ls_node *node, int i, bool *accumulate) {
    ls_tensor *input = node->inputs[i];
    ls_leaf *leaf = input->leaf;
    if (leaf == NULL) {
        ls_node *gathering = gathering_node(node->op->name, input);
        return gathering != NULL ? place_of_node(gathering, accumulate) : ls_scope_failed();
    }
    if (ls_leaf_touch(ls_thread()->walking, leaf) != LS_OK || ls_leaf_make_room(leaf) != LS_OK) {
        return NULL;
    }
    if (leaf->lent && change_lent(node, leaf) != LS_OK) {
        return ls_scope_failed();
    }
    *accumulate = leaf->has_gradient;
    leaf->has_gradient = true;
    return leaf->gradient;
}
