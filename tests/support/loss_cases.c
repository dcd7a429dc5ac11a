#include "tests/support/loss_cases.h"

ls_tensor *loss_far_mse(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_mse_loss(x, ls_add(target, 2), reduction);
}

static ls_tensor *narrow_output(const sample_batch *b) {
    return ls_narrow(b->output, 1, 0, LOSS_WIDTH);
}

static ls_tensor *class_weights(ls_dtype dtype) {
    static const double weights[LOSS_WIDTH] = {0.3, 1.7, 0.6, 2.5, 1.1};
    return ls_to(ls_from(LS_SHAPE(LOSS_WIDTH), LS_F64, weights), dtype);
}

ls_tensor *loss_huber(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_huber_loss(x, target, 0.7, reduction);
}

ls_tensor *loss_bce(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_bce_loss(ls_sigmoid(x), target, reduction);
}

ls_tensor *loss_bce_with_logits(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_bce_with_logits_loss(x, target, &(ls_bce_with_logits_options){.reduction = reduction});
}

/* Uses a weight per column for positive targets, and a weight per sample. */
ls_tensor *loss_weighted_bce(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    const ls_bce_with_logits_options options = {.reduction = reduction,
                                                .pos_weight = class_weights(ls_dtype_of(x)),
                                                .weight =
                                                    ls_add(ls_mean_axes(ls_detach(target), LS_AXES(1), true), 0.5)};
    return ls_bce_with_logits_loss(x, target, &options);
}

ls_tensor *loss_kl(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_kl_div_loss(ls_log_softmax(x, 1), target, reduction);
}

ls_tensor *loss_probabilities(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_cross_entropy(x, target, &(ls_class_loss_options){.reduction = reduction, .label_smoothing = 0.1});
}

static ls_tensor *reduced(const loss_case *c, ls_tensor *loss) {
    if (c->reduction != LS_LOSS_NONE) {
        return loss;
    }
    return c->then_mean ? ls_mean(loss) : ls_sum(loss);
}

ls_tensor *loss_elementwise(const loss_case *c, const sample_batch *b) {
    return reduced(c, c->function(narrow_output(b), b->target, c->reduction));
}

ls_tensor *loss_of_classes(const loss_case *c, const sample_batch *b) {
    const int64_t n = ls_size(b->output, 0);
    ls_tensor *logits = c->long_ ? ls_reshape(b->output, LS_SHAPE(n, LOSS_WIDTH, LOSS_LENGTH)) : narrow_output(b);
    ls_tensor *target = c->long_ ? b->class_ : ls_select(b->class_, 1, 0);
    const ls_class_loss_options options = {.reduction = c->reduction,
                                           .weight = c->weighted ? class_weights(ls_dtype_of(b->output)) : NULL,
                                           .label_smoothing = c->smoothing,
                                           .ignore = c->ignore,
                                           .ignore_index = LOSS_IGNORED};
    return reduced(c, c->nll ? ls_nll_loss(ls_log_softmax(logits, 1), target,
                                           &(ls_nll_loss_options){.reduction = options.reduction,
                                                                  .weight = options.weight,
                                                                  .ignore = options.ignore,
                                                                  .ignore_index = options.ignore_index})
                             : ls_cross_entropy(logits, target, &options));
}

ls_tensor *loss_difference(const sample_batch *b) {
    return ls_square(ls_sub(narrow_output(b), b->target));
}

static ls_tensor *mean_by_hand(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(loss_difference(b));
}

static ls_tensor *sum_by_hand(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_sum(loss_difference(b));
}

static ls_tensor *mean_of_sums(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(ls_sum_axes(loss_difference(b), LS_AXES(1), false));
}

static ls_tensor *sum_of_means(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_sum(ls_mul(ls_mean_axes(loss_difference(b), LS_AXES(0), false), 0.5));
}

static ls_tensor *mean_of_columns(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(ls_add(ls_transpose(loss_difference(b), 0, 1), 1));
}

ls_tensor *loss_with_decay(const loss_case *c, const sample_batch *b) {
    (void)c;
    ls_tensor *decay = ls_add(ls_mean(ls_square(b->weight)), ls_norm(b->weight));
    return ls_add(ls_mul(ls_mean(loss_difference(b)), 2), ls_mul(decay, 0.25));
}

static ls_tensor *sum_with_decay(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_sub(ls_sum(loss_difference(b)), ls_mul(ls_sum(ls_square(b->weight)), 0.25));
}

static ls_tensor *mean_and_sum(const loss_case *c, const sample_batch *b) {
    (void)c;
    ls_tensor *some = ls_add(ls_mean(loss_difference(b)), ls_mul(ls_sum(ls_abs(b->output)), 0.1));
    return ls_add(some, ls_div(ls_mean(b->weight), 3));
}

ls_tensor *loss_two(const loss_case *c, const sample_batch *b) {
    ls_tensor *second = ls_mse_loss(narrow_output(b), b->target, LS_LOSS_MEAN);
    return ls_add(loss_of_classes(c, b), ls_mul(second, 0.3));
}

/* More losses than the ranks exchange at once. */
static ls_tensor *twenty_losses(const loss_case *c, const sample_batch *b) {
    ls_tensor *loss = loss_of_classes(c, b);
    for (int i = 0; i < 20; i++) {
        ls_tensor *column = ls_narrow(b->output, 1, i % LOSS_WIDTH, 1 + i % LOSS_LENGTH);
        loss = ls_add(loss, ls_mul(i % 2 == 0 ? ls_mean(ls_square(column)) : ls_sum(ls_abs(column)), 0.1 * i));
    }
    return loss;
}

static ls_tensor *weighed_by_parameter(const loss_case *c, const sample_batch *b) {
    ls_tensor *s = ls_mean(b->weight);
    return ls_add(ls_mul(loss_of_classes(c, b), ls_exp(ls_neg(s))), s);
}

static ls_tensor *in_half(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_to(ls_mean(ls_to(loss_difference(b), LS_F64)), LS_F32);
}

/* A metric computed alongside the loss may be any function of the batch, because training does not use it. */
static ls_tensor *beside_a_metric(const loss_case *c, const sample_batch *b) {
    ls_tensor *loss = mean_by_hand(c, b);
    (void)ls_sqrt(ls_mean(loss_difference(b)));
    (void)ls_max(b->output);
    return loss;
}

static ls_tensor *cosine_embedding(const loss_case *c, const sample_batch *b) {
    ls_tensor *alike = ls_sub(ls_to(ls_gt(ls_select(b->target, 1, 0), 0.5), LS_F32), 0.5);
    return reduced(c, ls_cosine_embedding_loss(narrow_output(b), b->target, alike, 0.1, c->reduction));
}

static ls_tensor *triplet_margin(const loss_case *c, const sample_batch *b) {
    ls_tensor *negative = ls_narrow(b->output, 1, LOSS_WIDTH, LOSS_WIDTH);
    return reduced(c, ls_triplet_margin_loss(b->target, narrow_output(b), negative, 3, c->reduction));
}

static ls_tensor *mean_of_products(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(ls_square(ls_sub(ls_einsum("ni,ni->n", (ls_tensor *[]){narrow_output(b), b->target}, 2), 1)));
}

const loss_case loss_own_cases[] = {
    {.name = "mean", .make = mean_by_hand},
    {.name = "sum", .make = sum_by_hand},
    {.name = "mean of sums", .make = mean_of_sums},
    {.name = "sum of means", .make = sum_of_means},
    {.name = "mean of columns", .make = mean_of_columns},
    {.name = "mean and decay", .make = loss_with_decay},
    {.name = "sum and decay", .make = sum_with_decay},
    {.name = "mean and sum", .make = mean_and_sum},
    {.name = "two losses", .make = loss_two, .ignore = true, .weighted = true},
    {.name = "twenty losses", .make = twenty_losses, .ignore = true},
    {.name = "weighed by a parameter", .make = weighed_by_parameter, .ignore = true},
    {.name = "in another dtype", .make = in_half},
    {.name = "beside a metric", .make = beside_a_metric},
    {.name = "cosine embedding", .make = cosine_embedding},
    {.name = "triplet margin, sum", .make = triplet_margin, .reduction = LS_LOSS_SUM},
    {.name = "triplet margin of each", .make = triplet_margin, .reduction = LS_LOSS_NONE, .then_mean = true},
    {.name = "mean of products", .make = mean_of_products},
};

const size_t loss_own_count = sizeof loss_own_cases / sizeof *loss_own_cases;
