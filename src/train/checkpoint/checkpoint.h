/*
 * checkpoint: trials on disk. A checkpoint is a folder:
 *
 *   model.safetensors      parameters and buffers, in the format of ls_module_save. Written by rank 0. If the model is
 *                          sharded, each rank writes its shards: model-0001.safetensors
 *   optimizer.safetensors  state of the optimizer, in the same way. With `.outer`, each rank writes the state of its
 *                          own optimizer
 *   outer.safetensors      state of the outer optimizer, if it has one
 *   rank-0000.safetensors  state of each rank: its random numbers, the scale of losses, the sums of metrics within an
 *                          epoch, the state of each callback
 *                          With `.shards`, the sums of each slice of the rank
 *   manifest.json          training position, history, size and checksum of each file. Written last
 *
 * All files are written to a temporary folder in the same parent folder, which is renamed when everything is on disk.
 * Whenever a process is killed, each checkpoint is therefore either complete or missing. Names sort by time.
 *
 *   content.c    the table of a checkpoint's contents     copies.c     lists of copies of tensors
 *   tensors.c    table rows for model and optimizers      snapshot.c   copies of all contents of a trial
 *   manifest.c   the manifest, to and from its file       write.c      the files of a snapshot, and the renaming
 *   layout.c     the parts of tensors in all files        join.c       reads tensors from the files of several ranks
 *   folder.c     folders: names, syncing, removing        writer.c     the thread that writes
 *   verify.c     finds complete checkpoints               options.c    the checkpointer
 *   signals.c    SIGTERM and SIGUSR1                      runs.c       when to write; work between two steps
 *   load.c       restores a trial                         split.c      loads with a different sharding of the model
 *   weights.c    ls_module_load of a file or a checkpoint
 *   callbacks.c  table row for the states of callbacks
 */
#ifndef LS_TRAIN_CHECKPOINT_H
#define LS_TRAIN_CHECKPOINT_H

#include <lockstep/checkpoint.h>

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "formats/checksum.h"
#include "train/trial.h"

#define LS_MANIFEST_NAME   "manifest.json"
#define LS_LINK_SUFFIX     ".link" /* suffix of the temporary name of the link to the best checkpoint */
#define LS_FILE_NAME_LIMIT 64

/* Names of the files, to which ls_part_name adds the rank and the suffix. */
#define LS_MODEL_NAME     "model"
#define LS_OPTIMIZER_NAME "optimizer"
#define LS_OUTER_NAME     "outer"
#define LS_RANK_NAME      "rank"

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */

#define LS_PART_HASH 17 /* 64 bits in hexadecimal digits, and a terminating zero byte */

/* The part of a tensor that a rank has: a range along one axis, or the complete tensor. */
typedef struct ls_part {
    char *name;              /* of the tensor; owned */
    char of[12];             /* the file that contains the part: LS_MODEL_NAME or LS_OPTIMIZER_NAME, */
    int rank;                /* of this rank; -1 if there is only one file with this name */
    bool buffer;             /* the tensor is a buffer of the model */
    ls_shape shape;          /* of the whole tensor */
    int axis;                /* -1 if the part is the complete tensor */
    int64_t first, count;    /* first index and number of indices along the axis; 0 and 1 for a complete tensor */
    char hash[LS_PART_HASH]; /* hash of the elements, to distinguish replicas from different tensors; "" if unknown */
} ls_part;

typedef struct ls_part_layout {
    ls_part *parts; /* in the order of the files */
    int count;
} ls_part_layout;

void ls_part_layout_free(ls_part_layout *layout);
/* Removes the parts starting at index `count`. */
void ls_part_layout_cut(ls_part_layout *layout, int count);
/*
 * Add the parts that this rank has: the first function for a model, in the order of its file; the second for one state
 * of an optimizer, with its parameter or NULL (ls_optimizer_visit_state).
 */
ls_status ls_part_layout_add_model(ls_part_layout *layout, const ls_module *model, int rank);
ls_status ls_part_layout_add_state(ls_part_layout *layout, const ls_named *state, const ls_tensor *parameter, int rank);
/*
 * Returns whether the state can be resharded: its name contains the name of its parameter in the model, and the method
 * keeps no vectors over all parameters.
 */
bool ls_state_has_layout(const ls_optimizer *optimizer, const ls_module *model, const ls_named *state,
                         const ls_tensor *parameter);
/* Adds the tensors of a file as complete tensors. */
ls_status ls_part_layout_add_file(ls_part_layout *layout, const char *folder, const char *of, int rank);
/* Adds the tensors of a model that are missing from `wanted`, as complete tensors: parameters first, then buffers. */
ls_status ls_part_layout_add_rest(ls_part_layout *wanted, const ls_part_layout *layout);
/* Returns whether the layout has parts of the file `of`. */
bool ls_part_layout_has(const ls_part_layout *layout, const char *of);
/* Fails with LS_ERR_FORMAT if the layout of the manifest `path` has a part of a rank that is not below `ranks`. */
ls_status ls_part_layout_check_ranks(const ls_part_layout *layout, const char *path, int ranks);
/* Returns whether both parts are the same range of a tensor. */
bool ls_part_is_same(const ls_part *a, const ls_part *b);
/* Gathers the parts of all ranks on rank 0. Collective. `comm` is NULL for a single process. */
ls_status ls_part_layout_gather(ls_part_layout *layout, ls_comm *comm);

/* ---- join.c ------------------------------------------------------------------------------------------------------ */

/*
 * Reads the wanted parts of tensors from the files `of` of the checkpoint, whichever files contain their elements. Sets
 * used[i] to 1 for every part of the layout that belongs to a wanted tensor; `used` may be NULL. The result omits
 * wanted tensors that the layout lacks, and borrows the names of the layout. Fails with LS_ERR_FORMAT if elements are
 * in no file or in several files, and with LS_ERR_UNSUPPORTED if ranks have different tensors with the same name.
 */
ls_safetensors *ls_part_layout_join(const ls_part_layout *layout, const char *folder, const char *of,
                                    const ls_part_layout *wanted, uint8_t *used);
/*
 * Reads the parts of a module from the files of a sharded model, and complete tensors that the module lacks:
 * parameters first, then buffers. `module` may be NULL.
 */
ls_safetensors *ls_part_layout_join_model(const ls_part_layout *layout, const char *folder, const ls_module *module);

/* ---- manifest.c -------------------------------------------------------------------------------------------------- */

typedef struct ls_manifest_file {
    char name[LS_FILE_NAME_LIMIT];
    int64_t bytes;
    char checksum[LS_CHECKSUM_TEXT];
} ls_manifest_file;

enum { LS_SEED_TEXT = 24 };

typedef struct ls_manifest {
    char version[32]; /* Lockstep version that wrote the checkpoint */
    int world_size;
    int shards;     /* `.shards` of ls_data_parallel_options; 0 if not set */
    bool divided;   /* model and optimizer are sharded, with one file per rank */
    bool optimizer; /* the trial has an optimizer */
    int64_t epochs_run;
    int64_t step;
    int64_t batch;
    bool continues; /* the checkpoint was taken within an epoch */
    bool stopped;   /* a hook stopped the run at this checkpoint */
    /*
     * Position of the training loader (-1 if there is no loader), number of batches in its epoch, and number of samples
     * in a global batch (0 if unknown).
     */
    int64_t loader_epoch, loader_batch, loader_batches, global_batch;
    int64_t samples;         /* number of samples of its data set; 0 if unknown */
    char seed[LS_SEED_TEXT]; /* the loader's seed, a decimal number */
    bool no_shuffle;         /* of the loader */
    ls_history_entry latest;
    ls_history history;
    ls_manifest_file *files;
    int file_count;
    ls_part_layout layout; /* layout of a sharded model and its optimizer; empty if Lockstep could not list it */
} ls_manifest;

void ls_manifest_free(ls_manifest *manifest);
ls_status ls_manifest_write(const ls_manifest *manifest, const char *folder);
/*
 * Reads and checks a manifest. Returns ownership to the caller, who frees it with ls_manifest_free. On failure, the
 * manifest is empty. Fails with LS_ERR_FORMAT if the manifest is damaged or missing, and with LS_ERR_UNSUPPORTED if it
 * has a newer format.
 */
ls_status ls_manifest_read(const char *folder, ls_manifest *manifest);

/* ---- folder.c ---------------------------------------------------------------------------------------------------- */

/*
 * Writes "folder/name", or only the folder if the name is "". Fails with LS_ERR_ARGUMENT if the path is too long, or if
 * the folder is "".
 */
ls_status ls_path_join(char path[PATH_MAX], const char *folder, const char *name);
ls_status ls_folder_sync(const char *path);

#define LS_FOLDER_WAIT_NS UINT64_C(500000000) /* time to wait for a different process or machine */
/*
 * Checks that this rank sees an entry of `folder` that rank 0 sees. On a network file system, the entry may appear with
 * a delay. Fails with LS_ERR_IO if the machines do not share the folder.
 */
ls_status ls_folder_await(const char *entry, const char *folder);
/*
 * Renames `from` to `to`. If `to` exists, swaps the two folders, so that the old one is at `from`. Both are in
 * `parent`, which is synced.
 */
ls_status ls_folder_replace(const char *parent, const char *from, const char *to);
/* Removes a folder and the files in it. */
ls_status ls_folder_delete(const char *path);
/* Returns whether the folder contains a manifest, as every checkpoint does. */
bool ls_checkpoint_is_one(const char *folder);

/* Reads the target of the symbolic link `name` in the folder into `led`; "" if there is no link. */
ls_status ls_folder_link(const char *folder, const char *name, char led[NAME_MAX + 1]);

/* Removes the checkpoint `name` from the folder. Renames it first, so that a checkpoint is always complete or
 * missing. */
ls_status ls_checkpoint_remove(const char *folder, const char *name);

#define LS_CHECKPOINT_NAME_LIMIT 64
/* "epoch-000003-step-0000000120". */
void ls_checkpoint_name(char name[LS_CHECKPOINT_NAME_LIMIT], int64_t epochs_run, int64_t step);
bool ls_is_checkpoint_name(const char *text);

/*
 * The kind of entry that a killed run left behind, as determined by the entry's name. Only names in exactly the form
 * that a run uses are recognized.
 */
typedef enum ls_leftover { LS_LEFTOVER_NONE = 0, LS_LEFTOVER_FOLDER, LS_LEFTOVER_LINK } ls_leftover;
ls_leftover ls_checkpoint_leftover(const char *name);

typedef struct ls_folder_names {
    char **items; /* sorted */
    int count;
} ls_folder_names;
/*
 * Lists the names of checkpoints in a folder or, if `prefix` is not NULL, the names that begin with `prefix`. A missing
 * folder has no names.
 */
ls_status ls_folder_list(const char *folder, const char *prefix, ls_folder_names *names);
void ls_folder_names_free(ls_folder_names *names);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* Fails with LS_ERR_FORMAT if a file of the checkpoint in `folder` is missing, or if its size differs from the
 * manifest. Fails with LS_ERR_IO if a file cannot be examined. */
ls_status ls_manifest_check_sizes(const ls_manifest *manifest, const char *folder);
/* Returns LS_OK if all files exist and match the manifest. */
ls_status ls_checkpoint_verify(const char *folder);
/* Finds a checkpoint: `folder` itself if it is one, otherwise the newest complete checkpoint in the folder. Logs the
 * damaged checkpoints that it skips. Sets the path to "" if the folder has no complete checkpoint. */
ls_status ls_checkpoint_find(const char *folder, char path[PATH_MAX]);
/* Returns whether the folder has an undamaged manifest, in this format or a newer one. */
bool ls_checkpoint_is_readable(const char *folder);

/* ---- copies.c ---------------------------------------------------------------------------------------------------- */

typedef struct ls_copies {
    ls_named *items; /* owns the names and tensors */
    int count;
    char **metadata; /* NULL-terminated pairs; NULL if there is no metadata */
} ls_copies;

/* Adds copies in host memory. `prefix` is prepended to their names. */
ls_status ls_copies_add(ls_copies *copies, const char *prefix, const ls_named *named, int count);
/* Adds a one-dimensional tensor with these numbers. */
ls_status ls_copies_add_numbers(ls_copies *copies, const char *name, ls_dtype dtype, int64_t count, void *numbers);
/* Copies the metadata of a model: NULL-terminated pairs. */
ls_status ls_copies_add_metadata(ls_copies *copies, const char *const *metadata);
void ls_copies_free(ls_copies *copies);
/* Stores the hashes of the copies in the parts of a layout, starting at index `first` (layout.c). */
void ls_part_layout_hash(ls_part_layout *layout, int first, const ls_copies *copies);

/* ---- snapshot.c -------------------------------------------------------------------------------------------------- */

/* The files of one rank. */
enum { LS_MODEL_PART = 0, LS_OPTIMIZER_PART, LS_OUTER_PART, LS_RANK_PART, LS_PARTS };

/* The part of a checkpoint that this rank writes. */
typedef struct ls_checkpoint {
    int rank;
    bool writes_model;     /* this rank writes the model, and the state of an outer optimizer */
    bool writes_optimizer; /* this rank writes the state of the optimizer */
    bool own_optimizer;    /* every rank has its own optimizer state */
    ls_copies model, optimizer, outer, own;
    ls_manifest_file written[LS_PARTS]; /* files that this rank has written; an empty name means none */
    ls_manifest manifest;               /* lists files only on rank 0, after all ranks have written */
    char parent[PATH_MAX];
    char temporary[PATH_MAX]; /* folder in `parent` for the files, later renamed to: */
    char folder[PATH_MAX];
    char best[PATH_MAX]; /* path of the link to the best checkpoint; "" if there is none */
    int keep;            /* number of checkpoints to keep; 0 keeps all */
} ls_checkpoint;

/*
 * Copies the trial. `divided` means that the model is sharded on some rank. Returns ownership to the caller. Returns
 * NULL on failure.
 */
ls_checkpoint *ls_checkpoint_take(ls_trial *trial, bool divided);
void ls_checkpoint_free(ls_checkpoint *snapshot);
/* Writes ".new-NONCE-NAME". Returns false if the name is too long. */
bool ls_checkpoint_temporary(char temporary[NAME_MAX + 1], const char *name, uint64_t nonce);
/* Sets the target folder. `nonce` is a number for this write that is equal on all ranks. */
ls_status ls_checkpoint_place(ls_checkpoint *snapshot, const char *parent, const char *name, uint64_t nonce);

/*
 * ls_part_name writes "NAME.safetensors" for rank -1, and "NAME-0001.safetensors" for rank 1. ls_part_path writes the
 * path of this file in a folder, like ls_path_join.
 */
void ls_part_name(char file[LS_FILE_NAME_LIMIT], const char *name, int rank);
ls_status ls_part_path(char path[PATH_MAX], const char *folder, const char *name, int rank);

/* ---- content.c --------------------------------------------------------------------------------------------------- */

/* A checkpoint that is being restored into a trial. */
typedef struct ls_resumption {
    ls_trial *trial;
    const char *folder;
    ls_manifest manifest;
    int rank, size;          /* rank and number of ranks of the trial */
    ls_safetensors *own;     /* file of this rank, or of rank 0 if the rank is new */
    const ls_named *tensors; /* tensors of the current part in that file, without their prefix */
    int count;
    bool joins;                        /* the model's sharding differs from the checkpoint's */
    ls_part_layout layout;             /* layout of the files, if the checkpoint's model is not sharded */
    ls_safetensors *model, *optimizer; /* this rank's tensors, if `joins` is set */
    int64_t batch;                     /* position in the trial's epoch, in global batches of the trial */
    int64_t loader_batch;              /* position in the loader's epoch */
} ls_resumption;

/*
 * ls_checkpoint_get_contents copies the complete contents of the trial into the snapshot. ls_checkpoint_set_contents
 * restores the contents of a checkpoint into the trial.
 */
ls_status ls_checkpoint_get_contents(ls_trial *trial, ls_checkpoint *to);
ls_status ls_checkpoint_set_contents(ls_resumption *from);

/* ---- tensors.c --------------------------------------------------------------------------------------------------- */

ls_status ls_checkpoint_get_model(ls_trial *trial, const char *prefix, ls_checkpoint *to);
ls_status ls_checkpoint_get_optimizer(ls_trial *trial, const char *prefix, ls_checkpoint *to);
ls_status ls_checkpoint_get_outer(ls_trial *trial, const char *prefix, ls_checkpoint *to);
ls_status ls_checkpoint_set_model(ls_resumption *from);
ls_status ls_checkpoint_set_optimizer(ls_resumption *from);
ls_status ls_checkpoint_set_outer(ls_resumption *from);
/* Returns whether the checkpoint contains the file with this name and rank. */
bool ls_checkpoint_has_part(const ls_resumption *from, const char *name, int rank);

/* ---- callbacks.c ------------------------------------------------------------------------------------------------- */

ls_status ls_checkpoint_get_callbacks(ls_trial *trial, const char *prefix, ls_checkpoint *to);
ls_status ls_checkpoint_set_callbacks(ls_resumption *from);

/* ---- split.c ----------------------------------------------------------------------------------------------------- */

/*
 * Agrees with all ranks whether the model's sharding differs from the checkpoint's sharding. If so, reads this rank's
 * tensors. Fails on every rank if the checkpoint and the model do not contain the same tensors. Collective.
 */
ls_status ls_checkpoint_split(ls_resumption *from);

/* ---- write.c ----------------------------------------------------------------------------------------------------- */

/* Writes this rank's files to the temporary folder. */
ls_status ls_checkpoint_write(ls_checkpoint *snapshot);
/* Sends each rank's list of files to rank 0, after all ranks have written. Collective. `comm` is NULL for a single
 * process. */
ls_status ls_checkpoint_gather(ls_checkpoint *snapshot, ls_comm *comm);
/* On rank 0, makes these files a checkpoint, and removes older checkpoints. */
ls_status ls_checkpoint_commit(ls_checkpoint *snapshot);
/* Removes the files that this rank has written. */
void ls_checkpoint_discard(const ls_checkpoint *snapshot);

/* ---- writer.c ---------------------------------------------------------------------------------------------------- */

typedef ls_status ls_writing(ls_checkpoint *snapshot);

typedef struct ls_writer {
    pthread_t thread;
    bool started;
    atomic_bool done;
    ls_writing *function;
    ls_checkpoint *snapshot; /* borrowed */
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} ls_writer;

ls_status ls_writer_start(ls_writer *writer, ls_writing *function, ls_checkpoint *snapshot);
/* Waits for the thread. If the thread failed, sets its error as this thread's error. */
ls_status ls_writer_join(ls_writer *writer);

/* ---- signals.c --------------------------------------------------------------------------------------------------- */

/*
 * Starts counting SIGTERM and SIGUSR1 in this process. Sets *before to the current count, and *stack to this thread's
 * signal stack. Pass both to ls_signals_end on the same thread.
 */
ls_status ls_signals_begin(uint32_t *before, void **stack);
/* Returns the last signal since the count was `before`, or 0 if there was none. */
int ls_signals_since(uint32_t before);
void ls_signals_end(void *stack);

/* ---- runs.c ------------------------------------------------------------------------------------------------------ */

/* The phase of writing a checkpoint on a rank. The largest phase over all ranks counts. */
enum { LS_IDLE = 0, LS_SETTLING, LS_WRITING };

struct ls_checkpointer {
    ls_checkpoint_options options; /* options with copied strings */
    double best[2];     /* best value so far; [1] is its best_kind, 1 in older checkpoints, or 0 if there is no value */
    double best_kind;   /* identifies the metric and the direction of the best value */
    bool begun;         /* a run has begun */
    bool signals;       /* signals are counted */
    void *signal_stack; /* for ls_signals_end */
    uint32_t heard;     /* signal count at the start */
    int lock;           /* descriptor of the locked folder on rank 0; -1 if none */
    uint64_t nonce;     /* number of the next write */
    bool divided;
    bool due;      /* a checkpoint must be written as soon as possible */
    uint64_t last; /* time of the last checkpoint, from ls_clock_ns */
    bool is_best;  /* the current epoch has the best value so far */
    bool committing;
    int phase;
    ls_checkpoint *snapshot; /* snapshot that is being written; NULL if none */
    ls_writer writer;
};

/*
 * ls_checkpoints_begin begins a run and opens the folder. With `.overwrite`, ls_checkpoints_overwrite removes the
 * checkpoints of an earlier run, once only the first step can still fail. ls_checkpoints_finish ends a successful run:
 * it waits until everything is written. ls_checkpoints_end ends every run.
 */
ls_status ls_checkpoints_begin(ls_trial *trial);
ls_status ls_checkpoints_overwrite(ls_trial *trial);
ls_status ls_checkpoints_finish(ls_trial *trial);
void ls_checkpoints_end(ls_trial *trial);

/*
 * The two parts of an agreement at the end of a step or an epoch (step.c). ls_checkpoints_vote stores this rank's
 * request in trial->ballot, and returns the status of its writing. ls_checkpoints_act carries out the decision of all
 * ranks. It returns LS_ERR_STOPPED if a signal ended the run.
 */
ls_status ls_checkpoints_vote(ls_trial *trial, bool epoch);
ls_status ls_checkpoints_act(ls_trial *trial, bool epoch);

/* ---- load.c ------------------------------------------------------------------------------------------------------ */

/*
 * Restores the trial from the newest complete checkpoint in the folder. If there is none, leaves the trial unchanged,
 * or fails if `needed` is set. Collective.
 */
ls_status ls_trial_go_on_from(ls_trial *trial, const char *folder, bool needed);

/* ---- options.c --------------------------------------------------------------------------------------------------- */

/* Writes the options that must be equal on all ranks into `text`. */
void ls_checkpointer_describe(const ls_checkpointer *checkpointer, char *text, size_t size);

/* Creates the checkpointer of a trial. Copies the options. Returns NULL on failure. */
ls_checkpointer *ls_checkpointer_new(const ls_checkpoint_options *options);
void ls_checkpointer_free(ls_checkpointer *checkpointer);

#endif
