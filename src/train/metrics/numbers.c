/* An array of numbers that can grow. */
#include "base/memory.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

ls_status ls_numbers_resize(ls_numbers *numbers, size_t count) {
    if (count > numbers->room) {
        const size_t room = count > 2 * numbers->room ? count : 2 * numbers->room;
        double *items = ls_reallocate(numbers->items, numbers->room * sizeof *items, room * sizeof *items);
        if (items == NULL) {
            return ls_fail_memory("ls_trial", room * sizeof *items);
        }
        numbers->items = items;
        numbers->room = room;
    }
    for (size_t i = numbers->count; i < count; i++) {
        numbers->items[i] = 0;
    }
    numbers->count = count;
    return LS_OK;
}

void ls_numbers_free(ls_numbers *numbers) {
    ls_free(numbers->items);
    *numbers = (ls_numbers){0};
}

ls_status ls_numbers_settle(const ls_metric *metric, ls_numbers *numbers, size_t count, const ls_trial_state *state) {
    if (numbers->count != 0 && numbers->count != count) {
        return ls_fail(
            LS_ERR_SHAPE,
            "ls_trial: metric \"%s\": output %s has another number of classes, or of columns, than those before",
            metric->name, LS_SHAPE_TEXT(state->output));
    }
    return ls_numbers_resize(numbers, count);
}
