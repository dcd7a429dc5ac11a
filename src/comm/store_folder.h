/*
 * Files and locks in folders of this user's, for the store that a folder tells of and the user's key. Locks belong to
 * an open file (F_OFD_SETLK), so the kernel lets go of them when a process ends however it ends; that is how the others
 * see that it did.
 */
#ifndef LS_COMM_STORE_FOLDER_H
#define LS_COMM_STORE_FOLDER_H

#include "base/wait.h"
#include "comm/store_message.h"

/*
 * Opens a folder that nobody but this process's user can write to: LS_ERR_DENIED for others, LS_ERR_STATE when it does
 * not exist. `parent` is an open folder, in which the name may be no link, or AT_FDCWD.
 */
ls_status ls_folder_open(int parent, const char *path, int *folder);

/* Opens a file of the folder for reading: here and below, a plain one of this user's, else LS_ERR_DENIED. LS_ERR_STATE
 * when it does not exist. */
ls_status ls_folder_open_file(int folder, const char *name, int *file);

/*
 * Opens (and makes) a file of the folder and locks it. LS_ERR_TIMEOUT when another one holds the lock until the
 * deadline, which may have passed already: one attempt is always made.
 */
ls_status ls_folder_lock(int folder, const char *name, ls_deadline deadline, int *locked);

/* Whether somebody else holds a lock on the open file. */
bool ls_file_is_locked(int file);

/* Reads at most `capacity` bytes of an open file from its beginning; `*size` is the file's size. LS_ERR_ARGUMENT when
 * it does not fit. `name` is for messages. */
ls_status ls_file_read(int file, const char *name, void *bytes, size_t capacity, size_t *size);

/*
 * Puts a whole file there at once: readers see the old one or the new one. One writer at a time. The file is locked
 * before it is seen, and left open in *locked.
 */
ls_status ls_folder_write(int folder, const char *name, ls_bytes bytes, int *locked);

#endif
