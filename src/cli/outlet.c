#include "cli/outlet.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

static void write_out(ls_outlet *outlet, const char *data, size_t size) {
    while (size > 0 && outlet->failure == 0) {
        if (!outlet->wait(outlet->fd, outlet->user)) {
            return;
        }
        /* A pipe that is ready accepts this many bytes at once, so the write does not block. */
        const ssize_t wrote = write(outlet->fd, data, size < PIPE_BUF ? size : PIPE_BUF);
        if (wrote < 0 && errno != EINTR && errno != EAGAIN) {
            outlet->failure = errno;
        }
        data += wrote > 0 ? wrote : 0;
        size -= wrote > 0 ? (size_t)wrote : 0;
    }
}

void ls_outlet_flush(ls_outlet *outlet) {
    write_out(outlet, outlet->buffer, outlet->used);
    outlet->used = 0;
}

void ls_outlet_put(ls_outlet *outlet, const char *data, size_t size) {
    outlet->total += size;
    while (size > 0) {
        const size_t room = sizeof outlet->buffer - outlet->used;
        const size_t part = size < room ? size : room;
        memcpy(outlet->buffer + outlet->used, data, part);
        outlet->used += part;
        data += part;
        size -= part;
        if (outlet->used == sizeof outlet->buffer) {
            ls_outlet_flush(outlet);
        }
    }
}

void ls_outlet_end_line(ls_outlet *outlet, const void *owner) {
    if (outlet->unfinished != NULL && outlet->unfinished != owner) {
        ls_outlet_put(outlet, "\n", 1);
        outlet->unfinished = NULL;
    }
}

void ls_outlet_print(ls_outlet *outlet, const char *format, ...) {
    char line[LS_OUTLET_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ls_text_make_printable(line);
    ls_outlet_end_line(outlet, NULL);
    ls_outlet_put(outlet, line, strlen(line));
    ls_outlet_put(outlet, "\n", 1);
    ls_outlet_flush(outlet);
}
