/*
 * Layers sharded over ranks (Shoeybi et al., "Megatron-LM", arXiv 1909.08053). All ranks of the group compute the same
 * loss, which counts only once. Between the shards, a gradient is therefore not the gradient of a sum of losses. For a
 * tensor that all ranks share (`share_op`), the gradient is the sum over the shards. For a sum or concatenation of the
 * shards' results, the gradient is equal on every rank, and is passed on or split.
 */
#include <math.h>

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/random.h"
#include "base/share.h"
#include "comm/hold.h"
#include "nn/module.h"
#include "parallel/move.h"
#include "parallel/reductions.h"

/* ---- between the shards ------------------------------------------------------------------------------------------ */

/* Passes a tensor that is equal on all ranks to the shards. */
static ls_status share_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->records = ls_meeting_of(call)->wanted;
    call->output = ls_tensor_view(x, x->ndim, x->size, x->stride, 0);
    return ls_made(call->output);
}

static const ls_collective sharing = {.op = {.name = "ls_nn_column_parallel",
                                             .shape = share_shape,
                                             .backward = ls_allreduce_backward,
                                             LS_HOLDS_COMM_AGREES(ls_allreduce_agree)},
                                      .kind = LS_MEET_SHARING,
                                      .bringers = LS_BRING_EQUAL};

static ls_status hand_on(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate(node, 0, gradient);
}

static const ls_collective adding = {.op = {.name = "ls_nn_row_parallel",
                                            .shape = ls_allreduce_shape,
                                            .forward = ls_allreduce_forward,
                                            .backward = hand_on,
                                            .hold = ls_agreement_hold},
                                     .kind = LS_MEET_ADDING,
                                     .bringers = LS_BRING_EQUAL,
                                     .reduces = true};

/* Backward rule of a concatenation along the last axis: each rank's gradient is its part of the given gradient. */
static ls_status joining_backward(ls_node *node, ls_tensor *gradient) {
    const ls_agreement *agreement = ls_node_agreement(node);
    const ls_parts parts = agreement->gathered;
    const int rank = ls_comm_rank(agreement->comm);
    return ls_accumulate(node, 0, ls_narrow(gradient, agreement->axis[0], parts.start[rank], parts.length[rank]));
}

static const ls_collective joining = {.op = {.name = "ls_nn_gather_parallel",
                                             .shape = ls_allgather_shape,
                                             .forward = ls_allgather_forward,
                                             .backward = joining_backward,
                                             .hold = ls_agreement_hold},
                                      .kind = LS_MEET_JOINING,
                                      .bringers = LS_BRING_ALL,
                                      .axes = 1};

/* ---- shards of parameters ---------------------------------------------------------------------------------------- */

typedef struct parallel_state {
    ls_comm *comm;
    ls_tensor *weight;
    ls_tensor *bias;
    int64_t start;  /* embedding: index of this rank's first row in the complete table */
    int64_t whole;  /* embedding: number of rows in the complete table */
    uint64_t calls; /* number of forward passes */
} parallel_state;

/* Every rank draws the complete parameter, so that the shards equal the parameters of a single process. */
static ls_tensor *part_of(ls_tensor *whole, const ls_comm *comm, int axis) {
    if (whole == NULL) {
        return NULL;
    }
    const ls_share share = ls_share_of(ls_size(whole, axis), ls_comm_size(comm), ls_comm_rank(comm));
    ls_scope *scope = ls_scope_open();
    ls_tensor *part = ls_keep(ls_clone(ls_narrow(whole, axis, share.start, share.count)));
    return ls_scope_close(scope) == LS_OK ? part : NULL;
}

typedef struct sharded_tensor {
    const char *name;
    ls_shape shape; /* of the whole parameter */
    ls_dtype dtype;
    int axis;     /* axis along which the parameter is sharded; -1 if every rank has the complete parameter */
    double bound; /* uniform in +-bound; 0 selects a normal distribution */
} sharded_tensor;

static ls_tensor *add_part(ls_module *module, ls_comm *comm, const sharded_tensor *p) {
    ls_tensor *whole = ls_empty(p->shape, p->dtype);
    const ls_status status = whole == NULL  ? ls_error_status()
                             : p->bound > 0 ? ls_nn_init_uniform(whole, -p->bound, p->bound)
                                            : ls_nn_init_normal(whole, 0, 1);
    ls_tensor *own = status == LS_OK && p->axis >= 0 ? part_of(whole, comm, p->axis) : whole;
    if (own != whole || status != LS_OK) {
        ls_release(whole);
    }
    ls_tensor *added = ls_out_of_scope(ls_module_add_parameter(module, p->name, status == LS_OK ? own : NULL));
    if (added != NULL && added->leaf != NULL && p->axis >= 0) {
        const int64_t size = p->shape.size[p->axis];
        added->leaf->divisions[LS_DIVIDED_TENSOR] =
            (ls_division){.add = ls_add_over_ranks,
                          .user = comm,
                          .axis = p->axis,
                          .first = ls_share_of(size, ls_comm_size(comm), ls_comm_rank(comm)).start,
                          .whole = size};
    }
    return added;
}

static ls_module *begin(const char *call, const ls_module_type *type, ls_comm *comm, int64_t a, int64_t b) {
    if (comm == NULL) {
        (void)ls_comm_fail_missing(call);
        return NULL;
    }
    if (a <= 0 || b <= 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: sizes %lld and %lld must be positive", call, (long long)a,
                            (long long)b);
    }
    if (ls_comm_check_open(call, comm) != LS_OK) {
        return NULL;
    }
    ls_module *module = ls_module_new(type);
    if (module != NULL) {
        ((parallel_state *)module->state)->comm = ls_comm_hold(comm);
    }
    return module;
}

/* Removes the marks, because parameters may outlive the layer. */
static void free_state(ls_module *self) {
    for (int i = 0; i < self->own_parameters.count; i++) {
        ls_leaf *leaf = self->own_parameters.items[i].tensor->leaf;
        if (leaf != NULL) {
            leaf->divisions[LS_DIVIDED_TENSOR] = (ls_division){0};
        }
    }
    ls_comm_drop(((parallel_state *)self->state)->comm);
}

static ls_module *linear(const char *call, const ls_module_type *type, ls_comm *comm, int64_t in, int64_t out,
                         const ls_parallel_linear_options *options, int axis) {
    static const ls_parallel_linear_options defaults;
    options = options != NULL ? options : &defaults;
    ls_module *module = begin(call, type, comm, in, out);
    if (module == NULL) {
        return NULL;
    }
    parallel_state *state = module->state;
    const double bound = 1.0 / sqrt((double)in);
    state->weight = add_part(module, comm, &(sharded_tensor){"weight", LS_SHAPE(out, in), options->dtype, axis, bound});
    if (!options->no_bias) {
        /* A column-sharded layer has a shard of the bias. A row-sharded layer adds the complete bias to the sum. */
        state->bias =
            add_part(module, comm, &(sharded_tensor){"bias", LS_SHAPE(out), options->dtype, axis == 0 ? 0 : -1, bound});
    }
    return ls_module_finish(module);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/*
 * Returns `tensor`, which must be equal on all ranks, if the ranks compare it in this forward pass; otherwise NULL.
 * Reading elements from a device waits for its stream, so tensors on devices are compared only in some passes.
 */
static const ls_tensor *replica(parallel_state *state, const ls_tensor *tensor) {
    enum { FIRST = 8, EVERY = 64 };
    const uint64_t call = state->calls++;
    const bool compares = tensor != NULL && (call < FIRST || call % EVERY == 0 || ls_tensor_device(tensor) == &ls_cpu);
    return compares ? tensor : NULL;
}

static const char same_samples[] =
    "all ranks of the communicator must get the same samples: give the loader no .comm (or the communicator of the "
    "data-parallel ranks), and call ls_seed with the same number on all ranks";

static ls_tensor *column_forward(ls_module *self, ls_tensor *input) {
    parallel_state *state = self->state;
    ls_tensor *shared = ls_meet(&sharing, &(ls_proposal){.comm = state->comm,
                                                         .tensor = input,
                                                         .replica = replica(state, input),
                                                         .replica_name = "ls_nn_column_parallel: the input",
                                                         .remedy = same_samples});
    return ls_linear(shared, state->weight, state->bias);
}

ls_module *ls_nn_column_parallel(ls_comm *comm, int64_t in, int64_t out, const ls_parallel_linear_options *options) {
    static const ls_module_type type = {.name = "ColumnParallelLinear",
                                        .state_size = sizeof(parallel_state),
                                        .forward = column_forward,
                                        .free_state = free_state};
    return linear(sharing.op.name, &type, comm, in, out, options, 0);
}

static ls_tensor *add_up(const parallel_state *state, ls_tensor *parts, const ls_tensor *replica, const char *name) {
    return ls_meet(&adding, &(ls_proposal){.comm = state->comm,
                                           .tensor = parts,
                                           .reduction = LS_SUM,
                                           .replica = replica,
                                           .replica_name = name,
                                           .remedy = same_samples});
}

static ls_tensor *row_forward(ls_module *self, ls_tensor *input) {
    parallel_state *state = self->state;
    ls_tensor *sum = add_up(state, ls_linear(input, state->weight, NULL), replica(state, state->bias),
                            "ls_nn_row_parallel: the bias");
    return state->bias != NULL ? ls_add_tensor(sum, state->bias) : sum;
}

ls_module *ls_nn_row_parallel(ls_comm *comm, int64_t in, int64_t out, const ls_parallel_linear_options *options) {
    static const ls_module_type type = {.name = "RowParallelLinear",
                                        .state_size = sizeof(parallel_state),
                                        .forward = row_forward,
                                        .free_state = free_state};
    return linear(adding.op.name, &type, comm, in, out, options, 1);
}

static ls_tensor *gather_forward(ls_module *self, ls_tensor *input) {
    const parallel_state *state = self->state;
    return ls_meet(&joining, &(ls_proposal){.comm = state->comm, .tensor = input, .axis = {-1}});
}

ls_module *ls_nn_gather_parallel(ls_comm *comm) {
    static const ls_module_type type = {.name = "GatherParallel",
                                        .state_size = sizeof(parallel_state),
                                        .forward = gather_forward,
                                        .free_state = free_state};
    return begin(joining.op.name, &type, comm, 1, 1);
}

typedef struct dropout_state {
    ls_comm *comm;
    double p;
} dropout_state;

/*
 * Finds this rank's shard. Always communicates with all ranks: a rank whose width is unchanged cannot know whether the
 * width of another rank has changed.
 */
static ls_status find_part(ls_comm *comm, int64_t width, int64_t *start, int64_t *whole) {
    const size_t bytes = (size_t)ls_comm_size(comm) * sizeof(int64_t);
    int64_t *widths = ls_record_allocate(bytes);
    if (widths == NULL) {
        return ls_fail_memory("ls_nn_parallel_dropout", bytes);
    }
    const ls_status status = ls_comm_allgather(comm, &width, widths, 1, LS_I64, NULL);
    *start = *whole = 0;
    for (int i = 0; status == LS_OK && i < ls_comm_size(comm); i++) {
        *start += i < ls_comm_rank(comm) ? widths[i] : 0;
        *whole += widths[i];
    }
    ls_record_release(widths, bytes);
    return status;
}

static ls_tensor *parallel_dropout_forward(ls_module *self, ls_tensor *input) {
    const dropout_state *state = self->state;
    if (!self->training || state->p == 0) {
        return input;
    }
    const int64_t width = input->ndim > 0 ? input->size[input->ndim - 1] : 1;
    int64_t start = 0, whole = 0;
    if (find_part(state->comm, width, &start, &whole) != LS_OK) {
        return ls_scope_failed();
    }
    return ls_dropout_part(input, state->p, start, whole);
}

static void free_dropout_state(ls_module *self) {
    ls_comm_drop(((dropout_state *)self->state)->comm);
}

ls_module *ls_nn_parallel_dropout(ls_comm *comm, double p) {
    static const ls_module_type type = {.name = "ParallelDropout",
                                        .state_size = sizeof(dropout_state),
                                        .forward = parallel_dropout_forward,
                                        .free_state = free_dropout_state,
                                        .whole_batch = true};
    if (comm == NULL) {
        (void)ls_comm_fail_missing("ls_nn_parallel_dropout");
        return NULL;
    }
    if (!(p >= 0 && p <= 1)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_parallel_dropout: probability %g is not between 0 and 1", p);
    }
    ls_module *module = ls_comm_check_open("ls_nn_parallel_dropout", comm) == LS_OK ? ls_module_new(&type) : NULL;
    if (module != NULL) {
        *(dropout_state *)module->state = (dropout_state){.comm = ls_comm_hold(comm), .p = p};
    }
    return module;
}

/*
 * For each index, computes the row relative to this rank's first row (0 if the row is on another rank), and whether the
 * row is on this rank. All tensors are on the host.
 */
static ls_status split_index(const parallel_state *state, const ls_tensor *index, int64_t *local, bool *here) {
    const int64_t rows = ls_size(state->weight, 0);
    const int64_t *all = ls_host_data(index);
    for (int64_t i = 0; i < index->count; i++) {
        if (all[i] < 0 || all[i] >= state->whole) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_nn_parallel_embedding: index %lld is not one of %lld rows",
                           (long long)all[i], (long long)state->whole);
        }
        here[i] = all[i] >= state->start && all[i] < state->start + rows;
        local[i] = here[i] ? all[i] - state->start : 0;
    }
    return LS_OK;
}

/* Returns the index, dense and on the host, or NULL with an error set. */
static ls_tensor *read_index(const ls_tensor *input) {
    static const char call[] = "ls_nn_parallel_embedding";
    if (input == NULL) {
        return NULL;
    }
    if (input->dtype != LS_I64 && input->dtype != LS_I32) {
        return ls_fail_null(LS_ERR_SHAPE, "%s: the index is a tensor of %s, but must be i64 or i32", call,
                            ls_dtype_name((ls_dtype)input->dtype));
    }
    return ls_tensor_dense_on_host(call, input, LS_I64);
}

/* Returns this rank's rows, and zeros for rows on other ranks. `index` is dense and on the host. */
static ls_tensor *own_rows(const parallel_state *state, const ls_tensor *index) {
    static const char call[] = "ls_nn_parallel_embedding";
    const ls_device *device = ls_tensor_device(state->weight);
    ls_tensor *local = ls_tensor_give(ls_tensor_like_owned(call, index, LS_I64));
    ls_tensor *here = ls_tensor_give(ls_tensor_like_owned(call, index, LS_BOOL));
    if (local == NULL || here == NULL || split_index(state, index, ls_host_data(local), ls_host_data(here)) != LS_OK) {
        return NULL;
    }
    ls_tensor *rows = ls_embedding(state->weight, ls_tensor_give(ls_tensor_on_device(call, local, device)));
    ls_tensor *zero = ls_tensor_give(ls_tensor_new_owned(call, device, 0, NULL, ls_dtype_of(state->weight)));
    if (rows == NULL || zero == NULL || ls_kernels_of(zero)->fill(ls_stream_of(zero), zero, 0) != LS_OK) {
        return NULL;
    }
    return ls_where(ls_unsqueeze(ls_tensor_give(ls_tensor_on_device(call, here, device)), -1), rows, zero);
}

static ls_tensor *embedding_forward(ls_module *self, ls_tensor *input) {
    const parallel_state *state = self->state;
    ls_tensor *index = read_index(input);
    ls_tensor *rows = index != NULL ? own_rows(state, index) : NULL;
    if (rows == NULL && input != NULL) {
        (void)ls_scope_failed(); /* the error explains why `rows` is NULL */
    }
    /* if `rows` is NULL, this call notifies the other ranks */
    ls_tensor *sum = add_up(state, rows, index, "ls_nn_parallel_embedding: the index");
    ls_tensor_drop(index);
    return sum;
}

ls_module *ls_nn_parallel_embedding(ls_comm *comm, int64_t count, int64_t width) {
    static const ls_module_type type = {.name = "ParallelEmbedding",
                                        .state_size = sizeof(parallel_state),
                                        .forward = embedding_forward,
                                        .free_state = free_state};
    static const char call[] = "ls_nn_parallel_embedding";
    if (comm != NULL && count < ls_comm_size(comm)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: %lld rows cannot be divided among %d ranks", call, (long long)count,
                            ls_comm_size(comm));
    }
    ls_module *module = begin(call, &type, comm, count, width);
    if (module == NULL) {
        return NULL;
    }
    parallel_state *state = module->state;
    state->whole = count;
    state->start = ls_share_of(count, ls_comm_size(comm), ls_comm_rank(comm)).start;
    state->weight = add_part(module, comm, &(sharded_tensor){"weight", LS_SHAPE(count, width), LS_F32, 0, 0});
    return ls_module_finish(module);
}
