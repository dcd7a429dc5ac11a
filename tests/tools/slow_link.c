/*
 * A slow cable that loses frames, between two network namespaces, for kernels without netem: a tap device in each
 * namespace, connected by this process. Frames stay in order. Usage: slow_link NAMESPACE NAMESPACE DEVICE DELAY_MS
 * LOSS_PERCENT
 *
 * Prints "ready" once both devices exist. The process exits at the end of its standard input, and the devices disappear
 * with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { FRAME = 2048, FRAMES = 4096 };

typedef struct way {
    int from, to;
    unsigned long first, last; /* frames in transit, modulo FRAMES */
    struct frame {
        double due;
        size_t size;
        uint8_t bytes[FRAME];
    } * frames;
} way;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int open_tap(const char *space, const char *device) {
    char path[256];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", space);
    const int home = open(path, O_RDONLY | O_CLOEXEC);
    const int tap = home >= 0 && setns(home, CLONE_NEWNET) == 0 ? open("/dev/net/tun", O_RDWR | O_NONBLOCK) : -1;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", device);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request) != 0) {
        fprintf(stderr, "slow_link: no tap device in %s: %s\n", space, strerror(errno));
        exit(1);
    }
    return tap;
}

/* Causes the same losses in every run. */
static int is_lost(double percent) {
    static uint64_t state = 88172645463325252U;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53 * 100 < percent;
}

static void take(way *self, double delay, double loss) {
    for (;;) {
        struct frame *frame = &self->frames[self->last % FRAMES];
        const ssize_t size = read(self->from, frame->bytes, sizeof frame->bytes);
        if (size <= 0) {
            return;
        }
        if (!is_lost(loss) && self->last - self->first < FRAMES - 1) {
            frame->size = (size_t)size;
            frame->due = now() + delay;
            self->last++;
        }
    }
}

static void give(way *self) {
    while (self->first < self->last && self->frames[self->first % FRAMES].due <= now()) {
        const struct frame *frame = &self->frames[self->first++ % FRAMES];
        if (write(self->to, frame->bytes, frame->size) < 0) {
            continue; /* lost, too, because the device is down */
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: slow_link NAMESPACE NAMESPACE DEVICE DELAY_MS LOSS_PERCENT\n");
        return 2;
    }
    const int a = open_tap(argv[1], argv[3]), b = open_tap(argv[2], argv[3]);
    const double delay = atof(argv[4]) * 1e-3, loss = atof(argv[5]);
    way ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    for (int i = 0; i < 2; i++) {
        ways[i].frames = calloc(FRAMES, sizeof *ways[i].frames);
        if (ways[i].frames == NULL) {
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd fds[] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
        const int waiting = ways[0].first < ways[0].last || ways[1].first < ways[1].last;
        poll(fds, 3, waiting ? 1 : -1);
        if (fds[2].revents != 0) {
            return 0;
        }
        for (int i = 0; i < 2; i++) {
            take(&ways[i], delay, loss);
            give(&ways[i]);
        }
    }
}
