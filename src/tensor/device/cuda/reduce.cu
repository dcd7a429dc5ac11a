/*
 * Reductions over any axes. After merging, each axis of x is either reduced or kept.
 * - If the innermost axis is kept, adjacent threads compute adjacent elements of y, each separately.
 * - If it is reduced, a group or a team computes one element together.
 * - If y has few elements, each is reduced in parts, and a second pass joins the parts. The number of parts depends
 *   only on sizes.
 * - A whole dense tensor is first halved repeatedly, as on the CPU. In f64, its sum is then bit-identical to the sum
 *   that a balanced tree of ranks computes from the sums of equal shares.
 */
#include <limits>

#include "tensor/device/cuda/groups.cuh"

namespace {

/*
 * Types of a reduction: elements in memory have type `in`; a few elements are joined in type `few`, and all elements in
 * type `all`. Bool is `truth` if values are converted to 0 or 1, and uint8_t if values are only selected.
 */
template <class T> struct wide { typedef uint64_t few, all; };
template <> struct wide<float> {
    typedef float few;
    typedef double all;
};
template <> struct wide<double> { typedef double few, all; };

template <class T> struct adding {
    typedef T in;
    typedef typename wide<T>::few few;
    typedef typename wide<T>::all all;
    static constexpr bool halves = std::is_floating_point<T>::value;
    static LS_HOST_DEVICE all start() {
        return 0;
    }
    template <class V> static LS_HOST_DEVICE V join(V a, V b) {
        return a + b;
    }
};

template <class T> struct multiplying {
    typedef T in;
    typedef typename wide<T>::all few, all;
    static constexpr bool halves = false;
    static LS_HOST_DEVICE all start() {
        return 1;
    }
    template <class V> static LS_HOST_DEVICE V join(V a, V b) {
        return a * b;
    }
};

/* NaN wins. */
template <class T> struct choosing_largest {
    typedef T in, few, all;
    static constexpr bool halves = false;
    static constexpr T first =
        std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
    static LS_HOST_DEVICE T start() {
        return first;
    }
    static LS_HOST_DEVICE T join(T a, T b) {
        return a > b || a != a ? a : b;
    }
};

template <class T> struct choosing_smallest {
    typedef T in, few, all;
    static constexpr bool halves = false;
    static constexpr T first =
        std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
    static LS_HOST_DEVICE T start() {
        return first;
    }
    static LS_HOST_DEVICE T join(T a, T b) {
        return a < b || a != a ? a : b;
    }
};

/* Axes of x and y. */
struct axes {
    int ndim;
    int64_t count;
    int64_t size[LS_MAX_DIMS];
    int64_t x_step[LS_MAX_DIMS], y_step[LS_MAX_DIMS];

    axes() : ndim(0), count(1) {
    }
    void append(int64_t axis_size, int64_t x, int64_t y) {
        size[ndim] = axis_size;
        x_step[ndim] = x;
        y_step[ndim] = y;
        ndim++;
        count *= axis_size;
    }
    LS_BODY int64_t at(int64_t i, const int64_t *step) const {
        int64_t offset = 0;
        for (int axis = ndim - 1; axis > 0; axis--) {
            const int64_t rest = ls::quotient(i, size[axis]);
            offset += (i - rest * size[axis]) * step[axis];
            i = rest;
        }
        return offset + i * step[0];
    }
};

constexpr int TREE = 8;
constexpr int64_t LEAF = 1024, PIECE = 4096, THREADS_WANTED = 1 << 17, MOST_PARTS = 1 << 14;

/* A reduction by OP of elements of type IN, which is OP::in, or OP::all for the parts of such a reduction. */
template <class OP, class IN> struct job {
    typedef typename OP::in T;
    typedef typename OP::all ALL;
    const IN *x;
    T *y;
    ALL *partial; /* if set, receives the values of the parts instead of y: part p of element o is at o * parts + p */
    int64_t parts;
    bool onto; /* joins the result with y */
    axes kept, reduced;

    LS_BODY void put(int64_t place, int64_t part, ALL value) const {
        if (partial != nullptr) {
            partial[place * parts + part] = value;
            return;
        }
        T *const to = y + kept.at(place, kept.y_step);
        *to = (T)(onto ? OP::join((ALL)*to, value) : value);
    }

    /*
     * Joins numbers begin, begin + step, ... before `end` of an element of y. Along one axis, loads TREE numbers at a
     * time. (With more axes, the parallel divisions take a minute to compile.)
     */
    LS_BODY ALL joined(int64_t place, int64_t begin, int64_t end, int64_t step) const {
        typedef typename std::conditional<std::is_same<IN, T>::value, typename OP::few, ALL>::type FEW;
        const IN *const from = x + kept.at(place, kept.x_step);
        ALL all = OP::start();
        int64_t r = begin;
        for (; reduced.ndim == 1 && r + (TREE - 1) * step < end; r += TREE * step) {
            FEW few[TREE];
            for (int k = 0; k < TREE; k++) {
                few[k] = (FEW)from[(r + k * step) * reduced.x_step[0]];
            }
            for (int half = TREE / 2; half > 0; half /= 2) {
                for (int k = 0; k < half; k++) {
                    few[k] = OP::join(few[k], few[k + half]);
                }
            }
            all = OP::join(all, (ALL)few[0]);
        }
        for (; r < end; r += step) {
            all = OP::join(all, (ALL)from[reduced.at(r, reduced.x_step)]);
        }
        return all;
    }
};

/* Part p of an element consists of PIECE consecutive numbers, or of all numbers if there is only one part. */
template <class OP, class IN> ls_status pass_by_rows(ls_stream *stream, const char *name, const job<OP, IN> &j) {
    const job<OP, IN> work = j;
    const int64_t width = j.reduced.count;
    if (width <= LEAF) {
        return ls::groups<32>(stream, name, j.kept.count, [=] LS_BODY(const ls::group<32> &g, int64_t place) {
            typedef typename OP::all ALL;
            const ALL own = work.joined(place, g.lane, width, g.size);
            const ALL all = g.reduce(own, [](ALL a, ALL b) { return OP::join(a, b); });
            if (g.lane == 0) {
                work.put(place, 0, all);
            }
        });
    }
    return ls::teams<256>(stream, name, j.kept.count * j.parts, [=] LS_BODY(ls::team & t, int64_t i) {
        typedef typename OP::all ALL;
        const int64_t place = ls::quotient(i, work.parts);
        const int64_t begin = (i - place * work.parts) * PIECE;
        const int64_t end = work.parts == 1 || width - begin < PIECE ? width : begin + PIECE;
        const ALL own = work.joined(place, begin + t.lane, end, t.size);
        const ALL all = t.reduce(own, [](ALL a, ALL b) { return OP::join(a, b); });
        if (t.lane == 0) {
            work.put(place, i - place * work.parts, all);
        }
    });
}

/*
 * Part p of an element consists of numbers p, p + parts, ..., so that adjacent threads read adjacent numbers, even if y
 * has few elements.
 */
template <class OP> ls_status pass_by_columns(ls_stream *stream, const char *name, const job<OP, typename OP::in> &j) {
    const job<OP, typename OP::in> work = j;
    const int64_t places = j.kept.count;
    return ls::each(stream, name, places * j.parts, [=] LS_BODY(int64_t i) {
        const int64_t part = ls::quotient(i, places);
        const int64_t place = i - part * places;
        work.put(place, part, work.joined(place, part, work.reduced.count, work.parts));
    });
}

/* Returns the job that joins the parts of `first`, which are in `partial`, into the result of `first`. */
template <class OP, class IN>
job<OP, typename OP::all> joining_parts(const job<OP, IN> &first, const typename OP::all *partial, int64_t parts) {
    job<OP, typename OP::all> last = {partial, first.y, first.partial, 1, first.onto, first.kept, axes()};
    last.reduced.append(parts, 1, 0);
    for (int64_t axis = first.kept.ndim - 1, step = parts; axis >= 0; axis--) {
        last.kept.x_step[axis] = step;
        step *= first.kept.size[axis];
    }
    return last;
}

template <class OP>
ls_status run(ls_stream *stream, const char *name, const job<OP, typename OP::in> &whole, bool by_columns) {
    typedef typename OP::all ALL;
    const int64_t places = whole.kept.count, width = whole.reduced.count;
    by_columns = by_columns || width <= 32;
    int64_t parts = width > 2 * PIECE ? (width + PIECE - 1) / PIECE : 1;
    if (by_columns) {
        parts = width / (2 * TREE) < THREADS_WANTED / places ? width / (2 * TREE) : THREADS_WANTED / places;
        parts = parts < 2 ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS;
    }
    job<OP, typename OP::in> first = whole;
    first.parts = parts;
    if (parts == 1) {
        return by_columns ? pass_by_columns<OP>(stream, name, first) : pass_by_rows(stream, name, first);
    }
    const ls::scratch partial(stream, (size_t)(places * parts) * sizeof(ALL));
    LS_TRY(partial.status(name));
    first.partial = partial.as<ALL>();
    LS_TRY(by_columns ? pass_by_columns<OP>(stream, name, first) : pass_by_rows(stream, name, first));
    return pass_by_rows(stream, name, joining_parts(whole, partial.as<ALL>(), parts));
}

/*
 * Joins n values, a power of two, as a binary tree of neighbors, with a single team that processes TREE values per
 * thread at a time. The memory after the values has room for n more values.
 */
template <class OP>
ls_status join_tree(ls_stream *stream, const char *name, int64_t n, typename OP::all *values, typename OP::in *y,
                    bool onto) {
    return ls::teams<1024>(stream, name, 1, [=] LS_BODY(ls::team & t, int64_t) {
        typedef typename OP::all ALL;
        ALL *from = values, *to = values + n;
        for (int64_t left = n; left > 1;) {
            const int64_t take = left < TREE ? 2 : TREE;
            left /= take;
            for (int64_t i = t.lane; i < left; i += t.size) {
                ALL value[TREE];
                for (int k = 0; k < TREE; k++) {
                    value[k] = k < take ? from[i * take + k] : OP::start();
                }
                for (int k = 0; k < TREE; k += 2) {
                    value[k / 2] = OP::join(value[k], value[k + 1]);
                }
                if (take == TREE) {
                    value[0] = OP::join(OP::join(value[0], value[1]), OP::join(value[2], value[3]));
                }
                to[i] = value[0];
            }
            t.sync();
            ALL *const done = to;
            to = from;
            from = done;
        }
        if (t.lane == 0) {
            y[0] = (typename OP::in)(onto ? OP::join((ALL)y[0], from[0]) : from[0]);
        }
    });
}

/* Reduces n contiguous numbers. Splits them into two halves repeatedly, while their number is even and above LEAF. */
template <class OP>
ls_status run_halves(ls_stream *stream, const char *name, job<OP, typename OP::in> whole, int64_t n) {
    typedef typename OP::all ALL;
    int64_t leaf = n;
    for (; leaf > LEAF && leaf % 2 == 0; leaf /= 2) {
    }
    whole.kept = axes();
    whole.kept.append(n / leaf, leaf, 0);
    whole.reduced = axes();
    whole.reduced.append(leaf, 1, 0);
    if (leaf == n) {
        return run<OP>(stream, name, whole, false);
    }
    const ls::scratch values(stream, 2 * (size_t)(n / leaf) * sizeof(ALL));
    LS_TRY(values.status(name));
    whole.partial = values.as<ALL>();
    LS_TRY(run<OP>(stream, name, whole, false));
    return join_tree<OP>(stream, name, n / leaf, values.as<ALL>(), whole.y, whole.onto);
}

/* Stores the result of an empty reduction. */
template <class OP> ls_status put_start(ls_stream *stream, const char *name, ls_tensor *y) {
    typedef typename OP::in T;
    const ls_tensor *const one[1] = {y};
    const ls::walk<1> walk(one);
    T *const to = ls::data<T>(y);
    return ls::each(stream, name, walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[1];
        walk.at(i, at);
        to[at[0]] = (T)OP::start();
    });
}

template <class OP> ls_status reduce(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *x, bool onto) {
    typedef typename OP::in T;
    if (x->count == 0) {
        return onto ? LS_OK : put_start<OP>(stream, name, y);
    }
    job<OP, T> whole = {ls::data<T>(x), ls::data<T>(y), nullptr, 1, onto, axes(), axes()};
    if (OP::halves && y->count == 1 && x->contiguous) {
        return run_halves<OP>(stream, name, whole, x->count);
    }
    const ls_tensor *const both[2] = {x, y};
    ls_loop all;
    ls_loop_plan(&all, 2, both);
    for (int axis = 0; axis < all.ndim; axis++) {
        axes *const to = all.step[axis][1] != 0 ? &whole.kept : &whole.reduced;
        to->append(all.size[axis], all.step[axis][0], all.step[axis][1]);
    }
    const bool by_columns = all.step[all.ndim - 1][1] != 0;
    if (whole.reduced.ndim == 0) {
        whole.reduced.append(1, 0, 0);
    }
    if (whole.kept.ndim == 0) {
        whole.kept.append(1, 0, 0);
    }
    return run<OP>(stream, name, whole, by_columns);
}

template <template <class> class OP, class TRUTH>
ls_status reduce_any(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *x, bool onto) {
    switch (x->dtype) {
    case LS_F32:
        return reduce<OP<float>>(stream, name, y, x, onto);
    case LS_F64:
        return reduce<OP<double>>(stream, name, y, x, onto);
    case LS_I64:
        return reduce<OP<int64_t>>(stream, name, y, x, onto);
    case LS_I32:
        return reduce<OP<int32_t>>(stream, name, y, x, onto);
    case LS_U8:
        return reduce<OP<uint8_t>>(stream, name, y, x, onto);
    case LS_BOOL:
        return reduce<OP<TRUTH>>(stream, name, y, x, onto);
    default:
        return ls::no_kernel(name, x->dtype);
    }
}

} // namespace

ls_status ls_cuda_sum(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce_any<adding, ls::truth>(stream, "sum", y, x, false);
}

ls_status ls_cuda_prod(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce_any<multiplying, ls::truth>(stream, "prod", y, x, false);
}

ls_status ls_cuda_max(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce_any<choosing_largest, uint8_t>(stream, "max", y, x, false);
}

ls_status ls_cuda_min(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce_any<choosing_smallest, uint8_t>(stream, "min", y, x, false);
}

ls_status ls_cuda_add_sum(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce_any<adding, ls::truth>(stream, "add_sum", y, x, true);
}
