/* Notes in ls_tensor.spread that an operation has combined samples of this rank. */
#ifndef LS_AUTOGRAD_MIXING_NOTE_H
#define LS_AUTOGRAD_MIXING_NOTE_H

#include "autograd/op.h"

/*
 * Layout of ls_tensor.spread. The lowest byte is the kind: a value from samples.h, or that an operation has combined
 * samples. A note of a combination also contains the axis of the samples and the operation, as its index in the
 * families of operations. So a note has the same meaning on every thread.
 *
 *     bits 0-7: kind; 8-15: axis + 1, 0: sums were combined; 16-23: row in the family; 24-31: family + 1, 0: unknown
 */
enum { LS_MIXING_SUMMED = LS_SPREAD_COMBINED, LS_MIXING_MIXED };

static inline uint8_t ls_mixing_kind(uint32_t note) {
    return (uint8_t)note;
}

static inline int ls_mixing_axis(uint32_t note) {
    return (int)(note >> 8 & 0xFF) - 1;
}

/* Returns the note for a combination, by `op`, of samples along `axis`. */
uint32_t ls_mixing_note(uint8_t kind, const ls_op *op, int axis);

/*
 * Returns the name, a string constant, of the operation that has combined samples of this rank into the tensor, or NULL
 * if there is no such operation.
 */
const char *ls_mixing_operation(const ls_tensor *tensor);

#endif
