/*
 * The names of the algorithms of calls, and the choice of the environment variable LOCKSTEP_ALGORITHM among them. The
 * engine's algorithms are in comm/algorithms/, and the algorithms of shared memory in comm/backend/shm/.
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
 * What the variable says of one call: the algorithm to use, and those not to use. Both are advice: a call that an
 * algorithm does not support (its size, the number of ranks) uses the default. All ranks must have the same.
 */
typedef struct ls_algorithm_setting {
    ls_algorithm_id forced;
    uint32_t excluded; /* LS_ALGORITHM_BIT of each */
} ls_algorithm_setting;

/* Returns a number that differs between settings; 0 if there is nothing to say. */
static inline uint32_t ls_algorithm_number(ls_algorithm_setting setting) {
    return (uint32_t)setting.forced | setting.excluded << 4;
}

/* Writes a setting, by its number: ", algorithm rabenseifner", or nothing for 0. Returns `text`. */
const char *ls_algorithm_describe(uint32_t number, char *text, size_t capacity);

/* Returns false if no setting has this number. */
bool ls_algorithm_is_number(uint32_t number);

/* The algorithms of a backend: for each call, the LS_ALGORITHM_BIT of each algorithm that the backend has. */
typedef struct ls_algorithm_list {
    const char *backend;
    uint32_t calls[LS_OP_COUNT];
    uint32_t absent; /* bits of algorithms that the backend lacks, but that a setting may exclude */
} ls_algorithm_list;

extern const ls_algorithm_list ls_shm_algorithms; /* shm/algorithm.c */

/* Returns the algorithms of the engine on a backend other than shm. All calls have "native" unless the backend is
 * "tcp". NULL stands for any backend. */
ls_algorithm_list ls_engine_algorithms(const char *backend);

/*
 * Reads the variable: items CALL:NAME (use this algorithm) or CALL:^NAME (do not use it), separated by commas; the call
 * "all" stands for every call that has the algorithm.
 * Skips items shm:SIZE=BYTES, which shm/algorithm.h reads. Fails with LS_ERR_ARGUMENT if an item is wrong, or if a
 * variable is set that Lockstep no longer reads.
 */
ls_status ls_algorithm_read(const ls_algorithm_list *list, ls_algorithm_setting settings[LS_OP_COUNT]);

/* Finds the next item of a list separated by commas, and moves `*text` after it. Returns false at the end. */
bool ls_algorithm_next_item(const char **text, const char **item, size_t *length);

#endif
