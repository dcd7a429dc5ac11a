/*
 * What all ranks counted in a pass: one all-reduce, of the numbers of all metrics. Numbers that cannot be added up go
 * along in a place of each rank's own, where the others have zeros; and so does how many rows a rank has, where those
 * are kept, which then all get.
 */
#include <string.h>

#include "base/memory.h"
#include "train/metrics/metric.h"

/* ---- how many ---------------------------------------------------------------------------------------------------- */

static bool is_unsettled(const ls_measure *measure, const ls_trial_state *state) {
    return measure->rule->aggregate->settles && measure->width == 0 && ls_measure_is_on(measure, state);
}

/* What one rank says of its number: the largest of all, and of all that have some the smallest, negative. */
typedef struct ls_extremes {
    int64_t most;
    int64_t least;
} ls_extremes;

/*
 * Where the first batch says how many numbers there are, a rank without samples does not know it, and the others tell:
 * at the end of the first pass, and not again.
 */
static ls_status settle(ls_metrics *metrics, const ls_trial_state *state) {
    ls_extremes extremes[LS_METRIC_LIMIT];
    size_t count = 0;
    for (int i = 0; i < metrics->count; i++) {
        const int64_t own = (int64_t)metrics->set->numbers[i].count;
        if (is_unsettled(&metrics->measures[i], state)) {
            extremes[count++] = (ls_extremes){.most = own, .least = own > 0 ? -own : INT64_MIN};
        }
    }
    if (count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_comm_allreduce(state->comm, extremes, extremes, 2 * count, LS_I64, LS_MAX, NULL));
    const ls_extremes *next = extremes;
    for (int i = 0; i < metrics->count; i++) {
        ls_measure *measure = &metrics->measures[i];
        if (!is_unsettled(measure, state)) {
            continue;
        }
        if (next->most != 0 && next->most != -next->least) {
            return ls_fail(LS_ERR_SHAPE,
                           "ls_trial: metric \"%s\": the outputs of ranks have different numbers of classes, or of "
                           "columns",
                           measure->rule->name);
        }
        measure->width = next++->most;
    }
    return ls_metrics_make_room(metrics);
}

/* Ranks have as many numbers of each metric as the rank that has the most. */
static ls_status even_out(ls_metrics *metrics, const ls_trial_state *state) {
    int64_t counts[LS_METRIC_LIMIT];
    size_t count = 0;
    for (int i = 0; i < metrics->count; i++) {
        if (metrics->measures[i].rule->aggregate->grows) {
            counts[count++] = (int64_t)metrics->set->numbers[i].count;
        }
    }
    if (count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_comm_allreduce(state->comm, counts, counts, count, LS_I64, LS_MAX, NULL));
    const int64_t *next = counts;
    for (int i = 0; i < metrics->count; i++) {
        if (metrics->measures[i].rule->aggregate->grows) {
            LS_TRY(ls_numbers_resize(&metrics->set->numbers[i], (size_t)*next++));
        }
    }
    return LS_OK;
}

/* ---- bringing together ------------------------------------------------------------------------------------------- */

/* How many numbers the metric has in what is reduced. Of rows that are the numbers of each rank's rows. */
static size_t size_of(const ls_measure *measure, const ls_numbers *numbers, const ls_trial_state *state) {
    const size_t ranks = (size_t)ls_comm_size(state->comm);
    const ls_union together = measure->rule->aggregate->together;
    const size_t size = together == LS_ADDED ? numbers->count : together == LS_APART ? numbers->count * ranks : ranks;
    return ls_measure_is_on(measure, state) ? size : 0;
}

static void put(const ls_measure *measure, const ls_numbers *numbers, int rank, double *to) {
    const ls_union together = measure->rule->aggregate->together;
    if (together == LS_ROWS) {
        to[rank] = (double)numbers->count;
    } else if (numbers->count > 0) {
        memcpy(to + (together == LS_APART ? numbers->count * (size_t)rank : 0), numbers->items,
               numbers->count * sizeof *to);
    }
}

static ls_status reduce(ls_metrics *metrics, const ls_trial_state *state, ls_numbers parts[LS_METRIC_LIMIT]) {
    const ls_numbers *own = metrics->set->numbers;
    ls_numbers *all = &metrics->all;
    size_t total = 0;
    for (int i = 0; i < metrics->count; i++) {
        parts[i].count = size_of(&metrics->measures[i], &own[i], state);
        total += parts[i].count;
    }
    all->count = 0; /* so that all are 0 */
    LS_TRY(ls_numbers_resize(all, total));
    double *to = all->items;
    for (int i = 0; i < metrics->count; to += parts[i++].count) {
        parts[i].items = to;
        if (parts[i].count > 0) {
            put(&metrics->measures[i], &own[i], ls_comm_rank(state->comm), to);
        }
    }
    return ls_comm_allreduce(state->comm, all->items, all->items, total, LS_F64, LS_SUM, NULL);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool has_rows(const ls_measure *measure, const ls_trial_state *state) {
    return measure->rule->aggregate->together == LS_ROWS && ls_measure_is_on(measure, state);
}

/* Room for the rows of all metrics that have some, of all ranks, whose numbers have come. */
static ls_status make_room_for_rows(ls_metrics *metrics, const ls_trial_state *state, const ls_numbers *parts) {
    const size_t ranks = (size_t)ls_comm_size(state->comm);
    size_t total = 0;
    for (int i = 0; i < metrics->count; i++) {
        for (size_t rank = 0; rank < ranks && has_rows(&metrics->measures[i], state); rank++) {
            total += (size_t)parts[i].items[rank];
        }
    }
    if (metrics->row_counts == NULL) {
        metrics->row_counts = ls_allocate_zeroed(ranks, sizeof *metrics->row_counts);
    }
    return metrics->row_counts != NULL ? ls_numbers_resize(&metrics->rows, total)
                                       : ls_fail_memory("ls_trial", ranks * sizeof *metrics->row_counts);
}

static ls_status gather(ls_metrics *metrics, const ls_trial_state *state, ls_numbers parts[LS_METRIC_LIMIT]) {
    double *to = metrics->rows.items;
    for (int i = 0; i < metrics->count; i++) {
        size_t total = 0;
        if (!has_rows(&metrics->measures[i], state)) {
            continue;
        }
        for (int rank = 0; rank < ls_comm_size(state->comm); rank++) {
            metrics->row_counts[rank] = (size_t)parts[i].items[rank];
            total += metrics->row_counts[rank];
        }
        LS_TRY(ls_comm_allgatherv(state->comm, metrics->set->numbers[i].items, to, metrics->row_counts, NULL, LS_F64,
                                  NULL));
        parts[i] = (ls_numbers){.items = to, .count = total};
        to += total;
    }
    return LS_OK;
}

ls_status ls_metrics_unite(ls_metrics *metrics, const ls_trial_state *state, ls_numbers parts[LS_METRIC_LIMIT]) {
    if (ls_comm_size(state->comm) <= 1) {
        memcpy(parts, metrics->set->numbers, sizeof metrics->set->numbers);
        return LS_OK;
    }
    LS_TRY(settle(metrics, state));
    LS_TRY(even_out(metrics, state));
    LS_TRY(reduce(metrics, state, parts));
    LS_TRY(make_room_for_rows(metrics, state, parts));
    return gather(metrics, state, parts);
}
