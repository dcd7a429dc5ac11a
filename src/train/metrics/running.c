/*
 * Running means, like torchbearer 0.5's RunningMean: the mean of the means of the last batches of training, which may
 * belong to earlier epochs. The mean is updated at the first batch of an epoch and after each `every` batches. The
 * value of a batch comes from the sums and weights of all ranks, so every rank keeps those of its share.
 *
 * The numbers are a head and then a ring of batches, with a sum and a weight for each.
 */
#include <math.h>

#include "train/metrics/metric.h"

/* The head counts batches: all, those at the last update of the mean, and those of this epoch. */
enum { SEEN, UPDATED_AT, IN_EPOCH, HEAD };

enum { WINDOW_LIMIT = 10000 };

static int64_t ring_size(const ls_metric *metric) {
    return metric->window + metric->every - 1;
}

static void init(const ls_metric *metric, double *numbers) {
    (void)metric;
    numbers[IN_EPOCH] = 0;
}

static ls_status update(const ls_metric *metric, ls_numbers *numbers, const ls_batch_numbers *batch) {
    double *head = numbers->items;
    double *row = head + HEAD + 2 * ((int64_t)head[SEEN] % ring_size(metric));
    row[0] = batch->sum;
    row[1] = batch->weight;
    head[SEEN]++;
    if ((int64_t)head[IN_EPOCH]++ % metric->every == 0) {
        head[UPDATED_AT] = head[SEEN];
    }
    return LS_OK;
}

static double result(const ls_metric *metric, double *numbers, size_t count) {
    const int64_t end = (int64_t)numbers[UPDATED_AT];
    double sum = 0;
    int64_t batches = 0;
    (void)count;
    for (int64_t i = end > metric->window ? end - metric->window : 0; i < end; i++) {
        const double *row = numbers + HEAD + 2 * (i % ring_size(metric));
        if (row[1] != 0) {
            sum += row[0] / row[1];
            batches++;
        }
    }
    return batches > 0 ? sum / (double)batches : (double)NAN;
}

static bool is_count(double number) {
    return number >= 0 && number < 0x1p53 && number == floor(number);
}

static bool valid(const ls_metric *metric, const double *numbers, size_t count) {
    (void)count;
    return is_count(numbers[SEEN]) && is_count(numbers[UPDATED_AT]) && is_count(numbers[IN_EPOCH]) &&
           numbers[UPDATED_AT] <= numbers[SEEN] && numbers[SEEN] - numbers[UPDATED_AT] < metric->every;
}

static const ls_metric_type type = {.kept = HEAD,
                                    .alike = true,
                                    .lasting = true,
                                    .training_only = true,
                                    .init = init,
                                    .update = update,
                                    .result = result,
                                    .valid = valid};

ls_metric *ls_metric_running(ls_metric *of, const ls_running_options *options) {
    static const char *const maker = "ls_metric_running";
    ls_metric *metric = ls_metric_take_mean(maker, of, "running_", "");
    if (metric == NULL) {
        return NULL;
    }
    metric->type = &type;
    metric->window = options != NULL && options->window != 0 ? options->window : 50;
    metric->every = options != NULL && options->every != 0 ? options->every : 10;
    if (metric->window < 1 || metric->every < 1 || metric->window > WINDOW_LIMIT || metric->every > WINDOW_LIMIT) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the mean of %d batches, every %d: both must be from 1 to %d", maker,
                      metric->window, metric->every, WINDOW_LIMIT);
        ls_metric_free(metric);
        return NULL;
    }
    metric->width = HEAD + 2 * (size_t)ring_size(metric);
    return metric;
}
