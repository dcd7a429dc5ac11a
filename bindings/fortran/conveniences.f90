  real(c_double), parameter :: LS_ZERO = tiny(1.0_c_double)

  ! ls_shape([rows, columns]) or ls_shape(rows, columns), and ls_axes([0, 1]) or ls_axes(0, 1). Axes count from 0, as in C,
  ! and the last axis is contiguous in memory. The arguments are class(*): with specific kinds, a call with mixed integer
  ! kinds would select the structure constructor.
  interface ls_shape
    procedure shape_of_i4, shape_of_i8, shape_of_numbers
  end interface
  interface ls_axes
    procedure axes_of_i4, axes_of_i8, axes_of_numbers
  end interface
  private :: shape_of_i4, shape_of_i8, shape_of_numbers, axes_of_i4, axes_of_i8, axes_of_numbers, append, c_text, reversed, &
    view_of, elements_of, has_layout, elements_to_copy, missing_status, stop_with_message, set_error, rename_error, decimal, &
    list, of_rank

contains

  pure function shape_of_i8(size) result(returned)
    integer(c_int64_t), intent(in) :: size(:)
    type(ls_shape) :: returned
    integer :: count
    count = min(ubound(size, 1), LS_MAX_DIMS)
    returned%ndim = ubound(size, 1)
    returned%size(:count) = size(:count)
  end function

  pure function shape_of_i4(size) result(returned)
    integer(c_int), intent(in) :: size(:)
    type(ls_shape) :: returned
    returned = shape_of_i8(int(size, c_int64_t))
  end function

  pure function shape_of_numbers(a, b, c, d, e, f, g, h) result(returned)
    class(*), intent(in) :: a
    class(*), intent(in), optional :: b, c, d, e, f, g, h
    type(ls_shape) :: returned
    call append(returned, a)
    if (present(b)) call append(returned, b)
    if (present(c)) call append(returned, c)
    if (present(d)) call append(returned, d)
    if (present(e)) call append(returned, e)
    if (present(f)) call append(returned, f)
    if (present(g)) call append(returned, g)
    if (present(h)) call append(returned, h)
  end function

  ! Appends an integer as a size. A value of any other type becomes an invalid size, which the library refuses.
  pure subroutine append(shape, number)
    type(ls_shape), intent(inout) :: shape
    class(*), intent(in) :: number
    shape%ndim = shape%ndim + 1
    select type (number)
    type is (integer(c_int8_t))
      shape%size(shape%ndim) = number
    type is (integer(c_int16_t))
      shape%size(shape%ndim) = number
    type is (integer(c_int))
      shape%size(shape%ndim) = number
    type is (integer(c_int64_t))
      shape%size(shape%ndim) = number
    class default
      shape%size(shape%ndim) = -huge(shape%size)
    end select
  end subroutine

  pure function axes_of_i8(axis) result(returned)
    integer(c_int64_t), intent(in) :: axis(:)
    type(ls_axes) :: returned
    integer :: count
    integer(c_int64_t), parameter :: largest = huge(returned%axis)
    count = min(ubound(axis, 1), LS_MAX_DIMS)
    returned%count = ubound(axis, 1)
    returned%axis(:count) = int(max(-largest, min(largest, axis(:count))), c_int)
  end function

  pure function axes_of_i4(axis) result(returned)
    integer(c_int), intent(in) :: axis(:)
    type(ls_axes) :: returned
    returned = axes_of_i8(int(axis, c_int64_t))
  end function

  pure function axes_of_numbers(a, b, c, d, e, f, g, h) result(returned)
    class(*), intent(in) :: a
    class(*), intent(in), optional :: b, c, d, e, f, g, h
    type(ls_axes) :: returned
    type(ls_shape) :: numbers
    numbers = shape_of_numbers(a, b, c, d, e, f, g, h)
    returned = axes_of_i8(numbers%size(:numbers%ndim))
  end function

  ! The text in front of trailing blanks, with the terminator of C.
  pure function c_text(text) result(characters)
    character(*), intent(in) :: text
    character(kind=c_char) :: characters(len_trim(text) + 1)
    integer :: i
    do i = 1, len_trim(text)
      characters(i) = text(i:i)
    end do
    characters(len_trim(text) + 1) = c_null_char
  end function

  ! Returns a C string as a Fortran string. It is empty if the pointer is NULL.
  function ls_string(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: i, length
    interface
      pure function c_strlen(string) bind(c, name="strlen") result(length)
        import
        type(c_ptr), value, intent(in) :: string
        integer(c_size_t) :: length
      end function
    end interface
    length = 0
    if (c_associated(pointer)) then
      length = int(c_strlen(pointer))
      call c_f_pointer(pointer, characters, [length])
    end if
    allocate (character(len=length) :: text)
    do i = 1, length
      text(i:i) = characters(i)
    end do
  end function

  ! Returns the text without trailing blanks as a C string for a field of an options type. The memory is never freed: call
  ! this function once for each text, outside loops.
  function ls_c_string(text) result(pointer)
    character(*), intent(in) :: text
    type(c_ptr) :: pointer
    character(kind=c_char), pointer :: characters(:)
    allocate (characters(len_trim(text) + 1))
    characters = c_text(text)
    pointer = c_loc(characters)
  end function

  ! Returns several texts as a C array of strings that ends with NULL. The memory is never freed.
  function ls_c_strings(texts) result(pointer)
    character(*), intent(in) :: texts(:)
    type(c_ptr) :: pointer
    type(c_ptr), pointer :: pointers(:)
    integer :: i
    allocate (pointers(size(texts) + 1))
    do i = 1, size(texts)
      pointers(i) = ls_c_string(texts(i))
    end do
    pointers(size(texts) + 1) = c_null_ptr
    pointer = c_loc(pointers)
  end function

  ! Returns the tensors of a C array, such as the fields of ls_custom_call. The pointer is valid as long as the C array.
  function ls_tensors(pointer, count) result(tensors)
    type(c_ptr), intent(in) :: pointer
    integer(c_int), intent(in) :: count
    type(ls_tensor), pointer :: tensors(:)
    call c_f_pointer(pointer, tensors, [count])
  end function

  ! ls_check(status) and ls_check(handle) stop the program with the error message after a failed call. The message begins
  ! with the text `where` if it is present and not blank.
  subroutine check_status(status, where)
    integer(c_int), intent(in) :: status
    character(*), intent(in), optional :: where
    if (status == LS_OK) return
    ! The stored error belongs to another call if it has a different status.
    if (ls_error_status() /= status) call set_error(status, ls_status_name(status))
    call stop_with_message(where)
  end subroutine

  ! `stop 1` would write another line.
  subroutine stop_with_message(where)
    use, intrinsic :: iso_fortran_env, only: error_unit
    character(*), intent(in), optional :: where
    character(len=:), allocatable :: prefix
    interface
      subroutine c_exit(status) bind(c, name="exit")
        import
        integer(c_int), value, intent(in) :: status
      end subroutine
    end interface
    prefix = "lockstep" // of_rank() // ": "
    if (present(where)) then
      if (where /= "") prefix = prefix // trim(where) // ": "
    end if
    write (error_unit, '(a)') prefix // ls_error_message()
    flush (error_unit)
    call c_exit(1)
  end subroutine

  ! Returns " (rank N)" if ls_init or the MPI launcher has given this process a rank, otherwise "".
  function of_rank() result(text)
    character(len=:), allocatable :: text
    character(len=12) :: rank
    integer :: length
    length = 0
    if (.not. ls_is_null(ls_world())) then
      write (rank, '(i0)') ls_comm_rank(ls_world())
      length = len_trim(rank)
    end if
    if (length == 0) call get_environment_variable("OMPI_COMM_WORLD_RANK", rank, length)
    if (length == 0) call get_environment_variable("PMI_RANK", rank, length)
    text = ""
    if (length > 0) text = " (rank " // trim(rank) // ")"
  end function

  ! ls_module *ls_sequential_of(ls_module *const *modules, int count). The default of `count` is the size of the array.
  function ls_sequential_of(modules, count) result(returned)
    type(ls_module), intent(in) :: modules(:)
    integer(c_int), intent(in), optional :: count
    type(ls_module) :: returned
    integer(c_int) :: used
    integer :: i
    used = size(modules)
    if (present(count)) used = count
    if (used <= size(modules)) then
      returned = ls_sequential_of_c(modules, used)
    else
      do i = 1, size(modules)
        call ls_module_free(modules(i))
      end do
      call set_error(LS_ERR_ARGUMENT, "ls_sequential_of: the count is " // decimal(used) // ", but the array has " // &
        decimal(size(modules)) // " modules; omit the count")
    end if
  end function

  ! The sizes of a Fortran array in the order of C: its last axis comes first.
  pure function reversed(size) result(returned)
    integer(c_int64_t), intent(in) :: size(:)
    type(ls_shape) :: returned
    returned = shape_of_i8(size(ubound(size, 1):1:-1))
  end function

  ! Views an array in place. For a component of an array of derived types and for z%im, gfortran 12 returns .true. from
  ! is_contiguous and passes the address of the first component. The distance of the elements shows such an array. If it has
  ! one element, it looks like a contiguous array.
  function view_of(shape, dtype, first_element, last_element, element_size, is_dense) result(tensor)
    type(ls_shape), intent(in) :: shape
    integer(c_int), intent(in) :: dtype, element_size
    type(c_ptr), intent(in) :: first_element, last_element
    logical, intent(in) :: is_dense
    type(ls_tensor) :: tensor
    integer(c_intptr_t) :: first, last, distance
    first = transfer(first_element, first)
    last = transfer(last_element, last)
    distance = max(product(shape%size(:shape%ndim)) - 1, 0_c_int64_t) * element_size
    if (is_dense .and. last - first == distance) then
      tensor = ls_from_memory(shape, dtype, first_element, c_null_funptr)
    else
      call set_error(LS_ERR_ARGUMENT, "ls_view: the array is not contiguous; call ls_from, which copies it")
    end if
  end function

  ! Sets this thread's error. ls_error_set_text returns the status that it was given.
  subroutine set_error(status, text)
    integer(c_int), intent(in) :: status
    character(*), intent(in) :: text
    integer(c_int) :: same
    same = ls_error_set_text(status, text)
    if (same /= status) error stop "lockstep: ls_error_set_text returns another status"
  end subroutine

  ! Fails because the tensor is NULL: the function that should have created it failed, or the program passed NULL. As in C,
  ! the message is this thread's last error, followed by "the tensor is NULL".
  function missing_status(call) result(status)
    character(*), intent(in) :: call
    integer(c_int) :: status
    character(len=:), allocatable :: text
    integer :: at
    character(*), parameter :: what = ": the tensor is NULL"
    status = ls_error_status()
    if (status == LS_OK) status = LS_ERR_ARGUMENT
    text = ls_error_message()
    if (text /= "") text = "; " // text
    ! Removes the text that an earlier call of this function appended.
    at = max(index(text, "; ls_array", back=.true.), 1)
    if (text(at:) == "; ls_array" // what .or. text(at:) == "; ls_array_copy" // what) text = text(:at - 1)
    text = text // "; " // call // what
    call set_error(status, text(3:))
  end function

  ! Puts the name of the Fortran procedure in place of the C function's name at the beginning of the error message.
  subroutine rename_error(function_name, call)
    character(*), intent(in) :: function_name, call
    character(len=:), allocatable :: text
    text = ls_error_message()
    if (index(text, function_name // ":") /= 1) return
    call set_error(ls_error_status(), call // text(len(function_name) + 1:))
  end subroutine

  ! Returns whether a Fortran array pointer of this type and rank can point to the elements of the tensor. If not, sets
  ! this thread's error. `call` is the name of the procedure that the program called.
  function has_layout(call, tensor, dtype, rank, size) result(returned)
    character(*), intent(in) :: call
    type(ls_tensor), intent(in) :: tensor
    integer(c_int), intent(in) :: dtype, rank
    integer(c_int64_t), intent(out) :: size(:)
    logical :: returned
    type(ls_shape) :: shape
    integer(c_int) :: status
    size = 0
    returned = .false.
    if (ls_is_null(tensor)) then
      status = missing_status(call)
      return
    end if
    shape = ls_shape_of(tensor)
    if (ls_dtype_of(tensor) /= dtype) then
      call set_error(LS_ERR_ARGUMENT, call // ": the tensor is " // ls_dtype_name(ls_dtype_of(tensor)) // &
        " and the array is " // ls_dtype_name(dtype) // "; call ls_to first")
    else if (shape%ndim /= rank) then
      call set_error(LS_ERR_SHAPE, call // ": the tensor has " // decimal(shape%ndim) // " axes and the array has " // &
        decimal(rank))
    else if (.not. ls_is_contiguous(tensor)) then
      call set_error(LS_ERR_ARGUMENT, call // ": the tensor is not contiguous; call ls_contiguous first")
    else
      size = shape%size(rank:1:-1)
      returned = .true.
      return
    end if
    ! If the tensor's scope has ended, ls_shape_of fails again and sets the library's error, which explains the cause better.
    shape = ls_shape_of(tensor)
    call rename_error("ls_shape_of", call)
  end function

  ! Returns the address of the tensor's elements for the array pointer of ls_array, with this type and rank. Returns NULL and
  ! sets this thread's error on failure. The result is also NULL if the tensor has no elements.
  function elements_of(tensor, dtype, rank, size) result(data)
    type(ls_tensor), intent(in) :: tensor
    integer(c_int), intent(in) :: dtype, rank
    integer(c_int64_t), intent(out) :: size(:)
    type(c_ptr) :: data
    data = c_null_ptr
    if (.not. has_layout("ls_array", tensor, dtype, rank, size)) return
    data = ls_data(tensor)
    if (.not. c_associated(data)) call rename_error("ls_data", "ls_array")
  end function

  ! Returns LS_OK if ls_array_copy can copy the tensor into an array of this shape, and sets `data` to the address of the
  ! tensor's elements, or to NULL if the tensor has no elements. Otherwise sets `data` to NULL and sets this thread's error.
  function elements_to_copy(tensor, dtype, array, data) result(status)
    type(ls_tensor), intent(in) :: tensor
    integer(c_int), intent(in) :: dtype
    integer, intent(in) :: array(:)
    type(c_ptr), intent(out) :: data
    integer(c_int) :: status
    integer(c_int64_t) :: size_of(size(array))
    data = c_null_ptr
    status = LS_OK
    if (.not. has_layout("ls_array_copy", tensor, dtype, size(array), size_of)) then
      status = ls_error_status()
    else if (any(size_of /= array)) then
      status = ls_error_set_text(LS_ERR_SHAPE, "ls_array_copy: in the order of Fortran, the tensor has shape " // &
        list(int(size_of)) // " and the array " // list(array))
    else if (all(array > 0)) then
      data = ls_data(tensor)
      if (c_associated(data)) return
      call rename_error("ls_data", "ls_array_copy")
      status = ls_error_status()
    end if
  end function

  function list(numbers) result(text)
    integer, intent(in) :: numbers(:)
    character(len=:), allocatable :: text
    integer :: i
    text = "[" // decimal(numbers(1))
    do i = 2, size(numbers)
      text = text // ", " // decimal(numbers(i))
    end do
    text = text // "]"
  end function

  function decimal(number) result(text)
    integer(c_int), intent(in) :: number
    character(len=:), allocatable :: text
    character(len=12) :: digits
    write (digits, '(i0)') number
    text = trim(digits)
  end function
