/* Snapshots of a trial. They are taken between two steps, so that training can continue while they are written. */
#include "base/memory.h"
#include "train/checkpoint/checkpoint.h"
#include "train/replicas.h"

ls_checkpoint *ls_checkpoint_take(ls_trial *trial, bool divided) {
    ls_checkpoint *snapshot = ls_allocate_for("checkpoint", 1, sizeof *snapshot);
    if (snapshot == NULL) {
        return NULL;
    }
    snapshot->rank = ls_trial_rank(&trial->state);
    snapshot->writes_model = divided || snapshot->rank == 0;
    snapshot->own_optimizer = divided || trial->options.outer != NULL;
    snapshot->writes_optimizer = snapshot->own_optimizer || snapshot->rank == 0;
    snapshot->manifest.divided = divided;
    snapshot->manifest.world_size = trial->state.comm != NULL ? ls_comm_size(trial->state.comm) : 1;
    snapshot->manifest.shards = ls_trial_shards(trial);
    snapshot->manifest.optimizer = trial->options.optimizer != NULL;
    if (ls_checkpoint_get_contents(trial, snapshot) != LS_OK) {
        ls_checkpoint_free(snapshot);
        return NULL;
    }
    return snapshot;
}

void ls_checkpoint_free(ls_checkpoint *snapshot) {
    if (snapshot != NULL) {
        ls_copies_free(&snapshot->model);
        ls_copies_free(&snapshot->optimizer);
        ls_copies_free(&snapshot->outer);
        ls_copies_free(&snapshot->own);
        ls_manifest_free(&snapshot->manifest);
        ls_free(snapshot);
    }
}
