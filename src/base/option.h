/* Numeric options: their defaults and their limits. */
#ifndef LS_BASE_OPTION_H
#define LS_BASE_OPTION_H

#include "base/status.h"

/* Returns the value that an option selects: `usual` for zero, zero for LS_ZERO, and `given` for any other number. */
static inline double ls_option(double given, double usual) {
    return given == LS_ZERO ? 0 : given != 0 ? given : usual;
}

/* Returns the timeout in seconds that an option selects: `usual` for zero and for LS_ZERO, else `given`. */
static inline double ls_option_timeout(double given, double usual) {
    return given == LS_ZERO ? usual : ls_option(given, usual);
}

/* Fails with LS_ERR_ARGUMENT if the value is outside [low, high] or NaN. The message names the call and the option. */
ls_status ls_option_within(const char *call, const char *option, double value, double low, double high);

#endif
