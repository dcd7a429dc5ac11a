#include "autograd/mixing.h"

#include "autograd/ops/ops.h"
#include "autograd/samples.h"

/*
 * ls_tensor.spread. The lowest byte is the kind: one of samples.h, or that an operation has combined samples. The note
 * of a combination also has the axis of the samples and the operation, as its place in the families of operations. It
 * thus means the same on every thread.
 *
 *     bits 0-7: kind; 8-15: axis + 1, 0: sums were combined; 16-23: row in the family; 24-31: family + 1, 0: unknown
 */
enum { SUMMED = LS_SPREAD_COMBINED, MIXED };
_Static_assert((int)LS_SPREAD_SUM <= (int)SUMMED, "the kinds are different");

static _Thread_local bool single; /* the rank has one sample in the present run */

static uint8_t kind_of(uint32_t note) {
    return (uint8_t)note;
}

static uint32_t note_combination(uint8_t kind, const ls_op *op, int axis) {
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

static const char *operation_of(uint32_t note) {
    const uint32_t family = note >> 24, row = note >> 16 & 0xFF;
    return family > 0 ? ls_op_families[family - 1][row]->name : "an operation";
}

static int axis_of(uint32_t note) {
    return (int)(note >> 8 & 0xFF) - 1;
}

/* What the inputs of a call are. */
enum { SAMPLES = 1, SUMS = 2, MIXTURES = 4 };

uint32_t ls_mixing_begin(ls_tensor *input, int64_t samples) {
    const uint32_t before = input->spread;
    single = samples == 1;
    if (input->ndim > 0) {
        input->spread = LS_SPREAD_FIRST;
    }
    return before;
}

void ls_mixing_end(ls_tensor *input, uint32_t before) {
    input->spread = before;
}

static uint8_t spread_of(const ls_tensor *tensor) {
    return tensor != NULL ? kind_of(tensor->spread) : (uint8_t)LS_SPREAD_NONE;
}

/* With one sample, an axis that counts it and an axis that a reshape has put before it look the same. */
static bool is_ambiguous(const ls_samples_call *call, uint8_t spread) {
    const ls_tensor *output = call->output;
    return call->single && spread == LS_SPREAD_FIRST && output->ndim > 1 && output->size[0] == 1 &&
           output->size[1] == 1;
}

static uint32_t follow_samples(ls_samples_call *call) {
    uint8_t spread = LS_SPREAD_NONE;
    const int axis = ls_first_sample_axis(call);
    switch (ls_samples_follow(call, &spread)) {
    case LS_SAMPLES_KEPT:
        return is_ambiguous(call, spread) ? LS_SPREAD_OTHER : spread;
    case LS_SAMPLES_SUMMED:
        return note_combination(SUMMED, call->op, axis);
    case LS_SAMPLES_MIXED:
        return note_combination(MIXED, call->op, axis);
    default:
        return LS_SPREAD_OTHER;
    }
}

/* A sum stays a sum if the call is linear in it, and has no samples of its own. */
static uint32_t follow_sums(const ls_samples_call *call, unsigned kinds) {
    uint32_t combined = 0;
    bool linear = kinds == SUMS;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t kind = spread_of(call->inputs[i]);
        if (kind >= SUMMED) {
            combined = kind > kind_of(combined) ? call->inputs[i]->spread : combined;
            linear = linear && ls_samples_linear_in(call, i);
        }
    }
    return linear ? combined : (combined & ~UINT32_C(0xFF)) | MIXED;
}

void ls_mixing_follow(const ls_op_call *call) {
    unsigned kinds = 0;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t spread = spread_of(call->inputs[i]);
        kinds |= spread == LS_SPREAD_NONE ? 0U : spread == MIXED ? MIXTURES : spread == SUMMED ? SUMS : SAMPLES;
    }
    /* The ranks get the same from what they exchange, unless the operation says where the samples are. */
    if (kinds == 0 || (call->op->communicates && call->op->over_samples == NULL)) {
        return;
    }
    static const ls_op_parameters none;
    ls_samples_call samples = {.op = call->op,
                               .inputs = call->inputs,
                               .input_count = call->input_count,
                               .output = call->output,
                               .parameters = call->parameters != NULL ? call->parameters : &none,
                               .saved = call->saved,
                               .spread_of = spread_of,
                               .single = single};
    call->output->spread = kinds == SAMPLES ? follow_samples(&samples) : follow_sums(&samples, kinds);
}

ls_status ls_mixing_check(ls_tensor *output) {
    const uint8_t kind = kind_of(output->spread);
    if (kind == MIXED || (kind == SUMMED && output->count != 1)) {
        return ls_samples_refuse("ls_data_parallel", operation_of(output->spread), axis_of(output->spread));
    }
    if (output->ndim > 0 && (kind == LS_SPREAD_NONE || kind == LS_SPREAD_OTHER)) {
        output->spread = LS_SPREAD_FIRST;
    }
    return LS_OK;
}

const char *ls_mixing_operation(const ls_tensor *tensor) {
    return kind_of(tensor->spread) >= SUMMED ? operation_of(tensor->spread) : NULL;
}
