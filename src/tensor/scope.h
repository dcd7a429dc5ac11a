/*
 * Scopes and the thread's state around them. A scope lists the tensors made in it and holds the tape of what was
 * recorded in it; autograd fills the tape, this floor only keeps its ends and tells autograd when a tensor or a scope
 * goes.
 */
#ifndef LS_TENSOR_SCOPE_H
#define LS_TENSOR_SCOPE_H

#include "base/status.h"
#include "tensor/cache.h"
#include "tensor/tensor.h"

typedef struct ls_tape ls_tape;
typedef struct ls_loss_divisor ls_loss_divisor;

/* What autograd wants to hear. */
typedef struct ls_tape_listener {
    /* The tensor that this node made is being freed. No live node refers to it. */
    void (*output_died)(ls_tape_link *node);
    /* The scope ended and these nodes are left on its tape: moves them to `outer` (true) or frees them. `outer` is NULL
     * when the thread ends. */
    bool (*scope_ended)(ls_tape *tape, ls_tape *outer);
} ls_tape_listener;

/* The head of every node: its place in program order. */
struct ls_tape_link {
    ls_tape_link *previous;
    ls_tape_link *next;
    ls_tape *tape; /* NULL: what the tensor was made by is used up */
    const ls_tape_listener *listener;
};

struct ls_tape {
    ls_tape_link *first;
    ls_tape_link *last;
};

/* Something to be called once around a backward pass over this scope; when the scope ends first it goes outwards with
 * the nodes, or is forgotten. */
typedef struct ls_scope_callback {
    const struct ls_pass_watch *watch; /* autograd's */
    void *user;
    void (*hold)(void *user, bool hold); /* NULL, or called when the record is made (true) and when it goes */
    ls_scope *origin;                    /* the scope from which a backward pass took it; NULL: none */
    struct ls_scope_callback *next;
} ls_scope_callback;

struct ls_scope {
    ls_scope *outer; /* NULL for the root, which every thread has and which owns no tensors */
    ls_tensor *newest;
    ls_tape tape;
    ls_scope_callback *callbacks;
    ls_tensor *gone;  /* records of the tensors of the last scope that ended in this one: see ls_thread_state */
    ls_status status; /* the first failure in it */
    uint32_t errors;  /* ls_error_count when it began */
    bool no_grad;     /* the thread's modes when it began, which its end restores */
    ls_dtype autocast;
    char message[LS_ERROR_CAPACITY];
};

/*
 * What ls_tensor.scope says of a tensor of which neither a scope nor the user holds a reference: nodes, modules, data
 * sets do, and who is lent it can neither release nor give it away. A mark, never read or written.
 */
extern ls_scope ls_nowhere;

/* What ls_tensor.scope says of the record of a batch that its loader has taken back. A mark, too. */
extern ls_scope ls_past_batch;

/* How many records of released tensors wait at most, and how many of earlier batches. Records of batches wait 30
 * batches: more would not fit into the first cache, and cost a small step 2 percent. A batch's record is then the
 * record of every 31st batch, a prime number, so that a program which reads kept batches at regular intervals still
 * gets the error. */
#define LS_RELEASED_RECORDS   32
#define LS_PAST_BATCH_RECORDS 60
/* How many freed objects of each kind wait at most before their memory is freed. */
#define LS_RETIRED_OBJECTS 64

/* A model is many modules. So that freeing a model does not end the wait of loaders and optimizers, which trials
 * borrow, these wait apart. */
typedef enum ls_retired_kind { LS_RETIRED_SHARED, LS_RETIRED_BORROWED, LS_RETIRED_KINDS } ls_retired_kind;

/* The memory of freed objects. */
typedef struct ls_retired_ring {
    void *objects[LS_RETIRED_OBJECTS];
    unsigned next; /* the position of the object that has waited longest */
} ls_retired_ring;

/* Records that wait before they are used again. The record that has waited longest is used first. */
typedef struct ls_record_ring {
    ls_tensor **records; /* NULL where none waits yet */
    unsigned size;
    unsigned next; /* the position of the record that has waited longest */
} ls_record_ring;

/*
 * What a thread keeps.
 *
 * A program may hold a pointer to a tensor that has gone. So that it is told, the record of such a tensor is not used
 * again at once (its memory is): records of a scope that a user ended wait until the next one has ended at the same
 * place, those of ls_release until some more were released. Records of batches wait apart from those of ls_release, so
 * that many calls of ls_release between two batches do not shorten the wait.
 */
typedef struct ls_thread_state {
    ls_scope *scope;       /* the innermost; never NULL */
    ls_tensor *free_queue; /* tensors to be freed one after the other, so that a long chain takes no deep stack */
    struct ls_backward_pass *walking; /* autograd's: the backward pass that runs, or NULL */
    uint64_t pass;                    /* counts this thread's backward passes */
    uint32_t segment;                 /* what is recorded is of this part of the program; see ls_node */
    const ls_device *device;          /* for new tensors; NULL: not asked for yet */
    struct ls_batch_part
        *batch;        /* autograd's: the samples of the module that runs, where ranks share a batch; or NULL */
    bool no_grad;      /* record nothing */
    ls_dtype autocast; /* of products: LS_BF16 or LS_F16, or LS_F32 for none */
    bool freeing;      /* the free queue is being emptied */
    void (*end_scopes)(struct ls_thread_state *thread); /* ends all scopes; NULL: none was ever begun */
    ls_scope *ended;  /* the last that a user ended: its record is used again when another has ended */
    ls_tensor **gone; /* the list for records of tensors that are freed; NULL: they can be used again at once */
    ls_record_ring released;
    ls_record_ring past_batches;
    ls_tensor *released_records[LS_RELEASED_RECORDS];
    ls_tensor *past_batch_records[LS_PAST_BATCH_RECORDS];
    ls_retired_ring retired[LS_RETIRED_KINDS];
    ls_loss_divisor *divisor; /* autograd's: where class losses note what they divide by; or NULL */
    ls_cache cache;
    ls_scope root;
} ls_thread_state;

extern _Thread_local ls_thread_state *ls_thread_present
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Makes this thread's state; NULL with the error set when there is no memory. */
ls_thread_state *ls_thread_make(void);

/* This thread's state, made on first use and freed when the thread ends. NULL with the error set when there is no
 * memory. */
static inline ls_thread_state *ls_thread(void) {
    ls_thread_state *thread = ls_thread_present;
    return __builtin_expect(thread != NULL, 1) ? thread : ls_thread_make();
}

/*
 * What happens at the end of a thread: ends its scopes and frees its tape and its cache. Tensors that users hold stay
 * good. The thread may go on; it then starts anew.
 */
void ls_thread_end(void);

/* Memory for records (tensors, storages, nodes) from this thread's cache; NULL with no message when there is none. */
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

/* Frees the tensors of the scope; it stays open. */
void ls_scope_sweep(ls_scope *scope);

/* ls_scope_end for scopes of the library's own, whose tensors no user has seen: their records are used again at once.
 */
ls_status ls_scope_close(ls_scope *scope);

/* Lets the records that wait in the scope be used again. */
void ls_scope_release_records(ls_thread_state *thread, ls_scope *scope);

/* Drops the reference to a tensor of a batch. If it is the last, a program that kept the pointer gets an error. NULL is
 * allowed. */
void ls_tensor_withdraw(ls_tensor *tensor);

/* Withdraws the tensor, and returns another record of its elements; NULL if something else refers to the tensor. */
ls_tensor *ls_tensor_renew(ls_tensor *tensor);

/* Keeps the memory of a freed object, which ls_allocate returned, for programs that still have the pointer. The object
 * is cleared, except for the mark that it was freed. The memory is freed after LS_RETIRED_OBJECTS more objects of the
 * kind, or with the thread. */
void ls_retire(void *object, ls_retired_kind kind);

/* The callbacks of a scope: each pair of watch and user is there once. */
ls_scope_callback *ls_scope_find_callback(const ls_scope *scope, const struct ls_pass_watch *watch, const void *user);
ls_status ls_scope_add_callback(ls_scope *scope, const ls_scope_callback *callback);
void ls_scope_move_callbacks(ls_scope *from, ls_scope *to);
/* Puts a callback, which is of no scope, at the end of the scope's; frees it if the scope has its like. */
void ls_scope_give_callback(ls_scope *scope, ls_scope_callback *callback);
void ls_scope_drop_callback(ls_scope_callback *callback);
void ls_scope_forget_callbacks(ls_scope *scope);

/*
 * Notes the thread's present error in its innermost scope, if it is the first there. Every operation that fails calls
 * it; returns NULL so that `return ls_scope_failed();` reads well.
 */
void *ls_scope_failed(void);

/* The same for functions of ls_status: returns the thread's present status. */
static inline ls_status ls_scope_failed_status(void) {
    (void)ls_scope_failed();
    return ls_error_status();
}

/*
 * Whether a NULL among a call's arguments is explained by something that failed in the innermost scope (anywhere in the
 * thread when none is open). If not, the caller erred.
 */
bool ls_scope_explains_null(const ls_thread_state *thread);

#endif
