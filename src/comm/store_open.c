/* Opens stores, by the server's address or through the folder that contains this address, and closes them. */
#include "comm/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/freed.h"
#include "base/memory.h"
#include "base/option.h"
#include "comm/interface.h"
#include "comm/store_greeting.h"
#include "comm/user_key.h"

static const char tcp_scheme[] = "tcp://", file_scheme[] = "file://", loopback[] = "127.0.0.1";

static bool begins(const char *url, const char *scheme) {
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

ls_status ls_fail_in(const char *call) {
    const size_t length = strlen(call);
    const char *message = ls_error_message();
    if (strncmp(message, call, length) == 0 && message[length] == ':') { /* the message already begins with the call */
        return ls_error_status();
    }
    return ls_fail(ls_error_status(), "%s: %s", call, ls_error_message());
}

ls_status ls_address_parse(const char *url, ls_address *address) {
    const char *host = url + sizeof tcp_scheme - 1;
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
        return ls_fail(LS_ERR_ARGUMENT, "\"%s\": the port is \"%s\", but must be a number from 0 to 65535", url,
                       colon + 1);
    }
    snprintf(address->host, sizeof address->host, "%.*s", (int)(end - host), host);
    address->port = (int)port;
    return LS_OK;
}

ls_status ls_store_check_url(const char *url) {
    ls_address address;
    if (begins(url, tcp_scheme)) {
        return ls_address_parse(url, &address);
    }
    if (!begins(url, file_scheme)) {
        return ls_fail(LS_ERR_ARGUMENT, "\"%s\" begins with neither tcp:// nor file://", url);
    }
    return url[sizeof file_scheme - 1] != '\0'
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "\"%s\" names no folder: file://PATH is needed", url);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Starts the server of the store, on the inherited socket or a new socket. */
static ls_status serve(ls_store *store, ls_address *address) {
    if (store->listener >= 0) {
        LS_TRY(ls_socket_adopt(store->listener, store->key.given));
    } else {
        LS_TRY(ls_socket_listen(address, store->key.given, &store->listener));
    }
    address->port = ls_socket_port(store->listener);
    store->server = ls_store_server_start(store->listener, &store->key, &store->fd);
    if (store->server == NULL) {
        store->listener = -1; /* closed */
        return ls_error_status();
    }
    return LS_OK;
}

static ls_status open_address(ls_store *store, const ls_store_place *place, ls_address *address) {
    LS_TRY(ls_key_find(&store->key, place->key));
    LS_TRY(ls_address_parse(place->url, address));
    if (place->serve) {
        return serve(store, address);
    }
    const ls_greeting_target target = {.address = *address, .server = "rank 0", .thing = "the store"};
    return address->port != 0
               ? ls_greeting_connect(&target, &store->key, store->timeout, &store->fd)
               : ls_fail(LS_ERR_ARGUMENT, "\"%s\": port 0 is allowed only for the process that serves the store",
                         place->url);
}

/* Starts the server at this machine's address, or on loopback if no other interface is up, and writes the address to
   the folder. */
static ls_status serve_folder(ls_store *store, const ls_store_place *place, const ls_key *given, ls_address *address) {
    ls_announcement own = {.keyed = given->given};
    char host[LS_ADDRESS_CAPACITY];
    LS_TRY(ls_gathering_open(place->url + sizeof file_scheme - 1, &store->gathering));
    /* An unavailable interface is reported only later, when all ranks have joined and get the error. */
    if (ls_interface_address(place->interface, -1, false, host) != LS_OK &&
        ls_interface_address(NULL, -1, false, host) != LS_OK) {
        snprintf(host, sizeof host, "%s", loopback);
    }
    LS_TRY(ls_auth_nonce(own.secret));
    ls_announcement_key(&own, given, &store->key);
    snprintf(address->host, sizeof address->host, "%s", host);
    address->port = 0;
    LS_TRY(serve(store, address));
    own.address = *address;
    return ls_gathering_announce(&store->gathering, &own, store->timeout);
}

/* The result of a search in a folder. */
typedef struct finding {
    const char *path;
    ls_announcement announcement;
} finding;

static bool is_over(const void *context) {
    const finding *found = context;
    return !ls_gathering_is_announced(found->path, &found->announcement);
}

/* An unreachable address is detected only by the timeout. So a waiting rank checks whether rank 0 has exited, or has
 * restarted at a different address. */
static ls_status find_folder(ls_store *store, const ls_store_place *place, const ls_key *given, ls_address *address) {
    const ls_deadline deadline = ls_deadline_after(store->timeout);
    finding found = {.path = place->url + sizeof file_scheme - 1};
    ls_status status;
    do {
        LS_TRY(ls_gathering_find(found.path, deadline, store->timeout, &found.announcement));
        const uint64_t now = ls_clock_ns();
        *address = found.announcement.address;
        ls_announcement_key(&found.announcement, given, &store->key);
        const ls_greeting_target target = {.address = *address,
                                           .server = "rank 0",
                                           .thing = "the store",
                                           .limit = store->timeout,
                                           .is_void = is_over,
                                           .context = &found};
        status =
            ls_greeting_connect(&target, &store->key, deadline > now ? (double)(deadline - now) * 1e-9 : 0, &store->fd);
    } while (status == LS_ERR_STATE);
    const char *why = ls_greeting_compare_keys(given->given, found.announcement.keyed);
    if (why != NULL && status == LS_ERR_DENIED) { /* the server only knows of a wrong key, and has notified rank 0 */
        return ls_fail(LS_ERR_DENIED, "%s", why);
    }
    return status == LS_ERR_TIMEOUT ? ls_fail(status,
                                              "%s; on several machines, set LOCKSTEP_INTERFACE on rank 0 to the "
                                              "interface through which the other ranks reach rank 0",
                                              ls_error_message())
                                    : status;
}

static ls_status open_place(ls_store *store, const ls_store_place *place) {
    ls_address address;
    LS_TRY(ls_store_check_url(place->url));
    if (begins(place->url, tcp_scheme)) {
        LS_TRY(open_address(store, place, &address));
    } else {
        ls_key given;
        LS_TRY(ls_key_read(&given, place->key));
        const ls_status status =
            place->serve ? serve_folder(store, place, &given, &address) : find_folder(store, place, &given, &address);
        ls_key_forget(&given);
        LS_TRY(status);
    }
    store->port = address.port;
    snprintf(store->place, sizeof store->place, "%s:%d", address.host, address.port);
    return LS_OK;
}

ls_store *ls_store_open_at(const ls_store_place *place) {
    ls_store *store = calloc(1, sizeof *store); /* for ls_keep_freed */
    if (store == NULL) {
        return ls_fail_null(LS_ERR_MEMORY, "out of memory while creating a store");
    }
    store->timeout = place->timeout;
    store->fd = -1;
    store->listener = place->listener;
    const ls_status status = open_place(store, place);
    if (status != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_store_close(store);
        (void)ls_error_put_back(&cause);
        return NULL;
    }
    return store;
}

ls_store *ls_store_open(const char *url, const ls_store_options *options) {
    if (url == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_store_open: url is NULL");
    }
    const ls_store_options defaults = {0};
    options = options != NULL ? options : &defaults;
    if (!(options->timeout >= 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_store_open: timeout is %g s, but must not be negative",
                            options->timeout);
    }
    const ls_store_place place = {.url = url,
                                  .serve = options->serve,
                                  .timeout = ls_option_timeout(options->timeout, LS_DEFAULT_TIMEOUT),
                                  .key = options->key,
                                  .listener = -1};
    ls_store *store = ls_store_open_at(&place);
    if (store == NULL) {
        ls_fail_in("ls_store_open");
    }
    return store;
}

void ls_store_close(ls_store *store) {
    if (store == NULL || store->closed) {
        return;
    }
    ls_gathering_close(&store->gathering);
    ls_key_forget(&store->key);
    if (store->fd >= 0) {
        close(store->fd);
    }
    if (store->server == NULL && store->listener >= 0) { /* otherwise the server has closed it or will close it */
        close(store->listener);
    }
    ls_store_server_stop(store->server);
    ls_free(store->buffer);
    *store = (ls_store){.closed = true};
    ls_keep_freed(store);
}

/* ---- properties of a store --------------------------------------------------------------------------------------- */

/* On rank 0, this is the listening socket, because the other ranks reach rank 0 at its address. */
int ls_store_connection(const ls_store *store) {
    return store->server != NULL ? store->listener : store->fd;
}

int ls_store_port(const ls_store *store) {
    return store != NULL ? store->port : 0;
}
