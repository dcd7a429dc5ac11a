/* Construction of a data-parallel module: agreement on the options, checks, and the memory of the averaging. */
#include <stdio.h>
#include <string.h>

#include "base/freed.h"
#include "base/memory.h"
#include "comm/hold.h"
#include "comm/reduce.h"
#include "parallel/averaging.h"
#include "parallel/hosts.h"
#include "parallel/powersgd.h"
#include "parallel/slices.h"
#include "parallel/units.h"

/* The smallest bucket size, and the default limit of the largest. With these sizes, latency is a small part of a
 * call's time on a network. */
static const size_t LEAST_BYTES = (size_t)256 << 10, MOST_BYTES = (size_t)4 << 20;

/* ---- the options ------------------------------------------------------------------------------------------------- */

/* Returns the size in bytes of the model's gradients. The model's lists must be collected. */
static size_t gradient_bytes(const ls_module *model) {
    size_t bytes = 0;
    for (int i = 0; i < model->parameters.count; i++) {
        const ls_tensor *parameter = model->parameters.items[i].tensor;
        bytes += parameter->leaf != NULL ? (size_t)parameter->count * ls_dtype_size((ls_dtype)parameter->dtype) : 0;
    }
    return bytes;
}

/* Properties besides the options that determine how gradients are averaged. */
typedef struct setting {
    bool shares;  /* another data-parallel module contains some of the parameters */
    bool on_host; /* the model is on the CPU */
} setting;

/*
 * Returns whether buckets are averaged during the backward pass. By default, this is done on networks if there are
 * several buckets.
 */
static bool chooses_overlap(const ls_data_parallel_state *state, const ls_data_parallel_options *options, setting of) {
    const int ranks = ls_comm_size(state->comm);
    if (of.shares || options->powersgd_rank > 0 || ranks == 1 || !of.on_host ||
        (options->shards > 1 && !ls_slices_are_regular(options->shards, ranks))) {
        return false;
    }
    const char *backend = ls_comm_backend(state->comm);
    const bool network = strcmp(backend, "tcp") == 0 || strcmp(backend, "mpi") == 0;
    return options->overlap == LS_OVERLAP_AUTO ? network && gradient_bytes(state->model) >= 2 * LEAST_BYTES
                                               : options->overlap == LS_OVERLAP_ON;
}

/* Fails on every rank unless all ranks or no ranks average buckets during the backward pass. */
static ls_status compare_overlap(const ls_data_parallel_state *state, bool overlaps) {
    bool equal = true;
    LS_TRY(ls_ranks_have_equal(state->comm, overlaps, &equal));
    return equal ? LS_OK
                 : ls_fail(LS_ERR_MISMATCH,
                           "ls_data_parallel: .overlap selects averaging during the backward pass on some ranks only "
                           "(%s on this rank): put the model on the same device type on all ranks, and share its "
                           "parameters with another data-parallel module on all ranks or on none",
                           overlaps ? "on" : "off");
}

static ls_status compare_options(const ls_data_parallel_state *state, const ls_data_parallel_options *options) {
    char text[320];
    snprintf(text, sizeof text,
             ".zero = %d, .powersgd_rank = %d, .reduce_dtype = %s, .overlap = %d, .bucket_bytes = %zu, "
             ".no_initial_sync = %d, .shards = %d, .wire = \"%s\" of %s",
             options->zero, options->powersgd_rank, ls_dtype_name(options->reduce_dtype), (int)options->overlap,
             options->bucket_bytes, options->no_initial_sync, options->shards,
             options->wire != NULL ? options->wire->name : "",
             ls_dtype_name(options->wire != NULL ? options->wire->dtype : LS_F32));
    return ls_options_compare("ls_data_parallel", state->comm, text);
}

/* Numbers the module: the number is greater than the numbers of all earlier modules of its ranks. */
static ls_status agree_on_number(ls_data_parallel_state *state) {
    static _Thread_local int32_t last;
    int32_t number = last + 1;
    LS_TRY(ls_comm_allreduce(state->comm, &number, &number, 1, LS_I32, LS_MAX, NULL));
    last = number;
    state->number = number;
    return LS_OK;
}

/* With .zero = 2 or 3, a rank has only parts of the gradients, which no second module can average. */
static ls_status check_apart(const ls_module *model) {
    for (int i = 0; i < model->parameters.count; i++) {
        const ls_leaf *leaf = model->parameters.items[i].tensor->leaf;
        const ls_shards *shards = leaf != NULL ? (const ls_shards *)leaf->sharding : NULL;
        if (shards != NULL && shards->stage > 1) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "ls_data_parallel: another data-parallel module, with .zero = %d, has some of the "
                           "parameters: use .zero = 1 there",
                           shards->stage);
        }
    }
    return LS_OK;
}

/* Sets *zero to the ZeRO stage, which is 0 for a single rank. */
static ls_status check_zero(const ls_data_parallel_state *state, const ls_data_parallel_options *options, setting of,
                            int *zero) {
    *zero = options->zero;
    if (*zero < 0 || *zero > 3) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_data_parallel: .zero is %d, but must be from 0 to 3", *zero);
    }
    if (*zero > 0 && of.shares) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_data_parallel: .zero is set, but another data-parallel module has some "
                                           "of the parameters");
    }
    if (*zero > 1 && !of.on_host) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_data_parallel: .zero = %d cannot be combined with a model on a GPU: use .zero = 1", *zero);
    }
    *zero = ls_comm_size(state->comm) > 1 ? *zero : 0;
    return LS_OK;
}

static ls_status check_powersgd(const ls_data_parallel_options *options, setting of) {
    const int rank = options->powersgd_rank;
    if (rank < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_data_parallel: .powersgd_rank is %d, but must be 0 (off) or positive",
                       rank);
    }
    if (rank > 0 && (options->reduce_dtype != LS_F32 || options->zero > 1 || !of.on_host)) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_data_parallel: .powersgd_rank = %d cannot be combined with .reduce_dtype, .zero = 2, "
                       ".zero = 3 or a model on a GPU: omit .powersgd_rank, or remove the conflicting setting",
                       rank);
    }
    return LS_OK;
}

static ls_status check_wire(const ls_data_parallel_options *options, setting of) {
    if (options->wire != NULL && options->wire->freed) {
        return ls_fail_freed("ls_data_parallel", "wire format", "ls_wire_format_free");
    }
    if (options->wire != NULL && (options->reduce_dtype != LS_F32 || options->powersgd_rank > 0 || options->zero > 1 ||
                                  options->shards > 0 || !of.on_host)) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_data_parallel: .wire (\"%s\") cannot be combined with .reduce_dtype, .powersgd_rank, .shards, "
            ".zero = 2, .zero = 3 or a model on a GPU: omit .wire, or remove the conflicting setting",
            options->wire->name);
    }
    return LS_OK;
}

/* Fails unless the sums over slices are bit-identical at every world size. */
static ls_status check_slices(const ls_data_parallel_state *state, const ls_data_parallel_options *options,
                              setting of) {
    const int shards = options->shards, ranks = ls_comm_size(state->comm);
    if (shards < 0 || shards > LS_REDUCE_MAX_RANKS || (shards > 0 && shards < ranks)) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "ls_data_parallel: .shards is %d, but must be 0 (off), or at least the number of ranks (%d) and at most %d",
            shards, ranks, LS_REDUCE_MAX_RANKS);
    }
    if (shards > 0 && (options->reduce_dtype != LS_F32 || options->powersgd_rank > 0 || options->zero > 1 ||
                       !of.on_host || of.shares)) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_data_parallel: .shards = %d cannot be combined with .reduce_dtype, .powersgd_rank, .zero = 2 "
            "or 3, a model on a GPU, or parameters of another data-parallel module: omit .shards, or remove the "
            "conflicting setting",
            shards);
    }
    return LS_OK;
}

/* ---- the memory -------------------------------------------------------------------------------------------------- */

static ls_status check_dtype(const ls_wire_format *format, int powersgd_rank, ls_dtype dtype) {
    if (dtype != LS_F32 && dtype != LS_F64) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_data_parallel: parameters of %s cannot be trained; use f32 or f64",
                       ls_dtype_name(dtype));
    }
    if (powersgd_rank > 0 && dtype != LS_F32) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_data_parallel: .powersgd_rank is %d, but a parameter is of f64: omit "
                       ".powersgd_rank, or use a model of f32",
                       powersgd_rank);
    }
    if (format->functions != NULL && dtype != LS_F32) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_data_parallel: .wire is \"%s\", but a parameter is of f64: omit .wire, or use a model of f32",
            format->name);
    }
    return !format->converts || dtype == LS_F32
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "ls_data_parallel: .reduce_dtype is %s, but a parameter is of f64, whose gradient would lose "
                         "most of its digits: omit .reduce_dtype, or use a model of f32",
                         format->name);
}

static ls_status open_overlap(ls_data_parallel_state *state, size_t bucket_bytes) {
    const size_t part = gradient_bytes(state->model) / 8;
    const size_t usual = part < LEAST_BYTES ? LEAST_BYTES : part > MOST_BYTES ? MOST_BYTES : part;
    LS_TRY(ls_gradient_reducer_divide(&state->reducer, bucket_bytes > 0 ? bucket_bytes : usual));
    return ls_overlap_open(state);
}

/* Fails if parameters differ between ranks, because sharding would mix them silently. */
static ls_status open_shards(ls_data_parallel_state *state, int zero, bool synced, bool overlaps) {
    const ls_gradient_reducer *reducer = &state->reducer;
    state->shards = ls_shards_open(state->module, state->model, zero, reducer);
    LS_TRY(ls_made(state->shards));
    LS_TRY(synced ? LS_OK : ls_replicas_compare("ls_data_parallel", state->model, state->comm));
    return ls_units_open(state->shards, overlaps);
}

ls_status ls_data_parallel_prepare(ls_data_parallel_state *state, const ls_data_parallel_options *options) {
    const ls_dtype dtype = options->reduce_dtype;
    ls_gradient_reducer *reducer = &state->reducer;
    *reducer = (ls_gradient_reducer){.model = state->model,
                                     .comm = state->comm,
                                     .format = ls_wire_of(dtype),
                                     .reduction = options->shards > 1 ? LS_SUM : LS_AVG};
    const ls_device *device;
    const ls_status found = ls_module_device(state->model, "ls_data_parallel", &device);
    const setting of = {.shares = ls_module_list(state->model) && ls_gradient_reducer_claim(state->model),
                        .on_host = device->is_host};
    const bool overlaps = chooses_overlap(state, options, of);
    LS_TRY(compare_options(state, options)); /* before the checks that may fail on only this rank */
    LS_TRY(found);
    LS_TRY(check_apart(state->model));
    if (reducer->format == NULL) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_data_parallel: .reduce_dtype is %s, but must be bf16 or f16, or f32 to disable it",
                       ls_dtype_name(dtype));
    }
    int zero = 0;
    LS_TRY(check_wire(options, of));
    LS_TRY(check_zero(state, options, of, &zero));
    LS_TRY(check_powersgd(options, of));
    LS_TRY(check_slices(state, options, of));
    state->own_format = ls_wire_format_hold(options->wire);
    reducer->format = options->wire != NULL ? options->wire : reducer->format;
    const int flat_count = ls_module_flatten_in(state->model, ls_shards_memory(zero), reducer->flats);
    if (flat_count < 0) {
        return ls_error_status();
    }
    LS_TRY(options->no_initial_sync ? ls_models_compare("ls_data_parallel", state->model, state->comm)
                                    : ls_copy_parameters("ls_data_parallel", state->model, state->comm, 0));
    LS_TRY(compare_overlap(state, overlaps)); /* after the models were compared */
    LS_TRY(agree_on_number(state));
    state->parameter_count = ls_module_parameter_count(state->model);
    LS_TRY(ls_buffers_watch(&state->buffers, "ls_data_parallel", state->model, state->comm));
    if (flat_count == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_data_parallel: the model has no parameters that require gradients");
    }
    for (int i = 0; i < flat_count; i++) {
        LS_TRY(check_dtype(reducer->format, options->powersgd_rank, reducer->flats[i].dtype));
    }
    reducer->flat_count = flat_count;
    reducer->keeps_memory = zero > 1;
    reducer->wire_memory = ls_shards_memory(zero);
    LS_TRY(ls_gradient_reducer_open(reducer, ls_tail_count(state)));
    LS_TRY(ls_tail_open(state));
    if (options->powersgd_rank > 0 && ls_comm_size(state->comm) > 1) {
        LS_TRY(ls_powersgd_open(state, options->powersgd_rank));
    }
    state->agrees = zero > 1; /* gradients are averaged before the end of the pass */
    LS_TRY(zero > 0 ? open_shards(state, zero, !options->no_initial_sync, overlaps) : LS_OK);
    if (options->shards > 1) {
        LS_TRY(ls_hosts_check_alike(state->comm, "ls_data_parallel"));
        LS_TRY(ls_slices_open(state, options->shards));
    }
    return overlaps && zero < 2 ? open_overlap(state, options->bucket_bytes) : LS_OK;
}

void ls_data_parallel_close(ls_data_parallel_state *state) {
    ls_objects_free(&state->shares);
    ls_free(state->tail);
    ls_overlap_close(state);
    ls_units_close(state->shards);
    ls_shards_close(state->shards);
    ls_powersgd_close(state->powersgd);
    ls_slices_close(state->slices, state->parameter_count);
    ls_gradient_reducer_close(&state->reducer);
    ls_buffers_close(&state->buffers);
    ls_wire_format_drop(state->own_format);
    ls_comm_drop(state->comm);
}
