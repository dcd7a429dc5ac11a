/* `lockstep checkpoint`: inspects the checkpoints of trials. One function for each action. */
#ifndef LS_CLI_CHECKPOINT_H
#define LS_CLI_CHECKPOINT_H

#include <jansson.h>

#include "train/checkpoint/checkpoint.h"

/* The arguments of an action. */
typedef struct ls_checkpoint_words {
    const char *const *paths; /* as many paths as the action takes */
    bool json;
    bool hdf5; /* export only */
    int *exit_status;
} ls_checkpoint_words;

typedef ls_status ls_checkpoint_action(const ls_checkpoint_words *words);

ls_checkpoint_action ls_checkpoint_list, ls_checkpoint_show, ls_checkpoint_check, ls_checkpoint_compare,
    ls_checkpoint_export;

/* Returns whether there is a file at the path, such as a file of weights. */
bool ls_checkpoint_is_file(const char *path);

/* Returns LS_OK if there is a folder at the path. */
ls_status ls_checkpoint_check_folder(const char *path);

/* Finds the checkpoint at the path, or the newest complete checkpoint in the folder at the path. */
ls_status ls_checkpoint_resolve(const char *path, char folder[PATH_MAX]);

/* Prints an object on one line. Takes ownership of the reference to the object. */
ls_status ls_checkpoint_print(json_t *object);

int64_t ls_manifest_bytes(const ls_manifest *manifest);

#endif
