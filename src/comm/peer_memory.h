/*
 * Reads the memory of another process of this machine directly (process_vm_readv), if the kernel allows it. The kernel
 * does not allow it between different users, nor between sibling processes under Yama's ptrace_scope 1 and above.
 *
 * A PID is valid only within one PID namespace, and the kernel reuses it after the process has exited. So the process
 * to be read keeps a mark in its memory, which the reader knows. Every read also reads the mark, after the data, in the
 * same system call and therefore from the same process. If the mark is correct, the data is from the expected process,
 * and the mark was present while the data was being read. A process that has removed its mark may use its memory for
 * other purposes.
 */
#ifndef LS_COMM_PEER_MEMORY_H
#define LS_COMM_PEER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LS_PEER_MARK_MOST = 64 };

typedef struct ls_peer_memory {
    int64_t process;
    uint64_t mark_at; /* address of the mark in that process */
    const void *mark; /* the expected content of the mark */
    size_t mark_size; /* in bytes, at most LS_PEER_MARK_MOST */
} ls_peer_memory;

/* Copies `bytes` bytes, which may be 0, from `address` in the other process. Returns false if it could not copy all
 * bytes, or if the mark is wrong. errno then contains the reason, or 0 if the mark is wrong. */
bool ls_peer_memory_read(const ls_peer_memory *peer, void *into, uint64_t address, size_t bytes);

#endif
