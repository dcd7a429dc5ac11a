/* Threads that the library creates itself. */
#ifndef LS_BASE_THREADS_H
#define LS_BASE_THREADS_H

#include <pthread.h>

/* Calls pthread_create with all signals blocked in the new thread, so that a program's signal handlers run on its
 * own threads. Debuggers show `name`, which has at most 15 characters. Returns the result of pthread_create. */
int ls_start_thread(pthread_t *thread, const char *name, void *(*function)(void *), void *argument);

/* The content of OMP_NUM_THREADS: nothing, numbers of threads that OpenMP accepts, or a value that OpenMP ignores. */
typedef enum ls_threads_setting { LS_THREADS_UNSET = 0, LS_THREADS_SET, LS_THREADS_WRONG } ls_threads_setting;
ls_threads_setting ls_threads_from_environment(void);

/*
 * The team of threads on which the library computes has at most ls_threads_limit() threads. ls_threads_share sets the
 * limit to this process's share of its cores if `ranks` ranks run on this machine. If OMP_NUM_THREADS contains a number
 * of threads, it replaces the limit: OpenMP has read it, and ls_threads_limit returns INT_MAX. Before the first
 * ls_threads_share, ls_threads_limit also returns INT_MAX.
 */
void ls_threads_share(int ranks);

/* Lowers the limit to the same share, but never raises it: the process may belong to several groups of ranks. */
void ls_threads_share_at_most(int ranks);

int ls_threads_limit(void);

#endif
