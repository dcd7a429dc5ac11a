#include "autograd/mixing.h"

#include <string.h>

#include "autograd/samples.h"

/* ls_tensor.spread, apart from those of samples.h: + i: operation i of the list has combined the samples. */
enum { LIMIT = 64, SUMMED = LS_SPREAD_COMBINED, MIXED = SUMMED + LIMIT };
_Static_assert((int)LS_SPREAD_SUM <= (int)SUMMED && MIXED + LIMIT <= UINT8_MAX + 1, "the notes are different");

/* The operations that have combined samples on this thread, each with the axis of the samples, -1: they were sums. */
typedef struct combination {
    const char *name;
    int axis;
} combination;

static _Thread_local struct {
    combination list[LIMIT];
    int count;
    bool single; /* the rank has one sample */
} present;

/* What the inputs of a call are. */
enum { SAMPLES = 1, SUMS = 2, MIXTURES = 4 };

uint8_t ls_mixing_begin(ls_tensor *input, int64_t samples) {
    const uint8_t before = input->spread;
    present.single = samples == 1;
    if (input->ndim > 0) {
        input->spread = LS_SPREAD_FIRST;
    }
    return before;
}

void ls_mixing_end(ls_tensor *input, uint8_t before) {
    input->spread = before;
}

static uint8_t spread_of(const ls_tensor *tensor) {
    return tensor != NULL ? tensor->spread : LS_SPREAD_NONE;
}

/* The index of the operation in the list; the last one if the list is full. */
static int note_operation(const char *name, int axis) {
    int i = 0;
    while (i < present.count && (present.list[i].axis != axis || strcmp(present.list[i].name, name) != 0)) {
        i++;
    }
    if (i == LIMIT) {
        return i - 1;
    }
    present.list[i] = (combination){.name = name, .axis = axis};
    present.count += i == present.count;
    return i;
}

/* With one sample, an axis that counts it and an axis that a reshape has put before it look the same. */
static bool is_ambiguous(const ls_samples_call *call, uint8_t spread) {
    const ls_tensor *output = call->output;
    return call->single && spread == LS_SPREAD_FIRST && output->ndim > 1 && output->size[0] == 1 &&
           output->size[1] == 1;
}

static uint8_t follow_samples(ls_samples_call *call) {
    uint8_t spread = LS_SPREAD_NONE;
    const int axis = ls_first_sample_axis(call);
    switch (ls_samples_follow(call, &spread)) {
    case LS_SAMPLES_KEPT:
        return is_ambiguous(call, spread) ? LS_SPREAD_OTHER : spread;
    case LS_SAMPLES_SUMMED:
        return (uint8_t)(SUMMED + note_operation(call->op->name, axis));
    case LS_SAMPLES_MIXED:
        return (uint8_t)(MIXED + note_operation(call->op->name, axis));
    default:
        return LS_SPREAD_OTHER;
    }
}

/* A sum stays a sum if the call is linear in it, and has no samples of its own. */
static uint8_t follow_sums(const ls_samples_call *call, unsigned kinds) {
    uint8_t combined = 0;
    bool linear = kinds == SUMS;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t spread = spread_of(call->inputs[i]);
        if (spread >= SUMMED) {
            combined = spread > combined ? spread : combined;
            linear = linear && ls_samples_linear_in(call, i);
        }
    }
    return (uint8_t)(linear || combined >= MIXED ? combined : MIXED + (combined - SUMMED));
}

void ls_mixing_follow(const ls_op_call *call) {
    unsigned kinds = 0;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t spread = spread_of(call->inputs[i]);
        kinds |= spread == LS_SPREAD_NONE ? 0U : spread >= MIXED ? MIXTURES : spread >= SUMMED ? SUMS : SAMPLES;
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
                               .single = present.single};
    call->output->spread = kinds == SAMPLES ? follow_samples(&samples) : follow_sums(&samples, kinds);
}

static const combination *combination_of(const ls_tensor *tensor) {
    const uint8_t spread = tensor->spread;
    return spread < SUMMED ? NULL : &present.list[spread - (spread < MIXED ? SUMMED : MIXED)];
}

ls_status ls_mixing_check(ls_tensor *output) {
    const combination *combined = combination_of(output);
    if (combined != NULL && (output->spread >= MIXED || output->count != 1)) {
        return ls_samples_refuse("ls_data_parallel", combined->name, combined->axis);
    }
    if (combined == NULL && output->ndim > 0 &&
        (output->spread == LS_SPREAD_NONE || output->spread == LS_SPREAD_OTHER)) {
        output->spread = LS_SPREAD_FIRST;
    }
    return LS_OK;
}

const char *ls_mixing_operation(const ls_tensor *tensor) {
    const combination *combined = combination_of(tensor);
    return combined != NULL ? combined->name : NULL;
}
