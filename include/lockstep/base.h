/**
 * @file base.h
 * The foundation of all other headers: status codes, error messages, logging, memory allocation, element types, random
 * numbers and the clock.
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

/**
 * Returns the version of the running library, for example "0.1.0". The string remains valid until the program exits.
 */
LS_API const char *ls_version(void);

/**
 * Selects zero for an option of type double if 0 selects a different default:
 *
 * ```c
 * ls_optimizer *without_momentum = ls_adam(model, &(ls_adam_options){.beta1 = LS_ZERO});
 * ```
 *
 * LS_ZERO is the smallest positive normal number of type double (DBL_MIN), so -ffast-math does not change it to 0. Only
 * assign LS_ZERO to such options; do not compute with it. The library replaces exactly this value with zero. An option
 * that must be positive therefore rejects LS_ZERO. There is one exception: for timeouts and for the step of
 * ls_gradcheck, LS_ZERO selects the default.
 */
#define LS_ZERO 2.2250738585072014e-308

/** Returns LS_ZERO. Intended for languages that cannot use C macros. */
LS_API double ls_option_zero(void);

/* ---- status and errors ------------------------------------------------------------------------------------------- */

/** Status codes. LS_OK is 0. Every other status reports a failure, and ls_error_message() returns the reason. */
typedef enum ls_status {
    LS_OK = 0,
    LS_ERR_ARGUMENT,    /**< invalid argument: NULL, a negative size, an unknown name */
    LS_ERR_SHAPE,       /**< mismatched shapes or element types */
    LS_ERR_MEMORY,      /**< out of memory */
    LS_ERR_IO,          /**< failed file access or system call */
    LS_ERR_FORMAT,      /**< file or message with invalid contents */
    LS_ERR_STATE,       /**< call that is not allowed in the current state */
    LS_ERR_UNSUPPORTED, /**< not supported by this build or this device */
    LS_ERR_PEER,        /**< another rank died or left the job */
    LS_ERR_MISMATCH,    /**< the ranks made different calls or used different values */
    LS_ERR_TIMEOUT,     /**< another rank did not respond within the timeout */
    LS_ERR_DENIED,      /**< missing or wrong job key, or no permission */
    LS_ERR_STOPPED,     /**< training stopped by a signal, after a checkpoint (ls_trial_run) */
    LS_ERR_INTERNAL,    /**< bug in Lockstep; please report it */
    LS_ERR_DEVICE       /**< failed or unusable device, for example a GPU that reports a fault, or a missing driver */
} ls_status;

/**
 * The exit status of a program that was stopped and can resume later (ls_trial_run returned LS_ERR_STOPPED). If a
 * program exits with this status, `lockstep run` exits with the same status and does not restart the program. The value
 * is EX_TEMPFAIL of sysexits.h.
 */
enum { LS_EXIT_STOPPED = 75 };

/** Returns the name of a status, for example "LS_ERR_PEER", or "unknown" if the value is not a status. */
LS_API const char *ls_status_name(ls_status status);

/**
 * Returns the reason for this thread's last failed call: one sentence with the names, shapes, ranks and values
 * involved. Returns an empty string if no call has failed yet. Returns a borrowed pointer to a buffer that belongs to
 * the thread. The next failure overwrites the text.
 */
LS_API const char *ls_error_message(void);

/** Returns the status of this thread's last failed call, or LS_OK if no call has failed yet. */
LS_API ls_status ls_error_status(void);

/**
 * Sets the status and the message of this thread's last error, and returns `status`. User callbacks and modules report
 * failures with it: `return ls_error_set(LS_ERR_ARGUMENT, "width is %d", width);`. Truncates the message to 1023 bytes,
 * and replaces each unprintable character with '?'.
 */
LS_API ls_status ls_error_set(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/**
 * Does the same as ls_error_set with literal text. Intended for languages that cannot call variadic functions. NULL
 * stands for an empty message.
 */
LS_API ls_status ls_error_set_text(ls_status status, const char *text);

/* ---- log --------------------------------------------------------------------------------------------------------- */

/**
 * The severity of a log line. Lines below the current level are dropped. The default level is LS_LOG_WARNING. The
 * environment variable LOCKSTEP_LOG selects another level: debug, info, warning, error or off.
 */
typedef enum ls_log_level { LS_LOG_DEBUG = 0, LS_LOG_INFO, LS_LOG_WARNING, LS_LOG_ERROR, LS_LOG_OFF } ls_log_level;

/**
 * Receives one log line without the trailing newline. `rank` is the rank that ls_init, ls_run_threads or the first
 * ls_comm_from_mpi gave the thread, or -1 if the thread has no rank. A loader's own thread has the rank of its creator.
 * The library never calls the sink from two threads at the same time. The sink must not write log lines itself, and
 * must not call ls_log_set_sink.
 */
typedef void (*ls_log_sink)(ls_log_level level, int rank, const char *line, void *user);

/**
 * Sends all log lines of the process to `sink`, and passes `user` to it. Borrows `user`. NULL restores the default
 * sink, which writes to standard error.
 */
LS_API void ls_log_set_sink(ls_log_sink sink, void *user);

/** Sets the log level of the process: log lines below `level` are dropped. */
LS_API void ls_log_set_level(ls_log_level level);

/**
 * Writes a log line, with a format as in printf. Truncates the line to 1023 bytes, and replaces each unprintable
 * character with '?'.
 */
LS_API void ls_log_write(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);

/**
 * Writes literal text as a log line. Intended for languages that cannot call variadic functions. NULL writes nothing.
 */
LS_API void ls_log_write_text(ls_log_level level, const char *text);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/** A memory allocator. Several threads may call its functions at the same time. */
typedef struct ls_allocator {
    /** Allocates `size` bytes, aligned to `alignment` (a power of two, at least 16). Returns NULL if out of memory. */
    void *(*allocate)(size_t size, size_t alignment, void *user);
    void (*release)(void *memory, void *user); /**< frees memory that `allocate` returned */
    void *user;
} ls_allocator;

/**
 * Sets the allocator of Lockstep's objects and of tensors on the CPU in this process. NULL selects the allocator of the
 * C library. Copies `allocator`. Call this function before any other function of Lockstep, because the library frees
 * this memory with the current allocator. The allocator is not used for error messages, communicators, sharded
 * parameters and gradients (`.zero` = 2 or 3), shared memory, GPU memory and other libraries.
 */
LS_API void ls_set_allocator(const ls_allocator *allocator);

/* ---- element types ----------------------------------------------------------------------------------------------- */

/** The element type of a tensor or of a communication buffer. */
typedef enum ls_dtype {
    LS_F32 = 0, /**< IEEE 754 single precision */
    LS_F64,     /**< IEEE 754 double precision */
    LS_BF16,    /**< bfloat16: the upper 16 bits of an f32; computed in f32 */
    LS_F16,     /**< IEEE 754 half precision; computed in f32 */
    LS_I64,
    LS_I32,
    LS_U8,
    LS_BOOL, /**< one byte, 0 or 1 */
    LS_DTYPE_COUNT
} ls_dtype;

/** Returns the size of one element in bytes, or 0 if the value is not a dtype. */
LS_API size_t ls_dtype_size(ls_dtype dtype);

/**
 * Returns the name of a dtype: "f32", "f64", "bf16", "f16", "i64", "i32", "u8" or "bool". Returns "unknown" if the
 * value is not a dtype.
 */
LS_API const char *ls_dtype_name(ls_dtype dtype);

/** Returns true if the dtype is a floating-point type (f32, f64, bf16 or f16). */
LS_API bool ls_dtype_is_floating(ls_dtype dtype);

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/**
 * Seeds this thread's random number generator, and restarts at stream 0. The initial seed is 0. The generator is Philox
 * 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Each random number is a function of
 * the seed, the stream and the index only.
 */
LS_API void ls_seed(uint64_t seed);

/** The state of a thread's random number generator. */
typedef struct ls_random_state {
    uint64_t seed;   /**< the seed that ls_seed set */
    uint64_t stream; /**< index of the next stream; each random operation uses one stream */
} ls_random_state;

/** Returns the state of this thread's generator. */
LS_API ls_random_state ls_random_get_state(void);

/** Sets the state of this thread's generator. */
LS_API void ls_random_set_state(ls_random_state state);

/** Returns a random 32-bit number: the word at `index` of `stream` for this `seed`. */
LS_API uint32_t ls_random_u32(uint64_t seed, uint64_t stream, uint64_t index);

/**
 * Returns a uniformly distributed number in [0, 1) with 53 random bits: the number at `index` of `stream` for this
 * `seed`.
 */
LS_API double ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/**
 * Returns a normally distributed number with mean 0 and standard deviation 1 (Box-Muller): the number at `index` of
 * `stream` for this `seed`.
 */
LS_API double ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* ---- clock ------------------------------------------------------------------------------------------------------- */

/** Returns the time on a monotonic clock, in nanoseconds. Only differences between two such times are meaningful. */
LS_API uint64_t ls_clock_ns(void);

/** Returns the time on the same clock, in seconds. */
LS_API double ls_clock_seconds(void);

/**
 * Adds a span to the trace of this thread. The span starts at `began` (a time from ls_clock_ns) and ends now. Keeps at
 * most 47 bytes of the name. Does nothing, and costs almost nothing, on a thread that has not called ls_trace_start
 * (trace.h). A loader's own threads (`.threads`) have no trace: use `.threads = 0` to see spans of a transform. A
 * replay of a captured step adds no spans of the step's function, unless it runs the function (ls_step_is_captured).
 */
LS_API void ls_trace_span(const char *name, uint64_t began);

#ifdef __cplusplus
}
#endif

#endif
