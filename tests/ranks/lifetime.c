/*
 * Objects that outlive their owners, on several ranks: communicators that modules, tapes, handles and work use after
 * ls_comm_free or ls_finalize, and handles of ended scopes. All calls fail with LS_ERR_STATE and a message with the
 * name of the call. The contents of a model stay readable until it is freed.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <string.h>

#include <lockstep/lockstep.h>

static const char freed[] = "the communicator was freed (ls_comm_free)";

/* Returns whether this thread's last error says `why` about `call`. */
static bool refused(ls_status status, const char *call, const char *why) {
    const char *message = ls_error_message();
    return status == LS_ERR_STATE && strncmp(message, call, strlen(call)) == 0 && strstr(message, why) != NULL;
}

static ls_status made(const void *result) {
    return result != NULL ? LS_OK : ls_error_status();
}

static ls_tensor *leaf(double value) {
    ls_tensor *x = ls_full(LS_SHAPE(3), LS_F32, value);
    return x != NULL && ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

/* ---- the tape ---------------------------------------------------------------------------------------------------- */

/* Calls a freed communicator. Its record still exists, because the tape retains it or because it was freed only
 * recently. */
static ls_status call_freed(ls_comm *part, int rank, int size) {
    float number = 1;
    ls_comm *other = NULL;
    ls_work *work = NULL;
    LS_CHECK(ls_comm_rank(part) == rank && ls_comm_size(part) == size);
    LS_CHECK(refused(ls_comm_barrier(part, NULL), "ls_comm_barrier: ", freed));
    LS_CHECK(
        refused(ls_comm_allreduce(part, &number, &number, 1, LS_F32, LS_SUM, &work), "ls_comm_allreduce: ", freed));
    LS_CHECK(refused(ls_comm_send(part, &number, 1, LS_F32, 0, 0, NULL), "ls_comm_send: ", freed));
    LS_CHECK(refused(ls_comm_recv(part, &number, 1, LS_F32, 0, 0, &work), "ls_comm_recv: ", freed));
    LS_CHECK(refused(ls_comm_split(part, 0, 0, &other), "ls_comm_split: ", freed));
    LS_CHECK(refused(made(ls_comm_alloc(part, 8)), "ls_comm_alloc: ", freed));
    LS_CHECK(work == NULL && other == NULL && ls_work_wait(work) == LS_OK);
    ls_comm_free(part); /* again: nothing */
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(1);
    LS_CHECK(refused(made(ls_allreduce(part, x, LS_SUM)), "ls_allreduce: ", freed));
    LS_CHECK(refused(made(ls_isend(part, x, 0, 0)), "ls_isend: ", freed));
    LS_CHECK(refused(made(ls_irecv(part, LS_SHAPE(3), LS_F32, 0, 0)), "ls_irecv: ", freed));
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_CHECK(refused(made(ls_data_parallel(ls_nn_linear(3, 2), part, NULL)), "ls_data_parallel: ", freed));
    LS_CHECK(refused(made(ls_nn_row_parallel(part, 8, 2, NULL)), "ls_nn_row_parallel: ", freed));
    LS_CHECK(refused(made(ls_pipeline(ls_sequential(ls_nn_relu()), part, NULL)), "ls_pipeline: ", freed));
    return LS_OK;
}

static ls_tensor *apply(ls_comm *comm, ls_tensor *x, int which) {
    const int64_t size = ls_comm_size(comm);
    ls_tensor *rows = which == 4 ? ls_expand(x, LS_SHAPE(size, 3)) : x;
    switch (which) {
    case 0:
        return ls_allreduce(comm, x, LS_PROD);
    case 1:
        return ls_broadcast(comm, x, 0);
    case 2:
        return ls_allgather(comm, x, 0);
    case 3:
        return ls_gather(comm, x, 0, 0);
    case 4:
        return ls_alltoall(comm, rows, 1, 0, 1);
    default:
        return ls_handle_wait(ls_isend(comm, x, ls_comm_rank(comm), 0)); /* to itself */
    }
}

enum { WAYS = 6 };

static ls_status backward_after_free(ls_comm *world, int which) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    ls_tensor *x = leaf(rank + 1);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *received = NULL;
    ls_handle *sent = which == WAYS - 1 ? ls_isend(part, x, rank, 0) : NULL;
    if (sent != NULL) {
        received = ls_recv(part, LS_SHAPE(3), LS_F32, rank, 0);
        (void)ls_handle_wait(sent);
    } else {
        received = apply(part, x, which);
    }
    ls_tensor *loss = ls_sum(received);
    LS_CHECK(loss != NULL);
    ls_comm_free(part);
    LS_CHECK(refused(ls_backward(loss), "ls_backward: ", freed));
    LS_CHECK(ls_item(loss) == ls_item(loss)); /* computed values remain */
    LS_TRY(call_freed(part, rank, size));
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(call_freed(part, rank, size));
    ls_release(x);
    return ls_comm_barrier(world, NULL);
}

/* ---- handles and work -------------------------------------------------------------------------------------------- */

static ls_status handles(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    for (int recorded = 0; recorded < 2; recorded++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = recorded != 0 ? leaf(rank) : ls_full(LS_SHAPE(3), LS_F32, rank);
        ls_handle *sent = ls_isend(world, x, (rank + 1) % size, 3);
        ls_handle *got = ls_irecv(world, LS_SHAPE(3), LS_F32, (rank + size - 1) % size, 3);
        LS_CHECK(ls_at(ls_handle_wait(got), (const int64_t[]){1}) == (rank + size - 1) % size);
        LS_TRY(ls_scope_end(scope));
        LS_CHECK(refused(made(ls_handle_wait(sent)), "ls_handle_wait: ", "the scope of this handle has ended"));
        LS_CHECK(refused(made(ls_handle_wait(got)), "ls_handle_wait: ", "handle"));
    }
    /* an enclosing scope, where the tape retains the communicator */
    ls_scope *outer = ls_scope_begin();
    ls_scope *inner = ls_scope_begin();
    ls_handle *sent = ls_isend(world, leaf(rank), (rank + 1) % size, 3);
    ls_tensor *got = ls_keep(ls_recv(world, LS_SHAPE(3), LS_F32, (rank + size - 1) % size, 3));
    LS_TRY(ls_scope_end(inner));
    LS_CHECK(refused(made(ls_handle_wait(sent)), "ls_handle_wait: ", "the scope of this handle has ended"));
    LS_CHECK(ls_at(got, (const int64_t[]){0}) == (rank + size - 1) % size);
    LS_CHECK(ls_scope_end(outer) == LS_ERR_STATE);
    return ls_comm_barrier(world, NULL);
}

/* Only the root's tensor counts: another rank may pass a released tensor. */
static ls_status released_on_other_ranks(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_full(LS_SHAPE(3), LS_F32, 2);
    if (ls_comm_rank(world) != 0) {
        ls_release(x);
    }
    ls_tensor *copy = ls_broadcast(world, x, 0);
    LS_CHECK(copy != NULL && ls_item(ls_sum(copy)) == 6);
    return ls_scope_end(scope);
}

/* Begins work on a communicator that is then freed. The work waits for a message that no rank sends. */
static ls_status work_after_free(ls_comm *world) {
    static _Thread_local float numbers[2][1000];
    const int rank = ls_comm_rank(world);
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    ls_scope *scope = ls_scope_begin();
    ls_work *work[2] = {NULL};
    LS_TRY(ls_comm_recv(part, numbers[0], 1000, LS_F32, rank, 5, &work[0]));
    LS_TRY(ls_comm_recv(part, numbers[1], 1000, LS_F32, rank, 6, &work[1]));
    ls_handle *handle = ls_irecv(part, LS_SHAPE(3), LS_F32, rank, 7);
    LS_CHECK(handle != NULL);
    ls_comm_free(part);
    LS_CHECK(ls_work_done(work[0]));
    LS_CHECK(refused(ls_work_wait(work[0]), "ls_comm_recv #1: ", "the communicator was freed before the call had"));
    LS_CHECK(refused(made(ls_handle_wait(handle)), "ls_irecv from rank", "the communicator was freed before"));
    LS_CHECK(refused(ls_work_wait(work[1]), "ls_comm_recv #2: ", "the communicator was freed before the call had"));
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    return ls_comm_barrier(world, NULL);
}

/* Waits twice for the same work while there is other work. */
static ls_status wait_twice(ls_comm *world) {
    float number = 1;
    ls_work *work[2] = {NULL};
    LS_TRY(ls_comm_allreduce(world, &number, &number, 1, LS_F32, LS_MAX, &work[0]));
    LS_TRY(ls_comm_barrier(world, &work[1]));
    LS_TRY(ls_work_wait(work[0]));
    LS_CHECK(refused(ls_work_wait(work[0]), "ls_work_wait: ", "already waited for"));
    LS_TRY(ls_work_wait(work[1]));
    return ls_comm_barrier(world, NULL);
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct model {
    ls_module *module;
    ls_optimizer *optimizer;
    ls_tensor *input;
    ls_tensor *view; /* of a gradient */
    uint64_t hash;
} model;

static ls_status train(const model *m) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(m->optimizer);
    ls_tensor *output = ls_forward(m->module, m->input);
    ls_status status = ls_backward(ls_sum(ls_square(output)));
    status = status == LS_OK ? ls_optimizer_step(m->optimizer) : status;
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status make(model *m, ls_comm *comm) {
    m->module = ls_data_parallel(ls_sequential(ls_nn_linear(3, 4), ls_nn_tanh(), ls_nn_linear(4, 2)), comm, NULL);
    m->optimizer = ls_sgd(m->module, &(ls_sgd_options){.learning_rate = 0.1});
    m->input = ls_randn(LS_SHAPE(5, 3), LS_F32);
    LS_CHECK(m->optimizer != NULL && m->input != NULL);
    LS_TRY(train(m));
    m->hash = ls_module_hash(m->module);
    m->view = ls_alias(ls_grad(ls_module_parameter(m->module, 0)));
    LS_CHECK(m->view != NULL);
    return LS_OK;
}

/* After the communicator has been freed, the parameters can be read, used and saved, but not trained. */
static ls_status use_after(const model *m, const char *why) {
    LS_CHECK(ls_module_hash(m->module) == m->hash);
    const bool before = ls_no_grad(true);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_forward(m->module, m->input);
    LS_CHECK(output != NULL && ls_size(output, 1) == 2);
    LS_TRY(ls_scope_end(scope));
    (void)ls_no_grad(before);
    ls_comm *comm = ls_data_parallel_comm(m->module);
    if (ls_comm_size(comm) > 1) { /* a single rank has no other rank to average with */
        LS_CHECK(refused(train(m), "ls_data_parallel: ", why));
        LS_CHECK(refused(ls_data_parallel_skip(m->module), "ls_data_parallel_skip: ", why));
    }
    LS_CHECK(refused(ls_sync_parameters(m->module, comm, 0), "ls_sync_parameters: ls_comm_allgather: ", why));
    LS_TRY(ls_optimizer_step(m->optimizer));
    return LS_OK;
}

/* Frees the model. A gradient that the program still views stays, wherever it is stored. */
static ls_status end(const model *m) {
    ls_optimizer_free(m->optimizer);
    ls_module_free(m->module);
    float sum = 0;
    for (int64_t i = 0; i < ls_numel(m->view); i++) {
        sum += ((float *)elements(m->view))[i];
    }
    LS_CHECK(sum == sum);
    ls_release(m->view);
    ls_release(m->input);
    return LS_OK;
}

static ls_status data_parallel(ls_comm *world) {
    ls_comm *part = NULL;
    model m;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    LS_TRY(make(&m, part));
    ls_comm_free(part);
    LS_TRY(use_after(&m, freed));
    LS_TRY(end(&m));
    return ls_comm_barrier(world, NULL);
}

static ls_status model_parallel(ls_comm *world) {
    ls_comm *part = NULL;
    const int size = ls_comm_size(world);
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    ls_module *columns = ls_nn_column_parallel(part, 3, 8, NULL);
    ls_module *layers = ls_sequential(ls_nn_relu());
    for (int i = 1; i < size; i++) {
        char name[16] = {(char)('a' + i)};
        LS_CHECK(ls_module_add_child(layers, name, ls_nn_relu()) != NULL);
    }
    ls_module *pipeline = ls_pipeline(layers, part, NULL);
    LS_CHECK(columns != NULL && pipeline != NULL);
    ls_comm_free(part);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(4, 3), LS_F32);
    LS_CHECK(refused(made(ls_forward(columns, x)), "ls_nn_column_parallel: ", freed));
    LS_CHECK(refused(made(ls_forward(pipeline, x)), "ls_pipeline: ", freed));
    LS_CHECK(
        refused(ls_pipeline_backward(pipeline, x, x, ls_criterion_mse, NULL, NULL), "ls_pipeline_backward: ", freed));
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    ls_module_free(columns);
    ls_module_free(pipeline);
    return ls_comm_barrier(world, NULL);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

static bool says(ls_status status, const char *sentence) {
    return status == LS_ERR_STATE && strstr(ls_error_message(), sentence) != NULL;
}

/* A loader or an optimizer was freed before the run, on all ranks or only on the last. */
static ls_status freed_before_the_run(ls_comm *world, bool optimizer, bool everywhere) {
    const bool mine = everywhere || ls_comm_rank(world) == ls_comm_size(world) - 1;
    model m;
    LS_TRY(make(&m, world));
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(12, 3), LS_F32), ls_ones(LS_SHAPE(12, 2), LS_F32)),
                      &(ls_loader_options){.batch_size = 2, .comm = world});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = m.module, .optimizer = m.optimizer, .criterion = ls_criterion_mse, .train = loader, .quiet = true});
    LS_TRY(made(trial));
    if (mine && optimizer) {
        ls_optimizer_free(m.optimizer);
    } else if (mine) {
        ls_loader_free(loader);
    }
    LS_CHECK(says(ls_trial_run(trial, 1),
                  optimizer ? "the optimizer has already been freed" : "the loader has already been freed"));
    ls_trial_free(trial);
    if (!mine || optimizer) {
        ls_loader_free(loader);
    }
    if (mine && optimizer) {
        m.optimizer = NULL;
    }
    LS_TRY(end(&m));
    return ls_comm_barrier(world, NULL);
}

static ls_status trials(ls_comm *world) {
    for (int i = 0; i < 4; i++) {
        LS_TRY(freed_before_the_run(world, i % 2 == 0, i < 2));
    }
    return LS_OK;
}

/* The job is finalized while all these objects exist. */
static ls_status leave(ls_comm *world) {
    const bool process = ls_world() == world;
    const char *why = process ? "ls_finalize has left the job" : freed;
    const int rank = ls_comm_rank(world);
    model m[2];
    ls_comm *part = NULL;
    float number = 1;
    LS_TRY(make(&m[0], world));
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    LS_TRY(make(&m[1], part));
    if (process) {
        LS_TRY(ls_finalize());
        LS_CHECK(ls_world() == NULL && ls_finalize() == LS_OK);
    } else {
        ls_comm_free(world);
    }
    LS_CHECK(ls_comm_rank(world) == rank);
    LS_CHECK(refused(ls_comm_allreduce(world, &number, &number, 1, LS_F32, LS_SUM, NULL), "ls_comm_allreduce: ", why));
    LS_TRY(use_after(&m[0], why));
    LS_TRY(end(&m[0]));
    ls_comm_free(part);
    LS_TRY(use_after(&m[1], freed));
    return end(&m[1]);
}

ls_status rank_test(ls_comm *world) {
    for (int which = 0; which < WAYS; which++) {
        LS_TRY(backward_after_free(world, which));
    }
    LS_TRY(handles(world));
    LS_TRY(released_on_other_ranks(world));
    LS_TRY(work_after_free(world));
    LS_TRY(wait_twice(world));
    LS_TRY(data_parallel(world));
    LS_TRY(model_parallel(world));
    LS_TRY(trials(world));
    return leave(world);
}
