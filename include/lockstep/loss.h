/**
 * @file loss.h
 * Losses and criteria, with gradients; autograd.h includes it. A loss is one number, a mean over all elements or their
 * sum; with LS_LOSS_NONE x's shape, or that of class numbers. x and target have one shape but for class numbers
 * (LS_ERR_SHAPE; they do not broadcast), and gradients flow to both.
 */
#ifndef LOCKSTEP_LOSS_H
#define LOCKSTEP_LOSS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a loss does with the values of its elements. */
typedef enum ls_loss_reduction { LS_LOSS_MEAN = 0, LS_LOSS_SUM, LS_LOSS_NONE } ls_loss_reduction;

/** (x - target)^2. */
LS_API ls_tensor *ls_mse_loss(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
/** |x - target|. */
LS_API ls_tensor *ls_l1_loss(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
/** d^2 / 2 where |d| <= delta, else delta * (|d| - delta / 2), for d = x - target (Huber, Ann. Math. Stat. 35, 1964).
 * delta is positive. */
LS_API ls_tensor *ls_huber_loss(ls_tensor *x, ls_tensor *target, double delta, ls_loss_reduction reduction);

/** Options of ls_cross_entropy. Zero fields are the defaults. */
typedef struct ls_class_loss_options {
    ls_loss_reduction reduction;
    ls_tensor *weight;      /**< [classes], or NULL; the mean then divides by the sum of the targets' weights; wants
                                 no gradient (LS_ERR_UNSUPPORTED) */
    double label_smoothing; /**< this much of the target, 0 to 1, is spread over all classes (Szegedy et al., arXiv
                                 1512.00567) */
    bool ignore;            /**< leave out targets equal to ignore_index */
    int64_t ignore_index;
} ls_class_loss_options;

/**
 * -log softmax(logits)[target]: logits [n, classes] (or [n, classes, ...]), target [n] (or [n, ...]) of i64, i32 or
 * u8. `options` may be NULL. A target out of range is LS_ERR_ARGUMENT and named. A floating target of the logits' shape
 * holds probabilities: -sum over classes of target log softmax(logits), whose mean divides by n, also with weights;
 * there is nothing to ignore then (LS_ERR_UNSUPPORTED). As PyTorch's.
 */
LS_API ls_tensor *ls_cross_entropy(ls_tensor *logits, ls_tensor *target, const ls_class_loss_options *options);

/** Options of ls_nll_loss: those of ls_cross_entropy, without label smoothing. Zero fields are the defaults. */
typedef struct ls_nll_loss_options {
    ls_loss_reduction reduction;
    ls_tensor *weight; /**< see ls_class_loss_options */
    bool ignore;       /**< leave out targets equal to ignore_index */
    int64_t ignore_index;
} ls_nll_loss_options;

/** -log_probabilities[target], of class numbers, as ls_cross_entropy. `options` may be NULL. */
LS_API ls_tensor *ls_nll_loss(ls_tensor *log_probabilities, ls_tensor *target, const ls_nll_loss_options *options);
/** -(target * log p + (1 - target) * log(1 - p)), each log held above -100 as in PyTorch. A p outside of 0 to 1 is
 * LS_ERR_ARGUMENT. */
LS_API ls_tensor *ls_bce_loss(ls_tensor *probability, ls_tensor *target, ls_loss_reduction reduction);
/** Options of ls_bce_with_logits_loss. Zero fields are the defaults. */
typedef struct ls_bce_with_logits_options {
    ls_loss_reduction reduction;
    ls_tensor *weight;     /**< broadcasts to the logits' shape, or NULL: multiplies the loss of each element. The mean
                                divides by the number of elements, as in PyTorch */
    ls_tensor *pos_weight; /**< broadcasts to the logits' shape, or NULL: multiplies the loss of positive targets. A
                                weight above 1 raises recall, for example negatives / positives of each column */
} ls_bce_with_logits_options;

/** -weight * (pos_weight * target * log p + (1 - target) * log(1 - p)) with p = sigmoid(logits), without overflow
 * (PyTorch's BCEWithLogitsLoss). Gradients flow to the weights, too. `options` may be NULL. */
LS_API ls_tensor *ls_bce_with_logits_loss(ls_tensor *logits, ls_tensor *target,
                                          const ls_bce_with_logits_options *options);
/** target * (log target - log_probabilities), 0 where target is 0. LS_LOSS_MEAN divides by the number of elements. */
LS_API ls_tensor *ls_kl_div_loss(ls_tensor *log_probabilities, ls_tensor *target, ls_loss_reduction reduction);

/** a . b / (max(|a|, epsilon) max(|b|, epsilon)) along `axis`, which goes away (PyTorch's cosine_similarity, whose
 * epsilon is 1e-8). a and b have as many axes and broadcast. `epsilon` is not negative. */
LS_API ls_tensor *ls_cosine_similarity(ls_tensor *a, ls_tensor *b, int axis, double epsilon);
/** 1 - cos where target is above 0, else max(cos - margin, 0), where cos = a . b / sqrt((a . a + 1e-12) (b . b +
 * 1e-12)) for each row of a and b [n, width]; target [n] (1 and -1, of any dtype). PyTorch's cosine_embedding_loss. */
LS_API ls_tensor *ls_cosine_embedding_loss(ls_tensor *a, ls_tensor *b, ls_tensor *target, double margin,
                                           ls_loss_reduction reduction);
/** max(d(anchor, positive) - d(anchor, negative) + margin, 0), d(x, y) = |x - y + 1e-6| along the last axis (Schroff et
 * al., arXiv 1503.03832; PyTorch's triplet_margin_loss, whose margin is 1, without `swap`). All three are [n, ...,
 * width] of one shape. */
LS_API ls_tensor *ls_triplet_margin_loss(ls_tensor *anchor, ls_tensor *positive, ls_tensor *negative, double margin,
                                         ls_loss_reduction reduction);

/** What a trial and a pipeline train by: the loss of a batch from the model's output and its target, one number, a mean
 * over the samples. `user` is the pointer that was given with it. */
typedef ls_tensor *(*ls_criterion)(ls_tensor *output, ls_tensor *target, void *user);

/** ls_cross_entropy; `user` is NULL or points to ls_class_loss_options, whose reduction is a mean. */
LS_API ls_tensor *ls_criterion_cross_entropy(ls_tensor *output, ls_tensor *target, void *user);
/** The mean of ls_mse_loss. This and ls_criterion_bce do not use `user`. */
LS_API ls_tensor *ls_criterion_mse(ls_tensor *output, ls_tensor *target, void *user);
/** The mean of ls_bce_loss: outputs are probabilities. */
LS_API ls_tensor *ls_criterion_bce(ls_tensor *output, ls_tensor *target, void *user);
/** ls_bce_with_logits_loss: outputs are logits. `user` is NULL or points to ls_bce_with_logits_options, whose reduction
 * is a mean. */
LS_API ls_tensor *ls_criterion_bce_with_logits(ls_tensor *output, ls_tensor *target, void *user);

#ifdef __cplusplus
}
#endif

#endif
