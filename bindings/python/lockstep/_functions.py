"""Makes a Python function of each function of the library, when it is first used.

Options become keyword arguments, arrays with their counts become lists, pointers to results become results, and a failure is a
lockstep.Error. The code of each function is generated from its declaration, so that a call costs little more than the call in C.
"""
import keyword

from lockstep import _convert, _dlpack, _objects
from lockstep._declarations import ENUMS, FUNCTIONS, HANDLES, STRUCTS
from lockstep._library import ffi, lib
from lockstep._objects import NULL, Tensor

# Functions that return a pointer to an object of another owner.
BORROWED = {"ls_grad", "ls_world", "ls_module_child", "ls_module_find_child", "ls_module_parameter", "ls_module_buffer", "ls_module_find",
            "ls_loader_dataset", "ls_outer_optimizer", "ls_safetensors_find", "ls_npz_find"}
# Functions that return their first argument, or an object that replaces it.
RETURNS_ARGUMENT = {"ls_module_to_device", "ls_keep", "ls_module_retain", "ls_dataset_retain", "ls_module_finish"}
# Functions that move parameters into new memory, like all constructors of optimizers. They fail while an export of a parameter exists.
MOVES_PARAMETERS = {"ls_data_parallel", "ls_data_parallel_gather", "ls_outer_new", "ls_sync_parameters", "ls_sync_gradients",
                    "ls_distribute_gradients"}
# Results that tell a failure.
FAILURES = {"ls_module_hash": 0, "ls_module_add_hooks": 0}
# Functions with arguments that no rule covers: other modules of the package have them, or lockstep.lib.
SPECIAL = {"ls_custom", "ls_forward_many", "ls_split", "ls_dataset_split", "ls_gradcheck", "ls_gradcheck_distributed", "ls_loader_next",
           "ls_trial_metric_values", "ls_from", "ls_from_memory", "ls_from_strided", "ls_at", "ls_item", "ls_scope_begin",
           "ls_scope_end", "ls_thread_end", "ls_keep", "ls_release", "ls_finalize", "ls_comm_from_mpi_handle", "ls_spawn", "ls_run_threads"}
DEFAULTS = {"bool": "False", "ls_reduction": "'sum'", "ls_loss_reduction": "'mean'", "ls_dtype": "'f32'"}
OPTIONAL = {"bias"}
ALIASES = {"in": "in_", "lambda": "lambda_"}

_made = {}


class Builder:
    """The source of a Python function for a function of the library."""

    def __init__(self, name):
        self.name = name
        self.result, self.parameters = FUNCTIONS[name]
        self.signature, self.arguments, self.lines, self.outs, self.kept, self.tensors = [], [], [], [], [], []
        self.keywords = None
        self.names = {"_call": getattr(lib, name), "_Tensor": Tensor, "_NULL": NULL, "_convert": _convert, "_objects": _objects,
                      "_ffi": ffi, "_lib": lib, "_error": _objects.raise_error, "_new": _objects.new_tensor,
                      "_tensor": _convert.tensor_argument, "_sweep": _dlpack.sweep, "_state": _objects.state, "_outside": _objects.call_outside}
        index = 0
        while index < len(self.parameters):
            index += self.parameter(index)
        self.set_user()
        if name in MOVES_PARAMETERS or self.result == "ls_optimizer *" and name not in BORROWED:
            self.lines.insert(0, "_sweep()")  # no consumer may use these exports any longer

    def parameter(self, index):
        """Adds a parameter. Returns the number of C parameters that it stands for."""
        kind, name = self.parameters[index]
        own = ALIASES.get(name, name + "_" if keyword.iskeyword(name) else name)
        base = kind.replace("const ", "").rstrip(" *")
        stars = kind.count("*")
        following = self.parameters[index + 1] if index + 1 < len(self.parameters) else ("", "")
        if kind == "const ls_named **":
            self.out("_ffi.new('const ls_named **')", own)
            self.out("_ffi.new('int *')", "count")
            self.outs = ["_named"]
            return 2
        if _convert.is_callback(kind):
            self.signature.append(own)
            self.lines += ["_keep = []", f"c_{own} = _convert.field_value({kind!r}, '', {own!r}, {own}, _keep, _type_{own})"]
            self.names["_type_" + own] = ffi.typeof(getattr(lib, self.name)).args[index]
            self.arguments.append("c_" + own)
            self.kept.append("_keep")
        elif kind == "void *" and name == "user":
            self.arguments.append("_NULL")
        elif base in HANDLES and stars == 1:
            self.handle(kind, own, base)
        elif stars == 2 and base in HANDLES and not kind.startswith("const") and following[1].endswith("count"):
            return self.array(kind, own)
        elif stars == 2 and base in HANDLES and "const" in kind:
            return self.array(kind, own)
        elif base == "char" and stars == 1:
            self.signature.append(own)
            self.arguments.append(f"_convert.text({own})")
        elif base in STRUCTS and stars == 1 and kind.startswith("const") and not following[1].endswith("count"):
            self.options(base, own)
        elif kind.startswith("const") and stars and following[1].endswith("count"):
            return self.array(kind, own)
        elif stars and base == "char":
            self.signature.append(own)
            self.lines += ["_texts = []", f"c_{own} = _convert.array({kind!r}, {own}, _texts)[0] if {own} is not None else _NULL"]
            self.arguments.append("c_" + own)
        elif stars and base in STRUCTS and not kind.startswith("const"):
            self.out(f"_ffi.new('{base} *')", own, is_struct=True)
        elif stars and base != "void" and not kind.startswith("const"):
            self.out(f"_ffi.new('{base} {'*' * stars}')", own, handle=base if stars == 2 else None)
        else:
            self.plain(kind, own, base, stars)
        return 1

    def handle(self, kind, own, base):
        if base == "ls_tensor":
            self.signature.append(own + ("=None" if own in OPTIONAL else ""))
            self.arguments.append(f"{own}._ptr if type({own}) is _Tensor else _tensor({own})")
        else:
            self.signature.append(own)
            self.names["_class_" + base] = _objects.class_of(base)
            self.arguments.append(f"{own}._ptr if type({own}) is _class_{base} and {own}._ptr else _convert.object_argument({own}, '{base}')")
        self.kept.append(f"[{own}]")

    def array(self, kind, own):
        self.signature.append(own)
        self.lines += [f"_keep_{own} = []", f"c_{own}, _count_{own} = _convert.array({kind!r}, _convert.pairs({own}), _keep_{own})"]
        self.arguments += ["c_" + own, "_count_" + own]
        self.kept.append("_keep_" + own)
        return 2

    def options(self, struct, own):
        self.keywords = list(_convert.keyword_fields(struct))
        self.struct = struct
        self.lines += ["_keep_options = []",
                       f"_options = _convert.options({struct!r}, options, _keep_options) if options else _NULL"]
        if not struct.endswith("_options"):  # hooks and functions are needed
            self.lines[-1] = f"_options = _convert.options({struct!r}, options, _keep_options)"
        self.arguments.append("_options")
        self.kept.append("_keep_options")

    def set_user(self):
        """A struct with `release` frees what its functions need when the library no longer uses them."""
        if self.keywords and "release" in self.keywords and "user" in (name for _, name in self.parameters):
            self.lines.append("_user, _options.release = _convert.held_user(list(_keep_options))")
            place = [name for _, name in self.parameters].index("user")
            self.arguments[place] = "_user"
            self.kept.remove("_keep_options")

    def out(self, made, own, handle=None, is_struct=False):
        self.lines.append(f"c_{own} = {made}")
        self.arguments.append("c_" + own)
        if handle == "ls_tensor":
            self.tensors.append("c_" + own)
            self.outs.append(f"_new(c_{own}[0]) if c_{own}[0] else None")
        elif handle in HANDLES:
            keep = ", ".join(part.split("=")[0] for part in self.signature)
            self.outs.append(f"_objects.new_object('{handle}', c_{own}[0], [{keep}]) if c_{own}[0] else None")
        else:
            self.outs.append(f"c_{own}" if is_struct else f"c_{own}[0]")

    def plain(self, kind, own, base, stars):
        default = DEFAULTS.get(base) if stars == 0 else None
        if stars == 0 and base in ENUMS and default is None:
            default = "0"
        self.signature.append(own + (f"={default}" if default else ""))
        if stars == 0 and base in ENUMS:
            self.names["_" + base] = _convert.CONSTANTS[base]
            self.arguments.append(f"_{base}[{own}]")
        elif base == "ls_shape":
            self.arguments.append(f"_convert.shape({own})")
        elif base == "ls_axes":
            self.arguments.append(f"_convert.axes({own})")
        else:
            self.arguments.append(own)

    def parameters_text(self):
        """The signature: a parameter has a default only if all that follow have one."""
        parts, is_open = [], True
        for part in reversed(self.signature):
            is_open = is_open and "=" in part
            parts.append(part if is_open else part.split("=")[0])
        return ", ".join(reversed(parts)) + (", **options" if self.keywords and parts else "**options" if self.keywords else "")

    def ending(self):
        """The lines after the call."""
        result, name = self.result, self.name
        base = result.replace("const ", "").rstrip(" *")
        first = self.signature[0].split("=")[0] if self.signature else "None"
        keep = " + ".join(self.kept) or "[]"
        outs = ", ".join(self.outs)
        if outs == "_named":
            return ["if _result: _error(_result)",
                    "return {_ffi.string(c_tensors[0][i].name).decode(): _new(_lib.ls_clone(c_tensors[0][i].tensor)) for i in range(c_count[0])}"]
        if result == "ls_status":
            held = [f"_convert.keep_callbacks({first}, {keep})"] if any("_keep" in each for each in self.kept) else []
            return ["if _result: _error(_result)", *held] + ([f"return {outs}"] if outs else [])
        if name in BORROWED and result == "ls_tensor *":
            return [f"return _objects.borrowed_tensor(_result, {first})"]
        if name in BORROWED:
            return [f"return _objects.borrowed_object('{base}', _result, {first})"]
        if name in RETURNS_ARGUMENT:
            return ["if not _result: _error()", f"return {first}"]
        if result == "ls_tensor *":
            return self.tensor_ending(outs)
        if base in HANDLES and result.count("*") == 1:
            if base not in ("ls_callback", "ls_metric", "ls_trial", "ls_schedule"):
                return [f"return _objects.new_object('{base}', _result, {keep})"]
            return [f"_items = {keep}", f"_made = _objects.new_object('{base}', _result, _convert.take(_items, not _result))",
                    "_convert.give(_items, _made)", "return _made"]
        if result == "const char *":
            return ["return _ffi.string(_result).decode(errors='replace') if _result else None"]
        lines = [f"if _result == {FAILURES[name]}: _error()"] if name in FAILURES else []
        value = {"ls_shape": "_convert.sizes_of(_result)", "ls_dtype": "_convert.DTYPE_NAMES[_result]"}.get(result, "_result")
        if result == "void":
            return lines + ([f"return {outs}"] if outs else [])
        return lines + [f"return {value}" + (f", {outs}" if outs else "")]

    def tensor_ending(self, outs):
        """A function may return one of its arguments, whose Python object then stands for the result."""
        lines = []
        for part, (kind, _) in zip(self.signature, [each for each in self.parameters if "**" not in each[0]]):
            if kind == "ls_tensor *":
                own = part.split("=")[0]
                lines.append(f"if type({own}) is _Tensor and _result == {own}._ptr and _result: return {own}")
                break
        return lines + ["return _new(_result)" + (f", {outs}" if outs else "")]

    def call(self):
        arguments = ", ".join(self.arguments)
        if self.result != "ls_tensor *" and not self.tensors or self.name in BORROWED:
            return [f"_result = _call({arguments})"]
        outputs = f", outputs=({', '.join(self.tensors)},)" if self.tensors else ""
        return [f"if _state.frame is None: _result = _outside(_call, {arguments}{outputs})", f"else: _result = _call({arguments})"]

    def make(self):
        own = self.name[3:]
        body = [*self.lines, *self.call(), *self.ending()]
        source = f"def {own}({self.parameters_text()}):\n" + "".join(f"    {line}\n" for line in body)
        if keyword.iskeyword(own):
            source = source.replace(f"def {own}(", f"def {own}_(", 1)
        exec(compile(source, f"<lockstep.{own}>", "exec"), self.names)
        function = self.names[own if not keyword.iskeyword(own) else own + "_"]
        function.__doc__ = self.documentation()
        function.__module__ = "lockstep"
        return function

    def documentation(self):
        prototype = f"{self.result} {self.name}({', '.join(f'{kind} {name}' for kind, name in self.parameters)})".replace("* ", "*")
        options = _convert.options_text(self.struct) if self.keywords else ""
        return f"Calls {prototype}, described in the C headers.{options}"


def function(name):
    """The Python function of a C function such as ls_matmul."""
    found = _made.get(name)
    if found is None:
        if name in SPECIAL or any(kind in ("const void *", "void *") and own != "user" for kind, own in FUNCTIONS[name][1]):
            raise AttributeError(f"lockstep: {name} has no Python form; call lockstep.lib.{name}")
        found = _made[name] = Builder(name).make()
    return found


def named(name, prefixes=("ls_",)):
    """The Python function of a name such as "adam": ls_adam, ls_adam_with or ls_adam_new. None if there is none."""
    for prefix in prefixes:
        for full in (f"{prefix}{name}_with", f"{prefix}{name}_new", f"{prefix}{name}_of", f"{prefix}{name}"):
            if full in FUNCTIONS:
                return function(full)
    return None


def method(owner, name):
    """The method `name` of a class: a function whose first argument is an object of the class."""
    handle = owner._handle
    for full in (f"{handle}_{name}_with", f"{handle}_{name}", f"ls_{name}_with", f"ls_{name}"):
        parameters = FUNCTIONS[full][1] if full in FUNCTIONS else ()
        if parameters and parameters[0][0].replace("const ", "") == handle + " *":
            made = function(full)
            setattr(owner, name, made)
            return made
    names = tensor_methods() if owner is Tensor else [each[len(handle) + 1:] for each in FUNCTIONS if each.startswith(handle + "_")]
    near = "" if name.startswith("_") else _convert.hint(name, [*dir(owner), *names])
    raise AttributeError(f"lockstep.{owner.__name__} has no attribute {name!r}{near}")


def tensor_methods():
    """The names of the functions whose first argument is a tensor."""
    return [name[3:] for name, (_, parameters) in FUNCTIONS.items() if parameters and parameters[0][0].endswith("ls_tensor *")]
