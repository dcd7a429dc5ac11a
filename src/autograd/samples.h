/*
 * Losses of data-parallel modules: how ranks compute them from the module's output, and how their gradients must be
 * scaled so that they add up to the gradients of a single process with the global batch.
 *
 * Each rank has some samples of the global batch, along the first axis of the module's output. Element-wise and
 * sample-wise operations compute the same as in a single process, which would sum, or average, over all samples. The
 * gradient of a mean is correct after multiplication by this rank's share of the total divisor. After such a node, only
 * linear operations may follow, because a rank does not know the sum over all ranks. The trace follows the samples from
 * the module's output to the loss and finds those nodes. Other operations on samples are rejected.
 */
#ifndef LS_AUTOGRAD_SAMPLES_H
#define LS_AUTOGRAD_SAMPLES_H

#include "autograd/op.h"

/*
 * Values of ls_node.spread, and of ls_tensor.spread inside a data-parallel module (mixing.h): the position of the
 * samples.
 */
enum {
    LS_SPREAD_NONE,  /* no samples: every rank has the same elements as a single process */
    LS_SPREAD_FIRST, /* the outermost part of the first axis, or all of it */
    LS_SPREAD_AXIS,  /* somewhere in the first axis; LS_SPREAD_AXIS + 1: in the second; and so on */
    LS_SPREAD_OTHER = LS_SPREAD_AXIS + LS_MAX_DIMS, /* along several axes */
    LS_SPREAD_REFUSED,                              /* a single process would compute a different value */
    LS_SPREAD_SUMS,                                 /* summed, in several nodes */
    LS_SPREAD_SUM                                   /* summed in node 0; and so on up to 255, which is node 250 */
};

struct ls_batch_loss {
    const ls_tensor *output; /* the loss */
    ls_scope *innermost;
    uint32_t segment; /* segment of the program that the current pass walks */
    bool begun;       /* the trace has reached a node where samples begin */
    bool single;      /* this rank has one sample there */
    int sums;         /* number of nodes that sum over samples, numbered in the order of the tapes */
    int earlier;      /* number of these nodes in other segments, which come first */
    bool irregular;   /* one scaling factor for the whole gradient is not enough: the ranks must agree on one factor per
                         sum */
    bool weighed;     /* the sums and the loss have their scaling factors */
    double weight;    /* of the whole loss */
    bool exchanges;   /* the program itself exchanges a sum or mean over samples between the ranks */
    bool multiplied;  /* a sum is multiplied by a value that requires a gradient */
    int only; /* index of the only mean in the loss, not counting terms that depend on parameters only; -1 if there is
                 none, or several sums */
    double divisor;  /* of that mean */
    bool by_samples; /* the loss is one number, and no node has summed samples */
    bool unrelated;  /* the watches called so far belong to modules on which the loss does not depend */
    bool watched;    /* whether the pass collects ls_pass_findings */
    const ls_node *refused;
    int refused_axis; /* axis of the rejected operation's samples; -1 if the operation combines sums */
};

/* Marks a tensor as a batch that is distributed over ranks: the output of `module`, in the current pass and later
 * passes. Only the address of `module` is used. */
void ls_samples_begin(const ls_tensor *output, const void *module);

/* Returns whether this thread's tapes have outputs of `module`, which a pass can still reach. */
bool ls_samples_remain(const void *module);

/*
 * For rules: returns the axis of input i along which the samples lie, alone or merged with another axis, or -1 if input
 * i has no samples.
 */
int ls_sample_axis(const ls_samples_call *call, int i);

/*
 * Follows samples through a call whose inputs contain no sums over samples. Sets *spread to their position in the
 * output. Returns LS_SAMPLES_KEPT, SUMMED, MIXED or UNKNOWN.
 */
ls_samples_use ls_samples_follow(ls_samples_call *call, uint8_t *spread);

/* Returns the axis of the samples in the first input that has samples along an axis, or -1 if no input does. */
int ls_first_sample_axis(const ls_samples_call *call);

/*
 * Returns whether the call is linear in input i, which has sums over samples, so that the gradient of input i depends
 * only on values that are equal on all ranks. A call that saves tensors counts as not linear.
 */
bool ls_samples_linear_in(const ls_samples_call *call, int i);

/* Fails with LS_ERR_UNSUPPORTED and a message saying that the call mixes samples. */
ls_status ls_samples_refuse(const char *call, const char *operation, int axis);

/* Follows the samples to `output`, where the pass begins. `seeded` means that the caller gave an initial gradient. */
void ls_samples_trace(ls_batch_loss *loss, ls_scope *innermost, const ls_tensor *output, bool seeded);

/* Fails with LS_ERR_UNSUPPORTED and a message if the gradient would differ from the gradient of a single process. */
ls_status ls_batch_loss_check(const ls_batch_loss *loss);

/*
 * Returns the divisor of the loss on this rank, which has `samples` samples, or NAN if the loss is not a single mean
 * over samples.
 */
double ls_batch_loss_divisor(const ls_batch_loss *loss, int64_t samples);

/*
 * Returns whether the loss depends on a leaf with `sought` set, on an output of a data-parallel module, or on a tensor
 * from another rank, which may depend on them.
 */
bool ls_batch_loss_reaches(const ls_batch_loss *loss);

/*
 * Returns LS_REACH_NOW if the loss depends on an output of `module`, or if the loss of another rank may depend on it by
 * communication; and if there is no loss, because the missing loss may depend on any output. Returns LS_REACH_NEVER if
 * no output of the module is left. Uses only `output`, which is NULL if there is no loss, and `innermost` of `loss`.
 */
ls_reach ls_samples_reach(const ls_batch_loss *loss, const void *module);

/* Returns whether a collective call is over the same ranks as a data-parallel module. */
typedef bool ls_node_filter(const ls_node *node, const void *ranks);

/*
 * ls_batch_loss_divisors stores this rank's divisors of `count` sums from number `first` on; INFINITY for sums without
 * a divisor. `divisor_tensors` may be NULL; it gets the tensors that contain the divisors (borrowed), and NULL for
 * divisors that are known from shapes. ls_batch_loss_weigh sets the scaling factors of these sums' gradients.
 * `is_over_ranks(node, ranks)` selects the collective calls that undo the scaling of sums without a divisor.
 */
void ls_batch_loss_divisors(const ls_batch_loss *loss, int first, int count, double *divisors,
                            const ls_tensor **divisor_tensors);
void ls_batch_loss_weigh(const ls_batch_loss *loss, int first, int count, const double *weights,
                         ls_node_filter *is_over_ranks, const void *ranks);

#endif
