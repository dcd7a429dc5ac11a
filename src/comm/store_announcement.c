#include "comm/store_announcement.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/store.h"
#include "comm/store_folder.h"
#include "comm/store_roster.h"

#define CURRENT     "current"
#define PARENT_LOCK ".lockstep-lock" /* locked by the process that writes "current" */

/* ---- the text: "lockstep-store 2 HOST PORT KEYED SECRET\n" ------------------------------------------------------- */

static const char head[] = "lockstep-store 2 ";

size_t ls_announcement_write(const ls_announcement *announcement, char text[LS_ANNOUNCEMENT_CAPACITY]) {
    char secret[2 * LS_SECRET_SIZE + 1];
    sodium_bin2hex(secret, sizeof secret, announcement->secret, LS_SECRET_SIZE);
    return (size_t)snprintf(text, LS_ANNOUNCEMENT_CAPACITY, "%s%s %d %d %s\n", head, announcement->address.host,
                            announcement->address.port, announcement->keyed, secret);
}

/* Parses the fields of a text that begins with `head`. Returns false if a field is malformed. */
static bool read_fields(char *text, ls_announcement *announcement) {
    char *rest = text + sizeof head - 1, *end = NULL;
    const char *host = strsep(&rest, " "), *port = strsep(&rest, " "), *keyed = strsep(&rest, " ");
    const char *secret = strsep(&rest, "\n");
    size_t read = 0;
    if (secret == NULL || *host == '\0' || strlen(host) >= sizeof announcement->address.host) {
        return false;
    }
    strcpy(announcement->address.host, host);
    announcement->address.port = (int)strtol(port, &end, 10);
    announcement->keyed = keyed[0] == '1';
    return *end == '\0' && announcement->address.port > 0 && announcement->address.port <= 65535 &&
           sodium_hex2bin(announcement->secret, LS_SECRET_SIZE, secret, strlen(secret), NULL, &read, NULL) == 0 &&
           read == LS_SECRET_SIZE;
}

ls_status ls_announcement_read(const char *text, size_t size, ls_announcement *announcement) {
    char copy[LS_ANNOUNCEMENT_CAPACITY] = "", again[LS_ANNOUNCEMENT_CAPACITY];
    *announcement = (ls_announcement){.keyed = false};
    if (size < sizeof copy && size > sizeof head && memcmp(text, head, sizeof head - 1) == 0) {
        memcpy(copy, text, size);
    }
    /* Serializes the fields again and compares, so that each announcement has exactly one valid text. */
    return copy[0] != '\0' && read_fields(copy, announcement) && ls_announcement_write(announcement, again) == size &&
                   memcmp(text, again, size) == 0
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "the folder's file \"" CURRENT "\" was not written by Lockstep");
}

void ls_announcement_key(const ls_announcement *announcement, const ls_key *given, ls_key *key) {
    _Static_assert((int)LS_PROOF_SIZE <= (int)LS_KEY_CAPACITY, "a proof makes a key");
    *key = (ls_key){.given = true, .size = LS_PROOF_SIZE};
    ls_auth_prove(given, "folder", announcement->secret, announcement->secret, key->bytes);
}

/* ---- announcing a job -------------------------------------------------------------------------------------------- */

/* Reads the announcement. Fails with LS_ERR_STATE if no job is announced, or if the process that wrote the file has
 * exited. */
static ls_status read_current(int folder, ls_announcement *announcement) {
    char text[LS_ANNOUNCEMENT_CAPACITY];
    size_t size = 0;
    int file = -1;
    LS_TRY(ls_folder_open_file(folder, CURRENT, &file));
    const bool alive = ls_file_is_locked(file);
    const ls_status status = ls_file_read(file, CURRENT, text, sizeof text, &size);
    close(file);
    LS_TRY(status);
    LS_TRY(ls_announcement_read(text, size, announcement));
    return alive ? LS_OK : ls_fail(LS_ERR_STATE, "the last job there has ended");
}

static ls_status check_free(const ls_gathering *gathering) {
    ls_announcement other;
    const ls_status found = read_current(gathering->folder, &other);
    if (found == LS_OK) {
        return ls_fail(LS_ERR_STATE,
                       "a different job is gathering its ranks in %s at the moment: choose a different folder",
                       gathering->path);
    }
    return found == LS_ERR_STATE
               ? LS_OK /* otherwise "current" may be a user's file, which must not be overwritten */
               : ls_fail(found, "%s: choose a folder other than %s", ls_error_message(), gathering->path);
}

ls_status ls_gathering_open(const char *path, ls_gathering *gathering) {
    *gathering = (ls_gathering){.path = ls_duplicate_string(path), .folder = -1, .file = -1};
    if (gathering->path == NULL) {
        return ls_fail(LS_ERR_MEMORY, "out of memory while creating a store");
    }
    gathering->made = mkdir(path, 0700) == 0;
    if (!gathering->made && errno != EEXIST) {
        return ls_fail(LS_ERR_IO, "cannot create the folder %s: %s", path, strerror(errno));
    }
    LS_TRY(ls_folder_open(AT_FDCWD, path, &gathering->folder));
    return check_free(gathering);
}

ls_status ls_gathering_announce(ls_gathering *gathering, const ls_announcement *announcement, double timeout) {
    char text[LS_ANNOUNCEMENT_CAPACITY];
    int lock = -1;
    LS_TRY(ls_folder_lock(gathering->folder, PARENT_LOCK, ls_deadline_after(timeout), &lock));
    ls_status status = check_free(gathering);
    if (status == LS_OK) {
        const ls_bytes bytes = {text, ls_announcement_write(announcement, text)};
        status = ls_folder_write(gathering->folder, CURRENT, bytes, &gathering->file);
    }
    unlinkat(gathering->folder, PARENT_LOCK, 0);
    close(lock);
    return status;
}

void ls_gathering_withdraw(ls_gathering *gathering) {
    if (gathering->path != NULL && gathering->file >= 0) {
        unlinkat(gathering->folder, CURRENT, 0);
        close(gathering->file);
        gathering->file = -1;
    }
}

void ls_gathering_close(ls_gathering *gathering) {
    if (gathering->path == NULL) {
        return;
    }
    ls_gathering_withdraw(gathering);
    if (gathering->folder >= 0) {
        close(gathering->folder);
    }
    if (gathering->made) {
        rmdir(gathering->path); /* fails if the folder contains other files */
    }
    ls_free(gathering->path);
    gathering->path = NULL;
}

/* ---- finding a job ----------------------------------------------------------------------------------------------- */

/* Reads the announcement. Opens the folder each time, because it may have been removed and created again since the
 * last call. */
static ls_status look(const char *path, ls_announcement *announcement) {
    int folder = -1;
    LS_TRY(ls_folder_open(AT_FDCWD, path, &folder));
    const ls_status status = read_current(folder, announcement);
    close(folder);
    return status;
}

bool ls_gathering_is_announced(const char *path, const ls_announcement *announcement) {
    ls_announcement now;
    const ls_status status = look(path, &now);
    return status == LS_OK ? memcmp(now.secret, announcement->secret, sizeof now.secret) == 0 : status != LS_ERR_STATE;
}

ls_status ls_gathering_find(const char *path, ls_deadline deadline, double limit, ls_announcement *announcement) {
    ls_wait wait = {.limit_ns = 0};
    ls_deadline report = ls_deadline_after(LS_REPORT_SECONDS);
    for (;;) {
        const ls_status status = look(path, announcement);
        if (status != LS_ERR_STATE) {
            return status;
        }
        if (ls_deadline_passed(deadline)) {
            return ls_fail(LS_ERR_TIMEOUT, "rank 0 did not create the store in %s within %g s (%s)", path, limit,
                           ls_error_message());
        }
        if (ls_deadline_passed(report)) {
            ls_log_write(LS_LOG_WARNING, "waiting for rank 0 to create the store in %s (%s)", path, ls_error_message());
            report = LS_DEADLINE_NEVER;
        }
        (void)ls_wait_pause(&wait);
    }
}
