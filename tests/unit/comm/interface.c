/*
 * The local address of data connections: requests for existing and for missing interfaces, and the default address.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/interface.h"
#include "comm/store_socket.h"

TEST(test_wishes) {
    char address[LS_ADDRESS_CAPACITY];
    assert_int_equal(ls_interface_address("lo", -1, false, address), LS_OK);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(ls_interface_address("127.0.0.1", -1, false, address), LS_OK);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(ls_interface_address("nosuch0", -1, true, address), LS_ERR_ARGUMENT);
    expect_message("'nosuch0' is neither");
    expect_message("lo (127.0.0.1)");
    assert_int_equal(ls_interface_address("192.0.2.77", -1, true, address), LS_ERR_ARGUMENT);
}

TEST(test_no_wish) {
    char address[LS_ADDRESS_CAPACITY], text[LS_ADDRESS_CAPACITY];
    int listener, connection;
    bool retry;
    ls_address there = {.host = "127.0.0.1"};
    assert_int_equal(ls_socket_listen(&there, true, &listener), LS_OK);
    there.port = ls_socket_port(listener);
    assert_int_equal(ls_socket_connect(&there, true, ls_deadline_after(5), &connection, &retry), LS_OK);
    assert_int_equal(ls_interface_address(NULL, connection, true, address), LS_OK);
    assert_string_equal(address, "127.0.0.1");
    /* Loopback is not reachable from other machines, so an external address is used if there is one. */
    const ls_address all = {.host = "0.0.0.0"};
    int everywhere;
    assert_int_equal(ls_socket_listen(&all, true, &everywhere), LS_OK); /* nor is this socket's address */
    const ls_status with_all = ls_interface_address(NULL, everywhere, false, address);
    close(everywhere);
    const ls_status with = ls_interface_address(NULL, connection, false, address);
    const ls_status without = ls_interface_address(NULL, -1, false, text);
    assert_int_equal(with, without);
    assert_int_equal(with_all, without);
    if (with == LS_OK) {
        assert_string_equal(address, text);
        assert_int_not_equal(strncmp(address, "127.", 4), 0);
    } else {
        assert_int_equal(with, LS_ERR_IO);
    }
    close(connection);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wishes), cmocka_unit_test(test_no_wish)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
