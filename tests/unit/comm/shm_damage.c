/*
 * A rank damages shared memory (cells, notes, tables and packets, everything except the steps) at random while the
 * ranks make calls. The other rank's calls return an error or a result, and write only to their buffers. (The seed
 * determines the damage, but not its time.) Also tests message headers, as all backends read them.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/random.h"
#include "comm/backend/shm/shm.h"
#include "comm/match.h"
#include "comm/record.h"
#include "tests/support/forks.h"
#include "tests/support/fuzz.h"

#define LONG_TIMEOUT 60.0
#define HURRIED      300000000 /* nanoseconds that a call waits for the other rank once both have entered */
#define LONGEST      20.0      /* seconds of damage */
#define GUARD        0x5a

enum { ROUNDS = 25, CALLS = 60, MOST = 40000, AROUND = 4096, OFFERS = 20000 };

/* A header may claim any size. The address sanitizer would end a process that requests so much memory. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

/* ---- a rank's own memory ----------------------------------------------------------------------------------------- */

typedef struct damage {
    uint64_t seed;
    unsigned char *cells; /* of this rank */
    unsigned char *pipe;  /* with the packets that this rank sends */
    size_t pipe_bytes;
    size_t packet_bytes;
    _Atomic bool over;
} damage;

/* Finds the shared memory of the two ranks in this process. */
static unsigned char *find_memory(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned char *found = NULL;
    while (maps != NULL && found == NULL && fgets(line, sizeof line, maps) != NULL) {
        found = strstr(line, "memfd:lockstep") != NULL ? (unsigned char *)(uintptr_t)strtoull(line, NULL, 16) : NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found;
}

static size_t below(damage *d, uint64_t index, size_t bound) {
    return (size_t)ls_random_below(d->seed, 3, index, bound);
}

/* Damages a number in a cell or in a packet's header, except the step or turn that determines its owner. */
static void hit(damage *d, uint64_t *index) {
    static const uint64_t numbers[] = {0, 1, 3, 64, 100, 4096, 70000, UINT32_MAX, INT64_MAX, UINT64_MAX - 63};
    const uint64_t number = numbers[below(d, (*index)++, sizeof numbers / sizeof *numbers)];
    const bool in_cell = below(d, (*index)++, 2) == 0;
    const size_t head = 8 + 4 * below(d, (*index)++, 14);
    const size_t which = below(d, (*index)++, in_cell ? LS_SHM_CELLS : d->pipe_bytes / d->packet_bytes);
    unsigned char *base = in_cell ? d->cells + which * sizeof(ls_shm_cell) : d->pipe + which * d->packet_bytes;
    memcpy(base + head, &number, below(d, (*index)++, 2) == 0 ? 4 : 8);
}

/* If the damage makes a rank appear to send forever, the other rank is busy until the damaging rank dies. */
static void *do_damage(void *argument) {
    damage *d = argument;
    uint64_t index = 0;
    const double start = ls_clock_seconds();
    while (!atomic_load(&d->over)) {
        if (ls_clock_seconds() - start > LONGEST) {
            raise(SIGKILL);
        }
        usleep((useconds_t)below(d, index++, 2000));
        for (size_t times = below(d, index++, 30); times > 0; times--) {
            hit(d, &index);
        }
    }
    return NULL;
}

static void prepare(damage *d, int rank) {
    ls_shm layout = {.size = 2, .rank = rank};
    (void)ls_shm_layout(&layout, find_memory());
    d->cells = (unsigned char *)ls_shm_cell_at(&layout, rank, 0);
    d->pipe_bytes = layout.point.depth * layout.point.stride;
    d->packet_bytes = layout.point.stride;
    d->pipe = layout.point.pipes + (size_t)(2 * rank + (1 - rank)) * d->pipe_bytes;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static ls_status call_at(ls_comm *world, uint64_t seed, uint64_t number, float *send, float *receive, float *shared) {
    static const size_t counts[] = {1, 16, 500, 3000, MOST / 2};
    const size_t count = counts[ls_random_below(seed, 4, 2 * number, sizeof counts / sizeof *counts)];
    const size_t each[2] = {count / 2, count / 2};
    const int other = 1 - ls_comm_rank(world);
    ls_work *sent = NULL;
    switch (ls_random_below(seed, 4, 2 * number + 1, 9)) {
    case 0:
        return ls_comm_allreduce(world, send, receive, count, LS_F32, LS_SUM, NULL);
    case 1:
        return ls_comm_allgather(world, send, receive, count, LS_F32, NULL);
    case 2:
        return ls_comm_alltoallv(world, send, each, NULL, receive, each, NULL, LS_F32, NULL);
    case 3:
        return ls_comm_reduce_scatter(world, send, receive, count / 2, LS_F32, LS_SUM, NULL);
    case 4:
        return ls_comm_broadcast(world, shared, count, LS_F32, 1, NULL);
    case 5:
        return ls_comm_allreduce(world, shared, shared + MOST, count, LS_F32, LS_SUM, NULL);
    case 6:
        return ls_comm_reduce_scatter(world, shared, receive, count / 2, LS_F32, LS_SUM, NULL);
    case 7:
        return ls_comm_gatherv(world, shared, count / 2, receive, each, NULL, LS_F32, 0, NULL);
    default:
        break;
    }
    ls_status status = ls_comm_send(world, send, count, LS_F32, other, 1, &sent);
    status = status == LS_OK ? ls_comm_recv(world, receive, count, LS_F32, other, 1, NULL) : status;
    const ls_status ended = ls_work_wait(sent);
    return status != LS_OK ? status : ended;
}

/* Rank 0 is correct; rank 1 damages its own messages while it sends them. */
static const char *damaged_rank(ls_comm *world, int rank, const void *argument) {
    damage d = {.seed = *(const uint64_t *)argument};
    pthread_t thread;
    LS_MUST(world != NULL);
    float *shared = ls_comm_alloc(world, 2 * MOST * sizeof *shared);
    ((ls_shm *)world->state)->timeout_ns = HURRIED;
    float *send = calloc(MOST, sizeof *send);
    unsigned char *memory = malloc(MOST * sizeof(float) + 2 * AROUND);
    LS_MUST(shared != NULL && send != NULL && memory != NULL);
    memset(memory, GUARD, MOST * sizeof(float) + 2 * AROUND);
    prepare(&d, rank);
    /* When rank 1 returns from this call, rank 0 has its memory, but may still be in the barrier when the damage
     * begins. */
    ls_status status = ls_comm_barrier(world, NULL);
    LS_MUST(rank == 0 || pthread_create(&thread, NULL, do_damage, &d) == 0);
    for (uint64_t call = 0; call < CALLS && (status == LS_OK || status == LS_ERR_MISMATCH); call++) {
        status = call_at(world, d.seed, call, send, (float *)(void *)(memory + AROUND), shared);
        LS_MUST(status == LS_OK || strlen(ls_error_message()) > 10);
    }
    atomic_store(&d.over, true);
    LS_MUST(rank == 0 || pthread_join(thread, NULL) == 0);
    for (size_t i = 0; i < AROUND; i++) {
        LS_MUST(memory[i] == GUARD && memory[AROUND + MOST * sizeof(float) + i] == GUARD);
    }
    free(send);
    free(memory);
    return NULL;
}

static void damaged_round(uint64_t number, void *argument) {
    const uint64_t seed = number;
    (void)argument;
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, damaged_rank, &seed);
    const int damaged = ls_forks_wait(&forks, 1);
    assert_true(damaged == 0 || damaged == -SIGKILL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

TEST(damaged_memory) {
    fuzz_run("shm memory", ROUNDS, damaged_round, NULL);
}

/* ---- headers -------------------------------------------------------------------------------------------------------
 *
 * How all backends handle the headers of messages. Receives and messages come in any order. Content is written only to
 * memory that ls_match provides, with exactly the size that the header states.
 */

typedef struct receive {
    ls_match_receipt *receipt;
    unsigned char *memory;
} receive;

static ls_match_header any_header(void) {
    static const size_t numbers[] = {0, 1, 3, 16, 64, 1000, 4096, SIZE_MAX / 4 + 17, SIZE_MAX / 2, SIZE_MAX};
    ls_match_header header = {.from = (int)fuzz_below(2), .tag = (int)fuzz_below(3) - (fuzz_below(20) == 0)};
    header.dtype = (ls_dtype)(fuzz_below(20) == 0 ? fuzz_below(1000) : fuzz_below(LS_DTYPE_COUNT));
    header.count = numbers[fuzz_below(fuzz_below(4) == 0 ? 10 : 5)];
    header.bytes = fuzz_below(4) == 0 ? numbers[fuzz_below(10)] : header.count * ls_dtype_size(header.dtype);
    return header;
}

static void offer(ls_match *match) {
    ls_match_target target = {0};
    const ls_match_header header = any_header();
    const ls_status status = ls_match_offer(match, &header, &target);
    if (status != LS_OK) {
        assert_true(status == LS_ERR_PEER || status == LS_ERR_MEMORY);
        return;
    }
    assert_true(header.tag >= 0 && header.bytes == header.count * ls_dtype_size(header.dtype));
    if (header.bytes > 1 << 20) { /* more than exists, so it does not arrive */
        return;
    }
    if (target.into != NULL && header.bytes != 0) {
        memset(target.into, 7, header.bytes);
    }
    ls_match_complete(match, &target);
}

static void receive_one(ls_match *match, receive *r) {
    static const size_t counts[] = {0, 1, 3, 16, 64};
    const size_t count = counts[fuzz_below(5)];
    const ls_dtype dtype = (ls_dtype)fuzz_below(LS_DTYPE_COUNT);
    const size_t width = ls_dtype_size(dtype);
    r->memory = malloc(count * width + 1);
    const ls_call call = {.operation = LS_OP_RECV,
                          .dtype = dtype,
                          .root = (int)fuzz_below(2),
                          .tag = (int)fuzz_below(3),
                          .count = count,
                          .width = width,
                          .receive = r->memory};
    const ls_status status = ls_match_receive(match, &call, &r->receipt);
    assert_true(status == LS_OK || status == LS_ERR_MISMATCH);
}

static void header_round(uint64_t number, void *argument) {
    enum { STEPS = 40 };
    ls_match match = {0};
    receive receives[STEPS] = {0};
    (void)number;
    (void)argument;
    for (int step = 0; step < STEPS; step++) {
        if (fuzz_below(2) == 0) {
            offer(&match);
        } else {
            receive_one(&match, &receives[step]);
        }
    }
    for (int step = 0; step < STEPS; step++) {
        if (receives[step].receipt != NULL && ls_match_arrived(receives[step].receipt)) {
            const ls_status status = ls_match_end(&match, receives[step].receipt);
            assert_true(status == LS_OK || status == LS_ERR_MISMATCH);
        }
    }
    ls_match_free(&match);
    for (int step = 0; step < STEPS; step++) {
        free(receives[step].memory);
    }
}

TEST(damaged_headers) {
    fuzz_run("message headers", OFFERS / 40, header_round, NULL);
}

int main(void) {
    unsetenv("LOCKSTEP_TEST_BACKEND");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_headers),
        cmocka_unit_test(damaged_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
