/* Cells of recurrent layers and their gradients: one thread per unit of each sequence computes all gates of the
 * unit. */
#include "tensor/device/cuda/scalar.cuh"

namespace {

/* ls_cell with GPU pointers; missing tensors are NULL. */
template <class T> struct cell_data {
    const T *x, *recurrent, *h_before, *c_before;
    T *h, *c, *kept;
    const int64_t *lengths;
    int64_t step, rows, width;
    bool relu;

    explicit cell_data(const ls_cell *cell)
        : x(ls::data<T>(cell->x)), recurrent(ls::data<T>(cell->recurrent)), h_before(ls::data<T>(cell->h_before)),
          c_before(ls::data<T>(cell->c_before)), h(ls::data<T>(cell->h)), c(ls::data<T>(cell->c)),
          kept(ls::data<T>(cell->kept)), lengths(ls::data<int64_t>(cell->lengths)), step(cell->step),
          rows(cell->h->size[0]), width(cell->h->size[1]), relu(cell->relu) {
    }
    /* If sequence i has ended, copies the state of unit `at` and returns true. */
    LS_BODY bool stays(int64_t i, int64_t at) const {
        if (lengths == nullptr || step < lengths[i]) {
            return false;
        }
        h[at] = h_before[at];
        if (c != nullptr) {
            c[at] = c_before[at];
        }
        return true;
    }
    LS_BODY void keep(int64_t i, int64_t k, T a, T b, T c, T d) const {
        if (kept != nullptr) {
            T *const to = kept + i * 4 * width + k;
            to[0] = a;
            to[width] = b;
            to[2 * width] = c;
            to[3 * width] = d;
        }
    }
};

/* ls_cell_gradient with GPU pointers. */
template <class T> struct gradient_data {
    T *d_x, *d_recurrent, *dh, *dc;
    const T *g, *kept, *before, *after;
    const int64_t *lengths;
    int64_t step, rows, width, gates;
    bool relu;

    explicit gradient_data(const ls_cell_gradient *cell)
        : d_x(ls::data<T>(cell->d_x)), d_recurrent(ls::data<T>(cell->d_recurrent)), dh(ls::data<T>(cell->dh)),
          dc(ls::data<T>(cell->dc)), g(ls::data<T>(cell->g)), kept(ls::data<T>(cell->kept)),
          before(ls::data<T>(cell->before)), after(ls::data<T>(cell->after)), lengths(ls::data<int64_t>(cell->lengths)),
          step(cell->step), rows(cell->dh->size[0]), width(cell->dh->size[1]), gates(cell->d_x->size[1]),
          relu(cell->relu) {
    }
    /*
     * If sequence i has ended, passes the gradient of unit k through, sets the gradients of its gates to zero, and
     * returns true.
     */
    LS_BODY bool stays(int64_t i, int64_t k) const {
        if (lengths == nullptr || step < lengths[i]) {
            return false;
        }
        for (int64_t at = i * gates + k; at < (i + 1) * gates; at += width) {
            d_x[at] = 0;
            if (d_recurrent != nullptr) {
                d_recurrent[at] = 0;
            }
        }
        dh[i * width + k] += g[i * width + k];
        return true;
    }
};

template <class T> ls_status rnn_cell(ls_stream *stream, const ls_cell *cell) {
    const cell_data<T> d(cell);
    return ls::each(stream, "rnn_cell", d.rows * d.width, [=] LS_BODY(int64_t at) {
        if (d.stays(ls::quotient(at, d.width), at)) {
            return;
        }
        const T a = d.x[at] + d.recurrent[at];
        d.h[at] = d.relu ? (a < 0 ? 0 : a) /* NaN stays */ : ls::tanh_of(a);
    });
}

template <class T> ls_status rnn_cell_backward(ls_stream *stream, const ls_cell_gradient *cell) {
    const gradient_data<T> d(cell);
    return ls::each(stream, "rnn_cell_backward", d.rows * d.width, [=] LS_BODY(int64_t at) {
        const int64_t i = ls::quotient(at, d.width);
        if (d.stays(i, at - i * d.width)) {
            return;
        }
        const T h = d.after[at], dh = d.dh[at] + d.g[at];
        d.d_x[at] = d.relu ? (h <= 0 ? 0 : dh) /* also for NaN */ : dh * (1 - h * h);
        d.dh[at] = 0;
    });
}

template <class T> ls_status lstm_cell(ls_stream *stream, const ls_cell *cell) {
    const cell_data<T> d(cell);
    return ls::each(stream, "lstm_cell", d.rows * d.width, [=] LS_BODY(int64_t at) {
        const int64_t i = ls::quotient(at, d.width), k = at - i * d.width, width = d.width;
        if (d.stays(i, at)) {
            return;
        }
        const T *const x = d.x + i * 4 * width + k, *const recurrent = d.recurrent + i * 4 * width + k;
        const T in = ls::sigmoid_of(x[0] + recurrent[0]);
        const T forget = ls::sigmoid_of(x[width] + recurrent[width]);
        const T candidate = ls::tanh_of(x[2 * width] + recurrent[2 * width]);
        const T out = ls::sigmoid_of(x[3 * width] + recurrent[3 * width]);
        const T c = forget * d.c_before[at] + in * candidate;
        d.c[at] = c;
        d.h[at] = out * ls::tanh_of(c);
        d.keep(i, k, in, forget, candidate, out);
    });
}

template <class T> ls_status lstm_cell_backward(ls_stream *stream, const ls_cell_gradient *cell) {
    const gradient_data<T> d(cell);
    return ls::each(stream, "lstm_cell_backward", d.rows * d.width, [=] LS_BODY(int64_t at) {
        const int64_t i = ls::quotient(at, d.width), k = at - i * d.width, width = d.width;
        if (d.stays(i, k)) {
            return;
        }
        const T *const kept = d.kept + i * 4 * width + k;
        T *const d_x = d.d_x + i * 4 * width + k;
        const T in = kept[0], forget = kept[width], candidate = kept[2 * width], out = kept[3 * width];
        const T squashed = ls::tanh_of(d.after[at]), dh = d.dh[at] + d.g[at];
        const T d_cell = d.dc[at] + dh * out * (1 - squashed * squashed);
        d_x[0] = d_cell * candidate * in * (1 - in);
        d_x[width] = d_cell * d.before[at] * forget * (1 - forget);
        d_x[2 * width] = d_cell * in * (1 - candidate * candidate);
        d_x[3 * width] = dh * squashed * out * (1 - out);
        d.dc[at] = d_cell * forget;
        d.dh[at] = 0;
    });
}

template <class T> ls_status gru_cell(ls_stream *stream, const ls_cell *cell) {
    const cell_data<T> d(cell);
    return ls::each(stream, "gru_cell", d.rows * d.width, [=] LS_BODY(int64_t at) {
        const int64_t i = ls::quotient(at, d.width), k = at - i * d.width, width = d.width;
        if (d.stays(i, at)) {
            return;
        }
        const T *const x = d.x + i * 3 * width + k, *const recurrent = d.recurrent + i * 3 * width + k;
        const T reset = ls::sigmoid_of(x[0] + recurrent[0]);
        const T update = ls::sigmoid_of(x[width] + recurrent[width]);
        const T candidate = ls::tanh_of(x[2 * width] + reset * recurrent[2 * width]);
        d.h[at] = candidate + update * (d.h_before[at] - candidate);
        d.keep(i, k, reset, update, candidate, recurrent[2 * width]);
    });
}

template <class T> ls_status gru_cell_backward(ls_stream *stream, const ls_cell_gradient *cell) {
    const gradient_data<T> d(cell);
    return ls::each(stream, "gru_cell_backward", d.rows * d.width, [=] LS_BODY(int64_t at) {
        const int64_t i = ls::quotient(at, d.width), k = at - i * d.width, width = d.width;
        if (d.stays(i, k)) {
            return;
        }
        const T *const kept = d.kept + i * 4 * width + k;
        T *const d_x = d.d_x + i * 3 * width + k, *const d_recurrent = d.d_recurrent + i * 3 * width + k;
        const T reset = kept[0], update = kept[width], candidate = kept[2 * width];
        const T dh = d.dh[at] + d.g[at];
        const T d_candidate = dh * (1 - update) * (1 - candidate * candidate);
        d_x[0] = d_recurrent[0] = d_candidate * kept[3 * width] * reset * (1 - reset);
        d_x[width] = d_recurrent[width] = dh * (d.before[at] - candidate) * update * (1 - update);
        d_x[2 * width] = d_candidate;
        d_recurrent[2 * width] = d_candidate * reset;
        d.dh[at] = dh * update;
    });
}

/* Checks the lengths once for all steps, at step 0, which every pass over a sequence includes. */
ls_status check_lengths(ls_stream *stream, const char *name, const ls_cell *cell) {
    if (cell->lengths == nullptr || cell->step != 0) {
        return LS_OK;
    }
    return ls_cuda_check_numbers(stream, LS_CUDA_CHECK_LENGTH, name, ls::data<int64_t>(cell->lengths),
                                 cell->lengths->count, cell->steps + 1, 0, nullptr);
}

} // namespace

#define CELL(name)                                                                                                     \
    ls_status ls_cuda_##name(LS_PARAMETERS_cell) {                                                                     \
        LS_TRY(check_lengths(stream, #name, cell));                                                                    \
        return LS_OF_FLOATS(cell->x->dtype, name, stream, cell);                                                       \
    }                                                                                                                  \
    ls_status ls_cuda_##name##_backward(LS_PARAMETERS_cell_backward) {                                                 \
        return LS_OF_FLOATS(cell->d_x->dtype, name##_backward, stream, cell);                                          \
    }

CELL(rnn_cell)
CELL(lstm_cell)
CELL(gru_cell)
