! The Fortran module: arrays without copies, operators, options, text, callbacks, custom operations, values of structs, and
! error messages. Stops with a message at the first wrong result.
module functions
  use lockstep
  implicit none
  integer :: calls = 0, released = 0

contains

  ! f(x) = x**3, with its derivative as adjoint.
  function cube_forward(call) bind(c) result(status)
    type(ls_custom_call), intent(inout) :: call
    integer(c_int) :: status
    type(ls_tensor), pointer :: inputs(:), outputs(:), saved(:)
    inputs => ls_tensors(call%inputs, call%input_count)
    outputs => ls_tensors(call%outputs, 1)
    saved => ls_tensors(call%saved, 1)
    saved(1) = ls_square(inputs(1))
    outputs(1) = saved(1) * inputs(1)
    status = merge(ls_error_status(), LS_OK, ls_is_null(outputs(1)))
  end function

  function cube_backward(call) bind(c) result(status)
    type(ls_custom_call), intent(inout) :: call
    integer(c_int) :: status
    type(ls_tensor), pointer :: gradients(:), arrived(:), saved(:)
    logical(c_bool), pointer :: wanted(:)
    arrived => ls_tensors(call%output_gradients, 1)
    gradients => ls_tensors(call%input_gradients, call%input_count)
    saved => ls_tensors(call%saved, 1)
    call c_f_pointer(call%wanted, wanted, [call%input_count])
    if (wanted(1)) gradients(1) = 3 * saved(1) * arrived(1)
    status = LS_OK
  end function

  ! The same function with a wrong adjoint.
  function wrong_backward(call) bind(c) result(status)
    type(ls_custom_call), intent(inout) :: call
    integer(c_int) :: status
    type(ls_tensor), pointer :: gradients(:), arrived(:), saved(:)
    arrived => ls_tensors(call%output_gradients, 1)
    gradients => ls_tensors(call%input_gradients, 1)
    saved => ls_tensors(call%saved, 1)
    gradients(1) = 2 * saved(1) * arrived(1)
    status = LS_OK
  end function

  function apply(inputs, count, user) bind(c) result(output)
    type(ls_tensor), intent(in) :: inputs(*)
    integer(c_int), value :: count
    type(c_ptr), value :: user
    type(ls_tensor) :: output
    type(ls_custom_op), pointer :: op
    call c_f_pointer(user, op)
    output = ls_custom(op, inputs, count)
  end function

  ! A closure for L-BFGS: (x - 3)**2.
  function parabola(user, loss) bind(c) result(status)
    type(c_ptr), value :: user
    real(c_double), intent(out) :: loss
    integer(c_int) :: status
    type(ls_tensor), pointer :: x
    type(ls_tensor) :: value
    call c_f_pointer(user, x)
    value = ls_square(x - 3)
    loss = ls_item(value)
    calls = calls + 1
    status = ls_backward(value)
  end function

  function on_end(state, user) bind(c) result(status)
    type(ls_trial_state), intent(inout) :: state
    type(c_ptr), value :: user
    integer(c_int) :: status
    integer(c_int), pointer :: epochs
    call c_f_pointer(user, epochs)
    epochs = int(state%epochs)
    status = LS_OK
  end function

  subroutine on_release(user) bind(c)
    type(c_ptr), value :: user
    if (c_associated(user)) released = released + 1
  end subroutine

  subroutine expect(is_right, what)
    logical, intent(in) :: is_right
    character(*), intent(in) :: what
    if (is_right) return
    print '(4a)', 'wrong: ', what, '; the last error: ', ls_error_message()
    stop 1
  end subroutine
end module

program fortran_program
  use functions
  implicit none
  type(ls_comm) :: world
  world = ls_init()
  call ls_check(world)
  call values_of_structs()
  call arrays()
  call operators()
  call custom_operation()
  call closure()
  call trial()
  call lists_of_modules()
  call texts()
  call errors()
  call buffers()
  call ls_check(ls_finalize())
  print '(a)', 'right'

contains

  subroutine values_of_structs()
    type(ls_scope) :: scope
    type(ls_shape) :: shape
    type(ls_axes) :: axes
    type(ls_random_state) :: state
    type(ls_memory) :: memory
    scope = ls_scope_begin()
    shape = ls_shape_of(ls_zeros(ls_shape([2, 3, 4]), LS_F64))
    call expect(shape%ndim == 3 .and. all(shape%size(:3) == [2, 3, 4]), 'a shape')
    shape = ls_shape_make(2, [5_c_int64_t, 6_c_int64_t])
    call expect(shape%ndim == 2 .and. all(shape%size(:2) == [5, 6]), 'ls_shape_make')
    axes = ls_axes_make(2, [1, 0])
    call expect(axes%count == 2 .and. all(axes%axis(:2) == [1, 0]), 'ls_axes_make')
    shape = ls_shape_of(ls_permute(ls_zeros(ls_shape([7_c_int64_t, 8_c_int64_t]), LS_F32), axes))
    call expect(all(shape%size(:2) == [8, 7]), 'ls_permute')
    call shapes_of_numbers()
    call ls_seed(5)
    state = ls_random_get_state()
    call expect(state%seed == 5, 'a small struct as a result')
    state%seed = 9
    state%stream = 4
    call ls_random_set_state(state)
    state = ls_random_state()
    state = ls_random_get_state()
    call expect(state%seed == 9 .and. state%stream == 4, 'a small struct as an argument')
    call ls_check(ls_memory_stats(memory))
    call expect(memory%total >= 0 .and. memory%peak_total >= memory%total, 'a struct through a pointer')
    call expect(abs(ls_option_zero() - LS_ZERO) <= 0, 'LS_ZERO')
    call ls_check(ls_scope_end(scope))
  end subroutine

  ! LS_SHAPE(3, 2) of C is valid in Fortran, too. It must not select the structure constructor, with ndim = 3 and size = 2.
  subroutine shapes_of_numbers()
    integer(c_int64_t) :: rows
    integer :: columns
    type(ls_scope) :: scope
    scope = ls_scope_begin()
    rows = 3
    columns = 2
    call expect(is_shape(LS_SHAPE(3, 2), [3, 2]), 'a shape of numbers')
    call expect(is_shape(ls_shape(rows, columns), [3, 2]), 'a shape of numbers of different kinds')
    call expect(is_shape(ls_shape(columns, rows + 1), [2, 4]), 'a shape of expressions')
    call expect(is_shape(ls_shape(rows, rows), [3, 3]), 'a shape of 64-bit numbers')
    call expect(is_shape(ls_shape(2_c_int8_t, 300_c_int16_t, columns), [2, 300, 2]), 'a shape of short numbers')
    call expect(is_shape(ls_shape(5), [5]), 'a shape of one number')
    call expect(is_shape(ls_shape(1, 2, 3, 4, 5, 6, 7, 8), [1, 2, 3, 4, 5, 6, 7, 8]), 'a shape of eight numbers')
    call expect(is_shape(ls_shape([rows, 2_c_int64_t]), [3, 2]) .and. is_shape(ls_shape([rows]), [3]), 'a shape of a list')
    call expect(is_shape(ls_shape(), [integer ::]), 'the shape of a single number')
    call expect(is_shape(ls_shape(ndim=1, size=[7_c_int64_t, 0_c_int64_t, 0_c_int64_t, 0_c_int64_t, 0_c_int64_t, &
      0_c_int64_t, 0_c_int64_t, 0_c_int64_t]), [7]), 'a shape of components')
    call expect(ls_is_null(ls_zeros(ls_shape(2.5, 2), LS_F32)), 'a size that is not an integer')
    call expect(is_axes(LS_AXES(1), [1]), 'one axis')
    call expect(is_axes(ls_axes(-1, 0), [-1, 0]) .and. is_axes(ls_axes(rows, columns), [3, 2]), 'two axes')
    call expect(is_axes(ls_axes([1_c_int64_t]), [1]) .and. is_axes(ls_axes([1, 0]), [1, 0]), 'a list of axes')
    call expect(is_axes(ls_axes(), [integer ::]), 'all axes')
    call expect(ls_is_null(ls_sum_axes(ls_zeros(ls_shape(3, 2), LS_F32), ls_axes(0.5), .false.)), 'an axis that is not an integer')
    call expect(ls_is_null(ls_sum_axes(ls_zeros(ls_shape(3, 2), LS_F32), ls_axes(2_c_int64_t ** 32), .false.)), 'an axis of 2**32')
    call expect(ls_scope_end(scope) /= LS_OK, 'the scope keeps the error of a size')
  end subroutine

  pure logical function is_shape(shape, sizes)
    type(ls_shape), intent(in) :: shape
    integer, intent(in) :: sizes(:)
    is_shape = shape%ndim == size(sizes)
    if (is_shape) is_shape = all(shape%size(:shape%ndim) == sizes) .and. all(shape%size(shape%ndim + 1:) == 0)
  end function

  pure logical function is_axes(axes, numbers)
    type(ls_axes), intent(in) :: axes
    integer, intent(in) :: numbers(:)
    is_axes = axes%count == size(numbers)
    if (is_axes) is_axes = all(axes%axis(:axes%count) == numbers) .and. all(axes%axis(axes%count + 1:) == 0)
  end function

  ! (features, samples) is [samples, features], without a copy in both directions.
  subroutine arrays()
    real(c_float), target :: sample(3, 2)
    real(c_double), target :: cube(2, 3, 4)
    integer(c_int64_t), target :: labels(4)
    real(c_float), pointer :: elements(:, :), line(:)
    real(c_double), pointer :: wrong(:, :)
    type(ls_tensor) :: view, copy
    type(c_ptr) :: address
    type(ls_scope) :: scope
    type(ls_shape) :: shape
    scope = ls_scope_begin()
    sample = reshape([1., 2., 3., 4., 5., 6.], [3, 2])
    view = ls_view(sample)
    copy = ls_from(sample)
    shape = ls_shape_of(view)
    call expect(shape%ndim == 2 .and. all(shape%size(:2) == [2, 3]), 'the shape of a view')
    call expect(nint(ls_at(view, [1_c_int64_t, 0_c_int64_t])) == 4, 'an element of a view')
    address = c_loc(sample) ! gfortran 12 fails with an internal error if c_loc is an argument of c_associated
    call expect(c_associated(ls_data(view), address), 'a view shares memory')
    sample(1, 2) = 40
    call expect(nint(ls_at(view, [1_c_int64_t, 0_c_int64_t])) == 40, 'a view sees changes')
    call expect(nint(ls_at(copy, [1_c_int64_t, 0_c_int64_t])) == 4, 'ls_from copies')
    call ls_array(copy, elements)
    call expect(associated(elements), 'elements of a tensor')
    call expect(all(ubound(elements) == [3, 2]), 'the bounds of elements')
    elements(2, 1) = -2
    call expect(nint(ls_at(copy, [0_c_int64_t, 1_c_int64_t])) == -2, 'elements share memory')
    call expect(nint(ls_item(ls_sum(ls_from(sample(1:3:2, :))))) == 1 + 3 + 40 + 6, 'ls_from copies sections')
    call expect(ls_is_null(ls_view(sample(1:3:2, :))), 'a view of a section is refused')
    call expect(ls_error_message() == 'ls_view: the array is not contiguous; call ls_from, which copies it', 'the message')
    call expect(ls_is_null(ls_square(ls_view(sample(1:3:2, :)))), 'a refused view in an operation')
    call expect(ls_scope_end(scope) == LS_ERR_ARGUMENT, 'the scope keeps the error')
    scope = ls_scope_begin()
    call ls_array(copy_of(sample), wrong)
    call expect(.not. associated(wrong), 'another type is refused')
    call expect(ls_error_message() == 'ls_array: the tensor is f32 and the array is f64; call ls_to first', 'the types')
    call ls_array(copy_of(sample), line)
    call expect(.not. associated(line), 'another rank is refused')
    call expect(index(ls_error_message(), 'the tensor has 2 axes and the array has 1') > 0, 'the ranks')
    call ls_array(ls_transpose(copy_of(sample), 0, 1), elements)
    call expect(.not. associated(elements), 'a transposed tensor is refused')
    call ls_array(ls_view(sample(:, 1:0)), elements)
    if (associated(elements)) then
      call expect(size(elements) == 0, 'no elements')
    end if
    call copies(copy_of(sample))
    call views(sample, sample)
    call ls_check(ls_scope_end(scope)) ! no operation failed
    call expect(ls_array_copy(copy, sample) == LS_ERR_STATE, 'a copy after the end of the scope')
    call expect(index(ls_error_message(), 'ls_array_copy: ') == 1 .and. index(ls_error_message(), 'scope that has ended') > 0, &
      'the message of a copy after the end of the scope')
    call ls_array(copy, elements)
    call expect(.not. associated(elements), 'elements after the end of the scope')
    call expect(index(ls_error_message(), 'ls_array: ') == 1 .and. index(ls_error_message(), 'scope that has ended') > 0, &
      'the message of elements after the end of the scope')
    scope = ls_scope_begin()
    cube = 1
    cube(2, 1, 4) = 5
    labels = [3, 2, 1, 0]
    shape = ls_shape_of(ls_view(cube))
    call expect(all(shape%size(:3) == [4, 3, 2]), 'three axes')
    call expect(nint(ls_at(ls_view(cube), [3_c_int64_t, 0_c_int64_t, 1_c_int64_t])) == 5, 'an element of three axes')
    call expect(ls_dtype_of(ls_view(labels)) == LS_I64, 'integers')
    call ls_check(ls_scope_end(scope))
  end subroutine

  ! ls_view refers to the memory of arrays with the `target` attribute: dummy arguments, allocatable arrays and pointers.
  subroutine views(assumed, explicit)
    real(c_float), intent(in), target :: assumed(:, :), explicit(3, *)
    real(c_float), allocatable, target :: own(:, :), absent(:, :)
    real(c_float), pointer :: pointer(:, :)
    real(c_float), target :: automatic(size(assumed, 2)), none(size(assumed, 2) - 2)
    call expect(sees(ls_view(assumed), c_loc(assumed)), 'a view of an assumed-shape argument')
    call expect(sees(ls_view(explicit(:, :2)), c_loc(explicit)), 'a view of an assumed-size argument')
    call expect(sees(ls_view(assumed(:, 2:)), c_loc(assumed(1, 2))), 'a view of a contiguous section')
    allocate (own(2, 2), source=1._c_float)
    call expect(sees(ls_view(own), c_loc(own)), 'a view of an allocatable array')
    pointer => own
    call expect(sees(ls_view(pointer), c_loc(own)), 'a view of a pointer')
    automatic = 1
    call expect(sees(ls_view(automatic), c_loc(automatic)), 'a view of an automatic array')
    call expect(.not. ls_is_null(ls_view(none)), 'a view of an array without elements')
    nullify (pointer)
    call expect(ls_is_null(ls_view(pointer)), 'a view of a pointer that is not associated')
    call expect(index(ls_error_message(), 'ls_view: the array is not allocated or the pointer is not associated') == 1, &
      'the message of a view without an array')
    call expect(ls_is_null(ls_view(absent)), 'a view of an array that is not allocated')
    call views_of_components()
  end subroutine

  ! Components are not contiguous, but is_contiguous of gfortran 12 returns .true. for them.
  subroutine views_of_components()
    type particle
      real(c_float) :: x, y, w
    end type
    type(particle), target :: ps(3), grid(2, 2)
    complex(c_float), target :: c(3)
    real(c_float), target :: plain(3)
    real(c_float), pointer :: q(:)
    ps%x = [1, 2, 3]
    ps%y = [10, 20, 30]
    ps%w = [100, 200, 300]
    grid = reshape([ps, ps(1)], [2, 2])
    c = [(1., 2.), (3., 4.), (5., 6.)]
    call expect(is_refused(ls_view(ps%x)), 'a view of the first component')
    call expect(is_refused(ls_view(ps%y)), 'a view of a component')
    call expect(is_refused(ls_view(ps(2:)%y)), 'a view of a component of a section')
    call expect(is_refused(ls_view(grid%w)), 'a view of a component with two axes')
    call expect(is_refused(ls_view(c%re)), 'a view of real parts')
    call expect(is_refused(ls_view(c%im)), 'a view of imaginary parts')
    q => ps%w
    call expect(is_refused(ls_view(q)), 'a view of a pointer to a component')
    call expect(has(ls_from(ps%y), [10, 20, 30]) .and. has(ls_from(q), [100, 200, 300]), 'ls_from copies components')
    call expect(has(ls_from(c%im), [2, 4, 6]), 'ls_from copies imaginary parts')
    call ls_check(ls_array_copy(ls_from([7._c_float, 8._c_float, 9._c_float]), ps%y))
    call expect(all(nint(ps%y) == [7, 8, 9]) .and. all(nint(ps%x) == [1, 2, 3]) .and. all(nint(q) == [100, 200, 300]), &
      'a copy of the elements into a component')
    call ls_array(ls_from([4._c_float, 5._c_float, 6._c_float]), q)
    call expect(associated(q), 'elements in a pointer to a component')
    call expect(all(nint(q) == [4, 5, 6]) .and. all(nint(ps%w) == [100, 200, 300]), 'the elements in this pointer')
    plain = 1
    q => plain
    call expect(sees(ls_view(q), c_loc(plain)), 'a view of a pointer that pointed to a component before')
  end subroutine

  function is_refused(tensor) result(refused)
    type(ls_tensor), intent(in) :: tensor
    logical :: refused
    refused = ls_is_null(tensor) .and. &
      ls_error_message() == 'ls_view: the array is not contiguous; call ls_from, which copies it'
    call expect(ls_error_set_text(LS_ERR_IO, 'an earlier error') == LS_ERR_IO, 'an earlier error')
  end function

  function sees(tensor, address) result(is_equal)
    type(ls_tensor), intent(in) :: tensor
    type(c_ptr), intent(in) :: address
    logical :: is_equal
    is_equal = c_associated(ls_data(tensor), address)
  end function

  function copy_of(array) result(tensor)
    real(c_float), intent(in) :: array(:, :)
    type(ls_tensor) :: tensor
    tensor = ls_from(array)
  end function

  subroutine operators()
    type(ls_tensor) :: a, b
    type(ls_scope) :: scope
    scope = ls_scope_begin()
    a = ls_from([1._c_double, 2._c_double, 4._c_double])
    b = ls_from([2._c_double, 2._c_double, 2._c_double])
    call expect(has(a + b, [3, 4, 6]) .and. has(a - b, [-1, 0, 2]), '+ and -')
    call expect(has(a * b, [2, 4, 8]) .and. has(4 / a, [4, 2, 1]), '* and /')
    call expect(has(a ** 2, [1, 4, 16]) .and. has(2 ** a, [2, 4, 16]), '**')
    call expect(has(-a, [-1, -2, -4]), 'unary minus')
    call expect(has(1 + a * 2._c_double, [3, 5, 9]) .and. has(10_c_int64_t - a, [9, 8, 6]), 'numbers')
    call expect(has(a > 1, [0, 1, 1]) .and. has(a <= b, [1, 1, 0]), 'comparisons')
    call expect(has(a == b, [0, 1, 0]) .and. has(a /= 4, [1, 1, 0]), 'equality')
    call expect(has(ls_maximum(a, b), [2, 2, 4]) .and. has(ls_add(a, 1), [2, 3, 5]), 'generic names')
    call expect(has(ls_concat([a, b], 2, 0), [1, 2, 4, 2, 2, 2]), 'an array of tensors')
    call expect(ls_allclose(a, a, 0._c_double, 0._c_double) .and. .not. ls_equal(a, b), 'logical results')
    call ls_check(ls_scope_end(scope))
  end subroutine

  function has(tensor, numbers) result(is_equal)
    type(ls_tensor), intent(in) :: tensor
    integer, intent(in) :: numbers(:)
    logical :: is_equal
    is_equal = ls_equal(ls_to(tensor, LS_I32), ls_from(numbers))
  end function

  subroutine custom_operation()
    type(ls_custom_op), target :: op
    type(ls_tensor) :: x(1)
    type(ls_scope) :: scope
    scope = ls_scope_begin()
    op = ls_custom_op(name=ls_c_string('cube'), forward=c_funloc(cube_forward), backward=c_funloc(cube_backward), saved=1)
    x(1) = ls_from([1._c_double, -2._c_double])
    call ls_check(ls_set_requires_grad(x(1), .true.))
    call ls_check(ls_backward(ls_sum(ls_custom(op, x, 1))))
    call expect(has(ls_grad(x(1)), [3, 12]), 'the adjoint')
    call ls_check(ls_gradcheck(c_funloc(apply), x, 1, c_loc(op)))
    op%backward = c_funloc(wrong_backward)
    call expect(ls_gradcheck(c_funloc(apply), x, 1, c_loc(op)) == LS_ERR_MISMATCH, 'a wrong adjoint is found')
    if (ls_scope_end(scope) == LS_ERR_INTERNAL) error stop 'the scope'
  end subroutine

  subroutine closure()
    type(ls_tensor), target :: x(1)
    type(ls_optimizer) :: optimizer
    type(ls_step_info) :: info
    type(ls_scope) :: scope
    real(c_double) :: loss
    scope = ls_scope_begin()
    x(1) = ls_full(ls_shape([1]), LS_F64, 10._c_double)
    call ls_check(ls_set_requires_grad(x(1), .true.))
    optimizer = ls_lbfgs(ls_module(), ls_lbfgs_options(strong_wolfe=.true.))
    call ls_check(ls_optimizer_add_group(optimizer, x, 1))
    call ls_check(ls_optimizer_step_closure(optimizer, c_funloc(parabola), c_loc(x), loss))
    info = ls_optimizer_last_step(optimizer)
    call expect(calls == info%evaluations .and. calls > 1, 'the evaluations')
    call expect(abs(ls_item(x(1)) - 3) < 1e-6_c_double .and. nint(loss) == 49, 'the minimum and the first loss')
    call expect(ls_stop_reason_name(info%reason) /= '', 'a reason as text')
    call ls_optimizer_free(optimizer)
    call ls_check(ls_scope_end(scope))
  end subroutine

  ! A trial with a callback, metrics by name, and options that point to other options.
  subroutine trial()
    type(ls_callback_hooks) :: hooks
    type(ls_callback) :: callbacks(1)
    type(ls_trial_options) :: options
    type(ls_module) :: model
    type(ls_trial) :: run
    type(ls_scope) :: scope
    integer(c_int), target :: epochs
    scope = ls_scope_begin()
    epochs = 0
    model = ls_data_parallel(ls_nn_linear(2, 1), world)
    hooks = ls_callback_hooks(on_end=c_funloc(on_end), release=c_funloc(on_release))
    callbacks(1) = ls_callback_new(hooks, c_loc(epochs))
    options = ls_trial_options(model=model, optimizer=ls_sgd(model, ls_sgd_options(learning_rate=0.1_c_double)), &
      criterion=c_funloc(ls_criterion_mse), comm=world, quiet=.true., train=loader_of(6), &
      callbacks=ls_callback_array(callbacks, 1), callback_count=1, metrics=ls_c_strings(['loss', 'mae ']))
    run = ls_trial_new(options)
    call ls_check(run)
    call ls_check(ls_trial_run(run, 3))
    call expect(epochs == 3, 'a callback reads the state of the trial and its own data')
    call expect(ls_trial_metric(run, 'mae') > 0, 'a metric by name')
    call ls_trial_free(run)
    call expect(released == 1, 'release of a callback')
    call ls_optimizer_free(options%optimizer)
    call ls_loader_free(options%train)
    call ls_module_free(model)
    call ls_check(ls_scope_end(scope))
  end subroutine

  function loader_of(samples) result(loader)
    integer, intent(in) :: samples
    type(ls_loader) :: loader
    loader = ls_loader_new(ls_tensor_dataset(ls_ones(ls_shape([samples, 2]), LS_F32), ls_zeros(ls_shape([samples, 1]), &
      LS_F32)), ls_loader_options(global_batch_size=2, comm=world))
  end function

  subroutine copies(tensor)
    type(ls_tensor), intent(in) :: tensor
    real(c_float) :: copy(3, 2), large(6, 2), turned(2, 3), none(3, 0)
    real(c_double) :: wrong(3, 2)
    real(c_float), pointer :: elements(:, :)
    large = 0
    call ls_check(ls_array_copy(tensor, copy))
    call ls_check(ls_array_copy(tensor, large(1:5:2, :))) ! also into sections
    call expect(all(nint(copy) == nint(large(1:5:2, :))) .and. nint(copy(1, 2)) == 40, 'a copy of the elements')
    call expect(nint(sum(large(2:6:2, :))) == 0, 'elements outside the section')
    call expect(ls_array_copy(tensor, turned) == LS_ERR_SHAPE, 'a copy of another shape')
    call expect(index(ls_error_message(), 'the tensor has shape [3, 2] and the array [2, 3]') > 0, 'the shapes')
    call expect(ls_array_copy(tensor, none) == LS_ERR_SHAPE, 'a copy into an array without elements')
    call expect(ls_array_copy(tensor, wrong) == LS_ERR_ARGUMENT, 'a copy of another type')
    call expect(ls_error_message() == 'ls_array_copy: the tensor is f32 and the array is f64; call ls_to first', &
      'the message of a copy of another type')
    call expect(ls_array_copy(ls_reshape(tensor, ls_shape(6)), copy) == LS_ERR_SHAPE, 'a copy of another rank')
    call expect(ls_error_message() == 'ls_array_copy: the tensor has 1 axes and the array has 2', 'the ranks of a copy')
    call expect(ls_error_set_text(LS_ERR_IO, 'the cause') == LS_ERR_IO, 'an earlier error')
    call expect(ls_array_copy(ls_tensor(), copy) == LS_ERR_IO, 'a copy of a null tensor')
    call expect(ls_array_copy(ls_tensor(), copy) == LS_ERR_IO, 'a second copy of a null tensor')
    call expect(ls_error_message() == 'the cause; ls_array_copy: the tensor is NULL', 'the cause of a null tensor')
    call ls_array(ls_tensor(), elements)
    call expect(.not. associated(elements), 'the elements of a null tensor')
    call expect(ls_error_message() == 'the cause; ls_array: the tensor is NULL', 'the cause after two procedures')
    call expect(ls_error_set_text(LS_ERR_IO, 'f: the tensor is NULL; do X') == LS_ERR_IO, 'an error about a null tensor')
    call expect(ls_array_copy(ls_tensor(), copy) == LS_ERR_IO, 'a copy of a null tensor after an error about one')
    call expect(ls_array_copy(ls_tensor(), copy) == LS_ERR_IO, 'a second copy after this error')
    call expect(ls_error_message() == 'f: the tensor is NULL; do X; ls_array_copy: the tensor is NULL', 'this error as the cause')
    call expect(ls_error_set_text(LS_ERR_IO, '') == LS_ERR_IO, 'an error without a message')
    call expect(ls_array_copy(ls_tensor(), copy) == LS_ERR_IO, 'a copy of a null tensor without a message')
    call expect(ls_array_copy(ls_tensor(), copy) == LS_ERR_IO, 'a second copy without a message')
    call expect(ls_error_message() == 'ls_array_copy: the tensor is NULL', 'the message of a null tensor without a cause')
    call ls_check(ls_array_copy(ls_from(none), none))
  end subroutine

  subroutine lists_of_modules()
    type(ls_module) :: model
    model = ls_sequential_of([ls_nn_linear(2, 3), ls_nn_tanh(), ls_nn_linear(3, 1)])
    call expect(ls_module_child_count(model) == 3, 'the count of modules is the size of the array')
    call ls_module_free(model)
    model = ls_sequential_of([ls_nn_linear(2, 3), ls_nn_tanh()], 3)
    call expect(ls_is_null(model) .and. ls_error_status() == LS_ERR_ARGUMENT, 'a count that is too large')
    call expect(index(ls_error_message(), 'the count is 3, but the array has 2 modules') > 0, 'the counts')
  end subroutine

  subroutine texts()
    character(len=40) :: text
    call expect(ls_version() == '0.1.0', 'the version')
    call expect(ls_dtype_name(LS_BF16) == 'bf16' .and. ls_reduction_name(LS_REDUCTION_MAX) == 'max', 'names')
    call expect(ls_string(c_null_ptr) == '', 'text of a NULL pointer')
    text = 'cpu' ! with trailing blanks
    call ls_check(ls_use_device(text))
    call expect(ls_default_device() == 'cpu', 'text with trailing blanks')
    call expect(ls_string(ls_c_string(text)) == 'cpu' .and. len(ls_string(ls_c_string(text))) == 3, 'a text in C and back')
  end subroutine

  subroutine errors()
    type(ls_scope) :: scope
    type(ls_tensor) :: sum
    scope = ls_scope_begin()
    sum = ls_zeros(ls_shape([2, 3]), LS_F32) + ls_zeros(ls_shape([4]), LS_F32)
    call expect(ls_is_null(sum), 'a failed operation returns a null handle')
    call expect(ls_error_status() == LS_ERR_SHAPE .and. index(ls_error_message(), '[2, 3]') > 0, 'its message')
    call expect(ls_scope_end(scope) == LS_ERR_SHAPE, 'the status of the scope')
    call expect(ls_use_device('nowhere') == LS_ERR_ARGUMENT, 'a device that does not exist')
    call expect(index(ls_error_message(), 'there is no device "nowhere"') > 0, 'the text of the program in a message')
    call expect(ls_error_set_text(LS_ERR_IO, 'a text of Fortran') == LS_ERR_IO, 'ls_error_set_text')
    call expect(ls_error_message() == 'a text of Fortran', 'a text of Fortran')
  end subroutine

  ! Calls on buffers of the program, also asynchronous.
  subroutine buffers()
    real(c_double), target :: numbers(2)
    integer(c_int), target :: ranks(1)
    type(ls_work) :: work
    type(ls_comm) :: half
    integer :: rank, count
    rank = ls_comm_rank(world)
    count = ls_comm_size(world)
    numbers = [real(rank, c_double), 1._c_double]
    ranks = rank
    call ls_check(ls_comm_allreduce(world, c_loc(numbers), c_loc(numbers), 2, LS_F64, LS_REDUCTION_SUM, work))
    call ls_check(ls_comm_allreduce(world, c_loc(ranks), c_loc(ranks), 1, LS_I32, LS_REDUCTION_MAX))
    call ls_check(ls_work_wait(work))
    call expect(nint(numbers(1)) == count * (count - 1) / 2 .and. nint(numbers(2)) == count, 'a sum')
    call expect(ranks(1) == count - 1, 'a maximum')
    call ls_check(ls_comm_split(world, modulo(rank, 2), -rank, half))
    call expect(ls_comm_size(half) == (count + 1 - modulo(rank, 2)) / 2, 'a part')
    call ls_comm_free(half)
  end subroutine
end program
