/* Transforms of whole batches. */
#include <float.h>
#include <math.h>

#include "base/option.h"
#include "data/dataset.h"
#include "tensor/scope.h"

/* Runs one sample through the chain to learn the resulting shape and dtype. */
static ls_status find_layout(ls_dataset *dataset) {
    if (dataset->count == 0) {
        return LS_OK;
    }
    const int64_t first = 0;
    ls_tensor *input = NULL;
    ls_tensor *target = NULL;
    const ls_samples samples = {.indices = &first, .places = &first, .count = 1};
    LS_TRY(ls_dataset_batch(dataset, &samples, &input, &target));
    dataset->layout = (ls_sample_layout){.input_shape = ls_sample_shape(input),
                                         .input_dtype = (ls_dtype)input->dtype,
                                         .target_shape = ls_sample_shape(target),
                                         .target_dtype = (ls_dtype)target->dtype};
    ls_tensor_drop(input);
    ls_tensor_drop(target);
    return LS_OK;
}

/* Returns the data set itself if the caller is its only owner. Otherwise returns a view, because the other owners
   need it unchanged. */
static ls_dataset *to_be_changed(ls_dataset *dataset) {
    if (dataset == NULL) {
        (void)ls_fail_missing("ls_dataset: the data set to transform");
        return NULL;
    }
    return dataset->owners.made && dataset->owners.references == 1 ? dataset
                                                                   : ls_dataset_subset(dataset, 0, dataset->count);
}

ls_dataset *ls_dataset_add_step(ls_dataset *given, bool of_targets, ls_transform_step step) {
    ls_dataset *dataset = to_be_changed(given);
    if (dataset == NULL) {
        return NULL;
    }
    ls_transform_chain *chain = of_targets ? &dataset->target : &dataset->input;
    ls_status status = LS_OK;
    const char *subject = of_targets ? "target" : "input";
    if (step.function == NULL) {
        status = ls_fail(LS_ERR_ARGUMENT, "ls_dataset_transform_%s: the transform is NULL", subject);
    } else if (chain->count == LS_TRANSFORM_LIMIT) {
        status =
            ls_fail(LS_ERR_ARGUMENT,
                    "ls_dataset: the %s has %d transforms, which is the maximum: combine several in a function for "
                    "ls_dataset_transform_%s",
                    subject, LS_TRANSFORM_LIMIT, subject);
    } else {
        chain->steps[chain->count++] = step;
        dataset->serial = dataset->serial || !step.built_in;
        status = find_layout(dataset);
    }
    if (status != LS_OK) {
        ls_dataset_consume(dataset);
        return NULL;
    }
    return dataset;
}

ls_dataset *ls_dataset_transform_input(ls_dataset *dataset, ls_transform transform, void *user) {
    return ls_dataset_add_step(dataset, false, (ls_transform_step){.function = transform, .user = user});
}

ls_dataset *ls_dataset_transform_target(ls_dataset *dataset, ls_transform transform, void *user) {
    return ls_dataset_add_step(dataset, true, (ls_transform_step){.function = transform, .user = user});
}

ls_dataset *ls_dataset_concurrent(ls_dataset *given) {
    ls_dataset *dataset = to_be_changed(given);
    if (dataset != NULL) {
        dataset->serial = false;
    }
    return dataset;
}

/* `numbers` contains the factor and the shift: scaling is one multiplication and one addition. */
static ls_tensor *scale_and_shift(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    const double *numbers = ((const ls_step_options *)user)->numbers;
    return ls_add(ls_mul(ls_to(batch, LS_F32), numbers[0]), numbers[1]);
}

/*
 * `numbers` contains the mean and the factor. The mean is subtracted first, so that the result keeps the digits of the
 * difference. Computes in `dtype`, to which ls_sub rounds the mean.
 */
static ls_tensor *center_and_scale(ls_tensor *batch, const double *numbers, ls_dtype dtype) {
    return ls_to(ls_mul(ls_sub(ls_to(batch, dtype), numbers[0]), numbers[1]), LS_F32);
}

static ls_tensor *normalize(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    return center_and_scale(batch, ((const ls_step_options *)user)->numbers, LS_F32);
}

/* For inputs, means or factors that f32 cannot represent. */
static ls_tensor *normalize_wide(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    return center_and_scale(batch, ((const ls_step_options *)user)->numbers, LS_F64);
}

ls_dataset *ls_dataset_normalize(ls_dataset *dataset, double mean, double deviation) {
    static const char *const call = "ls_dataset_normalize";
    if (ls_option_within(call, "mean", mean, -DBL_MAX, DBL_MAX) != LS_OK ||
        ls_option_within(call, "deviation", deviation, DBL_MIN, DBL_MAX) != LS_OK) {
        ls_dataset_consume(dataset);
        return NULL;
    }
    const ls_dtype dtype = ls_dataset_layout(dataset).input_dtype;
    const bool fits = fabs(mean) <= FLT_MAX && deviation <= 1 / FLT_MIN && deviation >= 1 / FLT_MAX;
    const bool wide = dtype == LS_F64 || dtype == LS_I64 || dtype == LS_I32 || !fits;
    ls_transform_step step = {
        .function = wide ? normalize_wide : normalize, .built_in = true, .options.numbers = {mean, 1 / deviation}};
    if (dtype == LS_U8 && fits) {
        step.function = scale_and_shift;
        step.options.numbers[0] = 1.0 / 255 / deviation;
        step.options.numbers[1] = -mean / deviation;
    } else if (dtype == LS_U8) {
        step.options.numbers[0] = mean * 255;
        step.options.numbers[1] = 1.0 / 255 / deviation;
    }
    return ls_dataset_add_step(dataset, false, step);
}

static ls_tensor *flatten_samples(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_ndim(batch) == 1 ? ls_unsqueeze(batch, 1) : ls_flatten(batch, 1, -1);
}

ls_dataset *ls_dataset_flatten(ls_dataset *dataset) {
    return ls_dataset_add_step(dataset, false, (ls_transform_step){.function = flatten_samples, .built_in = true});
}

/* Returns whether all elements are whole numbers, such as classes that a CSV file stores in a column of f32. */
static bool is_whole(ls_tensor *targets) {
    return !ls_dtype_is_floating(ls_dtype_of(targets)) || ls_numel(targets) == 0 ||
           ls_item(ls_max(ls_sub(targets, ls_floor(targets)))) == 0;
}

static ls_tensor *to_one_hot(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    const double *numbers = ((const ls_step_options *)user)->numbers;
    const int64_t classes = (int64_t)numbers[0];
    if (!is_whole(batch)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_dataset_one_hot: a target is not a whole number; convert the targets "
                                              "first (ls_dataset_transform_target)");
    }
    ls_tensor *targets = ls_to(batch, LS_I64);
    if (ls_numel(targets) > 0) {
        const double least = ls_item(ls_min(targets)), largest = ls_item(ls_max(targets));
        if (least < 0 || largest >= (double)classes) {
            return ls_fail_noted(LS_ERR_ARGUMENT, "ls_dataset_one_hot: the target %g is not one of %lld classes",
                                 least < 0 ? least : largest, (long long)classes);
        }
    }
    ls_tensor *wanted = ls_unsqueeze(targets, -1);
    return ls_to(ls_eq(wanted, ls_arange(LS_SHAPE(classes), LS_I64)), LS_F32);
}

ls_dataset *ls_dataset_one_hot(ls_dataset *dataset, int64_t classes) {
    if (classes <= 0) {
        ls_dataset_consume(dataset);
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_dataset_one_hot: %lld classes: the number must be positive",
                            (long long)classes);
    }
    return ls_dataset_add_step(
        dataset, true,
        (ls_transform_step){.function = to_one_hot, .built_in = true, .options.numbers = {(double)classes, 0}});
}
