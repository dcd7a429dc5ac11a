/* Maps of one operand, or of one operand and parameters. */
#include "tensor/device/cuda/map.cuh"

#include "tensor/device/maps_unary.inc"
