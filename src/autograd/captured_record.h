/* The record of a captured step above its list of calls: captured_step.c and captured_calls.c share it. */
#ifndef LS_AUTOGRAD_CAPTURED_RECORD_H
#define LS_AUTOGRAD_CAPTURED_RECORD_H

#include "autograd/captured_step.h"

/* A tensor that exists before the step and is an input of its operations. */
typedef struct captured_input {
    ls_tensor *tensor; /* held */
    const void *data;  /* the tensor's first element */
    const char *operation;
    int argument; /* from 1 */
    bool needs_grad;
    bool made_in_step;
    bool in_program; /* the program or a scope holds a reference */
    /* of a leaf */
    bool zeroed;     /* the step clears the gradient before it uses it */
    bool cleared;    /* the step clears the gradient after the latest exchange with the other ranks */
    bool has_before; /* the leaf had a gradient before the step */
    uint64_t given;  /* ls_leaf.given before the step */
    const ls_tensor *gradient;
    const void *gradient_data;
    bool settled; /* the ranks have agreed whether the leaf has a gradient; the next two fields are from that time */
    bool has_settled;
    uint64_t given_settled;
} captured_input;

/* The modes of a thread that decide what operations do. */
typedef struct captured_modes {
    bool no_grad;
    ls_dtype autocast;
} captured_modes;

/* The recorded calls of an exchange of data between ranks. */
typedef struct captured_exchange {
    int begin; /* index of the exchange's first call; equal to `call` if there are no earlier calls */
    int call;  /* index of the exchange's last call */
    void (*notify)(void *object, bool begun);
    void *object;
} captured_exchange;

/* An object that a call enters and a later call leaves. */
typedef struct captured_entry {
    int enter, leave; /* indices of the calls */
    void (*function)(void *object);
    void *object;
} captured_entry;

/* At most one exchange of the ranks' shares of the global batch, and one of gradients. */
enum { LS_STEP_EXCHANGES = 2 };

struct ls_step {
    ls_capture capture; /* the first member: the hooks convert its address */
    ls_step_function function;
    void *user;
    bool eager;             /* a replay calls the function */
    uint64_t thread_serial; /* of the thread that captured the step */
    const ls_scope *outer;  /* the innermost scope when the step was captured */
    captured_modes modes;
    captured_input *inputs;
    int input_count;
    ls_capture_guard *guards;
    int guard_count;
    captured_exchange exchanges[LS_STEP_EXCHANGES];
    int exchange_count;
    captured_entry *entries;
    int entry_count;
    int early_call;      /* index of the first early call of the open exchange; 0 if there is none */
    bool polls;          /* the open exchange has at least two early calls */
    bool averages;       /* one exchange averages gradients */
    double **factors;    /* see ls_capture_scale_by */
    int factor_count;    /* 0 if replays use the scaling factors of the captured step */
    uint64_t call_began; /* ls_comm_metered.calls when the latest call to the library began */
    uint64_t exchanged;  /* calls on communicators during the exchanges */
    ls_tensor *result;   /* a view without history */
};

static inline ls_step *ls_step_of(ls_capture *capture) {
    return (ls_step *)(void *)capture;
}

/* Refuses the capture, because there is no memory for the record. */
void ls_step_refuse_memory(ls_step *step);

/* Leaves the object that a failed replay has entered, if there is one. */
void ls_step_leave_entered(const ls_step *step);

/* Adds a call that marks the leaves that have gradients at this point of the step. */
void ls_step_record_marks(ls_step *step);

#endif
