/* Jobs on machines of different kinds: their ranks may compute different bits from the same values. */
#ifndef LS_PARALLEL_HOSTS_H
#define LS_PARALLEL_HOSTS_H

#include <lockstep/comm.h>

/*
 * Fails with LS_ERR_MISMATCH on all ranks, with both values, if ranks have different processors or different versions
 * of the libraries that compute: oneDNN, OpenBLAS and the C library. All ranks call it, in the order of their other
 * calls. Opens these libraries. The message begins with `name`.
 */
ls_status ls_hosts_check_alike(ls_comm *comm, const char *name);

#endif
