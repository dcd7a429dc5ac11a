/* Completion for bash. Needs the package bash-completion only to complete the arguments of PROGRAM. */
#include "cli/manual/manual.h"

static const char head[] =
    "# Completion of the command lockstep for bash. Written by lockstep_manual from the tables of options.\n"
    "\n"
    "# _lockstep_suggest CURRENT COMPGEN-ARGUMENTS...: sets COMPREPLY to the words that begin with CURRENT.\n"
    "_lockstep_suggest() {\n"
    "    mapfile -t COMPREPLY < <(compgen \"${@:2}\" -- \"$1\")\n"
    "}\n"
    "\n"
    "_lockstep_suggest_files() { # CURRENT KIND\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    _lockstep_suggest \"$1\" -A \"$2\"\n"
    "}\n";

static const char tail[] =
    "_lockstep() {\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}\n"
    "    local first=0 i\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        _lockstep_suggest \"$current\" -W \"$_lockstep_commands\"\n"
    "        return\n"
    "    fi\n"
    "    for ((i = 2; i < COMP_CWORD && first == 0; i++)); do\n"
    "        if [[ ${COMP_WORDS[i]} != -* ]]; then\n"
    "            first=$i\n"
    "        elif [[ ${COMP_WORDS[i + 1]} == = ]]; then # bash splits --option=value into three words\n"
    "            i=$((i + 2))\n"
    "        elif _lockstep_value \"$command\" \"${COMP_WORDS[i]}\" ''; then\n"
    "            i=$((i + 1))\n"
    "        fi\n"
    "    done\n"
    "    COMPREPLY=()\n"
    "    if [[ $current == = ]]; then\n"
    "        current=\n"
    "    elif [[ $previous == = ]]; then\n"
    "        previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    if ((first > 0)) && _lockstep_runs_program \"$command\"; then\n"
    "        if declare -F _command_offset >/dev/null; then\n"
    "            _command_offset \"$first\"\n"
    "        else\n"
    "            _lockstep_suggest_files \"$current\" file\n"
    "        fi\n"
    "    elif [[ $previous != -* ]] || ! _lockstep_value \"$command\" \"$previous\" \"$current\"; then\n"
    "        if [[ $current == -* ]]; then\n"
    "            _lockstep_suggest \"$current\" -W \"$(_lockstep_options \"$command\")\"\n"
    "        elif ((first > 0)); then\n"
    "            _lockstep_rest \"$command\" \"$current\"\n"
    "        else\n"
    "            _lockstep_first \"$command\" \"$current\"\n"
    "        fi\n"
    "    fi\n"
    "}\n"
    "complete -F _lockstep lockstep\n";

/* Prints the command that suggests values for `current`, a variable of bash. */
static void print_values(FILE *stream, ls_value_kind kind, const char *list, const char *current) {
    switch (kind) {
    case LS_VALUE_LIST:
        fprintf(stream, "_lockstep_suggest \"%s\" -W '%s'", current, list);
        break;
    case LS_VALUE_FILE:
        fprintf(stream, "_lockstep_suggest_files \"%s\" file", current);
        break;
    case LS_VALUE_FOLDER:
        fprintf(stream, "_lockstep_suggest_files \"%s\" directory", current);
        break;
    case LS_VALUE_PROGRAM:
        fprintf(stream, "_lockstep_suggest_files \"%s\" command", current);
        break;
    case LS_VALUE_NONE:
    case LS_VALUE_ANY:
        fputs("COMPREPLY=()", stream);
    }
}

static void print_options(FILE *stream) {
    fputs("_lockstep_commands='", stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        fprintf(stream, "%s ", (*command)->name);
    }
    fputs("--help --version'\n\n_lockstep_options() { # COMMAND\n    case $1 in\n", stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        fprintf(stream, "    %s) echo '", (*command)->name);
        for (size_t i = 0; i < (*command)->option_count; i++) {
            const ls_cli_option *option = &(*command)->options[i];
            fprintf(stream, option->letter != 0 ? "--%s -%c " : "--%s ", option->name, option->letter);
        }
        fputs("--help -h' ;;\n", stream);
    }
    fputs("    esac\n}\n\n", stream);
}

static void print_option_values(FILE *stream) {
    fputs("# _lockstep_value COMMAND OPTION CURRENT: suggests values of the option. Fails if it has no value.\n"
          "_lockstep_value() {\n    case \"$1 $2\" in\n",
          stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        for (size_t i = 0; i < (*command)->option_count; i++) {
            const ls_cli_option *option = &(*command)->options[i];
            const ls_values values = ls_values_of(*command, option);
            if (values.kind == LS_VALUE_NONE) {
                continue;
            }
            fprintf(stream, option->letter != 0 ? "    '%s --%s' | '%s -%c') " : "    '%s --%s') ", (*command)->name,
                    option->name, (*command)->name, option->letter);
            print_values(stream, values.kind, values.list, "$3");
            fputs(" ;;\n", stream);
        }
    }
    fputs("    *) return 1 ;;\n    esac\n}\n\n", stream);
}

static void print_arguments(FILE *stream) {
    fputs("_lockstep_first() { # COMMAND CURRENT\n    case $1 in\n", stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        const ls_values values = ls_values_of(*command, NULL);
        fprintf(stream, "    %s) ", (*command)->name);
        print_values(stream, values.kind, values.list, "$2");
        fputs(" ;;\n", stream);
    }
    fputs("    esac\n}\n\n_lockstep_rest() { # COMMAND CURRENT\n    case $1 in\n", stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        fprintf(stream, "    %s) ", (*command)->name);
        print_values(stream, ls_values_of_rest(*command), "", "$2");
        fputs(" ;;\n", stream);
    }
    fputs("    esac\n}\n\n_lockstep_runs_program() { # COMMAND\n    case $1 in\n", stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        if (ls_values_of(*command, NULL).kind == LS_VALUE_PROGRAM) {
            fprintf(stream, "    %s) ;;\n", (*command)->name);
        }
    }
    fputs("    *) return 1 ;;\n    esac\n}\n\n", stream);
}

void ls_manual_bash(FILE *stream) {
    fprintf(stream, "%s\n", head);
    print_options(stream);
    print_option_values(stream);
    print_arguments(stream);
    fputs(tail, stream);
}
