/*
 * Reading straight from the memory of another process of this machine (process_vm_readv), where the kernel allows it:
 * it does not across users, nor between siblings under Yama's ptrace_scope 1 and above.
 *
 * Process numbers mean something only within one PID namespace, and are given to others when a process has ended. So
 * whoever is to be read from keeps a mark in its memory that the reader knows, and every read looks at the mark behind
 * the data, in the same system call and so in the same process: what comes with the mark is of who is meant, as it was
 * while the mark was there. Who takes the mark away may use its memory for other things.
 */
#ifndef LS_COMM_PEER_MEMORY_H
#define LS_COMM_PEER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LS_PEER_MARK_MOST = 64 };

typedef struct ls_peer_memory {
    int64_t process;
    uint64_t mark_at; /* its address there */
    const void *mark; /* what it must be */
    size_t mark_size; /* at most LS_PEER_MARK_MOST */
} ls_peer_memory;

/* Copies `bytes` (0 too) at `address` there. False: they are not all here, or not the peer's; `errno` says why, 0 where
 * there was another mark, or none. */
bool ls_peer_memory_read(const ls_peer_memory *peer, void *into, uint64_t address, size_t bytes);

#endif
