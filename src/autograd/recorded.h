/* The walk over nodes that a backward rule has itself recorded (ls_recompute). */
#ifndef LS_AUTOGRAD_RECORDED_H
#define LS_AUTOGRAD_RECORDED_H

#include "autograd/op.h"

/*
 * For the rule of the node `rule`: continues the running pass at `output`, which the rule made with recording in
 * `scope`, its innermost scope. Walks the tape of this scope, and adds to the gradients of leaves and of nodes recorded
 * before the rule. Fails with LS_ERR_UNSUPPORTED if a node communicates, if a data-parallel module ran in the scope, or
 * if a node needs the gradient of a leaf that neither belongs to this scope nor is an input of `rule`. Error messages
 * name `name`.
 */
ls_status ls_walk_recorded(const char *name, const ls_node *rule, ls_scope *scope, ls_tensor *output,
                           ls_tensor *gradient);

#endif
