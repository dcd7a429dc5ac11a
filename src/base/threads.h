/* Threads of the library's own. */
#ifndef LS_BASE_THREADS_H
#define LS_BASE_THREADS_H

#include <pthread.h>

/* pthread_create, with all signals blocked in the thread: a program's handlers run on its own threads. `name`, at most
 * 15 characters, is what debuggers show. Gives what pthread_create does. */
int ls_start_thread(pthread_t *thread, const char *name, void *(*function)(void *), void *argument);

/* What OMP_NUM_THREADS says: nothing, numbers of threads as OpenMP takes them, or something that OpenMP ignores. */
typedef enum ls_threads_setting { LS_THREADS_UNSET = 0, LS_THREADS_SET, LS_THREADS_WRONG } ls_threads_setting;
ls_threads_setting ls_threads_from_environment(void);

/*
 * The team of threads on which the library computes has at most ls_threads_limit() threads. ls_threads_share sets the
 * limit to this process's share of its cores, where `ranks` ranks run on this machine. A number of threads in
 * OMP_NUM_THREADS replaces the limit: OpenMP has read it, and ls_threads_limit returns INT_MAX. It returns INT_MAX
 * before the first ls_threads_share, too.
 */
void ls_threads_share(int ranks);

/* Lowers the limit to the same share. Does not raise it: the process may belong to several groups of ranks. */
void ls_threads_share_at_most(int ranks);

int ls_threads_limit(void);

#endif
