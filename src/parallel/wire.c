#include "parallel/wire.h"

#include <string.h>

#include "autograd/ops/ops.h"
#include "base/status.h"
#include "parallel/buffers.h"

/* Returns the first byte of a piece. */
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
        LS_TRY(packet->device->kernels->cast(ls_device_stream(packet->device), back ? &own : &converted,
                                             back ? &converted : &own));
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

const ls_wire_format ls_wire_bf16 = {
    .name = "bf16", .converts = true, .dtype = LS_BF16, .encode = encode_halves, .decode = decode_halves};
const ls_wire_format ls_wire_f16 = {
    .name = "f16", .converts = true, .dtype = LS_F16, .encode = encode_halves, .decode = decode_halves};

const ls_wire_format *ls_wire_of(ls_dtype dtype) {
    return dtype == LS_F32 ? &ls_wire_plain : dtype == LS_BF16 ? &ls_wire_bf16 : dtype == LS_F16 ? &ls_wire_f16 : NULL;
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

ls_status ls_packet_start(ls_wire_packet *packet, ls_comm *comm, bool wait) {
    const ls_status encoded = packet->format->encode(packet);
    ls_saved_error cause;
    if (encoded != LS_OK) {
        ls_error_save(&cause);
    }
    const ls_device *on = packet->in_place && !packet->device->is_host ? packet->device : NULL;
    const ls_status started =
        LS_ON_DEVICE(comm, on,
                     ls_comm_allreduce(comm, packet->buffer, packet->buffer, (size_t)(packet->total + packet->extra),
                                       ls_packet_dtype(packet), packet->reduction, wait ? NULL : &packet->work));
    return encoded != LS_OK ? ls_error_put_back(&cause) : started;
}

ls_status ls_packet_wait(ls_wire_packet *packet) {
    ls_work *work = packet->work;
    packet->work = NULL;
    return ls_work_wait(work);
}
