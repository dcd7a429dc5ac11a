/* The interface between the files of the transport over MPI: see mpi.h. */
#ifndef LS_COMM_TRANSPORT_MPI_INSIDE_H
#define LS_COMM_TRANSPORT_MPI_INSIDE_H

#include "base/wait.h"
#include "comm/transport/mpi/mpi.h"

/* The tag of a rank's last message. */
#define LS_MPI_END LS_TRANSPORT_CHANNELS

/* MPI requests in progress, and the transfer of each request. */
typedef struct ls_mpi_list {
    MPI_Request *requests;
    ls_transfer **transfers; /* or a pointer to ls_mpi_program or ls_mpi_own if the transfer was withdrawn */
    MPI_Status *statuses;    /* memory for the results of MPI_Testsome, like `indices` */
    int *indices;
    int count;
    int capacity;
} ls_mpi_list;

/* Placeholders for a withdrawn transfer whose request MPI has not completed. ls_mpi_program: MPI uses one of the
 * program's buffers. ls_mpi_own: MPI uses memory of the endpoint's owner. */
extern ls_transfer ls_mpi_program, ls_mpi_own;

typedef struct ls_mpi {
    ls_endpoint endpoint; /* must be the first member */
    ls_mpi_options options;
    MPI_Comm comm;     /* MPI_COMM_NULL if not connected yet */
    size_t at_once;    /* sends of up to this size in bytes have usually completed when MPI_Isend returns */
    ls_mpi_list named; /* transfers with a given rank, and collectives, whose transfers have no peer */
    ls_mpi_list any;   /* receives from any rank */
    unsigned looks;
    unsigned idle; /* number of polls since the latest progress */
    unsigned looks_before_yield;
    unsigned looks_before_sleep;
    unsigned long_yields; /* counts yields that took a time slice; each shorter yield halves the count */
    unsigned asleep;      /* number of upcoming pauses that sleep instead of yielding */
    ls_awake clock;
    int *numbers; /* for collective.c: counts and displacements for MPI, allocated on first use */

    /* close.c */
    struct ls_mpi *next;
    ls_endpoint_release *release; /* frees the memory that the owner passed in transfers; NULL if already called, or if
                                     there is no such memory */
    void *owner;
    bool withdrew;         /* a transfer was withdrawn, so the owner has failed */
    uint64_t withdrawn_ns; /* time that `withdraw` has waited for withdrawn requests */
    uint64_t closed_ns;    /* time when ls_mpi_finish_closed began to wait for MPI; 0 if it does not wait */
    uint64_t left_ns;      /* time since when all other ranks have left, during this wait */
    bool given_up;         /* this wait was given up */
    int ends;              /* number of ranks whose last message has arrived */
    MPI_Request dropping;  /* receives a message to be discarded, into `dropped` */
    void *dropped;
} ls_mpi;

/* Polls all requests of a list once. Sets `*moved` to true if a request has completed. */
ls_status ls_mpi_test(ls_mpi *mpi, ls_mpi_list *list, bool *moved);
void ls_mpi_list_free(ls_mpi_list *list);
ls_status ls_mpi_list_room(ls_mpi_list *list); /* makes room for one more request */
void ls_mpi_list_add(ls_mpi_list *list, MPI_Request request, ls_transfer *transfer);

/* Fails with LS_ERR_STATE if MPI was finalized. */
ls_status ls_mpi_check_runs(void);

/* Records a poll of requests: counts polls without progress, and advances the clock of the endpoint. */
void ls_mpi_note_look(ls_mpi *mpi, bool moved);

/* Pauses after polls without progress: at first not at all, and longer after more such polls. */
void ls_mpi_pause(ls_mpi *mpi);

/* Returns true if ls_mpi_note_finalized was called. */
bool ls_mpi_is_finalized(void);

/* In close.c: returns true if there are endpoints for ls_mpi_progress_closing. */
bool ls_mpi_has_closing(void);

/* In reductions.c: return the MPI type and operation for a reduction. They return MPI_DATATYPE_NULL or MPI_OP_NULL
 * if MPI has no such type or operation, or if its results may differ from those stated in lockstep/comm.h. */
MPI_Datatype ls_mpi_type_of(ls_dtype dtype, ls_reduction reduction);
MPI_Op ls_mpi_op_of(ls_reduction reduction);

/* In collective.c: functions of the transport. */
bool ls_mpi_can_make(const ls_endpoint *endpoint, const ls_call *call);
ls_status ls_mpi_collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer);

/* In close.c: functions of the transport. */
void ls_mpi_withdraw(ls_endpoint *endpoint, ls_transfer *transfer);
void ls_mpi_close(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner);

#endif
