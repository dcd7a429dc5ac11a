/*
 * What the programs in this folder share. Each makes one mistake of a beginner, is written as a beginner would, and
 * must end with status 1 and the sentence that its first comment gives as an extended regular expression:
 *
 *   ranks:  with how many ranks it is run ("2 3": once with each)
 *   says:   what standard error must match; several lines must all match
 *   silent: what it must not match; may be missing
 *
 * Programs of more than one rank run on every backend that is here. tests/shell/mistakes.sh runs them.
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
