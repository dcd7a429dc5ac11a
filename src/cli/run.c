/* `lockstep run`: checks the options, then runs the job, and restarts it after failures if requested. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "cli/program.h"
#include "comm/rendezvous.h"

enum { MOST_RANKS = 4096, MOST_RESTARTS = 1000000, MOST_GRACE = 86400, KEY_TEXT = LS_KEY_CAPACITY + 1 };

typedef struct run_values {
    int ranks; /* 0 if not given */
    bool no_bind;
    bool prefix;
    double grace;
    int most_restarts;
    const char *output_dir;
    int nodes; /* 0 if not given */
    int node;  /* -1 if not given */
    const char *rendezvous;
    const char *key_file;
    const char *interface;
    const char *gpus;
} run_values;

static const ls_cli_option options[] = {
    {"ranks", 'n', LS_OPTION_COUNT, "N", offsetof(run_values, ranks), 1, MOST_RANKS,
     "number of ranks on this machine (1)"},
    {"prefix", 0, LS_OPTION_FLAG, NULL, offsetof(run_values, prefix), 0, 0,
     "each line of output begins with its rank: [rank 1] ..."},
    {"output-dir", 0, LS_OPTION_TEXT, "DIR", offsetof(run_values, output_dir), 0, 0,
     "write the output of rank R to DIR/rank-R.log"},
    {"no-bind", 0, LS_OPTION_FLAG, NULL, offsetof(run_values, no_bind), 0, 0, "do not bind ranks to cores"},
    {"gpus", 0, LS_OPTION_TEXT, "each|none", offsetof(run_values, gpus), 0, 0,
     "each: each rank gets one GPU, as its cuda:0;\nnone: each rank sees all GPUs (each)"},
    {"grace", 0, LS_OPTION_SECONDS, "SECONDS", offsetof(run_values, grace), 0, MOST_GRACE,
     "time between SIGTERM and SIGKILL when the launcher\nterminates ranks (5)"},
    {"max-restarts", 0, LS_OPTION_COUNT, "K", offsetof(run_values, most_restarts), 0, MOST_RESTARTS,
     "start the job again, at most K times, after a rank has\nfailed (0); not after exit status 75"},
    {"nnodes", 0, LS_OPTION_COUNT, "M", offsetof(run_values, nodes), 1, MOST_RANKS,
     "number of machines; give this command on each of them\n(1)"},
    {"node-rank", 0, LS_OPTION_COUNT, "K", offsetof(run_values, node), 0, MOST_RANKS - 1,
     "number of this machine (node), from 0"},
    {"rendezvous", 0, LS_OPTION_TEXT, "HOST:PORT", offsetof(run_values, rendezvous), 0, 0,
     "address of machine 0, and a free port on it"},
    {"key-file", 0, LS_OPTION_TEXT, "FILE", offsetof(run_values, key_file), 0, 0,
     "file with the key of the job, the same on all machines\n(LOCKSTEP_KEY)"},
    {"interface", 0, LS_OPTION_TEXT, "NAME", offsetof(run_values, interface), 0, 0,
     "interface for data, by name or address (the interface\nthat leads to the other machines)"},
};

static ls_status make_output_dir(const char *path) {
    struct stat about;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode))) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_ARGUMENT, "lockstep run: --output-dir %s: cannot create this folder: %s", path,
                   strerror(errno));
}

static ls_status check_gpus(const run_values *values) {
    return strcmp(values->gpus, "each") == 0 || strcmp(values->gpus, "none") == 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "lockstep run: --gpus '%s': must be each or none", values->gpus);
}

/* ---- several machines -------------------------------------------------------------------------------------------- */

static ls_status check_nodes(const run_values *values) {
    if (values->nodes == 0) {
        const char *given = values->node >= 0            ? "--node-rank"
                            : values->rendezvous != NULL ? "--rendezvous"
                            : values->key_file != NULL   ? "--key-file"
                                                         : NULL;
        return given == NULL ? LS_OK
                             : ls_fail(LS_ERR_ARGUMENT,
                                       "lockstep run: %s needs --nnodes: set it to the number of machines", given);
    }
    if (values->nodes == 1 && values->node <= 0) {
        return LS_OK;
    }
    if (values->node < 0 || values->node >= values->nodes) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "lockstep run: --nnodes %d needs --node-rank, a number from 0 to %d that is different on each machine",
            values->nodes, values->nodes - 1);
    }
    if (values->rendezvous == NULL) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "lockstep run: --nnodes %d needs --rendezvous HOST:PORT: an address of the "
                       "machine with --node-rank 0, and a free port there",
                       values->nodes);
    }
    return LS_OK;
}

/* Random bytes would often contain a NUL or a newline early, which would shorten the key. */
static bool is_text(const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        if (byte < ' ' && byte != '\t' && byte != '\r' && byte != '\n') {
            return false;
        }
    }
    return true;
}

/* Reads the first line of a file that only its owner can read. */
static ls_status read_key_file(const char *path, char key[KEY_TEXT]) {
    struct stat about;
    FILE *file = fopen(path, "re");
    if (file == NULL || fstat(fileno(file), &about) != 0) {
        const int reason = errno;
        if (file != NULL) {
            fclose(file);
        }
        return ls_fail(LS_ERR_ARGUMENT, "lockstep run: --key-file %s: cannot read it: %s", path, strerror(reason));
    }
    if (S_ISDIR(about.st_mode)) { /* the advice below to use chmod would be wrong for a folder */
        fclose(file);
        return ls_fail(LS_ERR_ARGUMENT, "lockstep run: --key-file %s: this is a folder", path);
    }
    const size_t size = fread(key, 1, KEY_TEXT - 1, file);
    const int next = fgetc(file);
    fclose(file);
    if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return ls_fail(LS_ERR_DENIED,
                       "lockstep run: --key-file %s: other users can read or change this secret: run chmod 600 %s",
                       path, path);
    }
    if (!is_text(key, size)) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "lockstep run: --key-file %s: this file is not text; create a key with head -c 32 /dev/urandom | base64",
            path);
    }
    key[size] = '\0';
    const size_t length = strcspn(key, "\r\n");
    key[length] = '\0';
    if (length == 0 || (length == size && next != EOF && next != '\n')) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep run: --key-file %s: its first line must be a secret of 1 to %d bytes",
                       path, LS_KEY_CAPACITY);
    }
    return LS_OK;
}

/*
 * Opens the connections to the other nodes. Returns ownership of *nodes to the caller; *nodes is NULL for a job on this
 * machine only.
 */
static ls_status open_nodes(const run_values *values, ls_nodes **nodes) {
    char key[KEY_TEXT];
    *nodes = NULL;
    if (values->nodes <= 1) {
        return LS_OK;
    }
    ls_nodes_options wanted = {.nodes = values->nodes,
                               .node = values->node,
                               .ranks = values->ranks,
                               .rendezvous = values->rendezvous,
                               .grace = values->grace,
                               .key = getenv("LOCKSTEP_KEY")};
    LS_TRY(ls_timeout_read(&(ls_init_options){0}, &wanted.timeout));
    if (values->key_file != NULL) {
        LS_TRY(read_key_file(values->key_file, key));
        wanted.key = key;
    }
    const ls_status status = ls_nodes_open(&wanted, nodes);
    explicit_bzero(key, sizeof key);
    return status;
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

static ls_status start_job(const ls_job_options *job, const run_values *values, int *exit_status) {
    ls_job_options whole = *job;
    LS_TRY(open_nodes(values, &whole.nodes));
    ls_job_outcome outcome = {.restart = true};
    ls_status status = LS_OK;
    for (int restarts = 0; status == LS_OK && outcome.restart; restarts++) {
        status = ls_job_run(&whole, restarts, &outcome);
    }
    ls_nodes_close(whole.nodes);
    *exit_status = outcome.exit_status;
    return status;
}

static ls_status run_job(const run_values *values, char **program, int *exit_status) {
    char path[PATH_MAX];
    char address[LS_ADDRESS_CAPACITY];
    LS_TRY(ls_program_find(program[0], path, exit_status));
    if (values->output_dir != NULL) {
        LS_TRY(make_output_dir(values->output_dir));
    }
    if (values->interface != NULL && ls_interface_address(values->interface, -1, false, address) != LS_OK) {
        return ls_fail_in("lockstep run: --interface");
    }
    ls_cores cores;
    LS_TRY(ls_cores_share(&cores, values->ranks, !values->no_bind));
    const char *interface = values->interface != NULL ? values->interface : getenv("LOCKSTEP_INTERFACE");
    ls_gpus gpus;
    ls_gpus_find(&gpus, getenv("CUDA_VISIBLE_DEVICES"), "/dev");
    const ls_job_options job = {.path = path,
                                .argv = program,
                                .cores = &cores,
                                .gpus = strcmp(values->gpus, "each") == 0 ? &gpus : NULL,
                                .ranks = values->ranks,
                                .interface = interface,
                                .prefix = values->prefix,
                                .grace = values->grace,
                                .output_dir = values->output_dir,
                                .most_restarts = values->most_restarts};
    const ls_status status = start_job(&job, values, exit_status);
    ls_cores_release(&cores);
    return status;
}

/* Finds -n or --ranks among the arguments of PROGRAM, where it may be misplaced. Returns NULL if it is not there. */
static const char *misplaced_ranks(char **program, const char **number) {
    static const struct {
        const char *prefix, *option; /* --ranks=2, -n2, or -n 2 */
        bool is_parted;
    } forms[] = {{"--ranks=", "--ranks", false},
                 {"--ranks", "--ranks", true},
                 {"-np", "-np", true},
                 {"-n", "-n", true},
                 {"-n", "-n", false}};
    for (char **argument = program + 1; *argument != NULL && strcmp(*argument, "--") != 0; argument++) {
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            const size_t length = strlen(forms[i].prefix);
            const bool begins = strncmp(*argument, forms[i].prefix, length) == 0;
            const bool is_form = begins && (!forms[i].is_parted || (*argument)[length] == '\0');
            *number = !is_form ? NULL : forms[i].is_parted ? argument[1] : *argument + length;
            if (*number != NULL && (*number)[0] != '\0' && strspn(*number, "0123456789") == strlen(*number)) {
                return forms[i].option;
            }
        }
    }
    return NULL;
}

/* Warns about settings that are valid but probably unintended. */
static void warn_of_settings(const run_values *values, char **program) {
    const char *number = NULL, *option = values->ranks > 0 ? NULL : misplaced_ranks(program, &number);
    if (values->nodes == 1 && values->rendezvous != NULL) {
        fprintf(stderr,
                "lockstep: --nnodes 1: the job runs on this machine only, and --rendezvous %s is ignored; for a job on "
                "several machines, set --nnodes to their number\n",
                values->rendezvous);
    }
    if (option != NULL) {
        fprintf(stderr,
                "lockstep: only 1 rank is started, and %s %s is passed to %s: place options of `lockstep run` before "
                "the program (lockstep run -n %s %s ...)\n",
                option, number, program[0], number, program[0]);
    }
    if (ls_threads_from_environment() == LS_THREADS_WRONG) {
        fprintf(stderr,
                "lockstep: OMP_NUM_THREADS=%s is not a number of threads, and is ignored: each rank uses its share of "
                "the cores\n",
                getenv("OMP_NUM_THREADS"));
    }
}

static ls_status run(int argc, char **argv, int *exit_status) {
    run_values values = {.grace = 5.0, .node = -1, .gpus = "each"};
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
    LS_TRY(check_nodes(&values));
    LS_TRY(check_gpus(&values));
    warn_of_settings(&values, argv + rest);
    values.ranks = values.ranks > 0 ? values.ranks : 1;
    return run_job(&values, argv + rest, exit_status);
}

const ls_command ls_run_command = {
    .name = "run",
    .summary = "start a program as N ranks, on this machine or on several",
    .usage = "[options] PROGRAM [ARGUMENTS]",
    .about = "Starts PROGRAM as N ranks on this machine, and waits for them. For a job on several machines, give the\n"
             "same command on each machine. The ranks find each other with ls_init. The machines must share the\n"
             "folder of checkpoints, such as one on NFS. Messages call a machine a node, numbered by --node-rank.\n"
             "If a rank fails, the launcher terminates the other ranks. The last lines on standard error name the\n"
             "rank and the reason.\n"
             "Ctrl-C reaches each rank once. Ranks that still run after the grace time are killed; a second Ctrl-C\n"
             "kills them immediately. No process of the job survives the launcher.\n",
    .notes =
        "examples:\n"
        "  lockstep run -n 2 build/examples/fashion_mnist --epochs 3\n"
        "  lockstep run -n 4 --prefix ./train            each line begins with its rank\n"
        "  lockstep run -n 8 --max-restarts 3 ./train    restarts from checkpoints after a failure\n"
        "  lockstep run -n 8 --nnodes 2 --node-rank 0 --rendezvous hosta:29500 --key-file job.key ./train\n"
        "                                                on hosta; on hostb the same with --node-rank 1\n"
        "\n"
        "input and output:\n"
        "  Rank 0 reads standard input; for other ranks it is empty. On a terminal, rank 0 writes to it directly,\n"
        "  so progress bars work. All other output is passed on in whole lines, with unchanged bytes.\n"
        "\n"
        "environment of each rank:\n"
        "  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT    as torchrun sets them\n"
        "  LOCKSTEP_KEY             key of the job, new at each start: only processes with this key can join\n"
        "  LOCKSTEP_STORE_FD        rank 0 only: socket that listens on MASTER_PORT\n"
        "  LOCKSTEP_REPORT          socket on which the rank reports why it fails\n"
        "  LOCKSTEP_RESTART_COUNT   0, then 1, 2, ... with --max-restarts\n"
        "  LOCKSTEP_INTERFACE       with several machines or --interface: where the rank listens\n"
        "  LOCKSTEP_LAUNCH          mark of this start, by which the launcher finds its processes;\n"
        "                           ls_init also line-buffers standard output if it is a pipe\n"
        "  CUDA_VISIBLE_DEVICES     the rank's GPU, unless --gpus none is given\n"
        "  OMP_NUM_THREADS OPENBLAS_NUM_THREADS    cores of the rank, unless you set OMP_NUM_THREADS\n"
        "\n"
        "exit status:\n"
        "  0    all ranks exited with 0        126  PROGRAM is not executable\n"
        "  2    wrong command line             127  PROGRAM does not exist\n"
        "  75   a rank stopped in order to resume from its checkpoint later (LS_EXIT_STOPPED)\n"
        "  130  interrupted by Ctrl-C (143 by SIGTERM)\n"
        "  otherwise the status of the first failed rank, or 128 plus the number of the signal that killed it\n",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .run = run,
};
