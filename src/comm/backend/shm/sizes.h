/*
 * The sizes at which the algorithm changes, all in one place: calls choose by them, and the
 * conformance list looks around each. Bytes of the whole call, or of one rank's part, as each says.
 */
#ifndef LS_COMM_BACKEND_SHM_SIZES_H
#define LS_COMM_BACKEND_SHM_SIZES_H

#include <stddef.h>

#define LS_SHM_PAYLOAD 80 /* data of a rank that travels in its cell */

/* A reduction: all of it written to the slots, and read there, in one step; among 2, up to 4, and more ranks. */
#define LS_SHM_WHOLE_2    ((size_t)65536)
#define LS_SHM_WHOLE_4    ((size_t)8192)
#define LS_SHM_WHOLE_MORE ((size_t)4096)

/* From here on straight between buffers in ls_comm_alloc's memory: below, two steps cost more than a copy. */
#define LS_SHM_DIRECT_LEAST ((size_t)1536)

/* Pieces beyond the first are read straight from ls_comm_alloc's memory, and from the sender's own memory between
 * threads and where a slot has room for less than the second of each piece, so that the rounds would become too many.
 */
#define LS_SHM_DIRECT_MOVES ((size_t)16384)
#define LS_SHM_PLACE_LEAST  ((size_t)16384)

/* Cores are far from each other if this number of lines of a slot, which another rank has just written, take longer
 * than this time each, this number of times in a row. One of this number of calls is measured, until one was slow. The
 * result holds for some calls, and matters for pieces above the last of these sizes. */
#define LS_SHM_WAY_LINES    ((size_t)64)
#define LS_SHM_NEAR_LINE_NS ((uint64_t)6)
#define LS_SHM_SLOW_LOOKS   2
#define LS_SHM_LOOK_EVERY   16
#define LS_SHM_FAR_CALLS    128
#define LS_SHM_FAR_LEAST    ((size_t)4096)

/* A copy of so much writes past the caches. */
#define LS_SHM_COPY_PAST_CACHE ((size_t)12 << 20)

/* From this number of bytes on, the C library copies with an instruction of the processor that takes fifteen times as
 * long on some processors if the target lies less than this number of bytes, modulo a page, after the source: for
 * example a buffer of malloc (16 bytes into a page) and a slot. */
#define LS_SHM_COPY_BY_INSTRUCTION ((size_t)2048)
#define LS_SHM_COPY_BEHIND         ((size_t)64)

/* Slots shrink from the first towards the second when all together would need more than the third. What of a buffer, or
 * of one rank's piece of it, goes through a slot in one step is limited besides; LOCKSTEP_ALGORITHM may say more or
 * less. A communicator split from another has smaller ones: to reserve and to map them is most of what it costs. */
#define LS_SHM_SLOT_MOST      ((size_t)1 << 20)
#define LS_SHM_SLOT_PART      ((size_t)256 << 10)
#define LS_SHM_CHUNK          ((size_t)256 << 10)
#define LS_SHM_CHUNK_LEAST    ((size_t)4096)
#define LS_SHM_SLOT_LEAST     ((size_t)64 << 10)
#define LS_SHM_SLOTS_TOGETHER ((size_t)8 << 20)

/* Messages: data in the head of a packet, and beyond it among up to 4, 16, 64 ranks. */
#define LS_SHM_PACKET_PAYLOAD 88
#define LS_SHM_PACKET_MORE_4  ((size_t)8192)
#define LS_SHM_PACKET_MORE_16 ((size_t)2048)
#define LS_SHM_PACKET_MORE_64 ((size_t)512)

/* A message up to this goes as a stream of packets, copied at both ends at once, else it is read from the sender's
 * memory, which occupies the receiver alone: a sender that waits for its end may as well help, unless the receiver had
 * to keep too much of what it does not wait for yet. Where ranks share cores, others could use the time of its help. */
#define LS_SHM_STREAM_MOST        ((size_t)1 << 20)
#define LS_SHM_STREAM_SHARED_MOST ((size_t)256 << 10)
#define LS_SHM_STREAM_WAITED_MOST ((size_t)32 << 20)

/* Messages of one rank that may be announced and not yet read; what is beyond goes as a stream. At most 64. */
#define LS_SHM_ANNOUNCED 64

/* For tests: every size above at which something changes, but LS_SHM_STREAM_WAITED_MOST, which is too large for a list
 * of cases. Add to it whatever is added there. */
#define LS_SHM_SWITCH_OVERS                                                                                            \
    {                                                                                                                  \
        LS_SHM_PAYLOAD, LS_SHM_PACKET_PAYLOAD, LS_SHM_DIRECT_LEAST, LS_SHM_PACKET_PAYLOAD + LS_SHM_PACKET_MORE_16,     \
            LS_SHM_WHOLE_MORE, LS_SHM_FAR_LEAST, LS_SHM_WHOLE_4, LS_SHM_PACKET_PAYLOAD + LS_SHM_PACKET_MORE_4,         \
            LS_SHM_WHOLE_2, LS_SHM_DIRECT_MOVES, LS_SHM_SLOT_LEAST, LS_SHM_CHUNK, LS_SHM_SLOT_MOST / 2,                \
            LS_SHM_STREAM_MOST                                                                                         \
    }

#endif
