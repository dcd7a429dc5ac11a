/*
 * A chain is a run of element-wise calls (maps) in a record; all their results have the same shape. One call replaces
 * the chain. It divides the elements into pieces, and makes all calls of the chain on one piece before the next, so
 * that the piece stays in the cache. The kernels are the same, and each element has the same operands, so the bits are
 * the same.
 *
 * - Two calls may be in one chain only if, wherever one writes memory that the other uses, both use it with the same
 *   layout: then no piece reads or writes elements of another piece.
 * - Polls of communicators may be between the calls of a chain; a replay makes them after the chain.
 * - A block that only one chain uses needs no place in the arena: a piece of it is on the stack.
 */
#include "tensor/capture_record.h"

#include <string.h>

#include "base/memory.h"
#include "tensor/device/cpu/parallel.h"

enum {
    MAPS = 16,                     /* the maximum number of maps in a chain */
    TENSORS = LS_MAP_OPERANDS + 1, /* of a map: y is the first */
    CACHED = 1 << 17,              /* the maximum bytes of all operands and results of a piece */
    ON_STACK = 1 << 15,            /* the maximum bytes of a piece on the stack */
    SMALLEST = 1 << 16,            /* the minimum elements of a result: smaller results stay in the cache anyway */
    NOWHERE = -1,
};

/* A tensor of a map, with its axes aligned on the right with the axes of the results. */
typedef struct chain_tensor {
    ls_tensor *tensor;         /* in the arguments of the map; the plan of the arena sets its address */
    ls_captured_block *block;  /* NULL outside of blocks */
    int64_t size[LS_MAX_DIMS]; /* 1 if the tensor repeats along the axis */
    int64_t stride[LS_MAX_DIMS];
    int64_t element;  /* bytes */
    int64_t on_stack; /* the offset on the stack in bytes, divided by the elements of a piece; or NOWHERE */
} chain_tensor;

typedef struct chain_map {
    const ls_captured_map *call;
    int count;
    chain_tensor tensors[TENSORS]; /* y, then the operands */
} chain_map;

/* The arguments of the call that replaces a chain. */
typedef struct chain {
    int count;
    int ndim;
    int64_t size[LS_MAX_DIMS]; /* of the results */
    int axis;                  /* the axis that is divided; a piece has one index along each axis before it */
    int64_t per_piece;         /* indices along this axis, except in the last piece */
    int64_t pieces_of_axis;
    int64_t pieces;
    int64_t elements; /* the maximum of a piece */
    const chain_map *maps;
} chain;

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Tensors of the piece that a thread processes. */
typedef struct piece {
    _Alignas(64) char stack[ON_STACK];
    ls_tensor tensors[MAPS][TENSORS];
    int64_t index[LS_MAX_DIMS];
    int64_t count; /* indices along the divided axis */
} piece;

/* Describes the tensor within a piece by the axes from the divided axis on. */
static void begin_tensor(ls_tensor *part, const chain *self, const chain_tensor *tensor) {
    *part = *tensor->tensor;
    part->ndim = (int8_t)(self->ndim - self->axis);
    memcpy(part->size, tensor->size + self->axis, (size_t)part->ndim * sizeof *part->size);
    memcpy(part->stride, tensor->stride + self->axis, (size_t)part->ndim * sizeof *part->stride);
}

static void move_tensor(ls_tensor *part, piece *at, const chain *self, const chain_tensor *tensor) {
    if (tensor->size[self->axis] != 1) {
        part->size[0] = at->count;
    }
    part->count = 1;
    for (int axis = 0; axis < part->ndim; axis++) {
        part->count *= part->size[axis];
    }
    if (tensor->on_stack != NOWHERE) {
        part->data = at->stack + tensor->on_stack * self->elements;
        return;
    }
    int64_t offset = 0;
    for (int axis = 0; axis <= self->axis; axis++) {
        offset += tensor->size[axis] != 1 ? at->index[axis] * tensor->stride[axis] : 0;
    }
    part->data = (char *)tensor->tensor->data + offset * (int64_t)ls_dtype_size((ls_dtype)part->dtype);
}

/* Sets the indices of a piece. */
static void find_piece(piece *at, const chain *self, int64_t number) {
    const int64_t begin = number % self->pieces_of_axis * self->per_piece;
    const int64_t left = self->size[self->axis] - begin;
    at->index[self->axis] = begin;
    at->count = left < self->per_piece ? left : self->per_piece;
    number /= self->pieces_of_axis;
    for (int axis = self->axis; axis-- > 0;) {
        at->index[axis] = number % self->size[axis];
        number /= self->size[axis];
    }
}

/* The map succeeds, as it did in the captured step: a kernel of a map fails only for a dtype that it does not support.
 */
static void run_map(piece *at, const chain *self, int number) {
    const chain_map *map = &self->maps[number];
    ls_tensor *parts = at->tensors[number];
    const ls_tensor *operands[LS_MAP_OPERANDS] = {NULL};
    for (int i = 0; i < map->count; i++) {
        move_tensor(&parts[i], at, self, &map->tensors[i]);
        if (i > 0) {
            operands[i - 1] = &parts[i];
        }
    }
    (void)map->call->kernel(map->call->stream, &parts[0], operands, map->call->parameters);
}

static void run_pieces(int64_t begin, int64_t end, const void *context) {
    const chain *self = context;
    piece at;
    for (int i = 0; i < self->count; i++) {
        for (int t = 0; t < self->maps[i].count; t++) {
            begin_tensor(&at.tensors[i][t], self, &self->maps[i].tensors[t]);
        }
    }
    for (int64_t number = begin; number < end; number++) {
        find_piece(&at, self, number);
        for (int i = 0; i < self->count; i++) {
            run_map(&at, self, i);
        }
    }
}

static ls_status run_chain(void *arguments) {
    const chain *self = arguments;
    ls_parallel(self->pieces, self->elements, 1, run_pieces, self);
    return LS_OK;
}

/* ---- which calls may be in one chain ----------------------------------------------------------------------------- */

/* The addresses of a record are in the order of its calls. */
static ls_captured_block *block_of(const ls_capture *capture, int *address, const ls_tensor *tensor) {
    for (int i = *address; i < capture->address_count; i++) {
        if (capture->addresses[i].at == &tensor->data) {
            *address = i;
            return capture->addresses[i].block;
        }
    }
    return NULL;
}

/* A chain that may still grow. */
typedef struct growing {
    const ls_capture *capture;
    int first;   /* index of the chain's first call in the record */
    int last;    /* index of the chain's latest call; polls may be between the calls of the chain */
    int address; /* index in the record's addresses where the search for the next tensor begins */
    bool shares; /* at least two calls use the same memory */
    chain self;  /* without maps */
    chain_map maps[MAPS];
} growing;

static void align_tensor(chain_tensor *aligned, const chain *self, ls_tensor *tensor) {
    const int missing = self->ndim - tensor->ndim;
    for (int axis = 0; axis < self->ndim; axis++) {
        const bool repeats = axis < missing || tensor->size[axis - missing] == 1 || tensor->stride[axis - missing] == 0;
        aligned->size[axis] = repeats ? 1 : tensor->size[axis - missing];
        aligned->stride[axis] = repeats ? 0 : tensor->stride[axis - missing];
    }
    aligned->tensor = tensor;
    aligned->element = (int64_t)ls_dtype_size((ls_dtype)tensor->dtype);
    aligned->on_stack = NOWHERE;
}

static bool have_one_layout(const chain *self, const chain_tensor *a, const chain_tensor *b) {
    const size_t bytes = (size_t)self->ndim * sizeof(int64_t);
    return a->tensor->data == b->tensor->data && a->element == b->element && memcmp(a->size, b->size, bytes) == 0 &&
           memcmp(a->stride, b->stride, bytes) == 0;
}

/* Strides are never negative, so a tensor ends at its last element. */
static const char *end_of(const chain *self, const chain_tensor *tensor) {
    int64_t last = 0;
    for (int axis = 0; axis < self->ndim; axis++) {
        last += (tensor->size[axis] - 1) * tensor->stride[axis];
    }
    return (const char *)tensor->tensor->data + (last + 1) * tensor->element;
}

/* Different blocks never overlap in a replay, even if one had the address of the other during the capture. */
static bool overlap(const chain *self, const chain_tensor *a, const chain_tensor *b) {
    return a->block == b->block && (const char *)a->tensor->data < end_of(self, b) &&
           (const char *)b->tensor->data < end_of(self, a);
}

/* Returns whether both calls may be in one chain. Sets grown->shares if they use the same memory. */
static bool are_compatible(growing *grown, const chain_map *one, const chain_map *other) {
    for (int a = 0; a < one->count; a++) {
        for (int b = 0; b < other->count; b++) {
            if (!overlap(&grown->self, &one->tensors[a], &other->tensors[b])) {
                continue;
            }
            if ((a == 0 || b == 0) && !have_one_layout(&grown->self, &one->tensors[a], &other->tensors[b])) {
                return false;
            }
            grown->shares |= one != other;
        }
    }
    return true;
}

static bool has_shape(const chain *self, const ls_tensor *y) {
    return y->ndim == self->ndim && memcmp(y->size, self->size, (size_t)y->ndim * sizeof *y->size) == 0;
}

/* Appends a call to the chain. Returns false if the call cannot be in this chain. */
static bool add_map(growing *grown, const ls_captured_map *call) {
    if (grown->self.count == MAPS || !has_shape(&grown->self, call->y)) {
        return false;
    }
    chain_map *map = &grown->maps[grown->self.count];
    *map = (chain_map){.call = call};
    int address = grown->address;
    /* The recording kernel has noted the operands before y. */
    for (int i = 0; i < LS_MAP_OPERANDS && call->operands[i] != NULL; i++) {
        chain_tensor *tensor = &map->tensors[++map->count];
        align_tensor(tensor, &grown->self, (ls_tensor *)call->operands[i]);
        tensor->block = block_of(grown->capture, &address, tensor->tensor);
    }
    align_tensor(&map->tensors[0], &grown->self, call->y);
    map->tensors[0].block = block_of(grown->capture, &address, call->y);
    map->count++;
    for (int i = 0; i <= grown->self.count; i++) {
        if (!are_compatible(grown, map, &grown->maps[i])) {
            return false;
        }
    }
    grown->address = address;
    grown->self.count++;
    return true;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static bool has_all_elements(const chain *self, const chain_tensor *tensor) {
    return memcmp(tensor->size, self->size, (size_t)self->ndim * sizeof *self->size) == 0;
}

/* Returns whether only the chain uses the block, always as one whole dense tensor. */
static bool is_internal(const growing *grown, const ls_captured_block *block) {
    if (block->storage != NULL || block->first < grown->first || block->last > grown->last) {
        return false;
    }
    const chain_tensor *first = NULL;
    for (int i = 0; i < grown->self.count; i++) {
        for (int t = 0; t < grown->maps[i].count; t++) {
            const chain_tensor *tensor = &grown->maps[i].tensors[t];
            if (tensor->block == block) {
                first = first != NULL ? first : tensor;
                if (!tensor->tensor->contiguous || !have_one_layout(&grown->self, first, tensor)) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* Stores the blocks of the chain that may have a place in the arena. Returns their number. */
static int list_blocks(const growing *grown, const ls_captured_block **blocks) {
    int count = 0;
    for (int i = 0; i < grown->self.count; i++) {
        for (int t = 0; t < grown->maps[i].count; t++) {
            const ls_captured_block *block = grown->maps[i].tensors[t].block;
            bool is_new = block != NULL && block->storage == NULL;
            for (int k = 0; k < count; k++) {
                is_new &= blocks[k] != block;
            }
            if (is_new) {
                blocks[count++] = block;
            }
        }
    }
    return count;
}

/* Returns whether the blocks of the chain need at most as much memory as without the chain. */
static bool saves_memory(const growing *grown) {
    const ls_captured_block *blocks[MAPS * TENSORS];
    const int count = list_blocks(grown, blocks);
    size_t with = 0, without = 0;
    for (int k = 0; k < count; k++) {
        with += is_internal(grown, blocks[k]) ? 0 : blocks[k]->bytes;
    }
    for (int call = grown->first; call <= grown->last; call++) {
        size_t bytes = 0;
        for (int k = 0; k < count; k++) {
            bytes += blocks[k]->first <= call && call <= blocks[k]->last ? blocks[k]->bytes : 0;
        }
        without = bytes > without ? bytes : without;
    }
    return with <= without;
}

/* Gives all tensors in the block the same place on the stack. Returns the end of the place. */
static int64_t place_block(growing *grown, ls_captured_block *block, int64_t place) {
    int64_t end = place;
    for (int i = 0; i < grown->self.count; i++) {
        for (int t = 0; t < grown->maps[i].count; t++) {
            chain_tensor *tensor = &grown->maps[i].tensors[t];
            if (tensor->block == block) {
                tensor->on_stack = place;
                end = place + tensor->element;
            }
        }
    }
    block->first = -1; /* the block needs no place in the arena */
    return end;
}

/* Puts each block that only the chain uses on the stack, and keeps the other blocks in the arena until the chain ends,
 * because every piece uses them. Returns the bytes on the stack per element of a piece. */
static int64_t place_blocks(growing *grown) {
    const int last = grown->last;
    int64_t bytes = 0;
    for (int i = 0; i < grown->self.count; i++) {
        for (int t = 0; t < grown->maps[i].count; t++) {
            ls_captured_block *block = grown->maps[i].tensors[t].block;
            if (block == NULL || block->first < 0) {
                continue;
            }
            if (is_internal(grown, block)) {
                bytes = place_block(grown, block, bytes);
                continue;
            }
            block->last = block->last > last ? block->last : last;
        }
    }
    return bytes;
}

/* Views dense tensors as one axis, if all tensors are dense or one element. */
static void flatten(growing *grown) {
    chain_tensor *tensors[MAPS * TENSORS];
    int count = 0;
    for (int i = 0; i < grown->self.count; i++) {
        for (int t = 0; t < grown->maps[i].count; t++) {
            chain_tensor *tensor = &grown->maps[i].tensors[t];
            const bool is_dense = tensor->tensor->contiguous && has_all_elements(&grown->self, tensor);
            if (!is_dense && tensor->tensor->count != 1) {
                return;
            }
            tensors[count++] = tensor;
        }
    }
    for (int i = 0; i < count; i++) {
        tensors[i]->size[0] = tensors[i]->tensor->count;
        tensors[i]->stride[0] = tensors[i]->tensor->count != 1;
    }
    grown->self.ndim = 1;
    grown->self.size[0] = grown->maps[0].call->y->count;
}

/* Returns the bytes of memory outside of the stack that the chain uses per element. */
static int64_t bytes_in_memory(const growing *grown) {
    int64_t bytes = 0;
    for (int i = 0; i < grown->self.count; i++) {
        for (int t = 0; t < grown->maps[i].count; t++) {
            const chain_tensor *tensor = &grown->maps[i].tensors[t];
            bytes += tensor->on_stack == NOWHERE ? tensor->element : 0;
        }
    }
    return bytes;
}

static void divide(chain *self, int64_t on_stack, int64_t in_memory) {
    int64_t elements = CACHED / (on_stack + in_memory);
    elements = on_stack > 0 && ON_STACK / on_stack < elements ? ON_STACK / on_stack : elements;
    self->elements = elements & ~(int64_t)(LS_CACHE_ALIGNMENT - 1); /* aligns every piece on the stack */
    int64_t inner = 1;
    self->axis = self->ndim - 1;
    while (self->axis > 0 && inner * self->size[self->axis] <= self->elements) {
        inner *= self->size[self->axis--];
    }
    self->per_piece = self->elements / inner;
    self->pieces_of_axis = (self->size[self->axis] + self->per_piece - 1) / self->per_piece;
    self->pieces = self->pieces_of_axis;
    for (int axis = 0; axis < self->axis; axis++) {
        self->pieces *= self->size[axis];
    }
}

/* ---- the record -------------------------------------------------------------------------------------------------- */

static void begin_chain(growing *grown, const ls_capture *capture, int first, const ls_tensor *y) {
    grown->capture = capture;
    grown->first = first;
    grown->shares = false;
    grown->self = (chain){.ndim = y->ndim};
    memcpy(grown->self.size, y->size, (size_t)y->ndim * sizeof *y->size);
}

/* Replaces the first call of the chain, and drops the others, except polls. */
static void end_chain(ls_capture *capture, growing *grown) {
    const size_t bytes = (size_t)grown->self.count * sizeof(chain_map);
    chain *self = ls_capture_allocate(capture, sizeof *self);
    chain_map *maps = ls_capture_allocate(capture, bytes);
    if (self == NULL || maps == NULL) {
        return;
    }
    flatten(grown);
    const int64_t on_stack = place_blocks(grown);
    divide(&grown->self, on_stack, bytes_in_memory(grown));
    memcpy(maps, grown->maps, bytes);
    *self = grown->self;
    self->maps = maps;
    ls_captured_call *calls = capture->calls;
    calls[grown->first].run = run_chain;
    calls[grown->first].arguments = self;
    for (int i = grown->first + 1; i <= grown->last; i++) {
        if (!calls[i].polls) {
            ls_captured_call_drop(&calls[i]);
        }
    }
}

/* Finds the chain that begins with a call of the record. Returns the index of its last call; `first` without a chain.
 */
static int find_chain(growing *grown, const ls_capture *capture, int first) {
    grown->self.count = 0;
    grown->last = first;
    for (int i = first; i < capture->call_count; i++) {
        const ls_captured_call *call = &capture->calls[i];
        if (call->polls && i > first) {
            continue;
        }
        const ls_captured_map *map = ls_captured_map_of(call);
        if (map != NULL && i == first) {
            begin_chain(grown, capture, first, map->y);
        }
        if (map == NULL || map->y->count < SMALLEST || !add_map(grown, map)) {
            break;
        }
        grown->last = i;
    }
    return grown->last;
}

void ls_capture_chain(ls_capture *capture) {
    growing grown = {.address = 0};
    int next = 0;
    while (capture->status == LS_OK && next < capture->call_count) {
        next = find_chain(&grown, capture, next) + 1;
        if (grown.self.count > 1 && grown.shares && saves_memory(&grown)) {
            end_chain(capture, &grown);
        }
    }
}
