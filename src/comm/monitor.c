#include "comm/monitor.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"

/* The maximum number of unsent messages to one rank. A late rank may not receive any messages for a long time. */
enum { UNSENT_MOST = 16 };

typedef enum message_kind { SAID_NOTHING = 0, ENTERED, READY, GAVE_UP } message_kind;

/* A message. It is followed by a mask of the late ranks, with one bit per rank. Only GAVE_UP uses the last two
   fields and the mask. */
typedef struct monitor_message {
    uint64_t number; /* of the barrier */
    uint32_t kind;
    int32_t giver;  /* the rank whose timeout passed */
    double seconds; /* this timeout */
} monitor_message;

/* A message in progress to a rank. The contents follow this struct. */
typedef struct unsent_message {
    _Alignas(16) struct unsent_message *next;
    void *request;
    int to;
} unsent_message;

/* Another rank. */
typedef struct monitor_peer {
    uint64_t number; /* number of the latest message from the rank */
    message_kind kind;
    uint64_t told_number; /* number of the latest message to the rank */
    message_kind told_kind;
    int unsent;
    bool listens; /* a receive of the rank's next message is in progress */
    void *request;
} monitor_peer;

struct ls_monitor {
    int rank;
    int size;
    size_t bytes;      /* size of a message with its mask */
    uint64_t number;   /* of the current barrier */
    message_kind said; /* latest message of this rank about this barrier */
    double seconds;    /* this rank's timeout */
    bool knows_late;   /* `own` is a GAVE_UP of this barrier */
    unsigned turn; /* the rank that is polled first: the backend occasionally checks whether the polled rank is alive */
    const bool *contested;
    ls_monitor_state state;
    monitor_peer *peers;
    unsigned char *own;   /* the message that this rank sends */
    unsigned char *heard; /* one message per rank */
    unsent_message *unsent;
};

static void *message_from(const ls_monitor *monitor, int rank) {
    return monitor->heard + monitor->bytes * (size_t)rank;
}

static unsigned char *mask_of(void *message) {
    return (unsigned char *)message + sizeof(monitor_message);
}

static bool has_bit(const void *message, int rank) {
    const unsigned char *mask = (const unsigned char *)message + sizeof(monitor_message);
    return (mask[rank / 8] >> (rank % 8) & 1) != 0;
}

ls_monitor *ls_monitor_new(int rank, int size) {
    const size_t bytes = (sizeof(monitor_message) + ((size_t)size + 7) / 8 + 15) / 16 * 16;
    const size_t all = sizeof(ls_monitor) + bytes + (size_t)size * (sizeof(monitor_peer) + bytes);
    ls_monitor *monitor = ls_allocate_zeroed(1, sizeof *monitor);
    if (monitor == NULL) {
        (void)ls_fail_memory("ls_comm_monitored_barrier", all);
        return NULL;
    }
    monitor->rank = rank;
    monitor->size = size;
    monitor->bytes = bytes;
    monitor->peers = ls_allocate_zeroed((size_t)size, sizeof *monitor->peers);
    monitor->own = ls_allocate_zeroed(1, monitor->bytes);
    monitor->heard = ls_allocate_zeroed((size_t)size, monitor->bytes);
    if (monitor->peers == NULL || monitor->own == NULL || monitor->heard == NULL) {
        ls_monitor_free(monitor);
        (void)ls_fail_memory("ls_comm_monitored_barrier", all);
        return NULL;
    }
    return monitor;
}

void ls_monitor_free(ls_monitor *monitor) {
    if (monitor == NULL) {
        return;
    }
    while (monitor->unsent != NULL) {
        unsent_message *next = monitor->unsent->next;
        ls_free(monitor->unsent);
        monitor->unsent = next;
    }
    ls_free(monitor->peers);
    ls_free(monitor->own);
    ls_free(monitor->heard);
    ls_free(monitor);
}

uint64_t ls_monitor_enter(ls_monitor *monitor, double seconds, const bool *contested) {
    monitor->number++;
    monitor->said = SAID_NOTHING;
    monitor->seconds = seconds;
    monitor->contested = contested;
    monitor->knows_late = false;
    monitor->state = LS_MONITOR_WAITS;
    return monitor->number;
}

static ls_call call_of(const ls_monitor *monitor, int peer) {
    return (ls_call){.operation = LS_OP_MONITORED_BARRIER,
                     .dtype = LS_U8,
                     .root = peer,
                     .tag = LS_TAG_INTERNAL,
                     .count = monitor->bytes,
                     .width = 1,
                     .sequence = monitor->number,
                     .untimed = true,
                     .contested = monitor->contested};
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static bool has_entered(const ls_monitor *monitor, int rank) {
    return rank == monitor->rank || monitor->peers[rank].number >= monitor->number;
}

/* A rank that is in a later barrier has given up this one. */
static bool has_given_up(const ls_monitor *monitor, int rank) {
    const monitor_peer *peer = &monitor->peers[rank];
    return peer->number > monitor->number || (peer->number == monitor->number && peer->kind == GAVE_UP);
}

static bool wants_more(const ls_monitor *monitor, const monitor_peer *peer) {
    const message_kind last = monitor->state == LS_MONITOR_FAILED ? GAVE_UP : READY;
    return peer->number < monitor->number || (peer->number == monitor->number && peer->kind < last);
}

/* Processes the message received from a rank. */
static ls_status take(ls_monitor *monitor, int from) {
    monitor_peer *peer = &monitor->peers[from];
    const monitor_message *message = message_from(monitor, from);
    const bool later =
        message->number > peer->number || (message->number == peer->number && message->kind > peer->kind);
    if (message->kind < ENTERED || message->kind > GAVE_UP || !later) {
        return ls_fail(LS_ERR_PEER, "ls_comm_monitored_barrier #%llu: rank %d sent an invalid message",
                       (unsigned long long)monitor->number, from);
    }
    peer->number = message->number;
    peer->kind = (message_kind)message->kind;
    if (message->number == monitor->number && message->kind == GAVE_UP && !monitor->knows_late) {
        memcpy(monitor->own, message, monitor->bytes);
        monitor->knows_late = true;
    }
    return LS_OK;
}

static ls_status listen_to(ls_monitor *monitor, const ls_monitor_network *network, int from) {
    monitor_peer *peer = &monitor->peers[from];
    while (wants_more(monitor, peer)) {
        bool finished = false;
        if (!peer->listens) {
            ls_call call = call_of(monitor, from);
            call.receive = message_from(monitor, from);
            LS_TRY(network->post(network->context, &call, &peer->request));
            peer->listens = true;
            finished = peer->request == NULL;
        } else {
            LS_TRY(network->test(network->context, peer->request, &finished));
        }
        if (!finished) {
            return LS_OK;
        }
        peer->listens = false;
        LS_TRY(take(monitor, from));
    }
    return LS_OK;
}

static ls_status listen_to_all(ls_monitor *monitor, const ls_monitor_network *network) {
    const int first = (int)(monitor->turn++ % (unsigned)monitor->size);
    for (int i = 0; i < monitor->size; i++) {
        const int peer = (first + i) % monitor->size;
        LS_TRY(peer != monitor->rank ? listen_to(monitor, network, peer) : LS_OK);
    }
    return LS_OK;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static ls_status tell(ls_monitor *monitor, const ls_monitor_network *network, int to) {
    monitor_peer *peer = &monitor->peers[to];
    unsent_message *unsent = ls_allocate(sizeof *unsent + monitor->bytes);
    if (unsent == NULL) {
        return ls_fail_memory("ls_comm_monitored_barrier", sizeof *unsent + monitor->bytes);
    }
    *unsent = (unsent_message){.to = to};
    memcpy(unsent + 1, monitor->own, monitor->bytes);
    ls_call call = call_of(monitor, to);
    call.send = unsent + 1;
    const ls_status status = network->post(network->context, &call, &unsent->request);
    if (status != LS_OK || unsent->request == NULL) {
        ls_free(unsent);
    } else {
        unsent->next = monitor->unsent;
        monitor->unsent = unsent;
        peer->unsent++;
    }
    peer->told_number = monitor->number;
    peer->told_kind = monitor->said;
    return status;
}

static ls_status tell_all(ls_monitor *monitor, const ls_monitor_network *network) {
    monitor_message *own = (monitor_message *)(void *)monitor->own;
    own->number = monitor->number;
    own->kind = monitor->said;
    for (int rank = 0; rank < monitor->size; rank++) {
        const monitor_peer *peer = &monitor->peers[rank];
        const bool knows = peer->told_number == monitor->number && peer->told_kind == monitor->said;
        if (rank != monitor->rank && !knows && peer->unsent < UNSENT_MOST) {
            LS_TRY(tell(monitor, network, rank));
        }
    }
    return LS_OK;
}

/* Frees the messages that have been sent. */
static ls_status end_sent(ls_monitor *monitor, const ls_monitor_network *network) {
    for (unsent_message **link = &monitor->unsent; *link != NULL;) {
        unsent_message *unsent = *link;
        bool finished = false;
        LS_TRY(network->test(network->context, unsent->request, &finished));
        if (finished) {
            *link = unsent->next;
            monitor->peers[unsent->to].unsent--;
            ls_free(unsent);
        } else {
            link = &unsent->next;
        }
    }
    return LS_OK;
}

/* ---- the barrier ------------------------------------------------------------------------------------------------- */

static bool all_have(const ls_monitor *monitor, message_kind kind) {
    for (int rank = 0; rank < monitor->size; rank++) {
        const monitor_peer *peer = &monitor->peers[rank];
        if (rank != monitor->rank && (peer->number != monitor->number || peer->kind < kind)) {
            return false;
        }
    }
    return true;
}

static bool any_gave_up(const ls_monitor *monitor) {
    for (int rank = 0; rank < monitor->size; rank++) {
        if (rank != monitor->rank && has_given_up(monitor, rank)) {
            return true;
        }
    }
    return false;
}

/* Called when this rank's timeout has passed. */
static void note_late(ls_monitor *monitor) {
    monitor_message *own = (monitor_message *)(void *)monitor->own;
    memset(monitor->own, 0, monitor->bytes);
    own->giver = monitor->rank;
    own->seconds = monitor->seconds;
    for (int rank = 0; rank < monitor->size; rank++) {
        if (!has_entered(monitor, rank)) {
            mask_of(own)[rank / 8] |= (unsigned char)(1U << (rank % 8));
        }
    }
    monitor->knows_late = true;
}

static void give_up(ls_monitor *monitor) {
    monitor->state = LS_MONITOR_FAILED;
    monitor->said = monitor->said == SAID_NOTHING ? SAID_NOTHING : GAVE_UP;
}

static void decide(ls_monitor *monitor, bool expired) {
    if (any_gave_up(monitor)) {
        give_up(monitor);
        return;
    }
    monitor->said = monitor->said == SAID_NOTHING ? ENTERED : monitor->said;
    if (monitor->state == LS_MONITOR_WAITS && all_have(monitor, ENTERED)) {
        monitor->state = LS_MONITOR_READY;
        monitor->said = READY;
    }
    if (monitor->state == LS_MONITOR_READY && all_have(monitor, READY)) {
        monitor->state = LS_MONITOR_PASSED;
    }
    if (monitor->state == LS_MONITOR_WAITS && expired) {
        note_late(monitor);
        give_up(monitor);
    }
}

ls_status ls_monitor_move(ls_monitor *monitor, const ls_monitor_network *network, bool expired) {
    LS_TRY(listen_to_all(monitor, network));
    if (monitor->state == LS_MONITOR_WAITS || monitor->state == LS_MONITOR_READY) {
        decide(monitor, expired);
    }
    LS_TRY(monitor->said != SAID_NOTHING ? tell_all(monitor, network) : LS_OK);
    return end_sent(monitor, network);
}

ls_monitor_state ls_monitor_state_of(const ls_monitor *monitor) {
    return monitor->state;
}

bool ls_monitor_is_settled(const ls_monitor *monitor) {
    if (monitor->state != LS_MONITOR_PASSED && monitor->state != LS_MONITOR_FAILED) {
        return false;
    }
    if (monitor->said == SAID_NOTHING) {
        return true;
    }
    for (int rank = 0; rank < monitor->size; rank++) {
        const monitor_peer *peer = &monitor->peers[rank];
        const bool in_barrier = rank != monitor->rank && peer->number == monitor->number && peer->kind != GAVE_UP;
        if (in_barrier && (monitor->state == LS_MONITOR_FAILED || peer->unsent > 0)) {
            return false;
        }
    }
    return true;
}

ls_rank_list ls_monitor_awaited(const ls_monitor *monitor) {
    const message_kind awaited = monitor->state == LS_MONITOR_WAITS ? ENTERED : READY;
    ls_rank_list list = {.count = 0};
    for (int rank = 0; rank < monitor->size; rank++) {
        const monitor_peer *peer = &monitor->peers[rank];
        if (rank != monitor->rank && (peer->number < monitor->number || peer->kind < awaited)) {
            ls_rank_list_add(&list, rank);
        }
    }
    return list;
}

ls_status ls_monitor_fail(const ls_monitor *monitor) {
    const monitor_message *message = (const monitor_message *)(const void *)monitor->own;
    const unsigned long long number = monitor->number;
    ls_rank_list late = {.count = 0};
    if (!monitor->knows_late) {
        return ls_fail(
            LS_ERR_TIMEOUT,
            "ls_comm_monitored_barrier #%llu: this rank entered too late: the other ranks have given up this "
            "barrier, and entered a later one",
            number);
    }
    for (int rank = 0; rank < monitor->size; rank++) {
        if (has_bit(message, rank)) {
            ls_rank_list_add(&late, rank);
        }
    }
    if (has_bit(message, monitor->rank)) {
        return ls_fail(LS_ERR_TIMEOUT,
                       "ls_comm_monitored_barrier #%llu: this rank entered too late: rank %d gave up after %g s, "
                       "without %s",
                       number, message->giver, message->seconds, late.text);
    }
    return ls_fail(LS_ERR_TIMEOUT, "ls_comm_monitored_barrier #%llu: %s did not enter within %g s", number, late.text,
                   message->seconds);
}
