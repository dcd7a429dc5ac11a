/*
 * The file by which the store in a folder is found: it names the job's own folder and proves that who made it knows
 * the job's key. Its text and the strict reading of it.
 */
#ifndef LS_COMM_STORE_ANNOUNCEMENT_H
#define LS_COMM_STORE_ANNOUNCEMENT_H

#include "comm/auth.h"

#define LS_ANNOUNCEMENT_SIZE 149 /* without the NUL that ls_announcement_write adds */
#define LS_JOB_FOLDER_SIZE   (4 + 2 * LS_NONCE_SIZE + 1)

typedef struct ls_announcement {
    uint8_t nonce[LS_NONCE_SIZE]; /* this job's and no other's; the folder is named by it */
    bool keyed;
    uint8_t proof[LS_PROOF_SIZE];
} ls_announcement;

/* A fresh one for the job with this key. */
ls_status ls_announcement_make(ls_announcement *announcement, const ls_key *key);

void ls_announcement_write(const ls_announcement *announcement, char text[LS_ANNOUNCEMENT_SIZE + 1]);

/* LS_ERR_FORMAT unless the text is exactly what ls_announcement_write writes. */
ls_status ls_announcement_read(const char *text, size_t size, ls_announcement *announcement);

/* LS_ERR_DENIED when it was not made with this key. */
ls_status ls_announcement_check(const ls_announcement *announcement, const ls_key *key);

/* Leaves a note for the job in `folder`: this process was refused for the reason that this thread's error says. */
void ls_announcement_note_refusal(int folder);

/* For who serves the job: logs such notes, and takes them away; returns how many there were. */
int ls_announcement_report_refusals(int folder);

/* The job folder's name; and whether that can be one of a job's, which no user gives to anything. */
void ls_announcement_folder(const ls_announcement *announcement, char name[LS_JOB_FOLDER_SIZE]);
bool ls_announcement_names_folder(const char *name);

#endif
