/*
 * A program that is not linked with Lockstep opens the library from a path, as plug-in hosts and interpreters do. Tests
 * tensors, a gradient, error messages of several threads, and a communicator. Threads outlive dlclose.
 */
#include <dlfcn.h>
#include <lockstep/lockstep.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8 };

static void *library;
static pthread_barrier_t barrier;

#define DIE_UNLESS(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Returns the library's function of this name, with the type of its declaration. */
#define FIND(name)                                                                                                     \
    __typeof__(&(name)) find_##name = NULL;                                                                            \
    find(#name, &find_##name)

static void find(const char *name, void *pointer_to_function) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(pointer_to_function, &found, sizeof found);
}

static void train_a_step(void) {
    FIND(ls_scope_begin);
    FIND(ls_scope_end);
    FIND(ls_full);
    FIND(ls_set_requires_grad);
    FIND(ls_matmul);
    FIND(ls_sum);
    FIND(ls_backward);
    FIND(ls_item);
    FIND(ls_grad);
    ls_scope *scope = find_ls_scope_begin();
    DIE_UNLESS(scope != NULL);
    ls_tensor *a = find_ls_full(LS_SHAPE(40, 30), LS_F32, 2.0);
    ls_tensor *b = find_ls_full(LS_SHAPE(30, 20), LS_F32, 0.5);
    DIE_UNLESS(find_ls_set_requires_grad(b, true) == LS_OK);
    ls_tensor *total = find_ls_sum(find_ls_matmul(a, b));
    DIE_UNLESS(total != NULL && find_ls_item(total) == 40.0 * 30 * 20);
    DIE_UNLESS(find_ls_backward(total) == LS_OK);
    DIE_UNLESS(find_ls_item(find_ls_sum(find_ls_grad(b))) == 2.0 * 40 * 30 * 20);
    DIE_UNLESS(find_ls_scope_end(scope) == LS_OK);
}

static void *fail_in_own_words(void *argument) {
    const int number = *(const int *)argument;
    FIND(ls_error_set);
    FIND(ls_error_status);
    FIND(ls_error_message);
    DIE_UNLESS(find_ls_error_status() == LS_OK && strcmp(find_ls_error_message(), "") == 0);
    (void)find_ls_error_set(LS_ERR_ARGUMENT, "thread %d", number);
    pthread_barrier_wait(&barrier); /* every thread has set its error */
    char expected[32];
    snprintf(expected, sizeof expected, "thread %d", number);
    DIE_UNLESS(find_ls_error_status() == LS_ERR_ARGUMENT);
    DIE_UNLESS(strcmp(find_ls_error_message(), expected) == 0);
    train_a_step();
    pthread_barrier_wait(&barrier); /* the library may be closed */
    pthread_barrier_wait(&barrier); /* the library is closed, but the thread's cleanup function must still exist */
    return NULL;
}

static void join_and_leave(void) {
    FIND(ls_init);
    FIND(ls_comm_rank);
    FIND(ls_comm_size);
    FIND(ls_comm_allreduce);
    FIND(ls_finalize);
    ls_comm *world = find_ls_init(NULL);
    DIE_UNLESS(world != NULL);
    int64_t rank = find_ls_comm_rank(world);
    const int64_t size = find_ls_comm_size(world);
    DIE_UNLESS(find_ls_comm_allreduce(world, &rank, &rank, 1, LS_I64, LS_SUM, NULL) == LS_OK);
    DIE_UNLESS(rank == size * (size - 1) / 2);
    DIE_UNLESS(find_ls_finalize() == LS_OK);
    printf("%d ranks\n", (int)size);
}

int main(int count, char **arguments) {
    DIE_UNLESS(count == 2);
    library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    join_and_leave();
    train_a_step();
    pthread_t threads[THREADS];
    int numbers[THREADS];
    DIE_UNLESS(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        DIE_UNLESS(pthread_create(&threads[i], NULL, fail_in_own_words, &numbers[i]) == 0);
    }
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    DIE_UNLESS(dlclose(library) == 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) {
        DIE_UNLESS(pthread_join(threads[i], NULL) == 0);
    }
    return 0;
}
