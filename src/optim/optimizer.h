/*
 * optim: optimizers, schedules, averages and clipping. This header defines the framework shared by all optimizers. An
 * optimizer is a `static const ls_optimizer_type`. The framework keeps groups, combines adjacent parameters into runs
 * and calls `step` once per run.
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

/* Parameters with gradients that are adjacent in memory and are updated by one kernel call. */
typedef struct ls_run {
    ls_dtype dtype;
    int64_t count;
    const ls_tensor *tensor; /* the first tensor of the run */
    void *parameter;
    const void *gradient;
    void *state[LS_OPTIMIZER_STATES];
    bool first;     /* this is the first step: the state has its initial values */
    int64_t t;      /* number of this step, from 1 */
    double product; /* product of the results of the type's product_factor over all steps, including this one */
} ls_run;

typedef struct ls_parameter_group ls_parameter_group;

/*
 * Allowed numbers in a state. LS_STATE_ANY allows finite numbers. 64-bit integers are counters, and must be 0 to 2^53.
 * Numbers of a model's buffers are unchecked, because they may be -inf, for example in a mask.
 */
typedef enum ls_state_range { LS_STATE_ANY = 0, LS_STATE_NOT_NEGATIVE, LS_STATE_UNCHECKED } ls_state_range;

/* The PyTorch name of a state buffer, and the numbers that it may contain. */
typedef struct ls_state_word {
    const char *word;
    ls_state_range range;
} ls_state_word;

/*
 * A state of which this rank has only its own elements (optim/sharding.h), at `memory`. The list then contains a
 * separate tensor with all elements. If `sharding` is NULL, the list's tensor uses the state's memory.
 */
typedef struct ls_state_shard {
    const struct ls_optimizer_slot *slot; /* also set without sharding; NULL for no parameter */
    ls_sharding *sharding;                /* borrowed */
    char *memory;
} ls_state_shard;

/* Named tensors that use the memory of an optimizer's state. */
typedef struct ls_state_list {
    ls_named *items;
    char **names;           /* of the items */
    ls_state_range *ranges; /* of the items */
    ls_state_shard *shards; /* of the items */
    int count;
    bool shapes; /* tensors for sharded states have a shape but no elements */
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
    /* Returns the address of the optimizer's momentum, or NULL if it was created without momentum. The member may be
     * NULL. */
    double *(*momentum)(ls_optimizer *optimizer);
    bool one_by_one; /* each run is one parameter, because the method needs whole parameters */
    /*
     * Returns the factor by which each step multiplies a product per parameter. product_word is PyTorch's name of the
     * product. Both members are NULL if the method has no such product.
     */
    double (*product_factor)(const ls_optimizer *optimizer, int64_t t);
    const char *product_word;

    /* Methods that evaluate the loss themselves set these members instead of the three above. */
    ls_status (*step_closure)(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss);
    /* Rejects a new group that the method does not support. */
    ls_status (*check_group)(const ls_optimizer *optimizer, const ls_parameter_group *group);
    /* Adds the method's state in optimizer->descent to the list. */
    ls_status (*list)(ls_optimizer *optimizer, ls_state_list *list);
    /* Creates optimizer->descent so that `list` adds tensors like the given tensors, if they fit this method. */
    ls_status (*make_room)(const char *call, ls_optimizer *optimizer, const ls_named *given, int count);
    /* Frees the method's state. */
    void (*forget)(ls_optimizer *optimizer);
    /* Returns the number of bytes that the method will allocate later. NULL if it allocates nothing. */
    int64_t (*pending)(const ls_optimizer *optimizer);
} ls_optimizer_type;

/* One parameter of a group. */
typedef struct ls_optimizer_slot {
    ls_tensor *parameter; /* borrowed */
    ls_shard own;         /* the elements that this rank updates: all elements, unless the group is sharded */
    size_t offset;        /* offset of the parameter, in bytes, in a block with memory for every slot */
    size_t state_offset;  /* offset of the state of the rank's own elements, in bytes, in the group's state buffers */
    const ls_storage *storage; /* storage of the parameter when it was added; never dereferenced */
    int64_t t;                 /* steps taken */
    double product;
} ls_optimizer_slot;

struct ls_parameter_group {
    const ls_optimizer
        *by; /* the optimizer whose type and options apply to the group: the group's own optimizer, or its `others` */
    double learning_rate;
    double weight_decay;
    ls_optimizer_slot *slots;
    int count;
    const ls_device *device; /* device of all parameters and states */
    ls_sharding *sharding;   /* sharding of all parameters; holds a reference; NULL if not sharded */
    size_t bytes;            /* size of a block with memory for every slot, including gaps */
    size_t state_bytes;      /* size of such a block for only the elements that this rank updates */
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
    bool decoupled; /* weight decay is applied directly to the parameter (decoupled weight decay) */
    double learning_rate;
    double weight_decay;
    ls_parameter_group *groups;
    int group_count;
    unsigned steps;         /* number of steps that have begun, up to 2 */
    ls_step_info last_step; /* progress of the last step with a closure */
    ls_optimizer
        *others; /* optimizer of the parameters that are not matrices, if the method is for matrices; has no groups */
    const ls_module *model; /* borrowed, for names; NULL if groups were added by hand */
    ls_state_list listed;   /* the last result of ls_optimizer_state */
    ls_comm *comm; /* borrowed; the ranks over which the parameters of ls_descent are sharded; NULL if not sharded */
    struct ls_descent *descent; /* state of a method that evaluates the loss; NULL before its first step */
    int captures;               /* number of captured steps that refer to the optimizer, which may be freed already */
};

/*
 * Returns an optimizer with the options of `initial`, over the parameters of `model`, unless `model` is NULL. Takes
 * ownership of `others`, even on failure.
 */
ls_optimizer *ls_optimizer_new(const ls_optimizer *initial, ls_module *model);

/* Fails with LS_ERR_STATE if the optimizer was freed. */
ls_status ls_optimizer_check_here(const char *call, const ls_optimizer *optimizer);
/* Returns the maximum number of bytes of state that future steps of the optimizer will allocate. */
int64_t ls_optimizer_pending(const ls_optimizer *optimizer);
/* Returns whether the parameter is in a group. */
bool ls_optimizer_has(const ls_optimizer *optimizer, const ls_tensor *parameter);

/* Implements check_group for methods that need whole parameters: fails with LS_ERR_UNSUPPORTED for shards of
 * tensors. */
ls_status ls_group_check_whole(const ls_optimizer *optimizer, const ls_parameter_group *group);

/*
 * Checks the betas of Adam-like methods, and replaces zero betas with the defaults. If the default of beta2 is 0.999,
 * does the same for epsilon.
 */
ls_status ls_adam_check(const char *call, double *beta1, double *beta2, double usual_beta2);
ls_status ls_adam_check_all(const char *call, double *beta1, double *beta2, double *epsilon, double usual_epsilon);
/* Returns a step of Adam's kernel over the run. The caller must set decay, rate and root. */
ls_adam_step ls_adam_step_of(const ls_run *run, double beta1, double beta2, double epsilon);
/* Lists the states of methods with both moments: exp_avg and exp_avg_sq. */
int ls_adam_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]);

/*
 * Finds the next run, starting at slot `*first`: the slots up to `*last` have gradients and are adjacent. With
 * one_by_one, the run is one slot. Returns false at the end.
 */
bool ls_group_next_run(const ls_parameter_group *group, bool one_by_one, int *first, int *last);

/* Fails with LS_ERR_STATE if the scaler was freed, and with ls_fail_missing if it is NULL. */
ls_status ls_grad_scaler_check_here(const char *call, const ls_grad_scaler *scaler);
/* Returns a pointer to whether the step with these gradients must be skipped, as ls_grad_scaler_unscale found.
 * Returns NULL before ls_grad_scaler_unscale. */
bool *ls_grad_scaler_skips(const ls_grad_scaler *scaler, const ls_optimizer *optimizer);
/* Forgets that the optimizer's gradients were unscaled, because a step failed and its gradients were cleared. */
void ls_grad_scaler_forget(ls_grad_scaler *scaler, const ls_optimizer *optimizer);

/* Fails with LS_ERR_STATE if parameter i of the group was freed. */
ls_status ls_slot_check_here(const ls_optimizer *optimizer, const ls_parameter_group *group, int i);

/* Fails with LS_ERR_STATE if the device or the sharding of a parameter differs from the device or the sharding of its
 * state. */
ls_status ls_group_check_place(const ls_optimizer *optimizer, const ls_parameter_group *group);

/* Fails with LS_ERR_STATE if the optimizer has no group, and would train nothing. Its model was NULL, perhaps because
 * the model's constructor failed. */
ls_status ls_optimizer_check_groups(const char *call, const ls_optimizer *optimizer);
/* Records that a step has begun. */
void ls_optimizer_begin_step(ls_optimizer *optimizer);
/* Evaluates the loss with the closure, and counts the evaluation. */
ls_status ls_optimizer_evaluate(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss);

/*
 * sharded.c. ls_group_lay_out sets the offsets of the slots in the blocks of a group, and the elements that this rank
 * updates. The group's parameters are already listed.
 */
ls_status ls_group_lay_out(const ls_optimizer *optimizer, ls_parameter_group *group);
ls_status ls_slot_refuse_sharding(const ls_optimizer *optimizer, const ls_parameter_group *group, int i);
/* Fails with LS_ERR_STATE if the sharding of slot i's parameter has changed since then, or if the parameter has
 * moved. */
static inline ls_status ls_slot_check_sharding(const ls_optimizer *optimizer, const ls_parameter_group *group, int i) {
    const ls_optimizer_slot *slot = &group->slots[i];
    const ls_leaf *leaf = slot->parameter->leaf;
    const bool good = leaf == NULL || (leaf->sharding == group->sharding &&
                                       (leaf->sharding == NULL || slot->parameter->storage->whole == slot->storage));
    return __builtin_expect(good, 1) ? LS_OK : ls_slot_refuse_sharding(optimizer, group, i);
}
/* Sets run->gradient and run->count to the part of a run's gradients that this rank has. Returns false if this rank
 * has no gradient of the run. */
bool ls_run_gradients(const ls_parameter_group *group, int first, int last, ls_run *run);
/* Narrows a run to the slots that contain elements that this rank updates. Returns false if there are none. */
bool ls_run_own(const ls_parameter_group *group, int *first, int *last);
/* Returns whether this rank has only a part of the state. If so, ls_optimizer_state is collective. */
bool ls_optimizer_is_sharded(const ls_optimizer *optimizer);
/* Fails if the sharded groups cannot take a step: see ls_sharding.check. */
ls_status ls_optimizer_check_shards(const ls_optimizer *optimizer);
/* Ends a step of this rank's elements with result `status`. Returns the combined result of all ranks. Collective. */
ls_status ls_optimizer_share_step(const ls_optimizer *optimizer, ls_status status);
/*
 * Fills the complete tensors of a list with the states of all ranks. Collective. ls_state_share fills one complete
 * tensor. ls_state_keep does the opposite without communication: copies this rank's elements of a complete tensor, on
 * any device, into its state.
 */
ls_status ls_state_list_share(const ls_state_list *list);
ls_status ls_state_share(const ls_state_shard *shard, const ls_tensor *whole);
ls_status ls_state_keep(const ls_state_shard *shard, const ls_tensor *whole);
/* Records that the complete state was restored: see ls_sharding.restored. */
void ls_optimizer_restored(const ls_optimizer *optimizer);

/*
 * Visits the state one tensor at a time. `parameter` is NULL if the state belongs to no parameter. With `gathers`, a
 * sharded state is gathered on every rank, only for the duration of its visit. The call is then collective, and a rank
 * visits no more tensors after a failure. Without `gathers`, the tensor of a sharded state has a shape but no elements.
 */
typedef ls_status ls_state_visitor(void *user, const ls_named *state, const ls_tensor *parameter);
ls_status ls_optimizer_visit_state(ls_optimizer *optimizer, bool gathers, ls_state_visitor *visit, void *user);
#define LS_OPTIMIZER_KEY "lockstep_optimizer" /* metadata key: the method of the saved state, for example "ls_adam" */
#define LS_GROUP_STATES  "param_groups."      /* beginning of the names of states that belong to groups */
/* Fails with LS_ERR_FORMAT if the file at `path` has the state of a different method. Accepts files of older versions,
 * which do not contain the method. */
ls_status ls_optimizer_check_method(const ls_optimizer *optimizer, const char *path, const ls_safetensors *file);
/* Does the work of ls_optimizer_load with the tensors of the file at `path`, which may be an open file
 * (formats/named.h): then reads one tensor at a time. */
ls_status ls_optimizer_load_from(ls_optimizer *optimizer, const char *path, const ls_safetensors *file);
/* Frees the tensors of the last ls_optimizer_state. */
void ls_optimizer_forget_state(ls_optimizer *optimizer);

/* Adds the state of a slot's own elements at `memory`, as a complete tensor of the parameter's shape. */
ls_status ls_state_add_shard(ls_state_list *list, const char *owner, ls_state_word word, ls_state_shard shard);
/* Adds device memory as a tensor "OWNER.WORD", or "WORD" if the owner is "". */
ls_status ls_state_add(ls_state_list *list, const char *owner, ls_state_word word, ls_shape shape, ls_dtype dtype,
                       const ls_device *device, void *memory);
/* Returns the tensor with this name, or NULL if there is no such tensor. */
const ls_tensor *ls_state_find(const ls_named *tensors, int count, const char *name);
/*
 * Lists the tensors whose names begin with `prefix` in `found`, which must have room for all tensors. Removes the
 * prefix from the names. Returns the number of tensors.
 */
int ls_state_select(const ls_named *all, int count, const char *prefix, ls_named *found);
/* Writes a description of a group's method, options and rates into `text`. */
void ls_optimizer_describe(const ls_optimizer *optimizer, int group, char *text, size_t size);

/* Frees the list. */
void ls_state_forget(ls_state_list *list);
/*
 * Copies the given tensors into the tensors of the list, or into the states of its shards, if their names match and
 * their numbers are allowed. Otherwise changes nothing. `type` names the owner in messages.
 */
ls_status ls_state_restore(const char *call, const char *type, const ls_state_list *list, const ls_named *given,
                           int count);
/* Fails with LS_ERR_ARGUMENT if `owner` (which may be NULL), a name or a tensor is NULL. */
ls_status ls_state_check_given(const char *call, const void *owner, const ls_named *given, int count);

#endif
