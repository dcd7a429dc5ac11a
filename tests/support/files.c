#include "tests/support/files.h"

#include <dirent.h>
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

/* Calls `visit` with each file of the folder. */
static int each_file(void (*visit)(const char *path)) {
    DIR *directory = folder[0] != '\0' ? opendir(folder) : NULL;
    int count = 0;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            count++;
            if (visit != NULL) {
                visit(test_path(entry->d_name));
            }
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

int test_files_count(void) {
    return each_file(NULL);
}

static void remove_file(const char *path) {
    (void)unlink(path);
}

void test_files_remove(void) {
    (void)each_file(remove_file);
    if (folder[0] != '\0') {
        (void)rmdir(folder);
        folder[0] = '\0';
    }
}

int test_files_teardown(void **state) {
    (void)state;
    test_files_remove();
    return 0;
}

int test_folder_count(const char *path) {
    int count = 0;
    DIR *list = opendir(path);
    for (struct dirent *item = list != NULL ? readdir(list) : NULL; item != NULL; item = readdir(list)) {
        count += item->d_name[0] != '.';
    }
    if (list != NULL) {
        closedir(list);
    }
    return count;
}
