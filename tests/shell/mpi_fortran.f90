! A Fortran program with an MPI of its own: communicators of Lockstep over its communicators, through the C interface.
program mpi_fortran
  use, intrinsic :: iso_c_binding
  use mpi
  implicit none

  interface
    type(c_ptr) function ls_comm_from_mpi_fint(comm, options) bind(C)
      import c_ptr, c_int
      integer(c_int), value :: comm
      type(c_ptr), value :: options
    end function
    integer(c_int) function ls_comm_rank(comm) bind(C)
      import c_ptr, c_int
      type(c_ptr), value :: comm
    end function
    integer(c_int) function ls_comm_size(comm) bind(C)
      import c_ptr, c_int
      type(c_ptr), value :: comm
    end function
    integer(c_int) function ls_comm_allreduce(comm, send, receive, count, dtype, reduction, work) bind(C)
      import c_ptr, c_int, c_size_t
      type(c_ptr), value :: comm, send, receive, work
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype, reduction
    end function
    subroutine ls_comm_free(comm) bind(C)
      import c_ptr
      type(c_ptr), value :: comm
    end subroutine
  end interface

  integer, parameter :: LS_F64 = 1, LS_SUM = 0
  integer :: code, rank, half
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_split(MPI_COMM_WORLD, modulo(rank, 2), -rank, half, code) ! the last rank first
  call add_over(MPI_COMM_WORLD)
  call add_over(half)
  if (c_associated(ls_comm_from_mpi_fint(MPI_COMM_NULL, c_null_ptr))) error stop 'MPI_COMM_NULL has ranks'
  call MPI_Comm_free(half, code)
  call MPI_Finalize(code)

contains

  ! The sum of the ranks over an MPI communicator.
  subroutine add_over(mpi_comm)
    integer, intent(in) :: mpi_comm
    type(c_ptr) :: comm
    integer :: mine, ranks, failed
    real(c_double), target :: number(1)
    call MPI_Comm_rank(mpi_comm, mine, failed)
    call MPI_Comm_size(mpi_comm, ranks, failed)
    comm = ls_comm_from_mpi_fint(mpi_comm, c_null_ptr)
    if (.not. c_associated(comm)) error stop 'no communicator'
    if (ls_comm_rank(comm) /= mine .or. ls_comm_size(comm) /= ranks) error stop 'another rank or size'
    number(1) = mine
    if (ls_comm_allreduce(comm, c_loc(number), c_loc(number), 1_c_size_t, LS_F64, LS_SUM, c_null_ptr) /= 0) &
      error stop 'no sum'
    if (number(1) /= ranks * (ranks - 1) / 2) error stop 'a wrong sum'
    call ls_comm_free(comm)
  end subroutine
end program
