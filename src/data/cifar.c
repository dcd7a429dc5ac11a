/* CIFAR-10 and CIFAR-100, binary versions: records of one or two labels and a picture, 32 rows each of red, green and
 * blue bytes. */
#include <stdio.h>
#include <string.h>

#include "data/dataset.h"
#include "formats/file.h"
#include "tensor/device.h"

enum { SIDE = 32, CHANNELS = 3, PICTURE = CHANNELS * SIDE * SIDE, MOST_LABELS = 2, MOST_FILES = 5 };

/* The options of a CIFAR call. */
typedef struct cifar {
    const char *call;
    const char *title;
    int labels;               /* per record */
    int classes[MOST_LABELS]; /* number of classes of each label */
    int wanted;               /* index of the label that is the target */
    const char *files[MOST_FILES];
} cifar;

static size_t record_size(const cifar *kind) {
    return (size_t)kind->labels + PICTURE;
}

static ls_status open_file(const cifar *kind, const char *path, ls_source *source) {
    LS_TRY(ls_source_open(kind->call, path, false, source));
    if (source->size == 0 || source->size % record_size(kind) != 0) {
        return ls_fail(LS_ERR_FORMAT,
                       "%s: %s has %zu bytes, but files of %s's binary version consist of records of %zu", kind->call,
                       path, source->size, kind->title, record_size(kind));
    }
    return LS_OK;
}

/* Writes the path of a file in the folder, and adds the file's number of records to `*count`. */
static ls_status count_records(const cifar *kind, const char *folder, const char *name, char *path, size_t capacity,
                               int64_t *count) {
    ls_source source;
    if ((size_t)snprintf(path, capacity, "%s/%s", folder, name) >= capacity) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the folder's name is too long", kind->call);
    }
    const ls_status status = open_file(kind, path, &source);
    *count += status == LS_OK ? (int64_t)(source.size / record_size(kind)) : 0;
    ls_source_close(&source);
    return status;
}

/* Reads at most `count` records of a file into the rows that start at `*row`. */
static ls_status read_records(const cifar *kind, ls_source *source, int64_t count, int64_t *row, ls_tensor *input,
                              ls_tensor *target) {
    unsigned char record[MOST_LABELS + PICTURE];
    const int64_t records = (int64_t)(source->size / record_size(kind));
    for (int64_t i = 0; i < records && *row < count; i++, ++*row) {
        size_t got;
        LS_TRY(ls_source_read(source, record, record_size(kind), &got));
        if (got < record_size(kind)) {
            return ls_source_fail_short(source);
        }
        for (int label = 0; label < kind->labels; label++) {
            if (record[label] >= kind->classes[label]) {
                return ls_fail(
                    LS_ERR_FORMAT, "%s: %s: record %lld has label %d, which is not one of %d classes: is it %s?",
                    kind->call, source->path, (long long)i, record[label], kind->classes[label], kind->title);
            }
        }
        ((unsigned char *)ls_host_data(target))[*row] = record[kind->wanted];
        memcpy((unsigned char *)ls_host_data(input) + *row * PICTURE, record + kind->labels, PICTURE);
    }
    return LS_OK;
}

static ls_status read_files(const cifar *kind, const char *folder, int64_t count, ls_tensor *input, ls_tensor *target) {
    char path[4096];
    int64_t row = 0;
    for (int i = 0; i < MOST_FILES && kind->files[i] != NULL; i++) {
        ls_source source;
        snprintf(path, sizeof path, "%s/%s", folder, kind->files[i]);
        ls_status status = open_file(kind, path, &source);
        if (status == LS_OK) {
            status = read_records(kind, &source, count, &row, input, target);
        }
        ls_source_close(&source);
        LS_TRY(status);
    }
    return row == count
               ? LS_OK
               : ls_fail(LS_ERR_IO, "%s: the files in %s changed while they were being read", kind->call, folder);
}

static ls_dataset *read_dataset(const cifar *kind, const char *folder) {
    char path[4096];
    int64_t count = 0;
    if (folder == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "%s: the folder is NULL: pass the folder with the files of %s's binary version", kind->call,
                            kind->title);
    }
    for (int i = 0; i < MOST_FILES && kind->files[i] != NULL; i++) {
        if (count_records(kind, folder, kind->files[i], path, sizeof path, &count) != LS_OK) {
            return NULL;
        }
    }
    ls_tensor *input =
        ls_tensor_new_owned(kind->call, &ls_cpu, 4, (const int64_t[]){count, CHANNELS, SIDE, SIDE}, LS_U8);
    ls_tensor *target = ls_tensor_new_owned(kind->call, &ls_cpu, 1, &count, LS_U8);
    if (input == NULL || target == NULL || read_files(kind, folder, count, input, target) != LS_OK) {
        ls_tensor_drop(input);
        ls_tensor_drop(target);
        return NULL;
    }
    return ls_dataset_of_tensors(input, target);
}

ls_dataset *ls_cifar10_dataset(const char *folder, bool train) {
    cifar kind = {.call = "ls_cifar10_dataset", .title = "CIFAR-10", .labels = 1, .classes = {10}};
    static const char *const batches[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                          "data_batch_4.bin", "data_batch_5.bin"};
    if (train) {
        memcpy(kind.files, batches, sizeof batches);
    } else {
        kind.files[0] = "test_batch.bin";
    }
    return read_dataset(&kind, folder);
}

ls_dataset *ls_cifar100_dataset(const char *folder, bool train, bool coarse) {
    const cifar kind = {.call = "ls_cifar100_dataset",
                        .title = "CIFAR-100",
                        .labels = 2,
                        .classes = {20, 100},
                        .wanted = coarse ? 0 : 1,
                        .files = {train ? "train.bin" : "test.bin"}};
    return read_dataset(&kind, folder);
}
