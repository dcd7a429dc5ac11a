/*
 * An all-reduce made of sends and receives. The vector is divided into one piece per rank. The pieces travel around the
 * ring once and grow into sums, so that each rank has one finished piece. Then the finished pieces travel around the
 * ring. Each rank sends 2 (n-1)/n of the vector, for any number of ranks n. The program compares the result with
 * ls_comm_allreduce.
 *
 *     lockstep run -n 4 build/examples/all_reduce_by_hand --count 1000
 */
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static long count = 1000003;

static const argument options[] = {
    {"--count", ARGUMENT_SIZE, &count, "numbers in the vector (1000003)"},
};

typedef struct ring {
    ls_comm *world;
    int rank, size;
    float *vector;
    float *arrived; /* room for one piece */
} ring;

/*
 * Returns the start of piece `piece` (modulo the number of ranks). The sizes of the pieces differ by at most one
 * element.
 */
static size_t begin(const ring *self, int piece) {
    return (size_t)count * (size_t)piece / (size_t)self->size;
}

static float *piece_of(const ring *self, int piece, size_t *length) {
    piece = (piece + 2 * self->size) % self->size;
    *length = begin(self, piece + 1) - begin(self, piece);
    return self->vector + begin(self, piece);
}

/* Sends one piece to the next rank and receives a different piece from the previous rank into `arrived`. */
static ls_status exchange(const ring *self, int send, int receive, float *arrived) {
    const int next = (self->rank + 1) % self->size;
    const int previous = (self->rank + self->size - 1) % self->size;
    size_t sent_length;
    size_t length;
    const float *sent = piece_of(self, send, &sent_length);
    (void)piece_of(self, receive, &length);
    ls_work *sending = NULL;
    ls_status status = ls_comm_send(self->world, sent, sent_length, LS_F32, next, 0, &sending);
    if (status != LS_OK) {
        return status;
    }
    status = ls_comm_recv(self->world, arrived, length, LS_F32, previous, 0, NULL);
    const ls_status finished = ls_work_wait(sending);
    return status != LS_OK ? status : finished;
}

static ls_status all_reduce(const ring *self) {
    for (int step = 0; step < self->size - 1; step++) { /* sums grow */
        const int received = self->rank - step - 1;
        const ls_status status = exchange(self, received + 1, received, self->arrived);
        if (status != LS_OK) {
            return status;
        }
        size_t length;
        float *sum = piece_of(self, received, &length);
        for (size_t i = 0; i < length; i++) {
            sum[i] += self->arrived[i];
        }
    }
    for (int step = 0; step < self->size - 1; step++) { /* the finished sums travel around the ring */
        const int received = self->rank - step;
        size_t length;
        const ls_status status = exchange(self, received + 1, received, piece_of(self, received, &length));
        if (status != LS_OK) {
            return status;
        }
    }
    return LS_OK;
}

/* Runs both all-reduces on the same numbers. The numbers are integers, so the order of the additions does not change
 * the result. */
static ls_status compare(ring *self, float *expected, bool *same) {
    for (long i = 0; i < count; i++) {
        self->vector[i] = expected[i] = (float)((i + 1) % 1000 * (self->rank + 1));
    }
    ls_status status = all_reduce(self);
    if (status == LS_OK) {
        status = ls_comm_allreduce(self->world, expected, expected, (size_t)count, LS_F32, LS_SUM, NULL);
    }
    *same = memcmp(self->vector, expected, (size_t)count * sizeof(float)) == 0;
    return status;
}

static ls_status run(ls_comm *world, bool *same) {
    const size_t bytes = (size_t)count * sizeof(float);
    float *expected = malloc(bytes);
    ring self = {world, ls_comm_rank(world), ls_comm_size(world), malloc(bytes), malloc(bytes)};
    if (expected == NULL || self.vector == NULL || self.arrived == NULL) {
        fprintf(stderr, "all_reduce_by_hand: out of memory for vectors of %ld numbers\n", count);
        exit(1);
    }
    const ls_status status = compare(&self, expected, same);
    if (status == LS_OK) {
        printf("rank %d of %d: sum of %ld numbers, last %g: %s ls_comm_allreduce\n", self.rank, self.size, count,
               (double)self.vector[count - 1], *same ? "as from" : "NOT as from");
    }
    free(self.arrived);
    free(self.vector);
    free(expected);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "An all-reduce from sends and receives, checked against ls_comm_allreduce.", options);
    ls_comm *world = ls_init(NULL);
    bool same = false;
    if (world == NULL || run(world, &same) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "all_reduce_by_hand: %s\n", ls_error_message());
        return 1;
    }
    return same ? 0 : 1;
}
