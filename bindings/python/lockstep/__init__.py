"""Lockstep for Python: docs/howto/python.md.

lockstep.NAME is the function ls_NAME of the C headers, with options as keywords. Methods of objects are functions whose first argument
is the object: x.softmax(-1) is ls_softmax(x, -1). lockstep.lib has all functions of the library as they are, lockstep.ffi is cffi's.
"""
import atexit as _atexit

from lockstep import _comm, _convert, _functions, _objects, _tensor, _train
from lockstep._comm import finalize, from_mpi4py, init, world
from lockstep._custom import custom, gradcheck
from lockstep._declarations import FUNCTIONS as _FUNCTIONS, VERSION as __version__
from lockstep._dlpack import from_dlpack
from lockstep._library import ffi, lib
from lockstep._objects import Error, Tensor, scope
from lockstep._tensor import BINARY as _BINARY, REDUCTIONS as _REDUCTIONS, from_numpy, tensor
from lockstep._train import autocast, dataset, load_tensors, no_grad, save_tensors, trial

_tensor.install()
_comm.install()
_train.install()
globals().update(_BINARY)
globals().update(_REDUCTIONS)
globals().update({_class.__name__: _class for _class in _objects.CLASSES.values()})
_atexit.register(_objects.close)

from lockstep import nn  # after the classes have their methods


def __getattr__(name):
    if name.startswith("LS_") and hasattr(lib, name):
        return getattr(lib, name)
    made = _train.hook(name) if name.startswith("on_") else None if name.startswith("_") else _functions.named(name)
    if made is not None and _FUNCTIONS.get("ls_" + name, ("",))[0] == "ls_optimizer *":
        made = _train.optimizer_maker(made)
    if made is None:
        near = "" if name.startswith("_") else _convert.hint(name, [each.replace("nn_", "nn.", 1) for each in __dir__() if each[0].islower()])
        raise AttributeError(f"lockstep has no function {name!r}: neither ls_{name} nor ls_{name}_new is in the C headers{near}")
    globals()[name] = made
    return made


def __dir__():
    return sorted({*globals(), *(name[3:].removesuffix("_new") for name in _FUNCTIONS if not name.endswith("_with"))})
