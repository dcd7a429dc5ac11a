/*
 * Means that a program computes by hand. If each rank divides by its own count, the means are too large, and one
 * warning says so. If they are divided by the count of all ranks, or not divided, they are right and cause no warning.
 * Warnings with other texts report means that each rank scales by its own number, statistics of this rank's samples,
 * and products with a constant that contains only this rank's samples.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/parallel.h>

enum { WIDTH = 6, PASSES = 5 };

typedef struct share {
    ls_comm *world;
    int64_t own;
    int64_t all;
} share;

typedef struct means_case {
    const char *name;
    ls_tensor *(*loss)(ls_tensor *y, const share *s); /* y: [samples, WIDTH] */
} means_case;

static ls_tensor *rows(ls_tensor *y) {
    return ls_sum_axes(ls_square(y), LS_AXES(1), false);
}

/* Returns a mask of zeros and ones. Higher ranks have more zeros. */
static ls_tensor *mask_of(const share *s) {
    ls_tensor *mask = ls_ones(LS_SHAPE(s->own), LS_F32);
    float *number = ls_data(mask);
    for (int64_t i = 0; number != NULL && i < s->own - 1 && i < 1 + 2 * ls_comm_rank(s->world); i++) {
        number[i] = 0;
    }
    return mask;
}

static ls_tensor *classes(const share *s) {
    return ls_to(ls_zeros(LS_SHAPE(s->own), LS_F32), LS_I64);
}

static ls_tensor *scalar(double number) {
    return ls_full(LS_SCALAR, LS_F32, number);
}

/* ---- warned of --------------------------------------------------------------------------------------------------- */

static ls_tensor *by_number(ls_tensor *y, const share *s) {
    return ls_div(ls_sum(rows(y)), (double)s->own);
}

static ls_tensor *by_tensor(ls_tensor *y, const share *s) {
    return ls_div(ls_sum(rows(y)), scalar((double)s->own));
}

static ls_tensor *by_product(ls_tensor *y, const share *s) {
    return ls_add(ls_mul(ls_sum(rows(y)), 1.0 / (double)s->own), ls_mul(ls_sum(ls_abs(y)), 0.01));
}

static ls_tensor *by_elements(ls_tensor *y, const share *s) {
    (void)s;
    return ls_div(ls_sum(ls_square(y)), (double)ls_numel(y));
}

static ls_tensor *by_classes(ls_tensor *y, const share *s) {
    const ls_class_loss_options sum = {.reduction = LS_LOSS_SUM};
    return ls_div(ls_cross_entropy(y, classes(s), &sum), (double)s->own);
}

static ls_tensor *by_mask(ls_tensor *y, const share *s) {
    ls_tensor *mask = mask_of(s);
    return ls_div(ls_sum(ls_mul(rows(y), mask)), ls_sum(mask));
}

static ls_tensor *by_full_mask(ls_tensor *y, const share *s) {
    ls_tensor *mask = ls_ones(LS_SHAPE(s->own), LS_F32);
    return ls_div(ls_sum(ls_mul(rows(y), mask)), ls_sum(mask));
}

static ls_tensor *by_detached(ls_tensor *y, const share *s) {
    (void)s;
    return ls_div(ls_sum(rows(y)), ls_sum(ls_detach(ls_abs(y))));
}

static ls_tensor *by_own_mask(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *mask = ls_to(ls_gt(ls_detach(ls_select(y, 1, 0)), -100), LS_F32);
    return ls_div(ls_sum(ls_mul(rows(y), mask)), ls_sum(mask));
}

static ls_tensor *divided_terms(ls_tensor *y, const share *s) {
    return ls_sum(ls_div(rows(y), (double)s->own));
}

static ls_tensor *scaled_terms(ls_tensor *y, const share *s) {
    return ls_sum(ls_mul(scalar(1.0 / (double)s->own), rows(y)));
}

static ls_tensor *normalized_mask(ls_tensor *y, const share *s) {
    ls_tensor *mask = mask_of(s);
    return ls_sum(ls_mul(rows(y), ls_div(mask, ls_sum(mask))));
}

static ls_tensor *expanded_weights(ls_tensor *y, const share *s) {
    ls_tensor *weight = ls_full(LS_SHAPE(s->own, 1), LS_F32, 1.0 / (double)s->own);
    return ls_sum(ls_mul(ls_square(y), ls_mul(weight, 1.0 / WIDTH)));
}

static const means_case by_own[] = {{"number", by_number},
                                    {"tensor", by_tensor},
                                    {"product", by_product},
                                    {"elements", by_elements},
                                    {"classes", by_classes},
                                    {"mask", by_mask},
                                    {"full mask", by_full_mask},
                                    {"detached", by_detached},
                                    {"own mask", by_own_mask},
                                    {"divided terms", divided_terms},
                                    {"scaled terms", scaled_terms},
                                    {"normalized mask", normalized_mask},
                                    {"expanded weights", expanded_weights}};

static ls_tensor *centered(ls_tensor *y, const share *s) {
    (void)s;
    return ls_mean(ls_square(ls_sub(y, ls_detach(ls_mean_axes(y, LS_AXES(0), true)))));
}

static ls_tensor *scaled(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *each = rows(y);
    return ls_mean(ls_div(each, ls_max(ls_detach(each))));
}

static ls_tensor *by_largest(ls_tensor *y, const share *s) {
    (void)s;
    return ls_div(ls_mean(rows(y)), ls_max(ls_detach(rows(y))));
}

static ls_tensor *chosen_mean(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *loss = ls_mean(rows(y));
    return ls_where(ls_gt(ls_mean(ls_detach(y)), 0), loss, ls_mul(loss, 3));
}

static ls_tensor *balanced(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *a = ls_mean(rows(y)), *b = ls_mean(ls_abs(y));
    return ls_add(a, ls_mul(b, ls_div(ls_detach(a), ls_detach(b))));
}

static const means_case constants[] = {{"centered", centered},
                                       {"scaled", scaled},
                                       {"largest", by_largest},
                                       {"chosen mean", chosen_mean},
                                       {"balanced", balanced}};

static ls_tensor *ratio_of_means(ls_tensor *y, const share *s) {
    ls_tensor *mask = mask_of(s);
    return ls_div(ls_mean(ls_mul(mask, rows(y))), ls_mean(mask));
}

/* Returns the square of a number that differs between ranks, as a statistic of this rank's targets would. */
static ls_tensor *own_statistic(const share *s) {
    return scalar((1 + 0.02 * ls_comm_rank(s->world)) * (1 + 0.02 * ls_comm_rank(s->world)));
}

static ls_tensor *mean_by_statistic(ls_tensor *y, const share *s) {
    return ls_div(ls_mean(rows(y)), own_statistic(s));
}

static ls_tensor *terms_by_statistic(ls_tensor *y, const share *s) {
    return ls_mean(ls_div(rows(y), own_statistic(s)));
}

static ls_tensor *by_item(ls_tensor *y, const share *s) {
    ls_tensor *loss = ls_mean(rows(y));
    return ls_div(loss, ls_item(loss) + ls_comm_rank(s->world)); /* the ranks may have the same samples */
}

static ls_tensor *two_means(ls_tensor *y, const share *s) {
    return ls_add(mean_by_statistic(y, s), ls_mul(ls_mean(ls_abs(y)), 0.1));
}

static const means_case by_statistic[] = {{"ratio of means", ratio_of_means},
                                          {"mean by statistic", mean_by_statistic},
                                          {"terms by statistic", terms_by_statistic},
                                          {"item", by_item},
                                          {"two means", two_means}};

static ls_tensor *keys(ls_tensor *y) {
    return ls_transpose(ls_detach(y), 0, 1);
}

static ls_tensor *numbers(const share *s) {
    return ls_to(ls_arange(LS_SHAPE(s->own), LS_F32), LS_I64);
}

static ls_tensor *contrastive(ls_tensor *y, const share *s) {
    return ls_cross_entropy(ls_matmul(y, keys(y)), numbers(s), NULL);
}

static ls_tensor *keys_of_branch(ls_tensor *y, const share *s) {
    const bool before = ls_no_grad(true);
    ls_tensor *k = ls_tanh(ls_mul(y, 2));
    (void)ls_no_grad(before);
    return ls_cross_entropy(ls_matmul(y, ls_transpose(k, 0, 1)), numbers(s), NULL);
}

static ls_tensor *supervised(ls_tensor *y, const share *s) {
    (void)s;
    return ls_neg(ls_mean(ls_log_softmax(ls_matmul(y, keys(y)), 1)));
}

static ls_tensor *gram(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *factors[] = {y, ls_detach(y)};
    return ls_mean(ls_square(ls_einsum("ia,ja->ij", factors, 2)));
}

static ls_tensor *differences(ls_tensor *y, const share *s) {
    (void)s;
    return ls_mean(ls_square(ls_sub(ls_unsqueeze(y, 0), ls_unsqueeze(ls_detach(y), 1))));
}

static ls_tensor *farthest(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *apart = ls_square(ls_sub(ls_unsqueeze(y, 1), ls_unsqueeze(ls_detach(y), 0)));
    return ls_mean(ls_max_axes(ls_sum_axes(apart, LS_AXES(2), false), LS_AXES(1), false));
}

static const means_case pairs[] = {{"contrastive", contrastive}, {"keys of branch", keys_of_branch},
                                   {"supervised", supervised},   {"gram", gram},
                                   {"differences", differences}, {"farthest", farthest}};

/* ---- right ------------------------------------------------------------------------------------------------------- */

static ls_tensor *sum(ls_tensor *y, const share *s) {
    (void)s;
    return ls_sum(rows(y));
}

static ls_tensor *scaled_sum(ls_tensor *y, const share *s) {
    (void)s;
    return ls_add(ls_mul(ls_sum(rows(y)), 0.3), ls_mean(y));
}

static ls_tensor *mean(ls_tensor *y, const share *s) {
    (void)s;
    return ls_mean(rows(y));
}

static ls_tensor *by_all(ls_tensor *y, const share *s) {
    return ls_div(ls_sum(rows(y)), (double)s->all);
}

static ls_tensor *by_all_elements(ls_tensor *y, const share *s) {
    return ls_div(ls_sum(ls_square(y)), scalar((double)(s->all * WIDTH)));
}

/* A count of the global batch that happens to equal this rank's count in one pass. */
static ls_tensor *by_coincidence(ls_tensor *y, const share *s) {
    static _Thread_local int passes;
    const int64_t part = s->all / ls_comm_size(s->world);
    return ls_div(ls_sum(rows(y)), (double)(passes++ % PASSES == 1 ? part : s->all));
}

static ls_tensor *by_masks(ls_tensor *y, const share *s) {
    ls_tensor *mask = mask_of(s);
    return ls_div(ls_sum(ls_mul(rows(y), mask)), ls_allreduce(s->world, ls_sum(mask), LS_SUM));
}

static ls_tensor *by_share(ls_tensor *y, const share *s) {
    return ls_mul(ls_div(ls_sum(rows(y)), (double)s->own), (double)s->own / (double)s->all);
}

static ls_tensor *detached_samples(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *weight = ls_detach(ls_softmax(y, 1));
    return ls_mean(ls_mul(ls_sub(y, ls_mean_axes(ls_detach(y), LS_AXES(1), true)), weight));
}

static ls_tensor *all_reduced(ls_tensor *y, const share *s) {
    ls_tensor *center = ls_mean_axes(ls_detach(y), LS_AXES(0), true);
    return ls_mean(ls_square(ls_sub(y, ls_allreduce(s->world, center, LS_AVG))));
}

static ls_tensor *exchanged_by_hand(ls_tensor *y, const share *s) {
    ls_tensor *weight = ls_sum(ls_detach(ls_abs(y)));
    float *number = ls_data(weight);
    return ls_comm_allreduce(s->world, number, number, 1, LS_F32, LS_SUM, NULL) == LS_OK
               ? ls_div(ls_sum(rows(y)), weight)
               : NULL;
}

/* The program sends the elements through a read-only pointer, so the tensor remains a constant of the loss. */
static ls_tensor *sent_by_hand(ls_tensor *y, const share *s) {
    ls_tensor *weight = ls_sum(ls_detach(ls_abs(y)));
    const float *number = ls_data_const(weight);
    float all;
    return ls_comm_allreduce(s->world, number, &all, 1, LS_F32, LS_SUM, NULL) == LS_OK
               ? ls_div(ls_sum(rows(y)), ls_add(weight, (double)all - (double)*number))
               : NULL;
}

static ls_tensor *terms_by_all(ls_tensor *y, const share *s) {
    return ls_sum(ls_div(rows(y), (double)s->all));
}

static ls_tensor *masked_terms(ls_tensor *y, const share *s) {
    return ls_sum(ls_mul(rows(y), mask_of(s)));
}

/* Weights for columns. Their mean is 1 on every rank. */
static ls_tensor *weighted_columns(ls_tensor *y, const share *s) {
    ls_tensor *weight = ls_mul(ls_arange(LS_SHAPE(WIDTH), LS_F32), 2.0 / (WIDTH - 1));
    return ls_mean(ls_mul(ls_square(y), ls_expand(weight, LS_SHAPE(s->own, WIDTH))));
}

static ls_tensor *mask_by_all(ls_tensor *y, const share *s) {
    ls_tensor *mask = mask_of(s);
    return ls_sum(ls_mul(rows(y), ls_div(mask, ls_allreduce(s->world, ls_sum(mask), LS_SUM))));
}

static ls_tensor *halved_mean(ls_tensor *y, const share *s) {
    return ls_mul(ls_mean(ls_mul(rows(y), ls_full(LS_SHAPE(s->own), LS_F32, 0.5))), 2.0);
}

static ls_tensor *gathered_keys(ls_tensor *y, const share *s) {
    ls_tensor *all = ls_allgather(s->world, ls_detach(y), 0);
    return ls_mean(ls_logsumexp(ls_matmul(y, ls_transpose(all, 0, 1)), 1, false));
}

/* Products of an output with its own constant, sample by sample. */
static ls_tensor *own_keys(ls_tensor *y, const share *s) {
    (void)s;
    ls_tensor *factors[] = {y, ls_detach(y)};
    ls_tensor *outer = ls_einsum("ia,ib->iab", factors, 2), *inner = ls_einsum("ia,ia->i", factors, 2);
    ls_tensor *product = ls_matmul(ls_unsqueeze(y, 1), ls_unsqueeze(ls_detach(y), 2));
    ls_tensor *index = ls_argmax(y, 1, true);
    return ls_add(ls_add(ls_mean(outer), ls_mean(inner)),
                  ls_add(ls_mean(product), ls_mean(ls_take_along_axis(y, 1, index))));
}

static ls_tensor *mean_by_global(ls_tensor *y, const share *s) {
    ls_tensor *all = ls_allreduce(s->world, ls_mean(ls_square(ls_detach(y))), LS_AVG);
    return ls_div(ls_mean(rows(y)), all);
}

static ls_tensor *mean_by_global_item(ls_tensor *y, const share *s) {
    return ls_mul(ls_mean(rows(y)), 1 / ls_item(ls_allreduce(s->world, ls_mean(ls_square(ls_detach(y))), LS_AVG)));
}

/* The root of a mean that the program weights by the shares of the ranks, and adds up itself. */
static ls_tensor *exchanged_mean(ls_tensor *y, const share *s) {
    ls_tensor *part = ls_mul(ls_mean(rows(y)), (double)s->own / (double)s->all);
    return ls_sqrt(ls_allreduce(s->world, part, LS_SUM));
}

/* Returns weights of samples. On a rank with one sample, the tensor has one element. */
static ls_tensor *sample_weights(const share *s) {
    return ls_add(ls_rand(LS_SHAPE(s->own), LS_F32), 1 + ls_comm_rank(s->world));
}

static ls_tensor *weighted_samples(ls_tensor *y, const share *s) {
    return ls_mean(ls_mul(rows(y), sample_weights(s)));
}

static ls_tensor *weighted_sum(ls_tensor *y, const share *s) {
    return ls_sum(ls_mul(rows(y), sample_weights(s)));
}

/* A metric that is printed, but is not a part of the loss. */
static ls_tensor *with_metric(ls_tensor *y, const share *s) {
    ls_tensor *metric = ls_div(by_number(y, s), ls_mean(ls_detach(rows(y))));
    return metric != NULL ? mean(y, s) : NULL;
}

static const means_case right[] = {{"sum", sum},
                                   {"scaled sum", scaled_sum},
                                   {"mean", mean},
                                   {"by all", by_all},
                                   {"by all elements", by_all_elements},
                                   {"by coincidence", by_coincidence},
                                   {"by masks", by_masks},
                                   {"by share", by_share},
                                   {"detached samples", detached_samples},
                                   {"all-reduced", all_reduced},
                                   {"exchanged by hand", exchanged_by_hand},
                                   {"sent by hand", sent_by_hand},
                                   {"metric", with_metric},
                                   {"terms by all", terms_by_all},
                                   {"masked terms", masked_terms},
                                   {"weighted columns", weighted_columns},
                                   {"mask by all", mask_by_all},
                                   {"halved mean", halved_mean},
                                   {"gathered keys", gathered_keys},
                                   {"own keys", own_keys},
                                   {"mean by global", mean_by_global},
                                   {"mean by global item", mean_by_global_item},
                                   {"exchanged mean", exchanged_mean},
                                   {"weighted samples", weighted_samples},
                                   {"weighted sum", weighted_sum}};

/* Right cases with one sample on each rank, where sums and means, and weights and numbers, look the same. */
static const means_case single[] = {
    {"sum", sum}, {"weighted samples", weighted_samples}, {"weighted sum", weighted_sum}, {"own keys", own_keys}};

/* ---- running them ------------------------------------------------------------------------------------------------ */

static atomic_int warnings; /* of all ranks that are threads of this process */
static char last[1000];

static void count_warning(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    (void)user;
    if (level == LS_LOG_WARNING) {
        snprintf(last, sizeof last, "%s", line);
        atomic_fetch_add(&warnings, 1);
    }
}

static ls_status run_pass(ls_module *model, const means_case *c, const share *s) {
    if (s->own == 0) {
        return ls_data_parallel_skip(model);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = c->loss(ls_forward(model, ls_randn(LS_SHAPE(s->own, WIDTH), LS_F32)), s);
    ls_status status = ls_backward(loss);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/*
 * Trains for some passes. `says` is a text that the only warning must contain, or NULL for no warning. Each rank has
 * `samples` samples, or different numbers of samples if `uneven` is set. With 0 samples and `uneven`, rank 0 has none.
 */
static ls_status check(ls_comm *world, const means_case *c, int64_t samples, bool uneven, const char *says) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    const share s = {.world = world,
                     .own = samples + (uneven ? rank : 0),
                     .all = samples * size + (uneven ? size * (size - 1) / 2 : 0)};
    ls_seed(5);
    LS_TRY(ls_comm_barrier(world, NULL));
    atomic_store(&warnings, 0);
    LS_TRY(ls_comm_barrier(world, NULL));
    ls_module *model = ls_data_parallel(ls_nn_linear(WIDTH, WIDTH), world, NULL);
    for (int pass = 0; pass < PASSES; pass++) {
        LS_TRY(run_pass(model, c, &s));
    }
    ls_module_free(model);
    LS_TRY(ls_comm_barrier(world, NULL));
    const int wanted = says != NULL && size > 1;
    if (rank == 0 && (atomic_load(&warnings) != wanted || (wanted == 1 && strstr(last, says) == NULL))) {
        return ls_fail(LS_ERR_INTERNAL, "%s, %lld samples%s: %d warnings, not %d; the last: %s", c->name,
                       (long long)samples, uneven ? " or more" : "", atomic_load(&warnings), wanted, last);
    }
    return LS_OK;
}

static ls_status check_all(ls_comm *world, const means_case *cases, size_t count, const char *says) {
    for (size_t i = 0; i < count; i++) {
        LS_TRY(check(world, &cases[i], 7, false, says));
        LS_TRY(check(world, &cases[i], 4, true, says));
    }
    return LS_OK;
}

#define CHECK_ALL(world, list, says) check_all(world, list, sizeof(list) / sizeof *(list), says)

ls_status rank_test(ls_comm *world) {
    ls_log_set_sink(count_warning, NULL);
    LS_TRY(CHECK_ALL(world, by_own,
                     "this loss is a sum over samples, which data parallelism adds up over ranks; use ls_mean, or "
                     "divide by the count of the global batch"));
    LS_TRY(CHECK_ALL(world, constants,
                     "as a constant, but one process would use the result over the global batch; "
                     "reduce it over the ranks first (ls_allreduce)"));
    LS_TRY(CHECK_ALL(world, by_statistic, "this loss scales a mean over samples by a number of this rank"));
    LS_TRY(CHECK_ALL(world, pairs,
                     "a constant that contains only this rank's samples, but one process would use all "
                     "samples of the global batch; gather the constant first (ls_allgather)"));
    LS_TRY(CHECK_ALL(world, right, NULL));
    if (ls_comm_size(world) > 2) { /* rank 0 has no samples, and compares the numbers of the other ranks */
        /* Rank 1 has one sample, so its mask in the first case may be a weight, and is not compared. */
        for (size_t i = 1; i < sizeof by_statistic / sizeof *by_statistic; i++) {
            LS_TRY(check(world, &by_statistic[i], 0, true, "this loss scales a mean over samples"));
        }
        LS_TRY(check(world, &right[2], 0, true, NULL));
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        LS_TRY(check(world, &single[i], 1, false, NULL));
    }
    ls_log_set_sink(NULL, NULL);
    return ls_comm_barrier(world, NULL);
}
