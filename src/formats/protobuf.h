/*
 * The wire format of protocol buffers (protobuf.dev, "Encoding"), as far as event files need it: fields put behind each
 * other, and walked. By hand, since both together are less than two hundred lines, and writing the messages would take
 * hardly fewer calls with protobuf-c, which is one more library, and a generator that every build would need.
 */
#ifndef LS_FORMATS_PROTOBUF_H
#define LS_FORMATS_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- writing ----------------------------------------------------------------------------------------------------- */

enum {
    LS_PROTO_MOST = INT32_MAX, /* bytes: readers refuse more */
    LS_PROTO_DEPTH = 8
};

typedef enum ls_proto_failure { LS_PROTO_NONE = 0, LS_PROTO_MEMORY, LS_PROTO_SIZE, LS_PROTO_TEXT } ls_proto_failure;

/* Bytes that grow. What fails is remembered, and all that follows is left out, so that callers look once, at the end.
 * Zero is an empty one. */
typedef struct ls_proto {
    uint8_t *bytes;
    size_t used, room;
    size_t open[LS_PROTO_DEPTH]; /* where the contents of the messages that are open begin */
    int depth;
    ls_proto_failure failure; /* the first */
    size_t wanted;            /* the bytes that could not be had */
    const char *text;         /* what is not UTF-8, lent; NULL: what should be one is NULL */
} ls_proto;

/* Notes a failure of the caller's, unless there is one. */
void ls_proto_fail(ls_proto *to, ls_proto_failure failure, size_t wanted);

/* Room for so many bytes behind those that are used; false where something has failed. */
bool ls_proto_reserve(ls_proto *to, size_t size);

/* Bytes without a field: elements of a packed one, and parts of a field that was begun. */
void ls_proto_append(ls_proto *to, const void *bytes, size_t size);

void ls_proto_integer(ls_proto *to, int field, int64_t value);
void ls_proto_float(ls_proto *to, int field, float value);
void ls_proto_double(ls_proto *to, int field, double value);
void ls_proto_text(ls_proto *to, int field, const char *text);

/* A field of bytes, a message for one: what is put between the two. */
void ls_proto_begin(ls_proto *to, int field);
void ls_proto_end(ls_proto *to);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum { LS_PROTO_VARINT = 0, LS_PROTO_64 = 1, LS_PROTO_BYTES = 2, LS_PROTO_32 = 5 };

/* What is left of a message. */
typedef struct ls_proto_view {
    uint8_t *at, *end;
    bool damaged;
} ls_proto_view;

typedef struct ls_proto_field {
    int number;
    int wire;         /* one of the four */
    uint64_t integer; /* of a varint */
    uint8_t *bytes;   /* where the contents begin; at least one byte of the field is before them */
    size_t size;      /* of them; 0 of a varint */
} ls_proto_field;

/* The next field. False at the end, and where what is left is no field, which `damaged` tells. */
bool ls_proto_next(ls_proto_view *from, ls_proto_field *field);

/* The fields within the contents of a field. */
static inline ls_proto_view ls_proto_within(const ls_proto_field *field) {
    return (ls_proto_view){.at = field->bytes, .end = field->bytes + field->size};
}

#endif
