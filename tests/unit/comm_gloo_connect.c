/*
 * Whom backend gloo waits for while the ranks of a split connect: a rank whose connection in the parent communicator is
 * closed is gone, whatever lies in that unread, and one whose connection is open is waited for. Without libgloo.
 */
#include "tests/support/unit.h"

#include <sys/socket.h>

#include "comm/backend/gloo/connect.c" /* the backend is a module, not a part of the library */

#define LONG_TIMEOUT 60.0 /* a timeout that no test waits for */
#define HURRIED      0.1  /* one that a test waits for */

/* Rank 0 of two waits for rank 1, which never connects. `watched` is the connection to it in the
 * parent. */
static ls_status wait_for_rank_1(int watched, double timeout, ls_gloo_card *card) {
    const ls_join join = {.rank = 0, .size = 2, .address = "127.0.0.1", .timeout = timeout};
    int sockets[2], listener = -1;
    assert_int_equal(ls_gloo_listen(&join, &card[0], &listener), LS_OK);
    ls_gloo_mesh mesh = {
        .join = &join, .cards = card, .watched = (const int[]){-1, watched}, .listener = listener, .sockets = sockets};
    const ls_status status = ls_gloo_meet(&mesh);
    assert_int_equal(mesh.culprit, 1);
    close(listener);
    return status;
}

static void a_rank_whose_connection_is_closed_is_gone(void **state) {
    (void)state;
    ls_gloo_card cards[2] = {{0}};
    for (int unread = 0; unread < 2; unread++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        assert_true(unread == 0 || send(ends[1], "unread", 6, 0) == 6);
        close(ends[1]);
        assert_int_equal(wait_for_rank_1(ends[0], LONG_TIMEOUT, cards), LS_ERR_PEER);
        assert_string_equal(ls_error_message(), "ls_comm_open: rank 1 is gone");
        close(ends[0]);
    }
    assert_int_equal(wait_for_rank_1(-1, LONG_TIMEOUT, cards), LS_ERR_PEER); /* the parent has none to it any more */
    assert_string_equal(ls_error_message(), "ls_comm_open: rank 1 is gone");
}

static void a_rank_whose_connection_is_open_is_waited_for(void **state) {
    (void)state;
    ls_gloo_card cards[2] = {{0}};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(send(ends[1], "unread", 6, 0), 6);
    assert_int_equal(wait_for_rank_1(ends[0], HURRIED, cards), LS_ERR_TIMEOUT);
    assert_string_equal(ls_error_message(), "ls_comm_open: rank 1 did not connect within 0.1 s");
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_whose_connection_is_closed_is_gone),
        cmocka_unit_test(a_rank_whose_connection_is_open_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
