/*
 * Shared code of the programs in this folder. Each program makes one beginner's mistake, in the way that a beginner
 * would write it. It must cause the message that its first comment gives as an extended regular expression:
 *
 *   ranks:       the numbers of ranks to run it with ("2 3": once with each)
 *   says:        a regular expression that standard error must match; may occur several times
 *   silent:      a regular expression that standard error must not match; optional
 *   status:      the exit status; optional: 1. With 0 the mistake causes a warning: one line of all ranks' output
 *   matches
 *   environment: environment variables, NAME=VALUE; optional
 *   on:          the launchers or backends to run it on (shm, tcp, gloo, openmpi, mpich); optional: all
 *
 * tests/shell/mistakes.sh runs the programs. Programs of one rank run without a launcher.
 */
#ifndef LS_TESTS_MISTAKES_MISTAKE_H
#define LS_TESTS_MISTAKES_MISTAKE_H

#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints the error of a failed call. Returns the exit status 1. */
static inline int failed(void) {
    fprintf(stderr, "%s\n", ls_error_message());
    return 1;
}

/* Returns the exit status of a program with this status. */
static inline int ended(ls_status status) {
    return status == LS_OK ? 0 : failed();
}

#endif
