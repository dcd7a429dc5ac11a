#include "parallel/wire.h"

#include <stdio.h>
#include <string.h>

#include "autograd/ops/ops.h"
#include "base/freed.h"
#include "base/memory.h"
#include "parallel/buffers.h"
#include "tensor/scope.h"

static char *memory_of(const ls_wire_packet *packet, const ls_wire_piece *piece) {
    return (char *)piece->storage->memory + (size_t)piece->offset * ls_dtype_size(packet->dtype);
}

/* ---- elements as they are ---------------------------------------------------------------------------------------- */

static ls_status move_piece(const ls_wire_packet *packet, const ls_wire_piece *piece, char *encoded, bool back) {
    const size_t bytes = (size_t)piece->count * ls_dtype_size(packet->dtype);
    char *own = memory_of(packet, piece);
    if (own == encoded) {
        return LS_OK;
    }
    if (packet->device->is_host) {
        memmove(back ? own : encoded, back ? encoded : own, bytes);
        return LS_OK;
    }
    return back ? ls_device_store(packet->device, own, encoded, bytes)
                : ls_device_fetch(packet->device, encoded, own, bytes);
}

static ls_status encode_plain(const ls_wire_packet *packet) {
    char *end = packet->buffer + (size_t)packet->total * ls_dtype_size(packet->dtype);
    for (int i = 0; i < packet->piece_count; i++) {
        end -= (size_t)packet->pieces[i].count * ls_dtype_size(packet->dtype);
        LS_TRY(move_piece(packet, &packet->pieces[i], end, false));
    }
    return LS_OK;
}

static ls_status decode_plain(const ls_wire_packet *packet) {
    char *encoded = packet->buffer;
    for (int i = packet->piece_count - 1; i >= 0; i--) {
        LS_TRY(move_piece(packet, &packet->pieces[i], encoded, true));
        encoded += (size_t)packet->pieces[i].count * ls_dtype_size(packet->dtype);
    }
    return LS_OK;
}

const ls_wire_format ls_wire_plain = {.name = "f32", .encode = encode_plain, .decode = decode_plain};

/* ---- f32 as 16-bit floats ---------------------------------------------------------------------------------------- */

/* Views a piece, of any dtype, as a tensor on the stack. */
static ls_tensor view(const ls_wire_piece *piece, ls_dtype dtype) {
    char *memory = (char *)piece->storage->memory + (size_t)piece->offset * ls_dtype_size(dtype);
    const ls_tensor start = {.data = memory, .storage = piece->storage, .dtype = (uint8_t)dtype};
    return ls_stack_view_dense(&start, 1, &piece->count);
}

static ls_status cast_pieces(const ls_wire_packet *packet, bool back) {
    ls_wire_piece cast = packet->converted;
    for (int i = packet->piece_count - 1; i >= 0; i--) {
        cast.count = packet->pieces[i].count;
        ls_tensor own = view(&packet->pieces[i], packet->dtype), converted = view(&cast, packet->format->dtype);
        LS_TRY(ls_device_kernels(packet->device)
                   ->cast(ls_device_stream(packet->device), back ? &own : &converted, back ? &converted : &own));
        cast.offset += cast.count;
    }
    return LS_OK;
}

/* Copies the encoded pieces from the device to the buffer, or back. */
static ls_status stage(const ls_wire_packet *packet, bool back) {
    const size_t width = ls_dtype_size(packet->format->dtype), bytes = (size_t)packet->total * width;
    char *memory = (char *)packet->converted.storage->memory + (size_t)packet->converted.offset * width;
    return memory == packet->buffer ? LS_OK
           : back                   ? ls_device_store(packet->device, memory, packet->buffer, bytes)
                                    : ls_device_fetch(packet->device, packet->buffer, memory, bytes);
}

static ls_status encode_halves(const ls_wire_packet *packet) {
    LS_TRY(cast_pieces(packet, false));
    return stage(packet, false);
}

static ls_status decode_halves(const ls_wire_packet *packet) {
    LS_TRY(stage(packet, true));
    return cast_pieces(packet, true);
}

static const ls_wire_format wire_bf16 = {
    .name = "bf16", .converts = true, .dtype = LS_BF16, .encode = encode_halves, .decode = decode_halves};
static const ls_wire_format wire_f16 = {
    .name = "f16", .converts = true, .dtype = LS_F16, .encode = encode_halves, .decode = decode_halves};

const ls_wire_format *ls_wire_of(ls_dtype dtype) {
    return dtype == LS_F32 ? &ls_wire_plain : dtype == LS_BF16 ? &wire_bf16 : dtype == LS_F16 ? &wire_f16 : NULL;
}

/* ---- user-defined formats ---------------------------------------------------------------------------------------- */

enum { NAME_LIMIT = 32 };

typedef struct own_format {
    ls_wire_format format; /* first member */
    ls_wire_functions functions;
    char name[NAME_LIMIT + 1];
} own_format;

/* Returns the number of encoded elements of a piece, as the program's function returns it. */
static int64_t encoded_length(const ls_wire_format *format, const ls_wire_piece *piece) {
    return format->functions->length != NULL ? format->functions->length(piece->count, format->user) : piece->count;
}

/* Rejects numbers outside 0 to the number of elements. */
static ls_status check_lengths(const ls_wire_packet *packet) {
    for (int i = 0; i < packet->piece_count; i++) {
        const int64_t count = packet->pieces[i].count, length = encoded_length(packet->format, &packet->pieces[i]);
        if (length < 0 || length > count) {
            return ls_fail(
                LS_ERR_ARGUMENT,
                "ls_data_parallel: `length` of the wire format \"%s\" has returned %lld for %lld gradients on "
                "rank %d, must be 0 to %lld",
                packet->format->name, (long long)length, (long long)count, packet->rank, (long long)count);
        }
    }
    return LS_OK;
}

/* Reports the failure of a function. LS_ERR_MISMATCH would mean that another rank has failed. */
static ls_status refuse_function(const ls_wire_packet *packet, const char *function, ls_status status, bool silent) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", silent ? ls_status_name(status) : ls_error_message());
    return ls_fail(status != LS_ERR_MISMATCH ? status : LS_ERR_STATE,
                   "ls_data_parallel: `%s` of the wire format \"%s\" has failed on rank %d: %s", function,
                   packet->format->name, packet->rank, message);
}

/* Calls the functions for one piece after another, in the order of their encoded elements. */
static ls_status call_functions(const ls_wire_packet *packet, bool back) {
    const ls_wire_functions *functions = packet->format->functions;
    void *user = packet->format->user;
    char *encoded = packet->buffer;
    for (int i = packet->piece_count - 1; i >= 0; i--) {
        const ls_wire_piece *piece = &packet->pieces[i];
        float *own = (float *)(void *)memory_of(packet, piece);
        const uint32_t errors = ls_error_count;
        const ls_status status = back ? functions->decode(encoded, piece->offset, piece->count, own, user)
                                      : functions->encode(own, piece->offset, piece->count, encoded, user);
        if (status != LS_OK) {
            return refuse_function(packet, back ? "decode" : "encode", status, ls_error_count == errors);
        }
        encoded += (size_t)encoded_length(packet->format, piece) * ls_dtype_size(functions->dtype);
    }
    return LS_OK;
}

static ls_status encode_own(const ls_wire_packet *packet) {
    LS_TRY(check_lengths(packet));
    return call_functions(packet, false);
}

static ls_status decode_own(const ls_wire_packet *packet) {
    return call_functions(packet, true);
}

static ls_status check_functions(const ls_wire_functions *functions) {
    static const char call[] = "ls_wire_format_new";
    if (functions == NULL || functions->name == NULL || functions->encode == NULL || functions->decode == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: set .name, .encode and .decode", call);
    }
    if (functions->name[0] == '\0' || strlen(functions->name) > NAME_LIMIT) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .name \"%.64s\" must have 1 to %d bytes", call, functions->name,
                       NAME_LIMIT);
    }
    return functions->dtype == LS_F32 || functions->dtype == LS_F64 || functions->dtype == LS_BF16 ||
                   functions->dtype == LS_F16
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: .dtype of \"%s\" is %s, must be f32, f64, bf16 or f16", call,
                         functions->name, ls_dtype_name(functions->dtype));
}

ls_wire_format *ls_wire_format_new(const ls_wire_functions *functions, void *user) {
    const ls_status status = check_functions(functions);
    own_format *own = status == LS_OK ? ls_allocate_zeroed(1, sizeof *own) : NULL;
    if (own == NULL) {
        if (functions != NULL && functions->release != NULL) {
            functions->release(user);
        }
        return status == LS_OK ? ls_fail_null(LS_ERR_MEMORY, "ls_wire_format_new: out of memory") : NULL;
    }
    snprintf(own->name, sizeof own->name, "%s", functions->name);
    own->functions = *functions;
    own->format = (ls_wire_format){.name = own->name,
                                   .converts = true,
                                   .dtype = functions->dtype,
                                   .encode = encode_own,
                                   .decode = decode_own,
                                   .functions = &own->functions,
                                   .user = user,
                                   .references = 1};
    return &own->format;
}

ls_wire_format *ls_wire_format_hold(ls_wire_format *format) {
    if (format != NULL) {
        atomic_fetch_add_explicit(&format->references, 1, memory_order_relaxed);
    }
    return format;
}

void ls_wire_format_drop(ls_wire_format *format) {
    if (format == NULL || atomic_fetch_sub(&format->references, 1) > 1) {
        return;
    }
    if (format->functions->release != NULL) {
        format->functions->release(format->user);
    }
    *format = (ls_wire_format){.name = "freed", .freed = true};
    ls_retire(format, LS_RETIRED_SINGLE);
}

void ls_wire_format_free(ls_wire_format *format) {
    if (format != NULL && !format->freed) {
        format->freed = true;
        ls_wire_format_drop(format);
    }
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

/*
 * Returns the number of elements in the buffer. Limits invalid lengths instead of failing, because the other ranks wait
 * for the all-reduce.
 */
static int64_t count_encoded(const ls_wire_packet *packet) {
    if (packet->format->functions == NULL) {
        return packet->total + packet->extra;
    }
    int64_t count = packet->extra;
    for (int i = 0; i < packet->piece_count; i++) {
        const int64_t length = encoded_length(packet->format, &packet->pieces[i]), most = packet->pieces[i].count;
        count += length < 0 ? 0 : length < most ? length : most;
    }
    return count;
}

ls_status ls_packet_encode(ls_wire_packet *packet, const ls_comm *comm) {
    packet->rank = ls_comm_rank(comm);
    return packet->format->encode(packet);
}

ls_status ls_packet_send(ls_wire_packet *packet, ls_comm *comm, bool wait) {
    const ls_device *on = packet->in_place && !packet->device->is_host ? packet->device : NULL;
    return LS_ON_DEVICE(comm, on,
                        ls_comm_allreduce(comm, packet->buffer, packet->buffer, (size_t)count_encoded(packet),
                                          ls_packet_dtype(packet), packet->reduction, wait ? NULL : &packet->work));
}

ls_status ls_packet_start(ls_wire_packet *packet, ls_comm *comm, bool wait) {
    ls_saved_error first = {.status = LS_OK};
    ls_error_save_first(&first, ls_packet_encode(packet, comm));
    ls_error_save_first(&first, ls_packet_send(packet, comm, wait));
    return ls_error_put_back_first(&first);
}
