"""Layers: lockstep.nn.linear(4, 3) is ls_nn_linear(4, 3), with its options as keywords (bias=False for .no_bias)."""
from lockstep import _convert, _functions
from lockstep._declarations import FUNCTIONS


def sequential(*modules):
    """Applies modules one after the other. A dictionary gives them names."""
    if len(modules) == 1 and isinstance(modules[0], dict):
        return _functions.function("ls_sequential_named_of")(modules[0])
    return _functions.function("ls_sequential_of")(modules)


def __getattr__(name):
    made = None if name.startswith("_") else _functions.named(name, ("ls_nn_",))
    if made is None:
        raise AttributeError(f"lockstep.nn has no layer {name!r}{_convert.hint(name, __dir__())}")
    globals()[name] = made
    return made


def __dir__():
    return sorted({"sequential", *(name[6:] for name in FUNCTIONS if name.startswith("ls_nn_") and not name.endswith("_with"))})
