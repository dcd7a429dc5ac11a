/*
 * The store in a folder, for ranks that share files. Who serves makes a fresh folder of its own in it, job-NONCE, and
 * says so in the file "current"; what earlier jobs left there is not looked at and is cleared away. In the job's folder
 * every key is a file; "lock" is held while one is changed; "server" is locked by who serves and "rank-N" by rank N as
 * long as they live. "left-N" says that rank N has left, "failed" why the ranks cannot meet, and "done" how it ended.
 */
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
#include "comm/store_announcement.h"
#include "comm/store_folder.h"
#include "comm/store_table.h"

#define NAME_SIZE   48
#define PARENT_LOCK ".lockstep-lock" /* held while a job is announced */

static const double look_seconds = 0.02; /* between two looks at who is alive */
static const double parting_seconds = 1;

typedef struct directory_store {
    ls_store base;
    bool serving, announced, made_path;
    bool parting; /* who serves lets the others read the end before it removes the files */
    int parent;   /* the folder of the URL */
    int folder;   /* the job's, in it */
    int server;   /* its file "server": locked by us when serving, watched when not */
    int presence; /* our file "rank-N", once we joined; -1 before */
    int rank;
    char job[LS_JOB_FOLDER_SIZE];
    char *path;
    ls_roster roster; /* as of the last look */
    ls_deadline next_look;
} directory_store;

static void close_file(int *file) {
    if (*file >= 0) {
        close(*file);
        *file = -1;
    }
}

/* What a rank writes about itself. */
typedef struct rank_record {
    char size[16];
    ls_card card;
} rank_record;

static void name_key(ls_bytes key, char name[NAME_SIZE]) {
    unsigned char hash[crypto_generichash_BYTES_MIN];
    crypto_generichash(hash, sizeof hash, key.data, key.size, NULL, 0);
    memcpy(name, "key-", 4);
    sodium_bin2hex(name + 4, NAME_SIZE - 4, hash, sizeof hash);
}

static ls_status lock_store(const directory_store *store, int *lock) {
    const ls_status status = ls_folder_lock(store->folder, "lock", ls_deadline_after(store->base.timeout), lock);
    if (status != LS_OK && !store->serving && !ls_file_is_locked(store->server)) {
        return ls_fail(LS_ERR_PEER, "rank 0, which serves the store in %s, is gone", store->path);
    }
    return status;
}

/* ---- endings that every rank is told of ---- */

/* Writes the reason for a failure to the file `name` unless another one is there already. */
static void tell(const directory_store *store, const char *name, ls_status status) {
    char text[LS_ERROR_CAPACITY + 8];
    const int length = snprintf(text, sizeof text, "%d %s", (int)status, status != LS_OK ? ls_error_message() : "");
    const ls_bytes bytes = {text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1};
    if (!ls_folder_has(store->folder, name) && ls_folder_write(store->folder, name, bytes, NULL) != LS_OK) {
        ls_log_write(LS_LOG_WARNING, "%s", ls_error_message());
    }
}

/* Fails as the file `name` says; LS_OK when it says so or is not there, which `*there` tells. */
static ls_status heed(const directory_store *store, const char *name, bool *there) {
    char text[LS_ERROR_CAPACITY + 9];
    size_t size = 0;
    const ls_status status = ls_folder_read(store->folder, name, text, sizeof text - 1, &size);
    *there = status == LS_OK;
    if (!*there) {
        return LS_OK;
    }
    char *rest;
    text[size] = '\0';
    const long told = strtol(text, &rest, 10);
    if (told == LS_OK) {
        return LS_OK;
    }
    return ls_fail(told > 0 && told <= LS_ERR_INTERNAL ? (ls_status)told : LS_ERR_FORMAT, "%s",
                   *rest == ' ' ? rest + 1 : rest);
}

/* What this process failed with is why the ranks cannot go on: the first such reason is everyone's. */
static ls_status fail_everyone(const directory_store *store, ls_status status) {
    char message[LS_ERROR_CAPACITY];
    int lock;
    snprintf(message, sizeof message, "%s", ls_error_message());
    if (lock_store(store, &lock) == LS_OK) {
        ls_error_restore(status, message);
        tell(store, "failed", status);
        close(lock);
    }
    ls_error_restore(status, message);
    return status;
}

/* ---- who is here ---- */

static void read_rank(directory_store *store, int rank, const char *file) {
    rank_record record;
    size_t size;
    if (ls_folder_read(store->folder, file, &record, sizeof record, &size) == LS_OK && size == sizeof record) {
        ls_card *card = &record.card;
        card->machine[sizeof card->machine - 1] = card->host[sizeof card->host - 1] =
            card->process[sizeof card->process - 1] = card->backend[sizeof card->backend - 1] =
                record.size[sizeof record.size - 1] = '\0';
        if (atoi(record.size) == store->roster.size) {
            ls_roster_enter(&store->roster, rank, store->roster.size, card);
        }
    }
}

static void look_at_rank(directory_store *store, int rank) {
    char file[NAME_SIZE], left[NAME_SIZE];
    ls_rank_state *state = &store->roster.states[rank];
    snprintf(file, sizeof file, "rank-%d", rank);
    snprintf(left, sizeof left, "left-%d", rank);
    if (*state == LS_RANK_MISSING) {
        read_rank(store, rank, file);
    }
    if (*state == LS_RANK_HERE) {
        /* A file that vanished is no sign of death: who serves is clearing up. */
        const bool alive = ls_folder_is_locked(store->folder, file) || !ls_folder_has(store->folder, file);
        if (ls_folder_has(store->folder, left)) { /* looked at after the lock: it is written before that is let go */
            *state = LS_RANK_LEFT;
        } else if (!alive) {
            *state = LS_RANK_DEAD;
        }
    }
}

/* Looks at every rank. */
static void look(directory_store *store) {
    for (int rank = 0; rank < store->roster.size; rank++) {
        look_at_rank(store, rank);
    }
    store->next_look = ls_deadline_after(look_seconds);
}

/* Looks around, and fails when who is waited for can no longer come. */
static ls_status check_others(directory_store *store) {
    const bool served = store->serving || ls_file_is_locked(store->server);
    bool failed;
    look(store);
    LS_TRY(heed(store, "failed", &failed));
    const ls_status status = ls_roster_check_deaths(&store->roster);
    if (status != LS_OK) {
        return fail_everyone(store, status);
    }
    return served ? LS_OK
                  : ls_fail(LS_ERR_PEER, "rank 0, which serves the store in %s, is gone: it let go of its lock",
                            store->path);
}

/* ---- the dictionary ---- */

static ls_status directory_set(ls_store *base, ls_bytes key, ls_bytes value) {
    const directory_store *store = (directory_store *)base;
    char name[NAME_SIZE];
    int lock;
    name_key(key, name);
    LS_TRY(lock_store(store, &lock));
    const ls_status status = ls_folder_write(store->folder, name, value, NULL);
    close(lock);
    return status;
}

static ls_status directory_get(ls_store *base, ls_bytes key, void *value, size_t capacity, size_t *size,
                               double timeout) {
    directory_store *store = (directory_store *)base;
    const ls_deadline begin = ls_clock_ns();
    const ls_deadline deadline = ls_deadline_after(timeout);
    char name[NAME_SIZE];
    name_key(key, name);
    for (;;) {
        if (value == NULL && ls_folder_has(store->folder, name)) {
            return LS_OK;
        }
        if (value != NULL) {
            const ls_status status = ls_folder_read(store->folder, name, value, capacity, size);
            if (status != LS_ERR_STATE) {
                return status;
            }
        }
        if (ls_deadline_passed(store->next_look)) {
            LS_TRY(check_others(store));
        }
        if (ls_deadline_passed(deadline)) {
            return ls_fail(LS_ERR_TIMEOUT, "nobody set it within %g s", timeout);
        }
        ls_store_nap(begin, deadline);
    }
}

static ls_status add_locked(const directory_store *store, const char *name, int64_t amount, int64_t *result) {
    char current[LS_COUNTER_SIZE], text[LS_COUNTER_SIZE];
    size_t size = 0, length;
    const ls_status status = ls_folder_read(store->folder, name, current, sizeof current, &size);
    if (status == LS_ERR_IO) {
        return status;
    }
    LS_TRY(ls_counter_add((ls_bytes){current, status == LS_ERR_STATE ? 0 : size}, amount, text, &length, result));
    return ls_folder_write(store->folder, name, (ls_bytes){text, length}, NULL);
}

static ls_status directory_add(ls_store *base, ls_bytes key, int64_t amount, int64_t *result) {
    const directory_store *store = (directory_store *)base;
    char name[NAME_SIZE];
    int lock;
    name_key(key, name);
    LS_TRY(lock_store(store, &lock));
    const ls_status status = add_locked(store, name, amount, result);
    close(lock);
    return status;
}

/* Whether the file holds exactly these bytes; none at all: whether there is no file. */
static ls_status holds(const directory_store *store, const char *name, ls_bytes expected, bool *equal) {
    if (expected.size == 0) {
        *equal = !ls_folder_has(store->folder, name);
        return LS_OK;
    }
    size_t size = 0;
    char *current = ls_allocate(expected.size);
    if (current == NULL) {
        return ls_fail(LS_ERR_MEMORY, "out of memory for a value of %zu bytes", expected.size);
    }
    const ls_status status = ls_folder_read(store->folder, name, current, expected.size, &size);
    *equal = status == LS_OK && size == expected.size && memcmp(current, expected.data, size) == 0;
    ls_free(current);
    return status == LS_ERR_IO ? status : LS_OK; /* missing or longer: different */
}

static ls_status directory_compare_set(ls_store *base, ls_bytes key, ls_bytes expected, ls_bytes desired,
                                       bool *swapped) {
    const directory_store *store = (directory_store *)base;
    char name[NAME_SIZE];
    int lock;
    name_key(key, name);
    LS_TRY(lock_store(store, &lock));
    ls_status status = holds(store, name, expected, swapped);
    if (status == LS_OK && *swapped) {
        status = ls_folder_write(store->folder, name, desired, NULL);
    }
    close(lock);
    return status;
}

/* ---- joining and leaving ---- */

/* With the lock held: shows this rank to the others, or finds that it cannot be one of them. */
static ls_status enter_locked(directory_store *store, int rank, int size, const ls_card *card) {
    char file[NAME_SIZE];
    rank_record record = {.card = *card}, other;
    size_t other_size = 0;
    bool failed;
    snprintf(file, sizeof file, "rank-%d", rank);
    snprintf(record.size, sizeof record.size, "%d", size);
    LS_TRY(heed(store, "failed", &failed));
    if (ls_folder_read(store->folder, file, &other, sizeof other, &other_size) == LS_OK && other_size == sizeof other) {
        return ls_fail(LS_ERR_ARGUMENT, "two processes came as rank %d: process %.15s on %.63s and process %s on %s",
                       rank, other.card.process, other.card.host, card->process, card->host);
    }
    if (ls_folder_read(store->folder, "rank-0", &other, sizeof other, &other_size) == LS_OK &&
        other_size == sizeof other && atoi(other.size) != size) {
        return ls_fail(LS_ERR_MISMATCH, "process %s on %s says that the world has %d ranks, rank 0 says %.15s",
                       card->process, card->host, size, other.size);
    }
    return ls_folder_write(store->folder, file, (ls_bytes){&record, sizeof record}, &store->presence);
}

static ls_status enter(directory_store *store, int rank, int size, const ls_card *card) {
    int lock;
    LS_TRY(lock_store(store, &lock));
    const ls_status status = enter_locked(store, rank, size, card);
    if (status == LS_ERR_ARGUMENT || status == LS_ERR_MISMATCH) {
        tell(store, "failed", status); /* one of the two is wrong, so this world will never be whole */
    }
    close(lock);
    return status;
}

/* Every rank is here: who comes from now on finds no job. */
static void withdraw(directory_store *store) {
    if (store->announced) {
        unlinkat(store->parent, "current", 0);
        store->announced = false;
    }
}

static ls_status wait_for_ranks(directory_store *store) {
    const ls_deadline begin = ls_clock_ns();
    const ls_deadline deadline = ls_deadline_after(store->base.timeout);
    ls_deadline report = ls_deadline_after(LS_REPORT_SECONDS);
    for (;;) {
        const ls_status status = check_others(store);
        store->roster.refused += store->serving ? ls_announcement_report_refusals(store->folder) : 0;
        if (store->roster.complete) {
            return LS_OK;
        }
        LS_TRY(status);
        if (ls_deadline_passed(deadline)) {
            return fail_everyone(store, ls_roster_fail_missing(&store->roster, store->base.timeout));
        }
        if (store->serving && ls_deadline_passed(report)) {
            ls_roster_report_missing(&store->roster);
            report = ls_deadline_after(LS_REPORT_SECONDS);
        }
        ls_store_nap(begin, deadline);
    }
}

static ls_status directory_join(ls_store *base, int rank, int size, const ls_card *card, ls_card *cards) {
    directory_store *store = (directory_store *)base;
    LS_TRY(ls_roster_make(&store->roster, size));
    store->rank = rank;
    store->parting = true; /* until all are here, a failure of one is everyone's */
    LS_TRY(enter(store, rank, size, card));
    LS_TRY(wait_for_ranks(store));
    store->parting = false;
    memcpy(cards, store->roster.cards, (size_t)size * sizeof *cards);
    withdraw(store);
    return LS_OK;
}

/* Who serves waits for all and writes "done"; the others wait for that. */
static ls_status wait_for_end(directory_store *store, ls_deadline deadline) {
    const ls_deadline begin = ls_clock_ns();
    for (;;) {
        bool done = false;
        const bool served = store->serving || ls_file_is_locked(store->server);
        look(store);
        (void)ls_roster_tell_staying(&store->roster, true);
        if (!store->serving) {
            LS_TRY(heed(store, "done", &done));
        }
        if (done) {
            return LS_OK;
        }
        if (store->serving && ls_roster_is_over(&store->roster)) {
            const ls_status status = ls_roster_check_deaths(&store->roster);
            tell(store, "done", status);
            return status;
        }
        if (!served) {
            return ls_fail(LS_ERR_PEER, "rank 0, which serves the store in %s, is gone", store->path);
        }
        if (ls_deadline_passed(deadline)) {
            return ls_roster_fail_staying(&store->roster, store->base.timeout);
        }
        ls_store_nap(begin, deadline);
    }
}

/* Who serves removes the files only when the others have read how it ended. */
static void let_others_go(directory_store *store) {
    const ls_deadline begin = ls_clock_ns();
    const ls_deadline deadline = ls_deadline_after(parting_seconds);
    for (int rank = 0; rank < store->roster.size; rank++) {
        char file[NAME_SIZE];
        snprintf(file, sizeof file, "rank-%d", rank);
        while (rank != store->rank && ls_folder_is_locked(store->folder, file) && !ls_deadline_passed(deadline)) {
            ls_store_nap(begin, deadline);
        }
    }
}

static ls_status directory_leave(ls_store *base) {
    directory_store *store = (directory_store *)base;
    char left[NAME_SIZE];
    int lock;
    snprintf(left, sizeof left, "left-%d", store->rank);
    LS_TRY(lock_store(store, &lock));
    ls_status status = ls_folder_write(store->folder, left, (ls_bytes){0}, NULL);
    close(lock);
    if (status == LS_OK) {
        status = wait_for_end(store, ls_deadline_after(store->base.timeout));
    }
    close_file(&store->presence);
    store->parting = true;
    return status;
}

static ls_status directory_check(ls_store *store) {
    return check_others((directory_store *)store);
}

/* ---- opening and closing ---- */

static void directory_close(ls_store *base) {
    directory_store *store = (directory_store *)base;
    ls_key_forget(&base->key);
    if (store->serving && store->folder >= 0) {
        if (store->parting) {
            let_others_go(store);
        }
        withdraw(store);
        ls_folder_remove(store->parent, store->job);
    }
    if (store->made_path) {
        rmdir(store->path); /* stays where something else was put into it */
    }
    close_file(&store->presence);
    close_file(&store->server);
    close_file(&store->folder);
    close_file(&store->parent);
    ls_roster_free(&store->roster);
    ls_free(store->path);
    ls_free(store);
}

/* Reads who is announced; LS_ERR_STATE when nobody is, or nobody alive. Opens the job's folder and "server" file. */
static ls_status find_job(directory_store *store, ls_announcement *announcement) {
    char text[LS_ANNOUNCEMENT_SIZE];
    size_t size;
    const ls_status status = ls_folder_read(store->parent, "current", text, sizeof text, &size);
    if (status != LS_OK && status != LS_ERR_ARGUMENT) {
        return status;
    }
    LS_TRY(ls_announcement_read(text, status == LS_OK ? size : 0, announcement));
    ls_announcement_folder(announcement, store->job);
    ls_status found = ls_folder_open(store->parent, store->job, &store->folder);
    if (found == LS_OK) {
        found = ls_folder_open_file(store->folder, "server", &store->server);
    }
    if (found == LS_OK && ls_file_is_locked(store->server)) {
        return LS_OK;
    }
    close_file(&store->server);
    close_file(&store->folder);
    return found == LS_ERR_DENIED ? found : ls_fail(LS_ERR_STATE, "the last job there has ended");
}

/* With the lock on the whole folder held: clears away what is old, makes the job's folder, and announces it. */
static ls_status make_job(directory_store *store, const ls_key *key) {
    ls_announcement announcement;
    char text[LS_ANNOUNCEMENT_SIZE + 1];
    const ls_status found = find_job(store, &announcement);
    if (found == LS_OK) {
        close_file(&store->server);
        close_file(&store->folder);
        return ls_fail(LS_ERR_STATE, "another job is gathering its ranks in %s just now, choose another folder",
                       store->path);
    }
    if (found != LS_ERR_STATE) { /* the user's own, as far as can be seen */
        return ls_fail(found, "%s, choose another folder than %s", ls_error_message(), store->path);
    }
    ls_folder_remove_stale(store->parent, ls_announcement_names_folder, "server");
    LS_TRY(ls_announcement_make(&announcement, key));
    ls_announcement_folder(&announcement, store->job);
    ls_announcement_write(&announcement, text);
    if (mkdirat(store->parent, store->job, 0700) != 0) {
        return ls_fail(LS_ERR_IO, "cannot make a folder in %s: %s", store->path, strerror(errno));
    }
    LS_TRY(ls_folder_open(store->parent, store->job, &store->folder));
    LS_TRY(ls_folder_lock(store->folder, "server", 0, &store->server));
    LS_TRY(ls_folder_write(store->parent, "current", (ls_bytes){text, LS_ANNOUNCEMENT_SIZE}, NULL));
    store->announced = true;
    return LS_OK;
}

static ls_status start_serving(directory_store *store, const ls_key *key) {
    int lock;
    store->made_path = mkdir(store->path, 0700) == 0;
    if (!store->made_path && errno != EEXIST) {
        return ls_fail(LS_ERR_IO, "cannot make the folder %s: %s", store->path, strerror(errno));
    }
    LS_TRY(ls_folder_open(AT_FDCWD, store->path, &store->parent));
    LS_TRY(ls_folder_lock(store->parent, PARENT_LOCK, ls_deadline_after(store->base.timeout), &lock));
    store->serving = true;
    const ls_status status = make_job(store, key);
    unlinkat(store->parent, PARENT_LOCK, 0);
    close(lock);
    return status;
}

static ls_status find_server(directory_store *store, const ls_key *key) {
    const ls_deadline begin = ls_clock_ns();
    const ls_deadline deadline = ls_deadline_after(store->base.timeout);
    ls_deadline report = ls_deadline_after(LS_REPORT_SECONDS);
    for (;;) {
        ls_announcement announcement;
        ls_status status = store->parent >= 0 ? LS_OK : ls_folder_open(AT_FDCWD, store->path, &store->parent);
        if (status == LS_OK) {
            status = find_job(store, &announcement);
        }
        if (status == LS_OK) {
            status = ls_announcement_check(&announcement, key);
            if (status != LS_OK) {
                ls_announcement_note_refusal(store->folder);
            }
            return status;
        }
        if (status != LS_ERR_STATE) {
            return status;
        }
        if (ls_deadline_passed(deadline)) {
            return ls_fail(LS_ERR_TIMEOUT, "rank 0 did not make the store in %s within %g s (%s)", store->path,
                           store->base.timeout, ls_error_message());
        }
        if (ls_deadline_passed(report)) {
            ls_log_write(LS_LOG_WARNING, "waiting for rank 0 to make the store in %s (%s)", store->path,
                         ls_error_message());
            report = LS_DEADLINE_NEVER;
        }
        if (store->parent >= 0) { /* it may have been removed and made again */
            close_file(&store->parent);
        }
        ls_store_nap(begin, deadline);
    }
}

static ls_status directory_check_url(const char *url) {
    return url[strlen(ls_store_directory.scheme)] != '\0'
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "\"%s\" names no folder: file://PATH is needed", url);
}

static ls_status open_place(directory_store *store, const ls_store_place *place) {
    LS_TRY(directory_check_url(place->url));
    LS_TRY(ls_key_read(&store->base.key, place->key));
    store->path = ls_duplicate_string(place->url + strlen(ls_store_directory.scheme));
    if (store->path == NULL) {
        return ls_fail(LS_ERR_MEMORY, "out of memory for a store");
    }
    return place->serve ? start_serving(store, &store->base.key) : find_server(store, &store->base.key);
}

static ls_store *directory_open(const ls_store_place *place) {
    directory_store *store = ls_allocate_zeroed(1, sizeof *store);
    if (store == NULL) {
        return ls_fail_null(LS_ERR_MEMORY, "out of memory for a store");
    }
    store->base = (ls_store){.kind = &ls_store_directory, .timeout = place->timeout};
    store->parent = store->folder = store->server = store->presence = -1;
    const ls_status status = open_place(store, place);
    if (status != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        snprintf(message, sizeof message, "%s", ls_error_message());
        directory_close(&store->base);
        ls_error_restore(status, message);
        return NULL;
    }
    return &store->base;
}

static int directory_port(const ls_store *store) {
    (void)store;
    return 0;
}

const ls_store_kind ls_store_directory = {
    .scheme = "file://",
    .check_url = directory_check_url,
    .open = directory_open,
    .close = directory_close,
    .port = directory_port,
    .set = directory_set,
    .get = directory_get,
    .add = directory_add,
    .compare_set = directory_compare_set,
    .join = directory_join,
    .leave = directory_leave,
    .check = directory_check,
};
