#include "comm/separate.h"

#include <stdatomic.h>
#include <string.h>

#include "comm/meter.h"
#include "comm/rendezvous.h"

/* ---- processes that have not joined a job ------------------------------------------------------------------------ */

static atomic_bool done; /* the process has joined a job or has been warned */

void ls_joined(void) {
    atomic_store_explicit(&done, true, memory_order_relaxed);
}

/* Returns the number of processes that a launcher started, from its variables. Returns NULL for a single process, and
 * on ranks other than 0. */
static const char *several_processes(const char *rank_name, const char *size_name) {
    const char *rank = ls_environment_text(rank_name), *size = ls_environment_text(size_name);
    const bool speaks = rank != NULL && strcmp(rank, "0") == 0 && size != NULL && strcmp(size, "1") != 0;
    return speaks ? size : NULL;
}

/* Returns the number of processes that `lockstep run` started, under the same conditions. */
static const char *launched_processes(void) {
    return ls_environment_text("LOCKSTEP_LAUNCH") != NULL ? several_processes("RANK", "WORLD_SIZE") : NULL;
}

void ls_warn_mpi_is_alone(void) {
    const ls_mpi_launcher *mpi = ls_mpi_launcher_find();
    const char *launcher = "`lockstep run`", *size = launched_processes();
    if (size == NULL && mpi != NULL) {
        launcher = mpi->name;
        size = several_processes(mpi->rank, mpi->size);
    }
    if (size != NULL) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_comm_from_mpi: %s started %s processes, but MPI connects only this one: each process trains "
                     "its own model; start the program with the mpirun of the MPI library that it is linked with",
                     launcher, size);
    }
}

static void warn_unless_joined(void) {
    const char *size = atomic_load_explicit(&done, memory_order_relaxed) ? NULL : launched_processes();
    if (size != NULL && !atomic_exchange(&done, true)) {
        ls_log_write(LS_LOG_WARNING,
                     "`lockstep run` started %s processes, and this program trains without ls_init: each process "
                     "trains its own model; call ls_init first, and train ls_data_parallel(model, world, NULL)",
                     size);
    }
}

/* ---- ranks that do not communicate ------------------------------------------------------------------------------- */

typedef struct training {
    uint64_t steps; /* number of optimizer steps; counts at most two of each optimizer */
    bool checked;
    uint64_t calls; /* number of calls on communicators before the first step; includes the calls for its gradients */
} training;

static _Thread_local training present;

void ls_training_note_step(void) {
    warn_unless_joined();
    if (present.steps++ == 0) {
        present.calls = ls_comm_metered.calls;
    }
}

void ls_training_is_checked(void) {
    present.checked = true;
}

void ls_warn_if_separate(const ls_comm *world) {
    const bool apart = world != NULL && ls_comm_size(world) > 1 && present.steps > 1 && !present.checked &&
                       present.calls == ls_comm_metered.calls;
    if (!apart) {
        return;
    }
    present.checked = true;
    if (ls_comm_rank(world) == 0) {
        ls_log_write(LS_LOG_WARNING,
                     "the job has %d ranks, and this rank has trained without any communication: each rank trains its "
                     "own model; train ls_data_parallel(model, world, NULL), and give the loader .comm = world; "
                     "for separate models, make communicators of one rank (ls_comm_split)",
                     ls_comm_size(world));
    }
}
