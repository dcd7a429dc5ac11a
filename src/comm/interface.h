/* Which of this machine's own addresses connections for data use. */
#ifndef LS_COMM_INTERFACE_H
#define LS_COMM_INTERFACE_H

#include "base/status.h"

#define LS_ADDRESS_CAPACITY 64 /* of an IP address as text, with a link-local address's interface */

/*
 * Writes the address at which this process listens for data, by the first of these that says anything: `wanted` (an
 * interface's name or one of its addresses; NULL: no wish), loopback where all ranks are `local`, the own end of
 * `connection` to rank 0's store (-1: none) unless that is loopback, the address from which packets leave this machine,
 * and, if no route leads out, the address of an interface that is up. LS_ERR_ARGUMENT when `wanted` is not there,
 * naming what is; LS_ERR_IO when no interface but loopback is up.
 */
ls_status ls_interface_address(const char *wanted, int connection, bool local, char address[LS_ADDRESS_CAPACITY]);

#endif
