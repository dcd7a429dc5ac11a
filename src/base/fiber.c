#include "base/fiber.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/memory.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBERS_OF_ADDRESS_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define FIBERS_OF_THREAD_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define FIBERS_OF_ADDRESS_SANITIZER
#endif
#ifdef __SANITIZE_THREAD__
#define FIBERS_OF_THREAD_SANITIZER
#endif

#ifdef FIBERS_OF_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FIBERS_OF_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

/* The same size as the main stack of most systems. Pages that a fiber does not use take no memory. */
#define STACK_BYTES ((size_t)8 << 20)

/* The registers and the stack of a fiber, or of the code that resumed it. */
typedef struct fiber_place {
    ucontext_t context;
    void *shadow; /* the address sanitizer's fake stack */
    void *tsan;   /* the thread sanitizer's record of the fiber */
    const void *stack;
    size_t bytes;
} fiber_place;

struct ls_fiber {
    fiber_place own, caller;
    ls_fiber *outer; /* the fiber that resumed this fiber, or NULL */
    char *memory;    /* a page without access, then the stack */
    size_t bytes;
    void (*run)(void *user);
    void *user;
    bool ended;
};

static _Thread_local ls_fiber *running;

/* Tells the sanitizers that execution leaves `from` for `to`. `ends` means that `from` never runs again. */
static void announce(fiber_place *from, const fiber_place *to, bool ends) {
#ifdef FIBERS_OF_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(ends ? NULL : &from->shadow, to->stack, to->bytes);
#endif
#ifdef FIBERS_OF_THREAD_SANITIZER
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    (void)from;
    (void)to;
    (void)ends;
}

/* Tells the sanitizers that execution continues at `here`. Stores the bounds of the stack of `from`, which was left. */
static void arrive(const fiber_place *here, fiber_place *from) {
#ifdef FIBERS_OF_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(here->shadow, &from->stack, &from->bytes);
#endif
    (void)here;
    (void)from;
}

/* makecontext passes only arguments of type int. */
static void begin(unsigned high, unsigned low) {
    ls_fiber *fiber = (ls_fiber *)(((uintptr_t)high << 16 << 16) | (uintptr_t)low);
    arrive(&fiber->own, &fiber->caller);
    fiber->run(fiber->user);
    fiber->ended = true;
    running = fiber->outer;
    announce(&fiber->own, &fiber->caller, true);
    (void)setcontext(&fiber->caller.context);
}

static bool prepare(ls_fiber *fiber) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fiber->bytes = STACK_BYTES + page;
    void *memory = mmap(NULL, fiber->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    fiber->memory = memory;
    if (mprotect(memory, page, PROT_NONE) != 0 || getcontext(&fiber->own.context) != 0) {
        return false;
    }
    fiber->own.stack = fiber->memory + page;
    fiber->own.bytes = STACK_BYTES;
    fiber->own.context.uc_stack.ss_sp = fiber->memory + page;
    fiber->own.context.uc_stack.ss_size = STACK_BYTES;
    fiber->own.context.uc_link = NULL;
    const uintptr_t address = (uintptr_t)fiber;
    makecontext(&fiber->own.context, (void (*)(void))begin, 2, (unsigned)(address >> 16 >> 16), (unsigned)address);
#ifdef FIBERS_OF_THREAD_SANITIZER
    fiber->own.tsan = __tsan_create_fiber(0);
#endif
    return true;
}

ls_fiber *ls_fiber_new(void (*run)(void *user), void *user) {
    ls_fiber *fiber = ls_allocate_zeroed(1, sizeof *fiber);
    if (fiber == NULL) {
        return NULL;
    }
    fiber->run = run;
    fiber->user = user;
    if (!prepare(fiber)) {
        ls_fiber_free(fiber);
        return NULL;
    }
    return fiber;
}

bool ls_fiber_resume(ls_fiber *fiber) {
    fiber->outer = running;
    running = fiber;
#ifdef FIBERS_OF_THREAD_SANITIZER
    fiber->caller.tsan = __tsan_get_current_fiber();
#endif
    announce(&fiber->caller, &fiber->own, false);
    (void)swapcontext(&fiber->caller.context, &fiber->own.context);
    arrive(&fiber->caller, &fiber->own);
    return !fiber->ended;
}

void ls_fiber_suspend(void) {
    ls_fiber *fiber = running;
    running = fiber->outer;
    announce(&fiber->own, &fiber->caller, false);
    (void)swapcontext(&fiber->own.context, &fiber->caller.context);
    arrive(&fiber->own, &fiber->caller);
}

void ls_fiber_free(ls_fiber *fiber) {
    if (fiber == NULL) {
        return;
    }
#ifdef FIBERS_OF_THREAD_SANITIZER
    if (fiber->own.tsan != NULL) {
        __tsan_destroy_fiber(fiber->own.tsan);
    }
#endif
    if (fiber->memory != NULL) {
        (void)munmap(fiber->memory, fiber->bytes);
    }
    ls_free(fiber);
}
