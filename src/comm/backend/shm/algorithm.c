#include "comm/backend/shm/algorithm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/backend/shm/sizes.h"

#define VARIABLE LS_ALGORITHM_VARIABLE

typedef struct threshold {
    const char *name;
    size_t offset;
    size_t least;
    size_t most;
    bool may_be_never;
} threshold;

static const threshold fields[] = {
    {"cells", offsetof(ls_shm_sizes, cells), 0, LS_SHM_PAYLOAD, false},
    {"whole", offsetof(ls_shm_sizes, whole), 0, LS_SHM_NEVER / 4, false},
    {"chunk", offsetof(ls_shm_sizes, chunk), LS_SHM_CHUNK_LEAST, LS_SHM_SLOT_MOST, false},
    {"direct", offsetof(ls_shm_sizes, direct), 0, LS_SHM_NEVER / 4, true},
    {"direct_moves", offsetof(ls_shm_sizes, direct_moves), 0, LS_SHM_NEVER / 4, true},
    {"read", offsetof(ls_shm_sizes, read), 0, LS_SHM_NEVER / 4, true},
    {"past", offsetof(ls_shm_sizes, past), 0, LS_SHM_NEVER / 4, true},
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
        return ls_fail(LS_ERR_ARGUMENT,
                       VARIABLE ": %s: '%.*s' is not a size; expected a number of bytes such as 0, 4096 or 64K%s",
                       which->name, (int)(length < 40 ? length : 40), text, which->may_be_never ? ", or 'never'" : "");
    }
    if (errno != 0 || number > which->most >> shift || number << shift < which->least) {
        return ls_fail(LS_ERR_ARGUMENT, VARIABLE ": %s=%.*s: the size must be from %zu to %zu here", which->name,
                       (int)(length < 40 ? length : 40), text, which->least, which->most);
    }
    *size = (size_t)number << shift;
    return LS_OK;
}

/* Reads a "name=size" item of `length` bytes, which applies to every call. */
static ls_status read_word(const char *word, size_t length, ls_shm_sizes *sizes) {
    const char *equals = memchr(word, '=', length);
    const size_t name = equals != NULL ? (size_t)(equals - word) : length;
    for (int i = 0; i < FIELDS; i++) {
        const threshold *which = &fields[i];
        if (equals != NULL && strlen(which->name) == name && strncmp(word, which->name, name) == 0) {
            size_t size = 0;
            LS_TRY(read_size(which, equals + 1, length - name - 1, &size));
            for (int operation = 0; operation < LS_OP_COUNT; operation++) {
                *(size_t *)(void *)((char *)&sizes[operation] + which->offset) = size;
            }
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   VARIABLE ": 'shm:%.*s' is not a size setting of backend shm; available: cells=, whole=, chunk=, "
                            "direct=, direct_moves=, read= and past=",
                   (int)(length < 40 ? length : 40), word);
}

/* ---- algorithms by name ------------------------------------------------------------------------------------------ */

#define BIT(operation) (UINT32_C(1) << (operation))
#define NAMES(a, b, c, d)                                                                                              \
    (LS_ALGORITHM_BIT(LS_ALGORITHM_##a) | LS_ALGORITHM_BIT(LS_ALGORITHM_##b) | LS_ALGORITHM_BIT(LS_ALGORITHM_##c) |    \
     LS_ALGORITHM_BIT(LS_ALGORITHM_##d))
#define REDUCE  NAMES(CELLS, WHOLE, CHUNKS, DIRECT)
#define SCATTER NAMES(CELLS, CELLS, SLOTS, DIRECT)
#define MOVE    NAMES(CELLS, SLOTS, DIRECT, READ)

const ls_algorithm_list ls_shm_algorithms = {
    .backend = "shm",
    .calls = {[LS_OP_ALLREDUCE] = REDUCE,
              [LS_OP_REDUCE] = REDUCE,
              [LS_OP_BROADCAST] = SCATTER,
              [LS_OP_REDUCE_SCATTER] = SCATTER,
              [LS_OP_REDUCE_SCATTERV] = SCATTER,
              [LS_OP_GATHER] = MOVE,
              [LS_OP_GATHERV] = MOVE,
              [LS_OP_ALLGATHER] = MOVE,
              [LS_OP_ALLGATHERV] = MOVE,
              [LS_OP_SCATTER] = MOVE,
              [LS_OP_SCATTERV] = MOVE,
              [LS_OP_ALLTOALL] = MOVE,
              [LS_OP_ALLTOALLV] = MOVE},
};

/* Sets the sizes such that every call that supports the algorithm uses it. */
static void force(ls_algorithm_id id, ls_shm_sizes *sizes) {
    const size_t cells = id == LS_ALGORITHM_CELLS ? LS_SHM_PAYLOAD : 0;
    switch (id) {
    case LS_ALGORITHM_WHOLE:
    case LS_ALGORITHM_CHUNKS:
    case LS_ALGORITHM_SLOTS:
        *sizes = (ls_shm_sizes){.whole = id == LS_ALGORITHM_WHOLE ? LS_SHM_NEVER / 4 : 0,
                                .chunk = sizes->chunk,
                                .direct = LS_SHM_NEVER,
                                .direct_moves = LS_SHM_NEVER,
                                .read = LS_SHM_NEVER,
                                .past = sizes->past};
        break;
    case LS_ALGORITHM_DIRECT:
        sizes->whole = 0;
        sizes->direct = 0;
        sizes->direct_moves = 0;
        break;
    case LS_ALGORITHM_READ:
        sizes->direct_moves = LS_SHM_NEVER;
        sizes->read = 0;
        break;
    default:
        return;
    }
    sizes->cells = cells;
}

/* "chunks" and "slots" have no size limit of their own, so excluding them has no effect. */
static void exclude(uint32_t algorithms, ls_shm_sizes *sizes) {
    sizes->cells = (algorithms & LS_ALGORITHM_BIT(LS_ALGORITHM_CELLS)) != 0 ? 0 : sizes->cells;
    sizes->whole = (algorithms & LS_ALGORITHM_BIT(LS_ALGORITHM_WHOLE)) != 0 ? 0 : sizes->whole;
    sizes->read = (algorithms & LS_ALGORITHM_BIT(LS_ALGORITHM_READ)) != 0 ? LS_SHM_NEVER : sizes->read;
    if ((algorithms & LS_ALGORITHM_BIT(LS_ALGORITHM_DIRECT)) != 0) {
        sizes->direct = LS_SHM_NEVER;
        sizes->direct_moves = LS_SHM_NEVER;
    }
}

static ls_status read_sizes(ls_shm_sizes *sizes) {
    static const char prefix[] = "shm:";
    const char *text = getenv(VARIABLE);
    const char *item = NULL;
    size_t length = 0;
    while (ls_algorithm_next_item(&text, &item, &length)) {
        if (length >= sizeof prefix - 1 && strncmp(item, prefix, sizeof prefix - 1) == 0) {
            LS_TRY(read_word(item + sizeof prefix - 1, length - (sizeof prefix - 1), sizes));
        }
    }
    return LS_OK;
}

ls_status ls_shm_sizes_choose(int ranks, ls_shm_sizes sizes[LS_OP_COUNT]) {
    ls_algorithm_setting settings[LS_OP_COUNT] = {{.forced = LS_ALGORITHM_DEFAULT}};
    for (int operation = 0; operation < LS_OP_COUNT; operation++) {
        sizes[operation] = (ls_shm_sizes){.cells = LS_SHM_PAYLOAD,
                                          .whole = ranks <= 2   ? LS_SHM_WHOLE_2
                                                   : ranks <= 4 ? LS_SHM_WHOLE_4
                                                                : LS_SHM_WHOLE_MORE,
                                          .chunk = LS_SHM_CHUNK,
                                          .direct = LS_SHM_DIRECT_LEAST,
                                          .direct_moves = LS_SHM_DIRECT_MOVES,
                                          .read = LS_SHM_READ_BY_SHAPE,
                                          .past = LS_SHM_PAST_BY_DISTANCE};
    }
    LS_TRY(ls_algorithm_read(&ls_shm_algorithms, settings));
    LS_TRY(read_sizes(sizes));
    for (int operation = 0; operation < LS_OP_COUNT; operation++) {
        exclude(settings[operation].excluded, &sizes[operation]);
        force(settings[operation].forced, &sizes[operation]);
    }
    return LS_OK;
}
