/*
 * Traces in Chrome's trace event format (Trace Event Format, Google 2016): "X" events with start and duration in
 * microseconds, and one process per rank.
 */
#include <jansson.h>
#include <lockstep/trace.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/memory.h"
#include "base/trace.h"
#include "formats/file.h"
#include "tensor/scope.h"

static const char call[] = "ls_trace_stop";

static const char *const kind_names[LS_TRACE_KINDS] = {"user", "comm", "forward", "backward", "pipeline", "training"};

/* What rank 0 needs to know about a rank. */
typedef struct introduction {
    uint64_t traced; /* 1 if the rank has a trace */
    uint64_t count;  /* spans */
    uint64_t lost;
    uint64_t first; /* earliest start; UINT64_MAX if there are no spans */
    uint64_t now;   /* the rank's clock just after an agreement */
    char boot[40];  /* boot id of the machine: ranks with the same boot id share a clock */
    char host[64];
} introduction;

ls_status ls_trace_start(void) {
    if (ls_trace_present != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_trace_start: a trace is already running");
    }
    if (ls_thread() == NULL) { /* if the trace was not stopped, it is freed when the thread ends */
        return ls_error_status();
    }
    return ls_trace_open() ? LS_OK : ls_fail_memory("ls_trace_start", sizeof(ls_trace));
}

static const ls_trace nothing; /* the trace of a rank without a trace */

static void introduce(const ls_trace *trace, introduction *own) {
    own->traced = trace != &nothing;
    own->count = trace->count;
    own->lost = trace->lost;
    own->first = UINT64_MAX;
    for (size_t i = 0; i < trace->count; i++) {
        own->first = trace->spans[i].began < own->first ? trace->spans[i].began : own->first;
    }
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot != NULL) {
        own->boot[fread(own->boot, 1, sizeof own->boot - 1, boot)] = '\0';
        (void)fclose(boot);
    }
    if (gethostname(own->host, sizeof own->host - 1) != 0) {
        own->host[0] = '\0';
    }
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

/* All ranks' spans, ordered by rank. */
typedef struct merged {
    const introduction *ranks;
    int size;
    const ls_trace_span_record *spans;
} merged;

/* Returns the clock of rank 0 minus the clock of `rank`. */
static uint64_t shift_of(const merged *all, int rank) {
    const bool same = strcmp(all->ranks[rank].boot, all->ranks[0].boot) == 0;
    return same ? 0 : all->ranks[0].now - all->ranks[rank].now;
}

static uint64_t beginning(const merged *all) {
    uint64_t first = UINT64_MAX;
    for (int rank = 0; rank < all->size; rank++) {
        if (all->ranks[rank].count != 0) {
            const uint64_t own = all->ranks[rank].first + shift_of(all, rank);
            first = own < first ? own : first;
        }
    }
    return first;
}

/* Writes one event, and a separator unless it is the first. Takes ownership of `event`. */
static bool write_event(FILE *stream, json_t *event, bool first) {
    const locale_t before = ls_locale_enter();
    const bool good = event != NULL && fputs(first ? "\n" : ",\n", stream) >= 0 &&
                      json_dumpf(event, stream, JSON_COMPACT | JSON_REAL_PRECISION(15)) == 0;
    ls_locale_leave(before);
    json_decref(event);
    return good;
}

static bool write_name(FILE *stream, const introduction *own, int rank) {
    char text[160];
    const int length = snprintf(text, sizeof text, "rank %d on %s", rank, own->host);
    if (own->lost != 0) {
        snprintf(text + length, sizeof text - (size_t)length, " (%llu spans lost)", (unsigned long long)own->lost);
    }
    return write_event(stream,
                       json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "process_name", "ph", "M", "pid", rank, "tid",
                                 rank, "args", "name", text),
                       rank == 0);
}

/* Converts nanoseconds to microseconds, without loss of precision. */
static json_t *microseconds(uint64_t ns) {
    return json_real((double)ns / 1e3);
}

/*
 * Returns a name as a JSON string. A name that was truncated within a UTF-8 character loses the rest of this character.
 * If the name is not UTF-8, keeps only its ASCII characters. Names from other ranks may lack the terminating zero byte.
 */
static json_t *text_of(const char *name) {
    const size_t length = strnlen(name, LS_TRACE_NAME_CAPACITY);
    json_t *text = json_stringn(name, length);
    for (size_t cut = 1; text == NULL && cut < 4 && cut <= length; cut++) {
        text = json_stringn(name, length - cut);
    }
    if (text == NULL) {
        char ascii[LS_TRACE_NAME_CAPACITY];
        for (size_t i = 0; i < length; i++) {
            ascii[i] = (unsigned char)name[i] > 127 ? '?' : name[i];
        }
        text = json_stringn(ascii, length);
    }
    return text;
}

static bool write_span(FILE *stream, const ls_trace_span_record *span, int rank, uint64_t since) {
    json_t *event =
        json_pack("{s:o, s:s, s:s, s:i, s:i, s:o, s:o}", "name", text_of(span->name), "cat",
                  kind_names[span->kind < LS_TRACE_KINDS ? span->kind : LS_TRACE_USER], "ph", "X", "pid", rank, "tid",
                  rank, "ts", microseconds(span->began - since), "dur", microseconds(span->ended - span->began));
    if (event != NULL && span->bytes >= 0) {
        (void)json_object_set_new(event, "args", json_pack("{s:I}", "bytes", (json_int_t)span->bytes));
    }
    return write_event(stream, event, false);
}

static bool write_all(FILE *stream, const merged *all) {
    bool good = fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", stream) >= 0;
    for (int rank = 0; good && rank < all->size; rank++) {
        good = write_name(stream, &all->ranks[rank], rank);
    }
    const uint64_t first = beginning(all);
    const ls_trace_span_record *span = all->spans;
    for (int rank = 0; good && rank < all->size; rank++) {
        const uint64_t since = first - shift_of(all, rank);
        for (uint64_t i = 0; good && i < all->ranks[rank].count; i++) {
            good = write_span(stream, span++, rank, since);
        }
    }
    return good && fputs("\n]}\n", stream) >= 0;
}

static ls_status write_file(const char *path, const merged *all) {
    ls_new_file file;
    LS_TRY(ls_file_create(call, path, &file));
    ls_status status = LS_OK;
    if (!write_all(file.stream, all)) {
        status = ls_fail(LS_ERR_IO, "%s: cannot write %s: is the disk full?", call, path);
    }
    return ls_file_commit(call, &file, status);
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

/* Fails on all ranks if a rank is out of memory. Otherwise the other ranks would wait for this rank. */
static ls_status agree(ls_comm *comm, bool has_memory, size_t bytes) {
    const int32_t own = has_memory ? 0 : 1;
    int32_t any = own;
    const ls_status status = ls_comm_allreduce(comm, &own, &any, 1, LS_I32, LS_MAX, NULL);
    if (!has_memory) {
        return ls_fail_memory(call, bytes);
    }
    return status != LS_OK || any == 0 ? status : ls_fail(LS_ERR_MEMORY, "%s: another rank is out of memory", call);
}

/* Gathers all spans on rank 0 into `*spans`, which is allocated there. */
static ls_status gather(ls_comm *comm, const ls_trace *trace, const introduction *ranks, ls_trace_span_record **spans) {
    const int size = ls_comm_size(comm);
    size_t *counts = ls_allocate_zeroed((size_t)size, sizeof *counts);
    size_t total = 0;
    for (int rank = 0; counts != NULL && rank < size; rank++) {
        counts[rank] = (size_t)ranks[rank].count * sizeof **spans;
        total += counts[rank];
    }
    *spans = ls_comm_rank(comm) == 0 && counts != NULL ? ls_allocate(total) : NULL;
    ls_status status = agree(comm, counts != NULL && (ls_comm_rank(comm) != 0 || *spans != NULL), total);
    if (status == LS_OK) {
        const size_t own = counts[ls_comm_rank(comm)];
        status = ls_comm_gatherv(comm, trace->spans, own, *spans, counts, NULL, LS_U8, 0, NULL);
    }
    ls_free(counts);
    return status;
}

/* Checks the values from other ranks: the number of spans must be plausible. Terminates the strings with a zero
 * byte. */
static ls_status check(introduction *ranks, int size) {
    for (int rank = 0; rank < size; rank++) {
        ranks[rank].boot[sizeof ranks[rank].boot - 1] = '\0';
        ranks[rank].host[sizeof ranks[rank].host - 1] = '\0';
        if (ranks[rank].count > LS_TRACE_SPANS) {
            return ls_fail(LS_ERR_FORMAT, "%s: rank %d reports %llu spans, but at most %d are possible", call, rank,
                           (unsigned long long)ranks[rank].count, LS_TRACE_SPANS);
        }
    }
    return LS_OK;
}

/* Sends rank 0's status to all ranks. */
static ls_status tell(ls_comm *comm, ls_status status) {
    int32_t outcome = (int32_t)status;
    LS_TRY(ls_comm_broadcast(comm, &outcome, 1, LS_I32, 0, NULL));
    if (ls_comm_rank(comm) != 0 && outcome != (int32_t)LS_OK) {
        return ls_fail((ls_status)outcome, "%s: rank 0 could not write the file; see the error message on rank 0",
                       call);
    }
    return status;
}

static bool any_traced(const introduction *ranks, int size) {
    bool any = false;
    for (int rank = 0; rank < size; rank++) {
        any = any || ranks[rank].traced != 0;
    }
    return any;
}

/* Writes nothing if no rank has a trace: the path may have the file of an earlier trace. */
static ls_status merge(ls_comm *comm, const ls_trace *trace, introduction *ranks, const char *path) {
    introduction own = {.now = ls_clock_ns()};
    introduce(trace, &own);
    LS_TRY(ls_comm_allgather(comm, &own, ranks, sizeof own, LS_U8, NULL));
    if (!any_traced(ranks, ls_comm_size(comm))) {
        return LS_OK;
    }
    ls_trace_span_record *spans = NULL;
    ls_status status = check(ranks, ls_comm_size(comm));
    if (status == LS_OK) {
        status = gather(comm, trace, ranks, &spans);
    }
    if (status == LS_OK && ls_comm_rank(comm) == 0) {
        status = write_file(path, &(merged){.ranks = ranks, .size = ls_comm_size(comm), .spans = spans});
    }
    ls_free(spans);
    ls_saved_error cause;
    ls_error_save(&cause);
    const ls_status told = tell(comm, status);
    if (status != LS_OK) {
        (void)ls_error_put_back(&cause);
    }
    return status != LS_OK ? status : told;
}

ls_status ls_trace_stop(ls_comm *comm, const char *path) {
    if (comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the communicator is NULL", call);
    }
    ls_trace *trace = ls_trace_take();
    const size_t size = (size_t)ls_comm_size(comm);
    introduction *ranks = ls_allocate_zeroed(size, sizeof *ranks);
    ls_status status = agree(comm, ranks != NULL, size * sizeof *ranks); /* also aligns the clocks of the ranks */
    if (status == LS_OK) {
        status = merge(comm, trace != NULL ? trace : &nothing, ranks, path);
    }
    ls_free(ranks);
    if (trace == NULL && status == LS_OK) { /* the other ranks have finished, so none waits for this rank */
        status = ls_fail(LS_ERR_STATE, "%s: no trace is running on this rank; call ls_trace_start first", call);
    }
    ls_trace_free(trace);
    return status;
}
