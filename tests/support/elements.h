/* The elements of a tensor for tests, whatever device it is on. */
#ifndef LS_TESTS_SUPPORT_ELEMENTS_H
#define LS_TESTS_SUPPORT_ELEMENTS_H

#include <lockstep/tensor.h>

/*
 * ls_data, also of a tensor whose memory the host cannot read: a copy then, good for reading until 256 more were asked
 * for by this thread. What a test writes there goes to the tensor when the thread next asks the device for something.
 */
void *elements(const ls_tensor *tensor);

#endif
