#include "base/text.h"

#include <string.h>

size_t ls_text_character(const char *bytes, uint32_t *character) {
    const unsigned char *text = (const unsigned char *)bytes;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* refuses overlong encodings */
    const size_t length = text[0] < 0x80             ? 1
                          : (text[0] & 0xe0) == 0xc0 ? 2
                          : (text[0] & 0xf0) == 0xe0 ? 3
                          : (text[0] & 0xf8) == 0xf0 ? 4
                                                     : 0;
    *character = length > 1 ? text[0] & (0xffU >> (length + 1)) : text[0];
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
        *character = *character << 6 | (text[i] & 0x3fU);
    }
    return length > 0 && *character >= least[length] && *character <= 0x10ffff &&
                   (*character < 0xd800 || *character > 0xdfff)
               ? length
               : 0;
}

bool ls_text_is_utf8(const char *text) {
    size_t length = 1;
    for (uint32_t character; length > 0 && *text != '\0'; text += length) {
        length = ls_text_character(text, &character);
    }
    return length > 0;
}

static bool is_printable(uint32_t character) {
    return character >= 0x20 && !(character >= 0x7f && character <= 0x9f) &&
           !(character >= 0x2028 && character <= 0x202e) && !(character >= 0x2066 && character <= 0x2069) &&
           character != 0x061c && character != 0x200e && character != 0x200f;
}

void ls_text_make_printable(char *text) {
    char *end = text;
    while (*text != '\0') {
        uint32_t character;
        const size_t length = ls_text_character(text, &character);
        if (length > 0 && is_printable(character)) {
            memmove(end, text, length);
            end += length;
        } else {
            *end++ = '?';
        }
        text += length > 0 ? length : 1;
    }
    *end = '\0';
}

/* ---- similar words ----------------------------------------------------------------------------------------------- */

enum { LONGEST_WORD = 32 };

size_t ls_word_distance(const char *left, const char *right) {
    const size_t rows = strnlen(left, LONGEST_WORD);
    const size_t columns = strnlen(right, LONGEST_WORD);
    size_t cost[LONGEST_WORD + 1][LONGEST_WORD + 1];
    for (size_t i = 0; i <= rows; i++) {
        for (size_t j = 0; j <= columns; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            size_t best = cost[i - 1][j - 1] + (left[i - 1] != right[j - 1]);
            best = cost[i - 1][j] + 1 < best ? cost[i - 1][j] + 1 : best;
            best = cost[i][j - 1] + 1 < best ? cost[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] &&
                cost[i - 2][j - 2] + 1 < best) {
                best = cost[i - 2][j - 2] + 1;
            }
            cost[i][j] = best;
        }
    }
    return cost[rows][columns];
}

bool ls_word_is_near(const char *word, size_t distance) {
    return distance <= 1 + strlen(word) / 4 && distance < strlen(word);
}
