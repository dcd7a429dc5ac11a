#include "autograd/mixing_note.h"

#include "autograd/ops/ops.h"
#include "autograd/samples.h"

_Static_assert((int)LS_SPREAD_SUM <= (int)LS_MIXING_SUMMED, "the kinds are different");

uint32_t ls_mixing_note(uint8_t kind, const ls_op *op, int axis) {
    const uint32_t note = kind | (uint32_t)(axis + 1) << 8;
    for (uint32_t family = 0; ls_op_families[family] != NULL; family++) {
        for (uint32_t row = 0; ls_op_families[family][row] != NULL; row++) {
            if (ls_op_families[family][row] == op) {
                return note | row << 16 | (family + 1) << 24;
            }
        }
    }
    return note;
}

const char *ls_mixing_operation(const ls_tensor *tensor) {
    const uint32_t note = tensor->spread;
    if (ls_mixing_kind(note) < LS_MIXING_SUMMED) {
        return NULL;
    }
    const uint32_t family = note >> 24, row = note >> 16 & 0xFF;
    return family > 0 ? ls_op_families[family - 1][row]->name : "an operation";
}
