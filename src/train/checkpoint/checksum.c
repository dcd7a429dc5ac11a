/*
 * Checksums of files: BLAKE2b of 256 bits (RFC 7693), libsodium's generic hash. It is as fast as a disk, tells any
 * damage from what was written, and the library is there already; the CRC of zlib would miss one damage in 2^32, and
 * two checkpoints can be compared by hashes but not by CRCs.
 */
#include <sodium.h>

#include "base/memory.h"
#include "formats/file.h"
#include "train/checkpoint/checkpoint.h"

enum { PIECE = 1 << 18, BYTES = 32 };

static ls_status hash_source(ls_source *source, void *piece, int64_t *bytes, char checksum[LS_CHECKSUM_TEXT]) {
    unsigned char hash[BYTES];
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    size_t got = PIECE;
    for (*bytes = 0; got == PIECE; *bytes += (int64_t)got) {
        LS_TRY(ls_source_read(source, piece, PIECE, &got));
        crypto_generichash_update(&state, piece, got);
    }
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(checksum, LS_CHECKSUM_TEXT, hash, sizeof hash);
    return LS_OK;
}

ls_status ls_checksum_file(const char *path, int64_t *bytes, char checksum[LS_CHECKSUM_TEXT]) {
    ls_source source;
    LS_TRY(ls_source_open("checkpoint", path, false, &source));
    void *piece = ls_allocate(PIECE);
    const ls_status status =
        piece != NULL ? hash_source(&source, piece, bytes, checksum) : ls_fail_memory("checkpoint", PIECE);
    ls_free(piece);
    ls_source_close(&source);
    return status;
}

void ls_checksum_text(const char *text, size_t size, char checksum[LS_CHECKSUM_TEXT]) {
    unsigned char hash[BYTES];
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, size, NULL, 0);
    sodium_bin2hex(checksum, LS_CHECKSUM_TEXT, hash, sizeof hash);
}
