#include "formats/csv_classes.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"

enum { MOST_CLASSES = 10000 }; /* more are identifiers or prose */

struct ls_csv_classes {
    char **names; /* sorted */
    int count;
};

ls_csv_classes *ls_csv_classes_new(void) {
    ls_csv_classes *classes = ls_allocate_zeroed(1, sizeof *classes);
    if (classes == NULL) {
        (void)ls_fail_memory("ls_csv_classes_read", sizeof *classes);
    }
    return classes;
}

/* The index of the first name that is not before the text. */
static int search(const ls_csv_classes *classes, const char *text) {
    int low = 0, high = classes->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (strcmp(classes->names[middle], text) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

ls_status ls_csv_classes_add(ls_csv_classes *classes, const char *text) {
    const int at = search(classes, text);
    if (at < classes->count && strcmp(classes->names[at], text) == 0) {
        return LS_OK;
    }
    if (classes->count == MOST_CLASSES) {
        return LS_ERR_FORMAT;
    }
    char **names = ls_grow(classes->names, (size_t)classes->count, sizeof *names);
    classes->names = names != NULL ? names : classes->names;
    char *copy = names != NULL ? ls_duplicate_string(text) : NULL;
    if (copy == NULL) {
        return ls_fail_memory("ls_csv_classes_read", strlen(text) + 1);
    }
    memmove(names + at + 1, names + at, (size_t)(classes->count - at) * sizeof *names);
    names[at] = copy;
    classes->count++;
    return LS_OK;
}

int ls_csv_classes_count(const ls_csv_classes *classes) {
    return classes != NULL ? classes->count : 0;
}

const char *ls_csv_classes_name(const ls_csv_classes *classes, int64_t number) {
    return number >= 0 && number < ls_csv_classes_count(classes) ? classes->names[number] : NULL;
}

int ls_csv_classes_find(const ls_csv_classes *classes, const char *name) {
    if (classes == NULL || name == NULL) {
        return -1;
    }
    const int at = search(classes, name);
    return at < classes->count && strcmp(classes->names[at], name) == 0 ? at : -1;
}

void ls_csv_classes_free(ls_csv_classes *classes) {
    if (classes == NULL) {
        return;
    }
    for (int i = 0; i < classes->count; i++) {
        ls_free(classes->names[i]);
    }
    ls_free(classes->names);
    ls_free(classes);
}
