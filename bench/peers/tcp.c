/*
 * A raw exchange over TCP, for bench/network: two processes send BYTES bytes to each other at the same time, on one
 * connection, without any protocol.
 *
 *     peers_tcp listen|connect ADDRESS PORT BYTES ITERATIONS
 *
 * The listening process prints the median in microseconds.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 3, ATTEMPTS = 1000, PAUSE_US = 10000 };

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

static int open_connection(bool listens, const struct sockaddr_in *at) {
    const int yes = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (listens) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (const struct sockaddr *)at, sizeof *at) != 0 || listen(fd, 1) != 0) {
            fail("peers_tcp: listen");
        }
        fd = accept(fd, NULL, NULL);
    } else {
        int attempts = 0;
        while (connect(fd, (const struct sockaddr *)at, sizeof *at) != 0) {
            if (++attempts == ATTEMPTS) {
                fail("peers_tcp: connect");
            }
            close(fd);
            usleep(PAUSE_US);
            fd = socket(AF_INET, SOCK_STREAM, 0);
        }
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static void exchange(int fd, const char *out, char *in, size_t bytes) {
    size_t sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
        struct pollfd ready = {.fd = fd};
        ready.events = (short)((sent < bytes ? POLLOUT : 0) | (got < bytes ? POLLIN : 0));
        if (poll(&ready, 1, -1) < 0) {
            fail("peers_tcp: poll");
        }
        if ((ready.revents & POLLOUT) != 0) {
            const ssize_t step = send(fd, out + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            sent += step > 0 ? (size_t)step : 0;
        }
        if ((ready.revents & ~POLLOUT) != 0) {
            const ssize_t step = recv(fd, in + got, bytes - got, MSG_DONTWAIT);
            if (step == 0) {
                fail("peers_tcp: the other process has ended");
            }
            got += step > 0 ? (size_t)step : 0;
        }
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (argc != 6 || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1) {
        fprintf(stderr, "usage: peers_tcp listen|connect ADDRESS PORT BYTES ITERATIONS\n");
        return 2;
    }
    const bool listens = strcmp(argv[1], "listen") == 0;
    const size_t bytes = strtoull(argv[4], NULL, 10);
    const int iterations = atoi(argv[5]) > 0 ? atoi(argv[5]) : 1;
    at.sin_port = htons((uint16_t)atoi(argv[3]));
    char *out = calloc(1, bytes), *in = calloc(1, bytes);
    double *times = calloc((size_t)iterations, sizeof *times);
    if (out == NULL || in == NULL || times == NULL) {
        fail("peers_tcp");
    }
    const int fd = open_connection(listens, &at);
    for (int i = -WARM_UP; i < iterations; i++) {
        const double begun = now_us();
        exchange(fd, out, in, bytes);
        times[i < 0 ? 0 : i] = now_us() - begun;
    }
    qsort(times, (size_t)iterations, sizeof *times, compare);
    if (listens) {
        printf("%.1f\n", times[iterations / 2]);
    }
    close(fd);
    free(times);
    free(in);
    free(out);
    return 0;
}
