#include "comm/user_key.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/log.h"
#include "comm/store_folder.h"

enum { KEY_SIZE = LS_KEY_TEXT_SIZE - 1 };

static const char key_file[] = "key";

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool is_key(const char *text) {
    return strspn(text, "0123456789abcdef") == KEY_SIZE && text[KEY_SIZE] == '\0';
}

/* Reads the key from its file. Fails with LS_ERR_STATE if the file does not exist yet. */
static ls_status read_key(int folder, ls_key *key) {
    struct stat about;
    char text[LS_KEY_TEXT_SIZE] = "";
    int file;
    LS_TRY(ls_folder_open_file(folder, key_file, &file));
    const bool private = fstat(file, &about) == 0 && (about.st_mode & (S_IRWXG | S_IRWXO)) == 0;
    const bool whole = read(file, text, KEY_SIZE) == KEY_SIZE && is_key(text);
    close(file);
    if (!private || !whole) {
        return ls_fail(LS_ERR_FORMAT, "the file %s there %s", key_file, private ? "contains no key" : "is not private");
    }
    memcpy(key->bytes, text, KEY_SIZE);
    key->size = KEY_SIZE;
    sodium_memzero(text, sizeof text);
    return LS_OK;
}

/* Writes a new key to a temporary file, and then links the file under its final name unless another process was
 * first. */
static ls_status make_key(int folder) {
    char text[LS_KEY_TEXT_SIZE], random[LS_KEY_TEXT_SIZE], temporary[24];
    LS_TRY(ls_key_make(text));
    LS_TRY(ls_key_make(random));
    snprintf(temporary, sizeof temporary, "%s-%.16s", key_file, random);
    const int file = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool fine = file >= 0 && write(file, text, KEY_SIZE) == KEY_SIZE && fsync(file) == 0;
    fine = fine && (linkat(folder, temporary, folder, key_file, 0) == 0 || errno == EEXIST);
    const int error = errno;
    sodium_memzero(text, sizeof text);
    if (file >= 0) {
        close(file);
        unlinkat(folder, temporary, 0);
    }
    return fine ? LS_OK : ls_fail(LS_ERR_IO, "cannot write a key: %s", strerror(error));
}

/* ---- its place --------------------------------------------------------------------------------------------------- */

/* Reads the key in the folder `name` of `parent`. Creates the folder and the key if necessary. */
static ls_status share_key(int parent, const char *name, ls_key *key) {
    int folder;
    (void)mkdirat(parent, name, 0700);
    LS_TRY(ls_folder_open(parent, name, &folder));
    ls_status status = read_key(folder, key);
    if (status == LS_ERR_STATE) {
        status = make_key(folder);
        status = status == LS_OK ? read_key(folder, key) : status;
    }
    close(folder);
    return status;
}

/* Reads the key from a folder that belongs to this user. */
static ls_status share_own(const char *path, ls_key *key) {
    int parent;
    LS_TRY(ls_folder_open(AT_FDCWD, path, &parent));
    const ls_status status = share_key(parent, "lockstep", key);
    close(parent);
    return status;
}

static ls_status share_in_home(const char *home, ls_key *key) {
    char path[PATH_MAX];
    struct stat about;
    if (snprintf(path, sizeof path, "%s/.cache", home) >= (int)sizeof path) {
        return ls_fail(LS_ERR_ARGUMENT, "HOME is too long");
    }
    if (stat(home, &about) == 0 && about.st_uid == geteuid()) { /* with sudo, HOME may still belong to another user */
        (void)mkdir(path, 0700);
    }
    return share_own(path, key);
}

/* Reads the key from a folder to which all users can write. The folder's name identifies its user, and ls_folder_open
 * checks its owner. */
static ls_status share_in_tmp(ls_key *key) {
    char name[32];
    const int parent = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) {
        return ls_fail(LS_ERR_IO, "cannot open /tmp: %s", strerror(errno));
    }
    snprintf(name, sizeof name, "lockstep-%lu", (unsigned long)geteuid());
    const ls_status status = share_key(parent, name, key);
    close(parent);
    return status;
}

/* Returns the folder that an environment variable names. Returns NULL for a relative path, because the XDG Base
 * Directory Specification requires ignoring it: it would name a different folder for each working directory. */
static const char *folder_of(const char *variable) {
    const char *path = getenv(variable);
    return path != NULL && path[0] == '/' ? path : NULL;
}

static void find_user_key(ls_key *key) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *runtime = folder_of("XDG_RUNTIME_DIR"), *home = folder_of("HOME");
    char session[32];
    snprintf(session, sizeof session, "/run/user/%lu", (unsigned long)geteuid());
    if ((runtime != NULL && share_own(runtime, key) == LS_OK) || share_own(session, key) == LS_OK ||
        (home != NULL && share_in_home(home, key) == LS_OK) || share_in_tmp(key) == LS_OK) {
        return;
    }
    if (!atomic_flag_test_and_set(&told)) {
        ls_log_write(LS_LOG_WARNING,
                     "this job has no key, and no key can be stored for its user (%s): other users of this machine can "
                     "join the job; set LOCKSTEP_KEY to the same secret for all ranks",
                     ls_error_message());
    }
}

ls_status ls_key_find(ls_key *key, const char *text) {
    LS_TRY(ls_key_read(key, text));
    if (!key->given) {
        find_user_key(key);
    }
    return LS_OK;
}
