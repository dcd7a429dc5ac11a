/* The walk of nodes that a backward rule has recorded itself (ls_recompute). */
#ifndef LS_AUTOGRAD_RECORDED_H
#define LS_AUTOGRAD_RECORDED_H

#include "autograd/op.h"

/*
 * For backward rules: continues the running pass at `output`, which the rule made in `scope`, its innermost scope, with
 * recording. Walks the tape of this scope, and adds to the gradients of leaves and of nodes recorded before the rule.
 * Fails with LS_ERR_UNSUPPORTED if a node communicates, or if a data-parallel module ran in the scope. `name` is for
 * messages.
 */
ls_status ls_walk_recorded(const char *name, ls_scope *scope, ls_tensor *output, ls_tensor *gradient);

#endif
