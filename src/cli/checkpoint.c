/* `lockstep checkpoint`: selects the action. Contains the short actions ls, verify and export. */
#include "cli/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/cli.h"
#include "formats/file.h"
#include "formats/named.h"

enum { MOST_WORDS = 3, PIECE = 1 << 18 };

typedef struct checkpoint_values {
    bool json, hdf5;
} checkpoint_values;

static const ls_cli_option options[] = {
    {"json", 0, LS_OPTION_FLAG, NULL, offsetof(checkpoint_values, json), 0, 0,
     "one JSON object (ls, verify: per line)"},
    {"hdf5", 0, LS_OPTION_FLAG, NULL, offsetof(checkpoint_values, hdf5), 0, 0,
     "write an HDF5 file, for h5py, instead of safetensors (export)"},
};

static const struct {
    const char *name;
    int paths;
    const char *usage;
    ls_checkpoint_action *act;
} actions[] = {
    {"ls", 1, "ls FOLDER", ls_checkpoint_list},
    {"show", 1, "show PATH", ls_checkpoint_show},
    {"verify", 1, "verify PATH", ls_checkpoint_check},
    {"diff", 2, "diff PATH PATH", ls_checkpoint_compare},
    {"export", 2, "export PATH FILE", ls_checkpoint_export},
};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

/* ---- ls ---------------------------------------------------------------------------------------------------------- */

static ls_status list_json(const char *name, const ls_manifest *manifest, const char *damage, bool best) {
    json_t *line =
        json_pack("{s:s, s:b, s:b, s:s?}", "name", name, "readable", damage == NULL, "best", best, "reason", damage);
    if (damage == NULL) {
        json_object_set_new(line, "epochs_run", json_integer(manifest->epochs_run));
        json_object_set_new(line, "step", json_integer(manifest->step));
        json_object_set_new(line, "batch", json_integer(manifest->batch));
        json_object_set_new(line, "world_size", json_integer(manifest->world_size));
        json_object_set_new(line, "bytes", json_integer(ls_manifest_bytes(manifest)));
    }
    return ls_checkpoint_print(line);
}

static ls_status list_one(const char *name, const char *best, const ls_checkpoint_words *words) {
    char path[PATH_MAX];
    ls_manifest manifest;
    LS_TRY(ls_path_join(path, words->paths[0], name));
    const bool complete =
        ls_manifest_read(path, &manifest) == LS_OK && ls_manifest_check_sizes(&manifest, path) == LS_OK;
    const char *damage = complete ? NULL : ls_error_message();
    const bool is_best = strcmp(name, best) == 0;
    ls_status status = LS_OK;
    if (damage != NULL) {
        *words->exit_status = LS_EXIT_FAILED;
    }
    if (words->json) {
        status = list_json(name, &manifest, damage, is_best);
    } else if (damage != NULL) {
        printf("%s  %s\n", name, damage);
    } else {
        char place[64] = "";
        if (manifest.continues) {
            snprintf(place, sizeof place, ", within an epoch");
        }
        printf("%s  %3d rank%s  %10s%s%s\n", name, manifest.world_size, manifest.world_size == 1 ? " " : "s",
               ls_size_describe(ls_manifest_bytes(&manifest)).text, is_best ? "  best" : "", place);
    }
    ls_manifest_free(&manifest);
    return status;
}

ls_status ls_checkpoint_list(const ls_checkpoint_words *words) {
    const char *folder = words->paths[0];
    char best[NAME_MAX + 1];
    ls_folder_names names;
    LS_TRY(ls_checkpoint_check_folder(folder));
    LS_TRY(ls_folder_link(folder, "best", best));
    LS_TRY(ls_folder_list(folder, NULL, &names));
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < names.count; i++) {
        status = list_one(names.items[i], best, words);
    }
    if (names.count == 0) {
        status = ls_fail(LS_ERR_IO, "lockstep checkpoint: %s contains no checkpoints%s", folder,
                         ls_checkpoint_is_one(folder) ? ": it is a checkpoint; use `lockstep checkpoint show`" : "");
    }
    ls_folder_names_free(&names);
    return status;
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */

static ls_status check_one(const char *path, const ls_checkpoint_words *words) {
    const char *damage = ls_checkpoint_verify(path) == LS_OK ? NULL : ls_error_message();
    if (damage != NULL) {
        *words->exit_status = LS_EXIT_FAILED;
    }
    if (words->json) {
        return ls_checkpoint_print(
            json_pack("{s:s, s:b, s:s?}", "path", path, "whole", damage == NULL, "reason", damage));
    }
    printf("%s  %s\n", path, damage == NULL ? "whole" : damage);
    return LS_OK;
}

ls_status ls_checkpoint_check(const ls_checkpoint_words *words) {
    const char *folder = words->paths[0];
    ls_folder_names names;
    LS_TRY(ls_checkpoint_check_folder(folder));
    LS_TRY(ls_folder_list(folder, NULL, &names));
    ls_status status = names.count == 0 || ls_checkpoint_is_one(folder) ? check_one(folder, words) : LS_OK;
    for (int i = 0; status == LS_OK && i < names.count; i++) {
        char path[PATH_MAX];
        status = ls_path_join(path, folder, names.items[i]);
        status = status == LS_OK ? check_one(path, words) : status;
    }
    ls_folder_names_free(&names);
    return status;
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

static ls_status copy_bytes(ls_source *source, ls_new_file *file, void *piece) {
    for (size_t got = PIECE; got == PIECE;) {
        LS_TRY(ls_source_read(source, piece, PIECE, &got));
        if (fwrite(piece, 1, got, file->stream) != got) {
            return ls_fail(LS_ERR_IO, "lockstep checkpoint: cannot write %s: is the disk full?", file->path);
        }
    }
    return LS_OK;
}

static ls_status copy_file(const char *from, const char *to) {
    ls_source source;
    ls_new_file file;
    LS_TRY(ls_source_open("lockstep checkpoint", from, false, &source));
    void *piece = ls_allocate(PIECE);
    ls_status status =
        piece != NULL ? ls_file_create("lockstep checkpoint", to, &file) : ls_fail_memory("lockstep checkpoint", PIECE);
    if (status == LS_OK) {
        status = ls_file_commit("lockstep checkpoint", &file, copy_bytes(&source, &file, piece));
    }
    ls_free(piece);
    ls_source_close(&source);
    return status;
}

/* Copies the tensors of a safetensors file into an HDF5 file. */
static ls_status convert(const ls_safetensors *file, const char *to) {
    if (file == NULL) {
        return ls_error_status();
    }
    const int count = ls_safetensors_count(file);
    ls_named *tensors = ls_allocate_zeroed((size_t)count, sizeof *tensors);
    ls_status status = LS_OK;
    if (tensors == NULL) {
        status = ls_fail_memory("lockstep checkpoint", (size_t)count * sizeof *tensors);
    } else {
        for (int i = 0; i < count; i++) {
            tensors[i] = ls_safetensors_at(file, i);
        }
        status = ls_hdf5_save(to, tensors, count);
    }
    ls_free(tensors);
    return status;
}

/* Joins the parts of a sharded model. */
static ls_status export_parts(const ls_checkpoint_words *words, const char *folder, const ls_manifest *manifest) {
    if (manifest->layout.count == 0) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "lockstep checkpoint: the model of %s is sharded over %d ranks, and the manifest does not list the parts: "
            "each rank has a file with its weights, model-0000.safetensors and so on",
            folder, manifest->world_size);
    }
    ls_safetensors *file = ls_part_layout_join_model(&manifest->layout, folder, NULL);
    const ls_status status =
        words->hdf5 || file == NULL ? convert(file, words->paths[1]) : ls_safetensors_save_file(words->paths[1], file);
    ls_safetensors_free(file);
    return status;
}

static ls_status export_file(const ls_checkpoint_words *words, const char *folder) {
    char path[PATH_MAX];
    LS_TRY(ls_path_join(path, folder, LS_MODEL_NAME ".safetensors"));
    if (!words->hdf5) {
        return copy_file(path, words->paths[1]);
    }
    ls_safetensors *file = ls_safetensors_load(path);
    const ls_status status = convert(file, words->paths[1]);
    ls_safetensors_free(file);
    return status;
}

/* Refuses a file in the checkpoint itself: the export would replace a file of the checkpoint, or add an unknown file.
 */
static ls_status check_target(const char *target, const char *folder) {
    char parent[PATH_MAX];
    struct stat of_parent, of_folder;
    const char *slash = strrchr(target, '/');
    const int length = slash == NULL ? 0 : (int)(slash - target) + 1;
    const bool fits = snprintf(parent, sizeof parent, "%.*s.", length, target) < (int)sizeof parent;
    const bool inside = fits && stat(parent, &of_parent) == 0 && stat(folder, &of_folder) == 0 &&
                        of_parent.st_dev == of_folder.st_dev && of_parent.st_ino == of_folder.st_ino;
    return inside ? ls_fail(LS_ERR_ARGUMENT,
                            "lockstep checkpoint: export: %s is in the checkpoint: choose a file outside of it", target)
                  : LS_OK;
}

ls_status ls_checkpoint_export(const ls_checkpoint_words *words) {
    char folder[PATH_MAX];
    ls_manifest manifest;
    LS_TRY(ls_checkpoint_resolve(words->paths[0], folder));
    LS_TRY(check_target(words->paths[1], folder));
    LS_TRY(ls_manifest_read(folder, &manifest));
    const ls_status status = manifest.divided ? export_parts(words, folder, &manifest) : export_file(words, folder);
    ls_manifest_free(&manifest);
    LS_TRY(status);
    return words->json ? ls_checkpoint_print(json_pack("{s:s, s:s}", "checkpoint", folder, "file", words->paths[1]))
                       : LS_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static ls_status fail_unknown(const char *word) {
    int nearest = 0;
    for (int i = 1; i < ACTIONS; i++) {
        if (ls_word_distance(word, actions[i].name) < ls_word_distance(word, actions[nearest].name)) {
            nearest = i;
        }
    }
    if (ls_word_is_near(word, ls_word_distance(word, actions[nearest].name))) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep checkpoint: unknown action '%s'; did you mean '%s'?", word,
                       actions[nearest].name);
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   "lockstep checkpoint: unknown action '%s'; available: ls, show, verify, diff and export", word);
}

static ls_status act(const char *const *words, int count, const checkpoint_values *values, int *exit_status) {
    if (count == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep checkpoint: no action given (usage: lockstep checkpoint %s)",
                       ls_checkpoint_command.usage);
    }
    for (int i = 0; i < ACTIONS; i++) {
        if (strcmp(words[0], actions[i].name) != 0) {
            continue;
        }
        if (count != actions[i].paths + 1) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep checkpoint: %s: %d path%s given (usage: lockstep checkpoint %s)",
                           actions[i].name, count - 1, count == 2 ? "" : "s", actions[i].usage);
        }
        if (values->hdf5 && actions[i].act != ls_checkpoint_export) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep checkpoint: %s: --hdf5 is an option of export only",
                           actions[i].name);
        }
        return actions[i].act(&(ls_checkpoint_words){
            .paths = words + 1, .json = values->json, .hdf5 = values->hdf5, .exit_status = exit_status});
    }
    return fail_unknown(words[0]);
}

/* Options may stand before, between and after the positional arguments. */
static ls_status read_and_act(int argc, char **argv, int *exit_status) {
    checkpoint_values values = {0};
    const char *words[MOST_WORDS];
    int count = 0;
    for (int at = 0; at < argc;) {
        int rest = 0;
        bool help = false;
        LS_TRY(ls_options_parse(&ls_checkpoint_command, argc - at, argv + at, &values, &rest, &help));
        if (help) {
            ls_options_help(&ls_checkpoint_command);
            return LS_OK;
        }
        at += rest;
        if (at < argc && count == MOST_WORDS) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "lockstep checkpoint: unexpected argument '%s' (usage: lockstep checkpoint %s)", argv[at],
                           ls_checkpoint_command.usage);
        }
        if (at < argc) {
            words[count++] = argv[at];
        }
    }
    return act(words, count, &values, exit_status);
}

/* The library's error messages begin with the name of a call, which the user of this command has not made. */
static ls_status run(int argc, char **argv, int *exit_status) {
    static const char own[] = "lockstep checkpoint: ";
    char message[LS_ERROR_CAPACITY];
    const ls_status status = read_and_act(argc, argv, exit_status);
    memcpy(message, ls_error_message(), sizeof message);
    if (status == LS_OK || strncmp(message, own, sizeof own - 1) == 0) {
        return status;
    }
    const char *reason = strstr(message, ": ");
    return ls_fail(status, "%s%s", own, reason != NULL ? reason + 2 : message);
}

static void list_values(const char *option, FILE *stream) {
    for (int i = 0; option == NULL && i < ACTIONS; i++) {
        fprintf(stream, "%s ", actions[i].name);
    }
}

const ls_command ls_checkpoint_command = {
    .name = "checkpoint",
    .summary = "list, show, verify, compare and export checkpoints of trials",
    .usage = "ACTION PATH [PATH] [--json] [--hdf5]",
    .about = "Inspects checkpoints of trials, without changing them.\n"
             "\n"
             "actions:\n"
             "  ls FOLDER          list the checkpoints in a folder, oldest first\n"
             "  show PATH          print the position in training, the results, the files and the parameters\n"
             "  verify PATH        check the checksums of all files; PATH may be a folder of checkpoints\n"
             "  diff PATH PATH     compare parameters, buffers and optimizer state, and print the differences\n"
             "  export PATH FILE   write the weights to one safetensors file, which ls_module_load reads;\n"
             "                     the parts of a model that is sharded over ranks are joined;\n"
             "                     with --hdf5, to an HDF5 file, which h5py reads\n"
             "\n"
             "PATH is a checkpoint, or a folder of checkpoints, which selects the newest complete checkpoint.\n"
             "show also accepts a safetensors file, such as a file of weights, and diff accepts two such files.\n",
    .notes = "examples:\n"
             "  lockstep checkpoint ls run1\n"
             "  lockstep checkpoint diff run1/epoch-000003-step-0000000300 run2/epoch-000003-step-0000000300\n"
             "  lockstep checkpoint export run1/best weights.safetensors\n"
             "  lockstep checkpoint show weights.safetensors\n"
             "  lockstep checkpoint export run1/best weights.h5 --hdf5\n"
             "\n"
             "keys of --json:\n"
             "  ls        name, readable (all files exist with the right sizes), best, reason (what is damaged,\n"
             "            else null), epochs_run, step, batch, world_size, bytes\n"
             "  show      path, version, world_size, divided, epochs_run, step, batch, continues (within an epoch),\n"
             "            stopped (by a hook), loader_epoch, loader_batch, epochs (in the history), latest\n"
             "            (results by name; null: not finite), files (each: name, bytes, xxh3), tensors (each: file,\n"
             "            name, dtype, shape), metadata (by file if each rank saved a part); for a file,\n"
             "            only path, tensors and metadata\n"
             "  verify    path, whole, reason\n"
             "  diff      same, reason (why no tensors were compared, else null), tensors (each: file, name,\n"
             "            difference; elements and largest where they have one shape)\n"
             "  export    checkpoint, file\n"
             "\n"
             "exit status:\n"
             "  0    undamaged, or equal     1    damaged, different, or unreadable     2    wrong command line\n",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .list_values = list_values,
    .run = run,
};
