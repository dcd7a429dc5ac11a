/*
 * Transformer blocks with weights from PyTorch and GPT-2: both norm orders, all activations, all masks, and gradients.
 * Files and script: tests/fixtures/make_transformer.py.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>
#include <lockstep/nn.h>

enum { WIDTH = 8, HEADS = 2, HIDDEN = 12 };

static const ls_tensor *value(const ls_safetensors *values, const char *name) {
    const ls_tensor *found = ls_safetensors_find(values, name);
    if (found == NULL) {
        fail_msg("the fixture has no %s", name);
    }
    return found;
}

static ls_tensor *on_device(const ls_safetensors *values, const char *name) {
    return ls_tensor_to_device((ls_tensor *)value(values, name), ls_default_device());
}

static void expect_close(const ls_tensor *is, const ls_safetensors *values, const char *name) {
    if (is == NULL || !ls_allclose(is, value(values, name), 2e-5, 2e-6)) {
        fail_msg("%s is not PyTorch's", name);
    }
}

/* "none", "floats" or "bools". */
static void check_masks(ls_module *block, const ls_safetensors *values, const char *block_name, const char *kind) {
    char name[96];
    ls_scope *scope = ls_scope_begin();
    const bool masked = strcmp(kind, "none") != 0, bools = strcmp(kind, "bools") == 0;
    ls_tensor *keys = masked ? ls_to(on_device(values, "keys"), LS_BOOL) : NULL;
    ls_tensor *mask = bools ? ls_to(on_device(values, "seen"), LS_BOOL) : masked ? on_device(values, "floats") : NULL;
    ls_tensor *y = NULL;
    ls_tensor *const inputs[] = {on_device(values, "x"), keys, mask};
    assert_int_equal(ls_forward_many(block, inputs, 3, &y, 1), LS_OK);
    snprintf(name, sizeof name, "%s.%s", block_name, kind);
    expect_close(y, values, name);
    if (masked && !bools) {
        ls_module_zero_grad(block);
        assert_int_equal(ls_backward(ls_mean(ls_square(y))), LS_OK);
        for (int i = 0; i < ls_module_parameter_count(block); i++) {
            snprintf(name, sizeof name, "%s.%s.%s", block_name, kind, ls_module_parameter_name(block, i));
            expect_close(ls_grad(ls_module_parameter(block, i)), values, name);
        }
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_encoder_layers_compute_what_pytorch_does) {
    ls_safetensors *values = ls_safetensors_load(LS_FIXTURES "/pytorch_encoder_layer_values.safetensors");
    assert_non_null(values);
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"post.relu", "post.gelu", "pre.relu", "pre.gelu"};
        static const char *const kinds[] = {"none", "floats", "bools"};
        const ls_transformer_options options = {
            .norm_first = i >= 2, .activation = i % 2 == 0 ? LS_MLP_RELU : LS_MLP_GELU, .hidden = HIDDEN};
        ls_module *block = ls_nn_transformer_block(WIDTH, HEADS, &options);
        assert_int_equal(ls_module_load(block, LS_FIXTURES "/pytorch_encoder_layer.safetensors"), LS_OK);
        for (int k = 0; k < 3; k++) {
            check_masks(block, values, names[i], kinds[k]);
        }
        ls_module_free(block);
    }
    assert_null(ls_nn_transformer_block(WIDTH, HEADS, &(ls_transformer_options){.hidden = -1}));
    expect_message("ls_nn_transformer_block: .hidden is -1");
    assert_null(ls_nn_transformer_block(WIDTH, HEADS, &(ls_transformer_options){.dropout = 2}));
    expect_message(".dropout is 2, but must be from 0 to 1");
    /* PyTorch's defaults are the same. */
    ls_module *block = ls_nn_transformer_block(WIDTH, HEADS, &(ls_transformer_options){.hidden = HIDDEN});
    assert_int_equal(ls_module_load(block, LS_FIXTURES "/pytorch_encoder_layer.safetensors"), LS_OK);
    check_masks(block, values, "post.relu", "floats");
    ls_module_free(block);
    ls_safetensors_free(values);
}

/* Weights of Conv1D are [in, out]. */
static void load_gpt2(ls_module *block, const ls_safetensors *file) {
    static const struct {
        const char *own, *gpt2;
    } names[] = {{"norm1.", "ln_1."},
                 {"self_attn.in_proj_", "attn.c_attn."},
                 {"self_attn.out_proj.", "attn.c_proj."},
                 {"norm2.", "ln_2."},
                 {"linear1.", "mlp.c_fc."},
                 {"linear2.", "mlp.c_proj."}};
    for (int i = 0; i < 12; i++) {
        char own[64], gpt2[64];
        const char *end = i % 2 == 0 ? "weight" : "bias";
        snprintf(own, sizeof own, "%s%s", names[i / 2].own, end);
        snprintf(gpt2, sizeof gpt2, "h.0.%s%s", names[i / 2].gpt2, end);
        ls_tensor *from = (ls_tensor *)value(file, gpt2);
        from = ls_ndim(from) == 2 ? ls_transpose(from, 0, 1) : from;
        assert_int_equal(ls_copy_into(ls_module_find(block, own), from), LS_OK);
    }
}

TEST(test_a_block_of_gpt2_computes_what_it_does) {
    ls_safetensors *file = ls_safetensors_load(LS_FIXTURES "/pytorch_gpt2_block.safetensors");
    assert_non_null(file);
    ls_module *block = ls_nn_transformer_block(
        WIDTH, HEADS,
        &(ls_transformer_options){.norm_first = true, .activation = LS_MLP_GELU_TANH, .attention = {.causal = true}});
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    load_gpt2(block, file);
    expect_close(ls_forward(block, on_device(file, "x")), file, "y");
    (void)ls_no_grad(before);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(block);
    ls_safetensors_free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_encoder_layers_compute_what_pytorch_does),
                                       cmocka_unit_test(test_a_block_of_gpt2_computes_what_it_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
