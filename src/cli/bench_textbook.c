/*
 * Costs of well-known algorithms in the LogGP model, in closed form (R. Thakur, R. Rabenseifner, W. Gropp,
 * "Optimization of Collective Communication Operations in MPICH", 2005). The steps of an algorithm run one after
 * another, and each step is one message. None of these algorithms includes an agreement.
 */
#include <math.h>

#include "cli/bench.h"

typedef struct model {
    const ls_bench_cluster *cluster;
    double ranks;
    double bytes;
    double levels; /* ceil(log2 ranks) */
    double power;  /* the largest power of two that is at most `ranks` */
    double folds;  /* 1 if `ranks` is not a power of two, else 0 */
    ls_bench_estimate best;
} model;

/* One message. */
static double message(const model *m, double bytes) {
    const ls_bench_cluster *c = m->cluster;
    const double hands =
        bytes > (double)c->eager ? 3 : 1; /* the rendezvous protocol: request to send, clear to send, data */
    return hands * (2 * c->overhead_ns + c->latency_ns) + bytes / c->bytes_per_ns;
}

/* Adds messages of 1/2, 1/4, ... of the buffer, down to one rank's part among `ranks` ranks. */
static double halves(const model *m, double ranks) {
    double ns = 0;
    for (int level = 1; exp2(level - 1) < ranks; level++) {
        ns += message(m, ldexp(m->bytes, -level));
    }
    return ns;
}

static void offer(model *m, const char *name, double ns, double messages, double bytes) {
    if (m->best.name == NULL || ns < m->best.ns) {
        m->best = (ls_bench_estimate){name, ns, messages, bytes};
    }
}

static void offer_allreduce(model *m) {
    const double steps = log2(m->power);
    const double fold = m->folds * message(m, m->bytes);
    const double others = (m->ranks - 1) / m->ranks;
    const double kept = (m->power - 1) / m->power;
    offer(m, "recursive doubling", steps * message(m, m->bytes) + 2 * fold, steps + m->folds,
          (steps + m->folds) * m->bytes);
    offer(m, "Rabenseifner", 2 * halves(m, m->power) + 2 * fold, 2 * steps + m->folds,
          (2 * kept + m->folds) * m->bytes);
    offer(m, "ring", 2 * (m->ranks - 1) * message(m, m->bytes / m->ranks), 2 * (m->ranks - 1), 2 * others * m->bytes);
}

static void offer_reduce(model *m) {
    const double steps = log2(m->power);
    const double kept = (m->power - 1) / m->power;
    offer(m, "binomial tree", m->levels * message(m, m->bytes), 1, m->bytes);
    offer(m, "Rabenseifner", 2 * halves(m, m->power) + m->folds * message(m, m->bytes), steps + 1,
          (kept + 0.5) * m->bytes);
}

static void offer_broadcast(model *m) {
    const double others = (m->ranks - 1) / m->ranks;
    offer(m, "binomial tree", m->levels * message(m, m->bytes), m->levels, m->levels * m->bytes);
    offer(m, "scatter, doubling", 2 * halves(m, m->ranks), 2 * m->levels, 2 * others * m->bytes);
    offer(m, "scatter, ring", halves(m, m->ranks) + (m->ranks - 1) * message(m, m->bytes / m->ranks),
          m->levels + m->ranks - 1, 2 * others * m->bytes);
}

/* All-gather and reduce-scatter: reduce-scatter is all-gather in reverse. */
static void offer_parts(model *m, bool reduces) {
    const double others = m->ranks - 1;
    const double fold = reduces ? m->folds * (message(m, m->bytes) + message(m, m->bytes / m->ranks)) : 0;
    offer(m, reduces ? "recursive halving" : "Bruck", halves(m, reduces ? m->power : m->ranks) + fold, m->levels,
          others / m->ranks * m->bytes);
    offer(m, "ring", others * message(m, m->bytes / m->ranks), others, others / m->ranks * m->bytes);
}

static void offer_alltoall(model *m) {
    const ls_bench_cluster *c = m->cluster;
    const double others = m->ranks - 1;
    const double part = m->bytes / m->ranks;
    const double gap = fmax(2 * c->overhead_ns * (part > (double)c->eager ? 3 : 1), part / c->bytes_per_ns);
    offer(m, "Bruck", m->levels * message(m, m->bytes / 2), m->levels, m->levels * m->bytes / 2);
    offer(m, "all at once", message(m, part) + (others - 1) * gap, others, others * part);
}

ls_bench_estimate ls_bench_textbook(ls_operation operation, const ls_bench_cluster *cluster, double bytes) {
    const double ranks = cluster->ranks;
    const double power = exp2(floor(log2(ranks)));
    model m = {.cluster = cluster,
               .ranks = ranks,
               .bytes = bytes,
               .levels = ceil(log2(ranks)),
               .power = power,
               .folds = power < ranks};
    if (ranks < 2) {
        return (ls_bench_estimate){.name = "nothing"};
    }
    switch (operation) {
    case LS_OP_ALLREDUCE:
        offer_allreduce(&m);
        break;
    case LS_OP_REDUCE:
        offer_reduce(&m);
        break;
    case LS_OP_BROADCAST:
        offer_broadcast(&m);
        break;
    case LS_OP_ALLGATHER:
        offer_parts(&m, false);
        break;
    case LS_OP_REDUCE_SCATTER:
        offer_parts(&m, true);
        break;
    case LS_OP_ALLTOALL:
        offer_alltoall(&m);
        break;
    case LS_OP_GATHER:
        offer(&m, "binomial tree", halves(&m, ranks), 1, bytes / 2);
        break;
    case LS_OP_SCATTER:
        offer(&m, "binomial tree", halves(&m, ranks), m.levels, (ranks - 1) / ranks * bytes);
        break;
    default:
        offer(&m, "dissemination", m.levels * message(&m, 0), m.levels, 0);
        break;
    }
    return m.best;
}
