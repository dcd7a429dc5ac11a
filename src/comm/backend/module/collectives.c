/* Shared part of the plug-ins for libraries with their own collectives: see collectives.h. */
#include "comm/backend/module/collectives.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"

#define CHANNEL  (LS_TRANSPORT_CHANNELS - 1) /* the engine uses the first channels */
#define GRACE_NS UINT64_C(2000000000)        /* time for the engine to find the cause of the library's failure */
#define SPIN_NS  UINT64_C(200000) /* polling time without pauses, for a library that does not wake this rank, */
#define REST_NS  UINT64_C(50000)  /* and the polling interval after this time */

/* Values of ls_collectives.stage. */
enum {
    APART = 0, /* no collective has been called yet */
    MEETING,   /* the ranks exchange greetings, and a collective waits for the greetings */
    WORKING,   /* the library executes the collective */
    READY,
    ENDED /* no further collectives are possible */
};

static ls_collectives *collectives_of(const ls_endpoint *endpoint) {
    return (ls_collectives *)(uintptr_t)endpoint->transport;
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

void *ls_collectives_said(const ls_collectives *own, int peer) {
    return own->greetings + (size_t)peer * own->library->greeting_size;
}

void *ls_collectives_heard(const ls_collectives *own, int peer) {
    return ls_collectives_said(own, own->endpoint->size + peer);
}

static ls_status greet(ls_collectives *own, int peer) {
    ls_transfer *sent = &own->transfers[peer];
    ls_transfer *received = &own->transfers[own->endpoint->size + peer];
    *sent = (ls_transfer){
        .peer = peer, .channel = CHANNEL, .data = ls_collectives_said(own, peer), .bytes = own->library->greeting_size};
    *received = *sent;
    received->data = ls_collectives_heard(own, peer);
    LS_TRY(own->library->greet(own, peer, sent->data));
    LS_TRY(own->tcp->receive(own->endpoint, received));
    return own->tcp->send(own->endpoint, sent);
}

static ls_status begin_meeting(ls_collectives *own) {
    const int size = own->endpoint->size;
    const size_t ranks = (size_t)size;
    own->greetings = ls_allocate_zeroed(2 * ranks, own->library->greeting_size);
    own->transfers = ls_allocate_zeroed(2 * ranks, sizeof *own->transfers);
    own->counts = ls_allocate_zeroed(4 * ranks, sizeof *own->counts);
    if (own->greetings == NULL || own->transfers == NULL || own->counts == NULL) {
        return ls_fail_memory(own->library->name, 2 * ranks * (own->library->greeting_size + sizeof *own->transfers));
    }
    LS_TRY(own->library->prepare(own));
    for (int peer = 0; peer < size; peer++) {
        LS_TRY(peer != own->endpoint->rank ? greet(own, peer) : LS_OK);
    }
    own->stage = MEETING;
    return LS_OK;
}

/* Checks the greetings. Sets `*all` to true if all greetings have been sent and received. */
static ls_status look_at_greetings(const ls_collectives *own, bool *all) {
    const int size = own->endpoint->size;
    *all = true;
    for (int i = 0; i < 2 * size; i++) {
        const ls_transfer *transfer = &own->transfers[i];
        if (i % size == own->endpoint->rank) {
            continue;
        }
        *all = *all && transfer->ended;
        if (transfer->ended && transfer->bytes != own->library->greeting_size) {
            own->endpoint->blamed = 1 + i - size;
            return ls_fail(LS_ERR_PEER, "rank %d has sent a hello that this version of Lockstep cannot read", i - size);
        }
    }
    return LS_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

ls_status ls_collectives_fail(const ls_collectives *own) {
    return ls_fail(own->library->failure, "%s", own->why);
}

/* Copies the call, including its counts and displacements, which are borrowed only until `collective` returns. */
static void keep_call(ls_collectives *own, const ls_call *call) {
    const size_t size = (size_t)own->endpoint->size;
    const size_t **const lists[] = {&own->call.send_counts, &own->call.send_displacements, &own->call.receive_counts,
                                    &own->call.receive_displacements};
    own->call = *call;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (*lists[i] != NULL) {
            memcpy(own->counts + i * size, *lists[i], size * sizeof *own->counts);
            *lists[i] = own->counts + i * size;
        }
    }
}

static ls_status begin(ls_collectives *own) {
    own->stage = WORKING;
    own->endpoint->yields = true;
    own->began_ns = own->tcp->now_ns(own->endpoint);
    return own->library->begin(own);
}

static ls_status collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer) {
    ls_collectives *own = collectives_of(endpoint);
    *transfer = (ls_transfer){.peer = -1};
    LS_TRY(own->stage == APART ? begin_meeting(own) : LS_OK);
    keep_call(own, call);
    own->transfer = transfer;
    return own->stage == READY ? begin(own) : LS_OK;
}

static void end_call(ls_collectives *own) {
    own->stage = READY;
    own->endpoint->yields = false;
    own->transfer->ended = true;
    own->transfer = NULL;
}

static ls_status note_failure(ls_collectives *own) {
    const uint64_t now = own->tcp->now_ns(own->endpoint);
    own->failed_ns = own->failed_ns == 0 ? now : own->failed_ns;
    return now - own->failed_ns < GRACE_NS ? LS_OK : ls_collectives_fail(own);
}

/* ---- the endpoint ------------------------------------------------------------------------------------------------ */

/* Advances the greeting exchange or the collective. Sets `*moved` to true if the collective has finished. */
static ls_status go_on(ls_collectives *own, bool *moved) {
    bool met = false;
    if (own->stage == MEETING) {
        LS_TRY(look_at_greetings(own, &met));
        LS_TRY(met ? begin(own) : LS_OK);
    }
    if (own->stage != WORKING) {
        return LS_OK;
    }
    const ls_library_state state = own->failed_ns != 0 ? LS_LIBRARY_FAILED : own->library->look(own);
    if (state == LS_LIBRARY_DONE) {
        end_call(own);
        *moved = true;
    }
    return state == LS_LIBRARY_FAILED ? note_failure(own) : LS_OK;
}

static ls_status progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    ls_collectives *own = collectives_of(endpoint);
    bool ended = false;
    LS_TRY(go_on(own, &ended));
    if (own->stage == WORKING && !own->library->wakes) {
        const uint64_t waited = own->tcp->now_ns(endpoint) - own->began_ns;
        wait_ns = waited < SPIN_NS ? 0 : wait_ns < REST_NS ? wait_ns : REST_NS;
    }
    LS_TRY(own->tcp->progress(endpoint, ended ? 0 : wait_ns, moved));
    LS_TRY(ended ? LS_OK : go_on(own, &ended));
    *moved = *moved || ended;
    return LS_OK;
}

static void end_collectives(ls_collectives *own, uint64_t linger_ns) {
    own->library->end(own, own->stage != READY, linger_ns);
    own->stage = ENDED;
    own->transfer = NULL;
}

static void withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_collectives *own = collectives_of(endpoint);
    if (transfer == own->transfer) {
        end_collectives(own, 0);
    } else {
        own->tcp->withdraw(endpoint, transfer);
    }
}

/* Called when the TCP transport no longer uses the memory of any transfer. */
static void discard(void *argument) {
    ls_collectives *own = argument;
    if (own->release != NULL) {
        own->release(own->owner);
    }
    ls_free(own->greetings);
    ls_free(own->transfers);
    ls_free(own->counts);
    ls_free(own);
}

static void close_endpoint(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner) {
    ls_collectives *own = collectives_of(endpoint);
    end_collectives(own, linger_ns);
    own->release = release;
    own->owner = owner;
    own->tcp->close(endpoint, linger_ns, discard, own);
}

ls_collectives *ls_collectives_add(ls_endpoint *endpoint, const ls_collective_library *library,
                                   ls_own_collectives used) {
    ls_collectives *own = ls_allocate_zeroed(1, library->size);
    if (own == NULL) {
        (void)ls_fail_memory("ls_comm_open", library->size);
        return NULL;
    }
    own->tcp = endpoint->transport;
    own->endpoint = endpoint;
    own->library = library;
    own->entries = *endpoint->transport;
    own->entries.name = library->name;
    own->entries.can_make = library->can_make;
    own->entries.collective = collective;
    own->entries.in_place = true;
    own->entries.progress = progress;
    own->entries.withdraw = withdraw;
    own->entries.close = close_endpoint;
    endpoint->transport = &own->entries;
    endpoint->own = used;
    return own;
}
