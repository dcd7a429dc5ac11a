#include "base/module_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base.h>

#ifndef LS_LIBDIR
#define LS_LIBDIR "lib"
#endif

/* An address in the library or program that contains the core. */
static const char here;

/* Writes the path of the library or program that contains this code, or "" if the system does not report it. */
static void find_core(char core[PATH_MAX]) {
    Dl_info info;
    core[0] = '\0';
    if (dladdr((const void *)&here, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    /* The name of the program itself may be relative to a previous working directory, or found through PATH. */
    const bool library = strstr(info.dli_fname, ".so") != NULL;
    const ssize_t length = library ? 0 : readlink("/proc/self/exe", core, PATH_MAX - 1);
    if (length > 0) {
        core[length] = '\0';
    } else {
        snprintf(core, PATH_MAX, "%s", info.dli_fname);
    }
}

static void fail(ls_module_file *file, ls_module_file_state state, const char *format, ...) LS_PRINTF(3, 4);

static void fail(ls_module_file *file, ls_module_file_state state, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(file->reason, sizeof file->reason, format, arguments);
    va_end(arguments);
    file->state = state;
}

/* ---- which files are trusted ------------------------------------------------------------------------------------- */

static bool is_trusted_owner(uid_t owner, const char *core) {
    struct stat about;
    return owner == 0 || owner == geteuid() || (stat(core, &about) == 0 && owner == about.st_uid);
}

/* Returns whether only trusted users can have changed the file or folder. Otherwise, stores the reason. */
static bool is_trusted(const char *path, const char *core, ls_module_file *file) {
    struct stat about;
    if (stat(path, &about) != 0) {
        fail(file, LS_MODULE_BROKEN, "%.300s cannot be examined: %s", path, strerror(errno));
        return false;
    }
    const char *kind = S_ISDIR(about.st_mode) ? "folder" : "plug-in";
    if ((about.st_mode & S_IWOTH) != 0) {
        fail(file, LS_MODULE_BROKEN, "%s %.300s is refused, because all users may write to it: run chmod o-w on it",
             kind, path);
        return false;
    }
    if (!is_trusted_owner(about.st_uid, core)) {
        fail(file, LS_MODULE_BROKEN,
             "%s %.300s is refused, because its owner (user %u) is neither root, nor the user of this process, nor "
             "the owner of Lockstep's library: change the owner, or remove it",
             kind, path, (unsigned)about.st_uid);
        return false;
    }
    return true;
}

static bool file_and_folder_are_trusted(const char *path, const char *core, ls_module_file *file) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    return is_trusted(path, core, file) && is_trusted(folder[0] != '\0' ? folder : "/", core, file);
}

/* ---- opening one ------------------------------------------------------------------------------------------------- */

/* Reads the name of a missing library from the message of dlopen. Returns 0 if the message has a different meaning. */
static int name_of_missing_library(const char *message, const char *path) {
    const char *end = strstr(message, ": cannot open shared object file: No such file");
    return end == NULL || strncmp(message, path, strlen(path)) == 0 ? 0 : (int)(end - message);
}

static void fail_version(ls_module_file *file) {
    fail(file, LS_MODULE_BROKEN, "lockstep-%s.so belongs to a different version of Lockstep", file->name);
}

static void find_enter(void *handle, const char *function, ls_module_file *file) {
    file->state = LS_MODULE_OPEN;
    *(void **)&file->enter = dlsym(handle, function);
    if (file->enter == NULL) {
        fail_version(file);
    }
}

static void open_file(const char *path, const char *core, const char *function, ls_module_file *file) {
    char
        real[PATH_MAX]; /* with symbolic links resolved, so that the file that is examined is the file that is opened */
    if (realpath(path, real) == NULL) {
        fail(file, LS_MODULE_BROKEN, "%.300s cannot be opened: %s", path, strerror(errno));
        return;
    }
    if (!file_and_folder_are_trusted(real, core, file)) {
        return;
    }
    void *handle = dlopen(real, RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL) {
        find_enter(handle, function, file);
        return;
    }
    const char *message = dlerror();
    message = message != NULL ? message : "the system gives no reason";
    const int missing = name_of_missing_library(message, real);
    if (missing > 0) {
        fail(file, LS_MODULE_WITHOUT_LIBRARY, "lockstep-%s.so needs %.*s, which is not installed on this machine",
             file->name, missing, message);
    } else {
        fail(file, LS_MODULE_BROKEN, "lockstep-%s.so cannot be opened: %.500s", file->name, message);
    }
}

/* ---- search for plug-ins ----------------------------------------------------------------------------------------- */

/* Opens FOLDER/lockstep-NAME.so. Returns false if there is no such file. */
static bool open_in(const char *folder, int length, const char *core, const char *function, ls_module_file *file) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%.*s/lockstep-%s.so", length, folder, file->name) >= (int)sizeof path ||
        access(path, F_OK) != 0) {
        return false;
    }
    open_file(path, core, function, file);
    return true;
}

static bool open_on_path(const char *path, const char *core, const char *function, ls_module_file *file) {
    while (path != NULL && *path != '\0') {
        const int length = (int)strcspn(path, ":");
        if (length > 0 && open_in(path, length, core, function, file)) {
            return true;
        }
        path += length;
        path += *path == ':';
    }
    return false;
}

ls_module_file ls_module_file_open(const char *name, const char *function) {
    static const char *const places[] = {"", "/lockstep", "/../lib", "/../" LS_LIBDIR "/lockstep"};
    ls_module_file file = {.state = LS_MODULE_ABSENT, .name = name};
    char core[PATH_MAX];
    find_core(core);
    const char *slash = strrchr(core, '/');
    const int length = slash != NULL ? (int)(slash - core) : 1;
    const char *folder = slash != NULL ? core : ".";
    bool found = open_on_path(secure_getenv("LOCKSTEP_MODULE_PATH"), core, function, &file);
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !found; i++) {
        char place[PATH_MAX + 64];
        const int end = snprintf(place, sizeof place, "%.*s%s", length, folder, places[i]);
        found = open_in(place, end, core, function, &file);
    }
    if (!found) {
        fail(&file, LS_MODULE_ABSENT,
             "no lockstep-%s.so was found in LOCKSTEP_MODULE_PATH, %.*s and the folders next to it", name,
             length < 300 ? length : 300, folder);
    }
    return file;
}

const void *ls_module_file_check(ls_module_file *file, const void *table) {
    if (table == NULL && file->state == LS_MODULE_OPEN) {
        file->enter = NULL;
        fail_version(file);
    }
    return table;
}
