/**
 * @file data.h
 * Data sets, samplers and loaders: what a training step is fed with.
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/comm.h>
#include <lockstep/formats.h>
#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_module ls_module; /* see nn.h */

/* ---- data sets ------------------------------------------------------------------------------------------------- */

/**
 * Samples by number, each an input and a target. Opaque. Who makes a data set holds a reference to it, which the first
 * constructor that takes the data set over gets; each later one takes a new one, so that a data set may feed several
 * loaders. It goes with its last reference.
 */
typedef struct ls_dataset ls_dataset;

/**
 * Samples that are wanted of a data set. What is random about a sample is drawn by seed, epoch and place (ls_random_u32
 * and its kin), and not by what was drawn before: then it is the same on any number of ranks and threads, and again
 * when a loader goes back.
 */
typedef struct ls_samples {
    const int64_t *indices; /**< their numbers in the data set */
    const int64_t *places;  /**< where each stands in the order of the epoch, of all ranks, from 0 */
    int64_t count;
    uint64_t seed; /**< the loader's */
    int64_t epoch;
} ls_samples;

/** What a kind of data set does. Keep one static const of it per kind. */
typedef struct ls_dataset_type {
    const char *name;
    size_t state_size; /**< bytes of ls_dataset_state, cleared when made */
    /** Copies samples into the rows of `input` [samples->count, ...] and `target` [samples->count, ...], which are on
     * "cpu", whatever device batches go to. */
    ls_status (*fetch)(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target);
    void (*free_state)(ls_dataset *self); /**< frees what the state owns; may be NULL */
} ls_dataset_type;

/** What one sample looks like, without the batch axis. */
typedef struct ls_sample_layout {
    ls_shape input_shape;
    ls_dtype input_dtype;
    ls_shape target_shape;
    ls_dtype target_dtype;
} ls_sample_layout;

/** A data set of your own kind with `count` samples. */
LS_API ls_dataset *ls_dataset_new(const ls_dataset_type *type, int64_t count, const ls_sample_layout *layout);
/** The state of type->state_size bytes; NULL for NULL. */
LS_API void *ls_dataset_state(const ls_dataset *dataset);
/** The number of samples; 0 for NULL. */
LS_API int64_t ls_dataset_count(const ls_dataset *dataset);
/** What a sample looks like after all transforms. */
LS_API ls_sample_layout ls_dataset_layout(const ls_dataset *dataset);
/** Gives back its maker's reference, or one of ls_dataset_retain; with the last the data set is freed. One that has
 * been taken over stays with who did so, and one that has gone with it just before does no harm. NULL is allowed. */
LS_API void ls_dataset_free(ls_dataset *dataset);
/** One more reference for the caller, which no constructor takes over: give it back with ls_dataset_free. Returns the
 * data set. NULL is allowed. */
LS_API ls_dataset *ls_dataset_retain(ls_dataset *dataset);

/** Samples from tensors (taken over; they may be one and the same): sample i is row i of both. Their first sizes must
 * be equal. Of tensors on another device than "cpu" it takes a copy. */
LS_API ls_dataset *ls_tensor_dataset(ls_tensor *input, ls_tensor *target);
/** The images and labels of two IDX files, whose counts must be equal. */
LS_API ls_dataset *ls_idx_dataset(const char *images, const char *labels);
/**
 * MNIST or Fashion-MNIST from a folder with the four files of their original names (train-images-idx3-ubyte and so on),
 * gzipped or not; NULL: where Debian's dataset-fashion-mnist puts them. A missing folder or file is an error that says
 * which and what to do.
 */
LS_API ls_dataset *ls_mnist_dataset(const char *folder, bool train);
/**
 * CIFAR-10's images, u8 [3, 32, 32] (red, green, blue), and their classes (0 to 9), u8, from the folder with the files
 * of its binary version (https://www.cs.toronto.edu/~kriz/cifar.html): data_batch_1.bin to data_batch_5.bin, or, where
 * `train` is false, test_batch.bin. All are read into memory. LS_ERR_IO names a file that is missing.
 */
LS_API ls_dataset *ls_cifar10_dataset(const char *folder, bool train);
/** The same of CIFAR-100, from train.bin or test.bin. The targets are the 100 classes, or the 20 `coarse` ones. */
LS_API ls_dataset *ls_cifar100_dataset(const char *folder, bool train, bool coarse);
/**
 * Rows of a CSV file: the columns named in `targets` are the target, all others (or options->columns) the input. If the
 * target is one column of text (`.text`), or `.class_target` is set, targets are i64 [rows], as ls_cross_entropy takes
 * them, and an empty target is an error.
 */
LS_API ls_dataset *ls_csv_dataset(const char *path, const char *const *targets, int target_count,
                                  const ls_csv_options *options);

/** How to read pictures. Zero fields: red, green and blue; all pictures must have the size of the first one. */
typedef struct ls_image_options {
    int64_t height, width; /**< to resize all to: see ls_image_folder_dataset */
    int64_t channels;      /**< 1: gray, 3: red, green, blue; 0: 3 */
} ls_image_options;

/**
 * Pictures of classes, as torchvision's ImageFolder has them: a folder for each class, and in it its pictures (.png,
 * .jpg, .jpeg; other files and names that begin with a dot are left out). The classes are the folders in the order of
 * their names' bytes, so are the samples of a class. Inputs are u8 [channels, height, width], targets i64. Each batch
 * decodes its pictures, in the way of ls_image_read; resizing is bilinear, with the mean of the pixels that are under
 * one where a picture becomes smaller (Pillow's BILINEAR). LS_ERR_IO and LS_ERR_ARGUMENT name what is missing,
 * LS_ERR_SHAPE from ls_loader_next a picture of another size than the first. `options` may be NULL.
 */
LS_API ls_dataset *ls_image_folder_dataset(const char *folder, const ls_image_options *options);
/** The name of a class, lent; NULL behind the last, and of a data set of another kind. */
LS_API const char *ls_image_folder_class(const ls_dataset *dataset, int64_t number);

/** How to read tokens. Only the context must be given. */
typedef struct ls_tokens_options {
    int64_t context;    /**< tokens of a sample */
    int64_t stride;     /**< from the first token of a sample to that of the next; 0: the context */
    int width;          /**< bytes of a token: 1, 2 or 4, unsigned, little-endian; 0: 1 */
    int64_t skip_bytes; /**< at the beginning of the file, which are no tokens */
} ls_tokens_options;

/**
 * A file of nothing but tokens, as programs that prepare text for a language model write them; with tokens of one byte,
 * any file is one, of 256 kinds of token. Sample i is `context` tokens from number i * stride on, i64, and its target
 * the same one token further on. What is left over at the end is no sample. LS_ERR_ARGUMENT when there is not even one.
 *
 * The file stays open and may be larger than memory: each batch reads its tokens straight into its tensors. They are
 * read and not mapped, since a mapped file that somebody makes shorter ends the process with a signal; so it is
 * LS_ERR_IO from ls_loader_next. A gzipped file, whose name ends in ".gz", is inflated into memory instead.
 */
LS_API ls_dataset *ls_tokens_dataset(const char *path, const ls_tokens_options *options);

/** A step that changes batches on their way out: given a batch [n, ...], and which samples that is, returns another, or
 * NULL on failure. It runs in a scope of its own, without recording and ls_autocast, on "cpu", where tensors that it
 * makes are, too. What operations draw in it (ls_rand, say) follows from seed, epoch and the place of the first sample.
 */
typedef ls_tensor *(*ls_transform)(ls_tensor *batch, const ls_samples *samples, void *user);

/**
 * Adds a transform to the inputs (or targets) of a data set (taken over), after those it has. `user` is lent and given
 * to each call. Returns the data set, or NULL and an error with the data set freed, so that calls nest. A data set that
 * something has taken over already, a loader say, or that is retained, stays as it is: what is returned is another one
 * over the same samples. So it is with the calls below, too.
 */
LS_API ls_dataset *ls_dataset_transform_input(ls_dataset *dataset, ls_transform transform, void *user);
LS_API ls_dataset *ls_dataset_transform_target(ls_dataset *dataset, ls_transform transform, void *user);
/** Says that functions of your own in this data set, fetch and transforms, may be called by several threads at a time:
 * what `user` points to is only read, and tensors that transforms give are new ones. Else no two of them are called at
 * a time, also of parts of it in several loaders. Takes and returns as ls_dataset_transform_input does. */
LS_API ls_dataset *ls_dataset_concurrent(ls_dataset *dataset);
/** Inputs become f32: (x - mean) / deviation, where integers of type u8 are first divided by 255. For numbers per
 * channel or column that are saved with the model, see ls_nn_standardize. */
LS_API ls_dataset *ls_dataset_normalize(ls_dataset *dataset, double mean, double deviation);
/**
 * Sets mean and deviation of a module of ls_nn_standardize to those of the inputs of all samples, per channel of
 * [channels, ...] or per column of [columns], after the data set's transforms. The deviation divides by the number of
 * elements; that of a constant channel becomes 1. Reads all samples on every rank, so all ranks get the same bits
 * without communication. Borrows both. LS_ERR_ARGUMENT for another module, a data set without samples, and inputs that
 * are NaN or infinite; LS_ERR_SHAPE for another number of channels.
 */
LS_API ls_status ls_nn_standardize_fit(ls_module *standardize, ls_dataset *dataset) LS_WARN_UNUSED;
/** Inputs of any shape become one axis. */
LS_API ls_dataset *ls_dataset_flatten(ls_dataset *dataset);
/** Integer targets become rows of `classes` numbers (f32), 1 at the class and 0 elsewhere. */
LS_API ls_dataset *ls_dataset_one_hot(ls_dataset *dataset, int64_t classes);
/** All samples, transformed once and kept in memory, as a data set of their own. Takes `dataset` over. */
LS_API ls_dataset *ls_dataset_preload(ls_dataset *dataset);

/* ---- random changes of pictures --------------------------------------------------------------------------------- */

/*
 * Inputs are [n, ..., height, width], u8 or f32. Each sample is changed by itself, by numbers that follow from the seed
 * of the loader, the epoch and the sample's place in it: the same on any number of ranks and threads, other ones for
 * each call among the transforms of a data set. Results are those of torchvision's functions for the same numbers: of
 * u8 the changes of colour are rounded down, rotations to the nearest. ls_dataset_preload keeps what it drew.
 */

/** Options of ls_dataset_random_crop. */
typedef struct ls_random_crop_options {
    int64_t height;  /**< of what is cut out; 0: as it was */
    int64_t width;   /**< likewise */
    int64_t padding; /**< so many pixels of `fill` are put on all sides first */
    double fill;
} ls_random_crop_options;

/** Inputs become a part of themselves, each possible one as likely (torchvision's RandomCrop). */
LS_API ls_dataset *ls_dataset_random_crop(ls_dataset *dataset, const ls_random_crop_options *options);

/** Left and right, and top and bottom, change places with these probabilities (torchvision's RandomHorizontalFlip and
 * RandomVerticalFlip). */
LS_API ls_dataset *ls_dataset_random_flip(ls_dataset *dataset, double horizontal, double vertical);

/** Rotation about the middle by an angle between -degrees and degrees, positive against the clock, with bilinear
 * interpolation between pixels, of which those outside are `fill` (torchvision's RandomRotation, which weighs pixels at
 * the edges twice where it has a fill). */
LS_API ls_dataset *ls_dataset_random_rotation(ls_dataset *dataset, double degrees, double fill);

/** Options of ls_dataset_color_jitter: of each, a factor is between max(0, 1 - x) and 1 + x. */
typedef struct ls_color_jitter_options {
    double brightness; /**< factor times the picture */
    double contrast;   /**< its distance from its mean grey */
    double saturation; /**< its distance from its own grey; of one channel it stays */
} ls_color_jitter_options;

/** Brightness, contrast and saturation change, in random order (torchvision's ColorJitter). Inputs are [n, 3, height,
 * width], or of one channel: [n, 1, height, width] or [n, height, width]. Values are from 0 to 255 (u8) or from 0 to 1
 * (f32) and stay so: it comes before ls_dataset_normalize with a mean. Grey is 0.2989 red + 0.587 green + 0.114
 * blue. */
LS_API ls_dataset *ls_dataset_color_jitter(ls_dataset *dataset, const ls_color_jitter_options *options);

/** Options of ls_dataset_random_erasing. */
typedef struct ls_random_erasing_options {
    double probability; /**< that a sample is changed; 0: 0.5 */
    double least_area;  /**< of the rectangle, as a share of the picture; 0: 0.02 */
    double most_area;   /**< likewise; 0: 0.33 */
    double least_ratio; /**< of its height to its width; 0: 0.3 */
    double most_ratio;  /**< likewise; 0: 3.3 */
    double fill;        /**< its new value */
    bool noise;         /**< instead: each element by itself, normal with deviation 1 (f32), or uniform (u8) */
} ls_random_erasing_options;

/** A rectangle of each input is filled (Zhong et al., arXiv 1708.04896; torchvision's RandomErasing). */
LS_API ls_dataset *ls_dataset_random_erasing(ls_dataset *dataset, const ls_random_erasing_options *options);

/** Squares of each input, `holes` of them around random points, are filled; they may lie over the edges (DeVries and
 * Taylor, arXiv 1708.04552). The callback ls_cutout does so on the batch's device, and takes any floating dtype. */
LS_API ls_dataset *ls_dataset_cutout(ls_dataset *dataset, int64_t length, int holes, double fill);

/* ---- data sets of others, whose samples they share -------------------------------------------------------------- */

/** The samples numbered first to first + count - 1 only. Takes `dataset` over. */
LS_API ls_dataset *ls_dataset_subset(ls_dataset *dataset, int64_t first, int64_t count);
/** The samples numbered indices[0 .. count-1] (copied) in this order; one may be there several times. Takes `dataset`
 * over. */
LS_API ls_dataset *ls_dataset_select(ls_dataset *dataset, const int64_t *indices, int64_t count);
/**
 * Divides the samples at random into `count` parts: parts[i] becomes a data set of fractions[i] of them. The fractions
 * are from 0 to 1 and add up to 1. Sizes are those of PyTorch's random_split: each fraction rounded down, then one more
 * sample for the first parts while there are some left. Which samples they are depends on the seed alone (the shuffle
 * of ls_loader_options), so every rank gets the same parts. Takes `dataset` over, and gives the parts; all of them are
 * NULL on failure.
 */
LS_API ls_status ls_dataset_split(ls_dataset *dataset, const double *fractions, int count, uint64_t seed,
                                  ls_dataset **parts) LS_WARN_UNUSED;
/** The samples of all of them (taken over), one data set after the other. Behind their transforms their layouts must be
 * equal: LS_ERR_SHAPE says which differ, and in what. */
LS_API ls_dataset *ls_dataset_concat_of(ls_dataset *const *datasets, int count);
#ifndef __cplusplus
#define ls_dataset_concat(...)                                                                                         \
    ls_dataset_concat_of((ls_dataset *const[]){__VA_ARGS__},                                                           \
                         (int)(sizeof((ls_dataset *[]){__VA_ARGS__}) / sizeof(ls_dataset *)))
#endif

/* ---- loaders --------------------------------------------------------------------------------------------------- */

/** Gives batches, epoch after epoch: those of a data set (ls_loader_new), or of a kind of your own. Opaque. */
typedef struct ls_loader ls_loader;

/**
 * One rank's share of a global batch. The loader owns the tensors. They are valid until the next ls_loader_next or
 * ls_loader_free: use of a pointer kept longer is LS_ERR_STATE. To keep a batch, copy it with ls_clone.
 */
typedef struct ls_batch {
    ls_tensor *input;     /**< [count, ...] */
    ls_tensor *target;    /**< [count, ...]; NULL if the loader's kind gives none */
    int64_t first;        /**< index in the global batch of this rank's first sample: where its share begins */
    int64_t count;        /**< this rank's samples; 0 is possible in the last batch */
    int64_t global_count; /**< all ranks' samples */
    int64_t number;       /**< of this batch in the epoch, from 0 */
} ls_batch;

/**
 * An order of your own: fills order[0 .. count-1] with the numbers of the samples of epoch `epoch`, some of them
 * several times or not at all as you like. Every rank must fill in the same, and the same again when it goes back to an
 * epoch: random numbers are those of ls_random_u32 and its kin by epoch and index, not of a generator that moves on. It
 * runs in a scope of its own, without recording; an operation that fails in it fails ls_loader_next.
 */
typedef ls_status (*ls_sampler)(int64_t epoch, int64_t *order, int64_t count, void *user);

/**
 * How to load. The order of samples in an epoch depends on seed and epoch only (Fisher and Yates's shuffle: Knuth, The
 * Art of Computer Programming, vol. 2, algorithm 3.4.2P). It is cut into global batches, which are the same at every
 * world size. Each rank takes its share of every global batch. Shares follow each other in the order of the ranks and
 * are as equal as can be: the first ranks have one sample more. Three ranks have 4, 3 and 3 of 10 samples, from index
 * 0, 4 and 7 on (ls_batch.first).
 * At most one of `no_shuffle`, `weights` and `sampler` is given. A fixed order is that of ls_dataset_select, with
 * no_shuffle.
 */
typedef struct ls_loader_options {
    int64_t batch_size;        /**< samples per rank and step: the global batch is this times the ranks; 0: 1 */
    int64_t global_batch_size; /**< instead of batch_size: samples per step over all ranks */
    ls_comm *comm;             /**< whose ranks divide the batches (lent); NULL: this process takes all */
    const char *device; /**< that batches are put on (see ls_use_device); NULL: the thread's when the loader is made */
    uint64_t seed;
    bool no_shuffle; /**< samples in their own order */
    bool drop_last;  /**< leave out a last global batch that is not full */
    /** A number of 0 or more for every sample (copied): samples are drawn with replacement, each with its weight's
     * share of all. Draw i of an epoch is by inversion (Devroye, Non-Uniform Random Variate Generation, 1986, section
     * III.2) of ls_random_uniform(seed, epoch, i): the first sample at which the sum of the weights so far exceeds that
     * number times the sum of all. */
    const double *weights;
    int64_t weight_count; /**< how many they are: as many as samples */
    ls_sampler sampler;   /**< an order of your own */
    void *sampler_user;   /**< given to it (lent) */
    /** Threads that make batches ahead of ls_loader_next, `prefetch` of them at most (0: 2 for each thread); 0: none,
     * it makes them itself. Batches, their order and what becomes of an error are the same with any number. Functions
     * of your own in the data set are called by one thread, whatever is given here, unless ls_dataset_concurrent says
     * that they may be called by several. Samplers are called by the thread that calls ls_loader_next. The threads
     * start with the first batch, run on the cores of who takes that, and end with the loader; the first batches of an
     * epoch are begun when one of them is asked for. */
    int threads;
    int64_t prefetch;
    int64_t epoch_samples; /**< in an epoch, the first of its order; 0: as many as the data set has. More than those
                                only with weights or a sampler */
} ls_loader_options;

/** A loader over `dataset` (taken over). `options` may be NULL. */
LS_API ls_loader *ls_loader_new(ls_dataset *dataset, const ls_loader_options *options);
/** The data set, lent; NULL of a loader of your own kind. */
LS_API ls_dataset *ls_loader_dataset(const ls_loader *loader);

/** What a kind of loader does: one that generates samples, say, or reads a stream. Keep one static const of it per
 * kind. */
typedef struct ls_loader_type {
    const char *name;  /**< for messages */
    size_t state_size; /**< bytes of ls_loader_state, cleared when made */
    /**
     * Fills in `batch`, this rank's share of batch `number` of epoch `epoch`, or sets `*more`, which is true, to false:
     * the epoch ends before that batch, and the next call is for batch 0 of the next. It runs in a scope of its own,
     * without recording; the loader keeps what the batch needs. `target` may stay NULL; where `count` stays 0 it is the
     * first size of `input`, where `global_count` does it is `count`. On several ranks give `global_count`, and
     * `first`, which starts as 0; each rank gives as many batches as the others.
     */
    ls_status (*next)(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more);
    /** Called by an ls_loader_seek to another place than where the loader stands, before next is called for that; may
     * refuse. NULL: next needs nothing but its arguments. */
    ls_status (*seek)(ls_loader *self, int64_t epoch, int64_t batch);
    void (*free_state)(ls_loader *self); /**< frees what the state owns; may be NULL */
} ls_loader_type;

/** A loader of your own kind with `batches` batches in every epoch, after which it is not asked for more; -1: next says
 * where an epoch ends, if it ever does. */
LS_API ls_loader *ls_loader_custom(const ls_loader_type *type, int64_t batches);
/** The state of type->state_size bytes; NULL for NULL. */
LS_API void *ls_loader_state(const ls_loader *loader);

/** Global batches per epoch; -1 where that is not known. */
LS_API int64_t ls_loader_batch_count(const ls_loader *loader);
/** Where the loader stands: which batch of which epoch ls_loader_next gives (batch ls_loader_batch_count: the end of
 * the epoch). Either may be NULL. Loaders begin at epoch 0, batch 0. */
LS_API void ls_loader_position(const ls_loader *loader, int64_t *epoch, int64_t *batch);
/** Puts the loader before batch `batch` of epoch `epoch` (from 0): what it gives from there on is what it would have
 * given then. */
LS_API ls_status ls_loader_seek(ls_loader *loader, int64_t epoch, int64_t batch) LS_WARN_UNUSED;
/**
 * Fills `batch` with the next one. At the end of the epoch `*more` is false, `batch` is empty and the loader stands at
 * the start of the next epoch. After a failure it stands where it stood.
 */
LS_API ls_status ls_loader_next(ls_loader *loader, ls_batch *batch, bool *more) LS_WARN_UNUSED;
/** Frees the loader and gives up its data set. NULL is allowed. A later call on the loader is LS_ERR_STATE. */
LS_API void ls_loader_free(ls_loader *loader);

#ifdef __cplusplus
}

#define ls_dataset_concat(...) ls_dataset_concat_of_list({__VA_ARGS__})
static inline ls_dataset *ls_dataset_concat_of_list(std::initializer_list<ls_dataset *> datasets) {
    return ls_dataset_concat_of(datasets.begin(), static_cast<int>(datasets.size()));
}
#endif

#endif
