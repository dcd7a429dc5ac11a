"""Communicators: joining a job, and collectives on tensors (with gradients) and on NumPy arrays."""
import pickle
import threading

import numpy as np

from lockstep import _convert, _functions, _objects
from lockstep._library import ffi, lib
from lockstep._objects import NULL, Tensor

Comm = _objects.class_of("ls_comm")


class _Worlds(threading.local):
    comm = None  # the world of this thread


_worlds = _Worlds()


def init(**options):
    """Joins the job and returns the world communicator. Without a job, the world has one rank.

    In a `with` block, the world is left at the end with lockstep.finalize(), unless an exception ends the block. The world does not
    end with its Python object.
    """
    if lib.ls_world():
        raise _objects.Error(lib.LS_ERR_STATE, "init: this thread has joined a job already; call lockstep.finalize() before")
    comm = _functions.function("ls_init")(**options)
    comm._owned = False
    _worlds.comm = comm
    return comm


def world():
    """Returns the world communicator of this thread, or None before init."""
    if _worlds.comm is None and lib.ls_world():
        _worlds.comm = _objects.borrowed_object("ls_comm", lib.ls_world(), None)
    return _worlds.comm


def finalize():
    """Leaves the job: waits until every rank has called this function. The world cannot be used afterwards."""
    status = lib.ls_finalize()
    if _worlds.comm is not None:
        _worlds.comm._ptr = NULL
        _worlds.comm = None
    _check(status)


def from_mpi4py(comm, **options):
    """Returns a communicator of the ranks of an mpi4py communicator."""
    from mpi4py import MPI
    name = MPI.Get_library_version()
    library = "openmpi" if "Open MPI" in name else "mpich" if "MPICH" in name else name.split("\n")[0]
    keep = []
    given = _convert.options("ls_init_options", options, keep) if options else NULL
    handle = ffi.cast("void *", MPI._addressof(comm))
    return _objects.new_object("ls_comm", lib.ls_comm_from_mpi_handle(library.encode(), handle, given), [comm])


def _check(status):
    if status:
        _objects.raise_error(status)


class _Buffer:
    """A dense array for a collective: pointer, number of elements, dtype."""

    def __init__(self, data, is_written=False):
        if data is None:
            raise TypeError("the array is None: pass a NumPy array or a tensor")
        array = np.asarray(data)
        usable = array.dtype in _convert._BY_NUMPY and array.dtype.isnative
        if not usable:
            raise TypeError(f"no dtype for elements of {array.dtype}; available: {', '.join(map(str, _convert._BY_NUMPY))}")
        if is_written and not (isinstance(data, np.ndarray) and data.flags.c_contiguous and data.flags.writeable):
            raise ValueError("the receiving array must be a contiguous NumPy array that is not read-only")
        self.array = np.ascontiguousarray(array).reshape(array.shape)
        self.pointer = ffi.cast("void *", self.array.ctypes.data)
        self.count = self.array.size
        self.dtype = _convert._BY_NUMPY[self.array.dtype]


def _op(op):
    return _convert.enum_value(op, "ls_reduction")


def _own(comm):
    return _convert.object_argument(comm, "ls_comm")


def _with_gradient(name, *arguments):
    return _functions.function(name)(*arguments)


def allreduce(comm, data, op="sum"):
    """Returns the reduction of all ranks' tensors (gradients flow through it) or arrays."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_allreduce", comm, data, op)
    send = _Buffer(data)
    result = np.empty_like(send.array)
    _check(lib.ls_comm_allreduce(_own(comm), send.pointer, _Buffer(result).pointer, send.count, send.dtype, _op(op), NULL))
    return result


def reduce(comm, data, op="sum", root=0):
    """Returns the reduction on rank `root`; on other ranks zeros for tensors, None for arrays."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_reduce", comm, data, op, root)
    send = _Buffer(data)
    result = np.empty_like(send.array)
    _check(lib.ls_comm_reduce(_own(comm), send.pointer, _Buffer(result).pointer, send.count, send.dtype, _op(op), root, NULL))
    return result if comm.rank == root else None


def broadcast(comm, data, root=0):
    """Returns rank root's tensor, or copies rank root's array into the arrays of the other ranks and returns the array."""
    if data is None or isinstance(data, Tensor):
        return _with_gradient("ls_broadcast", comm, data, root)
    buffer = _Buffer(data, is_written=True)
    _check(lib.ls_comm_broadcast(_own(comm), buffer.pointer, buffer.count, buffer.dtype, root, NULL))
    return data


def allgather(comm, data, axis=0):
    """Returns the concatenation of all ranks' tensors along the axis, or the stack [ranks, ...] of arrays of one shape."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_allgather", comm, data, axis)
    send = _Buffer(data)
    result = np.empty((comm.size, *send.array.shape), send.array.dtype)
    _check(lib.ls_comm_allgather(_own(comm), send.pointer, _Buffer(result).pointer, send.count, send.dtype, NULL))
    return result


def gather(comm, data, axis=0, root=0):
    """Does the same as allgather on rank `root`; other ranks get a tensor of size 0, or None for arrays."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_gather", comm, data, axis, root)
    send = _Buffer(data)
    result = np.empty((comm.size if comm.rank == root else 0, *send.array.shape), send.array.dtype)
    _check(lib.ls_comm_gather(_own(comm), send.pointer, _Buffer(result).pointer, send.count, send.dtype, root, NULL))
    return result if comm.rank == root else None


def scatter(comm, data, root=0, axis=0, count=None, like=None):
    """Returns this rank's part of rank root's tensor (`count` positions along the axis), or row of an array [ranks, ...].

    For arrays, the other ranks pass `like`, an array of the shape and dtype of a row.
    """
    if count is not None or isinstance(data, Tensor):
        return _with_gradient("ls_scatter", comm, data, axis, count, root)
    if comm.rank != root and like is None:
        raise TypeError("scatter: like is None: pass an array of the shape and dtype of a row; for a tensor, pass count on every rank")
    if comm.rank == root:
        send = _Buffer(data)
        if send.array.shape[:1] != (comm.size,):
            raise ValueError(f"scatter: the array has shape {send.array.shape}, but its first axis must have {comm.size} rows, one for each rank")
    row = np.empty_like(send.array[0] if comm.rank == root else np.asarray(like))
    receive = _Buffer(row)
    pointer = send.pointer if comm.rank == root else NULL
    _check(lib.ls_comm_scatter(_own(comm), pointer, receive.pointer, receive.count, receive.dtype, root, NULL))
    return row


def reduce_scatter(comm, data, op="sum", axis=0):
    """Returns this rank's part of the reduction: along the axis of a tensor, or its row of an array [ranks, ...]."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_reduce_scatter", comm, data, axis, op)
    send = _Buffer(data)
    _rows("reduce_scatter", comm, send.array)
    result = np.empty_like(send.array[0])
    _check(lib.ls_comm_reduce_scatter(_own(comm), send.pointer, _Buffer(result).pointer, result.size, send.dtype, _op(op), NULL))
    return result


def alltoall(comm, data, gather_axis=0, scatter_axis=0, count=None):
    """Sends row r of an array [ranks, ...] to rank r, and returns the received rows. For tensors, see ls_alltoall."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_alltoall", comm, data, gather_axis, scatter_axis, count)
    send = _Buffer(data)
    _rows("alltoall", comm, send.array)
    result = np.empty_like(send.array)
    _check(lib.ls_comm_alltoall(_own(comm), send.pointer, _Buffer(result).pointer, result[0].size, send.dtype, NULL))
    return result


def _rows(name, comm, array):
    if array.shape[:1] != (comm.size,):
        raise ValueError(f"{name}: the array has shape {array.shape}, but its first axis must have {comm.size} rows, one for each rank")


def send(comm, data, dest, tag=0):
    """Sends a tensor (gradients return from `dest`) or an array to rank `dest`."""
    if isinstance(data, Tensor):
        return _with_gradient("ls_send", comm, data, dest, tag)
    buffer = _Buffer(data)
    _check(lib.ls_comm_send(_own(comm), buffer.pointer, buffer.count, buffer.dtype, dest, tag, NULL))


def recv(comm, data, source, tag=0):
    """Receives an array from rank `source` into the array `data`, and returns it. For tensors, see lockstep.recv."""
    buffer = _Buffer(data, is_written=True)
    _check(lib.ls_comm_recv(_own(comm), buffer.pointer, buffer.count, buffer.dtype, source, tag, NULL))
    return data


def barrier(comm):
    """Returns when every rank has made this call."""
    _check(lib.ls_comm_barrier(_own(comm), NULL))


def broadcast_object(comm, value=None, root=0):
    """Returns rank root's object on every rank. Objects are pickled, so trust the ranks of the job."""
    own = ffi.new("ls_object *")
    if comm.rank == root:
        data = pickle.dumps(value)
        buffer = ffi.new("char[]", data)
        own.data, own.bytes = buffer, len(data)
    _check(lib.ls_comm_broadcast_object(_own(comm), own, root))
    if comm.rank == root:
        return value
    try:
        return pickle.loads(bytes(ffi.buffer(own.data, own.bytes)))
    finally:
        lib.ls_object_free(own)


def _leave(comm, kind, *error):
    if comm is not _worlds.comm:
        comm.close()
    elif kind is None:
        finalize()
    return False


def install():
    for made in (allreduce, reduce, broadcast, allgather, gather, scatter, reduce_scatter, alltoall, send, recv, barrier, broadcast_object):
        setattr(Comm, made.__name__, made)
    init.__doc__ = init.__doc__.rstrip() + _convert.options_text("ls_init_options")
    Comm.rank = property(lambda self: lib.ls_comm_rank(_own(self)))
    Comm.size = property(lambda self: lib.ls_comm_size(_own(self)))
    Comm.local_rank = property(lambda self: lib.ls_comm_local_rank(_own(self)))
    Comm.backend = property(lambda self: ffi.string(lib.ls_comm_backend(_own(self))).decode())
    Comm.__exit__ = _leave
    Comm.__repr__ = lambda self: f"<Comm rank {self.rank} of {self.size} ({self.backend})>" if self._ptr else "<closed Comm>"
