/* Warnings about long waits. */
#ifndef LS_COMM_WAITING_H
#define LS_COMM_WAITING_H

#include <stdint.h>

/* The time in nanoseconds after which a waiting call first logs its wait; tests shorten it. */
extern uint64_t ls_comm_tell_after_ns __attribute__((visibility("hidden")));

#endif
