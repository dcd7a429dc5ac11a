/*
 * Decides when checkpoints are written. All ranks decide together, at the end of each step and epoch
 * (ls_trial_end_of_step in step.c). Each rank votes with its requests and the phase of its writing. The agreement of
 * agree.c carries the votes. Then each rank acts. Ranks therefore need no other collective call, and the writing
 * threads make none:
 *
 *   all ranks LS_IDLE, a checkpoint is due   each rank copies its part and starts to write it: LS_WRITING
 *   no rank is LS_WRITING                    rank 0 makes all ranks' files a checkpoint: LS_SETTLING
 *   rank 0 has finished                      LS_IDLE
 *
 * If a thread fails, its rank fails at the next agreement.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/wait.h"
#include "comm/public_call.h"
#include "formats/file.h"
#include "parallel/parallel.h"
#include "train/agree.h"
#include "train/checkpoint/checkpoint.h"
#include "train/replicas.h"

static const char *const maker = "checkpoint";

/* ---- progress of writing ----------------------------------------------------------------------------------------- */

/* Joins the thread if it has finished. With `wait`, waits for the thread. */
static ls_status collect(ls_checkpointer *self, bool wait) {
    if (!self->writer.started || (!wait && !atomic_load(&self->writer.done))) {
        return LS_OK;
    }
    LS_TRY(ls_writer_join(&self->writer));
    self->phase = self->committing ? LS_IDLE : LS_SETTLING;
    if (self->phase == LS_IDLE) {
        ls_checkpoint_free(self->snapshot);
        self->snapshot = NULL;
        self->committing = false;
    }
    return LS_OK;
}

/* If no rank is writing, makes the files of all ranks a checkpoint. */
static ls_status settle(ls_trial *trial) {
    ls_checkpointer *self = trial->checkpointer;
    if (self->snapshot == NULL || self->committing) {
        return LS_OK;
    }
    LS_TRY(ls_checkpoint_gather(self->snapshot, trial->state.comm));
    if (self->snapshot->rank == 0) {
        self->committing = true;
        return ls_writer_start(&self->writer, ls_checkpoint_commit, self->snapshot);
    }
    ls_checkpoint_free(self->snapshot);
    self->snapshot = NULL;
    self->phase = LS_IDLE;
    return LS_OK;
}

/* Waits on all ranks until no checkpoint is being written. */
static ls_status finish(ls_trial *trial) {
    ls_checkpointer *self = trial->checkpointer;
    for (;;) {
        const ls_status status = collect(self, true);
        trial->ballot = (ls_ballot){.writing = self->phase};
        LS_TRY(ls_trial_agree(trial, status));
        if (trial->ballot.writing == LS_IDLE) {
            return LS_OK;
        }
        LS_TRY(settle(trial));
    }
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static ls_status begin_writing(ls_trial *trial, bool best) {
    ls_checkpointer *self = trial->checkpointer;
    char name[LS_CHECKPOINT_NAME_LIMIT];
    ls_checkpoint_name(name, trial->epochs_run, trial->state.step);
    LS_TRY(trial->state.phase == LS_PHASE_TRAINING ? ls_trial_check_replicas(trial)
                                                   : LS_OK); /* otherwise already done */
    self->due = false;
    trial->state.save = false;
    self->last = ls_clock_ns();
    self->snapshot = ls_checkpoint_take(trial, self->divided);
    LS_TRY(ls_made(self->snapshot));
    self->phase = LS_WRITING;
    LS_TRY(ls_checkpoint_place(self->snapshot, self->options.folder, name, self->nonce++));
    self->snapshot->keep = self->options.keep;
    if (best) {
        LS_TRY(ls_path_join(self->snapshot->best, self->options.folder, "best"));
    }
    return ls_writer_start(&self->writer, ls_checkpoint_write, self->snapshot);
}

/* Ends the run after a signal from the cluster. */
static ls_status pause_run(ls_trial *trial, int signal, bool best) {
    ls_checkpointer *self = trial->checkpointer;
    const bool continues = trial->state.phase == LS_PHASE_TRAINING;
    char name[LS_CHECKPOINT_NAME_LIMIT];
    LS_TRY(finish(trial));
    LS_TRY(ls_trial_agree(trial, begin_writing(trial, best)));
    LS_TRY(finish(trial));
    ls_checkpoint_name(name, trial->epochs_run, trial->state.step);
    trial->continues = continues;
    trial->stopped = trial->state.stop;
    trial->agreed = true; /* all ranks return this error */
    return ls_fail(LS_ERR_STOPPED, "ls_trial_run: stopped by %s after step %lld: resume from %s/%s",
                   signal == SIGTERM ? "SIGTERM" : "SIGUSR1", (long long)trial->state.step, self->options.folder, name);
}

/* ---- what to write ----------------------------------------------------------------------------------------------- */

/* Compares the metric with the best value at the end of an epoch. At this point, the metric is equal on all ranks. */
static ls_status note_best(const ls_trial *trial, bool *best) {
    ls_checkpointer *self = trial->checkpointer;
    *best = false;
    if (self->options.best == NULL) {
        return LS_OK;
    }
    const double *value = ls_history_find(&trial->latest, self->options.best);
    if (value == NULL) {
        return ls_metrics_refuse(trial, maker, self->options.best, false);
    }
    *best = !isnan(*value) &&
            (self->best[1] == 0 || (self->options.highest ? *value > self->best[0] : *value < self->best[0]));
    if (*best) {
        self->best[0] = *value;
        self->best[1] = self->best_kind;
    }
    return LS_OK;
}

static bool is_due(const ls_trial *trial, bool epoch) {
    const ls_checkpointer *self = trial->checkpointer;
    const ls_checkpoint_options *options = &self->options;
    const double seconds = (double)(ls_clock_ns() - self->last) * 1e-9;
    return self->due || trial->state.save ||
           (epoch && options->every_epochs > 0 && trial->epochs_run % options->every_epochs == 0) ||
           (!epoch && options->every_steps > 0 && trial->state.step % options->every_steps == 0) ||
           (options->every_seconds > 0 && ls_trial_rank(&trial->state) == 0 && seconds >= options->every_seconds);
}

ls_status ls_checkpoints_vote(ls_trial *trial, bool epoch) {
    ls_checkpointer *self = trial->checkpointer;
    if (self == NULL) {
        return LS_OK;
    }
    ls_status status = collect(self, false);
    self->is_best = false;
    if (status == LS_OK && epoch) {
        status = note_best(trial, &self->is_best);
    }
    const int signal = self->signals ? ls_signals_since(self->heard) : 0;
    trial->ballot = (ls_ballot){.asks = signal != 0                             ? LS_ASKS_TO_PAUSE + signal
                                        : self->is_best || is_due(trial, epoch) ? LS_ASKS_TO_SAVE
                                                                                : LS_ASKS_NOTHING,
                                .writing = self->phase};
    return status;
}

ls_status ls_checkpoints_act(ls_trial *trial, bool epoch) {
    ls_checkpointer *self = trial->checkpointer;
    const ls_ballot ballot = trial->ballot;
    if (self == NULL) {
        return LS_OK;
    }
    if (ballot.writing == LS_SETTLING) {
        LS_TRY(settle(trial));
    }
    const bool waits = ls_trial_awaits_outer_step(trial);
    if (ballot.asks >= LS_ASKS_TO_PAUSE && !waits) {
        return pause_run(trial, (int)ballot.asks - LS_ASKS_TO_PAUSE, self->is_best);
    }
    self->due = ballot.asks == LS_ASKS_TO_SAVE || (self->due && waits);
    if (self->due && (epoch || trial->state.stop)) {
        LS_TRY(finish(trial)); /* no later step of this run will call this function */
    } else if (ballot.writing != LS_IDLE || waits) {
        return LS_OK;
    }
    return self->due ? begin_writing(trial, self->is_best) : LS_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/*
 * Locks the folder. A process that was just killed may still hold the lock. If the file system does not support locks,
 * the folder is not protected.
 */
static ls_status lock_folder(ls_checkpointer *self) {
    const char *folder = self->options.folder;
    self->lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (self->lock < 0) {
        return ls_fail(LS_ERR_IO, "checkpoint: cannot open the folder %s: %s", folder, strerror(errno));
    }
    ls_wait wait = {.limit_ns = LS_FOLDER_WAIT_NS};
    while (flock(self->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        if (!ls_wait_pause(&wait)) {
            return ls_fail(
                LS_ERR_STATE,
                "checkpoint: a running trial writes its checkpoints to %s: use another folder, or end that trial first",
                folder);
        }
    }
    return LS_OK;
}

/* If the best checkpoint exists, completes the link to it that a killed run created but did not rename. */
static ls_status finish_link(const char *folder, const char *name) {
    char link[PATH_MAX], best[PATH_MAX], target[PATH_MAX], led[NAME_MAX + 1];
    LS_TRY(ls_folder_link(folder, name, led));
    LS_TRY(ls_path_join(link, folder, name));
    LS_TRY(ls_path_join(best, folder, "best"));
    LS_TRY(ls_path_join(target, folder, led));
    return led[0] != '\0' && ls_checkpoint_is_one(target) && rename(link, best) != 0
               ? ls_fail(LS_ERR_IO, "checkpoint: cannot make the link %s: %s", best, strerror(errno))
               : LS_OK;
}

/* Removes an entry that a killed run left behind. An entry of a different type does not belong to a run, whatever
 * its name is. */
static ls_status remove_leftover(const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat about;
    const ls_leftover kind = ls_checkpoint_leftover(name);
    LS_TRY(ls_path_join(path, folder, name));
    if (kind == LS_LEFTOVER_NONE || lstat(path, &about) != 0) {
        return LS_OK;
    }
    if (kind == LS_LEFTOVER_FOLDER) {
        return S_ISDIR(about.st_mode) ? ls_folder_delete(path) : LS_OK;
    }
    if (!S_ISLNK(about.st_mode)) {
        return LS_OK;
    }
    LS_TRY(finish_link(folder, name));
    return unlink(path) == 0 || errno == ENOENT
               ? LS_OK
               : ls_fail(LS_ERR_IO, "checkpoint: cannot remove %s: %s", path, strerror(errno));
}

static ls_status clean_up(const char *folder) {
    ls_folder_names names;
    LS_TRY(ls_folder_list(folder, ".", &names));
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < names.count; i++) {
        status = remove_leftover(folder, names.items[i]);
    }
    ls_folder_names_free(&names);
    return status;
}

/*
 * Checks a checkpoint that is later than the trial. A complete checkpoint belongs to a different history, and is an
 * error. A damaged checkpoint, which .resume skipped, is renamed.
 */
static ls_status check_later(const char *folder, const char *name) {
    char path[PATH_MAX], damaged[PATH_MAX], renamed[NAME_MAX + 1];
    LS_TRY(ls_path_join(path, folder, name));
    const ls_status status = ls_checkpoint_verify(path);
    if (status == LS_OK) {
        return ls_fail(LS_ERR_STATE,
                       "%s: an earlier run left checkpoints, and %s is further along than this trial: resume from it "
                       "(.resume = \"%s\" in ls_trial_options), remove them (.overwrite), or write to another folder",
                       maker, path, folder);
    }
    if (status != LS_ERR_FORMAT) {
        return status;
    }
    snprintf(renamed, sizeof renamed, "damaged-%s", name);
    LS_TRY(ls_path_join(damaged, folder, renamed));
    LS_TRY(ls_folder_replace(folder, path, damaged));
    return ls_folder_delete(path); /* the swap moved an earlier damaged checkpoint here */
}

/* A link to a checkpoint is not a checkpoint. */
static bool is_checkpoint(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode) && ls_checkpoint_is_readable(path);
}

/* Removes the link to the best checkpoint, before this checkpoint is removed. */
static ls_status unlink_best(const char *folder, const char *name) {
    char best[PATH_MAX], target[NAME_MAX + 1];
    LS_TRY(ls_path_join(best, folder, "best"));
    LS_TRY(ls_folder_link(folder, "best", target));
    return strcmp(target, name) != 0 || unlink(best) == 0
               ? LS_OK
               : ls_fail(LS_ERR_IO, "checkpoint: cannot remove the link %s: %s", best, strerror(errno));
}

/* Removes a checkpoint of an earlier run. Handles entries that are not checkpoints as it would without .overwrite. */
static ls_status overwrite(const char *folder, const char *name) {
    char path[PATH_MAX];
    LS_TRY(ls_path_join(path, folder, name));
    if (!is_checkpoint(path)) {
        return check_later(folder, name);
    }
    LS_TRY(unlink_best(folder, name));
    return ls_checkpoint_remove(folder, name);
}

/*
 * Applies `act` to each checkpoint that is later than the trial's position, newest first. If the process is killed, the
 * remaining checkpoints thus form a shorter history of the earlier run.
 */
static ls_status for_later(const ls_trial *trial, ls_status (*act)(const char *folder, const char *name)) {
    const char *folder = trial->checkpointer->options.folder;
    char own[LS_CHECKPOINT_NAME_LIMIT];
    ls_folder_names names;
    ls_checkpoint_name(own, trial->epochs_run, trial->state.step);
    LS_TRY(ls_folder_list(folder, NULL, &names));
    ls_status status = LS_OK;
    for (int i = names.count - 1; status == LS_OK && i >= 0 && strcmp(names.items[i], own) > 0; i--) {
        status = act(folder, names.items[i]);
    }
    ls_folder_names_free(&names);
    return status;
}

/* Checks that the link to the best checkpoint would not replace a user's file. */
static ls_status check_best(const ls_checkpoint_options *options) {
    char best[PATH_MAX];
    struct stat about;
    LS_TRY(ls_path_join(best, options->folder, "best"));
    return options->best == NULL || lstat(best, &about) != 0 || S_ISLNK(about.st_mode)
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "checkpoint: %s, the name of the link to the best checkpoint, is not a link: rename it, or "
                         "choose another folder",
                         best);
}

static ls_status open_folder(const ls_trial *trial) {
    ls_checkpointer *self = trial->checkpointer;
    LS_TRY(ls_folder_make("checkpoint", self->options.folder));
    LS_TRY(lock_folder(self));
    LS_TRY(check_best(&self->options));
    LS_TRY(clean_up(self->options.folder));
    return self->options.overwrite ? LS_OK : for_later(trial, check_later);
}

/* Checks that no shards of the model are on ranks outside the trial's communicator, because their files would be
 * missing. */
static ls_status check_ranks(const ls_trial *trial, bool divided) {
    const int size = ls_trial_size(&trial->state);
    ls_comm *world = ls_world();
    return divided && world != NULL && ls_comm_size(world) != size
               ? ls_fail(
                     LS_ERR_UNSUPPORTED,
                     "checkpoint: the model is sharded over ranks, but the trial's communicator has %d of the job's %d "
                     "ranks: set .comm of ls_trial_options to a communicator of all ranks",
                     size, ls_comm_size(world))
               : LS_OK;
}

/*
 * Exchanges the values that all ranks need before they write: the number in temporary names, and whether the model is
 * sharded.
 */
static ls_status meet(ls_trial *trial, uint64_t *nonce, bool *divided) {
    int64_t both[2] = {0, ls_model_is_divided(trial->state.model)};
    ls_status status = LS_OK;
    if (ls_trial_rank(&trial->state) == 0 && getrandom(&both[0], sizeof both[0], 0) != (ssize_t)sizeof both[0]) {
        status = ls_fail(LS_ERR_IO, "checkpoint: no random numbers: %s", strerror(errno));
    }
    both[0] &= INT64_MAX;
    LS_TRY(ls_trial_agree_at_end(trial, status));
    if (trial->state.comm != NULL) {
        LS_TRY(ls_comm_allreduce(trial->state.comm, both, both, 2, LS_I64, LS_MAX, NULL));
    }
    *nonce = (uint64_t)both[0];
    *divided = both[1] != 0;
    return ls_trial_agree_at_end(trial, check_ranks(trial, *divided));
}

/* Checks that this rank sees the entry that rank 0 created, and may write to the folder. */
static ls_status look_for(const char *probe, const char *folder) {
    LS_TRY(ls_folder_await(probe, folder));
    return access(folder, W_OK | X_OK) == 0
               ? LS_OK
               : ls_fail(LS_ERR_IO, "checkpoint: cannot write to the folder %s: %s", folder, strerror(errno));
}

/* Checks, before the first step, that all ranks share the folder: rank 0 creates an entry with a temporary name, and
 * the other ranks look for it. */
static ls_status check_shared(ls_trial *trial) {
    ls_checkpointer *self = trial->checkpointer;
    char name[LS_CHECKPOINT_NAME_LIMIT], entry[NAME_MAX + 1], probe[PATH_MAX];
    if (ls_comm_size(trial->state.comm) <= 1) {
        return LS_OK;
    }
    ls_checkpoint_name(name, trial->epochs_run, trial->state.step);
    ls_checkpoint_temporary(entry, name, self->nonce++);
    LS_TRY(ls_path_join(probe, self->options.folder, entry));
    const bool makes = ls_trial_rank(&trial->state) == 0;
    ls_status status = LS_OK;
    if (makes && mkdir(probe, 0777) != 0) {
        status = ls_fail(LS_ERR_IO, "checkpoint: cannot make the folder %s: %s", probe, strerror(errno));
    }
    LS_TRY(ls_trial_agree_at_end(trial, status));
    status = ls_trial_agree_at_end(trial, makes ? LS_OK : look_for(probe, self->options.folder));
    if (makes) {
        (void)rmdir(probe);
    }
    return status;
}

ls_status ls_checkpoints_begin(ls_trial *trial) {
    ls_checkpointer *self = trial->checkpointer;
    if (self == NULL) {
        return LS_OK;
    }
    if (self->options.best != NULL) {
        LS_TRY(ls_metrics_check_result(trial, maker, self->options.best));
    }
    self->begun = true;
    self->last = ls_clock_ns();
    self->due = false;
    ls_status status = LS_OK;
    if (!self->options.no_signals) {
        status = ls_signals_begin(&self->heard, &self->signal_stack);
        self->signals = status == LS_OK;
    }
    LS_TRY(ls_trial_agree(trial, status == LS_OK && ls_trial_rank(&trial->state) == 0 ? open_folder(trial) : status));
    LS_TRY(meet(trial, &self->nonce, &self->divided));
    return check_shared(trial);
}

ls_status ls_checkpoints_overwrite(ls_trial *trial) {
    const ls_checkpointer *self = trial->checkpointer;
    if (self == NULL || !self->options.overwrite) {
        return LS_OK;
    }
    return ls_trial_agree_at_end(trial, ls_trial_rank(&trial->state) == 0 ? for_later(trial, overwrite) : LS_OK);
}

/*
 * Warns of a requested checkpoint that the run did not write. A checkpoint after on_end_training could not resume
 * within the epoch, because the numbers of the metrics have been merged.
 */
static void report_missed(const ls_trial *trial) {
    const bool due = trial->checkpointer->due && ls_trial_rank(&trial->state) == 0;
    if (due || trial->state.save) {
        ls_log_write(LS_LOG_WARNING,
                     "%s: the run has ended without the requested checkpoint after step %lld: set state->stop and "
                     "state->save in on_step_training, not in on_end_training",
                     maker, (long long)trial->state.step);
    }
}

ls_status ls_checkpoints_finish(ls_trial *trial) {
    if (trial->checkpointer == NULL) {
        return LS_OK;
    }
    report_missed(trial);
    return finish(trial);
}

/* After a failure, waits for the thread and removes its files. If the thread is already committing the checkpoint,
 * it completes this. */
static void give_up(ls_checkpointer *self) {
    ls_saved_error cause;
    ls_error_save(&cause);
    (void)ls_writer_join(&self->writer);
    if (self->snapshot != NULL) {
        ls_checkpoint_discard(self->snapshot);
    }
    ls_checkpoint_free(self->snapshot);
    self->snapshot = NULL;
    self->committing = false;
    self->phase = LS_IDLE;
    (void)ls_error_put_back(&cause);
}

void ls_checkpoints_end(ls_trial *trial) {
    ls_checkpointer *self = trial->checkpointer;
    if (self == NULL || !self->begun) {
        return;
    }
    give_up(self);
    if (self->signals) {
        ls_signals_end(self->signal_stack);
        self->signals = false;
    }
    if (self->lock >= 0) {
        close(self->lock);
        self->lock = -1;
    }
    self->begun = false;
}

/* ---- one checkpoint, written immediately ------------------------------------------------------------------------- */

/* Splits "a/b/c" into "a/b" and "c". */
static ls_status split_path(const char *path, char parent[PATH_MAX], char name[PATH_MAX]) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    if (length >= PATH_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_save: the folder's name has %zu bytes; at most %d are possible",
                       length, PATH_MAX - 1);
    }
    snprintf(name, PATH_MAX, "%.*s", (int)(length - begin), path + begin);
    snprintf(parent, PATH_MAX, "%.*s", begin > 1 ? (int)begin - 1 : 1, begin == 0 ? "." : path);
    return strcmp(name, "") != 0 && strcmp(name, ".") != 0 && strcmp(name, "..") != 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_trial_save: \"%s\" is not a name for a checkpoint", path);
}

static ls_status write_now(ls_trial *trial, ls_checkpoint *snapshot, const char *folder, uint64_t nonce) {
    char parent[PATH_MAX], name[PATH_MAX];
    ls_status status = snapshot != NULL ? split_path(folder, parent, name) : ls_error_status();
    if (status == LS_OK) {
        status = ls_checkpoint_place(snapshot, parent, name, nonce);
    }
    if (status == LS_OK) {
        status = ls_folder_make("checkpoint", parent);
    }
    if (status == LS_OK) {
        status = ls_checkpoint_write(snapshot);
    }
    LS_TRY(ls_trial_agree_at_end(trial, status));
    status = ls_checkpoint_gather(snapshot, trial->state.comm);
    if (status == LS_OK && snapshot->rank == 0) {
        status = ls_checkpoint_commit(snapshot);
    }
    return ls_trial_agree_at_end(trial, status);
}

static ls_status save(ls_trial *trial, const char *folder) {
    uint64_t nonce;
    bool divided;
    LS_TRY(ls_trial_begin_agreeing(trial));
    LS_TRY(ls_trial_check_replicas(trial));
    LS_TRY(meet(trial, &nonce, &divided));
    ls_checkpoint *snapshot = ls_checkpoint_take(trial, divided);
    const ls_status status = write_now(trial, snapshot, folder, nonce);
    if (status != LS_OK && snapshot != NULL) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_checkpoint_discard(snapshot);
        (void)ls_error_put_back(&cause);
    }
    ls_checkpoint_free(snapshot);
    return status;
}

ls_status ls_trial_save(ls_trial *trial, const char *folder) {
    if (trial == NULL || folder == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_save: the trial or the folder is NULL");
    }
    LS_TRY(ls_trial_check_here("ls_trial_save", trial));
    if (ls_trial_is_busy(trial)) {
        return ls_fail(LS_ERR_STATE, trial->in_on_init
                                         ? "ls_trial_save: the trial is being created: save after ls_trial_new"
                                         : "ls_trial_save: the trial is running: set state->save, and .checkpoint of "
                                           "ls_trial_options");
    }
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_SAVE);
    return ls_public_end(outer, save(trial, folder));
}
