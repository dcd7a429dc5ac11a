/*
 * base: fibers run in turn, keep their variables, and may be nested.
 *
 * devices: cpu
 */
#include "base/fiber.h"

#include <string.h>

#include "tests/support/unit.h"

typedef struct traveller {
    char *path; /* shared by all */
    char mark;
    int stops;
} traveller;

static void note(const traveller *self, char mark) {
    self->path[strlen(self->path)] = mark;
}

static void travel(void *user) {
    traveller *self = user;
    volatile char kept[4096]; /* on the stack of the fiber */
    memset((char *)kept, self->mark, sizeof kept);
    for (int i = 0; i < self->stops; i++) {
        note(self, kept[i]);
        ls_fiber_suspend();
    }
    note(self, kept[4095]);
}

TEST(test_fibers_run_in_turns) {
    char path[32] = "";
    traveller a = {path, 'a', 2}, b = {path, 'b', 3};
    ls_fiber *first = ls_fiber_new(travel, &a), *second = ls_fiber_new(travel, &b);
    assert_non_null(first);
    assert_non_null(second);
    bool more[2] = {true, true};
    while (more[0] || more[1]) {
        more[0] = more[0] && ls_fiber_resume(first);
        more[1] = more[1] && ls_fiber_resume(second);
    }
    assert_string_equal(path, "abababb");
    ls_fiber_free(first);
    ls_fiber_free(second);
}

static void host(void *user) {
    traveller *self = user;
    ls_fiber *guest = ls_fiber_new(travel, &(traveller){self->path, 'g', 1});
    note(self, 'h');
    assert_true(ls_fiber_resume(guest));
    ls_fiber_suspend();
    assert_false(ls_fiber_resume(guest));
    note(self, 'h');
    ls_fiber_free(guest);
}

TEST(test_a_fiber_may_run_another) {
    char path[32] = "";
    traveller a = {path, 'a', 0};
    ls_fiber *fiber = ls_fiber_new(host, &a);
    assert_true(ls_fiber_resume(fiber));
    note(&a, '|');
    assert_false(ls_fiber_resume(fiber));
    assert_string_equal(path, "hg|gh");
    ls_fiber_free(fiber);
}

TEST(test_a_fiber_that_never_ran_is_freed) {
    ls_fiber_free(ls_fiber_new(travel, NULL));
    ls_fiber_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fibers_run_in_turns),
        cmocka_unit_test(test_a_fiber_may_run_another),
        cmocka_unit_test(test_a_fiber_that_never_ran_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
