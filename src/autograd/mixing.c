#include "autograd/mixing.h"

#include "autograd/mixing_note.h"
#include "autograd/samples.h"

/* Kinds of inputs of a call. */
enum { SAMPLES = 1, SUMS = 2, MIXTURES = 4 };

uint32_t ls_mixing_begin(ls_tensor *input, int64_t samples) {
    const uint32_t before = input->spread;
    ls_thread_present->single_sample = samples == 1;
    if (input->ndim > 0) {
        input->spread = LS_SPREAD_FIRST;
    }
    return before;
}

void ls_mixing_end(ls_tensor *input, uint32_t before) {
    input->spread = before;
}

static uint8_t spread_of(const ls_tensor *tensor) {
    return tensor != NULL ? ls_mixing_kind(tensor->spread) : (uint8_t)LS_SPREAD_NONE;
}

/* With one sample, the axis of the samples is indistinguishable from an axis of size 1 that a reshape has put before
 * it. */
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
        return ls_mixing_note(LS_MIXING_SUMMED, call->op, axis);
    case LS_SAMPLES_MIXED:
        return ls_mixing_note(LS_MIXING_MIXED, call->op, axis);
    default:
        return LS_SPREAD_OTHER;
    }
}

/* A sum stays a sum if the call is linear in it and no other input has samples. */
static uint32_t follow_sums(const ls_samples_call *call, unsigned kinds) {
    uint32_t combined = 0;
    bool linear = kinds == SUMS;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t kind = spread_of(call->inputs[i]);
        if (kind >= LS_MIXING_SUMMED) {
            combined = kind > ls_mixing_kind(combined) ? call->inputs[i]->spread : combined;
            linear = linear && ls_samples_linear_in(call, i);
        }
    }
    return linear ? combined : (combined & ~UINT32_C(0xFF)) | LS_MIXING_MIXED;
}

void ls_mixing_follow(const ls_op_call *call) {
    unsigned kinds = 0;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t spread = spread_of(call->inputs[i]);
        kinds |= spread == LS_SPREAD_NONE     ? 0U
                 : spread == LS_MIXING_MIXED  ? MIXTURES
                 : spread == LS_MIXING_SUMMED ? SUMS
                                              : SAMPLES;
    }
    /* A collective result is the same on all ranks, unless the operation has a rule for samples. */
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
                               .single = ls_thread_present->single_sample};
    call->output->spread = kinds == SAMPLES ? follow_samples(&samples) : follow_sums(&samples, kinds);
}

ls_status ls_mixing_check(ls_tensor *output) {
    const uint8_t kind = ls_mixing_kind(output->spread);
    if (kind == LS_MIXING_MIXED || (kind == LS_MIXING_SUMMED && output->count != 1)) {
        return ls_samples_refuse("ls_data_parallel", ls_mixing_operation(output), ls_mixing_axis(output->spread));
    }
    if (output->ndim > 0 && (kind == LS_SPREAD_NONE || kind == LS_SPREAD_OTHER)) {
        output->spread = LS_SPREAD_FIRST;
    }
    return LS_OK;
}
