/* The launcher's own two outputs: buffered, and written in pieces that block nobody. */
#ifndef LS_CLI_OUTLET_H
#define LS_CLI_OUTLET_H

#include "base/status.h"

enum { LS_OUTLET_BUFFER = 1 << 16, LS_OUTLET_LINE = LS_ERROR_CAPACITY + 2048 };

/*
 * Called before each write; returns true when `fd` takes bytes and false when they are to be dropped (the job is over
 * and nobody has read for too long).
 */
typedef bool (*ls_outlet_wait)(int fd, void *user);

typedef struct ls_outlet {
    int fd;
    int failure;            /* errno of the write that failed, after which nothing is written; 0: none did */
    const void *unfinished; /* whose line has no end yet; NULL: the next byte starts a line */
    ls_outlet_wait wait;
    void *user;
    uint64_t total; /* bytes that went through it */
    size_t used;
    char buffer[LS_OUTLET_BUFFER];
} ls_outlet;

/* Bytes on their way; ls_outlet_flush sends them off. */
void ls_outlet_put(ls_outlet *outlet, const char *data, size_t size);
void ls_outlet_flush(ls_outlet *outlet);

/* Ends a line that has no end yet and is not `owner`'s. */
void ls_outlet_end_line(ls_outlet *outlet, const void *owner);

/* A line of the launcher's own, in printf's format, without its newline, of at most LS_OUTLET_LINE bytes; it becomes
 * printable (base/text.h). */
void ls_outlet_say(ls_outlet *outlet, const char *format, ...) LS_PRINTF(2, 3);

#endif
