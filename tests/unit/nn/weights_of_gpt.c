/*
 * PyTorch's weights for the model of examples/gpt.c: they are loaded under its names, and the results are PyTorch's.
 * Files and script: tests/fixtures/make_examples.py.
 *
 * devices: cpu
 */
#define main gpt_main
#include "examples/gpt.c"
#undef main

#include "tests/support/unit.h"

#include "tests/support/weights.h"

TEST(test_it_computes_what_pytorch_does) {
    layers = 2;
    heads = 2;
    width = 8;
    context = 12;
    learned = true;
    check_weights(build_model(), "gpt", 30, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_computes_what_pytorch_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
