#include "comm/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const ls_store_kind *const kinds[] = {&ls_store_tcp, &ls_store_directory};

ls_status ls_fail_in(const char *call) {
    const size_t length = strlen(call);
    const char *message = ls_error_message();
    if (strncmp(message, call, length) == 0 && message[length] == ':') { /* it says so already */
        return ls_error_status();
    }
    return ls_fail(ls_error_status(), "%s: %s", call, ls_error_message());
}

ls_status ls_address_parse(const char *url, ls_address *address) {
    const char *host = url + strlen(ls_store_tcp.scheme);
    const char *colon = strrchr(host, ':');
    const char *end = colon;
    if (colon != NULL && host[0] == '[' && colon[-1] == ']') {
        host++;
        end--;
    }
    if (colon == NULL || end <= host || (size_t)(end - host) >= sizeof address->host) {
        return ls_fail(LS_ERR_ARGUMENT, "\"%s\" is not of the form tcp://HOST:PORT", url);
    }
    char *rest = NULL;
    const long port = colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &rest, 10) : -1;
    if (port < 0 || port > 65535 || *rest != '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "\"%s\": the port is \"%s\", must be a number from 0 to 65535", url, colon + 1);
    }
    snprintf(address->host, sizeof address->host, "%.*s", (int)(end - host), host);
    address->port = (int)port;
    return LS_OK;
}

void ls_store_nap(ls_deadline since, ls_deadline deadline) {
    const uint64_t now = ls_clock_ns();
    uint64_t length = (now - since) / 32;
    length = length < 200000U ? 200000U : length > 20000000U ? 20000000U : length;
    if (deadline > now && length > deadline - now) {
        length = deadline - now;
    }
    nanosleep(&(struct timespec){.tv_nsec = (long)length}, NULL);
}

static const ls_store_kind *find_kind(const char *url) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strncmp(url, kinds[i]->scheme, strlen(kinds[i]->scheme)) == 0) {
            return kinds[i];
        }
    }
    return ls_fail_null(LS_ERR_ARGUMENT, "\"%s\" begins with neither tcp:// nor file://", url);
}

ls_status ls_store_check_url(const char *url) {
    const ls_store_kind *kind = find_kind(url);
    return kind != NULL ? kind->check_url(url) : ls_error_status();
}

ls_store *ls_store_open_at(const ls_store_place *place) {
    const ls_store_kind *kind = find_kind(place->url);
    return kind != NULL ? kind->open(place) : NULL;
}

ls_store *ls_store_open(const char *url, const ls_store_options *options) {
    if (url == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_store_open: url is NULL");
    }
    const ls_store_options defaults = {0};
    options = options != NULL ? options : &defaults;
    if (!(options->timeout >= 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_store_open: timeout is %g s, must not be negative", options->timeout);
    }
    const ls_store_place place = {.url = url,
                                  .serve = options->serve,
                                  .timeout = options->timeout > 0 ? options->timeout : LS_DEFAULT_TIMEOUT,
                                  .key = options->key,
                                  .listener = -1};
    ls_store *store = ls_store_open_at(&place);
    if (store == NULL) {
        ls_fail_in("ls_store_open");
    }
    return store;
}

void ls_store_close(ls_store *store) {
    if (store != NULL) {
        store->kind->close(store);
    }
}

int ls_store_connection(const ls_store *store) {
    return store->kind->connection != NULL ? store->kind->connection(store) : -1;
}

int ls_store_port(const ls_store *store) {
    return store != NULL ? store->kind->port(store) : 0;
}

/* What every call on a key checks; on success `name` is the key. */
static ls_status check(const char *call, const ls_store *store, const char *key, size_t value_size, ls_bytes *name) {
    if (store == NULL || key == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is NULL", call, store == NULL ? "store" : "key");
    }
    *name = (ls_bytes){key, strlen(key)};
    if (name->size == 0 || name->size > LS_STORE_KEY_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the key has %zu bytes, must have 1 to %d", call, name->size,
                       LS_STORE_KEY_MAX);
    }
    if (value_size > LS_STORE_VALUE_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: key \"%s\": the value has %zu bytes, at most %u are allowed", call, key,
                       value_size, LS_STORE_VALUE_MAX);
    }
    return LS_OK;
}

/* Puts the call and the key before the message of a failure. */
static ls_status finish(const char *call, const char *key, ls_status status) {
    return status == LS_OK ? LS_OK : ls_fail(status, "%s: key \"%s\": %s", call, key, ls_error_message());
}

ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t size) {
    ls_bytes name;
    LS_TRY(check("ls_store_set", store, key, size, &name));
    if (value == NULL && size > 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_set: key \"%s\": value is NULL but size is %zu", key, size);
    }
    return finish("ls_store_set", key, store->kind->set(store, name, (ls_bytes){value, size}));
}

ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t capacity, size_t *size) {
    ls_bytes name;
    LS_TRY(check("ls_store_get", store, key, 0, &name));
    if (value == NULL || size == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_get: key \"%s\": %s is NULL", key, value == NULL ? "value" : "size");
    }
    return finish("ls_store_get", key, store->kind->get(store, name, value, capacity, size, store->timeout));
}

ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result) {
    ls_bytes name;
    int64_t sum;
    LS_TRY(check("ls_store_add", store, key, 0, &name));
    return finish("ls_store_add", key, store->kind->add(store, name, amount, result != NULL ? result : &sum));
}

ls_status ls_store_wait(ls_store *store, const char *key, double timeout) {
    ls_bytes name;
    LS_TRY(check("ls_store_wait", store, key, 0, &name));
    if (!(timeout >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_wait: key \"%s\": timeout is %g s, must not be negative", key,
                       timeout);
    }
    return finish("ls_store_wait", key,
                  store->kind->get(store, name, NULL, 0, NULL, timeout > 0 ? timeout : store->timeout));
}

ls_status ls_store_compare_set(ls_store *store, const char *key, const void *expected, size_t expected_size,
                               const void *desired, size_t desired_size, bool *swapped) {
    ls_bytes name;
    LS_TRY(
        check("ls_store_compare_set", store, key, expected_size > desired_size ? expected_size : desired_size, &name));
    if ((expected == NULL && expected_size > 0) || (desired == NULL && desired_size > 0) || swapped == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_store_compare_set: key \"%s\": expected, desired or swapped is NULL", key);
    }
    return finish("ls_store_compare_set", key,
                  store->kind->compare_set(store, name, (ls_bytes){expected, expected_size},
                                           (ls_bytes){desired, desired_size}, swapped));
}

ls_status ls_store_join(ls_store *store, int rank, int size, const ls_card *card, ls_card *cards) {
    return store->kind->join(store, rank, size, card, cards);
}

ls_status ls_store_leave(ls_store *store) {
    return store->kind->leave(store);
}

ls_status ls_store_check(ls_store *store) {
    return store->kind->check(store);
}

void ls_store_derive_key(const ls_store *store, const char *purpose, const uint8_t first[LS_NONCE_SIZE],
                         const uint8_t second[LS_NONCE_SIZE], ls_key *key) {
    _Static_assert((int)LS_PROOF_SIZE <= (int)LS_KEY_CAPACITY, "a proof makes a key");
    key->size = LS_PROOF_SIZE;
    ls_auth_prove(&store->key, purpose, first, second, key->bytes);
}
