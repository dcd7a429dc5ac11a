/* Warnings about long waits: see ls_comm_tell_waiting. */
#include "comm/waiting.h"

#include <stdio.h>

#include "base/log.h"
#include "comm/backend.h"
#include "comm/public_call.h"

#define TELL_AGAIN_NS UINT64_C(60000000000)

uint64_t ls_comm_tell_after_ns = UINT64_C(10000000000);

/* Describes the first awaited rank. */
static void tell_latest(const ls_waiting *waiting, char *text, size_t capacity) {
    const ls_call *call = waiting->call;
    char name[64];
    char who[48] = ", which";
    char whose[48] = ", whose";
    text[0] = '\0';
    if (!waiting->knows_latest) {
        return;
    }
    if (waiting->awaited->count > 1) {
        snprintf(who, sizeof who, "; rank %d", waiting->awaited->first);
        snprintf(whose, sizeof whose, "; rank %d's", waiting->awaited->first);
    }
    if (waiting->latest_sequence == 0) {
        snprintf(text, capacity, "%s has made no call yet", who);
    } else if (call != NULL && waiting->latest == call->operation && waiting->latest_sequence == call->sequence &&
               ls_operation_is_collective(call->operation)) {
        snprintf(text, capacity, "%s has begun this call, but does not proceed", who);
    } else {
        ls_call_describe(waiting->latest, waiting->latest_sequence, name, sizeof name);
        snprintf(text, capacity, "%s last call was %s", whose, name);
    }
}

void ls_comm_tell_waiting(const ls_waiting *waiting) {
    if (waiting->waited_ns < *waiting->told_ns) { /* a different wait from the logged wait */
        *waiting->told_ns = 0;
    }
    const uint64_t due = *waiting->told_ns == 0 ? ls_comm_tell_after_ns : *waiting->told_ns + TELL_AGAIN_NS;
    if (waiting->waited_ns < due) {
        return;
    }
    char name[64] = "ls_finalize";
    char latest[128];
    *waiting->told_ns = waiting->waited_ns;
    tell_latest(waiting, latest, sizeof latest);
    if (waiting->call != NULL) {
        ls_call_describe(waiting->call->operation, waiting->call->sequence, name, sizeof name);
    }
    const char *public = waiting->call != NULL ? ls_public_name((ls_public_call)waiting->call->public_call) : NULL;
    const double seconds = (double)waiting->waited_ns * 1e-9;
    ls_log_write(LS_LOG_WARNING, "%s%s%s has waited %.*f s for %s%s%s", public != NULL ? public : "",
                 public != NULL ? ": " : "", name, seconds < 1 ? 2 : 0, seconds, waiting->awaited->text, latest,
                 waiting->more);
}
