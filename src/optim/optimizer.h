/*
 * optim: optimizers, schedules, averages and clipping. This header: the framework shared by all optimizers. An
 * optimizer is one `static const ls_optimizer_type` row. The framework keeps groups, combines adjacent parameters into
 * runs and calls `step` once per run.
 */
#ifndef LS_OPTIM_OPTIMIZER_H
#define LS_OPTIM_OPTIMIZER_H

#include <lockstep/formats.h>
#include <lockstep/optim.h>

#include "autograd/op.h"
#include "base/describe.h"
#include "base/option.h"
#include "base/status.h"
#include "optim/sharding.h"

#define LS_OPTIMIZER_STATES 3

/* Parameters with gradients, adjacent in memory, updated by one kernel call. */
typedef struct ls_run {
    ls_dtype dtype;
    int64_t count;
    const ls_tensor *tensor; /* the first tensor of the run */
    void *parameter;
    const void *gradient;
    void *state[LS_OPTIMIZER_STATES];
    bool first;     /* its first step: the state has its initial values */
    int64_t t;      /* the number of this step, from 1 */
    double product; /* product of the type's product_factor over all steps, including this one */
} ls_run;

typedef struct ls_parameter_group ls_parameter_group;

/*
 * Allowed numbers in a state: finite, and for 64-bit integers, which are counters, 0 to 2^53. Numbers of a model's
 * buffers are unchecked, because they may be -inf, for example in a mask.
 */
typedef enum ls_state_range { LS_STATE_ANY = 0, LS_STATE_NOT_NEGATIVE, LS_STATE_UNCHECKED } ls_state_range;

/* PyTorch's name of a state buffer, and its allowed numbers. */
typedef struct ls_state_word {
    const char *word;
    ls_state_range range;
} ls_state_word;

/*
 * A state of which this rank has only the owned elements (optim/sharding.h), at `memory`. The item of the list is then
 * a separate tensor with all elements. If `sharding` is NULL, the item is over the state itself.
 */
typedef struct ls_state_shard {
    const struct ls_optimizer_slot *slot; /* also of a state that is not sharded; NULL: the state of no parameter */
    ls_sharding *sharding;                /* borrowed */
    char *memory;
} ls_state_shard;

/* Named tensors over the state of an optimizer. */
typedef struct ls_state_list {
    ls_named *items;
    char **names;           /* of the items */
    ls_state_range *ranges; /* of the items */
    ls_state_shard *shards; /* of the items */
    int count;
    bool shapes; /* items of sharded states have a shape only */
} ls_state_list;

typedef struct ls_optimizer_type {
    const char *name; /* as in messages: "ls_sgd" */
    /* The options, except learning_rate and weight_decay, which belong to a group. */
    const ls_field *fields;
    /* Returns the number of state buffers of a run under these options. */
    int (*states)(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]);
    /* Returns their initial value. */
    double (*state_start)(const ls_optimizer *optimizer);
    ls_status (*step)(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream, const ls_run *run,
                      double learning_rate, double weight_decay);
    /* Returns the address of its momentum; NULL if it was made without. The member may be NULL. */
    double *(*momentum)(ls_optimizer *optimizer);
    bool one_by_one; /* a run is one parameter, because the method needs whole parameters */
    /*
     * Returns the factor by which each step multiplies a product per parameter. product_word is PyTorch's name of the
     * product. Both are NULL without such a product.
     */
    double (*product_factor)(const ls_optimizer *optimizer, int64_t t);
    const char *product_word;

    /* Methods that evaluate the loss themselves have these instead of the three above. */
    ls_status (*step_closure)(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss);
    /* Refuses a new group on which the method cannot work. */
    ls_status (*check_group)(const ls_optimizer *optimizer, const ls_parameter_group *group);
    /* Adds the method's state in optimizer->descent to the list. */
    ls_status (*list)(ls_optimizer *optimizer, ls_state_list *list);
    /* Makes optimizer->descent such that `list` adds tensors like the given ones, if they can be its own. */
    ls_status (*make_room)(const char *call, ls_optimizer *optimizer, const ls_named *given, int count);
    /* Frees the method's state. */
    void (*forget)(ls_optimizer *optimizer);
    /* Returns the number of bytes that the method allocates later. NULL: none. */
    int64_t (*pending)(const ls_optimizer *optimizer);
} ls_optimizer_type;

/* One parameter of a group. */
typedef struct ls_optimizer_slot {
    ls_tensor *parameter;      /* borrowed */
    ls_shard own;              /* the elements that this rank steps: all, unless the group is sharded */
    size_t offset;             /* of the parameter in a block with memory for every slot, in bytes */
    size_t state_offset;       /* of the state of its own elements in the group's state buffers, in bytes */
    const ls_storage *storage; /* of the parameter, when it was added; never dereferenced */
    int64_t t;                 /* steps taken */
    double product;
} ls_optimizer_slot;

struct ls_parameter_group {
    const ls_optimizer *by; /* its type and options step the group: the group's own optimizer, or its `others` */
    double learning_rate;
    double weight_decay;
    ls_optimizer_slot *slots;
    int count;
    const ls_device *device; /* of all parameters, and of the states */
    ls_sharding *sharding;   /* of all parameters; holds a reference; NULL: not sharded */
    size_t bytes;            /* size of a block with memory for every slot, including gaps */
    size_t state_bytes;      /* the same for the elements that this rank steps */
    ls_storage *blocks[LS_OPTIMIZER_STATES];
    char *state[LS_OPTIMIZER_STATES]; /* memory of the blocks */
};

struct ls_optimizer {
    const ls_optimizer_type *type;
    union {
        ls_sgd_options sgd;
        ls_adam_options adam;
        ls_rmsprop_options rmsprop;
        ls_adagrad_options adagrad;
        ls_adadelta_options adadelta;
        ls_nadam_options nadam;
        ls_radam_options radam;
        ls_lion_options lion;
        ls_lamb_options lamb;
        ls_muon_options muon;
        ls_lbfgs_options lbfgs;
        ls_conjugate_gradient_options conjugate_gradient;
    } options;
    bool decoupled; /* Adam's weight decay is applied to the parameter */
    double learning_rate;
    double weight_decay;
    ls_parameter_group *groups;
    int group_count;
    bool stepped;           /* it has begun a step */
    ls_step_info last_step; /* progress of the last step with a closure */
    ls_optimizer *others;   /* for parameters that are not matrices, if the method is for matrices; it has no groups */
    const ls_module *model; /* borrowed, for names; NULL if groups were added by hand */
    ls_state_list listed;   /* the last result of ls_optimizer_state */
    ls_comm *comm; /* borrowed: the ranks over which the parameters of ls_descent are sharded; NULL: not sharded */
    struct ls_descent *descent; /* state of a method that evaluates the loss; NULL before its first step */
};

/*
 * Returns an optimizer with the options of `initial`, over the parameters of `model` unless that is NULL. Takes
 * ownership of `others`, also on failure.
 */
ls_optimizer *ls_optimizer_new(const ls_optimizer *initial, ls_module *model);

/* Fails with LS_ERR_STATE if the optimizer was freed. */
ls_status ls_optimizer_check_here(const char *call, const ls_optimizer *optimizer);
/* Returns the number of bytes of state that steps of the optimizer will allocate, at most. */
int64_t ls_optimizer_pending(const ls_optimizer *optimizer);
/* Returns whether the parameter is in a group. */
bool ls_optimizer_has(const ls_optimizer *optimizer, const ls_tensor *parameter);

/* check_group of methods that need whole parameters: fails with LS_ERR_UNSUPPORTED for shards of tensors. */
ls_status ls_group_check_whole(const ls_optimizer *optimizer, const ls_parameter_group *group);

/*
 * Checks the betas of Adam-like methods, and sets betas of zero to defaults. If the default of beta2 is 0.999, does the
 * same for epsilon.
 */
ls_status ls_adam_check(const char *call, double *beta1, double *beta2, double usual_beta2);
ls_status ls_adam_check_all(const char *call, double *beta1, double *beta2, double *epsilon, double usual_epsilon);
/* Returns a step of Adam's kernel over the run. The caller must set decay, rate and root. */
ls_adam_step ls_adam_step_of(const ls_run *run, double beta1, double beta2, double epsilon);
/* States of methods with both moments: exp_avg and exp_avg_sq. */
int ls_adam_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]);

/*
 * Finds the next run of slots from `*first` on: the slots up to `*last` have gradients and are adjacent, or, with
 * one_by_one, are one slot. Returns false at the end.
 */
bool ls_group_next_run(const ls_parameter_group *group, bool one_by_one, int *first, int *last);

/* Returns whether the step with these gradients must be skipped, as ls_grad_scaler_unscale found; NULL before that. */
bool *ls_grad_scaler_skips(const ls_grad_scaler *scaler, const ls_optimizer *optimizer);

/* Fails with LS_ERR_STATE if a parameter is on another device, or sharded in another way, than its state. */
ls_status ls_group_check_place(const ls_optimizer *optimizer, const ls_parameter_group *group);

/* Evaluates the loss with the closure, and counts the evaluation. */
ls_status ls_optimizer_evaluate(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss);

/*
 * sharded.c. ls_group_lay_out sets the offsets of the slots in the blocks of a group, whose parameters are listed, and
 * which elements this rank steps.
 */
ls_status ls_group_lay_out(const ls_optimizer *optimizer, ls_parameter_group *group);
ls_status ls_slot_refuse_sharding(const ls_optimizer *optimizer, const ls_parameter_group *group, int i);
/* Fails with LS_ERR_STATE if the sharding of slot i's parameter has changed since then, or the parameter has moved. */
static inline ls_status ls_slot_check_sharding(const ls_optimizer *optimizer, const ls_parameter_group *group, int i) {
    const ls_optimizer_slot *slot = &group->slots[i];
    const ls_leaf *leaf = slot->parameter->leaf;
    const bool good = leaf == NULL || (leaf->sharding == group->sharding &&
                                       (leaf->sharding == NULL || slot->parameter->storage->whole == slot->storage));
    return __builtin_expect(good, 1) ? LS_OK : ls_slot_refuse_sharding(optimizer, group, i);
}
/* Sets run->gradient and run->count to the gradients of a run that this rank has. Returns false if it has no gradient
 * of the run. */
bool ls_run_gradients(const ls_parameter_group *group, int first, int last, ls_run *run);
/* Narrows a run to the slots of which this rank steps elements. Returns false if there is no such slot. */
bool ls_run_own(const ls_parameter_group *group, int *first, int *last);
/* Returns whether this rank has only a part of the state. Then ls_optimizer_state is a collective call. */
bool ls_optimizer_is_sharded(const ls_optimizer *optimizer);
/* Fails if the sharded groups cannot step, see ls_sharding.check. */
ls_status ls_optimizer_check_shards(const ls_optimizer *optimizer);
/* Ends a step of this rank's elements, whose result is `status`. Returns the result of all ranks. Collective. */
ls_status ls_optimizer_share_step(const ls_optimizer *optimizer, ls_status status);
/*
 * Fills the whole tensors of a list with the states of all ranks. Collective. ls_state_list_keep does the opposite.
 * ls_state_share fills one whole tensor.
 */
ls_status ls_state_list_share(const ls_state_list *list);
ls_status ls_state_share(const ls_state_shard *shard, const ls_tensor *whole);
ls_status ls_state_list_keep(const ls_state_list *list);
/* Notes that the whole state was restored, see ls_sharding.restored. */
void ls_optimizer_restored(const ls_optimizer *optimizer);

/*
 * Visits the state tensor by tensor. `parameter` is NULL for the state of no parameter. With `gathers`, a sharded state
 * is gathered on every rank for its visit only, so the call is collective, and the rank visits no more tensors after a
 * failure. Otherwise the tensor of a sharded state has a shape, but no elements.
 */
typedef ls_status ls_state_visitor(void *user, const ls_named *state, const ls_tensor *parameter);
ls_status ls_optimizer_visit_state(ls_optimizer *optimizer, bool gathers, ls_state_visitor *visit, void *user);
/* Does the work of ls_optimizer_load with the tensors of the file, which is at `path`. */
ls_status ls_optimizer_load_from(ls_optimizer *optimizer, const char *path, const ls_safetensors *file);
/* Frees the tensors of the last ls_optimizer_state. */
void ls_optimizer_forget_state(ls_optimizer *optimizer);

/* Adds the state of a slot's own elements at `memory`, as a whole tensor of the parameter's shape. */
ls_status ls_state_add_shard(ls_state_list *list, const char *owner, ls_state_word word, ls_state_shard shard);
/* Adds device memory as a tensor "OWNER.WORD", or "WORD" if the owner is "". */
ls_status ls_state_add(ls_state_list *list, const char *owner, ls_state_word word, ls_shape shape, ls_dtype dtype,
                       const ls_device *device, void *memory);
/* Returns the tensor with that name; NULL if there is no such tensor. */
const ls_tensor *ls_state_find(const ls_named *tensors, int count, const char *name);
/*
 * Lists the tensors whose names begin with `prefix`, without the prefix, in `found`, which has room for all. Returns
 * their number.
 */
int ls_state_select(const ls_named *all, int count, const char *prefix, ls_named *found);
/* Writes a group's method with its options, and the group's rates, into `text`. */
void ls_optimizer_describe(const ls_optimizer *optimizer, int group, char *text, size_t size);

/* Frees the list. */
void ls_state_forget(ls_state_list *list);
/*
 * Copies the given tensors into the tensors of the list, if their names fit and their numbers are allowed. Otherwise
 * changes nothing. `type` is the name of the owner for messages.
 */
ls_status ls_state_restore(const char *call, const char *type, const ls_state_list *list, const ls_named *given,
                           int count);
/* Fails with LS_ERR_ARGUMENT if `owner` (which may be NULL), a name or a tensor is NULL. */
ls_status ls_state_check_given(const char *call, const void *owner, const ls_named *given, int count);

#endif
