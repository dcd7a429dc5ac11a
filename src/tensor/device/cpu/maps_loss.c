/* Losses element by element of x (or p, a probability) and a target t, and their gradients for x. */
#include "tensor/device/cpu/map.h"

#include "tensor/device/maps_loss.inc"
