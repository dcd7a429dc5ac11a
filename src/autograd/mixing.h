/*
 * Samples inside a data-parallel module. While its model runs, every operation notes in ls_tensor.spread of its output
 * along which axis the samples of this rank lie, or that the output combines them. Such a combination is an error only
 * if it reaches an output of the module: a model may keep statistics that no output depends on. samples.h follows the
 * samples on from there, through the loss.
 */
#ifndef LS_AUTOGRAD_MIXING_H
#define LS_AUTOGRAD_MIXING_H

#include "autograd/batch.h"
#include "autograd/op.h"

/* Begins a run of the model: the first axis of `input` counts the samples. */
void ls_mixing_begin(ls_batch_part *part, ls_tensor *input);

/* Ends it. */
void ls_mixing_end(ls_tensor *input);

/* Notes where the samples are in the output of a finished call. */
void ls_mixing_follow(ls_batch_part *part, const ls_op_call *call);

/* LS_ERR_UNSUPPORTED if the output of the module is made of samples of this rank that an operation has combined. One
 * number that is their sum or mean is allowed. */
ls_status ls_mixing_check(const ls_batch_part *part, const ls_tensor *output);

#endif
