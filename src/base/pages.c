#include "base/pages.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#include <pthread.h>
#endif

void *ls_pages_reserve(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

void ls_pages_discard(void *from, void *to) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)from + page - 1) / page * page, end = (uintptr_t)to / page * page;
    if (first < end) {
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}

void ls_pages_trim(void) {
#ifdef __GLIBC__
    /* If another library provides malloc, the first malloc_trim initializes the memory of glibc's own malloc, and two
     * threads that do it at once crash (glibc 2.36). */
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    (void)malloc_trim(0);
    pthread_mutex_unlock(&one_at_a_time);
#endif
}

void ls_pages_release(void *memory, size_t bytes) {
    (void)munmap(memory, bytes);
}
