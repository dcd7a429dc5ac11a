/*
 * Numbers in the library's files, messages and printed lines have a decimal point in every locale. These functions
 * print and read numbers in the "C" locale, and switch the locale of the calling thread only.
 */
#ifndef LS_BASE_LOCALE_H
#define LS_BASE_LOCALE_H

#include <locale.h>
#include <stddef.h>
#include <stdio.h>

/* Switches the calling thread to the "C" locale. Returns the locale that ls_locale_leave restores. */
static inline locale_t ls_locale_enter(void) {
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static inline void ls_locale_leave(locale_t before) {
    const locale_t plain = uselocale(before);
    if (plain != before) {
        freelocale(plain);
    }
}

/* fprintf and snprintf in the "C" locale. */
int ls_fprintf(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
int ls_snprintf(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* strtod in the "C" locale. */
double ls_strtod(const char *text, char **end);

#endif
