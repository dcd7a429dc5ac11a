/* Selects the address of this machine that data connections use. */
#ifndef LS_COMM_INTERFACE_H
#define LS_COMM_INTERFACE_H

#include "base/status.h"

#define LS_ADDRESS_CAPACITY 64 /* for an IP address as text, including the interface of a link-local address */

/*
 * Writes the address at which this process listens for data connections. The first applicable choice is used: `wanted`
 * (the name of an interface or one of its addresses; NULL if not set); loopback, if all ranks are `local`; the local
 * address of `connection` to rank 0's store (-1 if there is none), unless it is loopback; the address from which
 * packets leave this machine; if there is no such route, the address of an interface that is up. Fails with
 * LS_ERR_ARGUMENT if `wanted` does not exist, listing the available interfaces, and with LS_ERR_IO if only loopback is
 * up.
 */
ls_status ls_interface_address(const char *wanted, int connection, bool local, char address[LS_ADDRESS_CAPACITY]);

#endif
