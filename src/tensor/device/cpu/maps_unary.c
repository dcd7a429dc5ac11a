/* Maps of one operand, or of one operand and parameters. */
#include "tensor/device/cpu/map.h"

#include "tensor/device/maps_unary.inc"
