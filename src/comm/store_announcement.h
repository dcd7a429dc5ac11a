/*
 * How ranks that all see a folder find the store that rank 0 serves: the folder's file "current" names the address
 * where it listens and a secret that no other job has, for this user's eyes. The job's key follows from the secret and
 * the key that the processes were given. The file is locked as long as its writer lives, so one that a job has left
 * behind is known for that; it goes when all ranks are there.
 */
#ifndef LS_COMM_STORE_ANNOUNCEMENT_H
#define LS_COMM_STORE_ANNOUNCEMENT_H

#include "base/wait.h"
#include "comm/auth.h"
#include "comm/store_socket.h"

enum { LS_SECRET_SIZE = LS_NONCE_SIZE, LS_ANNOUNCEMENT_CAPACITY = 512 };

/* What the file says. */
typedef struct ls_announcement {
    ls_address address;
    bool keyed; /* its writer was given a key */
    uint8_t secret[LS_SECRET_SIZE];
} ls_announcement;

/* Its text, with a NUL that does not belong to it, and the text's size. */
size_t ls_announcement_write(const ls_announcement *announcement, char text[LS_ANNOUNCEMENT_CAPACITY]);

/* LS_ERR_FORMAT unless the text is exactly what ls_announcement_write writes. */
ls_status ls_announcement_read(const char *text, size_t size, ls_announcement *announcement);

/* The job's key, from the one that this process was `given`. */
void ls_announcement_key(const ls_announcement *announcement, const ls_key *given, ls_key *key);

/* The folder while a job gathers there, of who serves it. */
typedef struct ls_gathering {
    char *path; /* NULL: there is none */
    int folder;
    int file; /* "current", locked; -1 where it is not there */
    bool made;
} ls_gathering;

/* Opens the folder, making it where it is missing. LS_ERR_STATE where another job gathers there, LS_ERR_DENIED where
 * others may write. */
ls_status ls_gathering_open(const char *path, ls_gathering *gathering);

/* Writes the file, if no other job was faster. */
ls_status ls_gathering_announce(ls_gathering *gathering, const ls_announcement *announcement, double timeout);

/* Who comes from now on finds no job. */
void ls_gathering_withdraw(ls_gathering *gathering);

/* Withdraws, and removes the folder that this made, if nothing else is in it. */
void ls_gathering_close(ls_gathering *gathering);

/* Waits until a job is announced in the folder. LS_ERR_TIMEOUT says why none is; `limit` is for that sentence, the
 * seconds of the whole search. */
ls_status ls_gathering_find(const char *path, ls_deadline deadline, double limit, ls_announcement *announcement);

/* Whether the folder announces that job still, as far as can be seen. */
bool ls_gathering_is_announced(const char *path, const ls_announcement *announcement);

#endif
