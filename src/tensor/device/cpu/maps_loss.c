/* Losses per element of x (or p, a probability) and a target t, and their gradients with respect to x. */
#include "tensor/device/cpu/map.h"

#include "tensor/device/maps_loss.inc"
