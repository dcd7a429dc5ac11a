/*
 * How ranks find rank 0's store through a shared folder. The file "current" in the folder contains the store's address
 * and a secret that is unique to the job. Only this user can read the file. The job's key is derived from the secret
 * and the key given by the user. The file is locked as long as its writer lives, so a file left by a finished job can
 * be recognized. Rank 0 removes the file when all ranks have joined.
 */
#ifndef LS_COMM_STORE_ANNOUNCEMENT_H
#define LS_COMM_STORE_ANNOUNCEMENT_H

#include "base/wait.h"
#include "comm/channel/auth.h"
#include "comm/store_socket.h"

enum { LS_SECRET_SIZE = LS_NONCE_SIZE, LS_ANNOUNCEMENT_CAPACITY = 512 };

/* The contents of the file. */
typedef struct ls_announcement {
    ls_address address;
    bool keyed; /* the user gave a key to the process that wrote the file */
    uint8_t secret[LS_SECRET_SIZE];
} ls_announcement;

/* Writes the text of the file, followed by a NUL. Returns the size of the text in bytes, without the NUL. */
size_t ls_announcement_write(const ls_announcement *announcement, char text[LS_ANNOUNCEMENT_CAPACITY]);

/* Parses a text of `size` bytes. Fails with LS_ERR_FORMAT unless ls_announcement_write would write exactly this
 * text. */
ls_status ls_announcement_read(const char *text, size_t size, ls_announcement *announcement);

/* Derives the job's key from the announcement and the key that the user gave to this process, which may be empty. */
void ls_announcement_key(const ls_announcement *announcement, const ls_key *given, ls_key *key);

/* The folder in which the process that serves the store announces the job. */
typedef struct ls_gathering {
    char *path; /* NULL if no folder is open */
    int folder; /* descriptor; -1 if not open */
    int file;   /* descriptor of "current", locked; -1 if not written or withdrawn */
    bool made;  /* this process created the folder */
} ls_gathering;

/* Opens the folder, and creates it if it does not exist. Fails with LS_ERR_STATE if another job is announced there,
 * and with LS_ERR_DENIED if other users can write to the folder. The caller must call ls_gathering_close, even on
 * failure. */
ls_status ls_gathering_open(const char *path, ls_gathering *gathering);

/* Writes the file. Waits at most `timeout` seconds for the folder's lock. Fails with LS_ERR_STATE if another job was
 * announced first. */
ls_status ls_gathering_announce(ls_gathering *gathering, const ls_announcement *announcement, double timeout);

/* Removes the file, so that later processes find no job. */
void ls_gathering_withdraw(ls_gathering *gathering);

/* Withdraws the announcement and closes the folder. Removes the folder if this process created it and it is empty. */
void ls_gathering_close(ls_gathering *gathering);

/* Waits until a job is announced in the folder. Fails with LS_ERR_TIMEOUT at the deadline; the message contains the
 * reason and `limit`, the duration of the whole search in seconds. */
ls_status ls_gathering_find(const char *path, ls_deadline deadline, double limit, ls_announcement *announcement);

/* Returns false if the folder no longer announces this job. Also returns true if the folder cannot be read. */
bool ls_gathering_is_announced(const char *path, const ls_announcement *announcement);

#endif
