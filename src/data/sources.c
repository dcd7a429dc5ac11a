/* Data sets from tensors, IDX files, MNIST folders and CSV files, and in-memory copies of any data set. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "autograd/op.h"
#include "data/dataset.h"
#include "formats/csv.h"
#include "tensor/device.h"

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef struct tensor_state {
    ls_tensor *input; /* as passed by the caller */
    ls_tensor *target;
    ls_tensor *rows[2]; /* the same tensors on the host, where batches are assembled */
} tensor_state;

static void copy_rows(const ls_tensor *from, const ls_samples *samples, ls_tensor *to) {
    const size_t row =
        from->size[0] > 0 ? (size_t)(from->count / from->size[0]) * ls_dtype_size((ls_dtype)from->dtype) : 0;
    for (int64_t i = 0; i < samples->count; i++) {
        memcpy((char *)ls_host_data(to) + (size_t)i * row,
               (const char *)ls_host_data(from) + (size_t)samples->indices[i] * row, row);
    }
}

static ls_status tensor_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const tensor_state *state = self->state;
    copy_rows(state->rows[0], samples, input);
    copy_rows(state->rows[1], samples, target);
    return LS_OK;
}

static void tensor_free_state(ls_dataset *self) {
    const tensor_state *state = self->state;
    ls_tensor_drop(state->rows[0]);
    ls_tensor_drop(state->rows[1]);
    ls_tensor_disown(state->input);
    ls_tensor_disown(state->target);
}

static ls_status check_pair(const ls_tensor *input, const ls_tensor *target) {
    if (input == NULL || target == NULL) {
        return ls_fail_missing("ls_tensor_dataset: the %s tensor", input == NULL ? "input" : "target");
    }
    if (input->ndim < 1 || target->ndim < 1 || input->size[0] != target->size[0]) {
        return ls_fail(LS_ERR_SHAPE, "ls_tensor_dataset: inputs %s and targets %s: their first sizes must be equal",
                       LS_SHAPE_TEXT(input), LS_SHAPE_TEXT(target));
    }
    if (!input->contiguous || !target->contiguous) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_tensor_dataset: the tensors must be contiguous; use ls_contiguous");
    }
    return LS_OK;
}

ls_dataset *ls_dataset_of_tensors(ls_tensor *input, ls_tensor *target) {
    static const ls_dataset_type type = {
        .name = "tensors", .state_size = sizeof(tensor_state), .fetch = tensor_fetch, .free_state = tensor_free_state};
    ls_dataset *dataset = NULL;
    if (check_pair(input, target) == LS_OK) {
        dataset = ls_dataset_new(&type, input->size[0],
                                 &(ls_sample_layout){.input_shape = ls_sample_shape(input),
                                                     .input_dtype = (ls_dtype)input->dtype,
                                                     .target_shape = ls_sample_shape(target),
                                                     .target_dtype = (ls_dtype)target->dtype});
    }
    if (dataset == NULL) {
        ls_tensor_disown(input);
        ls_tensor_disown(target);
        return NULL;
    }
    dataset->serial = false;
    dataset->copies = true;
    tensor_state *state = dataset->state;
    *state = (tensor_state){.input = input,
                            .target = target,
                            .rows = {ls_tensor_on_device("ls_tensor_dataset", input, &ls_cpu),
                                     ls_tensor_on_device("ls_tensor_dataset", target, &ls_cpu)}};
    if (state->rows[0] == NULL || state->rows[1] == NULL) {
        ls_dataset_free(dataset);
        return NULL;
    }
    const ls_tensor *const tensors[] = {input, target, state->rows[0], state->rows[1]};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        ls_storage_set_kind(tensors[i]->storage, LS_MEMORY_DATA);
    }
    return dataset;
}

ls_dataset *ls_tensor_dataset(ls_tensor *input, ls_tensor *target) {
    (void)ls_inputs_are_here("ls_tensor_dataset", (ls_tensor *[]){input, target}, 2);
    ls_tensor *owned_input = ls_tensor_own(input);
    return ls_dataset_of_tensors(owned_input, ls_tensor_own(target));
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

ls_dataset *ls_idx_dataset(const char *images, const char *labels) {
    ls_tensor *input = ls_idx_read(images);
    ls_tensor *target = input != NULL ? ls_idx_read(labels) : NULL;
    if (target == NULL || ls_size(input, 0) != ls_size(target, 0)) {
        if (target != NULL) {
            (void)ls_fail(LS_ERR_FORMAT,
                          "ls_idx_dataset: %s has %lld samples, but %s has %lld: the files do not belong together",
                          images, (long long)ls_size(input, 0), labels, (long long)ls_size(target, 0));
        }
        ls_release(input);
        ls_release(target);
        return NULL;
    }
    return ls_dataset_of_tensors(ls_tensor_take(input), ls_tensor_take(target));
}

/* Writes the path of a file in the folder, with or without .gz, whichever exists. */
static ls_status find_file(const char *folder, const char *name, char *path, size_t capacity) {
    static const char *const endings[] = {"", ".gz"};
    struct stat information;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        if ((size_t)snprintf(path, capacity, "%s/%s%s", folder, name, endings[i]) >= capacity) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_mnist_dataset: the folder's name is too long");
        }
        if (stat(path, &information) == 0) {
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_IO,
                   "ls_mnist_dataset: there is no %s or %s.gz in %s: name the folder that holds the four IDX files",
                   name, name, folder);
}

/* Detects swapped images and labels, and other files under these names. */
static ls_dataset *check_mnist(ls_dataset *dataset, const char *images, const char *labels) {
    const ls_sample_layout layout = ls_dataset_layout(dataset);
    if (dataset != NULL && (layout.input_shape.ndim != 2 || layout.target_shape.ndim != 0)) {
        const bool good = layout.input_shape.ndim == 2;
        (void)ls_fail(LS_ERR_FORMAT, "ls_mnist_dataset: %s has %d axes, but must have %d: it does not hold %s",
                      good ? labels : images, 1 + (good ? layout.target_shape.ndim : layout.input_shape.ndim),
                      good ? 1 : 3, good ? "labels" : "images");
        ls_dataset_free(dataset);
        return NULL;
    }
    return dataset;
}

ls_dataset *ls_mnist_dataset(const char *folder, bool train) {
    static const char debian_folder[] = "/usr/share/datasets/fashion-mnist";
    const bool own = folder != NULL;
    folder = own ? folder : debian_folder;
    struct stat information;
    if (stat(folder, &information) != 0 || !S_ISDIR(information.st_mode)) {
        return ls_fail_null(LS_ERR_IO, "ls_mnist_dataset: there is no folder \"%s\": %s", folder,
                            own ? "name the folder that holds the four IDX files"
                                : "install Debian's dataset-fashion-mnist, or name a folder with the four IDX files");
    }
    enum { PATH_CAPACITY = 4096 };
    char images[PATH_CAPACITY];
    char labels[PATH_CAPACITY];
    const char *images_name = train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte";
    const char *labels_name = train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte";
    if (find_file(folder, images_name, images, sizeof images) != LS_OK ||
        find_file(folder, labels_name, labels, sizeof labels) != LS_OK) {
        return NULL;
    }
    return check_mnist(ls_idx_dataset(images, labels), images, labels);
}

/* Reads the target columns. The caller owns the result. Class numbers have dtype i64 and shape [rows]. */
static ls_tensor *read_csv_target(const char *path, const char *const *targets, int count,
                                  const ls_csv_options *options) {
    bool is_text = false;
    if (count == 1 && ls_csv_find_text("ls_csv_dataset", path, targets[0], options, &is_text) != LS_OK) {
        return NULL;
    }
    const bool classes = options->class_target || is_text;
    if (classes && count > 1) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_csv_dataset: .class_target needs one target column, but there are %d",
                            count);
    }
    ls_csv_options of_target = *options;
    of_target.columns = targets;
    of_target.column_count = count;
    of_target.all_but = false;
    of_target.dtype = classes ? LS_I64 : options->dtype;
    of_target.empty = classes ? 0 : options->empty; /* a sample without a class is an error */
    ls_tensor *target = ls_tensor_take(ls_csv_read_columns("ls_csv_dataset", path, NULL, 0, &of_target));
    if (target == NULL || !classes) {
        return target;
    }
    ls_tensor *numbers = ls_tensor_view_owned(target, 1, target->size, target->stride, 0);
    ls_tensor_drop(target);
    return numbers;
}

ls_dataset *ls_csv_dataset(const char *path, const char *const *targets, int target_count,
                           const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    if (targets == NULL || target_count < 1) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_csv_dataset: no target column is named; set targets and target_count");
    }
    struct stat status;
    if (path != NULL && stat(path, &status) == 0 && S_ISFIFO(status.st_mode)) {
        return ls_fail_null(LS_ERR_UNSUPPORTED,
                            "ls_csv_dataset: %s is a pipe and can be read only once, but inputs and targets are read "
                            "separately: save it to a file first",
                            path);
    }
    ls_tensor *target = read_csv_target(path, targets, target_count, options);
    if (target == NULL) {
        return NULL;
    }
    ls_tensor *input = ls_csv_read_columns("ls_csv_dataset", path, targets, target_count, options);
    if (input == NULL) {
        ls_tensor_drop(target);
        return NULL;
    }
    return ls_dataset_of_tensors(ls_tensor_take(input), target);
}

/* ---- in-memory copies -------------------------------------------------------------------------------------------- */

static ls_tensor *whole_tensor(int64_t count, ls_shape sample, ls_dtype dtype) {
    int64_t size[LS_MAX_DIMS] = {count};
    memcpy(size + 1, sample.size, (size_t)sample.ndim * sizeof *size);
    return ls_tensor_new_owned("ls_dataset_preload", &ls_cpu, sample.ndim + 1, size, dtype);
}

/* Copies a batch into the rows starting at `first`. */
static ls_status put_rows(ls_tensor *whole, const char *which, int64_t first, const ls_tensor *batch) {
    LS_TRY(ls_batch_check("ls_dataset_preload", which, first, batch, ls_sample_shape(whole), (ls_dtype)whole->dtype));
    int64_t size[LS_MAX_DIMS];
    memcpy(size, whole->size, sizeof size);
    size[0] = batch->size[0];
    ls_tensor *rows = ls_tensor_view_owned(whole, whole->ndim, size, whole->stride, first * whole->stride[0]);
    const ls_status status = rows != NULL ? ls_copy_into(rows, batch) : ls_error_status();
    ls_tensor_drop(rows);
    return status;
}

static ls_status load_all(ls_dataset *dataset, ls_tensor *input, ls_tensor *target) {
    enum { STEP = 256 };
    int64_t indices[STEP];
    ls_tensor *batch_input = NULL;
    ls_tensor *batch_target = NULL;
    ls_status status = LS_OK;
    for (int64_t first = 0; status == LS_OK && first < dataset->count; first += STEP) {
        const int64_t n = dataset->count - first < STEP ? dataset->count - first : STEP;
        for (int64_t i = 0; i < n; i++) {
            indices[i] = first + i;
        }
        const ls_samples samples = {.indices = indices, .places = indices, .count = n};
        status = ls_dataset_batch(dataset, &samples, &batch_input, &batch_target);
        if (status == LS_OK) {
            status = put_rows(input, "input", first, batch_input);
        }
        if (status == LS_OK) {
            status = put_rows(target, "target", first, batch_target);
        }
    }
    ls_tensor_drop(batch_input);
    ls_tensor_drop(batch_target);
    return status;
}

ls_dataset *ls_dataset_preload(ls_dataset *dataset) {
    dataset = ls_dataset_take("ls_dataset_preload", dataset);
    if (dataset == NULL) {
        return NULL;
    }
    const ls_sample_layout *layout = &dataset->layout;
    ls_tensor *input = whole_tensor(dataset->count, layout->input_shape, layout->input_dtype);
    ls_tensor *target = whole_tensor(dataset->count, layout->target_shape, layout->target_dtype);
    const bool good = input != NULL && target != NULL && load_all(dataset, input, target) == LS_OK;
    const int steps = dataset->earlier_steps + dataset->input.count;
    ls_dataset_drop(dataset);
    if (!good) {
        ls_tensor_drop(input);
        ls_tensor_drop(target);
        return NULL;
    }
    dataset = ls_dataset_of_tensors(input, target);
    if (dataset != NULL) {
        dataset->earlier_steps = steps;
    }
    return dataset;
}
