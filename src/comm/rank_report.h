/*
 * Reports to a rank's launcher why the rank fails: a one-packet record, sent through the socket named by
 * LOCKSTEP_REPORT ("DESCRIPTOR:INODE"). Each rank has its own socket. Without the variable, nothing is reported, and
 * nothing else changes. The record is:
 *
 * lockstep-failure 1 STATUS RANK FAILED_RANK PROCESS SENTENCE
 */
#ifndef LS_COMM_RANK_REPORT_H
#define LS_COMM_RANK_REPORT_H

#include "base/status.h"

enum { LS_REPORT_TEXT = LS_ERROR_CAPACITY + 96 };

typedef struct ls_rank_report {
    ls_status status; /* LS_OK if no failure was reported */
    int rank;
    int failed_rank; /* the world rank whose exit was the cause; this rank if no rank exited; -1 if unknown */
    int process;     /* the process that reported the failure */
    char sentence[LS_ERROR_CAPACITY];
} ls_rank_report;

/* Declares that this process is `rank`, and enables the report of its first failure from now on. Programs that it
 * starts do not inherit the socket. */
void ls_rank_report_open(int rank);

/* Reports this thread's error, whose status is `status`, without waiting. Does nothing if this process has already
 * reported a failure since ls_rank_report_open, or is a fork of the rank. */
void ls_rank_report_tell(ls_status status, int failed_rank);

/* Declares that this thread's error reports the failure of the world rank `failed_rank` (-1 if unknown), which will
 * exit for this reason. If the error is still the last one when it is reported, the report has LS_ERR_PEER and this
 * rank. */
void ls_rank_report_set_failed_rank(int failed_rank);

/* Parses a record. Returns false if the text is not a record. The sentence is not validated. */
bool ls_rank_report_read(const char *text, ls_rank_report *report);

#endif
