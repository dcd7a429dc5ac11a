/*
 * A heat solver with MPI that learns its closure while it runs. The conductivity of a rod depends on the temperature,
 * and is costly to compute. A small network learns it from every step of the solver, on the solver's own communicator.
 * Then the solver runs a second time with the network in place of the closure. examples/fortran/heat.f90 is the same
 * program in Fortran, with bit-identical results.
 *
 *     mpicc heat_mpi.c $(pkg-config --cflags --libs lockstep) -lm -o heat_mpi
 *     mpirun -np 2 ./heat_mpi
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/mpi.h>

enum { POINTS = 96, STEPS = 1500 };
static const double ratio = 10; /* time step / (distance of points)^2 */

static MPI_Comm solver_comm;
static int rank, ranks;
static int count; /* points of this rank */

static ls_comm *comm;
static ls_module *model; /* temperature -> conductivity * 50 */
static ls_optimizer *optimizer;

/* ---- the network ------------------------------------------------------------------------------------------------- */

static ls_status make_network(void) {
    comm = ls_comm_from_mpi(solver_comm, NULL);
    if (comm == NULL) {
        return ls_error_status();
    }
    ls_seed(1);
    model = ls_data_parallel(ls_sequential(ls_nn_linear(1, 16), ls_nn_tanh(), ls_nn_linear(16, 1)), comm, NULL);
    if (model == NULL) {
        return ls_error_status();
    }
    optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
    return optimizer != NULL ? LS_OK : ls_error_status();
}

/* Makes one step of the optimizer with the samples of all ranks. */
static ls_status learn(float *samples, float *targets, int64_t n) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_from_memory(LS_SHAPE(n, 1), LS_F32, samples, NULL, NULL); /* [samples, features] */
    ls_tensor *y = ls_from_memory(LS_SHAPE(n, 1), LS_F32, targets, NULL, NULL);
    ls_optimizer_zero_grad(optimizer);
    ls_status status = ls_backward(ls_mse_loss(ls_forward(model, x), y, LS_LOSS_MEAN));
    if (status == LS_OK) {
        status = ls_optimizer_step(optimizer);
    }
    const ls_status ended = ls_scope_end(scope); /* frees the tensors of the step */
    return status != LS_OK ? status : ended;
}

static ls_status predict(float *samples, float *answers, int64_t n) {
    ls_scope *scope = ls_scope_begin();
    ls_no_grad(true); /* until the end of the scope */
    ls_tensor *x = ls_from_memory(LS_SHAPE(n, 1), LS_F32, samples, NULL, NULL);
    const float *y = (const float *)ls_data_const(ls_forward(model, x));
    if (y != NULL) {
        memcpy(answers, y, (size_t)n * sizeof *y); /* the tensor's memory is valid until the end of the scope */
    }
    return ls_scope_end(scope); /* the status of the first error in the scope */
}

static void free_network(void) {
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_comm_free(comm); /* free the communicator last, before MPI_Finalize */
}

/* ---- the solver -------------------------------------------------------------------------------------------------- */

static void check(ls_status status) {
    if (status != LS_OK) {
        fprintf(stderr, "heat_mpi: %s\n", ls_error_message());
        MPI_Abort(solver_comm, 1);
    }
}

/* No heat leaves at the ends of the rod. */
static void exchange_edges(double *u) {
    const int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    u[0] = u[1];
    u[count + 1] = u[count];
    MPI_Sendrecv(&u[count], 1, MPI_DOUBLE, right, 0, &u[0], 1, MPI_DOUBLE, left, 0, solver_comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, left, 1, &u[count + 1], 1, MPI_DOUBLE, right, 1, solver_comm, MPI_STATUS_IGNORE);
}

/* Stores the conductivity at each of the n temperatures `u` in `k`. */
static void conductivity(bool learned, const double *u, double *k, int n) {
    float samples[POINTS + 1], values[POINTS + 1];
    for (int i = 0; i < n; i++) {
        samples[i] = (float)u[i];
    }
    if (learned) {
        check(predict(samples, values, n));
        for (int i = 0; i < n; i++) {
            k[i] = (double)(values[i] / 50);
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        k[i] = 0.01 + 0.02 * (u[i] * u[i]);
        values[i] = (float)(k[i] * 50);
    }
    check(learn(samples, values, n));
}

static void solve(double *u, bool learned) {
    double middle[POINTS + 1], k[POINTS + 1], flux[POINTS + 1];
    for (int i = 1; i <= count; i++) {
        u[i] = 0.5 + 0.5 * cos(9 * (rank * count + i) / (double)POINTS);
    }
    for (int step = 0; step < STEPS; step++) {
        exchange_edges(u);
        for (int i = 0; i <= count; i++) {
            middle[i] = (u[i] + u[i + 1]) / 2;
        }
        conductivity(learned, middle, k, count + 1);
        for (int i = 0; i <= count; i++) {
            flux[i] = k[i] * (u[i + 1] - u[i]);
        }
        for (int i = 1; i <= count; i++) {
            u[i] += ratio * (flux[i] - flux[i - 1]);
        }
    }
}

int main(int argc, char **argv) {
    double exact[POINTS + 2], u[POINTS + 2], difference = 0; /* with the neighbors' points */
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &solver_comm);
    MPI_Comm_rank(solver_comm, &rank);
    MPI_Comm_size(solver_comm, &ranks);
    if (POINTS % ranks != 0) {
        if (rank == 0) {
            fprintf(stderr, "heat_mpi: %d ranks do not divide %d points\n", ranks, POINTS);
        }
        MPI_Finalize();
        return 1;
    }
    count = POINTS / ranks;

    check(make_network());
    solve(exact, false);
    solve(u, true);
    for (int i = 1; i <= count; i++) {
        difference = fmax(difference, fabs(u[i] - exact[i]));
    }
    MPI_Allreduce(MPI_IN_PLACE, &difference, 1, MPI_DOUBLE, MPI_MAX, solver_comm);
    if (rank == 0) {
        printf("largest error with the learned conductivity: % .2E\n", difference);
    }
    printf("rank %d parameters %016" PRIX64 "\n", rank, ls_module_hash(model));
    free_network();
    MPI_Comm_free(&solver_comm);
    MPI_Finalize();
    return 0;
}
