/*
 * Where the samples of a data-parallel module are, noted in ls_tensor.spread by every operation on tensors that have
 * them: along which axis they lie, or that an operation has combined those of this rank. samples.h has the rules. Notes
 * begin with the first input of the module. They pass through tensors that nothing is recorded of (ls_no_grad,
 * ls_detach), and go on after the module.
 *
 * Inside the module a combination is an error only if it reaches an output: a model may keep statistics that no output
 * depends on. After the module, the trace of the loss (samples.c) finds what is recorded; the notes find constants.
 */
#ifndef LS_AUTOGRAD_MIXING_H
#define LS_AUTOGRAD_MIXING_H

#include "autograd/op.h"

/* Begins a run of the model on `samples` samples, which the first axis of `input` counts. Returns what was noted of the
 * input before. */
uint32_t ls_mixing_begin(ls_tensor *input, int64_t samples);

/* Ends the run: the input has its earlier note again. */
void ls_mixing_end(ls_tensor *input, uint32_t before);

/* Notes where the samples are in the output of a finished call, which has inputs with notes. */
void ls_mixing_follow(const ls_op_call *call);

/* LS_ERR_UNSUPPORTED if the output of the module is made of samples of this rank that an operation has combined. One
 * number that is their sum or mean is allowed. The first axis of other outputs counts the samples. */
ls_status ls_mixing_check(ls_tensor *output);

#endif
