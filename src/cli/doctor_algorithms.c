/* How calls travel on backend shm, by size: what docs/COMMUNICATION.md draws. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"
#include "comm/backend/shm/sizes.h"

/* Reductions of ordinary memory among up to so many ranks. */
static const struct {
    const char *key, *ranks;
    size_t whole;
} rows[] = {
    {"reduce_two", "2 ranks", LS_SHM_WHOLE_2},
    {"reduce_four", "3 or 4 ranks", LS_SHM_WHOLE_4},
    {"reduce_more", "more ranks", LS_SHM_WHOLE_MORE},
};

static bool may_pull(void) {
    const char *text = getenv("LOCKSTEP_SHM_PULL");
    return text == NULL || strcmp(text, "0") != 0;
}

void ls_doctor_algorithms(ls_report *report) {
    char cells[32];
    char whole[32];
    char slot[32];
    ls_report_bytes(LS_SHM_PAYLOAD, cells, sizeof cells);
    ls_report_bytes(LS_SHM_SLOT_MOST, slot, sizeof slot);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_report_bytes(rows[i].whole, whole, sizeof whole);
        ls_report_fact(report, rows[i].key,
                       json_pack("{s:i, s:I, s:I}", "cells", LS_SHM_PAYLOAD, "whole", (json_int_t)rows[i].whole,
                                 "chunk", (json_int_t)LS_SHM_SLOT_MOST),
                       "%s: to %s in cells, to %s whole through slots, then in chunks of up to %s", rows[i].ranks,
                       cells, whole, slot);
    }
    ls_report_bytes(LS_SHM_DIRECT_LEAST, whole, sizeof whole);
    ls_report_fact(report, "reduce_shared", json_pack("{s:I}", "direct", (json_int_t)LS_SHM_DIRECT_LEAST),
                   "memory of ls_comm_alloc: from %s straight between the buffers", whole);
    ls_report_bytes(LS_SHM_PULL_LEAST, whole, sizeof whole);
    ls_report_fact(report, "move",
                   json_pack("{s:i, s:I, s:b}", "cells", LS_SHM_PAYLOAD, "slots", (json_int_t)LS_SHM_PULL_LEAST, "pull",
                             may_pull()),
                   "to %s in cells, to %s through slots, then %s", cells, whole,
                   may_pull() ? "read in place (LOCKSTEP_SHM_PULL=0: through slots)"
                              : "through slots, since LOCKSTEP_SHM_PULL is 0");
}
