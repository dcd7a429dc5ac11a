/*
 * Losses for tests of training: the library's losses with every reduction and option, and custom losses made of sums
 * and means, single and combined.
 */
#ifndef LS_TESTS_SUPPORT_LOSS_CASES_H
#define LS_TESTS_SUPPORT_LOSS_CASES_H

#include <lockstep/loss.h>
#include <lockstep/nn.h>

enum { LOSS_WIDTH = 5, LOSS_LENGTH = 3, LOSS_IGNORED = 3 };

/* The inputs of a loss. */
typedef struct sample_batch {
    ls_tensor *output; /* [n, LOSS_WIDTH * LOSS_LENGTH] */
    ls_tensor *target; /* [n, LOSS_WIDTH], from 0.05 to 0.95 */
    ls_tensor *class_; /* [n, LOSS_LENGTH], 0 to LOSS_WIDTH - 1 */
    ls_tensor *weight; /* a parameter of the model */
} sample_batch;

typedef struct loss_case {
    const char *name;
    ls_tensor *(*make)(const struct loss_case *c, const sample_batch *b);
    ls_tensor *(*function)(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
    ls_loss_reduction reduction;
    bool then_mean; /* with LS_LOSS_NONE, reduces by the mean instead of the sum */
    bool weighted;
    bool ignore;
    double smoothing;
    bool nll;
    bool long_; /* [n, classes, length] */
} loss_case;

/* Makers of cases: apply the case's function to outputs and targets; */
ls_tensor *loss_elementwise(const loss_case *c, const sample_batch *b);
/* cross entropy or nll with the case's options; */
ls_tensor *loss_of_classes(const loss_case *c, const sample_batch *b);
/* a mean plus the decay of a parameter; */
ls_tensor *loss_with_decay(const loss_case *c, const sample_batch *b);
/* loss_of_classes plus another loss. */
ls_tensor *loss_two(const loss_case *c, const sample_batch *b);

/* Squared differences of outputs and targets, unreduced. */
ls_tensor *loss_difference(const sample_batch *b);

/*
 * Functions of elementwise cases. The first is far from its minimum, so that its gradient is not a small difference of
 * large numbers.
 */
ls_tensor *loss_far_mse(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_huber(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_bce(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_bce_with_logits(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_weighted_bce(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_kl(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_probabilities(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);

/* Custom losses. */
extern const loss_case loss_own_cases[];
extern const size_t loss_own_count;

#endif
