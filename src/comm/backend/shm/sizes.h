/*
 * All sizes at which the algorithm changes. Calls select their algorithm by these sizes, and the conformance tests use
 * cases just below and above each. Sizes are in bytes, of the whole call or of one rank's part, as stated.
 */
#ifndef LS_COMM_BACKEND_SHM_SIZES_H
#define LS_COMM_BACKEND_SHM_SIZES_H

#include <stddef.h>

#define LS_SHM_PAYLOAD 80 /* maximum size of a rank's data in its cell */

/* Reductions up to this size are written to the slots and read from there in one step: with 2 ranks, with up to 4,
 * and with more. */
#define LS_SHM_WHOLE_2    ((size_t)65536)
#define LS_SHM_WHOLE_4    ((size_t)8192)
#define LS_SHM_WHOLE_MORE ((size_t)4096)

/* From this size on, reductions use the buffers in ls_comm_alloc's memory directly. Below it, two steps cost more
 * than a copy. */
#define LS_SHM_DIRECT_LEAST ((size_t)1536)

/* Pieces above the first size are read directly from ls_comm_alloc's memory. Pieces of this size in the sender's own
 * memory are read directly between threads of a process. Between processes, they are read directly if a slot has room
 * for fewer bytes of each piece than the second size, because too many rounds would be necessary. */
#define LS_SHM_DIRECT_MOVES ((size_t)16384)
#define LS_SHM_PLACE_LEAST  ((size_t)16384)

/* Whether two cores are far from each other. A measurement reads LS_SHM_WAY_LINES lines of a slot that another rank has
 * just written. It is slow if a line takes longer than LS_SHM_NEAR_LINE_NS on average. The cores are far from each
 * other after LS_SHM_SLOW_LOOKS consecutive slow measurements. Every LS_SHM_LOOK_EVERY-th call is measured, until a
 * measurement is slow. The result holds for LS_SHM_FAR_CALLS calls, and applies to pieces above LS_SHM_FAR_LEAST bytes.
 */
#define LS_SHM_WAY_LINES    ((size_t)64)
#define LS_SHM_NEAR_LINE_NS ((uint64_t)6)
#define LS_SHM_SLOW_LOOKS   2
#define LS_SHM_LOOK_EVERY   16
#define LS_SHM_FAR_CALLS    128
#define LS_SHM_FAR_LEAST    ((size_t)4096)

/* Copies of at least this size use stores that bypass the caches. */
#define LS_SHM_COPY_PAST_CACHE ((size_t)12 << 20)

/* From LS_SHM_COPY_BY_INSTRUCTION bytes on, the C library copies with a processor instruction. On some processors, this
 * instruction is up to fifteen times slower if the target address, modulo a page, is less than LS_SHM_COPY_BEHIND bytes
 * after the source address. An example is a copy from a malloc buffer (16 bytes into a page) to a slot. */
#define LS_SHM_COPY_BY_INSTRUCTION ((size_t)2048)
#define LS_SHM_COPY_BEHIND         ((size_t)64)

/* Slots shrink from LS_SHM_SLOT_MOST toward LS_SHM_SLOT_LEAST if all slots together would exceed
 * LS_SHM_SLOTS_TOGETHER. The part of a buffer, or of one rank's piece, that passes through a slot in one step has a
 * separate limit, which LOCKSTEP_ALGORITHM may change. The slots of a communicator that was split from another are
 * smaller (LS_SHM_SLOT_PART), because reserving and mapping them is most of the cost of the split. */
#define LS_SHM_SLOT_MOST      ((size_t)1 << 20)
#define LS_SHM_SLOT_PART      ((size_t)256 << 10)
#define LS_SHM_CHUNK          ((size_t)256 << 10)
#define LS_SHM_CHUNK_LEAST    ((size_t)4096)
#define LS_SHM_SLOT_LEAST     ((size_t)64 << 10)
#define LS_SHM_SLOTS_TOGETHER ((size_t)8 << 20)

/* Payload sizes of a packet: within its header, and after the header for up to 4, 16 and 64 ranks. */
#define LS_SHM_PACKET_PAYLOAD 88
#define LS_SHM_PACKET_MORE_4  ((size_t)8192)
#define LS_SHM_PACKET_MORE_16 ((size_t)2048)
#define LS_SHM_PACKET_MORE_64 ((size_t)512)

/* A message up to this size is sent as a stream of packets, copied by both sides at the same time. A larger message
 * is read from the sender's memory, which occupies only the receiver. A sender that waits for completion may as well
 * help with the copy, unless the receiver would have to keep too much data that no receive waits for yet. If ranks
 * share cores, other ranks could use the time that this help takes. */
#define LS_SHM_STREAM_MOST        ((size_t)1 << 20)
#define LS_SHM_STREAM_SHARED_MOST ((size_t)256 << 10)
#define LS_SHM_STREAM_WAITED_MOST ((size_t)32 << 20)

/* Maximum number of a rank's announced messages that have not been read yet; further messages are sent as streams.
 * At most 64. */
#define LS_SHM_ANNOUNCED 64

/* For tests: every size above at which the algorithm changes, except LS_SHM_STREAM_WAITED_MOST, which is too large
 * for a list of cases. Keep this list in sync with the sizes above. */
#define LS_SHM_SWITCH_OVERS                                                                                            \
    {                                                                                                                  \
        LS_SHM_PAYLOAD, LS_SHM_PACKET_PAYLOAD, LS_SHM_DIRECT_LEAST, LS_SHM_PACKET_PAYLOAD + LS_SHM_PACKET_MORE_16,     \
            LS_SHM_WHOLE_MORE, LS_SHM_FAR_LEAST, LS_SHM_WHOLE_4, LS_SHM_PACKET_PAYLOAD + LS_SHM_PACKET_MORE_4,         \
            LS_SHM_WHOLE_2, LS_SHM_DIRECT_MOVES, LS_SHM_SLOT_LEAST, LS_SHM_CHUNK, LS_SHM_SLOT_MOST / 2,                \
            LS_SHM_STREAM_MOST                                                                                         \
    }

#endif
