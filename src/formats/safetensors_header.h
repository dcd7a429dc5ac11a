/*
 * The header of a safetensors file, read strictly and without a tree of its values: an entry takes a record of about a
 * hundred bytes, and texts stay where they are. So the memory for it is bounded by its length, whatever it says.
 */
#ifndef LS_FORMATS_SAFETENSORS_HEADER_H
#define LS_FORMATS_SAFETENSORS_HEADER_H

#include <lockstep/formats.h>

#include "base/status.h"
#include "formats/element.h"

#define LS_SAFETENSORS_METADATA "__metadata__"

/* What the header says of one tensor. */
typedef struct ls_safetensors_entry {
    const char *name;          /* in the header's text */
    const ls_element *element; /* NULL: no tensor can hold the dtype */
    char dtype[16];            /* its name, shortened */
    ls_shape shape;
    size_t begin, end; /* of its bytes, behind the header */
} ls_safetensors_entry;

typedef struct ls_safetensors_header {
    ls_safetensors_entry *entries; /* in the order of the data once it is checked */
    size_t count;
    const char *metadata; /* key, value, key, value: texts that end with a zero byte each; NULL: there are none */
    const char *metadata_end;
} ls_safetensors_header;

/*
 * Parses `text`, `size` bytes with a zero byte behind them, which it changes: names and metadata are laid there, so it
 * must live as long as they are used. Checks that the tensors' bytes lie side by side and are `data_size` together.
 * The entries are the caller's to free, on failure too.
 */
ls_status ls_safetensors_parse(const char *path, char *text, size_t size, size_t data_size,
                               ls_safetensors_header *header);

#endif
