/* What backend nccl asks of libnccl and CUDA's runtime. No function waits, but where it says so; whatever fails leaves
 * a sentence in `why`. */
#ifndef LS_COMM_BACKEND_NCCL_LIBRARY_H
#define LS_COMM_BACKEND_NCCL_LIBRARY_H

#include "comm/backend/module/collectives.h"

enum {
    LS_NCCL_ID = 128, /* bytes of a unique id */
    LS_NCCL_BUS = 32  /* of where a GPU is on its PCI bus: "0000:19:00.0" */
};

/* Whether NCCL makes such collectives: `takes` of ls_backend. */
bool ls_nccl_takes(bool reduces, ls_dtype dtype, ls_reduction reduction);

/* A communicator of NCCL's and what belongs to it. */
typedef struct ls_nccl_group ls_nccl_group;

/* Whether this process has a GPU. */
bool ls_nccl_find_gpus(char why[LS_LIBRARY_WHY]);

/* The calling thread's GPU. */
bool ls_nccl_name_gpu(char bus[LS_NCCL_BUS], char why[LS_LIBRARY_WHY]);

/* A new id, on one rank of those that will join. */
bool ls_nccl_make_id(unsigned char id[LS_NCCL_ID], char why[LS_LIBRARY_WHY]);

/* Begins to join, on the calling thread's GPU: ls_nccl_look tells when that has ended. NULL where it failed. */
ls_nccl_group *ls_nccl_join(const unsigned char id[LS_NCCL_ID], int rank, int size, char why[LS_LIBRARY_WHY]);

/* Of joining, and of giving a call to its stream: neither may be begun while the one before is busy. It is also to be
 * asked while a call runs: what fails meanwhile is told here. */
ls_library_state ls_nccl_look(ls_nccl_group *group, char why[LS_LIBRARY_WHY]);

/* Gives a call, which has a stream, to that. `call` is lent. */
bool ls_nccl_give(ls_nccl_group *group, const ls_call *call, char why[LS_LIBRARY_WHY]);

/* Once it was given: marks its end in the stream. Then ls_nccl_ran tells whether the stream has come there. */
bool ls_nccl_mark(ls_nccl_group *group, void *stream, char why[LS_LIBRARY_WHY]);
ls_library_state ls_nccl_ran(const ls_nccl_group *group, char why[LS_LIBRARY_WHY]);

/*
 * Frees the group. With `abort` what is under way ends at once, here and then on other ranks; this waits until the
 * stream has passed the mark, at most two seconds. Else all calls have ended here, and what NCCL still sends of them
 * goes, where that takes no more than `linger_ns`.
 */
void ls_nccl_free(ls_nccl_group *group, bool abort, uint64_t linger_ns);

#endif
