/*
 * checkpoint: trials on disk. A checkpoint is a folder:
 *
 *   model.safetensors      parameters and buffers, as ls_module_save has them: by rank 0, or, where they are
 *                          divided over ranks, by each of them: model-0001.safetensors
 *   optimizer.safetensors  what the optimizer remembers: likewise
 *   rank-0000.safetensors  what each rank has of its own: where its random numbers are, the scale of losses,
 *                          the metrics' sums in the midst of an epoch, the state of each callback
 *   manifest.json          where training stands, the history, each file's size and checksum: written last
 *
 * All of it is written to a folder of another name, in the same place; that is renamed when everything in it is on
 * disk. So at any moment each checkpoint is whole or not there, whoever is killed. Names sort by time.
 *
 *   content.c    the table of what a checkpoint holds     copies.c     lists of copies of tensors
 *   manifest.c   the manifest, to and from its file       snapshot.c   copies of all contents of a trial
 *   folder.c     folders: names, syncing, removing        write.c      the files of a snapshot, and the renaming
 *   verify.c     is one whole? which is the newest?       writer.c     the thread that writes
 *   signals.c    SIGTERM and SIGUSR1                      options.c    the checkpointer
 *   load.c       back into a trial                        runs.c       when to write; what happens between two steps
 *   weights.c    ls_module_load of a file or a checkpoint
 */
#ifndef LS_TRAIN_CHECKPOINT_H
#define LS_TRAIN_CHECKPOINT_H

#include <lockstep/checkpoint.h>

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "formats/checksum.h"
#include "train/trial.h"

#define LS_CHECKPOINT_FORMAT 1
#define LS_MANIFEST_NAME     "manifest.json"
#define LS_LINK_SUFFIX       ".link" /* of the temporary name of the link to the best */
#define LS_SPARE_SUFFIX      ".old"  /* of the temporary name of a checkpoint that is being replaced */
#define LS_FILE_NAME_LIMIT   64

/* ---- manifest.c -------------------------------------------------------------------------------------------------- */

typedef struct ls_manifest_file {
    char name[LS_FILE_NAME_LIMIT];
    int64_t bytes;
    char checksum[LS_CHECKSUM_TEXT];
} ls_manifest_file;

typedef struct ls_manifest {
    char version[32]; /* of the Lockstep that wrote it */
    int world_size;
    bool divided;   /* model and optimizer are in parts, one of each rank */
    bool optimizer; /* there is one */
    int64_t epochs_run;
    int64_t step;
    int64_t batch;
    bool continues; /* it is of the midst of an epoch */
    bool stopped;   /* by a hook: there the run ends */
    /* Where the training loader stood, -1 where there was none; the batches of its epoch, and samples of a global batch
     * (0: not known). */
    int64_t loader_epoch, loader_batch, loader_batches, global_batch;
    ls_history_entry latest;
    ls_history history;
    ls_manifest_file *files;
    int file_count;
} ls_manifest;

void ls_manifest_free(ls_manifest *manifest);
ls_status ls_manifest_write(const ls_manifest *manifest, const char *folder);
/* Reads and checks it; `manifest` is the caller's to free, in failure it is empty. LS_ERR_FORMAT: it is damaged, or
 * missing; LS_ERR_UNSUPPORTED: of a newer format. */
ls_status ls_manifest_read(const char *folder, ls_manifest *manifest);

/* ---- folder.c ---------------------------------------------------------------------------------------------------- */

/* "folder/name", the folder alone where the name is ""; LS_ERR_ARGUMENT when it is longer than a path can be, or when
 * the folder is "". */
ls_status ls_path_join(char path[PATH_MAX], const char *folder, const char *name);
ls_status ls_folder_sync(const char *path);
/* Renames `from` to `to`, a folder or nothing that is there; what was there is then `from`. Both are in `parent`, which
 * is synced. */
ls_status ls_folder_replace(const char *parent, const char *from, const char *to);
/* Removes a folder of files. */
ls_status ls_folder_delete(const char *path);
/* Returns whether the folder has a manifest, as every checkpoint has. */
bool ls_checkpoint_is_one(const char *folder);

/* Removes the checkpoint `name` from the folder. It is renamed first, so that a checkpoint is whole or not there. */
ls_status ls_checkpoint_remove(const char *folder, const char *name);

#define LS_CHECKPOINT_NAME_LIMIT 64
/* "epoch-000003-step-0000000120". */
void ls_checkpoint_name(char name[LS_CHECKPOINT_NAME_LIMIT], int64_t epochs_run, int64_t step);
bool ls_is_checkpoint_name(const char *text);

/* What a run that was killed has left under this name, one of exactly the forms that runs give their own entries. */
typedef enum ls_leftover { LS_LEFTOVER_NONE = 0, LS_LEFTOVER_FOLDER, LS_LEFTOVER_LINK } ls_leftover;
ls_leftover ls_checkpoint_leftover(const char *name);

typedef struct ls_folder_names {
    char **items; /* sorted */
    int count;
} ls_folder_names;
/* The names in a folder that are of checkpoints, or begin with `prefix` where that is not NULL. A folder that is not
 * there holds none. */
ls_status ls_folder_list(const char *folder, const char *prefix, ls_folder_names *names);
void ls_folder_names_free(ls_folder_names *names);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* Whether all files are there as the manifest says. */
ls_status ls_checkpoint_verify(const char *folder);
/* The checkpoint itself, or the newest whole one in the folder; damaged ones before it are logged. "": none. */
ls_status ls_checkpoint_find(const char *folder, char path[PATH_MAX]);

/* ---- copies.c ---------------------------------------------------------------------------------------------------- */

typedef struct ls_copies {
    ls_named *items; /* names and tensors are its own */
    int count;
    char **metadata; /* pairs ended by NULL; NULL: none */
} ls_copies;

/* Adds copies, on the host, under `prefix` and their names. */
ls_status ls_copies_add(ls_copies *copies, const char *prefix, const ls_named *named, int count);
/* Adds a tensor of one axis with these numbers. */
ls_status ls_copies_add_numbers(ls_copies *copies, const char *name, ls_dtype dtype, int64_t count, void *numbers);
/* Copies the metadata of a model: pairs, ended by NULL. */
ls_status ls_copies_add_metadata(ls_copies *copies, const char *const *metadata);
void ls_copies_free(ls_copies *copies);

/* ---- snapshot.c -------------------------------------------------------------------------------------------------- */

/* The files of one rank. */
enum { LS_MODEL_PART = 0, LS_OPTIMIZER_PART, LS_RANK_PART, LS_PARTS };

/* What this rank writes of a checkpoint. */
typedef struct ls_checkpoint {
    int rank;
    bool writes_model; /* and the optimizer */
    ls_copies model, optimizer, own;
    ls_manifest_file written[LS_PARTS]; /* by this rank, so far; "": not */
    ls_manifest manifest;               /* without files, but on rank 0 when all ranks have written theirs */
    char parent[PATH_MAX];
    char temporary[PATH_MAX]; /* where it is written: in parent, as is: */
    char folder[PATH_MAX];
    char best[PATH_MAX]; /* the link that is to lead there; "": none */
    int keep;            /* 0: nothing else is removed */
} ls_checkpoint;

/* Copies the trial as it is; `divided`: on any rank. NULL and an error on failure. */
ls_checkpoint *ls_checkpoint_take(ls_trial *trial, bool divided);
void ls_checkpoint_free(ls_checkpoint *snapshot);
/* ".new-NONCE-NAME"; false if that is too long for a name. */
bool ls_checkpoint_temporary(char temporary[NAME_MAX + 1], const char *name, uint64_t nonce);
/* Where it is to be written; `nonce` is of this writing, the same on all ranks. */
ls_status ls_checkpoint_place(ls_checkpoint *snapshot, const char *parent, const char *name, uint64_t nonce);

/* "NAME.safetensors", or "NAME-0001.safetensors" with a rank that is not -1. */
void ls_part_name(char file[LS_FILE_NAME_LIMIT], const char *name, int rank);

/* ---- content.c --------------------------------------------------------------------------------------------------- */

/* A checkpoint that is put back into a trial. */
typedef struct ls_resumption {
    ls_trial *trial;
    const char *folder;
    ls_manifest manifest;
    int rank, size;          /* of the trial */
    ls_safetensors *own;     /* the file of this rank; of rank 0 if the rank is new */
    const ls_named *tensors; /* in that file, of the part that is being put back, without their prefix */
    int count;
    int64_t batch;        /* of the trial's epoch, in its global batches */
    int64_t loader_batch; /* likewise, of the loader's */
} ls_resumption;

/* Copies all contents of the trial into the snapshot, and puts the contents of a checkpoint back into the trial. */
ls_status ls_checkpoint_get_contents(ls_trial *trial, ls_checkpoint *to);
ls_status ls_checkpoint_set_contents(ls_resumption *from);

/* ---- write.c ----------------------------------------------------------------------------------------------------- */

/* Writes this rank's files to the temporary folder. */
ls_status ls_checkpoint_write(ls_checkpoint *snapshot);
/* When all ranks have: rank 0 learns what they have written. A call of all ranks; `comm` is NULL for one alone. */
ls_status ls_checkpoint_gather(ls_checkpoint *snapshot, ls_comm *comm);
/* Then rank 0 makes a checkpoint of that, and removes older ones. */
ls_status ls_checkpoint_commit(ls_checkpoint *snapshot);
/* Removes what this rank has written there. */
void ls_checkpoint_discard(const ls_checkpoint *snapshot);

/* ---- writer.c ---------------------------------------------------------------------------------------------------- */

typedef ls_status ls_writing(ls_checkpoint *snapshot);

typedef struct ls_writer {
    pthread_t thread;
    bool started;
    atomic_bool done;
    ls_writing *function;
    ls_checkpoint *snapshot; /* lent */
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} ls_writer;

ls_status ls_writer_start(ls_writer *writer, ls_writing *function, ls_checkpoint *snapshot);
/* Waits for it. What it failed with becomes this thread's error. */
ls_status ls_writer_join(ls_writer *writer);

/* ---- signals.c --------------------------------------------------------------------------------------------------- */

/* SIGTERM and SIGUSR1 are counted from here on, in this process; *before is the count so far, *stack the thread's for
 * their handlers, for the end on the same thread. */
ls_status ls_signals_begin(uint32_t *before, void **stack);
/* The last of them; 0: none since. */
int ls_signals_since(uint32_t before);
void ls_signals_end(void *stack);

/* ---- runs.c ------------------------------------------------------------------------------------------------------ */

/* How far the writing of a checkpoint is on a rank: of all ranks, the largest counts. */
enum { LS_IDLE = 0, LS_SETTLING, LS_WRITING };

struct ls_checkpointer {
    ls_checkpoint_options options; /* with texts of its own */
    double best[2];                /* the best value so far; 1: there is one */
    bool begun;                    /* in a run */
    bool signals;                  /* are counted */
    void *signal_stack;            /* for ls_signals_end */
    uint32_t heard;                /* signals before */
    int lock;                      /* of the folder, a descriptor on rank 0; -1 */
    uint64_t nonce;                /* of the next writing */
    bool divided;
    bool due;      /* one is to be written as soon as may be */
    uint64_t last; /* when the last was, of ls_clock_ns */
    bool is_best;  /* the epoch that ends has the best value so far */
    bool committing;
    int phase;
    ls_checkpoint *snapshot; /* that is being written; NULL: none */
    ls_writer writer;
};

/* Begins a run: opens the folder. ls_checkpoints_finish ends a run that succeeded: it waits until everything is
 * written. ls_checkpoints_end ends every run. */
ls_status ls_checkpoints_begin(ls_trial *trial);
ls_status ls_checkpoints_finish(ls_trial *trial);
void ls_checkpoints_end(ls_trial *trial);

/* The two halves of an agreement at the end of a step or an epoch (step.c). ls_checkpoints_vote puts this rank's
 * request into trial->ballot, and returns the status of its writing. ls_checkpoints_act does what all ranks have agreed
 * on; it returns LS_ERR_STOPPED if a signal ended the run. */
ls_status ls_checkpoints_vote(ls_trial *trial, bool epoch);
ls_status ls_checkpoints_act(ls_trial *trial, bool epoch);

/* ---- load.c ------------------------------------------------------------------------------------------------------ */

/* Puts the trial where the newest checkpoint in the folder is. If the folder has none, the trial stays as it is, or the
 * call fails if a checkpoint is `needed`. Collective. */
ls_status ls_trial_go_on_from(ls_trial *trial, const char *folder, bool needed);

/* ---- options.c --------------------------------------------------------------------------------------------------- */

/* Writes the options, which must be the same on all ranks, into `text`. */
void ls_checkpointer_describe(const ls_checkpointer *checkpointer, char *text, size_t size);

/* Makes the checkpointer of a trial. Copies the options. Returns NULL on failure. */
ls_checkpointer *ls_checkpointer_new(const ls_checkpoint_options *options);
void ls_checkpointer_free(ls_checkpointer *checkpointer);

#endif
