/* What will happen, by time: a binary heap. Events of one time come in the order in which they were added. */
#ifndef LS_TESTS_SIMULATED_QUEUE_H
#define LS_TESTS_SIMULATED_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum sim_kind {
    SIM_PACKET, /* reaches its receiver */
    SIM_TURN,   /* of a rank */
    SIM_TIMER,  /* a rank's wait may be over */
    SIM_END,    /* of a rank: killed or closed */
    SIM_CUT     /* between two ranks */
} sim_kind;

typedef struct sim_event {
    uint64_t at_ns;
    uint64_t number; /* the queue's */
    sim_kind kind;
    int rank;
    int peer;                  /* of a cut */
    struct sim_packet *packet; /* of SIM_PACKET */
} sim_event;

typedef struct sim_queue {
    sim_event *events;
    size_t count;
    size_t room;
    uint64_t added;
} sim_queue;

void sim_queue_add(sim_queue *queue, sim_event event);

/* False: there are none. */
bool sim_queue_take(sim_queue *queue, sim_event *event);

#endif
