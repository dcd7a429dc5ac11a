/*
 * Loads weights that were saved from a model of a different width.
 *
 * ranks: 1
 * says: ls_module_load: .*0\.weight.*\[16, 4\].*\[8, 4\]|ls_module_load: .*0\.weight.*\[8, 4\].*\[16, 4\]
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *saved = ls_sequential(ls_nn_linear(4, 8));
    ls_module *model = ls_sequential(ls_nn_linear(4, 16));
    ls_status status = ls_module_save(saved, "weights.safetensors", NULL);
    if (status == LS_OK) {
        status = ls_module_load(model, "weights.safetensors");
    }
    ls_module_free(saved);
    ls_module_free(model);
    return ended(status);
}
