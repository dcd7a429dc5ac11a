/*
 * How much memory there is to reserve. The kernel itself would not refuse a reservation of a memfd that is too large:
 * it would hand out pages until it has to kill somebody.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/backend/shm/shm.h"

#define UNLIMITED UINT64_MAX

/* The number after `name` in a file of such lines; `missing` when there is none. */
static uint64_t line_value(const char *path, const char *name, uint64_t missing) {
    FILE *file = fopen(path, "re");
    char line[256];
    uint64_t value = missing;
    const size_t length = strlen(name);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%" SCNu64, &value) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return value;
}

/* Bytes that one control group still allows. What it holds of files can be dropped, but for shared memory. */
static uint64_t group_room(const char *folder) {
    char path[600];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    const uint64_t most = line_value(path, "", UNLIMITED);
    if (most == UNLIMITED) {
        return UNLIMITED;
    }
    snprintf(path, sizeof path, "%s/memory.current", folder);
    uint64_t used = line_value(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    const uint64_t files = line_value(path, "file ", 0);
    const uint64_t shared = line_value(path, "shmem ", 0);
    used -= files > shared && files - shared < used ? files - shared : 0;
    return used < most ? most - used : 0;
}

/* The least room of this process's control group (version 2) and those around it. */
static uint64_t groups_room(void) {
    char folder[512] = "/sys/fs/cgroup";
    const size_t root = strlen(folder);
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[400];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(folder + root, sizeof folder - root, "%s", line + 3);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    uint64_t least = UNLIMITED;
    for (;;) {
        const uint64_t room = group_room(folder);
        least = room < least ? room : least;
        char *last = strrchr(folder, '/');
        if (last < folder + root) {
            return least;
        }
        *last = '\0';
    }
}

ls_status ls_shm_room(const char *call, size_t bytes) {
    const uint64_t machine = line_value("/proc/meminfo", "MemAvailable:", UNLIMITED / 1024) * 1024;
    const uint64_t groups = groups_room();
    if (bytes > machine) {
        return ls_fail(LS_ERR_MEMORY,
                       "%s: %zu bytes of shared memory are wanted, but this machine has only %" PRIu64 " left", call,
                       bytes, machine);
    }
    if (bytes > groups) {
        return ls_fail(LS_ERR_MEMORY,
                       "%s: %zu bytes of shared memory are wanted, but this control group has only %" PRIu64 " left",
                       call, bytes, groups);
    }
    return LS_OK;
}
