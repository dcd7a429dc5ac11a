/*
 * Point-to-point messages with gradients, which flow in the opposite direction. One call starts a message (ls_isend,
 * ls_irecv), and a second call completes it (ls_handle_wait). Both calls record a node. In the backward pass, the node
 * of the second call starts the message with the gradient, and the node of the first call waits for it. The backward
 * pass is the same program in reverse order, so a program that cannot deadlock in the forward pass cannot deadlock in
 * the backward pass either.
 *
 * A header precedes every message. It contains the shape, the dtype, whether the sender requires a gradient, and a
 * number that is unique to the sender. The tag of the gradient is derived from this number, so gradients match their
 * messages in whatever order either side waits.
 *
 * If the pass fails on the receiver of a message, the receiver sends an empty message and then its error, instead of
 * the gradient. If the pass fails on the sender, it receives the gradient and drops it.
 */
#include <string.h>

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/tape.h"
#include "base/memory.h"
#include "comm/hold.h"
#include "parallel/handle.h"
#include "tensor/capture.h"

/* Tags of gradients have this bit set; user tags are smaller. */
#define GRADIENT_TAG (1 << 30)

/* The header that precedes a message. */
typedef struct notice {
    uint8_t dtype;
    int8_t ndim;
    bool wants;  /* the sender expects a gradient */
    bool failed; /* the sender has failed and sends no tensor */
    uint32_t number;
    int64_t size[LS_MAX_DIMS];
} notice;

/*
 * A message, shared by its two nodes and the handle. It is stored in the storage of a token: an empty tensor that is
 * the output of the first node. The handle is the token.
 */
typedef struct message {
    ls_handle_record record;
    ls_comm *comm;
    bool sends;
    int peer;
    int tag;
    bool wanted; /* a gradient is sent back */
    bool lost;   /* the message could not be received, so there is no second node, which would send the gradient */
    char *why;   /* the error of a lost message; NULL if there was no memory for it */
    notice notice;
    ls_work *notice_work;
    ls_work *work;
    ls_tensor *tensor;   /* the tensor to send, as passed by the user; kept until ls_handle_wait */
    ls_tensor *content;  /* during the transfer: elements to send or memory to receive them, dense, on the host */
    ls_tensor *gradient; /* the gradient to receive or to send, during its transfer */
    ls_tensor *early;    /* the result for ls_handle_wait, if a backward pass needed it earlier */
} message;

/* Returns a new number for each message, so that the two ranks never confuse the gradients of two messages. */
static uint32_t next_number(void) {
    static _Thread_local uint32_t last;
    return last = (last + 1) % GRADIENT_TAG;
}

static int gradient_tag(const message *m) {
    return GRADIENT_TAG | (int)m->notice.number;
}

static message *message_of(const ls_tensor *token) {
    return ls_handle_record_of(token);
}

/* Waits for both parts of a transfer. Returns the first error. Sets `*noticed` to whether the notice succeeded. */
static ls_status settle_noticing(message *m, bool *noticed) {
    ls_saved_error first = {.status = LS_OK};
    ls_error_save_first(&first, ls_work_finish(&m->notice_work));
    *noticed = first.status == LS_OK;
    ls_error_save_first(&first, ls_work_finish(&m->work));
    return ls_error_put_back_first(&first);
}

static ls_status settle(message *m) {
    bool noticed;
    return settle_noticing(m, &noticed);
}

/* When the scope ends, it reports a failure of the message. */
static void forget(ls_handle_record *record) {
    message *m = (message *)(void *)record;
    const ls_status status = settle(m);
    /* LS_ERR_STATE: this rank may already have freed the communicator */
    if (status != LS_OK && status != LS_ERR_STATE) {
        (void)ls_fail(status, "%s rank %d with tag %d, which the program never waited for: %s",
                      m->sends ? "ls_isend to" : "ls_irecv from", m->peer, m->tag, ls_error_message());
        (void)ls_scope_failed();
    }
    ls_tensor_drop(m->tensor);
    ls_tensor_drop(m->content);
    ls_tensor_drop(m->gradient);
    ls_tensor_drop(m->early);
    ls_free(m->why);
    ls_comm_drop(m->comm);
}

static ls_tensor *end_send(ls_tensor *token);
static ls_tensor *end_receive(ls_tensor *token);

/* Returns a token for the message. Its device is the device of the received tensor. */
static ls_tensor *token_new(const char *call, const ls_device *device, message *made) {
    made->record =
        (ls_handle_record){.bytes = sizeof *made, .end = made->sends ? end_send : end_receive, .forget = forget};
    ls_tensor *token = ls_handle_new(call, device, &made->record);
    if (token != NULL) {
        (void)ls_comm_hold(made->comm);
    }
    return token;
}

static ls_status check_arguments(const char *call, const ls_comm *comm, const char *what, int peer, int tag) {
    if (comm == NULL) {
        return ls_fail_missing("%s: the communicator", call);
    }
    LS_TRY(ls_comm_check_open(call, comm));
    if (peer < 0 || peer >= ls_comm_size(comm)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s %d is not a rank of this communicator; its ranks are 0 to %d", call,
                       what, peer, ls_comm_size(comm) - 1);
    }
    if (tag < 0 || tag >= GRADIENT_TAG) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: tag %d must be from 0 to %d", call, tag, GRADIENT_TAG - 1);
    }
    return LS_OK;
}

/* ---- gradients, in the backward pass ----------------------------------------------------------------------------- */

static void drop_gradient(message *m) {
    ls_tensor_drop(m->gradient);
    m->gradient = NULL;
}

static ls_status begin_gradient_in(const ls_node *node, message *m, const ls_tensor *like) {
    LS_TRY(settle(m));
    ls_tensor_drop(m->gradient);
    m->gradient = ls_tensor_new_owned(node->op->name, &ls_cpu, like->ndim, like->size, (ls_dtype)like->dtype);
    return m->gradient == NULL ? ls_error_status()
                               : ls_comm_recv(m->comm, ls_host_data(m->gradient), (size_t)m->gradient->count,
                                              (ls_dtype)m->gradient->dtype, m->peer, gradient_tag(m), &m->work);
}

static ls_status begin_gradient_out(const ls_node *node, message *m, const ls_tensor *gradient) {
    LS_TRY(settle(m));
    ls_tensor_drop(m->gradient);
    m->gradient = ls_tensor_dense_on_host(node->op->name, gradient, (ls_dtype)gradient->dtype);
    return m->gradient == NULL ? ls_error_status()
                               : ls_comm_send(m->comm, ls_host_data(m->gradient), (size_t)m->gradient->count,
                                              (ls_dtype)m->gradient->dtype, m->peer, gradient_tag(m), &m->work);
}

/* Waits for the gradient of a sent tensor, or for the cause that the receiver sends instead. */
static ls_status end_gradient_in(message *m) {
    char cause[LS_ERROR_CAPACITY];
    ls_status status = settle(m);
    if (status == LS_ERR_MISMATCH) { /* an empty message of u8 instead of the gradient: the error follows */
        status = ls_comm_recv(m->comm, cause, sizeof cause, LS_U8, m->peer, gradient_tag(m), NULL);
        cause[sizeof cause - 1] = '\0';
        status = status != LS_OK ? status : ls_fail(LS_ERR_MISMATCH, "ls_backward: rank %d failed: %s", m->peer, cause);
    } else if (status == LS_ERR_TIMEOUT) { /* the communicator's error names the internal tag of the gradient message */
        status =
            ls_fail(status,
                    "ls_backward: rank %d did not send the gradient of the message with tag %d within the timeout: "
                    "check that rank %d receives this tag and calls ls_backward",
                    m->peer, m->tag, m->peer);
    }
    if (status != LS_OK) {
        drop_gradient(m);
    }
    return status;
}

/* Starts to send an error message instead of the gradient of a received tensor. */
static ls_status begin_cause_out(const ls_node *node, message *m, const char *why) {
    const int64_t size = LS_ERROR_CAPACITY;
    LS_TRY(settle(m));
    ls_tensor_drop(m->gradient);
    m->gradient = ls_tensor_new_owned(node->op->name, &ls_cpu, 1, &size, LS_U8);
    LS_TRY(ls_made(m->gradient));
    char *cause = ls_host_data(m->gradient);
    memset(cause, 0, LS_ERROR_CAPACITY);
    memcpy(cause, why, strlen(why));
    LS_TRY(ls_comm_send(m->comm, NULL, 0, LS_U8, m->peer, gradient_tag(m), &m->notice_work));
    return ls_comm_send(m->comm, cause, LS_ERROR_CAPACITY, LS_U8, m->peer, gradient_tag(m), &m->work);
}

/* Returns whether the pass has failed on this rank. If not, makes the backward rule run. */
static bool has_failed(ls_reach *reach) {
    const bool failed = *reach == LS_REACH_FAILED;
    *reach = failed ? LS_REACH_FAILED : LS_REACH_NOW;
    return failed;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* The context of the call is the token. */
static ls_status begin_shape(ls_op_call *call) {
    ls_tensor *token = call->parameters->context;
    const message *m = message_of(token);
    call->output = token;
    call->records = m->sends ? m->wanted : true;
    return LS_OK;
}

/* Waits for the gradient of the sent tensor, unless it has already arrived. */
static ls_status isend_backward(ls_node *node, ls_tensor *gradient) {
    message *m = message_of(node->output);
    (void)gradient;
    if (m->gradient == NULL) { /* ls_handle_wait was not called, so there is no second node */
        LS_TRY(begin_gradient_in(node, m, node->inputs[0]));
    }
    LS_TRY(end_gradient_in(m));
    ls_tensor *received = ls_tensor_on_device(node->op->name, m->gradient, ls_tensor_device(node->inputs[0]));
    drop_gradient(m);
    return ls_accumulate(node, 0, ls_tensor_give(received));
}

static ls_status isend_agree(ls_node *node, ls_reach *reach) {
    message *m = message_of(node->output);
    if (has_failed(reach) && (m->gradient != NULL || begin_gradient_in(node, m, node->inputs[0]) == LS_OK)) {
        (void)end_gradient_in(m);
        drop_gradient(m);
    }
    return LS_OK;
}

static ls_status isend_complete(ls_node *node) {
    return ls_check_backward_comm(node->op->name, message_of(node->output)->comm);
}

static const ls_op isend_op = {.name = "ls_isend",
                               .shape = begin_shape,
                               .backward = isend_backward,
                               .complete = isend_complete,
                               .communicates = true,
                               .agree = isend_agree};

/* For a sent message, ls_handle_wait returns the tensor itself. */
static ls_status sent_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->records = message_of(call->inputs[1])->wanted;
    call->output = ls_tensor_view(x, x->ndim, x->size, x->stride, 0);
    return ls_made(call->output);
}

static ls_status sent_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(begin_gradient_in(node, message_of(node->inputs[1]), node->inputs[0]));
    return ls_accumulate(node, 0, gradient);
}

static ls_status sent_agree(ls_node *node, ls_reach *reach) {
    if (has_failed(reach)) {
        (void)begin_gradient_in(node, message_of(node->inputs[1]), node->inputs[0]);
    }
    return LS_OK;
}

static const ls_op sent_op = {.name = "ls_handle_wait",
                              .shape = sent_shape,
                              .backward = sent_backward,
                              .communicates = true,
                              .agree = sent_agree};

static ls_status post_send(message *m) {
    const ls_tensor *content = m->content;
    const void *data = content != NULL ? ls_host_data(content) : NULL;
    const size_t count = content != NULL ? (size_t)content->count : 0;
    LS_TRY(ls_comm_send(m->comm, &m->notice, sizeof m->notice, LS_U8, m->peer, m->tag, &m->notice_work));
    return ls_comm_send(m->comm, data, count, (ls_dtype)m->notice.dtype, m->peer, m->tag, &m->work);
}

/* Notifies the receiver that no tensor follows, and sets this rank's error: the tensor is NULL or was freed. */
static ls_handle *send_failure(ls_comm *comm, const ls_tensor *tensor, int dest, int tag) {
    if (tensor != NULL) {
        (void)ls_tensor_refuse_gone("ls_isend", 0, tensor);
    } else {
        (void)ls_scope_fail_null("ls_isend: the tensor");
    }
    (void)ls_scope_failed();
    ls_saved_error cause;
    ls_error_save(&cause);
    message m = {.comm = comm, .sends = true, .peer = dest, .tag = tag, .notice = {.failed = true, .dtype = LS_U8}};
    if (post_send(&m) == LS_OK) {
        (void)settle(&m);
    }
    (void)ls_error_put_back(&cause);
    return NULL;
}

ls_handle *ls_isend(ls_comm *comm, ls_tensor *tensor, int dest, int tag) {
    const char *const call = isend_op.name;
    const ls_thread_state *thread = ls_thread();
    if (thread == NULL || check_arguments(call, comm, "destination", dest, tag) != LS_OK) {
        return ls_scope_failed();
    }
    if (tensor == NULL || ls_tensor_is_gone(tensor)) {
        return send_failure(comm, tensor, dest, tag);
    }
    message made = {.comm = comm, .sends = true, .peer = dest, .tag = tag};
    made.wanted = tensor->needs_grad && !thread->no_grad;
    made.notice = (notice){.dtype = tensor->dtype, .ndim = tensor->ndim, .wants = made.wanted, .number = next_number()};
    memcpy(made.notice.size, tensor->size, (size_t)tensor->ndim * sizeof *tensor->size);
    ls_tensor *token = token_new(call, ls_tensor_device(tensor), &made);
    if (token == NULL) {
        return NULL;
    }
    message *m = message_of(token);
    m->tensor = ls_tensor_hold(tensor);
    m->content = ls_tensor_dense_on_host(call, tensor, (ls_dtype)tensor->dtype);
    if (m->content == NULL || post_send(m) != LS_OK) {
        ls_release(token);
        return ls_scope_failed();
    }
    return (ls_handle *)ls_apply(&isend_op, &tensor, 1, &(ls_op_parameters){.context = token});
}

static ls_tensor *end_send(ls_tensor *token) {
    message *m = message_of(token);
    ls_tensor *tensor = m->tensor;
    m->tensor = NULL;
    const ls_status status = settle(m);
    ls_tensor_drop(m->content);
    m->content = NULL;
    ls_tensor *result =
        status == LS_OK ? ls_as_seen(ls_apply(&sent_op, (ls_tensor *[]){tensor, token}, 2, NULL)) : ls_scope_failed();
    ls_tensor_drop(tensor);
    return result;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

/* Waits until the gradient of the received tensor, or the cause, has been sent. */
static ls_status end_gradient_out(message *m) {
    const ls_status status = settle(m);
    drop_gradient(m);
    return status;
}

static ls_status irecv_backward(ls_node *node, ls_tensor *gradient) {
    message *m = message_of(node->output);
    (void)gradient;
    LS_TRY(end_gradient_out(m));
    return !m->lost ? LS_OK
                    : ls_fail(LS_ERR_STATE,
                              "ls_backward: the message from rank %d with tag %d was not received, so it has no "
                              "gradient: see the earlier error",
                              m->peer, m->tag);
}

/* If neither the second node nor irecv_complete has started to send, the pass has failed at the second node. */
static ls_status irecv_agree(ls_node *node, ls_reach *reach) {
    message *m = message_of(node->output);
    if (has_failed(reach)) {
        if (m->wanted && m->gradient == NULL) {
            (void)begin_cause_out(node, m, ls_error_message());
        }
        (void)end_gradient_out(m);
    }
    return LS_OK;
}

/*
 * Starts to send the error of a lost message. This happens before the pass: in the pass, this rank could first wait for
 * a rank that waits for this error.
 */
static void answer_lost(const ls_node *node, message *m) {
    ls_saved_error latest;
    ls_error_save(&latest);
    (void)begin_cause_out(node, m, m->why != NULL ? m->why : "ls_irecv: out of memory");
    (void)ls_error_put_back(&latest);
}

/*
 * A backward pass begins before ls_handle_wait was called. The sender may still require a gradient, so receives the
 * tensor now, and keeps it for ls_handle_wait.
 */
static ls_status receive_early(const ls_node *node, message *m) {
    const ls_status noticed = ls_work_finish(&m->notice_work);
    m->record.waited = noticed != LS_OK;
    LS_TRY(noticed);
    if (!m->notice.wants) {
        return LS_OK;
    }
    ls_tensor *received = end_receive(node->output);
    m->early = received != NULL ? ls_tensor_hold(received) : NULL;
    m->record.waited = received == NULL; /* nothing is left to do in ls_handle_wait */
    return ls_made(received);
}

static ls_status irecv_complete(ls_node *node) {
    message *m = message_of(node->output);
    LS_TRY(ls_check_backward_comm(node->op->name, m->comm));
    const ls_status status = m->record.waited || m->early != NULL ? LS_OK : receive_early(node, m);
    if (m->lost) {
        answer_lost(node, m);
    }
    return status;
}

/*
 * The node is recorded before it is known whether the sender requires a gradient. If it does not, ls_handle_wait
 * removes the node from the tape.
 */
static const ls_op irecv_op = {.name = "ls_irecv",
                               .shape = begin_shape,
                               .backward = irecv_backward,
                               .complete = irecv_complete,
                               .communicates = true,
                               .answers = true,
                               .agree = irecv_agree};

static ls_status received_shape(ls_op_call *call) {
    message *m = message_of(call->inputs[0]);
    ls_tensor *received = ls_tensor_on_device(call->op->name, m->content, ls_tensor_device(call->inputs[0]));
    ls_tensor_drop(m->content);
    m->content = NULL;
    call->output = ls_tensor_give(received);
    call->records = m->wanted;
    return ls_made(call->output);
}

static ls_status received_backward(ls_node *node, ls_tensor *gradient) {
    return begin_gradient_out(node, message_of(node->inputs[0]), gradient);
}

static ls_status received_agree(ls_node *node, ls_reach *reach) {
    if (has_failed(reach)) {
        (void)begin_cause_out(node, message_of(node->inputs[0]), ls_error_message());
    }
    return LS_OK;
}

static const ls_op received_op = {.name = "ls_handle_wait",
                                  .shape = received_shape,
                                  .backward = received_backward,
                                  .communicates = true,
                                  .answers = true,
                                  .agree = received_agree};

ls_handle *ls_irecv(ls_comm *comm, ls_shape shape, ls_dtype dtype, int source, int tag) {
    const char *const call = irecv_op.name;
    if (ls_thread() == NULL || check_arguments(call, comm, "source", source, tag) != LS_OK) {
        return ls_scope_failed();
    }
    message made = {.comm = comm, .peer = source, .tag = tag};
    ls_tensor *token = token_new(call, ls_device_default(), &made);
    if (token == NULL) {
        return NULL;
    }
    message *m = message_of(token);
    m->content = ls_tensor_new_owned(call, &ls_cpu, shape.ndim, shape.size, dtype);
    if (m->content == NULL ||
        ls_comm_recv(comm, &m->notice, sizeof m->notice, LS_U8, source, tag, &m->notice_work) != LS_OK ||
        ls_comm_recv(comm, ls_host_data(m->content), (size_t)m->content->count, dtype, source, tag, &m->work) !=
            LS_OK) {
        ls_release(token);
        return ls_scope_failed();
    }
    return (ls_handle *)ls_apply(&irecv_op, NULL, 0, &(ls_op_parameters){.context = token});
}

/* Compares the received message with the expected message. `status` is the communicator's result. */
static ls_status examine(const message *m, ls_status status, bool noticed) {
    const notice *n = &m->notice;
    const ls_tensor *wanted = m->content;
    if (noticed && n->failed) {
        return ls_fail(LS_ERR_MISMATCH,
                       "ls_irecv: rank %d failed before it could send with tag %d; see the error message on that rank",
                       m->peer, m->tag);
    }
    const bool fits = n->dtype == wanted->dtype && n->ndim == wanted->ndim &&
                      memcmp(n->size, wanted->size, (size_t)n->ndim * sizeof *n->size) == 0;
    if (noticed && !fits && (status == LS_OK || status == LS_ERR_MISMATCH)) {
        return ls_fail(LS_ERR_MISMATCH, "ls_irecv: rank %d sends %s of %s with tag %d, but this rank expects %s of %s",
                       m->peer, ls_shape_describe(n->ndim, n->size).text, ls_dtype_name((ls_dtype)n->dtype), m->tag,
                       LS_SHAPE_TEXT(wanted), ls_dtype_name((ls_dtype)wanted->dtype));
    }
    if (!noticed && status == LS_ERR_MISMATCH) {
        return ls_fail(status, "ls_irecv: %s; ls_irecv cannot receive messages from ls_comm_send: use different tags",
                       ls_error_message());
    }
    return status == LS_OK
               ? LS_OK
               : ls_fail(status, "ls_irecv from rank %d with tag %d: %s", m->peer, m->tag, ls_error_message());
}

static ls_tensor *end_receive(ls_tensor *token) {
    message *m = message_of(token);
    if (m->early != NULL) {
        ls_tensor *early = ls_tensor_give(m->early);
        m->early = NULL;
        return early;
    }
    bool noticed = false;
    const ls_status settled = settle_noticing(m, &noticed);
    const ls_status status = examine(m, settled, noticed);
    m->wanted = noticed && m->notice.wants;
    if (!m->wanted && token->node != NULL && token->node->tape != NULL) { /* a pass may already have removed the node */
        ls_tape_discard((ls_node *)token->node);
    }
    ls_tensor *received = status == LS_OK ? ls_apply(&received_op, &token, 1, NULL) : ls_scope_failed();
    m->lost = m->wanted && received == NULL;
    m->why = m->lost ? ls_duplicate_string(ls_error_message()) : NULL;
    return received != NULL ? ls_as_seen(received) : NULL;
}

ls_tensor *ls_send(ls_comm *comm, ls_tensor *tensor, int dest, int tag) {
    ls_capture_refuse_here("ls_send", LS_CAPTURE_COMMUNICATES);
    return ls_handle_wait(ls_isend(comm, tensor, dest, tag));
}

ls_tensor *ls_recv(ls_comm *comm, ls_shape shape, ls_dtype dtype, int source, int tag) {
    ls_capture_refuse_here("ls_recv", LS_CAPTURE_COMMUNICATES);
    return ls_handle_wait(ls_irecv(comm, shape, dtype, source, tag));
}

/* ---- join -------------------------------------------------------------------------------------------------------- */

static ls_status join_backward(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate(node, 0, gradient);
}

static ls_status join_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->output = ls_tensor_view(x, x->ndim, x->size, x->stride, 0);
    return ls_made(call->output);
}

static const ls_op join_op = {.name = "ls_join_dummies", .shape = join_shape, .backward = join_backward};

ls_tensor *ls_join_dummies(ls_tensor *tensor, ls_tensor *const *others, int count) {
    if (others == NULL && count > 0) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: the array of other tensors is NULL", join_op.name);
    }
    const size_t bytes = ((size_t)(count > 0 ? count : 0) + 1) * sizeof(ls_tensor *);
    ls_tensor **inputs = ls_record_allocate(bytes);
    if (inputs == NULL) {
        (void)ls_fail_memory(join_op.name, bytes);
        return ls_scope_failed();
    }
    inputs[0] = tensor;
    for (int i = 0; i < count; i++) {
        inputs[i + 1] = others[i];
    }
    ls_tensor *result = ls_apply(&join_op, inputs, count > 0 ? count + 1 : 1, NULL);
    ls_record_release(inputs, bytes);
    return result;
}
