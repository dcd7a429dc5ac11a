/* Connections to a job from foreign processes, and shared code for tests of admission. */
#ifndef LS_TESTS_SUPPORT_UNAUTHENTICATED_H
#define LS_TESTS_SUPPORT_UNAUTHENTICATED_H

#include "tests/support/forks.h"

/* Returns a port of 127.0.0.1 on which no process listens. */
int free_port(void);

/*
 * Starts to connect from a loopback address to this port of 127.0.0.1, without waiting. Returns -1 if this is
 * impossible.
 */
int connect_from(const char *from, int port);

/* Waits for the other side to close the connection. Returns whether it did so without sending (more) data. */
bool connection_is_refused(int connection);

/* What the ranks do despite such connections: they call a barrier. */
ls_fork_function ranks_meet;

#endif
