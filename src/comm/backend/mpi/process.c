/* What this process has of MPI: starting and leaving it, and the wires that communicators travel on. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

static struct {
    ls_mpi_wire world;    /* a duplicate of MPI_COMM_WORLD, which is never freed */
    ls_mpi_wire *retired; /* that nothing travels on any more but what other ranks said when they left */
    bool joined;          /* `world` is there */
    bool watched;         /* at_finalize is called */
    int worlds;           /* that are open */
    bool failed;
    pid_t id;
} process;

#define FAREWELL_NS UINT64_C(2000000000)

bool ls_mpi_runs(void) {
    int started = 0;
    int finalized = 0;
    return MPI_Initialized(&started) == MPI_SUCCESS && started != 0 && MPI_Finalized(&finalized) == MPI_SUCCESS &&
           finalized == 0;
}

/* ---- wires ---------------------------------------------------------------------------------------------------------
 */

/* Takes in what came on a wire that no communicator uses; whether all farewells have been taken in. */
static bool take_farewells(ls_mpi_wire *wire) {
    for (int there = 1; wire->farewells > 0 && there != 0;) {
        MPI_Status status;
        ls_mpi_packet packet;
        int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, wire->comm, &there, &status);
        if (code == MPI_SUCCESS && there != 0) {
            code =
                MPI_Recv(&packet, (int)sizeof packet, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, wire->comm, &status);
            wire->farewells -= code == MPI_SUCCESS && packet.header.operation == LS_MPI_LEFT;
        }
        if (code != MPI_SUCCESS) {
            return false;
        }
    }
    return wire->farewells == 0;
}

/*
 * Frees the wires that are done with. Not before all farewells have come: Open MPI gives the number of a communicator
 * that was freed to a later one, and would count a late message as one of that.
 */
static void sweep(void) {
    if (!ls_mpi_runs()) {
        return;
    }
    for (ls_mpi_wire **link = &process.retired; *link != NULL;) {
        ls_mpi_wire *wire = *link;
        if (!take_farewells(wire)) {
            link = &wire->next;
            continue;
        }
        *link = wire->next;
        MPI_Comm_free(&wire->comm);
        ls_free(wire);
    }
}

/* MPI_Finalize begins with this: some MPI libraries complain about messages that nobody took. */
static int at_finalize(MPI_Comm comm, int keyval, void *value, void *state) {
    (void)comm, (void)keyval, (void)value, (void)state;
    const uint64_t start = ls_clock_ns();
    for (bool over = process.failed; !over && ls_clock_ns() - start < FAREWELL_NS;) {
        sweep();
        over = process.retired == NULL && (process.world.uses != 0 || take_farewells(&process.world));
        if (!over) {
            sched_yield();
        }
    }
    return MPI_SUCCESS;
}

static int watch_finalize(void) {
    int keyval = MPI_KEYVAL_INVALID;
    int code =
        process.watched ? MPI_SUCCESS : MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &keyval, NULL);
    if (code == MPI_SUCCESS && !process.watched) {
        code = MPI_Comm_set_attr(MPI_COMM_SELF, keyval, NULL);
        process.watched = true;
    }
    return code;
}

/* Fills in a wire that is a duplicate of `comm`. */
static ls_status duplicate(MPI_Comm comm, ls_mpi_wire *wire) {
    int *highest = NULL;
    int found = 0;
    int code = watch_finalize();
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_dup(comm, &wire->comm);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_set_errhandler(wire->comm, MPI_ERRORS_RETURN);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_get_attr(wire->comm, MPI_TAG_UB, (void *)&highest, &found);
    }
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("ls_comm_open", "MPI_Comm_dup", code);
    }
    wire->contexts = (found != 0 ? *highest : 32767) / LS_MPI_KINDS;
    return LS_OK;
}

ls_mpi_wire *ls_mpi_wire_over(MPI_Comm comm) {
    sweep();
    ls_mpi_wire *wire = ls_allocate_zeroed(1, sizeof *wire);
    if (wire == NULL) {
        (void)ls_fail_memory("ls_comm_open", sizeof *wire);
        return NULL;
    }
    if (duplicate(comm, wire) != LS_OK) {
        ls_free(wire);
        return NULL;
    }
    return wire;
}

ls_mpi_wire *ls_mpi_wire_of_world(void) {
    return &process.world;
}

void ls_mpi_wire_release(ls_mpi_wire *wire) {
    if (--wire->uses == 0 && wire != &process.world) {
        wire->next = process.retired;
        process.retired = wire;
        sweep();
    }
}

/* ---- MPI -----------------------------------------------------------------------------------------------------------
 */

/*
 * A rank that ends in the midst of a job, or after a failure, does not finalize MPI: this is how its launcher knows
 * that it has to end the others. Where such a rank reports success, MPICH's would report the same of the job. A child
 * that this process forked has no part in MPI.
 */
static void leave_mpi(int status, void *argument) {
    (void)argument;
    if (getpid() != process.id || !ls_mpi_runs()) {
        return;
    }
    if (process.joined && process.worlds == 0 && !process.failed) {
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

ls_status ls_mpi_join(void) {
    if (!process.joined) {
        LS_TRY(start_mpi());
        LS_TRY(duplicate(MPI_COMM_WORLD, &process.world));
        process.joined = true;
    }
    return LS_OK;
}

void ls_mpi_count_world(int change) {
    process.worlds += change;
}

void ls_mpi_note_failure(void) {
    process.failed = true;
}
