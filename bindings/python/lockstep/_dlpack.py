"""DLPack: tensors of other libraries without a copy, and the other way around."""
import ctypes
import gc
import sys

import numpy as np

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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
    flags = 0


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h, since DLPack 1.0."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", _Deleter),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


VERSION = (1, 0)
READ_ONLY, IS_COPIED = 1, 2
_structs = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}  # by the names of capsules that were not consumed
_used = {name: b"used_" + name for name in _structs}  # a capsule does not copy its name

_api = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))

class _Export:
    """The memory of an exported tensor, and its capsule until a consumer has taken the memory.

    Consumers drop capsules and call deleters while an exception is pending, for example of a failed operator. Python code would then
    replace this exception with a SystemError. So capsules have no destructor, and the deleter is a C function, which changes the first
    word of the struct. `sweep` frees the exports that no consumer uses any longer: in full garbage collections, before parameters
    move, and in an export if the number of exports has doubled since the last sweep.
    """
    __slots__ = ("managed", "arrays", "item", "holder", "word")

    def __init__(self, managed, arrays, item, capsule):
        self.managed, self.arrays, self.item, self.holder = managed, arrays, item, [capsule]
        self.word = self.first_word()

    def first_word(self):
        return ctypes.c_int64.from_buffer(self.managed).value

    def is_used(self):
        if self.holder and _name_of(self.holder[0]) is None:
            self.holder.clear()  # consumed
        return _references(self.holder) > _ALONE if self.holder else self.first_word() == self.word


# time() writes the time to the address of its argument.
_delete = ctypes.cast(ctypes.CDLL(None).time, _Deleter)
_exported = {}  # by the address of the struct
_used_exports = 0  # the number of exports after the last sweep


def _references(holder):
    return sys.getrefcount(holder[0])


_ALONE = _references([object()])


def sweep():
    """Frees the exported tensors that no consumer uses any longer."""
    global _used_exports
    if not _objects._closing:
        for address in [address for address, export in list(_exported.items()) if not export.is_used()]:
            _exported.pop(address, None)
        _used_exports = len(_exported)


def _after_collection(phase, info):
    """A callback of the garbage collector. Sweeps after full collections, as other collections are frequent."""
    if phase == "stop" and info["generation"] == 2:
        sweep()


gc.callbacks.append(_after_collection)


def _name_of(capsule):
    """The name of a capsule that was not consumed. None for other objects."""
    return next((name for name in _structs if _is_valid(capsule, name)), None)


def device(self):
    """Returns the device of the tensor for DLPack: CPU. Tensors of GPUs are not exported."""
    name = self.device
    if name != "cpu":
        raise BufferError(f"__dlpack__: the tensor is on {name}; copy it with .to('cpu')")
    return (CPU, 0)


def export(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    """Returns a capsule with the tensor's memory, or with a copy if `copy` is true. The consumer keeps the memory.

    The capsule has DLPack 1.0 if `max_version` allows it.
    """
    from lockstep import _tensor
    own = device(self)
    if dl_device is not None and tuple(dl_device) != own:
        raise BufferError(f"__dlpack__: cannot export to device {tuple(dl_device)}: only memory of the CPU, {own}, is exported")
    if len(_exported) >= 2 * _used_exports:  # otherwise many exports would take quadratic time
        sweep()
    name = b"dltensor" if max_version is None or tuple(max_version) < VERSION else b"dltensor_versioned"
    item = _tensor.alias(self.clone() if copy else self)
    ndim = item.ndim
    managed = _structs[name]()
    tensor = managed.tensor
    shape, strides = (ctypes.c_int64 * ndim)(*item.shape), (ctypes.c_int64 * ndim)(*_tensor.strides_of(item))
    tensor.data = int(ffi.cast("intptr_t", lib.ls_data_strided(item._ptr)))
    tensor.device_type, tensor.device_id, tensor.ndim = CPU, 0, ndim
    (tensor.code, tensor.bits), tensor.lanes = _codes[item.dtype], 1
    tensor.shape, tensor.strides = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    if name == b"dltensor_versioned":
        (managed.major, managed.minor), managed.flags = VERSION, IS_COPIED if copy else 0
    address = ctypes.addressof(managed)
    capsule = _new_capsule(address, name, None)
    _exported[address] = _Export(managed, (shape, strides), item, capsule)
    return capsule


class _Imported:
    """Owns a DLManagedTensor of another library."""

    def __init__(self, address, managed):
        self._address, self._managed = address, managed

    def __del__(self):
        if self._managed.deleter and not _objects._closing:
            self._managed.deleter(self._address)


def _capsule_of(source):
    if not hasattr(source, "__dlpack__"):
        return source
    try:
        return source.__dlpack__(max_version=VERSION)
    except TypeError:  # a library from before DLPack 1.0
        return source.__dlpack__()


def _dtype_of(tensor):
    """The name of the dtype of a DLTensor."""
    name = _names.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        kinds = ("int", "uint", "float", "opaque", "bfloat", "complex", "bool")
        kind = f"{kinds[tensor.code]}{tensor.bits}" if tensor.code < len(kinds) else f"DLPack's code {tensor.code} with {tensor.bits} bits"
        lanes = f" with {tensor.lanes} lanes" if tensor.lanes != 1 else ""
        raise TypeError(f"from_dlpack: no dtype for elements of {kind}{lanes}; available: "
                        "float32, float64, float16, bfloat16, int64, int32, uint8, bool. Convert the elements before")
    return name


def from_dlpack(source):
    """Returns a tensor that shares the memory of a tensor of another library, and keeps it.

    Copies the elements if the memory is read-only, if a stride is not positive, or if elements share memory.
    """
    from lockstep import _tensor
    if isinstance(source, np.ndarray) and not source.flags.writeable:
        source = source.copy()  # NumPy exports read-only arrays only since 2.1
    if hasattr(source, "__dlpack_device__") and source.__dlpack_device__()[0] != CPU:
        raise BufferError("from_dlpack: the memory is not on the CPU; copy the tensor to the CPU before")
    capsule = _capsule_of(source)
    kind = _name_of(capsule)
    if kind is None:
        raise TypeError("from_dlpack: expected an object with __dlpack__, or a capsule that was not consumed before")
    pointer = _pointer_of(capsule, kind)
    managed = _structs[kind].from_address(pointer)
    if getattr(managed, "major", 1) != 1:
        raise BufferError(f"from_dlpack: the capsule has DLPack version {managed.major}.{managed.minor}; expected version 1")
    tensor = managed.tensor
    if tensor.device_type != CPU:
        raise BufferError("from_dlpack: the memory is not on the CPU; copy the tensor to the CPU before")
    name = _dtype_of(tensor)
    if tensor.ndim > 8:
        raise _objects.Error(lib.LS_ERR_SHAPE, f"from_dlpack: the tensor has {tensor.ndim} axes, but a tensor has at most 8")
    _set_name(capsule, _used[kind])
    owner = _Imported(pointer, managed)
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    if 0 in shape:
        return _tensor.over_memory(shape, None, _convert.DTYPES[name], 0, owner)
    if strides is not None and _convert.share_elements(shape, strides, 1):
        return _copied(owner, shape, strides, name, address)
    made = _tensor.over_memory(shape, strides, _convert.DTYPES[name], address, owner)
    return made.clone() if managed.flags & READ_ONLY else made


def _copied(owner, shape, strides, name, address):
    from lockstep import _tensor
    dtype = _convert.NUMPY_DTYPES.get(name)
    if dtype is None:
        raise TypeError(f"from_dlpack: elements of {name} with such strides cannot be copied; make a contiguous tensor before")

    class Source:
        __array_interface__ = {"version": 3, "shape": tuple(shape), "typestr": dtype.str, "data": (address, True),
                               "strides": tuple(stride * dtype.itemsize for stride in strides)}
        keep = owner

    return _tensor.tensor(np.asarray(Source()))
