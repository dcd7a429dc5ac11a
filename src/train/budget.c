#include "train/budget.h"

#include <stdio.h>

#include "optim/optimizer.h"

/* ---- messages ---------------------------------------------------------------------------------------------------- */

typedef struct bytes_text {
    char text[LS_MEMORY_KINDS * 40];
} bytes_text;

/* Returns the number of bytes of each kind as text, for example "parameters 400, gradients 400". */
static bytes_text describe(const int64_t bytes[LS_MEMORY_KINDS]) {
    bytes_text list = {.text = ""};
    size_t used = 0;
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        if (bytes[i] > 0) {
            used += (size_t)snprintf(list.text + used, sizeof list.text - used, "%s%s %lld", used > 0 ? ", " : "",
                                     ls_memory_kind_name((ls_memory_kind)i), (long long)bytes[i]);
        }
    }
    return list;
}

/* ---- before training --------------------------------------------------------------------------------------------- */

/* Returns the number of bytes of gradients that the first backward pass will allocate. */
static int64_t missing_gradients(const ls_module *model) {
    int64_t bytes = 0;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        if (parameter->needs_grad && parameter->leaf->gradient == NULL) {
            bytes += parameter->count * (int64_t)ls_dtype_size((ls_dtype)parameter->dtype);
        }
    }
    return bytes;
}

ls_status ls_trial_check_memory(const ls_trial *trial) {
    const int64_t limit = trial->options.memory_limit;
    const ls_optimizer *optimizer = trial->options.optimizer;
    if (limit == 0) {
        return LS_OK;
    }
    ls_memory memory;
    LS_TRY(ls_memory_stats(&memory));
    memory.bytes[LS_MEMORY_GRADIENTS] += missing_gradients(trial->state.model);
    memory.bytes[LS_MEMORY_OPTIMIZER] += optimizer != NULL ? ls_optimizer_pending(optimizer) : 0;
    int64_t total = 0;
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        total += memory.bytes[i];
    }
    return total <= limit ? LS_OK
                          : ls_fail(LS_ERR_MEMORY,
                                    "ls_trial_run: before the first step, training needs %lld bytes (%s), but "
                                    ".memory_limit is %lld: use a smaller model or an optimizer with less state, "
                                    "shard the state over ranks (.zero in ls_data_parallel), or raise the limit",
                                    (long long)total, describe(memory.bytes).text, (long long)limit);
}

/* ---- after the first step ---------------------------------------------------------------------------------------- */

ls_status ls_trial_check_first_step(ls_trial *trial) {
    const int64_t limit = trial->options.memory_limit;
    if (trial->memory_checked || trial->state.count == 0) {
        return LS_OK;
    }
    trial->memory_checked = true;
    const ls_memory_watch *peak = &trial->memory;
    return limit == 0 || peak->total <= limit
               ? LS_OK
               : ls_fail(LS_ERR_MEMORY,
                         "ls_trial_run: the first step needed %lld bytes (%s), but .memory_limit is %lld: make batches "
                         "smaller, divide them over more ranks, recompute activations (ls_recompute), or raise the "
                         "limit",
                         (long long)peak->total, describe(peak->bytes).text, (long long)limit);
}
