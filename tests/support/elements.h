/* Access to the elements of a tensor for tests, on any device. */
#ifndef LS_TESTS_SUPPORT_ELEMENTS_H
#define LS_TESTS_SUPPORT_ELEMENTS_H

#include <lockstep/tensor.h>

/*
 * Works like ls_data, and also for a tensor in memory that the host cannot read. The result is then a copy, which is
 * readable until this thread has requested 256 more copies. Changes made by the test are stored in the tensor before
 * the thread's next request to the device.
 */
void *elements(const ls_tensor *tensor);

#endif
