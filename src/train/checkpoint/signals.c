/*
 * SIGTERM and SIGUSR1, which clusters send before they end a job. Signal handlers are per process. These handlers are
 * installed while any trial of the process needs them, and only count signals. They run on their own stack: during f32
 * products, oneDNN (2.6, observed with AVX2 and AVX-512) uses the stack pointer as a pointer into the heap, so the
 * kernel would overwrite the heap with the handler's frame.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "train/checkpoint/checkpoint.h"

enum { STACK_SIZE = 1 << 16 }; /* the vector registers and matrix tiles of a thread take 11 KiB */

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

/*
 * Creates a signal stack for this thread if the thread has no signal stack. The kernel usually delivers a signal for
 * the process to its first thread, which usually runs the training.
 */
static ls_status make_stack(void **made) {
    stack_t stack;
    *made = NULL;
    if (sigaltstack(NULL, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) {
        return LS_OK;
    }
    stack = (stack_t){.ss_sp = ls_allocate(STACK_SIZE), .ss_size = STACK_SIZE};
    if (stack.ss_sp == NULL) {
        return ls_fail_memory("ls_trial_run", STACK_SIZE);
    }
    if (sigaltstack(&stack, NULL) != 0) {
        ls_free(stack.ss_sp);
        return LS_OK;
    }
    *made = stack.ss_sp;
    return LS_OK;
}

ls_status ls_signals_begin(uint32_t *before, void **stack) {
    LS_TRY(make_stack(stack));
    pthread_mutex_lock(&lock);
    *before = atomic_load(&heard);
    if (users++ == 0) {
        const struct sigaction action = {.sa_handler = hear, .sa_flags = SA_RESTART | SA_ONSTACK};
        for (int i = 0; i < NUMBERS; i++) {
            sigaction(numbers[i], &action, &older[i]);
        }
    }
    pthread_mutex_unlock(&lock);
    return LS_OK;
}

int ls_signals_since(uint32_t before) {
    return atomic_load(&heard) != before ? atomic_load(&last) : 0;
}

void ls_signals_end(void *stack) {
    pthread_mutex_lock(&lock);
    if (--users == 0) {
        for (int i = 0; i < NUMBERS; i++) {
            sigaction(numbers[i], &older[i], NULL);
        }
    }
    pthread_mutex_unlock(&lock);
    if (stack != NULL) {
        (void)sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
        ls_free(stack);
    }
}
