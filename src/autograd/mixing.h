/*
 * Positions of the samples of a data-parallel module. Every operation on tensors with samples notes in ls_tensor.spread
 * along which axis they lie, or that the operation has combined the samples of this rank. samples.h states the rules.
 * Notes begin with the first input of the module. They also pass through tensors that are not recorded (ls_no_grad,
 * ls_detach), and continue after the module.
 *
 * Inside the module, a combination is an error only if it reaches an output: a model may keep statistics on which no
 * output depends. After the module, the trace of the loss (samples.c) covers recorded operations; the notes cover
 * constants.
 */
#ifndef LS_AUTOGRAD_MIXING_H
#define LS_AUTOGRAD_MIXING_H

#include "autograd/op.h"

/*
 * Begins a run of the model on `samples` samples, which lie along the first axis of `input`. Returns the input's
 * previous note.
 */
uint32_t ls_mixing_begin(ls_tensor *input, int64_t samples);

/* Ends the run: restores the input's previous note. */
void ls_mixing_end(ls_tensor *input, uint32_t before);

/* Notes the position of the samples in the output of a finished call whose inputs have notes. */
void ls_mixing_follow(const ls_op_call *call);

/*
 * Fails with LS_ERR_UNSUPPORTED if an operation has combined samples of this rank, and the module's output depends on
 * the result. A single number that is the samples' sum or mean is allowed. In other outputs, the samples lie along the
 * first axis.
 */
ls_status ls_mixing_check(ls_tensor *output);

#endif
