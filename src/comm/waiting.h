/* Warnings about long waits. */
#ifndef LS_COMM_WAITING_H
#define LS_COMM_WAITING_H

#include <stdint.h>

/* The remedy if ranks wait for each other in blocking sends. */
#define LS_SENDS_FIRST "if ranks send to each other before they receive, pass `work`, or let one rank receive first"

/* The time in nanoseconds after which a waiting call first logs its wait; tests shorten it. */
extern uint64_t ls_comm_tell_after_ns __attribute__((visibility("hidden")));

#endif
