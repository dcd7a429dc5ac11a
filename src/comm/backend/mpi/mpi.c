/* Backend mpi: joining MPI and leaving it, communicators and their parts. mpi.h tells how it works. */
#include "comm/backend/mpi/mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/module.h"

/*
 * What MPI itself has once per process. `next` is the lowest context that this process has not had.
 */
static struct {
    MPI_Comm wire; /* a duplicate of MPI_COMM_WORLD */
    bool joined;
    int contexts; /* that MPI's tags have room for */
    int64_t next;
    int worlds;    /* that are open */
    int farewells; /* of ranks that left communicators which this one has left too, and not taken in yet */
    bool failed;
    pid_t id;
} process;

#define FAREWELL_NS UINT64_C(2000000000)

/* ---- the process ---------------------------------------------------------------------------------------------------
 */

/* Takes in what other ranks said when they left, which some MPI libraries would complain about at the end. */
static void take_farewells(void) {
    const uint64_t start = ls_clock_ns();
    int code = MPI_SUCCESS;
    while (process.farewells > 0 && code == MPI_SUCCESS && ls_clock_ns() - start < FAREWELL_NS) {
        MPI_Status status;
        ls_mpi_packet packet;
        int there = 0;
        code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, process.wire, &there, &status);
        if (code == MPI_SUCCESS && there != 0) {
            code = MPI_Recv(&packet, (int)sizeof packet, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, process.wire,
                            &status);
            process.farewells -= packet.header.operation == LS_MPI_LEFT;
        } else {
            sched_yield();
        }
    }
}

/*
 * A rank that ends in the midst of a job, or after a failure, does not finalize MPI: this is how its launcher knows
 * that it has to end the others. Where such a rank reports success, MPICH's would report the same of the job. A child
 * that this process forked has no part in MPI.
 */
static void leave_mpi(int status, void *argument) {
    int finalized = 0;
    (void)argument;
    if (getpid() != process.id || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) {
        return;
    }
    if (process.joined && process.worlds == 0 && !process.failed) {
        take_farewells();
        MPI_Finalize();
    } else if (status == 0) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
}

static ls_status start_mpi(void) {
    int started = 0;
    int finalized = 0;
    int level = MPI_THREAD_SINGLE;
    int code = MPI_Initialized(&started);
    if (code == MPI_SUCCESS) {
        code = MPI_Finalized(&finalized);
    }
    if (code == MPI_SUCCESS && finalized != 0) {
        return ls_fail(LS_ERR_STATE, "MPI was finalized in this process and cannot be started again");
    }
    if (code == MPI_SUCCESS && started == 0) {
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
        process.id = getpid();
        if (code == MPI_SUCCESS && on_exit(leave_mpi, NULL) != 0) {
            return ls_fail_memory("ls_comm_open", sizeof(void *));
        }
    }
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("ls_comm_open", "MPI_Init_thread", code);
}

static ls_status join_mpi(void) {
    if (process.joined) {
        return LS_OK;
    }
    LS_TRY(start_mpi());
    int *highest = NULL;
    int found = 0;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &process.wire);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_set_errhandler(process.wire, MPI_ERRORS_RETURN);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_get_attr(process.wire, MPI_TAG_UB, (void *)&highest, &found);
    }
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("ls_comm_open", "MPI_Comm_dup", code);
    }
    process.contexts = (found != 0 ? *highest : 32767) / LS_MPI_KINDS;
    process.joined = true;
    return LS_OK;
}

static ls_status check_place(const ls_join *join) {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(process.wire, &rank);
    MPI_Comm_size(process.wire, &size);
    if (rank != join->rank || size != join->size) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_comm_open: this process is rank %d of %d, but MPI says rank %d of %d: backend \"mpi\" needs "
                       "ranks that mpirun (or srun) started, of the MPI library that Lockstep's module was built with",
                       join->rank, join->size, rank, size);
    }
    return LS_OK;
}

/* ---- communicators -------------------------------------------------------------------------------------------------
 */

static void discard(ls_mpi *mpi) {
    ls_mpi_free_messages(mpi);
    ls_free(mpi->ranks);
    ls_free(mpi->transfers);
    ls_free(mpi->sent);
    ls_free(mpi->got);
    ls_free(mpi->found);
    ls_free(mpi->left);
    ls_free(mpi);
}

/* A state of join's ranks without a context yet; ranks are their own numbers. NULL: out of memory. */
static ls_mpi *make(const ls_join *join) {
    const size_t size = (size_t)join->size;
    ls_mpi *mpi = ls_allocate_zeroed(1, sizeof *mpi);
    if (mpi == NULL) {
        return NULL;
    }
    mpi->wire = process.wire;
    mpi->rank = join->rank;
    mpi->size = join->size;
    mpi->timeout_ns = join->timeout < 1e9 ? (uint64_t)(join->timeout * 1e9) : UINT64_MAX;
    mpi->ranks = ls_allocate(size * sizeof *mpi->ranks);
    mpi->sent = ls_allocate_zeroed(size, sizeof *mpi->sent);
    mpi->got = ls_allocate_zeroed(size, sizeof *mpi->got);
    mpi->found = ls_allocate_zeroed(size, sizeof *mpi->found);
    mpi->left = ls_allocate_zeroed(size, sizeof *mpi->left);
    if (mpi->ranks == NULL || mpi->sent == NULL || mpi->got == NULL || mpi->found == NULL || mpi->left == NULL) {
        discard(mpi);
        return NULL;
    }
    for (int rank = 0; rank < mpi->size; rank++) {
        mpi->ranks[rank] = rank;
    }
    return mpi;
}

/* Gives the state the context on which its ranks agreed. */
static ls_status enter(ls_mpi *mpi, int64_t context) {
    if (context >= process.contexts) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "this MPI library has tags for %d communicators in the life of a process, "
                       "and all were used",
                       process.contexts);
    }
    mpi->tags = (int)context * LS_MPI_KINDS;
    return LS_OK;
}

static ls_status mpi_open(const ls_join *join, void **state) {
    LS_TRY(join_mpi());
    LS_TRY(check_place(join));
    int64_t context = 0;
    ls_mpi *mpi = make(join);
    if (mpi == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)join->size * 2 * sizeof(ls_mpi_packet));
    }
    const int code = MPI_Allreduce(&process.next, &context, 1, MPI_INT64_T, MPI_MAX, process.wire);
    ls_status status = code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("ls_comm_open", "MPI_Allreduce", code);
    if (status == LS_OK) {
        process.next = context + 1;
        status = enter(mpi, context);
    }
    if (status != LS_OK) {
        discard(mpi);
        return status;
    }
    mpi->world = true;
    process.worlds++;
    *state = mpi;
    return LS_OK;
}

static void mpi_close(void *state) {
    ls_mpi *mpi = state;
    process.failed = process.failed || mpi->ended;
    process.worlds -= mpi->world;
    for (int rank = 0; rank < mpi->size; rank++) {
        process.farewells += rank == mpi->rank ? 0 : mpi->left[rank] ? 1 : 2;
    }
    (void)ls_mpi_give_up(mpi, LS_OK);
    discard(mpi);
}

/* The highest of all ranks' `next`: with it, no rank has a context twice. */
static ls_status agree_on_context(ls_mpi *mpi, int64_t *context) {
    int64_t *all = ls_allocate_zeroed((size_t)mpi->size, sizeof *all);
    if (all == NULL) {
        return ls_mpi_give_up(mpi, ls_fail_memory("ls_comm_split", (size_t)mpi->size * sizeof *all));
    }
    const ls_call call = {.operation = LS_OP_SPLIT,
                          .dtype = LS_I64,
                          .count = 1,
                          .width = sizeof *all,
                          .send = &process.next,
                          .receive = all,
                          .sequence = mpi->call.sequence};
    bool finished = false;
    ls_status status = ls_mpi_exchange(mpi, &call);
    if (status == LS_OK) {
        status = ls_mpi_progress(mpi, true, &finished);
    }
    *context = 0;
    for (int rank = 0; rank < mpi->size; rank++) {
        *context = all[rank] > *context ? all[rank] : *context;
    }
    ls_free(all);
    return status;
}

static ls_status mpi_split(void *state, const ls_join *join, const int *ranks, void **result) {
    ls_mpi *parent = state;
    int64_t context = 0;
    LS_TRY(agree_on_context(parent, &context));
    process.next = context + 1;
    if (join == NULL) {
        return LS_OK;
    }
    ls_mpi *mpi = make(join);
    if (mpi == NULL) {
        return ls_fail_memory("ls_comm_split", (size_t)join->size * 2 * sizeof(ls_mpi_packet));
    }
    for (int rank = 0; rank < join->size; rank++) {
        mpi->ranks[rank] = parent->ranks[ranks[rank]];
    }
    const ls_status status = enter(mpi, context);
    if (status != LS_OK) {
        discard(mpi);
        return status;
    }
    *result = mpi;
    return LS_OK;
}

static const ls_backend backend = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .begin = {[LS_OP_BARRIER] = ls_mpi_exchange,
              [LS_OP_BROADCAST] = ls_mpi_exchange,
              [LS_OP_GATHER] = ls_mpi_exchange,
              [LS_OP_GATHERV] = ls_mpi_exchange,
              [LS_OP_ALLGATHER] = ls_mpi_exchange,
              [LS_OP_ALLGATHERV] = ls_mpi_exchange,
              [LS_OP_SCATTER] = ls_mpi_exchange,
              [LS_OP_SCATTERV] = ls_mpi_exchange,
              [LS_OP_ALLTOALL] = ls_mpi_exchange,
              [LS_OP_ALLTOALLV] = ls_mpi_exchange,
              [LS_OP_SPLIT] = ls_mpi_exchange},
    .progress = ls_mpi_progress,
    .post = ls_mpi_post,
    .test = ls_mpi_test,
    .split = mpi_split,
};

LS_API const ls_backend *ls_backend_module(int abi_version, const ls_core *core);

const ls_backend *ls_backend_module(int abi_version, const ls_core *core) {
    if (abi_version != LS_BACKEND_ABI) {
        return NULL;
    }
    ls_core_set(core);
    return &backend;
}
