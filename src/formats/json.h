/*
 * Reads and writes JSON (RFC 8259) value by value, without a tree. A tree, such as jansson's, takes many times the
 * memory of the text: too much for untrusted text, and for the manifest of a training run with many epochs.
 *
 * Reading decodes strings in place, so it changes the text. Every function returns false if the text has a different
 * kind of value, and sets `expected` to the expected kind. A loop over an object (over an array: ls_json_item):
 *
 *     const char *key;
 *     for (int64_t n = 0; ls_json_key(json, &n, &key);) {
 *         ... read one value, or skip it with ls_json_skip; return false on failure ...
 *     }
 *     return json->expected == NULL;
 */
#ifndef LS_FORMATS_JSON_H
#define LS_FORMATS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Kept strings are stored one after another up to `packed`, which never passes `at`: a decoded string with its
 * terminating zero byte takes no more bytes than the string with its quotes.
 */
typedef struct ls_json {
    char *begin;
    char *at;
    char *packed;
    const char *expected; /* NULL until a failure */
    char mark[4];         /* buffer for `expected` */
} ls_json;

/* Returns a reader of a null-terminated text. */
static inline ls_json ls_json_of(char *text) {
    return (ls_json){.begin = text, .at = text, .packed = text};
}

/* Returns the offset of the next byte. */
static inline size_t ls_json_position(const ls_json *json) {
    return (size_t)(json->at - json->begin);
}

/* Skips white space, and `mark` if it comes next. A missing mark is not an error. */
bool ls_json_accept(ls_json *json, char mark);
bool ls_json_expect(ls_json *json, char mark);

/*
 * Read a string. The string from the first function is valid as long as the text is; the string from the second
 * function is valid until the next string is read.
 */
bool ls_json_text(ls_json *json, const char **text);
bool ls_json_word(ls_json *json, const char **word);

/* Read an integer: the first function accepts only non-negative integers. */
bool ls_json_size(ls_json *json, int64_t *size);
bool ls_json_integer(ls_json *json, int64_t *integer);
bool ls_json_number(ls_json *json, double *number);
bool ls_json_flag(ls_json *json, bool *flag);

/* Skips a value of any kind. */
bool ls_json_skip(ls_json *json);

/*
 * Move to the next key of an object, or to the next item of an array. Return false at the end too. `*count` starts at
 * 0.
 */
bool ls_json_key(ls_json *json, int64_t *count, const char **key);
bool ls_json_item(ls_json *json, int64_t *count);

/* Returns whether only white space follows, until `size` bytes from the start. */
bool ls_json_end(ls_json *json, size_t size);

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Writes one value per line, indented by one space per level, or all values on one line. The stream records errors. */
typedef struct ls_json_writer {
    FILE *stream;
    int depth;
    bool empty;   /* nothing has been written at this level */
    bool compact; /* one line */
} ls_json_writer;

/*
 * The key (UTF-8) of a value is NULL unless the value is in an object. ls_json_open begins an object ('{') or an array
 * ('['), and ls_json_close ends it.
 */
void ls_json_open(ls_json_writer *json, const char *key, char mark);
void ls_json_close(ls_json_writer *json, char mark);
void ls_json_put_text(ls_json_writer *json, const char *key, const char *text);
void ls_json_put_integer(ls_json_writer *json, const char *key, int64_t integer);
void ls_json_put_flag(ls_json_writer *json, const char *key, bool flag);
/* Writes a number so that reading it back gives the same bits. Writes null if the number is not finite. */
void ls_json_put_number(ls_json_writer *json, const char *key, double number);

#endif
