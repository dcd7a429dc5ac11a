/*
 * The kernels of the shadow devices. Each copies its arguments into a job, which later calls the real kernel: the
 * CPU's, or the kernel in device/cuda, compiled for the host.
 */
#include "tensor/device/cpu/cpu.h"
#include "tests/shadow/shadow.h"

/* ---- tensors of a job -------------------------------------------------------------------------------------------- */

/* A storage on device "cpu": kernels may check the device of a tensor's storage. */
static ls_storage on_host = {.device = &ls_cpu, .whole = &on_host};

static void inside_tensor(ls_tensor *copy, const ls_tensor *tensor) {
    *copy = *tensor;
    copy->data = copy->count > 0 ? shadow_inside(tensor->data) : NULL;
    copy->storage = &on_host;
    copy->node = NULL;
    copy->leaf = NULL;
}

static void add(shadow_job *made, const ls_tensor *tensor) {
    if (made->tensors == SHADOW_TENSORS) {
        shadow_die("too many tensors");
    }
    made->there[made->tensors] = tensor != NULL;
    if (tensor != NULL) {
        inside_tensor(&made->tensor[made->tensors], tensor);
    }
    made->tensors++;
}

static ls_tensor *at(shadow_job *made, int i) {
    return made->there[i] ? &made->tensor[i] : NULL;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/*
 * KIND(type, pack, call): `pack` stores the arguments of a kernel type in a job, and `call` later calls the CPU's
 * kernel with them. NAMES_type (shadow.h) lists the names of the parameters of the type, as arguments of a call.
 */
#define KIND(type, pack, ...)                                                                                          \
    static ls_status run_##type(shadow_job *made) {                                                                    \
        return ((ls_##type##_kernel *)made->kernel)(NULL, __VA_ARGS__);                                                \
    }                                                                                                                  \
    static ls_status ask_##type(ls_##type##_kernel *kernel, LS_PARAMETERS_##type) {                                    \
        shadow_job *made = shadow_begin((shadow_kernel *)kernel, run_##type);                                          \
        pack return shadow_push(stream, made);                                                                         \
    }
#define T(i) at(made, i)

/* clang-format off */
KIND(pair, add(made, y); add(made, x);, T(0), T(1))
KIND(fill, add(made, y); made->number[0] = value;, T(0), made->number[0])
KIND(count_up, add(made, y);, T(0))
KIND(random, add(made, y); made->random = state; made->number[0] = a; made->number[1] = b;,
     T(0), made->random, made->number[0], made->number[1])
KIND(random_integer, add(made, y); made->random = state; made->integer[0] = low; made->integer[1] = high;,
     T(0), made->random, made->integer[0], made->integer[1])
KIND(dropout, add(made, y); add(made, x); made->random = state; made->integer[0] = (int64_t)first; made->number[0] = p;,
     T(0), T(1), made->random, (uint64_t)made->integer[0], made->number[0])
KIND(along, add(made, y); add(made, x); made->integer[0] = axis;, T(0), T(1), (int)made->integer[0])
KIND(along_backward, add(made, dx); add(made, dy); add(made, y); made->integer[0] = axis;,
     T(0), T(1), T(2), (int)made->integer[0])
KIND(directed, add(made, y); add(made, x); made->integer[0] = axis; made->integer[1] = reverse;,
     T(0), T(1), (int)made->integer[0], made->integer[1] != 0)
KIND(index, add(made, y); add(made, x); add(made, index); made->integer[0] = axis;,
     T(0), T(1), (int)made->integer[0], T(2))
KIND(gemm, made->gemm = *gemm; made->gemm.a = shadow_inside(gemm->a); made->gemm.b = shadow_inside(gemm->b);
     made->gemm.c = shadow_inside(gemm->c); made->gemm.bias = shadow_inside(gemm->bias);, &made->gemm)
KIND(layer_norm, add(made, y); add(made, mean); add(made, rstd); add(made, x); add(made, weight); add(made, bias);
     made->integer[0] = width; made->number[0] = epsilon;,
     T(0), T(1), T(2), T(3), made->integer[0], T(4), T(5), made->number[0])
KIND(layer_norm_backward, add(made, dx); add(made, d_weight); add(made, d_bias); add(made, g); add(made, x);
     add(made, weight); add(made, mean); add(made, rstd); made->integer[0] = width;,
     T(0), T(1), T(2), T(3), T(4), made->integer[0], T(5), T(6), T(7))
KIND(batch_norm_statistics, add(made, mean); add(made, variance); add(made, x);, T(0), T(1), T(2))
KIND(batch_norm, add(made, y); add(made, x); add(made, mean); add(made, rstd); add(made, weight); add(made, bias);,
     T(0), T(1), T(2), T(3), T(4), T(5))
KIND(batch_norm_backward, add(made, dx); add(made, d_weight); add(made, d_bias); add(made, g); add(made, x);
     add(made, mean); add(made, rstd); add(made, weight); made->integer[0] = training;,
     T(0), T(1), T(2), T(3), T(4), T(5), T(6), T(7), made->integer[0] != 0)
KIND(batch_norm_sums, add(made, sums); add(made, g); add(made, x); add(made, mean);, T(0), T(1), T(2), T(3))
KIND(batch_norm_dx, add(made, dx); add(made, g); add(made, x); add(made, mean); add(made, rstd); add(made, weight);
     add(made, of_g); add(made, of_product);, T(0), T(1), T(2), T(3), T(4), T(5), T(6), T(7))
KIND(conv, add(made, y); add(made, x); add(made, weight); add(made, bias); made->window = *window;
     made->integer[0] = rounds_to;, T(0), T(1), T(2), T(3), &made->window, (ls_dtype)made->integer[0])
KIND(conv_weight, add(made, d_weight); add(made, large); add(made, small); made->window = *window;
     made->integer[0] = rounds_to;, T(0), T(1), T(2), &made->window, (ls_dtype)made->integer[0])
KIND(max_pool, add(made, y); add(made, index); add(made, x); made->window = *window;, T(0), T(1), T(2), &made->window)
KIND(pool, add(made, y); add(made, x); made->window = *window;, T(0), T(1), &made->window)
KIND(resize, add(made, y); add(made, x); made->integer[0] = axis; made->integer[1] = linear;
     made->integer[2] = align_corners;,
     T(0), T(1), (int)made->integer[0], made->integer[1] != 0, made->integer[2] != 0)
KIND(rotary, add(made, y); add(made, x); add(made, cosine); add(made, sine); made->integer[0] = halves;
     made->integer[1] = backward; made->integer[2] = accumulate;,
     T(0), T(1), T(2), T(3), made->integer[0] != 0, made->integer[1] != 0, made->integer[2] != 0)
KIND(attention, add(made, y); add(made, log_sum); add(made, q); add(made, k); add(made, v); add(made, mask);
     add(made, bias); made->number[0] = scale; made->integer[0] = causal; made->integer[1] = rounds_to;,
     T(0), T(1), T(2), T(3), T(4), T(5), T(6), made->number[0], made->integer[0] != 0, (ls_dtype)made->integer[1])
KIND(attention_backward, add(made, dq); add(made, dk); add(made, dv); add(made, g); add(made, y); add(made, log_sum);
     add(made, q); add(made, k); add(made, v); add(made, mask); add(made, bias); made->number[0] = scale; made->integer[0] = causal;
     made->integer[1] = rounds_to;,
     T(0), T(1), T(2), T(3), T(4), T(5), T(6), T(7), T(8), T(9), T(10), made->number[0],
     made->integer[0] != 0, (ls_dtype)made->integer[1])
KIND(axpy, made->integer[0] = dtype; made->integer[1] = count; made->number[0] = a; made->from = shadow_inside(x);
     made->to = shadow_inside(y);, (ls_dtype)made->integer[0], made->integer[1], made->number[0], made->from, made->to)
KIND(scale, made->integer[0] = dtype; made->integer[1] = count; made->number[0] = a; made->to = shadow_inside(y);,
     (ls_dtype)made->integer[0], made->integer[1], made->number[0], made->to)
KIND(unscale, made->integer[0] = dtype; made->integer[1] = count; made->number[0] = a; made->to = shadow_inside(y);
     made->other = shadow_inside(found);,
     (ls_dtype)made->integer[0], made->integer[1], made->number[0], made->to, (double *)(uintptr_t)made->other)
KIND(dot, made->integer[0] = dtype; made->integer[1] = count; made->from = shadow_inside(x); made->other = shadow_inside(y);
     made->to = shadow_inside(sum);, (ls_dtype)made->integer[0], made->integer[1], made->from, made->other, made->to)
KIND(measure, made->integer[0] = dtype; made->integer[1] = count; made->from = shadow_inside(x); made->to = shadow_inside(result);,
     (ls_dtype)made->integer[0], made->integer[1], made->from, made->to)
KIND(sgd, made->sgd = *step; made->sgd.parameter = shadow_inside(step->parameter); made->sgd.gradient = shadow_inside(step->gradient);
     made->sgd.momentum_buffer = shadow_inside(step->momentum_buffer);, &made->sgd)
KIND(adam, made->adam = *step; made->adam.parameter = shadow_inside(step->parameter);
     made->adam.gradient = shadow_inside(step->gradient); made->adam.first_moment = shadow_inside(step->first_moment);
     made->adam.second_moment = shadow_inside(step->second_moment);
     made->adam.largest_second_moment = shadow_inside(step->largest_second_moment);, &made->adam)
KIND(rmsprop, made->rmsprop = *step; made->rmsprop.parameter = shadow_inside(step->parameter);
     made->rmsprop.gradient = shadow_inside(step->gradient); made->rmsprop.square_average = shadow_inside(step->square_average);
     made->rmsprop.gradient_average = shadow_inside(step->gradient_average);
     made->rmsprop.momentum_buffer = shadow_inside(step->momentum_buffer);, &made->rmsprop)
KIND(adagrad, made->adagrad = *step; made->adagrad.parameter = shadow_inside(step->parameter);
     made->adagrad.gradient = shadow_inside(step->gradient); made->adagrad.sum = shadow_inside(step->sum);, &made->adagrad)
KIND(adadelta, made->adadelta = *step;
     made->adadelta.parameter = shadow_inside(step->parameter);
     made->adadelta.gradient = shadow_inside(step->gradient);
     made->adadelta.square_average = shadow_inside(step->square_average);
     made->adadelta.change_average = shadow_inside(step->change_average);, &made->adadelta)
KIND(lion, made->lion = *step;
     made->lion.parameter = shadow_inside(step->parameter);
     made->lion.gradient = shadow_inside(step->gradient);
     made->lion.average = shadow_inside(step->average);, &made->lion)
KIND(lamb, made->lamb = *step;
     made->lamb.parameter = shadow_inside(step->parameter);
     made->lamb.gradient = shadow_inside(step->gradient);
     made->lamb.first_moment = shadow_inside(step->first_moment);
     made->lamb.second_moment = shadow_inside(step->second_moment);, &made->lamb)
KIND(muon, made->muon = *step;
     made->muon.parameter = shadow_inside(step->parameter);
     made->muon.gradient = shadow_inside(step->gradient);
     made->muon.momentum_buffer = shadow_inside(step->momentum_buffer);
     made->muon.work = shadow_inside(step->work);, &made->muon)

KIND(cell, made->cell = *cell; add(made, cell->x); add(made, cell->recurrent); add(made, cell->h_before);
     add(made, cell->c_before); add(made, cell->h); add(made, cell->c); add(made, cell->kept); add(made, cell->lengths);,
     (made->cell.x = T(0), made->cell.recurrent = T(1), made->cell.h_before = T(2), made->cell.c_before = T(3),
      made->cell.h = T(4), made->cell.c = T(5), made->cell.kept = T(6), made->cell.lengths = T(7), &made->cell))
KIND(cell_backward, made->cell_gradient = *cell; add(made, cell->d_x); add(made, cell->d_recurrent); add(made, cell->dh);
     add(made, cell->dc); add(made, cell->g); add(made, cell->kept); add(made, cell->before); add(made, cell->after);
     add(made, cell->lengths);,
     (made->cell_gradient.d_x = T(0), made->cell_gradient.d_recurrent = T(1), made->cell_gradient.dh = T(2),
      made->cell_gradient.dc = T(3), made->cell_gradient.g = T(4), made->cell_gradient.kept = T(5),
      made->cell_gradient.before = T(6), made->cell_gradient.after = T(7), made->cell_gradient.lengths = T(8),
      &made->cell_gradient))

/* Adds the tensors of a class loss, beginning at index `first`. */
static void add_loss(shadow_job *made, const ls_class_loss *loss) {
    made->integer[3] = made->tensors;
    made->loss = *loss;
    add(made, loss->target);
    add(made, loss->weight);
}
static const ls_class_loss *loss_of(shadow_job *made) {
    made->loss.target = T((int)made->integer[3]);
    made->loss.weight = T((int)made->integer[3] + 1);
    return &made->loss;
}
KIND(nll, add(made, element); add(made, row_weight); add(made, log_probability); add_loss(made, loss);,
     T(0), T(1), T(2), loss_of(made))
KIND(class_loss_backward, add(made, d); add(made, g); add(made, log_probability); made->number[0] = scale;
     add_loss(made, loss);, T(0), T(1), made->number[0], T(2), loss_of(made))
/* clang-format on */

static ls_status run_map(shadow_job *made) {
    const ls_tensor *operands[3] = {made->tensors > 1 ? T(1) : NULL, made->tensors > 2 ? T(2) : NULL,
                                    made->tensors > 3 ? T(3) : NULL};
    return ((ls_map_kernel *)made->kernel)(NULL, T(0), operands, made->number);
}

static ls_status ask_map(ls_map_kernel *kernel, int operand_count, int parameter_count, LS_PARAMETERS_map) {
    shadow_job *made = shadow_begin((shadow_kernel *)kernel, run_map);
    add(made, y);
    for (int i = 0; i < operand_count; i++) {
        add(made, operands[i]);
    }
    for (int i = 0; i < parameter_count; i++) {
        made->number[i] = parameters[i];
    }
    return shadow_push(stream, made);
}

#define ASK_MAP(device, table, name, operand_count, parameter_count)                                                   \
    static ls_status device##_##name(LS_PARAMETERS_map) {                                                              \
        return ask_map(table.name, operand_count, parameter_count, stream, y, operands, parameters);                   \
    }
#define ASK(device, table, name, type)                                                                                 \
    static ls_status device##_##name(LS_PARAMETERS_##type) {                                                           \
        return ask_##type(table.name, stream, NAMES_##type);                                                           \
    }

#define SHADOW_MAP(name, operand_count, parameter_count)                                                               \
    ASK_MAP(shadow, ls_cpu_kernels, name, operand_count, parameter_count)
#define SHADOW(name, type) ASK(shadow, ls_cpu_kernels, name, type)
LS_MAPS(SHADOW_MAP)
LS_OTHER_KERNELS(SHADOW)

#define ROW_OF_MAP(name, operand_count, parameter_count) .name = shadow_##name,
#define ROW(name, type)                                  .name = shadow_##name,
const ls_kernels shadow_kernels = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};
#undef ROW_OF_MAP
#undef ROW

/* The same kernels, but from device/cuda, compiled for the host. */
static ls_kernels for_gpu;
#define GPU_MAP(name, operand_count, parameter_count) ASK_MAP(gpu, for_gpu, name, operand_count, parameter_count)
#define GPU(name, type)                               ASK(gpu, for_gpu, name, type)
LS_MAPS(GPU_MAP)
LS_OTHER_KERNELS(GPU)

#define ROW_OF_MAP(name, operand_count, parameter_count) .name = gpu_##name,
#define ROW(name, type)                                  .name = gpu_##name,
static const ls_kernels gpu_kernels = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};

extern const ls_kernels *ls_cuda_kernels(void) __attribute__((weak));

const ls_kernels *shadow_gpu_kernels(void) {
    if (ls_cuda_kernels == NULL) {
        return NULL;
    }
    for_gpu = *ls_cuda_kernels();
    ls_kernels_complete(&for_gpu);
    return &gpu_kernels;
}
