/*
 * A program that a rank executes inherits no descriptor of the library: no socket, no memory, and no file opened by the
 * libraries that Lockstep uses. A freed communicator leaves no descriptor open, even if descriptor 0 was one of its
 * descriptors.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/files.h"
#include "tests/support/ranks.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 1024 };

static bool inheritable(int fd) {
    const int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

static bool was_there[MOST]; /* open before the library was used: inherited by the rank */

static __attribute__((constructor)) void look_around(void) {
    const char *store = getenv("LOCKSTEP_STORE_FD"); /* through which the launcher passes a socket */
    for (int fd = 0; fd < MOST; fd++) {
        was_there[fd] = inheritable(fd) && (store == NULL || fd != atoi(store));
    }
}

/* Splits off a communicator, uses it and frees it. The ranks are in reverse order, so that they change parts. */
static ls_status use_a_part(ls_comm *world, int turn) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    int32_t one = 1, sum = 0;
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, turn % 2 == 0 ? rank : size - rank, &part));
    void *memory = ls_comm_alloc(part, 100000);
    LS_CHECK(memory != NULL);
    ls_comm_release(part, memory);
    LS_TRY(ls_comm_allreduce(part, &one, &sum, 1, LS_I32, LS_SUM, NULL));
    LS_CHECK(sum == size);
    ls_comm_free(part);
    return LS_OK;
}

static ls_status check_closing(ls_comm *world) {
    LS_TRY(use_a_part(world, 0)); /* creates descriptors that are opened only once */
    close(STDIN_FILENO);          /* as with `program <&-`: the next file gets descriptor 0 */
    LS_TRY(ls_comm_barrier(world, NULL));
    const int before = test_descriptors_count();
    for (int turn = 0; turn < 2; turn++) {
        LS_TRY(use_a_part(world, turn));
        const int now = test_descriptors_count();
        if (now != before) {
            return ls_fail(LS_ERR_INTERNAL, "%d descriptors are open after turn %d, %d were before", now, turn, before);
        }
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    int32_t one = 1, sum = 0;
    LS_TRY(check_closing(world));
    LS_TRY(ls_comm_allreduce(world, &one, &sum, 1, LS_I32, LS_SUM, NULL));
    for (int fd = 0; fd < MOST; fd++) {
        if (inheritable(fd) && !was_there[fd]) {
            return ls_fail(LS_ERR_INTERNAL, "descriptor %d is open in what this rank executes", fd);
        }
    }
    return LS_OK;
}
