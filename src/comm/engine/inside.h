/* Functions that the files of the engine and of the algorithms call in each other: see engine.h. */
#ifndef LS_COMM_ENGINE_INSIDE_H
#define LS_COMM_ENGINE_INSIDE_H

#include "comm/engine/state.h"

/* Returns the size in bytes of the largest packet. */
static inline size_t ls_engine_packet_room(const ls_engine *engine) {
    return LS_PACKET_HEADERS_MOST + engine->shape.inline_most;
}

static inline uint64_t ls_engine_now(const ls_engine *engine) {
    return engine->endpoint->transport->now_ns(engine->endpoint);
}

/* ---- engine.c ---------------------------------------------------------------------------------------------------- */

/* Returns true while a call is in progress. */
static inline bool ls_engine_is_calling(const ls_engine *engine) {
    return engine->running.calling;
}

/* Returns the call before the call in progress. */
static inline const ls_call *ls_engine_previous_call(const ls_engine *engine) {
    return &engine->running.before;
}

/* ---- transfers.c ------------------------------------------------------------------------------------------------- */

/* Begin transfers of the call. The next stage runs when all of them have finished. */
ls_status ls_engine_send(ls_engine *engine, int to, ls_channel channel, const void *data, size_t bytes);
ls_status ls_engine_receive(ls_engine *engine, int from, ls_channel channel, void *data, size_t bytes,
                            ls_transfer **transfer);

/* Returns a transfer without a peer, for a native collective. */
ls_transfer *ls_engine_transfer(ls_engine *engine);

/* Forgets all transfers, when a call starts. */
void ls_transfers_clear(ls_engine *engine);

/* Returns true if the call has transfers that it has not ended with ls_transfers_end. */
bool ls_transfers_exist(const ls_engine *engine);

/* Returns the first transfer in progress from index `*next` on, and sets `*next` to the index after it. Returns NULL if
 * there is none. Start with 0. */
const ls_transfer *ls_transfers_next(const ls_engine *engine, int *next);

/* Returns a number that changes when any transfer of the call progresses. */
uint64_t ls_transfers_progress(const ls_engine *engine);

/* Returns a segment whose transfers have all finished, so that it can continue, or NULL if there is none. */
ls_segment *ls_transfers_find_ended(ls_engine *engine);

/* Ends the segment's transfers. Fails with LS_ERR_PEER if data of the wrong size has arrived; headers.c checks
 * packets. */
ls_status ls_transfers_end(ls_engine *engine, const ls_segment *segment);

/* Withdraws all transfers; the caller may then free their buffers. */
void ls_transfers_withdraw(ls_engine *engine);

/* Ensures that engine->scratch has at least this size. */
ls_status ls_engine_scratch(ls_engine *engine, size_t bytes);

/* Prefixes a transport's error with the name of a call, because the transport does not know it. Returns `status`. */
ls_status ls_engine_name_failure(const ls_call *call, ls_status status);

/* Writes the name of the call in progress. Returns `name`. */
const char *ls_engine_call_name(const ls_engine *engine, char name[64]);

/* ---- headers.c --------------------------------------------------------------------------------------------------- */

/* Determines the shape of the header exchange from endpoint, rank, size and place. */
void ls_headers_find_shape(ls_engine *engine);

/* Determines the shape and allocates the packets. Returns false if memory is exhausted. */
bool ls_headers_open(ls_engine *engine);

void ls_headers_free(ls_engine *engine);

/* Returns the packet of the block of ranks that this rank has heard from: at first, of this rank alone. */
static inline ls_packet *ls_headers_packet(ls_engine *engine) {
    return &engine->headers.own;
}

/* Begins the exchange of headers with this rank's packet. `agreed` is the stage after the agreement, `unbalanced` the
 * stage if the ranks' counts do not match. */
ls_status ls_headers_begin(ls_engine *engine, ls_engine_stage *agreed, ls_engine_stage *unbalanced);

/* Lists the ranks that receive headers from this rank, through which they learn that it has left. Returns their
 * number. */
int ls_headers_partners(const ls_engine *engine, int partners[LS_ENGINE_PARTNERS]);

/* ---- payload.c --------------------------------------------------------------------------------------------------- */

/* Returns true if the data of the call is small enough to be inline. Ranks that agree on a call get the same answer,
 * except in a scatterv, in which only the root knows. The other ranks get true there, and the envelope says whether
 * it contains data. */
bool ls_payload_fits(const ls_engine *engine);

/* Initialize this rank's packet with its envelope, and with the inline data of the call or with a mismatch. */
void ls_payload_begin(ls_engine *engine);
void ls_payload_begin_mismatch(ls_engine *engine, const ls_count_mismatch *mismatch);

/* Fails with LS_ERR_PEER if the inline data in a packet from rank `from`, about the ranks `first` to `last` - 1, is
 * not what the call needs. These ranks make the same call as this rank. */
ls_status ls_payload_check(const ls_engine *engine, const ls_packet *packet, int from, int first, int last);

/* Combines the data of `other` into `into`. The ranks of `other` are directly before the ranks of `into` if
 * `before`, otherwise directly after them, and all make the same call. */
void ls_payload_join(const ls_engine *engine, ls_packet *into, const ls_packet *other, bool before);

/* Returns the size in bytes of the inline data of the ranks `first` to `last` - 1; SIZE_MAX if only the sender
 * knows. */
size_t ls_payload_bytes(const ls_engine *engine, int first, int last);

/* Copies the data of all ranks to the buffers of the call. */
ls_status ls_payload_deliver(ls_engine *engine);

/* ---- counts.c ---------------------------------------------------------------------------------------------------- */

/* Returns this rank's contribution to the balance of the call. */
uint64_t ls_counts_balance(const ls_engine *engine);

/* The stage after an agreement whose balance is not 0: finds the mismatched counts and fails. */
ls_status ls_counts_find(ls_engine *engine, bool *finished);

void ls_counts_free(ls_engine *engine);

/* ---- algorithms/ ------------------------------------------------------------------------------------------------- */

/* Returns the number of elements in a pipeline segment of an all-reduce. If machines have several ranks, their link
 * carries some segments while the ranks reduce others; otherwise the whole vector is one segment. */
size_t ls_segment_count(const ls_engine *engine);

/* Begins a direct exchange of `traffic` between all ranks. `exchanged` is the next stage. */
ls_status ls_direct_begin(ls_engine *engine, const ls_traffic *traffic, ls_engine_stage *exchanged);

/* Returns true if the network cannot execute this rank's part of a call for which algorithm "native" is selected. */
bool ls_native_refuses(const ls_engine *engine);

/* Returns true while a native collective of this rank is in progress. */
bool ls_native_is_running(const ls_engine *engine);

void ls_rabenseifner_free(ls_engine *engine);

/* ---- direct_reduction.c ------------------------------------------------------------------------------------------ */

/* Returns true if each rank gets only a part of the reduction's result. */
static inline bool ls_reduction_scatters(const ls_engine *engine) {
    return engine->call.operation == LS_OP_REDUCE_SCATTER || engine->call.operation == LS_OP_REDUCE_SCATTERV;
}

/* Returns the number of elements in a rank's send buffer in a reduction. */
size_t ls_reduced_count(const ls_engine *engine);

/* Returns the part of the send buffer that `rank` receives in a reduce_scatter(v), or that it reduces on behalf of
 * all ranks in other direct reductions. */
ls_piece ls_reduced_by(const ls_engine *engine, int rank);

/* Reduces by direct exchange: the counterpart of ls_direct_run for reductions. */
ls_status ls_direct_reduce(ls_engine *engine, bool *finished);

/* ---- messages.c -------------------------------------------------------------------------------------------------- */

/* Initializes the state of messages. Returns false if memory is exhausted. */
bool ls_messages_open(ls_engine *engine);

/* Processes messages that have arrived or been sent. Sets `*moved` to true if there are any. */
ls_status ls_messages_move(ls_engine *engine, bool *moved);

/* If a receive from any rank has matched a message, turns it into a receive from the message's sender. */
void ls_messages_name_sender(ls_message_request *asked);

/* Returns a number that changes if a message from or to the rank progresses or, for LS_ANY_RANK, if any message
 * arrives. */
uint64_t ls_messages_progress(const ls_engine *engine, int peer);

bool ls_messages_has_ended(const ls_message_request *asked);

/* Sends a message to this rank itself. */
ls_status ls_messages_send_self(ls_engine *engine, const ls_call *call);

/* Begins a send to another rank or a receive. Sets `*asked` to the request, NULL if memory is exhausted, and `*ended`
 * to true if it has finished. The caller ends the request with ls_messages_end. */
ls_status ls_messages_post(ls_engine *engine, const ls_call *call, ls_message_request **asked, bool *ended);

/* Frees a request that has finished, or failed with `status`. Returns its status. */
ls_status ls_messages_end(ls_engine *engine, ls_message_request *asked, ls_status status);

/* Returns 0 if the rank may still send messages, otherwise 1 + the ls_leave_reason. */
static inline unsigned char ls_messages_left(const ls_engine *engine, int rank) {
    return engine->messages.left[rank];
}

/* Returns the unmatched messages and receives that matter for a message. Borrows. */
static inline const ls_match *ls_messages_match(const ls_engine *engine) {
    return &engine->messages.match;
}

/* Limits the bytes of unexpected messages. For tests. */
void ls_messages_limit(ls_engine *engine, size_t bytes);

/* Withdraws all messages that use the program's memory, and their headers. */
void ls_messages_withdraw(ls_engine *engine);

/* Returns true if a send has not finished and its receiver may still be connected. */
bool ls_messages_are_unsent(const ls_engine *engine);

void ls_messages_free(ls_engine *engine);

/* ---- notices.c --------------------------------------------------------------------------------------------------- */

/* The operation in the header of a message that announces that its sender sends no more messages; `reduction` is the
 * reason. */
#define LS_MESSAGE_LEFT ((uint32_t)LS_OP_COUNT)

/* Sends a copy of the data without reporting completion. If memory is exhausted, sends nothing: the receiver then
 * learns of the event when this rank has exited. */
void ls_engine_notify(ls_engine *engine, int to, ls_channel channel, const void *data, size_t bytes);

/* Frees all notices, or only the notices that have been sent. */
void ls_engine_drop_notices(ls_engine *engine, bool all);

/* Notifies a rank, after all messages to it, that no more messages follow. */
void ls_messages_say_left(ls_engine *engine, int to, ls_leave_reason reason);

/* ---- failure.c --------------------------------------------------------------------------------------------------- */

/* A wait for a call or for a posted message. */
typedef struct ls_engine_wait {
    const ls_call *call;
    const ls_message_request *request; /* NULL for a wait for the call */
    uint64_t *since_ns;
    uint64_t *told_ns;
} ls_engine_wait;

/* Initializes the state of failures, and begins to receive notices. */
ls_status ls_failure_open(ls_engine *engine);

void ls_failure_free(ls_engine *engine);

/* Fails `call` if another rank has revoked the communicator. */
ls_status ls_failure_check_revoked(ls_engine *engine, const ls_call *call);

/* Processes the notices that have arrived. */
ls_status ls_failure_hear(ls_engine *engine);

/* Fails if the wait cannot succeed: a rank has exited, has left, or was silent for longer than the timeout. If all
 * ranks take part in a slow native collective, starts the timeout again (`since_ns`). */
ls_status ls_failure_check(ls_engine *engine, const ls_engine_wait *wait);

/* Fails if the communicator is not usable. */
ls_status ls_failure_check_open(const ls_engine *engine, const ls_call *call);

/* Returns true if this rank has left or aborted. */
static inline bool ls_failure_has_ended(const ls_engine *engine) {
    return engine->failure.ended;
}

/* Ends the use of the communicator without a notice to other ranks. */
static inline void ls_failure_end(ls_engine *engine) {
    engine->failure.ended = true;
}

/* Sets the rank to which later failures are attributed, or -1 for no rank. */
static inline void ls_failure_blame(ls_engine *engine, int rank) {
    engine->failure.failed_rank = rank;
}

/* Records that a rank had left, although this rank needs it for its call. */
void ls_failure_desert(ls_engine *engine, int rank, ls_leave_reason reason);

/* Forgets the latest query, when a native collective starts. */
static inline void ls_failure_forget_query(ls_engine *engine) {
    engine->failure.asked = -1;
    engine->failure.answers = 0;
}

/* Returns the rank of the latest failure, detected here or by the transport; -1 if none. */
int ls_failure_rank(const ls_engine *engine);

/* Returns true if this rank notifies the other rank. These are its neighbors, and ranks that are connected to this
 * rank and would detect its exit. During a native collective, all ranks are notified: any rank may be the only one
 * still waiting, and neighbors that have left would not notify it. */
bool ls_failure_tells(const ls_engine *engine, int rank);

/* Sends the reason of the revocation to the ranks that this rank notifies. */
void ls_failure_notify_revoked(ls_engine *engine);

/* ---- leaving.c --------------------------------------------------------------------------------------------------- */

/* Revokes the communicator with this thread's error, whose status is `status`, and notifies the other ranks. Returns
 * `status`. `failed_rank` is the rank that caused the failure, or -1. */
ls_status ls_failure_abort(ls_engine *engine, ls_status status, int failed_rank);

/* Notifies the ranks that may wait for this rank that it makes no more calls. */
void ls_failure_leave(ls_engine *engine, ls_leave_reason reason);

#endif
