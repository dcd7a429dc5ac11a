/*
 * cli: the `lockstep` command, and nothing that a program links.
 *
 *   main.c       the table of subcommands            options.c      a subcommand's options: parsing, --help
 *   run.c        `lockstep run`: checks, restarts    program.c      which file PROGRAM names
 *   job.c        one start of N ranks, to their end  process.c      one rank's process
 *   job_report.c what is said of a job that failed   rank.c         what a rank gets before it starts
 *   relay.c      what ranks print, line by line      tree.c         every process a job has on this machine
 *   lines.c      which lines are shown, and when     outlet.c       the launcher's own two outputs
 *   cores.c      which rank gets which cores         environment.c  what a rank finds in its environment
 *   guard.c      ends the ranks of a launcher that was killed
 *   nodes.c      several machines, each with a launcher: meeting, starting; nodes_events.c: while ranks run;
 *                node_message.c: what launchers say to each other
 *   checkpoint.c `lockstep checkpoint`: looks at checkpoints, see checkpoint.h
 *   bench.c      `lockstep bench`: measures collectives, see bench.h
 *   doctor.c     `lockstep doctor`: looks at the machine, see doctor.h
 *
 * Functions that fail leave their sentence in ls_error_message() as everywhere; only main.c, options.c (--help),
 * outlet.c, nodes.c (while it waits), checkpoint, bench and doctor print.
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

/* A number of bytes for people: "64 MiB", "1.2 KiB". */
typedef struct ls_size_text {
    char text[32];
} ls_size_text;
ls_size_text ls_size_describe(int64_t bytes);

/* The subcommands. */
extern const ls_command ls_run_command;
extern const ls_command ls_checkpoint_command;
extern const ls_command ls_bench_command;
extern const ls_command ls_doctor_command;

#endif
