/* Losses for tests of training: those of the library with every reduction and option, and those that a program makes
 * itself of sums and means, alone and several together. */
#ifndef LS_TESTS_SUPPORT_LOSS_CASES_H
#define LS_TESTS_SUPPORT_LOSS_CASES_H

#include <lockstep/loss.h>
#include <lockstep/nn.h>

enum { LOSS_WIDTH = 5, LOSS_LENGTH = 3, LOSS_IGNORED = 3 };

/* What a loss is made of. */
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
    bool then_mean; /* LS_LOSS_NONE: take the mean of it, else the sum */
    bool weighted;
    bool ignore;
    double smoothing;
    bool nll;
    bool long_; /* [n, classes, length] */
} loss_case;

/* Makers of cases: the case's function of outputs and targets, */
ls_tensor *loss_elementwise(const loss_case *c, const sample_batch *b);
/* cross entropy or nll, with the case's options, */
ls_tensor *loss_of_classes(const loss_case *c, const sample_batch *b);
/* a mean and the decay of a parameter, */
ls_tensor *loss_with_decay(const loss_case *c, const sample_batch *b);
/* and loss_of_classes with another loss. */
ls_tensor *loss_two(const loss_case *c, const sample_batch *b);

/* Squared differences of outputs and targets, before any reduction. */
ls_tensor *loss_difference(const sample_batch *b);

/* Functions of elementwise cases. The first is far from its minimum, where the gradient is not what is left of large
 * numbers. */
ls_tensor *loss_far_mse(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_huber(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_bce(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_bce_with_logits(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_weighted_bce(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_kl(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
ls_tensor *loss_probabilities(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);

/* Losses that a program makes itself. */
extern const loss_case loss_own_cases[];
extern const size_t loss_own_count;

#endif
