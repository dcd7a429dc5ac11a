#include "comm/store_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/store.h"

static bool try_lock(int file) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

/* Checks the folder's owner and permissions: a process that can write to a folder of the store controls what the
 * ranks read there. */
static ls_status check_folder(int folder, const char *path) {
    struct stat about;
    if (fstat(folder, &about) != 0) {
        return ls_fail(LS_ERR_IO, "cannot examine the folder %s: %s", path, strerror(errno));
    }
    if (about.st_uid != geteuid()) {
        return ls_fail(LS_ERR_DENIED,
                       "the folder %s belongs to user %ld and this process to user %ld: choose a folder of this user, "
                       "or a new folder, which rank 0 creates",
                       path, (long)about.st_uid, (long)geteuid());
    }
    if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return ls_fail(LS_ERR_DENIED,
                       "other users can write to the folder %s: run chmod go-w %s, or choose a new folder in it, which "
                       "rank 0 creates",
                       path, path);
    }
    return LS_OK;
}

ls_status ls_folder_open(int parent, const char *path, int *folder) {
    /* The user chose a path without `parent`, so it may be a link. A name in an open folder must not be a link. */
    const int follow = parent == AT_FDCWD ? 0 : O_NOFOLLOW;
    const int opened = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow);
    if (opened < 0) {
        return ls_fail(errno == ENOENT ? LS_ERR_STATE : LS_ERR_IO, "cannot open the folder %s: %s", path,
                       strerror(errno));
    }
    const ls_status status = check_folder(opened, path);
    if (status != LS_OK) {
        close(opened);
        return status;
    }
    *folder = opened;
    return LS_OK;
}

/* Opens a file of the folder. Only a regular file is accepted: links lead elsewhere, and opening a FIFO may block
 * forever. */
static ls_status open_file(int folder, const char *name, int flags, int *file) {
    struct stat about;
    const int opened = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (opened < 0 && errno != ELOOP) {
        return ls_fail(errno == ENOENT ? LS_ERR_STATE : LS_ERR_IO, "cannot open %s in the store's folder: %s", name,
                       strerror(errno));
    }
    if (opened < 0 || fstat(opened, &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != geteuid()) {
        if (opened >= 0) {
            close(opened);
        }
        return ls_fail(LS_ERR_DENIED, "%s in the store's folder is not a regular file of this user", name);
    }
    *file = opened;
    return LS_OK;
}

/* Returns true if the name still refers to the open file, which the previous holder of the lock may have removed. */
static bool is_still_there(int folder, const char *name, int file) {
    struct stat opened, named;
    return fstat(file, &opened) == 0 && fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

ls_status ls_folder_lock(int folder, const char *name, ls_deadline deadline, int *locked) {
    ls_wait wait = {.limit_ns = 0};
    for (;;) {
        int file = -1;
        const ls_status opened = open_file(folder, name, O_RDWR | O_CREAT, &file);
        if (opened != LS_OK) {
            return opened;
        }
        const bool got = try_lock(file);
        const int error = errno;
        if (got && is_still_there(folder, name, file)) {
            *locked = file;
            return LS_OK;
        }
        close(file);
        if (!got && error != EAGAIN && error != EACCES) {
            return ls_fail(LS_ERR_IO, "cannot lock %s in the store's folder: %s", name, strerror(error));
        }
        if (ls_deadline_passed(deadline)) {
            return ls_fail(LS_ERR_TIMEOUT, "another process holds the lock of the store's folder");
        }
        (void)ls_wait_pause(&wait);
    }
}

ls_status ls_folder_open_file(int folder, const char *name, int *file) {
    return open_file(folder, name, O_RDONLY, file);
}

bool ls_file_is_locked(int file) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

ls_status ls_file_read(int file, const char *name, void *bytes, size_t capacity, size_t *size) {
    struct stat about;
    if (fstat(file, &about) != 0) {
        return ls_fail(LS_ERR_IO, "cannot examine %s in the store's folder: %s", name, strerror(errno));
    }
    *size = (size_t)about.st_size;
    if (*size > capacity) {
        return ls_fail(LS_ERR_FORMAT, "%s in the store's folder was not written by Lockstep", name);
    }
    for (size_t done = 0; done < *size;) {
        const ssize_t step = read(file, (char *)bytes + done, *size - done);
        if (step > 0) {
            done += (size_t)step;
        } else if (step == 0 || errno != EINTR) {
            return ls_fail(LS_ERR_IO, "cannot read %s in the store's folder: %s", name,
                           step == 0 ? "it was truncated" : strerror(errno));
        }
    }
    return LS_OK;
}

static bool write_all(int file, ls_bytes bytes) {
    for (size_t done = 0; done < bytes.size;) {
        const ssize_t step = write(file, (const char *)bytes.data + done, bytes.size - done);
        if (step >= 0) {
            done += (size_t)step;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

ls_status ls_folder_write(int folder, const char *name, ls_bytes bytes, int *locked) {
    /* The folder may belong to the user, with files of any other name. */
    static const char temporary[] = ".lockstep-temporary";
    /* Removes the file of a writer that was killed: it may be locked, or even be visible under another name. */
    unlinkat(folder, temporary, 0);
    const int file = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool fine = file >= 0 && try_lock(file) && write_all(file, bytes);
    fine = fine && renameat(folder, temporary, folder, name) == 0;
    const int error = errno;
    if (file >= 0 && !fine) {
        close(file);
    }
    if (!fine) {
        unlinkat(folder, temporary, 0);
        return ls_fail(LS_ERR_IO, "cannot write %s in the store's folder: %s", name, strerror(error));
    }
    *locked = file;
    return LS_OK;
}
