/*
 * The interface between the files of the TCP transport: the format of the data on the network, and the state of each
 * peer.
 *
 * Each rank writes to the connection that it made, and reads from the connection that the other rank made. The hello is
 * followed by frames. A frame is a header, followed by the data that the header describes.
 *
 * Eager protocol: a message of up to LS_TCP_EAGER bytes is one frame, unless the other rank has many earlier messages
 * to receive.
 *
 * Rendezvous protocol: a larger message is announced. When the receiver has a receive for it, the receiver clears the
 * message. The sender then sends the message in pieces, which arrive directly in the receive's memory.
 *
 * Short frames overtake pieces, so that a rank can clear another rank's message while it sends a large message itself.
 * A short frame cannot overtake data that the kernel has. So the kernel gets a piece for another machine only while the
 * kernel has less than LS_TCP_UNSENT unsent bytes.
 *
 * To a rank of the same machine, a large message is offered instead. The receiver reads the message from the sender's
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
    int64_t process;  /* process number, for a rank of the same machine that reads this process's memory; otherwise 0 */
    uint64_t mark_at; /* address in this process of a copy of the secret of its peer info */
} ls_tcp_hello;

_Static_assert(sizeof(ls_tcp_hello) == LS_PROVEN_HELLO_SIZE + 24, "a hello has no gaps");

/* ---- frames ------------------------------------------------------------------------------------------------------ */

enum {
    /* For a larger message, a round trip costs less than a copy at the receiver, which may not have a receive for the
     * message yet. */
    LS_TCP_EAGER = 64 << 10,
    /*
     * Limit of the eager protocol in bytes, without messages of up to LS_TRANSPORT_LEAST_EAGER bytes. A rank sends this
     * number of bytes before the receiver reports that it had receives for them. Beyond the limit, messages are
     * announced too. The receiver reports after each quarter of this limit.
     */
    LS_TCP_UNCLAIMED = 4 << 20,
    LS_TCP_PIECE = 256 << 10,    /* largest piece of a message in one frame; later frames wait for the whole piece */
    LS_TCP_FAR_PIECE = 32 << 10, /* largest piece in one frame for another machine; frames between machines have at most
                                    LS_TCP_EAGER bytes */
    LS_TCP_UNSENT = 32 << 10,    /* unsent bytes with which the kernel gets no further piece for another machine */
    LS_TCP_BUFFER = 64 << 10,    /* bytes read at once, in addition to data that is read directly to its destination */
    LS_TCP_READ = 1 << 20,       /* bytes read from another rank's memory before the next message has its turn */
    LS_TCP_LOOK = 4 << 20,       /* bytes read from other ranks' memory in one poll, of all messages */
    LS_TCP_UNPROVEN = 64 /* largest number of connections at the same time that have not sent a valid hello yet */
};

typedef enum ls_tcp_kind {
    LS_TCP_MESSAGE = 0x54534c01, /* channel, bytes; the bytes follow */
    LS_TCP_ANNOUNCE,             /* channel, bytes, number */
    LS_TCP_CLEAR,                /* number: the announced message, which the sender sends now */
    LS_TCP_CONTENT,              /* number, bytes; these bytes of the message follow */
    LS_TCP_OFFER,  /* channel, bytes; number: the address of the message. An offer counts as an announcement */
    LS_TCP_TAKEN,  /* number: the offered message; bytes: the total that the receiver has read so far */
    LS_TCP_CLAIMED /* number: total bytes of eager messages that have had their receives, without messages of up to
                      LS_TRANSPORT_LEAST_EAGER bytes */
} ls_tcp_kind;

/* Fields that a kind does not have are 0. */
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
    LS_TCP_APART = 0, /* not connected: there was no reason to connect */
    LS_TCP_CONNECTING,
    LS_TCP_PAUSED, /* the next attempt to connect follows soon */
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

/* The size of the largest record of a protected connection, and a buffer for one record. */
enum { LS_TCP_RECORD = sizeof(ls_tcp_header) + LS_TCP_EAGER + LS_WIRE_OVERHEAD };

typedef struct ls_tcp_records {
    ls_wire wire;
    size_t filled; /* input: bytes of received records, the first of which is incomplete */
    unsigned char bytes[LS_TCP_RECORD];
} ls_tcp_records;

/* The frame that is being written. If no bytes are left to write, no frame is being written. */
typedef struct ls_tcp_frame {
    ls_tcp_header header;
    size_t header_left; /* bytes of the header that have not been written */
    const unsigned char *data;
    size_t left;
    void *memory;   /* the memory of the data, freed when the frame has been written; NULL: the data is borrowed */
    bool is_record; /* the data is the record in the peer's output_records */
    ls_transfer *content; /* the frame is a piece of this send, the first in `cleared`; NULL: not a piece */
} ls_tcp_frame;

/* The data after a header, while it is being read. */
typedef struct ls_tcp_body {
    unsigned char *at; /* destination of the next bytes; NULL: they are discarded */
    size_t left;
    size_t bytes; /* size of the data */
    bool piece;
    ls_transfer *receive;
    ls_early *early;
} ls_tcp_body;

typedef struct ls_tcp_peer {
    ls_tcp_stage stage;
    bool near;             /* the peer is on this machine */
    ls_peer_memory memory; /* process 0: this rank cannot read it, or the peer has not connected yet */
    int socket;            /* this rank's connection, for output; -1: none */
    int incoming;          /* the peer's connection, for input; -1: none */
    bool was_connected;    /* the peer's connection was accepted; a second connection is refused */
    bool asks_room;        /* epoll reports when the socket has room for output */
    bool limits_unsent;    /* epoll reports room only while the kernel holds less than LS_TCP_UNSENT bytes unsent */
    bool mute;             /* writing failed; data that the peer sent before its end can still be read */
    ls_tcp_records *output_records, *input_records; /* NULL: the connection's frames are not protected */

    uint64_t again_ns;   /* PAUSED: time of the next attempt */
    uint64_t failing_ns; /* 1 + the time of the first failed attempt; 0: no attempt failed */
    uint64_t ending_ns;  /* ENDING: when the peer counts as ended unless data arrives; 0: the next poll sets it */

    ls_tcp_frame frame;
    ls_tcp_item *queue;
    ls_tcp_item *queue_end;
    ls_transfer *unsent;    /* eager sends that are at least partly in the queue */
    ls_transfer *announced; /* sends that are not cleared yet, or that the peer reads from this rank's memory */
    ls_transfer *cleared;   /* cleared sends, whose pieces are being written */
    uint64_t numbered;      /* number of announcements made */
    uint64_t withdrawn;     /* number of these that were withdrawn and may still be cleared, without effect */
    uint64_t sent; /* bytes of eager messages to the peer, without messages of up to LS_TRANSPORT_LEAST_EAGER bytes */
    uint64_t claimed_there; /* the part of `sent` that has had receives, by the peer's latest report */

    unsigned char *buffer; /* data read ahead: LS_TCP_BUFFER bytes, or LS_TCP_RECORD for protected frames */
    size_t filled;
    ls_tcp_body body;
    ls_transfer *awaited; /* receives whose message this rank has cleared */
    uint64_t heard_of;    /* number of announcements received */
    uint64_t claimed;     /* bytes of the peer's eager messages that have had their receives, without messages of up to
                             LS_TRANSPORT_LEAST_EAGER bytes */
    uint64_t told;        /* the value of `claimed` in the latest report to the peer */
} ls_tcp_peer;

/* An accepted connection that has not sent a complete hello yet. */
typedef struct ls_tcp_unproven {
    int socket; /* -1: the slot is free */
    uint64_t until_ns;
    size_t got; /* bytes received of `hello` */
    ls_tcp_hello hello;
} ls_tcp_unproven;

typedef struct ls_tcp {
    ls_endpoint endpoint;
    int listener;
    int epoll; /* the names of its events: the rank for an output socket, LS_TCP_NAME_OF_INPUT for an input socket, size
                  + the index of an unproven connection, LS_TCP_LISTENER or LS_TCP_WAKER */
    int waker; /* -1: ls_tcp_waker was not called */
    ls_key key;
    ls_wire_mode wire; /* protection of connections to other machines */
    ls_tcp_peer_info *peer_infos;
    ls_tcp_peer *peers;
    uint8_t mark[LS_NONCE_SIZE]; /* the secret of this rank's peer info, while other ranks may read the messages that it
                                    has offered */
    ls_arrivals arrivals;
    bool reads;          /* there may be an offered message to read from another rank's memory */
    bool told_of_socket; /* the log has reported a rank whose memory cannot be read */
    ls_tcp_unproven unproven[LS_TCP_UNPROVEN];
    int unproven_count;
    int paused;        /* number of peers with stage LS_TCP_PAUSED */
    int ending;        /* number of peers with stage LS_TCP_ENDING */
    bool accepted_all; /* no further connection waited at the listener */
    bool moved;        /* a transfer or a peer has ended since `progress` last reported this */
    uint64_t spin_ns;
    ls_awake awake; /* the clock of the endpoint */
} ls_tcp;

#define LS_TCP_LISTENER                 UINT64_MAX
#define LS_TCP_WAKER                    (UINT64_MAX - 1)
#define LS_TCP_NAME_OF_INPUT(tcp, rank) ((uint64_t)(tcp)->endpoint.size + LS_TCP_UNPROVEN + (uint64_t)(rank))

/* ---- tcp.c ------------------------------------------------------------------------------------------------------- */

/* Makes epoll report `events` of a socket under `name`. If `known` is true, epoll watches the socket already, under
 * another name. */
ls_status ls_tcp_watch(ls_tcp *tcp, int socket, uint32_t events, uint64_t name, bool known);

/* Notes the end of the rank (LS_TCP_GONE): closes both connections, and drops all input and output. */
ls_status ls_tcp_lose(ls_tcp *tcp, int rank);

/* ---- handshake.c ------------------------------------------------------------------------------------------------- */

/* Makes the hello of `rank` for `other`, in a communicator of `size` ranks. Fails with LS_ERR_IO if there are no random
 * numbers. */
ls_status ls_tcp_make_hello(const ls_key *key, const ls_tcp_peer_info *peer_infos, int size, int rank, int other,
                            ls_tcp_hello *made);

/* Connects to a rank, unless this rank has connected to it before. */
ls_status ls_tcp_connect(ls_tcp *tcp, int rank);

/* Handles the result of an attempt to connect. */
ls_status ls_tcp_connected(ls_tcp *tcp, int rank);

/* Notes that nothing can be sent to the rank any longer. The rank counts as ended after all data that it sent before
 * has arrived. */
ls_status ls_tcp_end_output(ls_tcp *tcp, int rank);

/* Handle an event of the listener, and an event of an unproven connection. */
ls_status ls_tcp_accept(ls_tcp *tcp);
ls_status ls_tcp_hear_unproven(ls_tcp *tcp, ls_tcp_unproven *connection);

/* Makes due attempts to connect, closes unproven connections that have timed out, and notes the end of ending ranks. */
ls_status ls_tcp_tend(ls_tcp *tcp);

/* Frees the records of one direction, and erases its key. */
void ls_tcp_free_records(ls_tcp_records **records);

/* Closes an unproven connection. */
void ls_tcp_turn_away(ls_tcp *tcp, ls_tcp_unproven *connection);

/* ---- output.c ---------------------------------------------------------------------------------------------------- */

/* Writes a frame with `bytes` of data, at once if possible, otherwise from a copy of the data as soon as the socket has
 * room. */
ls_status ls_tcp_put(ls_tcp *tcp, int rank, const ls_tcp_header *header, const void *data, size_t bytes);

/* Writes frames as long as the socket has room for them. */
void ls_tcp_flush(ls_tcp *tcp, int rank);

/* Begins to send a message by the rendezvous protocol: larger than LS_TCP_EAGER, or larger than
 * LS_TRANSPORT_LEAST_EAGER if too many bytes are unclaimed. */
ls_status ls_tcp_announce(ls_tcp *tcp, ls_transfer *send);

/* Handle the peer's report that it has a receive for the message with this number, or that it has read `bytes` of the
 * message. Return false if there is no such message, or if the report is not valid. */
bool ls_tcp_cleared(ls_tcp *tcp, int rank, uint64_t number);
bool ls_tcp_taken(ls_tcp *tcp, int rank, uint64_t number, uint64_t bytes);

/* Handles the peer's report that `bytes` of eager messages have had receives. Returns false if `bytes` is not valid. */
bool ls_tcp_claimed(ls_tcp *tcp, int rank, uint64_t bytes);

/* Erases the mark: afterwards no rank reads the messages that this rank has offered. */
void ls_tcp_take_mark(ls_tcp *tcp);

/* Ends an eager send if it was written completely. Otherwise, the send ends when everything in the peer's queue has
 * been written. */
void ls_tcp_note_unsent(ls_tcp *tcp, ls_transfer *send);

void ls_tcp_withdraw_send(ls_tcp *tcp, ls_transfer *send);

/* Drops all frames and sends that wait to be written, but not offered messages: the peer may have read them. */
void ls_tcp_drop_output(ls_tcp_peer *peer);

/* ---- input.c ----------------------------------------------------------------------------------------------------- */

/* Reads and handles the data that the rank has sent. If this fails, the rank counts as ended. Fails with LS_ERR_PEER if
 * the data is not a valid frame. */
ls_status ls_tcp_read(ls_tcp *tcp, int rank);

/* Reads a part of the offered messages that have a receive, in turns. Sets `*busy` to true if there was such a
 * message. */
ls_status ls_tcp_read_offered(ls_tcp *tcp, bool *busy);

/* Gives the receive a message that has arrived, or adds it to the waiting receives. */
ls_status ls_tcp_post(ls_tcp *tcp, ls_transfer *receive);

void ls_tcp_withdraw_receive(ls_tcp *tcp, ls_transfer *receive);

/* Drops all incomplete messages of the rank. A receive from any rank that had such a message waits again. */
ls_status ls_tcp_drop_input(ls_tcp *tcp, int rank);

#endif
