/*
 * A rank tells its launcher why it fails: a record of one packet, through the socket that LOCKSTEP_REPORT names
 * ("DESCRIPTOR:INODE"), one for each rank. Without one nothing is told, and nothing else changes.
 *
 *     lockstep-failure 1 STATUS RANK FAILED_RANK PROCESS SENTENCE
 */
#ifndef LS_COMM_RANK_REPORT_H
#define LS_COMM_RANK_REPORT_H

#include "base/status.h"

enum { LS_REPORT_TEXT = LS_ERROR_CAPACITY + 96 };

typedef struct ls_rank_report {
    ls_status status; /* LS_OK: nothing was told */
    int rank;
    int failed_rank; /* the rank of the world whose end was the reason; itself: none's; -1: unknown */
    int process;     /* that told it */
    char sentence[LS_ERROR_CAPACITY];
} ls_rank_report;

/* This process is `rank`, and is to tell its first failure from here on. Programs that it starts do not keep the
 * socket. */
void ls_rank_report_open(int rank);

/* Tells this thread's error, of `status`, without waiting; nothing where this process has told one since it was opened,
 * or is a fork of the rank. */
void ls_rank_report_tell(ls_status status, int failed_rank);

/* Reads a record. False: it is none. The sentence is as it came. */
bool ls_rank_report_read(const char *text, ls_rank_report *report);

#endif
