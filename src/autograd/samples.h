/*
 * Losses of data-parallel modules: what the ranks of one make of its output, and what has to be done for their
 * gradients to add up to those of one process with the whole batch.
 *
 * Each rank has some samples of the batch, which the first axis of the module's output counts. What is made of them
 * element by element or sample by sample is as in one process. Where a node sums over samples, or takes their mean, one
 * process would go over all of them: its gradient is right when that of a mean is multiplied by this rank's share of
 * what all ranks divide by. Behind that only what is linear may follow, for a rank does not know the sum of all. The
 * trace follows the samples from the module's output to the loss and finds those nodes; what would not be right is
 * refused.
 */
#ifndef LS_AUTOGRAD_SAMPLES_H
#define LS_AUTOGRAD_SAMPLES_H

#include "autograd/op.h"

/* ls_node.spread, and ls_tensor.spread inside a data-parallel module (mixing.h): where the samples are. */
enum {
    LS_SPREAD_NONE,                                 /* nowhere: every rank has what one process has */
    LS_SPREAD_FIRST,                                /* the outermost part of the first axis, or all of it */
    LS_SPREAD_AXIS,                                 /* somewhere in the first axis; + 1: in the second; and so on */
    LS_SPREAD_OTHER = LS_SPREAD_AXIS + LS_MAX_DIMS, /* along several axes */
    LS_SPREAD_REFUSED,                              /* one process would have something else */
    LS_SPREAD_SUMS,                                 /* summed, in several nodes */
    LS_SPREAD_SUM                                   /* summed in node 0; and so on up to 255, node 250 */
};

struct ls_batch_loss {
    const ls_tensor *output; /* the loss */
    ls_scope *innermost;
    uint32_t segment; /* of the program, that the pass walks */
    bool begun;       /* the trace has come to where samples begin */
    bool single;      /* there, this rank has one */
    int sums;         /* nodes that sum over samples, in the order of the tapes */
    bool irregular;   /* one weight for the whole gradient does not do: the ranks must agree on one for each of them */
    bool weighed;     /* they have their weights, and the loss its own */
    double weight;    /* of the whole loss */
    bool multiplied;  /* a sum is multiplied by something that wants a gradient */
    int only;         /* the one mean that the loss is made of, beside parameters; -1: there are others, or none */
    double divisor;   /* of that mean */
    bool by_samples;  /* the loss is a number that no node has summed */
    bool watched;     /* whether the pass looks at what it finds of sums: ls_pass_findings */
    const ls_node *refused;
    int refused_axis; /* of its samples; -1: none, it combines sums */
};

/* The place where samples are divided over ranks: the output of a module, in the present pass and later ones. */
void ls_samples_begin(const ls_tensor *output);

/* For rules: the axis of input i that has the samples, alone or merged with others; -1: none has. */
int ls_sample_axis(const ls_samples_call *call, int i);

/* Follows samples, which are all that the inputs have, through a call. *spread is where they are in the output; the
 * result is LS_SAMPLES_KEPT, SUMMED, MIXED or UNKNOWN. */
ls_samples_use ls_samples_follow(ls_samples_call *call, uint8_t *spread);

/* The axis of the first input that has samples along one; -1: none has. */
int ls_first_sample_axis(const ls_samples_call *call);

/*
 * Whether the call is linear in input i, which has sums over samples: its gradient depends only on values that all
 * ranks have alike. A call that saves tensors counts as not linear.
 */
bool ls_samples_linear_in(const ls_samples_call *call, int i);

/* The message about samples that a call mixes; LS_ERR_UNSUPPORTED. */
ls_status ls_samples_refuse(const char *call, const char *operation, int axis);

/* Follows the samples to `output`, of which the pass begins; `seeded` when it was given a gradient. */
void ls_samples_trace(ls_batch_loss *loss, ls_scope *innermost, const ls_tensor *output, bool seeded);

/* LS_ERR_UNSUPPORTED with a sentence when the gradient would not be that of one process. */
ls_status ls_batch_loss_check(const ls_batch_loss *loss);

/* What the loss divides by on this rank, which has `samples`; NAN if it is not one mean over samples. */
double ls_batch_loss_divisor(const ls_batch_loss *loss, int64_t samples);

/* What sums number `first` and on divide by on this rank, INFINITY where they do not; and the weights of their
 * gradients. */
void ls_batch_loss_divisors(const ls_batch_loss *loss, int first, int count, double *divisors);
void ls_batch_loss_weigh(const ls_batch_loss *loss, int first, int count, const double *weights);

#endif
