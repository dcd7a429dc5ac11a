/*
 * LOCKSTEP_WIRE: records that protect the frames of the TCP transport between machines. Messages arrive in each mode. A
 * relay that changes, repeats, drops or swaps bytes on the way is detected, and the receiving rank gets an error
 * instead of wrong data. If two ranks use different modes, they are refused.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/tcp_net.h"

enum { RANKS = 3, MESSAGES = 6 };

static const char *const protected_modes[] = {"authenticated", "encrypted"};

/* ---- records ----------------------------------------------------------------------------------------------------- */

static ls_wire wire_of(const char *mode) {
    ls_wire wire = {.mode = strcmp(mode, "encrypted") == 0 ? LS_WIRE_ENCRYPTED : LS_WIRE_AUTHENTICATED};
    memset(wire.key, 7, sizeof wire.key);
    return wire;
}

static void check_records(const char *mode) {
    static const char header[] = "a header of 24 bytes    ", data[] = "the data that follow it";
    enum { FRAME = sizeof header + sizeof data };
    unsigned char records[2][FRAME + LS_WIRE_OVERHEAD], frame[FRAME], again[FRAME];
    ls_wire seal = wire_of(mode), open = wire_of(mode);
    for (int i = 0; i < 2; i++) {
        const size_t size = ls_wire_seal(&seal, header, sizeof header, data, sizeof data, records[i]);
        assert_int_equal(size, sizeof records[i]);
        assert_int_equal(ls_wire_frame_size(records[i]), FRAME);
    }
    assert_memory_not_equal(records[0], records[1], sizeof records[0]);
    assert_int_equal(memmem(records[0], sizeof records[0], data, sizeof data) == NULL, strcmp(mode, "encrypted") == 0);
    for (size_t at = 0; at < sizeof records[0]; at++) { /* each changed byte is detected */
        ls_wire other = open;
        records[0][at] ^= 0x10;
        const size_t size = at < LS_WIRE_LENGTH_SIZE ? FRAME : ls_wire_frame_size(records[0]);
        assert_false(ls_wire_open(&other, records[0], size, again));
        records[0][at] ^= 0x10;
    }
    ls_wire other = open;
    assert_false(ls_wire_open(&other, records[1], FRAME, again)); /* out of order */
    other = open;
    other.key[3] ^= 1;
    assert_false(ls_wire_open(&other, records[0], FRAME, again));
    assert_true(ls_wire_open(&open, records[0], FRAME, frame));
    assert_memory_equal(frame, header, sizeof header);
    assert_memory_equal(frame + sizeof header, data, sizeof data);
    other = open;
    assert_false(ls_wire_open(&other, records[0], FRAME, again)); /* repeated */
    assert_true(ls_wire_open(&open, records[1], FRAME, frame));
}

TEST(records_detect_changes) {
    check_records(protected_modes[0]);
    check_records(protected_modes[1]);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static const size_t sizes[MESSAGES] = {0, 1, 3000, LS_TCP_EAGER, LS_TCP_EAGER + 1, (5 << 20) + 17};

/* Each rank sends all messages to every other rank. */
static void exchange(tcp_net *net) {
    ls_transfer sends[RANKS][RANKS][MESSAGES], receives[RANKS][RANKS][MESSAGES];
    bool all = false;
    for (int i = 0; i < RANKS * RANKS * MESSAGES; i++) {
        const int from = i / (RANKS * MESSAGES), to = i / MESSAGES % RANKS, k = i % MESSAGES;
        if (from != to) {
            sends[from][to][k] = tcp_net_message(to, 0, sizes[k], (uint64_t)i);
            receives[to][from][k] = tcp_net_room(from, 0, sizes[k]);
            assert_int_equal(tcp_net_send(net, from, &sends[from][to][k]), LS_OK);
            assert_int_equal(tcp_net_receive(net, to, &receives[to][from][k]), LS_OK);
        }
    }
    TCP_NET_UNTIL(net, all) {
        all = true;
        for (int i = 0; i < RANKS * RANKS * MESSAGES; i++) {
            const int from = i / (RANKS * MESSAGES), to = i / MESSAGES % RANKS, k = i % MESSAGES;
            all = all && (from == to || (receives[to][from][k].ended && sends[from][to][k].ended));
        }
    }
    for (int i = 0; i < RANKS * RANKS * MESSAGES; i++) {
        const int from = i / (RANKS * MESSAGES), to = i / MESSAGES % RANKS, k = i % MESSAGES;
        if (from != to) {
            assert_true(tcp_net_holds(&receives[to][from][k], (uint64_t)i, sizes[k]));
            free(sends[from][to][k].data);
            free(receives[to][from][k].data);
        }
    }
}

static void check_messages(const char *mode, int machines) {
    tcp_net net;
    assert_int_equal(setenv("LOCKSTEP_WIRE", mode, 1), 0);
    tcp_net_listen_on(&net, RANKS, machines);
    for (int rank = 0; rank < RANKS; rank++) {
        tcp_net_open(&net, rank);
    }
    exchange(&net);
    for (int peer = 1; peer < RANKS; peer++) {
        const ls_tcp_peer *other = &((ls_tcp *)net.ends[0])->peers[peer];
        const bool is_protected = strcmp(mode, "plain") != 0 && !other->near;
        assert_true((other->output_records != NULL) == is_protected && (other->input_records != NULL) == is_protected);
    }
    tcp_net_end(&net);
    assert_int_equal(unsetenv("LOCKSTEP_WIRE"), 0);
}

TEST(messages_arrive_in_each_mode) {
    for (int machines = 1; machines <= RANKS; machines++) {
        check_messages("plain", machines);
        check_messages("authenticated", machines);
        check_messages("encrypted", machines);
    }
}

/* ---- a relay between two ranks ----------------------------------------------------------------------------------- */

/* What the relay does with the bytes of records beginning at `at`, after the hello. */
typedef enum damage {
    CHANGE,
    DROP,
    REPEAT
} damage; /* CHANGE only shortens a length, so that the receiver does not wait for further bytes */

typedef struct relay {
    int listener, from, to;
    damage kind;
    size_t at;
    unsigned char bytes[1 << 17]; /* all that has come */
    size_t got, given;
    bool was_damaged;
} relay;

/* Rank 0 finds the relay at rank 1's address. */
static void open_through(tcp_net *net, relay *between) {
    tcp_net_listen(net, 2);
    ls_tcp_peer_info *info = &net->peer_infos[1];
    const ls_tcp_peer_info real = *info;
    between->from = between->to = -1;
    between->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    info->address.v4.sin_port = 0;
    assert_int_equal(bind(between->listener, &info->address.any, info->length), 0);
    assert_int_equal(listen(between->listener, 4), 0);
    socklen_t length = sizeof info->address;
    assert_int_equal(getsockname(between->listener, &info->address.any, &length), 0);
    tcp_net_open(net, 0);
    *info = real;
    tcp_net_open(net, 1);
}

static void give(relay *between, const unsigned char *bytes, size_t size) {
    (void)!send(between->to, bytes, size, MSG_NOSIGNAL); /* rank 1 may have closed the connection */
}

/* Passes on the data that has arrived. */
static void pump(tcp_net *net, relay *between) {
    if (between->from < 0) {
        between->from = accept4(between->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        between->to = between->from >= 0 ? tcp_net_call(net, 1) : -1;
        return;
    }
    const ssize_t step = recv(between->from, between->bytes + between->got, sizeof between->bytes - between->got, 0);
    between->got += step > 0 ? (size_t)step : 0;
    const size_t damaged = sizeof(ls_tcp_hello) + between->at;
    if (!between->was_damaged && between->got > damaged + 64) {
        between->bytes[damaged] ^= between->kind == CHANGE ? 8 : 0;
        give(between, between->bytes, between->kind == REPEAT ? damaged + 64 : damaged);
        between->given = damaged + (between->kind == DROP ? 32 : 0);
        between->was_damaged = true;
    }
    if (between->was_damaged && between->given < between->got) {
        give(between, between->bytes + between->given, between->got - between->given);
        between->given = between->got;
    }
}

static void check_damage(const char *mode, damage kind, size_t at) {
    enum { BYTES = 20000 };
    static relay between;
    tcp_net net;
    bool moved;
    ls_status status = LS_OK;
    memset(&between, 0, sizeof between);
    between.kind = kind;
    between.at = at;
    assert_int_equal(setenv("LOCKSTEP_WIRE", mode, 1), 0);
    open_through(&net, &between);
    ls_transfer first = tcp_net_message(1, 0, BYTES, 1), second = tcp_net_message(1, 0, BYTES, 2);
    ls_transfer got[2] = {tcp_net_room(0, 0, BYTES), tcp_net_room(0, 0, BYTES)};
    assert_int_equal(tcp_net_send(&net, 0, &first), LS_OK);
    assert_int_equal(tcp_net_send(&net, 0, &second), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 1, &got[0]), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 1, &got[1]), LS_OK);
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    while (status == LS_OK) {
        assert_true(ls_clock_seconds() < limit);
        pump(&net, &between);
        (void)net.ends[0]->transport->progress(net.ends[0], 0, &moved);
        status = net.ends[1]->transport->progress(net.ends[1], 0, &moved);
    }
    assert_int_equal(status, LS_ERR_PEER);
    assert_int_equal(net.ends[1]->blamed, 1 + 0);
    expect_message("a message from rank 0 was changed in transit");
    for (int i = 0; i < 2; i++) { /* all data that has arrived is intact */
        assert_true(!got[i].ended || tcp_net_holds(&got[i], (uint64_t)(1 + i), BYTES));
        free(got[i].data);
    }
    free(first.data);
    free(second.data);
    tcp_net_end(&net);
    close(between.listener);
    close(between.from);
    close(between.to);
    assert_int_equal(unsetenv("LOCKSTEP_WIRE"), 0);
}

TEST(damage_on_the_way_is_an_error) {
    const size_t places[] = {0, 3, 4, 20, 28, 5000, 20027, 20043, 20044, 20050, 30000};
    for (int mode = 0; mode < 2; mode++) {
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            check_damage(protected_modes[mode], CHANGE, places[i]);
        }
        check_damage(protected_modes[mode], DROP, 5000);
        check_damage(protected_modes[mode], REPEAT, 5000);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

TEST(modes_must_be_equal) {
    tcp_net net;
    tcp_net_listen(&net, 2);
    net.peer_infos[1].wire = LS_WIRE_ENCRYPTED;
    const ls_tcp_options options = {
        .rank = 0, .size = 2, .listener = net.listeners[0], .peer_infos = net.peer_infos, .key = &net.key};
    assert_null(ls_tcp_open(&options));
    assert_int_equal(ls_error_status(), LS_ERR_MISMATCH);
    assert_string_equal(ls_error_message(), "LOCKSTEP_WIRE is plain for rank 0 and encrypted for rank 1: set it to the "
                                            "same value for all ranks");
    net.listeners[0] = -1;
    tcp_net_end(&net);
}

TEST(protection_needs_a_key) {
    const ls_key none = {.size = 0};
    tcp_net net;
    assert_int_equal(setenv("LOCKSTEP_WIRE", "authenticated", 1), 0);
    tcp_net_listen(&net, 2);
    const ls_tcp_options options = {
        .rank = 0, .size = 2, .listener = net.listeners[0], .peer_infos = net.peer_infos, .key = &none};
    assert_null(ls_tcp_open(&options));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message("LOCKSTEP_WIRE is authenticated, but the job has no key");
    net.listeners[0] = -1;
    tcp_net_end(&net);
    assert_int_equal(unsetenv("LOCKSTEP_WIRE"), 0);
}

TEST(unknown_modes_are_refused) {
    const ls_join_context join = {.size = 2};
    ls_tcp_peer_info info;
    int listener = -1;
    assert_int_equal(setenv("LOCKSTEP_WIRE", "secret", 1), 0);
    assert_int_equal(ls_tcp_listen(&join, &info, &listener), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "LOCKSTEP_WIRE is 'secret', but must be plain, authenticated or encrypted");
    assert_int_equal(listener, -1);
    assert_int_equal(unsetenv("LOCKSTEP_WIRE"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_detect_changes),    TCP_NET_TEST(messages_arrive_in_each_mode),
        TCP_NET_TEST(damage_on_the_way_is_an_error), TCP_NET_TEST(modes_must_be_equal),
        TCP_NET_TEST(protection_needs_a_key),        TCP_NET_TEST(unknown_modes_are_refused),
    };
    return cmocka_run_group_tests_name("transport_tcp_wire", tests, NULL, NULL);
}
