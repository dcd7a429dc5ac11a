/* Checksums of files: 128-bit XXH3 in hexadecimal digits. */
#ifndef LS_FORMATS_CHECKSUM_H
#define LS_FORMATS_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LS_CHECKSUM_TEXT 33 /* 128 bits in hexadecimal digits, and a terminating zero byte */

/* A checksum that is computed incrementally. */
typedef struct ls_checksum ls_checksum;

/* Returns NULL, with an error, if out of memory. */
ls_checksum *ls_checksum_new(const char *call);
void ls_checksum_free(ls_checksum *sum);
void ls_checksum_add(ls_checksum *sum, const void *bytes, size_t size);
/* Writes the checksum of all bytes so far. More bytes may follow. */
void ls_checksum_get(const ls_checksum *sum, int64_t *bytes, char text[LS_CHECKSUM_TEXT]);

void ls_checksum_text(const char *text, size_t size, char checksum[LS_CHECKSUM_TEXT]);

#endif
