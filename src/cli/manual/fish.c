/* Completion for fish: one `complete` for each option and argument. */
#include "cli/manual/manual.h"

/* Prints the text in single quotes. */
static void print_quoted(FILE *stream, const char *text) {
    fputs("'", stream);
    ls_manual_print(stream, text, "'\\", "\\");
    fputs("'", stream);
}

static void print_values(FILE *stream, ls_value_kind kind, const char *list) {
    switch (kind) {
    case LS_VALUE_LIST:
        fprintf(stream, " -x -a '%s'", list);
        break;
    case LS_VALUE_FILE:
        fputs(" -r -F", stream);
        break;
    case LS_VALUE_FOLDER:
        fputs(" -x -a '(__fish_complete_directories)'", stream);
        break;
    case LS_VALUE_ANY:
        fputs(" -x", stream);
        break;
    case LS_VALUE_NONE:
    case LS_VALUE_PROGRAM:
        break;
    }
}

/* Prints the beginning of a fish line for words after `lockstep COMMAND`. */
static void print_begin(FILE *stream, const ls_command *command) {
    fprintf(stream, "complete -c lockstep -n '__fish_seen_subcommand_from %s'", command->name);
}

/* Prints the options that take a value, which fish must skip to find PROGRAM. */
static void print_program(FILE *stream, const ls_command *command) {
    print_begin(stream, command);
    fputs(" -x -a '(__fish_complete_subcommand --fcs-skip=2", stream);
    for (size_t i = 0; i < command->option_count; i++) {
        const ls_cli_option *option = &command->options[i];
        if (option->kind != LS_OPTION_FLAG) {
            fprintf(stream, option->letter != 0 ? " --%s -%c" : " --%s", option->name, option->letter);
        }
    }
    fputs(")'\n", stream);
}

static void print_arguments(FILE *stream, const ls_command *command) {
    const ls_values values = ls_values_of(command, NULL);
    if (values.kind == LS_VALUE_PROGRAM) {
        print_program(stream, command);
    } else if (values.kind == LS_VALUE_LIST) {
        fprintf(stream,
                "complete -c lockstep -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from %s' -a "
                "'%s'\n",
                command->name, values.list, values.list);
    }
    if (ls_values_of_rest(command) == LS_VALUE_FILE) {
        fprintf(stream,
                "complete -c lockstep -n '__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s' -F\n",
                command->name, values.list);
    }
}

static void print_command(FILE *stream, const ls_command *command) {
    fprintf(stream, "complete -c lockstep -n __fish_use_subcommand -a %s -d ", command->name);
    print_quoted(stream, command->summary);
    fputs("\n", stream);
    for (size_t i = 0; i < command->option_count; i++) {
        const ls_cli_option *option = &command->options[i];
        const ls_values values = ls_values_of(command, option);
        print_begin(stream, command);
        fprintf(stream, option->letter != 0 ? " -l %s -s %c -d " : " -l %s -d ", option->name, option->letter);
        print_quoted(stream, option->help);
        print_values(stream, values.kind, values.list);
        fputs("\n", stream);
    }
    print_arguments(stream, command);
}

void ls_manual_fish(FILE *stream) {
    fputs("# Completion of the command lockstep for fish. Written by lockstep_manual from the tables of options.\n"
          "complete -c lockstep -f\n"
          "complete -c lockstep -s h -l help -d 'print a summary'\n"
          "complete -c lockstep -n __fish_use_subcommand -l version -d 'print the version'\n",
          stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        print_command(stream, *command);
    }
}
