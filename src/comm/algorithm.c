#include "comm/algorithm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static const char *const names[LS_ALGORITHM_COUNT] = {
    [LS_ALGORITHM_DEFAULT] = "default",
    [LS_ALGORITHM_RECURSIVE_DOUBLING] = "recursive_doubling",
    [LS_ALGORITHM_TREE] = "tree",
    [LS_ALGORITHM_RABENSEIFNER] = "rabenseifner",
    [LS_ALGORITHM_VAN_DE_GEIJN] = "van_de_geijn",
    [LS_ALGORITHM_BRUCK] = "bruck",
    [LS_ALGORITHM_HIERARCHICAL] = "hierarchical",
    [LS_ALGORITHM_DIRECT] = "direct",
    [LS_ALGORITHM_NATIVE] = "native",
    [LS_ALGORITHM_CELLS] = "cells",
    [LS_ALGORITHM_WHOLE] = "whole",
    [LS_ALGORITHM_CHUNKS] = "chunks",
    [LS_ALGORITHM_SLOTS] = "slots",
    [LS_ALGORITHM_READ] = "read",
};

_Static_assert(LS_ALGORITHM_COUNT <= 16, "the forced algorithm has four bits of a setting's number");

const char *ls_algorithm_name(ls_algorithm_id id) {
    return names[id];
}

bool ls_algorithm_is_number(uint32_t number) {
    return (number & 15) < LS_ALGORITHM_COUNT && number >> 4 >> LS_ALGORITHM_COUNT == 0;
}

const char *ls_algorithm_describe(uint32_t number, char *text, size_t capacity) {
    text[0] = '\0';
    size_t length = 0;
    if ((number & 15) != 0) {
        length = (size_t)snprintf(text, capacity, ", algorithm %s", names[number & 15]);
    }
    for (int id = 1; id < LS_ALGORITHM_COUNT && length < capacity; id++) {
        if ((number >> 4 & LS_ALGORITHM_BIT(id)) != 0) {
            length += (size_t)snprintf(text + length, capacity - length, ", not algorithm %s", names[id]);
        }
    }
    return text;
}

/* ---- the environment --------------------------------------------------------------------------------------------- */

bool ls_algorithm_next_item(const char **text, const char **item, size_t *length) {
    if (*text == NULL || **text == '\0') {
        return false;
    }
    *item = *text;
    *length = strcspn(*text, ",");
    *text += *length + ((*text)[*length] == ',');
    return true;
}

static bool equals(const char *name, const char *text, size_t length) {
    return strlen(name) == length && strncmp(name, text, length) == 0;
}

static bool begins(const char *prefix, const char *text, size_t length) {
    return strlen(prefix) <= length && strncmp(prefix, text, strlen(prefix)) == 0;
}

/* Writes the names of algorithms, separated by commas. */
static const char *list_names(uint32_t bits, char *text, size_t capacity) {
    size_t length = 0;
    text[0] = '\0';
    for (int id = 1; id < LS_ALGORITHM_COUNT && length < capacity; id++) {
        if ((bits & LS_ALGORITHM_BIT(id)) != 0) {
            length += (size_t)snprintf(text + length, capacity - length, "%s%s", length == 0 ? "" : ", ", names[id]);
        }
    }
    return text;
}

static ls_status fail_item(const char *item, size_t length, const char *why) {
    return ls_fail(LS_ERR_ARGUMENT,
                   LS_ALGORITHM_VARIABLE ": '%.*s': %s; write CALL:NAME or CALL:^NAME, such as allreduce:rabenseifner "
                                         "or all:^native",
                   (int)(length < 60 ? length : 60), item, why);
}

/* Forces or excludes an algorithm for one call. */
static void set(ls_algorithm_setting *setting, ls_algorithm_id id, bool excludes) {
    if (excludes) {
        setting->excluded |= LS_ALGORITHM_BIT(id);
    } else {
        setting->forced = id;
    }
}

static ls_algorithm_id find_name(const char *text, size_t length) {
    ls_algorithm_id id = LS_ALGORITHM_COUNT;
    while (--id > LS_ALGORITHM_DEFAULT && !equals(names[id], text, length)) {
    }
    return id;
}

/* Reads one item. */
static ls_status read_item(const ls_algorithm_list *list, const char *item, size_t length,
                           ls_algorithm_setting *settings) {
    const char *colon = memchr(item, ':', length);
    if (colon == NULL) {
        return fail_item(item, length, "it has no colon");
    }
    const size_t call_length = (size_t)(colon - item);
    const bool excludes = colon[1] == '^';
    const char *name = colon + 1 + excludes;
    const size_t name_length = length - (size_t)(name - item);
    const ls_algorithm_id id = find_name(name, name_length);
    const bool all = equals("all", item, call_length);
    bool has_call = all;
    bool done = excludes && (list->absent & LS_ALGORITHM_BIT(id)) != 0;
    uint32_t available = 0;
    for (int operation = 0; operation < LS_OP_COUNT; operation++) {
        if (all || equals(ls_operation_name((ls_operation)operation), item, call_length)) {
            has_call = has_call || list->calls[operation] != 0;
            available |= list->calls[operation];
            if (id != LS_ALGORITHM_DEFAULT && (list->calls[operation] & LS_ALGORITHM_BIT(id)) != 0) {
                set(&settings[operation], id, excludes);
                done = true;
            }
        }
    }
    if (!has_call) {
        return fail_item(item, length, "there is no such call with a choice of algorithms");
    }
    char choices[192];
    return done ? LS_OK
                : ls_fail(LS_ERR_ARGUMENT,
                          LS_ALGORITHM_VARIABLE ": backend %s has no algorithm '%.*s' for %.*s; available: %s",
                          list->backend, (int)(name_length < 40 ? name_length : 40), name,
                          (int)(call_length < 40 ? call_length : 40), item,
                          list_names(available, choices, sizeof choices));
}

static ls_status refuse_old_variables(void) {
    static const struct {
        const char *variable, *example;
    } old[] = {{"LOCKSTEP_SHM_ALGORITHM", "shm:whole=4K"},
               {"LOCKSTEP_MPI_COLLECTIVES", "all:native"},
               {"LOCKSTEP_GLOO_COLLECTIVES", "all:native"}};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        if (getenv(old[i].variable) != NULL) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "%s is no longer supported: unset it, and set " LS_ALGORITHM_VARIABLE ", for example %s",
                           old[i].variable, old[i].example);
        }
    }
    return LS_OK;
}

ls_status ls_algorithm_read(const ls_algorithm_list *list, ls_algorithm_setting settings[LS_OP_COUNT]) {
    const char *text = getenv(LS_ALGORITHM_VARIABLE);
    const char *item = NULL;
    size_t length = 0;
    LS_TRY(refuse_old_variables());
    while (ls_algorithm_next_item(&text, &item, &length)) {
        LS_TRY(begins("shm:", item, length) ? LS_OK : read_item(list, item, length, settings));
    }
    return LS_OK;
}
