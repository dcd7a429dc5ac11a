/*
 * Command lines of the examples: a table of options, read by name, and --device, which all of them have. Nothing here
 * is Lockstep's but the environment variable LOCKSTEP_DEVICE, which that sets: what tensors are made on
 * (ls_use_device).
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
    ARGUMENT_COUNT,  /* a whole number from 0 to INT_MAX, into a long */
    ARGUMENT_SIZE,   /* the same, from 1 */
    ARGUMENT_NUMBER, /* a number above 0, into a double */
    ARGUMENT_PART,   /* a number from 0 to below 1, into a double */
    ARGUMENT_TEXT,   /* into a const char * */
    ARGUMENT_FLAG    /* takes no value, into a bool */
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
        printf("  %-15s %-5s %s\n", table[i].name, kinds[table[i].kind], table[i].help);
    }
    printf("  %-15s %-5s %s\n", "--device", "TEXT",
           "what computes: cpu, or a GPU as cuda:0 (LOCKSTEP_DEVICE, else cpu)");
    printf("  %-15s %-5s %s\n", "-h, --help", "", "this text");
}

/* Stores one value; false when it does not have the form. */
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

/* Results that nobody got are no success. */
static inline void arguments_check_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        fprintf(stderr, "%s: cannot write to standard output: %s\n", arguments_program, strerror(errno));
        _exit(1);
    }
}

/* Reads the command line; ends the program with status 2 and one sentence when it is wrong. */
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
            fprintf(stderr, "%s: %s %s: --help lists what there is\n", argv[0],
                    argv[i][0] == '-' ? "unknown option" : "there are only options, not", argv[i]);
            exit(2);
        }
        if (option->kind == ARGUMENT_FLAG) {
            *(bool *)option->value = true;
        } else if (i + 1 == argc || !argument_store(option, argv[i + 1])) {
            static const char *const wants[] = {"a whole number from 0 to 2147483647",
                                                "a whole number from 1 to 2147483647", "a number above 0",
                                                "a number from 0 to below 1", "a text"};
            const char *given = i + 1 == argc ? "(nothing)" : argv[i + 1][0] == '\0' ? "''" : argv[i + 1];
            fprintf(stderr, "%s: %s %s: it takes %s\n", argv[0], argv[i], given, wants[option->kind]);
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
