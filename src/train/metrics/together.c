/* What all ranks counted in a pass: one all-reduce, of the numbers of all metrics. */
#include <string.h>

#include "train/metrics/metric.h"

ls_status ls_metrics_unite(ls_metrics *metrics, ls_comm *comm, ls_numbers parts[LS_METRIC_LIMIT]) {
    const ls_numbers *own = metrics->set->numbers;
    size_t total = 0;
    for (int i = 0; i < metrics->count; i++) {
        parts[i] = own[i];
        total += own[i].count;
    }
    if (ls_comm_size(comm) <= 1) {
        return LS_OK;
    }
    ls_numbers *all = &metrics->all;
    LS_TRY(ls_numbers_resize(all, total));
    size_t at = 0;
    for (int i = 0; i < metrics->count; at += own[i++].count) {
        parts[i].items = all->items + at;
        memcpy(parts[i].items, own[i].items, own[i].count * sizeof *own[i].items);
    }
    return ls_comm_allreduce(comm, all->items, all->items, total, LS_F64, LS_SUM, NULL);
}
