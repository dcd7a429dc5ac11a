/*
 * Damaged event files and their reader, based on files of three writers: TensorBoard's, tensorboardX's and ours.
 * Checksums detect damage in the file. Events that are damaged before they get valid checksums reach the code after the
 * checksums. The program's argument, if any, is the only test to run.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>

#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"
#include "formats/events.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/fuzz.h"

enum { ROOM = 1 << 15, RECORDS = 16, GROWTH = 64 };

/* ---- good files -------------------------------------------------------------------------------------------------- */

typedef struct good_file {
    uint8_t bytes[ROOM];
    size_t size;
    events_record records[RECORDS];
    int count;
    events_list items;
} good_file;

enum { FILES = 3 };
static good_file files[FILES];

static void load(good_file *file, const char *path) {
    uint8_t *bytes = events_load(path, &file->size);
    assert_true(file->size + RECORDS * GROWTH <= ROOM);
    memcpy(file->bytes, bytes, file->size);
    free(bytes);
    file->count = events_records(file->bytes, file->size, file->records, RECORDS);
    assert_true(file->count <= RECORDS);
    assert_int_equal(ls_events_read(path, events_note, &file->items), LS_OK);
}

static int make_files(void **state) {
    (void)state;
    char path[400];
    ls_events *events = ls_events_open(test_path("events"), NULL);
    ls_tensor *tensor = ls_ones(LS_SHAPE(3, 4), LS_F32);
    const ls_events_node node = {"a", "Linear", (const char *const[]){"a", "a", NULL}};
    snprintf(path, sizeof path, "%s", ls_events_path(events));
    const bool good = ls_events_scalar(events, "s", 1, 1) == LS_OK && ls_events_scalar(events, "t", -1, 1) == LS_OK &&
                      ls_events_histogram(events, "h", 1, tensor) == LS_OK &&
                      ls_events_image(events, "i", 1, tensor) == LS_OK &&
                      ls_events_text(events, "t", 1, "text") == LS_OK && ls_events_graph(events, &node, 1) == LS_OK &&
                      ls_events_scalar(events, "s", 2, 1) == LS_OK;
    ls_release(tensor);
    assert_true(ls_events_close(events) == LS_OK && good);
    load(&files[0], path);
    load(&files[1], LS_FIXTURES "/tensorboard.events");
    load(&files[2], LS_FIXTURES "/tensorboardx.events");
    return 0;
}

/* Returns the path of a file in memory, because there are many files. */
static const char *file_of(const uint8_t *bytes, size_t size) {
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("damaged", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bytes, size, 0), size);
    return path;
}

/* ---- checks of the reader ---------------------------------------------------------------------------------------- */

typedef struct tally {
    uint64_t accepted, refused;
} tally;

/* Checks that every item is complete; the sanitizers check the rest. */
static ls_status look(const ls_events_item *item, void *user) {
    uint64_t *hash = user;
    const char *at = item->tag;
    for (uint32_t character; *at != '\0'; at += ls_text_character(at, &character)) {
        assert_true(ls_text_character(at, &character) > 0);
        *hash = (*hash ^ character) * 1099511628211U;
    }
    assert_true((unsigned)item->kind <= LS_EVENTS_OTHER);
    assert_true(item->kind == LS_EVENTS_SCALAR || item->value == 0);
    *hash = (*hash ^ (uint64_t)item->step ^ (unsigned)item->kind) * 1099511628211U;
    return LS_OK;
}

static void note_status(const char *path, ls_status status, tally *counts) {
    if (status == LS_OK) {
        counts->accepted++;
        return;
    }
    counts->refused++;
    if (status != LS_ERR_FORMAT || strstr(ls_error_message(), path) == NULL ||
        strstr(ls_error_message(), "the record at byte ") == NULL) {
        fail_msg("%s: %s", ls_status_name(status), ls_error_message());
    }
}

static void assert_both(const tally *counts) {
    const uint64_t all = counts->accepted + counts->refused;
    assert_true(all < 200 || (counts->accepted > all / 100 && counts->refused > all / 100));
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The items of a damaged file are the first items of the undamaged file. */
static void round_file(uint64_t number, void *argument) {
    static uint8_t bytes[ROOM];
    static events_list items;
    const good_file *file = &files[number % FILES];
    memcpy(bytes, file->bytes, file->size);
    const size_t size = fuzz_mutate(bytes, file->size, ROOM);
    const char *path = file_of(bytes, size);
    items.count = 0;
    note_status(path, ls_events_read(path, events_note, &items), argument);
    assert_true(items.count <= file->items.count);
    for (int i = 0; i < items.count; i++) {
        const ls_events_item *item = &items.items[i], *good = &file->items.items[i];
        assert_string_equal(items.tags[i], file->items.tags[i]);
        assert_true(item->kind == good->kind && item->step == good->step && item->value == good->value);
    }
}

TEST(test_files) {
    tally counts = {0};
    fuzz_run("event files", 6000, round_file, &counts);
    assert_both(&counts);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Inserts the start of a field that the reader looks for, with valid contents and kind or with unsuitable ones. */
static size_t put_field(uint8_t *event, size_t size) {
    const uint8_t field[] = {(uint8_t)((1 + fuzz_below(9)) << 3 | fuzz_below(8)), (uint8_t)fuzz_below(20)};
    const size_t at = fuzz_below(size + 1);
    memmove(event + at + sizeof field, event + at, size - at);
    memcpy(event + at, field, sizeof field);
    return size + sizeof field;
}

/* Copies a part to a different position. */
static size_t repeat_part(uint8_t *event, size_t size) {
    uint8_t part[GROWTH / 4];
    const size_t most = size < sizeof part ? size : sizeof part, count = 1 + fuzz_below(most);
    const size_t at = fuzz_below(size + 1);
    memcpy(part, event + fuzz_below(size - count + 1), count);
    memmove(event + at + count, event + at, size - at);
    memcpy(event + at, part, count);
    return size + count;
}

static size_t damage(uint8_t *event, size_t size) {
    switch (fuzz_below(4)) {
    case 0:
        return put_field(event, size);
    case 1:
        return repeat_part(event, size);
    default:
        return fuzz_mutate(event, size, size + GROWTH);
    }
}

/* Damages a quarter of the events, in valid records. Reading twice gives the same result. */
static void round_event(uint64_t number, void *argument) {
    static uint8_t bytes[ROOM], event[ROOM];
    const good_file *file = &files[number % FILES];
    const size_t chosen = fuzz_below(1U << file->count), mask = chosen & fuzz_below(1U << file->count);
    size_t size = 0;
    for (int i = 0; i < file->count; i++) {
        size_t length = file->records[i].size;
        memcpy(event, file->records[i].event, length);
        if ((mask >> i & 1) != 0) {
            length = damage(event, length);
        }
        size = events_append(bytes, size, event, length);
    }
    uint64_t first = 0, second = 0;
    const char *path = file_of(bytes, size);
    const ls_status status = ls_events_read(path, look, &first);
    note_status(path, status, argument);
    assert_int_equal(ls_events_read(path, look, &second), status);
    assert_true(first == second);
}

TEST(test_events) {
    tally counts = {0};
    fuzz_run("events", 20000, round_event, &counts);
    assert_both(&counts);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_events)};
    cmocka_set_test_filter(count > 1 ? arguments[1] : NULL);
    return cmocka_run_group_tests(tests, make_files, test_files_teardown);
}
