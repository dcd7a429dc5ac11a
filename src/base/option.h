/* Options of which zero means the default. */
#ifndef LS_BASE_OPTION_H
#define LS_BASE_OPTION_H

#include <lockstep/base.h>

#include <math.h>

/* What a given option means: itself, `usual` where it was left zero, and zero where it is LS_ZERO. */
static inline double ls_option(double given, double usual) {
    return given != 0 ? given : signbit(given) ? 0 : usual;
}

#endif
