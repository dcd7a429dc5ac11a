/*
 * Optimizer steps, each in one pass over parameters, gradients and state, with the formulas of
 * device/cpu/optimizer.inc. Values that are the same for all elements are computed first, in double precision.
 */
#include "tensor/device/cuda/parts.cuh"

namespace {

template <class T> ls_status sgd(ls_stream *stream, const ls_sgd_step *step) {
    const T rate = (T)step->learning_rate;
    const T decay = (T)step->weight_decay;
    const T momentum = (T)step->momentum;
    const T take = (T)(1 - step->dampening);
    const bool buffered = step->momentum_buffer != nullptr, first = step->first, nesterov = step->nesterov;
    const ls::arrays<T, 3> all = {
        {ls::numbers<T>(step->parameter), ls::numbers<T>(step->momentum_buffer), ls::numbers<T>(step->gradient)},
        step->count};
    return ls::each_four<3>(stream, "sgd", all, [=] LS_BODY(T(&v)[3]) {
        const T g = v[2] + decay * v[0];
        T change = g;
        if (buffered) {
            /* The first step does not use the content of the buffer, because it may be NaN. */
            v[1] = first ? g : momentum * v[1] + take * g;
            change = nesterov ? g + momentum * v[1] : v[1];
        }
        v[0] -= rate * change;
    });
}

template <class T> ls_status adam(ls_stream *stream, const ls_adam_step *step) {
    const T shrink = (T)(1 - step->parameter_decay);
    const T decay = (T)step->gradient_decay;
    const T beta1 = (T)step->beta1, rest1 = (T)(1 - step->beta1);
    const T beta2 = (T)step->beta2, rest2 = (T)(1 - step->beta2);
    const T rate = (T)step->rate;
    const T gradient_rate = (T)step->gradient_rate;
    const T root = (T)step->root;
    const T epsilon = (T)step->epsilon;
    const bool amsgrad = step->largest_second_moment != nullptr && gradient_rate == 0;
    const ls::arrays<T, 5> all = {
        {ls::numbers<T>(step->parameter), ls::numbers<T>(step->first_moment), ls::numbers<T>(step->second_moment),
         amsgrad ? ls::numbers<T>(step->largest_second_moment) : nullptr, ls::numbers<T>(step->gradient)},
        step->count};
    return ls::each_four<15>(stream, "adam", all, [=] LS_BODY(T(&v)[5]) {
        const T p = v[0] * shrink;
        const T g = v[4] + decay * p;
        v[1] = beta1 * v[1] + rest1 * g;
        v[2] = beta2 * v[2] + rest2 * (g * g);
        v[3] = v[2] > v[3] ? v[2] : v[3];
        const T size = std::sqrt(amsgrad ? v[3] : v[2]) * root + epsilon;
        v[0] = gradient_rate != 0 ? p - (gradient_rate * g + rate * v[1]) / size : p - rate * (v[1] / size);
    });
}

template <class T> ls_status rmsprop(ls_stream *stream, const ls_rmsprop_step *step) {
    const T rate = (T)step->learning_rate;
    const T alpha = (T)step->alpha, rest = (T)(1 - step->alpha);
    const T epsilon = (T)step->epsilon;
    const T momentum = (T)step->momentum;
    const T decay = (T)step->weight_decay;
    const bool centered = step->gradient_average != nullptr, buffered = step->momentum_buffer != nullptr;
    const ls::arrays<T, 5> all = {{ls::numbers<T>(step->parameter), ls::numbers<T>(step->square_average),
                                   ls::numbers<T>(step->gradient_average), ls::numbers<T>(step->momentum_buffer),
                                   ls::numbers<T>(step->gradient)},
                                  step->count};
    return ls::each_four<15>(stream, "rmsprop", all, [=] LS_BODY(T(&v)[5]) {
        const T g = v[4] + decay * v[0];
        v[1] = alpha * v[1] + rest * (g * g);
        T spread = v[1];
        if (centered) {
            v[2] = alpha * v[2] + rest * g;
            spread -= v[2] * v[2];
        }
        T change = g / (std::sqrt(spread) + epsilon);
        if (buffered) {
            v[3] = momentum * v[3] + change;
            change = v[3];
        }
        v[0] -= rate * change;
    });
}

template <class T> ls_status adagrad(ls_stream *stream, const ls_adagrad_step *step) {
    const T rate = (T)step->learning_rate;
    const T epsilon = (T)step->epsilon;
    const T decay = (T)step->weight_decay;
    const ls::arrays<T, 3> all = {
        {ls::numbers<T>(step->parameter), ls::numbers<T>(step->sum), ls::numbers<T>(step->gradient)}, step->count};
    return ls::each_four<3>(stream, "adagrad", all, [=] LS_BODY(T(&v)[3]) {
        const T g = v[2] + decay * v[0];
        v[1] += g * g;
        v[0] -= rate * (g / (std::sqrt(v[1]) + epsilon));
    });
}

template <class T> ls_status adadelta(ls_stream *stream, const ls_adadelta_step *step) {
    const T rate = (T)step->learning_rate;
    const T rho = (T)step->rho, rest = (T)(1 - step->rho);
    const T epsilon = (T)step->epsilon;
    const T decay = (T)step->weight_decay;
    const ls::arrays<T, 4> all = {{ls::numbers<T>(step->parameter), ls::numbers<T>(step->square_average),
                                   ls::numbers<T>(step->change_average), ls::numbers<T>(step->gradient)},
                                  step->count};
    return ls::each_four<7>(stream, "adadelta", all, [=] LS_BODY(T(&v)[4]) {
        const T g = v[3] + decay * v[0];
        v[1] = rho * v[1] + rest * (g * g);
        const T change = std::sqrt(v[2] + epsilon) / std::sqrt(v[1] + epsilon) * g;
        v[2] = rho * v[2] + rest * (change * change);
        v[0] -= rate * change;
    });
}

template <class T> ls_status lion(ls_stream *stream, const ls_lion_step *step) {
    const T shrink = (T)(1 - step->learning_rate * step->weight_decay);
    const T rate = (T)step->learning_rate;
    const T beta1 = (T)step->beta1, rest1 = (T)(1 - step->beta1);
    const T beta2 = (T)step->beta2, rest2 = (T)(1 - step->beta2);
    const ls::arrays<T, 3> all = {
        {ls::numbers<T>(step->parameter), ls::numbers<T>(step->average), ls::numbers<T>(step->gradient)}, step->count};
    return ls::each_four<3>(stream, "lion", all, [=] LS_BODY(T(&v)[3]) {
        const T direction = beta1 * v[1] + rest1 * v[2];
        const T sign = direction == direction ? (T)((direction > 0) - (direction < 0)) : direction; /* keeps NaN */
        v[1] = beta2 * v[1] + rest2 * v[2];
        v[0] = v[0] * shrink - rate * sign;
    });
}

/* ---- lamb: norms that are known only after a pass scale the step, so it is computed twice ------------------------ */

/* Computes the step before scaling, from an element and its moments. */
template <class T> struct lamb_change {
    T scale, root, epsilon, decay;

    explicit lamb_change(const ls_lamb_step *step)
        : scale((T)(1 / step->correction1)), root((T)(1 / sqrt(step->correction2))), epsilon((T)step->epsilon),
          decay((T)step->weight_decay) {
    }
    LS_BODY T operator()(T first, T second, T p) const {
        return scale * first / (std::sqrt(second) * root + epsilon) + decay * p;
    }
};

/*
 * Computes the moments, and for each part p the sum of squares of the parameters, square[p], and of the step,
 * square[parts + p].
 */
template <class T> ls_status lamb_moments(ls_stream *stream, const ls_lamb_step *step, double *square) {
    const lamb_change<T> change(step);
    const T beta1 = (T)step->beta1, rest1 = (T)(1 - step->beta1);
    const T beta2 = (T)step->beta2, rest2 = (T)(1 - step->beta2);
    const ls::arrays<T, 4> all = {{ls::numbers<T>(step->parameter), ls::numbers<T>(step->gradient),
                                   ls::numbers<T>(step->first_moment), ls::numbers<T>(step->second_moment)},
                                  step->count};
    const ls::parts part(step->count); /* all ends except the last are multiples of four */
    const bool aligned = all.aligned();
    return ls::teams<256>(stream, "lamb", part.count, [=] LS_BODY(ls::team & t, int64_t p) {
        double of_parameter = 0, of_change = 0;
        for (int64_t q = part.begin(p) / 4 + t.lane; 4 * q < part.end(p); q += t.size) {
            const bool whole = aligned && 4 * q + 4 <= all.count;
            T v[4][4];
            for (int k = 0; k < 4; k++) {
                ls::read_four(v[k], all.of[k], q, all.count, whole);
            }
            for (int l = 0; l < 4 && 4 * q + l < all.count; l++) {
                v[2][l] = beta1 * v[2][l] + rest1 * v[1][l];
                v[3][l] = beta2 * v[3][l] + rest2 * (v[1][l] * v[1][l]);
                const double d = (double)change(v[2][l], v[3][l], v[0][l]);
                of_parameter += (double)v[0][l] * (double)v[0][l];
                of_change += d * d;
            }
            ls::write_four(all.of[2], v[2], q, all.count, whole);
            ls::write_four(all.of[3], v[3], q, all.count, whole);
        }
        of_parameter = t.sum(of_parameter);
        of_change = t.sum(of_change);
        if (t.lane == 0) {
            square[p] = of_parameter;
            square[part.count + p] = of_change;
        }
    });
}

template <class T> ls_status lamb(ls_stream *stream, const ls_lamb_step *step) {
    const lamb_change<T> change(step);
    const double learning_rate = step->learning_rate;
    const int64_t many = ls::parts(step->count).count;
    const ls::scratch memory(stream, (size_t)(2 * many + 1) * sizeof(double));
    LS_TRY(memory.status("lamb"));
    double *const square = memory.as<double>(), *const rate = square + 2 * many;
    LS_TRY(lamb_moments<T>(stream, step, square));
    LS_TRY(ls::teams<256>(stream, "lamb", 1, [=] LS_BODY(ls::team & t, int64_t) {
        double of_parameter = 0, of_change = 0;
        for (int64_t p = t.lane; p < many; p += t.size) {
            of_parameter += square[p];
            of_change += square[many + p];
        }
        of_parameter = sqrt(t.sum(of_parameter));
        of_change = sqrt(t.sum(of_change));
        if (t.lane == 0) {
            *rate = learning_rate * (of_parameter > 0 && of_change > 0 ? of_parameter / of_change : 1);
        }
    }));
    const ls::arrays<T, 3> all = {
        {ls::numbers<T>(step->parameter), ls::numbers<T>(step->first_moment), ls::numbers<T>(step->second_moment)},
        step->count};
    return ls::each_four<1>(stream, "lamb", all,
                            [=] LS_BODY(T(&v)[3]) { v[0] -= (T)*rate * change(v[1], v[2], v[0]); });
}

/* ---- muon -------------------------------------------------------------------------------------------------------- */

/*
 * The direction X, stored row-major like the parameter. m is its smaller side. The iteration works on a matrix with m
 * rows: X, or X^T if X is tall, which gemm reads transposed.
 */
template <class T> struct muon_matrices {
    int64_t rows, columns, side;
    bool tall;
    T *x, *other, *gram, *square;

    explicit muon_matrices(const ls_muon_step *step)
        : rows(step->rows), columns(step->columns), side(rows < columns ? rows : columns), tall(rows > columns),
          x(ls::numbers<T>(step->work)), other(x + rows * columns), gram(other + rows * columns),
          square(gram + side * side) {
    }
};

template <class T> ls_gemm product(int64_t m, int64_t n, int64_t k, const T *a, const T *b, T *c) {
    ls_gemm gemm = {};
    gemm.dtype = gemm.compute = sizeof(T) == 4 ? LS_F32 : LS_F64;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = a;
    gemm.lda = k;
    gemm.b = b;
    gemm.ldb = n;
    gemm.c = c;
    gemm.ldc = n;
    return gemm;
}

/* Computes gram = X X^T, or X^T X if X is tall. */
template <class T> ls_status muon_gram(ls_stream *stream, const muon_matrices<T> &of) {
    ls_gemm gemm = product(of.side, of.side, of.tall ? of.rows : of.columns, of.x, of.x, of.gram);
    gemm.lda = gemm.ldb = of.columns;
    gemm.transpose_a = of.tall;
    gemm.transpose_b = !of.tall;
    return ls_cuda_gemm(stream, &gemm);
}

/* Computes y = a x + b y. */
template <class T> ls_status combine(ls_stream *stream, int64_t count, double a, const T *x, double b, T *y) {
    const T factor = (T)a, keep = (T)b;
    const ls::arrays<T, 2> both = {{y, const_cast<T *>(x)}, count};
    return ls::each_four<1>(stream, "muon", both, [=] LS_BODY(T(&v)[2]) { v[0] = factor * v[1] + keep * v[0]; });
}

/* Multiplies X by `square` from the left or right. `square` is symmetric except for rounding. */
template <class T> ls_status muon_iteration(ls_stream *stream, const ls_muon_step *step, const muon_matrices<T> &of) {
    const int64_t m = of.side;
    LS_TRY(muon_gram(stream, of));
    const ls_gemm squared = product<T>(m, m, m, of.gram, of.gram, of.square);
    LS_TRY(ls_cuda_gemm(stream, &squared));
    LS_TRY(combine<T>(stream, m * m, step->b, of.gram, step->c, of.square));
    const ls_gemm last = of.tall ? product<T>(of.rows, m, m, of.x, of.square, of.other)
                                 : product<T>(m, of.columns, m, of.square, of.x, of.other);
    LS_TRY(ls_cuda_gemm(stream, &last));
    return combine<T>(stream, of.rows * of.columns, 1, of.other, step->a, of.x);
}

template <class T> ls_status muon_direction(ls_stream *stream, const ls_muon_step *step, T *x) {
    const T momentum = (T)step->momentum, rest = (T)(1 - step->momentum);
    const bool nesterov = step->nesterov;
    const ls::arrays<T, 3> all = {{x, ls::numbers<T>(step->momentum_buffer), ls::numbers<T>(step->gradient)},
                                  step->rows * step->columns};
    return ls::each_four<3>(stream, "muon", all, [=] LS_BODY(T(&v)[3]) {
        v[1] = momentum * v[1] + rest * v[2];
        v[0] = nesterov ? momentum * v[1] + rest * v[2] : v[1];
    });
}

/* Divides x by its norm, or by epsilon if that is larger. */
template <class T> ls_status muon_normalise(ls_stream *stream, const ls_muon_step *step, T *x) {
    const int64_t count = step->rows * step->columns;
    const double least = step->epsilon;
    const ls::scratch memory(stream, sizeof(double));
    LS_TRY(memory.status("muon"));
    double *const square = memory.as<double>();
    const T *const read = x;
    LS_TRY(ls::join_all(stream, "muon", count, ls::plus(), square,
                        [=] LS_BODY(int64_t i) { return (double)read[i] * (double)read[i]; }));
    const ls::arrays<T, 1> one = {{x}, count};
    return ls::each_four<1>(stream, "muon", one,
                            [=] LS_BODY(T(&v)[1]) { v[0] *= (T)(1 / fmax(sqrt(*square), least)); });
}

template <class T> ls_status muon(ls_stream *stream, const ls_muon_step *step) {
    const int64_t count = step->rows * step->columns;
    if (count == 0) {
        return LS_OK;
    }
    const muon_matrices<T> of(step);
    LS_TRY(muon_direction<T>(stream, step, of.x));
    LS_TRY(muon_normalise<T>(stream, step, of.x));
    for (int turn = 0; turn < step->iterations; turn++) {
        LS_TRY(muon_iteration<T>(stream, step, of));
    }
    return combine<T>(stream, count, -step->rate, of.x, 1 - step->parameter_decay, ls::numbers<T>(step->parameter));
}

} // namespace

#define STEP(kernel)                                                                                                   \
    ls_status ls_cuda_##kernel(ls_stream *stream, const ls_##kernel##_step *step) {                                    \
        return LS_OF_FLOATS(step->dtype, kernel, stream, step);                                                        \
    }
STEP(sgd)
STEP(adam)
STEP(rmsprop)
STEP(adagrad)
STEP(adadelta)
STEP(lion)
STEP(lamb)
STEP(muon)
