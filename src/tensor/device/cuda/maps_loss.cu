/* Element-wise losses, and their gradients. */
#include "tensor/device/cuda/map.cuh"

#include "tensor/device/maps_loss.inc"
