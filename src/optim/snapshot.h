/* Copies of all parameters and buffers of a model. */
#ifndef LS_OPTIM_SNAPSHOT_H
#define LS_OPTIM_SNAPSHOT_H

#include "nn/module.h"
#include "optim/optimizer.h"

typedef struct ls_snapshot {
    const ls_module *model; /* borrowed */
    ls_tensor **tensors;    /* owned */
    ls_tensor **sources;    /* the model's tensors: parameters, then buffers; borrowed */
    ls_tensor **originals;  /* the model's values while the model has a rounded copy; NULL otherwise; owned */
    int parameter_count;
    int count;
} ls_snapshot;

/* Allocates the copies, and copies the model into them. With `wide`, copies of bf16 and f16 are f32. */
ls_status ls_snapshot_make(const char *call, ls_snapshot *snapshot, const ls_module *model, bool wide);
/* Returns tensor i of the copied model. */
ls_tensor *ls_snapshot_source(const ls_snapshot *snapshot, int i);
/* Fails with LS_ERR_STATE if the model was freed, if parameters were added to it, or if this rank has only a part of
 * one of its tensors. */
ls_status ls_snapshot_check(const char *call, const ls_snapshot *snapshot);
/* Copy the model into the snapshot; copy the snapshot into the model; exchange both. Fail like ls_snapshot_check, and
 * then change nothing. If ls_snapshot_swap runs out of memory for a copy of one tensor, the tensors before it stay
 * exchanged. Two exchanges preserve the bits of model and snapshot, also of copies in f32. */
ls_status ls_snapshot_take(const char *call, const ls_snapshot *snapshot);
ls_status ls_snapshot_put(const char *call, const ls_snapshot *snapshot);
ls_status ls_snapshot_swap(const char *call, const ls_snapshot *snapshot);
/* Adds the copies to a list, as "NAME.WORD", or as "NAME" if `word` is NULL. */
ls_status ls_snapshot_list(const ls_snapshot *snapshot, const char *word, ls_state_list *list);
void ls_snapshot_forget(ls_snapshot *snapshot);

#endif
