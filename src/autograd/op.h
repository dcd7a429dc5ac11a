/*
 * autograd: operations, the tape that records them, and the backward walk. This header defines an operation and the
 * functions that its rules may use.
 *
 * An operation is one `static const ls_op` row. ls_apply executes it:
 *   1. shape:    checks the inputs and makes call->output (ls_tensor_new, or a view);
 *   2. forward:  computes the output; may save tensors for the gradient in call->saved;
 *   3. if an input wants a gradient and the thread records, a node with inputs, parameters and saved tensors is added
 *   to the tape;
 *   4. backward: called later with the gradient of the output; adds to the gradient of each input (ls_accumulate or
 *   ls_gradient_place).
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
/* index in number[] of a node that sums over samples: first the divisor, then its scaling factor */
#define LS_NODE_WEIGHT 3

typedef struct ls_op ls_op;
typedef struct ls_node ls_node;

/* What a backward pass does with a communicating node. The maximum over the ranks decides for all of them. */
typedef enum ls_reach {
    LS_REACH_NEVER, /* no gradient can reach the node, now or later: the ranks drop the node */
    LS_REACH_LATER, /* no gradient in this pass, but the output is still referenced: the ranks keep the node */
    LS_REACH_NOW,   /* this pass has a gradient for the output: all ranks run the backward rule */
    LS_REACH_FAILED /* the pass has failed on this rank, and therefore fails on all ranks */
} ls_reach;

typedef struct ls_batch_loss ls_batch_loss; /* samples.h */

/* Arguments of an operation other than its inputs, copied into its node. Each operation defines their meaning. */
typedef struct ls_op_parameters {
    void *context; /* shared by the gradient rules of this call; the node keeps it alive if the operation sets `hold` */
    double number[4];
    union {
        int64_t integer[LS_MAX_DIMS];
        ls_window window;
    };
    ls_random_state random;
} ls_op_parameters;

/* One call of an operation, while it runs. */
typedef struct ls_op_call {
    const ls_op *op;
    ls_tensor *const *inputs; /* input_count tensors; optional inputs may be NULL */
    int input_count;
    const ls_op_parameters *parameters;
    ls_tensor *output;               /* made by the shape rule */
    ls_tensor *saved[LS_NODE_SAVED]; /* references for the node, for example from ls_tensor_new_owned; dropped if
                                        nothing is recorded */
    bool records;                    /* a node will be recorded, so saving tensors is useful */
    bool depends;                    /* the gradient also depends on values that neither `reads` nor `saved` contains */
    bool of_gradient;                /* an input is a gradient, or was computed from one: see ls_tape_gradient */
    ls_dtype rounds_to;              /* the dtype to which ls_autocast rounds f32 inputs of matrix products */
} ls_op_call;

/* What an operation does with samples along one axis of some of its inputs (samples.h). */
typedef enum ls_samples_use {
    LS_SAMPLES_KEPT,   /* the samples lie along the same axis of the output */
    LS_SAMPLES_MOVED,  /* the samples lie along axis call->axis of the output; -1 means along several axes */
    LS_SAMPLES_SUMMED, /* the output is the sum or the mean over the samples */
    LS_SAMPLES_MIXED,  /* the result for one sample depends on other samples, but is not a sum over them */
    LS_SAMPLES_UNKNOWN /* the rule cannot tell */
} ls_samples_use;

/* One call of an operation, as input to its rule for samples. */
typedef struct ls_samples_call {
    const ls_op *op;
    ls_tensor *const *inputs;
    int input_count;
    const ls_tensor *output;
    const ls_op_parameters *parameters;
    ls_tensor *const *saved;
    uint8_t (*spread_of)(const ls_tensor *input); /* see ls_sample_axis */
    int axis;    /* axis in the first input that has samples; the rule sets it if it returns LS_SAMPLES_MOVED */
    bool single; /* this rank has one sample */
    bool leads;  /* the samples are the outermost part of the first axis; the rule may clear this flag */
    bool wants_divisor;
    double divisor;                  /* divisor of a mean, set by the rule if requested; INFINITY for a sum */
    const ls_tensor *divisor_tensor; /* contains the divisor; set by the rule if it depends on elements; borrowed */
} ls_samples_call;

typedef ls_samples_use (*ls_samples_rule)(ls_samples_call *call);

struct ls_op {
    const char *name; /* public name, for messages: "ls_matmul" */
    ls_status (*shape)(ls_op_call *call);
    ls_status (*forward)(ls_op_call *call); /* NULL if the shape rule makes a view, so that nothing is computed */
    /* NULL if not differentiable. `gradient` is borrowed and may have any strides */
    ls_status (*backward)(ls_node *node, ls_tensor *gradient);
    ls_status (*complete)(ls_node *node); /* may be NULL; called before a pass that will reach the node, to complete the
                                             program's unfinished asynchronous work; may record more nodes */
    ls_samples_rule over_samples;         /* NULL if each element depends only on the input elements at its position */
    /*
     * May be NULL. Called with the context of the parameters when a node is recorded (true) and when it is freed
     * (false); the context may contain this ls_op
     */
    void (*hold)(void *context, bool hold);
    size_t kernel; /* offset of a map kernel in ls_kernels, for families that share rules: LS_KERNEL(exp) */
    size_t kernel_backward;
    bool saves_output; /* the backward rule reads the output, which is saved[0] while the rule runs */
    bool communicates; /* if a gradient reaches the node on one rank, the backward rule runs on all ranks, with zeros on
                          the other ranks; the node holds its output. The node lives until it is walked, until no rank
                          can reach it, or until the outermost scope ends with no other node on the tape */
    bool captures;     /* for a communicating operation: captured steps record its communication as a call */
    /*
     * For a communicating operation: raises *reach from this rank's value to the maximum over the ranks of the call. If
     * the maximum is LS_REACH_FAILED, all ranks fail with the first rank's cause. If `agree` is NULL, the backward rule
     * runs in every pass. So does the rule of an operation on a message, because its `agree` sets *reach to
     * LS_REACH_NOW. If *reach is LS_REACH_FAILED, this `agree` returns LS_OK: for a received message, it sends the
     * error instead of the gradient; for a sent message, it receives the gradient and drops it.
     */
    ls_status (*agree)(ls_node *node, ls_reach *reach);
    uint8_t public_call; /* ls_public_call of a collective, otherwise LS_PUBLIC_NONE */
    bool equal_results;  /* a collective to which every rank passes an input, with the same result on all ranks */
    bool root_result;    /* a collective to which every rank passes an input, with a result on the root only */
    bool answers;        /* on a received message: `agree` only sends, or completes what it has started to send */
    uint8_t optional;    /* bit i: input i may be NULL */
    uint8_t reads[LS_NODE_INPUTS]; /* bit k of entry i: the gradient of input i needs the elements of input k; a pass
                                      fails if they were changed after the call */
};

#define LS_KERNEL(name) offsetof(ls_kernels, name)
/* Returns the kernel of a type (kernels.h) at the offset that an ls_op contains. */
#define LS_KERNEL_AT(type, kernels, at) (*(ls_##type##_kernel *const *)(const void *)((const char *)(kernels) + (at)))

struct ls_node {
    ls_tape_link link; /* first member: a pointer to the link is a pointer to the node */
    const ls_op *op;
    ls_tensor *output;   /* weak, never NULL: the node is freed with its output; strong while there is a gradient */
    ls_tensor *gradient; /* gradient of the output, accumulated so far; owned; may be shared with other nodes */
    int input_count;
    bool holds_output;
    const ls_tensor *divisor_tensor; /* of a mean over samples: see ls_samples_call; belongs to saved[] */
    int sum_index;     /* of a sum over samples with a scaling factor: its index in the order of the tapes */
    uint8_t spread;    /* position of the samples in the output: LS_SPREAD_FIRST and so on (samples.h) */
    bool reaches;      /* see ls_batch_loss_reaches */
    bool sums_samples; /* the sum or the mean over the samples */
    bool divides;      /* a mean over samples with its own divisor */
    bool has_constant; /* an input without history was computed from this rank's samples */
    bool pairs;        /* combines samples with constants of other samples of this rank */
    bool plain;        /* computed from sums over samples without a divisor, and from no other sums or means */
    bool mixed;        /* computed from such sums and from means */
    bool collects;     /* a collective call with equal results (ls_op.equal_results) on plain sums */
    bool collected;    /* the input of such a call */
    bool of_gradient;  /* copied from the call */
    uint8_t rounds_to; /* rounds_to of the call: an ls_dtype */
    bool depends;      /* gradients of the inputs depend on values that in turn depend on leaves */
    bool weighed;      /* the gradient of the output is multiplied by parameters.number[LS_NODE_WEIGHT] */
    uint32_t segment;  /* segment of the program (a pipeline's micro-batch), or 0; a pass walks only the communicating
                          nodes of its own segment */
    uint32_t captured; /* serial of the capture (tensor/capture.h) that recorded the node; 0 without a capture */
    const void *samples_of; /* the module whose output this is, if it is data-parallel; only the address is used */
    uint64_t wanted;        /* bit i: input i wants a gradient; see ls_wants */
    unsigned reads;         /* bit k: a wanted gradient needs the elements of input k */
    /* of the storages of the first inputs and of the output, when the node was recorded */
    uint32_t versions[LS_NODE_INPUTS + 1];
    ls_tensor **inputs; /* owned references; points to inline_inputs, or to a separate array (concat and similar
                           operations) in which the words of wanted bits follow the inputs */
    ls_tensor *inline_inputs[LS_NODE_INPUTS];
    ls_tensor *saved[LS_NODE_SAVED];
    ls_op_parameters parameters;
};

/*
 * Applies the operation. Returns NULL if a required input is NULL. On failure, notes the error in the scope and returns
 * NULL. `parameters` may be NULL if the operation has none. The result belongs to the innermost scope.
 */
ls_tensor *ls_apply(const ls_op *op, ls_tensor *const *inputs, int input_count, const ls_op_parameters *parameters);

/*
 * Returns false, with the error noted, if an input was freed. Inputs may be NULL. For callers that read inputs before
 * they call ls_apply, which makes the same check.
 */
bool ls_inputs_are_here(const char *call, ls_tensor *const *inputs, int input_count);

/* For backward rules: returns whether input i wants a gradient. */
static inline bool ls_wants(const ls_node *node, int i) {
    const uint64_t *words = node->inputs == node->inline_inputs
                                ? &node->wanted
                                : (const uint64_t *)(const void *)(node->inputs + node->input_count);
    return (words[i / 64] >> (i % 64) & 1U) != 0 && node->inputs[i]->needs_grad;
}

/*
 * Fails with LS_ERR_STATE if the elements of one of these inputs (bit k: input k), or of the output, were changed in
 * place after the node was recorded. For communicating rules that read more than `reads` states: their nodes also
 * record the versions of the first input and of the output.
 */
ls_status ls_check_unchanged(const ls_node *node, unsigned inputs, bool output);

/*
 * Adds a gradient for input i, if it wants one. Sums over axes that broadcasting has enlarged. NULL means that the call
 * that made the gradient failed. A tensor of the innermost scope without other references is consumed; any other tensor
 * is shared. The rule may pass the same tensor (even its own `gradient`, or a view) for several inputs. It must not
 * write to a passed tensor afterward, nor to its borrowed `gradient`.
 */
ls_status ls_accumulate(ls_node *node, int i, ls_tensor *gradient);

/*
 * Returns a dense tensor of the input's shape, borrowed, into which a rule can write the gradient of input i, which
 * must want one. If *accumulate is true, the tensor contains a gradient to which the rule must add; otherwise its
 * elements are uninitialized. Returns NULL on failure.
 */
ls_tensor *ls_gradient_place(ls_node *node, int i, bool *accumulate);

enum { LS_FOUND_SUMS = 4, LS_FOUND_SIZES = 3 };

/* A sum or mean over samples (samples.h) to one number in a loss. */
typedef struct ls_found_sum {
    bool is_mean;        /* the sum has its own divisor */
    double factor;       /* the gradient of the loss with respect to the sum, times the constant numbers that scale its
                            elements */
    double total_weight; /* sum of the constant weights of this rank's samples in the loss; 0 if there are no weights,
                            or if they do not indicate a mean */
    bool is_ambiguous;   /* the factor contains a tensor with one element and an axis. On a rank with one sample, the
                            tensor may contain the weight of this sample */
    double sizes[LS_FOUND_SIZES]; /* sizes of the summed tensors; 0 ends the list */
} ls_found_sum;

/* What a pass finds in the loss, if a watch asks for it. */
typedef struct ls_pass_findings {
    int sums; /* at most LS_FOUND_SUMS are examined */
    ls_found_sum sum[LS_FOUND_SUMS];
    const char *constant; /* the operation that computed a constant in the loss from samples of this rank; or NULL */
    bool divides;         /* the sum over samples is divided by that constant */
    bool exchanges;       /* see ls_batch_loss */
    const char *pairs; /* the operation that combined samples with constants of other samples of this rank; or NULL */
} ls_pass_findings;

/* Whether the other ranks have received an error from this rank. */
typedef enum ls_telling {
    LS_NOT_TOLD,
    LS_TOLD,        /* notified in the pass, or before the pass */
    LS_TOLD_IN_PASS /* notified in a pass that this rank has not begun */
} ls_telling;

/* Whether a watch stays for later passes. */
typedef enum ls_stay {
    LS_STAYS_NOT,
    LS_STAYS,           /* watches the next pass; a conditional watch stays conditional */
    LS_STAYS_IF_REACHED /* for passes that reach the user; takes no part in other passes */
} ls_stay;

/*
 * A callback for the next backward pass that walks a node of this thread's innermost tape. Data-parallel training uses
 * it to scale losses and to learn when gradients are complete. If the scope ends first, the watch follows the nodes
 * that move to the outer scope; without such nodes, it is dropped. A pass that keeps the tape leaves the watch for the
 * next pass. The same pair of watch and user is called once per pass.
 */
typedef struct ls_pass_watch {
    /* May be NULL if `stays` never returns LS_STAYS_IF_REACHED. Returns what ls_samples_reach returns for the user. */
    ls_reach (*reach)(void *user, const ls_batch_loss *loss);
    /*
     * May be NULL. Returns whether the watch's ranks must agree on scaling factors before the pass. If one watch of a
     * pass needs this, all watches take part.
     */
    bool (*agrees)(void *user, const ls_batch_loss *loss);
    /* May be NULL. Called before the first node is walked. */
    ls_status (*begin)(void *user, ls_batch_loss *loss, bool agreed);
    /* Called after a successful pass. `findings` is NULL if no watch asked for them (ls_batch_loss.watched). */
    ls_status (*end)(void *user, const ls_pass_findings *findings);
    /*
     * May be NULL. Called if the pass fails on this rank before it begins (`begun` is false) or before it ends. Makes
     * the call that the other ranks make at that time, and sends them the thread's error. If the other ranks have not
     * received the error, LS_ERR_MISMATCH means that they were in a different call, and can be notified later.
     */
    ls_telling (*fail)(void *user, bool begun);
    /*
     * May be NULL. Called for every other watch of a pass that has failed, after `begin`, `end` or `fail`. Prepares the
     * user for the next pass. `missed` means that other ranks have begun the pass, but this rank has not.
     */
    void (*abandon)(void *user, bool missed);
    /* May be NULL. Called after a pass, and after a failure before or in a pass. Returns the same value on all ranks.
     */
    ls_stay (*stays)(void *user);
    /* May be NULL. Called with true, keeps the user alive while it watches, until called with false */
    void (*hold)(void *user, bool hold);
} ls_pass_watch;

/*
 * The watches of a pass are called in the order of these calls, first the watches of inner scopes. Watches that stay
 * only if they are reached come last, in ascending `order`, which must be the same on all ranks.
 */
ls_status ls_watch_pass(const ls_pass_watch *watch, void *user, uint64_t order);

/*
 * Sends the other ranks the thread's error, which prevents the pass on this rank: calls `fail` until all ranks are in
 * the same call. If this rank's error is only the consequence of another rank's error, replaces it with that error.
 */
ls_telling ls_watch_tell(const ls_pass_watch *watch, void *user, bool begun);

/* A hook of a leaf that requires a gradient. */
typedef struct ls_leaf_hook {
    ls_grad_hook function;
    void *user;
    struct ls_leaf_hook *next;
} ls_leaf_hook;

/*
 * Ranks over which a tensor is sharded; the leaf is this rank's shard. A sum over parameters (a norm) must also be
 * summed over these ranks.
 */
typedef struct ls_division {
    /* replaces the numbers with their sums over the ranks; collective. NULL if the tensor is not sharded */
    ls_status (*add)(void *user, double *numbers, int count);
    void *user; /* identifies the ranks: equal pointers mean the same ranks */
    /* of a sharded tensor: the shard begins at index `first` of `whole` indices along `axis` of the whole tensor */
    int axis;
    int64_t first, whole;
} ls_division;

enum { LS_DIVIDED_TENSOR, LS_DIVIDED_MODEL, LS_DIVISIONS };

typedef struct ls_sharding ls_sharding;

/*
 * A leaf's gradient is complete, and its hooks are called, when the walk has passed every node that has the leaf as
 * input, whether a gradient reached the node or not. This also holds with keep_tape, since each pass counts again. If a
 * node was freed before the walk reached it, the gradient is complete at the end of the pass.
 *
 * Once a gradient tensor exists, it is only written to, never replaced. So it can be part of a flat buffer, and the
 * result of ls_grad stays valid.
 */
struct ls_leaf {
    ls_tensor *tensor;   /* the tensor of this leaf; weak */
    ls_tensor *gradient; /* owned; dense; NULL until first needed or until placed in a flat buffer */
    ls_leaf_hook *hooks; /* in the order of their calls */
    ls_leaf *next_touched;
    /* first: ranks over which the tensor is sharded; second: ranks over which the model's tensors are distributed */
    ls_division divisions[LS_DIVISIONS];
    ls_sharding *sharding; /* how ranks share the state of optimizers for the tensor (optim/sharding.h); or NULL */
    uint64_t pass;         /* the pass in which `remaining` was counted */
    uint64_t given;        /* the last pass that gave the leaf a gradient */
    uint64_t loads;        /* number of loads of the tensor from a file (ls_module_load) */
    int uses;              /* number of node inputs, on all tapes, that are this leaf */
    int remaining;         /* number of these inputs that the current pass has not passed yet */
    bool has_gradient;     /* if false, the next gradient overwrites `gradient`, and ls_grad returns NULL */
    bool touched;          /* the current pass has given the leaf a gradient, but has not called the leaf's hooks yet */
    bool listed;           /* in the list of leaves touched by the current pass */
    bool fresh;            /* the leaf had no gradient before the current pass */
    bool shard;            /* this rank has only its own elements of the gradient (ls_sharding), so ls_grad fails */
    bool open;      /* for a shard: all elements of the gradient are on this rank, for the module's backward pass */
    bool in_flight; /* communication of a failed pass may still change the gradient, so no pass may write it */
    bool lent;      /* ls_grad has returned the gradient: the program may have computed with it */
    bool sought;    /* see ls_batch_loss_reaches */
};

/* ls_zero_grad of a tensor that is not NULL, on a thread that captures no step. */
static inline void ls_leaf_forget_gradient(ls_tensor *tensor) {
    if (ls_tensor_exists("ls_zero_grad", tensor) && tensor->leaf != NULL) {
        tensor->leaf->has_gradient = false;
    }
}

/* Calls ls_tensor_changed on the gradient if the program may have seen it. */
static inline void ls_leaf_changed(const ls_leaf *leaf, const char *by) {
    if (__builtin_expect(leaf->lent, 0)) {
        ls_tensor_changed(leaf->gradient, by);
    }
}

#endif
