/* The dictionary that the store's server holds, and the arithmetic of counters that every kind of store shares. */
#ifndef LS_COMM_STORE_TABLE_H
#define LS_COMM_STORE_TABLE_H

#include "comm/store_message.h"

typedef struct ls_store_table ls_store_table;

ls_store_table *ls_store_table_new(void);
void ls_store_table_free(ls_store_table *table);

/* Sets a borrowed pointer to the value of `key`. Returns false if the key has no value. */
bool ls_store_table_get(const ls_store_table *table, ls_bytes key, ls_bytes *value);

/* Sets it to a copy of `value`. LS_ERR_MEMORY leaves the table as it was. */
ls_status ls_store_table_set(ls_store_table *table, ls_bytes key, ls_bytes value);

#define LS_COUNTER_SIZE 24

/*
 * A counter is kept as decimal text. Adds `amount` to the one in `current` (size 0: 0), writes the new text and returns
 * its length by `size`. LS_ERR_FORMAT when `current` is no number, LS_ERR_ARGUMENT when the sum does not fit.
 */
ls_status ls_counter_add(ls_bytes current, int64_t amount, char text[LS_COUNTER_SIZE], size_t *size, int64_t *result);

#endif
