/*
 * nn: modules, layers, initialisers. This header: what a module is inside, and the flat buffers its parameters lie in.
 */
#ifndef LS_NN_MODULE_H
#define LS_NN_MODULE_H

#include <lockstep/formats.h>
#include <lockstep/nn.h>

#include "autograd/op.h"
#include "base/owners.h"
#include "base/status.h"

/* A tensor with its full name, as seen from the module that lists it. */
typedef struct ls_named_tensor {
    char *name;
    ls_tensor *tensor; /* held by the modules whose own lists it is in */
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
 * Parameters of one dtype side by side, each from a multiple of LS_FLAT_ALIGNMENT bytes, and their gradients at the
 * same places. Gaps are zero and stay so.
 */
typedef struct ls_flat {
    ls_dtype dtype;
    int64_t count; /* elements, gaps included */
    ls_storage *parameters;
    ls_storage *gradients;
} ls_flat;

#define LS_FLAT_ALIGNMENT 64

/* Hooks that were added together. */
typedef struct ls_hook {
    struct ls_hook *next;
    ls_module_hooks own;
    int number;
    bool removed; /* but it cannot go while hooks run */
} ls_hook;

struct ls_module {
    const ls_module_type *type;
    void *state;
    ls_hook *hooks; /* in the order in which they are called; NULL: a call need not look further */
    /* Runs a module that has hooks, between them. The arguments are those of a good ls_forward_many. */
    ls_status (*run_hooked)(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                            int output_count);
    int last_hook; /* the number of the latest */
    int hooks_run; /* how many calls of hooks are under way */
    ls_owners owners;
    bool training;
    bool told;   /* what ls_sync_gradients has to say of it was said */
    bool failed; /* something added to it was NULL or could not be stored */
    ls_named_list own_parameters;
    ls_named_list own_buffers;
    ls_child *children;
    int child_count;
    /* Of this module and all below it, names full: gathered on first use, forgotten when something is added. */
    bool listed;
    ls_named_list parameters; /* each once, under the first of its names */
    ls_named_list buffers;    /* likewise, but for those that are parameters too */
    ls_named_list aliases;    /* the further names of both */
};

/* False for NULL, and with an error for one that is gone. */
bool ls_module_is_here(const ls_module *module);

/* What ls_forward_many asks before it calls anything: LS_OK, or an error that names the module. */
ls_status ls_module_check_call(const ls_module *module, ls_tensor *const *inputs, int input_count, int output_count);

/* Runs the module itself; LS_OK: all outputs are there. */
ls_status ls_module_run(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count);

/* LS_OK when there is a tensor in each place of `outputs`. */
ls_status ls_module_check_outputs(const ls_module *module, ls_tensor *const *outputs, int count, uint32_t errors);

/* Releases the user's data of the hooks, and frees them. */
void ls_hook_free(ls_hook *hook);

/* A reference for who takes the module over; ls_module_drop gives it back. NULL is allowed. NULL with an error when it
 * is gone. */
ls_module *ls_module_take(ls_module *module);
void ls_module_drop(ls_module *module);

/* One more reference, for what may come to use it after it was freed. */
static inline void ls_module_hold(ls_module *module) {
    module->owners.references++;
}

/* Takes it over and gives it up: what a constructor that has no use for it, or fails, does. */
static inline void ls_module_consume(ls_module *module) {
    ls_module_drop(ls_module_take(module));
}

/* The first name of a parameter or buffer of a module whose lists are there, lent; NULL when it is none. */
const char *ls_module_name_of(const ls_module *module, const ls_tensor *tensor);

/* save.c: what ls_module_save writes: the tensors, lent, under their names, and pairs of metadata, ended by NULL. */
typedef struct ls_saved {
    ls_named *tensors;
    int count;
    const char **metadata;
} ls_saved;
ls_status ls_module_list_saved(const ls_module *module, const char *const *metadata, ls_saved *saved);
void ls_saved_free(ls_saved *saved);

/* save.c: loads a safetensors file as ls_module_load_with does. `call` is the user's call, `options` may be NULL. */
ls_status ls_module_load_file(const char *call, ls_module *module, const char *path,
                              const ls_module_load_options *options);

/* The modes (training or evaluation) of a module and all below it. */
typedef struct ls_modes {
    bool *training;
    int count;
} ls_modes;
ls_status ls_modes_take(ls_modes *modes, const ls_module *module);
/* Sets the modes, and frees them. */
void ls_modes_put(ls_modes *modes, ls_module *module);
void ls_modes_free(ls_modes *modes);

/* Whether a module below has parameters that the lists lack, since it got them after the lists were gathered. Buffers
 * do not count: a layer may register a cache in its first forward pass. */
bool ls_module_has_grown(const ls_module *module);

/* Gathers the lists if need be. False with an error when there is no memory. */
bool ls_module_list(ls_module *module);

/* A module in it, or itself, that works on the whole batch (ls_module_type): in training mode, or ever. NULL: none. */
const ls_module *ls_module_of_whole_batch(const ls_module *module, bool ever);

/* The device of all its parameters, the CPU where it has none; LS_ERR_UNSUPPORTED where they are on several. */
ls_status ls_module_device(ls_module *module, const char *call, const ls_device **device);

/* The most dtypes that parameters can have: the floating ones. */
#define LS_FLAT_LIMIT 4

/*
 * Lays the parameters of the module and their gradients into flat buffers, one pair per dtype, and returns how many
 * pairs there are (at most LS_FLAT_LIMIT), -1 on failure. What lies so already is left where it is. The storages are
 * lent.
 */
int ls_module_flatten(ls_module *module, ls_flat flats[LS_FLAT_LIMIT]);

/*
 * Moves those gradients of the dtype that lie elsewhere into `storage` (lent: each gradient there holds a reference),
 * each to its place in the flat buffer, for which there must be room.
 */
ls_status ls_module_move_gradients(ls_module *module, ls_dtype dtype, ls_storage *storage);

/* The offset of a parameter in its flat buffer, in elements. */
int64_t ls_flat_offset(const ls_flat *flat, const ls_tensor *parameter);

#endif
