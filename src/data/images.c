/*
 * Folders of PNG and JPEG files with one subfolder per class, as in torchvision's ImageFolder. Pictures are decoded on
 * demand.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "formats/file.h"
#include "formats/image.h"
#include "tensor/device.h"

static const char call[] = "ls_image_folder_dataset";

typedef struct sample {
    char *path;
    int64_t class;
} sample;

typedef struct names {
    char **list;
    size_t count;
} names;

typedef struct image_state {
    names classes;
    sample *samples;
    size_t count;
    int64_t height, width;
    int64_t channels;
    bool resized;
} image_state;

static void free_names(names *n) {
    for (size_t i = 0; i < n->count; i++) {
        ls_free(n->list[i]);
    }
    ls_free(n->list);
    *n = (names){.count = 0};
}

static void free_images(image_state *state) {
    for (size_t i = 0; i < state->count; i++) {
        ls_free(state->samples[i].path);
    }
    ls_free(state->samples);
    free_names(&state->classes);
}

static void images_free_state(ls_dataset *self) {
    free_images(self->state);
}

/* ---- listing the files ------------------------------------------------------------------------------------------- */

static ls_status add_name(names *n, const char *name) {
    char **list = ls_grow(n->list, n->count, sizeof *list);
    n->list = list != NULL ? list : n->list;
    char *copy = list != NULL ? ls_duplicate_string(name) : NULL;
    if (copy == NULL) {
        return ls_fail_memory(call, strlen(name) + 1);
    }
    n->list[n->count++] = copy;
    return LS_OK;
}

static int by_bytes(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Lists all names that do not begin with a dot, sorted by byte values. */
static ls_status list_folder(const char *path, names *found) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return ls_fail_open(call, path);
    }
    ls_status status = LS_OK;
    errno = 0;
    for (struct dirent *item = readdir(folder); item != NULL && status == LS_OK; item = readdir(folder)) {
        status = item->d_name[0] != '.' ? add_name(found, item->d_name) : LS_OK;
        errno = 0;
    }
    if (status == LS_OK && errno != 0) {
        status = ls_fail(LS_ERR_IO, "%s: cannot read the folder %s: %s", call, path, strerror(errno));
    }
    closedir(folder);
    if (found->count > 1) {
        qsort(found->list, found->count, sizeof *found->list, by_bytes);
    }
    return status;
}

static ls_status join(const char *folder, const char *name, char **path) {
    const size_t size = strlen(folder) + strlen(name) + 2;
    *path = ls_allocate(size);
    if (*path == NULL) {
        return ls_fail_memory(call, size);
    }
    snprintf(*path, size, "%s/%s", folder, name);
    return LS_OK;
}

static bool is_folder(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static bool ends_with(const char *name, const char *const *endings) {
    const char *dot = strrchr(name, '.');
    for (; dot != NULL && *endings != NULL; endings++) {
        if (strcasecmp(dot, *endings) == 0) {
            return true;
        }
    }
    return false;
}

/* Adds a picture as a sample. Ignores files of other types. Takes ownership of the path. */
static ls_status add_file(image_state *state, char *path, int64_t class) {
    static const char *const read[] = {".png", ".jpg", ".jpeg", NULL};
    static const char *const other[] = {".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp", NULL};
    ls_status status = LS_OK;
    if (is_folder(path)) {
        status = ls_fail(LS_ERR_ARGUMENT,
                         "%s: %s is a folder inside the folder of a class, which may contain only images", call, path);
    } else if (ends_with(path, other)) {
        status = ls_fail(LS_ERR_UNSUPPORTED, "%s: %s: not a PNG or JPEG file: convert it", call, path);
    } else if (ends_with(path, read)) {
        sample *samples = ls_grow(state->samples, state->count, sizeof *samples);
        if (samples != NULL) {
            state->samples = samples;
            state->samples[state->count++] = (sample){.path = path, .class = class};
            return LS_OK;
        }
        status = ls_fail_memory(call, (state->count + 1) * sizeof *samples);
    }
    ls_free(path);
    return status;
}

/* Adds the pictures of a class from the subfolder of the same name. */
static ls_status add_class(image_state *state, const char *folder, const char *name) {
    names files = {.count = 0};
    const size_t before = state->count;
    const int64_t class = (int64_t)state->classes.count;
    LS_TRY(add_name(&state->classes, name));
    ls_status status = list_folder(folder, &files);
    for (size_t i = 0; i < files.count && status == LS_OK; i++) {
        char *path = NULL;
        status = join(folder, files.list[i], &path);
        status = status == LS_OK ? add_file(state, path, class) : status;
    }
    free_names(&files);
    if (status == LS_OK && state->count == before) {
        status = ls_fail(LS_ERR_ARGUMENT, "%s: there is no image (.png, .jpg, .jpeg) in %s", call, folder);
    }
    return status;
}

static ls_status find_images(const char *folder, image_state *state) {
    names found = {.count = 0};
    ls_status status = list_folder(folder, &found);
    for (size_t i = 0; i < found.count && status == LS_OK; i++) {
        char *path = NULL;
        status = join(folder, found.list[i], &path);
        if (status == LS_OK && is_folder(path)) {
            status = add_class(state, path, found.list[i]);
        } else if (status == LS_OK && access(path, F_OK) != 0) { /* it may be the folder of a class */
            status = ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, path, strerror(errno));
        }
        ls_free(path);
    }
    free_names(&found);
    if (status == LS_OK && state->count == 0) {
        status = ls_fail(LS_ERR_ARGUMENT, "%s: there is no folder in %s: each class needs a folder", call, folder);
    }
    return status;
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static ls_status read_image(const image_state *state, const char *path, unsigned char *planes) {
    ls_raster picture;
    LS_TRY(ls_raster_read(call, path, &picture));
    ls_status status = LS_OK;
    if (!state->resized && (picture.height != state->height || picture.width != state->width)) {
        status =
            ls_fail(LS_ERR_SHAPE,
                    "%s: %s has %lld x %lld pixels and %s %lld x %lld: give a height and a width to resize them to",
                    call, path, (long long)picture.height, (long long)picture.width, state->samples[0].path,
                    (long long)state->height, (long long)state->width);
    }
    if (status == LS_OK) {
        status = ls_raster_put(call, &picture, state->channels, state->height, state->width, planes);
    }
    ls_free(picture.pixels);
    return status;
}

static ls_status images_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const image_state *state = self->state;
    const int64_t bytes = state->channels * state->height * state->width;
    for (int64_t i = 0; i < samples->count; i++) {
        const sample *wanted = &state->samples[samples->indices[i]];
        LS_TRY(read_image(state, wanted->path, (unsigned char *)ls_host_data(input) + i * bytes));
        ((int64_t *)ls_host_data(target))[i] = wanted->class;
    }
    return LS_OK;
}

static const ls_dataset_type type = {
    .name = "images", .state_size = sizeof(image_state), .fetch = images_fetch, .free_state = images_free_state};

static ls_status check_options(const char *folder, const ls_image_options *options) {
    enum { MOST = 1 << 14 };
    if (folder == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the folder is NULL", call);
    }
    if (options->height < 0 || options->width < 0 || options->height > MOST || options->width > MOST ||
        (options->height == 0) != (options->width == 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .height is %lld and .width is %lld; set both (each at most %d) or neither",
                       call, (long long)options->height, (long long)options->width, MOST);
    }
    return options->channels == 0 || options->channels == 1 || options->channels == 3
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: .channels is %lld, but must be 1 or 3", call,
                         (long long)options->channels);
}

/* Uses the size of the first picture as the size of all pictures. */
static ls_status find_size(image_state *state) {
    ls_raster picture;
    LS_TRY(ls_raster_read(call, state->samples[0].path, &picture));
    state->height = picture.height;
    state->width = picture.width;
    ls_free(picture.pixels);
    return LS_OK;
}

ls_dataset *ls_image_folder_dataset(const char *folder, const ls_image_options *options) {
    static const ls_image_options defaults;
    options = options != NULL ? options : &defaults;
    if (check_options(folder, options) != LS_OK) {
        return NULL;
    }
    image_state state = {.height = options->height,
                         .width = options->width,
                         .channels = options->channels != 0 ? options->channels : 3,
                         .resized = options->height > 0};
    ls_status status = find_images(folder, &state);
    if (status == LS_OK && !state.resized) {
        status = find_size(&state);
    }
    const ls_sample_layout layout = {LS_SHAPE(state.channels, state.height, state.width), LS_U8, LS_SCALAR, LS_I64};
    ls_dataset *dataset = status == LS_OK ? ls_dataset_new(&type, (int64_t)state.count, &layout) : NULL;
    if (dataset == NULL) {
        free_images(&state);
        return NULL;
    }
    *(image_state *)dataset->state = state;
    dataset->serial = false;
    return dataset;
}

const char *ls_image_folder_class(const ls_dataset *dataset, int64_t number) {
    const image_state *state = dataset != NULL && dataset->type == &type ? dataset->state : NULL;
    return state != NULL && number >= 0 && number < (int64_t)state->classes.count ? state->classes.list[number] : NULL;
}
