/* Records of event files in memory, for tests that compare or damage them. */
#ifndef LS_TESTS_SUPPORT_EVENTS_H
#define LS_TESTS_SUPPORT_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include <lockstep/formats.h>

/* The items that ls_events_read delivered, with copies of the tags. */
typedef struct events_list {
    int count;
    ls_events_item items[64];
    char tags[64][32];
} events_list;

/* The callback for ls_events_read. `list` must be empty at first. */
ls_status events_note(const ls_events_item *item, void *list);

/* Returns the bytes of a file; the caller frees them. */
uint8_t *events_load(const char *path, size_t *size);

/* One record: its offset, and the event in it. */
typedef struct events_record {
    size_t offset;
    uint8_t *event;
    size_t size;
} events_record;

/* Splits a valid file into at most `most` records. Returns the number of records. */
int events_records(uint8_t *bytes, size_t size, events_record *records, int most);

/* Appends a record with this event to the first `used` bytes of `bytes`. Returns the new number of bytes. */
size_t events_append(uint8_t *bytes, size_t used, const void *event, size_t size);

/*
 * Follows a path of field numbers, terminated by 0, through nested messages, and returns the contents of the last
 * field. Returns NULL if it is missing.
 */
const uint8_t *events_find(const uint8_t *message, size_t size, const int *path, size_t *found);

#endif
