/* The TCP store as each process sees it: one connection to the server, and in rank 0's process the server too. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/store.h"
#include "comm/store_greeting.h"
#include "comm/store_server.h"
#include "comm/user_key.h"

/* How much longer than the server, which ends waits and says why, a client waits before it gives the server up. */
static const double grace_seconds = 1;

typedef struct tcp_store {
    ls_store base;
    ls_store_server *server; /* NULL where another process serves */
    int listener;            /* the server's, which closes it when all ranks have left */
    int fd;                  /* -1 once the connection broke */
    int port;
    char place[LS_HOST_CAPACITY + 8]; /* "HOST:PORT" */
    ls_status broken;                 /* why the connection broke */
    char broken_text[LS_ERROR_CAPACITY];
    uint8_t *buffer; /* the message on its way out, then the one coming in */
    size_t capacity;
} tcp_store;

static ls_status make_room(tcp_store *store, size_t size) {
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

static ls_status receive_reply(tcp_store *store, ls_deadline deadline, ls_store_reply *reply) {
    uint8_t header[LS_FRAME_HEADER];
    size_t size;
    LS_TRY(ls_socket_receive(store->fd, header, sizeof header, deadline));
    LS_TRY(ls_frame_size(header, LS_REPLY_FIXED, LS_REPLY_MAX, &size));
    LS_TRY(make_room(store, size));
    LS_TRY(ls_socket_receive(store->fd, store->buffer, size, deadline));
    return ls_reply_decode(store->buffer, size, reply);
}

/* The connection is of no more use: this call and all later ones fail for the same reason. */
static ls_status give_up(tcp_store *store, ls_status status) {
    store->broken = status;
    snprintf(store->broken_text, sizeof store->broken_text,
             status == LS_ERR_TIMEOUT ? "rank 0, which serves the store at %s, does not answer: %s"
                                      : "rank 0, which serves the store at %s, is gone: %s",
             store->place, ls_error_message());
    close(store->fd);
    store->fd = -1;
    return ls_fail(status, "%s", store->broken_text);
}

/* A reply that says that something failed becomes this thread's failure. */
static ls_status check_reply(const ls_store_reply *reply) {
    if (reply->status == LS_OK) {
        return LS_OK;
    }
    return ls_fail(reply->status, "%.*s",
                   (int)(reply->value.size < LS_ERROR_CAPACITY ? reply->value.size : LS_ERROR_CAPACITY),
                   (const char *)reply->value.data);
}

/*
 * Sends a request that may wait `timeout` seconds at the server, and the server `grace` seconds besides. The reply's
 * value lies in the store's buffer.
 */
static ls_status ask_within(ls_store *base, ls_store_request request, double timeout, double grace,
                            ls_store_reply *reply) {
    tcp_store *store = (tcp_store *)base;
    if (store->broken != LS_OK) {
        return ls_fail(store->broken, "%s", store->broken_text);
    }
    const ls_deadline deadline = ls_deadline_after(timeout + grace);
    const size_t size = ls_request_size(&request);
    request.timeout = timeout < 4e6 ? (uint32_t)(timeout * 1e3 + 0.5) : 4000000000U;
    LS_TRY(make_room(store, size));
    ls_request_encode(&request, store->buffer);
    ls_status status = ls_socket_send(store->fd, store->buffer, size, deadline);
    if (status == LS_OK) {
        status = receive_reply(store, deadline, reply);
    }
    return status == LS_OK ? check_reply(reply) : give_up(store, status);
}

static ls_status ask(ls_store *base, ls_store_request request, double timeout, ls_store_reply *reply) {
    return ask_within(base, request, timeout, grace_seconds, reply);
}

/* ---- operations ---- */

static ls_status tcp_set(ls_store *store, ls_bytes key, ls_bytes value) {
    ls_store_reply reply;
    return ask(store, (ls_store_request){.operation = LS_STORE_SET, .key = key, .value = value}, store->timeout,
               &reply);
}

static ls_status tcp_get(ls_store *store, ls_bytes key, void *value, size_t capacity, size_t *size, double timeout) {
    ls_store_reply reply;
    const ls_store_operation operation = value != NULL ? LS_STORE_GET : LS_STORE_WAIT;
    LS_TRY(ask(store, (ls_store_request){.operation = operation, .key = key}, timeout, &reply));
    if (value == NULL) {
        return LS_OK;
    }
    if (reply.value.size > capacity) {
        return ls_fail(LS_ERR_ARGUMENT, "its value has %zu bytes, there is room for %zu", reply.value.size, capacity);
    }
    memcpy(value, reply.value.data, reply.value.size);
    *size = reply.value.size;
    return LS_OK;
}

static ls_status tcp_add(ls_store *store, ls_bytes key, int64_t amount, int64_t *result) {
    ls_store_reply reply;
    LS_TRY(ask(store, (ls_store_request){.operation = LS_STORE_ADD, .key = key, .amount = amount}, store->timeout,
               &reply));
    *result = reply.number;
    return LS_OK;
}

static ls_status tcp_compare_set(ls_store *store, ls_bytes key, ls_bytes expected, ls_bytes desired, bool *swapped) {
    ls_store_reply reply;
    LS_TRY(
        ask(store,
            (ls_store_request){.operation = LS_STORE_COMPARE_SET, .key = key, .expected = expected, .value = desired},
            store->timeout, &reply));
    *swapped = reply.number == 1;
    return LS_OK;
}

static ls_status tcp_join(ls_store *store, int rank, int size, const ls_card *card, ls_card *cards) {
    ls_store_reply reply;
    const ls_store_request request = {
        .operation = LS_STORE_JOIN, .value = {card, sizeof *card}, .amount = ((int64_t)rank << 32) | (int64_t)size};
    LS_TRY(ask(store, request, store->timeout, &reply));
    if (reply.value.size != (size_t)size * sizeof *cards) {
        return ls_fail(LS_ERR_FORMAT, "the store told of %zu bytes of ranks, expected are %zu", reply.value.size,
                       (size_t)size * sizeof *cards);
    }
    memcpy(cards, reply.value.data, reply.value.size);
    return LS_OK;
}

static ls_status tcp_leave(ls_store *store) {
    ls_store_reply reply;
    return ask(store, (ls_store_request){.operation = LS_STORE_LEAVE}, store->timeout, &reply);
}

/* Every wait of a job in which somebody died fails with that. */
static ls_status tcp_check(ls_store *store) {
    static const char never[] = "lockstep: nobody sets this";
    ls_store_reply reply;
    const ls_store_request request = {.operation = LS_STORE_WAIT, .key = {never, sizeof never - 1}};
    const ls_status status = ask_within(store, request, 0, store->timeout, &reply);
    return status == LS_ERR_TIMEOUT && ((tcp_store *)store)->broken == LS_OK ? LS_OK : status;
}

/* ---- opening ---- */

static void tcp_close(ls_store *base) {
    tcp_store *store = (tcp_store *)base;
    ls_key_forget(&base->key);
    if (store->fd >= 0) {
        close(store->fd);
    }
    ls_store_server_stop(store->server);
    ls_free(store->buffer);
    ls_free(store);
}

/* Makes the store serve, on the inherited socket or one of its own. */
static ls_status start_serving(tcp_store *store, const ls_store_place *place, ls_address *address) {
    const ls_key *key = &store->base.key;
    store->listener = place->listener;
    if (place->listener >= 0) {
        LS_TRY(ls_socket_adopt(place->listener, key->given));
    } else {
        LS_TRY(ls_socket_listen(address, key->given, &store->listener));
    }
    address->port = ls_socket_port(store->listener);
    store->server = ls_store_server_start(store->listener, key, &store->fd);
    return store->server != NULL ? LS_OK : ls_error_status();
}

static ls_status open_place(tcp_store *store, const ls_store_place *place) {
    ls_address address;
    LS_TRY(ls_key_find(&store->base.key, place->key));
    LS_TRY(ls_address_parse(place->url, &address));
    if (place->serve) {
        LS_TRY(start_serving(store, place, &address));
    } else if (address.port == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "\"%s\": port 0 is for who serves the store only", place->url);
    }
    store->port = address.port;
    snprintf(store->place, sizeof store->place, "%s:%d", address.host, address.port);
    const ls_greeting_target target = {.address = address, .server = "rank 0", .thing = "the store"};
    return place->serve ? LS_OK : ls_greeting_connect(&target, &store->base.key, store->base.timeout, &store->fd);
}

static ls_store *tcp_open(const ls_store_place *place) {
    tcp_store *store = ls_allocate_zeroed(1, sizeof *store);
    if (store == NULL) {
        return ls_fail_null(LS_ERR_MEMORY, "out of memory for a store");
    }
    store->base = (ls_store){.kind = &ls_store_tcp, .timeout = place->timeout};
    store->fd = store->listener = -1;
    const ls_status status = open_place(store, place);
    if (status != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        snprintf(message, sizeof message, "%s", ls_error_message());
        tcp_close(&store->base);
        ls_error_restore(status, message);
        return NULL;
    }
    return &store->base;
}

static ls_status tcp_check_url(const char *url) {
    ls_address address;
    return ls_address_parse(url, &address);
}

static int tcp_port(const ls_store *store) {
    return ((const tcp_store *)store)->port;
}

/* To rank 0 leads the address at which it listens. */
static int tcp_connection(const ls_store *base) {
    const tcp_store *store = (const tcp_store *)base;
    return store->server != NULL ? store->listener : store->fd;
}

const ls_store_kind ls_store_tcp = {
    .scheme = "tcp://",
    .check_url = tcp_check_url,
    .open = tcp_open,
    .close = tcp_close,
    .port = tcp_port,
    .connection = tcp_connection,
    .set = tcp_set,
    .get = tcp_get,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .join = tcp_join,
    .leave = tcp_leave,
    .check = tcp_check,
};
