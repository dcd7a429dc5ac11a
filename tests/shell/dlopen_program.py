"""Opens the library whose path is given with ctypes and joins the job: computes a mean over the ranks, and prints a line."""
import ctypes
import sys

F64, SUM = 1, 0

library = ctypes.CDLL(sys.argv[1])
for name in ("ls_init", "ls_error_message", "ls_comm_backend"):
    getattr(library, name).restype = ctypes.c_void_p if name == "ls_init" else ctypes.c_char_p
library.ls_comm_rank.argtypes = library.ls_comm_size.argtypes = library.ls_comm_backend.argtypes = [ctypes.c_void_p]
library.ls_comm_allreduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                      ctypes.c_int, ctypes.c_void_p]


def good(status):
    if status != 0:
        sys.exit(library.ls_error_message().decode())


world = library.ls_init(None)
if world is None:
    sys.exit(library.ls_error_message().decode())
rank, size = library.ls_comm_rank(world), library.ls_comm_size(world)
values = (ctypes.c_double * 1000)(*range(rank, rank + 1000))
good(library.ls_comm_allreduce(world, values, values, len(values), F64, SUM, None))
assert list(values) == [size * i + size * (size - 1) / 2 for i in range(1000)]
assert library.ls_comm_allreduce(None, values, values, len(values), F64, SUM, None) != 0
assert b"ls_comm_allreduce" in library.ls_error_message()
backend = library.ls_comm_backend(world).decode()
good(library.ls_finalize())
if rank == 0:
    print(f"{size} ranks of {backend}")
