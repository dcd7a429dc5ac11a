/*
 * Messages between the stages of a pipeline. A message is a tensor, or the error message that a failed stage sends
 * instead. `comm` is the communicator of the stages, so a rank is the index of its stage.
 */
#ifndef LS_PARALLEL_STAGE_MESSAGES_H
#define LS_PARALLEL_STAGE_MESSAGES_H

#include <lockstep/comm.h>

#include "base/status.h"
#include "tensor/tensor.h"

/* Precedes a tensor, or the error message sent instead of it. */
typedef struct ls_stage_header {
    int64_t failed; /* 0, or 1 + the number of the failed stage */
    int64_t dtype;
    int64_t ndim;
    int64_t size[LS_MAX_DIMS];
} ls_stage_header;

/* A message that is being sent to another stage. Zero before the start. */
typedef struct ls_stage_message {
    ls_stage_header header;
    ls_tensor *content; /* dense, on the host, held; NULL for an error message, whose text the caller owns */
    ls_work *work[2];
} ls_stage_message;

/* The reason why a step cannot complete. */
typedef struct ls_stage_failure {
    bool happened;
    int stage; /* the failed stage */
    char text[LS_ERROR_CAPACITY];
} ls_stage_failure;

/* Records this thread's error as the failure of this stage, unless a failure is already recorded. */
void ls_stage_note_failure(ls_stage_failure *why, int stage);

/* Starts to send a tensor. ls_stage_send_wait must follow, even after a failure. */
ls_status ls_stage_send(ls_comm *comm, ls_stage_message *message, const ls_tensor *tensor, int to, int tag);
/* Starts to send the error message, which must stay valid until ls_stage_send_wait. */
ls_status ls_stage_send_failure(ls_comm *comm, ls_stage_message *message, const ls_stage_failure *why, int to, int tag);
/* Waits until the message was sent. Does nothing if the message is zero. Returns the first error. */
ls_status ls_stage_send_wait(ls_stage_message *message);

/*
 * Receives the next tensor from another stage, in the innermost scope. On failure, returns NULL with an error. Sets
 * `*why` if the other stage failed, or if this stage cannot store the tensor.
 */
ls_tensor *ls_stage_receive(ls_comm *comm, int from, int tag, ls_stage_failure *why);

/* Receives the next message from another stage, and drops it. Sets *failed to whether it is an error message. */
ls_status ls_stage_discard(ls_comm *comm, int from, int tag, bool *failed);

#endif
