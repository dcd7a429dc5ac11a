/* Progress lines: one for each pass over a loader, or one for all epochs of a run. */
#ifndef LS_TRAIN_PROGRESS_H
#define LS_TRAIN_PROGRESS_H

#include "train/trial.h"

void ls_progress_begin_run(ls_trial *trial);
void ls_progress_epoch(ls_trial *trial);
void ls_progress_end_run(ls_trial *trial);

/* Prints where the trial resumes, or that `.resume` has no checkpoint yet if `path` is empty. With `.quiet`, logs it at
 * level info. */
void ls_progress_resumed(const ls_trial *trial, const char *path);

/* Begins a progress line. `label` is "0/3(t)" for training, and "0/3(v)" for validation. */
void ls_progress_begin(ls_trial *trial, const char *label);
void ls_progress_step(ls_trial *trial);
void ls_progress_end(ls_trial *trial, const char *prefix);

#endif
