/* `lockstep run`: what a person asked for, checked; then the job, as often as it may start. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "cli/program.h"

enum { MOST_RANKS = 4096, MOST_RESTARTS = 1000000, MOST_GRACE = 86400 };

typedef struct run_values {
    int ranks;
    bool no_bind;
    bool prefix;
    double grace;
    int most_restarts;
    const char *output_dir;
} run_values;

static const ls_option options[] = {
    {"ranks", 'n', LS_OPTION_COUNT, "N", offsetof(run_values, ranks), 1, MOST_RANKS, "how many ranks to start (1)"},
    {"prefix", 0, LS_OPTION_FLAG, NULL, offsetof(run_values, prefix), 0, 0,
     "begin each line of output with its rank: [rank 1] ..."},
    {"output-dir", 0, LS_OPTION_TEXT, "DIR", offsetof(run_values, output_dir), 0, 0,
     "write what rank R prints to DIR/rank-R.log instead"},
    {"no-bind", 0, LS_OPTION_FLAG, NULL, offsetof(run_values, no_bind), 0, 0,
     "leave it to the system which rank runs on which cores"},
    {"grace", 0, LS_OPTION_SECONDS, "SECONDS", offsetof(run_values, grace), 0, MOST_GRACE,
     "time that ranks have to end when they are told to,\nbefore they are killed (5)"},
    {"max-restarts", 0, LS_OPTION_COUNT, "K", offsetof(run_values, most_restarts), 0, MOST_RESTARTS,
     "start the whole job again, at most K times, when a\nrank fails (0)"},
};

static ls_status make_output_dir(const char *path) {
    struct stat about;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode))) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_ARGUMENT, "lockstep run: --output-dir %s: cannot make this folder: %s", path,
                   strerror(errno));
}

static ls_status run_job(const run_values *values, char **program, int *exit_status) {
    char path[PATH_MAX];
    LS_TRY(ls_program_find(program[0], path, exit_status));
    if (values->output_dir != NULL) {
        LS_TRY(make_output_dir(values->output_dir));
    }
    ls_cores cores;
    const ls_job_options job = {.path = path,
                                .argv = program,
                                .cores = &cores,
                                .ranks = values->ranks,
                                .prefix = values->prefix,
                                .grace = values->grace,
                                .output_dir = values->output_dir,
                                .most_restarts = values->most_restarts};
    ls_status status = ls_cores_share(&cores, values->ranks, !values->no_bind);
    ls_job_outcome outcome = {.restart = true};
    for (int restarts = 0; status == LS_OK && outcome.restart; restarts++) {
        status = ls_job_run(&job, restarts, &outcome);
    }
    ls_cores_release(&cores);
    *exit_status = outcome.exit_status;
    return status;
}

static ls_status run(int argc, char **argv, int *exit_status) {
    run_values values = {.ranks = 1, .grace = 5.0};
    int rest = 0;
    bool help = false;
    LS_TRY(ls_options_parse(&ls_run_command, argc, argv, &values, &rest, &help));
    if (help) {
        ls_options_help(&ls_run_command);
        return LS_OK;
    }
    if (rest == argc) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep run: no PROGRAM given (usage: lockstep run %s)",
                       ls_run_command.usage);
    }
    return run_job(&values, argv + rest, exit_status);
}

const ls_command ls_run_command = {
    .name = "run",
    .summary = "start a program as N ranks on this machine",
    .usage = "[options] PROGRAM [ARGUMENTS]",
    .about =
        "Starts PROGRAM as N ranks on this machine, which find each other with ls_init, and waits for them.\n"
        "When a rank fails the others are ended, and the last lines on standard error say which failed and why.\n"
        "Ctrl-C is passed on once; what still runs after the grace time is killed; a second Ctrl-C kills at once.\n"
        "Nothing that the ranks started is left running.\n",
    .notes = "examples:\n"
             "  lockstep run -n 2 build/examples/fashion_mnist --epochs 3\n"
             "  lockstep run -n 4 --prefix ./train            see which rank says what\n"
             "  lockstep run -n 8 --max-restarts 3 ./train    go on from its checkpoints after a failure\n"
             "\n"
             "input and output:\n"
             "  Rank 0 reads standard input; the others find it empty. On a terminal rank 0 writes straight to it, so\n"
             "  progress bars work; all other output is passed on in whole lines, its bytes unchanged.\n"
             "\n"
             "environment of each rank:\n"
             "  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT    as torchrun sets them\n"
             "  LOCKSTEP_KEY             the job's key, fresh at each start: only who has it may join\n"
             "  LOCKSTEP_STORE_FD        rank 0 only: a socket that listens on MASTER_PORT already\n"
             "  LOCKSTEP_RESTART_COUNT   0, then 1, 2, ... under --max-restarts\n"
             "  OMP_NUM_THREADS OPENBLAS_NUM_THREADS    the cores of a rank, unless you set OMP_NUM_THREADS yourself\n"
             "\n"
             "exit status:\n"
             "  0    all ranks ended well           126  PROGRAM cannot be executed\n"
             "  2    the command line is wrong      127  PROGRAM does not exist\n"
             "  130  ended by Ctrl-C (143 by SIGTERM)\n"
             "  otherwise that of the rank that failed first, or 128 and the number of the signal that killed it\n",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .run = run,
};
