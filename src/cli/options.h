/* Subcommands and their options. One table says what an option is called, takes and does: parsing and --help read it.
 */
#ifndef LS_CLI_OPTIONS_H
#define LS_CLI_OPTIONS_H

#include <lockstep/base.h>

/* What an option's place in the values struct is. */
typedef enum ls_option_kind {
    LS_OPTION_FLAG,    /* bool, becomes true */
    LS_OPTION_COUNT,   /* int between least and most */
    LS_OPTION_SECONDS, /* double between least and most */
    LS_OPTION_TEXT     /* const char *, lent from argv */
} ls_option_kind;

typedef struct ls_cli_option {
    const char *name; /* without its dashes */
    char letter;      /* 0: none */
    ls_option_kind kind;
    const char *argument; /* what --help calls its argument; NULL for flags */
    size_t offset;        /* of its value in the subcommand's values struct */
    int least, most;
    const char *help; /* lines of --help, indented there */
} ls_cli_option;

typedef struct ls_command {
    const char *name;
    const char *summary; /* for `lockstep --help` */
    const char *usage;   /* what follows "lockstep NAME" */
    const char *about;
    const char *notes; /* examples, exit status, environment */
    const ls_cli_option *options;
    size_t option_count;
    /* On failure main prints ls_error_message(); *exit_status, 0 before the call, may say more than 1 or 2. */
    ls_status (*run)(int argc, char **argv, int *exit_status);
} ls_command;

/*
 * Reads the options of argv (argv[0] is the subcommand's name) into the struct at `values`, which holds the defaults,
 * up to the first word that is no option: argv[*rest]. *help becomes true at --help, where reading ends.
 */
ls_status ls_options_parse(const ls_command *command, int argc, char **argv, void *values, int *rest, bool *help);

/* Prints the subcommand's --help to standard output. */
void ls_options_help(const ls_command *command);

#endif
