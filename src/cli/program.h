/* Which file a program's name stands for, found before anything is started so that a wrong name is one clear sentence.
 */
#ifndef LS_CLI_PROGRAM_H
#define LS_CLI_PROGRAM_H

#include <limits.h>
#include <lockstep/base.h>

/*
 * Writes the path of `name` (as a shell finds it: along PATH when it holds no slash) to `path`. On failure *exit_status
 * becomes 127 (there is none) or 126 (there is one that cannot be run).
 */
ls_status ls_program_find(const char *name, char path[PATH_MAX], int *exit_status);

/* Writes the path of this command itself, to start it again. Returns `path`. */
const char *ls_program_self(char path[PATH_MAX]);

#endif
