/*
 * Command lines of the examples: a table of options, read by name, and --device, which all examples accept. Lockstep
 * itself reads only the environment variable LOCKSTEP_DEVICE: --device sets this variable, which selects the device of
 * new tensors (ls_use_device).
 */
#ifndef LS_EXAMPLES_ARGUMENTS_H
#define LS_EXAMPLES_ARGUMENTS_H

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum argument_kind {
    ARGUMENT_COUNT,  /* an integer from 0 to INT_MAX, stored in a long */
    ARGUMENT_SIZE,   /* the same, from 1 */
    ARGUMENT_NUMBER, /* a number above 0, stored in a double */
    ARGUMENT_PART,   /* a number in [0, 1), stored in a double */
    ARGUMENT_TEXT,   /* stored in a const char * */
    ARGUMENT_FLAG    /* an option without a value, stored in a bool */
} argument_kind;

typedef struct argument {
    const char *name; /* "--epochs" */
    argument_kind kind;
    void *value;
    const char *help;
} argument;

static inline void arguments_help(const char *program, const char *about, const argument *table, int count) {
    printf("Usage: %s [OPTIONS]\n%s\n\n", program, about);
    for (int i = 0; i < count; i++) {
        static const char *const kinds[] = {"N", "N", "X", "X", "TEXT", ""};
        printf("  %-19s %-5s %s\n", table[i].name, kinds[table[i].kind], table[i].help);
    }
    printf("  %-19s %-5s %s\n", "--device", "TEXT",
           "compute device: cpu, or a GPU such as cuda:0 (LOCKSTEP_DEVICE, else cpu)");
    printf("  %-19s %-5s %s\n", "-h, --help", "", "this text");
}

/* Stores one value. Returns false if the string is malformed. */
static inline bool argument_store(const argument *option, const char *text) {
    char *end = NULL;
    errno = 0;
    if (option->kind == ARGUMENT_TEXT) {
        *(const char **)option->value = text;
        return *text != '\0';
    }
    if (option->kind == ARGUMENT_NUMBER || option->kind == ARGUMENT_PART) {
        const double number = strtod(text, &end);
        *(double *)option->value = number;
        return end != text && *end == '\0' && errno == 0 && isfinite(number) &&
               (option->kind == ARGUMENT_PART ? number >= 0 && number < 1 : number > 0);
    }
    const long number = strtol(text, &end, 10);
    *(long *)option->value = number;
    return end != text && *end == '\0' && number >= (option->kind == ARGUMENT_SIZE) && number <= INT_MAX;
}

static const char *arguments_program;

/* Fails if standard output could not be written: a run that loses its results must not succeed. */
static inline void arguments_check_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        fprintf(stderr, "%s: cannot write to standard output: %s\n", arguments_program, strerror(errno));
        _exit(1);
    }
}

/* Reads the command line. If it is invalid, prints one sentence and exits with status 2. */
static inline void arguments_read(int argc, char **argv, const char *about, const argument *table, int count) {
    const char *device = NULL;
    const argument on_device = {"--device", ARGUMENT_TEXT, &device, NULL};
    arguments_program = argv[0];
    atexit(arguments_check_output);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            arguments_help(argv[0], about, table, count);
            exit(0);
        }
        const argument *option = strcmp(argv[i], on_device.name) == 0 ? &on_device : NULL;
        for (int k = 0; k < count && option == NULL; k++) {
            option = strcmp(argv[i], table[k].name) == 0 ? &table[k] : NULL;
        }
        if (option == NULL) {
            fprintf(stderr, "%s: %s %s: --help lists the options\n", argv[0],
                    argv[i][0] == '-' ? "unknown option" : "unexpected argument", argv[i]);
            exit(2);
        }
        if (option->kind == ARGUMENT_FLAG) {
            *(bool *)option->value = true;
        } else if (i + 1 == argc || !argument_store(option, argv[i + 1])) {
            static const char *const wants[] = {"a whole number from 0 to 2147483647",
                                                "a whole number from 1 to 2147483647", "a number above 0",
                                                "a number from 0 to below 1", "a string"};
            const char *given = i + 1 == argc ? "(nothing)" : argv[i + 1][0] == '\0' ? "''" : argv[i + 1];
            fprintf(stderr, "%s: %s %s: expected %s\n", argv[0], argv[i], given, wants[option->kind]);
            exit(2);
        } else {
            i++;
        }
    }
    if (device != NULL && setenv("LOCKSTEP_DEVICE", device, 1) != 0) {
        fprintf(stderr, "%s: --device %s: %s\n", argv[0], device, strerror(errno));
        exit(1);
    }
}

#define ARGUMENTS_READ(argc, argv, about, table)                                                                       \
    arguments_read((argc), (argv), (about), (table), (int)(sizeof(table) / sizeof *(table)))

#endif
