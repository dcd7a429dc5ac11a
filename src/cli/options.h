/*
 * Subcommands and their options. One table contains the name, the argument and the effect of each option, for parsing,
 * for --help, and for man pages and shell completion (cli/manual).
 */
#ifndef LS_CLI_OPTIONS_H
#define LS_CLI_OPTIONS_H

#include <lockstep/base.h>
#include <stdio.h>

/* The type of an option's field in the values struct. */
typedef enum ls_option_kind {
    LS_OPTION_FLAG,    /* bool, set to true */
    LS_OPTION_COUNT,   /* int between least and most */
    LS_OPTION_SECONDS, /* double between least and most */
    LS_OPTION_TEXT     /* const char *, borrowed from argv */
} ls_option_kind;

typedef struct ls_cli_option {
    const char *name; /* without dashes */
    char letter;      /* 0 if the option has no letter */
    ls_option_kind kind;
    const char *argument; /* the name of the option's argument in --help; NULL for flags */
    size_t offset;        /* offset of the option's field in the subcommand's values struct */
    int least, most;
    const char *help; /* the description in --help, which is indented when printed */
} ls_cli_option;

typedef struct ls_command {
    const char *name;
    const char *summary; /* for `lockstep --help` */
    const char *usage;   /* the text after "lockstep NAME" */
    const char *about;
    const char *notes; /* examples, exit statuses, environment */
    const ls_cli_option *options;
    size_t option_count;
    /*
     * Prints the possible values of an option, or of the first argument if `option` is NULL, separated by blanks or
     * commas. Prints nothing if any value is possible. For man pages and shell completion; may be NULL.
     */
    void (*list_values)(const char *option, FILE *stream);
    /*
     * On failure, main prints ls_error_message(). *exit_status is 0 before the call; the function may set a more
     * specific status than 1 or 2.
     */
    ls_status (*run)(int argc, char **argv, int *exit_status);
} ls_command;

/*
 * Reads the options of argv (argv[0] is the name of the subcommand) into the struct at `values`, which initially
 * contains the defaults. Stops at the first word that is not an option: argv[*rest]. On --help, sets *help and stops.
 */
ls_status ls_options_parse(const ls_command *command, int argc, char **argv, void *values, int *rest, bool *help);

/* Returns whether the usage of the subcommand contains an argument with this name, such as "PROGRAM". */
bool ls_options_take(const ls_command *command, const char *argument);

/* Prints the --help of the subcommand to standard output. */
void ls_options_help(const ls_command *command);

#endif
