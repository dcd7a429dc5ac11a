/* Options: what is meant by numbers that were given or left zero, and which are refused. */
#ifndef LS_BASE_OPTION_H
#define LS_BASE_OPTION_H

#include <math.h>

#include "base/status.h"

/* What a given option means: itself, `usual` where it was left zero, and zero where it is LS_ZERO. */
static inline double ls_option(double given, double usual) {
    return given != 0 ? given : signbit(given) ? 0 : usual;
}

/* LS_ERR_ARGUMENT, naming call and option, when the value is not between the two; NaN is not. */
ls_status ls_option_within(const char *call, const char *option, double value, double low, double high);

#endif
