/*
 * Checkpoints of models that are sharded over ranks, loaded into models that are sharded differently: every tensor and
 * every state of the optimizer keeps its bits. Wrong checkpoints are refused on every rank.
 *
 * ranks: 1 2 3 4 5
 * sanitized: 2 3
 * devices: cpu shadow
 */
#include "tests/support/resumed.h"

#include "autograd/op.h"
#include "base/share.h"
#include "nn/module.h"

/* This test does not cover a loss of power, so nothing waits for a disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

enum { HIDDEN = 8 };

/*
 * How a model is sharded: all ways have the same tensors. With GRID, pairs of ranks shard it, and the pairs train
 * data-parallel, with ZeRO. STAGES_LATE has different stages from STAGES.
 */
typedef enum way { UNSPLIT, TENSOR, GRID, STAGES, STAGES_LATE, WAYS } way;

static const char *const way_names[] = {"unsplit", "tensor", "grid", "stages", "late"};

/* A difference from the usual model. */
typedef enum oddity { USUAL, SHORTER, LONGER, WIDER, UNNAMED, AVERAGED, COUNTED, DECAYED } oddity;

typedef struct pupil {
    ls_comm *shards; /* the ranks that shard the tensors */
    ls_comm *data;   /* the ranks with the same part; NULL if the model is not data-parallel */
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *loader;
    ls_trial *trial;
    ls_named counted; /* the state of the callback `counting` */
} pupil;

/* The name of this state only looks like the name of a parameter. */
static ls_status get_counted(void *user, const ls_named **tensors, int *count) {
    *tensors = user;
    *count = 1;
    return LS_OK;
}

static ls_status set_counted(void *user, const ls_named *tensors, int count) {
    const ls_named *own = user;
    LS_CHECK(count == 1 && strcmp(tensors[0].name, "10.weight") == 0);
    return ls_copy_into(own->tensor, tensors[0].tensor);
}

static const ls_callback_hooks counting = {.name = "counting", .state = get_counted, .set_state = set_counted};

static ls_module *make_layers(ls_comm *comm, way how, oddity odd) {
    const int64_t hidden = HIDDEN + (odd == WIDER);
    const bool shards = how == TENSOR || how == GRID;
    ls_module *first = shards ? ls_nn_column_parallel(comm, INPUTS, hidden, NULL) : ls_nn_linear(INPUTS, hidden);
    ls_module *second = shards ? ls_nn_row_parallel(comm, hidden, 7, NULL) : ls_nn_linear(hidden, 7);
    ls_module *layers[] = {first,
                           ls_nn_tanh(),
                           second,
                           ls_nn_batch_norm_1d(7, NULL),
                           ls_nn_linear(7, CLASSES),
                           ls_nn_linear(CLASSES, CLASSES),
                           ls_nn_linear(CLASSES, CLASSES)};
    const int most = sizeof layers / sizeof *layers;
    const int count = odd == SHORTER ? most - 2 : odd == LONGER ? most : most - 1;
    for (int i = count; i < most; i++) {
        ls_module_free(layers[i]);
    }
    return ls_sequential_of(layers, count);
}

static ls_module *make(ls_comm *comm, way how, oddity odd) {
    ls_seed(SEED);
    ls_module *model = make_layers(comm, how, odd);
    const int ends[] = {2, 3, 4, 5}; /* the last stages have one layer each */
    const int size = ls_comm_size(comm);
    return how == STAGES ? ls_pipeline(model, comm, &(ls_pipeline_options){.micro_batches = 3})
           : how == STAGES_LATE
               ? ls_pipeline(model, comm, &(ls_pipeline_options){.cut = ends + 5 - size, .micro_batches = 3})
               : model;
}

static ls_optimizer *make_unnamed(ls_module *model) {
    ls_optimizer *optimizer = ls_adam(NULL, NULL);
    ls_tensor *parameters[32];
    const int count = ls_module_parameter_count(model);
    for (int i = 0; i < count; i++) {
        parameters[i] = ls_module_parameter(model, i);
    }
    return ls_optimizer_add_group(optimizer, parameters, count, NULL) == LS_OK ? optimizer : NULL;
}

static ls_status open_pupil(pupil *p, ls_comm *comm, way how, oddity odd) {
    *p = (pupil){.counted = odd == COUNTED ? p->counted : (ls_named){0}};
    const int width = how != GRID ? ls_comm_size(comm) : ls_comm_size(comm) % 2 == 0 ? 2 : 1, rank = ls_comm_rank(comm);
    LS_TRY(ls_comm_split(comm, rank / width, 0, &p->shards));
    LS_TRY(ls_comm_split(comm, rank % width, 0, &p->data));
    p->model = make(p->shards, how, odd);
    if (how == GRID) {
        p->model = ls_data_parallel(p->model, p->data, &(ls_data_parallel_options){.zero = 1});
    }
    LS_CHECK(p->model != NULL);
    p->optimizer = odd == UNNAMED   ? make_unnamed(p->model)
                   : odd == DECAYED ? ls_adamw(p->model, NULL)
                                    : ls_adam(p->model, &(ls_adam_options){.learning_rate = 0.01});
    LS_CHECK(p->optimizer != NULL);
    p->loader = ls_loader_new(
        make_dataset(0, SAMPLES),
        &(ls_loader_options){.global_batch_size = SAMPLES / 2, .comm = how == GRID ? p->data : NULL, .seed = SEED});
    ls_callback *callback = odd == AVERAGED  ? ls_weight_averaging(NULL)
                            : odd == COUNTED ? ls_callback_new(&counting, &p->counted)
                                             : NULL;
    p->trial = ls_trial_new(&(ls_trial_options){.model = p->model,
                                                .optimizer = p->optimizer,
                                                .criterion = ls_criterion_cross_entropy,
                                                .train = p->loader,
                                                .comm = comm,
                                                .step = how >= STAGES ? step_pipeline : NULL,
                                                .callbacks = &callback,
                                                .callback_count = callback != NULL,
                                                .quiet = true});
    return p->trial != NULL ? LS_OK : ls_error_status();
}

static void close_pupil(pupil *p) {
    ls_trial_free(p->trial);
    ls_optimizer_free(p->optimizer);
    ls_module_free(p->model);
    ls_loader_free(p->loader);
    ls_comm_free(p->shards);
    ls_comm_free(p->data);
}

/* ---- equal bits -------------------------------------------------------------------------------------------------- */

/* Returns the elements of a tensor of the whole model that a rank has. `shape` is the shape of its tensor. */
static ls_tensor *part_of(const ls_tensor *whole, const ls_tensor *own, int rank, int size) {
    ls_tensor *part = (ls_tensor *)whole;
    for (int axis = 0; axis < ls_ndim(whole); axis++) {
        if (ls_size(whole, axis) != ls_size(own, axis)) {
            const ls_share share = ls_share_of(ls_size(whole, axis), size, rank);
            part = ls_narrow(part, axis, share.start, share.count);
        }
    }
    return part;
}

static ls_status check_part(const ls_tensor *own, const ls_tensor *whole, const ls_comm *comm, const char *name) {
    const ls_tensor *want = part_of(whole, own, ls_comm_rank(comm), ls_comm_size(comm));
    if (!ls_equal(own, want)) {
        return ls_fail(LS_ERR_INTERNAL, "%s differs from its part of the whole tensor", name);
    }
    return LS_OK;
}

/* Compares every tensor on the rank with the tensor of the same name in the whole model. */
static ls_status check_same(const pupil *own, const pupil *whole) {
    const ls_comm *comm = own->shards;
    const ls_named *states, *all;
    int count, all_count, found = 0;
    for (int i = 0; i < ls_module_parameter_count(own->model); i++) {
        const char *name = ls_module_parameter_name(own->model, i);
        LS_TRY(check_part(ls_module_parameter(own->model, i), ls_module_find(whole->model, name), comm, name));
    }
    for (int i = 0; i < ls_module_buffer_count(own->model); i++) {
        const char *name = ls_module_buffer_name(own->model, i);
        LS_TRY(check_part(ls_module_buffer(own->model, i), ls_module_find(whole->model, name), comm, name));
    }
    LS_TRY(ls_optimizer_state(own->optimizer, &states, &count));
    LS_TRY(ls_optimizer_state(whole->optimizer, &all, &all_count));
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < all_count; k++) {
            if (strcmp(states[i].name, all[k].name) == 0) {
                LS_TRY(check_part(states[i].tensor, all[k].tensor, comm, states[i].name));
                found++;
            }
        }
    }
    LS_CHECK(count > 0 && found == count);
    return LS_OK;
}

/* The weights alone, of a module that is sharded in any way except into stages. */
static ls_status check_weights(ls_comm *comm, const char *path, way to, const pupil *whole) {
    pupil loaded;
    LS_TRY(open_pupil(&loaded, comm, to, USUAL));
    LS_TRY(ls_module_load(loaded.model, path));
    ls_scope *scope = ls_scope_begin();
    const ls_status status = check_part(ls_module_parameter(loaded.model, 0), ls_module_parameter(whole->model, 0),
                                        loaded.shards, "0.weight");
    LS_TRY(ls_scope_end(scope));
    LS_TRY(status);
    close_pupil(&loaded);
    return LS_OK;
}

/* Loads the checkpoint in this way, compares it with the whole model, and trains on. */
static ls_status load_as(ls_comm *comm, const char *path, way to, const pupil *whole) {
    pupil loaded;
    LS_TRY(open_pupil(&loaded, comm, to, USUAL));
    LS_TRY(ls_trial_load(loaded.trial, path));
    LS_CHECK(ls_trial_history_count(loaded.trial) == 1);
    ls_scope *scope = ls_scope_begin();
    const ls_status status = check_same(&loaded, whole);
    LS_TRY(ls_scope_end(scope));
    LS_TRY(status);
    LS_TRY(ls_trial_run(loaded.trial, 2));
    close_pupil(&loaded);
    return to < STAGES ? check_weights(comm, path, to, whole) : LS_OK;
}

/* Trains a model that is sharded as `from` on the first `size` ranks, and saves a checkpoint in `folder`. */
static ls_status save_as(ls_comm *world, int size, way from, char folder[64]) {
    ls_comm *some = NULL;
    const bool in = ls_comm_rank(world) < size;
    snprintf(folder, 64, "%s-%d", way_names[from], size);
    LS_TRY(ls_comm_split(world, in ? 0 : 1, 0, &some));
    if (in) {
        pupil saved, whole;
        ls_comm *alone = NULL;
        LS_TRY(open_pupil(&saved, some, from, USUAL));
        LS_TRY(ls_trial_run(saved.trial, 1));
        LS_TRY(ls_trial_save(saved.trial, in_scratch(folder)));
        LS_TRY(ls_comm_split(some, ls_comm_rank(some), 0, &alone));
        LS_TRY(open_pupil(&whole, alone, UNSPLIT, USUAL));
        LS_TRY(ls_trial_load(whole.trial, in_scratch(folder)));
        ls_scope *scope = ls_scope_begin();
        const ls_status status = check_same(&saved, &whole);
        LS_TRY(ls_scope_end(scope));
        LS_TRY(status);
        close_pupil(&saved);
        close_pupil(&whole);
        ls_comm_free(alone);
    }
    ls_comm_free(some);
    return ls_comm_barrier(world, NULL);
}

/* Loads the checkpoint on the first `size` ranks, in every way. */
static ls_status load_on(ls_comm *world, int size, const char *folder) {
    ls_comm *some = NULL, *alone = NULL;
    const bool in = ls_comm_rank(world) < size;
    LS_TRY(ls_comm_split(world, in ? 0 : 1, 0, &some));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    pupil whole;
    LS_TRY(open_pupil(&whole, alone, UNSPLIT, USUAL));
    LS_TRY(ls_trial_load(whole.trial, in_scratch(folder)));
    for (int to = TENSOR; in && to < WAYS; to++) {
        LS_TRY(load_as(some, in_scratch(folder), (way)to, &whole));
    }
    close_pupil(&whole);
    ls_comm_free(alone);
    ls_comm_free(some);
    return ls_comm_barrier(world, NULL);
}

/* A job saves with all its ranks. Threads also save with some of them, so that the number of ranks grows, too. */
static ls_status every_way(ls_comm *world) {
    const int size = ls_comm_size(world);
    for (int from = UNSPLIT; from < WAYS; from++) {
        for (int saving = ls_world() == world ? size : 1; saving <= size; saving++) {
            char folder[64];
            LS_TRY(save_as(world, saving, (way)from, folder));
            for (int loading = 1; loading <= size; loading++) {
                LS_TRY(load_on(world, loading, folder));
            }
        }
    }
    return LS_OK;
}

/* ---- wrong checkpoints ------------------------------------------------------------------------------------------- */

/* Expects a failure on every rank, and an unchanged model. */
static ls_status expect(ls_comm *world, const char *folder, way to, oddity odd, ls_status want, const char *part) {
    pupil p;
    LS_TRY(open_pupil(&p, world, to, odd));
    const uint64_t before = ls_module_hash(p.model);
    const ls_status status = ls_trial_load(p.trial, in_scratch(folder));
    if (status != want) {
        return ls_fail(LS_ERR_INTERNAL, "status %s, not %s, for \"%s\": %s", ls_status_name(status),
                       ls_status_name(want), part, ls_error_message());
    }
    LS_EXPECT_MESSAGE(part);
    LS_CHECK(ls_module_hash(p.model) == before);
    close_pupil(&p);
    return LS_OK;
}

static ls_status other_models(ls_comm *world) {
    char tensor[64], stages[64];
    LS_TRY(save_as(world, ls_comm_size(world), TENSOR, tensor));
    LS_TRY(save_as(world, ls_comm_size(world), STAGES, stages));
    LS_TRY(
        expect(world, tensor, UNSPLIT, WIDER, LS_ERR_SHAPE, "0.weight is [8, 6] in the file and [9, 6] in the model"));
    LS_TRY(expect(world, stages, TENSOR, WIDER, LS_ERR_SHAPE, "0.weight is [8, 6] there and [9, 6] in the model"));
    LS_TRY(expect(world, tensor, STAGES, SHORTER, LS_ERR_FORMAT,
                  "has a tensor 5.weight, but the model of this trial does not"));
    LS_TRY(expect(world, stages, TENSOR, LONGER, LS_ERR_FORMAT, "has no tensor 6.weight"));
    LS_TRY(expect(world, tensor, STAGES, DECAYED, LS_ERR_FORMAT,
                  "has the state of ls_adam, but this optimizer is ls_adamw"));
    return expect(world, stages, TENSOR, UNNAMED, LS_ERR_UNSUPPORTED,
                  "the state of its optimizer cannot be resharded: resume");
}

/* Parts of callbacks and of optimizers that do not know the names of their parameters. */
static ls_status what_cannot_be_split(ls_comm *world) {
    static const oddity odds[] = {UNNAMED, AVERAGED};
    static const char *const reasons[] = {
        "the state of its optimizer cannot be resharded: resume",
        "the state of a callback, with a copy of the weights, cannot be resharded: resume"};
    for (int i = 0; i < 2; i++) {
        pupil p;
        LS_TRY(open_pupil(&p, world, TENSOR, odds[i]));
        LS_TRY(ls_trial_run(p.trial, 1));
        LS_TRY(ls_trial_save(p.trial, in_scratch("unsplittable")));
        LS_TRY(ls_trial_load(p.trial, in_scratch("unsplittable"))); /* with the same parts */
        LS_TRY(expect(world, "unsplittable", UNSPLIT, USUAL, LS_ERR_UNSUPPORTED, reasons[i]));
        close_pupil(&p);
    }
    return LS_OK;
}

/* A state whose name ends like the name of a parameter, but is a different name. */
static ls_status what_looks_alike(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    for (int i = 0; i < 2; i++) {
        pupil p = {.counted = {"10.weight", ls_full(LS_SHAPE(1), LS_F32, i == 0 ? 5 : 0)}};
        LS_TRY(open_pupil(&p, world, i == 0 ? TENSOR : UNSPLIT, COUNTED));
        LS_TRY(i == 0 ? ls_trial_run(p.trial, 1) : ls_trial_load(p.trial, in_scratch("counted")));
        LS_TRY(i == 0 ? ls_trial_save(p.trial, in_scratch("counted")) : LS_OK);
        LS_CHECK(ls_at(p.counted.tensor, (int64_t[]){0}) == 5);
        close_pupil(&p);
    }
    return ls_scope_end(scope);
}

/* Changes the second rank's part of a tensor in the manifest. */
typedef void damage(ls_part *part);

static void leave_a_gap(ls_part *part) {
    part->first++;
    part->count--;
}

static void let_overlap(ls_part *part) {
    part->first--;
    part->count++;
}

static void turn(ls_part *part) {
    part->axis = 1;
    part->first = 0;
    part->count = 1;
}

static void remove_it(ls_part *part) {
    part->name[0] = 'x';
}

static void change_hash(ls_part *part) {
    part->hash[0] = part->hash[0] == '0' ? '1' : '0';
}

static void other_file(ls_part *part) {
    part->rank = 7;
}

static ls_status damage_manifest(ls_comm *world, const char *folder, const char *name, damage *change) {
    if (ls_comm_rank(world) == 0) {
        ls_manifest manifest;
        LS_TRY(ls_manifest_read(in_scratch(folder), &manifest));
        for (int i = 0; i < manifest.layout.count; i++) {
            ls_part *part = &manifest.layout.parts[i];
            if (part->rank == 1 && strcmp(part->name, name) == 0) {
                change(part);
            }
        }
        LS_TRY(ls_manifest_write(&manifest, in_scratch(folder)));
        ls_manifest_free(&manifest);
    }
    return ls_comm_barrier(world, NULL);
}

static ls_status damaged(ls_comm *world) {
    static const struct {
        const char *name;
        damage *change;
        ls_status status;
        const char *message;
    } cases[] = {
        {"0.weight", leave_a_gap, LS_ERR_FORMAT, " of 0.weight along axis 0 are in no file"},
        {"0.weight", let_overlap, LS_ERR_FORMAT, " of 0.weight along axis 0 are in several files"},
        {"0.weight", turn, LS_ERR_FORMAT, "parts of 0.weight that do not fit together"},
        {"0.weight", remove_it, LS_ERR_FORMAT, " of 0.weight along axis 0 are in no file"},
        {"0.bias.exp_avg", let_overlap, LS_ERR_FORMAT, " of 0.bias.exp_avg along axis 0 are in several files"},
        {"2.bias", change_hash, LS_ERR_UNSUPPORTED, "2.bias of rank 1 differs from 2.bias of rank 0"},
        {"0.weight", other_file, LS_ERR_FORMAT, "it lists a part of rank 7, but has only "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases && ls_comm_size(world) > 1; i++) {
        char folder[64];
        LS_TRY(save_as(world, ls_comm_size(world), TENSOR, folder));
        LS_TRY(damage_manifest(world, folder, cases[i].name, cases[i].change));
        LS_TRY(expect(world, folder, UNSPLIT, USUAL, cases[i].status, cases[i].message));
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    return LS_OK;
}

/* ---- lost and damaged files -------------------------------------------------------------------------------------- */

static ls_status invert_byte(const char *path, long offset) {
    FILE *file = fopen(path, "r+be");
    LS_CHECK(file != NULL && fseek(file, offset, SEEK_SET) == 0);
    const int byte = fgetc(file);
    LS_CHECK(byte != EOF && fseek(file, offset, SEEK_SET) == 0 && fputc(byte ^ 0xff, file) != EOF);
    return fclose(file) == 0 ? LS_OK : ls_error_set(LS_ERR_IO, "cannot write the file");
}

/* The last rank's file is damaged or lost. The message of every rank names it. */
static ls_status lost_and_damaged_files(ls_comm *world) {
    const int size = ls_comm_size(world);
    char folder[64], name[128], message[160];
    for (int lost = 0; lost < 2 && size > 1; lost++) {
        LS_TRY(save_as(world, size, TENSOR, folder));
        snprintf(name, sizeof name, "%s/model-%04d.safetensors", folder, size - 1);
        snprintf(message, sizeof message, "%s is %s", name, lost != 0 ? "missing" : "damaged");
        if (ls_comm_rank(world) == 0) {
            LS_TRY(lost != 0 ? LS_OK : invert_byte(in_scratch(name), 60));
            LS_CHECK(lost == 0 || unlink(in_scratch(name)) == 0);
        }
        LS_TRY(ls_comm_barrier(world, NULL));
        for (int to = UNSPLIT; to < WAYS; to++) {
            LS_TRY(expect(world, folder, (way)to, USUAL, LS_ERR_FORMAT, message));
        }
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    return LS_OK;
}

/* ---- an older format --------------------------------------------------------------------------------------------- */

/* A checkpoint of two ranks whose manifest has no list of parts. */
static ls_status without_a_list(ls_comm *world) {
    static const char folder[] = LS_FIXTURES "/checkpoint_sharded";
    training t;
    char path[PATH_MAX];
    LS_TRY(begin(&t, world, &(plan){.cut = DIVIDED}));
    if (ls_comm_size(world) != 2) {
        LS_CHECK(ls_trial_load(t.trial, folder) == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("is sharded over 2 ranks, and no list of its parts: resume it on 2 ranks, not on");
    } else {
        LS_TRY(ls_trial_load(t.trial, folder));
        LS_CHECK(ls_trial_history_count(t.trial) == 1);
        snprintf(path, sizeof path, "%s/model-%04d.safetensors", folder, ls_comm_rank(world));
        ls_safetensors *file = ls_safetensors_load(path);
        LS_CHECK(file != NULL && ls_safetensors_count(file) == ls_module_parameter_count(t.model));
        for (int i = 0; i < ls_safetensors_count(file); i++) {
            const ls_named named = ls_safetensors_at(file, i);
            LS_CHECK(ls_equal(named.tensor, ls_module_find(t.model, named.name)));
        }
        ls_safetensors_free(file);
        LS_TRY(ls_trial_run(t.trial, 2));
    }
    LS_CHECK(ls_module_load(t.model, folder) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("has no list of its parts: each rank loads its own file");
    end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(every_way(world));
    LS_TRY(other_models(world));
    LS_TRY(what_cannot_be_split(world));
    LS_TRY(what_looks_alike(world));
    LS_TRY(lost_and_damaged_files(world));
    LS_TRY(damaged(world));
    LS_TRY(without_a_list(world));
    return remove_scratch(world);
}
