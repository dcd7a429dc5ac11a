/* The dictionary of the store's server, and the counter arithmetic that all kinds of stores share. */
#ifndef LS_COMM_STORE_TABLE_H
#define LS_COMM_STORE_TABLE_H

#include "comm/store_message.h"

typedef struct ls_store_table ls_store_table;

ls_store_table *ls_store_table_new(void);
void ls_store_table_free(ls_store_table *table);

/* Sets `*value` to the value of `key`, which is borrowed. Returns false if the key has no value. */
bool ls_store_table_get(const ls_store_table *table, ls_bytes key, ls_bytes *value);

/* Sets the key to a copy of `value`. On LS_ERR_MEMORY, the table is unchanged. */
ls_status ls_store_table_set(ls_store_table *table, ls_bytes key, ls_bytes value);

#define LS_COUNTER_SIZE 24

/*
 * Adds `amount` to a counter, which is stored as decimal text. `current` is the current text; size 0 means 0. Writes
 * the new text, and sets `*size` to its length. Fails with LS_ERR_FORMAT if `current` is not a number, and with
 * LS_ERR_ARGUMENT if the sum overflows.
 */
ls_status ls_counter_add(ls_bytes current, int64_t amount, char text[LS_COUNTER_SIZE], size_t *size, int64_t *result);

#endif
