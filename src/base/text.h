/*
 * Text from outside (a peer, a file or a connection) that may reach a terminal or a log. Error messages, log lines and
 * the launcher's lines are filtered when they are created, so callers quote such text unchanged.
 */
#ifndef LS_BASE_TEXT_H
#define LS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the length in bytes of the UTF-8 character (RFC 3629) at the start of the text, and stores the character.
 * Returns 0 if the bytes are not valid UTF-8. Does not read beyond the terminating NUL. */
size_t ls_text_character(const char *text, uint32_t *character);

/* Returns whether the whole text is valid UTF-8. */
bool ls_text_is_utf8(const char *text);

/*
 * Replaces each of the following with one '?', in place, because they could control a terminal or forge a line:
 *   - control characters, including newline, escape, and 0x80 to 0x9f encoded in UTF-8;
 *   - Unicode characters that change the direction of text or break lines;
 *   - bytes that are not valid UTF-8.
 */
void ls_text_make_printable(char *text);

/* Returns the edit distance with transpositions (optimal string alignment, after Damerau 1964) between the first 32
   bytes of both words. */
size_t ls_word_distance(const char *left, const char *right);

/* Returns whether a word at this distance from `word` is close enough for a "did you mean" hint. */
bool ls_word_is_near(const char *word, size_t distance);

#endif
