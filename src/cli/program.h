/* Finds the file of a program by its name before anything is started, so that a wrong name gives one clear error
 * message. */
#ifndef LS_CLI_PROGRAM_H
#define LS_CLI_PROGRAM_H

#include <limits.h>
#include <lockstep/base.h>

/*
 * Writes the path of `name` to `path`. Searches PATH if the name has no slash, as a shell does. On failure, sets
 * *exit_status to 127 (not found) or 126 (not executable).
 */
ls_status ls_program_find(const char *name, char path[PATH_MAX], int *exit_status);

/* Writes the path of this command, for restarting it. Returns `path`. */
const char *ls_program_self(char path[PATH_MAX]);

#endif
