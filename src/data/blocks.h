/*
 * Blocks of a variable: slabs of consecutive rows along the sample axis, decompressed, converted and cached. A block
 * consists of whole chunks. The rows of a block are contiguous, whatever the sample axis is.
 */
#ifndef LS_DATA_BLOCKS_H
#define LS_DATA_BLOCKS_H

#include <lockstep/hdf5.h>

#include "formats/array_file.h"

typedef struct ls_block_slot {
    int64_t block; /* -1: empty */
    uint64_t used; /* time of the last use */
    void *rows;    /* NULL if not allocated yet */
    bool *missing; /* [block_rows]: rows with a missing element that is an error; NULL if the block has none */
} ls_block_slot;

typedef struct ls_blocks {
    const ls_array_file *file; /* borrowed */
    char *name;                /* NULL if not open */
    ls_array array;
    int axis;
    ls_dtype dtype;
    double missing;                                  /* replaces missing elements; 0 makes them errors */
    int64_t start[LS_MAX_DIMS], extent[LS_MAX_DIMS]; /* the slab; includes all rows along the sample axis */
    int64_t rows;                                    /* in the file */
    int64_t row_elements;
    size_t row_bytes;
    int64_t block_rows;  /* rows in every block except the last */
    int64_t block_count; /* of the file */
    int32_t *slot_of;    /* slot of each block; -1 if the block is not cached */
    ls_block_slot *slots;
    int32_t slot_count;
    uint64_t time;
} ls_blocks;

/* Returns the sizes of a slab without the sample axis. */
ls_shape ls_blocks_slab(const ls_blocks *blocks);

/* Opens a variable with the slab of the field. Close the variable even on failure. */
ls_status ls_blocks_open(const ls_array_file *file, const char *name, const ls_array_field *field,
                         const ls_array_options *options, ls_blocks *blocks);
void ls_blocks_close(ls_blocks *blocks);

/* Sets the number of blocks to cache. Call it once, before reading the first row. */
ls_status ls_blocks_reserve(ls_blocks *blocks, int64_t slots);

/* Finds a row, and reads its block if the block is not cached. The row is valid until the next call. Fails if the row
 * has a missing element that is an error; other rows of the block do not matter. */
ls_status ls_blocks_row(ls_blocks *blocks, int64_t row, const void **address);

#endif
