/*
 * Series of messages with equal parameters, mixed with other messages: a backend may use a shorter protocol for such
 * series. Every message arrives in order, even from odd addresses, blocking and asynchronous, received early and late.
 * A message that differs from its receive is reported and changes nothing. Other messages arrive while receives of a
 * series are waiting. Meanwhile, a rank may free the communicator, or the sender may leave it.
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

enum { MOST_BYTES = 300001, WINDOW = 12, WINDOWS = 25, LATE_US = 300 };

typedef struct ring {
    ls_comm *comm;
    int next;
    int before;
} ring;

static unsigned char value(int from, int number, size_t i) {
    return (unsigned char)(reference_mix((uint64_t)from * 1000003 + (uint64_t)number) + i * 7);
}

static void fill(unsigned char *data, size_t bytes, int from, int number) {
    for (size_t i = 0; i < bytes; i++) {
        data[i] = value(from, number, i);
    }
}

static bool holds(const unsigned char *data, size_t bytes, int from, int number) {
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != value(from, number, i)) {
            return false;
        }
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Series of every size, one message after the other. */
static ls_status every_size(const ring *r) {
    static const size_t sizes[] = {100, 1500, 4096, 8192, 8281, 16384, 40000, 65536, MOST_BYTES, 0, 20000};
    const int rank = ls_comm_rank(r->comm);
    unsigned char *from = malloc(MOST_BYTES + 8);
    unsigned char *to = malloc(MOST_BYTES + 8);
    LS_CHECK(from != NULL && to != NULL);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        for (int i = 0; i < 8; i++) {
            ls_work *sent = NULL;
            fill(from + 1, sizes[k], rank, i);
            memset(to, 0, sizes[k] + 8);
            LS_TRY(ls_comm_send(r->comm, from + 1, sizes[k], LS_U8, r->next, 3, &sent));
            LS_TRY(ls_comm_recv(r->comm, to + 3, sizes[k], LS_U8, r->before, 3, NULL));
            LS_TRY(ls_work_wait(sent));
            LS_CHECK(holds(to + 3, sizes[k], r->before, i) && to[2] == 0 && to[3 + sizes[k]] == 0);
        }
    }
    free(from);
    free(to);
    return LS_OK;
}

/* ---- among other messages ---------------------------------------------------------------------------------------- */

typedef struct message {
    int tag;
    ls_dtype dtype;
    size_t count;
    unsigned char *data;
    bool refused;
    ls_work *work;
} message;

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = reference_mix(*state + 1);
    return *state % below;
}

/* Draws the next message of a rank: usually equal to the previous one. */
static message next_message(uint64_t *state, const message *last) {
    static const size_t counts[] = {10, 700, 3000, 20000};
    if (last->count != 0 && draw(state, 5) != 0) {
        return (message){.tag = last->tag, .dtype = last->dtype, .count = last->count};
    }
    return (message){.tag = (int)draw(state, 2),
                     .dtype = draw(state, 3) == 0 ? LS_I32 : LS_F32,
                     .count = counts[draw(state, sizeof counts / sizeof counts[0])]};
}

/* Draws all messages of a rank in a window, in order. */
static void draw_window(uint64_t *state, message *last, message *window) {
    for (int i = 0; i < WINDOW; i++) {
        window[i] = next_message(state, last);
        *last = window[i];
    }
}

static ls_status begin_send(const ring *r, message *m, int number) {
    m->data = malloc(m->count * 4 + 1);
    LS_CHECK(m->data != NULL);
    fill(m->data + 1, m->count * 4, ls_comm_rank(r->comm), number);
    return ls_comm_send(r->comm, m->data + 1, m->count, m->dtype, r->next, m->tag, &m->work);
}

/* Starts receiving `sent`, or something different. */
static ls_status begin_receive(const ring *r, uint64_t *own, const message *sent, message *m) {
    *m = *sent;
    m->refused = draw(own, 12) == 0;
    if (m->refused && draw(own, 2) == 0) {
        m->dtype = sent->dtype == LS_F32 ? LS_I32 : LS_F32;
    } else if (m->refused) {
        m->count = draw(own, 2) == 0 ? sent->count + 1 : sent->count - 1;
    }
    m->data = malloc(m->count * 4 + 8);
    LS_CHECK(m->data != NULL);
    memset(m->data, 0x55, m->count * 4 + 8);
    return ls_comm_recv(r->comm, m->data + 3, m->count, m->dtype, r->before, m->tag, &m->work);
}

static bool is_untouched(const message *m) {
    for (size_t i = 0; i < m->count * 4 + 8; i++) {
        if (m->data[i] != 0x55) {
            return false;
        }
    }
    return true;
}

static ls_status end_receive(const ring *r, const message *sent, message *m, int number) {
    const ls_status status = ls_work_wait(m->work);
    if (m->refused) {
        char expected[128];
        snprintf(expected, sizeof expected, "rank %d sent %zu %s with tag %d, but this rank expects %zu %s", r->before,
                 sent->count, ls_dtype_name(sent->dtype), sent->tag, m->count, ls_dtype_name(m->dtype));
        LS_CHECK(status == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE(expected);
        LS_CHECK(is_untouched(m));
    } else {
        LS_TRY(status);
        LS_CHECK(holds(m->data + 3, m->count * 4, r->before, number));
        LS_CHECK(m->data[2] == 0x55 && m->data[3 + m->count * 4] == 0x55);
    }
    free(m->data);
    return LS_OK;
}

/* Returns the index of the next message with this tag, beginning at `at`. */
static int find(const message *window, int at, int tag) {
    while (at < WINDOW && window[at].tag != tag) {
        at++;
    }
    return at;
}

/*
 * Sends this rank's messages and receives the arriving messages, in any order that is valid for each tag. Then waits in
 * any order.
 */
static ls_status run_window(const ring *r, uint64_t *own, message *out, const message *in, int window) {
    message got[WINDOW];
    int next[2] = {find(in, 0, 0), find(in, 0, 1)};
    int sends = 0;
    for (int i = 0; i < 2 * WINDOW;) {
        const int tag = (int)draw(own, 2);
        if (draw(own, 40) == 0) {
            usleep(LATE_US);
        }
        if (sends < WINDOW && draw(own, 2) == 0) {
            LS_TRY(begin_send(r, &out[sends], window * WINDOW + sends));
            sends++;
            i++;
        } else if (next[tag] < WINDOW) {
            LS_TRY(begin_receive(r, own, &in[next[tag]], &got[next[tag]]));
            next[tag] = find(in, next[tag] + 1, tag);
            i++;
        }
    }
    const int first = (int)draw(own, WINDOW);
    for (int i = 0; i < WINDOW; i++) {
        const int k = (first + i) % WINDOW;
        LS_TRY(end_receive(r, &in[k], &got[k], window * WINDOW + k));
    }
    for (int i = 0; i < WINDOW; i++) {
        const ls_status status = ls_work_wait(out[i].work);
        LS_CHECK(status == LS_OK || status == LS_ERR_MISMATCH); /* a backend may report the error to the sender, too */
        free(out[i].data);
    }
    return LS_OK;
}

static ls_status among_others(const ring *r) {
    const int rank = ls_comm_rank(r->comm);
    uint64_t sends = 100 + (uint64_t)rank;
    uint64_t comes = 100 + (uint64_t)r->before;
    uint64_t own = 500 + (uint64_t)rank;
    message last_sent = {0};
    message last_come = {0};
    for (int window = 0; window < WINDOWS; window++) {
        message out[WINDOW];
        message in[WINDOW];
        draw_window(&sends, &last_sent, out);
        draw_window(&comes, &last_come, in);
        LS_TRY(run_window(r, &own, out, in, window));
        if (window % 4 == 3) {
            LS_TRY(ls_comm_barrier(r->comm, NULL));
        }
    }
    return LS_OK;
}

/* ---- one message of a series differs ----------------------------------------------------------------------------- */

/* The last of six messages does not match its receive. Either the receive or the message comes first. */
static ls_status one_other(ls_comm *comm, bool receiver, bool early, size_t count, ls_dtype dtype) {
    enum { COUNT = 20000 };
    unsigned char *memory = calloc(COUNT + 10, 8);
    ls_work *sent = NULL;
    ls_work *got = NULL;
    LS_CHECK(memory != NULL);
    const int rank = ls_comm_rank(comm);
    for (int i = 0; i < 7; i++) {
        const bool other = i == 5;
        const size_t sends = other && !receiver ? count : COUNT;
        const size_t wants = other && receiver ? count : COUNT;
        const ls_dtype sent_type = other && !receiver ? dtype : LS_F32;
        const ls_dtype wanted_type = other && receiver ? dtype : LS_F32;
        memset(memory, rank == 0 ? i : 99, COUNT * 8);
        if (rank == 1 && early) {
            LS_TRY(ls_comm_recv(comm, memory, wants, wanted_type, 0, 2, &got));
        }
        LS_TRY(ls_comm_barrier(comm, NULL));
        if (rank == 0) {
            LS_TRY(ls_comm_send(comm, memory, sends, sent_type, 1, 2, &sent));
        }
        LS_TRY(ls_comm_barrier(comm, NULL));
        if (rank == 1 && !early) {
            LS_TRY(ls_comm_recv(comm, memory, wants, wanted_type, 0, 2, &got));
        }
        if (rank == 1) {
            LS_CHECK(ls_work_wait(got) == (other ? LS_ERR_MISMATCH : LS_OK));
            LS_CHECK(memory[0] == (other ? 99 : i) && memory[COUNT * 4 - 1] == (other ? 99 : i));
        } else if (rank == 0) {
            const ls_status status = ls_work_wait(sent);
            LS_CHECK(status == LS_OK || (other && status == LS_ERR_MISMATCH));
        }
    }
    free(memory);
    return ls_comm_barrier(comm, NULL);
}

static ls_status every_other(ls_comm *comm) {
    for (int i = 0; i < 4; i++) {
        const bool receiver = i / 2 == 1;
        const bool early = i % 2 == 1;
        LS_TRY(one_other(comm, receiver, early, 19999, LS_F32));
        LS_TRY(one_other(comm, receiver, early, 20001, LS_F32));
        LS_TRY(one_other(comm, receiver, early, 3, LS_F32));
        LS_TRY(one_other(comm, receiver, early, 0, LS_F32));
        LS_TRY(one_other(comm, receiver, early, 20000, LS_I32));
        LS_TRY(one_other(comm, receiver, early, 10000, LS_F64));
    }
    return LS_OK;
}

/* Rank 1 expects more messages of a series and does not poll. Rank 0 ends the series and begins a different one. */
static ls_status another_row(ls_comm *comm, size_t before, size_t after) {
    enum { ROW = 5 };
    unsigned char *memory = malloc(ROW * MOST_BYTES);
    ls_work *works[ROW] = {NULL};
    LS_CHECK(memory != NULL);
    const int rank = ls_comm_rank(comm);
    for (int i = 0; i < 2 * ROW && rank < 2; i++) {
        const bool first = i < ROW;
        unsigned char *data = memory + (size_t)(i % ROW) * MOST_BYTES;
        const size_t bytes = first ? before : after;
        if (rank == 0) {
            fill(data, bytes, 0, i);
            LS_TRY(ls_comm_send(comm, data, bytes, LS_U8, 1, 0, &works[i % ROW]));
        } else if (first || i == ROW) {
            memset(data, 0x55, before);
            LS_TRY(ls_comm_recv(comm, data, before, LS_U8, 0, 0, &works[i % ROW]));
        }
        LS_TRY(first ? ls_work_wait(works[i]) : LS_OK);
        LS_CHECK(!first || rank == 0 || holds(data, before, 0, i));
        if (i == ROW - 1) {
            usleep(rank == 0 ? 20 * LATE_US : 0); /* the receive has begun by then */
        }
    }
    if (rank == 1) {
        usleep(40 * LATE_US);
        LS_CHECK(ls_work_wait(works[0]) == LS_ERR_MISMATCH && memory[0] == 0x55 && memory[before - 1] == 0x55);
    }
    for (int i = 1; i < ROW && rank == 1; i++) {
        LS_TRY(ls_comm_recv(comm, memory, after, LS_U8, 0, 0, NULL));
        LS_CHECK(holds(memory, after, 0, ROW + i));
    }
    for (int i = 0; i < ROW && rank == 0; i++) {
        const ls_status status = ls_work_wait(works[i]);
        LS_CHECK(status == LS_OK || (i == 0 && status == LS_ERR_MISMATCH));
    }
    free(memory);
    return ls_comm_barrier(comm, NULL);
}

static ls_status other_rows(ls_comm *comm) {
    LS_TRY(another_row(comm, 3000, 2000));
    LS_TRY(another_row(comm, 2000, 3000));
    LS_TRY(another_row(comm, 30000, 20000));
    return another_row(comm, 20000, 30000);
}

/* ---- during a series --------------------------------------------------------------------------------------------- */

/*
 * Rank 0 expects more messages of a series, and a small message. It sends repeatedly until the small message has
 * arrived.
 */
static ls_status busy(ls_comm *comm) {
    enum { ROW = 3000, TRIES = 500000 };
    const int rank = ls_comm_rank(comm);
    unsigned char data[ROW] = {0};
    int32_t number = 0;
    int32_t small = 0;
    bool here = false;
    ls_work *works[2] = {NULL};
    for (int i = 0; i < 3 && rank < 2; i++) {
        LS_TRY(rank == 1 ? ls_comm_send(comm, data, ROW, LS_U8, 0, 0, NULL)
                         : ls_comm_recv(comm, data, ROW, LS_U8, 1, 0, NULL));
    }
    if (rank == 0) {
        LS_TRY(ls_comm_recv(comm, data, ROW, LS_U8, 1, 0, &works[0]));
        LS_TRY(ls_comm_recv(comm, &small, 1, LS_I32, 1, 1, &works[1]));
    }
    LS_TRY(ls_comm_barrier(comm, NULL));
    if (rank == 0) {
        for (int i = 0; i < TRIES && !here; i++) {
            LS_TRY(ls_comm_send(comm, &number, 1, LS_I32, 1, 2, NULL));
            here = ls_work_done(works[1]);
        }
        LS_CHECK(here);
        number = -1;
        LS_TRY(ls_comm_send(comm, &number, 1, LS_I32, 1, 2, NULL));
        LS_TRY(ls_work_wait(works[1]));
        LS_TRY(ls_work_wait(works[0]));
        LS_CHECK(small == 5);
    } else if (rank == 1) {
        usleep(LATE_US);
        small = 5;
        LS_TRY(ls_comm_send(comm, &small, 1, LS_I32, 0, 1, NULL));
        while (number != -1) {
            LS_TRY(ls_comm_recv(comm, &number, 1, LS_I32, 0, 2, NULL));
        }
        LS_TRY(ls_comm_send(comm, data, ROW, LS_U8, 0, 0, NULL));
    }
    return ls_comm_barrier(comm, NULL);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

enum { ENDING = 30000 };

/* Creates a communicator with a series from every rank to the next. */
static ls_status begin_ending(const ring *r, unsigned char *data, ls_comm **ending) {
    LS_TRY(ls_comm_split(r->comm, 0, 0, ending));
    for (int i = 0; i < 5; i++) {
        ls_work *sent = NULL;
        LS_TRY(ls_comm_send(*ending, data, ENDING, LS_U8, r->next, 0, &sent));
        LS_TRY(ls_comm_recv(*ending, data + ENDING, ENDING, LS_U8, r->before, 0, NULL));
        LS_TRY(ls_work_wait(sent));
    }
    return LS_OK;
}

/* Rank 0 waits for more messages of a series, and frees the communicator. */
static ls_status ended(const ring *r) {
    enum { WORKS = 3 };
    ls_comm *ending = NULL;
    ls_work *works[WORKS] = {NULL};
    unsigned char *data = calloc(ENDING, 2);
    LS_CHECK(data != NULL);
    LS_TRY(begin_ending(r, data, &ending));
    if (ls_comm_rank(r->comm) ==
        0) { /* only one, because other calls would fail when they detect that rank 0 has left */
        for (int i = 0; i < WORKS; i++) {
            LS_TRY(ls_comm_recv(ending, data, ENDING, LS_U8, r->before, 0, &works[i]));
        }
        LS_TRY(ls_comm_barrier(r->comm, NULL));
        ls_comm_free(ending);
        for (int i = 0; i < WORKS; i++) {
            LS_CHECK(ls_work_wait(works[i]) == LS_ERR_STATE);
        }
        LS_TRY(ls_comm_barrier(r->comm, NULL));
    } else {
        LS_TRY(ls_comm_barrier(r->comm, NULL));
        LS_TRY(ls_comm_barrier(r->comm, NULL));
        ls_comm_free(ending);
    }
    free(data);
    return LS_OK;
}

/*
 * Rank 0 waits for more messages of a series, but their sender leaves. All other communication continues and succeeds.
 */
static ls_status deserted(const ring *r) {
    ls_comm *ending = NULL;
    ls_work *work = NULL;
    unsigned char *data = calloc(ENDING, 2);
    LS_CHECK(data != NULL);
    const int rank = ls_comm_rank(r->comm);
    LS_TRY(begin_ending(r, data, &ending));
    if (rank == 0) {
        LS_TRY(ls_comm_recv(ending, data, ENDING, LS_U8, r->before, 0, &work));
    }
    LS_TRY(ls_comm_barrier(r->comm, NULL));
    if (rank == ls_comm_size(r->comm) - 1) {
        ls_comm_free(ending);
        ending = NULL;
    }
    LS_TRY(ls_comm_barrier(r->comm, NULL));
    LS_CHECK(ls_work_wait(work) == (rank == 0 ? LS_ERR_PEER : LS_OK));
    LS_TRY(ls_comm_barrier(r->comm, NULL));
    ls_comm_free(ending);
    free(data);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const int size = ls_comm_size(world);
    const int rank = ls_comm_rank(world);
    const ring r = {.comm = world, .next = (rank + 1) % size, .before = (rank + size - 1) % size};
    if (size == 1) {
        return LS_OK;
    }
    LS_TRY(every_size(&r));
    LS_TRY(among_others(&r));
    LS_TRY(every_other(world));
    LS_TRY(other_rows(world));
    LS_TRY(busy(world));
    for (int i = 0; i < 2; i++) {
        LS_TRY(ended(&r));
        LS_TRY(deserted(&r));
    }
    return every_size(&r);
}
