/* Reads event files: records one by one, and the tags and values of each event. */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "formats/events.h"
#include "formats/file.h"

static const char call[] = "ls_events_read";

/* The table of tags has SLOTS slots. A tag is in one of PROBES successive slots. */
enum { FIRST_ROOM = 1 << 16, SLOTS = 1 << 16, PROBES = 256, KIND_MASK = 7 };

/* ---- records ----------------------------------------------------------------------------------------------------- */

typedef struct events_reader {
    ls_source source;
    uint8_t *bytes; /* a window of the file */
    size_t room, from, until;
    uint64_t offset; /* file offset of bytes[from] */
    ls_status (*each)(const ls_events_item *item, void *user);
    void *user;
    uint64_t *kinds; /* hashes of tags, with the kinds that their plug-ins name; 0 in free slots; NULL without tags */
} events_reader;

static ls_status fail_record(const events_reader *in, const char *reason) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s: the record at byte %" PRIu64 " %s", call, in->source.path, in->offset,
                   reason);
}

/* Moves the unread bytes to the start of the window, and makes room for `size` bytes. */
static ls_status make_room(events_reader *in, size_t size) {
    const size_t room = size > FIRST_ROOM ? size : FIRST_ROOM;
    if (in->from > 0) {
        memmove(in->bytes, in->bytes + in->from, in->until - in->from);
        in->until -= in->from;
        in->from = 0;
    }
    if (room > in->room) {
        uint8_t *bytes = ls_reallocate(in->bytes, in->until, room);
        if (bytes == NULL) {
            return ls_fail_memory(call, room);
        }
        in->bytes = bytes;
        in->room = room;
    }
    return LS_OK;
}

/* Reads until the window contains `size` bytes, or until the end of the file. */
static ls_status want(events_reader *in, size_t size, bool *there) {
    size_t got = 0;
    *there = size <= in->source.size - in->offset;
    if (!*there || size <= in->until - in->from) {
        return LS_OK;
    }
    LS_TRY(make_room(in, size));
    LS_TRY(ls_source_read(&in->source, in->bytes + in->until, in->room - in->until, &got));
    in->until += got;
    *there = size <= in->until;
    return LS_OK;
}

static bool is_checked(const uint8_t *bytes, size_t size) {
    uint32_t check;
    memcpy(&check, bytes + size, sizeof check);
    return check == ls_record_checksum(bytes, size);
}

/* Reads the complete event of the next record. Sets `there` to false at the end of the file. */
static ls_status next_event(events_reader *in, size_t *size, bool *there) {
    uint64_t length;
    LS_TRY(want(in, LS_RECORD_HEAD, there));
    if (!*there) {
        return LS_OK;
    }
    memcpy(&length, in->bytes + in->from, sizeof length);
    if (!is_checked(in->bytes + in->from, sizeof length)) {
        return fail_record(in, in->offset > 0 ? "is damaged: the checksum of its length is wrong"
                                              : "is invalid: this is not an event file");
    }
    if (length > LS_PROTO_MOST) {
        return fail_record(in, "says that it has more than 2 GiB");
    }
    LS_TRY(want(in, LS_RECORD_HEAD + (size_t)length + LS_RECORD_FOOT, there));
    *size = (size_t)length;
    return !*there || is_checked(in->bytes + in->from + LS_RECORD_HEAD, *size)
               ? LS_OK
               : fail_record(in, "is damaged: its checksum is wrong");
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static const char not_fitting[] = "has fields that do not fit into it";

static bool is_bytes(const ls_proto_field *field, int number) {
    return field->number == number && field->wire == LS_PROTO_BYTES;
}

/* The number in a tensor of one element. */
typedef struct tensor_number {
    uint64_t dtype;
    ls_proto_field shape, content, floats, doubles;
} tensor_number;

static bool number_of(const tensor_number *tensor, double *value) {
    const bool single = tensor->dtype == LS_TYPE_FLOAT;
    const ls_proto_field *listed = single ? &tensor->floats : &tensor->doubles;
    const ls_proto_field *from = listed->size > 0 ? listed : &tensor->content;
    float small;
    if ((!single && tensor->dtype != LS_TYPE_DOUBLE) || tensor->shape.size > 0 ||
        from->size != (single ? sizeof small : sizeof *value)) {
        return false;
    }
    if (single) {
        memcpy(&small, from->bytes, sizeof small);
        *value = (double)small;
    } else {
        memcpy(value, from->bytes, sizeof *value);
    }
    return true;
}

static const char *parse_tensor(ls_proto_view from, ls_events_item *item) {
    tensor_number tensor = {0};
    for (ls_proto_field field; ls_proto_next(&from, &field);) {
        tensor.dtype = field.number == LS_TENSOR_DTYPE ? field.integer : tensor.dtype;
        ls_proto_field *wanted = is_bytes(&field, LS_TENSOR_SHAPE)     ? &tensor.shape
                                 : is_bytes(&field, LS_TENSOR_CONTENT) ? &tensor.content
                                 : field.number == LS_TENSOR_FLOAT     ? &tensor.floats
                                 : field.number == LS_TENSOR_DOUBLE    ? &tensor.doubles
                                                                       : NULL;
        if (wanted != NULL) {
            *wanted = field;
        }
    }
    item->kind = number_of(&tensor, &item->value) ? LS_EVENTS_SCALAR : LS_EVENTS_OTHER;
    return from.damaged ? not_fitting : NULL;
}

/* The kinds of values that TensorBoard's plug-ins store in tensors of more than one number. */
static const struct {
    const char *name;
    ls_events_kind kind;
} plugins[] = {{"histograms", LS_EVENTS_HISTOGRAM}, {"images", LS_EVENTS_IMAGE}, {"text", LS_EVENTS_TEXT}};

static const char *parse_plugin(ls_proto_view from, ls_events_kind *kind) {
    for (ls_proto_field field; ls_proto_next(&from, &field);) {
        for (size_t i = 0; is_bytes(&field, LS_PLUGIN_NAME) && i < sizeof plugins / sizeof *plugins; i++) {
            const bool same =
                field.size == strlen(plugins[i].name) && memcmp(field.bytes, plugins[i].name, field.size) == 0;
            *kind = same ? plugins[i].kind : *kind;
        }
    }
    return from.damaged ? not_fitting : NULL;
}

static const char *parse_metadata(ls_proto_view from, ls_events_kind *kind) {
    const char *reason = NULL;
    for (ls_proto_field field; reason == NULL && ls_proto_next(&from, &field);) {
        reason = is_bytes(&field, LS_METADATA_PLUGIN) ? parse_plugin(ls_proto_within(&field), kind) : NULL;
    }
    return from.damaged ? not_fitting : reason;
}

/*
 * Returns the text of a field with a terminating zero byte. To make room, moves the text forward by one byte, over its
 * length. Returns NULL if the text is not UTF-8.
 */
static const char *text_of(const ls_proto_field *field) {
    char *text = (char *)field->bytes - 1;
    memmove(text, field->bytes, field->size);
    text[field->size] = '\0';
    const char *at = text;
    size_t length = 1;
    for (uint32_t character; *at != '\0' && length > 0; at += length) {
        length = ls_text_character(at, &character);
    }
    return at == text + field->size ? text : NULL;
}

/* Reads a field with the contents of a value. If there are several such fields, the last one counts. */
static const char *parse_content(const ls_proto_field *field, ls_events_item *item) {
    float value;
    switch (field->number) {
    case LS_VALUE_SIMPLE:
        if (field->wire == LS_PROTO_32) {
            memcpy(&value, field->bytes, sizeof value);
            item->value = (double)value;
            item->kind = LS_EVENTS_SCALAR;
        }
        return NULL;
    case LS_VALUE_IMAGE:
        item->kind = LS_EVENTS_IMAGE;
        return NULL;
    case LS_VALUE_HISTOGRAM:
        item->kind = LS_EVENTS_HISTOGRAM;
        return NULL;
    case LS_VALUE_TENSOR:
        return field->wire == LS_PROTO_BYTES ? parse_tensor(ls_proto_within(field), item) : NULL;
    default:
        return NULL;
    }
}

/* The metadata of a value. */
typedef struct described_value {
    bool described;        /* there is metadata */
    ls_events_kind plugin; /* the kind of the plug-in that the metadata names; LS_EVENTS_OTHER if it is unknown */
} described_value;

static const char *parse_value(ls_proto_view from, described_value *value, ls_events_item *item) {
    ls_proto_field tag = {0};
    const char *reason = NULL;
    for (ls_proto_field field; reason == NULL && ls_proto_next(&from, &field);) {
        if (is_bytes(&field, LS_VALUE_TAG)) {
            tag = field;
        } else if (is_bytes(&field, LS_VALUE_METADATA)) {
            value->described = true;
            reason = parse_metadata(ls_proto_within(&field), &value->plugin);
        } else {
            reason = parse_content(&field, item);
        }
    }
    if (reason != NULL || from.damaged) {
        return reason != NULL ? reason : not_fitting;
    }
    item->value = item->kind == LS_EVENTS_SCALAR ? item->value : 0;
    item->tag = tag.bytes != NULL ? text_of(&tag) : "";
    return item->tag != NULL ? NULL : "has a tag that is not UTF-8";
}

/* Returns the slot of a tag, or a free slot for it. Returns NULL if there is none, because the file has many tags. */
static uint64_t *slot_of(const events_reader *in, uint64_t hash) {
    for (size_t i = 0; i < PROBES; i++) {
        uint64_t *slot = &in->kinds[((hash >> 32) + i) % SLOTS];
        if (*slot == 0 || (*slot & ~(uint64_t)KIND_MASK) == hash) {
            return slot;
        }
    }
    return NULL;
}

/*
 * Sets the kind of a value in a tensor. TensorFlow's FileWriter names the plug-in only in the first value of each tag,
 * so the reader remembers the kinds of tags. In a file with more than about 50,000 such tags, it may forget some.
 */
static ls_status find_kind(events_reader *in, const described_value *value, ls_events_item *item) {
    const uint64_t hash = ls_hash(LS_HASH_START, item->tag, strlen(item->tag)) & ~(uint64_t)KIND_MASK;
    if (in->kinds == NULL && value->plugin != LS_EVENTS_OTHER) {
        in->kinds = ls_allocate_zeroed(SLOTS, sizeof *in->kinds);
        LS_TRY(in->kinds != NULL ? LS_OK : ls_fail_memory(call, SLOTS * sizeof *in->kinds));
    }
    uint64_t *slot = in->kinds != NULL ? slot_of(in, hash) : NULL;
    if (value->described) {
        item->kind = value->plugin;
        if (slot != NULL && value->plugin != LS_EVENTS_OTHER) {
            *slot = hash | (uint64_t)value->plugin;
        }
    } else if (slot != NULL && *slot != 0) {
        item->kind = (ls_events_kind)(*slot & KIND_MASK);
    }
    return LS_OK;
}

static ls_status give_values(events_reader *in, ls_proto_view summary, const ls_events_item *event) {
    for (ls_proto_field field; ls_proto_next(&summary, &field);) {
        if (is_bytes(&field, LS_SUMMARY_VALUE)) {
            ls_events_item item = *event;
            described_value value = {.plugin = LS_EVENTS_OTHER};
            const char *reason = parse_value(ls_proto_within(&field), &value, &item);
            LS_TRY(reason != NULL ? fail_record(in, reason) : LS_OK);
            LS_TRY(item.kind == LS_EVENTS_OTHER ? find_kind(in, &value, &item) : LS_OK);
            LS_TRY(in->each(&item, in->user));
        }
    }
    return summary.damaged ? fail_record(in, not_fitting) : LS_OK;
}

/* Reads the time and the step first, because they may follow the values in the event. */
static ls_status give_event(events_reader *in, ls_proto_view event) {
    ls_events_item item = {.kind = LS_EVENTS_OTHER, .tag = ""};
    ls_proto_view from = event;
    ls_proto_field field;
    while (ls_proto_next(&from, &field)) {
        if (field.number == LS_EVENT_WALL_TIME && field.wire == LS_PROTO_64) {
            memcpy(&item.wall_time, field.bytes, sizeof item.wall_time);
        } else if (field.number == LS_EVENT_STEP && field.wire == LS_PROTO_VARINT) {
            item.step = (int64_t)field.integer;
        }
    }
    if (from.damaged) {
        return fail_record(in, not_fitting);
    }
    while (ls_proto_next(&event, &field)) {
        if (is_bytes(&field, LS_EVENT_SUMMARY)) {
            LS_TRY(give_values(in, ls_proto_within(&field), &item));
        } else if (is_bytes(&field, LS_EVENT_GRAPH)) {
            ls_events_item graph = item;
            graph.kind = LS_EVENTS_GRAPH;
            LS_TRY(in->each(&graph, in->user));
        }
    }
    return LS_OK;
}

static ls_status read_all(events_reader *in) {
    bool there = true;
    while (there) {
        size_t size = 0;
        LS_TRY(next_event(in, &size, &there));
        if (there) {
            uint8_t *event = in->bytes + in->from + LS_RECORD_HEAD;
            LS_TRY(give_event(in, (ls_proto_view){.at = event, .end = event + size}));
            in->from += LS_RECORD_HEAD + size + LS_RECORD_FOOT;
            in->offset += LS_RECORD_HEAD + size + LS_RECORD_FOOT;
        }
    }
    return LS_OK;
}

ls_status ls_events_read(const char *path, ls_status (*each)(const ls_events_item *item, void *user), void *user) {
    events_reader in = {.each = each, .user = user};
    if (each == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the callback is NULL", call);
    }
    LS_TRY(ls_source_open(call, path, false, &in.source));
    const ls_status status = read_all(&in);
    ls_source_close(&in.source);
    ls_free(in.bytes);
    ls_free(in.kinds);
    return status;
}
