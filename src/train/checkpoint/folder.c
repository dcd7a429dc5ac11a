/* Checkpoint folders: names, syncing, replacing, removing. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/wait.h"
#include "formats/file.h"
#include "train/checkpoint/checkpoint.h"

static ls_status fail_io(const char *what, const char *path) {
    return ls_fail(LS_ERR_IO, "checkpoint: cannot %s %s: %s", what, path, strerror(errno));
}

ls_status ls_path_join(char path[PATH_MAX], const char *folder, const char *name) {
    if (folder[0] == '\0') { /* with an empty folder, the path would begin at the root of the file system */
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: the folder of %.50s has no name", name);
    }
    const int length = snprintf(path, PATH_MAX, "%s%s%s", folder, *name != '\0' ? "/" : "", name);
    return length < PATH_MAX ? LS_OK
                             : ls_fail(LS_ERR_ARGUMENT, "checkpoint: the path %.100s.../%.50s is longer than %d bytes",
                                       folder, name, PATH_MAX - 1);
}

ls_status ls_folder_sync(const char *path) {
    return ls_sync_folder(path) ? LS_OK : fail_io("sync the folder", path);
}

#define SPARE_SUFFIX ".old" /* suffix of the temporary name of a checkpoint that is being replaced */

/*
 * Swaps two folders. If the file system cannot swap them atomically, `to` is briefly missing; if the program is killed
 * at that moment, it resumes from an older checkpoint.
 */
static ls_status swap(const char *from, const char *to) {
    char spare[PATH_MAX];
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        return LS_OK;
    }
    if (errno != EINVAL && errno != ENOSYS) {
        return fail_io("replace", to);
    }
    if (snprintf(spare, sizeof spare, "%s%s", from, SPARE_SUFFIX) >= PATH_MAX || rename(to, spare) != 0 ||
        rename(from, to) != 0 || rename(spare, from) != 0) {
        return fail_io("replace", to);
    }
    return LS_OK;
}

ls_status ls_folder_replace(const char *parent, const char *from, const char *to) {
    struct stat about;
    if (lstat(to, &about) == 0) {
        LS_TRY(swap(from, to));
    } else if (rename(from, to) != 0) {
        return fail_io("make", to);
    }
    return ls_folder_sync(parent);
}

ls_status ls_folder_delete(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return errno == ENOENT ? LS_OK : fail_io("remove", path);
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    closedir(folder);
    return rmdir(path) == 0 || errno == ENOENT ? LS_OK : fail_io("remove", path);
}

ls_status ls_checkpoint_remove(const char *folder, const char *name) {
    char path[PATH_MAX], renamed[PATH_MAX], old[NAME_MAX + 1];
    snprintf(old, sizeof old, ".old-%s", name);
    LS_TRY(ls_path_join(path, folder, name));
    LS_TRY(ls_path_join(renamed, folder, old));
    if (rename(path, renamed) != 0) {
        return fail_io("remove", path);
    }
    return ls_folder_delete(renamed);
}

ls_status ls_folder_link(const char *folder, const char *name, char led[NAME_MAX + 1]) {
    char link[PATH_MAX];
    LS_TRY(ls_path_join(link, folder, name));
    const ssize_t length = readlink(link, led, NAME_MAX);
    led[length > 0 ? length : 0] = '\0';
    return LS_OK;
}

bool ls_checkpoint_is_one(const char *folder) {
    char path[PATH_MAX];
    return ls_path_join(path, folder, LS_MANIFEST_NAME) == LS_OK && access(path, F_OK) == 0;
}

ls_status ls_folder_await(const char *entry, const char *folder) {
    struct stat about;
    ls_wait wait = {.limit_ns = LS_FOLDER_WAIT_NS};
    while (lstat(entry, &about) != 0) {
        if (!ls_wait_pause(&wait)) {
            char machine[HOST_NAME_MAX + 1] = "";
            (void)gethostname(machine, sizeof machine - 1);
            return ls_fail(LS_ERR_IO,
                           "checkpoint: the folder %s on %s is not the folder that rank 0 uses: all ranks need "
                           "the same folder, on a file system that their machines share",
                           folder, machine);
        }
    }
    return LS_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

void ls_checkpoint_name(char name[LS_CHECKPOINT_NAME_LIMIT], int64_t epochs_run, int64_t step) {
    snprintf(name, LS_CHECKPOINT_NAME_LIMIT, "epoch-%06" PRId64 "-step-%010" PRId64, epochs_run, step);
}

bool ls_is_checkpoint_name(const char *text) {
    int64_t epochs_run, step;
    char name[LS_CHECKPOINT_NAME_LIMIT];
    if (sscanf(text, "epoch-%" SCNd64 "-step-%" SCNd64, &epochs_run, &step) != 2) {
        return false;
    }
    ls_checkpoint_name(name, epochs_run, step);
    return strcmp(name, text) == 0;
}

static bool is_name_with(const char *text, const char *suffix) {
    char name[LS_CHECKPOINT_NAME_LIMIT];
    const size_t length = strlen(text), end = strlen(suffix);
    if (length < end || length - end >= sizeof name || strcmp(text + length - end, suffix) != 0) {
        return false;
    }
    snprintf(name, sizeof name, "%.*s", (int)(length - end), text);
    return ls_is_checkpoint_name(name);
}

ls_leftover ls_checkpoint_leftover(const char *name) {
    enum { PREFIX = 5, NONCE = 16 };
    if (strncmp(name, ".old-", PREFIX) == 0) {
        return is_name_with(name + PREFIX, "") ? LS_LEFTOVER_FOLDER : LS_LEFTOVER_NONE;
    }
    if (strncmp(name, ".new-", PREFIX) != 0 || strspn(name + PREFIX, "0123456789abcdef") != NONCE ||
        name[PREFIX + NONCE] != '-') {
        return LS_LEFTOVER_NONE;
    }
    const char *rest = name + PREFIX + NONCE + 1;
    if (is_name_with(rest, LS_LINK_SUFFIX)) {
        return LS_LEFTOVER_LINK;
    }
    return is_name_with(rest, "") || is_name_with(rest, SPARE_SUFFIX) ? LS_LEFTOVER_FOLDER : LS_LEFTOVER_NONE;
}

void ls_folder_names_free(ls_folder_names *names) {
    for (int i = 0; i < names->count; i++) {
        ls_free(names->items[i]);
    }
    ls_free(names->items);
    *names = (ls_folder_names){0};
}

static ls_status add_name(ls_folder_names *names, const char *name) {
    char **items = ls_grow(names->items, (size_t)names->count, sizeof *items);
    names->items = items != NULL ? items : names->items;
    char *copy = items != NULL ? ls_duplicate_string(name) : NULL;
    if (copy == NULL) {
        return ls_fail_memory("checkpoint", strlen(name) + 1);
    }
    names->items[names->count++] = copy;
    return LS_OK;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool is_wanted(const char *name, const char *prefix) {
    return ls_is_checkpoint_name(name) || (prefix != NULL && strncmp(name, prefix, strlen(prefix)) == 0);
}

ls_status ls_folder_list(const char *folder, const char *prefix, ls_folder_names *names) {
    *names = (ls_folder_names){0};
    DIR *opened = opendir(folder);
    if (opened == NULL) {
        return errno == ENOENT ? LS_OK : fail_io("read the folder", folder);
    }
    ls_status status = LS_OK;
    for (const struct dirent *entry = readdir(opened); status == LS_OK && entry != NULL; entry = readdir(opened)) {
        status = is_wanted(entry->d_name, prefix) ? add_name(names, entry->d_name) : LS_OK;
    }
    closedir(opened);
    if (status != LS_OK) {
        ls_folder_names_free(names);
    } else if (names->count > 0) {
        qsort(names->items, (size_t)names->count, sizeof *names->items, compare_names);
    }
    return status;
}
