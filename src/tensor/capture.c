/* The record of a step: its memory, its calls, and the plan of its arena. */
#include "tensor/capture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/pages.h"
#include "base/random.h"
#include "tensor/capture_record.h"
#include "tensor/device/cpu/cpu.h"
#include "tensor/scope.h"

/* Arguments are allocated from large pieces of memory, so that a replay reads them in order. */
struct ls_captured_memory {
    struct ls_captured_memory *older;
    size_t used, bytes;
    _Alignas(16) char memory[];
};

enum { PIECE = 1 << 14 };

/* A storage without memory, for copies of tensors in arguments. */
static ls_storage on_cpu = {.device = &ls_cpu, .whole = &on_cpu};

/* ---- the kernels of the CPU -------------------------------------------------------------------------------------- */

/* Uses the recording kernels while at least one thread captures. */
static void count_captures(int change) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    static int captures;
    pthread_mutex_lock(&one_at_a_time);
    captures += change;
    __atomic_store_n(&ls_cpu.kernels, captures > 0 ? &ls_capture_kernels : &ls_cpu_kernels, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&one_at_a_time);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

void ls_capture_refuse(ls_capture *capture, const char *operation, const char *why) {
    if (ls_capture_records(capture)) {
        capture->status = LS_ERR_UNSUPPORTED;
        snprintf(capture->message, sizeof capture->message, "%s %s", operation, why);
    }
}

static void run_out_of_memory(ls_capture *capture) {
    if (capture->status == LS_OK) {
        capture->status = LS_ERR_MEMORY;
        snprintf(capture->message, sizeof capture->message, "out of memory for the record");
    }
}

/* ---- memory of the record ---------------------------------------------------------------------------------------- */

void *ls_capture_allocate(ls_capture *capture, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    ls_captured_memory *piece = capture->memory;
    if (piece == NULL || piece->bytes - piece->used < bytes) {
        const size_t size = bytes > PIECE ? bytes : PIECE;
        ls_captured_memory *added = ls_allocate_aligned(sizeof *added + size, LS_CACHE_ALIGNMENT);
        if (added == NULL) {
            run_out_of_memory(capture);
            return NULL;
        }
        *added = (ls_captured_memory){.older = piece, .bytes = size};
        capture->memory = piece = added;
    }
    void *memory = piece->memory + piece->used;
    piece->used += bytes;
    memset(memory, 0, bytes);
    return memory;
}

void *ls_capture_add_call(ls_capture *capture, ls_status (*run)(void *arguments), size_t bytes) {
    ls_captured_call *calls = ls_grow(capture->calls, (size_t)capture->call_count, sizeof *calls);
    void *arguments = calls != NULL ? ls_capture_allocate(capture, bytes) : NULL;
    capture->calls = calls != NULL ? calls : capture->calls;
    if (arguments == NULL) {
        run_out_of_memory(capture);
        return NULL;
    }
    calls[capture->call_count++] =
        (ls_captured_call){.run = run, .arguments = arguments, .operation = capture->operation};
    return arguments;
}

/* ---- memory that the calls use ----------------------------------------------------------------------------------- */

static void release_block(void *memory, void *user) {
    ls_captured_block *block = user;
    block->storage = NULL;
    ls_record_release(memory, block->bytes);
}

static void add_block(ls_capture *capture, ls_storage *storage) {
    if (capture->status != LS_OK || storage->bytes == 0) {
        return;
    }
    if (storage->device != &ls_cpu) {
        ls_capture_refuse(capture, storage->device->name, "is not the CPU: only steps on the CPU can be captured");
        return;
    }
    ls_captured_block **blocks = ls_grow(capture->blocks, (size_t)capture->block_count, sizeof *blocks);
    ls_captured_block *block = blocks != NULL ? ls_allocate_zeroed(1, sizeof *block) : NULL;
    capture->blocks = blocks != NULL ? blocks : capture->blocks;
    if (block == NULL) {
        run_out_of_memory(capture);
        return;
    }
    *block = (ls_captured_block){.storage = storage, .memory = storage->memory, .bytes = storage->bytes, .first = -1};
    blocks[capture->block_count++] = block;
    storage->release = release_block;
    storage->user = block;
}

static bool contains(const void *memory, size_t bytes, const void *address) {
    return (uintptr_t)address - (uintptr_t)memory < bytes;
}

/* Returns the block that has the address now; NULL if no block has it. Freed memory may belong to a later block. */
static ls_captured_block *find_block(const ls_capture *capture, const void *address) {
    for (int i = capture->block_count; i-- > 0;) {
        ls_captured_block *block = capture->blocks[i];
        if (block->storage != NULL && contains(block->memory, block->bytes, address)) {
            return block;
        }
    }
    return NULL;
}

static bool is_held(const ls_capture *capture, const ls_storage *storage) {
    for (int i = capture->storage_count; i-- > 0;) {
        if (capture->storages[i].storage == storage) {
            return true;
        }
    }
    return false;
}

bool ls_capture_add_storage(ls_capture *capture, ls_storage *storage) {
    if (storage->release == release_block) {
        return false;
    }
    if (is_held(capture, storage)) {
        return true;
    }
    ls_captured_storage *storages = ls_grow(capture->storages, (size_t)capture->storage_count, sizeof *storages);
    if (storages == NULL) {
        run_out_of_memory(capture);
        return true;
    }
    storages[capture->storage_count++] =
        (ls_captured_storage){.storage = ls_storage_hold(storage), .version = storage->version};
    capture->storages = storages;
    return true;
}

static bool is_known(const ls_capture *capture, const void *address) {
    for (int i = capture->storage_count; i-- > 0;) {
        const ls_storage *storage = capture->storages[i].storage;
        if (contains(storage->memory, storage->bytes, address)) {
            return true;
        }
    }
    return false;
}

/* Notes that the latest call uses a block at `at`. */
static void use_block(ls_capture *capture, const char *name, ls_captured_block *block, void **at, bool written) {
    if (!written && !block->written) {
        ls_capture_refuse(capture, name,
                          "reads elements that no operation of the step has written: fill the tensor before the step, "
                          "or by an operation");
        return;
    }
    ls_captured_address *addresses = ls_grow(capture->addresses, (size_t)capture->address_count, sizeof *addresses);
    if (addresses == NULL) {
        run_out_of_memory(capture);
        return;
    }
    const size_t offset = (size_t)((char *)*at - block->memory);
    addresses[capture->address_count++] = (ls_captured_address){.at = at, .block = block, .offset = offset};
    capture->addresses = addresses;
    block->written = true;
    block->last = capture->call_count - 1;
    block->first = block->first < 0 ? block->last : block->first;
}

void ls_capture_address(ls_capture *capture, const char *name, void **at, bool written) {
    if (*at == NULL) {
        return;
    }
    ls_captured_block *block = find_block(capture, *at);
    if (block != NULL) {
        use_block(capture, name, block, at, written);
    } else if (!is_known(capture, *at)) {
        ls_capture_refuse(capture, name,
                          "uses memory that belongs to no tensor of the step: call it after ls_step_replay");
    }
}

ls_tensor *ls_capture_tensor(ls_capture *capture, const ls_tensor *tensor, bool written) {
    ls_tensor *copy = tensor != NULL ? ls_capture_allocate(capture, sizeof *copy) : NULL;
    if (copy == NULL) {
        return NULL;
    }
    *copy = *tensor;
    copy->node = NULL;
    copy->leaf = NULL;
    copy->scope = NULL;
    copy->storage = &on_cpu;
    ls_captured_block *block = tensor->count > 0 ? find_block(capture, tensor->data) : NULL;
    if (block != NULL) {
        use_block(capture, capture->operation != NULL ? capture->operation : "an operation", block, &copy->data,
                  written);
    } else if (tensor->count > 0) {
        (void)ls_capture_add_storage(capture, tensor->storage);
    }
    return copy;
}

static void refuse_random_accesses(ls_capture *capture) {
    if (ls_random_accesses() != capture->random_accesses) {
        ls_capture_refuse(capture, "ls_random_get_state, ls_random_set_state or ls_seed",
                          "uses the state of the random number generator, which a replay does not: call it outside the "
                          "step, or draw the numbers with ls_rand");
    }
}

void ls_capture_random(ls_capture *capture, ls_random_state *at) {
    refuse_random_accesses(capture);
    const ls_random_state first = capture->first_random, next = ls_random_present();
    const uint64_t index = at->stream - first.stream;
    if (at->seed != first.seed || index >= next.stream - first.stream) {
        ls_capture_refuse(capture, capture->operation != NULL ? capture->operation : "an operation",
                          "repeats random numbers that were drawn before the step: draw them in the step");
        return;
    }
    ls_captured_random *randoms = ls_grow(capture->randoms, (size_t)capture->random_count, sizeof *randoms);
    if (randoms == NULL) {
        run_out_of_memory(capture);
        return;
    }
    randoms[capture->random_count++] = (ls_captured_random){.at = at, .index = index};
    capture->randoms = randoms;
}

void ls_capture_random_from(ls_capture *capture, ls_random_state *at, uint64_t *first) {
    const int count = capture->random_count;
    ls_capture_random(capture, at);
    if (capture->random_count > count) {
        ls_captured_random *random = &capture->randoms[count];
        random->first = first;
        random->captured_first = *first;
    }
}

void ls_capture_set_per_sample(ls_capture *capture, int count, int64_t per_sample) {
    for (int i = count; i < capture->random_count; i++) {
        capture->randoms[i].per_sample = (uint64_t)per_sample;
    }
}

void ls_capture_move_samples(ls_capture *capture, int64_t samples) {
    for (int i = 0; i < capture->random_count; i++) {
        const ls_captured_random *random = &capture->randoms[i];
        if (random->first != NULL) {
            *random->first = random->captured_first + (uint64_t)samples * random->per_sample;
        }
    }
}

/* ---- begin and end ----------------------------------------------------------------------------------------------- */

void ls_capture_begin(ls_capture *capture) {
    static _Thread_local uint32_t captures;
    capture->serial = ++captures;
    capture->add_block = add_block;
    capture->first_random = ls_random_present();
    capture->random_accesses = ls_random_accesses();
    count_captures(1);
    ls_thread_present->capture = capture;
}

static void mark_changed(ls_capture *capture, const ls_storage *storage) {
    for (int i = 0; i < capture->storage_count; i++) {
        capture->storages[i].changed |= capture->storages[i].storage == storage;
    }
}

/* Blocks that still exist become ordinary storages, which the record holds. */
static void settle_blocks(ls_capture *capture) {
    for (int i = 0; i < capture->block_count; i++) {
        ls_storage *storage = capture->blocks[i]->storage;
        if (storage != NULL) {
            storage->release = NULL;
            (void)ls_capture_add_storage(capture, storage);
            mark_changed(capture, storage); /* every replay writes its elements again */
        }
    }
}

void ls_capture_end(ls_capture *capture) {
    ls_thread_present->capture = NULL;
    count_captures(-1);
    settle_blocks(capture);
    refuse_random_accesses(capture);
    capture->stream_count = ls_random_present().stream - capture->first_random.stream;
    for (int i = 0; i < capture->storage_count; i++) {
        ls_captured_storage *held = &capture->storages[i];
        held->changed |= held->storage->version != held->version;
    }
}

/* ---- the arena --------------------------------------------------------------------------------------------------- */

/* The largest block first; then in the order of their first use. */
static int compare_blocks(const void *a, const void *b) {
    const ls_captured_block *const *one = a, *const *other = b;
    if ((*one)->bytes != (*other)->bytes) {
        return (*one)->bytes > (*other)->bytes ? -1 : 1;
    }
    return (*one)->first - (*other)->first;
}

static bool overlap_in_time(const ls_captured_block *a, const ls_captured_block *b) {
    return a->first <= b->last && b->first <= a->last;
}

static size_t end_of(const ls_captured_block *block) {
    return block->place + ((block->bytes + LS_CACHE_ALIGNMENT - 1) & ~(size_t)(LS_CACHE_ALIGNMENT - 1));
}

/* Returns the lowest offset of a block, apart from those earlier blocks of the array that are used at the same
 * time. */
static size_t find_place(ls_captured_block *const *blocks, int count, ls_captured_block *block) {
    block->place = 0;
    for (int i = 0; i < count; i++) {
        const ls_captured_block *other = blocks[i];
        if (overlap_in_time(block, other) && block->place < end_of(other) && other->place < end_of(block)) {
            block->place = end_of(other);
            i = -1; /* a higher place may overlap with an earlier block */
        }
    }
    return block->place;
}

/* Sorts the blocks that need a place to the front of the array. Returns their number. */
static int select_blocks(const ls_capture *capture) {
    int count = 0;
    for (int i = 0; i < capture->block_count; i++) {
        ls_captured_block *block = capture->blocks[i];
        if (block->storage == NULL && block->first >= 0) {
            capture->blocks[i] = capture->blocks[count];
            capture->blocks[count++] = block;
        }
    }
    if (count > 0) {
        qsort(capture->blocks, (size_t)count, sizeof(ls_captured_block *), compare_blocks);
    }
    return count;
}

static ls_status do_nothing(void *arguments) {
    (void)arguments;
    return LS_OK;
}

void ls_captured_call_drop(ls_captured_call *call) {
    call->run = do_nothing;
}

ls_status ls_capture_plan(ls_capture *capture) {
    if (capture->status != LS_OK) {
        return ls_fail(capture->status, "ls_step_capture: %s", capture->message);
    }
    const int count = select_blocks(capture);
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        ls_captured_block *block = capture->blocks[i];
        block->place = find_place(capture->blocks, i, block);
        bytes = end_of(block) > bytes ? end_of(block) : bytes;
    }
    ls_cache_empty(&ls_thread()->cache); /* replays do not need the blocks that the captured step has freed */
    ls_pages_trim();
    capture->arena = ls_storage_for("ls_step_capture", &ls_cpu, bytes, LS_MEMORY_ACTIVATIONS);
    LS_TRY(ls_made(capture->arena));
    for (int i = 0; i < capture->address_count; i++) {
        const ls_captured_address *address = &capture->addresses[i];
        if (address->block->storage == NULL && address->block->first >= 0) {
            *address->at = (char *)capture->arena->memory + address->block->place + address->offset;
        }
    }
    return LS_OK;
}

/* Begins the message with the name of the operation, as the operation does. */
static ls_status fail_in_call(const ls_captured_call *call, ls_status status) {
    const char *message = ls_error_message();
    return call->operation == NULL || strncmp(message, "ls_", 3) == 0
               ? status
               : ls_fail(status, "%s: %s", call->operation, message);
}

/* Draws the streams of a replay. */
static void draw_streams(const ls_capture *capture) {
    const ls_random_state first = ls_random_present();
    for (int i = 0; i < capture->random_count; i++) {
        const ls_captured_random *random = &capture->randoms[i];
        *random->at = (ls_random_state){.seed = first.seed, .stream = first.stream + random->index};
    }
    ls_random_continue((ls_random_state){.seed = first.seed, .stream = first.stream + capture->stream_count});
}

ls_status ls_capture_run(ls_capture *capture) {
    if (capture->stream_count > 0) {
        draw_streams(capture);
    }
    for (int i = 0; i < capture->storage_count; i++) {
        const ls_captured_storage *held = &capture->storages[i];
        if (held->changed) {
            held->storage->version++;
            held->storage->changed_by = "ls_step_replay";
        }
    }
    for (int i = 0; i < capture->call_count; i++) {
        const ls_captured_call *call = &capture->calls[i];
        const ls_status status = call->run(call->arguments);
        if (__builtin_expect(status != LS_OK, 0)) {
            capture->failed = i;
            return fail_in_call(call, status);
        }
    }
    return LS_OK;
}

void ls_capture_clear(ls_capture *capture) {
    for (int i = 0; i < capture->block_count; i++) {
        ls_free(capture->blocks[i]);
    }
    for (int i = 0; i < capture->storage_count; i++) {
        ls_storage_drop(capture->storages[i].storage);
    }
    while (capture->memory != NULL) {
        ls_captured_memory *piece = capture->memory;
        capture->memory = piece->older;
        ls_free(piece);
    }
    ls_free(capture->calls);
    ls_free(capture->blocks);
    ls_free(capture->addresses);
    ls_free(capture->storages);
    ls_free(capture->randoms);
    ls_storage_drop(capture->arena);
    *capture = (ls_capture){.status = LS_OK};
}
