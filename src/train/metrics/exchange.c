/*
 * The exchange at the end of a pass, which merges the numbers of all ranks: one all-reduce of sums for all metrics. The
 * numbers of metrics with `merge` have a slot for each rank; other ranks put zeros into it. If ranks may have different
 * counts of numbers, the counts also have such slots. A second round then exchanges the remaining numbers, after the
 * first `known` numbers that all ranks have.
 */
#include <string.h>

#include "train/metrics/metric.h"

enum { KNOWN = 0, FURTHER };

typedef struct exchange {
    ls_metrics *metrics;
    const ls_trial_state *state;
    size_t ranks;
    size_t rank;
    bool open[LS_METRIC_LIMIT];            /* ranks may have different counts */
    size_t known[LS_METRIC_LIMIT];         /* numbers that all ranks have */
    const double *counts[LS_METRIC_LIMIT]; /* count of each rank, if `open` */
    const double *parts[LS_METRIC_LIMIT][2];
} exchange;

static void look_at(exchange *x, int i) {
    const ls_metric *metric = x->metrics->items[i];
    const bool on = ls_metric_is_on(metric, x->state);
    x->open[i] = on && (metric->type->grows || (metric->type->settles && metric->width == 0));
    x->known[i] = !on ? 0 : x->open[i] ? metric->width : x->metrics->set->tallies[i].count;
}

/* Returns the number of numbers of metric i that a rank has in a round. */
static size_t size_of(const exchange *x, int i, size_t rank, int round) {
    return round == KNOWN ? x->known[i] : x->open[i] ? (size_t)x->counts[i][rank] - x->known[i] : 0;
}

/* Returns the number of numbers of metric i in the buffer of a round. Sets the offset of this rank's numbers. */
static size_t room_of(const exchange *x, int i, int round, size_t *own) {
    const bool apart = x->metrics->items[i]->type->merge != NULL;
    size_t room = 0;
    *own = 0;
    for (size_t rank = 0; rank < x->ranks; rank++) {
        const size_t size = size_of(x, i, rank, round);
        if (apart) {
            *own = rank == x->rank ? room : *own;
            room += size;
        } else {
            room = size > room ? size : room;
        }
    }
    return room;
}

/* Puts the numbers of this rank at their offset. Numbers that are the same on all ranks count only on rank 0. */
static void put(const exchange *x, int i, int round, double *to) {
    const ls_metric_type *type = x->metrics->items[i]->type;
    const double *own = x->metrics->set->tallies[i].items;
    const size_t known = round == KNOWN ? 0 : x->known[i];
    const size_t skipped = round == KNOWN && type->alike && x->rank != 0 ? (size_t)type->kept : 0;
    const size_t size = size_of(x, i, x->rank, round);
    if (size > skipped) {
        memcpy(to + skipped, own + known + skipped, (size - skipped) * sizeof *to);
    }
}

static ls_status run_round(exchange *x, int round) {
    ls_tally *buffer = &x->metrics->exchanged[round];
    const int count = x->metrics->count;
    size_t total = 0;
    size_t own;
    for (int i = 0; i < count; i++) {
        total += room_of(x, i, round, &own) + (round == KNOWN && x->open[i] ? x->ranks : 0);
    }
    buffer->count = 0; /* then the resized buffer is all zeros */
    LS_TRY(ls_tally_resize(buffer, total));
    double *to = buffer->items;
    for (int i = 0; i < count; i++) {
        const size_t room = room_of(x, i, round, &own);
        if (room > 0) {
            put(x, i, round, to + own);
        }
        x->parts[i][round] = to;
        to += room;
        if (round == KNOWN && x->open[i]) {
            to[x->rank] = (double)x->metrics->set->tallies[i].count;
            x->counts[i] = to;
            to += x->ranks;
        }
    }
    return total > 0 ? ls_comm_allreduce(x->state->comm, buffer->items, buffer->items, total, LS_F64, LS_SUM, NULL)
                     : LS_OK;
}

/* Adds the sums of a round to the merged tally, or merges the numbers of one rank after the other. Numbers of metrics
 * with `merge` are all in one round. */
static ls_status merge(const exchange *x, int i, int round) {
    ls_tally *merged = &x->metrics->merged[i];
    const double *part = x->parts[i][round];
    size_t first;
    if (merged->metric->type->merge == NULL) {
        const size_t room = room_of(x, i, round, &first);
        first = round == KNOWN ? 0 : x->known[i];
        LS_TRY(ls_tally_resize(merged, first + room));
        for (size_t j = 0; j < room; j++) {
            merged->items[first + j] = part[j];
        }
        return LS_OK;
    }
    for (size_t rank = 0; rank < x->ranks; rank++) {
        const size_t size = size_of(x, i, rank, round);
        LS_TRY(size > 0 ? merged->metric->type->merge(merged, part, size) : LS_OK);
        part += size;
    }
    return LS_OK;
}

/* If the first batch of a metric sets the count, the metric has this count in all later passes. */
static ls_status settle(const exchange *x, int i) {
    ls_metric *metric = x->metrics->items[i];
    size_t settled = 0;
    for (size_t rank = 0; rank < x->ranks; rank++) {
        const size_t count = (size_t)x->counts[i][rank];
        if (count != 0 && settled != 0 && count != settled) {
            return ls_fail(LS_ERR_SHAPE,
                           "ls_trial: metric \"%s\": the outputs of ranks have different numbers of classes, or of "
                           "columns",
                           metric->name);
        }
        settled = count != 0 ? count : settled;
    }
    metric->width = settled;
    return LS_OK;
}

static ls_status run(exchange *x) {
    for (int i = 0; i < x->metrics->count; i++) {
        look_at(x, i);
    }
    LS_TRY(run_round(x, KNOWN));
    for (int i = 0; i < x->metrics->count; i++) {
        LS_TRY(x->open[i] && x->metrics->items[i]->type->settles ? settle(x, i) : LS_OK);
    }
    LS_TRY(run_round(x, FURTHER));
    for (int i = 0; i < x->metrics->count; i++) {
        x->metrics->merged[i].count = 0;
        LS_TRY(ls_tally_begin(&x->metrics->merged[i]));
        LS_TRY(merge(x, i, KNOWN));
        LS_TRY(merge(x, i, FURTHER));
    }
    return LS_OK;
}

const ls_tally *ls_metrics_exchange(ls_metrics *metrics, const ls_trial_state *state) {
    const int ranks = ls_comm_size(state->comm);
    if (ranks <= 1) {
        return metrics->set->tallies;
    }
    exchange x = {
        .metrics = metrics, .state = state, .ranks = (size_t)ranks, .rank = (size_t)ls_comm_rank(state->comm)};
    return run(&x) == LS_OK ? metrics->merged : NULL;
}
