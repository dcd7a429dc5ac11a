/* Devices that modules bring: GPUs as "cuda:0", "cuda:1", ..., of which "cuda" is the first. */
#ifndef LS_TENSOR_DEVICE_OPEN_H
#define LS_TENSOR_DEVICE_OPEN_H

#include "tensor/device.h"

/* Whether the name is that of such a device: "cuda", or what begins with "cuda:". */
bool ls_device_opens(const char *name);

/* Opens the module when it is first asked, and adds the device of the name, which ls_device_opens, when it is first
 * named. NULL with the error, for `call`: LS_ERR_ARGUMENT for what names none that is there, LS_ERR_UNSUPPORTED without
 * the module, and LS_ERR_DEVICE where there is no GPU or it cannot be used. */
const ls_device *ls_device_open(const char *call, const char *name);

#endif
