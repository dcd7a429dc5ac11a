/*
 * cli: the `lockstep` command. Programs do not link it.
 *
 *   main.c       selects the subcommand              options.c      options of a subcommand: parsing, --help
 *   commands.c   the table of subcommands            manual/        writes man pages and shell completions
 *   run.c        `lockstep run`: checks, restarts    program.c      the file of PROGRAM
 *   job.c        one start of N ranks, to their end  process.c      the process of a rank
 *   job_report.c the report about a failed job       rank.c         descriptors and environment of a rank
 *   relay.c      output of ranks, line by line       tree.c         all processes of the job on this machine
 *   lines.c      selection of the lines to print     outlet.c       the two outputs of the launcher
 *   cores.c      cores of each rank                  environment.c  environment variables of a rank
 *   guard.c      terminates the processes of a job whose launcher was killed
 *   nodes.c      several machines, one launcher on each: meeting and starting; nodes_events.c: while ranks run;
 *                node_message.c: messages between launchers
 *   checkpoint.c `lockstep checkpoint`: inspects checkpoints, see checkpoint.h
 *   bench.c      `lockstep bench`: measures collectives, see bench.h
 *   doctor.c     `lockstep doctor`: inspects the machine, see doctor.h
 *   report.c     `lockstep report`: makes a page about a run, see report.h
 *
 * A function that fails sets ls_error_message(), as everywhere. Only main.c, options.c (--help), outlet.c, nodes.c
 * (while it waits), checkpoint, bench, doctor and report print.
 */
#ifndef LS_CLI_CLI_H
#define LS_CLI_CLI_H

#include "cli/options.h"

/* Exit statuses of the command. 126 and 127 have the same meaning as in a shell. */
enum {
    LS_EXIT_FAILED = 1,
    LS_EXIT_USAGE = 2,
    LS_EXIT_CANNOT_EXECUTE = 126,
    LS_EXIT_NOT_FOUND = 127,
    LS_EXIT_SIGNAL = 128 /* plus the number of the signal */
};

/* A number of bytes in human-readable form: "64 MiB", "1.2 KiB". */
typedef struct ls_size_text {
    char text[32];
} ls_size_text;
ls_size_text ls_size_describe(int64_t bytes);

/* The subcommands, in the order of --help, terminated by NULL. */
extern const ls_command *const ls_commands[];
extern const ls_command ls_run_command;
extern const ls_command ls_checkpoint_command;
extern const ls_command ls_bench_command;
extern const ls_command ls_doctor_command;
extern const ls_command ls_report_command;

#endif
