/**
 * @file nn.h
 * Modules: layers with named parameters, put together to models. Constructors return NULL and set an error on failure,
 * and take over the modules and tensors they are given even then, so that they nest without checks: one that is given
 * NULL says for what, and quotes the latest error before it.
 *
 * Who makes a module holds a reference to it, which the first constructor that takes the module over gets; each later
 * one takes a new one, so that a module may be a part of several, or several times of one. The module goes with its
 * last reference. A parameter that is reached on several ways, through a shared module or a shared tensor, is one
 * parameter: counted, hashed, trained, averaged over ranks and saved once, its gradient the sum of what flows back on
 * all of them.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/attention.h>
#include <lockstep/autograd.h>
#include <lockstep/convolution.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A layer or a whole model: parameters, buffers, children and a forward function. Opaque. */
typedef struct ls_module ls_module;

/** What a kind of module does. Keep one static const of it per kind. It has `forward` or `forward_many`. */
typedef struct ls_module_type {
    const char *name;  /**< for messages and printing: "Linear" */
    size_t state_size; /**< bytes of ls_module_state, cleared when made */
    /** One input, one output, as most layers have. Lends `input`; the result belongs to the scope. NULL: it failed. */
    ls_tensor *(*forward)(ls_module *self, ls_tensor *input);
    /** Several inputs or outputs: masks, hidden states. Lends the inputs, of which those of `optional` may be NULL, and
     * puts a tensor of the scope, or one of the inputs, into each of `outputs`. */
    ls_status (*forward_many)(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                              int output_count);
    int inputs;        /**< of forward_many: how many it takes; 0: any number, any of which may be NULL */
    int outputs;       /**< and how many it gives; 0: any number */
    uint64_t optional; /**< where `inputs` says how many: bit i: input i may be NULL (none from 64 on) */
    void (*free_state)(ls_module *self); /**< frees what the state owns beyond parameters and children; may be NULL */
    bool whole_batch; /**< in training mode its forward calls ls_batch_norm or ls_dropout itself: in ls_data_parallel
                           ranks without samples then take part */
} ls_module_type;

/* ---- modules of your own --------------------------------------------------------------------------------------- */

/**
 * A module of this kind, in training mode, without parameters. Add them, then return ls_module_finish(module), which is
 * NULL when anything went wrong on the way; all calls here accept a NULL module.
 */
LS_API ls_module *ls_module_new(const ls_module_type *type);
/** Adds a parameter (taken over, also from another module: it is then shared; marked as wanting a gradient when
 * floating). Returns it, lent. */
LS_API ls_tensor *ls_module_add_parameter(ls_module *module, const char *name, ls_tensor *tensor);
/** Adds a tensor that is saved and synchronised but not trained (taken over, likewise). Returns it, lent. One that is a
 * parameter elsewhere in the model is that. */
LS_API ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *tensor);
/** Adds a child (taken over, also from another module: it is then shared). Its names get "name." in front, nothing when
 * `name` is empty. Returns it, lent. A module cannot be below itself. */
LS_API ls_module *ls_module_add_child(ls_module *module, const char *name, ls_module *child);
/** `module` if everything that was added to it went well, else NULL with the first error, and the module freed. */
LS_API ls_module *ls_module_finish(ls_module *module);
/** The state of type->state_size bytes; NULL for a NULL module. */
LS_API void *ls_module_state(const ls_module *module);
/** Whether the module is in training mode. */
LS_API bool ls_module_is_training(const ls_module *module);

/* ---- using modules --------------------------------------------------------------------------------------------- */

/**
 * Applies a module of one input and one output, whose shapes its constructor says. NULL when something failed. It is
 * ls_forward_many with one and one: all calls of modules, also those that modules make of their children, go this way,
 * so that hooks see each.
 */
LS_API ls_tensor *ls_forward(ls_module *module, ls_tensor *input);
/**
 * Applies a module to `input_count` tensors (lent) and stores `output_count` results, which belong to the innermost
 * scope, in `outputs`, an array of its own. LS_ERR_ARGUMENT names the module where it takes or gives another number, or
 * where it says how many inputs it takes and one that is not optional is NULL (ls_module_type). On failure all outputs
 * are NULL.
 */
LS_API ls_status ls_forward_many(ls_module *module, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                 int output_count);
/** Puts the module and all below it in training mode, or out of it. */
LS_API void ls_module_train(ls_module *module, bool training);
/** Gives back its maker's reference, or one of ls_module_retain; with the last the module is freed, and what only it
 * holds below it. One that has been taken over stays with who did so, and one that has gone with it just before does no
 * harm. NULL is allowed. */
LS_API void ls_module_free(ls_module *module);
/** One more reference for the caller, which no constructor takes over: give it back with ls_module_free. Returns the
 * module. NULL is allowed. */
LS_API ls_module *ls_module_retain(ls_module *module);

/** What kind of module it is: the name of its type, lent; NULL for NULL. */
LS_API const char *ls_module_type_name(const ls_module *module);
/** The number of its children, not of those below them; 0 for NULL. */
LS_API int ls_module_child_count(const ls_module *module);
/** Child `index`, in the order they were added; lent. NULL out of range. */
LS_API ls_module *ls_module_child(const ls_module *module, int index);
/** The name that child was added by, lent; NULL out of range. */
LS_API const char *ls_module_child_name(const ls_module *module, int index);
/** The module below it, or itself, of that full name, lent: "2.attention" is child "attention" of child "2", "" the
 * module itself. NULL when there is none. */
LS_API ls_module *ls_module_find_child(const ls_module *module, const char *name);

/** The number of parameters in the module and all below it, shared ones once. */
LS_API int ls_module_parameter_count(const ls_module *module);
/** Parameter `index`, in the order they were added, children after a module's own; lent. NULL out of range. */
LS_API ls_tensor *ls_module_parameter(const ls_module *module, int index);
/** Its full name, "0.weight", lent until the module changes; a shared one's first. NULL out of range. */
LS_API const char *ls_module_parameter_name(const ls_module *module, int index);
/** The number of buffers in the module and all below it, shared ones once. */
LS_API int ls_module_buffer_count(const ls_module *module);
/** Buffer `index`, lent; NULL out of range. */
LS_API ls_tensor *ls_module_buffer(const ls_module *module, int index);
/** Its full name, lent until the module changes; NULL out of range. */
LS_API const char *ls_module_buffer_name(const ls_module *module, int index);
/** The parameter or buffer of that full name, or one of them if it is shared; lent. NULL when there is none. */
LS_API ls_tensor *ls_module_find(const ls_module *module, const char *name);
/**
 * Moves all parameters, their gradients, and buffers to the device of that name (see ls_use_device), in place: before
 * an optimizer or ls_data_parallel takes the model. Returns the module; NULL with the error set, and what was moved so
 * far left there, on failure.
 */
LS_API ls_module *ls_module_to_device(ls_module *module, const char *device);
#ifndef __cplusplus
/** ls_tensor_to_device or ls_module_to_device. */
#define ls_to_device(object, device)                                                                                   \
    _Generic((object), ls_module * : ls_module_to_device, ls_tensor * : ls_tensor_to_device)(object, device)
#endif
/** All numbers in all parameters. */
LS_API int64_t ls_module_size(const ls_module *module);
/** Forgets the gradients of all parameters. */
LS_API void ls_module_zero_grad(ls_module *module);
/**
 * Freezes all parameters of the module and of the modules below it (`requires_grad` is false), or unfreezes them. A
 * frozen parameter forgets its gradient and gets no gradient, so optimizers leave it as it is, weight decay included. A
 * shared parameter is frozen everywhere. In a data-parallel model, call it on all ranks alike, between two backward
 * passes: gradients of frozen parameters do not travel. Optimizers may be made before or after.
 */
LS_API ls_status ls_module_set_requires_grad(ls_module *module, bool requires_grad) LS_WARN_UNUSED;
/** A 64-bit FNV-1a hash of the bits of all parameters in order: equal models have equal hashes. */
LS_API uint64_t ls_module_hash(const ls_module *module);
/** A line per module with its kind, sizes and parameters, like PyTorch's; written as snprintf does. */
LS_API size_t ls_module_format(const ls_module *module, char *text, size_t capacity);

/**
 * Writes parameters and buffers under their full names as a safetensors file, as ls_safetensors_save does; `metadata`
 * (may be NULL) goes along. A shared tensor is saved once, under its first name; a pair of the metadata maps each
 * further name to that one, as PyTorch's safetensors.torch.save_model does.
 */
LS_API ls_status ls_module_save(const ls_module *module, const char *path, const char *const *metadata) LS_WARN_UNUSED;
/**
 * Reads them back. The file must hold exactly the module's names (LS_ERR_FORMAT), each with its shape (LS_ERR_SHAPE;
 * dtypes are converted); otherwise nothing is changed and the error names the first difference. Numbers are taken as
 * they are, NaN too, as in PyTorch. Names that the metadata maps to another count as there. A shared tensor needs one
 * of its names; if the file has several, they must be equal. PyTorch's counters of batches ("num_batches_tracked"
 * beside the "running_mean" of a BatchNorm) are passed over.
 *
 * If `path` is a folder, it is a checkpoint, or a folder of checkpoints of ls_checkpoint, of which the newest whole one
 * is loaded. LS_ERR_IO if there is none, LS_ERR_UNSUPPORTED if its model is sharded over ranks.
 */
LS_API ls_status ls_module_load(ls_module *module, const char *path) LS_WARN_UNUSED;

/** Options of ls_module_load_with. Zero fields mean what ls_module_load does. */
typedef struct ls_module_load_options {
    bool allow_missing;   /**< a tensor that only the model has keeps its values */
    bool allow_extra;     /**< a tensor that only the file has is ignored */
    bool skip_mismatched; /**< a tensor that has another shape in the file keeps its values, and a warning in the log
                               names it with both shapes: a new last layer on the weights of an old model */
    /** NULL, or called with each such name (borrowed for the call), also if the option does not allow it, in the
     * model's order. */
    void (*on_missing)(const char *name, void *user);
    void (*on_extra)(const char *name, void *user);      /**< the same, in the file's order */
    void (*on_mismatched)(const char *name, void *user); /**< the same, in the model's order */
    void *user;                                          /**< given to each of the three */
} ls_module_load_options;

/** ls_module_load with options (may be NULL): part of a model's weights, or those of a larger one. */
LS_API ls_status ls_module_load_with(ls_module *module, const char *path,
                                     const ls_module_load_options *options) LS_WARN_UNUSED;

/* ---- hooks ----------------------------------------------------------------------------------------------------- */

/** What the hooks of a module are given. All of it is lent. */
typedef struct ls_module_call {
    ls_module *module;
    ls_tensor **inputs; /**< NULL in `backward`; one is NULL where an optional input is absent */
    int input_count;
    ls_tensor **outputs; /**< there in `forward` */
    int output_count;
    /** There in `backward`, as are those of the outputs: the gradients of the inputs, contiguous; NULL for one that
     * wants none or that none has reached. */
    ls_tensor *const *input_gradients;
    ls_tensor *const *output_gradients;
} ls_module_call;

/** A hook. A status other than LS_OK ends the call of the module (NULL), or the backward pass, with it and with the
 * sentence of ls_error_set. */
typedef ls_status (*ls_module_hook)(ls_module_call *call, void *user);

/** Hooks of a module, all optional. */
typedef struct ls_module_hooks {
    void *user;                 /**< given to each of them */
    ls_module_hook forward_pre; /**< before the module runs: may put other tensors in place of inputs */
    ls_module_hook forward;     /**< after it has run: may put other tensors in place of outputs */
    /** When ls_backward has come back through the call as far as it will: sees gradients, and changes none of them.
     * Not called for a call whose outputs nothing flowed back to, nor under ls_no_grad. */
    ls_module_hook backward;
    void (*release)(void *user); /**< NULL, or called with `user` when the hooks are done with it */
} ls_module_hooks;

/**
 * Has the hooks called in each call of this module, behind those that it has. Returns their number, from 1 up, for
 * ls_module_remove_hooks; 0 with an error on failure, after `release`. They are copied. A module with hooks is called
 * as it stands: an ls_sequential then does not fuse it with its neighbour. Calls are those of this rank: in
 * ls_data_parallel of its samples (of none where it skips), whose gradients are not averaged yet; in ls_pipeline of
 * each micro-batch, and those that time the layers.
 */
LS_API int ls_module_add_hooks(ls_module *module, const ls_module_hooks *hooks) LS_WARN_UNUSED;
/** Removes the hooks of that number, also while they run; backward passes call them no more. LS_ERR_ARGUMENT when the
 * module has none of it. */
LS_API ls_status ls_module_remove_hooks(ls_module *module, int number);

/* ---- layers ---------------------------------------------------------------------------------------------------- */

/*
 * Layers of one input and one output. Names, formulas, defaults and starting values are those of PyTorch's layer of the
 * name. A constructor is NULL with LS_ERR_ARGUMENT where a size is not positive or an option out of range; what
 * ls_forward is given must fit the operation that the layer applies, whose errors it has (autograd.h).
 */

/** Options of ls_nn_linear_with. Zero fields are the defaults. */
typedef struct ls_linear_options {
    ls_dtype dtype;   /**< of the parameters; zero is LS_F32 */
    bool no_bias;     /**< no bias */
    bool weight_norm; /**< stores length and direction of the weight's rows (ls_weight_norm): parameters weight_g and
                           weight_v instead of weight, as PyTorch's weight_norm does */
} ls_linear_options;

/**
 * y = x weight^T + bias: x [..., in], y [..., out]; weight [out, in] and bias [out] start uniform in +-1/sqrt(in)
 * (PyTorch's Linear; ls_linear).
 */
LS_API ls_module *ls_nn_linear(int64_t in, int64_t out);
/** ls_nn_linear with options, which may be NULL. */
LS_API ls_module *ls_nn_linear_with(int64_t in, int64_t out, const ls_linear_options *options);
/** The activations apply the operation of their name to every element of x, of any shape, which y has too: ls_relu and
 * so on say the formulas. */
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
/** Along `axis`, which x must have; y has x's shape. See ls_softmax. */
LS_API ls_module *ls_nn_softmax(int axis);
/** Likewise. See ls_log_softmax. */
LS_API ls_module *ls_nn_log_softmax(int axis);
/** Zeroes elements of x, of any shape, with probability p, 0 to 1, while training and divides the others by (1 - p);
 * gives x itself otherwise (PyTorch's Dropout; ls_dropout). */
LS_API ls_module *ls_nn_dropout(double p);
/** [n, a, b, ...] to [n, a * b * ...] (PyTorch's Flatten). LS_ERR_ARGUMENT, from ls_forward, for x without a second
 * axis. */
LS_API ls_module *ls_nn_flatten(void);
/** Rows of a table, weight [count, width] of f32, which starts standard normal, by index: x [...] of i64 or i32, y
 * [..., width] (PyTorch's Embedding; ls_embedding). LS_ERR_ARGUMENT, from ls_forward, for an index that is not below
 * count. */
LS_API ls_module *ls_nn_embedding(int64_t count, int64_t width);

/**
 * (x - mean) / deviation for each of `channels`: x and y [n, channels, ...], y of x's dtype, or f32 for integers. The
 * buffers mean and deviation [channels], f32, start as zeros and ones. ls_nn_standardize_fit computes them from a data
 * set. They are saved with the model, so a program that loads it standardizes its inputs alike. LS_ERR_SHAPE, from
 * ls_forward, for x with another number of channels.
 */
LS_API ls_module *ls_nn_standardize(int64_t channels);

/** Options of ls_nn_layer_norm and ls_nn_group_norm. Zero fields are the defaults. */
typedef struct ls_norm_options {
    ls_dtype dtype; /**< of the parameters; zero is LS_F32 */
    bool no_affine; /**< neither weight nor bias */
    bool no_bias;   /**< a weight without a bias */
    double epsilon; /**< not negative; 0 selects 1e-5, LS_ZERO selects 0 */
} ls_norm_options;

/** Options of ls_nn_rms_norm. Zero fields are the defaults. */
typedef struct ls_rms_norm_options {
    ls_dtype dtype; /**< of the weight; zero is LS_F32 */
    bool no_affine; /**< no weight */
    double epsilon; /**< not negative; 0 selects 1e-5, LS_ZERO selects 0 */
} ls_rms_norm_options;

/** Options of ls_nn_instance_norm. Zero fields are the defaults. */
typedef struct ls_instance_norm_options {
    ls_dtype dtype; /**< of the parameters; zero is LS_F32 */
    bool affine;    /**< weight and bias */
    double epsilon; /**< not negative; 0 selects 1e-5, LS_ZERO selects 0 */
} ls_instance_norm_options;

/** Options of ls_nn_batch_norm_1d to ls_nn_batch_norm_3d. Zero fields are the defaults. */
typedef struct ls_batch_norm_options {
    ls_dtype dtype;  /**< of the parameters; zero is LS_F32 */
    bool no_affine;  /**< neither weight nor bias */
    bool no_bias;    /**< a weight without a bias */
    double epsilon;  /**< not negative; 0 selects 1e-5, LS_ZERO selects 0 */
    double momentum; /**< 0 to 1; 0 selects 0.1, LS_ZERO keeps the running statistics as they are */
} ls_batch_norm_options;

/**
 * (x - mean) / sqrt(var + epsilon) * weight + bias over the last axes, whose sizes are `shape` (one axis or more): x
 * and y
 * [..., shape], weight and bias of `shape`, which start as ones and zeros (Ba et al., arXiv 1607.06450; PyTorch's
 * LayerNorm; ls_layer_norm). `options` may be NULL.
 */
LS_API ls_module *ls_nn_layer_norm(ls_shape shape, const ls_norm_options *options);
/** x / sqrt(mean(x^2) + epsilon) * weight over the last axes, whose sizes are `shape`: x and y [..., shape], weight of
 * `shape`, which starts as ones; there is no bias (Zhang and Sennrich, arXiv 1910.07467; ls_rms_norm). `options` may be
 * NULL. PyTorch's RMSNorm has the dtype's epsilon where none is given. */
LS_API ls_module *ls_nn_rms_norm(ls_shape shape, const ls_rms_norm_options *options);
/** ls_group_norm of x [n, channels, ...], which y is like; weight and bias [channels] start as ones and zeros
 * (PyTorch's GroupNorm). LS_ERR_ARGUMENT where `channels` is no multiple of `groups`. `options` may be NULL. */
LS_API ls_module *ls_nn_group_norm(int64_t groups, int64_t channels, const ls_norm_options *options);
/** Each channel of each sample by itself: ls_group_norm of as many groups as channels, x [n, channels, length, ...]
 * (PyTorch's InstanceNorm1d and so on, also in having weight and bias only with `affine`). `options` may be NULL. */
LS_API ls_module *ls_nn_instance_norm(int64_t channels, const ls_instance_norm_options *options);
/**
 * (x - mean) / sqrt(var + epsilon) * weight + bias for each of `channels` over all other axes: x and y [n, channels] or
 * [n, channels, length]. While training with the batch's mean and variance, towards which the buffers running_mean and
 * running_var move by `momentum`; otherwise with those. Weight, bias and buffers are [channels] and start as ones,
 * zeros, zeros and ones (Ioffe and Szegedy, arXiv 1502.03167; PyTorch's BatchNorm1d; ls_batch_norm). `options` may be
 * NULL. LS_ERR_SHAPE, from ls_forward, for x of other axes, and for training with one value a channel.
 */
LS_API ls_module *ls_nn_batch_norm_1d(int64_t channels, const ls_batch_norm_options *options);
/** The same of x [n, channels, height, width] (PyTorch's BatchNorm2d). */
LS_API ls_module *ls_nn_batch_norm_2d(int64_t channels, const ls_batch_norm_options *options);
/** The same of x [n, channels, depth, height, width] (PyTorch's BatchNorm3d). */
LS_API ls_module *ls_nn_batch_norm_3d(int64_t channels, const ls_batch_norm_options *options);
/** Options of ls_nn_conv_1d to ls_nn_conv_3d: those of ls_conv_options, and of the parameters. Zero fields are the
 * defaults. */
typedef struct ls_conv_layer_options {
    ls_shape stride, padding, dilation; /**< see ls_conv_options */
    bool same;                          /**< see ls_conv_options */
    int64_t groups;                     /**< see ls_conv_options */
    bool no_bias;                       /**< no bias */
    bool weight_norm;                   /**< see ls_linear_options; over the first axis of the weight */
    ls_dtype dtype;                     /**< of the parameters; zero is LS_F32 */
} ls_conv_layer_options;

/** Options of ls_nn_conv_transpose_1d to ls_nn_conv_transpose_3d: those of ls_conv_transpose_options, and of the
 * parameters. Zero fields are the defaults. */
typedef struct ls_conv_transpose_layer_options {
    ls_shape stride, padding, dilation, output_padding; /**< see ls_conv_transpose_options */
    int64_t groups;                                     /**< see ls_conv_transpose_options */
    bool no_bias;                                       /**< no bias */
    bool weight_norm;                                   /**< see ls_linear_options; over the first axis of the weight */
    ls_dtype dtype;                                     /**< of the parameters; zero is LS_F32 */
} ls_conv_transpose_layer_options;

/**
 * Convolution over one axis: x [n, in, length], y [n, out, ...]; weight [out, in / groups, kernel], bias [out], which
 * start uniform in +-1/sqrt(in / groups * kernel) (PyTorch's Conv1d; ls_conv has formula and options). `kernel` is the
 * window's size, one number for all axes or one for each, in and out multiples of `groups`. `options` may be NULL.
 */
LS_API ls_module *ls_nn_conv_1d(int64_t in, int64_t out, ls_shape kernel, const ls_conv_layer_options *options);
/** Over two: x [n, in, height, width], weight [out, in / groups, kernel...] (PyTorch's Conv2d). */
LS_API ls_module *ls_nn_conv_2d(int64_t in, int64_t out, ls_shape kernel, const ls_conv_layer_options *options);
/** Over three: x [n, in, depth, height, width] (PyTorch's Conv3d). */
LS_API ls_module *ls_nn_conv_3d(int64_t in, int64_t out, ls_shape kernel, const ls_conv_layer_options *options);
/**
 * Transposed convolution over one axis: x [n, in, length], y [n, out, ...]; weight [in, out / groups, kernel], bias
 * [out], which start uniform in +-1/sqrt(out / groups * kernel) (PyTorch's ConvTranspose1d; ls_conv_transpose).
 */
LS_API ls_module *ls_nn_conv_transpose_1d(int64_t in, int64_t out, ls_shape kernel,
                                          const ls_conv_transpose_layer_options *options);
/** Over two (PyTorch's ConvTranspose2d). */
LS_API ls_module *ls_nn_conv_transpose_2d(int64_t in, int64_t out, ls_shape kernel,
                                          const ls_conv_transpose_layer_options *options);
/** Over three (PyTorch's ConvTranspose3d). */
LS_API ls_module *ls_nn_conv_transpose_3d(int64_t in, int64_t out, ls_shape kernel,
                                          const ls_conv_transpose_layer_options *options);
/** Pooling over the spatial axes of x [n, channels, ...], of which there may be one to three: see ls_max_pool. */
LS_API ls_module *ls_nn_max_pool(const ls_max_pool_options *options);
/** See ls_average_pool. */
LS_API ls_module *ls_nn_average_pool(const ls_average_pool_options *options);
/** To an output of `size`, whatever x has: see ls_adaptive_average_pool. LS_SHAPE(1) is global average pooling. */
LS_API ls_module *ls_nn_adaptive_average_pool(ls_shape size);
/** See ls_adaptive_max_pool. */
LS_API ls_module *ls_nn_adaptive_max_pool(ls_shape size);

/** Spatial sizes times whole numbers, one for all axes or one for each: see ls_resize (PyTorch's Upsample with a
 * scale_factor). `options` may be NULL. */
LS_API ls_module *ls_nn_upsample(ls_shape factor, const ls_resize_options *options);
/** See ls_pixel_shuffle. */
LS_API ls_module *ls_nn_pixel_shuffle(int64_t factor);
/** See ls_pixel_unshuffle. */
LS_API ls_module *ls_nn_pixel_unshuffle(int64_t factor);

/** Options of ls_nn_multi_head_attention; zero fields mean what their comments say. */
typedef struct ls_attention_layer_options {
    ls_dtype dtype; /**< of the parameters; zero is LS_F32 */
    bool no_bias;
    bool causal;                 /**< position i attends to positions 0 to i only */
    bool rotary;                 /**< queries and keys are turned by their positions (ls_rotary) */
    ls_rotary_options positions; /**< how, with `rotary` */
} ls_attention_layer_options;

/**
 * Attention with several heads (Vaswani et al., arXiv 1706.03762): queries, keys and values are linear maps of the
 * inputs, each of `heads` equal parts of them attends by itself (ls_attention), and a linear map puts the results
 * together. One input x [n, length, width]: self-attention; up to five with ls_forward_many: query, key (NULL: the
 * query), value (NULL: the key), key_mask [n, keys] and attn_mask of ls_attention_options (NULL: none). One
 * output, like the query. Parameters are those of PyTorch's MultiheadAttention (batch_first, no dropout of weights):
 * in_proj_weight [3 width, width], which starts Xavier uniform, in_proj_bias [3 width] and out_proj.bias, zeros, and
 * out_proj.weight as in ls_nn_linear. PyTorch's key_padding_mask and a bool attn_mask are true where ours are 0; an
 * attn_mask of floats is added in both. `options` may be NULL.
 * LS_ERR_ARGUMENT where width is no multiple of heads.
 */
LS_API ls_module *ls_nn_multi_head_attention(int64_t width, int64_t heads, const ls_attention_layer_options *options);
/** Learned positions: x [..., positions, width], of at most `count` positions, plus the first rows of weight [count,
 * width], which is of `dtype` and starts normal with deviation 0.02 (as in GPT-2; Radford et al., 2019). */
LS_API ls_module *ls_nn_positions(int64_t count, int64_t width, ls_dtype dtype);

/** The function inside of the MLP of ls_nn_transformer_block: ls_relu, ls_gelu or ls_gelu_tanh. */
typedef enum ls_mlp_activation { LS_MLP_RELU = 0, LS_MLP_GELU, LS_MLP_GELU_TANH } ls_mlp_activation;

/** Options of ls_nn_transformer_block. Zero fields are the defaults, of which `norm_first` and `activation` have those
 * of PyTorch's TransformerEncoderLayer. */
typedef struct ls_transformer_options {
    bool norm_first;                      /**< normalizes the inputs of attention and MLP, not the sums after them */
    ls_mlp_activation activation;         /**< inside of the MLP */
    int64_t hidden;                       /**< width inside of the MLP; 0 selects 4 * width */
    double dropout;                       /**< after attention, inside of the MLP and after it */
    double epsilon;                       /**< of the layer norms: see ls_norm_options */
    ls_attention_layer_options attention; /**< dtype and no_bias are those of all layers */
} ls_transformer_options;

/**
 * A block of a Transformer (Vaswani et al., arXiv 1706.03762): x becomes norm1(x + attention(x)), and this becomes
 * norm2(x + mlp(x)), where mlp(x) is linear2(activation(linear1(x))). With `.norm_first`, x becomes
 * x + attention(norm1(x)), and this becomes x + mlp(norm2(x)). Input and output are [n, length, width]. With
 * ls_forward_many, a second input is the key_mask [n, length], and a third input the attn_mask of ls_attention_options.
 *
 * Parameters are those of PyTorch's TransformerEncoderLayer: self_attn, linear1, linear2, norm1, norm2. Their names and
 * shapes do not depend on `.norm_first` and `.activation`, so loading cannot check these two: set them as PyTorch's
 * model does. A block of GPT-2 has `.norm_first`, LS_MLP_GELU_TANH and `.attention.causal`. `options` may be
 * NULL.
 */
LS_API ls_module *ls_nn_transformer_block(int64_t width, int64_t heads, const ls_transformer_options *options);
/** Options of recurrent layers; zero fields mean what their comments say. */
typedef struct ls_recurrent_options {
    ls_dtype dtype;     /**< of the parameters; zero is LS_F32 */
    int layers;         /**< each takes the y of the one before, at most 64; 0: 1 */
    bool bidirectional; /**< each layer also goes from the end to the start, with parameters of its own: y is twice as
                             wide, first forwards, then backwards */
    double dropout;     /**< between layers, of their y, in training mode */
    bool no_bias;
    bool time_first; /**< the steps come before the samples: x and y [length, n, ...], states [layers, n, hidden]; not
                          for ls_data_parallel, whose samples come first */
} ls_recurrent_options;

/**
 * A recurrent layer: h_t = tanh(x_t weight_ih^T + bias_ih + h_{t-1} weight_hh^T + bias_hh) (Elman, Cognitive Science
 * 14, 1990; PyTorch's RNN with batch_first). x [n, length, in] gives y [n, length, hidden], the h of the last layer.
 *
 * ls_forward_many also takes and gives states: inputs x, h, lengths, and outputs y, h, of which all but x and y may be
 * left out (NULL). h [n, layers, hidden] is where the layers begin (NULL: zeros) and end, those of both directions one
 * after the other; PyTorch has its first two axes the other way round. lengths [n] (i64 or i32, 0 to length) says how
 * many steps each sequence has: y behind them is zero, a sequence's last h is that of its own end, and backwards begins
 * there, as of PyTorch's packed sequences; what x has behind them must be finite. LS_ERR_ARGUMENT for lengths that are
 * out of range.
 *
 * Parameters are weight_ih_l0 [hidden, in], weight_hh_l0 [hidden, hidden], bias_ih_l0 and bias_hh_l0 [hidden], and so
 * on for l1, where `in` is the width of the y before, and with "_reverse" behind them backwards, as PyTorch's. All
 * start uniform in +-1/sqrt(hidden). `options` may be NULL.
 */
LS_API ls_module *ls_nn_rnn(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/** ls_nn_rnn with ls_relu instead of ls_tanh (PyTorch's RNN with nonlinearity="relu"). */
LS_API ls_module *ls_nn_rnn_relu(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/**
 * LSTM (Hochreiter and Schmidhuber, Neural Computation 9, 1997; PyTorch's): c_t = f c_{t-1} + i g and h_t = o
 * tanh(c_t), where the gates i, f, g, o are a quarter each of x_t weight_ih^T + bias_ih + h_{t-1} weight_hh^T +
 * bias_hh, behind tanh for g and the sigmoid for the others. As ls_nn_rnn, but that there are two states, h and c
 * (given together): inputs x, h, c, lengths; outputs y, h, c; and four times as many rows of parameters. There are no
 * projections (proj_size).
 */
LS_API ls_module *ls_nn_lstm(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/**
 * GRU (Cho et al., arXiv 1406.1078; PyTorch's): h_t = (1 - z) n + z h_{t-1}, where of a = x_t weight_ih^T + bias_ih and
 * b = h_{t-1} weight_hh^T + bias_hh, in three parts r, z, n: r = sigmoid(a_r + b_r), z = sigmoid(a_z + b_z) and n =
 * tanh(a_n + r b_n). As ls_nn_rnn, with three times as many rows of parameters.
 */
LS_API ls_module *ls_nn_gru(int64_t in, int64_t hidden, const ls_recurrent_options *options);
/**
 * A layer without parameters from a function, which is given `user` too. Neither `name` nor what `user` points to is
 * copied: both must outlive the module. What the function returns belongs to the scope; NULL when it failed.
 */
LS_API ls_module *ls_nn_function(const char *name, ls_tensor *(*function)(ls_tensor *x, void *user), void *user);

/** x + f(x), where `f` (one input and one output of one shape) is child "0" (He et al., arXiv 1512.03385). */
LS_API ls_module *ls_nn_residual(ls_module *f);

/** The modules, each of one input and one output, one after the other; their names are "0", "1", ... Of none, what it
 * is given. A ReLU before a MaxPool without padding is called behind it, where there is less to do, unless one of them
 * has hooks: values and gradients are the same. */
LS_API ls_module *ls_sequential_of(ls_module *const *modules, int count);
#ifndef __cplusplus
#define ls_sequential(...)                                                                                             \
    ls_sequential_of((ls_module *const[]){__VA_ARGS__},                                                                \
                     (int)(sizeof((ls_module *[]){__VA_ARGS__}) / sizeof(ls_module *)))
#endif

/** A module of ls_sequential_named, and what it is called there. */
typedef struct ls_named_module {
    const char *name; /**< copied */
    ls_module *module;
} ls_named_module;

/**
 * ls_sequential_of with names of your own, as PyTorch's Sequential(OrderedDict(...)):
 *
 * ```c
 * ls_module *layers = ls_sequential_named({"hidden", ls_nn_linear(4, 3)}, {"act", ls_nn_relu()});
 * ```
 *
 * Names are ls_module_add_child's: without dots.
 */
LS_API ls_module *ls_sequential_named_of(const ls_named_module *modules, int count);
#ifndef __cplusplus
#define ls_sequential_named(...)                                                                                       \
    ls_sequential_named_of((const ls_named_module[]){__VA_ARGS__},                                                     \
                           (int)(sizeof((ls_named_module[]){__VA_ARGS__}) / sizeof(ls_named_module)))
#endif

/* ---- initialisers: fill a floating tensor; each takes the next stream of ls_seed's generator ------------------------
 */

/** Every element is `value`. */
LS_API ls_status ls_nn_init_constant(ls_tensor *tensor, double value) LS_WARN_UNUSED;
/** Uniform in [low, high). */
LS_API ls_status ls_nn_init_uniform(ls_tensor *tensor, double low, double high) LS_WARN_UNUSED;
/** Normal with the mean and deviation. */
LS_API ls_status ls_nn_init_normal(ls_tensor *tensor, double mean, double deviation) LS_WARN_UNUSED;
/** Normal, drawn again until within [low, high]. */
LS_API ls_status ls_nn_init_truncated_normal(ls_tensor *tensor, double mean, double deviation, double low,
                                             double high) LS_WARN_UNUSED;
/**
 * Uniform in +-sqrt(6 / ((1 + slope^2) fan_in)) (He et al., arXiv 1502.01852); fan_in is the product of all sizes but
 * the first, and `slope` that of the leaky ReLU that follows (0: ReLU).
 */
LS_API ls_status ls_nn_init_kaiming_uniform(ls_tensor *tensor, double slope) LS_WARN_UNUSED;
/** Normal with deviation sqrt(2 / ((1 + slope^2) fan_in)). */
LS_API ls_status ls_nn_init_kaiming_normal(ls_tensor *tensor, double slope) LS_WARN_UNUSED;
/** Uniform in +-gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, AISTATS 2010). */
LS_API ls_status ls_nn_init_xavier_uniform(ls_tensor *tensor, double gain) LS_WARN_UNUSED;
/** Normal with deviation gain sqrt(2 / (fan_in + fan_out)). */
LS_API ls_status ls_nn_init_xavier_normal(ls_tensor *tensor, double gain) LS_WARN_UNUSED;
/** Rows (or columns, whichever are fewer) orthogonal and of length `gain` (Saxe et al., arXiv 1312.6120); axes after
 * the first count as one. */
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
