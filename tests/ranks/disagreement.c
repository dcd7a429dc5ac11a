/*
 * Ranks that make different calls, on any number of ranks and any backend: every pair of different calls, and calls
 * with different counts, dtypes, reductions, roots or counts per rank, blocking and asynchronous. Every rank learns
 * which rank made which call, no buffer is changed, and the communicator stays in step. The same holds for messages
 * that differ from the receive. In half of the trials, all ranks have made either call together before, so a backend
 * may have cached it. In some trials, the odd rank is late.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/ranks.h"
#include "tests/support/reference.h"
#include "tests/support/steps.h"

/* Calls in addition to the calls of steps.h, and the number of calls. Messages are not collective. */
enum { ALLOC = STEP_MESSAGE, SPLIT, CALLS };

/* The delay of a late rank. By then, the other ranks have begun to check for failures. */
enum { LATE_US = 1000 };

/* A trial in which one rank makes a different call. */
typedef struct trial {
    ls_comm *world;
    int odd;
    bool later;
    int number;
} trial;

/* ---- expected messages ------------------------------------------------------------------------------------------- */

/* Writes "rank 1" or "ranks 0, 2": the odd rank, or all other ranks. */
static void write_ranks(const trial *t, bool odd, char *text, size_t capacity) {
    size_t length = 0;
    int count = 0;
    char list[128] = "";
    for (int rank = 0; rank < ls_comm_size(t->world); rank++) {
        if ((rank == t->odd) == odd) {
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%d", count == 0 ? "" : ", ", rank);
            count++;
        }
    }
    snprintf(text, capacity, "rank%s %s", count == 1 ? "" : "s", list);
}

static bool has_root(int call) {
    return call == STEP_BROADCAST || call == STEP_REDUCE || call == STEP_GATHER || call == STEP_GATHERV ||
           call == STEP_SCATTER || call == STEP_SCATTERV;
}

/* Returns whether each rank passes its own count. */
static bool has_own_counts(int call) {
    return call == STEP_GATHERV || call == STEP_SCATTERV || call == STEP_ALLTOALLV;
}

/* Returns whether all ranks pass the same list of counts. */
static bool has_same_counts(int call) {
    return call == STEP_ALLGATHERV || call == STEP_REDUCE_SCATTERV;
}

/* Writes the expected description of the call. For lists of counts, writes only the text before their hash. */
static void write_detail(int call, const step *s, char *text, size_t capacity) {
    char elements[64] = "";
    char root[32] = "";
    if (call == ALLOC || call == SPLIT || call == STEP_BARRIER) {
        snprintf(text, capacity, "%s", call == ALLOC ? "alloc of 100 bytes" : call == SPLIT ? "split" : "barrier");
        return;
    }
    size_t total = 0;
    for (int rank = 0; rank < ls_comm_size(s->comm); rank++) {
        total += call == STEP_ALLGATHERV ? step_piece(s, rank, 0) : step_piece(s, 0, rank);
    }
    if (has_own_counts(call)) {
        snprintf(elements, sizeof elements, " of %s", ls_dtype_name(s->dtype));
    } else if (has_same_counts(call)) {
        snprintf(elements, sizeof elements, " of %zu %s (counts with hash ", total, ls_dtype_name(s->dtype));
    } else {
        snprintf(elements, sizeof elements, " of %zu %s", s->count, ls_dtype_name(s->dtype));
    }
    if (has_root(call)) {
        const bool from = call == STEP_BROADCAST || call == STEP_SCATTER || call == STEP_SCATTERV;
        snprintf(root, sizeof root, " %s rank %d", from ? "from" : "to", s->root);
    }
    const bool reduces = step_reduces((step_call)call) && !has_same_counts(call);
    snprintf(text, capacity, "%s%s%s%s%s", step_name((step_call)call), elements, root, reduces ? ", " : "",
             reduces ? ls_reduction_name(s->reduction) : "");
}

static ls_status check_told(const trial *t, bool odd, int call, const step *s) {
    char ranks[160];
    char detail[160];
    char expected[400];
    write_ranks(t, odd, ranks, sizeof ranks);
    write_detail(call, s, detail, sizeof detail);
    snprintf(expected, sizeof expected, "%s called %s", ranks, detail);
    if (strstr(ls_error_message(), expected) == NULL) {
        char message[LS_ERROR_CAPACITY];
        snprintf(message, sizeof message, "%s", ls_error_message());
        return ls_fail(LS_ERR_INTERNAL, "\"%s\" does not say \"%s\"", message, expected);
    }
    return LS_OK;
}

/* ---- one trial --------------------------------------------------------------------------------------------------- */

static ls_status make(ls_comm *world, int call, step *s, bool later) {
    if (call == ALLOC) {
        return ls_comm_alloc(world, 100) == NULL ? ls_error_status() : LS_OK;
    }
    if (call == SPLIT) {
        ls_comm *made = NULL;
        const ls_status status = ls_comm_split(world, 0, 0, &made);
        ls_comm_free(made);
        return status;
    }
    LS_TRY(step_make(s, later ? &s->works[0] : NULL));
    return ls_work_wait(s->works[0]);
}

/* Sums the rank numbers over the world, to check that the ranks are in step. */
static ls_status sum_ranks(ls_comm *world) {
    const int size = ls_comm_size(world);
    int64_t sum = ls_comm_rank(world);
    LS_CHECK(ls_comm_allreduce(world, &sum, &sum, 1, LS_I64, LS_SUM, NULL) == LS_OK);
    LS_CHECK(sum == (int64_t)size * (size - 1) / 2);
    return LS_OK;
}

/* Checks that this rank's call fails, and leaves its memory unchanged. */
static ls_status fail_call(const trial *t, int call, step *s) {
    if (call < STEP_MESSAGE) {
        LS_TRY(step_prepare(s));
        step_expect_nothing(s);
    }
    const ls_status status = make(t->world, call, s, t->later);
    if (status != LS_ERR_MISMATCH) {
        char text[400];
        return ls_fail(LS_ERR_INTERNAL, "trial %d: %s gave %s", t->number,
                       call < STEP_MESSAGE ? step_describe(s, text, sizeof text) : "alloc or split",
                       ls_status_name(status));
    }
    return LS_OK;
}

/* All ranks make the call. */
static ls_status rehearse(int call, const step *s) {
    if (call >= STEP_MESSAGE) {
        return LS_OK;
    }
    step together = *s;
    LS_TRY(step_begin(&together));
    return step_end(&together);
}

static ls_status end_memory(int call, step *s) {
    return call < STEP_MESSAGE ? step_verify(s) : LS_OK;
}

/* The odd rank makes the second call, and all other ranks make the first. */
static ls_status disagree(trial *t, int call, step *usual, int other_call, step *other) {
    const bool odd = ls_comm_rank(t->world) == t->odd;
    const int mine = odd ? other_call : call;
    step *s = odd ? other : usual;
    if (t->number / 4 % 2 == 1) {
        LS_TRY(rehearse(call, usual));
        LS_TRY(rehearse(other_call, other));
    }
    if (odd && t->number % 32 == 5) {
        usleep(LATE_US);
    }
    LS_TRY(fail_call(t, mine, s));
    LS_TRY(check_told(t, false, call, usual));
    LS_TRY(check_told(t, true, other_call, other));
    LS_TRY(end_memory(mine, s));
    t->number++;
    t->odd = t->number % ls_comm_size(t->world);
    t->later = t->number / 2 % 2 == 1;
    return t->number % 16 == 0 ? sum_ranks(t->world) : LS_OK;
}

static step describe(const trial *t, int call) {
    static const size_t counts[] = {3, 300, 20000};
    return (step){.call = (step_call)(call < STEP_MESSAGE ? call : STEP_BARRIER),
                  .comm = t->world,
                  .dtype = LS_F32,
                  .reduction = LS_SUM,
                  .count = counts[t->number % 3],
                  .seed = 7};
}

/* ---- all kinds --------------------------------------------------------------------------------------------------- */

/* Tests every pair of different calls. If two ranks make two calls in opposite order, each gets two errors. */
static ls_status other_calls(trial *t) {
    for (int call = 0; call < CALLS; call++) {
        for (int other = 0; other < CALLS; other++) {
            step a = describe(t, call);
            step b = describe(t, other);
            if (call != other) {
                LS_TRY(disagree(t, call, &a, other, &b));
            }
        }
    }
    return LS_OK;
}

static ls_status other_counts(trial *t, int call) {
    static const size_t others[] = {0, 1, 2, 4, 299, 30000};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        step a = describe(t, call);
        step b = a;
        b.count = others[i];
        LS_TRY(disagree(t, call, &a, call, &b));
    }
    return LS_OK;
}

static ls_status other_details(trial *t, int call) {
    static const ls_dtype dtypes[] = {LS_I32, LS_F64, LS_U8};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        step a = describe(t, call);
        step b = a;
        b.dtype = dtypes[i];
        LS_TRY(disagree(t, call, &a, call, &b));
    }
    step a = describe(t, call);
    step b = a;
    if (step_reduces((step_call)call) && !has_same_counts(call)) {
        b.reduction = LS_MAX;
        LS_TRY(disagree(t, call, &a, call, &b));
        a = describe(t, call);
        b = a;
    }
    if (has_root(call)) {
        b.root = 1;
        LS_TRY(disagree(t, call, &a, call, &b));
    }
    return LS_OK;
}

/* Returns whether the odd rank expects a different count than the other ranks for the data that it sends or
 * receives. */
static bool differs(const trial *t, const step *usual, const step *other, int from, int to, char *text,
                    size_t capacity) {
    const size_t sent = step_piece(from == t->odd ? other : usual, from, to);
    const size_t wanted = step_piece(to == t->odd ? other : usual, from, to);
    snprintf(text, capacity, ": rank %d sends %zu f32 to rank %d, which expects %zu", from, sent, to, wanted);
    return sent != wanted;
}

/* All ranks pass the same counts, except that the odd rank passes different ones. */
static ls_status other_own_counts(trial *t, int call) {
    const int size = ls_comm_size(t->world);
    step usual = describe(t, call);
    step other = usual;
    char text[160];
    bool possible = false;
    for (other.seed = 100; !possible; other.seed += !possible) {
        for (int i = 0; i < size * size; i++) {
            possible = differs(t, &usual, &other, i / size, i % size, text, sizeof text) || possible;
        }
    }
    step *s = ls_comm_rank(t->world) == t->odd ? &other : &usual;
    LS_TRY(fail_call(t, call, s));
    bool told = false;
    for (int i = 0; i < size * size; i++) {
        told = (differs(t, &usual, &other, i / size, i % size, text, sizeof text) &&
                strstr(ls_error_message(), text) != NULL) ||
               told;
    }
    LS_CHECK(told);
    LS_TRY(end_memory(call, s));
    t->number++;
    t->odd = t->number % size;
    t->later = t->number / 2 % 2 == 1;
    return sum_ranks(t->world);
}

/* Tests counts that must be equal on all ranks, including different counts with equal sums. */
static ls_status other_same_counts(trial *t, int call) {
    for (uint64_t seed = 20; seed < 24; seed++) {
        step a = describe(t, call);
        step b = a;
        b.seed = seed;
        b.count = a.count + 1;
        LS_TRY(disagree(t, call, &a, call, &b));
    }
    return LS_OK;
}

static ls_status every_disagreement(ls_comm *world) {
    trial t = {.world = world, .odd = ls_comm_size(world) - 1};
    LS_TRY(other_calls(&t));
    for (int call = STEP_BROADCAST; call < STEP_MESSAGE; call++) {
        LS_TRY(other_details(&t, call));
        if (has_own_counts(call)) {
            for (int i = 0; i < 6; i++) {
                LS_TRY(other_own_counts(&t, call));
            }
        } else {
            LS_TRY(has_same_counts(call) ? other_same_counts(&t, call) : other_counts(&t, call));
        }
    }
    return sum_ranks(world);
}

/* A rank that is repeatedly late is not an error. */
static ls_status every_lateness(ls_comm *world) {
    static const step_call calls[] = {STEP_BROADCAST, STEP_ALLREDUCE, STEP_REDUCE, STEP_ALLGATHER, STEP_ALLTOALL};
    const trial t = {.world = world};
    for (int i = 0; i < 40; i++) {
        step s = describe(&t, (int)calls[i / 8]);
        s.count = 20000 + (size_t)(i % 2);
        if (i / 2 % ls_comm_size(world) == ls_comm_rank(world)) {
            usleep(LATE_US);
        }
        LS_TRY(step_begin(&s));
        LS_TRY(step_end(&s));
    }
    return LS_OK;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static ls_status other_messages(ls_comm *world, float *values, size_t count) {
    const int rank = ls_comm_rank(world);
    if (rank == 0) {
        ls_work *work[2] = {NULL, NULL};
        for (size_t i = 0; i < count; i++) {
            values[i] = 2;
        }
        LS_CHECK(ls_comm_send(world, values, count, LS_F32, 1, 5, &work[0]) == LS_OK);
        LS_CHECK(ls_comm_send(world, values, count, LS_F32, 1, 5, &work[1]) == LS_OK);
        const ls_status first = ls_work_wait(work[0]); /* a backend may report the error to the sender, too */
        LS_CHECK(first == LS_OK || first == LS_ERR_MISMATCH);
        LS_CHECK(ls_work_wait(work[1]) == LS_OK);
    } else if (rank == 1) {
        memset(values, 0, count * sizeof *values);
        LS_CHECK(ls_comm_recv(world, values, count - 1, LS_F32, 0, 5, NULL) == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("rank 0 sent ");
        LS_EXPECT_MESSAGE("but this rank expects ");
        LS_CHECK(values[0] == 0 && values[count - 1] == 0);
        LS_CHECK(ls_comm_recv(world, values, count, LS_F32, 0, 5, NULL) == LS_OK);
        LS_CHECK(values[0] == 2 && values[count - 1] == 2);
    }
    return sum_ranks(world);
}

static ls_status every_message(ls_comm *world) {
    static const size_t counts[] = {2, 40, 300, 5000, 100000};
    float *values = malloc(100000 * sizeof *values);
    LS_CHECK(values != NULL);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        LS_TRY(other_messages(world, values, counts[i]));
    }
    free(values);
    return LS_OK;
}

/* ---- split communicators ----------------------------------------------------------------------------------------- */

/* In a split communicator, ranks have different numbers, so messages also give their ranks in the world. */
static ls_status name_those_of_the_world(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_comm *same = NULL, *reversed = NULL, *part = NULL;
    char expected[200];
    int length = 0;
    snprintf(expected, sizeof expected, "rank 0 called allreduce of 3 i64, sum (#1)");
    LS_TRY(ls_comm_split(world, 0, 0, &same));
    LS_TRY(ls_comm_split(world, 0, -ls_comm_rank(world), &reversed));
    LS_TRY(ls_comm_split(reversed, 0, 0, &part)); /* a split of a split communicator */
    ls_comm *const comms[] = {same, reversed, part};
    for (int i = 0; i < 3; i++) {
        int64_t values[3] = {0};
        const size_t count = ls_comm_rank(comms[i]) == 0 ? 3 : 2;
        LS_CHECK(ls_comm_allreduce(comms[i], values, values, count, LS_I64, LS_SUM, NULL) == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE(expected);
        LS_CHECK((strstr(ls_error_message(), "world's") == NULL) == (i == 0));
        length = snprintf(expected, sizeof expected, " (this communicator's ranks 0 to %d are the world's %d", size - 1,
                          size - 1);
        for (int rank = size - 2; rank >= 0; rank--) {
            length += snprintf(expected + length, sizeof expected - (size_t)length, ", %d", rank);
        }
        snprintf(expected + length, sizeof expected - (size_t)length, ")");
    }
    for (int i = 0; i < 3; i++) {
        LS_TRY(sum_ranks(comms[i]));
        ls_comm_free(comms[i]);
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(sum_ranks(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(every_disagreement(world));
        LS_TRY(every_lateness(world));
        LS_TRY(every_message(world));
        LS_TRY(name_those_of_the_world(world));
    }
    return LS_OK;
}
