#include "base/locale.h"

#include <stdarg.h>
#include <stdlib.h>

int ls_fprintf(FILE *stream, const char *format, ...) {
    va_list arguments;
    const locale_t before = ls_locale_enter();
    va_start(arguments, format);
    const int length = vfprintf(stream, format, arguments);
    va_end(arguments);
    ls_locale_leave(before);
    return length;
}

int ls_snprintf(char *text, size_t size, const char *format, ...) {
    va_list arguments;
    const locale_t before = ls_locale_enter();
    va_start(arguments, format);
    const int length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    ls_locale_leave(before);
    return length;
}

double ls_strtod(const char *text, char **end) {
    const locale_t before = ls_locale_enter();
    const double number = strtod(text, end);
    ls_locale_leave(before);
    return number;
}
