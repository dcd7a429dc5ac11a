/* Small files in memory, damaged at random by the fuzzers of readers, and the checks that apply to every reader. */
#ifndef LS_TESTS_SUPPORT_DAMAGE_H
#define LS_TESTS_SUPPORT_DAMAGE_H

#include <lockstep/tensor.h>

#include <stdint.h>

enum { CONTENT_ROOM = 8192 };

typedef struct content {
    uint8_t bytes[CONTENT_ROOM];
    size_t size;
} content;

/* Reads the bytes of a file. */
void content_read(content *c, const char *path);

/* Replaces `old` bytes at `at` with `count` bytes, if there is enough room. */
void content_replace(content *c, size_t at, size_t old, const void *with, size_t count);

/* Changes numbers, parts, special characters and bytes. */
void content_damage(content *c);

/* Returns the path of a file with these bytes. The file is in memory. All calls reuse it, and each call overwrites its
 * contents. */
const char *content_file(const content *c);

/* Does the same with the bytes gzipped, and sometimes damaged again. */
const char *content_gzipped_file(const content *c);

typedef struct tally {
    uint64_t accepted, refused;
} tally;

/* Counts a refusal, which must have a message about the contents of the file. */
void tally_refused(tally *counts);

/* Reads every element, so that a sanitizer detects elements outside the memory. */
void tally_touch(const ls_tensor *tensor);

/* Requires both accepted and refused files. Otherwise the fuzzer would test little. */
void tally_assert_both(const tally *counts);

#endif
