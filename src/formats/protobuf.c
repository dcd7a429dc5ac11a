#include "formats/protobuf.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum { VARINT_MOST = 10, FIRST_ROOM = 256 };

/* ---- writing ----------------------------------------------------------------------------------------------------- */

void ls_proto_fail(ls_proto *to, ls_proto_failure failure, size_t wanted) {
    if (to->failure == LS_PROTO_NONE) {
        to->failure = failure;
        to->wanted = wanted;
    }
}

bool ls_proto_reserve(ls_proto *to, size_t size) {
    if (to->failure != LS_PROTO_NONE) {
        return false;
    }
    if (size > LS_PROTO_MOST - to->used) {
        ls_proto_fail(to, LS_PROTO_SIZE, size);
        return false;
    }
    if (to->used + size <= to->room) {
        return true;
    }
    size_t room = to->room > 0 ? to->room : FIRST_ROOM;
    while (room < to->used + size) {
        room *= 2;
    }
    uint8_t *bytes = ls_reallocate(to->bytes, to->used, room);
    if (bytes == NULL) {
        ls_proto_fail(to, LS_PROTO_MEMORY, room);
        return false;
    }
    to->bytes = bytes;
    to->room = room;
    return true;
}

void ls_proto_append(ls_proto *to, const void *bytes, size_t size) {
    if (ls_proto_reserve(to, size)) {
        memcpy(to->bytes + to->used, bytes, size);
        to->used += size;
    }
}

static size_t encode_varint(uint8_t *bytes, uint64_t value) {
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) {
        bytes[size++] = (uint8_t)(value | 0x80);
    }
    bytes[size++] = (uint8_t)value;
    return size;
}

static void append_varint(ls_proto *to, uint64_t value) {
    uint8_t bytes[VARINT_MOST];
    ls_proto_append(to, bytes, encode_varint(bytes, value));
}

static void append_key(ls_proto *to, int field, int wire) {
    append_varint(to, (uint64_t)field << 3 | (unsigned)wire);
}

void ls_proto_integer(ls_proto *to, int field, int64_t value) {
    append_key(to, field, LS_PROTO_VARINT);
    append_varint(to, (uint64_t)value);
}

void ls_proto_float(ls_proto *to, int field, float value) {
    append_key(to, field, LS_PROTO_32);
    ls_proto_append(to, &value, sizeof value);
}

void ls_proto_double(ls_proto *to, int field, double value) {
    append_key(to, field, LS_PROTO_64);
    ls_proto_append(to, &value, sizeof value);
}

static bool is_text(const char *text) {
    size_t length = 1;
    for (uint32_t character; *text != '\0' && length > 0; text += length) {
        length = ls_text_character(text, &character);
    }
    return length > 0;
}

void ls_proto_text(ls_proto *to, int field, const char *text) {
    const size_t size = text != NULL ? strlen(text) : 0;
    if (!ls_proto_reserve(to, size)) { /* after a failure, skips the check of each character */
        return;
    }
    if (text == NULL || !is_text(text)) {
        to->text = text;
        ls_proto_fail(to, LS_PROTO_TEXT, 0);
        return;
    }
    append_key(to, field, LS_PROTO_BYTES);
    append_varint(to, size);
    ls_proto_append(to, text, size);
}

void ls_proto_begin(ls_proto *to, int field) {
    append_key(to, field, LS_PROTO_BYTES);
    to->open[to->depth++] = to->used;
}

/* Writes the length before the contents, because the length takes a varying number of bytes. */
void ls_proto_end(ls_proto *to) {
    const size_t begun = to->open[--to->depth], size = to->used - begun;
    uint8_t length[VARINT_MOST];
    const size_t width = encode_varint(length, size);
    if (ls_proto_reserve(to, width)) {
        memmove(to->bytes + begun + width, to->bytes + begun, size);
        memcpy(to->bytes + begun, length, width);
        to->used += width;
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool read_varint(ls_proto_view *from, uint64_t *value) {
    *value = 0;
    for (int i = 0; i < VARINT_MOST && from->at < from->end; i++) {
        const uint8_t byte = *from->at++;
        *value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            return i < VARINT_MOST - 1 || byte <= 1;
        }
    }
    return false;
}

static bool read_field(ls_proto_view *from, ls_proto_field *field) {
    uint64_t key, size = 0;
    if (!read_varint(from, &key) || key > UINT32_MAX || key >> 3 == 0) {
        return false;
    }
    *field = (ls_proto_field){.number = (int)(key >> 3), .wire = (int)(key & 7)};
    switch (field->wire) {
    case LS_PROTO_VARINT:
        field->bytes = from->at;
        return read_varint(from, &field->integer);
    case LS_PROTO_64:
        size = 8;
        break;
    case LS_PROTO_32:
        size = 4;
        break;
    case LS_PROTO_BYTES:
        if (!read_varint(from, &size)) {
            return false;
        }
        break;
    default: /* groups, which are obsolete */
        return false;
    }
    if (size > (size_t)(from->end - from->at)) {
        return false;
    }
    field->bytes = from->at;
    field->size = (size_t)size;
    from->at += size;
    return true;
}

bool ls_proto_next(ls_proto_view *from, ls_proto_field *field) {
    if (from->damaged || from->at == from->end) {
        return false;
    }
    from->damaged = !read_field(from, field);
    return !from->damaged;
}
