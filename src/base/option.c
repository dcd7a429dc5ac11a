#include "base/option.h"

ls_status ls_option_within(const char *call, const char *option, double value, double low, double high) {
    if (!(value >= low && value <= high)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is %g, but must be between %g and %g", call, option, value, low, high);
    }
    return LS_OK;
}

double ls_option_zero(void) {
    return LS_ZERO;
}
