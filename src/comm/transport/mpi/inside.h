/* What the files of the transport over MPI share: see mpi.h. */
#ifndef LS_COMM_TRANSPORT_MPI_INSIDE_H
#define LS_COMM_TRANSPORT_MPI_INSIDE_H

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
    int sent_too_much; /* 1 + the rank whose message was larger than its receive; 0: none's was */
} ls_mpi_list;

/* What has lost its owner: MPI uses a large buffer for it, a small one, or none. */
extern ls_transfer ls_mpi_large, ls_mpi_small, ls_mpi_bare;

typedef struct ls_mpi {
    ls_endpoint endpoint; /* the first */
    ls_mpi_options options;
    MPI_Comm comm;
    size_t at_once;    /* sends of up to this size have ended, as a rule, when MPI returns */
    ls_mpi_list named; /* to and from one rank */
    ls_mpi_list any;   /* receives from any */
    unsigned looks;
    unsigned idle;      /* looks in vain since something moved */
    unsigned most_idle; /* so many of them, and then it yields */
    uint64_t looked_ns; /* when the last of these was; 0: there was none since something moved */
    uint64_t awake_ns;  /* the time of the endpoint */
    bool forsaken;

    /* close.c */
    struct ls_mpi *next;
    bool withdrew;         /* the owner has failed */
    uint64_t withdrawn_ns; /* spent on what was withdrawn */
    int ends;              /* ranks whose last message has come */
    MPI_Request dropping;  /* a message that nobody wants, into: */
    void *dropped;
} ls_mpi;

/* Looks once at all requests of a list; `*moved` becomes true when any ended. */
ls_status ls_mpi_test(ls_mpi_list *list, bool *moved);

/* Adds a request. LS_ERR_MEMORY. */
ls_status ls_mpi_list_room(ls_mpi_list *list);
void ls_mpi_list_add(ls_mpi_list *list, MPI_Request request, ls_transfer *transfer);
void ls_mpi_list_free(ls_mpi_list *list);

/* Whether endpoints are retired. */
extern _Atomic int ls_mpi_retired;

/* A pause after a look in vain: none at first, longer later. The time of the endpoint goes on. */
void ls_mpi_pause(ls_mpi *mpi);

/* close.c: entries of the transport. */
void ls_mpi_withdraw(ls_endpoint *endpoint, ls_transfer *transfer);
bool ls_mpi_close(ls_endpoint *endpoint, uint64_t linger_ns);

#endif
