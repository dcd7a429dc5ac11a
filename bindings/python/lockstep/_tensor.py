"""Tensors: creation from NumPy, views of their elements, operators, indexing."""
import numpy as np

from lockstep import _convert, _dlpack, _functions, _objects
from lockstep._library import ffi, lib
from lockstep._objects import NULL, Tensor, new_tensor

_held = {}  # arrays whose memory tensors use, until the library releases it


@ffi.callback("void(void *, void *)")
def _release_array(data, user):
    _held.pop(int(ffi.cast("intptr_t", user)), None)


def over_memory(shape, strides, dtype, address, owner):
    """A tensor that uses the memory at `address`, and keeps `owner` until nothing uses the memory any longer."""
    number = next(_convert._numbers)
    _held[number] = owner
    stride = NULL if strides is None else ffi.new("int64_t[]", strides or [0])
    return new_tensor(lib.ls_from_strided(_convert.shape(shape), stride, dtype, ffi.cast("void *", address), _release_array,
                                          ffi.cast("void *", number)))


def _for_library(array, dtype=None):
    """The array in a dtype of the library, in native byte order. It is the same array if it has them."""
    array = np.asarray(array)
    if array.dtype in _convert._BY_NUMPY:  # which has native byte orders only
        return array
    if array.dtype in _convert.WIDER:
        wider = _convert.WIDER[array.dtype]
        if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"tensor: {array.max()} does not fit into i64")
        array = array.astype(wider)
    if array.dtype.newbyteorder("=") not in _convert._BY_NUMPY:
        raise TypeError(f"tensor: no dtype for elements of {array.dtype}; available: {', '.join(map(str, _convert._BY_NUMPY))}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def tensor(data, dtype=None):
    """Returns a tensor with a copy of `data`: an array, a number or a list. Lists of Python floats become f32, of integers i64."""
    if isinstance(data, Tensor):
        made = data.clone()
        return made if dtype is None else made.to(dtype)
    array = _for_library(data)
    if array.dtype == np.float64 and dtype is None and not isinstance(data, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).reshape(array.shape)
    made = new_tensor(lib.ls_from(_convert.shape(array.shape), _convert._BY_NUMPY[array.dtype],
                                  ffi.from_buffer(array) if array.size else NULL))
    return made if dtype is None else made.to(dtype)


def from_numpy(array):
    """Returns a tensor that shares the memory of the array, and keeps it alive.

    Copies the elements if they cannot be shared: if the array is read-only, unaligned, or in another byte order, if it has negative
    strides or repeats elements (np.broadcast_to), or if its dtype becomes a wider one (int8, int16, uint16: i32; uint32, uint64: i64).
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, not {type(array).__name__}; lockstep.tensor copies numbers and lists")
    shared = _for_library(array)
    if shared.flags.carray and shared.size and shared.ndim <= 8:
        return over_memory(shared.shape, None, _convert._BY_NUMPY[shared.dtype], ffi.from_buffer(shared), shared)
    if shared.ndim > 8:
        raise _objects.Error(lib.LS_ERR_SHAPE, f"from_numpy: the array has {shared.ndim} axes, but a tensor has at most 8")
    if not (shared.flags.writeable and shared.flags.aligned) or any(stride % shared.itemsize for stride in shared.strides) or \
            (shared.size and _convert.share_elements(shared.shape, shared.strides, shared.itemsize)):
        return tensor(shared)
    strides = [stride // shared.itemsize for stride in shared.strides] if shared.size else None
    return over_memory(shared.shape, strides, _convert._BY_NUMPY[shared.dtype], shared.ctypes.data, shared)


def outside_scopes(pointer):
    """Moves a new tensor out of all scopes, so that its Python object owns it."""
    frame, depth = _objects.state.frame, 0
    while frame is not None and not frame._is_callback:
        depth, frame = depth + 1, frame._outer
    for _ in range(depth if frame is None else 64):  # below a callback, the library has scopes of its own
        lib.ls_keep(pointer)
    return _objects.owned_tensor(pointer)


def alias(item):
    """A tensor of the same memory that lives as long as its Python object, in no scope."""
    pointer = lib.ls_alias(_convert.tensor_argument(item))
    if not pointer:
        _objects.raise_error()
    return outside_scopes(pointer)


class _Memory:
    """The memory of a tensor for NumPy. NumPy's array keeps this object, which keeps the memory."""
    __slots__ = ("__array_interface__", "_alias")

    def __init__(self, item, dtype):
        self._alias = alias(item)
        address = lib.ls_data_strided(self._alias._ptr)
        if not address and item.numel():
            _objects.raise_error()
        width = dtype.itemsize
        strides = tuple(stride * width for stride in strides_of(item))
        self.__array_interface__ = {"version": 3, "shape": item.shape, "typestr": dtype.str, "strides": strides,
                                    "data": (int(ffi.cast("intptr_t", address)), False)}


def strides_of(item):
    return tuple(lib.ls_stride(item._ptr, axis) for axis in range(lib.ls_ndim(item._ptr)))


# ---- methods ----
def _numpy(self):
    """Returns a NumPy array of the tensor's memory, without a copy, also if the tensor is not contiguous.

    The array keeps the memory. After a change of its elements, call .mark_changed(). bf16 has no dtype in NumPy: use .to("f32").
    """
    dtype = _convert.NUMPY_DTYPES.get(self.dtype)
    if dtype is None:
        raise TypeError(f"numpy: NumPy has no dtype {self.dtype}; convert the tensor with .to('f32')")
    return np.asarray(_Memory(self, dtype))


def _array(self, dtype=None, copy=None):
    array = _numpy(self)
    return array.copy() if copy else array if dtype is None else array.astype(dtype, copy=False)


def _item(self):
    """Returns the only element as a number."""
    pointer = self._ptr
    number = lib.ls_item(pointer if type(self) is Tensor else _convert.tensor_argument(self))
    if number != number and lib.ls_numel(pointer) != 1:
        _objects.raise_error()
    if number % 1:  # no integer: nothing more to ask
        return number
    return number if lib.ls_dtype_is_floating(lib.ls_dtype_of(pointer)) else int(number)


def _keep(self):
    """Moves the tensor out of its scope into the enclosing scope, or to its Python object. Returns the tensor."""
    pointer = _convert.tensor_argument(self)
    frame = _objects.state.frame
    owner = next((each for each in _frames(frame) if any(own is self for own in each)), None)
    if owner is None:
        return self
    if owner._is_callback:
        raise _objects.Error(lib.LS_ERR_STATE, "keep: a tensor of a callback ends with it; copy its values with .numpy().copy()")
    lib.ls_keep(pointer)
    del owner[next(i for i, own in enumerate(owner) if own is self)]
    if owner._outer is not None:
        owner._outer.append(self)
    else:
        self.__class__ = _objects.OwnedTensor
        self._thread = _objects.get_ident()
    return self


def _frames(frame):
    while frame is not None:
        yield frame
        frame = frame._outer


def _format(self):
    pointer = _convert.tensor_argument(self)
    text = ffi.new("char[]", lib.ls_format(pointer, NULL, 0) + 1)
    lib.ls_format(pointer, text, len(text))
    return ffi.string(text).decode()


def _to(self, target):
    """Converts the tensor to a dtype, or copies it to a device such as "cuda:0"."""
    if isinstance(target, str) and (target == "cpu" or target.startswith("cuda")):
        return _functions.function("ls_tensor_to_device")(self, target)
    return _functions.function("ls_to")(self, target)


def _split(self, size, axis=0):
    """Returns views of parts of `size` positions along the axis. The last part may be smaller."""
    capacity = max(-(-lib.ls_size(_convert.tensor_argument(self), axis) // max(int(size), 1)), 1)
    parts = ffi.new("ls_tensor *[]", capacity)
    count = lib.ls_split(self._ptr, axis, size, parts, capacity)
    if count < 0:
        _objects.raise_error()
    return [new_tensor(parts[i]) for i in range(count)]


def _backward(self, gradient=None, keep_tape=False):
    """Adds the gradients of this tensor to the gradients of all leaves that it depends on."""
    if gradient is None and not keep_tape:
        status = lib.ls_backward(self._ptr if type(self) is Tensor else _convert.tensor_argument(self))
        if status:
            _objects.raise_error(status)
    else:
        _functions.function("ls_backward_with")(self, gradient=gradient, keep_tape=keep_tape)


def _reduction(name, **defaults):
    """A reduction of all elements, or over axes."""
    whole, over = _functions.function("ls_" + name), _functions.function(f"ls_{name}_axes")

    def reduce(x, axes=None, keepdim=False, **options):
        if axes is None and not keepdim and not options:
            return whole(x)
        return over(x, axes=axes, keepdim=keepdim, **{**defaults, **options})

    reduce.__name__ = name
    reduce.__doc__ = f"Returns ls_{name} of all elements, or ls_{name}_axes over `axes`. Options: {', '.join(defaults) or 'none'}."
    return reduce


# ---- operators ----
def _binary(name, left=False):
    """An operation of two tensors, or of a tensor and a number (on the left: `left`)."""
    tensors = getattr(lib, f"ls_{name}_tensor")
    prefix = "ls_r" if left else "ls_"
    numbers, integers = getattr(lib, f"{prefix}{name}_number"), getattr(lib, f"{prefix}{name}_integer")
    argument, bounds, state, outside = _convert.tensor_argument, range(-2**63, 2**63), _objects.state, _objects.call_outside

    def apply(call, x, y):
        return new_tensor(call(x, y) if state.frame is not None else outside(call, x, y))

    def operation(a, b):
        own = a._ptr if type(a) is Tensor else argument(a)
        if type(b) is Tensor:
            return apply(tensors, b._ptr, own) if left else apply(tensors, own, b._ptr)
        if isinstance(b, (float, np.floating)):
            return apply(numbers, float(b), own) if left else apply(numbers, own, float(b))
        if isinstance(b, (int, np.integer, np.bool_)):
            call, b = (integers, int(b)) if int(b) in bounds else (numbers, float(b))
            return apply(call, b, own) if left else apply(call, own, b)
        if isinstance(b, (np.ndarray, Tensor)):
            other = argument(b)
            return apply(tensors, other, own) if left else apply(tensors, own, other)
        return NotImplemented

    operation.__name__ = name
    return operation


def either(name):
    """A function such as lockstep.add: one of its two arguments may be a number."""
    def call(a, b):
        if isinstance(a, Tensor):
            result = _forward[name](a, b)
        elif name in _backward_forms and isinstance(b, Tensor):
            result = _backward_forms[name](b, a)
        else:
            result = _forward[name](tensor(a), b)
        if result is NotImplemented:
            raise TypeError(f"{name}: expected tensors or numbers, not {type(a).__name__} and {type(b).__name__}")
        return result

    call.__name__ = name
    call.__doc__ = f"Returns ls_{name} of two tensors, or of a tensor and a number."
    return call


_forward = {name: _binary(name) for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")}
_backward_forms = {name: _binary(name, left=True) for name in ("add", "sub", "mul", "div", "pow")}
BINARY = {name: either(name) for name in _forward}
REDUCTIONS = {"sum": _reduction("sum"), "mean": _reduction("mean"), "prod": _reduction("prod"), "max": _reduction("max"),
              "min": _reduction("min"), "var": _reduction("var", correction=1), "norm": _reduction("norm", p=2)}


# ---- indexing ----
def _getitem(self, key):
    """Selects by integers, slices, None, `...` and one-dimensional index tensors or arrays, as NumPy does."""
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, each in enumerate(keys) if each is Ellipsis]
    if dots:
        missing = self.ndim - sum(each is not None and each is not Ellipsis for each in keys)
        keys[dots[0]:dots[0] + 1] = [slice(None)] * missing
    if sum(each is not None for each in keys) > self.ndim:
        raise IndexError(f"too many indices for a tensor with {self.ndim} axes")
    if isinstance(key, (int, np.integer)) and not -self.shape[0] <= key < self.shape[0]:
        raise IndexError(f"index {key} is out of range for an axis of size {self.shape[0]}")  # ends iteration, too
    call, made, axis = _functions.function, self, 0
    for each in keys:
        if each is None:
            made = call("ls_unsqueeze")(made, axis)
        elif isinstance(each, (int, np.integer)):
            made = call("ls_select")(made, axis, int(each))
            continue
        elif isinstance(each, slice):
            if each != slice(None):
                start, stop, step = each.indices(lib.ls_size(made._ptr, axis))
                made = call("ls_slice")(made, axis, start, max(start, stop) if step > 0 else stop, step)
        else:
            made = call("ls_index_select")(made, axis, each if isinstance(each, Tensor) else tensor(np.asarray(each)))
        axis += 1
    return made


def _setitem(self, key, value):
    """Copies a tensor, an array or a number into the selected elements, in place."""
    if any(isinstance(each, (list, np.ndarray, Tensor)) for each in (key if isinstance(key, tuple) else [key])):
        raise IndexError("cannot assign to elements that an array of indices selects; assign to slices, or change .numpy() of the tensor "
                         "and call .mark_changed()")
    target = self[key]
    status = lib.ls_copy_into(target._ptr, _convert.tensor_argument(value))
    if status == lib.LS_ERR_STATE and lib.ls_requires_grad(self._ptr):
        status = lib.ls_copy_into(self._ptr, NULL)  # fails for the reason in this tensor, not in its view
    if status:
        _objects.raise_error(status)


def _flag(get, put):
    return property(lambda self: get(self), lambda self, value: put(self, value))


def _set_requires_grad(self, on=True):
    """Sets whether the tensor requires a gradient. Returns the tensor."""
    status = lib.ls_set_requires_grad(_convert.tensor_argument(self), on)
    if status:
        _objects.raise_error(status)
    return self


def _length(self):
    if not self.ndim:
        raise TypeError("a tensor without axes has no length")
    return lib.ls_size(self._ptr, 0)


def _method(name):
    return _functions.method(Tensor, name)


def install():
    """Gives Tensor its methods. Other methods are functions of the library, found by their names."""
    _convert.make_tensor = tensor
    Tensor._handle = "ls_tensor"
    Tensor.__getattr__ = lambda self, name: _method(name).__get__(self)
    Tensor.__dir__ = lambda self: sorted({*object.__dir__(self), *_functions.tensor_methods()})
    for name, made in {**REDUCTIONS, **BINARY}.items():
        setattr(Tensor, name, made)
    for name in ("add", "sub", "mul", "pow", "eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Tensor, f"__{name}__", _forward[name])
    Tensor.__truediv__ = _forward["div"]
    for name in ("add", "sub", "mul", "pow"):
        setattr(Tensor, f"__r{name}__", _backward_forms[name])
    Tensor.__rtruediv__ = _backward_forms["div"]
    Tensor.__matmul__ = lambda a, b: _functions.function("ls_matmul")(a, b)
    Tensor.__rmatmul__ = lambda a, b: _functions.function("ls_matmul")(b, a)
    Tensor.__neg__ = lambda a: _functions.function("ls_neg")(a)
    Tensor.__abs__ = lambda a: _functions.function("ls_abs")(a)
    Tensor.__hash__ = object.__hash__
    Tensor.__array_ufunc__ = None  # so that array + tensor is an operation of the tensor
    Tensor.__array__, Tensor.__getitem__, Tensor.__setitem__, Tensor.__len__ = _array, _getitem, _setitem, _length
    Tensor.__float__ = lambda self: float(_item(self))
    Tensor.__int__ = lambda self: int(_item(self))
    Tensor.__bool__ = lambda self: bool(_item(self))
    Tensor.__repr__ = lambda self: _format(self)
    Tensor.__dlpack__, Tensor.__dlpack_device__ = _dlpack.export, _dlpack.device
    Tensor.numpy, Tensor.item, Tensor.keep, Tensor.to, Tensor.split, Tensor.backward = _numpy, _item, _keep, _to, _split, _backward
    Tensor.tolist = lambda self: _numpy(self if self.dtype != "bf16" else self.to("f32")).tolist()
    Tensor.set_requires_grad = _set_requires_grad
    Tensor.requires_grad = _flag(lambda self: lib.ls_requires_grad(_convert.tensor_argument(self)), _set_requires_grad)
    Tensor.grad = property(lambda self: _functions.function("ls_grad")(self))
    Tensor.shape = property(lambda self: _convert.sizes_of(lib.ls_shape_of(_convert.tensor_argument(self))))
    Tensor.ndim = property(lambda self: lib.ls_ndim(_convert.tensor_argument(self)))
    Tensor.dtype = property(lambda self: _convert.DTYPE_NAMES[lib.ls_dtype_of(_convert.tensor_argument(self))])
    Tensor.device = property(lambda self: ffi.string(lib.ls_device_of(_convert.tensor_argument(self))).decode())
    Tensor.strides = property(lambda self: (_convert.tensor_argument(self), strides_of(self))[1])
    Tensor.T = property(lambda self: self.permute(range(self.ndim - 1, -1, -1)))
    Tensor.release = _release


def _release(self):
    """Frees the tensor now."""
    pointer = _convert.tensor_argument(self)
    for frame in _frames(_objects.state.frame):
        frame[:] = [own for own in frame if own is not self]
    self.__class__ = _objects.DeadTensor
    lib.ls_release(pointer)
