/* Mean and standard deviation of the inputs of a data set, per channel. */
#include <float.h>
#include <math.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/device.h"

/* Approximate number of elements per batch of samples. */
enum { NUMBERS = 1 << 20 };

/* Running state over the samples so far. */
typedef struct statistics {
    ls_dataset *dataset;
    const char *axis; /* for messages: "column" of a table, or "channel" */
    int64_t channels;
    int64_t inner; /* elements of a channel in one sample */
    int64_t count; /* samples */
    bool skips_nan;
    double *values; /* number of values of each channel */
    double *mean;
    double *squares; /* sums of squared distances from the mean; in the end, the standard deviations */
    double *least, *most;
} statistics;

static ls_status fail_number(const statistics *s, int64_t channel, int64_t rows) {
    return ls_fail(LS_ERR_ARGUMENT,
                   "ls_nn_standardize_fit: %s %lld contains %s in samples %lld to %lld; %s, or omit the samples",
                   s->axis, (long long)channel, s->skips_nan ? "infinity" : "NaN or infinity", (long long)s->count,
                   (long long)(s->count + rows - 1),
                   s->skips_nan ? "replace the value"
                                : "replace the value, set .nan_is_mean of ls_nn_standardize_with if NaN means a "
                                  "missing value");
}

/* The buffers have dtype f32: a deviation below the smallest normal number would lose digits or become 0. */
static ls_status fail_range(const statistics *s, int64_t channel) {
    return ls_fail(LS_ERR_ARGUMENT,
                   "ls_nn_standardize_fit: %s %lld contains values from %g to %g, which are too %s: f32 cannot "
                   "hold their mean and deviation; multiply them by a constant first (ls_dataset_transform_input)",
                   s->axis, (long long)channel, s->least[channel], s->most[channel],
                   fmax(fabs(s->least[channel]), fabs(s->most[channel])) > 1 ? "large" : "close together");
}

static bool has_value(const statistics *s, double number) {
    return !(s->skips_nan && isnan(number));
}

/* Extends the range of a channel by the values of one sample, and adds their number and sum. Returns false if a value
 * is not finite. */
static bool add_sample(statistics *s, int64_t channel, const double *numbers, double *count, double *sum) {
    bool finite = true;
    for (int64_t k = 0; k < s->inner; k++) {
        if (has_value(s, numbers[k])) {
            finite = finite && isfinite(numbers[k]);
            s->least[channel] = numbers[k] < s->least[channel] ? numbers[k] : s->least[channel];
            s->most[channel] = numbers[k] > s->most[channel] ? numbers[k] : s->most[channel];
            *count += 1;
            *sum += numbers[k];
        }
    }
    return finite;
}

/* Returns the sum of squared distances of a channel's values in a batch from their mean. */
static double sum_squares(const statistics *s, int64_t channel, const double *batch, int64_t rows, double mean) {
    double squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        const double *numbers = batch + (i * s->channels + channel) * s->inner;
        for (int64_t k = 0; k < s->inner; k++) {
            const double difference = has_value(s, numbers[k]) ? numbers[k] - mean : 0;
            squares += difference * difference;
        }
    }
    return squares;
}

/* Adds one channel of a batch [rows, channels, inner] (Chan et al., The American Statistician 37, 1983). */
static ls_status add_channel(statistics *s, int64_t channel, const double *batch, int64_t rows) {
    const double previous_count = s->values[channel];
    double batch_count = 0, sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (!add_sample(s, channel, batch + (i * s->channels + channel) * s->inner, &batch_count, &sum)) {
            return fail_number(s, channel, rows);
        }
    }
    if (batch_count == 0) {
        return LS_OK;
    }
    const double mean = sum / batch_count, difference = mean - s->mean[channel];
    s->mean[channel] += difference * batch_count / (previous_count + batch_count);
    s->squares[channel] += sum_squares(s, channel, batch, rows, mean) +
                           difference * difference * previous_count * batch_count / (previous_count + batch_count);
    s->values[channel] += batch_count;
    return LS_OK;
}

static ls_status add_batch(statistics *s, ls_tensor *input, int64_t rows) {
    const ls_sample_layout layout = ls_dataset_layout(s->dataset);
    LS_TRY(ls_batch_check("ls_nn_standardize_fit", "input", s->count, input, layout.input_shape, layout.input_dtype));
    ls_scope *scope = ls_scope_open();
    ls_tensor *batch = ls_to(input, LS_F64);
    batch = batch != NULL ? ls_contiguous(batch) : NULL;
    ls_status status = batch != NULL ? LS_OK : ls_error_status();
    for (int64_t channel = 0; status == LS_OK && channel < s->channels; channel++) {
        status = add_channel(s, channel, ls_host_data(batch), rows);
    }
    const ls_status ended = ls_scope_end(scope);
    s->count += rows;
    return status != LS_OK ? status : ended;
}

static ls_status add_all(statistics *s, int64_t *indices, int64_t most) {
    ls_tensor *input = NULL, *target = NULL;
    ls_status status = LS_OK;
    while (status == LS_OK && s->count < ls_dataset_count(s->dataset)) {
        const int64_t left = ls_dataset_count(s->dataset) - s->count, rows = left < most ? left : most;
        for (int64_t i = 0; i < rows; i++) {
            indices[i] = s->count + i;
        }
        const ls_samples samples = {.indices = indices, .places = indices, .count = rows};
        status = ls_dataset_batch(s->dataset, &samples, &input, &target);
        status = status == LS_OK ? add_batch(s, input, rows) : status;
    }
    ls_tensor_drop(input);
    ls_tensor_drop(target);
    return status;
}

/* Sets the values of the buffer to `numbers`. */
static ls_status set_buffer(ls_module *module, const char *name, const double *numbers, int64_t count) {
    ls_tensor *given = ls_from(LS_SHAPE(count), LS_F64, numbers);
    const ls_status status = given != NULL ? ls_copy_into(ls_module_find(module, name), given) : ls_error_status();
    ls_release(given);
    return status;
}

static ls_status set_buffers(const statistics *s, ls_module *module) {
    for (int64_t c = 0; c < s->channels; c++) {
        if (s->values[c] == 0) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_nn_standardize_fit: %s %lld contains only NaN; remove it from the inputs", s->axis,
                           (long long)c);
        }
        const bool constant = s->least[c] == s->most[c];
        s->mean[c] = constant ? s->least[c] : s->mean[c];
        s->squares[c] = constant ? 1 : sqrt(s->squares[c] / s->values[c]);
        if (!(fabs(s->mean[c]) <= FLT_MAX && s->squares[c] >= FLT_MIN && s->squares[c] <= FLT_MAX)) {
            return fail_range(s, c);
        }
    }
    const bool before = ls_no_grad(true);
    ls_status status = set_buffer(module, "mean", s->mean, s->channels);
    status = status == LS_OK ? set_buffer(module, "deviation", s->squares, s->channels) : status;
    (void)ls_no_grad(before);
    return status;
}

static ls_status fit(ls_module *module, ls_dataset *dataset, int64_t inner) {
    statistics s = {.dataset = dataset,
                    .axis = ls_dataset_layout(dataset).input_shape.ndim == 1 ? "column" : "channel",
                    .channels = ls_size(ls_module_find(module, "mean"), 0),
                    .inner = inner,
                    .skips_nan = ls_standardize_skips_nan(module)};
    const int64_t fits = NUMBERS / (s.channels * inner), most = fits > 0 ? fits : 1;
    const int64_t count = ls_dataset_count(dataset), rows = count < most ? count : most;
    s.mean = ls_allocate_zeroed(5 * (size_t)s.channels, sizeof(double));
    int64_t *indices = ls_allocate_zeroed((size_t)rows, sizeof *indices);
    ls_status status =
        s.mean != NULL && indices != NULL ? LS_OK : ls_fail_memory("ls_nn_standardize_fit", (size_t)rows * 8);
    if (status == LS_OK) {
        s.squares = s.mean + s.channels;
        s.least = s.squares + s.channels;
        s.most = s.least + s.channels;
        s.values = s.most + s.channels;
        for (int64_t c = 0; c < s.channels; c++) {
            s.least[c] = INFINITY;
            s.most[c] = -INFINITY;
        }
        status = add_all(&s, indices, rows);
    }
    status = status == LS_OK ? set_buffers(&s, module) : status;
    ls_free(s.mean);
    ls_free(indices);
    return status;
}

ls_status ls_nn_standardize_fit(ls_module *standardize, ls_dataset *dataset) {
    static const char call[] = "ls_nn_standardize_fit";
    if ((standardize != NULL && !ls_module_is_here(standardize)) || (dataset != NULL && !ls_dataset_is_here(dataset))) {
        return LS_ERR_STATE;
    }
    if (standardize == NULL || standardize->type != &ls_standardize_type) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: expected a module created by ls_nn_standardize, not %s", call,
                       standardize == NULL ? "NULL" : ls_module_type_name(standardize));
    }
    if (dataset == NULL) {
        return ls_fail_missing("%s: the data set", call);
    }
    if (ls_dataset_count(dataset) == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the data set has no samples", call);
    }
    const ls_shape shape = ls_dataset_layout(dataset).input_shape;
    const int64_t channels = ls_size(ls_module_find(standardize, "mean"), 0);
    int64_t inner = 1;
    for (int i = 1; i < shape.ndim; i++) {
        inner *= shape.size[i];
    }
    if (shape.ndim < 1 || shape.size[0] != channels || inner < 1) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: inputs are %s, but must be [%lld, ...]; give ls_nn_standardize the number of columns or "
                       "channels of the inputs",
                       call, ls_shape_describe(shape.ndim, shape.size).text, (long long)channels);
    }
    return fit(standardize, dataset, inner);
}
