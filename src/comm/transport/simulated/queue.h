/* The future events, ordered by time, in a binary heap. Simultaneous events are in the order in which they were
 * added. */
#ifndef LS_COMM_TRANSPORT_SIMULATED_QUEUE_H
#define LS_COMM_TRANSPORT_SIMULATED_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ls_sim_kind {
    LS_SIM_PACKET, /* a packet arrives at its receiver */
    LS_SIM_TURN,   /* a rank has its turn */
    LS_SIM_TIMER,  /* a rank's wait may have ended */
    LS_SIM_END,    /* a rank was killed or has closed its endpoint */
    LS_SIM_CUT     /* the connection between two ranks is cut */
} ls_sim_kind;

typedef struct ls_sim_event {
    uint64_t at_ns;
    uint64_t number; /* set by the queue */
    ls_sim_kind kind;
    int rank;
    int peer;                     /* LS_SIM_CUT: the other rank */
    struct ls_sim_packet *packet; /* LS_SIM_PACKET: the packet; otherwise NULL */
} ls_sim_event;

typedef struct ls_sim_queue {
    ls_sim_event *events;
    size_t count;
    size_t room;
    uint64_t added;
    bool no_memory; /* an event was lost because memory was exhausted */
} ls_sim_queue;

/* Adds an event. The queue owns the event's packet until the event is taken. */
void ls_sim_queue_add(ls_sim_queue *queue, ls_sim_event event);

/* Removes the earliest event and copies it to `*event`. Returns false if the queue is empty. The caller then owns the
 * event's packet. */
bool ls_sim_queue_take(ls_sim_queue *queue, ls_sim_event *event);

#endif
