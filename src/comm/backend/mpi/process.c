/* What this process has of MPI: starting and leaving it, and the wires that communicators travel on. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
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
    bool exits;     /* without ls_finalize */
    bool lost;      /* the ranks of the world did not meet in time */
    int launcher;   /* a connection to it, over which all ranks meet before they finalize MPI; 0: they do not */
    double timeout; /* seconds to wait for a silent rank */
    pid_t id;
    pthread_mutex_t sweeping; /* whose it is may change `retired` */
} process = {.sweeping = PTHREAD_MUTEX_INITIALIZER};

#define LEAVE_NOTICES_NS UINT64_C(2000000000)
#define FLUSH_SECONDS    5
#define LAST_WORDS_NS    UINT64_C(2000000000) /* for the others to hear and tell of it, on a busy machine too */

bool ls_mpi_runs(void) {
    int started = 0;
    int finalized = 0;
    return MPI_Initialized(&started) == MPI_SUCCESS && started != 0 && MPI_Finalized(&finalized) == MPI_SUCCESS &&
           finalized == 0;
}

/* ---- wires ---------------------------------------------------------------------------------------------------------
 */

/*
 * Takes in the message that was found on a wire, whole: data that nobody received may be of any size, and Open MPI
 * writes beyond a buffer that is too small for it.
 */
static bool take_one(ls_mpi_wire *wire, const MPI_Status *found) {
    const int kind = found->MPI_TAG % LS_MPI_KINDS;
    const bool is_packet =
        kind == LS_MPI_HEADERS || kind == LS_MPI_MESSAGES || kind == LS_MPI_ENDS; /* else it may look like one */
    int bytes = 0;
    ls_mpi_packet packet = {.header.operation = 0};
    bool taken = MPI_Get_count(found, MPI_BYTE, &bytes) == MPI_SUCCESS;
    void *large = taken && (size_t)bytes > sizeof packet ? ls_allocate((size_t)bytes) : NULL;
    taken = taken && ((size_t)bytes <= sizeof packet || large != NULL) &&
            MPI_Recv(large != NULL ? large : &packet, bytes, MPI_BYTE, found->MPI_SOURCE, found->MPI_TAG, wire->comm,
                     MPI_STATUS_IGNORE) == MPI_SUCCESS;
    ls_free(large);
    wire->leave_notices -= taken && is_packet && packet.header.operation == LS_MPI_LEFT;
    return taken;
}

/* Takes in what came on a wire that no communicator uses; whether all leave notices have been taken in. */
static bool take_leave_notices(ls_mpi_wire *wire) {
    for (int there = 1; wire->leave_notices > 0 && there != 0;) {
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, wire->comm, &there, &status) != MPI_SUCCESS ||
            (there != 0 && !take_one(wire, &status))) {
            return false;
        }
    }
    return wire->leave_notices == 0;
}

/*
 * Frees the wires that are done with. Not before all leave notices have come: Open MPI gives the number of a
 * communicator that was freed to a later one, and would count a late message as one of that.
 */
static void sweep(void) {
    if (!ls_mpi_runs()) {
        return;
    }
    pthread_mutex_lock(&process.sweeping);
    for (ls_mpi_wire **link = &process.retired; *link != NULL;) {
        ls_mpi_wire *wire = *link;
        if (!take_leave_notices(wire)) {
            link = &wire->next;
            continue;
        }
        *link = wire->next;
        MPI_Comm_free(&wire->comm);
        ls_free(wire);
    }
    pthread_mutex_unlock(&process.sweeping);
}

/* Takes in the last messages: some MPI libraries complain when they finalize about any that nobody took. */
static void await_leave_notices(void) {
    const uint64_t start = ls_clock_ns();
    for (bool over = process.failed; !over && ls_clock_ns() - start < LEAVE_NOTICES_NS;) {
        sweep();
        over = process.retired == NULL && (process.world.uses != 0 || take_leave_notices(&process.world));
        if (!over) {
            sched_yield();
        }
    }
}

/* MPI_Finalize begins with this. */
static int at_finalize(MPI_Comm comm, int keyval, void *value, void *state) {
    (void)comm, (void)keyval, (void)value, (void)state;
    await_leave_notices();
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

/* The connection to Hydra; 0: none, or the program finalizes MPI, or need not wait for others first. */
static int find_launcher(void) {
#if defined MPICH_NUMVERSION && MPICH_NUMVERSION < 40200000
    const char *connection = getenv("PMI_FD");
    if (process.id == getpid() && connection != NULL && getenv("MPI_LOCALNRANKS") != NULL) {
        return atoi(connection);
    }
#endif
    return 0;
}

/* Fills in a wire that is a duplicate of `comm`; `*lowest` becomes the lowest launcher of its ranks. */
static ls_status duplicate(MPI_Comm comm, double timeout, ls_mpi_wire *wire, int64_t *lowest) {
    const ls_mpi_greeting own = {.launcher = find_launcher()};
    ls_mpi_greeting *all = NULL;
    int *highest = NULL;
    int found = 0;
    int size = 0;
    int code = watch_finalize();
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("ls_comm_open", "MPI_Comm_set_attr", code);
    }
    LS_TRY(ls_mpi_meet(comm, &own, timeout, &all));
    MPI_Comm_size(comm, &size);
    *lowest = own.launcher;
    for (int rank = 0; rank < size; rank++) {
        *lowest = all[rank].launcher < *lowest ? all[rank].launcher : *lowest;
    }
    ls_free(all);
    LS_TRY(ls_mpi_duplicate(comm, timeout, &wire->comm));
    code = MPI_Comm_set_errhandler(wire->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_get_attr(wire->comm, MPI_TAG_UB, (void *)&highest, &found);
    }
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("ls_comm_open", "MPI_Comm_get_attr", code);
    }
    MPI_Comm_rank(wire->comm, &wire->rank);
    wire->size = size;
    wire->contexts = (found != 0 ? *highest : 32767) / LS_MPI_KINDS;
    return LS_OK;
}

ls_mpi_wire *ls_mpi_wire_over(MPI_Comm comm, double timeout) {
    int64_t launcher = 0; /* the world's wire knows */
    sweep();
    ls_mpi_wire *wire = ls_allocate_zeroed(1, sizeof *wire);
    if (wire == NULL) {
        (void)ls_fail_memory("ls_comm_open", sizeof *wire);
        return NULL;
    }
    const ls_status status = duplicate(comm, timeout, wire, &launcher);
    if (status != LS_OK && status != LS_ERR_TIMEOUT) { /* else MPI may still fill it in */
        ls_free(wire);
    }
    return status == LS_OK ? wire : NULL;
}

#ifdef OMPI_MAJOR_VERSION
/* A setting of Open MPI that is a number of bytes. */
static size_t read_setting(const char *name, size_t otherwise) {
    size_t value = otherwise;
    int level = MPI_THREAD_SINGLE;
    int index = 0;
    int count = 0;
    MPI_T_cvar_handle handle;
    if (MPI_T_init_thread(level, &level) != MPI_SUCCESS) {
        return otherwise;
    }
    if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        if (count != 1 || MPI_T_cvar_read(handle, &value) != MPI_SUCCESS) {
            value = otherwise;
        }
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return value;
}
#endif

size_t ls_mpi_unasked(void) {
#ifdef OMPI_MAJOR_VERSION
    const size_t header = 128; /* its own is shorter */
    const size_t limit = read_setting("btl_vader_eager_limit", 4096);
    return limit < 4 * header ? 3 * header : limit - header;
#else
    return LS_MPI_PACKET;
#endif
}

ls_mpi_wire *ls_mpi_wire_of_world(void) {
    return &process.world;
}

int64_t ls_mpi_wire_context(ls_mpi_wire *wire) {
    return wire->made++ * wire->size + wire->rank;
}

void ls_mpi_wire_release(ls_mpi_wire *wire) {
    if (--wire->uses == 0 && wire != &process.world) {
        pthread_mutex_lock(&process.sweeping);
        wire->next = process.retired;
        process.retired = wire;
        pthread_mutex_unlock(&process.sweeping);
        sweep();
    }
}

/* ---- MPI -----------------------------------------------------------------------------------------------------------
 */

/*
 * MPI_Finalize of MPICH before 4.2 waits for ever, at times, where UCX goes over TCP: each rank asks the others to
 * confirm that all has arrived, and once they have, it waits at the launcher, where it confirms nothing any more. A
 * rank that confirms before it finalizes, and asks afterwards, asks in vain. Hence this: all wait at the launcher
 * first, after their last look at messages, so that nobody confirms before everybody asks. The launcher is MPICH's own,
 * Hydra, and the words are those of its PMI-1, over the connection that MPI itself uses, and not now.
 */
static void meet_at_launcher(void) {
    static const char here[] = "cmd=barrier_in\n";
    char answer = 0;
    if (write(process.launcher, here, sizeof here - 1) == (ssize_t)(sizeof here - 1)) {
        while (answer != '\n' && read(process.launcher, &answer, 1) == 1) {
        }
    }
}

static int end_mpi(void) {
    if (process.launcher != 0) {
        meet_at_launcher();
    }
    return MPI_Finalize();
}

/* Ends MPI when all ranks have come here; who waits is told every 5 s for whom. */
static ls_status finalize(void) {
    ls_mpi_greeting *all = NULL;
    await_leave_notices();
    LS_TRY(ls_mpi_meet(process.world.comm, &(ls_mpi_greeting){0}, process.timeout, &all));
    ls_free(all);
    return ls_mpi_in_thread(end_mpi, "MPI_Finalize", process.timeout);
}

/*
 * Ends this process although MPI did not end. Not by way of what else is to be done at its exit, since some of that
 * takes down libraries that the thread in MPI_Finalize still uses. Output that cannot be written, or whose lock another
 * thread keeps, is left after a while.
 */
static _Noreturn void leave_anyway(int status) {
    sigset_t alarm_alone;
    sigemptyset(&alarm_alone);
    sigaddset(&alarm_alone, SIGALRM);
    (void)signal(SIGALRM, SIG_DFL);
    (void)pthread_sigmask(SIG_UNBLOCK, &alarm_alone, NULL);
    (void)alarm(FLUSH_SECONDS);
    (void)fflush(NULL);
    _exit(status);
}

void ls_mpi_let_others_tell(void) {
    const uint64_t start = ls_clock_ns();
    while (ls_clock_ns() - start < LAST_WORDS_NS) {
        int there = 0; /* looks, so that what was sent goes */
        (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, process.world.comm, &there, MPI_STATUS_IGNORE);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

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
        if (finalize() != LS_OK) {
            const int result = (status & 255) != 0 ? status & 255 : EXIT_FAILURE;
            ls_log_write(LS_LOG_ERROR, "MPI could not be ended, so this process ends with status %d: %s", result,
                         ls_error_message());
            leave_anyway(result);
        }
        return;
    }
    if (process.exits) {
        ls_mpi_let_others_tell();
    }
    if (status == 0) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
}

static int init(void) {
    int level = MPI_THREAD_SINGLE;
    return MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
}

static ls_status start_mpi(double timeout) {
    int started = 0;
    int finalized = 0;
    int code = MPI_Initialized(&started);
    if (code == MPI_SUCCESS) {
        code = MPI_Finalized(&finalized);
    }
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("ls_comm_open", "MPI_Initialized", code);
    }
    if (finalized != 0) {
        return ls_fail(LS_ERR_STATE, "MPI was finalized in this process and cannot be started again");
    }
    if (started == 0) {
        LS_TRY(ls_mpi_in_thread(init, "MPI_Init_thread", timeout));
        process.id = getpid();
        return on_exit(leave_mpi, NULL) == 0 ? LS_OK : ls_fail_memory("ls_comm_open", sizeof(void *));
    }
    return LS_OK;
}

/* All ranks meet at the launcher, or none. */
static ls_status join(double timeout) {
    int64_t launcher = 0;
    process.timeout = timeout;
    LS_TRY(start_mpi(timeout));
    LS_TRY(duplicate(MPI_COMM_WORLD, timeout, &process.world, &launcher));
    process.launcher = launcher > 0 ? find_launcher() : 0;
    process.joined = true;
    return LS_OK;
}

ls_status ls_mpi_join(double timeout) {
    if (process.lost) { /* who comes late meets what is left of the earlier try */
        return ls_fail(LS_ERR_STATE, "the ranks of this job did not meet in an earlier try: start it anew");
    }
    return process.joined ? LS_OK : join(timeout);
}

void ls_mpi_lose_world(void) {
    process.lost = true;
    process.failed = true;
}

void ls_mpi_count_world(int change) {
    process.worlds += change;
}

void ls_mpi_note_exit(void) {
    process.exits = true;
}

void ls_mpi_note_failure(void) {
    process.failed = true;
}
