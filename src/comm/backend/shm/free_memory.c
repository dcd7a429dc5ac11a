/*
 * How much memory can be reserved. The kernel itself would not reject a memfd reservation that is too large: it would
 * hand out pages until the OOM killer has to kill a process.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/backend/shm/shm.h"

#define UNLIMITED UINT64_MAX

/* Returns the number after `name` in a file of "name number" lines, or `missing` if the file has no such line. */
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

/* The names that a version of control groups (v1 or v2) uses. */
typedef struct hierarchy {
    const char *root;       /* where it is mounted */
    const char *controller; /* in /proc/self/cgroup */
    const char *limit;
    const char *used;
    const char *files; /* names in memory.stat, like the fields below */
    const char *shared;
} hierarchy;

static const hierarchy hierarchies[] = {
    {"/sys/fs/cgroup", "", "memory.max", "memory.current", "file ", "shmem "},
    {"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ",
     "total_shmem "},
};

/* Returns how many more bytes a control group allows. Its page cache counts as free, because it can be dropped,
 * except for shared memory. */
static uint64_t group_room(const hierarchy *kind, const char *folder) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, kind->limit);
    const uint64_t most = line_value(path, "", UNLIMITED);
    if (most == UNLIMITED) {
        return UNLIMITED;
    }
    snprintf(path, sizeof path, "%s/%s", folder, kind->used);
    uint64_t used = line_value(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    const uint64_t files = line_value(path, kind->files, 0);
    const uint64_t shared = line_value(path, kind->shared, 0);
    used -= files > shared && files - shared < used ? files - shared : 0;
    return used < most ? most - used : 0;
}

/* Returns true if a line "5:cpu,memory:/path" of /proc/self/cgroup belongs to this hierarchy, and sets `*path` to
 * its last part. */
static bool is_about(const hierarchy *kind, char *line, const char **path) {
    char *controllers = strchr(line, ':');
    char *end = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (end == NULL) {
        return false;
    }
    *end = '\0';
    *path = end + 1;
    return kind->controller[0] == '\0' ? controllers[1] == '\0' : strstr(controllers, kind->controller) != NULL;
}

/* Returns the smallest remaining memory among this process's control group and its ancestors. */
static uint64_t groups_room(const hierarchy *kind) {
    char folder[512];
    char line[400];
    const size_t root = strlen(kind->root);
    FILE *file = fopen("/proc/self/cgroup", "re");
    snprintf(folder, sizeof folder, "%s/", kind->root);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *path = NULL;
        line[strcspn(line, "\n")] = '\0';
        if (is_about(kind, line, &path)) {
            snprintf(folder + root, sizeof folder - root, "%s", path);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    uint64_t least = UNLIMITED;
    for (;;) {
        const uint64_t room = group_room(kind, folder);
        least = room < least ? room : least;
        char *last = strrchr(folder, '/');
        if (last < folder + root) {
            return least;
        }
        *last = '\0';
    }
}

ls_status ls_shm_check_memory(const char *call, size_t bytes) {
    const uint64_t machine = line_value("/proc/meminfo", "MemAvailable:", UNLIMITED / 1024) * 1024;
    const uint64_t first = groups_room(&hierarchies[0]);
    const uint64_t second = groups_room(&hierarchies[1]);
    const uint64_t groups = first < second ? first : second;
    if (bytes > machine) {
        return ls_fail(LS_ERR_MEMORY,
                       "%s: %zu bytes of shared memory are needed, but this machine has only %" PRIu64 " left", call,
                       bytes, machine);
    }
    if (bytes > groups) {
        return ls_fail(LS_ERR_MEMORY,
                       "%s: %zu bytes of shared memory are needed, but this control group has only %" PRIu64 " left",
                       call, bytes, groups);
    }
    return LS_OK;
}
