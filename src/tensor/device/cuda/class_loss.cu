/*
 * Losses of log-probabilities for class indices, with the formulas of device/cpu/class_loss.c. An invalid target
 * becomes an error of the stream, and its row is treated as ignored.
 */
#include "tensor/device/cuda/rows.cuh"

namespace {

/* The class of each row. */
struct targets {
    const int64_t *target;
    int64_t classes, ignored;
    bool ignore;

    explicit targets(const ls_class_loss *loss, int64_t classes)
        : target(ls::data<int64_t>(loss->target)), classes(classes), ignored(loss->ignore_index), ignore(loss->ignore) {
    }
    /* Returns -1 if the row is ignored. */
    LS_BODY int64_t of(int64_t row) const {
        const int64_t number = target[row];
        return (ignore && number == ignored) || number < 0 || number >= classes ? -1 : number;
    }
};

ls_status check_targets(ls_stream *stream, const char *name, const ls_class_loss *loss, const ls_tensor *rows) {
    return ls_cuda_check_numbers(stream, LS_CUDA_CHECK_TARGET, name, ls::data<int64_t>(loss->target), rows->size[0],
                                 rows->size[1], 0, loss->ignore ? &loss->ignore_index : nullptr);
}

template <class T> struct nll_row {
    targets target;
    T *element, *row_weight;
    const T *log_probability, *weight; /* weight may be NULL */
    T smoothing;

    template <class Team> LS_BODY void operator()(const Team &t, int64_t row) const {
        const int64_t classes = target.classes, own = target.of(row);
        const T *__restrict__ const from = log_probability + row * classes;
        const T *__restrict__ const scale = weight;
        T loss = 0, own_weight = 0;
        if (own >= 0) {
            own_weight = scale != nullptr ? scale[own] : 1;
            loss = -(1 - smoothing) * own_weight * from[own];
        }
        if (own >= 0 && smoothing > 0) {
            double sum[1];
            ls::row_sums<T>(t, classes, sum,
                            [=](int64_t c, T *part) { part[0] += scale != nullptr ? scale[c] * from[c] : from[c]; });
            loss -= smoothing / (T)classes * (T)sum[0];
        }
        if (t.lane == 0) {
            element[row] = loss;
            row_weight[row] = own_weight;
        }
    }
};

template <class T> ls_status nll(LS_PARAMETERS_nll) {
    const int64_t classes = log_probability->size[1];
    const bool whole_rows = loss->label_smoothing > 0;
    return ls::rows(stream, "nll", log_probability->size[0], whole_rows ? classes : 1,
                    nll_row<T>{targets(loss, classes), ls::data<T>(element), ls::data<T>(row_weight),
                               ls::data<T>(log_probability), ls::data<T>(loss->weight), (T)loss->label_smoothing});
}

/* Computes sum[0] = the sum of the class weights. */
template <class T> struct weights_sum {
    int64_t classes;
    const T *weight;
    T *sum;

    template <class Team> LS_BODY void operator()(const Team &t, int64_t) const {
        const T *const from = weight;
        double all[1];
        ls::row_sums<T>(t, classes, all, [=](int64_t c, T *part) { part[0] += from[c]; });
        if (t.lane == 0) {
            sum[0] = (T)all[0];
        }
    }
};

/*
 * Computes the gradient of one row: -factor q with respect to the log-probabilities, or factor (p sum(q) - q) with
 * respect to the logits.
 */
template <class T, bool LOGITS> struct class_gradient {
    targets target;
    T *dx;
    const T *g;
    int64_t g_step;
    T scale;
    const T *log_probability;
    const T *weight, *sum_of_weights; /* both may be NULL */
    T smoothing, hit, share;          /* q at the target and q elsewhere, before weighting */

    template <class Team> LS_BODY void operator()(const Team &t, int64_t row) const {
        const int64_t classes = target.classes, own = target.of(row);
        const T *__restrict__ const from = log_probability + row * classes;
        const T *__restrict__ const of_class = weight;
        T *__restrict__ const to = dx + row * classes;
        if (own < 0) {
            for (int64_t c = t.lane; c < classes; c += t.size) {
                to[c] = 0;
            }
            return;
        }
        const T factor = scale * g[row * g_step];
        const T at_target = of_class != nullptr ? hit * of_class[own] : hit;
        const T shares = of_class != nullptr ? share * sum_of_weights[0] : smoothing;
        const T total = factor * (shares + at_target), elsewhere = factor * share;
        for (int64_t c = t.lane; c < classes; c += t.size) {
            T value = LOGITS ? total * ls::exp_of(from[c]) : 0;
            if (elsewhere != 0) {
                value -= of_class != nullptr ? elsewhere * of_class[c] : elsewhere;
            }
            to[c] = c == own ? value - factor * at_target : value;
        }
    }
};

template <class T, bool LOGITS> ls_status gradient_of(LS_PARAMETERS_class_loss_backward) {
    const int64_t classes = log_probability->size[1];
    const T *const weight = ls::data<T>(loss->weight);
    const ls::scratch room(stream, sizeof(T));
    LS_TRY(room.status("class_loss_backward"));
    if (weight != nullptr) {
        LS_TRY(ls::rows(stream, "class_loss_backward", 1, classes, weights_sum<T>{classes, weight, room.as<T>()}));
    }
    const class_gradient<T, LOGITS> rows{targets(loss, classes),
                                         ls::data<T>(d),
                                         ls::data<T>(g),
                                         g->count == 1 ? 0 : 1,
                                         (T)scale,
                                         ls::data<T>(log_probability),
                                         weight,
                                         room.as<T>(),
                                         (T)loss->label_smoothing,
                                         (T)(1 - loss->label_smoothing),
                                         (T)(loss->label_smoothing / (double)classes)};
    return ls::rows(stream, "class_loss_backward", log_probability->size[0], classes, rows);
}

template <class T> ls_status nll_backward(LS_PARAMETERS_class_loss_backward) {
    return gradient_of<T, false>(stream, d, g, scale, log_probability, loss);
}

template <class T> ls_status cross_entropy_backward(LS_PARAMETERS_class_loss_backward) {
    return gradient_of<T, true>(stream, d, g, scale, log_probability, loss);
}

} // namespace

ls_status ls_cuda_nll(LS_PARAMETERS_nll) {
    LS_TRY(check_targets(stream, "nll", loss, log_probability));
    return LS_OF_FLOATS(log_probability->dtype, nll, stream, element, row_weight, log_probability, loss);
}

ls_status ls_cuda_nll_backward(LS_PARAMETERS_class_loss_backward) {
    LS_TRY(check_targets(stream, "nll_backward", loss, log_probability));
    return LS_OF_FLOATS(log_probability->dtype, nll_backward, stream, d, g, scale, log_probability, loss);
}

ls_status ls_cuda_cross_entropy_backward(LS_PARAMETERS_class_loss_backward) {
    LS_TRY(check_targets(stream, "cross_entropy_backward", loss, log_probability));
    return LS_OF_FLOATS(log_probability->dtype, cross_entropy_backward, stream, d, g, scale, log_probability, loss);
}
