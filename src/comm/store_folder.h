/*
 * Files and locks in folders of this user, for the store that is announced through a folder and for the user's key.
 * Locks belong to an open file (F_OFD_SETLK), so the kernel releases them when a process exits, however it exits; this
 * is how other processes detect the exit.
 */
#ifndef LS_COMM_STORE_FOLDER_H
#define LS_COMM_STORE_FOLDER_H

#include "base/wait.h"
#include "comm/store_message.h"

/*
 * Opens a folder that only this process's user can write to. Fails with LS_ERR_DENIED if other users can, and with
 * LS_ERR_STATE if the folder does not exist. `parent` is an open folder, in which the name must not be a link, or
 * AT_FDCWD.
 */
ls_status ls_folder_open(int parent, const char *path, int *folder);

/* Opens a file of the folder for reading. Here and below, fails with LS_ERR_DENIED unless it is a regular file of
 * this user, and with LS_ERR_STATE if it does not exist. */
ls_status ls_folder_open_file(int folder, const char *name, int *file);

/*
 * Opens or creates a file of the folder and locks it. Fails with LS_ERR_TIMEOUT if another process holds the lock until
 * the deadline. At least one attempt is made, even if the deadline has already passed.
 */
ls_status ls_folder_lock(int folder, const char *name, ls_deadline deadline, int *locked);

/* Returns true if another process holds a lock on the open file. */
bool ls_file_is_locked(int file);

/* Reads at most `capacity` bytes from the beginning of an open file, and sets `*size` to the file's size. Fails with
 * LS_ERR_ARGUMENT if the file is larger. `name` is for messages. */
ls_status ls_file_read(int file, const char *name, void *bytes, size_t capacity, size_t *size);

/*
 * Replaces a file atomically: readers see either the old or the new file. Only one process at a time may write. The
 * file is locked before it becomes visible, and stays open in `*locked`.
 */
ls_status ls_folder_write(int folder, const char *name, ls_bytes bytes, int *locked);

#endif
