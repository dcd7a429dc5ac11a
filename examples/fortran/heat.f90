! A heat solver with MPI that learns its closure while it runs. The conductivity of a rod depends on the temperature, and
! is costly to compute. A small network learns it from every step of the solver, on the solver's own communicator. Then
! the solver runs a second time with the network in place of the closure. examples/heat_mpi.c is the same program in C.
!
!     mpifort heat.f90 $(pkg-config --cflags --libs lockstep-fortran) -o heat
!     mpirun -np 2 ./heat
program heat
  use lockstep
  use mpi
  implicit none
  integer, parameter :: points = 96, steps = 1500
  real(c_double), parameter :: ratio = 10 ! time step / (distance of points)**2
  integer :: solver_comm, rank, ranks, count, failed
  real(c_double), allocatable :: u(:), exact(:)
  real(c_double) :: difference
  ! The network.
  type(ls_comm) :: comm
  type(ls_module) :: model
  type(ls_optimizer) :: optimizer

  call MPI_Init(failed)
  call MPI_Comm_dup(MPI_COMM_WORLD, solver_comm, failed)
  call MPI_Comm_rank(solver_comm, rank, failed)
  call MPI_Comm_size(solver_comm, ranks, failed)
  if (modulo(points, ranks) /= 0) error stop 'heat: the number of ranks does not divide 96'
  count = points / ranks
  allocate (u(0:count + 1), exact(0:count + 1)) ! with the neighbors' points

  call make_network()
  call solve(exact, learned=.false.)
  call solve(u, learned=.true.)
  difference = maxval(abs(u(1:count) - exact(1:count)))
  call MPI_Allreduce(MPI_IN_PLACE, difference, 1, MPI_DOUBLE_PRECISION, MPI_MAX, solver_comm, failed)
  if (rank == 0) print '(a,es9.2)', 'largest error with the learned conductivity: ', difference
  print '(a,i0,a,z16.16)', 'rank ', rank, ' parameters ', ls_module_hash(model)
  call free_network()
  call MPI_Comm_free(solver_comm, failed)
  call MPI_Finalize(failed)

contains

  ! ---- the solver ----

  subroutine solve(u, learned)
    real(c_double), intent(out) :: u(0:)
    logical, intent(in) :: learned
    real(c_double) :: k(0:count), flux(0:count)
    integer :: i, step
    do i = 1, count
      u(i) = 0.5_c_double + 0.5_c_double * cos(9 * (rank * count + i) / real(points, c_double))
    end do
    do step = 1, steps
      call exchange_edges(u)
      associate (middle => (u(0:count) + u(1:count + 1)) / 2)
        if (learned) then
          k = network_conductivity(middle)
        else
          k = conductivity(middle)
          call learn(middle, k)
        end if
      end associate
      flux = k * (u(1:count + 1) - u(0:count))
      u(1:count) = u(1:count) + ratio * (flux(1:count) - flux(0:count - 1))
    end do
  end subroutine

  elemental function conductivity(u) result(k)
    real(c_double), intent(in) :: u
    real(c_double) :: k
    k = 0.01_c_double + 0.02_c_double * u ** 2
  end function

  ! No heat leaves at the ends of the rod.
  subroutine exchange_edges(u)
    real(c_double), intent(inout) :: u(0:)
    integer :: left, right
    left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    right = merge(rank + 1, MPI_PROC_NULL, rank < ranks - 1)
    u(0) = u(1)
    u(count + 1) = u(count)
    call MPI_Sendrecv(u(count), 1, MPI_DOUBLE_PRECISION, right, 0, u(0), 1, MPI_DOUBLE_PRECISION, left, 0, &
      solver_comm, MPI_STATUS_IGNORE, failed)
    call MPI_Sendrecv(u(1), 1, MPI_DOUBLE_PRECISION, left, 1, u(count + 1), 1, MPI_DOUBLE_PRECISION, right, 1, &
      solver_comm, MPI_STATUS_IGNORE, failed)
  end subroutine

  ! ---- the network: temperature -> conductivity * 50 ----

  subroutine make_network()
    comm = ls_comm_from_mpi_fint(solver_comm)
    call ls_check(comm)
    call ls_seed(1)
    model = ls_data_parallel(ls_sequential_of([ls_nn_linear(1, 16), ls_nn_tanh(), ls_nn_linear(16, 1)]), comm)
    call ls_check(model)
    optimizer = ls_adam(model, ls_adam_options(learning_rate=0.01_c_double))
    call ls_check(optimizer)
  end subroutine

  ! Makes one step of the optimizer with the samples of all ranks.
  subroutine learn(u, k)
    real(c_double), intent(in) :: u(:), k(:)
    real(c_float), target :: samples(1, size(u)), targets(1, size(u)) ! tensors [samples, 1]
    type(ls_scope) :: scope
    samples(1, :) = real(u, c_float)
    targets(1, :) = real(k * 50, c_float)
    scope = ls_scope_begin()
    call ls_optimizer_zero_grad(optimizer)
    call ls_check(ls_backward(ls_mse_loss(ls_forward(model, ls_view(samples)), ls_view(targets), LS_LOSS_MEAN)))
    call ls_check(ls_optimizer_step(optimizer))
    call ls_check(ls_scope_end(scope))
  end subroutine

  function network_conductivity(u) result(k)
    real(c_double), intent(in) :: u(:)
    real(c_double) :: k(size(u))
    real(c_float), target :: samples(1, size(u))
    real(c_float) :: answers(1, size(u))
    logical :: with_gradients
    type(ls_scope) :: scope
    samples(1, :) = real(u, c_float)
    scope = ls_scope_begin()
    with_gradients = ls_no_grad(.true.) ! until the end of the scope
    call ls_check(ls_array_copy(ls_forward(model, ls_view(samples)), answers))
    call ls_check(ls_scope_end(scope))
    k = answers(1, :) / 50
  end function

  subroutine free_network()
    call ls_optimizer_free(optimizer)
    call ls_module_free(model)
    call ls_comm_free(comm)
  end subroutine
end program
