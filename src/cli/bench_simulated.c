#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "cli/bench.h"
#include "comm/engine/inside.h"
#include "comm/transport/simulated/driver.h"
#include "comm/waiting.h"

#define NEVER_S 1e9                  /* in seconds of simulated time */
#define LOOK_NS UINT64_C(1000000000) /* in nanoseconds of simulated time */
#define CONTENT ((size_t)65536)      /* more than the inline payload of the agreement */

/* ---- numbers with units ------------------------------------------------------------------------------------------ */

typedef struct named_unit {
    const char *name;
    double factor;
} named_unit;

/* Reads a nonnegative number, followed by one of the units, with or without a blank in between. */
static bool read_number(const char *text, const named_unit *units, size_t count, double *number) {
    char *end = NULL;
    const double value = isdigit((unsigned char)text[0]) ? strtod(text, &end) : 0.0;
    if (end == NULL || !isfinite(value) || text[1] == 'x' || text[1] == 'X') {
        return false;
    }
    end += *end == ' ';
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) == 0) {
            *number = value * units[i].factor;
            return true;
        }
    }
    return false;
}

ls_status ls_bench_read_time(const char *option, const char *text, double *ns) {
    static const named_unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    return read_number(text, units, 4, ns) && *ns <= 1e10
               ? LS_OK
               : ls_fail(
                     LS_ERR_ARGUMENT,
                     "lockstep bench: --%s '%.40s' is not a time; expected a time such as 300ns, 2us, 0.5ms, up to 10s",
                     option, text);
}

ls_status ls_bench_read_rate(const char *option, const char *text, double *bytes_per_ns) {
    static const named_unit units[] = {{"MB/s", 1e-3},       {"GB/s", 1},         {"TB/s", 1e3},
                                       {"Mbit/s", 1e-3 / 8}, {"Gbit/s", 1.0 / 8}, {"Tbit/s", 1e3 / 8}};
    return read_number(text, units, 6, bytes_per_ns) && *bytes_per_ns >= 1e-4 && *bytes_per_ns <= 1e4
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "lockstep bench: --%s '%.40s' is not a bandwidth; expected a bandwidth such as 500MB/s, "
                         "12GB/s or 100Gbit/s, from 0.1 MB/s to 10 TB/s",
                         option, text);
}

/* ---- one call on all ranks --------------------------------------------------------------------------------------- */

typedef struct rank_state {
    ls_engine *engine;
    const ls_call *call;
    bool begun;
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} rank_state;

static bool step(void *state, int rank) {
    rank_state *r = state;
    ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
    (void)rank;
    for (bool moved = true; moved;) {
        bool finished = false;
        ls_status status = r->begun ? LS_OK : ls_engine_begin(r->engine, r->call);
        r->begun = true;
        status = status == LS_OK ? ls_engine_progress(r->engine, false, &finished) : status;
        status = status == LS_OK && !finished ? endpoint->transport->progress(endpoint, LOOK_NS, &moved) : status;
        if (status != LS_OK || finished) {
            r->status = status;
            snprintf(r->message, sizeof r->message, "%s", status != LS_OK ? ls_error_message() : "");
            return true;
        }
    }
    return false;
}

typedef struct simulation {
    const ls_bench_plan *plan;
    const ls_bench_cluster *cluster;
    size_t bytes;
    ls_call call;
    ls_sim_network *network;
    rank_state *ranks;
    double us;
    uint64_t messages;
    uint64_t sent;
} simulation;

static ls_status open_ranks(simulation *self) {
    const ls_bench_cluster *cluster = self->cluster;
    self->network = ls_sim_new(&(ls_sim_options){.ranks = cluster->ranks,
                                                 .latency_ns = (uint64_t)cluster->latency_ns,
                                                 .overhead_ns = (uint64_t)cluster->overhead_ns,
                                                 .bytes_per_ns = cluster->bytes_per_ns,
                                                 .eager = cluster->eager,
                                                 .most_content = CONTENT,
                                                 .both_links = true});
    self->ranks = ls_allocate_zeroed((size_t)cluster->ranks, sizeof *self->ranks);
    if (self->network == NULL || self->ranks == NULL) {
        return ls_fail_memory("lockstep bench --simulate", (size_t)cluster->ranks * sizeof *self->ranks);
    }
    for (int rank = 0; rank < cluster->ranks; rank++) {
        self->ranks[rank].call = &self->call;
        self->ranks[rank].engine = ls_engine_new(ls_sim_endpoint(self->network, rank), NEVER_S);
        if (self->ranks[rank].engine == NULL) {
            return ls_error_status();
        }
        self->ranks[rank].engine->dry = true;
    }
    return LS_OK;
}

static void close_ranks(simulation *self) {
    ls_saved_error cause;
    ls_error_save(&cause);
    for (int rank = 0; self->ranks != NULL && rank < self->cluster->ranks; rank++) {
        if (self->ranks[rank].engine != NULL) {
            ls_failure_end(self->ranks[rank].engine); /* no engine remains to be notified */
            ls_engine_close(self->ranks[rank].engine);
        }
    }
    ls_sim_free(self->network);
    ls_free(self->ranks);
    (void)ls_error_put_back(&cause); /* a rank that leaves during a call sets its own error */
}

static ls_status run_call(simulation *self) {
    const ls_sim_outcome outcome = ls_sim_run(self->network, step, self->ranks, sizeof *self->ranks, 0);
    if (!outcome.finished) {
        return ls_fail(LS_ERR_INTERNAL, "lockstep bench --simulate: %s", outcome.text);
    }
    for (int rank = 0; rank < self->cluster->ranks; rank++) {
        const rank_state *r = &self->ranks[rank];
        const ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
        if (r->status != LS_OK) {
            return ls_fail(r->status, "lockstep bench --simulate: rank %d: %s", rank, r->message);
        }
        self->messages = endpoint->messages > self->messages ? endpoint->messages : self->messages;
        self->sent = endpoint->bytes > self->sent ? endpoint->bytes : self->sent;
    }
    self->us = (double)outcome.ended_ns * 1e-3;
    return LS_OK;
}

/*
 * Sets the sizes, with only whole elements, and at least one in each part, as on real ranks. All ranks share one set of
 * zeroed buffers.
 */
static ls_status set_call(simulation *self, size_t size) {
    const ls_bench_plan *plan = self->plan;
    const ls_bench_collective *row = plan->collective;
    const bool cut = row->send == LS_BENCH_ONE_PER_RANK || row->receive == LS_BENCH_ONE_PER_RANK;
    const size_t width = ls_bench_width(plan->dtype, plan->reduction);
    const size_t unit = width * (cut ? (size_t)self->cluster->ranks : 1);
    self->call = (ls_call){.operation = row->operation, .width = width, .sequence = 1};
    if (row->receive == LS_BENCH_NOTHING) {
        return LS_OK;
    }
    self->bytes = (size + unit - 1) / unit * unit;
    self->call.dtype = plan->dtype;
    self->call.reduction = row->reduces ? plan->reduction : (ls_reduction)0;
    self->call.count = self->bytes / unit;
    self->call.receive = ls_allocate_zeroed(1, self->bytes);
    self->call.send = row->in_place ? self->call.receive : ls_allocate_zeroed(1, self->bytes);
    return self->call.receive != NULL && self->call.send != NULL
               ? LS_OK
               : ls_fail_memory("lockstep bench --simulate", 2 * self->bytes);
}

static void free_call(simulation *self) {
    if (self->call.send != self->call.receive) {
        ls_free((void *)(uintptr_t)self->call.send);
    }
    ls_free(self->call.receive);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_heading(const ls_bench_plan *plan, const ls_bench_cluster *cluster) {
    const bool moves = plan->collective->receive != LS_BENCH_NOTHING;
    printf("# %s, %d simulated ranks, latency %g us, overhead %g us, bandwidth %g GB/s, eager to %zu bytes%s%s%s%s\n",
           plan->collective->name, cluster->ranks, cluster->latency_ns * 1e-3, cluster->overhead_ns * 1e-3,
           cluster->bytes_per_ns, cluster->eager, moves ? ", " : "", moves ? ls_dtype_name(plan->dtype) : "",
           plan->collective->reduces ? ", " : "", plan->collective->reduces ? ls_reduction_name(plan->reduction) : "");
    printf("# %10s %12s %9s %12s %12s %9s %12s  %s\n", "bytes", "lockstep us", "messages", "sent", "textbook us",
           "messages", "sent", "textbook");
    fflush(stdout);
}

static void print_result(const simulation *self) {
    const char *name = self->plan->collective->name;
    const ls_bench_estimate best =
        ls_bench_textbook(self->plan->collective->operation, self->cluster, (double)self->bytes);
    if (self->plan->json) {
        printf("{\"collective\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us\": %.3f, \"messages\": %llu, "
               "\"sent_bytes\": %llu, \"textbook\": \"%s\", \"textbook_us\": %.3f, \"textbook_messages\": %.0f, "
               "\"textbook_sent_bytes\": %.0f}\n",
               name, self->cluster->ranks, self->bytes, self->us, (unsigned long long)self->messages,
               (unsigned long long)self->sent, best.name, best.ns * 1e-3, best.messages, best.bytes);
    } else {
        printf("%12zu %12.2f %9llu %12llu %12.2f %9.0f %12.0f  %s\n", self->bytes, self->us,
               (unsigned long long)self->messages, (unsigned long long)self->sent, best.ns * 1e-3, best.messages,
               best.bytes, best.name);
    }
    fflush(stdout);
}

ls_status ls_bench_simulate(const ls_bench_plan *plan, const ls_bench_cluster *cluster) {
    if (plan->collective->operation == LS_OP_SEND) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "lockstep bench: --simulate supports collectives only; %s sends single messages",
                       plan->collective->name);
    }
    ls_comm_tell_after_ns = UINT64_MAX; /* no warnings about waiting: the clock is simulated */
    ls_status status = LS_OK;
    if (!plan->json) {
        print_heading(plan, cluster);
    }
    for (int i = 0; i < plan->size_count && status == LS_OK; i++) {
        simulation self = {.plan = plan, .cluster = cluster};
        status = set_call(&self, plan->sizes[i]);
        status = status == LS_OK ? open_ranks(&self) : status;
        status = status == LS_OK ? run_call(&self) : status;
        if (status == LS_OK) {
            print_result(&self);
        }
        close_ranks(&self);
        free_call(&self);
    }
    return status;
}
