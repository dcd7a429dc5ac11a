/*
 * A trace file contains the activities of every rank, in order, in the format that trace viewers expect.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/trace.h"
#include "tests/support/files.h"

enum { NUMBERS = 1000 };

/* Runs operations, communication and user spans. */
static ls_status work(ls_comm *world) {
    const uint64_t began = ls_clock_ns();
    double number = 1;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(NUMBERS), LS_F64);
    LS_TRY(ls_set_requires_grad(x, true));
    LS_TRY(ls_backward(ls_sum(ls_exp(x))));
    LS_TRY(ls_comm_allreduce(world, &number, &number, 1, LS_F64, LS_SUM, NULL));
    LS_TRY(ls_scope_end(scope));
    if (ls_comm_size(world) > 1 && ls_comm_rank(world) < 2) {
        ls_work *sent = NULL;
        const int other = 1 - ls_comm_rank(world);
        LS_TRY(ls_comm_send(world, &number, 1, LS_F64, other, 0, &sent));
        LS_TRY(ls_comm_recv(world, &number, 1, LS_F64, other, 0, NULL));
        LS_TRY(ls_work_wait(sent));
    }
    ls_trace_span("a name of the user's: \303\274\303\274\303\274\303\274\303\274\303\274\303\274\303\274\303\274"
                  "\303\274\303\274\303\274\303\274\303\274\303\274",
                  began);
    return LS_OK;
}

/* Finds the event with this name and rank, and sets `*begin` and `*end` in microseconds. */
static json_t *find(json_t *events, const char *name, int rank, double *begin, double *end) {
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        if (strncmp(json_string_value(json_object_get(event, "name")), name, strlen(name)) == 0 &&
            json_integer_value(json_object_get(event, "pid")) == rank) {
            *begin = json_number_value(json_object_get(event, "ts"));
            *end = *begin + json_number_value(json_object_get(event, "dur"));
            return event;
        }
    }
    return NULL;
}

static ls_status check_rank(json_t *events, int rank, int size) {
    double exp_begin = 0, exp_end = 0, back_begin = 0, back_end = 0, reduce_begin = 0, reduce_end = 0;
    double user_begin = 0, user_end = 0;
    LS_CHECK(find(events, "process_name", rank, &user_begin, &user_end) != NULL);
    LS_CHECK(find(events, "ls_exp", rank, &exp_begin, &exp_end) != NULL);
    LS_CHECK(find(events, "ls_exp backward", rank, &back_begin, &back_end) != NULL);
    json_t *reduce = find(events, "allreduce", rank, &reduce_begin, &reduce_end);
    LS_CHECK(reduce != NULL && json_integer_value(json_object_get(json_object_get(reduce, "args"), "bytes")) == 8);
    json_t *user = find(events, "a name of the user's: \303\274\303\274", rank, &user_begin, &user_end);
    LS_CHECK(user != NULL && json_object_get(user, "args") == NULL);
    LS_CHECK(0 <= user_begin && user_begin <= exp_begin && exp_begin < exp_end && exp_end <= back_begin);
    LS_CHECK(back_begin < back_end && back_end <= reduce_begin && reduce_begin < reduce_end);
    LS_CHECK(reduce_end <= user_end);
    for (int other = 0; other < size; other++) { /* no rank leaves before all ranks have entered, so the clocks agree */
        double other_begin = 0, other_end = 0;
        LS_CHECK(find(events, "allreduce", other, &other_begin, &other_end) != NULL && other_begin <= reduce_end);
    }
    return LS_OK;
}

/* The earliest span of all ranks begins at 0. */
static ls_status check_beginning(json_t *events) {
    double first = INFINITY;
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *began = json_object_get(json_array_get(events, i), "ts");
        first = began != NULL ? fmin(first, json_number_value(began)) : first;
    }
    LS_CHECK(first == 0);
    return LS_OK;
}

static ls_status check_file(const char *path, int size) {
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    LS_CHECK(root != NULL);
    ls_status status = check_beginning(json_object_get(root, "traceEvents"));
    for (int rank = 0; rank < size && status == LS_OK; rank++) {
        status = check_rank(json_object_get(root, "traceEvents"), rank, size);
    }
    json_decref(root);
    return status;
}

/* A full trace keeps its spans, which can be written, and counts the lost spans. */
static ls_status check_full(ls_comm *world) {
    if (ls_comm_size(world) > 1) { /* needs much memory */
        return LS_OK;
    }
    LS_TRY(ls_trace_start());
    for (int i = 0; i < LS_TRACE_SPANS + 3; i++) {
        ls_trace_span("x", 1);
    }
    LS_CHECK(ls_trace_present->count == LS_TRACE_SPANS && ls_trace_present->lost == 3);
    LS_CHECK(ls_trace_stop(world, "/dev/null/trace.json") == LS_ERR_IO); /* no failure before this point */
    return LS_OK;
}

/* The number of lost spans is appended to the name of the rank. */
static ls_status check_lost(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const char *path = rank == 0 ? test_path("lost.json") : NULL;
    LS_TRY(ls_trace_start());
    ls_trace_present->lost = (uint64_t)rank;
    LS_TRY(ls_trace_stop(world, path));
    json_t *root = rank == 0 ? json_load_file(path, 0, NULL) : NULL;
    for (int other = 0; rank == 0 && other < ls_comm_size(world); other++) {
        char said[64];
        double begin, end;
        json_t *name = find(json_object_get(root, "traceEvents"), "process_name", other, &begin, &end);
        const char *text = json_string_value(json_object_get(json_object_get(name, "args"), "name"));
        snprintf(said, sizeof said, " (%d spans lost)", other);
        LS_CHECK(text != NULL && (other == 0 ? strstr(text, "lost") == NULL : strstr(text, said) != NULL));
    }
    json_decref(root);
    return LS_OK;
}

static ls_status evaluate(void *user, double *loss) {
    ls_tensor *value = ls_sum(ls_square(user));
    *loss = ls_item(value);
    return ls_backward(value);
}

/* Optimizers that evaluate the loss have one span per step. A second trace replaces the file. */
static ls_status check_closures(ls_comm *world) {
    double begin, end, first_end = 0;
    const bool first = ls_comm_rank(world) == 0;
    const char *path = first ? test_path("closures.json") : NULL;
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F64);
    LS_TRY(ls_set_requires_grad(x, true));
    for (int i = 0; i < 3; i++) {
        ls_optimizer *optimizer = i == 0   ? ls_lbfgs(NULL, NULL)
                                  : i == 1 ? ls_conjugate_gradient(NULL, NULL)
                                           : ls_sgd(NULL, NULL);
        LS_TRY(ls_optimizer_add_group(optimizer, &x, 1, NULL));
        LS_TRY(ls_trace_start());
        LS_TRY(ls_optimizer_step_closure(optimizer, evaluate, x, NULL));
        LS_TRY(ls_trace_stop(world, path));
        json_t *root = first ? json_load_file(path, 0, NULL) : NULL;
        json_t *events = json_object_get(root, "traceEvents");
        int steps = 0;
        for (size_t k = 0; k < json_array_size(events); k++) {
            const char *name = json_string_value(json_object_get(json_array_get(events, k), "name"));
            const int64_t rank = json_integer_value(json_object_get(json_array_get(events, k), "pid"));
            steps += rank == 0 && strcmp(name, "optimizer step") == 0;
        }
        LS_CHECK(!first || (steps == 1 && find(events, "optimizer step", 0, &begin, &end) != NULL));
        LS_CHECK(!first || i == 2 || (find(events, "ls_square", 0, &begin, &first_end) != NULL && first_end <= end));
        json_decref(root);
        ls_optimizer_free(optimizer);
    }
    ls_release(x);
    return LS_OK;
}

/* A rank reports an impossible number of spans, and strings that are not null-terminated. */
static ls_status check_what_others_say(ls_comm *world) {
    const int size = ls_comm_size(world), liar = size - 1;
    char said[144], all[5 * sizeof said];
    if (size == 1) {
        return LS_OK;
    }
    if (ls_comm_rank(world) != liar) {
        LS_TRY(ls_trace_start());
        LS_CHECK(ls_trace_stop(world, "/dev/null/trace.json") == LS_ERR_FORMAT);
        LS_EXPECT_MESSAGE("reports ");
        return LS_OK;
    }
    int32_t outcome = 0, has_memory = 0;
    memset(said, 0xff, sizeof said);
    LS_TRY(ls_comm_allreduce(world, &has_memory, &has_memory, 1, LS_I32, LS_MAX, NULL));
    LS_TRY(ls_comm_allgather(world, said, all, sizeof said, LS_U8, NULL));
    LS_TRY(ls_comm_broadcast(world, &outcome, 1, LS_I32, 0, NULL));
    LS_CHECK(outcome == LS_ERR_FORMAT);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    LS_CHECK(ls_trace_stop(world, first ? test_path("none.json") : NULL) == LS_ERR_STATE);
    LS_TRY(ls_trace_start());
    LS_CHECK(ls_trace_start() == LS_ERR_STATE);
    LS_TRY(work(world));
    LS_TRY(ls_trace_stop(world, first ? test_path("trace.json") : NULL));
    LS_TRY(work(world)); /* nothing of it is recorded */
    LS_CHECK(ls_trace_stop(world, first ? test_path("trace.json") : NULL) == LS_ERR_STATE); /* keeps the file */
    if (first) {
        LS_TRY(check_file(test_path("trace.json"), ls_comm_size(world)));
    }
    LS_TRY(check_what_others_say(world));
    LS_TRY(check_full(world));
    LS_TRY(check_lost(world));
    LS_TRY(check_closures(world));
    LS_TRY(ls_trace_start());
    LS_CHECK(ls_trace_stop(world, "/dev/null/trace.json") == LS_ERR_IO); /* on every rank */
    LS_TRY(ls_trace_start()); /* not stopped: the trace is freed when the thread exits */
    LS_TRY(ls_comm_barrier(world, NULL));
    if (first) {
        test_files_remove();
    }
    return LS_OK;
}
