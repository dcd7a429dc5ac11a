#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/module_file.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/doctor.h"

enum { LINE_CAPACITY = 2048 };

json_t *ls_report_text(const char *text) {
    char copy[LINE_CAPACITY];
    snprintf(copy, sizeof copy, "%s", text);
    ls_text_make_printable(copy);
    return json_string(copy);
}

json_t *ls_report_text_or_null(const char *text) {
    return text[0] != '\0' ? ls_report_text(text) : json_null();
}

bool ls_report_read_line(const char *path, char *line, size_t capacity) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    const bool found = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    if (found) {
        line[strcspn(line, "\n")] = '\0';
    }
    return found;
}

bool ls_report_read_field(const char *path, const char *name, char *value, size_t capacity) {
    char line[8192];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        const size_t length = strlen(name);
        const char *after = line + length;
        found = strncmp(line, name, length) == 0 && strchr(" \t:", *after) != NULL;
        if (found) {
            after += strspn(after, " \t:");
            snprintf(value, capacity, "%.*s", (int)strcspn(after, "\n"), after);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

void ls_report_append(char *list, size_t capacity, const char *gap, const char *text) {
    const size_t length = strlen(list);
    snprintf(list + length, capacity - length, "%s%s", length > 0 ? gap : "", text);
}

/* Adds a value, of which it takes ownership. */
static void add(ls_doctor_report *report, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) {
        report->out_of_memory = true;
    }
}

ls_status ls_report_begin(ls_doctor_report *report, bool as_json) {
    *report =
        (ls_doctor_report){.as_json = as_json, .root = json_object(), .problems = json_array(), .notes = json_array()};
    add(report, report->root, "version", json_string(ls_version()));
    add(report, report->root, "notes", report->notes);
    add(report, report->root, "problems", report->problems);
    if (report->out_of_memory) {
        json_decref(report->root);
        return ls_fail(LS_ERR_MEMORY, "lockstep doctor: out of memory");
    }
    if (!as_json) {
        printf("lockstep %s\n", ls_version());
    }
    return LS_OK;
}

void ls_report_section(ls_doctor_report *report, const char *group) {
    report->section = json_object();
    add(report, report->root, group, report->section);
    if (!report->as_json) {
        printf("\n%s\n", group);
        fflush(stdout);
    }
}

/* Formats a key for humans: "shm_free_bytes" becomes "shm free". Names of variables are unchanged. */
static void make_label(const char *key, char *label, size_t capacity) {
    static const char unit[] = "_bytes";
    snprintf(label, capacity, "%s", key);
    if (label[0] < 'a' || label[0] > 'z') {
        return;
    }
    const size_t length = strlen(label);
    if (length > sizeof unit - 1 && strcmp(label + length - (sizeof unit - 1), unit) == 0) {
        label[length - (sizeof unit - 1)] = '\0';
    }
    for (char *at = label; *at != '\0'; at++) {
        *at = *at == '_' ? ' ' : *at;
    }
}

void ls_report_fact(ls_doctor_report *report, const char *key, json_t *value, const char *format, ...) {
    add(report, report->section, key, value);
    if (report->as_json) {
        return;
    }
    char label[128];
    char line[LINE_CAPACITY];
    make_label(key, label, sizeof label);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ls_text_make_printable(line);
    printf("  %-22s %s\n", label, line);
    fflush(stdout);
}

static void add_sentence(ls_doctor_report *report, json_t *list, const char *kind, const char *format,
                         va_list arguments) {
    char line[LINE_CAPACITY];
    vsnprintf(line, sizeof line, format, arguments);
    ls_text_make_printable(line);
    report->out_of_memory = json_array_append_new(list, ls_report_text(line)) != 0 || report->out_of_memory;
    if (!report->as_json) {
        printf("  %-22s %s\n", kind, line);
    }
}

void ls_report_note(ls_doctor_report *report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_sentence(report, report->notes, "note:", format, arguments);
    va_end(arguments);
}

void ls_report_problem(ls_doctor_report *report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_sentence(report, report->problems, "PROBLEM:", format, arguments);
    va_end(arguments);
}

bool ls_report_plugin_is_broken(const char *name) {
    const ls_module_file_state state = ls_module_file_open(name, "ls_backend_module").state;
    return state == LS_MODULE_BROKEN || state == LS_MODULE_OPEN; /* open, but from a different version of Lockstep */
}

void ls_report_broken(ls_doctor_report *report, const char *key, json_t *value, const char *reason) {
    ls_report_fact(report, key, value, "broken: %s", reason);
    ls_report_problem(report, "the plug-in for %s is broken: %s", key, reason);
}

/* Problems are printed where they were found, and again at the end, where they are hard to overlook. */
static void print_end(const ls_doctor_report *report) {
    const size_t count = json_array_size(report->problems);
    if (count == 0) {
        printf("\neverything required works\n");
        return;
    }
    printf("\n%zu problem%s:\n", count, count == 1 ? "" : "s");
    for (size_t i = 0; i < count; i++) {
        printf("  %s\n", json_string_value(json_array_get(report->problems, i)));
    }
}

ls_status ls_report_end(ls_doctor_report *report, bool *problems) {
    *problems = json_array_size(report->problems) > 0;
    add(report, report->root, "ok", json_boolean(!*problems));
    bool printed = true;
    if (report->as_json && !report->out_of_memory) {
        printed = json_dumpf(report->root, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF;
    } else if (!report->as_json) {
        print_end(report);
    }
    json_decref(report->root);
    printed = fflush(stdout) == 0 && printed;
    if (report->out_of_memory) {
        return ls_fail(LS_ERR_MEMORY, "lockstep doctor: out of memory");
    }
    return printed ? LS_OK : ls_fail(LS_ERR_IO, "lockstep doctor: cannot write to standard output");
}
