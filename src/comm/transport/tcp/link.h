/*
 * What the files of the transport over TCP share: the bytes that travel, and what a rank knows of each other one.
 *
 * Each rank writes on the connection that it made, and reads on the one that the other made. Behind the hello travel
 * frames: a header, and behind it what it says. A message of up to LS_TCP_EAGER
 * bytes is one frame, unless the other rank is far behind with its receives. A larger one is announced; who has a
 * receive for it clears it; then it comes in pieces, straight into the receive's memory. Frames that are short overtake
 * pieces, so that a rank can clear what another has announced while it sends something large itself. For this the
 * kernel gets a piece for another machine only while it has less than LS_TCP_UNSENT bytes that it has not sent: short
 * frames cannot overtake what the kernel has.
 *
 * To a rank of the same machine it is offered instead: that rank reads it where it is (comm/peer_memory.h) and says how
 * far it is, or clears it where it may not read. The mark by which the sender's memory is known goes when the sender
 * takes back what it has offered, before it uses that memory for something else.
 */
#ifndef LS_COMM_TRANSPORT_TCP_LINK_H
#define LS_COMM_TRANSPORT_TCP_LINK_H

#include "base/wait.h"
#include "comm/peer_memory.h"
#include "comm/transport/arrivals.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/wire.h"

#define LS_TCP_GREETING "lstcp--3"

/* ---- the handshake -------------------------------------------------------------------------------------------------
 */

/* The first bytes of a connection, by who made it; frames follow at once, and nothing comes back on it. */
typedef struct ls_tcp_hello {
    char greeting[8]; /* LS_TCP_GREETING */
    int32_t rank;
    int32_t size;
    int64_t process;  /* for a rank of the same machine, to read in its memory; else 0 */
    uint64_t mark_at; /* there: a copy of the secret of its peer info */
    uint8_t nonce[LS_NONCE_SIZE];
    uint8_t proof[LS_PROOF_SIZE];
} ls_tcp_hello;

/* ---- frames --------------------------------------------------------------------------------------------------------
 */

enum {
    /* More would be worth a round trip rather than a copy at the receiver, who may not have a place for it yet. */
    LS_TCP_EAGER = 64 << 10,
    /* Bytes of messages that need no receive, beyond small ones, which a rank sends before it hears that there were
     * receives for them; then they are announced too. Who receives says so every fourth of that. */
    LS_TCP_UNCLAIMED = 4 << 20,
    LS_TCP_PIECE = 256 << 10,    /* at most, of a larger message in one frame; what follows waits so long */
    LS_TCP_FAR_PIECE = 32 << 10, /* at most, in one frame for another machine; frames there are at most LS_TCP_EAGER */
    LS_TCP_UNSENT = 32 << 10, /* bytes that the kernel has not sent to another machine, with which it gets no piece */
    LS_TCP_BUFFER = 64 << 10, /* read at once, beside what has its place already */
    LS_TCP_READ = 1 << 20,    /* in another's memory before the next message has its turn */
    LS_TCP_LOOK = 4 << 20,    /* there in one look, of all messages */
    LS_TCP_UNPROVEN = 64      /* connections at once that have proved nothing */
};

typedef enum ls_tcp_kind {
    LS_TCP_MESSAGE = 0x54534c01, /* channel, bytes; they follow */
    LS_TCP_ANNOUNCE,             /* channel, bytes, number */
    LS_TCP_CLEAR,                /* number: of what was announced, to be sent now */
    LS_TCP_CONTENT,              /* number; bytes of it that follow */
    LS_TCP_OFFER,                /* channel, bytes; number: the address. It is an announcement, and counts as one */
    LS_TCP_TAKEN,                /* number: of what was offered; bytes of it that were read */
    LS_TCP_CLAIMED               /* number: bytes of messages, beyond small ones, that have had their receives so far */
} ls_tcp_kind;

/* Fields that a kind does not have are 0. */
typedef struct ls_tcp_header {
    uint32_t kind;
    uint32_t channel;
    uint64_t bytes;
    uint64_t number;
} ls_tcp_header;

_Static_assert(sizeof(ls_tcp_header) == 24, "a header has no gaps");

/* ---- what a rank has of another ------------------------------------------------------------------------------------
 */

/* How far this rank's own connection to another is. */
typedef enum ls_tcp_stage {
    LS_TCP_APART = 0, /* there was no need */
    LS_TCP_CONNECTING,
    LS_TCP_PAUSED, /* it connects again soon */
    LS_TCP_READY,
    LS_TCP_ENDING, /* the other side has closed it, or is not there: what it sent before may still come */
    LS_TCP_GONE
} ls_tcp_stage;

/* A frame that waits to be written. */
typedef struct ls_tcp_item {
    struct ls_tcp_item *next;
    ls_tcp_header header;
    size_t bytes;
    unsigned char data[];
} ls_tcp_item;

/* The largest record of a protected connection, and a place for one. */
enum { LS_TCP_RECORD = sizeof(ls_tcp_header) + LS_TCP_EAGER + LS_WIRE_OVERHEAD };

typedef struct ls_tcp_records {
    ls_wire wire;
    size_t filled; /* of an input: bytes of the records, of which the first is not complete */
    unsigned char bytes[LS_TCP_RECORD];
} ls_tcp_records;

/* The frame that is being written; nothing is left of it: there is none. */
typedef struct ls_tcp_frame {
    ls_tcp_header header;
    size_t header_left; /* bytes that have not been written */
    const unsigned char *data;
    size_t left;
    void *memory;         /* holds the data; freed when the frame has been written */
    bool is_record;       /* the data is in the record of the peer's output */
    ls_transfer *content; /* of which this is a piece: the first one cleared */
} ls_tcp_frame;

/* What follows a header while it is being read. */
typedef struct ls_tcp_body {
    unsigned char *at; /* where it goes; NULL: nobody wants it */
    size_t left;
    size_t bytes; /* of it in all */
    bool piece;
    ls_transfer *receive;
    ls_early *early;
} ls_tcp_body;

typedef struct ls_tcp_peer {
    ls_tcp_stage stage;
    bool near;             /* on this machine */
    ls_peer_memory memory; /* process 0: it cannot be read, or has not connected yet */
    int socket;            /* what is sent goes there; -1: none */
    int incoming;          /* what comes is read there; -1: none */
    bool was_connected;    /* the one that the other made was accepted; there is no second */
    bool asks_room;        /* to be told when something can be written */
    bool limits_unsent;    /* epoll reports room only while the kernel holds less than LS_TCP_UNSENT bytes unsent */
    bool mute;             /* writing failed; what came before the end can still be read */
    ls_tcp_records *output_records, *input_records; /* NULL: the connection's frames are not protected */

    uint64_t again_ns;   /* PAUSED: when */
    uint64_t failing_ns; /* since when attempts fail; 0: the latest did not */
    uint64_t ending_ns;  /* ENDING: until when, unless more comes; 0: from the next look on */

    ls_tcp_frame frame;
    ls_tcp_item *queue;
    ls_tcp_item *queue_end;
    ls_transfer *unsent;    /* small sends that are in the queue, in part at least */
    ls_transfer *announced; /* sends that wait to be cleared, or are read */
    ls_transfer *cleared;   /* sends whose pieces are written */
    uint64_t numbered;      /* announcements made */
    uint64_t withdrawn;     /* of these, that may still be cleared in vain */
    uint64_t sent;          /* bytes of messages beyond LS_TRANSPORT_LEAST_EAGER that were sent unannounced */
    uint64_t claimed_there; /* of these, as it said last */

    unsigned char *buffer; /* of LS_TCP_BUFFER bytes, what has been read ahead; of LS_TCP_RECORD bytes for records */
    size_t filled;
    ls_tcp_body body;
    ls_transfer *awaited; /* receives that were cleared */
    uint64_t heard_of;    /* announcements that came */
    uint64_t claimed; /* bytes of its messages that were not announced, beyond small ones, that had their receives */
    uint64_t told;    /* of these, as it heard last */
} ls_tcp_peer;

/* Somebody who has connected and proved nothing yet. */
typedef struct ls_tcp_unproven {
    int socket; /* -1: nobody */
    uint64_t until_ns;
    size_t got; /* bytes of */
    ls_tcp_hello hello;
} ls_tcp_unproven;

typedef struct ls_tcp {
    ls_endpoint endpoint;
    int listener;
    int epoll; /* says of sockets: the rank that is sent to, LS_TCP_NAME_OF_INPUT of the one that is read, size + the
                  unproven connection's number, LS_TCP_LISTENER or LS_TCP_WAKER */
    int waker; /* -1: nobody wanted one */
    ls_key key;
    ls_wire_mode wire; /* of connections to other machines */
    ls_tcp_peer_info *peer_infos;
    ls_tcp_peer *peers;
    uint8_t mark[LS_NONCE_SIZE]; /* while others may read what this rank has offered: the secret of its peer info */
    ls_arrivals arrivals;
    bool reads;          /* there may be something to be read in another's memory */
    bool told_of_socket; /* the log knows that of some rank it cannot be */
    ls_tcp_unproven unproven[LS_TCP_UNPROVEN];
    int unproven_count;
    int paused;        /* peers */
    int ending;        /* peers */
    bool accepted_all; /* nobody more waited at the listener */
    bool moved;        /* since progress last said so */
    uint64_t spin_ns;
    ls_awake awake; /* the time of the endpoint */
} ls_tcp;

#define LS_TCP_LISTENER                 UINT64_MAX
#define LS_TCP_WAKER                    (UINT64_MAX - 1)
#define LS_TCP_NAME_OF_INPUT(tcp, rank) ((uint64_t)(tcp)->endpoint.size + LS_TCP_UNPROVEN + (uint64_t)(rank))

/* ---- tcp.c ---------------------------------------------------------------------------------------------------------
 */

/* Has epoll watch a socket for such events; `known`: it does already, by another name. */
ls_status ls_tcp_watch(ls_tcp *tcp, int socket, uint32_t events, uint64_t name, bool known);

/* The rank is gone: nothing comes or goes any more. */
ls_status ls_tcp_lose(ls_tcp *tcp, int rank);

/* ---- handshake.c ---------------------------------------------------------------------------------------------------
 */

/* What `rank` says to `other`, of so many. */
ls_tcp_hello ls_tcp_make_hello(const ls_key *key, const ls_tcp_peer_info *peer_infos, int size, int rank, int other);

/* Connects to a rank, unless that was done. */
ls_status ls_tcp_connect(ls_tcp *tcp, int rank);

/* The attempt has an outcome. */
ls_status ls_tcp_connected(ls_tcp *tcp, int rank);

/* Nothing more can be sent to the rank; it is gone when what it sent before has come. */
ls_status ls_tcp_end_output(ls_tcp *tcp, int rank);

/* Something happened at the listener, to an unproven connection. */
ls_status ls_tcp_accept(ls_tcp *tcp);
ls_status ls_tcp_hear_unproven(ls_tcp *tcp, ls_tcp_unproven *connection);

/* Does what is due: new attempts to connect, and the end of those that say nothing. */
ls_status ls_tcp_tend(ls_tcp *tcp);

/* Frees the records of one direction, and its key. */
void ls_tcp_free_records(ls_tcp_records **records);

/* Closes an unproven connection. */
void ls_tcp_turn_away(ls_tcp *tcp, ls_tcp_unproven *connection);

/* ---- output.c ------------------------------------------------------------------------------------------------------
 */

/* Writes a frame with `bytes` of data, now or as soon as that is possible; the data is copied then. */
ls_status ls_tcp_put(ls_tcp *tcp, int rank, const ls_tcp_header *header, const void *data, size_t bytes);

/* Writes what there is to write and room for. */
void ls_tcp_flush(ls_tcp *tcp, int rank);

/* Begins to send what is larger than LS_TCP_EAGER, or than LS_TRANSPORT_LEAST_EAGER where too much is unclaimed. */
ls_status ls_tcp_announce(ls_tcp *tcp, ls_transfer *send);

/* A peer has a receive for what has this number, or has read so many bytes of it; false: there is no such. */
bool ls_tcp_cleared(ls_tcp *tcp, int rank, uint64_t number);
bool ls_tcp_taken(ls_tcp *tcp, int rank, uint64_t number, uint64_t bytes);

/* A peer has had receives for so many bytes of messages that were not announced; false: there were not so many. */
bool ls_tcp_claimed(ls_tcp *tcp, int rank, uint64_t bytes);

/* From here on nobody reads what this rank has offered. */
void ls_tcp_take_mark(ls_tcp *tcp);

/* The small send has not been written in whole: it ends when all that waits to be written to its peer has been. */
void ls_tcp_note_unsent(ls_tcp *tcp, ls_transfer *send);

void ls_tcp_withdraw_send(ls_tcp *tcp, ls_transfer *send);

/* Forgets all that was to be written; not what was offered, which may have been read. */
void ls_tcp_drop_output(ls_tcp_peer *peer);

/* ---- input.c -------------------------------------------------------------------------------------------------------
 */

/* Takes in what the rank has sent. LS_ERR_PEER: that is none of the frames there are; it counts as gone then. */
ls_status ls_tcp_read(ls_tcp *tcp, int rank);

/* Reads some of what was offered and has a receive, in turns; `*busy` becomes true where there is something. */
ls_status ls_tcp_read_offered(ls_tcp *tcp, bool *busy);

/* Gives the receive what has come for it, or has it wait. */
ls_status ls_tcp_post(ls_tcp *tcp, ls_transfer *receive);

void ls_tcp_withdraw_receive(ls_tcp *tcp, ls_transfer *receive);

/* Forgets what has come of the rank in part. A receive from any rank waits for others then. */
ls_status ls_tcp_drop_input(ls_tcp *tcp, int rank);

#endif
