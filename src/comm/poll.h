/* Advances the started work of this thread's communicators between two operations. For layers above comm. */
#ifndef LS_COMM_POLL_H
#define LS_COMM_POLL_H

#include <stdatomic.h>

extern _Atomic int ls_comm_open_count __attribute__((visibility("hidden"))); /* communicators with unfinished work */

/* Advances the work, without waiting, at most every 20 us. Errors are stored in the work. */
void ls_comm_poll_slowly(void);

static inline void ls_comm_poll(void) {
    if (__builtin_expect(atomic_load_explicit(&ls_comm_open_count, memory_order_relaxed) > 0, 0)) {
        ls_comm_poll_slowly();
    }
}

#endif
