#include "tests/support/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/events.h"

ls_status events_note(const ls_events_item *item, void *list) {
    events_list *to = list;
    const int at = to->count++;
    if (at >= (int)(sizeof to->items / sizeof *to->items)) {
        return ls_error_set(LS_ERR_INTERNAL, "more than %d items", at);
    }
    snprintf(to->tags[at], sizeof to->tags[at], "%s", item->tag);
    to->items[at] = *item;
    to->items[at].tag = to->tags[at];
    return LS_OK;
}

uint8_t *events_load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rbe");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        abort();
    }
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size + 1);
    if (bytes == NULL || fread(bytes, 1, *size, file) != *size) {
        perror(path);
        abort();
    }
    fclose(file);
    return bytes;
}

int events_records(uint8_t *bytes, size_t size, events_record *records, int most) {
    int count = 0;
    for (size_t at = 0; at + LS_RECORD_HEAD <= size; count++) {
        uint64_t length;
        memcpy(&length, bytes + at, sizeof length);
        if (count < most) {
            records[count] = (events_record){at, bytes + at + LS_RECORD_HEAD, (size_t)length};
        }
        at += LS_RECORD_HEAD + (size_t)length + LS_RECORD_FOOT;
    }
    return count;
}

size_t events_append(uint8_t *bytes, size_t used, const void *event, size_t size) {
    uint8_t *at = bytes + used;
    const uint64_t length = size;
    memcpy(at, &length, sizeof length);
    memmove(at + LS_RECORD_HEAD, event, size);
    const uint32_t checks[] = {ls_record_checksum(at, sizeof length), ls_record_checksum(at + LS_RECORD_HEAD, size)};
    memcpy(at + sizeof length, &checks[0], sizeof checks[0]);
    memcpy(at + LS_RECORD_HEAD + size, &checks[1], sizeof checks[1]);
    return used + LS_RECORD_HEAD + size + LS_RECORD_FOOT;
}

const uint8_t *events_find(const uint8_t *message, size_t size, const int *path, size_t *found) {
    ls_proto_view view = {.at = (uint8_t *)message, .end = (uint8_t *)message + size};
    ls_proto_field field;
    while (*path != 0 && ls_proto_next(&view, &field)) {
        if (field.number == *path && field.wire == LS_PROTO_BYTES) {
            view = ls_proto_within(&field);
            path++;
        }
    }
    *found = (size_t)(view.end - view.at);
    return *path == 0 ? view.at : NULL;
}
