/* How calls travel on backend shm, by size: what docs/COMMUNICATION.md draws. */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "cli/doctor.h"
#include "comm/backend/shm/algorithm.h"
#include "comm/backend/shm/sizes.h"

static const struct {
    const char *key, *title;
    int ranks;
} rows[] = {{"reduce_two", "2 ranks", 2}, {"reduce_four", "3 or 4 ranks", 4}, {"reduce_more", "more ranks", 5}};

static json_t *size_of(size_t bytes) {
    return bytes == LS_SHM_NEVER ? json_null() : json_integer((json_int_t)bytes);
}

/* "from 64 KiB straight ..." */
static void report_direct(ls_report *report, const ls_shm_algorithm *algorithm) {
    char reductions[32];
    char moves[32];
    json_t *value =
        json_pack("{s:o, s:o}", "direct", size_of(algorithm->direct), "direct_moves", size_of(algorithm->direct_moves));
    if (algorithm->direct == LS_SHM_NEVER || algorithm->direct_moves == LS_SHM_NEVER) {
        ls_report_fact(report, "shared", value, "memory of ls_comm_alloc: %s",
                       algorithm->direct == algorithm->direct_moves ? "as ordinary memory"
                       : algorithm->direct == LS_SHM_NEVER          ? "reductions as of ordinary memory"
                                                                    : "moves as of ordinary memory");
        return;
    }
    ls_report_fact(report, "shared", value,
                   "memory of ls_comm_alloc: straight between the buffers, reductions from %s, others beyond %s",
                   ls_report_bytes(algorithm->direct, reductions, sizeof reductions),
                   ls_report_bytes(algorithm->direct_moves, moves, sizeof moves));
}

static void report_read(ls_report *report, const ls_shm_algorithm *algorithm) {
    char moves[32];
    char least[32];
    char text[32];
    const bool by_shape = algorithm->read == LS_SHM_READ_BY_SHAPE;
    json_t *value = json_pack("{s:b, s:o}", "pull", algorithm->read != LS_SHM_NEVER, "read",
                              by_shape ? json_null() : size_of(algorithm->read));
    if (algorithm->read == LS_SHM_NEVER) {
        ls_report_fact(report, "move", value, "through slots and packets alone");
    } else if (by_shape) {
        ls_report_fact(report, "move", value,
                       "through slots, but beyond %s read in place where slots have less than %s for each; messages "
                       "beyond %s read in place",
                       ls_report_bytes(LS_SHM_DIRECT_MOVES, moves, sizeof moves),
                       ls_report_bytes(LS_SHM_PLACE_LEAST, least, sizeof least),
                       ls_report_bytes(LS_SHM_STREAM_MOST, text, sizeof text));
    } else {
        ls_report_fact(report, "move", value, "through slots and packets up to %s, then read in place",
                       ls_report_bytes(algorithm->read, text, sizeof text));
    }
}

static void report_past(ls_report *report, const ls_shm_algorithm *algorithm) {
    char text[32];
    const bool by_distance = algorithm->past == LS_SHM_PAST_BY_DISTANCE;
    const size_t past = by_distance ? LS_SHM_FAR_LEAST : algorithm->past;
    json_t *value = json_pack("{s:b, s:o}", "by_distance", by_distance, "past", size_of(past));
    if (algorithm->past == LS_SHM_NEVER) {
        ls_report_fact(report, "slots", value, "written through the caches");
    } else {
        ls_report_fact(report, "slots", value, "written past the caches beyond %s%s",
                       ls_report_bytes(past, text, sizeof text),
                       by_distance ? ", where cores are far from each other" : "");
    }
}

void ls_doctor_algorithms(ls_report *report) {
    char cells[32];
    char whole[32];
    char chunk[32];
    ls_shm_algorithm algorithm;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (ls_shm_algorithm_choose(rows[i].ranks, &algorithm) != LS_OK) {
            ls_report_problem(report, "%s", ls_error_message());
            return;
        }
        ls_report_fact(report, rows[i].key,
                       json_pack("{s:I, s:I, s:I}", "cells", (json_int_t)algorithm.cells, "whole",
                                 (json_int_t)algorithm.whole, "chunk", (json_int_t)algorithm.chunk),
                       "%s: to %s in cells, to %s whole through slots, then in chunks of up to %s", rows[i].title,
                       ls_report_bytes(algorithm.cells, cells, sizeof cells),
                       ls_report_bytes(algorithm.whole, whole, sizeof whole),
                       ls_report_bytes(algorithm.chunk, chunk, sizeof chunk));
    }
    report_direct(report, &algorithm);
    report_read(report, &algorithm);
    report_past(report, &algorithm);
    const char *wish = getenv(LS_SHM_ALGORITHM_VARIABLE);
    if (wish != NULL && wish[0] != '\0') {
        ls_report_fact(report, "chosen", ls_report_text(wish), "%s says so: %s", LS_SHM_ALGORITHM_VARIABLE, wish);
    }
}
