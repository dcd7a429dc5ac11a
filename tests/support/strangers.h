/* Those who knock at the doors of a job without being of it, and what tests of such doors share. */
#ifndef LS_TESTS_SUPPORT_STRANGERS_H
#define LS_TESTS_SUPPORT_STRANGERS_H

#include "tests/support/forks.h"

/* A port of 127.0.0.1 that nobody listens at. */
int stranger_free_port(void);

/* Begins to connect from an address of loopback to that port of 127.0.0.1, without waiting; -1 where that cannot be. */
int stranger_connect(const char *from, int port);

/* Whether the other side closes the connection, and says nothing (more) before. Waits for that. */
bool stranger_is_turned_away(int stranger);

/* What the ranks do that strangers are to keep from nothing: they meet once. */
ls_fork_function ranks_meet;

#endif
