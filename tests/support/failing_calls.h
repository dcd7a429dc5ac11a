/*
 * System calls that replace the calls of the C library in one test program. They count themselves, and one of them
 * fails or kills the process. Only one file of a program may include this header.
 */
#ifndef LS_TESTS_SUPPORT_FAILING_CALLS_H
#define LS_TESTS_SUPPORT_FAILING_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int calls, fails_at = -1, dies_at = -1; /* counted from 0; -1 means never */

/*
 * A flag in memory that processes share: after the first of these processes was killed at a call, each other process is
 * killed at its next call. If the pointer is NULL, the other processes continue.
 */
static atomic_bool *all_die;

/* Returns whether this call must fail. */
static bool fails(void) {
    const int call = atomic_fetch_add(&calls, 1);
    const bool dies = call == atomic_load(&dies_at);
    if (dies && all_die != NULL) {
        atomic_store(all_die, true);
    }
    if (dies || (all_die != NULL && atomic_load(all_die))) {
        (void)raise(SIGKILL);
    }
    if (call == atomic_load(&fails_at)) {
        errno = EIO;
        return true;
    }
    return false;
}

int mkdir(const char *path, mode_t mode) {
    return fails() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    (void)fd;
    return fails() ? -1 : 0;
}

int rename(const char *from, const char *to) {
    return fails() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    return fails() ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int unlink(const char *path) {
    return fails() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int folder, const char *path, int flags) {
    return fails() ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

int rmdir(const char *path) {
    return fails() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int symlink(const char *target, const char *path) {
    return fails() ? -1 : (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? (mode_t)va_arg(rest, unsigned) : 0;
    va_end(rest);
    return fails() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/*
 * Sometimes writes half of the bytes, or a number that direct I/O does not support. Callers must continue from there.
 * Only writes to files count: the threads of a communicator write to descriptors of events, too.
 */
ssize_t write(int fd, const void *bytes, size_t size) {
    static atomic_uint writes;
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        return (ssize_t)syscall(SYS_write, fd, bytes, size);
    }
    const unsigned turn = size < 4 ? 0 : atomic_fetch_add(&writes, 1) % 4;
    const size_t part = turn == 1 ? size / 2 : turn == 3 ? size / 2 + 1 : size;
    return fails() ? -1 : (ssize_t)syscall(SYS_write, fd, bytes, part);
}

#endif
