#include "base/module_file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef LS_LIBDIR
#define LS_LIBDIR "lib"
#endif

/* A place in the library or program that holds the core. */
static const char here;

/* The folder of the library or program that this code is in; "." when the system does not say. */
static void own_folder(char folder[LS_MODULE_FOLDER]) {
    Dl_info info;
    char path[LS_MODULE_FOLDER] = "";
    snprintf(folder, LS_MODULE_FOLDER, ".");
    if (dladdr((const void *)&here, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    /* A program's own name may be relative to a folder it has left, or found by way of PATH. */
    const bool library = strstr(info.dli_fname, ".so") != NULL;
    const char *file = library || length <= 0 ? info.dli_fname : path;
    const char *slash = strrchr(file, '/');
    if (slash != NULL) {
        snprintf(folder, LS_MODULE_FOLDER, "%.*s", (int)(slash - file), file);
    }
}

/* Opens FOLDER/lockstep-NAME.so. NULL with `*there` false when there is none. */
static void *open_in(const char *folder, size_t length, const char *name, bool *there) {
    char path[LS_MODULE_FOLDER];
    if (snprintf(path, sizeof path, "%.*s/lockstep-%s.so", (int)length, folder, name) >= (int)sizeof path) {
        return NULL;
    }
    *there = access(path, F_OK) == 0;
    return *there ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_on_path(const char *path, const char *name, bool *there) {
    while (*path != '\0') {
        const size_t length = strcspn(path, ":");
        void *module = length == 0 ? NULL : open_in(path, length, name, there);
        if (module != NULL || *there) {
            return module;
        }
        path += length;
        path += *path == ':';
    }
    return NULL;
}

void *ls_module_file_open(const char *name, char folder[LS_MODULE_FOLDER], bool *there) {
    static const char *const places[] = {"", "/lockstep", "/../lib", "/../" LS_LIBDIR "/lockstep"};
    const char *path = getenv("LOCKSTEP_MODULE_PATH");
    own_folder(folder);
    *there = false;
    void *module = path == NULL ? NULL : open_on_path(path, name, there);
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !*there; i++) {
        char place[LS_MODULE_FOLDER + 64];
        const int length = snprintf(place, sizeof place, "%s%s", folder, places[i]);
        module = open_in(place, (size_t)length, name, there);
    }
    return module;
}
