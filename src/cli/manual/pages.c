/*
 * Man pages. The texts of --help are laid out with blanks; here they become the elements of a man page:
 *
 *   title (remark):             a section, if it is at the start of a line after an empty line
 *     key  text  key  text      items: two blanks or more separate a key from its text
 *                text           more text of the item before
 *     text                      a paragraph; in the section of examples, a command
 *   text                        a paragraph
 */
#include "cli/manual/manual.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

enum { INDENT = 2, WIDTH = 60, LONGEST_BLOCK = 4096 };

/* Prints text in the form that roff reads. Breaks lines at the first blank after `width` characters. */
static void print_wrapped(FILE *stream, const char *text, size_t size, size_t width) {
    size_t column = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == ' ' && column >= width) {
            fputc('\n', stream);
            column = 0;
            continue;
        }
        if (column == 0 && (text[i] == '.' || text[i] == '\'')) {
            fputs("\\&", stream);
        }
        fprintf(stream, text[i] == '\\' ? "\\e" : text[i] == '-' ? "\\-" : "%c", text[i]);
        column++;
    }
    fputc('\n', stream);
}

static void print(FILE *stream, const char *text, size_t size) {
    print_wrapped(stream, text, size, WIDTH);
}

static void print_all(FILE *stream, const char *text) {
    print(stream, text, strlen(text));
}

/* Returns the size of the text up to the next two blanks, or up to `end`. */
static size_t field(const char *text, const char *end) {
    for (const char *at = text; at + 1 < end; at++) {
        if (at[0] == ' ' && at[1] == ' ') {
            return (size_t)(at - text);
        }
    }
    return (size_t)(end - text);
}

static void print_item(FILE *stream, const char *key, size_t size) {
    fputs(".TP\n.B ", stream);
    print_wrapped(stream, key, size, SIZE_MAX);
}

typedef struct page_state {
    FILE *stream;
    bool examples;  /* the current section contains examples */
    bool paragraph; /* the last line belongs to a paragraph, or to a section title */
} page_state;

/* Prints an indented line: items, a continuation of the previous item, or a paragraph. */
static void print_indented(page_state *page, const char *line, const char *end) {
    const char *text = line + strspn(line, " ");
    const size_t size = field(text, end);
    if (text - line > INDENT) {
        print(page->stream, text, (size_t)(end - text));
    } else if (text + size < end) {
        page->paragraph = false;
        while (text < end) {
            const char *value = text + field(text, end);
            print_item(page->stream, text, (size_t)(value - text));
            value += strspn(value, " ");
            const size_t length = field(value, end);
            print(page->stream, value, length);
            text = value + length;
            text += strspn(text, " ");
        }
    } else if (page->examples) {
        print_item(page->stream, text, size);
    } else {
        fputs(page->paragraph ? "" : ".PP\n", page->stream);
        page->paragraph = true;
        print(page->stream, text, size);
    }
}

/* Prints a section title in capitals, except for the names of options. */
static void print_title(FILE *stream, const char *title, size_t size) {
    fputs(".SH ", stream);
    bool is_option = false;
    for (size_t i = 0; i < size; i++) {
        is_option = title[i] == '-' || (is_option && title[i] != ' ');
        fprintf(stream, title[i] == '-' ? "\\-" : "%c", is_option ? title[i] : toupper((unsigned char)title[i]));
    }
    fputc('\n', stream);
}

/* Prints the unindented lines of a block, joined into one line: a title, a title with a remark, or a paragraph. */
static void print_start(page_state *page, const char *text, bool first) {
    const size_t size = strlen(text);
    page->paragraph = false;
    if (text[size - 1] != ':') {
        fputs(first ? "" : ".PP\n", page->stream);
        print(page->stream, text, size);
        return;
    }
    const char *remark = strstr(text, " (");
    print_title(page->stream, text, remark != NULL ? (size_t)(remark - text) : size - 1);
    page->examples = strncmp(text, "examples", strlen("examples")) == 0;
    page->paragraph = remark == NULL;
    if (remark != NULL) {
        print(page->stream, remark + 2, size - (size_t)(remark - text) - 4); /* without " (" and "):" */
    }
}

/* Returns whether the lines of the block end here: at the end of a sentence, or before an empty or indented line. */
static bool ends(const char *block, const char *next) {
    const size_t size = strlen(block);
    return size > 0 && (block[size - 1] == '.' || *next == '\0' || *next == '\n' || *next == ' ');
}

/* Prints a text of --help. `first` means that the text continues a section that has just begun. */
static void print_text(FILE *stream, const char *text, bool first) {
    page_state page = {.stream = stream};
    char start[LONGEST_BLOCK] = "";
    for (const char *line = text; *line != '\0';) {
        const size_t size = strcspn(line, "\n");
        if (size > 0 && line[0] != ' ') {
            const size_t used = strlen(start);
            snprintf(start + used, sizeof start - used, "%s%.*s", used > 0 ? " " : "", (int)size, line);
        }
        const char *next = line + size + (line[size] == '\n');
        if (ends(start, next)) {
            print_start(&page, start, first);
            first = false;
            start[0] = '\0';
        }
        if (size > 0 && line[0] == ' ') {
            print_indented(&page, line, line + size);
        }
        line = next;
    }
}

static void print_option(FILE *stream, const ls_command *command, const ls_cli_option *option) {
    fputs(".TP\n.B ", stream);
    if (option->letter != 0) {
        fprintf(stream, "\\-%c\\fR, \\fB", option->letter);
    }
    fputs("\\-\\-", stream);
    ls_manual_print(stream, option->name, "-", "\\");
    if (option->argument != NULL) {
        fprintf(stream, " \\fI%s", option->argument);
    }
    fputc('\n', stream);
    for (const char *line = option->help; *line != '\0';) {
        const size_t size = strcspn(line, "\n");
        print(stream, line, size);
        line += size + (line[size] == '\n');
    }
    const ls_values values = ls_values_of(command, option);
    char first[LS_VALUE_TEXT]; /* most texts of --help list the values */
    snprintf(first, sizeof first, "%.*s", (int)strcspn(values.list, " "), values.list);
    if (values.kind == LS_VALUE_LIST && strstr(option->help, first) == NULL) {
        fputs(".br\nValues: ", stream);
        print_all(stream, values.list);
    }
}

static void print_head(FILE *stream, const char *title, const char *date) {
    fprintf(
        stream,
        ".\\\" Written by lockstep_manual from the tables of options.\n.TH %s 1 %s \"Lockstep %s\" \"User commands\"\n",
        title, date, ls_version());
}

static void print_help_option(FILE *stream) {
    fputs(".TP\n.B \\-h\\fR, \\fB\\-\\-help\nPrint a summary of this page.\n", stream);
}

static void print_main_page(FILE *stream, const char *date) {
    print_head(stream, "LOCKSTEP", date);
    fputs(
        ".SH NAME\nlockstep \\- start, measure and inspect distributed training\n.SH SYNOPSIS\n.B lockstep\nCOMMAND "
        "[options]\n"
        ".SH DESCRIPTION\nLockstep is a C library for distributed training.\nThis command starts the ranks of a job,\n"
        "measures collectives, and inspects checkpoints and the machine.\n.SH COMMANDS\n",
        stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        print_item(stream, (*command)->name, strlen((*command)->name));
        print_all(stream, (*command)->summary);
    }
    fputs(".SH OPTIONS\n", stream);
    print_help_option(stream);
    fputs(".TP\n.B \\-\\-version\nPrint the version.\n.SH SEE ALSO\n", stream);
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        fprintf(stream, ".BR lockstep\\-%s (1)%s\n", (*command)->name, command[1] != NULL ? "," : "");
    }
}

void ls_manual_page(FILE *stream, const ls_command *command, const char *date) {
    if (command == NULL) {
        print_main_page(stream, date);
        return;
    }
    char title[64];
    const int length = snprintf(title, sizeof title, "LOCKSTEP\\-%s", command->name);
    for (int i = 0; i < length; i++) {
        title[i] = (char)toupper((unsigned char)title[i]);
    }
    print_head(stream, title, date);
    fprintf(stream, ".SH NAME\nlockstep\\-%s \\- ", command->name);
    print_all(stream, command->summary);
    fprintf(stream, ".SH SYNOPSIS\n.B lockstep %s\n", command->name);
    print_all(stream, command->usage);
    fputs(".SH DESCRIPTION\n", stream);
    print_text(stream, command->about, true);
    const ls_values values = ls_values_of(command, NULL);
    if (values.kind == LS_VALUE_LIST) {
        fprintf(stream, ".PP\n%s is one of:\n", values.name);
        print_all(stream, values.list);
    }
    fputs(".SH OPTIONS\n", stream);
    for (size_t i = 0; i < command->option_count; i++) {
        print_option(stream, command, &command->options[i]);
    }
    print_help_option(stream);
    print_text(stream, command->notes, false);
    fputs(".SH SEE ALSO\n.BR lockstep (1)\n", stream);
}
