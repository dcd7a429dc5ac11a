/**
 * @file lockstep.h
 * Includes every public header except mpi.h and sys/module.h:
 *
 * ```c
 * #include <lockstep/lockstep.h>
 * int main(void) {
 *     ls_comm *world = ls_init(NULL);
 *     return world != NULL && ls_finalize() == LS_OK ? 0 : 1;
 * }
 * ```
 */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/attention.h>
#include <lockstep/autograd.h>
#include <lockstep/base.h>
#include <lockstep/batch.h>
#include <lockstep/callbacks.h>
#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>
#include <lockstep/convolution.h>
#include <lockstep/data.h>
#include <lockstep/formats.h>
#include <lockstep/hdf5.h>
#include <lockstep/loss.h>
#include <lockstep/metrics.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/step.h>
#include <lockstep/tensor.h>
#include <lockstep/trace.h>
#include <lockstep/train.h>

#endif
