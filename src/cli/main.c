/* The `lockstep` command: selects the subcommand. A new subcommand is a row in the table. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/status.h"
#include "base/text.h"
#include "cli/cli.h"

static const ls_command *const commands[] = {&ls_run_command, &ls_checkpoint_command, &ls_bench_command,
                                             &ls_doctor_command};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* If one of the three standard descriptors is closed, the next opened file would get its number and receive output. */
static void open_standard_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) {
            exit(LS_EXIT_FAILED);
        }
    }
}

static void print_help(void) {
    printf("usage: lockstep COMMAND [options]\n\nLockstep is distributed training in C.\n\ncommands:\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    }
    printf("\n  %-10s print this; `lockstep COMMAND --help` tells more\n  %-10s print the version\n", "--help",
           "--version");
}

static ls_status fail_unknown(const char *name) {
    const char *nearest = commands[0]->name;
    for (size_t i = 1; i < COMMANDS; i++) {
        if (ls_word_distance(name, commands[i]->name) < ls_word_distance(name, nearest)) {
            nearest = commands[i]->name;
        }
    }
    if (ls_word_is_near(name, ls_word_distance(name, nearest))) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep: unknown command '%s'; did you mean 'lockstep %s'?", name, nearest);
    }
    return ls_fail(LS_ERR_ARGUMENT, "lockstep: unknown command '%s'; `lockstep --help` lists what there is", name);
}

static ls_status run_command(int argc, char **argv, int *exit_status) {
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[0], commands[i]->name) == 0) {
            return commands[i]->run(argc, argv, exit_status);
        }
    }
    return fail_unknown(argv[0]);
}

static ls_status obey(int argc, char **argv, int *exit_status) {
    if (argc < 2) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep: no command given; `lockstep --help` lists what there is");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return LS_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %s\n", ls_version());
        return LS_OK;
    }
    return run_command(argc - 1, argv + 1, exit_status);
}

int main(int argc, char **argv) {
    int exit_status = 0;
    open_standard_files();
    argv = uv_setup_args(argc, argv);
    ls_status status = obey(argc, argv, &exit_status);
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && status == LS_OK) {
        status = ls_fail(LS_ERR_IO, "lockstep: cannot write to standard output: %s", strerror(errno));
    }
    if (status != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        exit_status = exit_status != 0 ? exit_status : status == LS_ERR_ARGUMENT ? LS_EXIT_USAGE : LS_EXIT_FAILED;
    }
    return exit_status;
}
