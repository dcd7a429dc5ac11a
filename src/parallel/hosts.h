/* Jobs on machines of different kinds, whose ranks may compute different bits from the same values. */
#ifndef LS_PARALLEL_HOSTS_H
#define LS_PARALLEL_HOSTS_H

#include <lockstep/comm.h>

/*
 * Fails with LS_ERR_MISMATCH on all ranks, and reports both values, if ranks have different processors or different
 * versions of the math libraries: oneDNN, OpenBLAS and the C library. All ranks must call it, in the same order
 * relative to their other calls. Loads these libraries. The message begins with `name`.
 */
ls_status ls_hosts_check_alike(ls_comm *comm, const char *name);

#endif
