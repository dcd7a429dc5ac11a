/*
 * The names of the collective algorithms, and the parser of the environment variable LOCKSTEP_ALGORITHM, which selects
 * among them. The engine's algorithms are in comm/algorithms/, and the shared-memory algorithms in comm/backend/shm/.
 */
#ifndef LS_COMM_ALGORITHM_H
#define LS_COMM_ALGORITHM_H

#include "comm/backend.h"

#define LS_ALGORITHM_VARIABLE "LOCKSTEP_ALGORITHM"

typedef enum ls_algorithm_id {
    LS_ALGORITHM_DEFAULT = 0,
    LS_ALGORITHM_RECURSIVE_DOUBLING,
    LS_ALGORITHM_TREE,
    LS_ALGORITHM_RABENSEIFNER,
    LS_ALGORITHM_VAN_DE_GEIJN,
    LS_ALGORITHM_BRUCK,
    LS_ALGORITHM_HIERARCHICAL,
    LS_ALGORITHM_DIRECT,
    LS_ALGORITHM_NATIVE,
    LS_ALGORITHM_CELLS,
    LS_ALGORITHM_WHOLE,
    LS_ALGORITHM_CHUNKS,
    LS_ALGORITHM_SLOTS,
    LS_ALGORITHM_READ,
    LS_ALGORITHM_COUNT
} ls_algorithm_id;

/* Returns "rabenseifner", for example. */
const char *ls_algorithm_name(ls_algorithm_id id);

#define LS_ALGORITHM_BIT(id) (UINT32_C(1) << (id))

/*
 * The setting of one call in LOCKSTEP_ALGORITHM: the algorithm to use, and the algorithms not to use. The setting is a
 * hint: if the algorithm does not support a call's size or number of ranks, the default is used. The setting must be
 * the same on all ranks.
 */
typedef struct ls_algorithm_setting {
    ls_algorithm_id forced;
    uint32_t excluded; /* LS_ALGORITHM_BIT of each */
} ls_algorithm_setting;

/* Returns a number that identifies the setting; 0 if the setting is empty. */
static inline uint32_t ls_algorithm_number(ls_algorithm_setting setting) {
    return (uint32_t)setting.forced | setting.excluded << 4;
}

/* Writes the setting with this number: ", algorithm rabenseifner", or an empty string for 0. Returns `text`. */
const char *ls_algorithm_describe(uint32_t number, char *text, size_t capacity);

/* Returns false if no setting has this number. */
bool ls_algorithm_is_number(uint32_t number);

/* The algorithms of a backend: a bit mask for each call (see LS_ALGORITHM_BIT). */
typedef struct ls_algorithm_list {
    const char *backend;
    uint32_t calls[LS_OP_COUNT];
    uint32_t absent; /* bit mask of algorithms that the backend does not have, but that a setting may still exclude */
} ls_algorithm_list;

extern const ls_algorithm_list ls_shm_algorithms; /* shm/algorithm.c */

/* Returns the engine's algorithms for a backend other than shm. All calls have "native" unless the backend is "tcp".
 * NULL selects the union over all backends. */
ls_algorithm_list ls_engine_algorithms(const char *backend);

/*
 * Reads the variable, a comma-separated list of items CALL:NAME (use this algorithm) or CALL:^NAME (do not use it). The
 * call "all" stands for every call that has the algorithm. Skips items shm:SIZE=BYTES, which shm/algorithm.h reads.
 * Fails with LS_ERR_ARGUMENT if an item is invalid, or if a variable is set that Lockstep no longer reads.
 */
ls_status ls_algorithm_read(const ls_algorithm_list *list, ls_algorithm_setting settings[LS_OP_COUNT]);

/* Finds the next item of a comma-separated list, and advances `*text` past it. Returns false at the end of the list. */
bool ls_algorithm_next_item(const char **text, const char **item, size_t *length);

#endif
