#include <time.h>

#include <lockstep/base.h>

uint64_t ls_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

double ls_clock_seconds(void) {
    return (double)ls_clock_ns() * 1e-9;
}
