/*
 * The wire format of protocol buffers (protobuf.dev, "Encoding"), as far as event files need it: appends and iterates
 * fields. It is written by hand: each part has fewer than two hundred lines. With protobuf-c, writing would take about
 * as many calls, and the build would need one more library and a generator.
 */
#ifndef LS_FORMATS_PROTOBUF_H
#define LS_FORMATS_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- writing ----------------------------------------------------------------------------------------------------- */

enum {
    LS_PROTO_MOST = INT32_MAX, /* bytes; readers reject larger messages */
    LS_PROTO_DEPTH = 8
};

typedef enum ls_proto_failure { LS_PROTO_NONE = 0, LS_PROTO_MEMORY, LS_PROTO_SIZE, LS_PROTO_TEXT } ls_proto_failure;

/*
 * A growing buffer. It stores the first failure and then ignores all further calls, so that callers check only at the
 * end. The zero value is an empty buffer.
 */
typedef struct ls_proto {
    uint8_t *bytes;
    size_t used, room;
    size_t open[LS_PROTO_DEPTH]; /* offsets of the contents of the open messages */
    int depth;
    ls_proto_failure failure; /* the first */
    size_t wanted;            /* the size of the failed allocation */
    const char *text;         /* the string that is not UTF-8, borrowed; NULL if the string was NULL */
} ls_proto;

/* Records a failure of the caller, unless a failure is already recorded. */
void ls_proto_fail(ls_proto *to, ls_proto_failure failure, size_t wanted);

/* Makes room for `size` more bytes. Returns false if this or an earlier call failed. */
bool ls_proto_reserve(ls_proto *to, size_t size);

/* Appends bytes without a field header: elements of a packed field, or parts of an open field. */
void ls_proto_append(ls_proto *to, const void *bytes, size_t size);

void ls_proto_integer(ls_proto *to, int field, int64_t value);
void ls_proto_float(ls_proto *to, int field, float value);
void ls_proto_double(ls_proto *to, int field, double value);
void ls_proto_text(ls_proto *to, int field, const char *text);

/* Begin and end a field of bytes, such as a message. Its contents are the bytes that are appended between the two
 * calls. */
void ls_proto_begin(ls_proto *to, int field);
void ls_proto_end(ls_proto *to);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum { LS_PROTO_VARINT = 0, LS_PROTO_64 = 1, LS_PROTO_BYTES = 2, LS_PROTO_32 = 5 };

/* The unread rest of a message. */
typedef struct ls_proto_view {
    uint8_t *at, *end;
    bool damaged;
} ls_proto_view;

typedef struct ls_proto_field {
    int number;
    int wire;         /* one of the four wire types */
    uint64_t integer; /* value of a varint */
    uint8_t *bytes;   /* start of the contents; at least one byte of the field precedes them */
    size_t size;      /* size of the contents; 0 for a varint */
} ls_proto_field;

/* Reads the next field. Returns false at the end. Also returns false, and sets `damaged`, if the rest is not a valid
 * field. */
bool ls_proto_next(ls_proto_view *from, ls_proto_field *field);

/* Returns a view of the fields inside the contents of a field. */
static inline ls_proto_view ls_proto_within(const ls_proto_field *field) {
    return (ls_proto_view){.at = field->bytes, .end = field->bytes + field->size};
}

#endif
