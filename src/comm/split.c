/* Communicators of the ranks of another communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/agree.h"
#include "comm/leave.h"
#include "comm/record.h"
#include "comm/separate.h"
#include "comm/threads.h"

/* The request of a rank, as it is exchanged. */
typedef struct wish {
    int64_t color;
    int64_t key;
    uint64_t machine;
    int64_t rank;
} wish;

enum { WISH_NUMBERS = sizeof(wish) / sizeof(int64_t) };

static int compare_wishes(const void *left, const void *right) {
    const wish *a = left;
    const wish *b = right;
    if (a->key != b->key) {
        return a->key < b->key ? -1 : 1;
    }
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Keeps only the requests with this rank's color, in the order of the new ranks. Returns their number. */
static int choose(const ls_comm *comm, int color, wish *all) {
    int count = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        if (all[rank].color == color) {
            all[count++] = all[rank];
        }
    }
    qsort(all, (size_t)count, sizeof *all, compare_wishes);
    return count;
}

static ls_join_context describe(const ls_comm *comm, const wish *group, int size) {
    ls_join_context join = {.size = size,
                            .store = comm->store,
                            .timeout = comm->timeout,
                            .machine = comm->machine,
                            .address = comm->address};
    for (int i = 0; i < size; i++) {
        join.rank = group[i].rank == comm->rank ? i : join.rank;
    }
    for (int i = 0; i < size; i++) {
        const bool local = group[i].machine == comm->machine;
        join.local_size += local;
        join.local_rank += local && i < join.rank;
    }
    return join;
}

/* Creates the new communicator without its state. Returns NULL if out of memory. */
static ls_comm *make_part(const ls_comm *comm, const ls_join_context *join, const int *ranks) {
    ls_comm *made = ls_comm_make(comm->backend, join);
    int *origins = ls_allocate((size_t)join->size * sizeof *origins);
    bool others = false;
    for (int i = 0; origins != NULL && i < join->size; i++) {
        origins[i] = comm->origins != NULL ? comm->origins[ranks[i]] : ranks[i];
        others = others || origins[i] != i;
    }
    if (made == NULL || origins == NULL) {
        ls_comm_free(made);
        ls_free(origins);
        return NULL;
    }
    made->adopted = comm->adopted;
    made->any_order = comm->any_order;
    if (comm->driven) {
        (void)ls_comm_drive(made); /* the thread is already running, so this cannot fail */
    }
    ls_comm_add_split((ls_comm *)comm, made);
    if (others) {
        made->origins = origins;
    } else {
        ls_free(origins);
    }
    return made;
}

/* Opens the new communicator on the parent's backend; `ranks` are ranks of the parent. */
static ls_status open_state(const ls_comm *comm, const ls_join_context *join, const int *ranks, void **state) {
    if (comm->backend->split != NULL) {
        return comm->backend->split(comm->state, join, ranks, state);
    }
    return join == NULL ? LS_OK : comm->backend->open(join, state);
}

/* Overwrites the group. */
static ls_status divide(ls_comm *comm, wish *group, int size, ls_comm **result) {
    char prefix[256];
    snprintf(prefix, sizeof prefix, "%s%llu.%d/", comm->prefix, (unsigned long long)comm->sequence,
             size == 0 ? 0 : (int)group[0].rank);
    ls_comm *made = NULL;
    ls_join_context join = describe(comm, group, size);
    join.prefix = prefix;
    int *ranks = (int *)(void *)group; /* in place: ranks[i] is no larger than group[i], which has already been read */
    for (int i = 0; i < size; i++) {
        ranks[i] = (int)group[i].rank;
    }
    if (size != 0) {
        made = make_part(comm, &join, ranks);
    }
    /* A rank that is out of memory still takes part: it joins and leaves again, which the other ranks then detect. */
    void *state = NULL;
    ls_status status = open_state(comm, size == 0 ? NULL : &join, ranks, &state);
    if (status == LS_OK && size != 0 && made == NULL) {
        comm->backend->close(state);
        return ls_fail_memory("ls_comm_split", sizeof *made);
    }
    if (status != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        const bool of_parent = strncmp(ls_error_message(), "ls_comm_split", strlen("ls_comm_split")) == 0;
        if (made != NULL && !of_parent) {
            (void)ls_comm_note(made, status);
        }
        snprintf(message, sizeof message, "%s", ls_error_message());
        ls_comm_free(made);
        if (of_parent) {
            ls_error_restore(status, message);
            return ls_comm_note(comm, status); /* a failure of the parent: the same on all ranks */
        }
        return ls_fail(status, "ls_comm_split: in the new communicator: %s", message);
    }
    if (made != NULL) {
        made->state = state;
    }
    *result = made;
    return LS_OK;
}

/* A failing call has no result, even if it fails after the new communicator was opened. */
static ls_status free_result(ls_status status, ls_comm **result) {
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_comm_free(*result);
    *result = NULL;
    (void)ls_error_put_back(&cause);
    return status;
}

typedef struct group_request {
    int color;
    ls_comm **result;
} group_request;

static ls_status make_group(ls_comm *comm, void *records, void *argument) {
    const group_request *request = argument;
    LS_TRY(ls_comm_enter(comm, LS_OP_SPLIT));
    const int members = request->color < 0 ? 0 : choose(comm, request->color, records);
    return ls_comm_end_call(comm, LS_OP_SPLIT, divide(comm, records, members, request->result));
}

ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **result) {
    if (result != NULL) {
        *result = NULL;
    }
    if (comm == NULL || result == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_split: %s is NULL", comm == NULL ? "the communicator" : "the result");
    }
    ls_training_is_checked();
    const wish own = {.color = color, .key = key, .machine = comm->machine, .rank = comm->rank};
    ls_call call = {
        .operation = LS_OP_SPLIT, .dtype = LS_I64, .count = WISH_NUMBERS, .width = sizeof(int64_t), .send = &own};
    group_request request = {.color = color, .result = result};
    /* All ranks take part in the exchange, so all of them execute make_group together. */
    const ls_status status = ls_comm_agree(comm, "ls_comm_split", &call, make_group, &request);
    return status == LS_OK ? LS_OK : free_result(status, result);
}
