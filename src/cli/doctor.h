/*
 * `lockstep doctor`: the state of this machine. A check examines one thing and reports facts, notes and problems. Each
 * file has a table of its checks, and doctor.c runs all tables. doctor_report.c prints the reports as lines or as one
 * JSON object.
 */
#ifndef LS_CLI_DOCTOR_H
#define LS_CLI_DOCTOR_H

#include <jansson.h>
#include <lockstep/base.h>

typedef struct ls_doctor_report {
    bool as_json;       /* prints nothing before ls_report_end */
    bool out_of_memory; /* the JSON object is incomplete */
    json_t *root;       /* the object */
    json_t *section;    /* the section that receives new facts; borrowed from root */
    json_t *problems;   /* borrowed from root */
    json_t *notes;      /* borrowed from root */
} ls_doctor_report;

/* Initializes an empty report. */
ls_status ls_report_begin(ls_doctor_report *report, bool as_json);

/* Starts section `group`, to which later facts belong. */
void ls_report_section(ls_doctor_report *report, const char *group);

/*
 * Reports a fact. The JSON output contains `value` (takes ownership) under `key`. The text output contains `key` and
 * the line in printf's format.
 */
void ls_report_fact(ls_doctor_report *report, const char *key, json_t *value, const char *format, ...) LS_PRINTF(4, 5);

/* Reports something that the user may want to change. */
void ls_report_note(ls_doctor_report *report, const char *format, ...) LS_PRINTF(2, 3);

/* Reports that something that Lockstep needs is broken: `lockstep doctor` exits with status 1. */
void ls_report_problem(ls_doctor_report *report, const char *format, ...) LS_PRINTF(2, 3);

/* Prints the rest of the report, frees it, and returns whether there were problems. */
ls_status ls_report_end(ls_doctor_report *report, bool *problems);

/* Makes a JSON string from arbitrary bytes. Replaces invalid UTF-8 and unprintable characters with '?'. */
json_t *ls_report_text(const char *text);

/* Makes the same JSON string, or null if the text is empty. */
json_t *ls_report_text_or_null(const char *text);

/* Reads the first line of a file, without its newline. Returns false if the file is not readable. */
bool ls_report_read_line(const char *path, char *line, size_t capacity);

/*
 * Reads the text after `name` and colons or blanks in the first line that begins with `name`. Returns false if there is
 * no such line.
 */
bool ls_report_read_field(const char *path, const char *name, char *value, size_t capacity);

/* Appends a string to a list of strings, separated by `gap`, up to the capacity. */
void ls_report_append(char *list, size_t capacity, const char *gap, const char *text);

/*
 * Returns whether plug-in lockstep-NAME.so is broken: its file exists but cannot be used, and the cause is not a
 * missing library.
 */
bool ls_report_plugin_is_broken(const char *name);

/* Reports a broken plug-in: its entry (`value` as for ls_report_fact) and the problem. */
void ls_report_broken(ls_doctor_report *report, const char *key, json_t *value, const char *reason);

/* A row of a table of checks. */
typedef struct ls_doctor_check {
    const char *name;  /* the key of the check's first fact */
    const char *group; /* the section of the check's facts; rows of the same group are consecutive */
    void (*run)(ls_doctor_report *report, const struct ls_doctor_check *check);
    const void *data; /* for `run`; may be NULL */
} ls_doctor_check;

/* The tables of checks. Each ends with a row without a name. */
extern const ls_doctor_check ls_doctor_backends[];
extern const ls_doctor_check ls_doctor_devices[];
extern const ls_doctor_check ls_doctor_machine[]; /* cores, memory and limits */
extern const ls_doctor_check ls_doctor_network[];
extern const ls_doctor_check ls_doctor_software[]; /* libraries and environment */
extern const ls_doctor_check ls_doctor_hashes[];   /* only with --hashes, alone */

#endif
