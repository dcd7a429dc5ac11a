/*
 * The port is in use by another program.
 *
 * ranks: 1
 * says: 127\.0\.0\.1:[0-9]+.*in use
 */
#include "tests/mistakes/mistake.h"

#include <arpa/inet.h>
#include <sys/socket.h>

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int other = socket(AF_INET, SOCK_STREAM, 0); /* another program's */
    if (bind(other, (struct sockaddr *)&address, size) != 0 || listen(other, 1) != 0 ||
        getsockname(other, (struct sockaddr *)&address, &size) != 0) {
        return 2;
    }
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    ls_comm *world = ls_init(&(ls_init_options){.init = url, .world_size = 2, .rank = 0, .timeout = 300});
    if (world == NULL) {
        return failed();
    }
    return ended(ls_finalize());
}
