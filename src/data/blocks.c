#include "data/blocks.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/option.h"

enum { CONTIGUOUS_BLOCK = 1 << 16 /* bytes */, MOST_SLOTS = 1 << 14 };

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool is_floating(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64;
}

/* Returns whether `dtype` can represent every stored integer. */
static bool holds(ls_dtype dtype, const ls_array *array) {
    const int bits = 8 * array->bytes;
    if (array->kind == LS_ARRAY_FLOATING) {
        return false;
    }
    const bool is_unsigned = array->kind == LS_ARRAY_UNSIGNED;
    return dtype == LS_U8 ? is_unsigned && bits == 8 : bits <= 8 * (int)ls_dtype_size(dtype) - (is_unsigned ? 1 : 0);
}

static ls_status check_dtype(const ls_blocks *b) {
    static const char *const kinds[] = {"floating-point numbers", "signed integers", "unsigned integers"};
    const char *call = b->file->call;
    if (is_floating(b->dtype)) {
        return LS_OK;
    }
    if (b->dtype != LS_I64 && b->dtype != LS_I32 && b->dtype != LS_U8) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .dtype is %s, but must be f32, f64, i64, i32 or u8", call,
                       ls_dtype_name(b->dtype));
    }
    if (b->array.packed) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: variable \"%s\" of %s is packed (scale_factor, add_offset): set .dtype to LS_F32 or LS_F64",
                       call, b->name, b->file->path);
    }
    if (!holds(b->dtype, &b->array)) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "%s: variable \"%s\" of %s has %s of %d bytes, which .dtype %s cannot hold: choose another .dtype", call,
            b->name, b->file->path, kinds[b->array.kind], b->array.bytes, ls_dtype_name(b->dtype));
    }
    const double missing = ls_option(b->missing, 0);
    const double limit = b->dtype == LS_U8 ? 256 : b->dtype == LS_I32 ? 0x1p31 : 0x1p63;
    return missing == floor(missing) && missing < limit && missing >= (b->dtype == LS_U8 ? 0 : -limit)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: .missing is %g, which .dtype %s cannot hold", call, missing,
                         ls_dtype_name(b->dtype));
}

/* Sets the slab along one axis. `index` counts the axes without the sample axis. */
static ls_status set_extent(ls_blocks *b, const ls_array_field *field, int axis, int index) {
    const int64_t size = b->array.size[axis];
    const int64_t start = field->offset.ndim > 0 ? field->offset.size[index] : 0;
    int64_t extent = field->extent.ndim > 0 ? field->extent.size[index] : 0;
    if (start < 0 || start >= size || extent < 0 || extent > size - start) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: .offset %lld and .extent %lld do not fit axis %d of variable \"%s\" of %s, which has %lld "
                       "elements",
                       b->file->call, (long long)start, (long long)extent, axis, b->name, b->file->path,
                       (long long)size);
    }
    extent = extent > 0 ? extent : size - start;
    if (__builtin_mul_overflow(b->row_elements, extent, &b->row_elements) || b->row_elements > INT64_MAX / 64) {
        return ls_fail(LS_ERR_FORMAT, "%s: a step of variable \"%s\" of %s has too many elements", b->file->call,
                       b->name, b->file->path);
    }
    b->start[axis] = start;
    b->extent[axis] = extent;
    return LS_OK;
}

static ls_status set_slab(ls_blocks *b, const ls_array_field *field) {
    const int others = b->array.ndim - 1;
    if (b->axis < 0 || b->axis > others) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .axis is %d, but variable \"%s\" of %s has %d axes", b->file->call,
                       b->axis, b->name, b->file->path, others + 1);
    }
    if ((field->offset.ndim != 0 && field->offset.ndim != others) ||
        (field->extent.ndim != 0 && field->extent.ndim != others)) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "%s: .offset and .extent have %d and %d sizes, but variable \"%s\" of %s has %d axes besides the "
            "sample axis",
            b->file->call, field->offset.ndim, field->extent.ndim, b->name, b->file->path, others);
    }
    b->row_elements = 1;
    for (int axis = 0, index = 0; axis <= others; axis++) {
        if (axis != b->axis) {
            LS_TRY(set_extent(b, field, axis, index++));
        }
    }
    return LS_OK;
}

static ls_status set_block_rows(ls_blocks *b) {
    b->rows = b->array.size[b->axis];
    b->row_bytes = (size_t)b->row_elements * ls_dtype_size(b->dtype);
    const int64_t fitting = CONTIGUOUS_BLOCK / (int64_t)b->row_bytes;
    b->block_rows = b->array.chunk[0] > 0 ? b->array.chunk[b->axis] : fitting > 0 ? fitting : 1;
    b->block_rows = b->block_rows < b->rows || b->rows == 0 ? b->block_rows : b->rows;
    b->block_count = (b->rows + b->block_rows - 1) / b->block_rows;
    return b->row_elements <= INT64_MAX / 64 / b->block_rows && b->block_count < INT64_MAX / (int64_t)sizeof *b->slot_of
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: variable \"%s\" of %s declares chunks that are too large", b->file->call,
                         b->name, b->file->path);
}

ls_status ls_blocks_open(const ls_array_file *file, const char *name, const ls_array_field *field,
                         const ls_array_options *options, ls_blocks *b) {
    const bool replaces = is_floating(field->dtype) || !isnan(options->missing); /* an integer cannot be NAN */
    *b = (ls_blocks){
        .file = file, .axis = options->axis, .dtype = field->dtype, .missing = replaces ? options->missing : 0};
    if (name == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the name of a variable is NULL", file->call);
    }
    LS_TRY(ls_array_file_find(file, name, &b->array));
    b->name = ls_duplicate_string(name);
    if (b->name == NULL) {
        ls_array_file_release(file, &b->array);
        return ls_fail_memory(file->call, strlen(name) + 1);
    }
    LS_TRY(check_dtype(b));
    LS_TRY(set_slab(b, field));
    return set_block_rows(b);
}

void ls_blocks_close(ls_blocks *b) {
    if (b->name != NULL) {
        ls_array_file_release(b->file, &b->array);
    }
    for (int32_t i = 0; i < b->slot_count; i++) {
        ls_free(b->slots[i].rows);
        ls_free(b->slots[i].missing);
    }
    ls_free(b->slots);
    ls_free(b->slot_of);
    ls_free(b->name);
}

ls_shape ls_blocks_slab(const ls_blocks *b) {
    ls_shape slab = {0};
    for (int axis = 0; axis < b->array.ndim; axis++) {
        if (axis != b->axis) {
            slab.size[slab.ndim++] = b->extent[axis];
        }
    }
    return slab;
}

ls_status ls_blocks_reserve(ls_blocks *b, int64_t slots) {
    slots = slots < MOST_SLOTS ? slots : MOST_SLOTS;
    slots = slots < b->block_count ? slots : b->block_count;
    b->slots = ls_allocate_zeroed((size_t)slots, sizeof *b->slots);
    b->slot_of = ls_allocate((size_t)b->block_count * sizeof *b->slot_of);
    if (b->slots == NULL || b->slot_of == NULL) {
        return ls_fail_memory(b->file->call, (size_t)b->block_count * sizeof *b->slot_of);
    }
    b->slot_count = (int32_t)slots;
    for (int64_t i = 0; i < b->block_count; i++) {
        b->slot_of[i] = -1;
    }
    for (int32_t i = 0; i < b->slot_count; i++) {
        b->slots[i].block = -1;
    }
    return LS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The layout of a block in the file: [outer, rows, inner]. In memory, the layout is [rows, outer, inner]. */
typedef struct block_order {
    int64_t outer, rows, inner;
} block_order;

static block_order order_of(const ls_blocks *b, int64_t rows) {
    block_order order = {.outer = 1, .rows = rows, .inner = 1};
    for (int axis = 0; axis < b->array.ndim; axis++) {
        if (axis != b->axis) {
            *(axis < b->axis ? &order.outer : &order.inner) *= b->extent[axis];
        }
    }
    return order;
}

static void move_rows(block_order order, const char *from, size_t width, char *to) {
    const size_t run = (size_t)order.inner * width;
    for (int64_t outer = 0; outer < order.outer; outer++) {
        for (int64_t row = 0; row < order.rows; row++) {
            memcpy(to + (size_t)(row * order.outer + outer) * run, from + (size_t)(outer * order.rows + row) * run,
                   run);
        }
    }
}

static bool is_equal(ls_array_number a, ls_array_number b) {
    return a.kind == LS_ARRAY_FLOATING ? a.real == b.real || (isnan(a.real) && isnan(b.real)) : a.integer == b.integer;
}

static bool is_missing(const ls_array *array, ls_array_number element) {
    for (int i = 0; i < array->missing_count; i++) {
        if (is_equal(element, array->missing[i])) {
            return true;
        }
    }
    return false;
}

/* Returns a stored element; `dtype` is the result of unpacking_dtype. */
static ls_array_number read_element(const ls_array *array, ls_dtype dtype, const void *from, int64_t at) {
    ls_array_number element = {.kind = array->kind};
    if (dtype == LS_I64) {
        element.integer = ((const int64_t *)from)[at];
        element.real = array->kind == LS_ARRAY_UNSIGNED ? (double)(uint64_t)element.integer : (double)element.integer;
    } else {
        element.real = dtype == LS_F32 ? (double)((const float *)from)[at] : ((const double *)from)[at];
    }
    return element;
}

static void store(ls_dtype dtype, void *to, int64_t at, double real, int64_t integer) {
    if (dtype == LS_F32) {
        ((float *)to)[at] = (float)real;
    } else if (dtype == LS_F64) {
        ((double *)to)[at] = real;
    } else if (dtype == LS_I64) {
        ((int64_t *)to)[at] = integer;
    } else if (dtype == LS_I32) {
        ((int32_t *)to)[at] = (int32_t)integer;
    } else {
        ((uint8_t *)to)[at] = (uint8_t)integer;
    }
}

/* Unpacks consecutive elements, and replaces missing elements. Returns false if a missing element is an error. */
static bool unpack_run(const ls_blocks *b, ls_dtype dtype, const void *from, int64_t at, int64_t count, void *to,
                       int64_t position) {
    const double missing = ls_option(b->missing, 0), scale = b->array.scale, offset = b->array.offset;
    const int64_t missing_integer = is_floating(b->dtype) ? 0 : (int64_t)missing;
    for (int64_t i = 0; i < count; i++) {
        const ls_array_number element = read_element(&b->array, dtype, from, at + i);
        const bool is_missing_element = is_missing(&b->array, element);
        if (is_missing_element && b->missing == 0) {
            return false;
        }
        const double real = b->array.packed ? element.real * scale + offset : element.real;
        store(b->dtype, to, position + i, is_missing_element ? missing : real,
              is_missing_element ? missing_integer : element.integer);
    }
    return true;
}

/* Notes that a row of the block in the slot has a missing element that is an error. */
static ls_status note_missing(const ls_blocks *b, ls_block_slot *slot, int64_t row) {
    slot->missing = slot->missing != NULL ? slot->missing : ls_allocate_zeroed((size_t)b->block_rows, sizeof(bool));
    if (slot->missing == NULL) {
        return ls_fail_memory("ls_loader_next", (size_t)b->block_rows);
    }
    slot->missing[row] = true;
    return LS_OK;
}

/* Unpacks the elements of a block. They have the dtype of unpacking_dtype, and the order of the file. */
static ls_status unpack(const ls_blocks *b, block_order order, ls_dtype dtype, const void *from, ls_block_slot *slot) {
    for (int64_t outer = 0; outer < order.outer; outer++) {
        for (int64_t row = 0; row < order.rows; row++) {
            const int64_t at = (outer * order.rows + row) * order.inner;
            const int64_t position = (row * order.outer + outer) * order.inner;
            if (!unpack_run(b, dtype, from, at, order.inner, slot->rows, position)) {
                LS_TRY(note_missing(b, slot, row));
            }
        }
    }
    return LS_OK;
}

/* Returns a dtype that represents stored elements exactly, so that they can be compared with the missing values. */
static ls_dtype unpacking_dtype(const ls_blocks *b) {
    return b->array.kind != LS_ARRAY_FLOATING ? LS_I64 : b->array.bytes <= 4 ? LS_F32 : LS_F64;
}

static ls_status read_block(const ls_blocks *b, int64_t block, ls_block_slot *slot) {
    int64_t start[LS_MAX_DIMS], count[LS_MAX_DIMS];
    const int64_t first = block * b->block_rows;
    const int64_t rows = b->rows - first < b->block_rows ? b->rows - first : b->block_rows;
    const block_order order = order_of(b, rows);
    const bool plain = !b->array.packed && b->array.missing_count == 0;
    const ls_dtype dtype = plain ? b->dtype : unpacking_dtype(b);
    memcpy(start, b->start, sizeof start);
    memcpy(count, b->extent, sizeof count);
    start[b->axis] = first;
    count[b->axis] = rows;
    if (plain && order.outer == 1) {
        return ls_array_file_read(b->file, b->name, &b->array, start, count, dtype, slot->rows);
    }
    const size_t size = (size_t)(rows * b->row_elements) * ls_dtype_size(dtype);
    void *elements = ls_allocate(size);
    if (elements == NULL) {
        return ls_fail_memory("ls_loader_next", size);
    }
    ls_status status = ls_array_file_read(b->file, b->name, &b->array, start, count, dtype, elements);
    if (status == LS_OK && plain) {
        move_rows(order, elements, ls_dtype_size(dtype), slot->rows);
    } else if (status == LS_OK) {
        status = unpack(b, order, dtype, elements, slot);
    }
    ls_free(elements);
    return status;
}

/* Returns the slot of the least recently used block, or an empty slot. */
static int32_t oldest_slot(const ls_blocks *b) {
    int32_t oldest = 0;
    for (int32_t i = 1; i < b->slot_count; i++) {
        oldest = b->slots[i].used < b->slots[oldest].used ? i : oldest;
    }
    return oldest;
}

static ls_status load(ls_blocks *b, int64_t block) {
    const int32_t number = oldest_slot(b);
    ls_block_slot *slot = &b->slots[number];
    if (slot->rows == NULL) {
        slot->rows = ls_allocate((size_t)b->block_rows * b->row_bytes);
        if (slot->rows == NULL) {
            return ls_fail_memory("ls_loader_next", (size_t)b->block_rows * b->row_bytes);
        }
    }
    if (slot->block >= 0) {
        b->slot_of[slot->block] = -1;
    }
    slot->block = -1;
    slot->used = 0;
    ls_free(slot->missing);
    slot->missing = NULL;
    LS_TRY(read_block(b, block, slot));
    slot->block = block;
    b->slot_of[block] = number;
    return LS_OK;
}

ls_status ls_blocks_row(ls_blocks *b, int64_t row, const void **address) {
    const int64_t block = row / b->block_rows, in_block = row % b->block_rows;
    if (b->slot_of[block] < 0) {
        LS_TRY(load(b, block));
    }
    ls_block_slot *slot = &b->slots[b->slot_of[block]];
    slot->used = ++b->time;
    if (slot->missing != NULL && slot->missing[in_block]) {
        return ls_fail(LS_ERR_FORMAT,
                       "ls_loader_next: step %lld of variable \"%s\" of %s has a missing element: set .missing to a "
                       "value that .dtype %s can hold",
                       (long long)row, b->name, b->file->path, ls_dtype_name(b->dtype));
    }
    *address = (const char *)slot->rows + (size_t)in_block * b->row_bytes;
    return LS_OK;
}
