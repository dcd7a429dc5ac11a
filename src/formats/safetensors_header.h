/*
 * Reads the header of a safetensors file strictly and without a JSON tree: each entry takes about a hundred bytes, and
 * strings stay in place. The length of the header thus bounds the memory, whatever the contents are.
 */
#ifndef LS_FORMATS_SAFETENSORS_HEADER_H
#define LS_FORMATS_SAFETENSORS_HEADER_H

#include <lockstep/formats.h>

#include "base/status.h"
#include "formats/element.h"

#define LS_SAFETENSORS_METADATA "__metadata__"

/* The header's entry for one tensor. */
typedef struct ls_safetensors_entry {
    const char *name;          /* points into the header's text */
    const ls_element *element; /* NULL if no tensor can hold the dtype */
    char dtype[16];            /* name of the dtype, possibly truncated */
    ls_shape shape;
    size_t begin, end; /* offsets of the tensor's bytes, relative to the end of the header */
} ls_safetensors_entry;

typedef struct ls_safetensors_header {
    ls_safetensors_entry *entries; /* in the order of the data after the check */
    size_t count;
    const char *metadata; /* key, value, key, value: zero-terminated strings; NULL if there are none */
    const char *metadata_end;
} ls_safetensors_header;

/*
 * Parses `text`, which has `size` bytes and a terminating zero byte. Decodes names and metadata in place, so `text`
 * must outlive them. Checks that the bytes of the tensors have no gaps or overlaps, and that their total size is
 * `data_size`. The caller frees the entries, even on failure.
 */
ls_status ls_safetensors_parse(const char *path, char *text, size_t size, size_t data_size,
                               ls_safetensors_header *header);

#endif
