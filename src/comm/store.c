/* The client side of stores: requests to the server. */
#include "comm/store.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/freed.h"
#include "base/memory.h"
#include "base/option.h"

/* A client waits this much longer than the server, so that the server times out first and its reply contains the
 * reason. */
static const double grace_seconds = 1;

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static ls_status make_room(ls_store *store, size_t size) {
    if (size > store->capacity) {
        uint8_t *larger = ls_reallocate(store->buffer, store->capacity, size);
        if (larger == NULL) {
            return ls_fail(LS_ERR_MEMORY, "out of memory for a message of %zu bytes", size);
        }
        store->buffer = larger;
        store->capacity = size;
    }
    return LS_OK;
}

static ls_status receive_reply(ls_store *store, ls_deadline deadline, ls_store_reply *reply) {
    uint8_t header[LS_FRAME_HEADER];
    size_t size;
    LS_TRY(ls_socket_receive(store->fd, header, sizeof header, deadline));
    LS_TRY(ls_frame_size(header, LS_REPLY_FIXED, LS_REPLY_MAX, &size));
    LS_TRY(make_room(store, size));
    LS_TRY(ls_socket_receive(store->fd, store->buffer, size, deadline));
    return ls_reply_decode(store->buffer, size, reply);
}

/* Closes the connection. This call and all later calls fail with the same error. */
static ls_status give_up(ls_store *store, ls_status status) {
    store->broken = status;
    snprintf(store->broken_text, sizeof store->broken_text,
             status == LS_ERR_TIMEOUT ? "rank 0, which serves the store at %s, does not answer: %s"
                                      : "rank 0, which serves the store at %s, has ended: %s",
             store->place, ls_error_message());
    close(store->fd);
    store->fd = -1;
    return ls_fail(status, "%s", store->broken_text);
}

/* Sets this thread's error if the reply reports a failure. Returns the status of the reply. */
static ls_status check_reply(const ls_store_reply *reply) {
    if (reply->status == LS_OK) {
        return LS_OK;
    }
    return ls_fail(reply->status, "%.*s",
                   (int)(reply->value.size < LS_ERROR_CAPACITY ? reply->value.size : LS_ERROR_CAPACITY),
                   (const char *)reply->value.data);
}

/* The work of a process while it waits for a reply. The work ends when `advance` returns false. */
typedef struct meanwhile {
    bool (*advance)(void *argument); /* NULL if there is no work */
    void *argument;
} meanwhile;

/* Calls `advance` until it returns false, a reply arrives, or the deadline passes. */
static void advance_until_reply(const ls_store *store, const meanwhile *work, ls_deadline deadline) {
    ls_wait pauses = {.yields = 1000, .longest_ns = 200000};
    while (work->advance(work->argument) && !ls_wait_event(store->fd, POLLIN, LS_DEADLINE_NOW) &&
           !ls_deadline_passed(deadline)) {
        (void)ls_wait_pause(&pauses);
    }
}

/*
 * Sends a request and receives its reply. The server may let the request wait for `timeout` seconds, and this function
 * waits `grace` seconds longer. The value of the reply points into the store's buffer.
 */
static ls_status ask_meanwhile(ls_store *store, ls_store_request request, double timeout, double grace,
                               const meanwhile *work, ls_store_reply *reply) {
    if (store->broken != LS_OK) {
        return ls_fail(store->broken, "%s", store->broken_text);
    }
    const ls_deadline deadline = ls_deadline_after(timeout + grace);
    const size_t size = ls_request_size(&request);
    request.timeout = timeout < 4e6 ? (uint32_t)(timeout * 1e3 + 0.5) : 4000000000U;
    LS_TRY(make_room(store, size));
    ls_request_encode(&request, store->buffer);
    ls_status status = ls_socket_send(store->fd, store->buffer, size, deadline);
    if (status == LS_OK && work->advance != NULL) {
        advance_until_reply(store, work, deadline);
    }
    if (status == LS_OK) {
        status = receive_reply(store, deadline, reply);
    }
    return status == LS_OK ? check_reply(reply) : give_up(store, status);
}

static ls_status ask_within(ls_store *store, ls_store_request request, double timeout, double grace,
                            ls_store_reply *reply) {
    return ask_meanwhile(store, request, timeout, grace, &(meanwhile){.advance = NULL}, reply);
}

static ls_status ask(ls_store *store, ls_store_request request, double timeout, ls_store_reply *reply) {
    return ask_within(store, request, timeout, grace_seconds, reply);
}

/* ---- the dictionary ---------------------------------------------------------------------------------------------- */

/* Checks the arguments that all calls with a key have in common. On success, `name` is the key. */
static ls_status check(const char *call, const ls_store *store, const char *key, size_t value_size, ls_bytes *name) {
    *name = (ls_bytes){.size = 0};
    if (store == NULL || key == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is NULL", call, store == NULL ? "store" : "key");
    }
    if (store->closed) {
        return ls_fail_freed(call, "store", "ls_store_close");
    }
    *name = (ls_bytes){key, strlen(key)};
    if (name->size == 0 || name->size > LS_STORE_KEY_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the key has %zu bytes, but must have 1 to %d", call, name->size,
                       LS_STORE_KEY_MAX);
    }
    if (value_size > LS_STORE_VALUE_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: key \"%s\": the value has %zu bytes, but at most %u are allowed", call,
                       key, value_size, LS_STORE_VALUE_MAX);
    }
    return LS_OK;
}

/* Prefixes the error message with the call and the key if `status` is a failure. Returns `status`. */
static ls_status finish(const char *call, const char *key, ls_status status) {
    return status == LS_OK ? LS_OK : ls_fail(status, "%s: key \"%s\": %s", call, key, ls_error_message());
}

ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t size) {
    ls_bytes name;
    LS_TRY(check("ls_store_set", store, key, size, &name));
    if (value == NULL && size > 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_set: key \"%s\": value is NULL but size is %zu", key, size);
    }
    ls_store_reply reply;
    const ls_store_request request = {.operation = LS_STORE_SET, .key = name, .value = {value, size}};
    return finish("ls_store_set", key, ask(store, request, store->timeout, &reply));
}

/* Copies the value of a key. Waits until the key is set, but at most for the store's timeout. */
static ls_status get(ls_store *store, ls_bytes key, void *value, size_t capacity, size_t *size) {
    ls_store_reply reply;
    LS_TRY(ask(store, (ls_store_request){.operation = LS_STORE_GET, .key = key}, store->timeout, &reply));
    if (reply.value.size > capacity) {
        return ls_fail(LS_ERR_ARGUMENT, "its value has %zu bytes, but there is room for only %zu", reply.value.size,
                       capacity);
    }
    memcpy(value, reply.value.data, reply.value.size);
    *size = reply.value.size;
    return LS_OK;
}

ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t capacity, size_t *size) {
    ls_bytes name;
    LS_TRY(check("ls_store_get", store, key, 0, &name));
    if (value == NULL || size == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_get: key \"%s\": %s is NULL", key, value == NULL ? "value" : "size");
    }
    return finish("ls_store_get", key, get(store, name, value, capacity, size));
}

ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result) {
    ls_bytes name;
    ls_store_reply reply = {0};
    LS_TRY(check("ls_store_add", store, key, 0, &name));
    const ls_store_request request = {.operation = LS_STORE_ADD, .key = name, .amount = amount};
    const ls_status status = finish("ls_store_add", key, ask(store, request, store->timeout, &reply));
    if (status == LS_OK && result != NULL) {
        *result = reply.number;
    }
    return status;
}

ls_status ls_store_wait(ls_store *store, const char *key, double timeout) {
    ls_bytes name;
    LS_TRY(check("ls_store_wait", store, key, 0, &name));
    if (!(timeout >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_wait: key \"%s\": timeout is %g s, but must not be negative", key,
                       timeout);
    }
    ls_store_reply reply;
    const ls_store_request request = {.operation = LS_STORE_WAIT, .key = name};
    return finish("ls_store_wait", key, ask(store, request, ls_option_timeout(timeout, store->timeout), &reply));
}

ls_status ls_store_compare_set(ls_store *store, const char *key, const void *expected, size_t expected_size,
                               const void *desired, size_t desired_size, bool *swapped) {
    ls_bytes name;
    LS_TRY(
        check("ls_store_compare_set", store, key, expected_size > desired_size ? expected_size : desired_size, &name));
    if ((expected == NULL && expected_size > 0) || (desired == NULL && desired_size > 0) || swapped == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_compare_set: key \"%s\": expected, desired or swapped is NULL", key);
    }
    ls_store_reply reply = {0};
    const ls_store_request request = {.operation = LS_STORE_COMPARE_SET,
                                      .key = name,
                                      .expected = {expected, expected_size},
                                      .value = {desired, desired_size}};
    const ls_status status = finish("ls_store_compare_set", key, ask(store, request, store->timeout, &reply));
    if (status == LS_OK) {
        *swapped = reply.number == 1;
    }
    return status;
}

/* ---- the ranks --------------------------------------------------------------------------------------------------- */

ls_status ls_store_join(ls_store *store, int rank, int size, const ls_peer_info *peer_info, ls_peer_info *peer_infos) {
    ls_store_reply reply;
    const ls_store_request request = {.operation = LS_STORE_JOIN,
                                      .value = {peer_info, sizeof *peer_info},
                                      .amount = ((int64_t)rank << 32) | (int64_t)size};
    LS_TRY(ask(store, request, store->timeout, &reply));
    if (reply.value.size != (size_t)size * sizeof *peer_infos) {
        return ls_fail(LS_ERR_FORMAT, "the store sent %zu bytes of rank data, but %zu were expected", reply.value.size,
                       (size_t)size * sizeof *peer_infos);
    }
    memcpy(peer_infos, reply.value.data, reply.value.size);
    ls_gathering_withdraw(&store->gathering);
    return LS_OK;
}

ls_status ls_store_leave(ls_store *store) {
    return ls_store_leave_while(store, NULL, NULL);
}

ls_status ls_store_leave_while(ls_store *store, bool (*advance)(void *argument), void *argument) {
    ls_store_reply reply;
    const meanwhile work = {.advance = advance, .argument = argument};
    return ask_meanwhile(store, (ls_store_request){.operation = LS_STORE_LEAVE}, store->timeout, grace_seconds, &work,
                         &reply);
}

/* Waits 0 s for a key that is never set: the wait fails with LS_ERR_PEER if a rank has died, otherwise with
 * LS_ERR_TIMEOUT. */
ls_status ls_store_check(ls_store *store) {
    static const char never[] = "lockstep: nobody sets this";
    ls_store_reply reply;
    const ls_store_request request = {.operation = LS_STORE_WAIT, .key = {never, sizeof never - 1}};
    const ls_status status = ask_within(store, request, 0, store->timeout, &reply);
    return status == LS_ERR_TIMEOUT && store->broken == LS_OK ? LS_OK : status;
}
