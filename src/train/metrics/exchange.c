/*
 * The exchange at the end of a pass, which merges the numbers of all ranks: one all-reduce of sums for all metrics. The
 * numbers of metrics with `merge` have a slot for each rank, where all other ranks write zeros. If the counts of
 * numbers may differ between ranks, the counts have such slots too. A second round then exchanges the numbers after the
 * first `known` numbers, which all ranks have.
 *
 * With `.shards`, slices take the place of ranks, and all numbers have slots. Each rank adds them up in the order of
 * the tree over the slices.
 */
#include <string.h>

#include "base/tree.h"
#include "train/metrics/metric.h"

enum { KNOWN = 0, FURTHER };

typedef struct exchange {
    ls_metrics *metrics;
    const ls_trial_state *state;
    size_t parts; /* ranks or slices */
    bool sliced;
    bool open[LS_METRIC_LIMIT];            /* counts may differ between ranks */
    size_t known[LS_METRIC_LIMIT];         /* number of values that all ranks have */
    const double *counts[LS_METRIC_LIMIT]; /* count of each part, if `open` is set */
    const double *parts_of[LS_METRIC_LIMIT][2];
} exchange;

static void look_at(exchange *x, int i) {
    const ls_metric *metric = x->metrics->items[i];
    const bool on = ls_metric_is_on(metric, x->state);
    x->open[i] = on && (metric->type->grows || metric->type->settles);
    x->known[i] = !on ? 0 : x->open[i] ? metric->width : x->metrics->set->tallies[i].count;
}

/* Returns how many numbers of metric i a part contributes in a round. */
static size_t size_of(const exchange *x, int i, size_t part, int round) {
    return round == KNOWN ? x->known[i] : x->open[i] ? (size_t)x->counts[i][part] - x->known[i] : 0;
}

/* Returns whether the numbers of metric i have a slot for each part. */
static bool has_slots(const exchange *x, int i) {
    return x->sliced || x->metrics->items[i]->type->merge != NULL;
}

static size_t largest_of(const exchange *x, int i, int round) {
    size_t largest = 0;
    for (size_t part = 0; part < x->parts; part++) {
        const size_t size = size_of(x, i, part, round);
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Returns the offset of a part within the numbers of metric i. */
static size_t offset_of(const exchange *x, int i, int round, size_t part) {
    size_t offset = 0;
    for (size_t before = 0; before < part && has_slots(x, i); before++) {
        offset += size_of(x, i, before, round);
    }
    return offset;
}

/* Returns how many numbers metric i has in the buffer of a round. */
static size_t room_of(const exchange *x, int i, int round) {
    return has_slots(x, i) ? offset_of(x, i, round, x->parts) : largest_of(x, i, round);
}

/* Writes the numbers of a part at their offset. Numbers that are equal on all parts count only on part 0. */
static void put(const exchange *x, int i, int round, const ls_metric_set *set, size_t part, double *to) {
    const ls_metric_type *type = x->metrics->items[i]->type;
    const double *own = set->tallies[i].items;
    const size_t known = round == KNOWN ? 0 : x->known[i];
    const size_t skipped = round == KNOWN && type->alike && part != 0 ? (size_t)type->kept : 0;
    const size_t size = size_of(x, i, part, round);
    if (size > skipped) {
        memcpy(to + skipped, own + known + skipped, (size - skipped) * sizeof *to);
    }
}

/* Writes this rank's numbers of metric i, and their counts if the counts are exchanged with the numbers. */
static void put_own(const exchange *x, int i, int round, double *to, double *counts) {
    size_t part = (size_t)x->metrics->first_part;
    for (const ls_metric_set *set = x->metrics->set; set != NULL; set = set->next) {
        if (size_of(x, i, part, round) > 0) {
            put(x, i, round, set, part, to + offset_of(x, i, round, part));
        }
        if (counts != NULL) {
            counts[part] = (double)set->tallies[i].count;
        }
        part++;
    }
}

static ls_status run_round(exchange *x, int round) {
    ls_tally *buffer = &x->metrics->exchanged[round];
    const int count = x->metrics->count;
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        total += room_of(x, i, round) + (round == KNOWN && x->open[i] ? x->parts : 0);
    }
    buffer->count = 0; /* the resized buffer is then all zeros */
    LS_TRY(ls_tally_resize(buffer, total));
    double *to = buffer->items;
    for (int i = 0; i < count; i++) {
        const bool counts = round == KNOWN && x->open[i];
        x->parts_of[i][round] = to;
        double *next = to + room_of(x, i, round);
        put_own(x, i, round, to, counts ? next : NULL);
        if (counts) {
            x->counts[i] = next;
            next += x->parts;
        }
        to = next;
    }
    return total > 0 && ls_comm_size(x->state->comm) > 1
               ? ls_comm_allreduce(x->state->comm, buffer->items, buffer->items, total, LS_F64, LS_SUM, NULL)
               : LS_OK;
}

static double add_node(const exchange *x, int i, int round, size_t j, ls_tree_node node) {
    if (node.count > 1) {
        const int left = ls_tree_left(node.count);
        return add_node(x, i, round, j, (ls_tree_node){node.first, left}) +
               add_node(x, i, round, j, (ls_tree_node){node.first + left, node.count - left});
    }
    const size_t part = (size_t)node.first;
    return j < size_of(x, i, part, round) ? x->parts_of[i][round][offset_of(x, i, round, part) + j] : 0;
}

static ls_status merge_sums(const exchange *x, int i, int round) {
    ls_tally *merged = &x->metrics->merged[i];
    const size_t first = round == KNOWN ? 0 : x->known[i];
    const size_t room = largest_of(x, i, round);
    LS_TRY(ls_tally_resize(merged, first + room));
    for (size_t j = 0; j < room; j++) {
        merged->items[first + j] =
            x->sliced ? add_node(x, i, round, j, (ls_tree_node){0, (int)x->parts}) : x->parts_of[i][round][j];
    }
    return LS_OK;
}

/* Adds the numbers of a round to the merged tally. All numbers of metrics with `merge` are in the same round. */
static ls_status merge(const exchange *x, int i, int round) {
    ls_tally *merged = &x->metrics->merged[i];
    const double *numbers = x->parts_of[i][round];
    if (merged->metric->type->merge == NULL) {
        return merge_sums(x, i, round);
    }
    for (size_t part = 0; part < x->parts; part++) {
        const size_t size = size_of(x, i, part, round);
        LS_TRY(size > 0 ? merged->metric->type->merge(merged, numbers, size) : LS_OK);
        numbers += size;
    }
    return LS_OK;
}

/* If the first batch of a pass determines the count of a metric, all parts with samples must have the same count. */
static ls_status check_settled(const exchange *x, int i) {
    const ls_metric *metric = x->metrics->items[i];
    size_t settled = 0;
    for (size_t part = 0; part < x->parts; part++) {
        const size_t count = (size_t)x->counts[i][part];
        if (count != 0 && settled != 0 && count != settled) {
            return ls_fail(
                LS_ERR_SHAPE,
                "ls_trial: metric \"%s\": the outputs of the ranks have different numbers of classes or columns",
                metric->name);
        }
        settled = count != 0 ? count : settled;
    }
    return LS_OK;
}

static ls_status run(exchange *x) {
    for (int i = 0; i < x->metrics->count; i++) {
        look_at(x, i);
    }
    LS_TRY(run_round(x, KNOWN));
    for (int i = 0; i < x->metrics->count; i++) {
        LS_TRY(x->open[i] && x->metrics->items[i]->type->settles ? check_settled(x, i) : LS_OK);
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
    if (metrics->parts <= 1) {
        return metrics->set->tallies;
    }
    exchange x = {.metrics = metrics, .state = state, .parts = (size_t)metrics->parts, .sliced = metrics->sliced};
    return run(&x) == LS_OK ? metrics->merged : NULL;
}

/* ---- the slices of one rank -------------------------------------------------------------------------------------- */

const ls_tally *ls_metrics_merge_slices(ls_metrics *metrics, const ls_metric_set *first, int i) {
    ls_tally *merged = &metrics->merged[i];
    merged->count = 0;
    ls_status status = ls_tally_begin(merged);
    for (const ls_metric_set *set = first; set != NULL && status == LS_OK; set = set->next) {
        const ls_tally *slice = &set->tallies[i];
        const ls_metric_type *type = slice->metric->type;
        status = ls_tally_add(merged, slice->items, slice->count, set != first && type->alike ? (size_t)type->kept : 0);
    }
    return status == LS_OK ? merged : NULL;
}
