/* Checks whether all ranks have the same version of something that cannot be exchanged as data, such as a library. */
#ifndef LS_COMM_SAME_TEXT_H
#define LS_COMM_SAME_TEXT_H

#include <lockstep/comm.h>

enum { LS_SAME_TEXT_CAPACITY = 256 };

/*
 * Compares a text that describes something on each rank; only the first LS_SAME_TEXT_CAPACITY - 1 bytes count. All
 * ranks call this function, in the order of their other calls. Fails with LS_ERR_MISMATCH on all ranks if two ranks
 * differ. The message begins with `name` and contains both texts: "NAME: rank 0 has WHAT TEXT, but ranks 2, 3 have
 * TEXT".
 */
ls_status ls_comm_check_same_text(ls_comm *comm, const char *name, const char *what, const char *text);

#endif
