/*
 * A rank sends far more messages than the other rank has receives for. The receiver stores a bounded number, and the
 * rest waits at the sender. All messages arrive in order, later tags may be received first, and a receive that does not
 * fit gets an error. Messages arrive even if their sender has not waited for them and is already in ls_finalize.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "tests/support/processes.h"

enum { MOST = 4000, STEP = 16, LARGE = 1 << 18, MEDIUM = 12 << 10, BOUND = 72 << 20 };

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const bool is_measured = false; /* a sanitizer keeps freed memory */
#else
static const bool is_measured = true;
#endif

static long resident(void) {
    long pages = 0, skipped = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &skipped, &pages) != 2) {
        pages = 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    return pages * sysconf(_SC_PAGESIZE);
}

/* Message i begins STEP * i elements after the first message. */
static ls_status send_all(ls_comm *world, const float *values, int messages, size_t count, int tag, ls_work **work) {
    for (int i = 0; i < messages; i++) {
        LS_TRY(ls_comm_send(world, values + (ptrdiff_t)STEP * i, count, LS_F32, 1, tag, &work[i]));
    }
    return LS_OK;
}

static ls_status wait_all(ls_work **work, int messages) {
    for (int i = 0; i < messages; i++) {
        LS_TRY(ls_work_wait(work[i]));
    }
    return LS_OK;
}

static ls_status receive_all(ls_comm *world, float *into, int messages, size_t count, int tag) {
    for (int i = 0; i < messages; i++) {
        LS_TRY(ls_comm_recv(world, into, count, LS_F32, 0, tag, NULL));
        LS_CHECK(into[0] == (float)(STEP * i) && into[count - 1] == (float)((size_t)(STEP * i) + count - 1));
    }
    return LS_OK;
}

static ls_status meet(ls_comm *world) {
    for (int i = 0; i < 20; i++) {
        LS_TRY(ls_comm_barrier(world, NULL));
        usleep(5000); /* leaves time for messages to arrive; the test does not depend on it */
    }
    return LS_OK;
}

/* A rank that has never received leaves all messages unread. From this call on, rank 1 reads them. */
static ls_status begin_to_receive(ls_comm *world, float *values) {
    ls_work *work = NULL;
    LS_TRY(ls_comm_rank(world) == 0 ? send_all(world, values, 1, 1, 1, &work) : LS_OK);
    LS_TRY(ls_comm_rank(world) == 1 ? receive_all(world, values, 1, 1, 1) : LS_OK);
    LS_TRY(ls_comm_rank(world) == 0 ? ls_work_wait(work) : LS_OK);
    return ls_comm_barrier(world, NULL);
}

static ls_status flood(ls_comm *world, float *values, int messages, size_t count, long before) {
    static ls_work *work[MOST];
    const int rank = ls_comm_rank(world);
    LS_TRY(rank == 0 ? send_all(world, values, messages, count, 3, work) : LS_OK);
    LS_TRY(meet(world));
    const long grown = resident() - before;
    LS_TRY(ls_comm_barrier(world, NULL)); /* ranks may be threads of one process */
    if (rank == 1) {
        LS_TRY(receive_all(world, values, messages, count, 3));
    }
    LS_TRY(rank == 0 ? wait_all(work, messages) : LS_OK);
    const bool streams = strcmp(ls_comm_backend(world), "shm") == 0 &&
                         count == MEDIUM; /* shm stores messages of this size without limit */
    if (is_measured && !streams && grown > BOUND) {
        return ls_fail(LS_ERR_INTERNAL, "the process has grown by %ld bytes for %d messages of %zu", grown, messages,
                       count * sizeof(float));
    }
    return LS_OK;
}

/* The last message is received first, although more messages precede it than a rank can store. */
static ls_status another_tag_first(ls_comm *world, float *values) {
    enum { MESSAGES = 40 };
    ls_work *work[MESSAGES + 1];
    if (ls_comm_rank(world) == 0) {
        LS_TRY(send_all(world, values, MESSAGES, LARGE, 5, work));
        LS_TRY(send_all(world, values, 1, LARGE, 6, &work[MESSAGES]));
    }
    LS_TRY(meet(world));
    if (ls_comm_rank(world) == 1) {
        LS_TRY(receive_all(world, values, 1, LARGE, 6));
        LS_TRY(receive_all(world, values, MESSAGES, LARGE, 5));
    }
    return ls_comm_rank(world) == 0 ? wait_all(work, MESSAGES + 1) : LS_OK;
}

static ls_status of_another_size(ls_comm *world, float *values) {
    enum { MESSAGES = 40 };
    ls_work *work[MESSAGES];
    LS_TRY(ls_comm_rank(world) == 0 ? send_all(world, values, MESSAGES, LARGE, 7, work) : LS_OK);
    LS_TRY(meet(world));
    for (int i = 0; i < MESSAGES && ls_comm_rank(world) == 1; i++) {
        LS_CHECK(ls_comm_recv(world, values, LARGE - 1, LS_F32, 0, 7, NULL) == LS_ERR_MISMATCH);
    }
    for (int i = 0; i < MESSAGES && ls_comm_rank(world) == 0; i++) {
        const ls_status status = ls_work_wait(work[i]); /* a backend may report the error to the sender, too */
        LS_CHECK(status == LS_OK || status == LS_ERR_MISMATCH);
    }
    return LS_OK;
}

/*
 * Rank 0 does not wait for its sends. They progress while rank 0 waits in ls_finalize, on every communicator. Over
 * sockets, rank 1 must not read the memory of rank 0, because such reads succeed without progress on rank 0.
 */
static ls_status forgotten_sends(ls_comm *world, float *values) {
    enum { MESSAGES = 40, KINDS = 4 };
    ls_work *work[KINDS * MESSAGES];
    ls_comm *part = NULL;
    const int rank = ls_comm_rank(world);
    if (ls_world() != world) { /* ls_finalize ignores the world of a thread */
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    if (rank == 0) {
        LS_TRY(send_all(world, values, MESSAGES, LARGE, 8, work));
        LS_TRY(send_all(part, values, MESSAGES, MEDIUM, 9, work + MESSAGES));
        LS_TRY(send_all(part, values, MESSAGES, 1, 10, work + (ptrdiff_t)2 * MESSAGES));
        LS_TRY(send_all(part, values, MESSAGES, LARGE, 11, work + (ptrdiff_t)3 * MESSAGES));
    } else if (rank == 1) {
        const char *backend = ls_comm_backend(world);
        if (strcmp(backend, "shm") != 0 && strcmp(backend, "mpi") != 0 && !process_forbid_reading()) {
            fprintf(stderr, "SKIPPED: rank 1 can read the memory of rank 0, so sends in ls_finalize are not tested\n");
        }
        usleep(50000); /* leaves time for rank 0 to call ls_finalize; the test does not depend on it */
        LS_TRY(receive_all(part, values, MESSAGES, LARGE, 11));
        LS_TRY(receive_all(part, values, MESSAGES, 1, 10));
        LS_TRY(receive_all(part, values, MESSAGES, MEDIUM, 9));
        LS_TRY(receive_all(world, values, MESSAGES, LARGE, 8));
    }
    LS_TRY(ls_finalize());
    ls_comm_free(part);
    for (int i = 0; i < KINDS * MESSAGES && rank == 0; i++) {
        const ls_status status = ls_work_wait(work[i]); /* frees the work */
        LS_CHECK(status == LS_OK || status == LS_ERR_STATE);
    }
    return LS_OK;
}

static ls_status run(ls_comm *world, float *values) {
    for (int i = 0; i < LARGE + STEP * MOST; i++) {
        values[i] = (float)i;
    }
    LS_TRY(begin_to_receive(world, values));
    const long before = resident();
    LS_TRY(flood(world, values, 300, LARGE, before));
    LS_TRY(flood(world, values, MOST, MEDIUM, before));
    LS_TRY(another_tag_first(world, values));
    LS_TRY(of_another_size(world, values));
    LS_TRY(ls_comm_barrier(world, NULL));
    return forgotten_sends(world, values);
}

ls_status rank_test(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    float *values = malloc(sizeof *values * (LARGE + STEP * MOST));
    LS_CHECK(values != NULL);
    const ls_status status = run(world, values);
    free(values);
    return status;
}
