#include "data/dataset.h"

#include <string.h>

#include "base/draws.h"
#include "base/memory.h"
#include "base/random.h"
#include "tensor/device.h"
#include "tensor/scope.h"

static bool shape_is_good(const ls_shape *shape) {
    bool good = shape->ndim >= 0 && shape->ndim < LS_MAX_DIMS;
    for (int i = 0; good && i < shape->ndim; i++) {
        good = shape->size[i] >= 0;
    }
    return good;
}

static bool layout_is_good(const ls_sample_layout *layout) {
    return shape_is_good(&layout->input_shape) && shape_is_good(&layout->target_shape) &&
           ls_dtype_size(layout->input_dtype) > 0 && ls_dtype_size(layout->target_dtype) > 0;
}

ls_dataset *ls_dataset_new(const ls_dataset_type *type, int64_t count, const ls_sample_layout *layout) {
    if (type == NULL || type->fetch == NULL || layout == NULL || count < 0 || !layout_is_good(layout)) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "ls_dataset_new: a type with fetch, a count of 0 or more (is %lld), valid dtypes, and "
                            "shapes of at most %d axes "
                            "with sizes of 0 or more are needed",
                            (long long)count, LS_MAX_DIMS - 1);
    }
    ls_dataset *dataset = ls_allocate_zeroed(1, sizeof *dataset);
    void *state = ls_allocate_zeroed(1, type->state_size);
    if (dataset == NULL || state == NULL) {
        ls_free(dataset);
        ls_free(state);
        (void)ls_fail_memory("ls_dataset_new", sizeof *dataset + type->state_size);
        return NULL;
    }
    dataset->type = type;
    dataset->state = state;
    dataset->owners = LS_OWNERS_NEW;
    dataset->count = count;
    dataset->raw = *layout;
    dataset->layout = *layout;
    dataset->guard = dataset;
    dataset->serial = true;
    pthread_mutex_init(&dataset->lock, NULL);
    return dataset;
}

static void destroy(ls_dataset *dataset) {
    if (dataset->type->free_state != NULL) {
        dataset->type->free_state(dataset);
    }
    ls_free(dataset->state);
    pthread_mutex_destroy(&dataset->lock);
    *dataset = (ls_dataset){.count = 0};
    ls_retire(dataset, LS_RETIRED_DATASET);
}

bool ls_dataset_is_here(const ls_dataset *dataset) {
    if (dataset != NULL && ls_owners_are_gone(&dataset->owners)) {
        (void)ls_fail(LS_ERR_STATE,
                      "the data set was freed with the last loader or data set that owned it; keep it with "
                      "ls_dataset_retain");
        return false;
    }
    return dataset != NULL;
}

ls_dataset *ls_dataset_take(const char *call, ls_dataset *dataset) {
    if (dataset == NULL) {
        (void)ls_fail_missing("%s: the data set", call);
        return NULL;
    }
    if (!ls_dataset_is_here(dataset)) {
        return NULL;
    }
    ls_owners_take(&dataset->owners);
    return dataset;
}

void ls_dataset_drop(ls_dataset *dataset) {
    if (dataset != NULL && ls_owners_drop(&dataset->owners)) {
        destroy(dataset);
    }
}

ls_dataset *ls_dataset_retain(ls_dataset *dataset) {
    if (!ls_dataset_is_here(dataset)) {
        return NULL;
    }
    ls_owners_retain(&dataset->owners);
    return dataset;
}

void ls_dataset_free(ls_dataset *dataset) {
    if (dataset != NULL && ls_owners_give_back(&dataset->owners)) {
        destroy(dataset);
    }
}

void *ls_dataset_state(const ls_dataset *dataset) {
    return dataset != NULL ? dataset->state : NULL;
}

int64_t ls_dataset_count(const ls_dataset *dataset) {
    return dataset != NULL ? dataset->count : 0;
}

int64_t ls_dataset_block(const ls_dataset *dataset) {
    return dataset != NULL ? dataset->storage.block : 0;
}

ls_sample_layout ls_dataset_layout(const ls_dataset *dataset) {
    return dataset != NULL ? dataset->layout : (ls_sample_layout){0};
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

ls_status ls_batch_check(const char *call, const char *which, int64_t number, const ls_tensor *batch, ls_shape shape,
                         ls_dtype dtype) {
    const ls_shape given = ls_sample_shape(batch);
    if (ls_shape_equal(&given, &shape) && batch->dtype == dtype) {
        return LS_OK;
    }
    return ls_fail(
        LS_ERR_SHAPE,
        "%s: in the batch that begins with sample %lld, each %s is %s of %s, but the first sample's is %s of "
        "%s: a transform must return the same shape and dtype for all samples",
        call, (long long)number, which, ls_shape_describe(given.ndim, given.size).text,
        ls_dtype_name((ls_dtype)batch->dtype), ls_shape_describe(shape.ndim, shape.size).text, ls_dtype_name(dtype));
}

static ls_tensor *new_batch(int64_t n, ls_shape sample, ls_dtype dtype) {
    int64_t size[LS_MAX_DIMS] = {n};
    memcpy(size + 1, sample.size, (size_t)sample.ndim * sizeof *size);
    ls_tensor *batch = ls_tensor_new_owned("ls_loader_next", &ls_cpu, sample.ndim + 1, size, dtype);
    if (batch != NULL) {
        ls_storage_set_kind(batch->storage, LS_MEMORY_DATA);
    }
    return batch;
}

/* Returns the tensor of the previous batch if it can hold this batch, or else a new tensor. */
static ls_tensor *reuse_or_new(ls_tensor *old, int64_t n, ls_shape sample, ls_dtype dtype) {
    if (old != NULL && old->size[0] == n && ls_tensor_is_alone(old)) {
        return old;
    }
    ls_tensor_drop(old);
    return new_batch(n, sample, dtype);
}

/* Runs the transforms in their own scope, without recording. Takes ownership of `batch`. */
static ls_tensor *run_chain(const ls_transform_chain *chain, const ls_samples *samples, ls_tensor *batch) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        ls_tensor_drop(batch);
        return NULL;
    }
    (void)ls_no_grad(true);
    ls_thread_state *thread = ls_thread();
    const ls_device *device = thread->device;
    thread->device = &ls_cpu; /* the device of the batch, and of tensors that the steps create */
    ls_tensor *x = ls_tensor_give(batch);
    for (int i = 0; i < chain->count && x != NULL; i++) {
        const ls_transform_step *step = &chain->steps[i];
        ls_step_options own = step->options;
        x = step->function(x, samples, step->built_in ? &own : step->user);
    }
    thread->device = device;
    if (x == NULL && !ls_scope_explains_null(ls_thread())) {
        (void)ls_fail(LS_ERR_STATE, "ls_loader_next: a transform returned NULL without an error");
    }
    ls_tensor *result = x != NULL && x->scope != scope ? ls_tensor_hold(x) : ls_tensor_take(x);
    if (ls_scope_close(scope) != LS_OK || result == NULL) {
        ls_tensor_drop(result);
        return NULL;
    }
    return result;
}

static bool check_rows(const ls_tensor *batch, int64_t n, const char *which) {
    if (batch->ndim < 1 || batch->size[0] != n) {
        (void)ls_fail(
            LS_ERR_SHAPE,
            "ls_loader_next: a transform of the %ss returned %s for %lld samples: it must keep the first axis", which,
            LS_SHAPE_TEXT(batch), (long long)n);
        return false;
    }
    return true;
}

static ls_tensor *transform(const ls_transform_chain *chain, const ls_samples *samples, ls_tensor *batch,
                            const char *which) {
    if (chain->count == 0 || batch == NULL) {
        return batch;
    }
    ls_tensor *result = run_chain(chain, samples, batch);
    if (result != NULL && !check_rows(result, samples->count, which)) {
        ls_tensor_drop(result);
        return NULL;
    }
    return result;
}

ls_status ls_dataset_fetch(ls_dataset *dataset, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const uint32_t errors = ls_error_count;
    const ls_status status = dataset->type->fetch(dataset, samples, input, target);
    const char *name = dataset->type->name;
    return status == LS_OK || ls_error_count != errors
               ? status
               : ls_fail(status, "ls_loader_next: fetch of a data set of type \"%s\" failed with %s",
                         name != NULL ? name : "user-defined", ls_status_name(status));
}

static ls_status make_batch(ls_dataset *dataset, const ls_samples *samples, ls_tensor **input, ls_tensor **target) {
    /* Only batches without transforms are reused, because fetch must not fill a tensor that a transform made. */
    if (dataset->input.count > 0) {
        ls_tensor_drop(*input);
        *input = NULL;
    }
    if (dataset->target.count > 0) {
        ls_tensor_drop(*target);
        *target = NULL;
    }
    const ls_sample_layout *raw = &dataset->raw;
    *input = reuse_or_new(*input, samples->count, raw->input_shape, raw->input_dtype);
    *target = reuse_or_new(*target, samples->count, raw->target_shape, raw->target_dtype);
    ls_status status =
        *input != NULL && *target != NULL ? ls_dataset_fetch(dataset, samples, *input, *target) : ls_error_status();
    if (status == LS_OK) {
        *input = transform(&dataset->input, samples, *input, "input");
        *target = transform(&dataset->target, samples, *target, "target");
        status = *input != NULL && *target != NULL ? LS_OK : ls_error_status();
    }
    return status;
}

/* Seeds the operations in a program's own functions: the random numbers depend on the samples, not on the thread. */
static ls_random_state random_state_of(const ls_dataset *dataset, const ls_samples *samples) {
    enum { FIRST_SALT = 1024 }; /* numbered after the salts of augment.c */
    const uint64_t place = samples->count > 0 ? (uint64_t)samples->places[0] : 0;
    const ls_draws draws = ls_draws_salted(samples->seed, (uint64_t)(FIRST_SALT + dataset->earlier_steps),
                                           ((uint64_t)samples->epoch << 44) + (place << 12));
    return (ls_random_state){.seed = draws.seed, .stream = draws.stream};
}

ls_status ls_without_recording(ls_status (*function)(void *argument), void *argument) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    const uint32_t errors = ls_error_count;
    (void)ls_no_grad(true);
    const ls_status status = function(argument);
    if (status == LS_OK || ls_error_count == errors) {
        const ls_status closed = ls_scope_close(scope);
        return status != LS_OK ? status : closed;
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status;
    (void)ls_scope_close(scope);
    (void)ls_error_put_back(&cause);
    return status;
}

typedef struct sample_request {
    ls_dataset *dataset;
    const ls_samples *samples;
    ls_tensor **input;
    ls_tensor **target;
} sample_request;

static ls_status make(void *argument) {
    const sample_request *m = argument;
    const ls_random_state before = ls_random_present();
    const ls_dtype autocast = ls_autocast(LS_F32); /* the loader's threads do not inherit the setting */
    ls_random_continue(random_state_of(m->dataset, m->samples));
    const ls_status status = make_batch(m->dataset, m->samples, m->input, m->target);
    ls_random_continue(before);
    (void)ls_autocast(autocast);
    return status;
}

ls_status ls_dataset_batch(ls_dataset *dataset, const ls_samples *samples, ls_tensor **input, ls_tensor **target) {
    sample_request arguments = {.dataset = dataset, .samples = samples, .input = input, .target = target};
    if (dataset->serial) {
        pthread_mutex_lock(&dataset->guard->lock);
    }
    const bool plain = dataset->copies && dataset->input.count == 0 && dataset->target.count == 0;
    const ls_status status =
        plain ? make_batch(dataset, samples, input, target) : ls_without_recording(make, &arguments);
    if (dataset->serial) {
        pthread_mutex_unlock(&dataset->guard->lock);
    }
    if (status != LS_OK) {
        ls_tensor_drop(*input);
        ls_tensor_drop(*target);
        *input = *target = NULL;
    }
    return status;
}
