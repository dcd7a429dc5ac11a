/* Options: what is meant by numbers that were given or left zero, and which are refused. */
#ifndef LS_BASE_OPTION_H
#define LS_BASE_OPTION_H

#include "base/status.h"

/* Returns the value that an option selects: `usual` for zero, zero for LS_ZERO, and `given` for every other number. */
static inline double ls_option(double given, double usual) {
    return given == LS_ZERO ? 0 : given != 0 ? given : usual;
}

/* LS_ERR_ARGUMENT, naming call and option, when the value is not between the two; NaN is not. */
ls_status ls_option_within(const char *call, const char *option, double value, double low, double high);

#endif
