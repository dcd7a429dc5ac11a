"""Operations with a Python function for the values and one for the gradients, and the check of gradients."""
from lockstep import _convert, _objects
from lockstep._library import ffi, lib
from lockstep._objects import NULL


def custom(inputs, forward, backward=None, outputs=1, name="custom", by_sample=False):
    """Applies an operation. Gradients flow through it. Returns one tensor, or a list if `outputs` is above 1.

    forward(*inputs) returns the outputs. backward(inputs, outputs, gradients) returns the gradients of the inputs, None for zero;
    `gradients` are the gradients of the outputs. The functions get tensors on the CPU. With by_sample, each result depends only on
    its sample (see ls_custom_op).
    """
    def run_forward(call):
        results = _as_list(forward(*_tensors(call.inputs, call.input_count)), outputs, "forward")
        for i, result in enumerate(results):
            call.outputs[i] = _convert.result_pointer(result)

    def run_backward(call):
        gradients = backward(_tensors(call.inputs, call.input_count), _tensors(call.outputs, outputs), _tensors(call.output_gradients, outputs))
        for i, gradient in enumerate(_as_list(gradients, call.input_count, "backward")):
            if gradient is not None and call.wanted[i]:
                call.input_gradients[i] = _convert.result_pointer(gradient)

    keep = []
    given = {"name": name, "forward": run_forward, "backward": backward and run_backward, "outputs": outputs, "by_sample": by_sample,
             "on_host": True}
    op = _convert.options("ls_custom_op", given, keep)
    user, op.release = _convert.held_user(keep)
    items = list(inputs)
    pointers = ffi.new("ls_tensor *[]", [_convert.tensor_argument(each) for each in items] or [NULL])
    made = ffi.new("ls_tensor *[]", outputs)
    arguments = (op, pointers, len(items), user, made)
    if _objects.state.frame is None:
        first = _objects.call_outside(lib.ls_custom, *arguments, outputs=[made])
    else:
        first = lib.ls_custom(*arguments)
    if not first:
        _objects.raise_error()
    results = [_objects.new_tensor(each) for each in made]
    return results if outputs > 1 else results[0]


def _tensors(pointers, count):
    return [_objects.callback_tensor(pointers[i]) for i in range(count)]


def _as_list(values, count, name):
    values = list(values) if isinstance(values, (tuple, list)) else [values]
    if len(values) != count:
        raise ValueError(f"custom: {name} returned {len(values)} tensors, but {count} are needed")
    return values


def gradcheck(function, inputs, comm=None, **options):
    """Compares the gradients of function(*inputs) with central differences. Inputs are f64 tensors. Raises an error if they differ."""
    keep = []
    items = list(inputs)
    ctype = ffi.typeof("ls_function")

    def call(pointers, count):
        return function(*_tensors(pointers, count))

    made = _convert.callback(ctype, call)
    given = _convert.options("ls_gradcheck_options", options, keep) if options else NULL
    pointers = ffi.new("ls_tensor *[]", [_convert.tensor_argument(each) for each in items] or [NULL])
    if comm is None:
        status = lib.ls_gradcheck(made, pointers, len(items), NULL, given)
    else:
        status = lib.ls_gradcheck_distributed(_convert.object_argument(comm, "ls_comm"), made, pointers, len(items), NULL, given)
    if status:
        _objects.raise_error(status)
