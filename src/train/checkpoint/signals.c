/*
 * SIGTERM and SIGUSR1, by which clusters tell that a job is to make room. What a signal does is the process's, so this
 * is too: handlers are there while any trial of the process wants them, and only count.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "train/checkpoint/checkpoint.h"

static const int numbers[] = {SIGTERM, SIGUSR1};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static struct sigaction older[NUMBERS];
static atomic_uint heard;
static atomic_int last;

static void hear(int number) {
    atomic_store(&last, number);
    atomic_fetch_add(&heard, 1);
}

void ls_signals_begin(uint32_t *before) {
    pthread_mutex_lock(&lock);
    *before = atomic_load(&heard);
    if (users++ == 0) {
        const struct sigaction action = {.sa_handler = hear, .sa_flags = SA_RESTART};
        for (int i = 0; i < NUMBERS; i++) {
            sigaction(numbers[i], &action, &older[i]);
        }
    }
    pthread_mutex_unlock(&lock);
}

int ls_signals_since(uint32_t before) {
    return atomic_load(&heard) != before ? atomic_load(&last) : 0;
}

void ls_signals_end(void) {
    pthread_mutex_lock(&lock);
    if (--users == 0) {
        for (int i = 0; i < NUMBERS; i++) {
            sigaction(numbers[i], &older[i], NULL);
        }
    }
    pthread_mutex_unlock(&lock);
}
