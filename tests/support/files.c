#include "tests/support/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[32];

const char *test_path(const char *name) {
    enum { KEPT = 4 };
    static char paths[KEPT][320];
    static int next;
    if (folder[0] == '\0') {
        snprintf(folder, sizeof folder, "/tmp/lockstep-test-XXXXXX");
        if (mkdtemp(folder) == NULL) {
            perror("mkdtemp");
            abort();
        }
    }
    char *path = paths[next++ % KEPT];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *test_file(const char *name, const void *bytes, size_t size) {
    const char *path = test_path(name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        abort();
    }
    return path;
}

static int count_entries(const char *path, bool hidden) {
    int count = 0;
    DIR *list = opendir(path);
    for (struct dirent *item = list != NULL ? readdir(list) : NULL; item != NULL; item = readdir(list)) {
        count +=
            item->d_name[0] != '.' || (hidden && strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0);
    }
    if (list != NULL) {
        closedir(list);
    }
    return count;
}

int test_files_count(void) {
    return folder[0] != '\0' ? count_entries(folder, true) : 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

/* Removes subfolders, too, because a killed job leaves one. */
void test_files_remove(void) {
    if (folder[0] != '\0') {
        (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        folder[0] = '\0';
    }
}

int test_files_teardown(void **state) {
    (void)state;
    test_files_remove();
    return 0;
}

int test_folder_count(const char *path) {
    return count_entries(path, false);
}

int test_descriptors_count(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}
