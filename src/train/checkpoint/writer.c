/* The thread that writes a snapshot while training continues. It accesses nothing but the snapshot. */
#include "train/checkpoint/checkpoint.h"

#include <sched.h>
#include <string.h>

#include "base/threads.h"
#include "tensor/scope.h"

static void *run_writer(void *argument) {
    ls_writer *writer = argument;
    /* The thread often waits for the disk. With the default policy, each wake-up would preempt a training thread. */
    (void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){.sched_priority = 0});
    writer->status = writer->function(writer->snapshot);
    memcpy(writer->message, writer->status != LS_OK ? ls_error_message() : "",
           writer->status != LS_OK ? sizeof writer->message : 1);
    ls_thread_end();
    atomic_store(&writer->done, true);
    return NULL;
}

ls_status ls_writer_start(ls_writer *writer, ls_writing *function, ls_checkpoint *snapshot) {
    writer->function = function;
    writer->snapshot = snapshot;
    writer->status = LS_OK;
    atomic_store(&writer->done, false);
    const int error = ls_start_thread(&writer->thread, "lockstep-writer", run_writer, writer);
    writer->started = error == 0;
    return error == 0 ? LS_OK
                      : ls_fail(LS_ERR_IO, "checkpoint: cannot start the thread that writes it: %s", strerror(error));
}

ls_status ls_writer_join(ls_writer *writer) {
    if (!writer->started) {
        return LS_OK;
    }
    pthread_join(writer->thread, NULL);
    writer->started = false;
    if (writer->status != LS_OK) {
        ls_error_restore(writer->status, writer->message);
    }
    return writer->status;
}
