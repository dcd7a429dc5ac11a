#include "tests/support/unauthenticated.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/unit.h"

/* Returns a port below the kernel's ephemeral ports, so that no connection of another test uses it meanwhile. */
int free_port(void) {
    enum { FIRST = 10000, PORTS = 22000 };
    static unsigned asked;
    for (;;) {
        const unsigned place = ((unsigned)getpid() * 89 + 7919 * asked++) % PORTS;
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)(FIRST + place)),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(listener >= 0 && asked < PORTS);
        const bool is_free = bind(listener, (struct sockaddr *)&address, sizeof address) == 0;
        close(listener);
        if (is_free) {
            return FIRST + (int)place;
        }
    }
}

int connect_from(const char *from, int port) {
    struct sockaddr_in own = {.sin_family = AF_INET},
                       there = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    inet_pton(AF_INET, from, &own.sin_addr);
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&own, sizeof own) != 0 ||
                    (connect(fd, (struct sockaddr *)&there, sizeof there) != 0 && errno != EINPROGRESS))) {
        close(fd);
        return -1;
    }
    return fd;
}

bool connection_is_refused(int connection) {
    char answer[256];
    return recv(connection, answer, sizeof answer, 0) <= 0;
}

const char *ranks_meet(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    return NULL;
}
