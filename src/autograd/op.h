/*
 * autograd: operations, the tape they are recorded on, and the walk backwards. This header: what an operation is, and
 * what its rules may use.
 *
 * An operation is one `static const ls_op` row; ls_apply carries it out:
 *   1. shape:    checks the inputs and makes call->output (ls_tensor_new, or a view);
 *   2. forward:  computes it; may leave in call->saved what the gradient needs;
 *   3. if something that wants a gradient goes in and the thread records, a node with inputs, parameters and saved
 * tensors goes on the tape;
 *   4. backward: later, is given the gradient of the output and hands each input its share (ls_accumulate or
 * ls_gradient_place).
 */
#ifndef LS_AUTOGRAD_OP_H
#define LS_AUTOGRAD_OP_H

#include <lockstep/autograd.h>

#include "base/status.h"
#include "tensor/device.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

#define LS_NODE_INPUTS 5
#define LS_NODE_SAVED  3
#define LS_NODE_WEIGHT 3 /* number[] of a node that sums over samples: what it divides by, then its weight */

typedef struct ls_op ls_op;
typedef struct ls_node ls_node;

/* What a backward pass does with a node that communicates. The greatest value over the ranks decides for all of them.
 */
typedef enum ls_reach {
    LS_REACH_NEVER, /* no gradient can reach the node, now or later: the ranks drop it */
    LS_REACH_LATER, /* no gradient in this pass, but the output is still referenced: the ranks keep the node */
    LS_REACH_NOW,   /* this pass has a gradient for the output: all ranks run the backward rule */
    LS_REACH_FAILED /* the pass has failed on this rank: it ends on all ranks */
} ls_reach;

typedef struct ls_batch_loss ls_batch_loss; /* samples.h */

/* What an operation was called with beside its inputs, copied into its node. Its meaning is the operation's. */
typedef struct ls_op_parameters {
    void *context; /* what the rules of this call share; held by the node where the row has `hold` */
    double number[4];
    union {
        int64_t integer[LS_MAX_DIMS];
        ls_window window;
    };
    ls_random_state random;
} ls_op_parameters;

/* One application of an operation while it runs. */
typedef struct ls_op_call {
    const ls_op *op;
    ls_tensor *const *inputs; /* input_count of them; optional ones may be NULL */
    int input_count;
    const ls_op_parameters *parameters;
    ls_tensor *output;               /* made by shape */
    ls_tensor *saved[LS_NODE_SAVED]; /* references for the node, from ls_tensor_new_owned and the like; dropped if
                                        nothing is recorded */
    bool records;                    /* whether a node will be made: whether saving pays */
    bool depends;                    /* the gradient is computed from more values than `reads` and `saved` show */
    bool of_gradient;                /* an input is a gradient, or made of one: see ls_tape_gradient */
    ls_dtype rounds_to;              /* products of f32 are made of numbers rounded to it: ls_autocast */
} ls_op_call;

/* What an operation does with the samples that lie along one axis of some of its inputs (samples.h). */
typedef enum ls_samples_use {
    LS_SAMPLES_KEPT,   /* the same axis of the output counts the samples */
    LS_SAMPLES_MOVED,  /* axis call->axis of the output counts the samples; -1: several axes do */
    LS_SAMPLES_SUMMED, /* the output is the sum or the mean over the samples */
    LS_SAMPLES_MIXED,  /* one sample's result depends on other samples, and is not a sum */
    LS_SAMPLES_UNKNOWN /* the rule cannot tell */
} ls_samples_use;

/* One call of an operation, as its rule for samples sees it. */
typedef struct ls_samples_call {
    const ls_op *op;
    ls_tensor *const *inputs;
    int input_count;
    const ls_tensor *output;
    const ls_op_parameters *parameters;
    ls_tensor *const *saved;
    uint8_t (*spread_of)(const ls_tensor *input); /* see ls_sample_axis */
    int axis;    /* of the first input that has samples; the rule sets it if it returns LS_SAMPLES_MOVED */
    bool single; /* this rank has one sample */
    bool leads;  /* the samples are the outermost part of that axis, which is the first; the rule may clear it */
    bool wants_divisor;
    double divisor; /* what a mean divides by, set by the rule if it is wanted; INFINITY for a sum */
} ls_samples_call;

typedef ls_samples_use (*ls_samples_rule)(ls_samples_call *call);

struct ls_op {
    const char *name; /* as the user wrote it, for messages: "ls_matmul" */
    ls_status (*shape)(ls_op_call *call);
    ls_status (*forward)(ls_op_call *call); /* NULL: the shape rule made a view, nothing to compute */
    ls_status (*backward)(ls_node *node,
                          ls_tensor *gradient); /* NULL: not differentiable. `gradient` is lent, any strides */
    ls_status (*complete)(ls_node *node);   /* NULL, or called before a pass that will come to the node, to end what the
                                               program has left under way; it may record more nodes */
    ls_samples_rule over_samples;           /* NULL: each element depends on the elements at its position alone */
    void (*hold)(void *context, bool hold); /* NULL, or called with that of the parameters when a node is recorded
                                               (true) and when it is freed; the row may lie in it */
    size_t kernel; /* offset of a map kernel in ls_kernels, for families that share rules: LS_KERNEL(exp) */
    size_t kernel_backward;
    bool saves_output; /* while backward runs, saved[0] is the output, which it reads */
    bool communicates; /* its backward runs on all ranks if a gradient reaches it on one of them (it gets zeros on the
                          others); its node holds the output and lives until it is walked, until no rank can reach it
                          any more, or until the outermost scope ends with nothing else left on the tape */
    /* Of an operation that communicates: raises *reach from this rank's value to the greatest over the ranks of the
     * call. Where that is LS_REACH_FAILED all ranks fail, each rank with the first rank's cause. NULL: the backward
     * rule runs in every pass. */
    ls_status (*agree)(ls_node *node, ls_reach *reach);
    uint8_t optional;              /* bit i: input i may be NULL */
    uint8_t reads[LS_NODE_INPUTS]; /* for the gradient of input i, bit k: backward reads the elements of input k; a pass
                                      refuses to go on from elements that were changed since */
};

#define LS_KERNEL(name) offsetof(ls_kernels, name)
/* The kernel of a type (kernels.h) at an offset that a row names. */
#define LS_KERNEL_AT(type, kernels, at) (*(ls_##type##_kernel *const *)(const void *)((const char *)(kernels) + (at)))

struct ls_node {
    ls_tape_link link; /* first: a link is its node */
    const ls_op *op;
    ls_tensor *output;   /* weak, and never NULL: the node goes when it goes; held while there is a gradient */
    ls_tensor *gradient; /* of the output, gathered so far; owned; maybe shared with other nodes */
    int input_count;
    bool holds_output;
    bool begins_samples; /* the output is a data-parallel module's; what follows is of samples.h */
    uint8_t spread;
    bool sums_samples;
    bool divides;      /* by a number of its own: it takes a mean over samples */
    bool has_constant; /* an input without history is made of samples of this rank */
    bool of_gradient;  /* of the call */
    uint8_t rounds_to; /* an ls_dtype; of the call */
    bool depends;      /* gradients of its inputs depend on values that depend on leaves */
    bool weighed;      /* the gradient of the output is multiplied by parameters.number[LS_NODE_WEIGHT] */
    uint32_t segment;  /* 0, or a part of the program that is walked by itself: a pass walks communication of its own
                          segment only (a pipeline's micro-batches) */
    uint64_t wanted;   /* bit i: input i wants a gradient; see ls_wants */
    unsigned reads;    /* bit k: a gradient that is wanted needs the elements of input k */
    uint32_t versions[LS_NODE_INPUTS + 1]; /* of the first inputs' storages and of the output's when it was recorded */
    ls_tensor **inputs; /* owned references; inline_inputs, or an array of its own for concat and its kin, and behind
                           it as many words of wanted bits as it needs */
    ls_tensor *inline_inputs[LS_NODE_INPUTS];
    ls_tensor *saved[LS_NODE_SAVED];
    ls_op_parameters parameters;
};

/*
 * Applies the operation. Any input that is NULL and not optional gives NULL. On failure notes the error in the scope
 * and returns NULL. `parameters` may be NULL when the operation has none. The result belongs to the innermost scope.
 */
ls_tensor *ls_apply(const ls_op *op, ls_tensor *const *inputs, int input_count, const ls_op_parameters *parameters);

/* False, with the error noted, when one of the inputs, of which any may be NULL, is gone: for what reads them before
 * ls_apply, which asks too. */
bool ls_inputs_are_here(const char *call, ls_tensor *const *inputs, int input_count);

/* For backward rules. Does input i want a gradient? */
static inline bool ls_wants(const ls_node *node, int i) {
    const uint64_t *words = node->inputs == node->inline_inputs
                                ? &node->wanted
                                : (const uint64_t *)(const void *)(node->inputs + node->input_count);
    return (words[i / 64] >> (i % 64) & 1U) != 0 && node->inputs[i]->needs_grad;
}

/*
 * LS_ERR_STATE when the elements of one of these inputs (bit k: input k), or of the output, were changed in place since
 * the node was recorded. For rules that communicate and read more than `reads` says, of the first input and the output.
 */
ls_status ls_check_unchanged(const ls_node *node, unsigned inputs, bool output);

/*
 * Hands input i, if it wants one, a gradient, whose shape broadcasting may have enlarged: the surplus is summed away.
 * NULL is the failure of the call that made it. The tensor is taken over when it belongs to the innermost scope and
 * nobody else refers to it, and shared else: the rule may give the same tensor (its own `gradient` too, or a view) to
 * several inputs, but not write to what it has given, nor to the `gradient` that it was lent.
 */
ls_status ls_accumulate(ls_node *node, int i, ls_tensor *gradient);

/*
 * Where a rule can write the gradient of input i, which wants one, itself: a dense tensor of the input's shape, lent.
 * With *accumulate it holds a gradient that must be added to, else its elements are not set. NULL: failed.
 */
ls_tensor *ls_gradient_place(ls_node *node, int i, bool *accumulate);

enum { LS_FOUND_SUMS = 4, LS_FOUND_SIZES = 3 };

/* What a pass finds of the sums over samples that its loss is made of (samples.h), if a watch asks for it. */
typedef struct ls_pass_findings {
    int sums; /* into one number, without a divisor of their own; at most LS_FOUND_SUMS are looked at */
    struct {
        double factor;                /* the gradient of the loss with respect to the sum */
        double sizes[LS_FOUND_SIZES]; /* of the tensors that it sums over; 0: there are no more */
    } sum[LS_FOUND_SUMS];
    const char *constant; /* the operation that made a constant in the loss from samples of this rank; or NULL */
    bool divides;         /* the sum over samples is divided by that constant */
} ls_pass_findings;

/*
 * Who is told of the backward pass that next walks this thread's innermost tape with a node on it: how data-parallel
 * training weighs losses and learns that gradients are complete. When the scope ends first it watches what of the tape
 * goes to the outer scope, or is forgotten. A pass that keeps the tape leaves it there for the next. The same pair of
 * watch and user is told once of a pass.
 */
typedef struct ls_pass_watch {
    /* NULL, or whether its ranks must agree on weights before the pass; if any of a pass must, all do. */
    bool (*agrees)(void *user, const ls_batch_loss *loss);
    /* NULL, or called before the first node is walked. */
    ls_status (*begin)(void *user, ls_batch_loss *loss, bool agreed);
    /* Called when the pass was good; findings are NULL if no watch asked for them (ls_batch_loss.watched). */
    ls_status (*end)(void *user, const ls_pass_findings *findings);
    /* NULL, or called when the pass fails on this rank before it begins (`begun` is false) or before its end. Makes the
     * call that the other ranks make then, and tells them the thread's error. Returns whether they have been told. If
     * not, LS_ERR_MISMATCH means that they were in another call, and can be told later. */
    bool (*fail)(void *user, bool begun);
    bool (*stays)(void *user); /* NULL, or called after `end` of a pass that has not kept the tape: whether the
                                  user watches the next pass, too */
    void (*hold)(void *user, bool hold); /* NULL, or has the user live on while it watches (true), until false */
} ls_pass_watch;

ls_status ls_watch_pass(const ls_pass_watch *watch, void *user);

/*
 * Tells the other ranks the thread's error, because of which this rank runs no pass: calls `fail` until all ranks are
 * in the same call. If this rank's error is only the consequence of another rank's error, it becomes that error.
 */
void ls_watch_tell(const ls_pass_watch *watch, void *user, bool begun);

/* What a leaf that wants a gradient carries. */
typedef struct ls_leaf_hook {
    ls_grad_hook function;
    void *user;
    struct ls_leaf_hook *next;
} ls_leaf_hook;

/*
 * Ranks over which something is divided, of which a leaf is this rank's part: what is summed over parameters (a norm)
 * has to be summed over these ranks, too.
 */
typedef struct ls_division {
    ls_status (*add)(void *user, double *number); /* the sum over the ranks; collective. NULL: not divided */
    void *user;                                   /* the ranks: equal for equal ones */
} ls_division;

enum { LS_DIVIDED_TENSOR, LS_DIVIDED_MODEL, LS_DIVISIONS };

/*
 * A leaf's gradient is complete, and its hooks are called, when the walk has passed every node that has the leaf as
 * input, whether a gradient reached the node or not; with keep_tape too, since each pass counts afresh. What cannot be
 * known to be complete (a node was freed before the walk came to it) is complete at the end of the pass.
 *
 * Once there is a gradient tensor it is only ever written to, never replaced, so that it can be a part of a flat buffer
 * and ls_grad stays good.
 */
struct ls_leaf {
    ls_tensor *tensor;   /* whose leaf it is; weak */
    ls_tensor *gradient; /* owned; dense; NULL until first needed or until it is laid into a flat buffer */
    ls_leaf_hook *hooks; /* in the order in which they are called */
    ls_leaf *next_touched;
    ls_division
        divisions[LS_DIVISIONS]; /* this is a part of a tensor; of a model cut into parts that are whole tensors */
    uint64_t pass;               /* the pass that `remaining` is of */
    uint64_t given;              /* the last pass that gave it a gradient */
    int uses;                    /* inputs of nodes on tapes that it is */
    int remaining;               /* those that the present pass has not passed yet */
    bool has_gradient;           /* false: the next gradient overwrites, and ls_grad gives NULL */
    bool touched;                /* the present pass has given it a gradient, and its hooks are yet to be called */
    bool listed;                 /* among those that the present pass has touched */
    bool fresh;                  /* it had no gradient before the present pass */
    bool lent;                   /* ls_grad has lent the gradient: it may have become part of a computation */
};

/* ls_tensor_changed of the gradient, where anybody may care. */
static inline void ls_leaf_changed(const ls_leaf *leaf, const char *by) {
    if (__builtin_expect(leaf->lent, 0)) {
        ls_tensor_changed(leaf->gradient, by);
    }
}

#endif
