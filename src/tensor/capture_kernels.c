/*
 * The kernels of the CPU while a thread captures a step: each calls the real kernel, and adds the call to the record.
 * Everything is generated from the lists of kernels.h, except the arguments that are structs.
 */
#include "tensor/capture_record.h"
#include "tensor/device/cpu/cpu.h"

/* Returns the record to which this thread's call belongs; NULL if the call is not recorded. */
static ls_capture *recording(void) {
    ls_capture *capture = ls_thread_present != NULL ? ls_thread_present->capture : NULL;
    return capture != NULL && ls_capture_records(capture) ? capture : NULL;
}

/* ---- arguments that are structs ---------------------------------------------------------------------------------- */

#define COPY(type)                                                                                                     \
    type *copy = ls_capture_allocate(capture, sizeof *copy);                                                           \
    if (copy == NULL) {                                                                                                \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    *copy = *from;

/* Notes an address that the kernel only reads. */
static void note_read(ls_capture *capture, const char *name, const void **at) {
    ls_capture_address(capture, name, (void **)at, false);
}

static const ls_gemm *keep_ls_gemm(ls_capture *capture, const ls_gemm *from) {
    COPY(ls_gemm)
    if (from->k > 0) {
        note_read(capture, "gemm", &copy->a);
        note_read(capture, "gemm", &copy->b);
    }
    note_read(capture, "gemm", &copy->bias);
    if (from->m > 0 && from->n > 0) {
        ls_capture_address(capture, "gemm", &copy->c, !from->accumulate);
    }
    return copy;
}

/* Defines the function that copies a struct, and records the tensors among its fields. */
#define KEEP(type, fields)                                                                                             \
    static const type *keep_##type(ls_capture *capture, const type *from) {                                            \
        COPY(type)                                                                                                     \
        fields return copy;                                                                                            \
    }
#define KEEP_IN(name)  copy->name = ls_capture_tensor(capture, from->name, false);
#define KEEP_OUT(name) copy->name = ls_capture_tensor(capture, from->name, true);

KEEP(ls_window, )
KEEP(ls_class_loss, KEEP_IN(target) KEEP_IN(weight))
KEEP(ls_cell, KEEP_IN(x) KEEP_IN(recurrent) KEEP_IN(h_before) KEEP_IN(c_before) KEEP_OUT(h) KEEP_OUT(c) KEEP_OUT(kept)
                  KEEP_IN(lengths))
KEEP(ls_cell_gradient, KEEP_OUT(d_x) KEEP_OUT(d_recurrent) KEEP_OUT(dh) KEEP_OUT(dc) KEEP_IN(g) KEEP_IN(kept)
                           KEEP_IN(before) KEEP_IN(after) KEEP_IN(lengths))

/* ---- kernels with a list of arguments ---------------------------------------------------------------------------- */

#define FIELD_OUT(name)            ls_tensor *name;
#define FIELD_IN(name)             const ls_tensor *name;
#define FIELD_VALUE(type, name)    type name;
#define FIELD_STRUCT(type, name)   const type *name;
#define STORE_OUT(name)            call->name = ls_capture_tensor(capture, name, true);
#define STORE_IN(name)             call->name = ls_capture_tensor(capture, name, false);
#define STORE_VALUE(type, name)    call->name = name;
#define STORE_STRUCT(type, name)   call->name = keep_##type(capture, name);
#define REPLAY_TENSOR(name)        , call->name
#define REPLAY_OTHER(type, name)   , call->name
#define ARGUMENT_TENSOR(name)      , name
#define ARGUMENT_OTHER(type, name) , name
#define FIELDS_OF(list)            list(FIELD_OUT, FIELD_IN, FIELD_VALUE, FIELD_STRUCT)
#define STORE_ALL(list)            list(STORE_OUT, STORE_IN, STORE_VALUE, STORE_STRUCT)
#define REPLAYED(list)             call->stream list(REPLAY_TENSOR, REPLAY_TENSOR, REPLAY_OTHER, REPLAY_OTHER)
#define ARGUMENTS(list)            stream list(ARGUMENT_TENSOR, ARGUMENT_TENSOR, ARGUMENT_OTHER, ARGUMENT_OTHER)

/* Inputs are stored after outputs, although a kernel reads first, so the memory of an output may be an input, too. */
#define RECORD_WITH(type, note)                                                                                        \
    struct call_##type {                                                                                               \
        ls_##type##_kernel *kernel;                                                                                    \
        ls_stream *stream;                                                                                             \
        FIELDS_OF(LS_ARGUMENTS_##type)                                                                                 \
    };                                                                                                                 \
    static ls_status replay_##type(void *arguments) {                                                                  \
        const struct call_##type *call = arguments;                                                                    \
        return call->kernel(REPLAYED(LS_ARGUMENTS_##type));                                                            \
    }                                                                                                                  \
    static ls_status record_##type(ls_##type##_kernel *kernel, const char *kernel_name, LS_PARAMETERS_##type) {        \
        ls_capture *capture = recording();                                                                             \
        struct call_##type *call = capture != NULL ? ls_capture_add_call(capture, replay_##type, sizeof *call) : NULL; \
        (void)kernel_name;                                                                                             \
        if (call == NULL) {                                                                                            \
            return kernel(ARGUMENTS(LS_ARGUMENTS_##type));                                                             \
        }                                                                                                              \
        call->kernel = kernel;                                                                                         \
        call->stream = stream;                                                                                         \
        STORE_ALL(LS_ARGUMENTS_##type)                                                                                 \
        note;                                                                                                          \
        capture->paused++; /* a kernel may call others */                                                              \
        const ls_status status = kernel(ARGUMENTS(LS_ARGUMENTS_##type));                                               \
        capture->paused--;                                                                                             \
        return status;                                                                                                 \
    }

#define RECORD(type) RECORD_WITH(type, (void)0)
RECORD(pair)
RECORD(fill)
RECORD(count_up)
RECORD(along)
RECORD(along_backward)
RECORD(directed)
RECORD(index)
RECORD(gemm)
RECORD(nll)
RECORD(class_loss_backward)
RECORD(layer_norm)
RECORD(layer_norm_backward)
RECORD(batch_norm_statistics)
RECORD(batch_norm)
RECORD(batch_norm_backward)
RECORD(batch_norm_sums)
RECORD(batch_norm_dx)
RECORD(conv)
RECORD(conv_weight)
RECORD(max_pool)
RECORD(pool)
RECORD(resize)
RECORD(rotary)
RECORD(attention)
RECORD(attention_backward)
RECORD(cell)
RECORD(cell_backward)
/* These kernels also read y, so y must already have elements, like x. */
RECORD_WITH(axpy,
            (note_read(capture, kernel_name, &call->x), ls_capture_address(capture, kernel_name, &call->y, false)))
RECORD_WITH(scale, ls_capture_address(capture, kernel_name, &call->y, false))
RECORD_WITH(random, ls_capture_random(capture, &call->state))
RECORD_WITH(random_integer, ls_capture_random(capture, &call->state))
RECORD_WITH(dropout, ls_capture_random_from(capture, &call->state, &call->first))

/* ---- maps -------------------------------------------------------------------------------------------------------- */

static ls_status replay_map(void *arguments) {
    const ls_captured_map *call = arguments;
    return call->kernel(call->stream, call->y, call->operands, call->parameters);
}

static ls_status record_map(ls_map_kernel *kernel, int operand_count, int parameter_count, LS_PARAMETERS_map) {
    ls_capture *capture = recording();
    ls_captured_map *call = capture != NULL ? ls_capture_add_call(capture, replay_map, sizeof *call) : NULL;
    if (call == NULL) {
        return kernel(stream, y, operands, parameters);
    }
    call->kernel = kernel;
    call->stream = stream;
    for (int i = 0; i < operand_count; i++) {
        call->operands[i] = ls_capture_tensor(capture, operands[i], false);
    }
    call->y = ls_capture_tensor(capture, y, true);
    for (int i = 0; i < parameter_count; i++) {
        call->parameters[i] = parameters[i];
    }
    capture->paused++;
    const ls_status status = kernel(stream, y, operands, parameters);
    capture->paused--;
    return status;
}

/* ---- calls of the record ----------------------------------------------------------------------------------------- */

const ls_captured_map *ls_captured_map_of(const ls_captured_call *call) {
    return call->run == replay_map ? call->arguments : NULL;
}

ls_gemm *ls_captured_gemm(const ls_captured_call *call) {
    return call->run == replay_gemm ? (ls_gemm *)((const struct call_gemm *)call->arguments)->gemm : NULL;
}

double *ls_capture_number(const ls_capture *capture) {
    const ls_captured_call *call = &capture->calls[capture->call_count - 1];
    return call->run == replay_fill ? &((struct call_fill *)call->arguments)->value
                                    : ((ls_captured_map *)call->arguments)->parameters;
}

/* ---- kernels that are not recorded ------------------------------------------------------------------------------- */

static const char raw_memory[] =
    "computes with the memory of an optimizer, an average or a norm: call it after ls_step_replay";

#define REFUSE(type, why)                                                                                              \
    static ls_status record_##type(ls_##type##_kernel *kernel, const char *kernel_name, LS_PARAMETERS_##type) {        \
        ls_capture *capture = recording();                                                                             \
        if (capture != NULL) {                                                                                         \
            ls_capture_refuse(capture, kernel_name, why);                                                              \
        }                                                                                                              \
        return kernel(ARGUMENTS(LS_ARGUMENTS_##type));                                                                 \
    }
REFUSE(dot, raw_memory)
REFUSE(measure, raw_memory)
REFUSE(unscale, raw_memory)
REFUSE(sgd, raw_memory)
REFUSE(adam, raw_memory)
REFUSE(rmsprop, raw_memory)
REFUSE(adagrad, raw_memory)
REFUSE(adadelta, raw_memory)
REFUSE(lion, raw_memory)
REFUSE(lamb, raw_memory)
REFUSE(muon, raw_memory)

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define KERNEL_OF_MAP(name, operand_count, parameter_count)                                                            \
    static ls_status capture_##name(LS_PARAMETERS_map) {                                                               \
        return record_map(ls_cpu_kernels.name, operand_count, parameter_count, stream, y, operands, parameters);       \
    }
#define KERNEL(name, type)                                                                                             \
    static ls_status capture_##name(LS_PARAMETERS_##type) {                                                            \
        return record_##type(ls_cpu_kernels.name, #name, ARGUMENTS(LS_ARGUMENTS_##type));                              \
    }
LS_MAPS(KERNEL_OF_MAP)
LS_OTHER_KERNELS(KERNEL)

#define ROW_OF_MAP(name, operand_count, parameter_count) .name = capture_##name,
#define ROW(name, type)                                  .name = capture_##name,
const ls_kernels ls_capture_kernels = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};
