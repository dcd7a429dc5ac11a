/* Checks of the arguments of the public calls by the table of operations (pieces.h). */
#ifndef LS_COMM_CHECK_H
#define LS_COMM_CHECK_H

#include "comm/record.h"

/*
 * Checks the arguments of a collective of the public interface, and sets the width, the count and other
 * fields that follow from the arguments. The public function has set only the fields that are its own arguments. SPLIT
 * has no user arguments, so its caller has set all fields.
 */
ls_status ls_call_check(const ls_comm *comm, ls_call *call);

/* Does the same for a send or receive of `buffer`. */
ls_status ls_message_check(const ls_comm *comm, ls_call *call, const void *buffer);

#endif
