/*
 * Which initial heat led to the measured final heat? A rod is distributed over the ranks. In each step of the solver, a
 * rank receives the outermost points of its neighbors (the halo). The state after 100 steps is known. L-BFGS fits the
 * initial state, with gradients through all steps and all messages. The answer does not depend on the number of ranks.
 *
 *     lockstep run -n 2 build/examples/heat
 */
#include <math.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static long points = 64;
static long steps = 100;
static long iterations = 60;
static bool quiet;

static const argument arguments[] = {
    {"--points", ARGUMENT_SIZE, &points, "points of the rod, divided over the ranks (64)"},
    {"--steps", ARGUMENT_SIZE, &steps, "time steps of the solver (100)"},
    {"--iterations", ARGUMENT_SIZE, &iterations, "iterations of the fit (60)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the last iteration's line"},
};

static const double diffusion = 0.25; /* factor applied to a point's difference from its neighbors in each step */

/* This rank's part of the rod: `count` points starting at `start`. */
typedef struct part {
    ls_comm *comm;
    int64_t start;
    int64_t count;
} part;

static part part_of(ls_comm *comm) {
    const int64_t rank = ls_comm_rank(comm);
    const int64_t more = points % ls_comm_size(comm);
    return (part){.comm = comm,
                  .start = points / ls_comm_size(comm) * rank + (rank < more ? rank : more),
                  .count = points / ls_comm_size(comm) + (rank < more)};
}

/* Sends our `edge` to rank `other`, and returns that rank's adjacent point. No heat leaves at the ends of the rod. */
static ls_tensor *neighbour(const part *p, ls_tensor *edge, int other) {
    if (other < 0 || other >= ls_comm_size(p->comm)) {
        return edge;
    }
    ls_handle *sent = ls_isend(p->comm, edge, other, 0);
    ls_tensor *halo = ls_recv(p->comm, LS_SHAPE(1), LS_F64, other, 0);
    ls_handle_wait(sent);
    return halo;
}

static ls_tensor *solve(const part *p, ls_tensor *heat) {
    const int rank = ls_comm_rank(p->comm);
    for (long step = 0; step < steps; step++) {
        ls_tensor *left = neighbour(p, ls_narrow(heat, 0, 0, 1), rank - 1);
        ls_tensor *right = neighbour(p, ls_narrow(heat, 0, p->count - 1, 1), rank + 1);
        ls_tensor *wide = ls_concat((ls_tensor *[]){left, heat, right}, 3, 0);
        ls_tensor *around = ls_add(ls_narrow(wide, 0, 0, p->count), ls_narrow(wide, 0, 2, p->count));
        heat = ls_add(heat, ls_mul(ls_sub(around, ls_mul(heat, 2)), diffusion));
    }
    return heat;
}

/* The true initial heat: two smooth hills. */
static ls_tensor *true_heat(const part *p) {
    ls_tensor *x = ls_div(ls_add(ls_arange(LS_SHAPE(p->count), LS_F64), (double)p->start + 0.5), (double)points);
    ls_tensor *first = ls_exp(ls_mul(ls_square(ls_sub(x, 0.3)), -80));
    return ls_add(first, ls_mul(ls_exp(ls_mul(ls_square(ls_sub(x, 0.75)), -120)), 0.5));
}

/* This rank's part of the guessed initial heat, and of the measured final heat. */
typedef struct problem {
    const part *part;
    ls_tensor *guess;
    ls_tensor *measured;
} problem;

/*
 * Computes the squared difference from the measured state, summed over the rod, and its gradient for this rank's
 * points.
 */
static ls_status evaluate(void *user, double *value) {
    const problem *self = user;
    ls_tensor *difference = ls_sub(solve(self->part, self->guess), self->measured);
    ls_tensor *loss = ls_sum(ls_square(difference));
    if (ls_backward(loss) != LS_OK) { /* the gradient of the whole rod's loss */
        return ls_error_status();
    }
    *value = ls_item(loss);
    return ls_comm_allreduce(self->part->comm, value, value, 1, LS_F64, LS_SUM, NULL);
}

static ls_status fit(problem *self, ls_optimizer *optimizer) {
    for (long i = 0; i < iterations; i++) {
        double loss = 0;
        const ls_status status = ls_optimizer_step_closure(optimizer, evaluate, self, &loss);
        if (status != LS_OK) {
            return status;
        }
        if (ls_comm_rank(self->part->comm) == 0 && (i == iterations - 1 || (!quiet && i % 10 == 0))) {
            printf("iteration %ld: error %.6e\n", i, loss / (double)points);
        }
    }
    return LS_OK;
}

static ls_status run(ls_comm *world) {
    const part p = part_of(world);
    if (points < ls_comm_size(world)) {
        return ls_error_set(LS_ERR_ARGUMENT, "%ld points cannot be divided among %d ranks", points,
                            ls_comm_size(world));
    }
    ls_scope *scope = ls_scope_begin();
    problem self = {.part = &p, .guess = ls_zeros(LS_SHAPE(p.count), LS_F64), .measured = solve(&p, true_heat(&p))};
    /* Every rank has a part of the guess: .comm combines the ranks into one optimizer. */
    const ls_lbfgs_options options = {.max_iterations = 1, .strong_wolfe = true, .comm = world};
    ls_optimizer *optimizer = ls_lbfgs(NULL, &options);
    ls_status status = optimizer != NULL ? ls_set_requires_grad(self.guess, true) : ls_error_status();
    if (status == LS_OK) {
        status = ls_optimizer_add_group(optimizer, &self.guess, 1, NULL);
    }
    if (status == LS_OK) {
        status = fit(&self, optimizer);
    }
    ls_optimizer_free(optimizer);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Finds the heat of a rod from the temperatures 100 steps later.", arguments);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "heat: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
