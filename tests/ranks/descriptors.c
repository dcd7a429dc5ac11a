/*
 * What a rank executes inherits no descriptor of the library's: no socket, no memory, and nothing that the libraries
 * below it open.
 */
#include "tests/support/ranks.h"

#include <fcntl.h>
#include <stdlib.h>

enum { MOST = 1024 };

static bool inheritable(int fd) {
    const int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

static bool was_there[MOST]; /* before the library did anything: of whoever started the rank */

static __attribute__((constructor)) void look_around(void) {
    const char *store = getenv("LOCKSTEP_STORE_FD"); /* the launcher's way to hand a socket to the library */
    for (int fd = 0; fd < MOST; fd++) {
        was_there[fd] = inheritable(fd) && (store == NULL || fd != atoi(store));
    }
}

ls_status rank_test(ls_comm *world) {
    int32_t one = 1, sum = 0;
    LS_TRY(ls_comm_allreduce(world, &one, &sum, 1, LS_I32, LS_SUM, NULL));
    for (int fd = 0; fd < MOST; fd++) {
        if (inheritable(fd) && !was_there[fd]) {
            return ls_fail(LS_ERR_INTERNAL, "descriptor %d is open in what this rank executes", fd);
        }
    }
    return LS_OK;
}
