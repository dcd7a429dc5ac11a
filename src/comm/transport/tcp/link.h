/*
 * The interface between the files of the TCP transport: the network format, and the state of each peer.
 *
 * Each rank writes to the connection that it made, and reads from the connection that the other rank made. The hello is
 * followed by frames. A frame is a header, followed by the data that the header describes.
 *
 * Eager protocol: a message of up to LS_TCP_EAGER bytes is one frame, unless the other rank has many earlier messages
 * to receive.
 *
 * Rendezvous protocol: a larger message is announced. When the receiver has a receive for the message, it clears the
 * message. The sender then sends the message in pieces, which arrive directly in the receive's memory.
 *
 * Short frames overtake pieces, so that a rank can clear another rank's message while it sends a large message itself.
 * A short frame cannot overtake data that has already been passed to the kernel. So a piece for another machine is
 * passed to the kernel only while the kernel has less than LS_TCP_UNSENT unsent bytes.
 *
 * To a rank on the same machine, a large message is offered instead. The receiver reads the message from the sender's
 * memory (comm/peer_memory.h) and reports its progress. If it is not allowed to read that memory, it clears the
 * message. Before a sender that withdraws an offered message uses the memory for other purposes, it erases the mark
 * that identifies its memory.
 */
#ifndef LS_COMM_TRANSPORT_TCP_LINK_H
#define LS_COMM_TRANSPORT_TCP_LINK_H

#include "base/wait.h"
#include "comm/channel/hello.h"
#include "comm/channel/wire.h"
#include "comm/peer_memory.h"
#include "comm/transport/arrivals.h"
#include "comm/transport/tcp/tcp.h"

/* ---- the handshake ----------------------------------------------------------------------------------------------- */

/* The first bytes of a connection, sent by the rank that made it. Frames follow at once. Nothing is sent in the other
 * direction. */
typedef struct ls_tcp_hello {
    uint8_t hello[LS_PROVEN_HELLO_SIZE];
    int32_t rank;
    int32_t size;
    int64_t process;  /* PID, for a rank on the same machine that reads this process's memory; otherwise 0 */
    uint64_t mark_at; /* address, in this process, of a copy of the secret in this rank's peer information */
} ls_tcp_hello;

_Static_assert(sizeof(ls_tcp_hello) == LS_PROVEN_HELLO_SIZE + 24, "a hello has no gaps");

/* ---- frames ------------------------------------------------------------------------------------------------------ */

enum {
    /* For larger messages, a round trip costs less than a copy at the receiver, which may not have a receive for the
     * message yet. */
    LS_TCP_EAGER = 64 << 10,
    /*
     * Limit of the eager protocol in bytes, which does not count messages of up to LS_TRANSPORT_LEAST_EAGER bytes. A
     * rank may send this number of bytes before the receiver reports that it has posted receives for them. Beyond the
     * limit, these messages are announced, too. The receiver reports after each quarter of this limit.
     */
    LS_TCP_UNCLAIMED = 4 << 20,
    LS_TCP_PIECE = 256 << 10,    /* maximum size of a piece in one frame; later frames wait for the whole piece */
    LS_TCP_FAR_PIECE = 32 << 10, /* maximum size of a piece in one frame for another machine; frames between machines
                                    have at most LS_TCP_EAGER bytes */
    LS_TCP_UNSENT = 32 << 10,    /* the kernel gets no piece for another machine at this many unsent bytes */
    LS_TCP_BUFFER = 64 << 10,    /* bytes read at once, in addition to data that is read directly to its destination */
    LS_TCP_READ = 1 << 20,       /* bytes read from another rank's memory before the next message's turn */
    LS_TCP_LOOK = 4 << 20,       /* total bytes read from other ranks' memory in one poll */
    LS_TCP_UNPROVEN = 64         /* maximum number of concurrent connections that have not sent a valid hello yet */
};

typedef enum ls_tcp_kind {
    LS_TCP_MESSAGE = 0x54534c01, /* channel, bytes; the bytes follow */
    LS_TCP_ANNOUNCE,             /* channel, bytes, number */
    LS_TCP_CLEAR,                /* number: the announced message, which the sender must send now */
    LS_TCP_CONTENT,              /* number, bytes; these bytes of the message follow */
    LS_TCP_OFFER,  /* channel, bytes; number: the address of the message. An offer counts as an announcement */
    LS_TCP_TAKEN,  /* number: the offered message; bytes: the total that the receiver has read so far */
    LS_TCP_CLAIMED /* number: total bytes of eager messages for which receives were posted, excluding messages of up to
                      LS_TRANSPORT_LEAST_EAGER bytes */
} ls_tcp_kind;

/* A frame header. Fields that a kind does not use are 0. */
typedef struct ls_tcp_header {
    uint32_t kind;
    uint32_t channel;
    uint64_t bytes;
    uint64_t number;
} ls_tcp_header;

_Static_assert(sizeof(ls_tcp_header) == 24, "a header has no gaps");

/* ---- the state of a peer ----------------------------------------------------------------------------------------- */

/* The state of this rank's own connection to a peer. */
typedef enum ls_tcp_stage {
    LS_TCP_APART = 0, /* not connected, because there was no reason to connect yet */
    LS_TCP_CONNECTING,
    LS_TCP_PAUSED, /* another attempt to connect follows soon */
    LS_TCP_READY,
    LS_TCP_ENDING, /* the peer has closed the connection, or does not listen; its earlier data may still arrive */
    LS_TCP_GONE
} ls_tcp_stage;

/* A frame in the queue. */
typedef struct ls_tcp_item {
    struct ls_tcp_item *next;
    ls_tcp_header header;
    size_t bytes;
    unsigned char data[];
} ls_tcp_item;

/* The maximum size of a record of a protected connection, and a buffer for one record. */
enum { LS_TCP_RECORD = sizeof(ls_tcp_header) + LS_TCP_EAGER + LS_WIRE_OVERHEAD };

typedef struct ls_tcp_records {
    ls_wire wire;
    size_t filled; /* for input: bytes of received records, the first of which is incomplete */
    unsigned char bytes[LS_TCP_RECORD];
} ls_tcp_records;

/* The frame that is being written; none if no bytes are left to write. */
typedef struct ls_tcp_frame {
    ls_tcp_header header;
    size_t header_left; /* unwritten bytes of the header */
    const unsigned char *data;
    size_t left;
    void *memory;         /* memory of the data, freed when the frame has been written; NULL if the data is borrowed */
    bool is_record;       /* the data is the record in the peer's output_records */
    ls_transfer *content; /* the send, first in `cleared`, of which it is a piece; NULL if it is not one */
} ls_tcp_frame;

/* The data after a header, while it is being read. */
typedef struct ls_tcp_body {
    unsigned char *at; /* destination of the next bytes; NULL if they are discarded */
    size_t left;
    size_t bytes; /* size of the data */
    bool piece;
    ls_transfer *receive;
    ls_early *early;
} ls_tcp_body;

typedef struct ls_tcp_peer {
    ls_tcp_stage stage;
    bool near;             /* the peer is on this machine */
    ls_peer_memory memory; /* process 0 if this rank cannot read the memory, or if the peer has not connected yet */
    int socket;            /* this rank's connection, for output; -1 if none */
    int incoming;          /* the peer's connection, for input; -1 if none */
    bool was_connected;    /* the peer's connection has been accepted; a second connection is refused */
    bool asks_room;        /* epoll reports when the socket can accept more output */
    bool limits_unsent;    /* epoll reports room only while the kernel has less than LS_TCP_UNSENT unsent bytes */
    bool mute;             /* writing failed; data that the peer sent before its exit can still be read */
    ls_tcp_records *output_records, *input_records; /* NULL if the connection's frames are not protected */

    uint64_t again_ns;   /* PAUSED only: time of the next attempt */
    uint64_t failing_ns; /* 1 + the time of the first failed attempt; 0 if no attempt failed */
    uint64_t ending_ns;  /* ENDING only: time when the peer counts as ended unless data arrives; 0 until the next poll
                            sets it */

    ls_tcp_frame frame;
    ls_tcp_item *queue;
    ls_tcp_item *queue_end;
    ls_transfer *unsent;    /* eager sends that are at least partly in the queue */
    ls_transfer *announced; /* sends that are not cleared yet, or that the peer is reading from this rank's memory */
    ls_transfer *cleared;   /* cleared sends, whose pieces are being written */
    uint64_t numbered;      /* number of announcements made */
    uint64_t withdrawn;     /* number of announced sends that were withdrawn but may still be cleared, without effect */
    uint64_t sent; /* bytes of eager messages to the peer, excluding messages of up to LS_TRANSPORT_LEAST_EAGER bytes */
    uint64_t claimed_there; /* the part of `sent` with posted receives, according to the peer's latest report */

    unsigned char *buffer; /* data read ahead, up to LS_TCP_BUFFER bytes, or LS_TCP_RECORD for protected frames */
    size_t filled;
    ls_tcp_body body;
    ls_transfer *awaited; /* receives whose message this rank has cleared */
    uint64_t heard_of;    /* number of announcements received */
    uint64_t claimed; /* bytes of the peer's eager messages for which receives were posted, excluding messages of up to
                         LS_TRANSPORT_LEAST_EAGER bytes */
    uint64_t told;    /* the value of `claimed` in the latest report to the peer */
} ls_tcp_peer;

/* An accepted connection that has not sent a complete hello. */
typedef struct ls_tcp_unproven {
    int socket; /* -1 if the slot is free */
    uint64_t until_ns;
    size_t got; /* bytes received of `hello` */
    ls_tcp_hello hello;
} ls_tcp_unproven;

typedef struct ls_tcp {
    ls_endpoint endpoint;
    int listener;
    int epoll; /* identifies events by number: the rank for an output socket, LS_TCP_NAME_OF_INPUT for an input socket,
                  size + the index of an unproven connection, LS_TCP_LISTENER or LS_TCP_WAKER */
    int waker; /* -1 if ls_tcp_waker has not been called */
    ls_key key;
    ls_wire_mode wire; /* protection of connections to other machines */
    ls_tcp_peer_info *peer_infos;
    ls_tcp_peer *peers;
    uint8_t mark[LS_NONCE_SIZE]; /* the secret of this rank's peer information, present while other ranks may read the
                                    messages that it has offered */
    ls_arrivals arrivals;
    bool reads;          /* there may be an offered message to read from another rank's memory */
    bool told_of_socket; /* the log has reported that the memory of a rank cannot be read */
    ls_tcp_unproven unproven[LS_TCP_UNPROVEN];
    int unproven_count;
    int paused;        /* number of peers with stage LS_TCP_PAUSED */
    int ending;        /* number of peers with stage LS_TCP_ENDING */
    bool accepted_all; /* no further connection is waiting at the listener */
    bool moved;        /* a transfer or a peer has ended since `progress` last reported an end */
    uint64_t spin_ns;
    ls_awake awake; /* the clock of the endpoint */
} ls_tcp;

#define LS_TCP_LISTENER                 UINT64_MAX
#define LS_TCP_WAKER                    (UINT64_MAX - 1)
#define LS_TCP_NAME_OF_INPUT(tcp, rank) ((uint64_t)(tcp)->endpoint.size + LS_TCP_UNPROVEN + (uint64_t)(rank))

/* ---- tcp.c ------------------------------------------------------------------------------------------------------- */

/* Makes epoll report `events` of a socket under `name`. If `known` is true, epoll already watches the socket, under
 * a different name. */
ls_status ls_tcp_watch(ls_tcp *tcp, int socket, uint32_t events, uint64_t name, bool known);

/* Records the exit of the rank (LS_TCP_GONE): closes both connections, and drops all input and output. */
ls_status ls_tcp_lose(ls_tcp *tcp, int rank);

/* ---- handshake.c ------------------------------------------------------------------------------------------------- */

/* Makes the hello of `rank` for `other`, in a communicator of `size` ranks. Fails with LS_ERR_IO if no random
 * numbers are available. */
ls_status ls_tcp_make_hello(const ls_key *key, const ls_tcp_peer_info *peer_infos, int size, int rank, int other,
                            ls_tcp_hello *made);

/* Connects to a rank, unless this rank has already connected to it. */
ls_status ls_tcp_connect(ls_tcp *tcp, int rank);

/* Handles the result of an attempt to connect. */
ls_status ls_tcp_connected(ls_tcp *tcp, int rank);

/* Records that nothing can be sent to the rank any longer. The rank counts as ended after all data that it sent
 * before has arrived. */
ls_status ls_tcp_end_output(ls_tcp *tcp, int rank);

/* Handle an event of the listener, and an event of an unproven connection, respectively. */
ls_status ls_tcp_accept(ls_tcp *tcp);
ls_status ls_tcp_hear_unproven(ls_tcp *tcp, ls_tcp_unproven *connection);

/* Makes connection attempts that are due, closes unproven connections that have timed out, and records the exit of
 * ending ranks. */
ls_status ls_tcp_tend(ls_tcp *tcp);

/* Frees the records of one direction, and erases its key. */
void ls_tcp_free_records(ls_tcp_records **records);

/* Closes an unproven connection. */
void ls_tcp_turn_away(ls_tcp *tcp, ls_tcp_unproven *connection);

/* ---- output.c ---------------------------------------------------------------------------------------------------- */

/* Writes a frame with `bytes` bytes of data, at once if possible, otherwise from a copy of the data as soon as the
 * socket has room. */
ls_status ls_tcp_put(ls_tcp *tcp, int rank, const ls_tcp_header *header, const void *data, size_t bytes);

/* Writes frames as long as the socket has room for them. */
void ls_tcp_flush(ls_tcp *tcp, int rank);

/* Starts sending a message by the rendezvous protocol. The message is larger than LS_TCP_EAGER, or larger than
 * LS_TRANSPORT_LEAST_EAGER if too many bytes are unclaimed. */
ls_status ls_tcp_announce(ls_tcp *tcp, ls_transfer *send);

/* Handle the peer's report that it has a receive for the message with this number, or that it has read `bytes` bytes
 * of the message. Return false if there is no such message, or if the report is invalid. */
bool ls_tcp_cleared(ls_tcp *tcp, int rank, uint64_t number);
bool ls_tcp_taken(ls_tcp *tcp, int rank, uint64_t number, uint64_t bytes);

/* Handles the peer's report that it has posted receives for `bytes` bytes of eager messages. Returns false if `bytes`
 * is invalid. */
bool ls_tcp_claimed(ls_tcp *tcp, int rank, uint64_t bytes);

/* Erases the mark, so that no rank reads the messages that this rank has offered any longer. */
void ls_tcp_take_mark(ls_tcp *tcp);

/* Completes an eager send if it was written completely. Otherwise, the send completes when everything in the peer's
 * queue has been written. */
void ls_tcp_note_unsent(ls_tcp *tcp, ls_transfer *send);

void ls_tcp_withdraw_send(ls_tcp *tcp, ls_transfer *send);

/* Drops all frames and sends that wait to be written, but not offered messages, because the peer may have read them. */
void ls_tcp_drop_output(ls_tcp_peer *peer);

/* ---- input.c ----------------------------------------------------------------------------------------------------- */

/* Reads and handles the data that the rank has sent. On failure, the rank counts as ended. Fails with LS_ERR_PEER if
 * the data is not a valid frame. */
ls_status ls_tcp_read(ls_tcp *tcp, int rank);

/* Reads parts of the offered messages that have a receive, in turn. Sets `*busy` to true if there was such a
 * message. */
ls_status ls_tcp_read_offered(ls_tcp *tcp, bool *busy);

/* Assigns to the receive a message that has arrived, or adds the receive to the waiting receives. */
ls_status ls_tcp_post(ls_tcp *tcp, ls_transfer *receive);

void ls_tcp_withdraw_receive(ls_tcp *tcp, ls_transfer *receive);

/* Drops all incomplete messages from the rank. A receive from any rank that was assigned such a message waits
 * again. */
ls_status ls_tcp_drop_input(ls_tcp *tcp, int rank);

#endif
