#include "comm/store_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { BUCKETS = 512 };

typedef struct entry {
    struct entry *next;
    void *value;
    size_t value_size;
    size_t key_size;
    char key[];
} entry;

struct ls_store_table {
    entry *buckets[BUCKETS];
};

ls_store_table *ls_store_table_new(void) {
    return ls_allocate_zeroed(1, sizeof(ls_store_table));
}

void ls_store_table_free(ls_store_table *table) {
    for (size_t i = 0; table != NULL && i < BUCKETS; i++) {
        for (entry *e = table->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            ls_free(e->value);
            ls_free(e);
        }
    }
    ls_free(table);
}

static size_t bucket_of(ls_bytes key) {
    uint32_t hash = 2166136261U; /* FNV-1a */
    for (size_t i = 0; i < key.size; i++) {
        hash = (hash ^ ((const uint8_t *)key.data)[i]) * 16777619U;
    }
    return hash % BUCKETS;
}

static entry *find(const ls_store_table *table, ls_bytes key) {
    entry *e = table->buckets[bucket_of(key)];
    while (e != NULL && (e->key_size != key.size || memcmp(e->key, key.data, key.size) != 0)) {
        e = e->next;
    }
    return e;
}

bool ls_store_table_get(const ls_store_table *table, ls_bytes key, ls_bytes *value) {
    const entry *e = find(table, key);
    if (e != NULL) {
        *value = (ls_bytes){e->value, e->value_size};
    }
    return e != NULL;
}

ls_status ls_store_table_set(ls_store_table *table, ls_bytes key, ls_bytes value) {
    entry *e = find(table, key);
    entry *fresh = NULL;
    void *copy = ls_allocate(value.size);
    if (e == NULL && copy != NULL) {
        fresh = ls_allocate_zeroed(1, sizeof *fresh + key.size);
    }
    if (copy == NULL || (e == NULL && fresh == NULL)) {
        ls_free(copy);
        return ls_fail(LS_ERR_MEMORY, "the store is out of memory for a value of %zu bytes", value.size);
    }
    if (value.size > 0) {
        memcpy(copy, value.data, value.size);
    }
    if (e == NULL) {
        e = fresh;
        e->key_size = key.size;
        memcpy(e->key, key.data, key.size);
        entry **bucket = &table->buckets[bucket_of(key)];
        e->next = *bucket;
        *bucket = e;
    }
    ls_free(e->value);
    e->value = copy;
    e->value_size = value.size;
    return LS_OK;
}

ls_status ls_counter_add(ls_bytes current, int64_t amount, char text[LS_COUNTER_SIZE], size_t *size, int64_t *result) {
    long long value = 0;
    if (current.size > 0) {
        char copy[LS_COUNTER_SIZE] = "";
        char *end = copy;
        if (current.size < sizeof copy) {
            memcpy(copy, current.data, current.size);
            errno = 0;
            value = strtoll(copy, &end, 10);
        }
        if (end != copy + current.size || copy[0] == ' ' || errno != 0) {
            return ls_fail(LS_ERR_FORMAT, "the value there (%zu bytes) is not a number", current.size);
        }
    }
    if (__builtin_add_overflow(value, amount, result)) {
        return ls_fail(LS_ERR_ARGUMENT, "%lld and %" PRId64 " add up to more than 64 bits", value, amount);
    }
    *size = (size_t)snprintf(text, LS_COUNTER_SIZE, "%" PRId64, *result);
    return LS_OK;
}
