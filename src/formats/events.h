/*
 * TensorBoard's event files: records in the framing of TFRecord, each with one Event (tensorflow/core/util/event.proto
 * and framework/summary.proto define the field numbers below). The messages are encoded by hand (protobuf.h).
 */
#ifndef LS_FORMATS_EVENTS_H
#define LS_FORMATS_EVENTS_H

#include <lockstep/formats.h>

#include "base/status.h"
#include "formats/protobuf.h"

/* A record: the length of the event (64 bits, little-endian), a checksum of the length, the event, and a checksum of
 * the event. */
enum { LS_RECORD_HEAD = 12, LS_RECORD_FOOT = 4 };

/* Returns the CRC32C (RFC 3720), masked as in TFRecord: rotated by 15 bits, plus a constant. */
uint32_t ls_record_checksum(const void *bytes, size_t size);

enum {
    LS_EVENT_WALL_TIME = 1, /* double, seconds since 1970 */
    LS_EVENT_STEP = 2,
    LS_EVENT_FILE_VERSION = 3,
    LS_EVENT_GRAPH = 4, /* GraphDef, as bytes */
    LS_EVENT_SUMMARY = 5,
    LS_SUMMARY_VALUE = 1,
    LS_VALUE_TAG = 1, /* Summary.Value: the tag, one of the values that follow in this list, and metadata */
    LS_VALUE_SIMPLE = 2,
    LS_VALUE_OLD_HISTOGRAM = 3,
    LS_VALUE_IMAGE = 4,
    LS_VALUE_HISTOGRAM = 5,
    LS_VALUE_AUDIO = 6,
    LS_VALUE_TENSOR = 8,
    LS_VALUE_METADATA = 9,
    LS_METADATA_PLUGIN = 1,
    LS_PLUGIN_NAME = 1,
    LS_TENSOR_DTYPE = 1, /* TensorProto */
    LS_TENSOR_SHAPE = 2,
    LS_TENSOR_CONTENT = 4,
    LS_TENSOR_FLOAT = 5,
    LS_TENSOR_DOUBLE = 6,
    LS_TENSOR_TEXT = 8,
    LS_GRAPH_NODE = 1, /* GraphDef */
    LS_GRAPH_VERSIONS = 4,
    LS_VERSIONS_PRODUCER = 1,
    LS_NODE_NAME = 1,
    LS_NODE_OP = 2,
    LS_NODE_INPUT = 3,
    LS_TYPE_FLOAT = 1, /* DataType */
    LS_TYPE_DOUBLE = 2,
    LS_TYPE_TEXT = 7
};

struct ls_events {
    int fd;
    char *path;         /* NULL in a record that ls_events_close has retired */
    uint64_t size;      /* size of the complete records in the file */
    bool torn;          /* the file may end with a partial record */
    ls_proto records;   /* records not yet written to the file; the last one may be incomplete */
    size_t record;      /* offset of the last record */
    double flush_every; /* seconds */
    double flushed;     /* time of the last flush, from ls_clock_seconds */
};

/* Fails with LS_ERR_ARGUMENT if the writer, the tag or the tensor is NULL, and with LS_ERR_STATE if the writer or the
   tensor was freed. */
ls_status ls_events_check(const char *call, const ls_events *events, const char *tag);
ls_status ls_events_check_tensor(const char *call, const ls_events *events, const char *tag, const ls_tensor *tensor);

/*
 * Begin and end an event. Between the two calls, the caller writes the event's fields into events->records.
 * ls_events_end closes the open messages and returns the first error. If the event failed, ls_events_end drops the
 * record.
 */
ls_proto *ls_events_begin(ls_events *events, int64_t step);
ls_status ls_events_end(const char *call, ls_events *events);

/* Does the same as ls_events_begin, and opens a summary with one value, which has the given tag. */
ls_proto *ls_events_begin_value(ls_events *events, const char *tag, int64_t step);

#endif
