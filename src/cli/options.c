#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "cli/cli.h"

enum { MOST_OPTIONS = 32, HELP_CODE = 256, LONG_BASE = 257, LONGEST_WORD = 32 };

bool ls_options_take(const ls_command *command, const char *argument) {
    return strstr(command->usage, argument) != NULL;
}

static ls_status fail_unknown(const ls_command *command, const char *typed) {
    const char *dashless = typed + strspn(typed, "-");
    char word[LONGEST_WORD + 1];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(dashless, "="), dashless);
    const char *nearest = "help";
    for (size_t i = 0; i < command->option_count; i++) {
        if (ls_word_distance(word, command->options[i].name) < ls_word_distance(word, nearest)) {
            nearest = command->options[i].name;
        }
    }
    if (ls_word_is_near(word, ls_word_distance(word, nearest))) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep %s: unknown option %s; did you mean --%s?", command->name, typed,
                       nearest);
    }
    return ls_fail(LS_ERR_ARGUMENT, "lockstep %s: unknown option %s%s (see lockstep %s --help)", command->name, typed,
                   ls_options_take(command, "PROGRAM") ? "; options of PROGRAM go after its name" : "", command->name);
}

static ls_status fail_value(const ls_command *command, const ls_cli_option *option, const char *text,
                            const char *wanted) {
    return ls_fail(LS_ERR_ARGUMENT, "lockstep %s: %s%s '%s': %s must be %s from %d to %d", command->name,
                   option->letter != 0 ? "-" : "--", option->letter != 0 ? (char[2]){option->letter, 0} : option->name,
                   text, option->argument, wanted, option->least, option->most);
}

static ls_status store_value(const ls_command *command, const ls_cli_option *option, const char *text, void *place) {
    char *end = NULL;
    errno = 0;
    switch (option->kind) {
    case LS_OPTION_FLAG:
        *(bool *)place = true;
        break;
    case LS_OPTION_TEXT:
        *(const char **)place = text;
        break;
    case LS_OPTION_COUNT: {
        const long value = strtol(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0 || value < option->least || value > option->most) {
            return fail_value(command, option, text, "a whole number");
        }
        *(int *)place = (int)value;
        break;
    }
    case LS_OPTION_SECONDS: {
        const double value = strtod(text, &end);
        if (end == text || *end != '\0' || !(value >= option->least && value <= option->most)) {
            return fail_value(command, option, text, "a number of seconds");
        }
        *(double *)place = value;
        break;
    }
    }
    return LS_OK;
}

/*
 * Converts the table into getopt's two forms. A code below HELP_CODE is a letter; other codes are indices of the table.
 */
static void describe(const ls_command *command, struct option *longs, char *letters) {
    *letters++ = '+'; /* stop at PROGRAM, because later arguments belong to the program */
    *letters++ = ':'; /* distinguish a missing argument from an unknown option */
    *letters++ = 'h';
    for (size_t i = 0; i < command->option_count; i++) {
        const ls_cli_option *option = &command->options[i];
        const bool argument = option->kind != LS_OPTION_FLAG;
        longs[i] = (struct option){option->name, argument ? required_argument : no_argument, NULL, LONG_BASE + (int)i};
        if (option->letter != 0) {
            *letters++ = option->letter;
            if (argument) {
                *letters++ = ':';
            }
        }
    }
    longs[command->option_count] = (struct option){"help", no_argument, NULL, HELP_CODE};
    longs[command->option_count + 1] = (struct option){NULL, 0, NULL, 0};
    *letters = '\0';
}

static const ls_cli_option *option_of_code(const ls_command *command, int code) {
    for (size_t i = 0; i < command->option_count; i++) {
        if (code != 0 && (code == LONG_BASE + (int)i || code == command->options[i].letter)) {
            return &command->options[i];
        }
    }
    return NULL;
}

/* Reports an unknown option, or an option whose argument is missing or not allowed, and fails. */
static ls_status fail_option(const ls_command *command, const char *typed, int code) {
    const ls_cli_option *option = option_of_code(command, optopt);
    const bool is_long = strncmp(typed, "--", 2) == 0;
    if (code == ':') {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep %s: %s requires the argument %s (usage: lockstep %s %s)",
                       command->name, typed, option->argument, command->name, command->usage);
    }
    if (is_long && (option != NULL || optopt == HELP_CODE)) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep %s: %s: this option takes no value", command->name, typed);
    }
    const char letter[] = {'-', (char)optopt, 0};
    return fail_unknown(command, is_long ? typed : letter);
}

/*
 * Returns whether the whole name was typed. getopt accepts any prefix (--n for --no-bind), which is more likely a
 * mistake than intended.
 */
static bool is_whole_name(const struct option *longs, int code, const char *typed) {
    while (longs->val != code) {
        longs++;
    }
    const size_t size = strlen(longs->name);
    return strncmp(typed + 2, longs->name, size) == 0 && (typed[2 + size] == '\0' || typed[2 + size] == '=');
}

ls_status ls_options_parse(const ls_command *command, int argc, char **argv, void *values, int *rest, bool *help) {
    struct option longs[MOST_OPTIONS + 2];
    char letters[2 * MOST_OPTIONS + 4];
    describe(command, longs, letters);
    *help = false;
    optind = 0;
    opterr = 0;
    for (;;) {
        const int at = optind == 0 ? 1 : optind;
        const int code = getopt_long(argc, argv, letters, longs, NULL);
        if (code == -1) {
            *rest = optind;
            return LS_OK;
        }
        if (code >= HELP_CODE && !is_whole_name(longs, code, argv[at])) {
            return fail_unknown(command, argv[at]);
        }
        if (code == 'h' || code == HELP_CODE) {
            *help = true;
            return LS_OK;
        }
        if (code == ':' || code == '?') {
            return fail_option(command, argv[at], code);
        }
        const ls_cli_option *option = option_of_code(command, code);
        if (code == option->letter && argv[at][1] == code && argv[at][2] >= 'a' && argv[at][2] <= 'z') { /* -np 4 */
            return ls_fail(LS_ERR_ARGUMENT, "lockstep %s: unknown option %s; did you mean -%c?", command->name,
                           argv[at], option->letter);
        }
        LS_TRY(store_value(command, option, optarg, (char *)values + option->offset));
    }
}

ls_size_text ls_size_describe(int64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    ls_size_text size;
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
        value /= 1024;
    }
    snprintf(size.text, sizeof size.text, "%.*f %s", value < 10 && unit > 0 ? 1 : 0, value, units[unit]);
    return size;
}

void ls_options_help(const ls_command *command) {
    printf("usage: lockstep %s %s\n\n%s\noptions:\n", command->name, command->usage, command->about);
    for (size_t i = 0; i < command->option_count; i++) {
        const ls_cli_option *option = &command->options[i];
        char left[64];
        snprintf(left, sizeof left, "%c%c%c --%s%s%s", option->letter != 0 ? '-' : ' ',
                 option->letter != 0 ? option->letter : ' ', option->letter != 0 ? ',' : ' ', option->name,
                 option->argument != NULL ? " " : "", option->argument != NULL ? option->argument : "");
        printf(strlen(left) <= 24 ? "  %-24s " : "  %s\n                           ", left);
        for (const char *line = option->help; *line != '\0';) {
            const size_t size = strcspn(line, "\n");
            printf("%s%.*s\n", line == option->help ? "" : "                           ", (int)size, line);
            line += size + (line[size] == '\n');
        }
    }
    printf("  %-24s print this\n\n%s", "-h, --help", command->notes);
}
