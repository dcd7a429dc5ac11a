/**
 * @file base.h
 * The layer below tensors and communication: status codes, error messages, log, allocator, element types, random
 * numbers, clock.
 *
 * ```c
 * const uint64_t began = ls_clock_ns();
 * if (ls_comm_barrier(world, NULL) != LS_OK) {
 *     ls_log_write(LS_LOG_ERROR, "%s: %s", ls_status_name(ls_error_status()), ls_error_message());
 * }
 * ls_trace_span("barrier", began);
 * ```
 */
#ifndef LOCKSTEP_BASE_H
#define LOCKSTEP_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define LS_API                             __attribute__((visibility("default")))
#define LS_WARN_UNUSED                     __attribute__((warn_unused_result))
#define LS_PRINTF(format_at, arguments_at) __attribute__((format(printf, format_at, arguments_at)))
#else
#define LS_API
#define LS_WARN_UNUSED
#define LS_PRINTF(format_at, arguments_at)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** The version of these headers. ls_version() returns the version of the library. */
#define LS_VERSION_MAJOR 0
#define LS_VERSION_MINOR 1
#define LS_VERSION_PATCH 0
#define LS_VERSION       "0.1.0"

/** Returns the version of the running library, for example "0.1.0". The string is valid until the program ends. */
LS_API const char *ls_version(void);

/**
 * Selects zero in an option of type double, if zero itself selects a default:
 *
 * ```c
 * ls_optimizer *without_momentum = ls_adam(model, &(ls_adam_options){.beta1 = LS_ZERO});
 * ```
 *
 * LS_ZERO is the smallest normal number of type double (DBL_MIN), so a compiler keeps it under -ffast-math. Assign it
 * to an option, and do not compute with it. The library treats exactly this number as zero, and refuses it as such if
 * the option must be positive. Only for timeouts and the step of ls_gradcheck, LS_ZERO selects the default.
 */
#define LS_ZERO 2.2250738585072014e-308

/** Returns LS_ZERO, for languages without macros. */
LS_API double ls_option_zero(void);

/* ---- status and errors ---------------------------------------------------------------------------------------- */

/** Status codes. LS_OK is 0. Any other status is a failure; ls_error_message() returns the reason. */
typedef enum ls_status {
    LS_OK = 0,
    LS_ERR_ARGUMENT,    /**< wrong argument: NULL, a negative size, an unknown name */
    LS_ERR_SHAPE,       /**< shapes or element types that do not match */
    LS_ERR_MEMORY,      /**< out of memory */
    LS_ERR_IO,          /**< failure of a file or of a system call */
    LS_ERR_FORMAT,      /**< file or message with wrong contents */
    LS_ERR_STATE,       /**< call that does not fit the calls before it */
    LS_ERR_UNSUPPORTED, /**< not supported by this build or this device */
    LS_ERR_PEER,        /**< death or exit of another rank */
    LS_ERR_MISMATCH,    /**< different calls on different ranks */
    LS_ERR_TIMEOUT,     /**< no answer of another rank within the timeout */
    LS_ERR_DENIED,      /**< missing or wrong key of the job, or no permission */
    LS_ERR_STOPPED,     /**< stop by a callback or by the user */
    LS_ERR_INTERNAL,    /**< defect of Lockstep; please report it */
    LS_ERR_DEVICE       /**< failed or unusable device: a GPU that reports a fault, a missing driver */
} ls_status;

/**
 * The exit status of a program that was stopped and can resume later (ls_trial_run returned LS_ERR_STOPPED). `lockstep
 * run` then exits with the same status and does not restart the program. The value is EX_TEMPFAIL of sysexits.h.
 */
enum { LS_EXIT_STOPPED = 75 };

/** Returns the name of a status, for example "LS_ERR_PEER". Returns "unknown" for a value that is not a status. */
LS_API const char *ls_status_name(ls_status status);

/**
 * Returns the reason of the last failed call of this thread: one sentence with the names, shapes, ranks and values.
 * Returns an empty text before any failure. Returns a borrowed pointer to a buffer of the thread. The next failure
 * overwrites the text.
 */
LS_API const char *ls_error_message(void);

/** Returns the status of the last failed call of this thread. Returns LS_OK before any failure. */
LS_API ls_status ls_error_status(void);

/**
 * Sets the error message of this thread, and returns `status`. For failures of user callbacks and modules: `return
 * ls_error_set(LS_ERR_ARGUMENT, "width is %d", width);`. Keeps at most 1023 bytes of text.
 */
LS_API ls_status ls_error_set(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/** Does the same with literal text, for languages without variadic functions. NULL is an empty message. */
LS_API ls_status ls_error_set_text(ls_status status, const char *text);

/* ---- log ------------------------------------------------------------------------------------------------------ */

/**
 * The severity of a log line. The default level is LS_LOG_WARNING. LOCKSTEP_LOG selects another: debug, info, warning,
 * error, off.
 */
typedef enum ls_log_level { LS_LOG_DEBUG = 0, LS_LOG_INFO, LS_LOG_WARNING, LS_LOG_ERROR, LS_LOG_OFF } ls_log_level;

/** Receives one line without its newline. `rank` is -1 before the thread has joined a job. */
typedef void (*ls_log_sink)(ls_log_level level, int rank, const char *line, void *user);

/** Sends log lines to `sink` with `user`. NULL restores the default: standard error. Process-wide. */
LS_API void ls_log_set_sink(ls_log_sink sink, void *user);

/** Drops lines below `level`. Process-wide. */
LS_API void ls_log_set_level(ls_log_level level);

/** Writes a log line in printf's format. */
LS_API void ls_log_write(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);

/** Writes literal text as a log line, for languages without variadic functions. NULL writes nothing. */
LS_API void ls_log_write_text(ls_log_level level, const char *text);

/* ---- memory --------------------------------------------------------------------------------------------------- */

/** An allocator. Several threads may call both functions at the same time. */
typedef struct ls_allocator {
    /** Returns `size` bytes, aligned to `alignment` (a power of two, at least 16), or NULL if out of memory. */
    void *(*allocate)(size_t size, size_t alignment, void *user);
    void (*release)(void *memory, void *user); /**< frees memory of `allocate` */
    void *user;
} ls_allocator;

/**
 * Sets the allocator of Lockstep for the process; NULL selects the C library. Copies `allocator`. Call it before any
 * other function of Lockstep: all memory is released with the current allocator.
 */
LS_API void ls_set_allocator(const ls_allocator *allocator);

/* ---- element types -------------------------------------------------------------------------------------------- */

/** The type of one element of a tensor or of a communication buffer. */
typedef enum ls_dtype {
    LS_F32 = 0, /**< IEEE 754 single precision */
    LS_F64,     /**< IEEE 754 double precision */
    LS_BF16,    /**< bfloat16: the upper 16 bits of a single; computed in f32 */
    LS_F16,     /**< IEEE 754 half precision; computed in f32 */
    LS_I64,
    LS_I32,
    LS_U8,
    LS_BOOL, /**< one byte, 0 or 1 */
    LS_DTYPE_COUNT
} ls_dtype;

/** Returns the bytes of one element. Returns 0 for a value that is not a dtype. */
LS_API size_t ls_dtype_size(ls_dtype dtype);

/**
 * Returns "f32", "f64", "bf16", "f16", "i64", "i32", "u8" or "bool". Returns "unknown" for a value that is not a dtype.
 */
LS_API const char *ls_dtype_name(ls_dtype dtype);

/** Returns whether the dtype is a floating-point type (f32, f64, bf16, f16). */
LS_API bool ls_dtype_is_floating(ls_dtype dtype);

/* ---- random numbers ------------------------------------------------------------------------------------------- */

/**
 * Seeds the random numbers of this thread. The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3", SC 2011). A number is a function of seed, stream and index only. The initial seed is 0.
 */
LS_API void ls_seed(uint64_t seed);

/** The state of a thread's generator. */
typedef struct ls_random_state {
    uint64_t seed;   /**< seed of ls_seed */
    uint64_t stream; /**< number of the next stream; each random operation uses one stream */
} ls_random_state;

/** Returns the generator state of this thread. */
LS_API ls_random_state ls_random_get_state(void);

/** Restores a generator state in this thread. */
LS_API void ls_random_set_state(ls_random_state state);

/** Returns a random 32-bit number: word `index` of `stream` under `seed`. */
LS_API uint32_t ls_random_u32(uint64_t seed, uint64_t stream, uint64_t index);

/** Returns a random number in [0, 1) with 53 random bits: number `index` of `stream` under `seed`. */
LS_API double ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/** Returns a normally distributed number (mean 0, deviation 1; Box-Muller): number `index` of `stream` under `seed`. */
LS_API double ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* ---- clock ---------------------------------------------------------------------------------------------------- */

/** Returns the nanoseconds of a monotonic clock. Only differences have a meaning. */
LS_API uint64_t ls_clock_ns(void);

/** Returns the same time in seconds. */
LS_API double ls_clock_seconds(void);

/**
 * Adds a span to the trace of this thread's rank, from `began` (a time of ls_clock_ns) until now. Keeps the first 47
 * bytes of the name. Costs almost nothing while no trace runs (ls_trace_start in trace.h).
 */
LS_API void ls_trace_span(const char *name, uint64_t began);

#ifdef __cplusplus
}
#endif

#endif
