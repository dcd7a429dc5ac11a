#include "cli/manual/manual.h"

#include <string.h>

void ls_manual_print(FILE *stream, const char *text, const char *special, const char *escape) {
    for (; *text != '\0'; text++) {
        fprintf(stream, "%s%c", strchr(special, *text) != NULL ? escape : "", *text == '\n' ? ' ' : *text);
    }
}

/* Replaces runs of commas, bars and blanks with single blanks, and removes such runs at the end. */
static void normalize(char *list) {
    char *end = list;
    for (const char *from = list; *from != '\0';) {
        from += strspn(from, ",| ");
        const size_t size = strcspn(from, ",| ");
        if (size > 0 && end > list) {
            *end++ = ' ';
        }
        memmove(end, from, size);
        from += size;
        end += size;
    }
    *end = '\0';
}

/* Fills the list from the table of the subcommand. */
static void list(const ls_command *command, const char *option, ls_values *values) {
    FILE *stream = fmemopen(values->list, sizeof values->list, "w");
    if (stream != NULL && command->list_values != NULL) {
        command->list_values(option, stream);
    }
    if (stream != NULL) {
        fclose(stream);
    }
    normalize(values->list);
}

/* Returns the first word of the usage that is not in brackets. */
static const char *first_argument(const ls_command *command) {
    const char *word = command->usage;
    while (*word == '[') {
        word += strcspn(word, "]");
        word += strspn(word, "] ");
    }
    return word;
}

static ls_value_kind kind_of(const ls_values *values) {
    static const struct {
        const char *name;
        ls_value_kind kind;
    } kinds[] = {{"", LS_VALUE_NONE},
                 {"FILE", LS_VALUE_FILE},
                 {"RUN", LS_VALUE_FILE},
                 {"DIR", LS_VALUE_FOLDER},
                 {"PROGRAM", LS_VALUE_PROGRAM}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(values->name, kinds[i].name) == 0) {
            return kinds[i].kind;
        }
    }
    return values->list[0] != '\0' ? LS_VALUE_LIST : LS_VALUE_ANY;
}

ls_values ls_values_of(const ls_command *command, const ls_cli_option *option) {
    ls_values values = {LS_VALUE_NONE, "", ""};
    if (option != NULL && option->kind == LS_OPTION_FLAG) {
        return values;
    }
    const char *name = option != NULL ? option->argument : first_argument(command);
    snprintf(values.name, sizeof values.name, "%.*s", (int)strcspn(name, " "), name);
    list(command, option != NULL ? option->name : NULL, &values);
    if (strchr(name, '|') != NULL) { /* each|none */
        snprintf(values.list, sizeof values.list, "%s", name);
        normalize(values.list);
    }
    values.kind = kind_of(&values);
    return values;
}

ls_value_kind ls_values_of_rest(const ls_command *command) {
    return ls_options_take(command, "PATH") || ls_options_take(command, "RUN") ? LS_VALUE_FILE : LS_VALUE_NONE;
}
