/* What the files of the transport over MPI share: see mpi.h. */
#ifndef LS_COMM_TRANSPORT_MPI_INSIDE_H
#define LS_COMM_TRANSPORT_MPI_INSIDE_H

#include "base/wait.h"
#include "comm/transport/mpi/mpi.h"

/* The tag of a rank's last message. */
#define LS_MPI_END LS_TRANSPORT_CHANNELS

/* MPI requests under way, and the transfer of each. */
typedef struct ls_mpi_list {
    MPI_Request *requests;
    ls_transfer **transfers; /* or one of the below, which nobody owns any more */
    MPI_Status *statuses;    /* room for MPI_Testsome, as the next */
    int *indices;
    int count;
    int capacity;
} ls_mpi_list;

/* Stand for a withdrawn transfer whose request MPI has not completed. Closing waits for the large ones: MPI still uses
 * a large buffer or the program's own. The small ones use a small buffer of the endpoint's owner. */
extern ls_transfer ls_mpi_large, ls_mpi_small;

typedef struct ls_mpi {
    ls_endpoint endpoint; /* the first */
    ls_mpi_options options;
    MPI_Comm comm;     /* MPI_COMM_NULL: none yet */
    size_t at_once;    /* sends of up to this size have ended, as a rule, when MPI returns */
    ls_mpi_list named; /* to and from one rank; and a collective, whose transfer has no peer */
    ls_mpi_list any;   /* receives from any */
    unsigned looks;
    unsigned idle; /* looks in vain since something moved */
    unsigned looks_before_yield;
    unsigned looks_before_sleep;
    unsigned long_yields; /* that took a slice of the scheduler, less half of those that did not */
    unsigned asleep;      /* pauses that sleep instead of yielding */
    ls_awake clock;
    int *numbers; /* collective.c: counts and places for MPI, made when first needed */

    /* close.c */
    struct ls_mpi *next;
    ls_endpoint_release *release; /* of what the owner gave to transfers; NULL: it was released, or there is none */
    void *owner;
    bool withdrew;         /* the owner has failed */
    uint64_t withdrawn_ns; /* spent on what was withdrawn */
    int ends;              /* ranks whose last message has come */
    MPI_Request dropping;  /* a message that nobody wants, into: */
    void *dropped;
} ls_mpi;

/* Looks once at all requests of a list; `*moved` becomes true when any ended. */
ls_status ls_mpi_test(ls_mpi *mpi, ls_mpi_list *list, bool *moved);
void ls_mpi_list_free(ls_mpi_list *list);
ls_status ls_mpi_list_room(ls_mpi_list *list); /* for one more */
void ls_mpi_list_add(ls_mpi_list *list, MPI_Request request, ls_transfer *transfer);

/* LS_ERR_STATE where MPI was finalized. */
ls_status ls_mpi_check_runs(void);

/* After a look at requests: the time of the endpoint goes on, whether anything moved or not. */
void ls_mpi_note_look(ls_mpi *mpi, bool moved);

/* A pause where the latest looks were in vain: none at first, longer later. */
void ls_mpi_pause(ls_mpi *mpi);

/* Whether ls_mpi_note_finalized was called. */
bool ls_mpi_is_finalized(void);

/* close.c: whether there are endpoints for ls_mpi_progress_closing. */
bool ls_mpi_has_closing(void);

/* reductions.c: the type and the operation by which MPI reduces elements. MPI_DATATYPE_NULL or MPI_OP_NULL if MPI has
 * none, or promises other results than lockstep/comm.h. */
MPI_Datatype ls_mpi_type_of(ls_dtype dtype, ls_reduction reduction);
MPI_Op ls_mpi_op_of(ls_reduction reduction);

/* collective.c: entries of the transport. */
bool ls_mpi_can_make(const ls_endpoint *endpoint, const ls_call *call);
ls_status ls_mpi_collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer);

/* close.c: entries of the transport. */
void ls_mpi_withdraw(ls_endpoint *endpoint, ls_transfer *transfer);
void ls_mpi_close(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner);

#endif
