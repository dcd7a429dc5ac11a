/* nn: modules, layers, initialisers. This header defines the members of a module, and flat buffers for parameters. */
#ifndef LS_NN_MODULE_H
#define LS_NN_MODULE_H

#include <lockstep/comm.h>
#include <lockstep/formats.h>
#include <lockstep/nn.h>

#include "autograd/op.h"
#include "base/owners.h"
#include "base/status.h"

/* A tensor with its full name relative to the module that lists it. */
typedef struct ls_named_tensor {
    char *name;
    ls_tensor *tensor; /* the modules that list the tensor directly hold references */
} ls_named_tensor;

typedef struct ls_named_list {
    ls_named_tensor *items;
    int count;
} ls_named_list;

typedef struct ls_child {
    char *name;
    ls_module *module;
} ls_child;

/*
 * All parameters of one dtype in one buffer, each aligned to LS_FLAT_ALIGNMENT bytes, and their gradients at the same
 * offsets in a second buffer. The gaps are always zero.
 */
typedef struct ls_flat {
    ls_dtype dtype;
    int64_t count; /* elements, gaps included */
    ls_storage *parameters;
    ls_storage *gradients;
} ls_flat;

#define LS_FLAT_ALIGNMENT 64

/*
 * Work around the runs of a recomputed module whose parameters or gradients are sharded over ranks (stages 2 and 3 of
 * ZeRO; parallel/units.c). `enter` gathers them. `leave` keeps this rank's shard, and returns the status of the run, or
 * its own status. `backward` means that the run is the backward pass. Collective.
 */
typedef struct ls_unit ls_unit;
struct ls_unit {
    ls_status (*enter)(ls_unit *unit, bool backward);
    ls_status (*leave)(ls_unit *unit, bool backward, ls_status status);
    /* Fails if an output of the forward run, or an ls_alias or ls_detach of an output, shares memory with the
     * parameters. */
    ls_status (*check_output)(const ls_unit *unit, const ls_tensor *output);
};

/* The hooks that one call added. */
typedef struct ls_hook {
    struct ls_hook *next;
    ls_module_hooks own;
    int number;
    bool removed; /* freed only when no hooks run */
} ls_hook;

struct ls_module {
    const ls_module_type *type;
    void *state;
    ls_hook *hooks; /* in call order; NULL if there are no hooks */
    /* Runs a module with its hooks. The arguments must have passed the checks of ls_forward_many. */
    ls_status (*run_hooked)(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                            int output_count);
    /* Runs a recomputed module (ls_recompute) without hooks. NULL if the module is not recomputed. */
    ls_status (*run_recomputed)(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                int output_count);
    /* Of the model of a data-parallel module, on rank 0 of several ranks: called with `replica` before each run.
     * Otherwise NULL.
     */
    void (*replica_runs)(void *replica);
    void *replica;
    /* Returns the communicator over which a data-parallel module averages gradients, or NULL while averaging is off.
     * NULL for other modules. */
    ls_comm *(*averaged_over)(const ls_module *module);
    ls_unit *unit; /* unit of a recomputed module; NULL if this rank always has the complete parameters and gradients */
    int last_hook; /* the number of the latest hook */
    int hooks_run; /* number of running calls to hooks */
    ls_owners owners;
    bool training;
    bool sequential;       /* made by ls_sequential or ls_sequential_named */
    bool told;             /* ls_sync_gradients has already logged its warning */
    bool failed;           /* the construction has failed (ls_module_fail_if) */
    ls_saved_error *cause; /* error of the first failure; NULL if out of memory */
    int unsynchronized;    /* number of ls_outer of this module that have taken steps since their last outer step */
    ls_named_list own_parameters;
    ls_named_list own_buffers;
    ls_child *children;
    int child_count;
    ls_module **parents; /* borrowed; a module that adds a child twice occurs twice */
    int parent_count;
    /* Objects of failed additions. They are not part of the module, which only keeps them until it is freed. */
    ls_named_list refused_tensors;
    ls_module **refused_children;
    int refused_child_count;
    /*
     * Tensors of this module and all its descendants, with full names. Collected on first use, and discarded when a
     * tensor or a child is added to the module or to a descendant. Kept while a user of their layout exists:
     * ls_data_parallel, ls_outer, or a call that ls_recompute has recorded.
     */
    bool listed;
    bool stale;               /* the lists are kept, and lack a tensor that was added */
    bool grown;               /* the lists are kept, and lack a parameter that was added */
    int list_keepers;         /* number of users of the layout (ls_module_keep_lists) */
    ls_named_list parameters; /* each parameter once, under its first name */
    ls_named_list buffers;    /* each buffer once, except buffers that are also parameters */
    ls_named_list aliases;    /* further names of both */
    ls_division division;     /* of a Pipeline: the ranks over which the tensors of its stages are distributed */
};

/* Returns false for NULL, and for a freed module, with an error. */
bool ls_module_is_here(const ls_module *module);

/* If `failed`, notes that the construction of the module has failed, with the latest error. Only the first failure
 * counts. */
void ls_module_fail_if(ls_module *module, bool failed);

/*
 * While the thread captures a step, notes that the step depends on the module. ls_forward does it; call it for a module
 * that runs without ls_forward.
 */
void ls_module_note_call(ls_module *module);

/* Performs the checks of ls_forward_many. Returns LS_OK, or an error that names the module. */
ls_status ls_module_check_call(const ls_module *module, ls_tensor *const *inputs, int input_count, int output_count);

/* Runs the module without hooks. After LS_OK, all outputs exist. */
ls_status ls_module_run(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count);

/* Runs the forward function once, even for a recomputed module. Requires the same checks. */
ls_status ls_module_run_once(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                             int output_count);

/* Returns LS_OK if no element of `outputs` is NULL. */
ls_status ls_module_check_outputs(const ls_module *module, ls_tensor *const *outputs, int count, uint32_t errors);

/* Releases the user data of the hooks, and frees the hooks. */
void ls_hook_free(ls_hook *hook);

/*
 * Returns a reference for an object that takes ownership of the module; release it with ls_module_drop. NULL is
 * allowed. Returns NULL with an error if the module was freed.
 */
ls_module *ls_module_take(ls_module *module);
void ls_module_drop(ls_module *module);

/*
 * Adds (or drops) a reference of the record of a captured step. If only records hold the module, it counts as freed,
 * but is destroyed with the last record.
 */
void ls_module_hold_record(void *module, bool hold);

/* Adds a reference, for users that may outlive the owner. */
static inline void ls_module_hold(ls_module *module) {
    module->owners.references++;
}

/* Takes ownership of the module and drops it: for constructors that fail or do not use the module. */
static inline void ls_module_consume(ls_module *module) {
    ls_module_drop(ls_module_take(module));
}

/*
 * Returns the first name of a parameter or buffer as a borrowed pointer, or NULL if the tensor is not in the module's
 * lists. The lists must be collected.
 */
const char *ls_module_name_of(const ls_module *module, const ls_tensor *tensor);

/*
 * forward.c: fails because an input is NULL, with the error of the operation that should have made it. Without such an
 * error, fails with LS_ERR_ARGUMENT. `input` names the input in the message.
 */
ls_status ls_module_refuse_missing(const ls_module *module, const char *input);

/* save.c: the contents for ls_module_save: borrowed tensors with names, and NULL-terminated metadata pairs. */
typedef struct ls_saved {
    ls_named *tensors;
    int count;
    const char **metadata;
} ls_saved;
ls_status ls_module_list_saved(const ls_module *module, const char *const *metadata, ls_saved *saved);
void ls_saved_free(ls_saved *saved);

/* save.c: loads a safetensors file like ls_module_load_with. `call` names the user's call. `options` may be NULL. */
ls_status ls_module_load_file(const char *call, ls_module *module, const char *path,
                              const ls_module_load_options *options);
/* Does the work of ls_module_load_file with the tensors of the file at `path`. The module's lists must be collected
 * (ls_module_list). */
ls_status ls_module_load_from(const char *call, ls_module *module, const char *path, const ls_safetensors *file,
                              const ls_module_load_options *options);

/*
 * save.c: the same work in steps, between which ranks can communicate. ls_module_load_check makes all checks, and
 * changes nothing. ls_module_load_one then copies the tensor with this index: parameters first, then buffers.
 */
typedef struct ls_module_loading {
    const char *call; /* the name of the user's call */
    const char *path;
    ls_module *module;
    const ls_safetensors *file; /* may be an open file (formats/named.h) */
    bool gathers; /* parameters may be absent until ls_module_load_one, because the caller gathers each of them */
} ls_module_loading;
ls_status ls_module_load_check(const ls_module_loading *load, const ls_module_load_options *options);
ls_status ls_module_load_one(const ls_module_loading *load, int index);

/* The modes (training or evaluation) of a module and all its descendants. */
typedef struct ls_modes {
    bool *training;
    int count;
} ls_modes;
ls_status ls_modes_take(ls_modes *modes, const ls_module *module);
/* Restores the recorded modes. */
void ls_modes_set(const ls_modes *modes, ls_module *module);
/* Restores the recorded modes, and frees the record. */
void ls_modes_put(ls_modes *modes, ls_module *module);
void ls_modes_free(ls_modes *modes);

/*
 * Collects the lists, and keeps them even if the module or a descendant gets further parameters or buffers, until a
 * call of ls_module_release_lists. For users that store counts or positions of these lists. Fails like ls_module_list.
 */
bool ls_module_keep_lists(ls_module *module);
/* Ends the use of the lists. If they lack a tensor and have no other user, the next read collects them again. */
void ls_module_release_lists(ls_module *module);

/*
 * Returns whether the module or a descendant has parameters that are missing from the lists because they were
 * added after ls_module_keep_lists. Ignores buffers: a layer may register a cache in its first forward pass.
 */
bool ls_module_has_grown(const ls_module *module);

/* Returns whether the condition is true for the module, a descendant, or an ancestor of the module or of a
 * descendant. */
bool ls_module_any_relative_is(const ls_module *module, bool (*condition)(const ls_module *module));

/* Returns whether the parameters of the module or of a descendant differ until an outer step. */
bool ls_module_is_unsynchronized(const ls_module *module);
/* Adds `change` to module->unsynchronized. */
void ls_module_add_unsynchronized(ls_module *module, int change);
/* Fails with LS_ERR_STATE while ls_module_is_unsynchronized. */
ls_status ls_module_check_synchronized(const char *call, const ls_module *module);

/* Takes ownership of `name`, even on failure. Returns false if out of memory. */
bool ls_named_list_add(ls_named_list *list, char *name, ls_tensor *tensor);
void ls_named_list_clear(ls_named_list *list, bool owns_tensors);
bool ls_named_list_has(const ls_named_list *list, const ls_tensor *tensor);

/* Discards the lists of a module. */
void ls_module_clear_lists(ls_module *module);

/* Collects the lists if necessary. Returns false with an error if out of memory or if the module was freed. */
bool ls_module_list(ls_module *module);

/*
 * Returns this module or a descendant that computes over the global batch (ls_module_type): in training mode, or in any
 * mode if `ever` is set. Returns NULL if there is no such module.
 */
const ls_module *ls_module_of_whole_batch(const ls_module *module, bool ever);

/* layers.c: returns whether a layer in training mode computes statistics of the batch (batch normalization). */
bool ls_module_has_batch_statistics(const ls_module *module);

/*
 * Returns the device of all parameters, or the CPU if there are none. Fails with LS_ERR_UNSUPPORTED if the parameters
 * are on several devices.
 */
ls_status ls_module_device(ls_module *module, const char *call, const ls_device **device);

/* Number of dtypes that parameters can have: the floating-point dtypes. */
#define LS_FLAT_LIMIT 4

/*
 * Places the parameters of the module and their gradients in flat buffers, with one pair of buffers per dtype. Returns
 * the number of pairs (at most LS_FLAT_LIMIT), or -1 on failure. Keeps buffers that are already flat. The storages are
 * borrowed.
 */
int ls_module_flatten(ls_module *module, ls_flat flats[LS_FLAT_LIMIT]);

/* Does the same in new buffers. `memory` returns zeroed storages for them. If `memory` is NULL, works like
 * ls_module_flatten. */
typedef ls_storage *ls_flat_memory(const ls_device *device, size_t bytes);
int ls_module_flatten_in(ls_module *module, ls_flat_memory *memory, ls_flat flats[LS_FLAT_LIMIT]);

/*
 * Moves gradients of the dtype that lie elsewhere into `storage`, each to its offset in the flat buffer. `storage` must
 * be large enough. It is borrowed; each gradient in it holds a reference.
 */
ls_status ls_module_move_gradients(ls_module *module, ls_dtype dtype, ls_storage *storage);

/* Returns the offset of a parameter in its flat buffer, in elements. */
int64_t ls_flat_offset(const ls_flat *flat, const ls_tensor *parameter);

#endif
