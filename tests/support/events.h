/* Records of event files in memory, for tests that compare and damage them. */
#ifndef LS_TESTS_SUPPORT_EVENTS_H
#define LS_TESTS_SUPPORT_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include <lockstep/formats.h>

/* What ls_events_read has given, the tags copied. */
typedef struct events_list {
    int count;
    ls_events_item items[64];
    char tags[64][32];
} events_list;

/* To be given to ls_events_read with a list that begins empty. */
ls_status events_note(const ls_events_item *item, void *list);

/* A file's bytes; the caller frees them. */
uint8_t *events_load(const char *path, size_t *size);

/* One record: where it begins, and its event within it. */
typedef struct events_record {
    size_t offset;
    uint8_t *event;
    size_t size;
} events_record;

/* The records of a good file, at most `most` of them; returns how many there are. */
int events_records(uint8_t *bytes, size_t size, events_record *records, int most);

/* Appends a record with this event to `bytes`, of which `used` are; returns how many are then. */
size_t events_append(uint8_t *bytes, size_t used, const void *event, size_t size);

/* The contents of a field of bytes of a message, and of the fields of bytes in it whose numbers follow, up to a 0; NULL
 * when there is none. */
const uint8_t *events_find(const uint8_t *message, size_t size, const int *path, size_t *found);

#endif
