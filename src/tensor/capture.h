/*
 * The record of a step: the kernel calls that a thread makes on the CPU while a user function runs. A replay calls the
 * same kernels with the same arguments, without the code that called them.
 *
 * While a thread captures, ls_cpu.kernels is a second table (capture_kernels.c). Each of its kernels calls the real
 * kernel, and adds the call with copies of its arguments to the thread's record. Memory that is allocated during the
 * capture is a block. Blocks that are freed before its end get a place in one arena: two blocks may share memory if no
 * call between the first and the last use of one uses the other. All other memory stays where it is, and the record
 * holds it. Products and the ReLUs of their results become single calls (capture_products.c), and so do runs of
 * element-wise calls (capture_chains.c).
 *
 * The capture is refused, with the first reason, if a replay could not do what the function did. The function runs on
 * as usual.
 */
#ifndef LS_TENSOR_CAPTURE_H
#define LS_TENSOR_CAPTURE_H

#include "base/status.h"
#include "tensor/device.h"
#include "tensor/scope.h"

typedef struct ls_captured_block ls_captured_block;
typedef struct ls_captured_memory ls_captured_memory;

typedef struct ls_captured_call {
    ls_status (*run)(void *arguments);
    void *arguments;
    const char *operation; /* the operation that made the call, for messages; or NULL */
    bool polls;            /* the call only polls communicators, so a chain may be made before it */
} ls_captured_call;

/* An address in the arguments of a call that lies in a block. */
typedef struct ls_captured_address {
    void **at;
    ls_captured_block *block;
    size_t offset; /* in the block */
} ls_captured_address;

/* A storage that the calls use and that exists before or after the capture. The capture holds a reference to it. */
typedef struct ls_captured_storage {
    ls_storage *storage;
    uint32_t version; /* at its first use */
    bool changed;     /* the step changes its elements in place */
} ls_captured_storage;

/*
 * A state of the random number generator in the arguments of a call. A replay draws from the same number of streams as
 * the captured step, beginning with the generator's next stream.
 */
typedef struct ls_captured_random {
    ls_random_state *at;
    uint64_t index;  /* of the stream, among the streams of the step */
    uint64_t *first; /* index of the call's first number in its stream; NULL if it is 0 in every replay */
    uint64_t captured_first;
    uint64_t per_sample; /* numbers per sample of a global batch; 0 without a global batch */
} ls_captured_random;

struct ls_capture {
    uint32_t serial; /* differs from the serial of every earlier capture of the thread; never 0 */
    ls_captured_call *calls;
    int call_count;
    ls_captured_block **blocks;
    int block_count;
    ls_captured_address *addresses;
    int address_count;
    ls_captured_storage *storages;
    int storage_count;
    ls_captured_random *randoms;
    int random_count;
    ls_random_state first_random; /* state of the generator before the captured step */
    uint32_t random_accesses;     /* ls_random_accesses before the captured step */
    uint64_t stream_count;        /* streams that the step draws from */
    ls_captured_memory *memory;   /* memory of the calls' arguments */
    ls_storage *arena;
    const char *operation; /* the latest operation of the function, for messages; or NULL */
    /* Adds a storage that was made during the capture. A callback, because storages are below captures. */
    void (*add_block)(ls_capture *capture, ls_storage *storage);
    /* Notes a tensor that a call uses and that may exist before the step. `call` is for messages. */
    void (*note_tensor)(ls_capture *capture, const char *call, ls_tensor *tensor);
    int failed;       /* the call that failed in the latest run */
    int paused;       /* above 0: calls are not recorded, because one recorded call stands for them */
    ls_status status; /* LS_OK, LS_ERR_UNSUPPORTED if the step cannot be captured, or LS_ERR_MEMORY */
    char message[LS_ERROR_CAPACITY];
};

/* Starts and stops recording on the calling thread. Before, `capture` must be cleared, except for note_tensor. */
void ls_capture_begin(ls_capture *capture);
void ls_capture_end(ls_capture *capture);

/* After ls_capture_end: fuses products with the ReLU of their results. Changes no bits (capture_products.c). */
void ls_capture_fuse_products(ls_capture *capture);

/*
 * After ls_capture_fuse_products: replaces runs of element-wise calls by calls that process all of them piece by piece,
 * so that a piece stays in the cache. Changes no bits (capture_chains.c).
 */
void ls_capture_chain(ls_capture *capture);

/* After ls_capture_chain: assigns each block its offset in the arena. If the step cannot be captured, fails with the
 * reason. */
ls_status ls_capture_plan(ls_capture *capture);

/* Makes the recorded calls, in order. Returns the first failure. */
ls_status ls_capture_run(ls_capture *capture);

/* Frees the record. */
void ls_capture_clear(ls_capture *capture);

/*
 * Refuses the capture, unless it is refused already or paused: "OPERATION WHY". `why` ends with the remedy.
 */
void ls_capture_refuse(ls_capture *capture, const char *operation, const char *why);

#define LS_CAPTURE_READS                                                                                               \
    "reads elements on the host, which a replay does not: return the tensor from the function, and read "              \
    "ls_step_result"
#define LS_CAPTURE_WRITES                                                                                              \
    "writes elements on the host, which a replay does not: fill the tensor before ls_step_replay, and use it in the "  \
    "step"
#define LS_CAPTURE_STATE "changes state that a replay does not change: call it after ls_step_replay"
#define LS_CAPTURE_NUMBER                                                                                              \
    "returns a number that may change, and a replay repeats the recorded number: keep the number in a tensor, and "    \
    "fill the tensor before ls_step_replay"
#define LS_CAPTURE_MANY_SUMS                                                                                           \
    "scales more than 8 sums or means over the samples in this loss: combine some of them, or run the step without "   \
    "ls_step_capture"
#define LS_CAPTURE_MODULES                                                                                             \
    "scales this loss for several data-parallel modules: wrap their models in one module, or run the step without "    \
    "ls_step_capture"
#define LS_CAPTURE_UNRELATED                                                                                           \
    "takes part in the backward pass of a loss that does not depend on its model: run this pass outside the step"
#define LS_CAPTURE_COMMUNICATES "communicates, which is not recorded: run the step without ls_step_capture"

/* Does the same with the capture of the calling thread, if it has one. */
static inline void ls_capture_refuse_here(const char *operation, const char *why) {
    const ls_thread_state *thread = ls_thread_present;
    if (__builtin_expect(thread != NULL && thread->capture != NULL, 0)) {
        ls_capture_refuse(thread->capture, operation, why);
    }
}

/* Notes a tensor that the call uses, if the calling thread captures a step. */
static inline void ls_capture_note_here(const char *call, const ls_tensor *tensor) {
    const ls_thread_state *thread = ls_thread_present;
    if (__builtin_expect(thread != NULL && thread->capture != NULL, 0)) {
        thread->capture->note_tensor(thread->capture, call, (ls_tensor *)tensor);
    }
}

/* Returns whether calls are being recorded: the capture is neither refused nor paused. */
static inline bool ls_capture_records(const ls_capture *capture) {
    return capture->status == LS_OK && capture->paused == 0;
}

/* Adds a call. Returns `bytes` of cleared memory for its arguments, which live as long as the record; or NULL. */
void *ls_capture_add_call(ls_capture *capture, ls_status (*run)(void *arguments), size_t bytes);

/* Returns memory that lives as long as the record; NULL, with the capture refused, if out of memory. */
void *ls_capture_allocate(ls_capture *capture, size_t bytes);

/* Holds a storage that is not a block, so that addresses in it are known. Returns false if it is a block. */
bool ls_capture_add_storage(ls_capture *capture, ls_storage *storage);

/* Returns a copy of a tensor for the arguments of the latest call; NULL for NULL. */
ls_tensor *ls_capture_tensor(ls_capture *capture, const ls_tensor *tensor, bool written);

/* Records that the arguments of the latest call contain the address stored at `*at`. `name` is the kernel's name. */
void ls_capture_address(ls_capture *capture, const char *name, void **at, bool written);

/* Records that the arguments of the latest call contain the random number generator's state stored at `*at`. */
void ls_capture_random(ls_capture *capture, ls_random_state *at);

/* The same for a call that begins with number *first of the stream. */
void ls_capture_random_from(ls_capture *capture, ls_random_state *at, uint64_t *first);

/* Notes that the calls after the first `count` calls with random numbers draw `per_sample` numbers per sample. */
void ls_capture_set_per_sample(ls_capture *capture, int count, int64_t per_sample);

/* Makes later calls draw the numbers of samples whose indices in the global batch are larger by `samples` than in the
 * captured step. */
void ls_capture_move_samples(ls_capture *capture, int64_t samples);

/* capture_kernels.c: returns the address of the number that the latest call, a fill or a multiplication, uses. */
double *ls_capture_number(const ls_capture *capture);

/* capture_kernels.c */
extern const ls_kernels ls_capture_kernels;

#endif
