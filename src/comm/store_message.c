#include "comm/store_message.h"

#include <string.h>

static void put(uint8_t *bytes, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t take(const uint8_t *bytes, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

ls_status ls_frame_size(const uint8_t header[LS_FRAME_HEADER], size_t smallest, size_t largest, size_t *size) {
    const size_t length = (size_t)take(header, LS_FRAME_HEADER);
    if (length < smallest || length > largest) {
        return ls_fail(LS_ERR_FORMAT, "a message of %zu bytes was announced, but only %zu to %zu are allowed", length,
                       smallest, largest);
    }
    *size = length;
    return LS_OK;
}

static uint8_t *append(uint8_t *at, ls_bytes bytes) {
    if (bytes.size > 0) {
        memcpy(at, bytes.data, bytes.size);
    }
    return at + bytes.size;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* The parts that a request of each operation has. */
typedef struct request_rule {
    bool key, expected, value, amount;
} request_rule;

static const request_rule rules[LS_STORE_OPERATION_END] = {
    [LS_STORE_SET] = {.key = true, .value = true},
    [LS_STORE_GET] = {.key = true},
    [LS_STORE_ADD] = {.key = true, .amount = true},
    [LS_STORE_WAIT] = {.key = true},
    [LS_STORE_COMPARE_SET] = {.key = true, .expected = true, .value = true},
    [LS_STORE_JOIN] = {.value = true, .amount = true},
    [LS_STORE_LEAVE] = {.key = false},
};

size_t ls_request_size(const ls_store_request *request) {
    return LS_FRAME_HEADER + LS_REQUEST_FIXED + request->key.size + request->expected.size + request->value.size;
}

void ls_request_encode(const ls_store_request *request, uint8_t *bytes) {
    put(bytes, ls_request_size(request) - LS_FRAME_HEADER, LS_FRAME_HEADER);
    uint8_t *body = bytes + LS_FRAME_HEADER;
    put(body, (uint64_t)request->operation, 2);
    put(body + 2, request->key.size, 2);
    put(body + 4, request->expected.size, 4);
    put(body + 8, request->value.size, 4);
    put(body + 12, request->timeout, 4);
    put(body + 16, (uint64_t)request->amount, 8);
    append(append(append(body + LS_REQUEST_FIXED, request->key), request->expected), request->value);
}

static ls_status check_request(const ls_store_request *request) {
    const request_rule *rule = &rules[request->operation];
    if (rule->key ? request->key.size == 0 || request->key.size > LS_STORE_KEY_MAX ||
                        memchr(request->key.data, 0, request->key.size) != NULL
                  : request->key.size > 0) {
        return ls_fail(LS_ERR_FORMAT, "a request's key is missing, too long, unexpected or not text");
    }
    if (request->expected.size > (rule->expected ? LS_STORE_VALUE_MAX : 0) ||
        request->value.size > (rule->value ? LS_STORE_VALUE_MAX : 0) || (request->amount != 0 && !rule->amount)) {
        return ls_fail(LS_ERR_FORMAT, "a request's value is too long or unexpected");
    }
    if (request->operation == LS_STORE_JOIN) {
        const int64_t rank = request->amount >> 32;
        const int64_t size = request->amount & 0xffffffff;
        if (rank < 0 || rank >= size || size > LS_RANKS_MAX) {
            return ls_fail(LS_ERR_FORMAT, "a process wants to join as rank %lld of %lld", (long long)rank,
                           (long long)size);
        }
    }
    return LS_OK;
}

ls_status ls_request_decode(const uint8_t *body, size_t size, ls_store_request *request) {
    if (size < LS_REQUEST_FIXED) {
        return ls_fail(LS_ERR_FORMAT, "a request has %zu bytes, but at least %d are needed", size, LS_REQUEST_FIXED);
    }
    const unsigned operation = (unsigned)take(body, 2);
    if (operation < LS_STORE_SET || operation >= LS_STORE_OPERATION_END) {
        return ls_fail(LS_ERR_FORMAT, "a request has the unknown operation %u", operation);
    }
    const size_t key_size = (size_t)take(body + 2, 2);
    const size_t expected_size = (size_t)take(body + 4, 4);
    const size_t value_size = (size_t)take(body + 8, 4);
    if (size - LS_REQUEST_FIXED != key_size + expected_size + value_size) {
        return ls_fail(LS_ERR_FORMAT, "a request's parts do not add up to its %zu bytes", size);
    }
    const uint8_t *parts = body + LS_REQUEST_FIXED;
    *request = (ls_store_request){
        .operation = (ls_store_operation)operation,
        .key = {parts, key_size},
        .expected = {parts + key_size, expected_size},
        .value = {parts + key_size + expected_size, value_size},
        .amount = (int64_t)take(body + 16, 8),
        .timeout = (uint32_t)take(body + 12, 4),
    };
    return check_request(request);
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */

size_t ls_reply_size(const ls_store_reply *reply) {
    return LS_FRAME_HEADER + LS_REPLY_FIXED + reply->value.size;
}

void ls_reply_encode(const ls_store_reply *reply, uint8_t *bytes) {
    put(bytes, ls_reply_size(reply) - LS_FRAME_HEADER, LS_FRAME_HEADER);
    uint8_t *body = bytes + LS_FRAME_HEADER;
    put(body, (uint64_t)reply->status, 4);
    put(body + 4, reply->value.size, 4);
    put(body + 8, (uint64_t)reply->number, 8);
    append(body + LS_REPLY_FIXED, reply->value);
}

ls_status ls_reply_decode(const uint8_t *body, size_t size, ls_store_reply *reply) {
    if (size < LS_REPLY_FIXED || size - LS_REPLY_FIXED != take(body + 4, 4)) {
        return ls_fail(LS_ERR_FORMAT, "a reply's parts do not add up to its %zu bytes", size);
    }
    const unsigned status = (unsigned)take(body, 4);
    if (status > LS_ERR_DEVICE) {
        return ls_fail(LS_ERR_FORMAT, "a reply has the unknown status %u", status);
    }
    if (size - LS_REPLY_FIXED > LS_STORE_VALUE_MAX) {
        return ls_fail(LS_ERR_FORMAT, "a reply has a value of %zu bytes, but at most %u are allowed",
                       size - LS_REPLY_FIXED, LS_STORE_VALUE_MAX);
    }
    *reply = (ls_store_reply){
        .status = (ls_status)status,
        .number = (int64_t)take(body + 8, 8),
        .value = {body + LS_REPLY_FIXED, size - LS_REPLY_FIXED},
    };
    return LS_OK;
}
