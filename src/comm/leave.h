/* Ranks that make no more calls on any communicator. */
#ifndef LS_COMM_LEAVE_H
#define LS_COMM_LEAVE_H

#include "comm/record.h"

/* Records that `part` was split from `comm`. */
void ls_comm_add_split(ls_comm *comm, ls_comm *part);

#endif
