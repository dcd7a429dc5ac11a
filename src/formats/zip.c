#include "formats/zip.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum {
    LOCAL_MARK = 0x04034b50,
    CENTRAL_MARK = 0x02014b50,
    END_MARK = 0x06054b50,
    END64_MARK = 0x06064b50,
    LOCATOR_MARK = 0x07064b50,
    LOCATOR = 20, /* bytes of the locator of the 64-bit end record, which directly precede the end record */
    END64 = 56,
    EXTRA64 = 1, /* id of the extra field with a member's 64-bit numbers */
    STORED = 0,
    DEFLATED = 8,
    ENCRYPTED = 1, /* a bit of the flags, like UTF8 */
    UTF8 = 1 << 11,
    COMMENT_LIMIT = UINT16_MAX
};

static uint32_t get16(const char *from) {
    const unsigned char *bytes = (const unsigned char *)from;
    return (uint32_t)(bytes[0] | bytes[1] << 8);
}

static uint32_t get32(const char *from) {
    return get16(from) | get16(from + 2) << 16;
}

static uint64_t get64(const char *from) {
    return get32(from) | (uint64_t)get32(from + 4) << 32;
}

static ls_status fail(const ls_source *source, const char *reason) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s is not a valid ZIP archive: %s", source->call, source->path, reason);
}

static ls_status fail_entry(const ls_source *source, const char *name, const char *reason) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s: member %.100s: %s", source->call, source->path, name, reason);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Finds the end record. Only a comment may follow; the record contains the comment's length. */
static ls_status find_end(const ls_source *source, char end[LS_ZIP_END], size_t *at) {
    const size_t room = (size_t)LS_ZIP_END + COMMENT_LIMIT;
    const size_t size = source->size < room ? source->size : room;
    char *tail = ls_allocate(size);
    if (tail == NULL) {
        return ls_fail_memory(source->call, size);
    }
    ls_status status = ls_source_read_at(source, source->size - size, tail, size);
    bool found = false;
    for (size_t comment = 0; status == LS_OK && !found && comment + LS_ZIP_END <= size; comment++) {
        const char *record = tail + size - comment - LS_ZIP_END;
        found = get32(record) == END_MARK && get16(record + 20) == comment;
        if (found) {
            memcpy(end, record, LS_ZIP_END);
            *at = source->size - comment - LS_ZIP_END;
        }
    }
    if (status == LS_OK && !found) {
        const bool gzipped = size >= 2 && size == source->size && memcmp(tail, "\x1f\x8b", 2) == 0;
        status = fail(source, gzipped ? "it is gzipped: gunzip it first" : "it has no end record, or is truncated");
    }
    ls_free(tail);
    return status;
}

/* The offset of the directory, and the number of its members. */
typedef struct directory_place {
    uint64_t count, size, offset;
} directory_place;

/* If a number does not fit in the end record, a second record contains all numbers in 64 bits. */
static ls_status read_end64(const ls_source *source, size_t at, directory_place *directory) {
    char locator[LOCATOR], end[END64];
    if (at < LOCATOR) {
        return fail(source, "it lacks the record of its 64-bit numbers");
    }
    LS_TRY(ls_source_read_at(source, at - LOCATOR, locator, LOCATOR));
    const uint64_t offset = get64(locator + 8);
    if (get32(locator) != LOCATOR_MARK || at - LOCATOR < END64 || offset > at - LOCATOR - END64) {
        return fail(source, "it lacks the record of its 64-bit numbers");
    }
    LS_TRY(ls_source_read_at(source, offset, end, END64));
    /* The numbers of this disk and of the directory's disk must be 0, and all members must be on this disk. */
    if (get32(end) != END64_MARK || get32(end + 16) != 0 || get32(end + 20) != 0 ||
        get64(end + 24) != get64(end + 32)) {
        return fail(source, "the record of its 64-bit numbers is damaged");
    }
    *directory = (directory_place){.count = get64(end + 32), .size = get64(end + 40), .offset = get64(end + 48)};
    return LS_OK;
}

static ls_status find_directory(const ls_source *source, directory_place *directory) {
    char end[LS_ZIP_END] = "";
    size_t at = 0;
    LS_TRY(find_end(source, end, &at));
    *directory = (directory_place){.count = get16(end + 10), .size = get32(end + 12), .offset = get32(end + 16)};
    if (directory->count == UINT16_MAX || directory->size == UINT32_MAX || directory->offset == UINT32_MAX) {
        LS_TRY(read_end64(source, at, directory));
    } else if (get16(end + 4) != 0 || get16(end + 6) != 0 || get16(end + 8) != directory->count) {
        return fail(source, "it is one of several parts");
    }
    const bool inside = directory->offset <= at && directory->size <= at - directory->offset;
    return inside && directory->count <= directory->size / LS_ZIP_CENTRAL
               ? LS_OK
               : fail(source, "its directory is outside of the file");
}

/*
 * Reads a number that does not fit in 32 bits: it is the next number in the extra field, which has `left` bytes left.
 */
static bool widen(size_t *number, const char **extra, size_t *left) {
    if (*number != UINT32_MAX) {
        return true;
    }
    if (*left < 8) {
        return false;
    }
    *number = get64(*extra);
    *extra += 8;
    *left -= 8;
    return true;
}

/* Reads the 64-bit numbers from the extra fields. Returns false if a number is missing. */
static bool read_numbers64(ls_zip_entry *entry, const char *extra, size_t left) {
    size_t size = 0;
    for (; left >= 4; extra += 4 + size, left -= 4 + size) {
        size = get16(extra + 2);
        if (size > left - 4) {
            break;
        }
        if (get16(extra) == EXTRA64) {
            extra += 4;
            return widen(&entry->size, &extra, &size) && widen(&entry->packed, &extra, &size) &&
                   widen(&entry->offset, &extra, &size);
        }
    }
    return entry->size != UINT32_MAX && entry->packed != UINT32_MAX && entry->offset != UINT32_MAX;
}

/*
 * Reads the directory record at `*at`; the directory has `*left` bytes left. Moves the name to make room for a
 * terminating zero byte.
 */
static ls_status read_entry(const ls_source *source, char **at, size_t *left, ls_zip_entry *entry) {
    char *record = *at;
    if (*left < LS_ZIP_CENTRAL || get32(record) != CENTRAL_MARK) {
        return fail(source, "its directory is damaged");
    }
    const size_t name = get16(record + 28), more = (size_t)get16(record + 30) + get16(record + 32);
    const uint32_t flags = get16(record + 8), method = get16(record + 10);
    if (*left - LS_ZIP_CENTRAL < name + more) {
        return fail(source, "its directory is damaged");
    }
    *entry = (ls_zip_entry){.crc = get32(record + 16),
                            .packed = get32(record + 20),
                            .size = get32(record + 24),
                            .offset = get32(record + 42),
                            .deflated = method == DEFLATED};
    entry->name = memmove(record + LS_ZIP_CENTRAL - 1, record + LS_ZIP_CENTRAL, name);
    entry->name[name] = '\0';
    *at += LS_ZIP_CENTRAL + name + more;
    *left -= LS_ZIP_CENTRAL + name + more;
    if (strlen(entry->name) != name || !ls_text_is_utf8(entry->name)) {
        return fail_entry(source, entry->name, "its name is not UTF-8");
    }
    if (!read_numbers64(entry, record + LS_ZIP_CENTRAL + name, get16(record + 30))) {
        return fail_entry(source, entry->name, "its 64-bit numbers are missing");
    }
    if ((flags & ENCRYPTED) != 0) {
        return fail_entry(source, entry->name, "it is encrypted");
    }
    if (method != STORED && method != DEFLATED) {
        return fail_entry(source, entry->name, "it is compressed by a method other than deflate");
    }
    if (entry->packed > source->size || entry->offset > source->size) {
        return fail_entry(source, entry->name, "it does not lie in the archive");
    }
    const bool possible =
        entry->deflated ? entry->size / LS_MOST_INFLATION <= entry->packed : entry->size == entry->packed;
    return possible ? LS_OK : fail_entry(source, entry->name, "its size is not possible");
}

static int by_name(const void *left, const void *right) {
    const ls_zip_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static int by_place(const void *left, const void *right) {
    const ls_zip_entry *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Checks that names differ, and that each member ends before the header of the next member, or before `directory`
 * for the last member. */
static ls_status check_entries(ls_zip *zip, size_t directory) {
    if (zip->count == 0) {
        return LS_OK;
    }
    qsort(zip->entries, zip->count, sizeof *zip->entries, by_name);
    for (size_t i = 1; i < zip->count; i++) {
        if (strcmp(zip->entries[i - 1].name, zip->entries[i].name) == 0) {
            return fail_entry(zip->source, zip->entries[i].name, "two members have this name");
        }
    }
    qsort(zip->entries, zip->count, sizeof *zip->entries, by_place);
    for (size_t i = 0; i < zip->count; i++) {
        ls_zip_entry *entry = &zip->entries[i];
        entry->end = i + 1 < zip->count ? zip->entries[i + 1].offset : directory;
        if (entry->end < entry->offset || entry->end - entry->offset < LS_ZIP_LOCAL + entry->packed) {
            return fail_entry(zip->source, entry->name, "it overlaps another member, or the end of the archive");
        }
    }
    return LS_OK;
}

static ls_status read_directory(ls_zip *zip, size_t offset, size_t size) {
    zip->directory = ls_allocate(size);
    zip->entries = ls_allocate_zeroed(zip->count, sizeof *zip->entries);
    if (zip->directory == NULL || zip->entries == NULL) {
        return ls_fail_memory(zip->source->call, size + zip->count * sizeof *zip->entries);
    }
    LS_TRY(ls_source_read_at(zip->source, offset, zip->directory, size));
    char *at = zip->directory;
    size_t left = size;
    for (size_t i = 0; i < zip->count; i++) {
        LS_TRY(read_entry(zip->source, &at, &left, &zip->entries[i]));
    }
    return left == 0 ? check_entries(zip, offset)
                     : fail(zip->source, "its directory has more members than it declares");
}

ls_status ls_zip_open(const ls_source *source, ls_zip *zip) {
    directory_place directory = {0};
    *zip = (ls_zip){.source = source};
    LS_TRY(find_directory(source, &directory));
    zip->count = directory.count;
    return read_directory(zip, directory.offset, directory.size);
}

void ls_zip_close(ls_zip *zip) {
    ls_free(zip->entries);
    ls_free(zip->directory);
    *zip = (ls_zip){.count = 0};
}

/* ---- a member ---------------------------------------------------------------------------------------------------- */

static ls_status fail_damaged(const ls_zip_member *member, const char *reason) {
    return fail_entry(member->zip->source, member->entry->name, reason);
}

static ls_status refill(ls_zip_member *member) {
    const size_t size = member->left < sizeof member->packed ? member->left : sizeof member->packed;
    LS_TRY(ls_source_read_at(member->zip->source, member->at, member->packed, size));
    member->at += size;
    member->left -= size;
    member->inflating.next_in = member->packed;
    member->inflating.avail_in = (uInt)size;
    return LS_OK;
}

static ls_status inflate_some(ls_zip_member *member, void *bytes, size_t size, size_t *got) {
    z_stream *stream = &member->inflating;
    stream->next_out = bytes;
    stream->avail_out = (uInt)size;
    while (stream->avail_out > 0 && !member->finished) {
        if (stream->avail_in == 0) {
            LS_TRY(refill(member));
        }
        const int code = inflate(stream, Z_NO_FLUSH);
        if (code == Z_MEM_ERROR) {
            return ls_fail_memory(member->source.call, sizeof *stream);
        }
        if (code != Z_OK && code != Z_STREAM_END) {
            return fail_damaged(member, stream->msg != NULL ? stream->msg : "its deflated bytes are truncated");
        }
        member->finished = code == Z_STREAM_END;
    }
    *got = size - stream->avail_out;
    return LS_OK;
}

static ls_status copy_some(ls_zip_member *member, void *bytes, size_t size, size_t *got) {
    *got = member->left < size ? member->left : size;
    LS_TRY(ls_source_read_at(member->zip->source, member->at, bytes, *got));
    member->at += *got;
    member->left -= *got;
    return LS_OK;
}

/* Reads from a member. At its end, checks the size and the checksum against the directory. */
static ls_status read_member(ls_source *self, void *bytes, size_t size, size_t *got) {
    ls_zip_member *member = (ls_zip_member *)self;
    const ls_zip_entry *entry = member->entry;
    LS_TRY((entry->deflated ? inflate_some : copy_some)(member, bytes, size, got));
    member->given += *got;
    member->crc = (uint32_t)crc32_z(member->crc, bytes, *got);
    if (member->given > entry->size) {
        return fail_damaged(member, "it is longer than the archive says");
    }
    if (*got < size && member->given < entry->size) {
        return fail_damaged(member, "it is shorter than the archive says");
    }
    if (*got < size && member->crc != entry->crc) {
        return fail_damaged(member, "its checksum (CRC-32) is wrong: it is damaged");
    }
    return LS_OK;
}

ls_status ls_zip_member_open(const ls_zip *zip, size_t index, ls_zip_member *member) {
    const ls_zip_entry *entry = &zip->entries[index];
    char header[LS_ZIP_LOCAL];
    *member = (ls_zip_member){.source = *zip->source, .zip = zip, .entry = entry};
    snprintf(member->path, sizeof member->path, "%.300s: member %.100s", zip->source->path, entry->name);
    member->source.path = member->path;
    member->source.fd = -1;
    member->source.size = entry->size;
    member->source.read_part = read_member;
    LS_TRY(ls_source_read_at(zip->source, entry->offset, header, sizeof header));
    const size_t before = LS_ZIP_LOCAL + (size_t)get16(header + 26) + get16(header + 28);
    if (get32(header) != LOCAL_MARK || entry->end - entry->offset - entry->packed < before) {
        return fail_damaged(member, "its local header is not at the position that the archive's directory gives");
    }
    member->at = entry->offset + before;
    member->left = entry->packed;
    return !entry->deflated || inflateInit2(&member->inflating, -MAX_WBITS) == Z_OK
               ? LS_OK
               : ls_fail_memory(zip->source->call, sizeof member->inflating);
}

void ls_zip_member_close(ls_zip_member *member) {
    (void)inflateEnd(&member->inflating); /* does nothing if inflating has not begun */
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static char *put(char *to, uint32_t value, int width) {
    for (int i = 0; i < width; i++) {
        *to++ = (char)(value >> (8 * i));
    }
    return to;
}

/*
 * Writes the fields that both headers of a member share: version, flags, method, time, checksum, sizes, and the lengths
 * of the name and of the extra field. The time is the format's earliest, so that identical tensors give identical
 * files.
 */
static char *put_common(char *to, const char *name, const ls_zip_line *line) {
    enum { VERSION = 20, FIRST_DAY = 1 << 5 | 1 };
    to = put(to, VERSION, 2);
    to = put(to, UTF8, 2);
    to = put(to, STORED, 2);
    to = put(to, 0, 2);
    to = put(to, FIRST_DAY, 2);
    to = put(to, line->crc, 4);
    to = put(to, line->size, 4);
    to = put(to, line->size, 4);
    to = put(to, (uint32_t)strlen(name), 2);
    return put(to, 0, 2);
}

ls_status ls_zip_put_local(const char *call, ls_new_file *file, const char *name, const ls_zip_line *line) {
    char header[LS_ZIP_LOCAL];
    (void)put_common(put(header, LOCAL_MARK, 4), name, line);
    LS_TRY(ls_file_write(call, file, header, sizeof header));
    return ls_file_write(call, file, name, strlen(name));
}

ls_status ls_zip_put_central(const char *call, ls_new_file *file, const char *name, const ls_zip_line *line) {
    enum { MADE_BY_UNIX = 3 << 8 | 20, FILE_MODE = 0100644 };
    char header[LS_ZIP_CENTRAL];
    char *at = put_common(put(put(header, CENTRAL_MARK, 4), MADE_BY_UNIX, 2), name, line);
    at = put(at, 0, 2); /* comment */
    at = put(at, 0, 2); /* disk */
    at = put(at, 0, 2); /* internal attributes */
    at = put(at, (uint32_t)FILE_MODE << 16, 4);
    (void)put(at, line->offset, 4);
    LS_TRY(ls_file_write(call, file, header, sizeof header));
    return ls_file_write(call, file, name, strlen(name));
}

ls_status ls_zip_put_end(const char *call, ls_new_file *file, size_t count, size_t offset, size_t size) {
    char record[LS_ZIP_END];
    char *at = put(put(record, END_MARK, 4), 0, 4); /* disks */
    at = put(at, (uint32_t)count, 2);
    at = put(at, (uint32_t)count, 2);
    at = put(at, (uint32_t)size, 4);
    at = put(at, (uint32_t)offset, 4);
    (void)put(at, 0, 2); /* comment */
    return ls_file_write(call, file, record, sizeof record);
}
