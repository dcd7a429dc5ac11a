/*
 * What a rank of backend gloo that has joined can send to another one: data that nobody asked for, headers that are not
 * true, operations that go elsewhere, messages out of order, and damaged bytes of every kind. The other rank's call
 * fails and names it; nothing is read or written where it does not belong.
 */
#include "tests/support/unit.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/support/fuzz.h"
#include "tests/support/gloo_peer.h"

#define LONG_TIMEOUT 60.0 /* a timeout that no test waits for */
#define HURRIED      0.4  /* one that rounds wait for in which the peer's damage is silence */
#define GUARD        0x5a

enum { ROUNDS = 60, COUNT = 16, GUARDED = 8192 };

static bool no_gloo(void) {
    return ls_backend_find("gloo") == NULL;
}

/* The address sanitizer would end a process that asks for as much memory as a header may say. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

/* ---- one wrong operation -------------------------------------------------------------------------------------------
 */

/* A rank that waits for a message of COUNT floats and gets something else; `argument` is what is said of rank 1. */
static const char *receiving_rank(ls_comm *world, int rank, const void *argument) {
    unsigned char memory[GUARDED];
    char said[LS_ERROR_CAPACITY];
    (void)rank;
    snprintf(said, sizeof said, "ls_comm_recv #1: rank 1 %s", (const char *)argument);
    memset(memory, GUARD, sizeof memory);
    LS_MUST(world != NULL && ls_comm_recv(world, memory, COUNT, LS_F32, 1, 0, NULL) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, said));
    for (size_t i = COUNT * sizeof(float); i < sizeof memory; i++) {
        LS_MUST(memory[i] == GUARD);
    }
    return NULL;
}

/* A packet to rank 0 with so many bytes of data. */
static void fill(gloo_operation *o, ls_gloo_kind kind, size_t data) {
    memset((void *)o, 0, sizeof *o);
    o->packet.kind = kind;
    o->packet.bytes = data;
    o->before.length = LS_GLOO_HEADER + data;
    o->before.bytes = GLOO_OPERATION_HEADER + data;
}

static void fill_message(gloo_operation *o, size_t count, size_t bytes, size_t data) {
    fill(o, LS_GLOO_MESSAGE, data);
    o->packet.call =
        (ls_call_header){.operation = LS_OP_SEND, .dtype = (int32_t)LS_F32, .count = count, .bytes = bytes};
}

/* What the peer sends; NULL when that was the last. */
typedef bool script(gloo_operation *o, int number);

static void run(script *sends, const char *said) {
    static gloo_operation o;
    ls_forks forks;
    if (no_gloo()) {
        skip();
    }
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, receiving_rank, said);
    gloo_peer peer = gloo_peer_join(&forks);
    for (int number = 0; sends(&o, number); number++) {
        gloo_peer_send(peer.socket, &o);
    }
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    gloo_peer_end(&peer);
    ls_forks_end(&forks);
}

static bool more_bytes(gloo_operation *o, int number) {
    fill_message(o, COUNT, 4096, 4096);
    return number == 0;
}

static bool wrapping_bytes(gloo_operation *o, int number) {
    fill_message(o, (SIZE_MAX / 4 + 1) + COUNT, COUNT * 4, COUNT * 4);
    return number == 0;
}

static bool no_dtype(gloo_operation *o, int number) {
    fill_message(o, COUNT, COUNT * 4, COUNT * 4);
    o->packet.call.dtype = 99;
    return number == 0;
}

static bool no_data(gloo_operation *o, int number) {
    fill_message(o, COUNT, COUNT * 4, 0);
    return number == 0;
}

static bool before_its_aim(gloo_operation *o, int number) {
    fill_message(o, COUNT, COUNT * 4, COUNT * 4);
    o->before.there = SIZE_MAX - 63; /* with the length, that wraps to a place inside */
    return number == 0;
}

static bool another_operation(gloo_operation *o, int number) {
    fill_message(o, COUNT, COUNT * 4, COUNT * 4);
    o->before.code = 2; /* one of Gloo's other kinds */
    return number == 0;
}

static bool message_in_message(gloo_operation *o, int number) {
    if (number == 0) { /* its content is to follow */
        fill_message(o, LS_GLOO_CARRIED, LS_GLOO_CARRIED * 4, 0);
        o->packet.call.tag = 1;
    } else {
        fill_message(o, 1, 4, 4);
        o->packet.call.tag = 2;
    }
    return number < 2;
}

static bool announced_too_much(gloo_operation *o, int number) {
    if (number == 0) {
        fill_message(o, LS_GLOO_CARRIED, LS_GLOO_CARRIED * 4, 0);
        o->packet.at = SIZE_MAX - 15;
    } else {
        fill(o, LS_GLOO_WAITING, 0);
    }
    return number < 2;
}

/* Gives up after a failure of `culprit`. */
static void fill_left(gloo_operation *o, int culprit, const char *reason) {
    fill(o, LS_GLOO_LEFT, strlen(reason));
    o->packet.slot = LS_LEAVE_FAILED;
    o->packet.status = LS_ERR_FORMAT;
    o->packet.culprit = culprit;
    memcpy(o->packet.data, reason, strlen(reason));
}

static bool blames_a_rank_below_all(gloo_operation *o, int number) {
    fill_left(o, -1, "no reason");
    return number == 0;
}

static bool blames_a_rank_above_all(gloo_operation *o, int number) {
    fill_left(o, 2, "no reason");
    return number == 0;
}

static bool leaves_in_no_known_way(gloo_operation *o, int number) {
    fill(o, LS_GLOO_LEFT, 0);
    o->packet.slot = LS_LEAVE_FAILED + 1;
    return number == 0;
}

/* As much as a packet has room for: more than is kept. */
static bool has_a_long_reason(gloo_operation *o, int number) {
    char reason[LS_GLOO_ROOM + 1] = "";
    memset(reason, 'x', LS_GLOO_ROOM);
    fill_left(o, 1, reason);
    return number == 0;
}

static void headers_are_not_believed(void **state) {
    (void)state;
    run(more_bytes, "is gone: it sent a header that is not one: 4096 bytes for 16 elements of f32");
    run(wrapping_bytes, "is gone: it sent a header that is not one: 64 bytes for 4611686018427387920 elements of f32");
    run(no_dtype, "is gone: it sent a header that is not one: there is no dtype 99");
    run(no_data, "is gone: it sent what was not expected");
}

static void operations_go_where_they_belong(void **state) {
    (void)state;
    run(before_its_aim, "is gone: it sent an operation that is none, or not the one that was expected");
    run(another_operation, "is gone: it sent an operation that is none, or not the one that was expected");
    run(announced_too_much, "is gone: it sent an operation that is none, or not the one that was expected");
}

static void a_message_comes_whole(void **state) {
    (void)state;
    run(message_in_message, "is gone: it sent a message before the content of the one before it");
}

static void who_leaves_is_believed_as_far_as_it_can_be(void **state) {
    (void)state;
    run(blames_a_rank_below_all, "gave up: no reason");
    run(blames_a_rank_above_all, "gave up: no reason");
    run(leaves_in_no_known_way, "left without making this call");
    run(has_a_long_reason, "gave up: xxxx");
}

/* ---- data that nobody asked for ------------------------------------------------------------------------------------
 */

/* The first call of rank 1 is as it should be; then comes data that belongs to no call. */
static const char *flooded_rank(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "ls_comm_barrier #2: rank 1 is gone: it sent data that nobody asked for"));
    return NULL;
}

/* Says what rank 0 says, which makes the first call; then it announces data for a buffer that no call has given. */
static void data_that_nobody_asked_for(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    static gloo_operation o;
    ls_forks forks;
    ls_forks_start(&forks, 2, 1U << 1, LONG_TIMEOUT, flooded_rank, NULL);
    gloo_peer peer = gloo_peer_join(&forks);
    assert_int_equal(recv(peer.socket, &o, GLOO_OPERATION_HEADER, MSG_WAITALL), GLOO_OPERATION_HEADER);
    assert_int_equal(o.before.bytes, GLOO_OPERATION_HEADER);
    assert_int_equal(o.packet.kind, LS_GLOO_CALL);
    o.before.slot ^= 1; /* the other direction's */
    gloo_peer_send(peer.socket, &o);
    fill(&o, LS_GLOO_DATA, 0);
    o.packet.slot = LS_GLOO_PIECES;
    o.packet.bytes = 100;
    gloo_peer_send(peer.socket, &o);
    gloo_peer_send(peer.socket, &o); /* whatever it is */
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    gloo_peer_end(&peer);
    ls_forks_end(&forks);
}

/* ---- damaged bytes -------------------------------------------------------------------------------------------------
 *
 * Rank 0 makes calls in which both ranks send the same. The peer sends back what it gets, in the other direction's
 * slots, which is right; and now and then something else.
 */

enum { CALLS = 7, MOST = 70000, OUTGOING_MOST = 2 << 20 };

typedef struct plan {
    size_t counts[CALLS];
    int kinds[CALLS];
} plan;

/* Sends and receives, both ways of waiting, also of what was kept meanwhile. */
static ls_status messages(ls_comm *world, const float *send, float *receive, size_t count, int kind) {
    ls_work *sent = NULL;
    ls_status status = ls_comm_send(world, send, count, LS_F32, 1, kind, &sent);
    if (status == LS_OK && kind % 2 == 0) {
        status = ls_comm_barrier(world, NULL);
    }
    if (status == LS_OK) {
        status = ls_comm_recv(world, receive, count, LS_F32, 1, kind, NULL);
    }
    const ls_status ended = ls_work_wait(sent);
    return status != LS_OK ? status : ended;
}

static ls_status make_call(ls_comm *world, int kind, const float *send, float *receive, size_t count) {
    const size_t counts[2] = {count / 2, count / 2};
    switch (kind) {
    case 0:
        return ls_comm_barrier(world, NULL);
    case 1:
        return ls_comm_allgather(world, send, receive, count / 2, LS_F32, NULL);
    case 2:
        return ls_comm_alltoallv(world, send, counts, NULL, receive, counts, NULL, LS_F32, NULL);
    case 3:
        return ls_comm_reduce_scatter(world, send, receive, count / 2, LS_F32, LS_SUM, NULL);
    case 4:
    case 5:
        return messages(world, send, receive, count, kind);
    default:
        return ls_comm_allreduce(world, send, receive, count & ~(size_t)1, LS_F32, LS_SUM, NULL);
    }
}

/* Buffers are exactly as large as each call needs, so that a sanitizer sees the first byte too far. */
static const char *damaged_rank(ls_comm *world, int rank, const void *argument) {
    const plan *p = argument;
    ls_status status = LS_OK;
    (void)rank;
    LS_MUST(world != NULL);
    for (int call = 0; call < CALLS && status == LS_OK; call++) {
        const size_t count = p->counts[call];
        float *send = calloc(count + 1, sizeof *send);
        float *receive = malloc(count * sizeof *receive + 1);
        LS_MUST(send != NULL && receive != NULL);
        status = make_call(world, p->kinds[call], send, receive, count);
        LS_MUST(status == LS_OK || strlen(ls_error_message()) > 10);
        if (status == LS_OK || status == LS_ERR_MISMATCH) { /* else the communicator still owns them */
            free(send);
            free(receive);
        }
    }
    return NULL;
}

/* Changes a number of the preamble or of the packet's header to what it never should be, or any bits. */
static size_t damage(uint8_t *bytes, size_t size) {
    const size_t header = size < GLOO_OPERATION_HEADER ? size : GLOO_OPERATION_HEADER;
    switch (fuzz_below(4)) {
    case 0: /* a few bits of what is believed; the rest as long as before */
        (void)fuzz_mutate(bytes, header, header);
        return size;
    case 1: { /* a number there */
        static const uint64_t numbers[] = {0, 1, 3, 4, 64, 4096, UINT32_MAX, INT64_MAX, UINT64_MAX - 63, UINT64_MAX};
        const uint64_t number = numbers[fuzz_below(sizeof numbers / sizeof *numbers)];
        memcpy(bytes + fuzz_below(header / 8) * 8, &number, sizeof number);
        return size;
    }
    case 2: { /* half of one */
        const uint32_t number = (uint32_t)fuzz_below(20);
        memcpy(bytes + fuzz_below(header / 4) * 4, &number, sizeof number);
        return size;
    }
    default:
        return fuzz_mutate(bytes, size, size);
    }
}

typedef struct mirror {
    int socket;
    uint8_t *bytes;   /* the operation that is to be sent */
    uint8_t *earlier; /* one that was */
    size_t earlier_size;
} mirror;

/* Takes in an operation of rank 0; 0: there are no more. */
static size_t hear(const mirror *m) {
    gloo_operation *o = (gloo_operation *)(void *)m->bytes;
    const size_t preamble = sizeof o->before;
    if (recv(m->socket, m->bytes, preamble, MSG_WAITALL) != (ssize_t)preamble || o->before.bytes > OUTGOING_MOST ||
        recv(m->socket, m->bytes + preamble, o->before.bytes - preamble, MSG_WAITALL) !=
            (ssize_t)(o->before.bytes - preamble)) {
        return 0;
    }
    o->before.slot ^= 1;
    return o->before.bytes;
}

static bool give(const mirror *m, const uint8_t *bytes, size_t size) {
    return send(m->socket, bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

/* Answers one operation, rightly as a rule. */
static bool answer(mirror *m, size_t size) {
    switch (fuzz_below(40)) {
    case 0: /* nothing */
        return true;
    case 1: /* twice */
        return give(m, m->bytes, size) && give(m, m->bytes, size);
    case 2: /* one from before, first */
        return give(m, m->earlier, m->earlier_size) && give(m, m->bytes, size);
    case 3:
    case 4:
    case 5:
        return give(m, m->bytes, damage(m->bytes, size));
    case 6: /* the earlier one again, damaged */
        return give(m, m->earlier, damage(m->earlier, m->earlier_size)) && give(m, m->bytes, size);
    default:
        if (fuzz_below(3) == 0) {
            memcpy(m->earlier, m->bytes, size);
            m->earlier_size = size;
        }
        return give(m, m->bytes, size);
    }
}

static void damaged_round(uint64_t number, void *argument) {
    static const size_t sizes[] = {2, 16, 1000, 4000, 4098, 20000, 40000, MOST};
    static const struct timeval limit = {.tv_sec = 5}, short_limit = {.tv_usec = 100000};
    mirror *m = argument;
    ls_forks forks;
    plan p;
    (void)number;
    for (int call = 0; call < CALLS; call++) {
        p.kinds[call] = (int)fuzz_below(CALLS);
        p.counts[call] = sizes[fuzz_below(sizeof sizes / sizeof *sizes)];
    }
    ls_forks_start(&forks, 2, 1U << 1, HURRIED, damaged_rank, &p);
    gloo_peer peer = gloo_peer_join(&forks);
    m->socket = peer.socket;
    m->earlier_size = 0;
    (void)setsockopt(peer.socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(peer.socket, SOL_SOCKET, SO_SNDTIMEO, &short_limit, sizeof short_limit);
    for (size_t size = hear(m); size != 0 && answer(m, size); size = hear(m)) {
    }
    shutdown(peer.socket, SHUT_WR);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    gloo_peer_end(&peer);
    ls_forks_end(&forks);
}

static void damaged_operations(void **state) {
    (void)state;
    if (no_gloo()) {
        skip();
    }
    mirror m = {.bytes = malloc(OUTGOING_MOST), .earlier = malloc(OUTGOING_MOST)};
    assert_true(m.bytes != NULL && m.earlier != NULL);
    fuzz_run("gloo operations", ROUNDS, damaged_round, &m);
    free(m.bytes);
    free(m.earlier);
}

int main(void) {
    unsetenv("LOCKSTEP_KEY");
    setenv("LOCKSTEP_TEST_BACKEND", "gloo", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_not_believed),
        cmocka_unit_test(operations_go_where_they_belong),
        cmocka_unit_test(a_message_comes_whole),
        cmocka_unit_test(data_that_nobody_asked_for),
        cmocka_unit_test(who_leaves_is_believed_as_far_as_it_can_be),
        cmocka_unit_test(damaged_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
