#include "cli/gpus.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * Counts the files nvidia0, nvidia1, ... In a container, or if a batch system separates GPUs, CUDA finds only the GPUs
 * whose files can be opened. CUDA numbers these GPUs from 0, regardless of the names of the files.
 */
static int count_files(const char *path) {
    static const char beginning[] = "nvidia";
    int count = 0;
    DIR *folder = opendir(path);
    for (const struct dirent *file = NULL; folder != NULL && (file = readdir(folder)) != NULL;) {
        const char *number = file->d_name + strlen(beginning);
        if (strncmp(file->d_name, beginning, strlen(beginning)) == 0 && *number != '\0' &&
            number[strspn(number, "0123456789")] == '\0' &&
            faccessat(dirfd(folder), file->d_name, R_OK | W_OK, AT_EACCESS) == 0) {
            count++;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count;
}

/* Counts the entries as CUDA does: the first invalid entry, such as -1, ends the list. */
static int count_entries(const char *list) {
    int count = 0;
    for (list += strspn(list, " "); isalnum((unsigned char)*list) && strcmp(list, "NoDevFiles") != 0; count++) {
        list += strcspn(list, ",");
        list += *list == ',';
        list += strspn(list, " ");
    }
    return count;
}

void ls_gpus_find(ls_gpus *gpus, const char *visible, const char *folder) {
    *gpus = (ls_gpus){.visible = visible, .count = visible != NULL ? count_entries(visible) : count_files(folder)};
}

bool ls_gpus_of_rank(const ls_gpus *gpus, int local_rank, int ranks, char text[LS_GPU_TEXT]) {
    if (ranks < 2 || gpus->count < 2) {
        return false;
    }
    const int number = local_rank % gpus->count;
    if (gpus->visible == NULL) {
        return snprintf(text, LS_GPU_TEXT, "%d", number) < LS_GPU_TEXT;
    }
    const char *entry = gpus->visible;
    for (int i = 0; i < number; i++) {
        entry += strcspn(entry, ",") + 1;
    }
    entry += strspn(entry, " ");
    return snprintf(text, LS_GPU_TEXT, "%.*s", (int)strcspn(entry, ", "), entry) < LS_GPU_TEXT;
}
