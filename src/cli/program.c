#include "cli/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/cli.h"

static bool is_file(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

/* Checks a path with a slash, which needs no search. */
static ls_status check_path(const char *path, int *exit_status) {
    struct stat about;
    if (stat(path, &about) != 0) {
        *exit_status = errno == EACCES ? LS_EXIT_CANNOT_EXECUTE : LS_EXIT_NOT_FOUND;
        return ls_fail(LS_ERR_IO, "lockstep run: cannot find the program '%s': %s", path, strerror(errno));
    }
    *exit_status = LS_EXIT_CANNOT_EXECUTE;
    if (S_ISDIR(about.st_mode)) {
        return ls_fail(LS_ERR_IO, "lockstep run: '%s' is a folder, not a program", path);
    }
    if (access(path, X_OK) != 0) {
        return ls_fail(LS_ERR_DENIED, "lockstep run: '%s' is not executable (%s); if it is a program, run chmod +x %s",
                       path, strerror(errno), path);
    }
    *exit_status = 0;
    return LS_OK;
}

static bool search(const char *name, char path[PATH_MAX], bool *forbidden) {
    const char *folders = getenv("PATH");
    folders = folders != NULL ? folders : "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        const size_t size = strcspn(folders, ":");
        const int length = snprintf(path, PATH_MAX, "%.*s%s%s", (int)size, folders, size > 0 ? "/" : "./", name);
        if (length < PATH_MAX && is_file(path)) {
            if (access(path, X_OK) == 0) {
                return true;
            }
            *forbidden = true;
        }
        if (folders[size] == '\0') {
            return false;
        }
        folders += size + 1;
    }
}

ls_status ls_program_find(const char *name, char path[PATH_MAX], int *exit_status) {
    if (name[0] == '\0' || strlen(name) >= PATH_MAX) {
        *exit_status = LS_EXIT_NOT_FOUND;
        return ls_fail(LS_ERR_IO, "lockstep run: the program's name is %s",
                       name[0] == '\0' ? "empty" : "longer than any path");
    }
    if (strchr(name, '/') != NULL) {
        memcpy(path, name, strlen(name) + 1);
        return check_path(path, exit_status);
    }
    bool forbidden = false;
    if (search(name, path, &forbidden)) {
        return LS_OK;
    }
    *exit_status = forbidden ? LS_EXIT_CANNOT_EXECUTE : LS_EXIT_NOT_FOUND;
    if (is_file(name)) {
        return ls_fail(LS_ERR_IO, "lockstep run: no program '%s' in PATH; for the file in this folder, write ./%s",
                       name, name);
    }
    return forbidden ? ls_fail(LS_ERR_DENIED, "lockstep run: the file '%s' in PATH is not executable", name)
                     : ls_fail(LS_ERR_IO, "lockstep run: there is no program '%s' in this folder or in PATH", name);
}

/* The link itself works even if the file was replaced. Its target works even under an emulator or valgrind. */
const char *ls_program_self(char path[PATH_MAX]) {
    static const char self[] = "/proc/self/exe";
    const ssize_t length = readlink(self, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    if (access(path, X_OK) != 0) {
        memcpy(path, self, sizeof self);
    }
    return path;
}
