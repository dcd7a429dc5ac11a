#include "comm/joined.h"

#include <stdatomic.h>
#include <string.h>

#include "comm/rendezvous.h"

static atomic_bool done; /* the process has joined a job, or was warned */

void ls_joined(void) {
    atomic_store_explicit(&done, true, memory_order_relaxed);
}

void ls_warn_unless_joined(void) {
    if (atomic_load_explicit(&done, memory_order_relaxed) || ls_environment_text("LOCKSTEP_LAUNCH") == NULL) {
        return;
    }
    const char *rank = ls_environment_text("RANK");
    const char *size = ls_environment_text("WORLD_SIZE");
    const bool speaks = rank != NULL && strcmp(rank, "0") == 0 && size != NULL && strcmp(size, "1") != 0;
    if (speaks && !atomic_exchange(&done, true)) {
        ls_log_write(
            LS_LOG_WARNING,
            "`lockstep run` started %s processes, and this program trains without ls_init: each process trains "
            "a model of its own; call ls_init first, and train ls_data_parallel(model, world, NULL)",
            size);
    }
}
