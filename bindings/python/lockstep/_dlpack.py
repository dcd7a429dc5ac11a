"""DLPack: tensors of other libraries without a copy, and the other way around."""
import ctypes

from lockstep import _convert, _objects
from lockstep._library import ffi, lib

CPU = 1
_codes = {"f32": (2, 32), "f64": (2, 64), "f16": (2, 16), "bf16": (4, 16), "i64": (0, 64), "i32": (0, 32), "u8": (1, 8), "bool": (6, 8)}
_names = {code: name for name, code in _codes.items()}


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_api = ctypes.pythonapi
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _api))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
NEW, USED = b"dltensor", b"used_dltensor"

_exported = {}  # what consumers still use, by the address of the DLManagedTensor


@_Deleter
def _delete(managed):
    _exported.pop(ctypes.addressof(managed.contents), None)


@_Destructor
def _destroy(capsule):
    """A capsule that nobody has consumed ends with its tensor."""
    if not _objects._closing and _is_valid(capsule, NEW):
        _exported.pop(_pointer_in(capsule, NEW), None)


def device(self):
    """Returns the device of the tensor for DLPack: CPU. Tensors of GPUs are not exported."""
    name = self.device
    if name != "cpu":
        raise BufferError(f"__dlpack__: the tensor is on {name}; copy it with .to('cpu')")
    return (CPU, 0)


def export(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    """Returns a capsule with the tensor's memory, without a copy. The consumer keeps the memory."""
    from lockstep import _tensor
    if dl_device is not None and tuple(dl_device) != device(self):
        raise BufferError("__dlpack__: only memory of the CPU is exported")
    device(self)
    item = _tensor.alias(self.clone() if copy else self)
    ndim = item.ndim
    managed = _Managed()
    tensor = managed.tensor
    shape, strides = (ctypes.c_int64 * ndim)(*item.shape), (ctypes.c_int64 * ndim)(*_tensor.strides_of(item))
    tensor.data = int(ffi.cast("intptr_t", lib.ls_data_strided(item._ptr)))
    tensor.device_type, tensor.device_id, tensor.ndim = CPU, 0, ndim
    (tensor.code, tensor.bits), tensor.lanes = _codes[item.dtype], 1
    tensor.shape, tensor.strides = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, item)
    return _new_capsule(address, NEW, _destroy)


class _Imported:
    """Owns a DLManagedTensor of another library."""

    def __init__(self, managed):
        self._managed = managed

    def __del__(self):
        if self._managed.contents.deleter and not _objects._closing:
            self._managed.contents.deleter(self._managed)


def from_dlpack(source):
    """Returns a tensor that shares the memory of a tensor of another library, and keeps it.

    Copies the elements if a stride is not positive or if elements share memory.
    """
    from lockstep import _tensor
    if hasattr(source, "__dlpack_device__") and source.__dlpack_device__()[0] != CPU:
        raise BufferError("from_dlpack: the memory is not on the CPU; copy the tensor to the CPU before")
    capsule = source.__dlpack__() if hasattr(source, "__dlpack__") else source
    try:
        managed = ctypes.cast(_pointer_of(capsule, NEW), ctypes.POINTER(_Managed))
    except (ValueError, ctypes.ArgumentError):
        raise TypeError("from_dlpack: expected an object with __dlpack__, or a capsule that was not consumed before") from None
    tensor = managed.contents.tensor
    name = _names.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise TypeError(f"from_dlpack: no dtype for DLPack's code {tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes")
    if tensor.ndim > 8:
        raise _objects.Error(lib.LS_ERR_SHAPE, f"from_dlpack: the tensor has {tensor.ndim} axes, but a tensor has at most 8")
    _set_name(capsule, USED)
    owner = _Imported(managed)
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    if 0 in shape:
        return _tensor.over_memory(shape, None, _convert.DTYPES[name], 0, owner)
    if strides is not None and _convert.share_elements(shape, strides, 1):
        return _copied(owner, shape, strides, name, address)
    return _tensor.over_memory(shape, strides, _convert.DTYPES[name], address, owner)


def _copied(owner, shape, strides, name, address):
    import numpy as np

    from lockstep import _tensor
    dtype = _convert.NUMPY_DTYPES.get(name)
    if dtype is None:
        raise TypeError(f"from_dlpack: elements of {name} with such strides cannot be copied; make a contiguous tensor before")

    class Source:
        __array_interface__ = {"version": 3, "shape": tuple(shape), "typestr": dtype.str, "data": (address, True),
                               "strides": tuple(stride * dtype.itemsize for stride in strides)}
        keep = owner

    return _tensor.tensor(np.asarray(Source()))
