/* Writes event files: the file, its records, scalars, text and graphs. */
#include "formats/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/freed.h"
#include "base/memory.h"
#include "base/option.h"
#include "formats/file.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

enum {
    FLUSH_AT = 1 << 16,   /* bytes */
    FIRST_ROOM = 1 << 17, /* enough for scalars */
    KEPT_MOST = 1 << 20,  /* maximum number of bytes that wait for disk space */
    NAME_ATTEMPTS = 10000,
    GRAPH_PRODUCER = 22 /* the TensorFlow graph version that PyTorch's writer uses, too */
};

#define FLUSH_SECONDS 10
#define FILE_VERSION  "brain.Event:2"

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Processes four bits at a time: the table is small, and the checksum takes less time than building the messages. */
uint32_t ls_record_checksum(const void *bytes, size_t size) {
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *at = bytes, *end = at + size;
    uint32_t crc = UINT32_MAX;
    for (; at < end; at++) {
        crc = table[(crc ^ *at) & 15] ^ crc >> 4;
        crc = table[(crc ^ (uint32_t)*at >> 4) & 15] ^ crc >> 4;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* Truncates the partial record that a failed write left, because no reader could read past it. */
static bool cut(ls_events *events) {
    events->torn = events->torn && ftruncate(events->fd, (off_t)events->size) != 0;
    return !events->torn;
}

static bool write_all(int fd, const uint8_t *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t count = write(fd, bytes + done, size - done);
        if (count < 0 && errno != EINTR) {
            return false;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return true;
}

/* Writes all records or none. Records that could not be written are kept. */
static ls_status flush(const char *call, ls_events *events) {
    ls_proto *records = &events->records;
    events->flushed = ls_clock_seconds();
    bool good = cut(events);
    if (good && records->used > 0) {
        events->torn = true;
        good = write_all(events->fd, records->bytes, records->used);
    }
    if (!good) {
        const int reason = errno;
        (void)cut(events);
        return ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, events->path, strerror(reason));
    }
    events->torn = false;
    events->size += records->used;
    records->used = 0;
    return LS_OK;
}

static ls_status fail_event(const char *call, const ls_events *events) {
    const ls_proto *records = &events->records;
    switch (records->failure) {
    case LS_PROTO_MEMORY:
        return ls_fail_memory(call, records->wanted);
    case LS_PROTO_SIZE:
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s: a record must be smaller than 2 GiB", call, events->path);
    default:
        return records->text == NULL
                   ? ls_fail(LS_ERR_ARGUMENT, "%s: %s: a string is NULL", call, events->path)
                   : ls_fail(LS_ERR_ARGUMENT, "%s: %s: '%.100s' is not UTF-8", call, events->path, records->text);
    }
}

ls_status ls_events_check(const char *call, const ls_events *events, const char *tag) {
    return events == NULL         ? ls_fail_missing("%s: the writer", call)
           : events->path == NULL ? ls_fail_freed(call, "writer", "ls_events_close")
           : tag == NULL          ? ls_fail(LS_ERR_ARGUMENT, "%s: %s: the tag is NULL", call, events->path)
                                  : LS_OK;
}

ls_status ls_events_check_tensor(const char *call, const ls_events *events, const char *tag, const ls_tensor *tensor) {
    LS_TRY(ls_events_check(call, events, tag));
    return tensor == NULL                    ? ls_fail_missing("%s: '%.100s': the tensor", call, tag)
           : ls_tensor_is_here(call, tensor) ? LS_OK
                                             : ls_error_status();
}

ls_proto *ls_events_begin(ls_events *events, int64_t step) {
    ls_proto *records = &events->records;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    events->record = records->used;
    if (ls_proto_reserve(records, LS_RECORD_HEAD)) { /* filled in at the end */
        records->used += LS_RECORD_HEAD;
    }
    ls_proto_double(records, LS_EVENT_WALL_TIME, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    if (step != 0) { /* protobuf omits numbers that are 0 (protobuf.dev) */
        ls_proto_integer(records, LS_EVENT_STEP, step);
    }
    return records;
}

ls_proto *ls_events_begin_value(ls_events *events, const char *tag, int64_t step) {
    ls_proto *records = ls_events_begin(events, step);
    ls_proto_begin(records, LS_EVENT_SUMMARY);
    ls_proto_begin(records, LS_SUMMARY_VALUE);
    ls_proto_text(records, LS_VALUE_TAG, tag);
    return records;
}

/* Frames the event that begins at `record`. */
static void put_frame(ls_proto *records, size_t record) {
    uint8_t *head = records->bytes + record;
    const uint64_t size = records->used - record - LS_RECORD_HEAD;
    memcpy(head, &size, sizeof size);
    const uint32_t checks[] = {ls_record_checksum(head, sizeof size),
                               ls_record_checksum(head + LS_RECORD_HEAD, (size_t)size)};
    memcpy(head + sizeof size, &checks[0], sizeof checks[0]);
    ls_proto_append(records, &checks[1], sizeof checks[1]);
}

ls_status ls_events_end(const char *call, ls_events *events) {
    ls_proto *records = &events->records;
    while (records->depth > 0) {
        ls_proto_end(records);
    }
    if (ls_proto_reserve(records, LS_RECORD_FOOT)) {
        put_frame(records, events->record);
    }
    ls_status status = LS_OK;
    if (records->failure != LS_PROTO_NONE) {
        status = fail_event(call, events);
        records->used = events->record;
        records->failure = LS_PROTO_NONE;
    } else if (records->used >= FLUSH_AT || ls_clock_seconds() - events->flushed >= events->flush_every) {
        status = flush(call, events);
        records->used = records->used > KEPT_MOST ? events->record : records->used;
    }
    return status;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/*
 * File names follow TensorBoard's own writers, so that files sort by creation time. The last number distinguishes files
 * that one process creates within the same second.
 */
static ls_status open_file(const char *call, ls_events *events, const char *folder, const char *suffix) {
    char host[256] = "";
    const size_t room = strlen(folder) + strlen(suffix) + sizeof host + 100;
    events->path = ls_allocate(room);
    if (events->path == NULL) {
        return ls_fail_memory(call, room);
    }
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') {
        snprintf(host, sizeof host, "localhost");
    }
    const time_t now = time(NULL);
    errno = EEXIST;
    for (int i = 0; events->fd < 0 && errno == EEXIST && i < NAME_ATTEMPTS; i++) {
        snprintf(events->path, room, "%s/events.out.tfevents.%010lld.%s.%ld.%d%s", folder, (long long)now, host,
                 (long)getpid(), i, suffix);
        events->fd = open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0666);
    }
    return events->fd >= 0 ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, events->path, strerror(errno));
}

static ls_status begin_file(const char *call, ls_events *events, const char *folder, const char *suffix) {
    if (!ls_proto_reserve(&events->records, FIRST_ROOM)) {
        return fail_event(call, events);
    }
    LS_TRY(ls_folder_make(call, folder));
    LS_TRY(open_file(call, events, folder, suffix));
    ls_proto_text(ls_events_begin(events, 0), LS_EVENT_FILE_VERSION, FILE_VERSION);
    LS_TRY(ls_events_end(call, events));
    return flush(call, events);
}

static void events_free(ls_events *events) {
    if (events->fd >= 0) {
        (void)close(events->fd);
    }
    ls_free(events->records.bytes);
    ls_free(events->path);
    *events = (ls_events){.fd = -1};
    ls_retire(events, LS_RETIRED_SINGLE);
}

ls_events *ls_events_open(const char *folder, const ls_events_options *options) {
    static const char call[] = "ls_events_open";
    static const ls_events_options usual;
    options = options != NULL ? options : &usual;
    const double seconds = ls_option(options->flush_seconds, FLUSH_SECONDS);
    if (folder == NULL || *folder == '\0') {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the folder is empty", call);
    }
    if (!(seconds >= 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: flush_seconds is %g, but must not be negative", call, seconds);
    }
    ls_events *events = ls_allocate_zeroed(1, sizeof *events);
    if (events == NULL) {
        (void)ls_fail_memory(call, sizeof *events);
        return NULL;
    }
    events->fd = -1;
    events->flush_every = seconds;
    events->flushed = ls_clock_seconds();
    if (begin_file(call, events, folder, options->suffix != NULL ? options->suffix : "") != LS_OK) {
        if (events->fd >= 0) {
            (void)unlink(events->path);
        }
        events_free(events);
        return NULL;
    }
    return events;
}

const char *ls_events_path(const ls_events *events) {
    return events != NULL ? events->path : NULL;
}

ls_status ls_events_flush(ls_events *events) {
    LS_TRY(ls_events_check("ls_events_flush", events, ""));
    return flush("ls_events_flush", events);
}

ls_status ls_events_close(ls_events *events) {
    static const char call[] = "ls_events_close";
    if (events == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_events_check(call, events, ""));
    ls_status status = flush(call, events);
    const bool synced = fsync(events->fd) == 0;
    if (!synced && status == LS_OK) {
        status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, events->path, strerror(errno));
    }
    events_free(events);
    return status;
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

ls_status ls_events_scalar(ls_events *events, const char *tag, int64_t step, double value) {
    static const char call[] = "ls_events_scalar";
    LS_TRY(ls_events_check(call, events, tag));
    ls_proto_float(ls_events_begin_value(events, tag, step), LS_VALUE_SIMPLE, (float)value);
    return ls_events_end(call, events);
}

/* Writes a scalar string tensor for TensorBoard's text plugin. */
ls_status ls_events_text(ls_events *events, const char *tag, int64_t step, const char *text) {
    static const char call[] = "ls_events_text";
    LS_TRY(ls_events_check(call, events, tag));
    ls_proto *to = ls_events_begin_value(events, tag, step);
    ls_proto_begin(to, LS_VALUE_TENSOR);
    ls_proto_integer(to, LS_TENSOR_DTYPE, LS_TYPE_TEXT);
    ls_proto_begin(to, LS_TENSOR_SHAPE);
    ls_proto_end(to);
    ls_proto_text(to, LS_TENSOR_TEXT, text);
    ls_proto_end(to);
    ls_proto_begin(to, LS_VALUE_METADATA);
    ls_proto_begin(to, LS_METADATA_PLUGIN);
    ls_proto_text(to, LS_PLUGIN_NAME, "text");
    return ls_events_end(call, events);
}

static void put_node(ls_proto *to, const ls_events_node *node) {
    ls_proto_begin(to, LS_GRAPH_NODE);
    ls_proto_text(to, LS_NODE_NAME, node->name);
    ls_proto_text(to, LS_NODE_OP, node->op);
    for (const char *const *input = node->inputs; input != NULL && *input != NULL; input++) {
        ls_proto_text(to, LS_NODE_INPUT, *input);
    }
    ls_proto_end(to);
}

/* Returns the index of the node with this name; -1 if there is none. */
static int find_node(const ls_events_node *nodes, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(nodes[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Checks the names of node `index`, whose earlier nodes are checked. */
static ls_status check_node(const ls_events *events, const ls_events_node *nodes, int index) {
    const ls_events_node *node = &nodes[index];
    if (node->name == NULL || node->name[0] == '\0' || node->op == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_events_graph: %s: node %d has no %s", events->path, index,
                       node->op == NULL ? "operation" : "name");
    }
    const int earlier = find_node(nodes, index, node->name);
    return earlier < 0 ? LS_OK
                       : ls_fail(LS_ERR_ARGUMENT, "ls_events_graph: %s: nodes %d and %d have the same name, \"%s\"",
                                 events->path, earlier, index, node->name);
}

static ls_status check_inputs(const ls_events *events, const ls_events_node *nodes, int count, int index) {
    const ls_events_node *node = &nodes[index];
    for (int i = 0; node->inputs != NULL && node->inputs[i] != NULL; i++) {
        if (find_node(nodes, count, node->inputs[i]) < 0) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_events_graph: %s: node \"%s\" has the input \"%s\", which is not a node", events->path,
                           node->name, node->inputs[i]);
        }
    }
    return LS_OK;
}

static ls_status check_graph(const ls_events *events, const ls_events_node *nodes, int count) {
    for (int i = 0; i < count; i++) {
        LS_TRY(check_node(events, nodes, i));
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(check_inputs(events, nodes, count, i));
    }
    return LS_OK;
}

ls_status ls_events_graph(ls_events *events, const ls_events_node *nodes, int count) {
    static const char call[] = "ls_events_graph";
    LS_TRY(ls_events_check(call, events, ""));
    if (count < 0 || (nodes == NULL && count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s: nodes are NULL or their number, %d, is negative", call, events->path,
                       count);
    }
    LS_TRY(check_graph(events, nodes, count));
    ls_proto *to = ls_events_begin(events, 0);
    ls_proto_begin(to, LS_EVENT_GRAPH);
    for (int i = 0; i < count; i++) {
        put_node(to, &nodes[i]);
    }
    ls_proto_begin(to, LS_GRAPH_VERSIONS);
    ls_proto_integer(to, LS_VERSIONS_PRODUCER, GRAPH_PRODUCER);
    return ls_events_end(call, events);
}
