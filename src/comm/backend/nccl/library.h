/* The interface of backend nccl to libnccl and the CUDA runtime. No function waits unless its comment says so. A
 * function that fails writes the reason to `why`. */
#ifndef LS_COMM_BACKEND_NCCL_LIBRARY_H
#define LS_COMM_BACKEND_NCCL_LIBRARY_H

#include "comm/backend/module/collectives.h"

enum {
    LS_NCCL_ID = 128, /* size in bytes of a unique id */
    LS_NCCL_BUS = 32  /* size in bytes of a GPU's PCI address: "0000:19:00.0" */
};

/* Returns true if NCCL supports such collectives. Implements accepts_device_memory of ls_backend. */
bool ls_nccl_takes(bool reduces, ls_dtype dtype, ls_reduction reduction);

/* An NCCL communicator with its event and memory. */
typedef struct ls_nccl_group ls_nccl_group;

/* Returns true if this process has a GPU. */
bool ls_nccl_find_gpus(char why[LS_LIBRARY_WHY]);

/* Writes the PCI address of the calling thread's GPU. Returns false on failure. */
bool ls_nccl_name_gpu(char bus[LS_NCCL_BUS], char why[LS_LIBRARY_WHY]);

/* Creates a new id. Only one of the ranks that will join calls this function. Returns false on failure. */
bool ls_nccl_make_id(unsigned char id[LS_NCCL_ID], char why[LS_LIBRARY_WHY]);

/* Starts joining the group, on the calling thread's GPU. ls_nccl_look reports when joining has finished. Returns
 * NULL on failure. */
ls_nccl_group *ls_nccl_join(const unsigned char id[LS_NCCL_ID], int rank, int size, char why[LS_LIBRARY_WHY]);

/* Returns the progress of joining, or of enqueuing a call in its stream. Neither may begin while the previous
 * operation is in progress. Must also be called while a call runs, because it reports errors of running calls. */
ls_library_state ls_nccl_look(ls_nccl_group *group, char why[LS_LIBRARY_WHY]);

/* Enqueues a call in its stream, which must not be NULL. Borrows `call` until it returns. Returns false on failure. */
bool ls_nccl_give(ls_nccl_group *group, const ls_call *call, char why[LS_LIBRARY_WHY]);

/* ls_nccl_mark records an event after the latest call in its stream, once ls_nccl_look has reported that the call
 * was enqueued. Afterwards, ls_nccl_ran returns LS_LIBRARY_DONE when the stream has reached this mark. */
bool ls_nccl_mark(ls_nccl_group *group, void *stream, char why[LS_LIBRARY_WHY]);
ls_library_state ls_nccl_ran(const ls_nccl_group *group, char why[LS_LIBRARY_WHY]);

/*
 * Frees the group. With `abort`, cancels calls in progress at once, first here and then on other ranks, and waits up to
 * two seconds until the stream has passed the mark. Without `abort`, all calls must have finished on this rank; NCCL
 * still sends their remaining data, for at most `linger_ns`.
 */
void ls_nccl_free(ls_nccl_group *group, bool abort, uint64_t linger_ns);

#endif
