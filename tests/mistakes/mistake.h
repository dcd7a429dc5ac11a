/*
 * What the programs in this folder share. Each makes one mistake of a beginner, is written as a beginner would, and
 * must get the sentence that its first comment gives as an extended regular expression:
 *
 *   ranks:       the numbers of ranks that it is run with ("2 3": once with each)
 *   says:        a regular expression that standard error must match; there may be several
 *   silent:      a regular expression that standard error must not match; optional
 *   status:      the exit status; optional: 1. With 0 the mistake gets a warning: one line of all ranks' output matches
 *   environment: variables of the environment, NAME=VALUE; optional
 *   on:          the launchers or backends that the program is run on (shm, tcp, gloo, openmpi, mpich); optional: all
 *
 * tests/shell/mistakes.sh runs the programs; those of one rank run without a launcher.
 */
#ifndef LS_TESTS_MISTAKES_MISTAKE_H
#define LS_TESTS_MISTAKES_MISTAKE_H

#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every program does when a call fails: the reason, and status 1. */
static inline int failed(void) {
    fprintf(stderr, "%s\n", ls_error_message());
    return 1;
}

/* The status of a program that ends. */
static inline int ended(ls_status status) {
    return status == LS_OK ? 0 : failed();
}

#endif
