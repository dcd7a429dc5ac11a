/* `lockstep checkpoint diff`: compares the tensors of two checkpoints by file and name, or the tensors of two files. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/checkpoint.h"
#include "cli/cli.h"
#include "tensor/tensor.h"

static const char other_sharding[] =
    "the models are sharded in different ways: `lockstep checkpoint export` of both makes "
    "files that can be compared";

typedef struct comparison {
    char folders[2][PATH_MAX];
    json_t *lines; /* NULL: for people */
    int64_t differences;
    bool other_sharding; /* so that the files cannot be compared */
} comparison;

/* Writes the difference of one tensor. `elements` is -1 if the tensors cannot be compared element by element. */
static void report(comparison *c, const char *file, const char *name, const char *what, int64_t elements,
                   double largest) {
    c->differences++;
    if (c->lines != NULL) {
        json_t *line = json_pack("{s:s, s:s, s:s}", "file", file, "name", name, "difference", what);
        if (elements >= 0) {
            json_object_set_new(line, "elements", json_integer(elements));
            json_object_set_new(line, "largest", isfinite(largest) ? json_real(largest) : json_null());
        }
        json_array_append_new(c->lines, line);
    } else {
        printf("%s: %s: %s\n", file, name, what);
    }
}

static void compare_numbers(comparison *c, const char *file, ls_named left, const ls_tensor *right) {
    const size_t size = ls_dtype_size(ls_dtype_of(right));
    const char *ours = ls_data_const(left.tensor), *theirs = ls_data_const(right);
    int64_t elements = 0;
    double largest = 0;
    for (int64_t i = 0; i < ls_numel(right); i++) {
        const char *a = ours + (size_t)i * size, *b = theirs + (size_t)i * size;
        if (memcmp(a, b, size) != 0) {
            const double distance =
                fabs(ls_element_number(ls_dtype_of(right), a) - ls_element_number(ls_dtype_of(right), b));
            largest = !(distance <= largest) ? distance : largest;
            elements++;
        }
    }
    if (elements > 0) {
        char what[128];
        snprintf(what, sizeof what, "%lld of %lld elements differ, by %g at most", (long long)elements,
                 (long long)ls_numel(right), largest);
        report(c, file, left.name, what, elements, largest);
    }
}

static void compare_tensor(comparison *c, const char *file, ls_named left, const ls_safetensors *others) {
    const ls_tensor *right = ls_safetensors_find(others, left.name);
    char what[512];
    if (right == NULL) {
        report(c, file, left.name, "only in the first", -1, 0);
    } else if (!ls_tensor_same_shape(left.tensor, right) || ls_dtype_of(left.tensor) != ls_dtype_of(right)) {
        snprintf(what, sizeof what, "%s of %s, and %s of %s", LS_SHAPE_TEXT(left.tensor),
                 ls_dtype_name(ls_dtype_of(left.tensor)), LS_SHAPE_TEXT(right), ls_dtype_name(ls_dtype_of(right)));
        report(c, file, left.name, what, -1, 0);
    } else {
        compare_numbers(c, file, left, right);
    }
}

/* Compares the files at two paths. `name` is for the lines. */
static ls_status compare_files(comparison *c, const char *name, const char *const paths[2]) {
    ls_safetensors *files[2] = {NULL, NULL};
    ls_status status = LS_OK;
    for (int side = 0; status == LS_OK && side < 2; side++) {
        files[side] = ls_safetensors_load(paths[side]);
        status = files[side] != NULL ? LS_OK : ls_error_status();
    }
    for (int i = 0; status == LS_OK && i < ls_safetensors_count(files[0]); i++) {
        compare_tensor(c, name, ls_safetensors_at(files[0], i), files[1]);
    }
    for (int i = 0; status == LS_OK && i < ls_safetensors_count(files[1]); i++) {
        const ls_named right = ls_safetensors_at(files[1], i);
        if (ls_safetensors_find(files[0], right.name) == NULL) {
            report(c, name, right.name, "only in the second", -1, 0);
        }
    }
    ls_safetensors_free(files[0]);
    ls_safetensors_free(files[1]);
    return status;
}

/* Compares the files with this name in both checkpoints. */
static ls_status compare_files_named(comparison *c, const char *name) {
    char left[PATH_MAX], right[PATH_MAX];
    LS_TRY(ls_path_join(left, c->folders[0], name));
    LS_TRY(ls_path_join(right, c->folders[1], name));
    return compare_files(c, name, (const char *const[]){left, right});
}

static bool has_file(const ls_manifest *manifest, const char *name) {
    for (int i = 0; i < manifest->file_count; i++) {
        if (strcmp(manifest->files[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The state that each rank has for itself is not compared: a different number of ranks is not a difference between
 * two models. */
static ls_status compare(comparison *c, const ls_manifest manifests[2]) {
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < manifests[side].file_count; i++) {
            const char *name = manifests[side].files[i].name;
            const bool both = has_file(&manifests[1 - side], name);
            if (strncmp(name, "rank-", 5) == 0 || (both && side == 1)) {
                continue;
            }
            if (both) {
                LS_TRY(compare_files_named(c, name));
            } else {
                report(c, name, "the file", side == 0 ? "only in the first" : "only in the second", -1, 0);
            }
        }
    }
    return LS_OK;
}

/* ---- sharding ---------------------------------------------------------------------------------------------------- */

/* Returns whether the parts lie on the same rank, along the same axis and, if their tensors have one shape, in the same
 * range. */
static bool lies_alike(const ls_part *a, const ls_part *b) {
    return a->rank == b->rank && a->axis == b->axis && (!ls_shape_equal(&a->shape, &b->shape) || ls_part_is_same(a, b));
}

/* Returns whether `layout` has the tensor of a part, but no part that lies alike. */
static bool lies_elsewhere(const ls_part *part, const ls_part_layout *layout) {
    bool known = false;
    for (int i = 0; i < layout->count; i++) {
        const ls_part *other = &layout->parts[i];
        if (strcmp(other->name, part->name) == 0 && strcmp(other->of, part->of) == 0) {
            if (lies_alike(part, other)) {
                return false;
            }
            known = true;
        }
    }
    return known;
}

static bool same_sharding(const ls_manifest manifests[2]) {
    bool same = manifests[0].divided == manifests[1].divided &&
                (!manifests[0].divided || manifests[0].world_size == manifests[1].world_size);
    for (int i = 0; i < manifests[0].layout.count && same; i++) {
        same = !lies_elsewhere(&manifests[0].layout.parts[i], &manifests[1].layout);
    }
    return same;
}

static ls_status compare_same_sharding(comparison *c, const ls_manifest manifests[2]) {
    if (same_sharding(manifests)) {
        return compare(c, manifests);
    }
    c->other_sharding = true;
    c->differences++;
    if (c->lines == NULL) {
        puts(other_sharding);
    }
    return LS_OK;
}

static ls_status compare_checkpoints(comparison *c, const char *const *paths) {
    ls_manifest manifests[2] = {{.file_count = 0}, {.file_count = 0}};
    ls_status status = LS_OK;
    for (int side = 0; status == LS_OK && side < 2; side++) {
        status = ls_checkpoint_resolve(paths[side], c->folders[side]);
        status = status == LS_OK ? ls_manifest_read(c->folders[side], &manifests[side]) : status;
    }
    status = status == LS_OK ? compare_same_sharding(c, manifests) : status;
    ls_manifest_free(&manifests[0]);
    ls_manifest_free(&manifests[1]);
    return status;
}

/* Fails if one path is a file and the other is a checkpoint. */
static ls_status check_kinds(const char *const *paths) {
    const int file = ls_checkpoint_is_file(paths[0]) ? 0 : 1;
    char folder[PATH_MAX];
    if (ls_checkpoint_is_file(paths[0]) == ls_checkpoint_is_file(paths[1])) {
        return LS_OK;
    }
    LS_TRY(ls_checkpoint_resolve(paths[1 - file], folder));
    return ls_fail(LS_ERR_ARGUMENT,
                   "lockstep checkpoint: diff: %s is a file, but %s is a checkpoint: compare the file with the weights "
                   "that `lockstep checkpoint export %s FILE` writes",
                   paths[file], folder, folder);
}

ls_status ls_checkpoint_compare(const ls_checkpoint_words *words) {
    const char *const *paths = words->paths;
    LS_TRY(check_kinds(paths));
    comparison c = {.lines = words->json ? json_array() : NULL};
    const ls_status status =
        ls_checkpoint_is_file(paths[0]) ? compare_files(&c, paths[0], paths) : compare_checkpoints(&c, paths);
    if (status != LS_OK) {
        json_decref(c.lines);
        return status;
    }
    *words->exit_status = c.differences > 0 ? LS_EXIT_FAILED : 0;
    return words->json ? ls_checkpoint_print(json_pack("{s:b, s:s?, s:o}", "same", c.differences == 0, "reason",
                                                       c.other_sharding ? other_sharding : NULL, "tensors", c.lines))
                       : LS_OK;
}
