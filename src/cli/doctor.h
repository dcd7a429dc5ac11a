/*
 * `lockstep doctor`: what this machine has for Lockstep. doctor.c is the command and the list of checks; a check is a
 * function that looks at one thing and reports facts, notes and problems. doctor_report.c turns these into lines for
 * people or one JSON object.
 */
#ifndef LS_CLI_DOCTOR_H
#define LS_CLI_DOCTOR_H

#include <jansson.h>
#include <lockstep/base.h>

typedef struct ls_doctor_report {
    bool as_json;       /* nothing is printed before ls_report_end */
    bool out_of_memory; /* something is missing from the object */
    json_t *root;       /* the object */
    json_t *section;    /* where facts go, lent by root */
    json_t *problems;   /* lent by root */
    json_t *notes;      /* lent by root */
} ls_doctor_report;

/* Fills in an empty report. */
ls_status ls_report_begin(ls_doctor_report *report, bool as_json);

/* Facts from here on belong to section `key`. */
void ls_report_section(ls_doctor_report *report, const char *key);

/* One fact: `value` (taken) under `key` for JSON; the line in printf's format for people, who also read `key`. */
void ls_report_fact(ls_doctor_report *report, const char *key, json_t *value, const char *format, ...) LS_PRINTF(4, 5);

/* Something that a person may want to change. */
void ls_report_note(ls_doctor_report *report, const char *format, ...) LS_PRINTF(2, 3);

/* Something that Lockstep needs and that is broken: `lockstep doctor` will exit with 1. */
void ls_report_problem(ls_doctor_report *report, const char *format, ...) LS_PRINTF(2, 3);

/* Prints what is left to print, frees the report and says whether there were problems. */
ls_status ls_report_end(ls_doctor_report *report, bool *problems);

/* Any bytes as a JSON string: what is not UTF-8 or not printable becomes '?'. */
json_t *ls_report_text(const char *text);

/* The first line of a file, without its end. False where it cannot be read. */
bool ls_report_read_line(const char *path, char *line, size_t capacity);

/* What follows `name` and a colon or blanks in the first line that begins with it. False where there is none. */
bool ls_report_read_field(const char *path, const char *name, char *value, size_t capacity);

/* Adds to a list of texts, as far as there is room. */
void ls_report_append(char *list, size_t capacity, const char *gap, const char *text);

/*
 * Lets ranks of the backend compute and check an all-reduce, this program again: `ranks` of them under `launcher` (its
 * path), or by lockstep bench where that is NULL. Where it fails, `reason` says why.
 */
bool ls_doctor_try(const char *backend, int ranks, const char *launcher, char *reason, size_t capacity);

/* Whether plug-in lockstep-NAME.so, which could not be used, is broken: it exists, and the cause is not a library that
 * is not installed. */
bool ls_doctor_plugin_is_broken(const char *name);

/* Reports such a plug-in: the fact (`value` as for ls_report_fact) and the problem. */
void ls_doctor_broken(ls_doctor_report *report, const char *key, json_t *value, const char *reason);

/* The outcome; `reason` says why it is not here, is broken, was not tested, or failed; `version` is that of its
 * library. Both may be "". */
typedef struct ls_backend_outcome {
    const char *name;
    bool available, broken, tested, passed;
    int ranks;
    const char *reason;
    const char *version;
} ls_backend_outcome;
void ls_doctor_backend(ls_doctor_report *report, const ls_backend_outcome *outcome);

/* doctor_mpi.c: the same for backend mpi, on every MPI library that is here. */
void ls_doctor_mpi(ls_doctor_report *report);

/* The checks. */
void ls_doctor_backends(ls_doctor_report *report);
void ls_doctor_devices(ls_doctor_report *report);
void ls_doctor_cores(ls_doctor_report *report);
void ls_doctor_memory(ls_doctor_report *report);
void ls_doctor_limits(ls_doctor_report *report);
void ls_doctor_network(ls_doctor_report *report);
void ls_doctor_environment(ls_doctor_report *report);
void ls_doctor_libraries(ls_doctor_report *report);

#endif
