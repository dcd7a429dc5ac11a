"""Modules, data sets, loaders and trials: methods beyond the functions of the library."""
import functools
import os
import tempfile
import threading
import weakref

import numpy as np

from lockstep import _convert, _functions, _objects, _tensor
from lockstep._declarations import STRUCTS
from lockstep._library import ffi, lib
from lockstep._objects import NULL, Tensor, borrowed_tensor, new_tensor

Module = _objects.class_of("ls_module")
Dataset = _objects.class_of("ls_dataset")
Loader = _objects.class_of("ls_loader")
Optimizer = _objects.class_of("ls_optimizer")
Trial = _objects.class_of("ls_trial")
Callback = _objects.class_of("ls_callback")
Metric = _objects.class_of("ls_metric")


def _check(status):
    if status:
        _objects.raise_error(status)


# ---- modules ----
def forward(self, *inputs, outputs=None):
    """Applies the module. With several inputs (None for an optional one) or with `outputs`, returns a list of `outputs` tensors."""
    pointer = self._ptr or _convert.object_argument(self, "ls_module")
    if len(inputs) == 1 and outputs is None:
        x = inputs[0]
        if type(x) is not Tensor:
            x = _tensor.from_numpy(x) if isinstance(x, np.ndarray) else x
        own = _convert.tensor_argument(x)
        outside = _objects.state.frame is None
        result = _objects.call_outside(lib.ls_forward, pointer, own) if outside else lib.ls_forward(pointer, own)
        return x if result == own and result else new_tensor(result)
    given = ffi.new("ls_tensor *[]", [_convert.tensor_argument(x) for x in inputs] or [NULL])
    made = ffi.new("ls_tensor *[]", outputs or 1)
    arguments = (pointer, given, len(inputs), made, outputs or 1)
    outside = _objects.state.frame is None
    _check(_objects.call_outside(lib.ls_forward_many, *arguments, outputs=[made]) if outside else lib.ls_forward_many(*arguments))
    results = [next((x for x in inputs if isinstance(x, Tensor) and x._ptr == each), None) or new_tensor(each) for each in made]
    return results if outputs is not None else results[0]


def _entries(self, kind):
    own = _convert.object_argument(self, "ls_module")
    at, name = getattr(lib, f"ls_module_{kind}"), getattr(lib, f"ls_module_{kind}_name")
    return [(ffi.string(name(own, i)).decode(), borrowed_tensor(at(own, i), self)) for i in range(getattr(lib, f"ls_module_{kind}_count")(own))]


def state_dict(self):
    """Returns the parameters and buffers by their names. They are the tensors of the module, not copies."""
    return dict(_entries(self, "parameter") + _entries(self, "buffer"))


def load_state_dict(self, tensors, **options):
    """Copies tensors or arrays into parameters and buffers of the same names, and converts dtypes. Has the checks and options of load."""
    values = [(name, value if isinstance(value, Tensor) else _tensor.tensor(value)) for name, value in tensors.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.safetensors")
        save_tensors(path, values)
        try:
            _functions.function("ls_module_load_with")(self, path, **options)
        except _objects.Error as error:
            for text, own in (("ls_module_load_with", "load_state_dict"), (path + ": ", ""), (path, "the dictionary"), ("in the file", "in the dictionary")):
                error.message = error.message.replace(text, own)
            error.args = (error.message,)
            raise


def save_tensors(path, tensors, metadata=None):
    """Writes tensors by their names to a safetensors file. `metadata` maps texts to texts."""
    tensors = [(name, value if isinstance(value, Tensor) else _tensor.tensor(value)) for name, value in _convert.pairs(tensors)]
    keep, texts = [], [each for pair in (metadata or {}).items() for each in pair]
    with _objects.scope():
        dense = [(name, value.contiguous().to("cpu")) for name, value in tensors]
        named, count = _convert.array("const ls_named *", dense, keep)
        words = _convert.array("const char *const *", texts, keep)[0] if texts else NULL
        _check(lib.ls_safetensors_save(_convert.text(path), named, count, words))


def load_tensors(path):
    """Returns copies of the tensors of a safetensors file by their names."""
    file = _functions.function("ls_safetensors_load")(path)
    entries = (lib.ls_safetensors_at(file._ptr, i) for i in range(lib.ls_safetensors_count(file._ptr)))
    found = {ffi.string(each.name).decode(): new_tensor(lib.ls_clone(each.tensor)) for each in entries}
    file.close()
    return found


def save(self, path, metadata=None):
    """Saves parameters and buffers to a safetensors file."""
    keep, texts = [], [each for pair in (metadata or {}).items() for each in pair]
    words = _convert.array("const char *const *", texts, keep)[0] if texts else NULL
    _check(lib.ls_module_save(_convert.object_argument(self, "ls_module"), _convert.text(path), words))


def train(self, mode=True):
    """Sets the training mode of the module and of all modules in it. Returns the module."""
    lib.ls_module_train(_convert.object_argument(self, "ls_module"), mode)
    return self


def _format(self):
    own = _convert.object_argument(self, "ls_module")
    text = ffi.new("char[]", lib.ls_module_format(own, NULL, 0) + 1)
    lib.ls_module_format(own, text, len(text))
    return ffi.string(text).decode()


def children(self):
    """Returns the direct children by their names."""
    own = _convert.object_argument(self, "ls_module")
    return {ffi.string(lib.ls_module_child_name(own, i)).decode(): _objects.borrowed_object("ls_module", lib.ls_module_child(own, i), self)
            for i in range(lib.ls_module_child_count(own))}


# ---- optimizers ----
def step(self, closure=None):
    """Takes a step. With a closure, which computes a loss, runs backward and returns the loss, returns the loss before the step."""
    own = self._ptr or _convert.object_argument(self, "ls_optimizer")
    if closure is None:
        return _check(lib.ls_optimizer_step(own))

    def evaluate():
        loss = closure()
        return loss.item() if isinstance(loss, Tensor) else loss

    call = _convert.callback(ffi.typeof(lib.ls_optimizer_step_closure).args[1], evaluate)
    loss = ffi.new("double *")
    _check(lib.ls_optimizer_step_closure(own, call, NULL, loss))
    return loss[0]


def optimizer_maker(make):
    """The function of an optimizer, which takes a model or a list of tensors."""
    @functools.wraps(make)
    def made(parameters, **options):
        if parameters is None or isinstance(parameters, Module):
            return make(parameters, **options)
        optimizer = make(None, **options)
        optimizer.add_group(list(parameters))
        return optimizer

    return made


# ---- data ----
def dataset(input, target=None):
    """Returns a data set of arrays or tensors: sample i is row i of both.

    Shares the memory of contiguous arrays and tensors. Copies all other arrays and tensors, and arrays that from_numpy copies (read-only
    arrays, or other dtypes such as int8).
    """
    parts = [_tensor.from_numpy(each) if isinstance(each, np.ndarray) else each for each in (input, input if target is None else target)]
    parts = [each if not isinstance(each, Tensor) or each.is_contiguous() else each.contiguous() for each in parts]
    pointers = [lib.ls_alias(_convert.tensor_argument(each)) for each in parts]
    return _objects.new_object("ls_dataset", lib.ls_tensor_dataset(*pointers), [])


def split_dataset(self, fractions, seed=0):
    """Splits the samples at random into data sets with these fractions of them."""
    parts = ffi.new("ls_dataset *[]", len(fractions))
    _check(lib.ls_dataset_split(_convert.object_argument(self, "ls_dataset"), list(fractions), len(fractions), seed, parts))
    return [_objects.new_object("ls_dataset", part, [self]) for part in parts]


class Batch:
    """A rank's share of a global batch. Its tensors are valid until the next batch: copy them with .clone() to keep them."""
    __slots__ = ("input", "target", "first", "count", "global_count", "number")

    def __iter__(self):
        return iter((self.input, self.target))


def batches(self):
    """The batches of one epoch. A further loop is the next epoch."""
    own = _convert.object_argument(self, "ls_loader")
    batch, more = ffi.new("ls_batch *"), ffi.new("bool *", True)
    while True:
        _check(lib.ls_loader_next(own, batch, more))
        if not more[0]:
            return
        made = Batch()
        made.input, made.target = borrowed_tensor(batch.input, self), borrowed_tensor(batch.target, self)
        made.first, made.count, made.global_count, made.number = batch.first, batch.count, batch.global_count, batch.number
        yield made


# ---- trials ----
def trial(model, optimizer=None, criterion=None, metrics=("loss",), callbacks=(), **options):
    """Makes a trial. Metrics are names and metric objects. Callbacks may be functions of the state, called at the end of an epoch.

    The criterion is a name such as "cross_entropy", or a function of output and target. Training needs an optimizer, and a criterion
    or `step`.
    """
    names = [each for each in metrics if isinstance(each, str)]
    own = [each for each in metrics if not isinstance(each, str)]
    calls = [each if isinstance(each, Callback) else _functions.function("ls_callback_new")(on_end_epoch=each) for each in callbacks]
    if threading.current_thread() is threading.main_thread():
        calls.append(_functions.function("ls_callback_new")(name="interrupt", on_step_training=_nothing, on_step_validation=_nothing))
    results = ["loss", *names, *(ffi.string(lib.ls_metric_name(_convert.object_argument(each, "ls_metric"))).decode() for each in own)]
    made = _functions.function("ls_trial_new")(model=model, optimizer=optimizer, criterion=criterion, metrics=names or None,
                                               custom_metrics=own or None, callbacks=calls or None, **options)
    _results[made] = list(dict.fromkeys(results))
    return made


def hook(name):
    """A decorator that makes a callback of one hook: lockstep.on_sample and so on. None for other names."""
    if name not in (field for kind, field in STRUCTS["ls_callback_hooks"] if kind == "ls_callback_function"):
        return None

    def decorate(function):
        return _functions.function("ls_callback_new")(**{"name": getattr(function, "__name__", name), name: function})

    decorate.__name__ = name
    decorate.__doc__ = f"Makes a callback of a function of the trial's state, called {name.replace('_', ' ')}."
    return decorate


def _nothing(state):
    """While it runs, Python handles an interrupt by Ctrl-C, which ends the run."""


_results = weakref.WeakKeyDictionary()  # the names of metrics, by trials


def _check_result(self, name):
    """Refuses a name that no pass of the trial can have: neither a metric nor a prefix with a metric."""
    known = next((names for each, names in _results.items() if each._ptr == self._ptr), None)
    if known is not None and not any(name == each or name.endswith("_" + each) for each in known):
        raise _objects.Error(lib.LS_ERR_ARGUMENT, f'metric: there is no metric "{name}"; available: {", ".join(known)}, and with a prefix '
                             f"such as val_ or test_{_convert.hint(name, known)}")


def metric(self, name):
    """Returns the value of a metric (see ls_trial_metric), nan if it has no value yet."""
    value = lib.ls_trial_metric(_convert.object_argument(self, "ls_trial"), _convert.text(name))
    if value != value:
        _check_result(self, name)
    return value


def metric_values(self, name):
    """Returns all values of a metric in the last pass as an array, None if it has no values yet."""
    count = ffi.new("int64_t *")
    values = lib.ls_trial_metric_values(_convert.object_argument(self, "ls_trial"), _convert.text(name), count)
    if not values:
        return _check_result(self, name)
    return np.array(list(values[0:count[0]]))


def history(self):
    """Returns the results of the epochs: a list of dictionaries from names to numbers."""
    own = _convert.object_argument(self, "ls_trial")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "history.csv")
        _functions.function("ls_trial_write_history")(self, path)
        with open(path, encoding="utf-8") as file:
            names = file.readline().rstrip("\n").split(",")[1:]
    return [{name: lib.ls_trial_history(own, epoch, name.encode()) for name in names} for epoch in range(lib.ls_trial_history_count(own))]


# ---- reprs ----
def _loader_format(self):
    if not self._ptr:
        return "<closed Loader>"
    samples, batches = lib.ls_dataset_count(lib.ls_loader_dataset(self._ptr)), lib.ls_loader_batch_count(self._ptr)
    parts = [f"{samples} samples"] * (samples > 0) + [f"{batches} batches per epoch"] * (batches >= 0)
    return f"<Loader of {', '.join(parts) or 'batches'}>"


def _trial_format(self):
    if not self._ptr:
        return "<closed Trial>"
    names = next((names for each, names in _results.items() if each._ptr == self._ptr), [])
    return f"<Trial, {lib.ls_trial_history_count(self._ptr)} epochs" + (f", metrics: {', '.join(names)}>" if names else ">")


# ---- modes ----
class no_grad:
    """A `with` block in which operations are not recorded."""

    def __enter__(self):
        self._before = lib.ls_no_grad(True)

    def __exit__(self, *error):
        lib.ls_no_grad(self._before)
        return False


class autocast:
    """A `with` block in which products have this dtype: "bf16" or "f16"."""

    def __init__(self, dtype="bf16"):
        self._dtype = _convert.enum_value(dtype, "ls_dtype")

    def __enter__(self):
        self._before = lib.ls_autocast(self._dtype)
        if self._dtype not in (lib.LS_F32, lib.LS_BF16, lib.LS_F16):
            _objects.raise_error()

    def __exit__(self, *error):
        lib.ls_autocast(self._before)
        return False


def install():
    Module.__call__, Module.forward, Module.__repr__ = forward, forward, lambda self: _format(self) if self._ptr else "<closed Module>"
    Module.named_parameters = lambda self: _entries(self, "parameter")
    Module.named_buffers = lambda self: _entries(self, "buffer")
    Module.parameters = lambda self: [tensor for _, tensor in _entries(self, "parameter")]
    Module.state_dict, Module.load_state_dict, Module.save, Module.train, Module.children = state_dict, load_state_dict, save, train, children
    Module.eval = lambda self: train(self, False)
    Module.to = lambda self, device: _functions.function("ls_module_to_device")(self, device)
    Optimizer.step = step
    Dataset.split, Dataset.__len__ = split_dataset, lambda self: self.count()
    Dataset.__repr__ = lambda self: f"<Dataset of {len(self)} samples>" if self._ptr else "<closed Dataset>"
    Loader.__iter__, Loader.__len__ = batches, lambda self: self.batch_count()
    Loader.__repr__ = _loader_format
    Trial.metric, Trial.metric_values, Trial.history, Trial.__repr__ = metric, metric_values, history, _trial_format
    trial.__doc__ = trial.__doc__.rstrip() + _convert.options_text("ls_trial_options", (*trial.__code__.co_varnames[:5], "custom_metrics"))
