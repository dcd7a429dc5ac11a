/*
 * The stream functions that the kernels of device/cuda need if they are compiled for the host: kernels run when they
 * are called, and fail at once. LOCKSTEP_TEST_TEAM=N uses teams of N threads.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/status.h"
#include "tensor/device/cuda/stream.h"
#include "tests/shadow/shadow.h"

void *ls_cuda_scratch_take(ls_stream *stream, size_t bytes) {
    (void)stream;
    return malloc(bytes > 0 ? bytes : 1); /* the exact size, so that sanitizers detect out-of-bounds accesses */
}

void ls_cuda_scratch_give(ls_stream *stream, void *memory, size_t bytes) {
    (void)stream;
    (void)bytes;
    free(memory);
}

ls_status ls_cuda_check_numbers(ls_stream *stream, ls_cuda_check check, const char *name, const int64_t *numbers,
                                int64_t count, int64_t limit, int axis, const int64_t *but) {
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        if ((numbers[i] < 0 || numbers[i] >= limit) && (but == NULL || numbers[i] != *but)) {
            return ls_cuda_check_failed(check, name, i, numbers[i], limit, axis);
        }
    }
    return LS_OK;
}

/* ---- teams ------------------------------------------------------------------------------------------------------- */

enum { MOST_MEMBERS = 32 };

struct ls_cuda_host_team {
    pthread_barrier_t barrier;
    char room[MOST_MEMBERS][16];
};

typedef struct member {
    pthread_t thread;
    void (*function)(void *argument, int lane, int size, ls_cuda_host_team *others);
    void *argument;
    int lane, size;
    ls_cuda_host_team *team;
} member;

int ls_cuda_host_members(void) {
    const char *text = getenv("LOCKSTEP_TEST_TEAM");
    const int members = text != NULL ? atoi(text) : 1;
    return members < 1 ? 1 : members < MOST_MEMBERS ? members : MOST_MEMBERS;
}

static void *run_member(void *argument) {
    const member *self = argument;
    self->function(self->argument, self->lane, self->size, self->team);
    return NULL;
}

void ls_cuda_host_run(int members, void (*function)(void *argument, int lane, int size, ls_cuda_host_team *others),
                      void *argument) {
    ls_cuda_host_team team;
    member each[MOST_MEMBERS];
    if (pthread_barrier_init(&team.barrier, NULL, (unsigned)members) != 0) {
        shadow_die("no barrier for a team");
    }
    for (int i = 0; i < members; i++) {
        each[i] = (member){.function = function, .argument = argument, .lane = i, .size = members, .team = &team};
        if (pthread_create(&each[i].thread, NULL, run_member, &each[i]) != 0) {
            shadow_die("no thread for a team");
        }
    }
    for (int i = 0; i < members; i++) {
        (void)pthread_join(each[i].thread, NULL);
    }
    (void)pthread_barrier_destroy(&team.barrier);
}

void ls_cuda_host_wait(ls_cuda_host_team *team) {
    (void)pthread_barrier_wait(&team->barrier);
}

char (*ls_cuda_host_room(ls_cuda_host_team *team))[16] {
    return team->room;
}
