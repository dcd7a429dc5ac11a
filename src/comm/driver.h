/*
 * The progress thread. With ls_init_options.progress_thread, one thread of the process advances the started work of its
 * communicators while the program computes, and sleeps while no communicator has unfinished work. A communicator is
 * used either by a call or by this thread: see ls_comm_use_state.
 */
#ifndef LS_COMM_DRIVER_H
#define LS_COMM_DRIVER_H

#include "comm/record.h"

/* Ends the drive of a communicator that is about to be freed and is not in the list. The last one stops the thread. */
void ls_comm_end_drive(ls_comm *comm);

#endif
