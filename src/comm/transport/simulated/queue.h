/* What will happen, by time: a binary heap. Events of one time come in the order in which they were added. */
#ifndef LS_COMM_TRANSPORT_SIMULATED_QUEUE_H
#define LS_COMM_TRANSPORT_SIMULATED_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ls_sim_kind {
    LS_SIM_PACKET, /* reaches its receiver */
    LS_SIM_TURN,   /* of a rank */
    LS_SIM_TIMER,  /* a rank's wait may be over */
    LS_SIM_END,    /* of a rank: killed or closed */
    LS_SIM_CUT     /* between two ranks */
} ls_sim_kind;

typedef struct ls_sim_event {
    uint64_t at_ns;
    uint64_t number; /* the queue's */
    ls_sim_kind kind;
    int rank;
    int peer;                     /* of a cut */
    struct ls_sim_packet *packet; /* of LS_SIM_PACKET */
} ls_sim_event;

typedef struct ls_sim_queue {
    ls_sim_event *events;
    size_t count;
    size_t room;
    uint64_t added;
    bool no_memory; /* an event was lost */
} ls_sim_queue;

/* The packet is the queue's until the event is taken. */
void ls_sim_queue_add(ls_sim_queue *queue, ls_sim_event event);

/* False: there are none. */
bool ls_sim_queue_take(ls_sim_queue *queue, ls_sim_event *event);

#endif
