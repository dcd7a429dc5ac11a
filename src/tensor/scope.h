/*
 * Scopes and the state of a thread. A scope lists the tensors created in it and holds the tape of the operations
 * recorded in it. autograd fills the tape. This layer only stores the ends of the tape, and notifies autograd when a
 * tensor or a scope ends.
 */
#ifndef LS_TENSOR_SCOPE_H
#define LS_TENSOR_SCOPE_H

#include "base/status.h"
#include "tensor/cache.h"
#include "tensor/tensor.h"

typedef struct ls_tape ls_tape;
typedef struct ls_loss_divisor ls_loss_divisor;
typedef struct ls_capture ls_capture; /* capture.h */

/* Callbacks of autograd. */
typedef struct ls_tape_listener {
    /* The output of this node is being freed. No live node refers to it. */
    void (*output_died)(ls_tape_link *node);
    /*
     * Called when a scope has ended and these nodes are left on its tape. Moves them to `outer` and returns true, or
     * frees them. `outer` is NULL when the thread ends.
     */
    bool (*scope_ended)(ls_tape *tape, ls_tape *outer);
} ls_tape_listener;

/* The head of every node, which links the nodes in program order. */
struct ls_tape_link {
    ls_tape_link *previous;
    ls_tape_link *next;
    ls_tape *tape; /* NULL if the node was walked and freed */
    const ls_tape_listener *listener;
};

struct ls_tape {
    ls_tape_link *first;
    ls_tape_link *last;
};

/*
 * A callback to be called once per backward pass over this scope; a conditional one, only in passes that reach it. If
 * the scope ends first, the callback moves to the outer scope with the nodes, or is dropped.
 */
typedef struct ls_scope_callback {
    const struct ls_pass_watch *watch; /* for autograd */
    void *user;
    /* may be NULL; called when the record is created (true) and when it is freed (false) */
    void (*hold)(void *user, bool hold);
    uint64_t order;   /* of conditional callbacks, which are called in ascending order after all others */
    bool conditional; /* takes part only in passes that reach its user */
    uint64_t pass;    /* number of the last backward pass in which the callback took part */
    struct ls_scope_callback *next;
} ls_scope_callback;

struct ls_scope {
    ls_scope *outer; /* NULL for the root scope, which every thread has and which owns no tensors */
    ls_tensor *newest;
    ls_tape tape;
    ls_scope_callback *callbacks;
    ls_tensor *gone;  /* records of the tensors of the last scope that ended inside this scope: see ls_thread_state */
    ls_status status; /* the first failure in the scope */
    bool lost;        /* a call that returns a tensor has failed */
    bool library;     /* ls_scope_open created the scope */
    uint32_t errors;  /* ls_error_count at its begin */
    bool no_grad;     /* the thread's modes at the begin of the scope, restored at its end */
    ls_dtype autocast;
    char message[LS_ERROR_CAPACITY];
};

/*
 * Value of ls_tensor.scope for a tensor to which only nodes, modules or data sets hold references. A user who borrows
 * such a tensor can neither release it nor give it away. Only the address is used.
 */
extern ls_scope ls_nowhere;

/* Value of ls_tensor.scope for the record of a batch that its loader has withdrawn. Only the address is used. */
extern ls_scope ls_past_batch;

/*
 * The maximum numbers of waiting records: of released tensors, and of earlier batches. Records of batches wait for 30
 * batches: more would not fit into the L1 cache, and would cost a small step 2 percent. A record is then reused by
 * every 31st batch. This is a prime number, so that a program that reads kept batches at regular intervals still gets
 * the error.
 */
#define LS_RELEASED_RECORDS   32
#define LS_PAST_BATCH_RECORDS 60

/*
 * The maximum numbers of freed objects of each kind that wait until their memory is freed. A model consists of many
 * modules, and a program may free a model and then, needlessly, one of its modules. A trial frees all its callbacks and
 * metrics. Objects with one owner, such as optimizers, loaders and trials, wait in a separate ring, so that freeing a
 * model or a trial does not end their wait. Data sets are large, so only 64 are kept.
 */
#define LS_RETIRED_MODULE_OBJECTS  1024
#define LS_RETIRED_DATASET_OBJECTS 64
#define LS_RETIRED_SINGLE_OBJECTS  64
#define LS_RETIRED_PART_OBJECTS    256
typedef enum ls_retired_kind {
    LS_RETIRED_MODULE,
    LS_RETIRED_DATASET,
    LS_RETIRED_SINGLE, /* has one owner */
    LS_RETIRED_PART,   /* a callback or a metric */
    LS_RETIRED_KINDS
} ls_retired_kind;

/* The memory of freed objects. */
typedef struct ls_retired_ring {
    void **objects;
    unsigned size;
    unsigned next; /* the position of the object that has waited longest */
} ls_retired_ring;

/* Records that wait before they are reused. The record that has waited longest is reused first. */
typedef struct ls_record_ring {
    ls_tensor **records; /* an entry is NULL if its position is empty */
    unsigned size;
    unsigned next; /* the position of the record that has waited longest */
} ls_record_ring;

/*
 * The state of a thread.
 *
 * A program may hold a pointer to a freed tensor. So that the program gets an error, the record of such a tensor is not
 * reused immediately (its memory is). Records of a scope that a user ended wait until the next scope at the same depth
 * has ended. Records of ls_release wait until a number of other tensors were released. Records of batches wait
 * separately, so that many calls to ls_release between two batches do not shorten their wait.
 */
typedef struct ls_thread_state {
    ls_scope *scope;       /* the innermost scope; never NULL */
    int hooks;             /* number of running hooks of trials, in which ls_thread_end fails */
    bool end_refused;      /* ls_thread_end has failed in the running hook */
    ls_tensor *free_queue; /* tensors to free one after another, so that freeing a long chain needs no deep recursion */
    struct ls_backward_pass *walking; /* for autograd: the running backward pass, or NULL */
    uint64_t pass;                    /* number of this thread's backward passes */
    uint32_t segment;                 /* program segment of the nodes being recorded; see ls_node */
    const ls_device *device;          /* device of new tensors; NULL if not determined yet */
    uint64_t serial;                  /* differs from the serial of every other thread, also of ended threads */
    struct ls_batch_part *batch;      /* for autograd: the running module's samples if ranks share a batch; or NULL */
    /* input and target of the last batch if each rank's loader returns global batches; borrowed from the loader */
    const ls_tensor *whole_batch[2];
    /* the storages of input and target of the loaders' last batch, borrowed; NULL after the loader dropped the batch */
    const struct ls_storage *loaded[2];
    int64_t loaded_first;  /* index of this rank's first sample in the global batch */
    int64_t loaded_number; /* index of the batch in the epoch */
    bool no_grad;          /* record nothing */
    ls_dtype autocast;     /* for matrix products: LS_BF16 or LS_F16; LS_F32 means off */
    bool single_sample;    /* for autograd: the running module has one sample (mixing.h) */
    bool recomputes;       /* a module runs a second time (ls_recompute), and must not change its buffers again */
    bool freeing;          /* the free queue is being emptied */
    void (*end_scopes)(struct ls_thread_state *thread); /* ends all scopes; NULL if no scope was begun yet */
    ls_scope *ended;  /* the last scope that a user ended; its record is reused when another scope has ended */
    ls_tensor **gone; /* the list for records of freed tensors; NULL if the records can be reused immediately */
    ls_record_ring released;
    ls_record_ring past_batches;
    ls_tensor *released_records[LS_RELEASED_RECORDS];
    ls_tensor *past_batch_records[LS_PAST_BATCH_RECORDS];
    ls_retired_ring retired[LS_RETIRED_KINDS];
    ls_loss_divisor *divisor;   /* for autograd: class losses record their divisors here; or NULL */
    ls_capture *capture;        /* records the kernel calls of the running step; or NULL */
    ls_account *account;        /* counts the tensor memory: account.h; NULL in a thread of a loader */
    ls_account *joined_account; /* another thread's account, held, which is used instead */
    ls_cache cache;
    ls_scope root;
    void *retired_modules[LS_RETIRED_MODULE_OBJECTS];
    void *retired_datasets[LS_RETIRED_DATASET_OBJECTS];
    void *retired_singles[LS_RETIRED_SINGLE_OBJECTS];
    void *retired_parts[LS_RETIRED_PART_OBJECTS];
} ls_thread_state;

extern _Thread_local ls_thread_state *ls_thread_present
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Creates this thread's state. Returns NULL with the error set if out of memory. */
ls_thread_state *ls_thread_make(void);

/*
 * Returns this thread's state, which is created on first use and freed when the thread ends. Returns NULL with the
 * error set if out of memory.
 */
static inline ls_thread_state *ls_thread(void) {
    ls_thread_state *thread = ls_thread_present;
    return __builtin_expect(thread != NULL, 1) ? thread : ls_thread_make();
}

/*
 * Returns memory for records (tensors, storages, nodes) from this thread's cache, or NULL, without a message, if out of
 * memory.
 */
static inline void *ls_record_allocate(size_t bytes) {
    ls_thread_state *thread = ls_thread();
    return thread != NULL ? ls_cache_allocate(&thread->cache, bytes) : NULL;
}

void ls_record_release_without_thread(void *record);

static inline void ls_record_release(void *record, size_t bytes) {
    ls_thread_state *thread = ls_thread();
    if (__builtin_expect(thread != NULL, 1)) {
        ls_cache_release(&thread->cache, record, bytes);
    } else {
        ls_record_release_without_thread(record);
    }
}

/* Drops the tensors of the scope but leaves it open. */
void ls_scope_sweep(ls_scope *scope);

/* Same as ls_scope_begin, for the library's own scopes: until they end, ls_thread_end fails. */
ls_scope *ls_scope_open(void);
/* Ends the scopes inside `scope` that a user function has left open. */
void ls_scope_end_inner(const ls_scope *scope);
/*
 * Ends `scope`, and the scopes inside it, after a user function that returned `status`. Returns `status` and keeps its
 * error. If `status` is LS_OK, returns the first failure of a scope.
 */
ls_status ls_scope_end_after(ls_scope *scope, ls_status status);
/* Same as ls_scope_end for the library's own scopes, whose tensors the user has never seen, so that their records
 * are reused immediately. */
ls_status ls_scope_close(ls_scope *scope);

/* Makes the waiting records of the scope available for reuse. */
void ls_scope_release_records(ls_thread_state *thread, ls_scope *scope);

/*
 * Drops the reference to a tensor of a batch. If it is the last reference, a program that kept the pointer gets an
 * error. NULL is allowed.
 */
void ls_tensor_withdraw(ls_tensor *tensor);

/* Withdraws the tensor and returns a new record of its elements, or NULL if there are other references to the
 * tensor. */
ls_tensor *ls_tensor_renew(ls_tensor *tensor);

/*
 * Keeps the memory of a freed object, which ls_allocate returned, for programs that still have the pointer. The object
 * is cleared, except for the mark that it was freed. The memory is freed when the ring of its kind is full and
 * this object has waited longest, or with the thread.
 */
void ls_retire(void *object, ls_retired_kind kind);

/* Returns whether a callback is called before `other`, which was registered earlier. */
static inline bool ls_scope_callback_precedes(const ls_scope_callback *callback, const ls_scope_callback *other) {
    return other->conditional && (!callback->conditional || callback->order < other->order);
}

/*
 * The callbacks of a scope: each pair of watch and user occurs at most once. ls_scope_add_callback adds a copy. A
 * conditional callback stays conditional if the added one, with the same pair, is conditional, too.
 */
ls_status ls_scope_add_callback(ls_scope *scope, const ls_scope_callback *callback);
void ls_scope_move_callbacks(ls_scope *from, ls_scope *to);
void ls_scope_drop_callback(ls_scope_callback *callback);
void ls_scope_forget_callbacks(ls_scope *scope);

/*
 * Notes the thread's current error in its innermost scope, if it is the first error there. Every failed operation must
 * call this function. Returns NULL, for `return ls_scope_failed();`.
 */
void *ls_scope_failed(void);

/* Sets the error, notes it in the scope and returns NULL. For public functions that reject their arguments. */
#define ls_fail_noted(...) ((void)ls_error_set(__VA_ARGS__), ls_scope_failed())

/* Same as ls_scope_failed, for functions that return ls_status: returns the thread's current status. */
ls_status ls_scope_failed_status(void);

/*
 * Returns whether an earlier failure in the innermost scope (or anywhere in the thread, if no scope is open) explains a
 * NULL argument of a call. If not, the caller caused the error.
 */
bool ls_scope_explains_null(const ls_thread_state *thread);

/*
 * Fails because an argument of a call is NULL: `format` names the call and the argument. The call that should have
 * created the argument may have failed, or the caller passed NULL itself.
 *
 * - If a call that returns a tensor has failed in the innermost scope, its error is the cause, and stays.
 * - If another call has failed in this scope (or in the thread, if no scope is open), the message is this error,
 *   followed by "NAME is NULL", as in ls_fail_missing.
 * - Otherwise the caller caused the error.
 */
ls_status ls_scope_fail_null(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
