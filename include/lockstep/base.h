/**
 * @file base.h
 * What every other part of Lockstep stands on: status codes and error text, the log, allocator hooks, element types,
 * random numbers and the clock. It knows nothing of tensors or communication.
 */
#ifndef LOCKSTEP_BASE_H
#define LOCKSTEP_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the library exports, results that must not be ignored, and printf-like arguments. */
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

/** The version of these headers; ls_version() is that of the library. */
#define LS_VERSION_MAJOR 0
#define LS_VERSION_MINOR 1
#define LS_VERSION_PATCH 0
#define LS_VERSION       "0.1.0"

/** The version of the library that is running, for example "0.1.0". The string lives as long as the program. */
LS_API const char *ls_version(void);

/**
 * Selects zero in an option of type double, if zero itself selects a default:
 *
 * ```c
 * ls_optimizer *without_momentum = ls_adam(model, &(ls_adam_options){.beta1 = LS_ZERO});
 * ```
 *
 * LS_ZERO is the smallest normal number of type double (DBL_MIN), so a compiler keeps it under -ffast-math. Assign it
 * to an option and do not compute with it. The library treats exactly this number as zero. If zero is not a valid value
 * of an option, as of timeouts and of the step of ls_gradcheck, LS_ZERO selects the default.
 */
#define LS_ZERO 2.2250738585072014e-308

/** Returns LS_ZERO, for languages without macros. */
LS_API double ls_option_zero(void);

/* ---- status and errors ---------------------------------------------------------------------------------------- */

/** What became of a call. LS_OK is 0; everything else is a failure whose reason ls_error_message() tells. */
typedef enum ls_status {
    LS_OK = 0,
    LS_ERR_ARGUMENT,    /**< an argument is wrong: a NULL, a negative size, an unknown name */
    LS_ERR_SHAPE,       /**< shapes or element types do not fit together */
    LS_ERR_MEMORY,      /**< memory could not be had */
    LS_ERR_IO,          /**< a file or a system call failed */
    LS_ERR_FORMAT,      /**< a file or message is not what it should be */
    LS_ERR_STATE,       /**< the call does not fit what happened before it */
    LS_ERR_UNSUPPORTED, /**< this build or this device cannot do it */
    LS_ERR_PEER,        /**< another rank died or left */
    LS_ERR_MISMATCH,    /**< ranks called different things */
    LS_ERR_TIMEOUT,     /**< another rank did not answer in time */
    LS_ERR_DENIED,      /**< the job's key is missing or wrong, or permission was refused */
    LS_ERR_STOPPED,     /**< a callback or the user asked to stop */
    LS_ERR_INTERNAL,    /**< a fault of Lockstep's own: please report it */
    LS_ERR_DEVICE       /**< a device failed or cannot be used: a GPU that reports a fault, a driver that is missing */
} ls_status;

/** The exit status of a program that was stopped and continues later (LS_ERR_STOPPED of ls_trial_run). `lockstep run`
 * then exits with this status too, and does not restart the program. EX_TEMPFAIL of sysexits.h. */
enum { LS_EXIT_STOPPED = 75 };

/** The name of a status as written in the source, for example "LS_ERR_PEER"; "unknown" for a value that is none. */
LS_API const char *ls_status_name(ls_status status);

/**
 * Why the last failing call of this thread failed: one sentence with the names, shapes, ranks and values in question.
 * Empty before any failure. The text is lent, lives in a fixed buffer of the thread and changes with its next failure.
 */
LS_API const char *ls_error_message(void);

/** The status of the last failing call of this thread; LS_OK before any failure. */
LS_API ls_status ls_error_status(void);

/**
 * Sets this thread's error message and returns `status`. For callbacks and modules of your own that fail: `return
 * ls_error_set(LS_ERR_ARGUMENT, "width is %d", width);`. Text after 1023 bytes is cut off.
 */
LS_API ls_status ls_error_set(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/** Does the same with `text` as it is, for languages without variadic functions. NULL is an empty message. */
LS_API ls_status ls_error_set_text(ls_status status, const char *text);

/* ---- log ------------------------------------------------------------------------------------------------------ */

/** How much a log line matters. The default level is LS_LOG_WARNING, or what LOCKSTEP_LOG names (debug, info, ...). */
typedef enum ls_log_level { LS_LOG_DEBUG = 0, LS_LOG_INFO, LS_LOG_WARNING, LS_LOG_ERROR, LS_LOG_OFF } ls_log_level;

/** Receives one finished line without its newline. `rank` is -1 before the thread has joined a job. */
typedef void (*ls_log_sink)(ls_log_level level, int rank, const char *line, void *user);

/** Sends log lines to `sink` with `user`; NULL restores the default, which writes to standard error. Process-wide. */
LS_API void ls_log_set_sink(ls_log_sink sink, void *user);

/** Lines below `level` are dropped. Process-wide. */
LS_API void ls_log_set_level(ls_log_level level);

/** Writes a log line in printf's format. */
LS_API void ls_log_write(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);

/** Writes `text` as it is as a log line, for languages without variadic functions. NULL writes nothing. */
LS_API void ls_log_write_text(ls_log_level level, const char *text);

/* ---- memory --------------------------------------------------------------------------------------------------- */

/**
 * Where Lockstep's memory comes from. `allocate` returns `size` bytes aligned to `alignment` (a power of two, at least
 * 16) or NULL; `release` takes back what allocate gave. Both may be called from several threads at once.
 */
typedef struct ls_allocator {
    void *(*allocate)(size_t size, size_t alignment, void *user);
    void (*release)(void *memory, void *user);
    void *user;
} ls_allocator;

/**
 * Makes Lockstep use `allocator` (copied) from here on; NULL restores the C library's. Call it before anything else of
 * Lockstep: memory is given back to whichever allocator is set then. Process-wide.
 */
LS_API void ls_set_allocator(const ls_allocator *allocator);

/* ---- element types -------------------------------------------------------------------------------------------- */

/** The type of one element of a tensor or of a communication buffer. */
typedef enum ls_dtype {
    LS_F32 = 0, /**< IEEE 754 single precision */
    LS_F64,     /**< IEEE 754 double precision */
    LS_BF16,    /**< bfloat16: the upper half of a single; stored, computed by way of f32 */
    LS_F16,     /**< IEEE 754 half precision; stored, computed by way of f32 */
    LS_I64,
    LS_I32,
    LS_U8,
    LS_BOOL, /**< one byte, 0 or 1 */
    LS_DTYPE_COUNT
} ls_dtype;

/** Bytes of one element; 0 for a value that is no dtype. */
LS_API size_t ls_dtype_size(ls_dtype dtype);

/** "f32", "f64", "bf16", "f16", "i64", "i32", "u8" or "bool"; "unknown" for a value that is no dtype. */
LS_API const char *ls_dtype_name(ls_dtype dtype);

/** Whether the dtype is a floating one (f32, f64, bf16, f16). */
LS_API bool ls_dtype_is_floating(ls_dtype dtype);

/* ---- random numbers ------------------------------------------------------------------------------------------- */

/**
 * Seeds this thread's random numbers (Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011). A number is a function of seed, stream and index only. The seed is 0 until set.
 */
LS_API void ls_seed(uint64_t seed);

/** Where this thread's generator stands: everything needed to go on from here. */
typedef struct ls_random_state {
    uint64_t seed;   /**< as given to ls_seed */
    uint64_t stream; /**< the number of the next stream: every random operation takes one */
} ls_random_state;

/** This thread's generator state, to be saved. */
LS_API ls_random_state ls_random_get_state(void);

/** Puts this thread's generator where `state` says. */
LS_API void ls_random_set_state(ls_random_state state);

/** A random 32-bit number: word `index` of `stream` under `seed`. */
LS_API uint32_t ls_random_u32(uint64_t seed, uint64_t stream, uint64_t index);

/** A random number in [0, 1) with 53 random bits: number `index` of `stream` under `seed`. */
LS_API double ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/** A normally distributed number (mean 0, deviation 1; Box-Muller): number `index` of `stream` under `seed`. */
LS_API double ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* ---- clock ---------------------------------------------------------------------------------------------------- */

/** Nanoseconds of a clock that never goes backwards; only differences mean something. */
LS_API uint64_t ls_clock_ns(void);

/** The same in seconds. */
LS_API double ls_clock_seconds(void);

/**
 * Adds a span to the trace of this thread's rank: from `began` (a time of ls_clock_ns) until now. The first 47 bytes of
 * the name are kept. Costs next to nothing while no trace runs (ls_trace_start in trace.h).
 */
LS_API void ls_trace_span(const char *name, uint64_t began);

#ifdef __cplusplus
}
#endif

#endif
