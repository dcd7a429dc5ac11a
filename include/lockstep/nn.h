/**
 * @file nn.h
 * Modules: layers and models with named parameters.
 *
 * ```c
 * ls_module *mlp = ls_sequential(ls_nn_linear(784, 128), ls_nn_relu(), ls_nn_linear(128, 10));
 * ls_scope *scope = ls_scope_begin();
 * ls_tensor *loss = ls_cross_entropy(ls_forward(mlp, x), target, NULL);
 * ls_status status = ls_backward(loss);
 * ls_scope_end(scope);
 * ls_module_free(mlp);
 * ```
 *
 * - Constructors return NULL and set an error on failure.
 * - Constructors take ownership of their modules and tensors, even if they fail, so nested constructors need no checks.
 *   A constructor that is given a NULL module or tensor names it and quotes the previous error.
 * - The creator of a module holds one reference. The first constructor that takes ownership of the module gets this
 *   reference, and each later one gets a new reference. So several modules may share a module. A module is freed when
 *   its last reference is dropped.
 * - A parameter that several modules share, directly or through a shared module, is one parameter. It is counted,
 *   hashed, trained, averaged over ranks and saved once. Its gradient is the sum over all uses.
 *
 * docs/reference/models.md compares the layers with PyTorch's.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/attention.h>
#include <lockstep/autograd.h>
#include <lockstep/convolution.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A layer or a model: parameters, buffers, children and a forward function. Opaque. */
typedef struct ls_module ls_module;

/** The type of a module: a static const object. It has either `forward` or `forward_many`. */
typedef struct ls_module_type {
    const char *name;  /**< name in messages and printed models, for example "Linear" */
    size_t state_size; /**< size of ls_module_state in bytes; initially zero */
    /**
     * Computes one output from one input. Borrows `input`. The result belongs to the scope. Returns NULL on failure.
     */
    ls_tensor *(*forward)(ls_module *self, ls_tensor *input);
    /**
     * Computes several outputs, or uses several inputs, such as masks and hidden states. Borrows the inputs; inputs in
     * `optional` may be NULL. Sets each element of `outputs` to a tensor of the scope or to an input.
     */
    ls_status (*forward_many)(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                              int output_count);
    int inputs;        /**< number of inputs of forward_many; 0 allows any number, and each may be NULL */
    int outputs;       /**< number of outputs of forward_many; 0 allows any number */
    uint64_t optional; /**< inputs that may be NULL: bit i for input i, below 64 */
    void (*free_state)(ls_module *self); /**< frees the state's memory, except parameters and children; may be NULL */
    bool whole_batch; /**< promise that the forward function in training mode calls ls_batch_norm or ls_dropout
                         directly; in ls_data_parallel, ranks without samples then take part. Without the promise, such
                         a forward pass fails with LS_ERR_MISMATCH if a rank calls ls_data_parallel_skip (not with
                         `.zero` = 2 or 3) */
} ls_module_type;

/* ---- custom modules ---------------------------------------------------------------------------------------------- */

/**
 * Returns a new module of this type, in training mode, without parameters. Add parameters, buffers and children, then
 * return ls_module_finish(module), which is NULL if any of these calls failed. All functions of this section accept a
 * NULL module.
 */
LS_API ls_module *ls_module_new(const ls_module_type *type);
/**
 * Adds a parameter, and takes ownership of the tensor. If another module owns the tensor too, the parameter is shared.
 * A floating-point parameter requires a gradient from then on. Returns a borrowed pointer to the parameter.
 *
 * Names contain no dots. Only children may have the name "". All other names in one module are different.
 *
 * Add all parameters and buffers before you create an optimizer for the model, and before ls_data_parallel and
 * ls_outer_new. Add none between the forward and the backward pass of a recomputed module (ls_recompute).
 * - An optimizer does not train a parameter that is added after its creation. ls_optimizer_step still returns LS_OK.
 * - If a parameter is added to the model, or to a module in it, after ls_data_parallel or ls_outer_new, then
 *   ls_trial_run, ls_module_save and ls_outer_step fail with LS_ERR_STATE. On more than one rank, the backward pass
 *   through ls_data_parallel fails too.
 * - If a buffer is added after ls_data_parallel or ls_outer_new, such as a cache, it is not saved or synchronized. The
 *   model's lists do not contain it, so keep the returned pointer.
 *
 * A failed addition does not change the module's parameters, buffers and children. From then on, all additions to the
 * module and ls_module_finish fail with this first error. Fails with
 * - LS_ERR_ARGUMENT if the tensor is NULL without an earlier failure, is not contiguous, or is already a buffer of this
 *   module, or if the name is invalid or exists already,
 * - LS_ERR_STATE if the module was freed, if the tensor's scope has ended, or if the tensor is the result of a recorded
 *   operation.
 */
LS_API ls_tensor *ls_module_add_parameter(ls_module *module, const char *name, ls_tensor *tensor);
/**
 * Adds a tensor that is saved and synchronized but not trained, and takes ownership of it. Fails like
 * ls_module_add_parameter, but accepts the result of a recorded operation, and fails with LS_ERR_ARGUMENT if the tensor
 * is already a parameter of this module. A tensor that is a parameter of another module in the model counts as a
 * parameter. Returns a borrowed pointer to the buffer.
 */
LS_API ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *tensor);
/**
 * Adds a child, and takes ownership of it. If another module owns the child too, it is shared. Full names in the child
 * start with "name.", or have no prefix if `name` is empty. Returns a borrowed pointer to the child.
 *
 * A failed addition has the effects that ls_module_add_parameter describes. Fails with
 * - LS_ERR_ARGUMENT if the child is NULL without an earlier failure or contains the module, or if the name is invalid
 *   or exists already,
 * - LS_ERR_STATE if the module or the child was freed,
 * - the child's error if an addition to the child has failed.
 */
LS_API ls_module *ls_module_add_child(ls_module *module, const char *name, ls_module *child);
/**
 * Returns `module` if all additions to it and to the modules in it succeeded. Otherwise frees it, restores the first
 * error of a module that has failed, and returns NULL.
 */
LS_API ls_module *ls_module_finish(ls_module *module);
/** Returns the state of type->state_size bytes, or NULL for NULL. If the size is 0, returns NULL with LS_ERR_STATE, and
 * ls_module_finish fails with this error. */
LS_API void *ls_module_state(const ls_module *module);
/** Returns true if the module is in training mode. */
LS_API bool ls_module_is_training(const ls_module *module);

/* ---- using modules ----------------------------------------------------------------------------------------------- */

/**
 * Applies a module with one input and one output. The constructors document their shapes. Returns NULL on failure, with
 * the same errors as ls_forward_many. Forward functions must also call modules through ls_forward or ls_forward_many,
 * so that hooks see each call.
 *
 * Outside any scope, a new output belongs to the caller, who frees it with ls_release. The call frees the other tensors
 * that the layers created, so hooks must copy tensors that they keep. Some modules return their input, such as dropout
 * in evaluation mode.
 */
LS_API ls_tensor *ls_forward(ls_module *module, ls_tensor *input);
/**
 * Applies a module to `input_count` tensors, which it borrows. Stores `output_count` results in `outputs`, which must
 * not overlap the array of the inputs. The results belong to the innermost scope, unless they are inputs. On failure
 * all outputs are NULL. Fails with LS_ERR_ARGUMENT if the module has a different number of inputs or outputs, if the
 * arrays overlap (then nothing is stored), or if an input is NULL but not optional (ls_module_type). If a required
 * input is NULL because an earlier call failed, fails with the status of that call. An optional input that is NULL
 * because a call failed selects the default, without an error: check the input, or the status that ls_scope_end
 * returns, before you use the result.
 */
LS_API ls_status ls_forward_many(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                 int output_count);
/**
 * Switches recomputation (activation checkpointing; PyTorch's torch.utils.checkpoint) of the module on or off. A call
 * to the module then keeps its inputs and its output, but not the tensors between them. ls_backward runs the forward
 * function a second time and gets the same gradients, bit for bit: with the same random numbers, training mode and
 * ls_autocast. Under ls_no_grad, or if neither an input nor a parameter requires a gradient, nothing is computed
 * twice. A call with one output then frees its intermediate tensors that no gradient needs.
 * - ls_batch_norm updates running statistics only in the first run. A forward function must not have other side
 *   effects, and must not read other tensors that change before the backward pass.
 * - Hooks of the module run once. Hooks of modules below it run in both runs. Modules below it may be recomputed, too.
 *
 * Fails with LS_ERR_STATE if the module was freed, and with LS_ERR_ARGUMENT if it is NULL without an earlier failure. A
 * call with one output fails with LS_ERR_STATE if the module leaves a scope open. A recorded call fails with
 * LS_ERR_UNSUPPORTED if it has several outputs, or if the module communicates (batch normalization on several ranks, or
 * with `.shards`). On one rank, the backward pass fails instead if the module calls a collective of parallel.h.
 *
 * The backward pass fails with the status of a second run that fails, and
 * - with LS_ERR_STATE if an input, a parameter or a buffer was changed in place since the call (except running
 *   statistics, if all modules in it are in training mode), or requires a gradient only since the call,
 * - with LS_ERR_UNSUPPORTED if the module reads a tensor that requires a gradient and is neither an input nor a
 *   parameter of the module, or if it follows ls_data_parallel on several ranks instead of being a part of it.
 */
LS_API ls_status ls_recompute(ls_module *module, bool on);
/** Sets the training mode of the module and of all modules in it. */
LS_API void ls_module_train(ls_module *module, bool training);
/**
 * Drops a reference from ls_module_retain, or else the creator's reference. When the last reference is dropped, the
 * module is freed, with the children that nothing else references. Does nothing if a constructor has taken ownership
 * of the module. Do not call it after that owner was freed. NULL is allowed.
 */
LS_API void ls_module_free(ls_module *module);
/**
 * Adds a reference that belongs to the caller. Constructors that take ownership of the module do not consume it. Drop
 * it with ls_module_free. Returns the module, or NULL if it is NULL or was freed.
 */
LS_API ls_module *ls_module_retain(ls_module *module);

/** Returns a borrowed pointer to the name of the module's type, or NULL for NULL. */
LS_API const char *ls_module_type_name(const ls_module *module);
/** Returns the number of direct children, or 0 for NULL. */
LS_API int ls_module_child_count(const ls_module *module);
/**
 * Returns a borrowed pointer to child `index`, in the order of their addition, or NULL if the index is out of range.
 */
LS_API ls_module *ls_module_child(const ls_module *module, int index);
/** Returns a borrowed pointer to the name of child `index`, or NULL if the index is out of range. */
LS_API const char *ls_module_child_name(const ls_module *module, int index);
/**
 * Returns a borrowed pointer to the module with this full name, or NULL if it does not exist. "2.attention" is child
 * "attention" of child "2". "" is the module itself.
 */
LS_API ls_module *ls_module_find_child(const ls_module *module, const char *name);

/** Returns the number of parameters of the module and all modules in it. Shared parameters count once. */
LS_API int ls_module_parameter_count(const ls_module *module);
/**
 * Returns a borrowed pointer to parameter `index`, or NULL if the index is out of range. A module's own parameters come
 * before the parameters of its children, in the order of their addition.
 */
LS_API ls_tensor *ls_module_parameter(const ls_module *module, int index);
/**
 * Returns a borrowed pointer to the full name of parameter `index`, for example "0.weight", or NULL if the index is out
 * of range. A shared parameter has its first name, in the order of ls_module_parameter. Copy the name to keep it: the
 * pointer is valid until
 * - a tensor or a child is added to the module or to a module in it,
 * - an ls_data_parallel or ls_outer that uses the module is freed, or
 * - if the module is recomputed (ls_recompute), the next backward pass or the end of the scope of a forward pass.
 */
LS_API const char *ls_module_parameter_name(const ls_module *module, int index);
/** Returns the number of buffers of the module and all modules in it. Shared buffers count once. */
LS_API int ls_module_buffer_count(const ls_module *module);
/** Returns a borrowed pointer to buffer `index`, or NULL if the index is out of range. */
LS_API ls_tensor *ls_module_buffer(const ls_module *module, int index);
/**
 * Returns a borrowed pointer to the full name of buffer `index`, or NULL if the index is out of range. It is valid as
 * long as the pointer from ls_module_parameter_name.
 */
LS_API const char *ls_module_buffer_name(const ls_module *module, int index);
/**
 * Returns a borrowed pointer to the parameter or buffer with this full name, or NULL if it does not exist. A shared
 * tensor has several names.
 */
LS_API ls_tensor *ls_module_find(const ls_module *module, const char *name);
/**
 * Moves all parameters, their gradients and the buffers in place to the device with this name (ls_use_device). Call it
 * before an optimizer or ls_data_parallel uses the model. Returns the module. On failure, sets an error and returns
 * NULL, and some tensors may have moved.
 */
LS_API ls_module *ls_module_to_device(ls_module *module, const char *device);
#ifndef __cplusplus
/** Selects ls_tensor_to_device or ls_module_to_device. */
#define ls_to_device(object, device)                                                                                   \
    _Generic((object), ls_module * : ls_module_to_device, ls_tensor * : ls_tensor_to_device)(object, device)
#endif
/** Returns the number of elements of all parameters. */
LS_API int64_t ls_module_size(const ls_module *module);
/** Clears the gradients of all parameters. */
LS_API void ls_module_zero_grad(ls_module *module);
/**
 * Freezes all parameters of the module and of all modules in it (`requires_grad` is false), or unfreezes them.
 * - A frozen parameter loses its gradient and gets no new one. Optimizers do not change it, not even by weight decay.
 *   They may be created before or after this call.
 * - A shared parameter is frozen everywhere.
 * - In a data-parallel model, call it in the same way on all ranks, between two backward passes: gradients of frozen
 *   parameters are not sent.
 */
LS_API ls_status ls_module_set_requires_grad(ls_module *module, bool requires_grad) LS_WARN_UNUSED;
/**
 * Returns a 64-bit FNV-1a hash of the bits of all parameters in order. Equal models have equal hashes. Returns 0 with
 * LS_ERR_STATE in two cases: with .zero = 3 before ls_data_parallel_gather, and on several ranks if ls_outer_step has
 * counted a step since the last outer step. Also returns 0 with an error if `module` is NULL or was freed.
 */
LS_API uint64_t ls_module_hash(const ls_module *module);
/**
 * Writes a line for each module, parameter and buffer, then the number of elements of all parameters. Writes at most
 * `capacity` bytes, and returns the length of the whole text, as snprintf does.
 */
LS_API size_t ls_module_format(const ls_module *module, char *text, size_t capacity);

/**
 * Saves parameters and buffers under their full names to a safetensors file with `metadata` (may be NULL), as
 * ls_safetensors_save does. A shared tensor is saved once, under its first name. The metadata maps its other names to
 * this name, as PyTorch's safetensors.torch.save_model does. `metadata` must not have these keys (LS_ERR_ARGUMENT).
 * Fails with LS_ERR_ARGUMENT if two different tensors have the same full name. This needs a child with the name "",
 * whose tensors are named like the module's own tensors.
 *
 * Not a collective call. If all ranks have the same parameters, call it on one rank only: ranks that write the same
 * file would overwrite each other's file. With .zero = 3, call ls_data_parallel_gather on all ranks first. Fails with
 * LS_ERR_STATE on several ranks if ls_outer_step has counted a step since the last outer step.
 */
LS_API ls_status ls_module_save(const ls_module *module, const char *path, const char *const *metadata) LS_WARN_UNUSED;
/**
 * Loads parameters and buffers. On failure nothing changes, unless a copy to a device fails. With .zero = 3, call
 * ls_data_parallel_gather on all ranks first. Load before ls_outer_new: after a later load, outer steps fail with
 * LS_ERR_STATE (except in local SGD) until you create the outer optimizer again.
 * - LS_ERR_STATE if a tensor cannot be changed, such as a buffer that is the result of a recorded operation, or if
 *   other ranks have its elements (.zero = 3).
 * - The file must have exactly the module's names (LS_ERR_FORMAT) and shapes (LS_ERR_SHAPE), in dtypes that Lockstep
 *   can read (LS_ERR_UNSUPPORTED).
 * - Dtypes are converted. Values are not checked: NaN is loaded, as in PyTorch.
 * - A shared tensor needs one of its names. If the file has several, their dtypes and bits must be equal
 *   (LS_ERR_FORMAT). A name that the metadata maps to another name counts as present.
 * - PyTorch's batch counters ("num_batches_tracked" next to a BatchNorm's "running_mean") are ignored.
 * - If `path` is a folder, it is a checkpoint, or a folder with the checkpoints of a trial (ls_checkpoint_options): the
 *   newest complete checkpoint is loaded. Fails with LS_ERR_IO if there is no checkpoint with a name as a
 *   trial gives it.
 * - The model of a checkpoint may be sharded over ranks, in any way. Each rank loads its own parts. A stage of a
 *   pipeline needs ls_module_load_with and `.allow_extra`. Fails with LS_ERR_UNSUPPORTED if the checkpoint has no list
 *   of the parts, because an older Lockstep wrote it, or if its ranks have different tensors with the same name.
 */
LS_API ls_status ls_module_load(ls_module *module, const char *path) LS_WARN_UNUSED;

/** Options for ls_module_load_with. Zero fields select the behavior of ls_module_load. */
typedef struct ls_module_load_options {
    bool allow_missing;   /**< leaves a tensor unchanged if the file does not contain it */
    bool allow_extra;     /**< ignores a tensor that only the file has */
    bool skip_mismatched; /**< leaves a tensor unchanged if its shape in the file differs, and logs a warning with both
                             shapes; use it to load an old model's weights into a model with a new last layer; not for
                             sharded tensors from a checkpoint (LS_ERR_SHAPE) */
    /**
     * Called with each such name (borrowed during the call), in the model's order, even if the option does not allow
     * it. May be NULL.
     */
    void (*on_missing)(const char *name, void *user);
    void (*on_extra)(const char *name, void *user);      /**< the same, in any order */
    void (*on_mismatched)(const char *name, void *user); /**< the same, in the model's order */
    void *user;                                          /**< argument of the three functions */
} ls_module_load_options;

/**
 * Does the same as ls_module_load with options for loading a part of a model's weights, or the weights of a larger
 * model. `options` may be NULL.
 */
LS_API ls_status ls_module_load_with(ls_module *module, const char *path,
                                     const ls_module_load_options *options) LS_WARN_UNUSED;

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/** The arguments of a module's hooks. The hooks borrow all of them. */
typedef struct ls_module_call {
    ls_module *module;
    ls_tensor **inputs; /**< NULL in `backward`; an element is NULL if an optional input is absent */
    int input_count;
    ls_tensor **outputs; /**< outputs of the module, in `forward` */
    int output_count;
    /**
     * Gradients of the inputs and of the outputs, in `backward`, contiguous. An element is NULL if its tensor needs no
     * gradient or if no gradient reached it.
     */
    ls_tensor *const *input_gradients;
    ls_tensor *const *output_gradients;
} ls_module_call;

/**
 * A hook. If it fails, the call to the module or the backward pass fails with its status and its message
 * (ls_error_set).
 */
typedef ls_status (*ls_module_hook)(ls_module_call *call, void *user);

/** Hooks of a module, all optional. */
typedef struct ls_module_hooks {
    void *user;                 /**< argument of each hook */
    ls_module_hook forward_pre; /**< called before the module runs; may replace inputs */
    ls_module_hook forward;     /**< called after the module has run; may replace outputs */
    /**
     * Called when ls_backward has finished with the call. May read gradients, but not change them. Not called if no
     * gradient reached the outputs, or under ls_no_grad.
     */
    ls_module_hook backward;
    void (*release)(void *user); /**< called with `user` when the hooks are no longer used; may be NULL */
} ls_module_hooks;

/**
 * Adds a copy of `hooks` after the module's other hooks. The hooks run in each call to this module. Returns a
 * number, 1 or more, that identifies these hooks in ls_module_remove_hooks. On failure, calls `release`, sets an error
 * and returns 0.
 * - ls_sequential does not fuse a module that has hooks with its neighbor.
 * - Hooks see the calls of this rank. In ls_data_parallel, these calls have this rank's samples (none if it skips), and
 *   gradients before averaging. In ls_pipeline, hooks see one call per micro-batch, and also the calls that time the
 *   layers.
 */
LS_API int ls_module_add_hooks(ls_module *module, const ls_module_hooks *hooks) LS_WARN_UNUSED;
/**
 * Removes the hooks with this number. A hook may call this function. Backward passes no longer call the removed hooks.
 * Fails with LS_ERR_ARGUMENT if the module has no hooks with this number.
 */
LS_API ls_status ls_module_remove_hooks(ls_module *module, int number);

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/*
 * Layers with one input and one output. Names, formulas, defaults and initial values are the same as in PyTorch's
 * layers, unless a comment says otherwise. A constructor fails with LS_ERR_ARGUMENT if a size is not positive or an
 * option is out of range. ls_forward fails with the errors of the layer's operation (autograd.h), and with LS_ERR_SHAPE
 * if x does not have the layer's sizes.
 */

/** Options for ls_nn_linear_with. Zero fields select the defaults. */
typedef struct ls_linear_options {
    ls_dtype dtype;   /**< dtype of the parameters; default LS_F32 */
    bool no_bias;     /**< omits the bias */
    bool weight_norm; /**< weight normalization: parameters weight_g (length of the weight's rows) and weight_v
                         (direction) instead of weight, as in PyTorch's weight_norm; see ls_weight_norm */
} ls_linear_options;

/**
 * Returns a layer y = x weight^T + bias (PyTorch's Linear; ls_linear). x is [..., in] and y is [..., out]. weight [out,
 * in] and bias [out] are initialized uniformly in +-1/sqrt(in).
 */
LS_API ls_module *ls_nn_linear(int64_t in, int64_t out);
/** Creates the layer of ls_nn_linear with options, which may be NULL. */
LS_API ls_module *ls_nn_linear_with(int64_t in, int64_t out, const ls_linear_options *options);
/**
 * Returns an activation layer, which applies the operation of its name to every element (ls_relu). x has any shape, and
 * y has x's shape. The next eight functions also return activation layers.
 */
LS_API ls_module *ls_nn_relu(void);
/** See ls_leaky_relu. */
LS_API ls_module *ls_nn_leaky_relu(double slope);
/** See ls_elu. */
LS_API ls_module *ls_nn_elu(double alpha);
/** See ls_gelu. */
LS_API ls_module *ls_nn_gelu(void);
/** See ls_gelu_tanh. */
LS_API ls_module *ls_nn_gelu_tanh(void);
/** See ls_silu. */
LS_API ls_module *ls_nn_silu(void);
/** See ls_softplus. */
LS_API ls_module *ls_nn_softplus(void);
/** See ls_sigmoid. */
LS_API ls_module *ls_nn_sigmoid(void);
/** See ls_tanh. */
LS_API ls_module *ls_nn_tanh(void);
/** Applies ls_softmax along `axis`, which x must have. y has x's shape. */
LS_API ls_module *ls_nn_softmax(int axis);
/** Applies ls_log_softmax along `axis`, which x must have. y has x's shape. */
LS_API ls_module *ls_nn_log_softmax(int axis);
/**
 * In training mode, zeroes elements of x with probability p (0 to 1) and divides the others by (1 - p). Otherwise
 * returns x. x has any shape (PyTorch's Dropout; ls_dropout).
 */
LS_API ls_module *ls_nn_dropout(double p);
/**
 * Reshapes [n, a, b, ...] to [n, a * b * ...] (PyTorch's Flatten). ls_forward fails with LS_ERR_SHAPE if x has no
 * second axis.
 */
LS_API ls_module *ls_nn_flatten(void);
/**
 * Selects rows of weight [count, width], of f32, by index (PyTorch's Embedding; ls_embedding). x is [...] of i64 or
 * i32, and y is [..., width]. The weight is initialized from the standard normal distribution. ls_forward fails with
 * LS_ERR_ARGUMENT if an index is out of range.
 */
LS_API ls_module *ls_nn_embedding(int64_t count, int64_t width);

/**
 * Computes (x - mean) / deviation for each channel. x and y are [n, channels, ...]. y has x's dtype, or f32 for
 * integers. The f32 buffers mean and deviation [channels] start as zeros and ones, and ls_nn_standardize_fit computes
 * them from a data set. They are saved with the model, so a program that loads it standardizes its inputs in the same
 * way. ls_forward fails with LS_ERR_SHAPE if x has a different number of channels.
 */
LS_API ls_module *ls_nn_standardize(int64_t channels);

/** Options for ls_nn_standardize_with. */
typedef struct ls_standardize_options {
    bool nan_is_mean; /**< whether NaN in x means a missing value: ls_nn_standardize_fit ignores it, and y is 0 there,
                         as for the mean. ls_module_save saves this option. ls_module_load fails with LS_ERR_FORMAT if
                         the saved module has it, but not the program's module */
} ls_standardize_options;

/** Creates the layer of ls_nn_standardize with options, which may be NULL. */
LS_API ls_module *ls_nn_standardize_with(int64_t channels, const ls_standardize_options *options);

/** Options for ls_nn_layer_norm and ls_nn_group_norm. Zero fields select the defaults. */
typedef struct ls_norm_options {
    ls_dtype dtype; /**< dtype of the parameters; default LS_F32 */
    bool no_affine; /**< omits weight and bias */
    bool no_bias;   /**< omits the bias */
    double epsilon; /**< epsilon, not negative; 0 selects the default, 1e-5, and LS_ZERO selects 0 */
} ls_norm_options;

/** Options for ls_nn_rms_norm. Zero fields select the defaults. */
typedef struct ls_rms_norm_options {
    ls_dtype dtype; /**< dtype of the weight; default LS_F32 */
    bool no_affine; /**< omits the weight */
    double epsilon; /**< epsilon, not negative; 0 selects the default, 1e-5, and LS_ZERO selects 0 */
} ls_rms_norm_options;

/** Options for ls_nn_instance_norm. Zero fields select the defaults. */
typedef struct ls_instance_norm_options {
    ls_dtype dtype; /**< dtype of the parameters; default LS_F32 */
    bool affine;    /**< adds weight and bias */
    double epsilon; /**< epsilon, not negative; 0 selects the default, 1e-5, and LS_ZERO selects 0 */
} ls_instance_norm_options;

/** Options for ls_nn_batch_norm_1d to ls_nn_batch_norm_3d. Zero fields select the defaults. */
typedef struct ls_batch_norm_options {
    ls_dtype dtype;  /**< dtype of the parameters; default LS_F32 */
    bool no_affine;  /**< omits weight and bias */
    bool no_bias;    /**< omits the bias */
    double epsilon;  /**< epsilon, not negative; 0 selects the default, 1e-5, and LS_ZERO selects 0 */
    double momentum; /**< momentum of the running statistics, 0 to 1; 0 selects the default, 0.1, and LS_ZERO leaves the
                        statistics unchanged */
} ls_batch_norm_options;

/**
 * Normalizes over the last axes, whose sizes are `shape` (at least one): (x - mean) / sqrt(var + epsilon) * weight +
 * bias (Ba et al., arXiv 1607.06450; PyTorch's LayerNorm; ls_layer_norm). x and y are [..., shape]. weight and bias
 * have shape `shape` and are initialized to ones and zeros. `options` may be NULL.
 */
LS_API ls_module *ls_nn_layer_norm(ls_shape shape, const ls_norm_options *options);
/**
 * Normalizes over the last axes, whose sizes are `shape`: x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich,
 * arXiv 1910.07467; ls_rms_norm). x and y are [..., shape]. weight has shape `shape` and is initialized to ones. There
 * is no bias. `options` may be NULL. The default epsilon differs from PyTorch's RMSNorm, which uses the machine epsilon
 * of the dtype.
 */
LS_API ls_module *ls_nn_rms_norm(ls_shape shape, const ls_rms_norm_options *options);
/**
 * Applies ls_group_norm to x [n, channels, ...] (PyTorch's GroupNorm). y has x's shape. weight and bias [channels] are
 * initialized to ones and zeros. Fails with LS_ERR_ARGUMENT if `groups` does not divide `channels`. `options` may be
 * NULL.
 */
LS_API ls_module *ls_nn_group_norm(int64_t groups, int64_t channels, const ls_norm_options *options);
/**
 * Normalizes each channel of each sample: ls_group_norm with one channel per group, for x [n, channels, length, ...]
 * (PyTorch's InstanceNorm1d and so on). As in PyTorch, weight and bias exist only with `affine`. `options` may be NULL.
 */
LS_API ls_module *ls_nn_instance_norm(int64_t channels, const ls_instance_norm_options *options);
/**
 * Normalizes each channel over all other axes: (x - mean) / sqrt(var + epsilon) * weight + bias (Ioffe and Szegedy,
 * arXiv 1502.03167; PyTorch's BatchNorm1d; ls_batch_norm). x and y are [n, channels] or [n, channels, length].
 * `options` may be NULL.
 * - In training mode it uses the mean and the variance of the batch, and the buffers running_mean and running_var move
 *   towards them by `momentum`. Otherwise it uses these buffers.
 * - weight, bias and the two buffers are [channels], initialized to ones, zeros, zeros and ones.
 * - ls_forward fails with LS_ERR_SHAPE if x has other axes, or in training if a channel has only one value.
 */
LS_API ls_module *ls_nn_batch_norm_1d(int64_t channels, const ls_batch_norm_options *options);
/** Does the same for x [n, channels, height, width] (PyTorch's BatchNorm2d). */
LS_API ls_module *ls_nn_batch_norm_2d(int64_t channels, const ls_batch_norm_options *options);
/** Does the same for x [n, channels, depth, height, width] (PyTorch's BatchNorm3d). */
LS_API ls_module *ls_nn_batch_norm_3d(int64_t channels, const ls_batch_norm_options *options);
/**
 * Options for ls_nn_conv_1d to ls_nn_conv_3d: ls_conv_options plus the options for the parameters. Zero fields select
 * the defaults.
 */
typedef struct ls_conv_layer_options {
    ls_shape stride, padding, dilation; /**< see ls_conv_options */
    bool same;                          /**< see ls_conv_options */
    int64_t groups;                     /**< see ls_conv_options */
    bool no_bias;                       /**< omits the bias */
    bool weight_norm; /**< see ls_linear_options; each index of the weight's first axis has its own norm */
    ls_dtype dtype;   /**< dtype of the parameters; default LS_F32 */
} ls_conv_layer_options;

/**
 * Options for ls_nn_conv_transpose_1d to ls_nn_conv_transpose_3d: ls_conv_transpose_options plus the options for the
 * parameters. Zero fields select the defaults.
 */
typedef struct ls_conv_transpose_layer_options {
    ls_shape stride, padding, dilation, output_padding; /**< see ls_conv_transpose_options */
    int64_t groups;                                     /**< see ls_conv_transpose_options */
    bool no_bias;                                       /**< omits the bias */
    bool weight_norm; /**< see ls_linear_options; each index of the weight's first axis has its own norm */
    ls_dtype dtype;   /**< dtype of the parameters; default LS_F32 */
} ls_conv_transpose_layer_options;

/**
 * Returns a convolution over one axis (PyTorch's Conv1d; see ls_conv for the formula and the options). x is [n, in,
 * length], y is [n, out, ...]. weight [out, in / groups, kernel] and bias [out] are initialized uniformly in
 * +-1/sqrt(in / groups * kernel). `kernel` has the sizes of the window, one for all axes or one for each. `groups` must
 * divide in and out. `options` may be NULL.
 */
LS_API ls_module *ls_nn_conv_1d(int64_t in, int64_t out, ls_shape kernel, const ls_conv_layer_options *options);
/** Does the same over two axes: x [n, in, height, width], weight [out, in / groups, kernel...] (PyTorch's Conv2d). */
LS_API ls_module *ls_nn_conv_2d(int64_t in, int64_t out, ls_shape kernel, const ls_conv_layer_options *options);
/** Does the same over three axes: x [n, in, depth, height, width] (PyTorch's Conv3d). */
LS_API ls_module *ls_nn_conv_3d(int64_t in, int64_t out, ls_shape kernel, const ls_conv_layer_options *options);
/**
 * Returns a transposed convolution over one axis (PyTorch's ConvTranspose1d; ls_conv_transpose). x is [n, in, length],
 * y is [n, out, ...]. weight [in, out / groups, kernel] and bias [out] are initialized uniformly in +-1/sqrt(out /
 * groups * kernel).
 */
LS_API ls_module *ls_nn_conv_transpose_1d(int64_t in, int64_t out, ls_shape kernel,
                                          const ls_conv_transpose_layer_options *options);
/** Does the same over two axes (PyTorch's ConvTranspose2d). */
LS_API ls_module *ls_nn_conv_transpose_2d(int64_t in, int64_t out, ls_shape kernel,
                                          const ls_conv_transpose_layer_options *options);
/** Does the same over three axes (PyTorch's ConvTranspose3d). */
LS_API ls_module *ls_nn_conv_transpose_3d(int64_t in, int64_t out, ls_shape kernel,
                                          const ls_conv_transpose_layer_options *options);
/** Applies ls_max_pool to the one to three spatial axes of x [n, channels, ...]. */
LS_API ls_module *ls_nn_max_pool(const ls_max_pool_options *options);
/** Applies ls_average_pool, like ls_nn_max_pool. */
LS_API ls_module *ls_nn_average_pool(const ls_average_pool_options *options);
/**
 * Applies ls_adaptive_average_pool: the output has size `size`, whatever the (positive) sizes of x. LS_SHAPE(1) is
 * global average pooling.
 */
LS_API ls_module *ls_nn_adaptive_average_pool(ls_shape size);
/** Applies ls_adaptive_max_pool, like ls_nn_adaptive_average_pool. */
LS_API ls_module *ls_nn_adaptive_max_pool(ls_shape size);

/**
 * Multiplies spatial sizes by integers, one for all axes or one for each, with ls_resize (PyTorch's Upsample with a
 * scale_factor). `options` may be NULL.
 */
LS_API ls_module *ls_nn_upsample(ls_shape factor, const ls_resize_options *options);
/** Applies ls_pixel_shuffle. */
LS_API ls_module *ls_nn_pixel_shuffle(int64_t factor);
/** Applies ls_pixel_unshuffle. */
LS_API ls_module *ls_nn_pixel_unshuffle(int64_t factor);

/** Options for ls_nn_multi_head_attention. Zero fields select the defaults. */
typedef struct ls_attention_layer_options {
    ls_dtype dtype; /**< dtype of the parameters; default LS_F32 */
    bool no_bias;
    bool causal;                 /**< position i attends only to positions 0 to i */
    bool rotary;                 /**< rotates queries and keys by their positions (ls_rotary) */
    ls_rotary_options positions; /**< options of `rotary` */
} ls_attention_layer_options;

/**
 * Returns multi-head attention (Vaswani et al., arXiv 1706.03762). Queries, keys and values are linear maps of the
 * inputs. Each of `heads` equal parts attends separately (ls_attention), and a linear map combines the results. Fails
 * with LS_ERR_ARGUMENT if `heads` does not divide `width`, or if `rotary` is set and width / heads is odd. `options`
 * may be NULL.
 * - One input x [n, length, width] gives self-attention.
 * - ls_forward_many accepts up to five inputs: query, key (NULL selects the query), value (NULL selects the key), and
 *   key_mask [n, keys] and attn_mask of ls_attention_options (NULL selects no mask). The output has the query's shape.
 * - Parameters are the same as in PyTorch's MultiheadAttention (batch_first, without dropout of weights).
 *   in_proj_weight [3 width, width] is initialized with Xavier's uniform distribution, in_proj_bias [3 width] and
 *   out_proj.bias start as zeros, and out_proj.weight starts as in ls_nn_linear.
 * - PyTorch's key_padding_mask and bool attn_mask have the inverse meaning: true for keys to ignore. A floating-point
 *   attn_mask has the same meaning.
 */
LS_API ls_module *ls_nn_multi_head_attention(int64_t width, int64_t heads, const ls_attention_layer_options *options);
/**
 * Adds learned position embeddings (as in GPT-2; Radford et al., 2019): x [..., positions, width] plus the first rows
 * of weight [count, width]. There are at most `count` positions. The weight has `dtype` and is initialized from a
 * normal distribution with standard deviation 0.02.
 */
LS_API ls_module *ls_nn_positions(int64_t count, int64_t width, ls_dtype dtype);

/** The activation of the MLP in ls_nn_transformer_block: ls_relu, ls_gelu or ls_gelu_tanh. */
typedef enum ls_mlp_activation { LS_MLP_RELU = 0, LS_MLP_GELU, LS_MLP_GELU_TANH } ls_mlp_activation;

/**
 * Options for ls_nn_transformer_block. Zero fields select the defaults, which for `norm_first` and `activation` are
 * PyTorch's (TransformerEncoderLayer).
 */
typedef struct ls_transformer_options {
    bool norm_first;              /**< normalizes the inputs of attention and MLP, instead of the sums after them */
    ls_mlp_activation activation; /**< activation in the MLP */
    int64_t hidden;               /**< width of the hidden layer of the MLP; 0 selects the default, 4 * width */
    double dropout;               /**< probability of dropout after attention, in the MLP and after the MLP */
    double epsilon;               /**< epsilon of the layer norms; see ls_norm_options */
    ls_attention_layer_options attention; /**< options of attention; dtype and no_bias apply to all layers */
} ls_transformer_options;

/**
 * Returns a block of a Transformer (Vaswani et al., arXiv 1706.03762). Input and output are [n, length, width]. mlp(x)
 * is linear2(activation(linear1(x))). `options` may be NULL.
 * - By default, x becomes norm1(x + attention(x)), and this becomes norm2(x + mlp(x)).
 * - With `.norm_first`, x becomes x + attention(norm1(x)), and this becomes x + mlp(norm2(x)).
 * - With ls_forward_many, a second input is the key_mask [n, length], and a third input is the attn_mask of
 *   ls_attention_options.
 * - Parameters are the same as in PyTorch's TransformerEncoderLayer: self_attn, linear1, linear2, norm1, norm2. Their
 *   names and shapes do not depend on `.norm_first` and `.activation`, so loading cannot check these two: set them as
 *   in the PyTorch model.
 * - A block of GPT-2 has `.norm_first`, LS_MLP_GELU_TANH and `.attention.causal`.
 */
LS_API ls_module *ls_nn_transformer_block(int64_t width, int64_t heads, const ls_transformer_options *options);
/** Options for recurrent layers. Zero fields select the defaults. */
typedef struct ls_recurrent_options {
    ls_dtype dtype;     /**< dtype of the parameters; default LS_F32 */
    int layers;         /**< number of layers, at most 64; 0 selects the default, 1. Each uses the previous layer's y */
    bool bidirectional; /**< bidirectional layers: the backward direction has its own parameters, and y is twice as wide
                           (forward outputs, then backward outputs) */
    double dropout;     /**< dropout probability of y between layers, in training mode */
    bool no_bias;
    bool time_first; /**< puts steps before samples: x and y are [length, n, ...], states [layers, n, hidden]; not for
                        ls_data_parallel, which needs samples first */
} ls_recurrent_options;

/**
 * Returns a recurrent layer (Elman, Cognitive Science 14, 1990; PyTorch's RNN with batch_first): h_t = tanh(x_t
 * weight_ih^T + bias_ih + h_{t-1} weight_hh^T + bias_hh). x [n, length, in] gives y [n, length, hidden], the h of the
 * last layer. `options` may be NULL.
 *
 * ls_forward_many has inputs x, h, lengths and outputs y, h. All except x and y are optional.
 * - h [n, layers, hidden] is the initial state (NULL selects zeros) and the final state. With two directions, each
 *   layer has two states, forward and backward. PyTorch swaps the first two axes.
 * - lengths [n] (i64 or i32, 0 to length) gives the number of steps in each sequence, as in PyTorch's packed
 *   sequences. After these steps, y is zero and x must be finite. The final state is the state after the sequence's
 *   last step, and the backward direction starts at this step. Fails with LS_ERR_ARGUMENT if a length is out of range.
 *
 * Parameters are weight_ih_l0 [hidden, in], weight_hh_l0 [hidden, hidden], bias_ih_l0 and bias_hh_l0 [hidden], and so
 * on for l1 (where `in` is the width of the previous y), as in PyTorch. Names of the backward direction end with
 * "_reverse". All are initialized uniformly in +-1/sqrt(hidden).
 */
LS_API ls_module *ls_nn_rnn(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/** Creates the layer of ls_nn_rnn with ls_relu instead of ls_tanh (PyTorch's RNN with nonlinearity="relu"). */
LS_API ls_module *ls_nn_rnn_relu(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/**
 * Returns an LSTM (Hochreiter and Schmidhuber, Neural Computation 9, 1997; PyTorch's LSTM): c_t = f c_{t-1} + i g and
 * h_t = o tanh(c_t). The gates i, f, g, o are the quarters of x_t weight_ih^T + bias_ih + h_{t-1} weight_hh^T +
 * bias_hh, after tanh for g and the sigmoid for the others.
 *
 * The layer is like ls_nn_rnn, with two states, h and c, which must be given together: inputs are x, h, c, lengths, and
 * outputs y, h, c. Parameters have four times as many rows. PyTorch's projections (proj_size) are not available.
 */
LS_API ls_module *ls_nn_lstm(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/**
 * Returns a GRU (Cho et al., arXiv 1406.1078; PyTorch's GRU): h_t = (1 - z) n + z h_{t-1}. With a = x_t weight_ih^T +
 * bias_ih and b = h_{t-1} weight_hh^T + bias_hh, in three parts r, z, n: r = sigmoid(a_r + b_r), z = sigmoid(a_z + b_z)
 * and n = tanh(a_n + r b_n). The layer is like ls_nn_rnn, with three times as many rows of parameters.
 */
LS_API ls_module *ls_nn_gru(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/**
 * Returns a layer without parameters that calls `function` with `user`. Borrows `name` and `user`, which must outlive
 * the module. The result of `function` belongs to the scope. NULL means failure.
 */
LS_API ls_module *ls_nn_function(const char *name, ls_tensor *(*function)(ls_tensor *x, void *user), void *user);

/**
 * Returns a layer that computes x + f(x). `f` has one input and one output of the same shape, and is child "0" (He et
 * al., arXiv 1512.03385).
 */
LS_API ls_module *ls_nn_residual(ls_module *f);

/**
 * Returns a module that applies modules with one input and one output, one after the other. The modules' names are "0",
 * "1", ... If `count` is 0, the output is the input. A ReLU before a MaxPool without padding runs after the MaxPool, on
 * fewer elements, unless one of them has hooks or is recomputed. Values and gradients are the same.
 */
LS_API ls_module *ls_sequential_of(ls_module *const *modules, int count);
#ifndef __cplusplus
#define ls_sequential(...)                                                                                             \
    ls_sequential_of((ls_module *const[]){__VA_ARGS__},                                                                \
                     (int)(sizeof((ls_module *[]){__VA_ARGS__}) / sizeof(ls_module *)))
#endif

/** A module for ls_sequential_named and its name. */
typedef struct ls_named_module {
    const char *name; /**< name; copied */
    ls_module *module;
} ls_named_module;

/**
 * Does the same as ls_sequential_of, with the given names, like PyTorch's Sequential(OrderedDict(...)). Names must not
 * contain dots, as in ls_module_add_child.
 *
 * ```c
 * ls_module *layers = ls_sequential_named({"hidden", ls_nn_linear(4, 3)}, {"act", ls_nn_relu()});
 * ```
 */
LS_API ls_module *ls_sequential_named_of(const ls_named_module *modules, int count);
#ifndef __cplusplus
#define ls_sequential_named(...)                                                                                       \
    ls_sequential_named_of((const ls_named_module[]){__VA_ARGS__},                                                     \
                           (int)(sizeof((ls_named_module[]){__VA_ARGS__}) / sizeof(ls_named_module)))
#endif

/* ---- initialization of floating-point tensors -------------------------------------------------------------------
 * All these functions except ls_nn_init_constant use the next stream of the generator (ls_seed). A parameter of a
 * sharded layer (ls_nn_column_parallel and others) is only this rank's part: its sizes are the part's, and ranks with
 * the same seed draw equal numbers, so do not call these functions on it. */

/** Sets every element to `value`. */
LS_API ls_status ls_nn_init_constant(ls_tensor *tensor, double value) LS_WARN_UNUSED;
/**
 * Draws elements uniformly from [low, high), rounded to the dtype within these limits. If both limits are equal, sets
 * every element to `low`, rounded to the dtype. Fails with LS_ERR_ARGUMENT in these cases:
 *
 * - A limit or their difference is not finite, or `low` is above `high`.
 * - The limits differ, and the dtype has no number between them.
 * - The limits are equal, and above the largest or below the smallest finite number of the dtype.
 */
LS_API ls_status ls_nn_init_uniform(ls_tensor *tensor, double low, double high) LS_WARN_UNUSED;
/**
 * Draws elements from a normal distribution. Fails with LS_ERR_ARGUMENT if an argument is not finite or `deviation` is
 * negative.
 */
LS_API ls_status ls_nn_init_normal(ls_tensor *tensor, double mean, double deviation) LS_WARN_UNUSED;
/**
 * Draws elements from a normal distribution within [low, high], rounded to the dtype within these limits. A limit may
 * be infinite. Fails with LS_ERR_ARGUMENT in these cases:
 *
 * - `mean` or `deviation` is not finite, or `deviation` is not positive.
 * - `low` is not below `high`, or the dtype has no number between them.
 * - The limits are too far from the mean: the distance, divided by `deviation`, is not a finite number.
 */
LS_API ls_status ls_nn_init_truncated_normal(ls_tensor *tensor, double mean, double deviation, double low,
                                             double high) LS_WARN_UNUSED;
/**
 * Draws elements uniformly from +-sqrt(6 / ((1 + slope^2) fan_in)) (He et al., arXiv 1502.01852). fan_in is the product
 * of all sizes except the first. `slope` is the slope of the following leaky ReLU (0 for ReLU). Fails with
 * LS_ERR_ARGUMENT if `slope` is not finite, and with LS_ERR_SHAPE if the tensor has no elements or fewer than two axes.
 */
LS_API ls_status ls_nn_init_kaiming_uniform(ls_tensor *tensor, double slope) LS_WARN_UNUSED;
/**
 * Draws elements from a normal distribution with deviation sqrt(2 / ((1 + slope^2) fan_in)). Fails as
 * ls_nn_init_kaiming_uniform does.
 */
LS_API ls_status ls_nn_init_kaiming_normal(ls_tensor *tensor, double slope) LS_WARN_UNUSED;
/**
 * Draws elements uniformly from +-gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, AISTATS 2010). fan_out is the
 * product of all sizes except the second. Fails with LS_ERR_ARGUMENT if `gain` is negative or not finite, and with
 * LS_ERR_SHAPE if the tensor has no elements or fewer than two axes.
 */
LS_API ls_status ls_nn_init_xavier_uniform(ls_tensor *tensor, double gain) LS_WARN_UNUSED;
/**
 * Draws elements from a normal distribution with deviation gain sqrt(2 / (fan_in + fan_out)). Fails as
 * ls_nn_init_xavier_uniform does.
 */
LS_API ls_status ls_nn_init_xavier_normal(ls_tensor *tensor, double gain) LS_WARN_UNUSED;
/**
 * Sets the rows (or the columns, if there are fewer columns) to orthogonal vectors of length |gain| (Saxe et al., arXiv
 * 1312.6120). Axes after the first count as one. Fails with LS_ERR_ARGUMENT if `gain` is not finite, and with
 * LS_ERR_SHAPE if the tensor has no elements or fewer than two axes.
 */
LS_API ls_status ls_nn_init_orthogonal(ls_tensor *tensor, double gain) LS_WARN_UNUSED;

#ifdef __cplusplus
}

#define ls_sequential(...) ls_sequential_of_list({__VA_ARGS__})
static inline ls_module *ls_to_device(ls_module *module, const char *device) {
    return ls_module_to_device(module, device);
}
static inline ls_tensor *ls_to_device(ls_tensor *tensor, const char *device) {
    return ls_tensor_to_device(tensor, device);
}
static inline ls_module *ls_sequential_of_list(std::initializer_list<ls_module *> modules) {
    return ls_sequential_of(modules.begin(), static_cast<int>(modules.size()));
}

#define ls_sequential_named(...) ls_sequential_named_of_list({__VA_ARGS__})
static inline ls_module *ls_sequential_named_of_list(std::initializer_list<ls_named_module> modules) {
    return ls_sequential_named_of(modules.begin(), static_cast<int>(modules.size()));
}
#endif

#endif
