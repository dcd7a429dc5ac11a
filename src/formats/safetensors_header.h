/*
 * Reads the header of a safetensors file strictly and without a JSON tree: each entry takes a record of about a hundred
 * bytes, and strings stay in place. So the memory is bounded by the length of the header, for any contents.
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
    const ls_element *element; /* NULL: no tensor can hold the dtype */
    char dtype[16];            /* name of the dtype, shortened */
    ls_shape shape;
    size_t begin, end; /* offsets of its bytes, relative to the end of the header */
} ls_safetensors_entry;

typedef struct ls_safetensors_header {
    ls_safetensors_entry *entries; /* in the order of the data after the check */
    size_t count;
    const char *metadata; /* key, value, key, value: texts with a final zero byte each; NULL: no metadata */
    const char *metadata_end;
} ls_safetensors_header;

/*
 * Parses `text`, which has `size` bytes and a final zero byte. Names and metadata are decoded in place, so `text` must
 * live as long as they are used. Checks that the bytes of the tensors have no gaps or overlaps, and that their size is
 * `data_size`. The caller frees the entries, also on failure.
 */
ls_status ls_safetensors_parse(const char *path, char *text, size_t size, size_t data_size,
                               ls_safetensors_header *header);

#endif
