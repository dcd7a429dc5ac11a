/**
 * @file data.h
 * Data sets, samplers and loaders: the input of a training step.
 *
 * ```c
 * const ls_loader_options options = {.batch_size = 64, .comm = world, .seed = 1};
 * ls_loader *batches = ls_loader_new(ls_mnist_dataset(NULL, true), &options);
 * ls_batch batch;
 * bool more = true;
 * while (ls_loader_next(batches, &batch, &more) == LS_OK && more) {
 *     printf("samples from %lld on\n", (long long)batch.first);
 * }
 * ls_loader_free(batches);
 * ```
 */
#ifndef LOCKSTEP_DATA_H
#define LOCKSTEP_DATA_H

#include <lockstep/batch.h>
#include <lockstep/comm.h>
#include <lockstep/formats.h>
#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_module ls_module; /* see nn.h */

/* ---- data sets --------------------------------------------------------------------------------------------------- */

/**
 * Numbered samples, each an input and a target. Opaque. The creator holds one reference. The first constructor that
 * takes ownership of the data set gets this reference. Each later constructor adds a reference, so several loaders may
 * use a data set. A data set is freed when its last reference is dropped.
 */
typedef struct ls_dataset ls_dataset;

/**
 * The samples to fetch from a data set. Derive random changes to sample i from `seed`, `epoch` and `places[i]`
 * (ls_random_u32, ...), not from the state of a generator. The changes are then the same on any number of ranks and
 * threads, and after ls_loader_seek.
 */
typedef struct ls_samples {
    const int64_t *indices; /**< indices of the samples in the data set */
    const int64_t *places;  /**< positions in the order of the epoch, over all ranks, from 0 */
    int64_t count;          /**< may be 0: if a global batch is small, some ranks have no samples */
    uint64_t seed;          /**< seed of the loader; 0 without a loader, as in ls_dataset_preload */
    int64_t epoch;
} ls_samples;

/** A kind of data set. Define one static const object per kind. */
typedef struct ls_dataset_type {
    const char *name;  /**< name in messages; NULL selects "user-defined" */
    size_t state_size; /**< size of ls_dataset_state in bytes; its memory is initially zero */
    /**
     * Copies samples into the rows of `input` [samples->count, ...] and `target` [samples->count, ...]. Both are on
     * "cpu", even if the batches are moved to another device. A status other than LS_OK ends ls_loader_next with this
     * status and the message of ls_error_set.
     */
    ls_status (*fetch)(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target);
    void (*free_state)(ls_dataset *self); /**< frees the resources of the state; may be NULL */
} ls_dataset_type;

/** Shapes and dtypes of one sample, without the batch axis. */
typedef struct ls_sample_layout {
    ls_shape input_shape;
    ls_dtype input_dtype;
    ls_shape target_shape;
    ls_dtype target_dtype;
} ls_sample_layout;

/**
 * Creates a data set of a user-defined kind with `count` samples. Borrows `type`, and copies `layout`. Returns
 * ownership to the caller, like the constructors below; free the data set with ls_dataset_free. Fails with
 * LS_ERR_ARGUMENT if `type`, `fetch` or `layout` is NULL, if `count` or a size is negative, or if the layout has an
 * invalid dtype or a shape with more than LS_MAX_DIMS - 1 axes.
 */
LS_API ls_dataset *ls_dataset_new(const ls_dataset_type *type, int64_t count, const ls_sample_layout *layout);
/** Returns a borrowed pointer to the state of type->state_size bytes. Returns NULL for NULL. */
LS_API void *ls_dataset_state(const ls_dataset *dataset);
/** Returns the number of samples. Returns 0 for NULL. */
LS_API int64_t ls_dataset_count(const ls_dataset *dataset);
/**
 * Returns the number of samples of a block: samples that the data set reads together, such as the samples of a
 * compressed chunk. Returns 0 for a data set without blocks and for NULL. Contiguous parts of a data set keep its
 * blocks (ls_dataset_subset).
 */
LS_API int64_t ls_dataset_block(const ls_dataset *dataset);
/** Returns the layout of a sample after all transforms. Without samples, transforms do not change the layout. */
LS_API ls_sample_layout ls_dataset_layout(const ls_dataset *dataset);
/**
 * Drops the creator's reference, or a reference taken with ls_dataset_retain. The data set is freed when its last
 * reference is dropped. Does nothing if a constructor has taken ownership, even if that owner was just freed. NULL is
 * allowed.
 */
LS_API void ls_dataset_free(ls_dataset *dataset);
/**
 * Adds a reference that belongs to the caller. Constructors that take ownership of the data set do not consume it. Drop
 * it with ls_dataset_free. Returns the data set. NULL is allowed.
 */
LS_API ls_dataset *ls_dataset_retain(ls_dataset *dataset);

/**
 * Returns a data set of two tensors: sample i is row i of both. Takes ownership of the tensors, which may be the same
 * tensor. They must be contiguous (LS_ERR_ARGUMENT), and their first sizes must be equal (LS_ERR_SHAPE). Copies tensors
 * on other devices to "cpu".
 */
LS_API ls_dataset *ls_tensor_dataset(ls_tensor *input, ls_tensor *target);
/** Returns a data set with the images and labels from two IDX files, whose counts must be equal. */
LS_API ls_dataset *ls_idx_dataset(const char *images, const char *labels);
/**
 * Returns MNIST or Fashion-MNIST from a folder with its four files under their original names (train-images-idx3-ubyte,
 * ...), gzipped or not. NULL selects the folder of Debian's package dataset-fashion-mnist. If a folder or file is
 * missing, the message names it and the remedy.
 */
LS_API ls_dataset *ls_mnist_dataset(const char *folder, bool train);
/**
 * Returns CIFAR-10: images u8 [3, 32, 32] (red, green, blue) and classes u8 from 0 to 9. The folder must contain the
 * files of the binary version (https://www.cs.toronto.edu/~kriz/cifar.html): data_batch_1.bin to data_batch_5.bin, or
 * test_batch.bin if `train` is false. Reads all files into memory. Fails with LS_ERR_IO if a file is missing; the
 * message names the file.
 */
LS_API ls_dataset *ls_cifar10_dataset(const char *folder, bool train);
/**
 * Like ls_cifar10_dataset, returns CIFAR-100 from train.bin or test.bin. The targets are the 100 classes, or the 20
 * `coarse` classes.
 */
LS_API ls_dataset *ls_cifar100_dataset(const char *folder, bool train, bool coarse);
/**
 * Returns a data set with the rows of a CSV file as samples. The columns in `targets` are the target. All other
 * columns, or options->columns, are the input. `all_but` omits the targets and options->columns. If the target is one
 * column of text (`.text`), or if `.class_target` is set, targets are i64 [rows] for ls_cross_entropy, and an empty
 * target is an error.
 *
 * Fails with LS_ERR_ARGUMENT if options->columns selects a target as an input. If a model predicts its own inputs, use
 * ls_csv_read and ls_tensor_dataset.
 */
LS_API ls_dataset *ls_csv_dataset(const char *path, const char *const *targets, int target_count,
                                  const ls_csv_options *options);

/** How to read images. Zero fields select three channels, and the size of the first image for all images. */
typedef struct ls_image_options {
    int64_t height, width; /**< size of all images after resizing, 1 to 16,384 pixels; set both or neither */
    int64_t channels;      /**< 1 selects gray, 3 selects red, green and blue, and 0 selects the default, 3 */
} ls_image_options;

/**
 * Returns a data set with the images in a folder that has one subfolder per class, like torchvision's ImageFolder.
 * Reads .png, .jpg and .jpeg. Ignores names that begin with a dot, files that are not in a subfolder, and files with
 * endings that are listed neither here nor under LS_ERR_UNSUPPORTED. Inputs are u8 [channels, height, width], targets
 * i64. `options` may be NULL.
 *
 * Classes, and the samples of a class, are sorted by the bytes of their names. Each batch decodes its images
 * (ls_image_read). Resizing is bilinear, and averages over the covered pixels if an image becomes smaller (Pillow's
 * BILINEAR).
 *
 * - LS_ERR_IO: a folder or a file cannot be read.
 * - LS_ERR_ARGUMENT: there is no class, a class has no image, the folder of a class contains a folder, or an option is
 *   wrong.
 * - LS_ERR_UNSUPPORTED: an image has a different format (.bmp, .gif, .pgm, .ppm, .tif, .tiff, .webp).
 * - LS_ERR_SHAPE, when an image is read without `height` and `width`: its size differs from the first image's.
 * - The errors of ls_image_read, when an image is read. Without `height` and `width`, the call reads the first image.
 */
LS_API ls_dataset *ls_image_folder_dataset(const char *folder, const ls_image_options *options);
/**
 * Returns a borrowed pointer to the name of a class. Returns NULL after the last class, and for a data set of a
 * different kind, such as a part of a folder's data set (ls_dataset_subset) or a copy (ls_dataset_preload).
 */
LS_API const char *ls_image_folder_class(const ls_dataset *dataset, int64_t number);

/** How to read tokens. Only `context` is required. */
typedef struct ls_tokens_options {
    int64_t context;    /**< tokens per sample */
    int64_t stride;     /**< distance in tokens between the starts of two samples; 0 selects `context` */
    int width;          /**< bytes per token: 1, 2 or 4, unsigned, little-endian; 0 selects the default, 1 */
    int64_t skip_bytes; /**< bytes to skip at the beginning of the file */
} ls_tokens_options;

/**
 * Returns a data set with the samples in a file of tokens without a header, the usual format of prepared text for
 * language models. With one-byte tokens (256 kinds), any bytes are valid. The input of sample i is `context` tokens,
 * i64, starting at token i * stride. The target is the same range, one token later. Incomplete samples at the end are
 * dropped. Fails with LS_ERR_ARGUMENT if no sample is complete, and with LS_ERR_FORMAT if the file ends within a token.
 *
 * The file stays open and may be larger than memory: each batch reads its tokens into its tensors. The file is not
 * mapped, because truncating a mapped file kills the process with a signal; ls_loader_next returns LS_ERR_IO instead.
 * If the name ends in ".gz", the file is decompressed into memory.
 */
LS_API ls_dataset *ls_tokens_dataset(const char *path, const ls_tokens_options *options);

/**
 * Transforms a batch [n, ...] of these samples; n may be 0. Returns the new batch, or NULL on failure. Runs in its own
 * scope on "cpu", without recording and without ls_autocast. Random operations in it (ls_rand, ...) depend on the seed,
 * the epoch and the position of the first sample.
 */
typedef ls_tensor *(*ls_transform)(ls_tensor *batch, const ls_samples *samples, void *user);

/**
 * Appends a transform to the inputs (or targets) of a data set, at most 16 of each kind. Calls the transforms with
 * the first sample to determine the layout. Takes ownership of the data set, and borrows `user`. Returns the data set,
 * so that calls can be nested. On failure, returns NULL and frees the data set. If the data set has another owner (a
 * loader) or is retained, it stays unchanged, and the result is a new data set over the same samples. The same applies
 * to the calls below.
 */
LS_API ls_dataset *ls_dataset_transform_input(ls_dataset *dataset, ls_transform transform, void *user);
LS_API ls_dataset *ls_dataset_transform_target(ls_dataset *dataset, ls_transform transform, void *user);
/**
 * Declares that several threads may call the user's fetch and transforms of this data set at the same time: they only
 * read `user`, and the transforms return new tensors. Otherwise only one thread at a time calls them, even for parts of
 * the data set in several loaders. A later ls_dataset_transform_input or ls_dataset_transform_target cancels this.
 * Does not apply to the functions of the parts of an ls_dataset_concat: declare each part before the concatenation.
 * Takes and returns the data set like ls_dataset_transform_input.
 */
LS_API ls_dataset *ls_dataset_concurrent(ls_dataset *dataset);
/**
 * Converts inputs to f32: (x - mean) / deviation. u8 inputs are first divided by 255. Computes in f64
 * for f64, i64 and i32 inputs, and if f32 cannot represent the mean or 1 / deviation; otherwise in f32. Both numbers
 * must be finite, and the deviation at least DBL_MIN (LS_ERR_ARGUMENT). See ls_nn_standardize for numbers per channel
 * or column that are saved with the model.
 */
LS_API ls_dataset *ls_dataset_normalize(ls_dataset *dataset, double mean, double deviation);
/**
 * Sets the mean and deviation of an ls_nn_standardize module from the inputs of all samples, after the data set's
 * transforms: per channel of [channels, ...] or per column of [columns]. The deviation divides by the number of
 * elements; a constant channel gets 1. Reads all samples on every rank, so all ranks get bit-identical values without
 * communication. Borrows both arguments. The f32 mean has an error of up to |mean| / 2^24, so subtract an offset first
 * (ls_dataset_transform_input) if the deviation is not much larger, as for times in seconds since 1970.
 *
 * - LS_ERR_ARGUMENT: a module of a different kind, a data set without samples, inputs that are infinite or (without
 *   .nan_is_mean) NaN, a channel of only NaN, or a mean or deviation that f32 cannot hold
 * - LS_ERR_SHAPE: a different number of channels
 */
LS_API ls_status ls_nn_standardize_fit(ls_module *standardize, ls_dataset *dataset) LS_WARN_UNUSED;
/** Flattens inputs to one axis. A number becomes [1]. */
LS_API ls_dataset *ls_dataset_flatten(ls_dataset *dataset);
/**
 * Converts targets (not inputs) to f32 rows [classes], 1 at the class and 0 elsewhere. Targets are integers, or whole
 * numbers in a floating-point dtype. A target that is not one of the classes fails with LS_ERR_ARGUMENT when it is
 * read.
 */
LS_API ls_dataset *ls_dataset_one_hot(ls_dataset *dataset, int64_t classes);
/** Returns a data set of all samples, transformed once and kept in memory. Takes ownership of `dataset`. */
LS_API ls_dataset *ls_dataset_preload(ls_dataset *dataset);

/* ---- random transforms of images --------------------------------------------------------------------------------- */

/*
 * Inputs are [n, ..., height, width], u8 or f32 (otherwise LS_ERR_ARGUMENT). The random numbers of a sample are derived
 * from the loader's seed, the epoch and the sample's position in the epoch (ls_samples.places). They are the same on
 * any number of ranks and threads, and different for each transform of a data set. Except for
 * rotations, results equal torchvision's for the same random numbers. For u8, color transforms round down, and
 * rotations round to the nearest. ls_dataset_preload keeps the results of its first pass.
 *
 * `options` may be NULL. A fill must be a number of the inputs' dtype: a whole number from 0 to 255 for u8, and finite
 * for f32. Otherwise, and if an option is out of range, the functions fail with LS_ERR_ARGUMENT.
 */

/** Options for ls_dataset_random_crop. */
typedef struct ls_random_crop_options {
    int64_t height;  /**< height of the result, in pixels; 0 leaves it unchanged */
    int64_t width;   /**< width of the result, in pixels; 0 leaves it unchanged */
    int64_t padding; /**< width of the border with value `fill`, in pixels, added on each side before cropping; at most
                        2^31 */
    double fill;
} ls_random_crop_options;

/**
 * Crops inputs at a random position; all positions are equally likely (torchvision's RandomCrop). Fails with
 * LS_ERR_SHAPE if the result is larger than the padded inputs.
 */
LS_API ls_dataset *ls_dataset_random_crop(ls_dataset *dataset, const ls_random_crop_options *options);

/**
 * Flips inputs horizontally (left to right) and vertically (top to bottom) with these probabilities (torchvision's
 * RandomHorizontalFlip and RandomVerticalFlip).
 */
LS_API ls_dataset *ls_dataset_random_flip(ls_dataset *dataset, double horizontal, double vertical);

/**
 * Rotates inputs about the center by a random angle between -degrees and degrees (0 to 360), positive counterclockwise,
 * with bilinear interpolation. Pixels outside the image get `fill`. Pixels at the edge are interpolated between the
 * image and `fill`.
 *
 * With a fill of 0, the result equals torchvision's functional rotate with bilinear interpolation and no fill.
 * torchvision's RandomRotation differs: by default, it takes the nearest pixel. With bilinear interpolation, it always
 * has a fill (0 by default), and applies the weights of edge pixels twice.
 */
LS_API ls_dataset *ls_dataset_random_rotation(ls_dataset *dataset, double degrees, double fill);

/** Options for ls_dataset_color_jitter. An option with value x selects a random factor between max(0, 1 - x) and 1 + x,
 * which is drawn for each image. x is from 0 to 1e6. */
typedef struct ls_color_jitter_options {
    double brightness; /**< range of the factor that multiplies the image */
    double contrast;   /**< range of the factor that multiplies each pixel's distance from the image's mean gray */
    double saturation; /**< range of the factor that multiplies each pixel's distance from its gray value; no effect
                          on single-channel images */
} ls_color_jitter_options;

/**
 * Changes brightness, contrast and saturation in random order (torchvision's ColorJitter). Inputs are [n, 3, height,
 * width], or, with one channel, [n, 1, height, width] or [n, height, width]; other shapes fail with LS_ERR_SHAPE.
 * Values are from 0 to 255 (u8) or from 0 to 1 (f32), before and after. If ls_dataset_normalize subtracts a mean, call
 * it after this function. Gray is 0.2989 red + 0.587 green + 0.114 blue.
 */
LS_API ls_dataset *ls_dataset_color_jitter(ls_dataset *dataset, const ls_color_jitter_options *options);

/** Options for ls_dataset_random_erasing. */
typedef struct ls_random_erasing_options {
    double probability; /**< probability of a rectangle; 0 selects the default, 0.5, and LS_ZERO selects 0 */
    double least_area;  /**< smallest area of the rectangle, as a fraction of the image; 0 selects the default, 0.02 */
    double most_area;   /**< largest area of the rectangle, as a fraction of the image; 0 selects the default, 0.33 */
    double least_ratio; /**< smallest ratio of height to width; 0 selects the default, 0.3 */
    double most_ratio;  /**< largest ratio of height to width; 0 selects the default, 3.3 */
    double fill;        /**< value of the rectangle */
    bool noise; /**< fills with noise instead of with `fill`: normal with standard deviation 1 (f32), or uniform (u8) */
} ls_random_erasing_options;

/**
 * Fills a random rectangle in randomly chosen inputs (Zhong et al., arXiv 1708.04896; torchvision's RandomErasing).
 * Leaves an input unchanged if ten random rectangles do not fit.
 */
LS_API ls_dataset *ls_dataset_random_erasing(ls_dataset *dataset, const ls_random_erasing_options *options);

/**
 * Fills `holes` squares of each input, with `length` pixels per side, around random points. The squares may extend past
 * the edges (DeVries and Taylor, arXiv 1708.04552). The callback ls_cutout does the same on the batch's device, for any
 * floating-point dtype.
 */
LS_API ls_dataset *ls_dataset_cutout(ls_dataset *dataset, int64_t length, int holes, double fill);

/* ---- parts and combinations of data sets ------------------------------------------------------------------------- */

/** Returns a data set of the samples `first` to first + count - 1. Takes ownership of `dataset`. */
LS_API ls_dataset *ls_dataset_subset(ls_dataset *dataset, int64_t first, int64_t count);
/**
 * Returns a data set of the samples indices[0 .. count-1], in this order. An index may occur several times. Copies the
 * indices. Takes ownership of `dataset`.
 */
LS_API ls_dataset *ls_dataset_select(ls_dataset *dataset, const int64_t *indices, int64_t count);
/**
 * Splits the samples at random into `count` data sets: parts[i] gets the share fractions[i] of the samples. The
 * fractions are from 0 to 1 and add up to 1. Sizes are as in PyTorch's random_split: each is rounded down, and the
 * first parts get one more sample until none is left. The choice depends only on the seed, the fractions and the number
 * of samples (see the shuffle of ls_loader_options), so every rank gets the same parts. Takes ownership of `dataset`,
 * and returns ownership of the parts to the caller. On failure, all parts are NULL.
 */
LS_API ls_status ls_dataset_split(ls_dataset *dataset, const double *fractions, int count, uint64_t seed,
                                  ls_dataset **parts) LS_WARN_UNUSED;
/**
 * Returns the concatenation of several data sets. Takes ownership of the data sets. Their layouts after the transforms
 * must be equal; otherwise the call fails with LS_ERR_SHAPE, and the message names the data sets and the difference. A
 * data set without samples may have any layout.
 */
LS_API ls_dataset *ls_dataset_concat_of(ls_dataset *const *datasets, int count);
#ifndef __cplusplus
#define ls_dataset_concat(...)                                                                                         \
    ls_dataset_concat_of((ls_dataset *const[]){__VA_ARGS__},                                                           \
                         (int)(sizeof((ls_dataset *[]){__VA_ARGS__}) / sizeof(ls_dataset *)))
#endif

/* ---- loaders ----------------------------------------------------------------------------------------------------- */

/** A source of batches, epoch after epoch, from a data set (ls_loader_new) or of a user-defined kind. Opaque. */
typedef struct ls_loader ls_loader;

/**
 * Fills order[0 .. count-1] with the indices of the samples of an epoch. Indices may be repeated or missing. Every rank
 * must produce the same order, and the same order again for the same epoch. Therefore use ls_random_u32 with the epoch
 * and the index, not the state of a generator. Runs in its own scope, without recording. If an operation in it fails,
 * ls_loader_next fails.
 */
typedef ls_status (*ls_sampler)(int64_t epoch, int64_t *order, int64_t count, void *user);

/**
 * How to load. Set at most one of `no_shuffle`, `weights`, `sampler` and `shuffle_window`. For a fixed order, use
 * ls_dataset_select with no_shuffle.
 *
 * - The order of an epoch is a Fisher-Yates shuffle (Knuth, The Art of Computer Programming, vol. 2, algorithm 3.4.2P).
 * - Without shuffle_window, a shuffle depends only on the seed, the epoch and the number of samples.
 * - The order is divided into global batches, which are the same on any number of ranks for the same global
 *   batch size.
 * - Each rank gets a contiguous share of every global batch, in rank order. Without `shards`, the first ranks may have
 *   one sample more. For example, three ranks get 4, 3 and 3 of 10 samples, with ls_batch.first 0, 4 and 7.
 */
typedef struct ls_loader_options {
    int64_t batch_size; /**< samples per rank and step; the global batch has this number times the number of ranks; 0
                           selects the default, 1 */
    int64_t global_batch_size; /**< samples per step over all ranks, instead of batch_size */
    ls_comm *comm; /**< borrowed communicator, whose ranks share each global batch; with NULL, this process gets all
                      samples */
    /** Device of the batches (see ls_use_device). NULL selects the device of the thread that creates the loader. */
    const char *device;
    uint64_t seed;
    bool no_shuffle; /**< keeps the order of the data set instead of shuffling */
    bool drop_last;  /**< drops an incomplete last global batch */
    /**
     * Weights of the samples (copied): finite, 0 or more, with a positive sum. Samples are drawn with replacement, with
     * probabilities proportional to the weights. Draw i of an epoch is the first sample at which the cumulative weight
     * exceeds ls_random_uniform(seed, epoch, i) times the total weight (inversion: Devroye, Non-Uniform Random Variate
     * Generation, 1986, section III.2).
     */
    const double *weights;
    int64_t weight_count; /**< number of weights; must equal the number of samples */
    ls_sampler sampler;   /**< user-defined order */
    void *sampler_user;   /**< borrowed argument of the sampler */
    /**
     * Number of threads that prepare batches ahead of ls_loader_next, at most 1024. 0 selects none.
     *
     * - Batches, their order and errors are the same with any number of threads.
     * - If the data set has user functions without ls_dataset_concurrent, only one thread starts. The thread of
     *   ls_loader_next calls the sampler.
     * - The threads start with the first batch, run on the cores of the thread that requests it, and end with the
     *   loader. They prepare the first batches of an epoch when the first one is requested.
     */
    int threads;
    int64_t prefetch; /**< maximum number of prepared batches; 0 selects 2 per started thread; needs threads */
    /**
     * Samples per epoch, from the start of the order. 0 selects the number of samples of the data set. A larger number
     * is allowed only with weights or a sampler.
     */
    int64_t epoch_samples;
    /**
     * Number of slices into which each global batch is divided; at least the number of ranks. Each rank gets the
     * samples of its slices. Set it to `.shards` of ls_data_parallel_options. 0 selects one slice per rank. Fails with
     * LS_ERR_ARGUMENT without global_batch_size, because batch_size makes the global batch depend on the number of
     * ranks.
     */
    int shards;
    /**
     * Shuffles blocks of consecutive samples, and then the samples within each window of this number of blocks. 0
     * shuffles single samples. Use it for data sets that read whole blocks, such as compressed chunks
     * (ls_hdf5_dataset). If a window has more samples than a global batch and no sample spans two blocks, one process
     * reads each block once per epoch instead of once per sample.
     *
     * - Every global batch draws evenly from the blocks of its window. A larger window mixes samples better.
     * - Two windows must fit in the data set's cache. This is not checked after ls_dataset_concat, ls_dataset_select or
     *   ls_dataset_split.
     * - The samples of a global batch are sorted by block, so each rank reads few blocks outside its part. The order
     *   depends on the seed, the epoch, the global batch size and these two options, not on the number of ranks.
     * - It cannot be combined with a sampler, weights or no_shuffle.
     */
    int64_t shuffle_window;
    int64_t shuffle_block; /**< samples per block; 0 selects the blocks of the data set (ls_dataset_block) */
} ls_loader_options;

/**
 * Returns a loader over `dataset`. Takes ownership of `dataset`. Returns ownership to the caller; free it with
 * ls_loader_free. `options` may be NULL.
 */
LS_API ls_loader *ls_loader_new(ls_dataset *dataset, const ls_loader_options *options);
/** Returns a borrowed pointer to the data set. Returns NULL for a user-defined kind of loader. */
LS_API ls_dataset *ls_loader_dataset(const ls_loader *loader);

/** A kind of loader, for example of generated samples or of a stream. Define one static const object per kind. */
typedef struct ls_loader_type {
    const char *name;  /**< name for messages */
    size_t state_size; /**< bytes of ls_loader_state, initially zero */
    /**
     * Fills in `batch`, this rank's share of batch `number` of epoch `epoch`. Sets `*more`, which is initially true, to
     * false if the epoch ends before this batch; the next call is then for batch 0 of the next epoch. Runs in its own
     * scope, without recording. The loader keeps the tensors of the batch.
     *
     * - `target` may stay NULL.
     * - If `count` stays 0, it becomes the first size of `input`. If `global_count` stays 0, it becomes `count`.
     * - With more than one rank, set `global_count` and `first` (initially 0). All ranks must have the same number of
     *   batches.
     */
    ls_status (*next)(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more);
    /**
     * Called by ls_loader_seek if the position changes, so that `next` can continue there. May fail. NULL if `next`
     * depends only on its arguments.
     */
    ls_status (*seek)(ls_loader *self, int64_t epoch, int64_t batch);
    void (*free_state)(ls_loader *self); /**< frees the resources of the state; may be NULL */
} ls_loader_type;

/**
 * Returns a loader of a user-defined kind with `batches` batches per epoch. With -1, `next` decides where an epoch
 * ends. Returns ownership to the caller; free it with ls_loader_free.
 */
LS_API ls_loader *ls_loader_custom(const ls_loader_type *type, int64_t batches);
/** Returns a borrowed pointer to the state of type->state_size bytes. Returns NULL for NULL. */
LS_API void *ls_loader_state(const ls_loader *loader);

/** Returns the number of global batches per epoch. Returns -1 if it is unknown. */
LS_API int64_t ls_loader_batch_count(const ls_loader *loader);
/**
 * Sets `*epoch` and `*batch` to the position of the next batch. After the last batch of an epoch, `*batch` is the
 * number of batches. Either pointer may be NULL. Loaders start at epoch 0, batch 0.
 */
LS_API void ls_loader_position(const ls_loader *loader, int64_t *epoch, int64_t *batch);
/**
 * Moves the loader to batch `batch` of epoch `epoch` (both from 0). The loader then returns the same batches as if it
 * had read up to this position. Fails with LS_ERR_ARGUMENT if a number is negative, or if the batch is after the end of
 * an epoch whose number of batches is known (ls_loader_batch_count).
 */
LS_API ls_status ls_loader_seek(ls_loader *loader, int64_t epoch, int64_t batch) LS_WARN_UNUSED;
/**
 * Fills `batch` with the next batch. At the end of the epoch, sets `*more` to false, clears `batch`, and moves to the
 * start of the next epoch. After a failure, the position is unchanged.
 */
LS_API ls_status ls_loader_next(ls_loader *loader, ls_batch *batch, bool *more) LS_WARN_UNUSED;
/**
 * Frees the loader, and drops its reference to the data set. NULL is allowed. Do not use the loader afterwards:
 * ls_loader_next and ls_loader_seek usually fail with LS_ERR_STATE.
 */
LS_API void ls_loader_free(ls_loader *loader);

#ifdef __cplusplus
}

#define ls_dataset_concat(...) ls_dataset_concat_of_list({__VA_ARGS__})
static inline ls_dataset *ls_dataset_concat_of_list(std::initializer_list<ls_dataset *> datasets) {
    return ls_dataset_concat_of(datasets.begin(), static_cast<int>(datasets.size()));
}
#endif

#endif
