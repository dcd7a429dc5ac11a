/*
 * Scopes and the thread's state around them. A scope lists the tensors made in it and holds the tape of what was
 * recorded in it; autograd fills the tape, this floor only keeps its ends and tells autograd when a tensor or a scope
 * goes.
 */
#ifndef LS_TENSOR_SCOPE_H
#define LS_TENSOR_SCOPE_H

#include "base/status.h"
#include "tensor/tensor.h"

typedef struct ls_tape ls_tape;

/* What autograd wants to hear. */
typedef struct ls_tape_listener {
    /* The tensor that this node made is being freed. No live node refers to it. */
    void (*output_died)(ls_tape_link *node);
    /* The scope ended and these nodes are left on its tape: move them to `outer` or free them. */
    void (*scope_ended)(ls_tape *tape, ls_tape *outer);
} ls_tape_listener;

/* The head of every node: its place in program order. */
struct ls_tape_link {
    ls_tape_link *previous;
    ls_tape_link *next;
    ls_tape *tape;
    const ls_tape_listener *listener;
};

struct ls_tape {
    ls_tape_link *first;
    ls_tape_link *last;
};

struct ls_scope {
    ls_scope *outer; /* NULL for the root, which every thread has and which owns no tensors */
    ls_tensor *newest;
    ls_tape tape;
    ls_status status; /* the first failure in it */
    char message[LS_ERROR_CAPACITY];
};

/* What a thread keeps: its innermost scope, whether it records, and free tensor records. */
typedef struct ls_thread_state {
    ls_scope *scope; /* never NULL */
    bool no_grad;
    ls_scope root;
    ls_tensor *free_tensors;
    ls_storage *free_storages;
    ls_scope *free_scopes;
} ls_thread_state;

/* This thread's state, made on first use and freed when the thread ends. NULL with the error set when there is no
 * memory. */
ls_thread_state *ls_thread(void);

/*
 * Notes the thread's present error in its innermost scope, if it is the first there. Every operation that fails calls
 * it; returns NULL so that `return ls_scope_failed();` reads well.
 */
void *ls_scope_failed(void);

#endif
