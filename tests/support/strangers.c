#include "tests/support/strangers.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/unit.h"

int stranger_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    close(listener);
    return ntohs(address.sin_port);
}

bool stranger_is_turned_away(int stranger) {
    char answer[256];
    return recv(stranger, answer, sizeof answer, 0) <= 0;
}

const char *ranks_meet(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    return NULL;
}
