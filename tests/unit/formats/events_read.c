/*
 * Reading TensorBoard's event files: files of other writers, files that are still being written, and damaged files.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>

#include "base/memory.h"
#include "formats/events.h"
#include "tests/support/allocator.h"
#include "tests/support/events.h"
#include "tests/support/files.h"

static const double start = 1700000000.25; /* as in tests/fixtures/make_events.py */

static void expect_item(const events_list *list, int at, ls_events_kind kind, const char *tag, int64_t step,
                        double value) {
    const ls_events_item *item = &list->items[at];
    assert_true(at < list->count);
    assert_int_equal(item->kind, kind);
    assert_string_equal(item->tag, tag);
    assert_true(item->step == step);
    assert_true(item->wall_time == start + (double)step);
    assert_true(item->value == value);
}

/* ---- other writers ----------------------------------------------------------------------------------------------- */

TEST(test_files_of_tensorboard) {
    static events_list list;
    const int descriptors = test_descriptors_count();
    assert_int_equal(ls_events_read(LS_FIXTURES "/tensorboard.events", events_note, &list), LS_OK);
    assert_int_equal(test_descriptors_count(), descriptors);
    expect_item(&list, 0, LS_EVENTS_SCALAR, "loss/train", 1, 0.5);
    expect_item(&list, 1, LS_EVENTS_SCALAR,
                "gr\xc3\xb6\xc3\x9f"
                "e",
                -2, (double)-1e30F);
    expect_item(&list, 2, LS_EVENTS_TEXT, "note", 3, 0);
    expect_item(&list, 3, LS_EVENTS_GRAPH, "", 0, 0);
    expect_item(&list, 4, LS_EVENTS_SCALAR, "as/tensor", 5, 0.25);
    expect_item(&list, 5, LS_EVENTS_SCALAR, "as/double", 5, 1e-300);
    expect_item(&list, 6, LS_EVENTS_SCALAR, "as/content", 5, 2);
    expect_item(&list, 7, LS_EVENTS_OTHER, "several", 5, 0);
    expect_item(&list, 8, LS_EVENTS_OTHER, "one of one", 5, 0);
    expect_item(&list, 9, LS_EVENTS_OTHER, "integer", 5, 0);
    expect_item(&list, 10, LS_EVENTS_HISTOGRAM, "distribution", 5, 0);
    expect_item(&list, 11, LS_EVENTS_OTHER, "sound", 5, 0);
    assert_int_equal(list.count, 12);
}

TEST(test_files_of_tensorboardx) {
    static events_list list;
    assert_int_equal(ls_events_read(LS_FIXTURES "/tensorboardx.events", events_note, &list), LS_OK);
    expect_item(&list, 0, LS_EVENTS_SCALAR, "metrics/accuracy", 1, 0.875);
    expect_item(&list, 1, LS_EVENTS_HISTOGRAM, "weights", 2, 0);
    expect_item(&list, 2, LS_EVENTS_HISTOGRAM, "positive", 3, 0);
    expect_item(&list, 3, LS_EVENTS_HISTOGRAM, "one", 4, 0);
    expect_item(&list, 4, LS_EVENTS_IMAGE, "picture", 5, 0);
    expect_item(&list, 5, LS_EVENTS_TEXT, "note/text_summary", 6, 0);
    assert_int_equal(list.count, 6);
}

/* ---- truncated files --------------------------------------------------------------------------------------------- */

/* A prefix of a file contains a prefix of its items, and reading stops after the last complete record. */
TEST(test_files_that_are_being_written) {
    static events_list whole, part;
    events_record records[16];
    size_t size;
    uint8_t *bytes = events_load(LS_FIXTURES "/tensorboard.events", &size);
    const int count = events_records(bytes, size, records, 16);
    assert_int_equal(ls_events_read(LS_FIXTURES "/tensorboard.events", events_note, &whole), LS_OK);
    for (size_t cut = 0; cut <= size; cut++) {
        int complete = 0;
        while (complete < count && records[complete].event + records[complete].size + LS_RECORD_FOOT <= bytes + cut) {
            complete++;
        }
        part.count = 0;
        assert_int_equal(ls_events_read(test_file("cut", bytes, cut), events_note, &part), LS_OK);
        assert_int_equal(part.count, complete <= 1 ? 0 : complete <= 5 ? complete - 1 : whole.count);
        for (int i = 0; i < part.count; i++) {
            assert_string_equal(part.tags[i], whole.tags[i]);
        }
    }
    free(bytes);
}

/* Any changed byte is detected, and the error contains its position. The items before it are read. */
TEST(test_damaged_files) {
    static events_list list;
    events_record records[16];
    char wanted[64];
    size_t size;
    uint8_t *bytes = events_load(LS_FIXTURES "/tensorboard.events", &size);
    const int count = events_records(bytes, size, records, 16);
    for (size_t at = 0; at < size; at++) {
        int damaged = 0;
        while (damaged + 1 < count && records[damaged + 1].offset <= at) {
            damaged++;
        }
        bytes[at] ^= (uint8_t)(1 << at % 8);
        list.count = 0;
        const char *path = test_file("damaged", bytes, size);
        const ls_status status = ls_events_read(path, events_note, &list);
        snprintf(wanted, sizeof wanted, "damaged: the record at byte %zu is ", records[damaged].offset);
        expect_error(status, LS_ERR_FORMAT, wanted);
        const bool in_length = at - records[damaged].offset < LS_RECORD_HEAD;
        expect_error(status, LS_ERR_FORMAT,
                     !in_length     ? "is damaged: its checksum is wrong"
                     : damaged == 0 ? "is invalid: this is not an event file"
                                    : "is damaged: the checksum of its length is wrong");
        assert_int_equal(list.count, damaged <= 1 ? 0 : damaged <= 5 ? damaged - 1 : 12);
        bytes[at] ^= (uint8_t)(1 << at % 8);
    }
    free(bytes);
}

/* Returns a record with this length, and a valid checksum of the length. */
static const char *record_of_length(uint64_t length) {
    uint8_t bytes[64] = {0};
    memcpy(bytes, &length, sizeof length);
    const uint32_t check = ls_record_checksum(bytes, sizeof length);
    memcpy(bytes + sizeof length, &check, sizeof check);
    return test_file("length", bytes, sizeof bytes);
}

TEST(test_lengths) {
    static events_list list;
    expect_error(ls_events_read(record_of_length((uint64_t)1 << 31), events_note, &list), LS_ERR_FORMAT,
                 "length: the record at byte 0 says that it has more than 2 GiB");
    expect_error(ls_events_read(record_of_length(UINT64_MAX), events_note, &list), LS_ERR_FORMAT, "more than 2 GiB");
    assert_int_equal(ls_events_read(record_of_length(INT32_MAX), events_note, &list), LS_OK);
    assert_int_equal(ls_events_read(record_of_length(64 - 15), events_note, &list), LS_OK);
    expect_error(ls_events_read(record_of_length(64 - 16), events_note, &list), LS_ERR_FORMAT, "its checksum is wrong");
    assert_int_equal(list.count, 0);
}

TEST(test_files_that_cannot_be_read) {
    static events_list list;
    expect_error(ls_events_read(test_path("absent"), events_note, &list), LS_ERR_IO, "/absent: No such file");
    expect_error(ls_events_read(test_path("."), events_note, &list), LS_ERR_IO, " is a folder");
    expect_error(ls_events_read("/dev/zero", events_note, &list), LS_ERR_IO, "/dev/zero is a device");
    expect_error(ls_events_read(NULL, events_note, &list), LS_ERR_ARGUMENT, "the path is NULL");
    expect_error(ls_events_read(test_file("text", "this is not a file of events", 28), events_note, &list),
                 LS_ERR_FORMAT, "text: the record at byte 0 is invalid: this is not an event file");
    expect_error(ls_events_read(test_path("."), NULL, NULL), LS_ERR_ARGUMENT, "ls_events_read: the callback is NULL");
    assert_int_equal(ls_events_read(test_file("empty", "", 0), events_note, &list), LS_OK);
    assert_int_equal(list.count, 0);
}

static ls_status stop_at(const ls_events_item *item, void *user) {
    int *left = user;
    return --*left > 0 ? LS_OK : ls_error_set(LS_ERR_STOPPED, "enough with %s", item->tag);
}

TEST(test_callbacks_that_stop) {
    const int descriptors = test_descriptors_count();
    for (int most = 1; most <= 12; most++) {
        int left = most;
        expect_error(ls_events_read(LS_FIXTURES "/tensorboard.events", stop_at, &left), LS_ERR_STOPPED, "enough with ");
        assert_int_equal(left, 0);
    }
    assert_int_equal(test_descriptors_count(), descriptors);
}

TEST(test_memory_runs_out) {
    static events_list list;
    test_allocator allocator;
    test_allocator_start(&allocator);
    atomic_store(&allocator.fail_from, 0);
    expect_error(ls_events_read(LS_FIXTURES "/tensorboard.events", events_note, &list), LS_ERR_MEMORY,
                 "ls_events_read: out of memory");
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Reads the items of a file with one event. Frees the event. */
static ls_status read_event(ls_proto *event, events_list *list) {
    uint8_t bytes[512];
    memset(list, 0, sizeof *list);
    while (event->depth > 0) {
        ls_proto_end(event);
    }
    assert_true(event->failure == LS_PROTO_NONE && event->used < sizeof bytes - 16);
    const char *path = test_file("event", bytes, events_append(bytes, 0, event->bytes, event->used));
    ls_free(event->bytes);
    *event = (ls_proto){0};
    return ls_events_read(path, events_note, list);
}

static void begin_value(ls_proto *event) {
    ls_proto_begin(event, LS_EVENT_SUMMARY);
    ls_proto_begin(event, LS_SUMMARY_VALUE);
}

static void end_value(ls_proto *event) {
    ls_proto_end(event);
    ls_proto_end(event);
}

static ls_status count_texts(const ls_events_item *item, void *user) {
    *(int *)user += item->kind == LS_EVENTS_TEXT;
    return LS_OK;
}

static void put_unknown(ls_proto *event) {
    ls_proto_integer(event, 1000, -1);
    ls_proto_float(event, 1001, 1);
    ls_proto_double(event, (1 << 29) - 1, 1);
    ls_proto_text(event, 1002, "\xc3\xa4");
}

/* Fields may be in any order, with unknown numbers, and repeated: then the last one counts, and values accumulate. */
TEST(test_events_in_other_orders) {
    static events_list list;
    ls_proto event = {0};
    begin_value(&event);
    put_unknown(&event);
    ls_proto_float(&event, LS_VALUE_SIMPLE, 1);
    ls_proto_text(&event, LS_VALUE_TAG, "not this");
    ls_proto_text(&event, LS_VALUE_TAG, "first");
    ls_proto_float(&event, LS_VALUE_SIMPLE, 2);
    end_value(&event);
    put_unknown(&event);
    ls_proto_double(&event, LS_EVENT_WALL_TIME, 1);
    begin_value(&event);
    ls_proto_float(&event, LS_VALUE_SIMPLE, 1);
    ls_proto_begin(&event, LS_VALUE_IMAGE);
    ls_proto_end(&event);
    ls_proto_end(&event);
    ls_proto_begin(&event, LS_SUMMARY_VALUE);
    ls_proto_begin(&event, LS_VALUE_IMAGE);
    ls_proto_end(&event);
    ls_proto_float(&event, LS_VALUE_SIMPLE, 3);
    end_value(&event);
    ls_proto_integer(&event, LS_EVENT_STEP, 4);
    ls_proto_integer(&event, LS_EVENT_STEP, -5);
    ls_proto_double(&event, LS_EVENT_WALL_TIME, start - 5);
    assert_int_equal(read_event(&event, &list), LS_OK);
    expect_item(&list, 0, LS_EVENTS_SCALAR, "first", -5, 2);
    expect_item(&list, 1, LS_EVENTS_IMAGE, "", -5, 0);
    expect_item(&list, 2, LS_EVENTS_SCALAR, "", -5, 3);
    assert_int_equal(list.count, 3);
}

/* A field whose kind differs from the expected one is treated as unknown. */
TEST(test_fields_of_other_kinds) {
    static events_list list;
    ls_proto event = {0};
    ls_proto_double(&event, LS_EVENT_WALL_TIME, start);
    ls_proto_float(&event, LS_EVENT_WALL_TIME, 1);
    ls_proto_double(&event, LS_EVENT_STEP, 1);
    ls_proto_double(&event, LS_EVENT_SUMMARY, 1);
    ls_proto_integer(&event, LS_EVENT_GRAPH, 1);
    ls_proto_begin(&event, LS_EVENT_SUMMARY);
    ls_proto_float(&event, LS_SUMMARY_VALUE, 1);
    ls_proto_begin(&event, LS_SUMMARY_VALUE);
    ls_proto_text(&event, LS_VALUE_TAG, "a");
    ls_proto_integer(&event, LS_VALUE_TAG, 1);
    ls_proto_integer(&event, LS_VALUE_SIMPLE, 1);
    ls_proto_double(&event, LS_VALUE_METADATA, 1);
    ls_proto_double(&event, LS_VALUE_TENSOR, 1);
    assert_int_equal(read_event(&event, &list), LS_OK);
    assert_int_equal(list.count, 1);
    expect_item(&list, 0, LS_EVENTS_OTHER, "a", 0, 0);
}

typedef struct tensor_case {
    int dtype, dims, field;
    size_t bytes; /* of its elements */
    bool is_number;
} tensor_case;

TEST(test_tensors_that_are_numbers) {
    static const tensor_case cases[] = {
        {LS_TYPE_FLOAT, 0, LS_TENSOR_FLOAT, 4, true},     {LS_TYPE_FLOAT, 0, LS_TENSOR_CONTENT, 4, true},
        {LS_TYPE_DOUBLE, 0, LS_TENSOR_DOUBLE, 8, true},   {LS_TYPE_DOUBLE, 0, LS_TENSOR_CONTENT, 8, true},
        {LS_TYPE_FLOAT, 0, LS_TENSOR_DOUBLE, 8, false},   {LS_TYPE_DOUBLE, 0, LS_TENSOR_FLOAT, 4, false},
        {LS_TYPE_FLOAT, 0, LS_TENSOR_CONTENT, 8, false},  {LS_TYPE_DOUBLE, 0, LS_TENSOR_CONTENT, 4, false},
        {LS_TYPE_FLOAT, 1, LS_TENSOR_FLOAT, 4, false},    {LS_TYPE_TEXT, 0, LS_TENSOR_CONTENT, 4, false},
        {LS_TYPE_FLOAT, 0, LS_TENSOR_FLOAT, 0, false},    {3, 0, LS_TENSOR_CONTENT, 4, false},
        {LS_TYPE_DOUBLE, 0, LS_TENSOR_DOUBLE, 16, false},
    };
    static const float single = 1.5F;
    static const double numbers[] = {1.5, 1.5};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static events_list list;
        ls_proto event = {0};
        ls_proto_double(&event, LS_EVENT_WALL_TIME, start);
        begin_value(&event);
        ls_proto_text(&event, LS_VALUE_TAG, "a");
        ls_proto_begin(&event, LS_VALUE_TENSOR);
        ls_proto_begin(&event, cases[i].field);
        ls_proto_append(&event, cases[i].bytes == 4 ? (const void *)&single : numbers, cases[i].bytes);
        ls_proto_end(&event);
        ls_proto_begin(&event, LS_TENSOR_SHAPE);
        if (cases[i].dims > 0) {
            ls_proto_text(&event, 2, "");
        }
        ls_proto_end(&event);
        ls_proto_integer(&event, LS_TENSOR_DTYPE, cases[i].dtype);
        assert_int_equal(read_event(&event, &list), LS_OK);
        expect_item(&list, 0, cases[i].is_number ? LS_EVENTS_SCALAR : LS_EVENTS_OTHER, "a", 0,
                    cases[i].is_number ? 1.5 : 0);
    }
}

/* Each element is in a separate field, as old writers store them. */
TEST(test_numbers_that_are_not_packed) {
    static events_list list;
    ls_proto event = {0};
    ls_proto_double(&event, LS_EVENT_WALL_TIME, start);
    begin_value(&event);
    ls_proto_begin(&event, LS_VALUE_TENSOR);
    ls_proto_integer(&event, LS_TENSOR_DTYPE, LS_TYPE_FLOAT);
    ls_proto_float(&event, LS_TENSOR_FLOAT, 2.5F);
    assert_int_equal(read_event(&event, &list), LS_OK);
    expect_item(&list, 0, LS_EVENTS_SCALAR, "", 0, 2.5);
}

/* The full name of the plug-in determines the kind of tensors. */
TEST(test_plugins) {
    static const struct {
        const char *name;
        ls_events_kind kind;
    } cases[] = {{"text", LS_EVENTS_TEXT},   {"images", LS_EVENTS_IMAGE}, {"histograms", LS_EVENTS_HISTOGRAM},
                 {"texts", LS_EVENTS_OTHER}, {"tex", LS_EVENTS_OTHER},    {"fonts", LS_EVENTS_OTHER},
                 {"next", LS_EVENTS_OTHER},  {"", LS_EVENTS_OTHER},       {"scalars", LS_EVENTS_OTHER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static events_list list;
        ls_proto event = {0};
        ls_proto_double(&event, LS_EVENT_WALL_TIME, start);
        begin_value(&event);
        ls_proto_begin(&event, LS_VALUE_METADATA);
        ls_proto_begin(&event, LS_METADATA_PLUGIN);
        ls_proto_text(&event, LS_PLUGIN_NAME, cases[i].name);
        ls_proto_text(&event, LS_PLUGIN_NAME + 1, "text"); /* the plug-in's own data */
        assert_int_equal(read_event(&event, &list), LS_OK);
        expect_item(&list, 0, cases[i].kind, "", 0, 0);
    }
}

static void put_value(ls_proto *event, const char *tag, const char *plugin) {
    begin_value(event);
    ls_proto_text(event, LS_VALUE_TAG, tag);
    ls_proto_begin(event, LS_VALUE_TENSOR);
    ls_proto_integer(event, LS_TENSOR_DTYPE, LS_TYPE_TEXT);
    ls_proto_end(event);
    if (plugin != NULL) {
        ls_proto_begin(event, LS_VALUE_METADATA);
        ls_proto_begin(event, LS_METADATA_PLUGIN);
        ls_proto_text(event, LS_PLUGIN_NAME, plugin);
        ls_proto_end(event);
        ls_proto_end(event);
    }
    end_value(event);
}

/* TensorFlow's FileWriter names the plug-in only in the first value of a tag. */
TEST(test_plugins_of_tags) {
    static const struct {
        const char *tag, *plugin;
        ls_events_kind kind;
    } cases[] = {
        {"t", NULL, LS_EVENTS_OTHER},        {"t", "text", LS_EVENTS_TEXT},    {"h", "histograms", LS_EVENTS_HISTOGRAM},
        {"other", "fonts", LS_EVENTS_OTHER}, {"t", NULL, LS_EVENTS_TEXT},      {"", "images", LS_EVENTS_IMAGE},
        {"h", NULL, LS_EVENTS_HISTOGRAM},    {"", NULL, LS_EVENTS_IMAGE},      {"tt", NULL, LS_EVENTS_OTHER},
        {"other", NULL, LS_EVENTS_OTHER},    {"t", "images", LS_EVENTS_IMAGE}, {"t", NULL, LS_EVENTS_IMAGE},
        {"h", "fonts", LS_EVENTS_OTHER}};
    enum { CASES = sizeof cases / sizeof *cases };
    static events_list list;
    static uint8_t bytes[1 << 12];
    size_t size = 0;
    for (int i = 0; i < CASES; i++) {
        ls_proto event = {0};
        ls_proto_double(&event, LS_EVENT_WALL_TIME, start);
        put_value(&event, cases[i].tag, cases[i].plugin);
        assert_int_equal(event.failure, LS_PROTO_NONE);
        size = events_append(bytes, size, event.bytes, event.used);
        ls_free(event.bytes);
    }
    const char *path = test_file("tags", bytes, size);
    assert_int_equal(ls_events_read(path, events_note, &list), LS_OK);
    assert_int_equal(list.count, CASES);
    for (int i = 0; i < CASES; i++) {
        expect_item(&list, i, cases[i].kind, cases[i].tag, 0, 0);
    }
    test_allocator allocator;
    test_allocator_start(&allocator);
    atomic_store(&allocator.fail_from, 1);
    list.count = 0;
    expect_error(ls_events_read(path, events_note, &list), LS_ERR_MEMORY, "ls_events_read: out of memory");
    assert_int_equal(list.count, 1);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

/* The reader remembers the plug-ins of many tags, but of a limited number. */
TEST(test_plugins_of_many_tags) {
    enum { TAGS = 100000, ROOM = 1 << 20 };
    static const int counts[] = {40000, TAGS};
    static uint8_t bytes[8 * ROOM];
    for (int i = 0; i < 2; i++) {
        size_t size = 0;
        for (int j = 0; j < 2 * counts[i]; j++) {
            char tag[16];
            ls_proto event = {0};
            snprintf(tag, sizeof tag, "tag %d", j % counts[i]);
            put_value(&event, tag, j < counts[i] ? "text" : NULL);
            size = events_append(bytes, size, event.bytes, event.used);
            ls_free(event.bytes);
            assert_true(size + 100 < sizeof bytes);
        }
        int texts = 0;
        assert_int_equal(ls_events_read(test_file("many", bytes, size), count_texts, &texts), LS_OK);
        assert_true(i == 0 ? texts == 2 * counts[i] : texts > counts[i] && texts < 2 * counts[i]);
    }
}

/* Bytes that are not valid fields, at every depth that is read. */
TEST(test_events_that_do_not_fit) {
    static const struct {
        size_t size;
        const char *bytes;
    } cases[] = {
        {1, "\x07"}, /* kinds 3, 4, 6 and 7 */
        {1, "\x0b"},
        {1, "\x0c"},
        {1, "\x0e"},
        {2, "\x00\x01"}, /* field 0 */
        {5, "\x05\x01\x02\x03\x04"},
        {1, "\x88"}, /* a truncated number */
        {1, "\x08"},
        {3, "\x08\xff\xff"},
        {11, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"},     /* of 65 bits */
        {12, "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"}, /* of 11 bytes */
        {6, "\x88\x80\x80\x80\x10\x01"},                          /* a field number of 30 bits */
        {3, "\x1a\x02\x01"},                                      /* truncated contents */
        {11, "\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
        {8, "\x09\x01\x02\x03\x04\x05\x06\x07"},
        {4, "\x0d\x01\x02\x03"},
    };
    static const int depths[][5] = {{0},
                                    {LS_EVENT_SUMMARY, 0},
                                    {LS_EVENT_SUMMARY, LS_SUMMARY_VALUE, 0},
                                    {LS_EVENT_SUMMARY, LS_SUMMARY_VALUE, LS_VALUE_TENSOR, 0},
                                    {LS_EVENT_SUMMARY, LS_SUMMARY_VALUE, LS_VALUE_METADATA, 0},
                                    {LS_EVENT_SUMMARY, LS_SUMMARY_VALUE, LS_VALUE_METADATA, LS_METADATA_PLUGIN, 0}};
    static events_list list;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t depth = 0; depth < sizeof depths / sizeof *depths; depth++) {
            ls_proto event = {0};
            for (const int *field = depths[depth]; *field != 0; field++) {
                ls_proto_begin(&event, *field);
            }
            ls_proto_integer(&event, 1000, 1);
            ls_proto_append(&event, cases[i].bytes, cases[i].size);
            expect_error(read_event(&event, &list), LS_ERR_FORMAT,
                         "event: the record at byte 0 has fields that do not fit into it");
            assert_int_equal(list.count, 0);
        }
    }
}

TEST(test_tags) {
    static const struct {
        const char *tag;
        size_t size;
        bool good;
    } cases[] = {{"", 0, true},      {"\xc3\xa4", 2, true}, {"a\xc3", 2, false},
                 {"\xff", 1, false}, {"a\0b", 3, false},    {"\0", 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static events_list list;
        ls_proto event = {0};
        begin_value(&event);
        ls_proto_begin(&event, LS_VALUE_TAG);
        ls_proto_append(&event, cases[i].tag, cases[i].size);
        const ls_status status = read_event(&event, &list);
        if (cases[i].good) {
            assert_int_equal(status, LS_OK);
            assert_string_equal(list.tags[0], cases[i].tag);
        } else {
            expect_error(status, LS_ERR_FORMAT, "event: the record at byte 0 has a tag that is not UTF-8");
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_of_tensorboard),
        cmocka_unit_test(test_files_of_tensorboardx),
        cmocka_unit_test(test_files_that_are_being_written),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_files_that_cannot_be_read),
        cmocka_unit_test(test_callbacks_that_stop),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_events_in_other_orders),
        cmocka_unit_test(test_fields_of_other_kinds),
        cmocka_unit_test(test_tensors_that_are_numbers),
        cmocka_unit_test(test_numbers_that_are_not_packed),
        cmocka_unit_test(test_plugins),
        cmocka_unit_test(test_plugins_of_tags),
        cmocka_unit_test(test_plugins_of_many_tags),
        cmocka_unit_test(test_events_that_do_not_fit),
        cmocka_unit_test(test_tags),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
