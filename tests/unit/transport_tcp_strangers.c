/*
 * Who gets into the transport on sockets: processes that are none of the ranks are turned away and disturb nothing,
 * whatever they say or do not say; ranks get in however their attempts cross; ranks that end are known to be gone.
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/random.h"
#include "tests/support/files.h"
#include "tests/support/processes.h"
#include "tests/support/tcp_net.h"
#include "tests/support/unauthenticated.h"

static int descriptors;

static int note_descriptors(void **state) {
    (void)state;
    descriptors = test_descriptors_count();
    return 0;
}

static int compare_descriptors(void **state) {
    (void)state;
    return test_descriptors_count() == descriptors ? 0 : -1;
}

/* One message from each of the two to the other. */
static void exchange(tcp_net *net, int first, int second) {
    for (int i = 0; i < 2; i++) {
        const int from = i == 0 ? first : second, to = i == 0 ? second : first;
        ls_transfer send = tcp_net_message(to, 0, 1000, 5), receive = tcp_net_room(from, 0, 1000);
        assert_int_equal(tcp_net_receive(net, to, &receive), LS_OK);
        assert_int_equal(tcp_net_send(net, from, &send), LS_OK);
        TCP_NET_UNTIL(net, receive.ended) {
        }
        assert_true(tcp_net_holds(&receive, 5, 1000));
        free(send.data);
        free(receive.data);
    }
}

/* One message to a rank that is played by hand, over its connection. */
static void tell_by_hand(tcp_net *net, int rank, int to, int socket) {
    struct {
        ls_tcp_header header;
        unsigned char data[40];
    } came;
    ls_transfer send = tcp_net_message(to, 2, sizeof came.data, 9);
    assert_int_equal(tcp_net_send(net, rank, &send), LS_OK);
    assert_true(tcp_net_hear(net, socket, &came, sizeof came));
    assert_true(came.header.kind == LS_TCP_MESSAGE && came.header.channel == 2);
    assert_memory_equal(came.data, send.data, sizeof came.data);
    free(send.data);
}

static bool is_refused(tcp_net *net, int socket) {
    char byte;
    return !tcp_net_hear(net, socket, &byte, 1);
}

/* ---- who is no rank ------------------------------------------------------------------------------------------------
 */

enum { SILENT = 3 * LS_TCP_STRANGERS, NOISY = 100 };

/* More than there is room for hold their connections open. */
static void silent_strangers_keep_nobody_out(void **state) {
    (void)state;
    tcp_net net;
    int sockets[SILENT];
    tcp_net_start(&net, 2);
    for (int i = 0; i < SILENT; i++) {
        sockets[i] = tcp_net_call(&net, i % 2);
        tcp_net_turn(&net);
    }
    exchange(&net, 0, 1);
    for (int i = 0; i < SILENT; i++) {
        close(sockets[i]);
    }
    TCP_NET_UNTIL(&net, ((ls_tcp *)net.ends[0])->stranger_count + ((ls_tcp *)net.ends[1])->stranger_count == 0) {
    }
    tcp_net_end(&net);
}

/* A stranger who says nothing, or half of what it should, is turned away after a while. */
static void silence_ends(void **state) {
    (void)state;
    tcp_net net;
    tcp_net_start(&net, 1);
    ls_tcp *tcp = (ls_tcp *)net.ends[0];
    const int silent = tcp_net_call(&net, 0), half = tcp_net_call(&net, 0);
    ls_tcp_challenge challenge;
    assert_true(tcp_net_hear(&net, silent, &challenge, sizeof challenge));
    assert_true(tcp_net_hear(&net, half, &challenge, sizeof challenge));
    tcp_net_tell(half, LS_TCP_GREETING, 8);
    for (int i = 0; i < 10; i++) {
        tcp_net_turn(&net);
    }
    assert_int_equal(tcp->stranger_count, 2);
    tcp->awake_ns += UINT64_C(6000000000);
    assert_true(is_refused(&net, silent) && is_refused(&net, half));
    assert_int_equal(tcp->stranger_count, 0);
    close(silent);
    close(half);
    tcp_net_end(&net);
}

/* What is wrong in number `i` of the answers that are of the right form; false: there are no more. */
static bool forge(const tcp_net *net, int i, const ls_tcp_challenge *challenge, ls_tcp_answer *answer) {
    static ls_tcp_answer earlier;
    ls_key other = {0};
    *answer = tcp_net_answer(net, 0, 1, challenge);
    switch (i) {
    case 0:
        earlier = *answer;
        answer->proof[31] ^= 1;
        return true;
    case 1: /* what was right on another connection */
        *answer = earlier;
        return true;
    case 2: /* somebody who has the cards but not the key */
        assert_int_equal(ls_key_read(&other, "another key of sufficient length"), LS_OK);
        ls_tcp_prove(&other, net->cards, "connects", 1, 0, answer->nonce, challenge->nonce, answer->proof);
        return true;
    case 3: /* what rank 0 itself would say */
        ls_tcp_prove(&net->key, net->cards, "connects", 0, 1, answer->nonce, challenge->nonce, answer->proof);
        return true;
    case 4:
        ls_tcp_prove(&net->key, net->cards, "accepts", 1, 0, answer->nonce, challenge->nonce, answer->proof);
        return true;
    case 5:
        answer->greeting[7] ^= 1;
        return true;
    case 6:
        answer->size++;
        return true;
    default:
        answer->rank = (const int[]){0, 2, 3, -1, INT32_MAX, INT32_MIN}[i - 7];
        return i < 12;
    }
}

static void wrong_answers_are_turned_away(void **state) {
    (void)state;
    tcp_net net;
    bool more = true;
    tcp_net_start(&net, 3);
    for (int i = 0; more; i++) {
        ls_tcp_challenge challenge;
        ls_tcp_answer answer;
        const int socket = tcp_net_call(&net, 0);
        assert_true(tcp_net_hear(&net, socket, &challenge, sizeof challenge));
        more = forge(&net, i, &challenge, &answer);
        tcp_net_tell(socket, &answer, sizeof answer);
        assert_true(is_refused(&net, socket));
        close(socket);
    }
    exchange(&net, 0, 1);
    exchange(&net, 2, 0);
    tcp_net_end(&net);
}

static void garbage_is_turned_away(void **state) {
    (void)state;
    tcp_net net;
    tcp_net_start(&net, 2);
    for (uint64_t i = 0; i < NOISY; i++) {
        unsigned char garbage[sizeof(ls_tcp_answer)];
        ls_tcp_challenge challenge;
        const int socket = tcp_net_call(&net, 1);
        for (size_t k = 0; k < sizeof garbage; k++) {
            garbage[k] = (unsigned char)ls_random_below(3, i, k, 256);
        }
        tcp_net_tell(socket, garbage, sizeof garbage);
        assert_true(tcp_net_hear(&net, socket, &challenge, sizeof challenge));
        assert_true(is_refused(&net, socket));
        close(socket);
        if (i % 10 == 0) {
            exchange(&net, 0, 1);
        }
    }
    tcp_net_end(&net);
}

/* Who has a rank's place already, or had it, is not replaced. */
static void a_rank_gets_in_once(void **state) {
    (void)state;
    tcp_net net;
    tcp_net_start(&net, 2);
    exchange(&net, 0, 1);
    ls_tcp_challenge challenge;
    const int socket = tcp_net_call(&net, 0);
    assert_true(tcp_net_hear(&net, socket, &challenge, sizeof challenge));
    const ls_tcp_answer answer = tcp_net_answer(&net, 0, 1, &challenge);
    tcp_net_tell(socket, &answer, sizeof answer);
    assert_true(is_refused(&net, socket));
    close(socket);
    exchange(&net, 0, 1);
    tcp_net_end(&net);
}

/* Somebody else listens in place of a rank: it is gone, whatever they say, after some attempts. */
static void a_stranger_who_listens_is_no_rank(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        tcp_net net;
        int attempts = 0;
        tcp_net_listen(&net, 2);
        tcp_net_open(&net, 0);
        ls_transfer send = tcp_net_message(1, 0, 10, 0);
        assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
        TCP_NET_UNTIL(&net, tcp_net_is_gone(&net, 0, 1)) {
            const unsigned char garbage[100] = {1, 2, 3};
            ls_tcp_challenge challenge = {.greeting = LS_TCP_GREETING};
            const int socket = accept4(net.listeners[1], NULL, NULL, SOCK_CLOEXEC);
            if (socket >= 0) {
                attempts++;
                if (kind == 1) {
                    tcp_net_tell(socket, garbage, sizeof garbage);
                } else if (kind == 2) {
                    ls_tcp_answer answer;
                    tcp_net_tell(socket, &challenge, sizeof challenge);
                    assert_true(tcp_net_hear(&net, socket, &answer, sizeof answer));
                    tcp_net_tell(socket, garbage, LS_PROOF_SIZE);
                }
                close(socket);
            }
        }
        assert_true(attempts > 2);
        free(send.data);
        tcp_net_end(&net);
    }
}

/* ---- who is one ----------------------------------------------------------------------------------------------------
 */

/* The higher rank has answered on its own connection, so it yields where the lower one connects; that one goes on. */
static void who_has_answered_yields(void **state) {
    (void)state;
    tcp_net net;
    ls_tcp_challenge own, challenge;
    ls_tcp_answer answer;
    uint8_t proof[LS_PROOF_SIZE], expected[LS_PROOF_SIZE];
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 1);
    ls_transfer receive = tcp_net_room(0, 0, 10);
    assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
    const int first = tcp_net_challenge(&net, 0, &own, &answer);
    assert_int_equal(answer.rank, 1);

    const int second = tcp_net_call(&net, 1);
    assert_true(tcp_net_hear(&net, second, &challenge, sizeof challenge));
    const ls_tcp_answer crossing = tcp_net_answer(&net, 1, 0, &challenge);
    tcp_net_tell(second, &crossing, sizeof crossing);
    assert_true(tcp_net_hear(&net, second, proof, sizeof proof));
    ls_tcp_prove(&net.key, net.cards, "yields", 1, 0, challenge.nonce, crossing.nonce, expected);
    assert_memory_equal(proof, expected, sizeof proof);
    assert_true(is_refused(&net, second));

    ls_tcp_prove(&net.key, net.cards, "accepts", 0, 1, own.nonce, answer.nonce, proof);
    tcp_net_tell(first, proof, sizeof proof);
    tell_by_hand(&net, 1, 0, first);
    close(first);
    close(second);
    free(receive.data);
    tcp_net_end(&net);
}

/* Before it has answered it gives up its own attempt. */
static void who_has_not_answered_accepts(void **state) {
    (void)state;
    tcp_net net;
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 1);
    ls_transfer receive = tcp_net_room(0, 0, 10);
    assert_int_equal(tcp_net_receive(&net, 1, &receive), LS_OK);
    const int socket = tcp_net_enter(&net, 1, 0);
    tell_by_hand(&net, 1, 0, socket);
    close(socket);
    free(receive.data);
    tcp_net_end(&net);
}

/* The lower rank accepts even where it has answered. */
static void the_lower_rank_accepts(void **state) {
    (void)state;
    tcp_net net;
    ls_tcp_challenge own;
    ls_tcp_answer answer;
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    ls_transfer receive = tcp_net_room(1, 0, 10);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    const int first = tcp_net_challenge(&net, 1, &own, &answer);
    const int second = tcp_net_enter(&net, 0, 1);
    assert_true(is_refused(&net, first));
    tell_by_hand(&net, 0, 1, second);
    close(first);
    close(second);
    free(receive.data);
    tcp_net_end(&net);
}

/* Who was told that the other yields, or was cut off for want of room, tries again. */
static void who_is_put_off_comes_again(void **state) {
    (void)state;
    tcp_net net;
    ls_tcp_challenge challenge;
    ls_tcp_answer answer;
    uint8_t proof[LS_PROOF_SIZE];
    tcp_net_listen(&net, 2);
    tcp_net_open(&net, 0);
    ls_transfer receive = tcp_net_room(1, 0, 10);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    for (int attempt = 0; attempt < 6; attempt++) {
        const int socket = tcp_net_challenge(&net, 1, &challenge, &answer);
        if (attempt % 2 == 0) {
            ls_tcp_prove(&net.key, net.cards, "yields", 1, 0, challenge.nonce, answer.nonce, proof);
            tcp_net_tell(socket, proof, sizeof proof);
            assert_true(is_refused(&net, socket));
        }
        close(socket);
    }
    const int socket = tcp_net_challenge(&net, 1, &challenge, &answer);
    ls_tcp_prove(&net.key, net.cards, "accepts", 1, 0, challenge.nonce, answer.nonce, proof);
    tcp_net_tell(socket, proof, sizeof proof);
    tell_by_hand(&net, 0, 1, socket);
    close(socket);
    free(receive.data);
    tcp_net_end(&net);
}

/* ---- who is gone ---------------------------------------------------------------------------------------------------
 */

/* Rank 1 in a process of its own: receives what rank 0 sends, answers, and waits for more, which never comes. */
static const char *wait_for_ever(int number, const void *what) {
    tcp_net net = *(const tcp_net *)what;
    bool moved;
    (void)number;
    close(net.listeners[0]);
    net.listeners[0] = -1;
    tcp_net_open(&net, 1);
    ls_endpoint *end = net.ends[1];
    ls_transfer send = tcp_net_message(0, 0, 100, 3), receive = tcp_net_room(0, 0, 100);
    LS_MUST(tcp_net_receive(&net, 1, &receive) == LS_OK);
    for (bool told = false;; told = told || receive.ended) {
        LS_MUST(end->transport->progress(end, 1000000000, &moved) == LS_OK);
        LS_MUST(!tcp_net_is_gone(&net, 1, 0));
        if (receive.ended && !told) {
            LS_MUST(tcp_net_send(&net, 1, &send) == LS_OK);
        }
    }
}

/* Its last message can still be received. */
static void a_killed_rank_is_gone(void **state) {
    (void)state;
    tcp_net net;
    bool moved = false;
    tcp_net_listen(&net, 2);
    const pid_t process = process_start(wait_for_ever, 1, &net);
    close(net.listeners[1]);
    net.listeners[1] = -1;
    tcp_net_open(&net, 0);
    ls_endpoint *end = net.ends[0];
    ls_transfer send = tcp_net_message(1, 0, 100, 2), receive = tcp_net_room(1, 0, 100);
    ls_transfer more = tcp_net_room(1, 0, 100);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
    assert_int_equal(tcp_net_receive(&net, 0, &more), LS_OK);
    TCP_NET_UNTIL(&net, receive.ended) {
    }
    assert_true(tcp_net_holds(&receive, 3, 100));
    assert_false(tcp_net_is_gone(&net, 0, 1));
    kill(process, SIGKILL);
    assert_int_equal(process_wait(process), -SIGKILL);
    const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
    while (!moved && ls_clock_seconds() < limit) {
        assert_int_equal(end->transport->progress(end, 1000000000, &moved), LS_OK);
    }
    assert_true(moved && tcp_net_is_gone(&net, 0, 1));
    assert_false(more.ended);
    assert_int_equal(tcp_net_send(&net, 0, &send), LS_OK); /* no failure, and no end */
    assert_false(send.ended);
    tcp_net_withdraw(&net, 0, &more);
    tcp_net_withdraw(&net, 0, &send);
    free(send.data);
    free(receive.data);
    free(more.data);
    tcp_net_end(&net);
}

/* Nobody listens any more, or the listener ends while one waits for its challenge. */
static void a_rank_that_never_connected_is_gone(void **state) {
    (void)state;
    for (int later = 0; later < 2; later++) {
        tcp_net net;
        bool moved = false;
        tcp_net_listen(&net, 2);
        tcp_net_open(&net, 0);
        if (later == 0) {
            tcp_net_close(&net, 1);
        }
        ls_transfer receive = tcp_net_room(1, 0, 100);
        assert_int_equal(tcp_net_receive(&net, 0, &receive), LS_OK);
        tcp_net_close(&net, 1);
        const double limit = ls_clock_seconds() + TCP_NET_LONGEST;
        while (!moved && ls_clock_seconds() < limit) {
            ls_endpoint *end = net.ends[0];
            assert_int_equal(end->transport->progress(end, 1000000000, &moved), LS_OK);
        }
        assert_true(moved && tcp_net_is_gone(&net, 0, 1));
        free(receive.data);
        tcp_net_end(&net);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, note_descriptors, compare_descriptors)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(silent_strangers_keep_nobody_out),
        TEST(silence_ends),
        TEST(wrong_answers_are_turned_away),
        TEST(garbage_is_turned_away),
        TEST(a_rank_gets_in_once),
        TEST(a_stranger_who_listens_is_no_rank),
        TEST(who_has_answered_yields),
        TEST(who_has_not_answered_accepts),
        TEST(the_lower_rank_accepts),
        TEST(who_is_put_off_comes_again),
        TEST(a_killed_rank_is_gone),
        TEST(a_rank_that_never_connected_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
