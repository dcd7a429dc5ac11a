/* Numeric options: their defaults and their limits. */
#ifndef LS_BASE_OPTION_H
#define LS_BASE_OPTION_H

#include <math.h>

#include "base/status.h"

/* What a given option means: itself, `usual` where it was left zero, and zero where it is LS_ZERO. */
static inline double ls_option(double given, double usual) {
    return given != 0 ? given : signbit(given) ? 0 : usual;
}

/* Fails with LS_ERR_ARGUMENT, and names the call and the option, if the value is outside [low, high] or NaN. */
ls_status ls_option_within(const char *call, const char *option, double value, double low, double high);

#endif
