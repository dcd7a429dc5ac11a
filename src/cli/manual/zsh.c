/* Completion for zsh: an _arguments specification for each subcommand. */
#include "cli/manual/manual.h"

#include <string.h>

/* A quote would end the single-quoted string; brackets and colons have special meaning for _arguments. */
static void print_text(FILE *stream, const char *text) {
    for (; *text != '\0'; text++) {
        fputs(*text == '\'' ? "'\\'" : strchr("[]:\\", *text) != NULL ? "\\" : "", stream);
        fputc(*text == '\n' ? ' ' : *text, stream);
    }
}

/* Prints ":NAME:ACTION", the end of a specification in single quotes. */
static void print_values(FILE *stream, const ls_values *values) {
    fputs(":", stream);
    print_text(stream, values->name);
    fputs(":", stream);
    switch (values->kind) {
    case LS_VALUE_LIST:
        fprintf(stream, "(%s)", values->list);
        break;
    case LS_VALUE_FILE:
        fputs("_files", stream);
        break;
    case LS_VALUE_FOLDER:
        fputs("_files -/", stream);
        break;
    case LS_VALUE_PROGRAM:
        fputs("_command_names -e", stream);
        break;
    case LS_VALUE_NONE:
    case LS_VALUE_ANY:
        fputs(" ", stream);
    }
    fputs("'", stream);
}

static void print_option(FILE *stream, const ls_command *command, const ls_cli_option *option) {
    const ls_values values = ls_values_of(command, option);
    const bool flag = values.kind == LS_VALUE_NONE;
    if (option->letter != 0) {
        fprintf(stream, "            '(-%c --%s)'{-%c%s,--%s%s}'[", option->letter, option->name, option->letter,
                flag ? "" : "+", option->name, flag ? "" : "=");
    } else {
        fprintf(stream, "            '--%s%s[", option->name, flag ? "" : "=");
    }
    print_text(stream, option->help);
    fputs("]", stream);
    if (flag) {
        fputs("'", stream);
    } else {
        print_values(stream, &values);
    }
    fputs(" \\\n", stream);
}

static void print_command(FILE *stream, const ls_command *command) {
    const ls_values values = ls_values_of(command, NULL);
    fprintf(stream, "    %s)\n        _arguments \\\n", command->name);
    for (size_t i = 0; i < command->option_count; i++) {
        print_option(stream, command, &command->options[i]);
    }
    if (values.kind != LS_VALUE_NONE) {
        fprintf(stream, "            '%s1",
                values.kind == LS_VALUE_PROGRAM ? "(-)" : ""); /* no options after PROGRAM */
        print_values(stream, &values);
        fputs(" \\\n", stream);
    }
    if (values.kind == LS_VALUE_PROGRAM) {
        fputs("            '*::ARGUMENTS: _normal' \\\n", stream);
    } else if (ls_values_of_rest(command) == LS_VALUE_FILE) {
        fputs("            '*:PATH:_files' \\\n", stream);
    }
    fputs("            '(-)'{-h,--help}'[print a summary]'\n        ;;\n", stream);
}

void ls_manual_zsh(FILE *stream) {
    fputs("#compdef lockstep\n# Written by lockstep_manual from the tables of options.\n\n"
          "local curcontext=$curcontext state line\nlocal -a commands\ncommands=(\n",
          stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        fprintf(stream, "    '%s:", (*command)->name);
        print_text(stream, (*command)->summary);
        fputs("'\n", stream);
    }
    fputs(")\n"
          "_arguments -C '(-)'{-h,--help}'[list the commands]' '(-)--version[print the version]' \\\n"
          "    '1:COMMAND:->command' '*::ARGUMENTS:->arguments'\n"
          "if [[ $state == command ]]; then\n    _describe -t commands 'command of lockstep' commands\n    return\nfi\n"
          "[[ $state == arguments ]] || return\n"
          "case $words[1] in\n",
          stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        print_command(stream, *command);
    }
    fputs("esac\n", stream);
}
