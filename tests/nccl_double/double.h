/*
 * A stand-in for libnccl and the part of the CUDA runtime that backend nccl uses. It is linked with the module's
 * objects into a lockstep-nccl.so that only tests load. GPU memory is the process's own memory, streams are threads,
 * and ranks are separate processes that meet in a file. Like the real libraries, it is asynchronous: joining,
 * submitting and running each take a while, and a call that comes too early is an error. A violation of NCCL's
 * documented rules ends the process with a message: arguments that differ between ranks, buffers that overlap but are
 * not in place, or a second call before the first is submitted. An abort ends the work in progress on this rank only.
 *
 * LOCKSTEP_TEST_NCCL is a list: `folder=PATH` is the folder for files, `onegpu` puts all ranks on one GPU, `fail=RANK`
 * makes the 20th collective of this rank fail asynchronously, as NCCL does.
 */
#ifndef LS_TESTS_NCCL_DOUBLE_DOUBLE_H
#define LS_TESTS_NCCL_DOUBLE_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

/* Appends a task to the stream: its thread calls `run` in order, and then frees `argument`. */
void double_push(cudaStream_t stream, void (*run)(void *argument), void *argument);

/* Copies the value of a setting in LOCKSTEP_TEST_NCCL, or "" for a setting without a value. Returns false if the
 * setting is missing. */
bool double_setting(const char *name, char *value, size_t capacity);

/* Prints the caller's mistake, and ends the process. */
_Noreturn void double_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sleeps briefly in a wait loop. */
void double_rest(void);

#endif
