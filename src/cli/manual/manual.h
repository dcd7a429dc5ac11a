/*
 * The program lockstep_manual, which runs while Lockstep is built: writes the man pages of the command `lockstep`, and
 * its completion for bash, zsh and fish, from the tables of subcommands and options. `lockstep` itself does not contain
 * it.
 *
 *   main.c  the files              pages.c   man pages
 *   values.c  values of arguments  bash.c, zsh.c, fish.c  completion
 */
#ifndef LS_CLI_MANUAL_H
#define LS_CLI_MANUAL_H

#include "cli/cli.h"

/* The values of an option or of an argument, for completion. */
typedef enum ls_value_kind {
    LS_VALUE_NONE = 0, /* no value, because the option is a flag or there is no such argument */
    LS_VALUE_ANY,      /* any value, such as a number or address: nothing to suggest */
    LS_VALUE_LIST,
    LS_VALUE_FILE,
    LS_VALUE_FOLDER,
    LS_VALUE_PROGRAM /* a program, to which all later arguments belong */
} ls_value_kind;

enum { LS_VALUE_NAME = 32, LS_VALUE_TEXT = 512 };

typedef struct ls_values {
    ls_value_kind kind;
    char name[LS_VALUE_NAME]; /* name of the argument, such as N or COLLECTIVE */
    char list[LS_VALUE_TEXT]; /* for LS_VALUE_LIST: the values, separated by single blanks */
} ls_values;

/* Returns the values of an option, or of the first argument of the subcommand if `option` is NULL. */
ls_values ls_values_of(const ls_command *command, const ls_cli_option *option);

/* Returns the values of the arguments after the first. */
ls_value_kind ls_values_of_rest(const ls_command *command);

/* Prints the text, with `escape` before each character of `special`; newlines become spaces. */
void ls_manual_print(FILE *stream, const char *text, const char *special, const char *escape);

/* Writes the man page of a subcommand, or of `lockstep` itself if `command` is NULL. `date` is YYYY-MM-DD. */
void ls_manual_page(FILE *stream, const ls_command *command, const char *date);

/* Writes the script that completes command lines in this shell. */
void ls_manual_bash(FILE *stream);
void ls_manual_zsh(FILE *stream);
void ls_manual_fish(FILE *stream);

#endif
