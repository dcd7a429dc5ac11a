/* Reductions of many numbers to one number, in parts, with one team per part. The lengths of the parts depend only
 * on the count. */
#ifndef LS_TENSOR_DEVICE_CUDA_PARTS_CUH
#define LS_TENSOR_DEVICE_CUDA_PARTS_CUH

#include "tensor/device/cuda/four.cuh"

namespace ls {

struct plus {
    LS_BODY double operator()(double a, double b) const {
        return a + b;
    }
};

/* NaN wins. */
struct larger {
    LS_BODY double operator()(double a, double b) const {
        return a > b || a != a ? a : b;
    }
};

/* Each part has at least 8192 numbers, and there are at most as many parts as can run at once. */
struct parts {
    int64_t total, length, count;

    explicit parts(int64_t total) : total(total), length(8192), count(0) {
        const int64_t most = 1024;
        if (total > most * length) {
            length = ((total + most - 1) / most + 1023) / 1024 * 1024;
        }
        count = (total + length - 1) / length;
    }
    LS_BODY int64_t begin(int64_t part) const {
        return part * length;
    }
    LS_BODY int64_t end(int64_t part) const {
        return (part + 1) * length < total ? (part + 1) * length : total;
    }
};

/* Joins a member's numbers in [begin, end), four at a time, so that the reads overlap. `term` must accept 0. */
template <class Join, class Term>
LS_BODY double join_stretch(const team &t, int64_t begin, int64_t end, Join join, Term term) {
    double four[4] = {0, 0, 0, 0};
    int64_t i = begin + t.lane;
    for (; i + 3 * t.size < end; i += 4 * t.size) {
        for (int l = 0; l < 4; l++) {
            four[l] = join(four[l], term(i + l * t.size));
        }
    }
    for (; i < end; i += t.size) {
        four[0] = join(four[0], term(i));
    }
    return t.reduce(join(join(four[0], four[1]), join(four[2], four[3])), join);
}

/* Computes result = the join of term(0), term(1), ... for `count` terms, starting from 0. */
template <class Join, class Term>
ls_status join_all(ls_stream *stream, const char *name, int64_t count, Join join, double *result, Term term) {
    const parts part(count);
    const int64_t many = part.count;
    if (many <= 1) {
        return teams<256>(stream, name, 1, [=] LS_BODY(team & t, int64_t) {
            const double all = join_stretch(t, 0, count, join, term);
            if (t.lane == 0) {
                *result = all;
            }
        });
    }
    const scratch memory(stream, (size_t)many * sizeof(double));
    LS_TRY(memory.status(name));
    double *const of_part = memory.as<double>();
    LS_TRY(teams<256>(stream, name, many, [=] LS_BODY(team & t, int64_t p) {
        const double all = join_stretch(t, part.begin(p), part.end(p), join, term);
        if (t.lane == 0) {
            of_part[p] = all;
        }
    }));
    return teams<256>(stream, name, 1, [=] LS_BODY(team & t, int64_t) {
        const double all = join_stretch(t, 0, many, join, [=](int64_t i) { return of_part[i]; });
        if (t.lane == 0) {
            *result = all;
        }
    });
}

} // namespace ls

#endif
