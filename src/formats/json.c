#include "formats/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/text.h"

static bool fail(ls_json *json, const char *expected) {
    json->expected = expected;
    return false;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

static void skip_space(ls_json *json) {
    while (*json->at == ' ' || *json->at == '\n' || *json->at == '\r' || *json->at == '\t') {
        json->at++;
    }
}

bool ls_json_accept(ls_json *json, char mark) {
    skip_space(json);
    const bool found = *json->at == mark;
    json->at += found;
    return found;
}

bool ls_json_expect(ls_json *json, char mark) {
    if (ls_json_accept(json, mark)) {
        return true;
    }
    memcpy(json->mark, (const char[]){'\'', mark, '\'', '\0'}, sizeof json->mark);
    return fail(json, json->mark);
}

static bool accept_word(ls_json *json, const char *word) {
    const size_t length = strlen(word);
    skip_space(json);
    const bool found = strncmp(json->at, word, length) == 0;
    json->at += found ? length : 0;
    return found;
}

bool ls_json_end(ls_json *json, size_t size) {
    skip_space(json);
    return ls_json_position(json) == size || fail(json, "nothing but space after its end");
}

/*
 * Returns whether entry `*count` of an object or array with these delimiters follows. Returns false at the end, and on
 * failure.
 */
static bool next_entry(ls_json *json, int64_t *count, char open, char close) {
    const bool first = *count == 0;
    if (first && !ls_json_expect(json, open)) {
        return false;
    }
    const bool more = first ? !ls_json_accept(json, close) : ls_json_accept(json, ',');
    if (!first && !more) {
        (void)ls_json_expect(json, close);
    }
    *count += more;
    return more;
}

bool ls_json_item(ls_json *json, int64_t *count) {
    return next_entry(json, count, '[', ']');
}

bool ls_json_key(ls_json *json, int64_t *count, const char **key) {
    return next_entry(json, count, '{', '}') && ls_json_word(json, key) && ls_json_expect(json, ':');
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Returns the value of the four hexadecimal digits of an escape, or UINT32_MAX if they are invalid. */
static uint32_t read_unit(const char *at) {
    uint32_t unit = 0;
    for (int i = 0; i < 4; i++) {
        const char digit = at[i];
        const bool decimal = digit >= '0' && digit <= '9';
        const char lower = (char)(digit | 0x20);
        if (!decimal && !(lower >= 'a' && lower <= 'f')) {
            return UINT32_MAX;
        }
        unit = unit << 4 | (uint32_t)(decimal ? digit - '0' : lower - 'a' + 10);
    }
    return unit;
}

static char *put_character(char *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    const int tail = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *to++ = (char)((0xff00U >> (tail + 1) & 0xffU) | c >> (6 * tail));
    for (int i = tail - 1; i >= 0; i--) {
        *to++ = (char)(0x80U | (c >> (6 * i) & 0x3fU));
    }
    return to;
}

/*
 * Reads the character of a \u escape, or of two escapes that form a surrogate pair. Returns false if the character is
 * invalid or zero.
 */
static bool read_digits(ls_json *json, uint32_t *c) {
    *c = read_unit(json->at);
    if (*c == UINT32_MAX) {
        return false;
    }
    json->at += 4;
    if (*c >= 0xd800 && *c <= 0xdbff && json->at[0] == '\\' && json->at[1] == 'u') {
        const uint32_t low = read_unit(json->at + 2);
        json->at += 6;
        *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
        return low >= 0xdc00 && low <= 0xdfff;
    }
    return *c != 0 && (*c < 0xd800 || *c > 0xdfff);
}

/* Reads an escape sequence, after its backslash. */
static bool read_escape(ls_json *json, char **to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    const char kind = *json->at++;
    if (kind == 'u') {
        uint32_t c;
        const bool good = read_digits(json, &c);
        *to = good ? put_character(*to, c) : *to;
        return good;
    }
    const char *found = kind != '\0' ? strchr(from, kind) : NULL;
    if (found != NULL) {
        *(*to)++ = into[found - from];
    }
    return found != NULL;
}

bool ls_json_text(ls_json *json, const char **text) {
    if (!ls_json_expect(json, '"')) {
        return false;
    }
    char *to = json->packed;
    *text = to;
    while (*json->at != '"') {
        if (*json->at == '\\') {
            json->at++;
            if (!read_escape(json, &to)) {
                return fail(json, "an escape that JSON knows");
            }
            continue;
        }
        uint32_t c;
        const size_t length = ls_text_character(json->at, &c);
        if (length == 0 || c < 0x20) {
            return fail(json, "a UTF-8 string and the '\"' that ends it");
        }
        memmove(to, json->at, length);
        to += length;
        json->at += length;
    }
    json->at++;
    *to++ = '\0';
    json->packed = to;
    return true;
}

bool ls_json_word(ls_json *json, const char **word) {
    char *packed = json->packed;
    const bool read = ls_json_text(json, word);
    json->packed = packed;
    return read;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

bool ls_json_size(ls_json *json, int64_t *size) {
    skip_space(json);
    const char *first = json->at;
    *size = 0;
    for (; *json->at >= '0' && *json->at <= '9'; json->at++) {
        if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *json->at - '0', size)) {
            return fail(json, "a size of at most 63 bits");
        }
    }
    const bool good = json->at != first && (*first != '0' || json->at == first + 1);
    return good || fail(json, "a whole number, not negative");
}

bool ls_json_integer(ls_json *json, int64_t *integer) {
    const bool negative = ls_json_accept(json, '-');
    const char *first = json->at;
    const bool read = ls_json_size(json, integer);
    *integer = negative ? -*integer : *integer;
    return (read && !(negative && *first == ' ') && *json->at != '.' && (*json->at | 0x20) != 'e') ||
           fail(json, "a whole number");
}

static size_t count_digits(const char *at) {
    return strspn(at, "0123456789");
}

/* Returns the length of the number at the start of the text, or 0. strtod alone would accept more than JSON allows. */
static size_t number_length(const char *text) {
    const char *at = text + (*text == '-');
    const size_t whole = count_digits(at);
    if (whole == 0 || (*at == '0' && whole > 1)) {
        return 0;
    }
    at += whole;
    if (*at == '.') {
        const size_t part = count_digits(at + 1);
        at += part > 0 ? 1 + part : 0;
    }
    if (*at == 'e' || *at == 'E') {
        const size_t sign = at[1] == '+' || at[1] == '-';
        const size_t digits = count_digits(at + 1 + sign);
        at += digits > 0 ? 1 + sign + digits : 0;
    }
    return (size_t)(at - text);
}

bool ls_json_number(ls_json *json, double *number) {
    skip_space(json);
    const size_t length = number_length(json->at);
    if (length == 0) {
        return fail(json, "a number");
    }
    *number = ls_strtod(json->at, NULL);
    json->at += length;
    return true;
}

bool ls_json_flag(ls_json *json, bool *flag) {
    *flag = accept_word(json, "true");
    return *flag || accept_word(json, "false") || fail(json, "true or false");
}

/* ---- any value --------------------------------------------------------------------------------------------------- */

enum { DEEPEST = 32 };

static bool skip_value(ls_json *json, int depth) {
    const char *text;
    double number;
    int64_t count = 0;
    skip_space(json);
    if (depth == DEEPEST) {
        return fail(json, "at most 32 levels of nesting");
    }
    switch (*json->at) {
    case '{':
        while (ls_json_key(json, &count, &text) && skip_value(json, depth + 1)) {
        }
        return json->expected == NULL;
    case '[':
        while (ls_json_item(json, &count) && skip_value(json, depth + 1)) {
        }
        return json->expected == NULL;
    case '"':
        return ls_json_word(json, &text);
    default:
        return accept_word(json, "true") || accept_word(json, "false") || accept_word(json, "null") ||
               ls_json_number(json, &number);
    }
}

bool ls_json_skip(ls_json *json) {
    return skip_value(json, 0);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put_quoted(FILE *stream, const char *text) {
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            fprintf(stream, "\\u%04x", (unsigned)c);
        } else {
            if (c == '"' || c == '\\') {
                fputc('\\', stream);
            }
            fputc(c, stream);
        }
    }
    fputc('"', stream);
}

static void begin_line(const ls_json_writer *json) {
    if (!json->compact) {
        fprintf(json->stream, "\n%*s", json->depth, "");
    }
}

/* Writes the separators and the key before a value. */
static void begin_value(ls_json_writer *json, const char *key) {
    if (json->depth > 0) {
        fputs(json->empty ? "" : ",", json->stream);
        begin_line(json);
    }
    if (key != NULL) {
        put_quoted(json->stream, key);
        fputs(": ", json->stream);
    }
    json->empty = false;
}

void ls_json_open(ls_json_writer *json, const char *key, char mark) {
    begin_value(json, key);
    fputc(mark, json->stream);
    json->depth++;
    json->empty = true;
}

void ls_json_close(ls_json_writer *json, char mark) {
    json->depth--;
    if (!json->empty) {
        begin_line(json);
    }
    fputc(mark, json->stream);
    json->empty = false;
}

void ls_json_put_text(ls_json_writer *json, const char *key, const char *text) {
    begin_value(json, key);
    put_quoted(json->stream, text);
}

void ls_json_put_integer(ls_json_writer *json, const char *key, int64_t integer) {
    begin_value(json, key);
    fprintf(json->stream, "%" PRId64, integer);
}

void ls_json_put_flag(ls_json_writer *json, const char *key, bool flag) {
    begin_value(json, key);
    fputs(flag ? "true" : "false", json->stream);
}

void ls_json_put_number(ls_json_writer *json, const char *key, double number) {
    char text[40];
    begin_value(json, key);
    if (!isfinite(number)) {
        fputs("null", json->stream);
        return;
    }
    (void)ls_snprintf(text, sizeof text, "%.17g", number);
    fprintf(json->stream, "%s%s", text, strpbrk(text, ".e") != NULL ? "" : ".0");
}
