/*
 * A locale with decimal commas, for tests that numbers are written and read with decimal points. localedef, a part of
 * the C library, creates it in the test's folder. It defines only number formats, so no locale sources need to be
 * installed.
 */
#ifndef LS_TESTS_SUPPORT_COMMAS_H
#define LS_TESTS_SUPPORT_COMMAS_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/files.h"

static inline bool commas_are_used(void) {
    char text[8];
    snprintf(text, sizeof text, "%g", 0.5);
    return strcmp(text, "0,5") == 0;
}

/* Sets the locale until commas_end. Prints a line on standard error and returns false if localedef is missing. */
static inline bool commas_begin(void) {
    static const char numbers[] =
        "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    static const char characters[] = "<code_set_name> ANSI_X3.4-1968\n<comment_char> %\n<escape_char> /\n"
                                     "<mb_cur_max> 1\nCHARMAP\n<U0000>..<U007F> /x00 NULL\nEND CHARMAP\n";
    char command[2048], folder[512];
    const char *charmap = test_file("ascii", characters, sizeof characters - 1);
    const char *source = test_file("commas", numbers, sizeof numbers - 1);
    snprintf(folder, sizeof folder, "%s", test_path(""));
    snprintf(command, sizeof command, "localedef -c -f '%s' -i '%s' '%s/xx_XX' >/dev/null 2>&1", charmap, source,
             folder);
    const int warned = system(command); /* localedef warns about all categories that are not defined */
    const bool made = warned != -1 && setenv("LOCPATH", folder, 1) == 0 && setlocale(LC_ALL, "xx_XX") != NULL;
    if (!made || !commas_are_used()) {
        fprintf(stderr, "SKIPPED: localedef makes no locale with decimal commas here\n");
        return false;
    }
    return true;
}

static inline void commas_end(void) {
    (void)setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
}

#endif
