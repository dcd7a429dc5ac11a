/* Starts MPI in this process and finalizes it. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/wait.h"
#include "comm/backend/mpi/mpi.h"

static struct {
    MPI_Comm world;     /* a duplicate of MPI_COMM_WORLD, which is never freed */
    bool joined;        /* `world` is valid */
    bool watched;       /* at_finalize is registered */
    void (*ends)(void); /* at_finalize calls it first; may be NULL */
    int worlds;         /* number of open communicators of the world */
    bool failed;
    bool exits;   /* the process exits without ls_finalize */
    bool lost;    /* the ranks of the world did not meet in time */
    int launcher; /* file descriptor of the launcher, where all ranks meet before they finalize MPI; 0 if there is none
                   */
    int threads;  /* MPI's thread level, if Lockstep started MPI */
    double timeout; /* seconds to wait for a silent rank */
    pid_t id;
} process;

#define LAST_MESSAGES_NS UINT64_C(2000000000)
#define POLL_NS          50000
#define YIELDS           2000
#define FLUSH_SECONDS    5
#define READ_NS          1000000000U          /* for each of two files; the total is less than FLUSH_SECONDS */
#define REPORTS_NS       UINT64_C(2000000000) /* time for other ranks to report the failure */

/* ---- receiving the last messages --------------------------------------------------------------------------------- */

/* Receives the last messages: at finalization, some MPI libraries complain about unreceived messages. */
static void await_last_messages(void) {
    ls_wait wait = {.limit_ns = LAST_MESSAGES_NS, .longest_ns = POLL_NS, .yields = YIELDS};
    while (!process.failed && !ls_mpi_progress_closing() && ls_wait_pause(&wait)) {
    }
}

/* MPI_Finalize calls this first. */
static int at_finalize(MPI_Comm comm, int keyval, void *value, void *state) {
    (void)comm, (void)keyval, (void)value, (void)state;
    if (process.ends != NULL) {
        process.ends();
    }
    await_last_messages();
    ls_mpi_note_finalized();
    return MPI_SUCCESS;
}

bool ls_mpi_runs(void) {
    int started = 0;
    int finalized = 0;
    return MPI_Initialized(&started) == MPI_SUCCESS && started != 0 && MPI_Finalized(&finalized) == MPI_SUCCESS &&
           finalized == 0;
}

ls_status ls_mpi_watch_finalize(void (*ends)(void)) {
    process.ends = ends != NULL ? ends : process.ends;
    int keyval = MPI_KEYVAL_INVALID;
    if (process.watched) {
        return LS_OK;
    }
    int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &keyval, NULL);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_set_attr(MPI_COMM_SELF, keyval, NULL);
        process.watched = code == MPI_SUCCESS;
    }
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("MPI_Comm_set_attr", code);
}

/* Returns the file descriptor of the connection to Hydra, or 0 if there is no connection, if the program finalizes
 * MPI, or if this version of MPI does not require a wait for the other ranks. */
static int find_launcher(void) {
#if defined MPICH_NUMVERSION && MPICH_NUMVERSION < 40200000
    const char *connection = getenv("PMI_FD");
    if (process.id == getpid() && connection != NULL && getenv("MPI_LOCALNRANKS") != NULL) {
        return atoi(connection);
    }
#endif
    return 0;
}

#ifdef OMPI_MAJOR_VERSION
/* Reads an Open MPI setting that is a number of bytes. */
static size_t read_setting(const char *name, size_t otherwise) {
    size_t value = otherwise;
    int level = MPI_THREAD_SINGLE;
    int index = 0;
    int count = 0;
    MPI_T_cvar_handle handle;
    /* Open MPI treats the level requested here as the thread level of MPI itself. */
    if (MPI_Query_thread(&level) != MPI_SUCCESS || MPI_T_init_thread(level, &level) != MPI_SUCCESS) {
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
    static _Atomic size_t found; /* Open MPI opens all its components for this query, which takes 0.2 s */
    const size_t header = 128;   /* Open MPI's header is smaller */
    if (found == 0) {
        const size_t limit = read_setting("btl_vader_eager_limit", 4096);
        found = limit < 4 * header ? 3 * header : limit - header;
    }
    return found;
#else
    return 8256; /* slightly more than 8 KiB, including the header */
#endif
}

MPI_Comm ls_mpi_world(void) {
    return process.world;
}

/* ---- MPI --------------------------------------------------------------------------------------------------------- */

/*
 * Before version 4.2, MPICH's MPI_Finalize may hang if UCX uses TCP. Each rank asks the other ranks to confirm that all
 * its messages have arrived. After it has received all confirmations, the rank waits at the launcher and no longer
 * confirms. A rank that asks only afterwards never gets an answer. So all ranks first meet at the launcher, after they
 * last polled for messages, so that no rank confirms before all ranks ask. The launcher is Hydra, MPICH's own launcher.
 * The request uses the PMI-1 protocol over the connection that MPI itself uses, but not at this time.
 */
static void meet_at_launcher(void) {
    static const char here[] = "cmd=barrier_in\n";
    char answer = 0;
    if (write(process.launcher, here, sizeof here - 1) == (ssize_t)(sizeof here - 1)) {
        while (answer != '\n' && read(process.launcher, &answer, 1) == 1) {
        }
    }
}

static int end_mpi(void *nothing) {
    (void)nothing;
    if (process.launcher != 0) {
        meet_at_launcher();
    }
    return MPI_Finalize();
}

/* Finalizes MPI after all ranks have called this function. Every 5 s, a waiting rank logs a warning that names the
 * missing ranks. */
static ls_status finalize(void) {
    ls_mpi_greeting *all = NULL;
    await_last_messages();
    LS_TRY(ls_mpi_meet(process.world, &(ls_mpi_greeting){0}, process.timeout, &all));
    ls_free(all);
    return ls_mpi_in_first_thread(end_mpi, "MPI_Finalize", process.timeout);
}

/*
 * Waits, for a limited time, until the reader has consumed all output: mpirun ends the job when it detects that this
 * process has exited, and may then lose unread output.
 */
static void await_reader(int file) {
    ls_wait wait = {.limit_ns = READ_NS};
    int left = 0;
    while (ioctl(file, isatty(file) != 0 ? TIOCOUTQ : FIONREAD, &left) == 0 && left > 0 && ls_wait_pause(&wait)) {
    }
}

/* Waits for the readers of standard output and standard error if these are pipes or terminals. A regular file has no
 * reader. */
static void await_readers(void) {
    for (int file = STDOUT_FILENO; file <= STDERR_FILENO; file++) {
        struct stat about;
        if (fstat(file, &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISCHR(about.st_mode))) {
            await_reader(file);
        }
    }
}

/*
 * Exits although MPI_Finalize has not returned. Skips the remaining exit handlers, because some of them unload
 * libraries that the thread in MPI_Finalize still uses. Waits only for a limited time for output that is blocked, or
 * whose lock another thread holds.
 */
static _Noreturn void leave_anyway(int status) {
    sigset_t alarm_alone;
    sigemptyset(&alarm_alone);
    sigaddset(&alarm_alone, SIGALRM);
    (void)signal(SIGALRM, SIG_DFL);
    (void)pthread_sigmask(SIG_UNBLOCK, &alarm_alone, NULL);
    (void)alarm(FLUSH_SECONDS);
    (void)fflush(NULL);
    await_readers();
    _exit(status);
}

void ls_mpi_await_reports(void) {
    ls_wait wait = {.limit_ns = REPORTS_NS, .longest_ns = 1000000};
    while (ls_mpi_runs() && ls_wait_pause(&wait)) {
        int there = 0; /* the probe makes MPI progress and send queued messages */
        (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE);
    }
}

/*
 * A rank that exits during a job, or after a failure, does not finalize MPI, so that its launcher terminates the other
 * ranks. If such a rank exits with status 0, this function aborts MPI, because MPICH's launcher would otherwise report
 * success for the job. A forked child of this process does not use MPI.
 */
static void leave_mpi(int status, void *argument) {
    (void)argument;
    if (getpid() != process.id || !ls_mpi_runs()) {
        return;
    }
    if (process.joined && process.worlds == 0 && !process.failed) {
        if (finalize() != LS_OK) {
            const int result = (status & 255) != 0 ? status & 255 : EXIT_FAILURE;
            ls_log_write(LS_LOG_ERROR, "MPI could not be finalized, so this process exits with status %d: %s", result,
                         ls_error_message());
            leave_anyway(result);
        }
        return;
    }
    if (process.exits) {
        ls_mpi_await_reports();
    }
    if (status == 0) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
}

static int init(void *nothing) {
    (void)nothing;
#ifdef OMPI_MAJOR_VERSION
    int level = MPI_THREAD_SINGLE;
    const bool tells = MPI_T_init_thread(MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS;
#endif
    const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &process.threads);
#ifdef OMPI_MAJOR_VERSION
    (void)ls_mpi_unasked(); /* called between these two calls so that Open MPI opens its components only once */
    if (tells) {
        MPI_T_finalize();
    }
#endif
    return code;
}

/*
 * Checks the thread level, because MPI was started by a different thread, which now waits for its next task. Makes MPI
 * return all errors to Lockstep: MPICH reports the errors of MPI_Test to MPI_COMM_WORLD or, from MPI 4 on, to
 * MPI_COMM_SELF.
 */
static ls_status check_started(void) {
    if (process.threads < MPI_THREAD_SERIALIZED) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "this MPI library was built without thread support, which backend \"mpi\" needs to start it: "
                       "call MPI_Init before ls_init, or use a library with MPI_THREAD_SERIALIZED");
    }
    int code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    code = code == MPI_SUCCESS ? MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN) : code;
    return code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("MPI_Comm_set_errhandler", code);
}

static ls_status start_mpi(double timeout) {
    int started = 0;
    int finalized = 0;
    int code = MPI_Initialized(&started);
    if (code == MPI_SUCCESS) {
        code = MPI_Finalized(&finalized);
    }
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("MPI_Initialized", code);
    }
    if (finalized != 0) {
        return ls_fail(LS_ERR_STATE, "MPI was finalized in this process and cannot be started again");
    }
    if (started == 0) {
        LS_TRY(ls_mpi_in_first_thread(init, "MPI_Init_thread", timeout));
        process.id = getpid();
        LS_TRY(on_exit(leave_mpi, NULL) == 0 ? LS_OK : ls_fail_memory("ls_comm_open", sizeof(void *)));
    }
    return process.id == getpid() ? check_started() : ls_mpi_check_allowed(); /* otherwise the program started MPI */
}

/* Joins the world. Either all ranks will meet at the launcher, or none will. */
static ls_status join(double timeout) {
    static MPI_Comm duplicate; /* MPI may write to it until the process exits */
    ls_mpi_greeting *all = NULL;
    int size = 1;
    process.timeout = timeout;
    LS_TRY(start_mpi(timeout));
    LS_TRY(ls_mpi_watch_finalize(NULL));
    LS_TRY(ls_mpi_meet(MPI_COMM_WORLD, &(ls_mpi_greeting){.launcher = find_launcher()}, timeout, &all));
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int64_t lowest = all[0].launcher;
    for (int rank = 0; rank < size; rank++) {
        lowest = all[rank].launcher < lowest ? all[rank].launcher : lowest;
    }
    ls_free(all);
    LS_TRY(ls_mpi_duplicate(MPI_COMM_WORLD, timeout, &duplicate));
    const int code = MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("MPI_Comm_set_errhandler", code);
    }
    process.world = duplicate;
    process.launcher = lowest > 0 ? find_launcher() : 0;
    process.joined = true;
    return LS_OK;
}

ls_status ls_mpi_join(double timeout) {
    if (process.lost) { /* a rank that joins late would receive messages from the earlier attempt */
        return ls_fail(LS_ERR_STATE, "the ranks of this job did not meet in an earlier attempt: start the job again");
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
