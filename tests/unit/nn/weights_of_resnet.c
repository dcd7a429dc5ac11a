/*
 * PyTorch's weights for the model of examples/resnet.c: they are loaded under torchvision's names, and the results are
 * PyTorch's. Files and script: tests/fixtures/make_examples.py.
 *
 * devices: cpu
 */
#define main resnet_main
#include "examples/resnet.c"
#undef main

#include "tests/support/unit.h"

#include "tests/support/weights.h"

TEST(test_it_computes_what_pytorch_does) {
    depth = 2;
    width = 3;
    check_weights(build_model(), "resnet", 47, 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_computes_what_pytorch_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
