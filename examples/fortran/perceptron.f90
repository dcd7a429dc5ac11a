! The training of examples/perceptron.c in Fortran, with bit-identical results: learns y = sum of x**3 + sin(2 pi u) from 10
! features x in [1, 2] and noise u, with one sample per step on each rank.
!
!     gfortran perceptron.f90 $(pkg-config --cflags --libs lockstep-fortran) -o perceptron
!     lockstep run -n 2 ./perceptron [SAMPLES [EPOCHS]]
program perceptron
  use lockstep
  implicit none
  integer, parameter :: features = 10
  real(c_double), parameter :: two_pi = 6.283185307179586_c_double
  integer :: samples, epochs, i
  type(ls_comm) :: world
  type(ls_dataset) :: data
  type(ls_loader) :: loader
  type(ls_module) :: model
  type(ls_optimizer) :: optimizer

  samples = argument(1, 10000)
  epochs = argument(2, 100)
  world = ls_init()
  call ls_check(world)
  call ls_seed(1)
  data = make_data()
  loader = ls_loader_new(data, ls_loader_options(batch_size=1, comm=world, seed=1))
  call ls_check(loader)
  model = ls_sequential_of([ls_nn_linear(features, 100), ls_nn_relu(), ls_nn_linear(100, 1)])
  model = ls_data_parallel(model, world)
  call ls_check(model)
  optimizer = ls_sgd(model, ls_sgd_options(learning_rate=1e-4_c_double, momentum=0.9_c_double))
  call ls_check(optimizer)
  do i = 1, epochs
    call train_epoch(i)
  end do
  print '(a,i0,a,z16.16)', 'rank ', ls_comm_rank(world), ' parameters ', ls_module_hash(model)
  call ls_optimizer_free(optimizer)
  call ls_module_free(model)
  call ls_loader_free(loader)
  call ls_check(ls_finalize())

contains

  function make_data() result(set)
    type(ls_dataset) :: set
    type(ls_scope) :: scope
    type(ls_tensor) :: x, y, noise
    scope = ls_scope_begin()
    x = ls_rand(ls_shape([samples, features]), LS_F32) + 1
    noise = ls_sin(ls_rand(ls_shape([samples, 1]), LS_F32) * two_pi)
    y = ls_sum_axes(x ** 3, ls_axes([1]), keepdim=.true.) + noise
    set = ls_tensor_dataset(x, y)
    call ls_check(ls_scope_end(scope))
  end function

  subroutine train_epoch(epoch)
    integer, intent(in) :: epoch
    type(ls_batch) :: batch
    logical(c_bool) :: more
    real(c_double), target :: sums(2)
    sums = 0
    do
      call ls_check(ls_loader_next(loader, batch, more))
      if (.not. more) exit
      call ls_optimizer_zero_grad(optimizer)
      if (batch%count > 0) then
        sums = sums + [loss_of(batch) * batch%count, real(batch%count, c_double)]
      else ! the other ranks have the rest of the last batch
        call ls_check(ls_data_parallel_skip(model))
      end if
      call ls_check(ls_optimizer_step(optimizer))
    end do
    call ls_check(ls_comm_allreduce(world, c_loc(sums), c_loc(sums), 2, LS_F64, LS_REDUCTION_SUM))
    if (ls_comm_rank(world) == 0) print '(a,i0,a,es12.5)', 'Epoch: ', epoch, ' Mean Squared Error: ', sums(1) / sums(2)
  end subroutine

  ! Computes the loss of a batch and its gradients.
  function loss_of(batch) result(value)
    type(ls_batch), intent(in) :: batch
    real(c_double) :: value
    type(ls_scope) :: scope
    type(ls_tensor) :: loss
    scope = ls_scope_begin()
    loss = ls_mse_loss(ls_forward(model, batch%input), batch%target, LS_LOSS_MEAN)
    call ls_check(ls_backward(loss))
    value = ls_item(loss)
    call ls_check(ls_scope_end(scope))
  end function

  ! The number in the program's argument, or a default.
  function argument(position, default) result(number)
    integer, intent(in) :: position, default
    integer :: number, failed
    character(len=20) :: text
    number = default
    if (command_argument_count() < position) return
    call get_command_argument(position, text)
    read (text, *, iostat=failed) number
    if (failed /= 0 .or. number < 1) error stop 'perceptron: an argument is not a positive number'
  end function
end program
