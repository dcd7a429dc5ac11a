"""Errors, scopes and the lifetimes of C objects.

A tensor that is created outside any scope belongs to its Python object, which releases it. A tensor in a scope or in a callback
belongs to the innermost frame: its Python object becomes a DeadTensor when the frame ends.

Other objects are freed with their Python object, which keeps the objects that it borrows. The garbage collector ignores this order,
so objects in cycles are freed after the collection, borrowers first. Objects of other threads are freed by their own thread.
"""
import gc
import re
import threading
import weakref
from threading import get_ident

from lockstep._declarations import ENUMS, FUNCTIONS, HANDLES
from lockstep._library import ffi, lib

NULL = ffi.NULL
STATUS_NAMES = {value: name for name, value in ENUMS["ls_status"].items()}


class Error(RuntimeError):
    """A failed call to the library: `status` is a constant such as lockstep.LS_ERR_SHAPE, `name` its name."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status
        self.name = STATUS_NAMES.get(status, "unknown")
        self.message = message


class _State(threading.local):
    frame = None  # the innermost frame of this thread


state = _State()


_scope_begin, _scope_end = lib.ls_scope_begin, lib.ls_scope_end


class scope(list):
    """A `with` block that frees the tensors created in it, and restores no_grad and autocast.

    It is the list of its tensors. `_outer` is the frame around it, `_failed` tells whether Python has seen an error in it.
    """
    __slots__ = ("_pointer", "_outer", "_failed")
    _is_callback = False

    def __enter__(self):
        self._pointer = pointer = _scope_begin()
        if not pointer:
            raise_error()
        self._failed = False
        self._outer = state.frame
        state.frame = self
        return self

    def __exit__(self, kind, error, traceback):
        status = _scope_end(self._pointer)
        if state.frame is self:
            state.frame = self._outer
            for tensor in self:
                tensor.__class__ = DeadTensor
            self.clear()
        if status and kind is None and not self._failed:
            raise_error()
        self._pointer = None

    __hash__ = object.__hash__


class callback_frame(scope):
    """The frame of a call of a callback, whose tensors end with the call."""
    __slots__ = ()
    _is_callback = True


# Exceptions of callbacks and the messages that stand for them in the library, until the call that failed by them returns.
_exceptions = []


def note_exception(error):
    """Makes the exception of a callback the error of the library. Returns the status."""
    if isinstance(error, Error):
        status, text = error.status, error.message
    else:
        status, text = lib.LS_ERR_STATE, f"{type(error).__name__}: {error}"
    lib.ls_error_set_text(status, text.encode(errors="replace"))
    _exceptions.append((lib_message(), error))
    del _exceptions[:-8]
    return status


def lib_message():
    return ffi.string(lib.ls_error_message()).decode(errors="replace")


# Remedies in messages of the C library, and their form in Python.
_REMEDIES = {"with ls_to": 'with .to("f32")', "under ls_no_grad(true)": "in a block `with lockstep.no_grad():`",
             "an ls_alias or ls_detach of": "an array (.numpy() or DLPack) or a .detach() of", "release it first": "delete it first",
             "call ls_init first": "call lockstep.init() first", "(ls_comm_split)": "(world.split)",
             "a .comm of one rank": "a comm= of one rank"}


# C forms in messages that are rewritten to Python: calls that end with NULL options, ".comm = world" (comm=world), and
# ".comm of ls_loader_options" (comm= of lockstep.loader).
_FORMS = [(re.compile(form), own) for form, own in (
    (r"\bls_(\w+)\((?:([^()]*), )?NULL\)", r"lockstep.\1(\2)"), (r"(?<![\w.])\.([a-z]\w*) = ", r"\1="),
    (r"(?<![\w.])\.([a-z]\w*) of ls_(\w+)_options\b", r"\1= of lockstep.\2"))]


def _in_python(message):
    for remedy, own in _REMEDIES.items():
        message = message.replace(remedy, own)
    for form, own in _FORMS:
        message = form.sub(own, message)
    return message


def raise_error(status=None):
    """Raises the error of the last failed call: the exception of a callback, if it was the cause."""
    message = lib_message()
    if state.frame is not None:
        state.frame._failed = True
    for i, (text, error) in enumerate(_exceptions):
        if text in message:
            del _exceptions[i]
            raise error
    raise Error(lib.ls_error_status() if status is None else status, _in_python(message))


# ---- frees ----
_pending = {}  # thread: [(order, free function, pointer)]
_collecting = False
_closing = False


def free(order, function, pointer, thread):
    """Calls `function(pointer)` on its thread, but not during a garbage collection."""
    if _closing:
        return
    if _collecting or thread != get_ident():
        _pending.setdefault(thread, []).append((order, function, pointer))
    else:
        function(pointer)


def free_pending():
    """Frees the objects of this thread that wait, borrowers first."""
    for _, function, pointer in sorted(_pending.pop(get_ident(), ()), key=lambda entry: entry[0]):
        function(pointer)


def _on_collection(phase, info):
    global _collecting
    _collecting = phase == "start"
    if phase == "stop" and _pending and not _closing:
        free_pending()


gc.callbacks.append(_on_collection)


_alive = weakref.WeakSet()  # the objects that Python frees


def close():
    """Called when Python exits: frees the objects of this thread while the library can still call Python, which owns shared memory."""
    global _closing
    free_pending()
    for item in sorted(_alive, key=lambda item: item._order):
        if item._owned and item._thread == get_ident():
            item._owned = False
            _free_now(item)
            item._ptr = NULL
    for item in gc.get_objects():
        if type(item) is OwnedTensor and item._thread == get_ident():
            item.__class__ = DeadTensor
            lib.ls_release(item._ptr)
    lib.ls_thread_end()  # frees the tensors that only the tape holds
    _closing = True


# ---- objects ----
class Object:
    """A C object other than a tensor. Methods are the functions whose names begin with the type's name."""
    __slots__ = ("_ptr", "_keep", "_owned", "_thread", "__weakref__")
    _handle = ""
    _order = 0

    def __new__(cls, *args, **kwargs):
        raise TypeError(f"lockstep.{cls.__name__}: make it with a function such as lockstep.{_EXAMPLES.get(cls._handle, cls._handle[3:])}")

    def __getattr__(self, name):
        from lockstep import _functions
        return _functions.method(type(self), name).__get__(self)

    def __dir__(self):
        prefix = self._handle + "_"
        return [*super().__dir__(), *(name[len(prefix):] for name in FUNCTIONS if name.startswith(prefix))]

    def close(self):
        """Frees the object now."""
        if self._owned:
            self._owned = False
            _free_now(self)
        self._ptr = NULL
        self._keep = None

    def __del__(self):
        if self._owned:
            free(self._order, _free_function(self._handle), self._ptr, self._thread)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
        return False


def _free_twice(function):
    def free_both(pointer):
        function(pointer)  # the reference of ls_X_retain
        function(pointer)  # the creator's reference, unless a constructor has taken it
    return free_both


_free_functions = {}


def _free_function(handle):
    found = _free_functions.get(handle)
    if found is None:
        name = next((name for name in (f"{handle}_free", f"{handle}_close") if name in FUNCTIONS), None)
        found = getattr(lib, name) if name else (lambda pointer: None)
        if f"{handle}_retain" in FUNCTIONS:
            found = _free_twice(found)
        _free_functions[handle] = found
    return found


def _free_now(item):
    _free_function(item._handle)(item._ptr)


_EXAMPLES = {"ls_module": "nn.linear", "ls_optimizer": "adam", "ls_comm": "init", "ls_schedule": "schedule_cosine", "ls_callback":
             "on_end_epoch", "ls_safetensors": "load_tensors"}
# Objects that may borrow others are freed first.
_ORDERS = ("ls_trial", "ls_callback", "ls_metric", "ls_schedule", "ls_ema", "ls_reducer", "ls_optimizer", "ls_outer", "ls_loader",
           "ls_module", "ls_dataset", "ls_comm")
CLASSES = {}


def class_of(handle):
    """The class of a handle, for example Module of ls_module."""
    found = CLASSES.get(handle)
    if found is None:
        name = "".join(word.capitalize() for word in handle[3:].split("_"))
        order = _ORDERS.index(handle) if handle in _ORDERS else len(_ORDERS) - 1
        found = type(name, (Object,), {"_handle": handle, "_order": order, "__slots__": (), "__module__": "lockstep"})
        CLASSES[handle] = found
    return found


def new_object(handle, pointer, keep, owned=True):
    """The Python object of a C object that a function has returned. It keeps `keep` alive."""
    if not pointer:
        raise_error()
    if _pending:
        free_pending()
    item = object.__new__(class_of(handle))
    item._ptr = pointer
    item._keep = keep
    item._owned = owned
    item._thread = get_ident()
    if owned:
        _alive.add(item)
        if handle + "_retain" in FUNCTIONS:
            getattr(lib, handle + "_retain")(pointer)
    return item


def borrowed_object(handle, pointer, owner):
    return new_object(handle, pointer, [owner], owned=False) if pointer else None


class TensorBase:
    """The pointer of a tensor, and the objects that it keeps."""
    __slots__ = ("_ptr", "_keep", "_thread", "__weakref__")


class Tensor(TensorBase):
    """A tensor of a scope or of another object. OwnedTensor is the tensor that its Python object frees."""
    __slots__ = ()


class OwnedTensor(Tensor):
    __slots__ = ()

    def __del__(self):
        free(0, lib.ls_release, self._ptr, self._thread)


class DeadTensor(Tensor):
    """A tensor whose scope has ended."""
    __slots__ = ()

    def __repr__(self):
        return "<a tensor whose scope has ended>"


OwnedTensor.__name__ = OwnedTensor.__qualname__ = "Tensor"
_make = object.__new__


def owned_tensor(pointer):
    tensor = _make(OwnedTensor)
    tensor._ptr = pointer
    tensor._thread = get_ident()
    if _pending:
        free_pending()
    return tensor


def new_tensor(pointer):
    """The Python object of a tensor that a function has created."""
    if not pointer:
        raise_error()
    frame = state.frame
    if frame is None:
        return owned_tensor(pointer)
    tensor = _make(Tensor)
    tensor._ptr = pointer
    frame.append(tensor)
    return tensor


def call_outside(call, *arguments, outputs=()):
    """Calls an operation outside any scope: in a scope of its own, which frees the tensors that the operation makes on its way."""
    own = _scope_begin()
    result = call(*arguments)
    if isinstance(result, ffi.CData):
        lib.ls_keep(result)
    for output in outputs:
        for i in range(len(output) if ffi.typeof(output).kind == "array" else 1):
            lib.ls_keep(output[i])
    _scope_end(own)
    return result


def borrowed_tensor(pointer, owner):
    """The Python object of a tensor that `owner` owns. None for NULL."""
    if not pointer:
        return None
    tensor = _make(Tensor)
    tensor._ptr = pointer
    tensor._keep = owner
    return tensor


def callback_tensor(pointer):
    """A tensor that a callback has received, valid until the callback returns."""
    tensor = borrowed_tensor(pointer, None)
    if tensor is not None:
        state.frame.append(tensor)
    return tensor


for _handle in HANDLES:
    if _handle not in ("ls_tensor", "ls_scope"):
        class_of(_handle)
