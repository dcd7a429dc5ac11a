/*
 * Text that others wrote (a peer, a file, whoever connects) and that may reach a terminal or a log. Error messages, log
 * lines and the launcher's own lines are filtered as they are made, so their callers put foreign text into them as it
 * is.
 */
#ifndef LS_BASE_TEXT_H
#define LS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the character of UTF-8 (RFC 3629) that the text begins with, in bytes; 0: there is none. Stops at the
 * NUL. */
size_t ls_text_character(const char *text, uint32_t *character);

/* Whether the text is UTF-8. */
bool ls_text_is_utf8(const char *text);

/*
 * Replaces in place, each by one '?', what could steer a terminal or fake a line: control characters (newlines and
 * escape sequences too; those of the range 0x80 to 0x9f also in UTF-8), what orders text from right to left or breaks
 * lines in Unicode, and bytes that are not UTF-8. All else stays as it is.
 */
void ls_text_make_printable(char *text);

/* How many letters must be changed, put in, left out or swapped with the next to make one word of the other. */
size_t ls_word_distance(const char *left, const char *right);

/* Whether `distance` is near enough to `word` to ask "did you mean". */
bool ls_word_is_near(const char *word, size_t distance);

#endif
