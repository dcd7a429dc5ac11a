/* Describes options as text, such as "ls_sgd (momentum 0.9, nesterov 1)". Ranks compare these descriptions, and
 * messages about differences quote them. */
#ifndef LS_BASE_DESCRIBE_H
#define LS_BASE_DESCRIBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ls_field_kind {
    LS_FIELD_REAL = 1,
    LS_FIELD_INT64,
    LS_FIELD_UINT64,
    LS_FIELD_INT,
    LS_FIELD_UINT, /* most enumerations */
    LS_FIELD_BOOL,
    LS_FIELD_TEXT
} ls_field_kind;

/* One field of an options struct. A field whose name is NULL ends a list of fields. */
typedef struct ls_field {
    const char *name;
    size_t offset;
    ls_field_kind kind;
} ls_field;

#define LS_FIELD_KIND(field)                                                                                           \
    _Generic((field),                                                                                                  \
        double: LS_FIELD_REAL,                                                                                         \
        int64_t: LS_FIELD_INT64,                                                                                       \
        uint64_t: LS_FIELD_UINT64,                                                                                     \
        int: LS_FIELD_INT,                                                                                             \
        unsigned: LS_FIELD_UINT,                                                                                       \
        bool: LS_FIELD_BOOL,                                                                                           \
        const char *: LS_FIELD_TEXT)

#define LS_FIELD(struct_type, field) LS_FIELD_IN(struct_type, , field)

/* A field of a nested struct. `part` is the path to the nested struct, with a dot at its end. */
#define LS_FIELD_IN(struct_type, part, field)                                                                          \
    { #field, offsetof(struct_type, part field), LS_FIELD_KIND(((struct_type){0}).part field) }

/* Writes the name, and the fields of `options` that are not zero, into `text` of `size` bytes. If `fields` is NULL,
 * writes only the name. */
void ls_describe(char *text, size_t size, const char *name, const ls_field *fields, const void *options);

/* Appends the values of the fields, except strings, to a hash (base/hash.h). `fields` may be NULL. */
uint64_t ls_hash_fields(uint64_t hash, const ls_field *fields, const void *options);

#endif
