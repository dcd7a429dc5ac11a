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

/* ls_node.spread: where the samples are in its output. */
enum {
    LS_SPREAD_NONE,    /* nowhere: every rank has what one process has */
    LS_SPREAD_FIRST,   /* along the first axis */
    LS_SPREAD_OTHER,   /* along other axes */
    LS_SPREAD_REFUSED, /* one process would have something else */
    LS_SPREAD_SUMS,    /* summed, in several nodes */
    LS_SPREAD_SUM      /* summed in node 0; and so on up to 255, node 250 */
};

struct ls_batch_loss {
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
    const ls_node *refused;
};

/* The place where samples are divided over ranks: the output of a module, in the present pass and later ones. */
void ls_samples_begin(const ls_tensor *output);

/* Where the samples are in an input of a rule. */
uint8_t ls_spread_of(const ls_tensor *tensor);

/* Follows the samples to `output`, of which the pass begins; `seeded` when it was given a gradient. */
void ls_samples_trace(ls_batch_loss *loss, ls_scope *innermost, const ls_tensor *output, bool seeded);

/* LS_ERR_UNSUPPORTED with a sentence when the gradient would not be that of one process. */
ls_status ls_batch_loss_check(const ls_batch_loss *loss);

/* What sums number `first` and on divide by on this rank, INFINITY where they do not; and the weights of their
 * gradients. */
void ls_batch_loss_divisors(const ls_batch_loss *loss, int first, int count, double *divisors);
void ls_batch_loss_weigh(const ls_batch_loss *loss, int first, int count, const double *weights);

#endif
