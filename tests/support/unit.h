/* Included by every cmocka program. cmocka.h needs these headers before it. */
#ifndef LS_TESTS_SUPPORT_UNIT_H
#define LS_TESTS_SUPPORT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <lockstep/tensor.h>

#include "tests/support/sanitized.h"

/* Skips the test if the environment variable LOCKSTEP_TEST_SKIP, a list of names between spaces, contains its name. */
static inline void skip_if_listed(const char *name) {
    const char *list = getenv("LOCKSTEP_TEST_SKIP");
    const size_t length = strlen(name);
    for (const char *at = list; at != NULL && (at = strstr(at, name)) != NULL; at += length) {
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            skip();
        }
    }
}

/* Defines a test: TEST(test_name) { ... }. */
#define TEST(name)                                                                                                     \
    static void name##_body(void);                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        skip_if_listed(#name);                                                                                         \
        name##_body();                                                                                                 \
    }                                                                                                                  \
    static void name##_body(void)

/* Defines a test whose body runs in a new scope. The test fails if the scope ends with an error. */
#define SCOPED_TEST(name)                                                                                              \
    static void name##_body(void);                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        skip_if_listed(#name);                                                                                         \
        ls_scope *scope_of_test = ls_scope_begin();                                                                    \
        name##_body();                                                                                                 \
        assert_int_equal(ls_scope_end(scope_of_test), LS_OK);                                                          \
    }                                                                                                                  \
    static void name##_body(void)

/* Fails the test, at the line of the caller, unless the last error message of this thread contains `part`. */
#define expect_message(part) expect_message_at((part), __FILE__, __LINE__)
static inline void expect_message_at(const char *part, const char *test, int line) {
    if (strstr(ls_error_message(), part) == NULL) {
        print_error("the error message \"%s\" does not contain \"%s\"\n", ls_error_message(), part);
        _fail(test, line);
    }
}

/* Fails the test, at the line of the caller, unless `status` is `expected` and the last error message contains `part`.
 */
#define expect_error(status, expected, part) expect_error_at((status), (expected), (part), __FILE__, __LINE__)
static inline void expect_error_at(ls_status status, ls_status expected, const char *part, const char *test, int line) {
    if (status != expected) {
        print_error("%s (\"%s\") instead of %s\n", ls_status_name(status), ls_error_message(),
                    ls_status_name(expected));
        _fail(test, line);
    }
    expect_message_at(part, test, line);
}

#endif
