/*
 * A stand-in for libnccl and CUDA's runtime, as far as backend nccl uses them: linked with the module's own objects
 * into a lockstep-nccl.so that only tests find. GPUs' memory is the process's own, streams are threads, and ranks,
 * which are real processes, meet in a file. It works as late as the real ones may: joining, giving and running each
 * take a while, and a call that comes too early is an error. What NCCL's documentation forbids ends the process with a
 * sentence: arguments that differ between ranks, buffers that overlap otherwise than in place, a second call while the
 * first is not given. An abort ends the work in progress on this rank alone.
 *
 * LOCKSTEP_TEST_NCCL is a list: `folder=PATH` where files are, `onegpu` puts all ranks on one GPU, `fail=RANK` has that
 * rank's 20th collective fail, as NCCL tells later.
 */
#ifndef LS_TESTS_NCCL_DOUBLE_DOUBLE_H
#define LS_TESTS_NCCL_DOUBLE_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

/* What a stream is to do: `run` is called on its thread, in order, and then `argument` is freed. */
void double_push(cudaStream_t stream, void (*run)(void *argument), void *argument);

/* The value of a setting in LOCKSTEP_TEST_NCCL, "" for one without; false: it is not there. */
bool double_setting(const char *name, char *value, size_t capacity);

/* Says what was done wrong, and ends the process. */
_Noreturn void double_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sleeps a moment in a wait loop. */
void double_rest(void);

#endif
