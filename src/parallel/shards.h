/*
 * Sharded state (ZeRO): which elements of the flat buffers each rank owns, and the exchange of elements between their
 * owners and the other ranks. optim/sharding.h is the interface for optimizers.
 */
#ifndef LS_PARALLEL_SHARDS_H
#define LS_PARALLEL_SHARDS_H

#include <lockstep/comm.h>

#include <stdatomic.h>

#include "optim/sharding.h"
#include "parallel/reducer.h"
#include "tensor/account.h"

/* Adjacent elements of a flat buffer. */
typedef struct ls_range {
    int flat;
    int64_t offset;
    int64_t count;
} ls_range;

/* An exchange of a range in flight. */
typedef struct ls_range_exchange {
    size_t *counts;    /* one count per rank, followed by one displacement per rank */
    ls_work *work;     /* NULL if the exchange has finished, or was not started */
    ls_status encoded; /* the status of the encoding of gradients */
    bool begun;        /* for gradients: ls_shards_begin_reduce was called, and ls_shards_end_reduce was not */
} ls_range_exchange;

typedef struct ls_shards ls_shards;
struct ls_shards {
    ls_sharding base; /* first member */
    atomic_int references;
    int stage;
    ls_module *replicas; /* borrowed; NULL after ls_shards_close */
    ls_module *model;    /* borrowed, like `replicas` */
    const ls_gradient_reducer
        *reducer; /* borrowed, like `replicas`; has the wire format of gradients, and their encoded form */
    ls_comm *comm;
    ls_comm *private_comm;        /* for exchanges that overlap with computation; NULL without overlap */
    ls_flat flats[LS_FLAT_LIMIT]; /* holds the memory */
    int flat_count;
    int64_t *ends[LS_FLAT_LIMIT]; /* end of each rank's elements */
    ls_account *account; /* counts the elements on this rank; holds a reference; NULL if the storages are counted */
    int64_t present[LS_MEMORY_KINDS]; /* counted bytes */
    size_t *counts;                   /* one count per rank for one exchange, followed by one displacement per rank */
    ls_range *ranges; /* the ranges of all parameters: the ranges of units (units.h) and, starting at index
                         unit_range_count, the rest */
    int range_count;
    int unit_range_count;
    struct ls_sharded_unit *units; /* units.c */
    int unit_count;
    struct ls_sharded_unit *prefetched; /* the unit whose parameters are in flight before it runs; unit_exchange.c */
    struct ls_sharded_unit *averaging;  /* the unit whose gradients are in flight */
    ls_range_exchange *parameter_exchanges; /* exchanges of `prefetched`, one per range */
    ls_range_exchange *gradient_exchanges;  /* exchanges of `averaging`, one per range; part of the same memory */
    size_t *exchange_counts;                /* memory of the counts of these exchanges */
    bool in_pass;                   /* a backward pass of `replicas` is running; its end waits for the averaging */
    struct ls_sharded_unit *latest; /* the unit that was entered last */
    bool latest_backward;           /* whether it was entered in a backward pass */
    ls_status (*settle)(ls_shards *shards,
                        bool forget);            /* ends the exchanges in flight (unit_exchange.h); may be NULL */
    void (*on_decided)(ls_shards *shards);       /* called when sharding is decided; may be NULL */
    bool (*averages)(const ls_module *replicas); /* returns false while the ranks may have different gradients */
    uint64_t versions;                           /* versions of the parameters when the units were gathered; units.c */
    bool gathered; /* this rank has all parameters of the units until ls_units_gather(false) */
    bool decided;
    bool whole;  /* each rank owns whole parameters */
    bool failed; /* an exchange or a step failed on some rank, so the ranks may have different parameters */
};

/* Returns the function that reserves memory for the flat buffers of a ZeRO stage. NULL selects ordinary memory. */
ls_flat_memory *ls_shards_memory(int stage);

/*
 * Shards the state of optimizers that are created later for the parameters of `model`. `replicas` averages the
 * gradients of these parameters with `reducer`, which is open and outlives the shards. The flat buffers are the
 * model's, in ls_shards_memory. The caller sets the ranges and the functions, and calls ls_shards_close. Returns NULL
 * with an error.
 */
ls_shards *ls_shards_open(ls_module *replicas, ls_module *model, int stage, const ls_gradient_reducer *reducer);

/* Ends the sharding for optimizers created later. Existing optimizers can no longer step. NULL is allowed. */
void ls_shards_close(ls_shards *shards);

/* Distributes the elements over the ranks, unless an optimizer has already done so. */
ls_status ls_shards_decide(ls_shards *shards, const char *call);

/* Fails after a failed exchange, or after ls_comm_free. */
ls_status ls_shards_check(const ls_shards *shards, const char *call);

/* Sets the range of a parameter, without the gap after it. Returns false if the parameter was moved to other memory. */
bool ls_shards_find(const ls_shards *shards, const ls_tensor *parameter, ls_range *range);

/* Returns the address of a range's parameters or gradients. */
void *ls_shards_elements(const ls_shards *shards, const ls_range *range, bool gradients);

/* Returns the elements of a range that this rank owns. */
ls_range ls_shards_own(const ls_shards *shards, const ls_range *range);

/* Sends the parameters of a range to every rank. Collective. */
ls_status ls_shards_share(ls_shards *shards, const ls_range *range);

/*
 * Begins to send the parameters of a range to every rank. Only on the CPU, with overlap. Collective. If the exchange
 * cannot begin, the exchanges of all ranks fail.
 */
ls_status ls_shards_begin_share(ls_shards *shards, const ls_range *range, ls_range_exchange *exchange);
ls_status ls_shards_end_share(ls_shards *shards, ls_range_exchange *exchange);

/*
 * Begins to replace this rank's own gradients in a range with the mean over ranks. The other elements of the range are
 * undefined afterwards. Waits for the exchange if the shards have no overlap. Collective. If the exchange cannot begin,
 * the exchanges of all ranks fail. ls_shards_end_reduce reports a failure of the encoding, and does nothing for an
 * exchange that was not begun.
 */
ls_status ls_shards_begin_reduce(ls_shards *shards, const ls_range *range, ls_range_exchange *exchange);
ls_status ls_shards_end_reduce(ls_shards *shards, const ls_range *range, ls_range_exchange *exchange);

/* Frees the memory of the elements of a range (parameters or gradients) that this rank does not own. */
void ls_shards_discard(const ls_shards *shards, const ls_range *range, bool gradients);

/* Returns the number of bytes of the encoded gradients of a range: 0 if gradients are sent unchanged. */
int64_t ls_shards_encoded_bytes(const ls_shards *shards, const ls_range *range);

/* From stage 2 on, adds bytes on this rank to the account: parameters, gradients, and gradients that are encoded
   (LS_MEMORY_BUCKETS). Negative values subtract. */
void ls_shards_count(ls_shards *shards, ls_memory_kind kind, int64_t bytes);

#endif
