/* Small files in memory, damaged at random by the fuzzers of readers, and what every reader of such a file owes. */
#ifndef LS_TESTS_SUPPORT_DAMAGE_H
#define LS_TESTS_SUPPORT_DAMAGE_H

#include <lockstep/tensor.h>

#include <stdint.h>

enum { CONTENT_ROOM = 8192 };

typedef struct content {
    uint8_t bytes[CONTENT_ROOM];
    size_t size;
} content;

/* The bytes of a file. */
void content_read(content *c, const char *path);

/* Puts `count` bytes in place of `old` bytes at `at`, if there is room. */
void content_replace(content *c, size_t at, size_t old, const void *with, size_t count);

/* Changes numbers, parts, marks and bytes. */
void content_damage(content *c);

/* The path of a file with these bytes: in memory, since there are many; the same for all. */
const char *content_file(const content *c);

/* The same, gzipped, and then damaged again now and then. */
const char *content_gzipped_file(const content *c);

typedef struct tally {
    uint64_t accepted, refused;
} tally;

/* Counts a refusal, which must have a sentence, and be for what the file holds. */
void tally_refused(tally *counts);

/* Reads every element, so that a sanitizer sees what is not there. */
void tally_touch(const ls_tensor *tensor);

/* A fuzzer that only says no, or only yes, tests little. */
void tally_assert_both(const tally *counts);

#endif
