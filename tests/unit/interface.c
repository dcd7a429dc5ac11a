/* Which own address data connections use: wishes that are there and that are not, and what is found without one. */
#include "tests/support/unit.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/interface.h"
#include "comm/store_socket.h"

static void test_wishes(void **state) {
    (void)state;
    char address[LS_ADDRESS_CAPACITY];
    assert_int_equal(ls_interface_address("lo", -1, false, address), LS_OK);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(ls_interface_address("127.0.0.1", -1, false, address), LS_OK);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(ls_interface_address("nosuch0", -1, true, address), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_message(), "'nosuch0' is neither"));
    assert_non_null(strstr(ls_error_message(), "lo (127.0.0.1)"));
    assert_int_equal(ls_interface_address("192.0.2.77", -1, true, address), LS_ERR_ARGUMENT);
}

static void test_no_wish(void **state) {
    (void)state;
    char address[LS_ADDRESS_CAPACITY], text[LS_ADDRESS_CAPACITY];
    int listener, connection;
    const ls_address any = {.host = "127.0.0.1"};
    assert_int_equal(ls_socket_listen(&any, true, &listener), LS_OK);
    assert_int_equal(ls_socket_connect_to_listener(listener, ls_deadline_after(5), &connection), LS_OK);
    assert_int_equal(ls_interface_address(NULL, connection, true, address), LS_OK);
    assert_string_equal(address, "127.0.0.1");
    /* Loopback is no address for other machines: what leads out is, where anything does. */
    const ls_status with = ls_interface_address(NULL, connection, false, address);
    const ls_status without = ls_interface_address(NULL, -1, false, text);
    assert_int_equal(with, without);
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
