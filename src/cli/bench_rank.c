#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "cli/bench.h"
#include "comm/comm.h"
#include "comm/store.h"

/*
 * Calls shorter than GROUP_SECONDS are timed in groups, because reading the clock takes as long as such a call. Without
 * --iterations, each size takes about SIZE_SECONDS.
 */
static const double GROUP_SECONDS = 10e-6;
static const double WARM_SECONDS = 20e-3;
static const double SIZE_SECONDS = 0.25;
enum { LARGEST_GROUP = 64, WARM_CALLS = 2000, FEWEST_ITERATIONS = 10, MOST_ITERATIONS = 1000 };

/* The measurement of one size on one rank. */
typedef struct bench {
    const ls_bench_plan *plan;
    ls_bench_call call;
    size_t bytes;          /* size of the larger of the two buffers */
    void *memory;          /* the send buffer; NULL if the call is in place */
    double *times;         /* seconds per iteration: first of this rank, later of the slowest rank */
    const char *algorithm; /* the algorithm of the last timed call */
    uint64_t sent[2];      /* messages and bytes per timed call, each for the rank that sends the most */
    bool counts;           /* the backend counts messages */
    int iterations;        /* number of timed iterations; each has `group` calls */
    int group;
} bench;

static bool is_in_place(const ls_bench_plan *plan) {
    return plan->in_place || plan->collective->in_place;
}

static size_t parts_of(const bench *self, ls_bench_parts parts) {
    return parts == LS_BENCH_ONE_PER_RANK ? (size_t)self->call.ranks : parts;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ls_status get_buffer(const bench *self, size_t bytes, void **buffer) {
    *buffer = self->plan->registered ? ls_comm_alloc(self->call.comm, bytes) : ls_allocate_aligned(bytes, 64);
    if (*buffer != NULL) {
        return LS_OK;
    }
    return self->plan->registered ? ls_error_status() : ls_fail_memory("lockstep bench", bytes);
}

static void give_buffer(const bench *self, void *buffer) {
    if (self->plan->registered) {
        ls_comm_release(self->call.comm, buffer);
    } else {
        ls_free(buffer);
    }
}

static void close_bench(bench *self) {
    give_buffer(self, self->memory);
    give_buffer(self, self->call.receive);
    ls_free(self->times);
}

/* Allocates the buffers, which hold only whole elements, and at least one in each part. */
static ls_status open_bench(bench *self, size_t size) {
    const ls_bench_collective *row = self->plan->collective;
    ls_bench_call *call = &self->call;
    const size_t sent = parts_of(self, row->send);
    const size_t received = parts_of(self, row->receive);
    const size_t unit = (sent > received ? sent : received) * ls_bench_width(call->dtype, call->reduction);
    if (unit == 0) {
        return LS_OK;
    }
    call->count = (size + unit - 1) / unit;
    self->bytes = call->count * unit;
    const size_t part = self->bytes / (sent > received ? sent : received);
    LS_TRY(get_buffer(self, received * part, &call->receive));
    if (is_in_place(self->plan)) {
        call->send = call->receive;
    } else {
        LS_TRY(get_buffer(self, sent * part, &self->memory));
        call->send = self->memory;
    }
    return LS_OK;
}

/* Writes the values that this rank sends. */
static void write_values(const bench *self) {
    const ls_bench_collective *row = self->plan->collective;
    const size_t parts = parts_of(self, is_in_place(self->plan) ? row->receive : row->send);
    ls_bench_fill(&self->call, (void *)self->call.send, parts * self->call.count);
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

/*
 * Makes a call with known values into a buffer with different contents, and checks the result. A rank that finds a
 * wrong element prints it. All ranks learn whether any rank found a wrong element.
 */
static ls_status check(const bench *self, bool *wrong) {
    const ls_bench_collective *row = self->plan->collective;
    const ls_bench_call *call = &self->call;
    if (!is_in_place(self->plan) && self->bytes > 0) {
        memset(call->receive, 0x5a,
               parts_of(self, row->receive) * call->count * ls_bench_width(call->dtype, call->reduction));
    }
    write_values(self);
    LS_TRY(row->run(call));
    const bool receives = !row->root_alone_receives || call->rank == LS_BENCH_ROOT;
    const int parts = receives ? (int)parts_of(self, row->receive) : 0;
    int32_t found = 0;
    for (int part = 0; part < parts && found == 0; part++) {
        found = !ls_bench_check(call, ls_bench_origin_of(row, call, part), part);
    }
    if (found != 0) {
        fprintf(stderr, "lockstep bench: %s of %zu bytes on %d ranks is wrong: %s\n", row->name, self->bytes,
                call->ranks, ls_error_message());
    }
    LS_TRY(ls_comm_allreduce(call->comm, &found, &found, 1, LS_I32, LS_MAX, NULL));
    *wrong = *wrong || found != 0;
    return LS_OK;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* Keeps a core busy without calling the library. */
static void compute(uint64_t ns) {
    const uint64_t end = ls_clock_ns() + ns;
    while (ls_clock_ns() < end) {
    }
}

/* Starts the call, computes, and waits for the call. */
static ls_status run_and_compute(const bench *self) {
    ls_work *work = NULL;
    ls_bench_call call = self->call;
    call.work = &work;
    LS_TRY(self->plan->collective->run(&call));
    compute((uint64_t)self->plan->compute_ms * 1000000);
    return ls_work_wait(work);
}

/* Measures the seconds per call on this rank over `calls` calls, excluding the computation. */
static ls_status time_calls(bench *self, int calls, double *seconds) {
    uint64_t before[2] = {0};
    if (self->plan->fresh) {
        write_values(self);
    }
    ls_status status = ls_comm_barrier(self->call.comm, NULL);
    self->counts = ls_comm_traffic(self->call.comm, &before[0], &before[1]);
    const uint64_t start = ls_clock_ns();
    for (int i = 0; i < calls && status == LS_OK; i++) {
        status = self->plan->compute_ms != 0 ? run_and_compute(self) : self->plan->collective->run(&self->call);
    }
    *seconds = (double)(ls_clock_ns() - start) * 1e-9 / calls - self->plan->compute_ms * 1e-3;
    (void)ls_comm_traffic(self->call.comm, &self->sent[0], &self->sent[1]);
    for (int i = 0; i < 2; i++) {
        self->sent[i] = (self->sent[i] - before[i]) / (uint64_t)calls;
    }
    return status;
}

static int within(double value, int least, int most) {
    return value <= least ? least : value >= most ? most : (int)value;
}

/* Warms up, and chooses the number of iterations and the number of calls per iteration. All ranks choose the same
 * numbers. */
static ls_status choose_iterations(bench *self) {
    double seconds = 0.0;
    int calls = 2;
    for (int round = 0; round < 2; round++) {
        LS_TRY(time_calls(self, calls, &seconds));
        LS_TRY(ls_comm_allreduce(self->call.comm, &seconds, &seconds, 1, LS_F64, LS_MAX, NULL));
        calls = within(WARM_SECONDS / (seconds + self->plan->compute_ms * 1e-3), 1, WARM_CALLS);
    }
    self->group =
        self->plan->fresh || self->plan->compute_ms != 0 ? 1 : within(GROUP_SECONDS / seconds + 1.0, 1, LARGEST_GROUP);
    self->iterations = self->plan->iterations != 0
                           ? self->plan->iterations
                           : within(SIZE_SECONDS / ((seconds + self->plan->compute_ms * 1e-3) * self->group),
                                    FEWEST_ITERATIONS, MOST_ITERATIONS);
    return LS_OK;
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Times all iterations. The time of an iteration is the time of the slowest rank. Sorts `times`. */
static ls_status measure(bench *self) {
    const size_t count = (size_t)self->iterations;
    self->times = ls_allocate_zeroed(count, sizeof *self->times);
    if (self->times == NULL) {
        return ls_fail_memory("lockstep bench", count * sizeof *self->times);
    }
    for (size_t i = 0; i < count; i++) {
        LS_TRY(time_calls(self, self->group, &self->times[i]));
    }
    self->algorithm = ls_comm_algorithm(self->call.comm);
    LS_TRY(ls_comm_allreduce(self->call.comm, self->sent, self->sent, 2, LS_I64, LS_MAX, NULL));
    LS_TRY(ls_comm_allreduce(self->call.comm, self->times, self->times, count, LS_F64, LS_MAX, NULL));
    qsort(self->times, count, sizeof *self->times, compare);
    return LS_OK;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static double microseconds(const bench *self, double quantile) {
    const double part = self->plan->collective->both_ways ? 0.5 : 1.0;
    return 1e6 * part * self->times[(size_t)(quantile * (self->iterations - 1) + 0.5)];
}

/* Formats a count, or returns `otherwise` if the backend does not count messages and bytes. */
static const char *count_text(const bench *self, uint64_t count, const char *otherwise, char text[24]) {
    snprintf(text, 24, "%llu", (unsigned long long)count);
    return self->counts ? text : otherwise;
}

static void print_result(const bench *self, bool wrong) {
    char messages[24];
    char bytes[24];
    const ls_bench_call *call = &self->call;
    const ls_bench_collective *row = self->plan->collective;
    const double median = microseconds(self, 0.5);
    const double algorithm = median > 0.0 ? (double)self->bytes / median * 1e-3 : 0.0;
    const double bus = algorithm * (row->shares == 0 ? 1.0 : row->shares * (double)(call->ranks - 1) / call->ranks);
    if (self->plan->json) {
        printf("{\"collective\": \"%s\", \"backend\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"iterations\": %d, "
               "\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"algbw_gbps\": %.6f, \"busbw_gbps\": %.6f, "
               "\"compute_ms\": %d, \"messages\": %s, \"sent_bytes\": %s, \"correct\": %s, \"algorithm\": \"%s\"}\n",
               row->name, ls_comm_backend(call->comm), call->ranks, self->bytes, self->iterations, median,
               microseconds(self, 0.1), microseconds(self, 0.9), algorithm, bus, self->plan->compute_ms,
               count_text(self, self->sent[0], "null", messages), count_text(self, self->sent[1], "null", bytes),
               wrong ? "false" : "true", self->algorithm);
    } else {
        printf("%12zu %10d %12.2f %12.2f %12.2f %10.3f %10.3f %9s %12s  %-18s  %s\n", self->bytes, self->iterations,
               median, microseconds(self, 0.1), microseconds(self, 0.9), algorithm, bus,
               count_text(self, self->sent[0], "-", messages), count_text(self, self->sent[1], "-", bytes),
               self->algorithm, wrong ? "WRONG" : "yes");
    }
    fflush(stdout);
}

static void print_heading(const ls_bench_plan *plan, const ls_comm *comm) {
    const bool moves = plan->collective->receive != LS_BENCH_NOTHING;
    printf("# %s, %d rank%s, backend %s%s%s%s%s%s%s%s%s%s\n", plan->collective->name, ls_comm_size(comm),
           ls_comm_size(comm) == 1 ? "" : "s", ls_comm_backend(comm), moves ? ", " : "",
           moves ? ls_dtype_name(plan->dtype) : "", plan->collective->reduces ? ", " : "",
           plan->collective->reduces ? ls_reduction_name(plan->reduction) : "",
           !moves             ? ""
           : plan->registered ? ", registered memory"
                              : ", ordinary memory",
           plan->in_place ? ", in place" : "", plan->fresh ? ", freshly written" : "",
           plan->any_order ? ", any order" : "",
           plan->compute_ms != 0 ? ", beyond the computation during each call" : "");
    printf("# %10s %10s %12s %12s %12s %10s %10s %9s %12s  %-18s  %s\n", "bytes", "iterations", "median us", "p10 us",
           "p90 us", "algbw GB/s", "busbw GB/s", "messages", "sent", "algorithm", "correct");
    fflush(stdout);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

/* Checks the results before and after the timed calls. */
static ls_status bench_size(bench *self, size_t size, bool *wrong) {
    LS_TRY(open_bench(self, size));
    LS_TRY(check(self, wrong));
    if (self->plan->in_place && !self->plan->fresh) {
        /* Zeros stay zeros when results become the next call's values. Other values would grow without bound. */
        memset(self->call.receive, 0, self->bytes);
    }
    LS_TRY(choose_iterations(self));
    LS_TRY(measure(self));
    LS_TRY(check(self, wrong));
    if (self->call.rank == 0) {
        print_result(self, *wrong);
    }
    return LS_OK;
}

static ls_status bench_sizes(const ls_bench_plan *plan, ls_comm *comm, bool *any_wrong) {
    if (ls_comm_rank(comm) == 0 && !plan->json) {
        print_heading(plan, comm);
    }
    ls_status status = LS_OK;
    for (int i = 0; i < plan->size_count && status == LS_OK; i++) {
        bench self = {.plan = plan,
                      .call = {.comm = comm,
                               .rank = ls_comm_rank(comm),
                               .ranks = ls_comm_size(comm),
                               .dtype = plan->dtype,
                               .reduction = plan->reduction}};
        bool wrong = false;
        status = bench_size(&self, plan->sizes[i], &wrong);
        *any_wrong = *any_wrong || wrong;
        close_bench(&self);
    }
    return status;
}

ls_status ls_bench_rank(const ls_bench_plan *plan, bool *wrong) {
    const ls_init_options options = {.backend = plan->backend};
    ls_comm *comm = ls_init(&options);
    if (comm == NULL) {
        return ls_fail_in("lockstep bench");
    }
    ls_status status = plan->any_order ? ls_comm_set_any_order(comm, true) : LS_OK;
    status = status == LS_OK ? bench_sizes(plan, comm, wrong) : status;
    if (status == LS_OK) {
        return ls_finalize();
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_comm_free(comm);
    (void)ls_error_put_back(&cause);
    return status;
}
