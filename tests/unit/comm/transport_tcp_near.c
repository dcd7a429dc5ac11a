/*
 * Ranks of one machine over TCP: large messages are read from the sender's memory, or sent over the socket if this is
 * not permitted. Only the memory of the right process is read, and not after the sender has canceled the message.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/processes.h"
#include "tests/support/tcp_net.h"

enum { LARGE = LS_TCP_EAGER + 1000, HUGE = 3 * LS_TCP_LOOK + 5 };

static ls_tcp *tcp_of(const tcp_net *net, int rank) {
    return (ls_tcp *)net->ends[rank];
}

static void start_near(tcp_net *net, int size) {
    tcp_net_listen_on(net, size, 1);
    for (int rank = 0; rank < size; rank++) {
        tcp_net_open(net, rank);
    }
}

/* ---- between endpoints ------------------------------------------------------------------------------------------- */

TEST(every_size_is_read) {
    static const size_t sizes[] = {LS_TCP_EAGER + 1, LARGE, LS_TCP_READ, LS_TCP_READ + 1, HUGE};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const size_t bytes = sizes[i / 2];
        tcp_net net;
        start_near(&net, 2);
        ls_transfer send = tcp_net_message(1, 2, bytes, i), receive = tcp_net_room(0, 2, bytes);
        ls_transfer small = tcp_net_message(1, 2, 10, 9), last = tcp_net_room(0, 2, 10);
        if (i % 2 == 0) {
            assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
        }
        assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
        assert_int_equal(tcp_net_send(&net, 0, &small), LS_OK);
        TCP_NET_UNTIL(&net, tcp_of(&net, 1)->peers[0].heard_of == 1) {
        }
        assert_false(i % 2 == 1 && send.ended); /* the memory of the send has not been read yet */
        if (i % 2 == 1) {
            assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
        }
        assert_int_equal(tcp_net_receive(&net, 1, &last), LS_OK);
        TCP_NET_UNTIL(&net, send.ended && last.ended) {
            assert_null(tcp_of(&net, 1)->peers[0].awaited); /* nothing is cleared */
        }
        assert_true(tcp_net_holds(&receive, i, bytes) && tcp_net_holds(&last, 9, 10));
        assert_true(tcp_of(&net, 1)->peers[0].memory.process == getpid());
        tcp_net_end(&net);
        free(send.data);
        free(receive.data);
        free(small.data);
        free(last.data);
    }
}

/*
 * A rank may detect the end of the other rank's sending connection before it has read the other rank's last data on its
 * own connection.
 */
TEST(what_was_read_before_the_end_has_ended) {
    tcp_net net;
    start_near(&net, 2);
    ls_transfer send = tcp_net_message(1, 2, LARGE, 1), receive = tcp_net_room(0, 2, LARGE);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
    TCP_NET_UNTIL(&net, tcp_of(&net, 1)->peers[0].heard_of == 1) {
    }
    assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
    while (!receive.ended) {
        bool moved = false;
        assert_int_equal(net.ends[1]->transport->progress(net.ends[1], 1000000, &moved), LS_OK);
    }
    assert_false(send.ended);
    assert_int_equal(ls_tcp_end_output(tcp_of(&net, 0), 1), LS_OK);
    tcp_net_close(&net, 1);
    TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 0, 1)) {
    }
    assert_true(send.ended && tcp_net_holds(&receive, 1, LARGE));
    tcp_net_end(&net);
    free(send.data);
    free(receive.data);
}

/* All senders' messages make progress, and each poll takes a bounded time, whatever the number of senders. */
TEST(senders_have_turns) {
    enum { SENDERS = TCP_NET_MOST - 1, BYTES = 5 * LS_TCP_READ };
    tcp_net net;
    ls_transfer sends[SENDERS], receives[SENDERS];
    bool moved;
    start_near(&net, TCP_NET_MOST);
    for (int i = 0; i < SENDERS; i++) {
        sends[i] = tcp_net_message(0, 1, BYTES, (uint64_t)i);
        receives[i] = tcp_net_room(i + 1, 1, BYTES);
        assert_int_equal(tcp_net_send(&net, i + 1, &sends[i]), LS_OK);
        TCP_NET_UNTIL(&net, tcp_of(&net, 0)->peers[i + 1].heard_of == 1) {
        }
    }
    for (int i = 0; i < SENDERS; i++) {
        assert_int_equal(tcp_net_receive(&net, 0, &receives[i]), LS_OK);
    }
    for (size_t before = 0, all = 0; all < (size_t)SENDERS * BYTES; before = all) {
        assert_int_equal(net.ends[0]->transport->progress(net.ends[0], 0, &moved), LS_OK);
        size_t least = BYTES, most = 0;
        all = 0;
        for (int i = 0; i < SENDERS; i++) {
            all += receives[i].moved;
            least = receives[i].moved < least ? receives[i].moved : least;
            most = receives[i].moved > most ? receives[i].moved : most;
        }
        assert_true(most - least <= LS_TCP_READ);
        assert_true(all > before && all - before <= LS_TCP_LOOK);
    }
    TCP_NET_UNTIL(&net, sends[0].ended && sends[1].ended && sends[2].ended && sends[3].ended) {
    }
    tcp_net_end(&net);
    for (int i = 0; i < SENDERS; i++) {
        assert_true(tcp_net_holds(&receives[i], (uint64_t)i, BYTES));
        free(sends[i].data);
        free(receives[i].data);
    }
}

/* Cancels one side after a number of polls. Returns whether it was still in flight. */
static bool take_back(int side, int looks) {
    tcp_net net;
    start_near(&net, 2);
    ls_transfer large[] = {tcp_net_message(1, 1, HUGE, 1), tcp_net_room(0, 1, HUGE)};
    ls_transfer small = tcp_net_message(1, 2, 1000, 2), last = tcp_net_room(0, 2, 1000);
    assert_int_equal(tcp_net_receive(&net, 1, &large[1]), LS_OK);
    assert_int_equal(tcp_net_send(&net, 0, &large[0]), LS_OK);
    for (int i = 0; i < looks; i++) {
        tcp_net_turn(&net);
    }
    const bool under_way = !large[side].ended;
    tcp_net_withdraw(&net, side, &large[side]);
    if (under_way && side == 0) { /* the memory of the send is reused, and must not be mistaken for the message */
        memset(large[0].data, 0xee, HUGE);
    } else if (under_way) {
        memset(large[1].data, 0, HUGE);
    }
    assert_int_equal(tcp_net_send(&net, 0, &small), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 1, &last), LS_OK);
    TCP_NET_UNTIL(&net, last.ended) {
    }
    for (int i = 0; i < 5; i++) {
        tcp_net_turn(&net);
    }
    assert_true(tcp_net_holds(&last, 2, 1000));
    assert_false(under_way && large[side].ended);
    assert_true(!large[1].ended || tcp_net_holds(&large[1], 1, HUGE));
    for (size_t i = 0; under_way && side == 1 && i < HUGE; i++) {
        assert_int_equal(((unsigned char *)large[1].data)[i], 0); /* nothing is read into it after the cancellation */
    }
    tcp_net_end(&net);
    for (int i = 0; i < 2; i++) {
        free(large[i].data);
    }
    free(small.data);
    free(last.data);
    return under_way;
}

TEST(what_is_taken_back_is_not_read) {
    for (int side = 0; side < 2; side++) {
        int looks = 0;
        while (take_back(side, looks)) {
            looks++;
        }
        assert_true(looks > 2); /* in the middle, too */
    }
}

/* ---- rank 1 driven by hand --------------------------------------------------------------------------------------- */

typedef struct scene {
    tcp_net net;
    int socket; /* on which rank 1 sends */
    int heard;  /* on which it reads */
    uint8_t mark[LS_NONCE_SIZE];
    ls_transfer message; /* the message that it announces */
    ls_transfer receive;
} scene;

/* Rank 0 receives `bytes` bytes from rank 1, which claims to be `process` and to have its mark at `mark_at`. */
static void begin_scene(scene *s, int machines, size_t bytes, int64_t process, const void *mark_at) {
    ls_tcp_hello hello;
    tcp_net_listen_on(&s->net, 2, machines);
    tcp_net_open(&s->net, 0);
    memcpy(s->mark, s->net.peer_infos[1].secret, sizeof s->mark);
    hello = tcp_net_hello(&s->net.key, s->net.peer_infos, 2, 1, 0);
    hello.process = process;
    hello.mark_at = (uint64_t)(uintptr_t)(mark_at != NULL ? mark_at : s->mark);
    s->socket = tcp_net_call(&s->net, 0);
    tcp_net_tell(s->socket, &hello, sizeof hello);
    s->message = tcp_net_message(0, 1, bytes, 5);
    s->receive = tcp_net_room(1, 1, bytes);
    assert_int_equal(tcp_net_receive(&s->net, 0, &s->receive), LS_OK);
    s->heard = tcp_net_accept(&s->net, 1, &hello);
}

static void offer(scene *s, const void *address) {
    const ls_tcp_header header = {
        .kind = LS_TCP_OFFER, .channel = 1, .bytes = s->message.bytes, .number = (uint64_t)(uintptr_t)address};
    tcp_net_tell(s->socket, &header, sizeof header);
}

static ls_tcp_header hear(scene *s) {
    ls_tcp_header header;
    assert_true(tcp_net_hear(&s->net, s->heard, &header, sizeof header));
    return header;
}

/* Returns the receiver's last header about the message. A slow receiver says before how much it has read. */
static ls_tcp_header hear_last(scene *s) {
    ls_tcp_header header = hear(s);
    while (header.kind == LS_TCP_TAKEN && header.bytes < s->message.bytes) {
        header = hear(s);
    }
    return header;
}

static void end_scene(scene *s) {
    tcp_net_end(&s->net);
    close(s->socket);
    close(s->heard);
    free(s->message.data);
    free(s->receive.data);
}

/* Sends the content that rank 0 has requested over the socket. */
static void send_content(scene *s) {
    const ls_tcp_header cleared = hear_last(s);
    assert_true(cleared.kind == LS_TCP_CLEAR && cleared.number == 1);
    assert_false(s->receive.ended);
    for (size_t at = 0; at < s->message.bytes; at += LS_TCP_PIECE) {
        const size_t left = s->message.bytes - at;
        const size_t bytes = left < LS_TCP_PIECE ? left : LS_TCP_PIECE;
        const ls_tcp_header piece = {.kind = LS_TCP_CONTENT, .bytes = bytes, .number = 1};
        tcp_net_tell(s->socket, &piece, sizeof piece);
        for (size_t sent = 0; sent < bytes; tcp_net_turn(&s->net)) {
            const ssize_t step = send(s->socket, (char *)s->message.data + at + sent, bytes - sent, MSG_DONTWAIT);
            sent += step > 0 ? (size_t)step : 0;
        }
    }
    TCP_NET_UNTIL(&s->net, s->receive.ended) {
    }
    assert_true(tcp_net_holds(&s->receive, 5, s->message.bytes));
}

static const char *wait_to_be_killed(int number, const void *what) {
    (void)number;
    (void)what;
    alarm(60); /* if the test fails */
    pause();
    return NULL;
}

/* The process id belongs to a different process, whose memory is different, missing, or the same except for the
 * mark. Also invalid addresses. */
TEST(who_is_not_meant_is_not_read) {
    static const uint8_t other[LS_NONCE_SIZE] = {1};
    const pid_t child = process_start(wait_to_be_killed, 1, NULL);
    const struct {
        int64_t process;
        const void *mark_at;
        const void *address;
    } wrong[] = {
        {0, NULL, NULL},
        {-1, NULL, NULL},
        {INT64_MAX, NULL, NULL},
        {1, NULL, NULL},
        {child, NULL, NULL},
        {getpid(), other, NULL},
        {getpid(), (void *)8, NULL},
        {getpid(), NULL, (void *)8},
        {getpid(), NULL, (void *)(UINTPTR_MAX - 100)},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scene s;
        begin_scene(&s, 1, LARGE, wrong[i].process, wrong[i].mark_at);
        offer(&s, wrong[i].address != NULL ? wrong[i].address : s.message.data);
        send_content(&s);
        end_scene(&s);
    }
    kill(child, SIGKILL);
    (void)process_wait(child);
}

/* The mark disappears during the message: the bytes read so far do not count. */
TEST(a_mark_that_goes_ends_the_reading) {
    scene s;
    begin_scene(&s, 1, HUGE, getpid(), NULL);
    offer(&s, s.message.data);
    TCP_NET_UNTIL(&s.net, s.receive.moved > 0) {
    }
    assert_false(s.receive.ended);
    memset(s.mark, 0, sizeof s.mark);
    send_content(&s);
    end_scene(&s);
    begin_scene(&s, 1, HUGE, getpid(), NULL); /* and without a change */
    offer(&s, s.message.data);
    TCP_NET_UNTIL(&s.net, s.receive.ended) {
    }
    assert_true(tcp_net_holds(&s.receive, 5, HUGE));
    const ls_tcp_header taken = hear_last(&s);
    assert_true(taken.kind == LS_TCP_TAKEN && taken.number == 1 && taken.bytes == HUGE);
    end_scene(&s);
}

/* This must hold however slowly the message is read. */
TEST(the_owner_hears_now_and_then) {
    scene s;
    begin_scene(&s, 1, HUGE, getpid(), NULL);
    offer(&s, s.message.data);
    TCP_NET_UNTIL(&s.net, s.receive.moved > 0) {
    }
    usleep(150000);
    const ls_tcp_header part = hear(&s);
    assert_true(part.kind == LS_TCP_TAKEN && part.number == 1 && part.bytes > 0 && part.bytes < HUGE);
    assert_int_equal(hear_last(&s).kind, LS_TCP_TAKEN);
    assert_true(s.receive.ended && tcp_net_holds(&s.receive, 5, HUGE));
    end_scene(&s);
}

/* After a message with an invalid address, the next message is read. */
TEST(one_wrong_address_ends_no_more) {
    scene s;
    begin_scene(&s, 1, LARGE, getpid(), NULL);
    offer(&s, (void *)8);
    send_content(&s);
    memset(s.receive.data, 0, LARGE);
    assert_int_equal(tcp_net_receive(&s.net, 0, &s.receive), LS_OK);
    offer(&s, s.message.data);
    const ls_tcp_header taken = hear(&s);
    assert_true(taken.kind == LS_TCP_TAKEN && taken.number == 2 && taken.bytes == LARGE);
    assert_true(s.receive.ended && tcp_net_holds(&s.receive, 5, LARGE));
    end_scene(&s);
}

/* The receiver has read a part and loses the permission to read more. */
TEST(what_was_taken_in_part_is_sent_whole) {
    scene s;
    ls_transfer send = tcp_net_message(1, 0, LARGE, 4), heard = tcp_net_room(1, 0, LARGE);
    begin_scene(&s, 1, LARGE, getpid(), NULL);
    assert_int_equal(tcp_net_send(&s.net, 0, &send), LS_OK);
    const ls_tcp_header offered = hear(&s);
    assert_true(offered.kind == LS_TCP_OFFER && offered.number == (uint64_t)(uintptr_t)send.data);
    tcp_net_tell(s.socket, &(ls_tcp_header){.kind = LS_TCP_TAKEN, .bytes = 1000, .number = 1}, sizeof offered);
    tcp_net_tell(s.socket, &(ls_tcp_header){.kind = LS_TCP_CLEAR, .number = 1}, sizeof offered);
    const ls_tcp_header content = hear(&s);
    assert_true(content.kind == LS_TCP_CONTENT && content.bytes == LARGE);
    heard.ended = tcp_net_hear(&s.net, s.heard, heard.data, LARGE);
    assert_true(tcp_net_holds(&heard, 4, LARGE) && send.ended);
    end_scene(&s);
    free(send.data);
    free(heard.data);
}

/* Rank 0 announces `send` to rank 1 as its message 1, of which nothing has been read. */
TEST(lies_are_errors) {
    static const struct {
        int machines;
        ls_tcp_header header;
    } lies[] = {
        {2, {.kind = LS_TCP_OFFER, .channel = 1, .bytes = LARGE, .number = 4096}},
        {1, {.kind = LS_TCP_OFFER, .channel = 1, .bytes = LARGE, .number = 0}},
        {1, {.kind = LS_TCP_OFFER, .channel = 1, .bytes = LS_TRANSPORT_LEAST_EAGER, .number = 4096}},
        {1, {.kind = LS_TCP_OFFER, .channel = LS_TRANSPORT_CHANNELS, .bytes = LARGE, .number = 4096}},
        {1, {.kind = LS_TCP_OFFER, .channel = 1, .bytes = UINT64_MAX, .number = 4096}},
        {1, {.kind = LS_TCP_TAKEN, .bytes = 0, .number = 1}},
        {1, {.kind = LS_TCP_TAKEN, .bytes = LARGE + 1, .number = 1}},
        {1, {.kind = LS_TCP_TAKEN, .bytes = LARGE, .number = 2}},
        {1, {.kind = LS_TCP_TAKEN, .bytes = LARGE, .number = 0}},
        {1, {.kind = LS_TCP_TAKEN, .bytes = LARGE, .number = 1, .channel = 1}},
        {2, {.kind = LS_TCP_TAKEN, .bytes = LARGE, .number = 1}},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        scene s;
        bool moved;
        ls_status status = LS_OK;
        begin_scene(&s, lies[i].machines, LARGE, getpid(), NULL);
        ls_transfer send = tcp_net_message(1, 0, LARGE, 4);
        assert_int_equal(tcp_net_send(&s.net, 0, &send), LS_OK);
        tcp_net_tell(s.socket, &lies[i].header, sizeof lies[i].header);
        const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
        while (status == LS_OK && ls_clock_seconds() < limit) {
            status = s.net.ends[0]->transport->progress(s.net.ends[0], 1000000, &moved);
        }
        if (status != LS_ERR_PEER || !tcp_net_is_gone(&s.net, 0, 1) || send.ended || s.receive.ended) {
            fail_msg("lie %zu: %s", i, ls_error_message());
        }
        end_scene(&s);
        free(send.data);
    }
}

/* ---- other processes --------------------------------------------------------------------------------------------- */

enum { LARGEST = 64 * LS_TCP_READ };

static const char *offer_and_wait(int number, const void *what) {
    (void)number;
    tcp_net net = *(const tcp_net *)what;
    bool moved;
    close(net.listeners[0]);
    net.listeners[0] = -1;
    tcp_net_open(&net, 1);
    ls_transfer send = tcp_net_message(0, 0, LARGEST, 3);
    LS_MUST(tcp_net_send(&net, 1, &send) == LS_OK);
    for (;;) {
        LS_MUST(net.ends[1]->transport->progress(net.ends[1], 1000000000, &moved) == LS_OK);
    }
}

/* A rank ends while its memory is read: if the process is killed, no more data arrives; if it is only stopped,
 * everything arrives. */
TEST(whose_process_ends_is_gone) {
    for (int stops = 0; stops < 2; stops++) {
        tcp_net net;
        bool moved;
        tcp_net_listen_on(&net, 2, 1);
        const pid_t process = process_start(offer_and_wait, 1, &net);
        close(net.listeners[1]);
        net.listeners[1] = -1;
        tcp_net_open(&net, 0);
        ls_endpoint *end = net.ends[0];
        ls_transfer receive = tcp_net_room(1, 0, LARGEST);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        TCP_NET_UNTIL(&net, receive.moved > 0) {
        }
        assert_false(receive.ended);
        kill(process, stops ? SIGSTOP : SIGKILL);
        if (!stops) {
            assert_int_equal(process_wait(process), -SIGKILL);
        }
        const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
        while (!receive.ended && !tcp_net_is_gone(&net, 0, 1) && ls_clock_seconds() < limit) {
            assert_int_equal(end->transport->progress(end, 1000000000, &moved), LS_OK);
        }
        assert_true(stops ? tcp_net_holds(&receive, 3, LARGEST) : !receive.ended && tcp_net_is_gone(&net, 0, 1));
        if (stops) {
            kill(process, SIGKILL);
            assert_int_equal(process_wait(process), -SIGKILL);
        } else {
            tcp_net_withdraw(&net, 0, &receive);
        }
        tcp_net_end(&net);
        free(receive.data);
    }
}

static void count_socket_lines(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    *(int *)user += level == LS_LOG_INFO && strstr(line, "the memory of rank 0 cannot be read (Operation") != NULL;
}

static void *send_by_the_socket(void *argument) {
    (void)argument;
    tcp_net net;
    int lines = 0;
    if (!process_forbid_reading()) {
        return "this kernel forbids nothing";
    }
    ls_log_set_sink(count_socket_lines, &lines);
    ls_log_set_level(LS_LOG_INFO);
    start_near(&net, 2);
    for (uint64_t i = 0; i < 3; i++) {
        ls_transfer send = tcp_net_message(1, 0, HUGE, i), receive = tcp_net_room(0, 0, HUGE);
        assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
        assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
        TCP_NET_UNTIL(&net, send.ended && receive.ended) {
        }
        assert_true(tcp_net_holds(&receive, i, HUGE));
        free(send.data);
        free(receive.data);
    }
    assert_true(tcp_of(&net, 1)->peers[0].memory.process == 0);
    tcp_net_end(&net);
    ls_log_set_sink(NULL, NULL);
    ls_log_set_level(LS_LOG_WARNING);
    assert_int_equal(lines, 1);
    return NULL;
}

TEST(who_may_not_read_hears_it) {
    pthread_t thread;
    void *why = NULL;
    assert_int_equal(pthread_create(&thread, NULL, send_by_the_socket, NULL), 0);
    assert_int_equal(pthread_join(thread, &why), 0);
    if (why != NULL) {
        print_message("SKIPPED: %s\n", (const char *)why);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TCP_NET_TEST(every_size_is_read),
        TCP_NET_TEST(what_was_read_before_the_end_has_ended),
        TCP_NET_TEST(senders_have_turns),
        TCP_NET_TEST(what_is_taken_back_is_not_read),
        TCP_NET_TEST(who_is_not_meant_is_not_read),
        TCP_NET_TEST(a_mark_that_goes_ends_the_reading),
        TCP_NET_TEST(the_owner_hears_now_and_then),
        TCP_NET_TEST(one_wrong_address_ends_no_more),
        TCP_NET_TEST(what_was_taken_in_part_is_sent_whole),
        TCP_NET_TEST(lies_are_errors),
        TCP_NET_TEST(whose_process_ends_is_gone),
        TCP_NET_TEST(who_may_not_read_hears_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
