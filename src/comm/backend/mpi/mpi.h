/*
 * The inside of backend mpi: what its files share. All calls are made of nonblocking messages between two ranks, so
 * that every wait has an end, sums have the order that lockstep/comm.h names, and ranks that disagree are told so;
 * MPI's own collectives promise none of this.
 *
 * process.c starts MPI and leaves it; meet.c waits for all ranks to come; mpi.c opens, divides and closes; transfer.c
 * moves messages and waits; packet.c says whether what came is a packet; end.c leaves; agree.c begins every collective,
 * compares what the ranks call and ends it; known.c lists calls that the ranks make again; exchange.c moves data,
 * reduction.c reduces; message.c sends and receives, repeat.c knows messages that come again. A duplicate of
 * MPI_COMM_WORLD, or of the communicator that the program gives, is the wire of everything that comes of it: a
 * communicator has a context, a number that no other communicator of its ranks has, and the MPI tag is made of it and
 * of the kind of message.
 */
#ifndef LS_COMM_BACKEND_MPI_H
#define LS_COMM_BACKEND_MPI_H

#include <mpi.h>
#include <stdatomic.h>

#include "comm/agreement.h"
#include "comm/backend.h"
#include "comm/backend/mpi/packet.h"
#include "comm/match.h"

/* Data of a known call that is more than this needs no packet: it is not copied into one, then. */
#define LS_MPI_LITTLE 1024

/* A wait that is shorter is nothing for the log. */
#define LS_MPI_LEAST_TOLD_NS UINT64_C(20000000)

/* How many calls are known at a time. */
#define LS_MPI_KNOWN ((LS_MPI_KINDS - LS_MPI_KNOWN_CALLS) / 2)

/* A message under way in MPI. */
typedef struct ls_mpi_transfer {
    MPI_Request request;
    int peer;
    bool receives;
    size_t *open; /* counts the transfers of its owner */
} ls_mpi_transfer;

/* A send or receive that was posted. */
typedef struct ls_mpi_request {
    struct ls_mpi_request *next;
    ls_call call;
    size_t open;               /* a send's transfers */
    ls_match_receipt *receipt; /* a receive's */
    uint64_t waited_ns;
    uint64_t told_ns;
    ls_mpi_packet packet; /* a send's */
} ls_mpi_request;

/* A message whose content is arriving. */
typedef struct ls_mpi_arrival {
    struct ls_mpi_arrival *next;
    ls_match_target target;
    size_t open;
    int early;     /* the rank of which a repeat is expected; -1: the message is known to come */
    void *refused; /* where content goes that nobody wants */
} ls_mpi_arrival;

/* A communicator of MPI that is Lockstep's own, and what travels on it. */
typedef struct ls_mpi_wire {
    struct ls_mpi_wire *next;
    MPI_Comm comm;
    int rank;
    int size;
    int contexts;              /* that its tags have room for */
    _Atomic int64_t made;      /* contexts that this rank has given to communicators in which it is the first */
    size_t unasked;            /* bytes of the largest message that goes without asking its receiver */
    size_t packet;             /* bytes of the largest packet */
    _Atomic int uses;          /* communicators on it */
    _Atomic int leave_notices; /* of ranks that left communicators which this one has left too, and not taken in yet */
} ls_mpi_wire;

/* What a rank receives from another in its next call: asked for ahead, since a message that is expected costs less. */
typedef struct ls_mpi_mailbox {
    MPI_Request request; /* persistent */
    bool asked;          /* it is under way */
    bool heard;          /* what the rank calls is known */
    bool expected;       /* it sends data of a known call */
    size_t coming;       /* messages of these data that have not come */
    size_t data;         /* bytes behind the header of the packet that came */
    ls_mpi_packet packet;
} ls_mpi_mailbox;

typedef struct ls_mpi ls_mpi;

/* Messages from and to a rank that are like the one before: see repeat.c. */
typedef struct ls_mpi_row {
    ls_call_header last; /* that was sent there in an envelope */
    bool announced;      /* what is like that goes without an envelope */
    uint64_t repeats;    /* that went since then */
    unsigned turn;
    ls_call_header envelope; /* the latest that announced repeats */
    size_t unheard;          /* 1: it has not been received */
    ls_call_header leave_notice;
    ls_match_header coming; /* what comes again from there */
    int kind;               /* of these repeats; 0: none come */
    uint64_t taken;         /* repeats whose receives have begun since the last envelope */
} ls_mpi_row;

/* What comes when all transfers of a call have ended. */
typedef ls_status ls_mpi_stage(ls_mpi *mpi, bool *finished);

/* A piece of memory. */
typedef struct ls_mpi_block {
    const unsigned char *data;
    size_t count; /* elements */
    size_t bytes;
} ls_mpi_block;

/* Where what a rank sends at first belongs. */
typedef struct ls_mpi_place {
    unsigned char *to;
    size_t bytes;
} ls_mpi_place;

/* How a call begins: what it sends to a rank at first, before all is agreed, and where it has what comes from one. */
typedef struct ls_mpi_opening {
    ls_mpi_block (*sent)(const ls_mpi *mpi, int to);
    ls_mpi_place (*received)(const ls_mpi *mpi, int from);
} ls_mpi_opening;

/* How a reduction is cut: see reduction.c. */
typedef struct ls_mpi_plan {
    bool shares;   /* each rank reduces a share, which then goes to those that want it */
    size_t chunk;  /* elements of a part that are reduced at a time */
    size_t chunks; /* of the largest part */
    size_t done;   /* chunks that were reduced */
} ls_mpi_plan;

struct ls_mpi {
    ls_mpi_wire *wire;
    MPI_Comm comm; /* of the wire */
    int rank;
    int size;
    int *ranks; /* in `comm` */
    int tags;   /* the first of this context */
    uint64_t timeout_ns;
    size_t room; /* data of up to this size travels behind the header, more in messages of its own */

    ls_mpi_transfer *transfers;
    size_t transfer_count;
    size_t transfer_capacity;
    unsigned idle;       /* looks in vain since something moved */
    bool oversubscribed; /* there are more ranks than cores on this machine */
    unsigned most_idle;  /* so many of them, and then it yields */
    uint64_t looked_ns;  /* when the last of these was */

    ls_operation before; /* the collective before this one, and its number; 0: there was none */
    uint64_t before_sequence;
    ls_call call;
    ls_call_header own;
    uint32_t turn;                      /* counts calls */
    int number;                         /* of the call; -1: it is not known */
    size_t limit;                       /* data of the call of up to this size travels in packets */
    bool untold;                        /* ranks that are sent data of a known call have got no packet */
    unsigned looks;                     /* at the call */
    unsigned all_looks;                 /* at all calls */
    ls_call_header known[LS_MPI_KNOWN]; /* by number */
    const ls_mpi_opening *opening;
    ls_mpi_stage *agreed; /* what comes when all ranks call the same */
    ls_mpi_stage *stage;
    size_t early;          /* sends that went out before all was agreed, and are still under way */
    size_t open;           /* the other transfers of the call */
    bool settled;          /* all is agreed, or not: what goes on now waits for early sends too */
    int silent;            /* ranks of which it is not known what they call */
    int awaited;           /* ranks from which data of a known call has not come */
    uint64_t waited_ns;    /* since something of the call moved */
    uint64_t told_ns;      /* of that, when the log was told last */
    ls_mpi_mailbox *boxes; /* one per rank, as the next five */
    ls_mpi_packet *sent;
    const ls_call_header **headers; /* of this call; `own` where data of the known call came */
    ls_call_verdict *found;         /* by each rank, in an exchange of verdicts */
    const void **sources;
    unsigned char *left;    /* LS_MPI_HEARD_ of who makes no more calls, who no more sends */
    unsigned char *reasons; /* the ls_leave_reason of each of these; part of the same memory */
    ls_mpi_plan plan;
    unsigned char *scratch;
    size_t scratch_bytes;

    ls_match match;
    ls_mpi_mailbox *envelopes; /* where messages of any rank arrive; NULL until this rank sends or receives */
    bool held;                 /* the envelope there is for later: other messages come before it */
    unsigned message_looks;    /* at messages */
    ls_mpi_row *rows;          /* one per rank */
    ls_mpi_request *requests;
    ls_mpi_request *spare; /* kept, so that a steady state allocates nothing */
    ls_mpi_arrival *arrivals;
    ls_mpi_arrival *spare_arrival; /* kept likewise; NULL: none */
    bool world;                    /* no part of another communicator */
    bool ended;                    /* the others were told that this rank left */
    ls_leave_reason reason;        /* why */
    bool deserted;                 /* because another one had */
    bool lent;                     /* MPI may still read the rows */
    bool abandoned;                /* MPI may still write to memory of this state */
};

/* What was heard of a rank that left. */
#define LS_MPI_HEARD_CALLS 1 /* where headers are expected */
#define LS_MPI_HEARD_SENDS 2 /* where messages are */

/* ---- process.c -----------------------------------------------------------------------------------------------------
 */

/* Whether MPI is initialized and not finalized. */
bool ls_mpi_runs(void);

/* Starts MPI unless the program has; then there is the world's wire. Waits once in a process, at most `timeout` seconds
 * for each step. */
ls_status ls_mpi_join(double timeout);

/* The ranks of the world did not meet in time, and so never will. */
void ls_mpi_lose_world(void);

ls_mpi_wire *ls_mpi_wire_of_world(void);

/* A wire over the ranks of `comm`, which all call this. NULL and an error when there is none, LS_ERR_TIMEOUT when not
 * all came within so many seconds. */
ls_mpi_wire *ls_mpi_wire_over(MPI_Comm comm, double timeout);

/* Bytes of the largest message that this process sends without asking the receiver, without MPI's own header. */
size_t ls_mpi_unasked(void);

/*
 * A context that no communicator on the wire has had: called by one rank of those that open one together, which tells
 * the others. Threads of a rank, and the first ranks of other communicators, may do so at the same time: each rank has
 * contexts of its own to give.
 */
int64_t ls_mpi_wire_context(ls_mpi_wire *wire);

/* One communicator less on the wire; the last one frees it. */
void ls_mpi_wire_release(ls_mpi_wire *wire);

/* How the process has to end: see leave_mpi. */
void ls_mpi_count_world(int change);
void ls_mpi_note_exit(void);
void ls_mpi_note_failure(void);

/* ---- meet.c --------------------------------------------------------------------------------------------------------
 */

/* What a rank tells the others when they meet. */
typedef struct ls_mpi_greeting {
    uint64_t here; /* filled in, as is the host */
    uint64_t machine;
    int64_t context; /* of rank 0: for the communicator that is opened */
    int64_t unasked;
    int64_t launcher; /* its connection, see process.c */
    char host[64];
} ls_mpi_greeting;

/* Waits for all ranks of `comm`, which all call this, and gives what each of them said, to be freed by the caller.
 * Warns every 5 s of those who are missing; LS_ERR_TIMEOUT naming them after so many seconds. `comm` is of no use then:
 * the exchange is still under way. */
ls_status ls_mpi_meet(MPI_Comm comm, const ls_mpi_greeting *own, double timeout, ls_mpi_greeting **all);

/* MPI_Comm_dup by ranks that just met. LS_ERR_TIMEOUT. */
ls_status ls_mpi_duplicate(MPI_Comm comm, double timeout, MPI_Comm *duplicate);

/* Has the thread that is there for this do `task`, which gives an MPI error code and is called `name`, and waits for
 * it: so many seconds, or 5 if that is less. LS_ERR_TIMEOUT: the task goes on all the same, and there can be no other.
 * One thread at a time calls this. */
ls_status ls_mpi_in_thread(int (*task)(void), const char *name, double timeout);

/* ---- transfer.c ----------------------------------------------------------------------------------------------------
 */

/* Begin to move `bytes` to or from `peer`; `*open` counts what this makes. */
ls_status ls_mpi_give(ls_mpi *mpi, int peer, int kind, const void *data, size_t bytes, size_t *open);
ls_status ls_mpi_take(ls_mpi *mpi, int peer, int kind, void *data, size_t bytes, size_t *open);

/* The same as give for an envelope: it has ended once the receiver has taken the envelope. */
ls_status ls_mpi_announce(ls_mpi *mpi, int peer, const ls_call_header *envelope, size_t *open);

/* Whether so much goes in one message of MPI. */
bool ls_mpi_is_whole(const ls_mpi *mpi, size_t bytes);

/* Whether a message of this kind has come from `peer` that no receive was there for. */
ls_status ls_mpi_probe(ls_mpi *mpi, int peer, int kind, bool *here);

/* Ends the transfers that `*open` counts, which receive what nobody sends. */
ls_status ls_mpi_withdraw(ls_mpi *mpi, size_t *open);

/* Looks at all transfers once; `*moved` becomes true when any ended. */
ls_status ls_mpi_poll(ls_mpi *mpi, bool *moved);

/* Begins to count looks in vain anew. */
void ls_mpi_reset_idle(ls_mpi *mpi);

/* A pause after a look in vain: none at first, longer later. Adds the time since the last one to `*waited_ns`, but not
 * time in which this process itself was stopped. */
void ls_mpi_pause(ls_mpi *mpi, uint64_t *waited_ns);

/* Mailboxes: one of packets of `kind` from `peer` (-1: anybody), asking for the next, looking whether it came, and the
 * end. */
ls_status ls_mpi_box_open(ls_mpi *mpi, ls_mpi_mailbox *box, ls_mpi_kind kind, int peer);
ls_status ls_mpi_box_ask(ls_mpi *mpi, ls_mpi_mailbox *box);
ls_status ls_mpi_box_look(ls_mpi *mpi, ls_mpi_mailbox *box, bool *here);
void ls_mpi_box_close(ls_mpi_mailbox *box);

/* Whether the packet in the box is one; otherwise gives up, naming the rank that sent it (-1: the packet says). */
ls_status ls_mpi_box_check(ls_mpi *mpi, const ls_mpi_mailbox *box, int peer);

/* The error of an MPI call that failed on behalf of `call`. */
ls_status ls_mpi_fail(const char *call, const char *function, int code);

/* ---- end.c ---------------------------------------------------------------------------------------------------------
 */

/*
 * The state makes no more calls: tells the other ranks, withdraws what has not begun to come, and waits until MPI is
 * done with the buffers of the rest, for a moment where a call failed with `status`, which it returns; LS_OK: at most
 * the timeout. Once in a state.
 */
ls_status ls_mpi_give_up(ls_mpi *mpi, ls_status status);

/* Tells the other ranks, once, that this one makes no more calls, and goes on waiting for nothing. */
void ls_mpi_leave(ls_mpi *mpi, ls_leave_reason reason);

/* A rank said so, where headers or messages are expected (LS_MPI_HEARD_). */
void ls_mpi_hear_left(ls_mpi *mpi, const ls_call_header *header, unsigned char where);

/* The same as ls_mpi_give_up before the state is freed; what MPI is not done with even then is its own for ever. */
void ls_mpi_end_state(ls_mpi *mpi);

/* ---- agree.c -------------------------------------------------------------------------------------------------------
 */

/* Begins a call: lets all ranks know of it, with what `opening` says, and goes on with `agreed` when all call the same.
 * `opening` lives as long as the program. */
ls_status ls_mpi_begin(ls_mpi *mpi, const ls_call *call, const ls_mpi_opening *opening, ls_mpi_stage *agreed);

/* The launcher ends the others soon: they have a moment to learn of it, and to say for whom they waited. */
void ls_mpi_let_others_tell(void);

/* Backend's meet_leaving. */
ls_status ls_mpi_meet_leaving(void *state);

/* Begins to receive what the ranks send at first, as far as it has not come yet. */
ls_status ls_mpi_collect(ls_mpi *mpi);

/* Goes on with `stage` once all is here that is under way now. */
ls_status ls_mpi_settle(ls_mpi *mpi, ls_mpi_stage *stage, bool *finished);

/* Goes on where ranks turned out to want different things: takes what was sent too early, then fails with `stage`. */
ls_status ls_mpi_disagree(ls_mpi *mpi, ls_mpi_stage *stage, bool *finished);

/* Scratch memory of the call, at least `bytes`. Its lack ends the communicator. */
ls_status ls_mpi_reserve(ls_mpi *mpi, size_t bytes, unsigned char **memory);

/* What rank `from` sent at first, if it is in its packet; else NULL: it is at its place once it has come. */
const unsigned char *ls_mpi_opened(const ls_mpi *mpi, int from);

/* The last stage: a call is over. */
ls_status ls_mpi_end(ls_mpi *mpi, bool *finished);

ls_status ls_mpi_progress(void *state, bool wait, bool *finished);

/* ---- known.c -------------------------------------------------------------------------------------------------------
 */

/* The number of a call that is known; -1: it is not. */
int ls_mpi_number_of(const ls_mpi *mpi, const ls_call_header *header);

/* All ranks make the call of this turn: it is known now, if it is one of those whose data may come without a packet.
 * Those have a count on which the ranks agree, and memory that may be written to before all ranks have been heard of:
 * scratch memory, or any where there is one other rank. */
void ls_mpi_learn(ls_mpi *mpi);

/* How much of what the call of that number sends at first travels in packets. */
size_t ls_mpi_room_of(const ls_mpi *mpi, int number);

/* The kind of the messages in which more of it travels, in this turn. */
int ls_mpi_tag_of(const ls_mpi *mpi, int number);

/* ---- exchange.c ----------------------------------------------------------------------------------------------------
 */

ls_backend_begin ls_mpi_exchange;

/* ---- reduction.c ---------------------------------------------------------------------------------------------------
 */

ls_backend_begin ls_mpi_reduce;

/* ---- message.c -----------------------------------------------------------------------------------------------------
 */

ls_status ls_mpi_post(void *state, const ls_call *call, void **request);
ls_status ls_mpi_test(void *state, void *request, bool wait, bool *finished);

/* Takes in what others sent, once this rank sends or receives. */
ls_status ls_mpi_poll_messages(ls_mpi *mpi, bool *moved);

/* Begins to receive a message's content, of that kind, as it was offered (match.h): see ls_mpi_arrival for `early`. */
ls_status ls_mpi_begin_content(ls_mpi *mpi, const ls_match_header *header, const ls_match_target *target, int kind,
                               int early);

void ls_mpi_free_messages(ls_mpi *mpi);

/* ---- repeat.c ------------------------------------------------------------------------------------------------------
 */

/* The kind in which this message goes to rank `to` without an envelope. 0: it needs one, to which this adds what it
 * says of repeats. */
int ls_mpi_repeats(ls_mpi *mpi, int to, ls_call_header *envelope);

/* What is to be said of repeats to rank `to`, to which nothing is sent any more. */
uint64_t ls_mpi_last_repeats(const ls_mpi *mpi, int to);

/* An envelope came. `*ready` says whether all repeats that were sent before it are taken; else it has to wait. */
ls_status ls_mpi_await_repeats(ls_mpi *mpi, const ls_call_header *envelope, bool *ready);

/* The envelope was read: what it announces may come. */
ls_status ls_mpi_heed(ls_mpi *mpi, const ls_call_header *envelope, const ls_match_header *message);

/* Begins to receive repeats of that rank where receives wait for them. */
ls_status ls_mpi_expect(ls_mpi *mpi, int from);

/* Takes repeats that have come and that no receive waits for. */
ls_status ls_mpi_find_repeats(ls_mpi *mpi, bool *moved);

#endif
