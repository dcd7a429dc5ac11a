/* Connections to a job by processes that are not of it, and what tests of admission share. */
#ifndef LS_TESTS_SUPPORT_UNAUTHENTICATED_H
#define LS_TESTS_SUPPORT_UNAUTHENTICATED_H

#include "tests/support/forks.h"

/* A port of 127.0.0.1 that nobody listens at. */
int free_port(void);

/* Begins to connect from an address of loopback to that port of 127.0.0.1, without waiting; -1 where that cannot be. */
int connect_from(const char *from, int port);

/* Whether the other side closes the connection, and says nothing (more) before. Waits for that. */
bool connection_is_refused(int connection);

/* What the ranks do that no such connection may prevent: they meet once. */
ls_fork_function ranks_meet;

#endif
