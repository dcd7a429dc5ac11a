/*
 * The public function in which a thread calls a communicator, for messages: "ls_backward: ls_comm_allreduce #3: ...".
 * If ranks make different calls, the message also names the public functions of the other ranks. For layers above comm.
 */
#ifndef LS_COMM_PUBLIC_CALL_H
#define LS_COMM_PUBLIC_CALL_H

#include "base/status.h"

/* Ranks send these numbers to each other. */
typedef enum ls_public_call {
    LS_PUBLIC_NONE, /* the program calls the communicator itself */
    LS_PUBLIC_ALLGATHER,
    LS_PUBLIC_ALLREDUCE,
    LS_PUBLIC_ALLTOALL,
    LS_PUBLIC_BACKWARD,
    LS_PUBLIC_BROADCAST,
    LS_PUBLIC_CLIP_GRAD_NORM,
    LS_PUBLIC_DATA_PARALLEL,
    LS_PUBLIC_DATA_PARALLEL_CHECK,
    LS_PUBLIC_DATA_PARALLEL_GATHER,
    LS_PUBLIC_DATA_PARALLEL_LOSS,
    LS_PUBLIC_DATA_PARALLEL_SKIP,
    LS_PUBLIC_DATA_PARALLEL_STEP,
    LS_PUBLIC_FORWARD,
    LS_PUBLIC_GATHER,
    LS_PUBLIC_GRAD_SCALER_UNSCALE,
    LS_PUBLIC_OPTIMIZER_STEP,
    LS_PUBLIC_OUTER_NEW,
    LS_PUBLIC_OUTER_STEP,
    LS_PUBLIC_OUTER_SYNC,
    LS_PUBLIC_PIPELINE_BACKWARD,
    LS_PUBLIC_REDUCE,
    LS_PUBLIC_REDUCE_SCATTER,
    LS_PUBLIC_SCATTER,
    LS_PUBLIC_SYNC_GRADIENTS,
    LS_PUBLIC_SYNC_PARAMETERS,
    LS_PUBLIC_TRIAL_EVALUATE,
    LS_PUBLIC_TRIAL_LOAD,
    LS_PUBLIC_TRIAL_NEW,
    LS_PUBLIC_TRIAL_PREDICT,
    LS_PUBLIC_TRIAL_RUN,
    LS_PUBLIC_TRIAL_SAVE,
    LS_PUBLIC_TRIAL_THROUGHPUT,
    LS_PUBLIC_COUNT
} ls_public_call;

/* operation.c: returns the name, "ls_backward", or NULL for LS_PUBLIC_NONE. */
const char *ls_public_name(ls_public_call call);

/* The innermost public function of this thread. */
extern LS_THREAD_LOCAL ls_public_call ls_public_present
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Enters a public function, or with LS_PUBLIC_NONE a function of the program. Returns the enclosing call, for
 * ls_public_end.
 */
static inline ls_public_call ls_public_begin(ls_public_call call) {
    const ls_public_call outer = ls_public_present;
    ls_public_present = call;
    return outer;
}

/* Leaves a public function, or returns to it from a function of the program. Returns `status`. */
static inline ls_status ls_public_end(ls_public_call outer, ls_status status) {
    ls_public_present = outer;
    return status;
}

#endif
