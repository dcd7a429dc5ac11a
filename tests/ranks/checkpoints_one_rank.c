/*
 * Loading a checkpoint with ZeRO if the last rank has another folder, in which one file is missing, truncated, of
 * another model or unreadable: all ranks fail with the cause, and a later load succeeds.
 *
 * ranks: 2 4
 * devices: cpu shadow
 */
#include "tests/support/resumed.h"

#include <sched.h>
#include <sys/stat.h>

/*
 * The damage of a file of the last rank. UNREADABLE is found only when its tensor is read. DIFFERENT has the shapes of
 * the model, but other numbers.
 */
typedef enum damage { MISSING, TRUNCATED, OTHER_SHAPES, UNREADABLE, DIFFERENT, DAMAGES } damage;

static const char *const model_file = "model.safetensors", *const optimizer_file = "optimizer.safetensors";

static ls_status copy_file(const char *to, const char *from, const char *name) {
    char path[2][PATH_MAX];
    snprintf(path[0], PATH_MAX, "%s/%s/%s", scratch, from, name);
    snprintf(path[1], PATH_MAX, "%s/%s/%s", scratch, to, name);
    FILE *source = fopen(path[0], "rb"), *target = fopen(path[1], "wb");
    LS_CHECK(source != NULL && target != NULL);
    for (int c = getc(source); c != EOF; c = getc(source)) {
        LS_CHECK(putc(c, target) == c);
    }
    LS_CHECK(fclose(source) == 0 && fclose(target) == 0);
    return LS_OK;
}

/* Copies what a rank reads of a checkpoint. */
static ls_status copy_checkpoint(const char *to, const char *from, int rank) {
    char own[LS_FILE_NAME_LIMIT];
    ls_part_name(own, LS_RANK_NAME, rank);
    LS_TRY(copy_file(to, from, LS_MANIFEST_NAME));
    LS_TRY(copy_file(to, from, model_file));
    LS_TRY(copy_file(to, from, optimizer_file));
    return copy_file(to, from, own);
}

/* Writes the file of a model, or of its optimizer, with other shapes or other numbers. */
static ls_status save_other(const char *path, bool model, bool same_shapes) {
    ls_seed(SEED + 1);
    const int64_t width = same_shapes ? WIDE : WIDE + 1;
    ls_module *other = ls_sequential(ls_nn_linear(INPUTS, width), ls_nn_batch_norm_1d(width, NULL), ls_nn_relu(),
                                     ls_nn_dropout(0.3), ls_nn_linear(width, CLASSES));
    ls_optimizer *optimizer = ls_adam(other, NULL);
    const ls_status status = model ? ls_module_save(other, path, NULL) : ls_optimizer_save(optimizer, path, NULL);
    ls_optimizer_free(optimizer);
    ls_module_free(other);
    return status;
}

/* Fills a tensor of the file with a number of a dtype. */
static ls_status replace_tensor(const char *path, const char *name, ls_dtype dtype, double value) {
    ls_safetensors *file = ls_safetensors_load(path);
    const int count = ls_safetensors_count(file);
    ls_named all[64];
    ls_tensor *other = NULL;
    LS_CHECK(file != NULL && count <= 64);
    for (int i = 0; i < count; i++) {
        all[i] = ls_safetensors_at(file, i);
        if (strcmp(all[i].name, name) == 0) {
            other = all[i].tensor = ls_full(ls_shape_of(all[i].tensor), dtype, value);
        }
    }
    LS_CHECK(other != NULL);
    LS_TRY(ls_safetensors_save(path, all, count, NULL));
    ls_tensor_drop(other);
    ls_safetensors_free(file);
    return LS_OK;
}

/* Replaces a tensor of the file by unsigned integers that Lockstep does not have. */
static ls_status save_unsigned(const char *path, const char *name) {
    char head[1 << 14] = "";
    LS_TRY(replace_tensor(path, name, LS_I64, -1));
    FILE *written = fopen(path, "r+b");
    LS_CHECK(written != NULL && fseek(written, 8, SEEK_SET) == 0 && fread(head, 1, sizeof head - 1, written) > 0);
    char *found = strstr(head, name);
    found = found != NULL ? strstr(found, "\"I64\"") : NULL;
    LS_CHECK(found != NULL && fseek(written, 8 + (found + 1 - head), SEEK_SET) == 0 && putc('U', written) == 'U');
    LS_CHECK(fclose(written) == 0);
    return LS_OK;
}

static ls_status damage_file(const char *folder, const char *name, damage how) {
    char path[PATH_MAX];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s/%s", scratch, folder, name);
    LS_CHECK(stat(path, &about) == 0);
    if (how == MISSING) {
        LS_CHECK(remove(path) == 0);
    } else if (how == TRUNCATED) {
        LS_CHECK(truncate(path, about.st_size - 1) == 0);
    } else if (how == UNREADABLE) {
        LS_TRY(save_unsigned(path, name == model_file ? "0.bias" : "0.bias.step"));
    } else {
        LS_TRY(save_other(path, name == model_file, how == DIFFERENT));
    }
    return LS_OK;
}

static const struct {
    ls_status status;
    const char *message;
} expected[DAMAGES] = {{LS_ERR_IO, "cannot open"},
                       {LS_ERR_FORMAT, "data_offsets do not lie in the file"},
                       {LS_ERR_SHAPE, " in the file"},
                       {LS_ERR_UNSUPPORTED, "tensor 0.bias"},
                       {LS_ERR_MISMATCH, "of the checkpoint differs between the ranks"}};

/* The last rank loads a damaged copy. If the header of its model is damaged, no rank changes its model. */
static ls_status load_damaged(ls_comm *world, training *t, const char *name, damage how) {
    const int last = ls_comm_size(world) - 1;
    char says[32];
    if (ls_comm_rank(world) == last) {
        LS_TRY(copy_checkpoint("other/saved", "here/saved", last));
        LS_TRY(damage_file("other/saved", name, how));
    }
    outcome before, after;
    LS_TRY(look(t, &before));
    const ls_status status = ls_trial_load(t->trial, "saved");
    LS_CHECK(status == expected[how].status);
    LS_EXPECT_MESSAGE(expected[how].message);
    snprintf(says, sizeof says, "rank %d failed: ", last);
    if (ls_comm_rank(world) != last && how != DIFFERENT) {
        LS_EXPECT_MESSAGE(says);
    }
    LS_TRY(look(t, &after));
    return name == model_file && how < UNREADABLE ? same(&after, &before) : LS_OK;
}

/* An invalid number in the last tensors of the optimizer changes nothing. */
static ls_status load_invalid(ls_comm *world, training *t) {
    outcome before, after;
    const char *path = in_scratch("here/saved/optimizer.safetensors");
    if (ls_comm_rank(world) == 0) {
        LS_TRY(copy_file("here", "here/saved", optimizer_file));
        LS_TRY(replace_tensor(path, "4.bias.exp_avg", LS_F32, NAN));
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(look(t, &before));
    LS_CHECK(ls_optimizer_load(t->optimizer, path) == LS_ERR_FORMAT);
    LS_EXPECT_MESSAGE("4.bias.exp_avg contains nan");
    LS_TRY(look(t, &after));
    LS_TRY(same(&after, &before));
    LS_TRY(ls_comm_barrier(world, NULL));
    return ls_comm_rank(world) == 0 ? copy_file("here/saved", "here", optimizer_file) : LS_OK;
}

/* Another checkpoint of the same model is in between, so that each load changes the trial. */
static ls_status load_all(ls_comm *world, int zero) {
    training t;
    outcome saved, is;
    LS_TRY(begin(&t, world, &(plan){.zero = zero}));
    LS_TRY(ls_trial_save(t.trial, in_scratch("here/new")));
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_TRY(ls_trial_save(t.trial, in_scratch("here/saved")));
    LS_TRY(look(&t, &saved));
    for (int i = 0; i < 2 * DAMAGES - 1; i++) { /* the ranks do not compare the numbers of an optimizer */
        LS_TRY(ls_trial_load(t.trial, in_scratch("here/new")));
        LS_TRY(load_damaged(world, &t, i < DAMAGES ? model_file : optimizer_file, (damage)(i % DAMAGES)));
        LS_TRY(ls_trial_load(t.trial, in_scratch("here/saved")));
        LS_TRY(look(&t, &is));
        LS_TRY(same(&is, &saved));
    }
    LS_TRY(ls_trial_load(t.trial, in_scratch("here/new")));
    LS_TRY(load_invalid(world, &t));
    LS_TRY(ls_data_parallel_gather(t.model, true));
    LS_TRY(ls_trial_load(t.trial, in_scratch("here/saved")));
    LS_CHECK(ls_at(ls_module_parameter(t.model, 0), (int64_t[]){WIDE - 1, 0}) != 0); /* is still gathered */
    LS_TRY(ls_data_parallel_gather(t.model, false));
    LS_TRY(look(&t, &is));
    LS_TRY(same(&is, &saved));
    end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    char before[PATH_MAX];
    LS_TRY(make_scratch(world));
    LS_CHECK(getcwd(before, sizeof before) != NULL && unshare(CLONE_FS) == 0); /* ranks may be threads of a process */
    LS_CHECK(!last || (mkdir(in_scratch("here"), 0777) == 0 && mkdir(in_scratch("other"), 0777) == 0 &&
                       mkdir(in_scratch("other/saved"), 0777) == 0));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_CHECK(chdir(in_scratch(last ? "other" : "here")) == 0);
    ls_tensor *tensor = ls_ones(LS_SCALAR, LS_F32);
    const int stages = tensor != NULL && ls_tensor_device(tensor)->is_host ? 3 : 1; /* GPUs have only stage 1 */
    ls_release(tensor);
    for (int zero = 1; zero <= stages; zero++) {
        LS_TRY(load_all(world, zero));
    }
    LS_CHECK(chdir(before) == 0);
    return remove_scratch(world);
}
