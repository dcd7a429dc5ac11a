#include "tests/support/damage.h"

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/fuzz.h"
#include "tests/support/unit.h"

void content_replace(content *c, size_t at, size_t old, const void *with, size_t count) {
    if (c->size - old + count <= CONTENT_ROOM) {
        memmove(c->bytes + at + count, c->bytes + at + old, c->size - at - old);
        memcpy(c->bytes + at, with, count);
        c->size = c->size - old + count;
    }
}

/* Replaces the first number at or after a position with a different number. */
static void change_number(content *c) {
    static const char *const numbers[] = {
        "0",
        "1",
        "-1",
        "2",
        "7",
        "8",
        "9",
        "16",
        "00",
        "65536",
        "4294967296",
        "2147483648",
        "1e9",
        "0.5",
        "nan",
        "inf",
        "",
        "1e400",
        "-0",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
    };
    size_t at = fuzz_below(c->size);
    while (at < c->size && (c->bytes[at] < '0' || c->bytes[at] > '9')) {
        at++;
    }
    size_t end = at;
    while (end < c->size && c->bytes[end] >= '0' && c->bytes[end] <= '9') {
        end++;
    }
    const char *number = numbers[fuzz_below(sizeof numbers / sizeof *numbers)];
    content_replace(c, at, end - at, number, strlen(number));
}

/* Copies a part of the contents to a different position, where it is inserted or overwrites other bytes. */
static void splice(content *c) {
    uint8_t part[96];
    const size_t count = 1 + fuzz_below(c->size < sizeof part ? c->size : sizeof part);
    const size_t at = fuzz_below(c->size + 1);
    memcpy(part, c->bytes + fuzz_below(c->size - count + 1), count);
    const size_t old = fuzz_below(2) == 0 ? 0 : count < c->size - at ? count : c->size - at;
    content_replace(c, at, old, part, count);
}

/* Inserts a character that is special to a parser. */
static void put_mark(content *c) {
    static const char marks[] = "\"\\{}[]:,;\n\r \t0-.eu\xef\xc3\x80";
    content_replace(c, fuzz_below(c->size + 1), 0, &marks[fuzz_below(sizeof marks - 1)], 1);
}

void content_damage(content *c) {
    for (size_t times = fuzz_below(4); times > 0 && c->size > 0; times--) {
        static void (*const kinds[])(content *) = {change_number, splice, put_mark};
        kinds[fuzz_below(sizeof kinds / sizeof *kinds)](c);
    }
    if (fuzz_below(2) == 0) {
        c->size = fuzz_mutate(c->bytes, c->size, CONTENT_ROOM);
    }
}

void content_read(content *c, const char *path) {
    FILE *file = fopen(path, "rbe");
    assert_non_null(file);
    c->size = fread(c->bytes, 1, CONTENT_ROOM, file);
    assert_true(c->size < CONTENT_ROOM);
    fclose(file);
}

const char *content_file(const content *c) {
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("damaged", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, c->bytes, c->size, 0), c->size);
    return path;
}

const char *content_gzipped_file(const content *c) {
    content packed;
    z_stream stream = {
        .next_in = (Bytef *)c->bytes, .avail_in = (uInt)c->size, .next_out = packed.bytes, .avail_out = CONTENT_ROOM};
    assert_int_equal(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.size = stream.total_out;
    assert_int_equal(deflateEnd(&stream), Z_OK);
    if (fuzz_below(3) == 0) {
        packed.size = fuzz_mutate(packed.bytes, packed.size, CONTENT_ROOM);
    }
    return content_file(&packed);
}

/* ---- checks for every reader ------------------------------------------------------------------------------------- */

void tally_refused(tally *counts) {
    counts->refused++;
    const ls_status status = ls_error_status();
    if (status != LS_ERR_FORMAT && status != LS_ERR_SHAPE && status != LS_ERR_UNSUPPORTED) {
        fail_msg("%s: %s", ls_status_name(status), ls_error_message());
    }
    assert_true(strlen(ls_error_message()) > 20);
}

void tally_touch(const ls_tensor *tensor) {
    const volatile char *bytes = ls_data_const(tensor);
    for (int64_t i = 0; i < ls_numel(tensor) * (int64_t)ls_dtype_size(ls_dtype_of(tensor)); i++) {
        (void)bytes[i];
    }
}

void tally_assert_both(const tally *counts) {
    const uint64_t all = counts->accepted + counts->refused;
    assert_true(all < 200 || (counts->accepted > all / 100 && counts->refused > all / 100));
}
