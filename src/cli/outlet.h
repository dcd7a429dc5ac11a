/* The two outputs of the launcher: buffered, and written in pieces that do not block. */
#ifndef LS_CLI_OUTLET_H
#define LS_CLI_OUTLET_H

#include "base/status.h"

enum { LS_OUTLET_BUFFER = 1 << 16, LS_OUTLET_LINE = LS_ERROR_CAPACITY + 2048 };

/*
 * Called before each write. Returns true once `fd` accepts bytes, or false if the bytes should be dropped because the
 * job has ended and the reader is too slow.
 */
typedef bool (*ls_outlet_wait)(int fd, void *user);

typedef struct ls_outlet {
    int fd;
    int failure;            /* errno of a failed write, after which nothing is written; 0 means none */
    const void *unfinished; /* the stream whose last line is not terminated; NULL if the next byte starts a line */
    ls_outlet_wait wait;
    void *user;
    uint64_t total; /* all bytes so far */
    size_t used;
    char buffer[LS_OUTLET_BUFFER];
} ls_outlet;

/* Appends bytes to the buffer; ls_outlet_flush writes them. */
void ls_outlet_put(ls_outlet *outlet, const char *data, size_t size);
void ls_outlet_flush(ls_outlet *outlet);

/* Terminates an unfinished line unless it belongs to `owner`. */
void ls_outlet_end_line(ls_outlet *outlet, const void *owner);

/*
 * Prints a line of the launcher itself, given as a printf format without a newline, with at most LS_OUTLET_LINE bytes.
 * Makes it printable (base/text.h).
 */
void ls_outlet_print(ls_outlet *outlet, const char *format, ...) LS_PRINTF(2, 3);

#endif
