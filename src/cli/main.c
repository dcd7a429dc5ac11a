/* The `lockstep` command: selects the subcommand. */
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

/* If one of the three standard descriptors is closed, the next opened file would get its number, and output would be
 * written to that file. */
static void open_standard_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) {
            exit(LS_EXIT_FAILED);
        }
    }
}

static void print_help(void) {
    printf("usage: lockstep COMMAND [options]\n\nLockstep is distributed training in C.\n\ncommands:\n");
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        printf("  %-10s %s\n", (*command)->name, (*command)->summary);
    }
    printf("\n  %-10s print this help; `lockstep COMMAND --help` explains a command\n  %-10s print the version\n",
           "--help", "--version");
}

static ls_status fail_unknown(const char *name) {
    const char *nearest = ls_commands[0]->name;
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        if (ls_word_distance(name, (*command)->name) < ls_word_distance(name, nearest)) {
            nearest = (*command)->name;
        }
    }
    if (ls_word_is_near(name, ls_word_distance(name, nearest))) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep: unknown command '%s'; did you mean 'lockstep %s'?", name, nearest);
    }
    return ls_fail(LS_ERR_ARGUMENT, "lockstep: unknown command '%s'; `lockstep --help` lists the commands", name);
}

static ls_status run_command(int argc, char **argv, int *exit_status) {
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        if (strcmp(argv[0], (*command)->name) == 0) {
            return (*command)->run(argc, argv, exit_status);
        }
    }
    return fail_unknown(argv[0]);
}

static ls_status obey(int argc, char **argv, int *exit_status) {
    if (argc < 2) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep: no command given; `lockstep --help` lists the commands");
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
