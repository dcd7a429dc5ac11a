#include "measure.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PERIOD = 251, MOST_SIZES = 64, LARGEST_GROUP = 64, WARM_CALLS = 2000, FEWEST = 10, MOST = 1000 };
static const double GROUP_SECONDS = 10e-6;
static const double WARM_SECONDS = 20e-3;
static const double SIZE_SECONDS = 0.25;

/* Number of parts of the buffers. EACH means one part per rank. */
enum { NONE = 0, ONE = 1, EACH = -1 };
static const struct {
    const char *name;
    int send, receive;
} rows[PEER_COLLECTIVES] = {
    {"allreduce", NONE, ONE}, {"broadcast", NONE, ONE}, {"allgather", ONE, EACH}, {"reduce_scatter", EACH, ONE},
    {"alltoall", EACH, EACH}, {"pingpong", ONE, ONE},   {"barrier", NONE, NONE},
};

typedef struct bench {
    const peer *self;
    peer_call call;
    size_t bytes;          /* of the larger buffer */
    size_t sent, received; /* elements */
    bool fresh;
    int iterations, group;
    double *times;
} bench;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *get(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

/* ---- values: small whole numbers, so that sums are exact --------------------------------------------------------- */

static float value(int rank, size_t index) {
    return (float)((7 * (index % PERIOD) + 3 * (size_t)rank + 1) % 11);
}

static float sum(int ranks, size_t index) {
    float total = 0;
    for (int rank = 0; rank < ranks; rank++) {
        total += value(rank, index);
    }
    return total;
}

static void fill(const bench *b) {
    float *buffer = b->call.send != NULL ? b->call.send : b->call.receive;
    const size_t count = b->call.send != NULL ? b->sent : b->received;
    float values[PERIOD];
    for (size_t i = 0; i < PERIOD; i++) {
        values[i] = value(b->self->rank, i);
    }
    for (size_t i = 0; i < count; i += PERIOD) {
        memcpy(buffer + i, values, (count - i < PERIOD ? count - i : PERIOD) * sizeof *values);
    }
}

static float expected(const bench *b, size_t index) {
    const peer *self = b->self;
    const size_t own = (size_t)self->rank * b->call.count;
    const int part = b->call.count > 0 ? (int)(index / b->call.count) : 0;
    switch (b->call.collective) {
    case PEER_ALLREDUCE:
        return sum(self->ranks, index);
    case PEER_BROADCAST:
        return value(0, index);
    case PEER_ALLGATHER:
        return value(part, index % b->call.count);
    case PEER_REDUCE_SCATTER:
        return sum(self->ranks, own + index);
    case PEER_ALLTOALL:
        return value(part, own + index % b->call.count);
    default:
        return value(self->rank ^ 1, index);
    }
}

/* Makes one call on new values. Returns whether every rank has the right result. */
static bool check(const bench *b) {
    double wrong = 0;
    const bool alone = b->call.collective == PEER_PINGPONG && (b->self->rank ^ 1) >= b->self->ranks;
    if (b->call.send != NULL) {
        memset(b->call.receive, 0x5a, b->received * sizeof(float));
    }
    fill(b);
    b->self->run(&b->call);
    for (size_t i = 0; i < b->received && !alone && wrong == 0; i++) {
        if (b->call.receive[i] != expected(b, i)) {
            fprintf(stderr, "%s: %s of %zu bytes: element %zu on rank %d is %g, but should be %g\n", b->self->name,
                    rows[b->call.collective].name, b->bytes, i, b->self->rank, (double)b->call.receive[i],
                    (double)expected(b, i));
            wrong = 1;
        }
    }
    b->self->most(&wrong, 1);
    return wrong == 0;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

static double time_calls(const bench *b, int calls) {
    if (b->fresh) {
        fill(b);
    }
    b->self->barrier();
    const double start = now();
    for (int i = 0; i < calls; i++) {
        b->self->run(&b->call);
    }
    return (now() - start) / calls;
}

static int within(double number, int least, int most) {
    return number <= least ? least : number >= most ? most : (int)number;
}

static void choose_iterations(bench *b) {
    double seconds = 0;
    int calls = 2;
    for (int round = 0; round < 2; round++) {
        seconds = time_calls(b, calls);
        b->self->most(&seconds, 1);
        calls = within(WARM_SECONDS / seconds, 1, WARM_CALLS);
    }
    b->group = b->fresh ? 1 : within(GROUP_SECONDS / seconds + 1, 1, LARGEST_GROUP);
    if (b->iterations == 0) {
        b->iterations = within(SIZE_SECONDS / (seconds * b->group), FEWEST, MOST);
    }
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double quantile(const bench *b, double part) {
    const double half = b->call.collective == PEER_PINGPONG ? 0.5 : 1;
    return 1e6 * half * b->times[(size_t)(part * (b->iterations - 1) + 0.5)];
}

static double bus_factor(peer_collective collective, int ranks) {
    const double others = (double)(ranks - 1) / ranks;
    return collective == PEER_ALLREDUCE                                    ? 2 * others
           : rows[collective].send == EACH || collective == PEER_ALLGATHER ? others
                                                                           : 1;
}

static void print(const bench *b, bool correct) {
    const double median = quantile(b, 0.5);
    const double algorithm = median > 0 ? (double)b->bytes / median * 1e-3 : 0;
    printf("{\"collective\": \"%s\", \"backend\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"iterations\": %d, "
           "\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"algbw_gbps\": %.6f, \"busbw_gbps\": %.6f, "
           "\"correct\": %s}\n",
           rows[b->call.collective].name, b->self->name, b->self->ranks, b->bytes, b->iterations, median,
           quantile(b, 0.1), quantile(b, 0.9), algorithm, algorithm * bus_factor(b->call.collective, b->self->ranks),
           correct ? "true" : "false");
    fflush(stdout);
}

static size_t parts(const bench *b, int row) {
    return row == EACH ? (size_t)b->self->ranks : (size_t)row;
}

static bool measure_size(bench *b, size_t size) {
    const int send = rows[b->call.collective].send;
    const int receive = rows[b->call.collective].receive;
    const size_t most = parts(b, send) > parts(b, receive) ? parts(b, send) : parts(b, receive);
    const size_t unit = most * sizeof(float);
    b->call.count = most == 0 ? 0 : (size + unit - 1) / unit;
    b->bytes = b->call.count * unit;
    b->sent = parts(b, send) * b->call.count;
    b->received = parts(b, receive) * b->call.count;
    b->call.send = send == NONE ? NULL : get(b->sent * sizeof(float));
    b->call.receive = get(b->received * sizeof(float));
    fill(b);
    if (b->self->open != NULL) {
        b->self->open(&b->call);
    }
    bool correct = check(b);
    if (b->call.send == NULL && !b->fresh) {
        memset(b->call.receive, 0, b->received * sizeof(float)); /* zeros, so that repeated sums stay zero */
    }
    choose_iterations(b);
    b->times = get((size_t)b->iterations * sizeof *b->times);
    for (int i = 0; i < b->iterations; i++) {
        b->times[i] = time_calls(b, b->group);
    }
    b->self->most(b->times, (size_t)b->iterations);
    qsort(b->times, (size_t)b->iterations, sizeof *b->times, compare);
    correct = check(b) && correct;
    if (b->self->rank == 0) {
        print(b, correct);
    }
    if (b->self->close != NULL) {
        b->self->close();
    }
    free(b->call.send);
    free(b->call.receive);
    free(b->times);
    return correct;
}

/* ---- the command line -------------------------------------------------------------------------------------------- */

static int read_sizes(const char *text, size_t *sizes) {
    int count = 0;
    while (count < MOST_SIZES) {
        char *end = NULL;
        const unsigned long long number = strtoull(text, &end, 10);
        const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        end += shift != 0;
        if (end == text || number == 0 || (*end != ',' && *end != '\0')) {
            return 0;
        }
        sizes[count++] = (size_t)number << shift;
        if (*end == '\0') {
            return count;
        }
        text = end + 1;
    }
    return 0;
}

static int usage(const peer *self) {
    if (self->rank == 0) {
        fprintf(stderr,
                "usage: COLLECTIVE [--sizes 4,1K,64K,1M] [--iterations K] [--fresh]; collectives of %s:", self->name);
        for (int i = 0; i < PEER_COLLECTIVES; i++) {
            if (self->supports((peer_collective)i)) {
                fprintf(stderr, " %s", rows[i].name);
            }
        }
        fprintf(stderr, "\n");
    }
    return 2;
}

int peer_measure(const peer *self, int argc, char **argv) {
    int collective = 0;
    while (argc > 1 && collective < PEER_COLLECTIVES && strcmp(argv[1], rows[collective].name) != 0) {
        collective++;
    }
    size_t sizes[MOST_SIZES] = {0};
    int size_count = read_sizes("4,1K,64K,1M,16M,64M", sizes);
    int iterations = 0;
    bool fresh = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--fresh") == 0) {
            fresh = true;
        } else if (strcmp(argv[i], "--sizes") == 0 && i + 1 < argc) {
            size_count = read_sizes(argv[++i], sizes);
        } else if (strcmp(argv[i], "--iterations") == 0 && i + 1 < argc) {
            iterations = (int)strtol(argv[++i], NULL, 10);
        } else {
            return usage(self);
        }
    }
    if (argc < 2 || collective == PEER_COLLECTIVES || !self->supports((peer_collective)collective) || size_count == 0 ||
        iterations < 0) {
        return usage(self);
    }
    if (collective == PEER_BARRIER) {
        size_count = 1;
    }
    bool correct = true;
    for (int i = 0; i < size_count; i++) {
        bench b = {.self = self,
                   .call = {.collective = (peer_collective)collective},
                   .fresh = fresh,
                   .iterations = iterations};
        correct = measure_size(&b, sizes[i]) && correct;
    }
    return correct ? 0 : 1;
}
