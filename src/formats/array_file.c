#include "formats/array_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/module_file.h"
#include "formats/file.h"

/* ---- plug-ins ---------------------------------------------------------------------------------------------------- */

typedef struct library {
    const char *plugin, *title;
    const ls_array_format *format;
    ls_module_file file;
} library;

/* Every call into the plug-ins needs this lock. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static pthread_once_t plugins_once[LS_ARRAY_LIBRARIES] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
static library libraries[LS_ARRAY_LIBRARIES] = {{.plugin = "hdf5", .title = "HDF5"},
                                                {.plugin = "netcdf", .title = "NetCDF"}};

static void lock_plugins(void) {
    (void)pthread_mutex_lock(&one_at_a_time);
}

static void unlock_plugins(void) {
    (void)pthread_mutex_unlock(&one_at_a_time);
}

/* A fork waits until no thread is in a plug-in. In the child, the lock is free, and the plug-ins are in a consistent
 * state. */
static void watch_forks(void) {
    (void)pthread_atfork(lock_plugins, unlock_plugins, unlock_plugins); /* fails only if out of memory */
}

static void open_plugin(library *own) {
    own->file = ls_module_file_open(own->plugin, "ls_array_format_module");
    ls_array_format_module_function *enter = (ls_array_format_module_function *)own->file.enter;
    own->format = ls_module_file_check(&own->file, enter != NULL ? enter(LS_ARRAY_FORMAT_ABI) : NULL);
}

static void open_hdf5(void) {
    open_plugin(&libraries[LS_ARRAY_HDF5]);
}

static void open_netcdf(void) {
    open_plugin(&libraries[LS_ARRAY_NETCDF]);
}

const ls_array_format *ls_array_format_open(ls_array_library which, const char **reason) {
    (void)pthread_once(&forks_once, watch_forks);
    (void)pthread_once(&plugins_once[which], which == LS_ARRAY_HDF5 ? open_hdf5 : open_netcdf);
    *reason = libraries[which].file.reason;
    return libraries[which].format;
}

ls_status ls_array_file_need(const char *call, ls_array_library which) {
    const char *reason = NULL;
    const library *own = &libraries[which];
    if (ls_array_format_open(which, &reason) != NULL) {
        return LS_OK;
    }
    return own->file.state == LS_MODULE_ABSENT
               ? ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: %s; install the package lockstep-%s, or run `scripts/install-deps --hdf5` and build "
                         "Lockstep again",
                         call, reason, own->plugin)
               : ls_fail(LS_ERR_UNSUPPORTED, "%s: %s", call, reason);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Returns the first part of the advice for a file that the library cannot open. */
static const char *advice_for(const ls_array_file *file) {
    char magic[3] = "";
    const int fd = file->library == LS_ARRAY_HDF5 ? open(file->path, O_RDONLY | O_CLOEXEC) : -1;
    const bool classic =
        fd >= 0 && read(fd, magic, sizeof magic) == (ssize_t)sizeof magic && memcmp(magic, "CDF", sizeof magic) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return classic ? "it is a classic NetCDF file: use ls_netcdf_dataset"
                   : "it is damaged, incomplete or in a different format";
}

static ls_status check_path(const char *call, const char *path) {
    struct stat about;
    if (path == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path is NULL", call);
    }
    if (stat(path, &about) != 0 || access(path, R_OK) != 0) {
        return ls_fail_open(call, path);
    }
    return S_ISREG(about.st_mode) ? LS_OK : ls_fail(LS_ERR_IO, "%s: %s is not a regular file", call, path);
}

static ls_status note_size(ls_array_file *file) {
    struct stat about;
    file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->descriptor < 0 || fstat(file->descriptor, &about) != 0) {
        return ls_fail_open(file->call, file->path);
    }
    file->bytes = (int64_t)about.st_size;
    return LS_OK;
}

/* HDF5 and NetCDF read zeros after the end of a truncated file, without an error. */
static bool was_truncated(const ls_array_file *file) {
    struct stat about;
    return fstat(file->descriptor, &about) == 0 && (int64_t)about.st_size < file->bytes;
}

ls_status ls_array_file_open(const char *call, ls_array_library which, const char *path, ls_array_file *file) {
    char reason[LS_ARRAY_REASON] = "";
    *file = (ls_array_file){.call = call, .library = which, .process = getpid()};
    LS_TRY(check_path(call, path));
    LS_TRY(ls_array_file_need(call, which));
    file->path = ls_duplicate_string(path);
    if (file->path == NULL) {
        return ls_fail_memory(call, strlen(path) + 1);
    }
    lock_plugins();
    file->open = libraries[which].format->open(path, &file->id, reason);
    unlock_plugins();
    return file->open ? note_size(file)
                      : ls_fail(LS_ERR_FORMAT, "%s: %s cannot be read as %s (%s): %s", call, path,
                                libraries[which].title, reason, advice_for(file));
}

void ls_array_file_close(ls_array_file *file) {
    if (file->open) {
        lock_plugins();
        libraries[file->library].format->close(file->id);
        unlock_plugins();
        if (file->descriptor >= 0) {
            (void)close(file->descriptor);
        }
    }
    ls_free(file->path);
    file->path = NULL;
    file->open = false;
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* The names of a file's variables, as many as fit, then ", ..." if some do not fit. */
typedef struct name_list {
    char text[512];
    size_t length;
} name_list;

static bool add_name(void *user, const char *group, const char *name) {
    static const char rest[] = ", ...";
    name_list *list = user;
    const size_t left = sizeof list->text - list->length;
    const char *separator = list->length > 0 ? ", " : "";
    char *end = list->text + list->length;
    const int length = snprintf(end, left, "%s%s%s%s", separator, group, group[0] != '\0' ? "/" : "", name);
    const bool fits = length >= 0 && (size_t)length + sizeof rest <= left;
    if (fits) {
        list->length += (size_t)length;
    } else {
        (void)snprintf(end, left, "%s", list->length > 0 ? rest : rest + 2);
    }
    return fits;
}

static ls_status fail_absent(const ls_array_file *file, const char *name) {
    name_list list = {.text = "none"};
    lock_plugins();
    libraries[file->library].format->list(file->id, add_name, &list);
    unlock_plugins();
    return ls_fail(LS_ERR_ARGUMENT, "%s: no variable \"%s\" in %s; available: %s", file->call, name, file->path,
                   list.text);
}

/* Describes a variable and reads its attributes. The caller holds the lock. */
static ls_array_found find(const ls_array_file *file, const char *name, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const ls_array_format *format = libraries[file->library].format;
    const ls_array_found found = format->find(file->id, name, array, reason);
    if (found != LS_ARRAY_FOUND || ls_array_read_attributes(format, array, reason)) {
        return found;
    }
    format->release(array);
    return LS_ARRAY_REFUSED;
}

ls_status ls_array_file_find(const ls_array_file *file, const char *name, ls_array *array) {
    char reason[LS_ARRAY_REASON] = "";
    *array = (ls_array){.scale = 1};
    lock_plugins();
    const ls_array_found found = find(file, name, array, reason);
    unlock_plugins();
    if (found == LS_ARRAY_REFUSED) {
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: variable \"%s\" of %s cannot be used: %s", file->call, name, file->path,
                       reason);
    }
    return found == LS_ARRAY_FOUND ? LS_OK : fail_absent(file, name);
}

void ls_array_file_release(const ls_array_file *file, const ls_array *array) {
    lock_plugins();
    libraries[file->library].format->release(array);
    unlock_plugins();
}

bool ls_array_file_is_inherited(const ls_array_file *file) {
    return file->process != getpid();
}

ls_status ls_array_file_read(const ls_array_file *file, const char *name, const ls_array *array, const int64_t *start,
                             const int64_t *count, ls_dtype dtype, void *to) {
    char reason[LS_ARRAY_REASON] = "";
    lock_plugins();
    const bool good = libraries[file->library].format->read(array, start, count, dtype, to, reason);
    unlock_plugins();
    if (good && was_truncated(file)) {
        return ls_fail(LS_ERR_IO, "ls_loader_next: %s was truncated while it was being read", file->path);
    }
    return good ? LS_OK
                : ls_fail(LS_ERR_IO,
                          "ls_loader_next: cannot read variable \"%s\" of %s (%s): the file is damaged or "
                          "has changed",
                          name, file->path, reason);
}

ls_status ls_array_file_write(const char *call, const char *temporary, const char *path, const ls_array_data *arrays,
                              int count) {
    char reason[LS_ARRAY_REASON] = "";
    int refused = -1;
    lock_plugins();
    const bool good = libraries[LS_ARRAY_HDF5].format->write(temporary, arrays, count, &refused, reason);
    unlock_plugins();
    if (!good && refused >= 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: HDF5 cannot add tensor \"%s\" to %s (%s): choose another name", call,
                       arrays[refused].name, path, reason);
    }
    return good ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot write %s (%s): is the disk full?", call, path, reason);
}
