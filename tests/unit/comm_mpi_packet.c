/*
 * What a peer can send on backend mpi, without MPI: packets of calls and of messages, right ones, wrong ones and
 * damaged ones. Those that are taken have sizes that agree with each other and with what came; all others are refused
 * in a sentence.
 */
#include "tests/support/unit.h"

#include "comm/backend/mpi/packet.c" /* the backend is a module, not a part of the library */

#include "base/status.h"
#include "comm/pieces.h"
#include "comm/reduce.h"
#include "tests/support/fuzz.h"

enum { ROUNDS = 5000, PACKETS = 12, RANKS = 3, SELF = 0, PEER = 1, COUNT = 16, AFFORDABLE = 1 << 20 };

static const size_t rooms[] = {4096 - sizeof(ls_call_header), LS_MPI_PACKET - sizeof(ls_call_header)};

/* The address sanitizer would end a process that asks for as much memory as a header may say. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static ls_mpi_reader of_calls(size_t room) {
    return (ls_mpi_reader){.rank = SELF, .size = RANKS, .from = PEER, .room = room};
}

static ls_mpi_reader of_messages(size_t room) {
    return (ls_mpi_reader){.rank = SELF, .size = RANKS, .from = -1, .room = room};
}

static ls_call_header message_of(ls_dtype dtype, size_t count) {
    return (ls_call_header){.operation = LS_OP_SEND,
                            .dtype = (int32_t)dtype,
                            .root = PEER,
                            .tag = 5,
                            .count = count,
                            .bytes = count * ls_dtype_size(dtype)};
}

static ls_call_header call_of(ls_operation operation, ls_dtype dtype, size_t count) {
    return (ls_call_header){.operation = (uint32_t)operation,
                            .dtype = (int32_t)dtype,
                            .root = SELF,
                            .agreed = count,
                            .sequence = 9,
                            .count = count,
                            .bytes = count * ls_dtype_size(dtype)};
}

static ls_call_header leaving(ls_leave_reason reason) {
    return (ls_call_header){.operation = LS_MPI_LEFT, .reduction = (int32_t)reason, .root = PEER};
}

/* ---- right and wrong packets ---------------------------------------------------------------------------------------
 */

static void is_taken(ls_mpi_reader reader, ls_call_header header, size_t data) {
    char why[LS_HEADER_WHY];
    const ls_mpi_packet packet = {.header = header};
    assert_true(ls_mpi_packet_is_sound(&packet, data, &reader, why));
}

static void is_refused(ls_mpi_reader reader, ls_call_header header, size_t data, const char *said) {
    char why[LS_HEADER_WHY];
    const ls_mpi_packet packet = {.header = header};
    assert_false(ls_mpi_packet_is_sound(&packet, data, &reader, why));
    assert_non_null(strstr(why, said));
}

static void right_packets(void **state) {
    (void)state;
    const size_t room = rooms[1];
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        const size_t width = ls_dtype_size((ls_dtype)dtype);
        const size_t counts[] = {0, 1, COUNT, room / width};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            is_taken(of_messages(room), message_of((ls_dtype)dtype, counts[i]), counts[i] * width);
            is_taken(of_calls(room), call_of(LS_OP_ALLGATHER, (ls_dtype)dtype, counts[i]), counts[i] * width);
            is_taken(of_calls(room), call_of(LS_OP_ALLGATHER, (ls_dtype)dtype, counts[i]), 0);
        }
        ls_call_header large = message_of((ls_dtype)dtype, room / width + 1);
        is_taken(of_messages(room), large, 0);
        for (uint32_t turn = 0; turn < LS_MPI_TURNS; turn++) {
            large.layout = (uint32_t)LS_MPI_REPEATS + turn;
            is_taken(of_messages(room), large, 0);
        }
    }
    for (int reason = LS_LEAVE_NONE + 1; reason <= LS_LEAVE_FAILED; reason++) {
        is_taken(of_messages(room), leaving((ls_leave_reason)reason), 0);
        is_taken(of_calls(room), leaving((ls_leave_reason)reason), 0);
    }
}

static void wrong_messages(void **state) {
    (void)state;
    const ls_mpi_reader reader = of_messages(rooms[1]);
    const ls_call_header right = message_of(LS_F32, COUNT);
    ls_call_header h = right;
    h.bytes = 4096;
    is_refused(reader, h, 4096, "4096 bytes for 16 elements of f32");
    h = right;
    h.count += SIZE_MAX / 4 + 1;
    is_refused(reader, h, 64, "64 bytes for 4611686018427387920 elements of f32");
    h = right;
    h.dtype = 99;
    is_refused(reader, h, 64, "there is no dtype 99");
    h = right;
    h.tag = -1;
    is_refused(reader, h, 64, "there is no tag -1");
    h = right;
    h.root = RANKS;
    is_refused(reader, h, 64, "rank 3");
    h.root = SELF;
    is_refused(reader, h, 64, "rank 0");
    is_refused(reader, right, 63, "operation 16, rank 1, 63 bytes of data");
    is_refused(reader, right, 0, "0 bytes of data");
    is_refused(reader, right, SIZE_MAX, "it has not the size of one"); /* what is said of less than a header */
    is_refused(reader, message_of(LS_F32, 10000), 64, "64 bytes of data");
    h = right;
    h.layout = LS_MPI_REPEATS;
    is_refused(reader, h, 64, "64 bytes of data");
    h.layout = LS_MPI_KNOWN_CALLS;
    is_refused(reader, h, 0, "0 bytes of data");
    h = message_of(LS_F32, 0);
    h.layout = LS_MPI_REPEATS;
    is_refused(reader, h, 0, "0 bytes of data");
    is_refused(reader, call_of(LS_OP_ALLGATHER, LS_F32, COUNT), 64, "operation 7");
}

static void wrong_calls(void **state) {
    (void)state;
    const ls_mpi_reader reader = of_calls(rooms[1]);
    ls_call_header h = call_of(LS_OP_ALLREDUCE, LS_F32, COUNT);
    is_refused(reader, h, 60, "60 bytes of data");
    h.reduction = 99;
    is_refused(reader, h, 64, "reduction 99");
    h = call_of(LS_OP_ALLREDUCE, LS_F32, COUNT);
    h.operation = LS_OP_COUNT + 1;
    is_refused(reader, h, 64, "there is no operation 19");
    is_refused(reader, message_of(LS_F32, COUNT), 64, "operation 16");
    h = leaving(LS_LEAVE_FINALIZED);
    is_refused(reader, h, 8, "8 bytes of data");
    h.root = PEER + 1; /* another than the one that says so */
    is_refused(reader, h, 0, "rank 2");
    is_refused(reader, leaving(LS_LEAVE_NONE), 0, "operation 18");
    is_refused(reader, leaving((ls_leave_reason)256), 0, "operation 18");
}

/* ---- damaged packets -----------------------------------------------------------------------------------------------
 *
 * A rank takes in packets, one after the other, as a right peer would send them, damaged, or made of random bytes. Its
 * memory is exactly as large as what came and as what it wants, so that a sanitizer sees the first byte too far.
 */

/* What became of them. */
typedef struct tally {
    size_t taken, refused, matched;
} tally;

/* Often the same, so that what is sent is at times what is wanted. */
static ls_dtype any_dtype(void) {
    return fuzz_below(2) == 0 ? LS_F32 : (ls_dtype)fuzz_below(LS_DTYPE_COUNT);
}

static size_t any_count(void) {
    static const size_t counts[] = {0, 1, COUNT, 1000, 1500, 3000, 70000};
    return counts[fuzz_below(fuzz_below(2) == 0 ? 4 : sizeof counts / sizeof *counts)];
}

static ls_call_header right_header(void) {
    const ls_dtype dtype = any_dtype();
    const size_t count = any_count();
    ls_call_header header;
    switch (fuzz_below(6)) {
    case 0:
        return leaving((ls_leave_reason)(1 + fuzz_below(LS_LEAVE_FAILED)));
    case 1:
    case 2:
        return call_of((ls_operation)fuzz_below(LS_OP_SEND), dtype, count);
    default:
        header = message_of(dtype, count);
        header.tag = (int32_t)fuzz_below(3);
        header.layout = count > 0 && fuzz_below(8) == 0 ? (uint32_t)(LS_MPI_REPEATS + fuzz_below(LS_MPI_TURNS)) : 0;
        return header;
    }
}

/* Fills in a packet and returns how many bytes of it are sent: less than a header at times. */
static size_t write_packet(ls_mpi_packet *packet, size_t room) {
    unsigned char *bytes = (unsigned char *)(void *)packet;
    if (fuzz_below(20) == 0) {
        for (size_t i = 0; i < sizeof packet->header; i++) {
            bytes[i] = (unsigned char)fuzz_below(256);
        }
        return fuzz_below(sizeof *packet + 1);
    }
    packet->header = right_header();
    const bool data = packet->header.operation != LS_MPI_LEFT && ls_mpi_packet_is_eager(&packet->header, room);
    const size_t size = sizeof packet->header + (data ? (size_t)packet->header.bytes : 0);
    switch (fuzz_below(4)) {
    case 0: /* what is believed; the rest as long as before */
        (void)fuzz_mutate(bytes, sizeof packet->header, sizeof packet->header);
        return size;
    case 1:
        return fuzz_mutate(bytes, size, sizeof *packet);
    default:
        return size;
    }
}

/* Posts a receive of what the next message may bring; returns its memory. */
static unsigned char *want(ls_match *match, ls_match_receipt **receipt) {
    const size_t count = any_count();
    const ls_dtype dtype = any_dtype();
    const size_t bytes = count * ls_dtype_size(dtype);
    unsigned char *memory = malloc(bytes > 0 ? bytes : 1);
    const ls_call call = {.operation = LS_OP_RECV,
                          .dtype = dtype,
                          .root = PEER,
                          .tag = (int)fuzz_below(3),
                          .count = count,
                          .width = ls_dtype_size(dtype),
                          .receive = memory};
    const ls_status status = ls_match_receive(match, &call, receipt);
    assert_non_null(memory);
    assert_true(status == LS_OK || status == LS_ERR_MISMATCH);
    return memory;
}

/* Takes in a message as message.c does. */
static void take(ls_match *match, const ls_mpi_packet *packet, size_t data, size_t room, tally *counts) {
    const ls_match_header header = ls_mpi_packet_message(packet);
    ls_match_target target = {0};
    const ls_status status = ls_match_offer(match, &header, &target);
    assert_true(status == LS_OK || (status == LS_ERR_MEMORY && header.bytes > AFFORDABLE));
    if (status != LS_OK || header.bytes > AFFORDABLE) { /* such content does not come */
        return;
    }
    counts->matched += target.receipt != NULL && target.into != NULL && header.bytes != 0;
    if (target.into != NULL && header.bytes != 0) {
        if (ls_mpi_packet_is_eager(&packet->header, room)) {
            assert_int_equal(data, header.bytes);
            memcpy(target.into, packet->data, header.bytes);
        } else {
            memset(target.into, 1, header.bytes);
        }
    }
    ls_match_complete(match, &target);
}

/* What must be true of every packet that is taken. */
static void check_taken(const ls_mpi_packet *packet, size_t data, const ls_mpi_reader *reader) {
    const ls_call_header *header = &packet->header;
    assert_true(data <= sizeof packet->data && header->root >= 0 && header->root < RANKS);
    if (header->operation == LS_MPI_LEFT) {
        assert_true(data == 0 && (reader->from < 0 ? header->root != SELF : header->root == PEER));
        return;
    }
    const bool reduces = header->operation < LS_OP_SEND && !ls_flows[header->operation].moves;
    const size_t width = reduces ? ls_reduce_width((ls_dtype)header->dtype, (ls_reduction)header->reduction)
                                 : ls_dtype_size((ls_dtype)header->dtype);
    assert_true(width > 0 && header->bytes / width == header->count && header->bytes % width == 0);
    assert_true(header->operation < LS_OP_COUNT && (header->operation == LS_OP_SEND) == (reader->from < 0));
    assert_true(data == 0 || data == header->bytes);
    if (reader->from < 0) {
        assert_true(header->root != SELF && header->tag >= 0);
        assert_true(data == (header->bytes <= reader->room && header->layout == 0 ? header->bytes : 0));
        assert_true(header->layout == 0 || (header->layout >= LS_MPI_REPEATS && header->layout < LS_MPI_KNOWN_CALLS));
    }
}

static void read_one(ls_match *match, ls_mpi_packet *whole, tally *counts) {
    char why[LS_HEADER_WHY];
    const size_t room = rooms[fuzz_below(2)];
    const size_t size = write_packet(whole, room);
    const bool misplaced = fuzz_below(10) == 0;
    const ls_mpi_reader reader =
        (whole->header.operation == LS_OP_SEND) != misplaced ? of_messages(room) : of_calls(room);
    const size_t data = size < sizeof whole->header ? SIZE_MAX : size - sizeof whole->header; /* see ls_mpi_box_look */
    ls_mpi_packet *packet = malloc(size > 0 ? size : 1);
    assert_non_null(packet);
    memcpy((void *)packet, whole, size);
    if (!ls_mpi_packet_is_sound(packet, data, &reader, why)) {
        counts->refused++;
        assert_true(strlen(why) > 10);
    } else {
        counts->taken++;
        check_taken(packet, data, &reader);
        if (packet->header.operation == LS_OP_SEND) {
            take(match, packet, data, room, counts);
        }
    }
    free(packet);
}

static void damaged_round(uint64_t number, void *argument) {
    ls_match match = {0};
    ls_match_receipt *receipts[PACKETS] = {0};
    unsigned char *memories[PACKETS];
    ls_mpi_packet whole = {.header = {.operation = 0}};
    (void)number;
    for (int i = 0; i < PACKETS; i++) {
        memories[i] = want(&match, &receipts[i]);
        read_one(&match, &whole, argument);
        read_one(&match, &whole, argument);
    }
    for (int i = 0; i < PACKETS; i++) {
        if (receipts[i] != NULL && ls_match_arrived(receipts[i])) {
            const ls_status status = ls_match_end(&match, receipts[i]);
            assert_true(status == LS_OK || status == LS_ERR_MISMATCH);
        }
    }
    ls_match_free(&match);
    for (int i = 0; i < PACKETS; i++) {
        free(memories[i]);
    }
}

static void damaged_packets(void **state) {
    (void)state;
    tally counts = {0};
    const uint64_t rounds = fuzz_run("mpi packets", ROUNDS, damaged_round, &counts);
    assert_true(rounds < ROUNDS || (counts.taken > rounds && counts.refused > rounds && counts.matched > rounds / 10));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_packets),
        cmocka_unit_test(wrong_messages),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(damaged_packets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
