/*
 * Communicators that are freed while calls on them are in progress. The buffers belong to the caller again immediately,
 * on backend mpi after ls_work_wait, and the test unmaps them, unless ls_work_wait warns that MPI still uses them.
 * Either all ranks free the communicator together, or some wait for the calls.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "comm/hold.h"

enum { CALLS = 6, MANY = 3, ROUNDS = 6, LARGE = 32 << 20 };

/* ls_work_wait has warned about the present communicator. Only backend mpi warns, and its ranks are processes. */
static atomic_bool mpi_keeps;

static void note_warning(ls_log_level level, int rank, const char *line, void *user) {
    (void)user;
    if (strstr(line, "MPI still uses buffers") != NULL) {
        mpi_keeps = true;
    } else if (level >= LS_LOG_WARNING) {
        fprintf(stderr, "rank %d: %s\n", rank, line);
    }
}

/* Returns memory with its own pages: any later access crashes. */
static void *make(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        abort();
    }
    memset(memory, 1, bytes);
    return memory;
}

static ls_status begin(ls_comm *comm, int call, int32_t *send, int32_t *receive, size_t count, ls_work **work) {
    const int rank = ls_comm_rank(comm);
    const int size = ls_comm_size(comm);
    switch (call) {
    case 0:
        return ls_comm_allreduce(comm, send, receive, count, LS_I32, LS_SUM, work);
    case 1:
        return ls_comm_broadcast(comm, send, count, LS_I32, size - 1, work);
    case 2:
        return ls_comm_allgather(comm, send, receive, count, LS_I32, work);
    case 3:
        return ls_comm_reduce(comm, send, receive, count, LS_I32, LS_SUM, 0, work);
    case 4:
        return ls_comm_send(comm, send, count, LS_I32, (rank + 1) % size, 7, work);
    default:
        return ls_comm_recv(comm, receive, count, LS_I32, (rank + 1) % size, 7, work);
    }
}

/* Calls that were in progress are no longer associated with the freed communicator. */
static ls_status check_freed(ls_comm *comm) {
    LS_CHECK(ls_comm_alloc(comm, 64) == NULL);
    LS_CHECK(strcmp(ls_error_message(), "ls_comm_alloc: the communicator was freed (ls_comm_free)") == 0);
    return LS_OK;
}

/*
 * Begins `MANY` calls and frees the communicator. With `waits`, waits for the calls instead, and gets LS_OK or an error
 * saying that the other ranks have left.
 */
static ls_status free_early(ls_comm *world, int call, size_t count, bool waits) {
    ls_comm *part = NULL;
    ls_work *works[MANY] = {NULL};
    const size_t bytes = count * sizeof(int32_t);
    int32_t *send[MANY];
    int32_t *receive[MANY];
    mpi_keeps = false;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    for (int i = 0; i < MANY; i++) {
        send[i] = make(bytes);
        receive[i] = make(bytes * (size_t)ls_comm_size(world));
        const ls_status status = begin(part, call, send[i], receive[i], count, &works[i]);
        LS_CHECK(status == LS_OK || status == LS_ERR_PEER);
    }
    if (!waits) {
        ls_comm_free(part);
        LS_TRY(check_freed(part));
    }
    for (int i = 0; i < MANY; i++) {
        const ls_status status = ls_work_wait(works[i]);
        LS_CHECK(status == LS_OK || status == LS_ERR_STATE || status == LS_ERR_PEER);
    }
    if (waits) {
        ls_comm_free(part);
    }
    LS_TRY(check_freed(part)); /* the work was freed with the communicator */
    for (int i = 0; i < MANY && !mpi_keeps; i++) {
        LS_CHECK(munmap(send[i], bytes) == 0 && munmap(receive[i], bytes * (size_t)ls_comm_size(world)) == 0);
    }
    return LS_OK;
}

/* Rank 0 frees the communicator while rank 1 may be reading from its buffer. The communicator is retained, as a
 * module would do. */
static ls_status free_held(ls_comm *world, int round) {
    ls_comm *part = NULL;
    ls_work *work = NULL;
    ls_status status = LS_OK;
    const int rank = ls_comm_rank(world);
    mpi_keeps = false;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    if (rank > 1 || ls_comm_size(world) == 1) {
        ls_comm_free(part);
        return LS_OK;
    }
    unsigned char *memory = make(LARGE);
    ls_comm_hold(part);
    if (rank == 0) {
        LS_TRY(ls_comm_send(part, memory, LARGE, LS_U8, 1, 7, &work));
        nanosleep(&(struct timespec){.tv_nsec = round * 1500000}, NULL);
    } else {
        status = ls_comm_recv(part, memory, LARGE, LS_U8, 0, 7, NULL);
        LS_CHECK(status == LS_OK || (status == LS_ERR_PEER && strstr(ls_error_message(), " left ") != NULL));
    }
    const bool library_may_read = strcmp(ls_comm_backend(part), "mpi") == 0;
    ls_comm_free(part);
    if (library_may_read) {
        status = ls_work_wait(work);
        work = NULL;
    }
    LS_CHECK(mpi_keeps || munmap(memory, LARGE) == 0);
    status = work != NULL ? ls_work_wait(work) : status;
    LS_CHECK(status == LS_OK || status == LS_ERR_STATE || status == LS_ERR_PEER);
    ls_comm_drop(part);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    static const size_t counts[] = {16, 5000, 150000};
    const int rank = ls_comm_rank(world);
    ls_log_set_sink(note_warning, NULL);
    for (int call = 0; call < CALLS; call++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            LS_TRY(free_early(world, call, counts[i], false));
            if (call < 4) { /* a message for which only some ranks wait gets no answer */
                LS_TRY(free_early(world, call, counts[i], rank == 0));
                LS_TRY(free_early(world, call, counts[i], rank != 0));
            }
            LS_TRY(ls_comm_barrier(world, NULL));
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        LS_TRY(free_held(world, round));
    }
    return ls_comm_barrier(world, NULL);
}
