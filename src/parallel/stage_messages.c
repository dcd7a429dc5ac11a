#include "parallel/stage_messages.h"

#include <string.h>

#include "tensor/device.h"
#include "tensor/scope.h"

ls_status ls_stage_send(ls_comm *comm, ls_stage_message *message, const ls_tensor *tensor, int to, int tag) {
    message->header = (ls_stage_header){.dtype = tensor->dtype, .ndim = tensor->ndim};
    memcpy(message->header.size, tensor->size, (size_t)tensor->ndim * sizeof *tensor->size);
    message->content = ls_tensor_dense_on_host("ls_pipeline", tensor, (ls_dtype)tensor->dtype);
    LS_TRY(ls_made(message->content));
    LS_TRY(ls_comm_send(comm, &message->header, sizeof message->header, LS_U8, to, tag, &message->work[0]));
    return ls_comm_send(comm, ls_host_data(message->content), (size_t)tensor->count, (ls_dtype)tensor->dtype, to, tag,
                        &message->work[1]);
}

ls_status ls_stage_send_failure(ls_comm *comm, ls_stage_message *message, const ls_stage_failure *why, int to,
                                int tag) {
    const size_t length = strlen(why->text);
    message->header = (ls_stage_header){.failed = why->stage + 1, .dtype = LS_U8, .ndim = 1, .size = {(int64_t)length}};
    LS_TRY(ls_comm_send(comm, &message->header, sizeof message->header, LS_U8, to, tag, &message->work[0]));
    return ls_comm_send(comm, why->text, length, LS_U8, to, tag, &message->work[1]);
}

ls_status ls_stage_send_wait(ls_stage_message *message) {
    const ls_status header = ls_work_wait(message->work[0]);
    const ls_status content = ls_work_wait(message->work[1]);
    ls_tensor_drop(message->content);
    *message = (ls_stage_message){0};
    return header != LS_OK ? header : content;
}

void ls_stage_note_failure(ls_stage_failure *why, int stage) {
    if (!why->happened) {
        why->happened = true;
        why->stage = stage;
        memcpy(why->text, ls_error_message(), sizeof why->text);
    }
}

/* Receives the error message that a failed stage sends instead of a tensor. */
static ls_tensor *receive_failure(ls_comm *comm, const ls_stage_header *header, int from, int tag,
                                  ls_stage_failure *why) {
    const size_t length = (size_t)header->size[0] % sizeof why->text;
    why->happened = true;
    why->stage = (int)header->failed - 1;
    if (ls_comm_recv(comm, why->text, length, LS_U8, from, tag, NULL) != LS_OK) {
        return ls_scope_failed();
    }
    why->text[length] = '\0';
    return ls_fail_noted(LS_ERR_MISMATCH, "ls_pipeline: stage %d (rank %d) failed: %s", why->stage, why->stage,
                         why->text);
}

/* Drops the content of a message: a receive whose count differs from the sent count drops it on both sides. */
static ls_status drop_content(ls_comm *comm, int from, int tag) {
    const ls_status status = ls_comm_recv(comm, NULL, 0, LS_U8, from, tag, NULL);
    return status == LS_ERR_MISMATCH ? LS_OK : status;
}

ls_tensor *ls_stage_receive(ls_comm *comm, int from, int tag, ls_stage_failure *why) {
    ls_stage_header header;
    if (ls_comm_recv(comm, &header, sizeof header, LS_U8, from, tag, NULL) != LS_OK) {
        return ls_scope_failed();
    }
    if (header.failed != 0) {
        return receive_failure(comm, &header, from, tag, why);
    }
    const ls_device *device = ls_device_default();
    ls_tensor *tensor =
        device != NULL ? ls_tensor_new("ls_pipeline", device, (int)header.ndim, header.size, (ls_dtype)header.dtype)
                       : NULL;
    ls_host_view view = {0};
    if (tensor != NULL && ls_host_view_begin(&view, tensor, LS_HOST_WRITE) != LS_OK) {
        tensor = NULL;
    }
    if (tensor == NULL) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_stage_note_failure(why, ls_comm_rank(comm));
        (void)drop_content(comm, from, tag);
        (void)ls_error_put_back(&cause);
        return ls_scope_failed();
    }
    const ls_status status =
        ls_comm_recv(comm, view.memory, (size_t)tensor->count, (ls_dtype)tensor->dtype, from, tag, NULL);
    return ls_host_view_end(&view, status) == LS_OK ? tensor : ls_scope_failed();
}

ls_status ls_stage_discard(ls_comm *comm, int from, int tag, bool *failed) {
    ls_stage_header header;
    LS_TRY(ls_comm_recv(comm, &header, sizeof header, LS_U8, from, tag, NULL));
    *failed = header.failed != 0;
    return drop_content(comm, from, tag);
}
