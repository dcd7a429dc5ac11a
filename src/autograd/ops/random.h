/* Dropout of a tensor that is divided over ranks along its last axis. */
#ifndef LS_AUTOGRAD_OPS_RANDOM_H
#define LS_AUTOGRAD_OPS_RANDOM_H

#include <lockstep/autograd.h>

/* ls_dropout of x as the part of a tensor whose last axis has size `whole`, from `start` on; 0: x has all of it. */
ls_tensor *ls_dropout_part(ls_tensor *x, double p, int64_t start, int64_t whole);

#endif
