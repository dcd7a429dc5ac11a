"""Converts Python values to C values: shapes, names of constants, options, arrays and callbacks."""
import difflib
import functools
import itertools
import os
import sys

import numpy as np

from lockstep import _objects
from lockstep._declarations import CALLBACKS, ENUMS, FUNCTIONS, HANDLES, STRUCTS, ZERO_FIELDS
from lockstep._library import ffi, lib
from lockstep._objects import CLASSES, NULL, DeadTensor, Error, Tensor

NUMBERS = ("int", "int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "double", "float")
ZERO = lib.ls_option_zero()
_zero_fields = set(ZERO_FIELDS)


# ---- unknown names ----
def hint(name, names):
    """Returns the end of an error message with the most similar known name, or "" if no name is similar.

    Ignores case and underscores, so that conv2d finds conv_2d. The initials "lr" find learning_rate.
    """
    plain = {}
    for each in names:
        plain.setdefault(_plain(each), each)
    initials = [each for each in names if "_" in each and "".join(word[:1] for word in each.split("_")) == name]
    near = [plain[each] for each in difflib.get_close_matches(_plain(name), plain, n=1)]
    found = [*initials, *near][:1]
    return f"; did you mean {found[0]!r}?" if found else ""


def _plain(name):
    return name.lower().replace("_", "")


# ---- names of constants ----
def _names(constants):
    """The constants by their names in Python: without the words that all of them begin with, in lower case."""
    kept = [name for name in constants if not name.endswith(("_COUNT", "_RULES", "_KINDS", "_TIMES"))]
    prefix = os.path.commonprefix(kept) if len(kept) > 1 else "LS_"
    prefix = prefix[:prefix.rindex("_") + 1]
    return {name[len(prefix):].lower(): constants[name] for name in kept}


ENUM_NAMES = {enum: _names(constants) for enum, constants in ENUMS.items()}
DTYPES = ENUM_NAMES["ls_dtype"]
DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
NUMPY_DTYPES = {"f32": np.dtype("f4"), "f64": np.dtype("f8"), "f16": np.dtype("f2"), "i64": np.dtype("i8"), "i32": np.dtype("i4"),
                "u8": np.dtype("u1"), "bool": np.dtype("?")}
_BY_NUMPY = {dtype: DTYPES[name] for name, dtype in NUMPY_DTYPES.items()}
# NumPy's integers without a dtype in the library, as in ls_npy_read.
WIDER = {np.dtype("i1"): np.dtype("i4"), np.dtype("i2"): np.dtype("i4"), np.dtype("u2"): np.dtype("i4"), np.dtype("u4"): np.dtype("i8"),
         np.dtype("u8"): np.dtype("i8")}


def enum_value(value, enum):
    """The number of a constant that is given as a number, or by its name: "sum" or "LS_SUM" for LS_SUM."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        found = ENUM_NAMES[enum].get(value, ENUMS[enum].get(value))
        if found is not None:
            return found
    if enum == "ls_dtype":
        try:
            dtype = np.dtype(value)
        except TypeError:
            dtype = None
        if dtype is not None and dtype in _BY_NUMPY:
            return _BY_NUMPY[dtype]
    near = hint(value, ENUM_NAMES[enum]) if isinstance(value, str) else ""
    raise ValueError(f"{enum}: unknown name {value!r}; available: {', '.join(ENUM_NAMES[enum])}{near}")


class _Constants(dict):
    """The constants of an enum by their names, for quick calls."""

    def __init__(self, enum):
        super().__init__(ENUM_NAMES[enum])
        self._enum = enum

    def __missing__(self, value):
        return enum_value(value, self._enum)


CONSTANTS = {enum: _Constants(enum) for enum in ENUMS}


# ---- shapes, texts, objects ----
@functools.lru_cache(maxsize=256)
def _shape_of(sizes):
    return lib.ls_shape_make(len(sizes), sizes)


def shape(value):
    return _shape_of((int(value),) if isinstance(value, (int, np.integer)) else tuple(map(int, value)))


def axes(value):
    numbers = [] if value is None else [value] if isinstance(value, (int, np.integer)) else list(value)
    return lib.ls_axes_make(len(numbers), [int(number) for number in numbers])


def sizes_of(value):
    return tuple(value.size[0:value.ndim])


def share_elements(sizes, strides, width):
    """Whether elements of `width` share memory, or a stride is negative: ls_from_strided refuses such memory."""
    reach = width
    for stride, size in sorted(zip(strides, sizes)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


def text(value):
    if value is None:
        return NULL
    return value if isinstance(value, (bytes, ffi.CData)) else os.fspath(value).encode()


make_tensor = None  # lockstep.tensor, which _tensor.install() sets, because _tensor imports this module


def tensor_argument(value):
    """The pointer of a tensor, or of a tensor of an array or a number."""
    if isinstance(value, DeadTensor):
        raise Error(lib.LS_ERR_STATE, "the tensor belongs to a scope or a callback that has ended; call .keep() before, or copy its "
                    "values with .numpy().copy()")
    if isinstance(value, Tensor):
        return value._ptr
    if value is None:
        return NULL
    if isinstance(value, (int, float, bool, list, tuple, np.ndarray, np.generic)):
        made = make_tensor(value)
        if _objects.state.frame is None:  # outside any scope, the call may keep the tensor only on its tape
            _recent.append(made)
            del _recent[:-16]
        return made._ptr
    raise TypeError(f"expected a lockstep.Tensor, not {type(value).__name__}")


_recent = []


def object_argument(value, handle):
    if value is None:
        return NULL
    if not isinstance(value, CLASSES[handle]):
        raise TypeError(f"expected a lockstep.{CLASSES[handle].__name__}, not {type(value).__name__}")
    if not value._ptr:
        raise Error(lib.LS_ERR_STATE, f"this {type(value).__name__} was closed")
    return value._ptr


def pointer_argument(value, handle):
    return tensor_argument(value) if handle == "ls_tensor" else object_argument(value, handle)


def take(items, failed):
    """Notes that a constructor has taken ownership of callbacks, metrics and schedules, also if it has failed.

    Returns what the new object keeps: what these objects have kept, and all other objects.
    """
    kept = []
    for item in items:
        if isinstance(item, _objects.Object) and item._handle in ("ls_callback", "ls_metric", "ls_schedule") and item._owned:
            kept.append(item._keep)
            item._owned = False
            if failed:
                item._ptr = NULL
        else:
            kept.append(item)
    return kept


def give(items, owner):
    """Lets the objects that a constructor has taken keep their new owner. It does not keep them, which would be a cycle."""
    for item in items:
        if isinstance(item, _objects.Object) and item._handle in ("ls_callback", "ls_metric", "ls_schedule"):
            item._keep = [owner]


# ---- callbacks ----
def is_callback(kind):
    return kind == "function" or kind in CALLBACKS


class View:
    """A struct that a callback has received: fields are attributes. Valid until the callback returns."""
    __slots__ = ("_struct", "_fields", "_frame")

    def __init__(self, struct, name):
        object.__setattr__(self, "_struct", struct)
        object.__setattr__(self, "_fields", dict((field, kind) for kind, field in STRUCTS[name]))
        object.__setattr__(self, "_frame", _objects.state.frame)

    def _kind(self, name):
        if name not in self._fields:
            raise AttributeError(f"no field {name!r}; available: {', '.join(self._fields)}{hint(name, self._fields)}")
        if self._frame is not None and self._frame._pointer is None:
            raise Error(lib.LS_ERR_STATE, "the arguments of a callback are valid only until it returns")
        return self._fields[name]

    def __getattr__(self, name):
        kind = self._kind(name)
        return from_c(kind, getattr(self._struct, name))

    def __setattr__(self, name, value):
        kind = self._kind(name)
        setattr(self._struct, name, result_pointer(value) if kind == "ls_tensor *" else field_value(kind, "", name, value, []))

    def __dir__(self):
        return list(self._fields)


def from_c(kind, value):
    """The Python value of an argument of a callback, or of a field."""
    base = kind.replace("const ", "").rstrip(" *")
    stars = kind.count("*")
    if base == "ls_tensor" and stars == 1:
        return _objects.callback_tensor(value) if _objects.state.frame is not None else _objects.borrowed_tensor(value, None)
    if base in HANDLES and stars == 1:
        return _objects.borrowed_object(base, value, None)
    if base in STRUCTS and stars == 1:
        return View(value, base) if value else None
    if base == "char" and stars == 1:
        return ffi.string(value).decode(errors="replace") if value else None
    if base == "ls_shape" and stars == 0:
        return sizes_of(value)
    if base == "ls_dtype" and stars == 0:
        return DTYPE_NAMES[value]
    return value


def result_pointer(value):
    """The pointer of a tensor that a callback returns, moved out of the callback's scope and the scopes inside it."""
    if value is None:
        return NULL
    tensor = value if isinstance(value, Tensor) else _objects.new_tensor(tensor_argument(value))
    pointer = tensor_argument(tensor)
    frames = _call_frames()
    for depth, frame in enumerate(frames):
        if any(own is tensor for own in frame) and not _is_argument(tensor):
            return _keep_out(pointer, len(frames) - depth)
    # An argument or a tensor from outside: its view is a tensor of this call.
    view = lib.ls_reshape(pointer, lib.ls_shape_of(pointer))
    if not view:
        _objects.raise_error()
    return _keep_out(view, len(frames))


def _call_frames():
    """The frames of the innermost call of a callback, from the innermost frame on."""
    frames = [_objects.state.frame]
    while not frames[-1]._is_callback:
        frames.append(frames[-1]._outer)
    return frames


def _keep_out(pointer, scopes):
    for _ in range(scopes):
        lib.ls_keep(pointer)
    return pointer


def _is_argument(tensor):
    try:
        return tensor._keep is None  # set only for borrowed tensors
    except AttributeError:
        return False


def _kind(ctype):
    """The name of a C type as in the headers."""
    return ctype.cname.replace("struct ", "").replace("enum ", "").strip()


def callback(ctype, function):
    """A C function pointer of the type that calls the Python function. Trailing `double *` arguments are its results."""
    kinds = [_kind(argument) for argument in ctype.args]
    returns = _kind(ctype.result)
    is_status = returns == "ls_status"
    users = [i for i, kind in enumerate(kinds) if kind == "void *"]
    outs = [i for i, kind in enumerate(kinds) if kind == "double *" and is_status]
    taken = [i for i in range(len(kinds)) if i not in users and i not in outs]
    failed = {"double": float("nan"), "void": None, "_Bool": False}.get(returns, NULL if "*" in returns else lib.LS_ERR_STATE)

    def convert(result, arguments):
        if outs:
            for i, number in zip(outs, result if isinstance(result, (tuple, list)) else (result,)):
                arguments[i][0] = number
        if is_status:
            return lib.LS_OK if outs or result is None or result is True else int(result)
        return result_pointer(result) if returns == "ls_tensor *" else result

    def call(*arguments):
        failure = None
        try:
            with _objects.callback_frame():
                converted = convert(function(*[from_c(kinds[i], arguments[i]) for i in taken]), arguments)
        except BaseException as error:  # it goes through C to the caller of the library
            failure = error
        if failure is None:
            return converted
        if returns in ("void", "_Bool"):
            sys.excepthook(type(failure), failure, failure.__traceback__)
        status = _objects.note_exception(failure)
        return status if is_status else failed

    return ffi.callback(ctype, call, error=failed if returns != "void" else None)


_live = {}
_numbers = itertools.count(1)


@ffi.callback("void(void *)")
def _release(user):
    _live.pop(int(ffi.cast("intptr_t", user)), None)


def held_user(items):
    """A user pointer that keeps the items until the library calls the returned release function."""
    number = next(_numbers)
    _live[number] = items
    return ffi.cast("void *", number), _release


def function_value(ctype, value, keep):
    if isinstance(value, str):  # a function of the library, such as "cross_entropy" for ls_criterion_cross_entropy
        calls = [ffi.addressof(lib, name) for name in (value, "ls_" + value, "ls_criterion_" + value) if name in FUNCTIONS]
        fitting = [call for call in calls if ffi.typeof(call) is ctype]
        if not fitting:
            known = [name[13:] for name in FUNCTIONS if name.startswith("ls_criterion_")]
            raise ValueError(f"unknown function {value!r}; available: {', '.join(known)}, or a Python function{hint(value, known)}")
        return fitting[0]
    if isinstance(value, ffi.CData):
        return value
    if not callable(value):
        raise TypeError(f"expected a function, not {type(value).__name__}")
    made = callback(ctype, value)
    keep.append(made)
    return made


# ---- arrays and options ----
def array(kind, values, keep):
    """A C array and its length, for pointers to objects, texts, numbers and structs."""
    base = kind.replace("const ", "").rstrip(" *").split(" *")[0]
    values = list(values)
    if base in HANDLES:
        made = ffi.new(f"{base} *[]", [pointer_argument(value, base) for value in values] or [NULL])
        keep += values
    elif base == "char":
        texts = [ffi.new("char[]", text(value)) for value in values]
        made = ffi.new("char *[]", [*texts, NULL])
        keep += texts
    elif base == "ls_named":
        made = _named(values, "tensor", "ls_tensor", keep)
    elif base == "ls_named_module":
        made = _named(values, "module", "ls_module", keep)
    elif base in STRUCTS:
        made = ffi.new(f"{base}[]", max(len(values), 1))
        for i, value in enumerate(values):
            fill(made[i], base, value, keep)
    else:
        made = ffi.new(f"{base}[]", values or [0])
    keep.append(made)
    return made, len(values)


def _named(pairs, field, handle, keep):
    made = ffi.new("ls_named[]" if field == "tensor" else "ls_named_module[]", max(len(pairs), 1))
    for i, (name, value) in enumerate(pairs):
        keep += [value, ffi.new("char[]", text(name))]
        made[i].name = keep[-1]
        setattr(made[i], field, pointer_argument(value, handle))
    return made


def pairs(value):
    return list(value.items()) if isinstance(value, dict) else list(value)


def field_value(kind, struct, name, value, keep, ctype=None):
    """The C value of a field or of a parameter."""
    base = kind.replace("const ", "").rstrip(" *")
    stars = kind.count("*")
    if is_callback(kind):
        return NULL if value is None else function_value(ctype, value, keep)
    if stars == 0:
        if base in ENUMS:
            return enum_value(value, base)
        if base == "double" and value == 0 and f"{struct}.{name}" in _zero_fields:
            return ZERO
        if base == "ls_shape":
            return shape(value)
        if base == "ls_axes":
            return axes(value)
        if base == "char":
            return text(value)
        if base == "bool":
            return bool(value)
        if base in STRUCTS and isinstance(value, dict):
            made = ffi.new(base + " *")
            fill(made[0], base, value, keep)
            return made[0]
        return value
    if value is None:
        return NULL
    if base == "char" and stars == 1:
        keep.append(ffi.new("char[]", text(value)))
        return keep[-1]
    if base in HANDLES and stars == 1:
        keep.append(value)
        return pointer_argument(value, base)
    if base in STRUCTS and stars == 1 and isinstance(value, dict):
        return options(base, value, keep)
    if stars and not isinstance(value, ffi.CData) and base != "void":
        return array(kind, pairs(value), keep)[0]
    return value


def options(struct, given, keep):
    """A pointer to a struct with the given fields."""
    made = ffi.new(struct + " *")
    keep.append(made)
    fill(made, struct, given, keep)
    return made


def keyword_fields(struct):
    """The keywords of a struct: its fields, except counts and user pointers; "bias" stands for a field "no_bias"."""
    names = [name for _, name in STRUCTS[struct]]
    found = {}
    for kind, name in STRUCTS[struct]:
        if kind == "void *" or name == "user" or name.endswith("_user") or (name.endswith("_count") and count_owner(name, names)):
            continue
        found[name] = kind
        if kind == "bool" and name.startswith("no_") and name[3:] not in names:
            found[name[3:]] = "not"
    return found


def options_text(struct, without=()):
    """Returns the text that lists the options at the end of a help text."""
    return f"\n\nOptions: {', '.join(name for name in keyword_fields(struct) if name not in without)} (see {struct})."


def count_owner(name, names):
    """The array whose length a field such as callback_count has."""
    stem = name[:-len("_count")]
    return next((each for each in (stem + "s", stem) if each in names), None)


def fill(made, struct, given, keep):
    """Sets the fields of a struct from keywords. A value of None leaves a field at its default."""
    fields = keyword_fields(struct)
    names = [name for _, name in STRUCTS[struct]]
    types = dict(ffi.typeof(struct).fields)
    for name, value in given.items():
        if name == "lambda_":
            name = "lambda"
        if name not in fields:
            raise TypeError(f"{struct}: unknown option {name!r}; available: {', '.join(fields)}{hint(name, fields)}")
        if value is None:
            continue
        kind = fields[name]
        if kind == "not":
            setattr(made, "no_" + name, not value)
            continue
        counted = next((count for count in names if count.endswith("_count") and count_owner(count, names) == name), None)
        if counted:
            pointer, count = array(kind, value, keep)
            setattr(made, name, pointer)
            setattr(made, counted, count)
        else:
            setattr(made, name, field_value(kind, struct, name, value, keep, types[name].type))
    if "release" in names and "user" in names and struct != "ls_allocator":
        made.user, made.release = held_user(list(keep))


# Callbacks of hooks on tensors and other objects that the library calls as long as the object lives.
_callbacks = []


def keep_callbacks(item, keep):
    """Keeps callbacks and borrowed objects of a call as long as the object `item`; for a tensor, until the program ends."""
    if isinstance(item, _objects.Object) and isinstance(item._keep, list):
        item._keep.extend(each for each in keep if each is not item)
    else:
        _callbacks.extend(each for each in keep if isinstance(each, ffi.CData) and ffi.typeof(each).kind == "function")
