/* Internal side of the log: the rank that this thread's lines carry. */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include <lockstep/base.h>

/* Lines of this thread carry `rank` from here on; -1: none. */
void ls_log_set_rank(int rank);

#endif
