#include "comm/backend/shm/algorithm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend/shm/sizes.h"

#define VARIABLE LS_SHM_ALGORITHM_VARIABLE

typedef struct threshold {
    const char *name;
    size_t offset;
    size_t least;
    size_t most;
    bool may_be_never;
} threshold;

static const threshold fields[] = {
    {"cells", offsetof(ls_shm_algorithm, cells), 0, LS_SHM_PAYLOAD, false},
    {"whole", offsetof(ls_shm_algorithm, whole), 0, LS_SHM_NEVER / 4, false},
    {"chunk", offsetof(ls_shm_algorithm, chunk), LS_SHM_CHUNK_LEAST, LS_SHM_SLOT_MOST, false},
    {"direct", offsetof(ls_shm_algorithm, direct), 0, LS_SHM_NEVER / 4, true},
    {"direct_moves", offsetof(ls_shm_algorithm, direct_moves), 0, LS_SHM_NEVER / 4, true},
    {"read", offsetof(ls_shm_algorithm, read), 0, LS_SHM_NEVER / 4, true},
    {"past", offsetof(ls_shm_algorithm, past), 0, LS_SHM_NEVER / 4, true},
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

static ls_status read_size(const threshold *which, const char *text, size_t length, size_t *size) {
    static const char units[] = "KMG";
    if (which->may_be_never && length == 5 && strncmp(text, "never", 5) == 0) {
        *size = LS_SHM_NEVER;
        return LS_OK;
    }
    char *end = NULL;
    errno = 0;
    const unsigned long long number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    const char *unit = end != NULL && end < text + length ? strchr(units, *end) : NULL;
    const int shift = unit != NULL && *unit != '\0' ? 10 * (int)(unit - units + 1) : 0;
    if (end == NULL || end + (shift != 0) != text + length) {
        return ls_fail(LS_ERR_ARGUMENT, VARIABLE ": %s: '%.*s' is no size; sizes are bytes like 0, 4096 or 64K%s",
                       which->name, (int)(length < 40 ? length : 40), text, which->may_be_never ? ", or 'never'" : "");
    }
    if (errno != 0 || number > which->most >> shift || number << shift < which->least) {
        return ls_fail(LS_ERR_ARGUMENT, VARIABLE ": %s=%.*s: sizes from %zu to %zu are possible here", which->name,
                       (int)(length < 40 ? length : 40), text, which->least, which->most);
    }
    *size = (size_t)number << shift;
    return LS_OK;
}

/* One "name=size" of `length` bytes. */
static ls_status read_word(const char *word, size_t length, ls_shm_algorithm *algorithm) {
    const char *equals = memchr(word, '=', length);
    const size_t name = equals != NULL ? (size_t)(equals - word) : length;
    for (int i = 0; i < FIELDS; i++) {
        const threshold *which = &fields[i];
        if (equals != NULL && strlen(which->name) == name && strncmp(word, which->name, name) == 0) {
            size_t *size = (size_t *)(void *)((char *)algorithm + which->offset);
            return read_size(which, equals + 1, length - name - 1, size);
        }
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   VARIABLE ": '%.*s' is no setting; there are cells=, whole=, chunk=, direct=, direct_moves=, "
                            "read= and past=, each with a size, separated by commas",
                   (int)(length < 40 ? length : 40), word);
}

ls_status ls_shm_algorithm_choose(int ranks, ls_shm_algorithm *algorithm) {
    *algorithm = (ls_shm_algorithm){.cells = LS_SHM_PAYLOAD,
                                    .whole = ranks <= 2   ? LS_SHM_WHOLE_2
                                             : ranks <= 4 ? LS_SHM_WHOLE_4
                                                          : LS_SHM_WHOLE_MORE,
                                    .chunk = LS_SHM_CHUNK,
                                    .direct = LS_SHM_DIRECT_LEAST,
                                    .direct_moves = LS_SHM_DIRECT_MOVES,
                                    .read = LS_SHM_READ_BY_SHAPE,
                                    .past = LS_SHM_PAST_BY_DISTANCE};
    const char *text = getenv(VARIABLE);
    while (text != NULL && *text != '\0') {
        const size_t length = strcspn(text, ",");
        LS_TRY(read_word(text, length, algorithm));
        text += length + (text[length] == ',');
    }
    return LS_OK;
}
